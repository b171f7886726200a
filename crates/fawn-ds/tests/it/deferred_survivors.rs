//! Deferred survivors: records in the survivors' stream that wait for their verification while a checkpoint is due.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Its hash is above those of all other keys here, so that it is the last one to be confirmed.
const KEY: &[u8] = b"the key 78709";
const SURVIVORS: u8 = 1;
const PUT: u8 = 1;
const TOMBSTONE: u8 = 2;

fn options(checkpoint_log_bytes_min: u64) -> Options {
    Options { checkpoint_log_bytes_min, space_amplification_max_percent: 100, ..small(Durability::Sync) }
}

fn open(disk: &SimDisk, now: Now, checkpoint_log_bytes_min: u64) -> TestNode {
    TestNode::open(disk, options(checkpoint_log_bytes_min), now).unwrap()
}

fn put(key: impl AsRef<[u8]>, value: u8) -> TestWrite {
    TestWrite { key: key.as_ref().to_vec(), value: Some(vec![value; 400]), expires_at_ms: 0 }
}

fn turn(node: &mut TestNode, writes: &[TestWrite]) {
    node.append(writes).unwrap();
    node.turn();
    node.now = node.now.plus_ms(5);
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

fn holds_key(disk: &SimDisk, name: &str) -> bool {
    disk.contents(name).unwrap().windows(KEY.len()).any(|window| window == KEY)
}

/// Kinds of the key's records in the survivors' stream.
fn survivors(disk: &SimDisk) -> Vec<u8> {
    let contents = segments(disk).into_iter().map(|name| disk.contents(&name).unwrap());
    let of_survivors = contents.filter(|bytes| bytes[60] == SURVIVORS);
    let kinds = |bytes: Vec<u8>| {
        let found = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
        found.map(|(at, _)| bytes[at - 24 + 7]).collect::<Vec<_>>()
    };
    of_survivors.flat_map(kinds).collect()
}

/// Overwrites some keys and adds others until a record of the key is among the survivors.
fn clean_until(disk: &SimDisk, node: &mut TestNode, round: &mut usize, kind: u8) {
    for _ in 0..2000 {
        if survivors(disk).contains(&kind) {
            return;
        }
        overwrite_and_add(node, *round);
        *round += 1;
    }
    panic!("no survivor: {:?} {:?}", node.engine.log_report(), node.engine.stats());
}

/// A killed store whose checkpoint has an old version of the key. Behind it, a newer one if it `was_put`, and then a delete were
/// copied to the survivors' stream. Returns the segment with the old version.
fn killed_store(disk: &SimDisk, now: Now, was_put: bool) -> String {
    let mut node = open(disk, now, 16 << 10);
    let first = fill(disk, &mut node);
    assert!(node.engine.stats().checkpoints > 1);
    drop(node);
    disk.kill(1);
    let mut node = open(disk, now, u64::MAX);
    assert!(node.report.checkpoint_entries.is_some(), "{:?}", node.report);
    let mut round = 0;
    if was_put {
        turn(&mut node, &[put(KEY, 2)]);
        clean_until(disk, &mut node, &mut round, PUT);
    }
    turn(&mut node, &[TestWrite { value: None, ..put(KEY, 0) }]);
    clean_until(disk, &mut node, &mut round, TOMBSTONE);
    node.settle();
    disk.kill(2);
    first
}

/// The first byte of the key's value.
fn value(node: &mut TestNode) -> Option<u8> {
    node.get(KEY, View::Committed).unwrap().map(|entry| entry.value[0])
}

/// Fills the first segment, which has the key's old version, and others. Returns its name.
fn fill(disk: &SimDisk, node: &mut TestNode) -> String {
    turn(node, &[put(KEY, 1)]);
    let first = segments(disk).into_iter().find(|name| holds_key(disk, name)).unwrap();
    for i in 0..40 {
        turn(node, &(0..16).map(|at| put(format!("stays {i} {at}"), 1)).collect::<Vec<_>>());
    }
    node.settle();
    for _ in 0..50 {
        node.turn();
    }
    first
}

fn overwrite_and_add(node: &mut TestNode, round: usize) {
    let writes = |of: &str| (0..10).map(|i| put(format!("{of}{i}"), 2)).collect::<Vec<_>>();
    turn(node, &writes(&format!("added {round} ")));
    turn(node, &writes("often "));
}

#[test]
fn a_checkpoint_beside_an_unreadable_old_version_does_not_bring_a_deleted_key_back() {
    let (disk, now) = (SimDisk::new(SimOptions::default()), Now::at(1_000_000));
    let first = killed_store(&disk, now, true);
    let mut node = open(&disk, now, 16 << 10);
    disk.make_unreadable(&first, 4096..64 << 10);
    while node.engine.log_report().verifications_queued > 0 {
        node.turn();
    }
    node.now = node.now.plus_ms(20_000);
    for i in 0..200 {
        if node.engine.stats().checkpoints == 0 {
            turn(&mut node, &[put(format!("later {i}"), 3)]);
        }
    }
    assert_eq!(value(&mut node), None);
    disk.heal();
    disk.kill(3);
    let mut node = open(&disk, now, 16 << 10);
    assert_eq!(value(&mut node), None, "{:?}", node.report);
}

#[test]
fn a_close_during_a_slow_read_does_not_bring_a_deleted_key_back() {
    let (disk, now) = (SimDisk::new(SimOptions::default()), Now::at(1_000_000));
    killed_store(&disk, now, true);
    let mut node = open(&disk, now, 16 << 10);
    while node.engine.verifications_deferred() > 4 {
        node.turn();
    }
    disk.hang(OpKind::Read);
    for _ in 0..20 {
        node.turn();
    }
    assert_eq!(node.engine.verifications_deferred(), 0, "the last ones are in flight");
    assert!(disk.hung() > 0 && disk.hung() <= 4);
    drop(node.engine.close().unwrap());
    disk.heal();
    disk.release_hung();
    let mut node = open(&disk, now, 16 << 10);
    assert_eq!(value(&mut node), None, "{:?}", node.report);
}

#[test]
fn the_segment_of_a_delete_whose_old_version_is_unreadable_is_cleaned_without_a_panic() {
    let (disk, now) = (SimDisk::new(SimOptions::default()), Now::at(1_000_000));
    let mut node = open(&disk, now, 16 << 10);
    let first = fill(&disk, &mut node);
    disk.kill(1);
    let mut node = open(&disk, now, 16 << 10);
    node.settle();
    disk.make_unreadable(&first, 4096..64 << 10);
    turn(&mut node, &[TestWrite { value: None, ..put(KEY, 0) }]);
    for round in 0..300 {
        overwrite_and_add(&mut node, round);
        assert_eq!(value(&mut node), None);
    }
    assert!(node.engine.stats().checkpoints > 1 && node.engine.stats().moved_records > 0);
    disk.kill(2);
    let mut node = open(&disk, now, 16 << 10);
    assert_eq!(value(&mut node), None, "{:?}", node.report);
    disk.heal();
    disk.kill(3);
    let mut node = open(&disk, now, 16 << 10);
    assert_eq!(value(&mut node), None, "{:?}", node.report);
}

#[test]
fn a_store_opens_with_a_survivors_tombstone_whose_old_version_is_unreadable() {
    let (disk, now) = (SimDisk::new(SimOptions::default()), Now::at(1_000_000));
    let first = killed_store(&disk, now, false);
    disk.make_unreadable(&first, 4096..64 << 10);
    let mut node = open(&disk, now, 16 << 10);
    assert!(node.report.checkpoint_entries.is_some(), "{:?}", node.report);
    assert_eq!(value(&mut node), None);
    turn(&mut node, &[put("another key", 4)]);
    disk.heal();
    disk.kill(3);
    let mut node = open(&disk, now, 16 << 10);
    assert_eq!(value(&mut node), None, "{:?}", node.report);
}

/// Texts of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn core::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

/// The log grows without a checkpoint, for as long as the old version cannot be read.
#[test]
fn an_unreadable_old_version_that_prevents_checkpoints_is_logged_once() {
    let (disk, now) = (SimDisk::new(SimOptions::default()), Now::at(1_000_000));
    let first = killed_store(&disk, now, true);
    disk.make_unreadable(&first, 4096..64 << 10);
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut node = open(&disk, now, 16 << 10);
        for i in 0..200 {
            turn(&mut node, &[put(format!("later {i}"), 3)]);
            node.now = node.now.plus_ms(1_000);
        }
        assert_eq!(node.engine.stats().checkpoints, 0);
    });
    let warnings = warnings.0.lock().unwrap();
    let of_checkpoints: Vec<_> = warnings.iter().filter(|text| text.contains("checkpoint")).collect();
    assert_eq!(of_checkpoints.len(), 1, "{warnings:?}");
}

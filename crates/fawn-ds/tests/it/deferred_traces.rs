//! Keys that an opening defers in a store with runs: traces of sorted records, and tombstones of expired ones.
use crate::sorted_files::{put, sort_out};
use crate::sorted_late::segments_with;
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, TestWrite};
use fawn_ds::internals::format::checkpoint;
use fawn_ds::internals::{Lookup, Options, RecordLayout, View};
use fawn_flash::sim::{Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, TimeMs};

/// Sorts each segment once it is sealed. No checkpoint is made, and nothing is cleaned.
fn each_segment() -> Options {
    Options {
        sort_bytes: 1,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..sorted(Durability::Sync)
    }
}

fn number_of(node: &mut TestNode, key: &[u8]) -> Option<u8> {
    node.get(key, View::Committed).unwrap().map(|entry| entry.value[0])
}

/// More than a segment of records with this name.
fn fill_segment(node: &mut TestNode, name: &str) {
    for number in 0..220 {
        put(node, format!("{name}-{number}").as_bytes(), Some(&[7; 290]));
        node.turn();
    }
}

/// The first reads of verifications hang, and no later one.
fn hang_verifications(disk: &SimDisk, node: &mut TestNode) {
    disk.hang(OpKind::Read);
    node.engine.submit(node.now);
    disk.end_faults(OpKind::Read);
    assert_eq!(disk.hung(), 4);
}

/// A key has its newest value in a run, a trace of that in a sorted segment, and two older values in segments that could not be
/// sorted. The opening defers the trace.
fn with_deferred_trace(durability: Durability) -> (SimDisk, TestNode, Vec<u8>) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min: 16 << 10, ..each_segment() };
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    // The key of the first record is confirmed last.
    let key = b"key".to_vec();
    let others: Vec<Vec<u8>> = (0..8).map(|number| format!("other-{number}").into_bytes()).collect();
    for value in 1..=2 {
        put(&mut node, &key, Some(&[value; 200]));
        others.iter().for_each(|other| put(&mut node, other, Some(&[value; 200])));
        fill_segment(&mut node, &format!("older {value}"));
    }
    put(&mut node, &key, Some(&[3; 200]));
    fill_segment(&mut node, "newer");
    node.settle();
    node.engine.close().unwrap();
    // Both segments with older values are passed over.
    let mut node = TestNode::open_in_chain(&disk, each_segment(), Now::at(2_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some() && node.engine.verifications_deferred() == 0);
    for value in [1, 2] {
        let name = String::from_utf8(vec![value; 190]).unwrap();
        segments_with(&disk, &name).iter().for_each(|name| disk.make_unreadable(name, 4096..64 << 10));
    }
    for _ in 0..3 {
        sort_out(&mut node);
        node.now = node.now.plus_ms(10_000);
    }
    assert!(node.engine.stats().cleaning_failed >= 2 && node.engine.runs() > 0, "{:?}", node.engine.stats());
    assert_eq!(number_of(&mut node, &key), Some(3));
    let now = node.now;
    drop(node);
    disk.heal();
    disk.kill(1);
    let checkpoints = disk.names().into_iter().filter(|name| checkpoint::is_file_name(name));
    checkpoints.for_each(|name| disk.flip_bits(&name, 5_000, 8));
    let node = TestNode::open_in_chain(&disk, Options { durability, ..each_segment() }, now).unwrap();
    assert!(node.report.checkpoint_entries.is_none() && node.engine.verifications_deferred() > 8);
    (disk, node, key)
}

/// Before the trace is confirmed, the segment with the oldest value is sorted: the new run must not have it.
#[test]
fn a_sort_leaves_out_what_a_deferred_trace_hides() {
    let (disk, mut node, key) = with_deferred_trace(Durability::Sync);
    let before = node.engine.runs();
    hang_verifications(&disk, &mut node);
    assert_eq!(number_of(&mut node, &key), Some(3));
    for _ in 0..2_000 {
        node.turn();
        node.now = node.now.plus_ms(20);
    }
    assert!(node.engine.verifications_deferred() > 0);
    assert!(node.engine.stats().runs_listed > 0 && !node.engine.is_sorting(), "{before} {:?}", node.engine.stats());
    assert_eq!(number_of(&mut node, &key), Some(3), "while it is deferred");
    disk.release_hung();
    node.settle();
    assert_eq!(number_of(&mut node, &key), Some(3), "once it is confirmed");
}

/// Keeps the segment of the key, unless that is in memory: a read of it hangs.
fn pin(disk: &SimDisk, node: &mut TestNode, key: &[u8]) -> bool {
    let found = node.engine.lookup(RANGE, TestNode::hash(key), key, View::Committed, node.now.wall).unwrap();
    let Lookup::Read(plan) = found else { return false };
    disk.hang(OpKind::Read);
    node.engine.read(plan, 7);
    disk.end_faults(OpKind::Read);
    true
}

/// Overwrites other keys until this is so.
fn overwrite_until(node: &mut TestNode, mut is_reached: impl FnMut(&mut TestNode) -> bool) {
    for round in 0..20_000 {
        if is_reached(node) {
            return;
        }
        put(node, format!("often-{}", round * 7 % 401).as_bytes(), Some(&[round as u8; 290]));
        node.turn();
        node.now = node.now.plus_ms(2);
    }
    panic!("{:?} {:?}", node.engine.stats(), node.engine.segments_kept());
}

/// An expiring value, its copy, and the tombstone that cleaning made of the copy are all there after a kill, in a store where
/// deletes have index entries. A checkpoint has the value, and the opening defers first the copy, then the tombstone.
#[test]
fn the_tombstone_of_an_expired_record_counts_beside_the_record_in_a_checkpoint() {
    const NAME: &str = "the key that expires";
    let expires_at_ms = 50_000_000;
    let later = Options { sort_bytes: 1 << 30, ..each_segment() };
    let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min: 16 << 10, ..later.clone() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, first, Now::at(1_000_000)).unwrap();
    let write = TestWrite { key: NAME.as_bytes().to_vec(), value: Some(vec![1; 200]), expires_at_ms };
    node.append(&[write]).unwrap();
    put(&mut node, b"first", Some(&[1; 200]));
    (0..401).for_each(|number| put(&mut node, format!("often-{number}").as_bytes(), Some(&[0; 290])));
    node.settle();
    node.engine.close().unwrap();
    let options = Options {
        space_amplification_max_percent: 0,
        capacity_bytes: Some(24 * (64 << 10)),
        record_cache_bytes: Some(0),
        ..later
    };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    let holders = || segments_with(&disk, NAME).len();
    assert!(pin(&disk, &mut node, b"first"));
    overwrite_until(&mut node, |_| holders() == 2);
    overwrite_until(&mut node, |node| pin(&disk, node, NAME.as_bytes()));
    node.engine.set_chain_time(RANGE, TimeMs(2 * expires_at_ms));
    overwrite_until(&mut node, |_| holders() == 3);
    for _ in 0..20 {
        node.turn();
    }
    assert_eq!(holders(), 3, "the value, its copy and the tombstone");
    let now = node.now;
    drop(node);
    disk.kill(1);
    disk.release_hung();
    let options = Options { layout: RecordLayout::Log, space_amplification_max_percent: 10_000, ..options };
    let mut node = TestNode::open_in_chain(&disk, options, now).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    assert_eq!(number_of(&mut node, NAME.as_bytes()), None, "while it is deferred");
    node.settle();
    assert_eq!(number_of(&mut node, NAME.as_bytes()), None, "once it is confirmed");
}

/// A put has replaced the trace, so the sort takes the oldest value, for the index has that. A loss of the put would leave it the newest.
#[test]
fn a_sort_waits_for_the_put_that_replaced_a_deferred_trace() {
    let (disk, mut node, key) = with_deferred_trace(Durability::Memory);
    hang_verifications(&disk, &mut node);
    let epoch = node.engine.next_sole_epoch(RANGE).unwrap();
    node.engine.begin_sole_epoch(RANGE, epoch, None).unwrap();
    put(&mut node, &key, Some(&[4; 200]));
    let replaced_by = node.engine.progress(RANGE).appended;
    disk.hang(OpKind::Read);
    node.engine.submit(node.now);
    disk.end_faults(OpKind::Read);
    while node.engine.progress(RANGE).committed < replaced_by {
        node.turn();
    }
    assert_eq!((disk.hung(), number_of(&mut node, &key)), (5, Some(4)));
    let mut listed = node.engine.stats().runs_listed;
    for turn in 0..2_000 {
        node.turn();
        node.now = node.now.plus_ms(20);
        if core::mem::replace(&mut listed, node.engine.stats().runs_listed) < node.engine.stats().runs_listed {
            let image = disk.image(Loss::Power, turn);
            let mut opened = TestNode::open_in_chain(&image, each_segment(), node.now).unwrap();
            let found = number_of(&mut opened, &key);
            assert!(matches!(found, Some(3 | 4)), "turn {turn}: {found:?}");
        }
    }
    assert!(node.engine.verifications_deferred() > 0 && listed > 1, "{:?}", node.engine.stats());
    assert!(node.engine.progress(RANGE).synced >= replaced_by);
    disk.release_hung();
}

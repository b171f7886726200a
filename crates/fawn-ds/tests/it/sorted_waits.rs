//! Waits of the sorted tier, and lookups beside its merges while a record is pending.
use crate::sorted_files::put;
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, TestWrite};
use fawn_ds::internals::RecordLayout;
use fawn_ds::internals::{Event, Lookup, Options, RecordRef, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, TimeMs};

/// The key was deleted before the tier began, so that the delete has no index entry. If the tier waited for its verification, the
/// index would grow past the budget.
#[test]
fn one_unreadable_old_version_does_not_keep_the_tier_from_beginning() {
    for is_unreadable in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options {
            layout: RecordLayout::Auto,
            memory_bytes: 1 << 20,
            sort_bytes: 192 << 10,
            checkpoint_log_bytes_min: u64::MAX,
            ..sorted(Durability::Memory)
        };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
        (0..400_u64).for_each(|number| put(&mut node, format!("old-{number}").as_bytes(), Some(&[1; 300])));
        node.settle();
        node.engine.close().unwrap();
        // None of their pages is in memory.
        let mut node = TestNode::open(&disk, options, Now::at(2_000)).unwrap();
        if is_unreadable {
            for name in disk.names().iter().filter(|name| name.starts_with("segment-")) {
                disk.make_unreadable(name, 4096..64 << 10);
            }
        }
        put(&mut node, b"old-3", None);
        (0..20).for_each(|_| _ = node.turn());
        assert_eq!(node.engine.log_report().keys_apart, u64::from(is_unreadable));
        for number in 0..150_000_u64 {
            put(&mut node, format!("key-{number:06}").as_bytes(), Some(&[7; 20]));
            if number % 64 == 0 {
                node.turn();
                node.now = node.now.plus_ms(1);
            }
        }
        let memory = node.engine.memory();
        assert!(node.engine.runs() > 0, "unreadable: {is_unreadable}, {memory:?}");
        assert!(memory.index_bytes < (1 << 20) * 9 / 10, "unreadable: {is_unreadable}, {memory:?}");
    }
}

/// A complete job waits until a clear is listed, which is synced first. In the mode `memory` nothing else asks for that, and the
/// job would keep its records in memory until a segment is full.
#[test]
fn a_job_does_not_wait_for_a_clear_until_a_segment_is_full() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..sorted(Durability::Memory) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let mut number = 0_u64;
    while !node.engine.is_sorting() {
        put(&mut node, &number.to_be_bytes(), Some(&[7; 300]));
        node.turn();
        number += 1;
        assert!(number < 10_000, "{:?}", node.engine);
    }
    // The segments are read to their ends, and the run waits for its writes.
    disk.hang(OpKind::Write);
    for _ in 0..60 {
        node.now = node.now.plus_ms(20);
        node.turn();
    }
    assert!(node.engine.is_sorting() && node.engine.runs() == 0);
    let version = node.next_version();
    node.engine.clear(RANGE, version).unwrap();
    node.commit();
    disk.end_faults(OpKind::Write);
    disk.release_hung();
    for _ in 0..100 {
        node.now = node.now.plus_ms(20);
        node.turn();
    }
    let before = (disk.counted(OpKind::Create), disk.counted(OpKind::Unlink));
    for _ in 0..500 {
        node.now = node.now.plus_ms(20);
        node.turn();
    }
    let after = (disk.counted(OpKind::Create), disk.counted(OpKind::Unlink));
    assert!(after.0 - before.0 <= 2, "{} files created by 500 polls of an idle store", after.0 - before.0);
    assert!(!node.engine.is_sorting(), "the job waits for a sync that nothing asks for, for ten seconds");
}

/// Whether a lookup of the key by this time waits for a commit.
fn is_unsettled(node: &mut TestNode, key: &[u8], now: TimeMs) -> bool {
    let hash = TestNode::hash(key);
    let mut plan = match node.engine.lookup(RANGE, hash, key, View::Committed, now).unwrap() {
        Lookup::Read(plan) => plan,
        found => return matches!(found, Lookup::Unsettled),
    };
    loop {
        node.engine.read(plan, 42);
        plan = loop {
            let mut events = Vec::new();
            node.engine.wait(node.now, &mut events);
            let plan = events.into_iter().find_map(|event| match event {
                Event::Lookup { plan, .. } => Some(plan),
                _ => None,
            });
            if let Some(plan) = plan {
                break plan;
            }
        };
        plan = match node.engine.resume(plan, now).unwrap() {
            Lookup::Read(plan) => plan,
            found => return matches!(found, Lookup::Unsettled),
        };
    }
}

/// The record was appended in time, by a client that found the old value. Without that value, a lookup would answer that there
/// is no such key, although the commit may still come.
#[test]
fn a_merge_does_not_settle_what_a_pending_record_keeps() {
    const EXPIRES_AT_MS: u64 = 10_000_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..sorted(Durability::Memory) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let kept = TestWrite { key: b"kept".to_vec(), value: Some(vec![1; 300]), expires_at_ms: EXPIRES_AT_MS };
    node.append(&[kept]).unwrap();
    let mut number = 0_u64;
    while node.engine.runs() < 4 {
        put(&mut node, format!("key-{number:06}").as_bytes(), Some(&[7; 300]));
        node.turn();
        number += 1;
        assert!(number < 20_000, "{:?}", node.engine);
    }
    for _ in 0..2_000 {
        node.turn();
        if !node.engine.is_sorting() {
            break;
        }
    }
    // Appended in time, by a read-modify-write that found the record; not committed before the end.
    let version = node.next_version();
    node.engine.append(RANGE, TestNode::hash(b"kept"), &RecordRef::put(version, b"kept", &[2; 300])).unwrap();
    node.now = node.now.plus_ms(EXPIRES_AT_MS);
    let (now, listed) = (node.now.wall, node.engine.stats().runs_listed);
    assert!(is_unsettled(&mut node, b"kept", now), "in a run, as in the log");
    // At rest, the later runs are merged with the oldest one.
    for _ in 0..500 {
        node.now = node.now.plus_ms(10);
        node.engine.advance_clock(node.now);
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
    }
    assert!(node.engine.stats().runs_listed > listed, "nothing is merged: {:?}", node.engine);
    let now = node.now.wall;
    assert!(is_unsettled(&mut node, b"kept", now), "the pending record keeps the key");
    node.commit();
    assert_eq!(node.get(b"kept", View::Committed).unwrap().unwrap().value[0], 2);
}

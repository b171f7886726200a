//! Space of stores with sorted segments: records that these hide are cleaned in time, and deletes that hide nothing go.
use crate::sorted_files::put;
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// Writes segments of long records. Each has one short record besides, or two, which are overwritten later. In large frames, so
/// that nothing else is dead.
fn fill_long(node: &mut TestNode) {
    for number in 0..100 {
        put(node, format!("long-{number}").as_bytes(), Some(&[1; 3_000]));
        if number % 10 == 0 {
            put(node, format!("short-{number}").as_bytes(), Some(&[1; 100]));
        }
    }
    node.settle();
    for number in (0..100).step_by(10) {
        put(node, format!("short-{number}").as_bytes(), Some(&[2; 100]));
    }
}

/// A segment of long records is not sorted, and too few of them are dead to clean it. But sorted segments hide the dead ones,
/// and stay as long as these: without room for more of them, they must be cleaned.
#[test]
fn a_few_dead_records_do_not_fill_a_store_with_the_sorted_segments_that_hide_them() {
    let options = Options { capacity_bytes: Some(40 << 16), sort_bytes: 1, ..sorted(Durability::Sync) };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    fill_long(&mut node);
    // Some of them for the fourth time: 10 times what the store holds.
    for number in 0..80_000 {
        let key = format!("key-{}", number % 1_000).into_bytes();
        let write = TestWrite { key, value: Some(vec![3; 300]), expires_at_ms: 0 };
        if let Err(error) = node.append(&[write]) {
            panic!("write {number}: {error}: {:?} {:?}", node.engine.segments_kept(), node.engine.log_report());
        }
        node.turn();
        node.now = node.now.plus_ms(1);
    }
    assert!(node.engine.runs() > 0 && node.engine.stats().segments_dropped > 200);
    for number in 0..100 {
        assert!(node.get(format!("long-{number}").as_bytes(), View::Committed).unwrap().is_some());
    }
}

/// A delete without an index entry is decided on once the entries of its segment have moved to their copies. Until then
/// these count as puts that the delete hides: it would be copied again and again.
#[test]
fn a_delete_is_not_copied_because_of_the_copies_of_its_own_segment() {
    let lazy = Options {
        sort_bytes: 1 << 30,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..sorted(Durability::Sync)
    };
    let disk = SimDisk::new(SimOptions::instant(1));
    let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min: 16 << 10, ..lazy.clone() };
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    (0..60).for_each(|number| put(&mut node, format!("live-{number}").as_bytes(), Some(&[1; 300])));
    put(&mut node, b"absent", None);
    for _ in 0..2 {
        // Overwritten, so that the segment with the delete is the one to clean.
        for number in 0..150 {
            put(&mut node, format!("dying-{number}").as_bytes(), Some(&[1; 300]));
            node.turn();
        }
    }
    for number in 0..1_000 {
        put(&mut node, format!("newer-{number}").as_bytes(), Some(&[1; 300]));
        node.turn();
    }
    node.settle();
    node.engine.close().unwrap();
    let cleaned = Options { space_amplification_max_percent: 0, ..lazy };
    let mut node = TestNode::open(&disk, cleaned, Now::at(2_000)).unwrap();
    // Without a checkpoint, an opening enters every delete into the index.
    assert!(node.report.checkpoint_entries.is_some());
    let mut number = 0;
    // A search for a segment to clean follows a seal.
    while node.engine.stats().segments_cleaned == 0 {
        put(&mut node, format!("last-{number}").as_bytes(), Some(&[1; 300]));
        node.turn();
        number += 1;
        assert!(number < 10_000, "nothing is cleaned: {:?}", node.engine);
    }
    let stats = node.engine.stats();
    assert!(stats.moved_records >= 60 && node.engine.runs() == 0, "{stats:?}");
    assert_eq!(stats.moved_tombstones, 0, "there is no put of its key");
}

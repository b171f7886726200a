//! Segments of stores with runs are dropped once they are sorted, and nothing that they hide is left.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_files::{put, sort_out};
use crate::sorted_late::segments_with;
use crate::sorted_ranges::settle as settle_and_sort;
use crate::sorted_tier::sorted;
use crate::splits::{file, whole};
use crate::support::TestNode;
use fawn_ds::internals::{KeepReason, Options, RecordLayout};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

fn fill(node: &mut TestNode, name: &str) {
    for number in 0..400 {
        put(node, format!("{name}-{number}").as_bytes(), Some(name.repeat(300 / name.len()).as_bytes()));
        node.turn();
    }
}

/// A store without runs whose cleaning has copied records of many segments to each of the survivors', in no order of versions.
/// All of these have dead records.
fn mixed(disk: &SimDisk, options: &Options) -> TestNode {
    let options = Options { layout: RecordLayout::Log, space_amplification_max_percent: 0, ..options.clone() };
    let mut node = TestNode::open(disk, options, Now::at(1_000)).unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..12_000 {
        put(&mut node, format!("key-{}", rng.below(2_000)).as_bytes(), Some(&[1; 300]));
        node.turn();
    }
    node.settle();
    assert!(node.engine.stats().segments_cleaned > 20, "{:?}", node.engine.stats());
    node
}

/// Nothing is cleaned, but there is so little space that the survivors' last segment is sealed and sorted, too.
fn each_segment() -> Options {
    let capacity_bytes = Some(40 << 16);
    Options { sort_bytes: 1, space_amplification_max_percent: 10_000, capacity_bytes, ..sorted(Durability::Sync) }
}

/// [`each_segment`] without checkpoints: an opening counts the records of all segments.
fn each_segment_counted() -> Options {
    Options { checkpoint_log_bytes_min: 1 << 30, ..each_segment() }
}

#[test]
fn sorted_segments_keep_none_of_each_other() {
    let disk = SimDisk::new(SimOptions::instant(1));
    mixed(&disk, &each_segment_counted()).engine.close().unwrap();
    let mut node = TestNode::open(&disk, each_segment_counted(), Now::at(2_000)).unwrap();
    fill(&mut node, "last");
    sort_out(&mut node);
    let report = node.engine.log_report();
    assert!(report.segments <= 3, "{report:?} {:?}", node.engine.segments_kept());
}

/// While a verification waits, live records count as hidden, too. Sorted segments have none.
#[test]
fn sorted_segments_keep_none_of_each_other_while_a_record_is_unreadable() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = mixed(&disk, &each_segment_counted());
    fill(&mut node, "unreadable");
    node.settle();
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, each_segment_counted(), Now::at(2_000)).unwrap();
    let names = segments_with(&disk, "unreadable-200");
    assert_eq!(names.len(), 1);
    names.iter().for_each(|name| disk.make_unreadable(name, 4096..64 << 10));
    put(&mut node, b"unreadable-200", Some(&[2; 300]));
    for _ in 0..3_000 {
        node.engine.step(64);
        node.turn();
        node.now = node.now.plus_ms(20);
    }
    let report = node.engine.log_report();
    assert!(report.overlay_keys == 1 && node.engine.runs() > 0, "{:?}", node.engine);
    assert!(report.segments <= 6, "{report:?} {:?}", node.engine.segments_kept());
}

/// As in [`sorted_segments_keep_none_of_each_other`], after a split: filing counts records of a sorted segment as what they are
/// for the drop rule, deletes.
#[test]
fn sorted_segments_that_are_filed_keep_none_of_each_other() {
    let later = Options { capacity_bytes: Some(52 << 16), ..each_segment() };
    let first = Options { layout: RecordLayout::Log, space_amplification_max_percent: 0, ..later.clone() };
    let mut harness = whole(1, first, true);
    let mut rng = Rng::new(1);
    for _ in 0..12_000 {
        harness.write(format!("key-{}", rng.below(2_000)).as_bytes(), Some(&[1; 300]));
        harness.turn();
    }
    harness.settle();
    harness.options = later;
    harness.reopen(1, false);
    let hiding =
        |harness: &RangeHarness| harness.engine.segments_kept().get(&KeepReason::Hides).copied().unwrap_or_default();
    // The last segment of survivors, which has older records, is sorted last.
    for turn in 0.. {
        assert!(turn < 10_000, "{:?}", harness.engine);
        if hiding(&harness) > 8 {
            break;
        }
        harness.turn();
    }
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    assert!(hiding(&harness) > 8 && harness.engine.stats().segments_filed > 8, "{:?}", harness.engine);
    for number in 0..2_000 {
        harness.write(format!("last-{number}").as_bytes(), Some(&[1; 300]));
        harness.turn();
    }
    (0..40).for_each(|_| settle_and_sort(&mut harness));
    let report = harness.engine.log_report();
    assert!(report.segments <= 6, "{report:?} {:?}", harness.engine.segments_kept());
}

/// A store that was split, and sorts late: filing finds tombstones of the time without runs, which have no entry. They keep none
/// of each other.
#[test]
fn tombstones_that_are_filed_keep_none_of_each_other() {
    let later = Options { capacity_bytes: Some(40 << 16), sort_bytes: 1, ..sorted(Durability::Sync) };
    let first = Options { layout: RecordLayout::Log, ..later.clone() };
    let mut harness = whole(1, first, true);
    let mut rng = Rng::new(1);
    let keys = (40 << 16) * 65 / 100 / 320;
    let mut write = |harness: &mut RangeHarness, key: u64| {
        let value = (rng.below(4) > 0).then_some(&[1; 300][..]);
        harness.write(format!("key-{key}").as_bytes(), value);
        harness.turn();
    };
    let mut order = Rng::new(2);
    for number in 0..12_000 {
        write(&mut harness, if number < keys { number } else { order.below(keys) });
    }
    harness.settle();
    harness.options = later;
    harness.reopen(1, false);
    (0..3).for_each(|_| settle_and_sort(&mut harness));
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    assert!(harness.engine.runs() > 0 && harness.engine.stats().segments_filed > 8, "{:?}", harness.engine);
    for _ in 0..12_000 {
        write(&mut harness, order.below(keys));
    }
    let moved = harness.engine.stats().moved_tombstones;
    assert!(moved < 20_000, "{moved} tombstones were copied");
}

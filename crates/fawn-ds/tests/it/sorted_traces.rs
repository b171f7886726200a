//! Traces of sorted segments at an opening: they hide older records, but neither copies of their version nor what a
//! rolled-back record would hide.
use crate::range_harness::RangeHarness;
use crate::sorted_files::{put, sort_out};
use crate::sorted_ranges::settle as settle_and_sort;
use crate::sorted_tier::sorted;
use crate::support::TestNode;
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now, RangeId};

/// Too long for a run, as its segment knows.
const LONG_BYTES: usize = 3_000;
/// Too long for a run, as only its reader knows: a segment of such copies is sorted after an opening.
const HARDLY_LONG_BYTES: usize = 1_100;

/// Sorts each segment once it is sealed. No checkpoint is made, and nothing is cleaned.
fn each_segment() -> Options {
    Options {
        sort_bytes: 1,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..sorted(Durability::Sync)
    }
}

/// Writes keys of this name, most of them short, until copies of the long ones have filled more than a segment of survivors.
fn fill_survivors(node: &mut TestNode, name: &str, long_bytes: usize) {
    let before = node.engine.stats().moved_bytes;
    let mut number = 0;
    while node.engine.stats().moved_bytes < before + (70 << 10) {
        put(node, format!("{name}-{number}").as_bytes(), Some(&vec![7; long_bytes]));
        for short in 0..2 {
            put(node, format!("{name}-{number}-{short}").as_bytes(), Some(&[7; 300]));
        }
        node.turn();
        node.now = node.now.plus_ms(1);
        number += 1;
        assert!(number < 2_000, "nothing is copied: {:?}", node.engine);
    }
    sort_out(node);
}

/// A put that is too long for a run is copied when its segment is sorted, and copied again when that of the copies is. Its
/// trace among the survivors comes before the last copy. If the key has an older version in the log that an opening defers,
/// the trace replaces that first.
#[test]
fn the_copy_of_a_long_put_wins_against_the_trace_of_its_original() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min: 16 << 10, ..each_segment() };
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    // Its segment has only long records, and is not sorted.
    put(&mut node, b"key", Some(&[1; LONG_BYTES]));
    (0..20).for_each(|number| put(&mut node, format!("first-{number}").as_bytes(), Some(&[1; LONG_BYTES])));
    node.settle();
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, each_segment(), Now::at(2_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    put(&mut node, b"key", Some(&[2; LONG_BYTES]));
    fill_survivors(&mut node, "older", LONG_BYTES);
    fill_survivors(&mut node, "between", HARDLY_LONG_BYTES);
    put(&mut node, b"key", Some(&[3; HARDLY_LONG_BYTES]));
    fill_survivors(&mut node, "newer", HARDLY_LONG_BYTES);
    let moved = node.engine.stats().moved_records;
    assert!(moved > 60 && node.engine.runs() > 0, "{moved} copies");
    drop(node);
    for seed in 0..2 {
        disk.crash(seed);
        let mut node = TestNode::open(&disk, each_segment(), Now::at(3_000)).unwrap();
        assert!(node.report.checkpoint_entries.is_some(), "the first one");
        sort_out(&mut node);
        let found = node.get(b"key", View::Committed).unwrap().map(|entry| entry.value);
        assert!(found.as_deref() == Some([3; HARDLY_LONG_BYTES].as_slice()), "opening {seed}");
        if seed == 0 {
            assert!(node.engine.stats().moved_records > 30, "copies are copied: {:?}", node.engine.stats());
        }
    }
}

/// A segment with a rolled-back put is sorted before the checkpoint. The rollback itself is before the checkpoint's position,
/// so only the checkpoint says that the trace hides nothing.
#[test]
fn the_trace_of_a_rolled_back_put_hides_no_older_one() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: 16 << 10, ..each_segment() };
    let mut harness = RangeHarness::new(disk, options, false);
    harness.add(1, KeyRange::ALL);
    let id = RangeId(1);
    let release = |harness: &mut RangeHarness| {
        let committed = harness.engine.progress(id).committed;
        harness.engine.set_retain_floor(id, committed);
    };
    let keys: Vec<Vec<u8>> = (0..20).map(|number| format!("key-{number}").into_bytes()).collect();
    // Their segment has only long records, and is not sorted.
    for key in &keys {
        harness.write(key, Some(&[1; LONG_BYTES]));
    }
    harness.settle();
    // So that the segment that is sorted hides a record, and stays.
    harness.write(&keys[0], Some(&[2; 300]));
    for number in 0..130 {
        harness.write(format!("short-{number}").as_bytes(), Some(&[2; 300]));
        harness.turn();
    }
    harness.settle();
    // The rollback is in another segment than the first of these: its own is not sorted.
    let others = (0..600).map(|number| format!("other-{number}").into_bytes());
    let rolled_back: Vec<Vec<u8>> = keys[1..].iter().cloned().chain(others).collect();
    harness.roll_back(id, &rolled_back);
    harness.settle();
    for number in 0..600 {
        harness.write(format!("later-{number}").as_bytes(), Some(&[3; 300]));
        harness.turn();
    }
    for _ in 0..3 {
        release(&mut harness);
        settle_and_sort(&mut harness);
    }
    assert!(harness.engine.runs() > 0, "{:?}", harness.engine);
    harness.check(&keys, "sorted");
    let RangeHarness { disk, engine, options, models, now, is_sole } = harness;
    engine.close().unwrap();
    let (mut engine, report) =
        fawn_ds::internals::Engine::open(fawn_flash::SimDevice::attach(&disk), options.clone(), now).unwrap();
    assert!(report.checkpoint_entries.is_some());
    let end = engine.progress(id).appended;
    engine.commit(id, end);
    let mut harness = RangeHarness { disk, engine, options, models, now, is_sole };
    harness.check(&keys, "opened again");
}

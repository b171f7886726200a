//! Scans of ranges with runs whose cursor is older than the range's content: they begin again, and pass no key.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_ranges::settle as settle_and_sort;
use crate::sorted_tier::sorted;
use crate::splits::{fill, keys, whole};
use crate::support::{SECRET, small};
use fawn_ds::internals::{Options, RecordRef, Scan, ScanStep};
use fawn_types::{Durability, KeyHash, RangeId};
use std::collections::BTreeSet;

/// Continues a scan for some steps, or to its end (cursor 0).
fn scan(harness: &mut RangeHarness, id: RangeId, mut cursor: u64, steps: usize, met: &mut BTreeSet<Vec<u8>>) -> u64 {
    for _ in 0..steps {
        let mut scan = Scan::new(id, cursor, 10);
        while let ScanStep::Read(plan) = harness.engine.scan_step(&mut scan, harness.now.wall).unwrap() {
            harness.engine.read(plan, 0);
            let plan = harness.wait_for_plan();
            harness.engine.absorb_scan(&mut scan, plan).unwrap();
        }
        met.extend(scan.items.into_iter().map(|item| item.key));
        cursor = scan.cursor;
        if cursor == 0 {
            break;
        }
    }
    cursor
}

/// The index of a new heir has few and large cells: a step as long as these would read hundreds of records. Filing goes on
/// meanwhile, and moves entries from the parent's index, whose cells are small.
#[test]
fn steps_of_a_scan_behind_a_split_are_as_short_as_before() {
    let keys = keys(20_000);
    let mut harness = whole(1, small(Durability::Sync), true);
    fill(&mut harness, &keys, 1);
    harness.split(1, ring_at(0x80), 2, 3);
    let (mut met, mut steps_while_filing) = (Vec::new(), 0);
    for id in [2, 3].map(RangeId) {
        let mut cursor = 0;
        loop {
            let mut of_step = BTreeSet::new();
            steps_while_filing += u32::from(harness.engine.segments_to_file() > 0);
            cursor = scan(&mut harness, id, cursor, 1, &mut of_step);
            assert!(of_step.len() <= 32, "{} keys in a step", of_step.len());
            met.extend(of_step);
            if cursor == 0 {
                break;
            }
        }
    }
    assert!(steps_while_filing > 20, "{steps_while_filing} steps while filing");
    assert_eq!(met.len(), keys.len(), "each key once");
    assert_eq!(met.into_iter().collect::<BTreeSet<_>>(), keys.into_iter().collect());
}

/// A range with its keys in runs.
fn sorted_range(is_sole: bool, keys: &[Vec<u8>]) -> RangeHarness {
    let mut harness = whole(1, Options { sort_bytes: 1, ..sorted(Durability::Sync) }, is_sole);
    fill(&mut harness, keys, 1);
    // So that the last records of the keys are in a sealed segment.
    for round in 0..150u8 {
        harness.write(&keys[0], Some(&[round; 900]));
        harness.turn();
    }
    settle_and_sort(&mut harness);
    assert!(harness.engine.runs() > 0, "{:?}", harness.engine);
    harness
}

/// The positions of runs are those of the parent's part of the ring.
#[test]
fn a_scan_of_a_range_begins_again_at_its_parts_after_a_split() {
    let keys = keys(400);
    for steps in [3, 10, 15] {
        let mut harness = sorted_range(true, &keys);
        let mut met = BTreeSet::new();
        let cursor = scan(&mut harness, RangeId(1), 0, steps, &mut met);
        assert!(cursor != 0 && met.len() < keys.len());
        harness.split(1, ring_at(0x80), 2, 3);
        for id in [2, 3].map(RangeId) {
            let end = scan(&mut harness, id, cursor, usize::MAX, &mut met);
            assert_eq!(end, 0);
        }
        assert_eq!(met.len(), keys.len(), "after {steps} steps");
    }
}

/// A transfer brings the same records again, and they are in the log then.
#[test]
fn a_scan_of_runs_begins_again_after_a_transfer_into_the_range() {
    let keys = keys(400);
    let mut harness = sorted_range(false, &keys);
    let id = RangeId(1);
    let mut met = BTreeSet::new();
    let cursor = scan(&mut harness, id, 0, 10, &mut met);
    assert!(cursor != 0 && met.len() < keys.len());
    let base = harness.engine.progress(id).committed;
    harness.engine.begin_transfer(id, base).unwrap();
    for key in &keys {
        let record = RecordRef::put(base, key, &[3; 400]);
        while harness.engine.append_copied(id, KeyHash::of(&SECRET, key), &record).is_err() {
            harness.turn();
        }
    }
    harness.engine.finish_transfer(id).unwrap();
    (0..20).for_each(|_| harness.turn());
    assert!(harness.engine.copying(id).is_none());
    scan(&mut harness, id, cursor, usize::MAX, &mut met);
    assert_eq!(met.len(), keys.len());
}

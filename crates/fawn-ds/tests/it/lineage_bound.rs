//! Records that are never written again have the numbers of ranges that were split or merged: cleaning gives them present ones, so
//! that lineages stay short.
use crate::range_harness::{RangeHarness, ring_at};
use crate::splits::{file, whole};
use crate::support::{SECRET, scanned, small};
use fawn_ds::internals::{Options, RecordRef};
use fawn_types::{Durability, KeyHash};

/// Ancestors that lineages have at most while cleaning keeps up: a split doubles what cleaning left.
const ANCESTORS: usize = 1_100;
/// Ancestors from which on cleaning shortens lineages, and those beyond which it must before another split.
const ANCESTORS_KEPT: usize = 512;
const ANCESTORS_MAX: usize = 4_096;

/// Splits and merges the only range, and writes a record under each of the three numbers. Returns the most ancestors.
fn split_and_merge(harness: &mut RangeHarness, round: u32, value: &[u8], keys: &mut Vec<Vec<u8>>) -> usize {
    let id = 1 + 3 * round;
    let write = |harness: &mut RangeHarness, keys: &mut Vec<Vec<u8>>, count: usize| {
        for _ in 0..count {
            keys.push(format!("key {}", keys.len()).into_bytes());
            harness.write(&keys[keys.len() - 1], Some(value));
        }
        (0..3).for_each(|_| harness.turn());
    };
    write(harness, keys, 1);
    harness.split(id, ring_at(0x80), id + 1, id + 2);
    let ancestors = harness.engine.lineage_len();
    write(harness, keys, 2);
    harness.merge(id + 1, id + 2, id + 3);
    ancestors
}

/// Polls only when the store asks for it, and counts how often.
fn idle(harness: &mut RangeHarness, ms: u64) -> u32 {
    let (end, mut polls) = (harness.now.plus_ms(ms), 0);
    while harness.now.mono < end.mono {
        let due = harness.engine.upkeep_at().map_or(ms, |at| at.0.saturating_sub(harness.now.mono.0));
        if due > 0 && harness.engine.in_flight() > 0 {
            harness.engine.wait(harness.now, &mut Vec::new());
        } else {
            harness.now = harness.now.plus_ms(due.min(ms));
            harness.engine.poll(harness.now, &mut Vec::new());
        }
        polls += 1;
        assert!(polls < 100_000, "{:?}", harness.engine);
    }
    polls
}

/// Leaves range 271, and its lineage shorter than the bound. Returns the keys, each under a number of its own.
fn cold_ranges(harness: &mut RangeHarness) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for round in 0..90 {
        split_and_merge(harness, round, &[1; 600], &mut keys);
    }
    file(harness);
    keys
}

/// Splits range 271, and the last part again and again, with all of its ancestors, as long as that is not put off.
fn split_to_parts(harness: &mut RangeHarness, parts_max: u32) -> u32 {
    for part in 1..parts_max {
        let id = 271 + 2 * (part - 1);
        if !harness.try_split(id, ring_at(part as u8), id + 1, id + 2) {
            return part;
        }
    }
    parts_max
}

fn make_unreadable(harness: &RangeHarness) {
    for name in harness.disk.names().into_iter().filter(|name| name.starts_with("seg")) {
        harness.disk.make_unreadable(&name, 4096..64 << 10);
    }
}

#[test]
fn cold_records_of_many_splits_and_merges_keep_few_numbers() {
    for (seed, options, is_sole) in [(1, scanned(Durability::Sync), true), (2, small(Durability::Sync), false)] {
        let mut harness = whole(seed, options, is_sole);
        let (mut keys, mut most) = (Vec::new(), 0);
        for round in 0..400 {
            most = most.max(split_and_merge(&mut harness, round, &[1; 600], &mut keys));
        }
        assert!((ANCESTORS_KEPT..ANCESTORS).contains(&most), "{most} ancestors");
        file(&mut harness);
        harness.check(&keys, "after 400 splits and merges");
        harness.check_len("after 400 splits and merges");
        harness.reopen(seed, true);
        harness.check(&keys, "opened again");
    }
}

/// So small records would fill a segment only after many thousand splits: cleaning ends it before.
#[test]
fn numbers_in_the_segment_that_takes_writes_go_as_well() {
    for durability in [Durability::Sync, Durability::Memory] {
        let options = Options { segment_bytes: 8 << 20, ..scanned(durability) };
        let mut harness = whole(3, options, true);
        let (mut keys, mut most) = (Vec::new(), 0);
        for round in 0..400 {
            most = most.max(split_and_merge(&mut harness, round, b"value", &mut keys));
            // Searches without a change are repeated after a second.
            harness.now = harness.now.plus_ms(50);
        }
        assert!((ANCESTORS_KEPT..ANCESTORS).contains(&most), "{durability:?}: {most} ancestors");
        file(&mut harness);
        harness.check(&keys, "after 400 splits and merges");
        harness.reopen(3, false);
        harness.check(&keys, "opened again");
    }
}

#[test]
fn an_idle_store_shortens_its_lineages_once_it_can_read_its_segments() {
    let mut harness = whole(4, scanned(Durability::Sync), true);
    let keys = cold_ranges(&mut harness);
    make_unreadable(&harness);
    assert_eq!(split_to_parts(&mut harness, 8), 8);
    let before = harness.engine.lineage_len();
    assert!(before > ANCESTORS_KEPT, "{before} ancestors");
    let polls = idle(&mut harness, 60_000);
    assert!(polls < 3_000, "{polls} polls in a minute");
    assert!(harness.engine.lineage_len() > ANCESTORS_KEPT, "nothing can be read");
    harness.disk.heal();
    let polls = idle(&mut harness, 60_000);
    assert!(polls < 3_000, "{polls} polls in a minute");
    let after = harness.engine.lineage_len();
    assert!(after <= ANCESTORS_KEPT, "{after} ancestors, {before} before");
    let reads = harness.engine.stats().cleaning_read_bytes;
    idle(&mut harness, 60_000);
    assert_eq!(harness.engine.stats().cleaning_read_bytes, reads, "no further one is cleaned");
    harness.check(&keys, "idle");
    harness.reopen(4, true);
    harness.check(&keys, "opened again");
}

/// A commit has to hold all ancestors that it changes.
#[test]
fn a_split_that_would_make_lineages_too_long_waits_for_cleaning() {
    let mut harness = whole(5, scanned(Durability::Sync), true);
    let keys = cold_ranges(&mut harness);
    make_unreadable(&harness);
    let parts = split_to_parts(&mut harness, 120);
    assert!((10..100).contains(&parts), "{parts} parts with {} ancestors", harness.engine.lineage_len());
    assert!(harness.engine.lineage_len() <= ANCESTORS_MAX);
    harness.disk.heal();
    idle(&mut harness, 60_000);
    let last = 271 + 2 * (parts - 1);
    assert!(harness.try_split(last, ring_at(0x80), last + 1, last + 2), "cleaning has shortened the lineages");
    harness.check(&keys, "split again");
    harness.reopen(5, true);
    harness.check(&keys, "opened again");
}

/// Segments that are live whole give no space when they are copied.
#[test]
fn a_full_store_waits_for_space_before_it_shortens_its_lineages() {
    let mut harness = whole(6, scanned(Durability::Sync), true);
    let keys = cold_ranges(&mut harness);
    make_unreadable(&harness);
    assert_eq!(split_to_parts(&mut harness, 8), 8);
    harness.disk.set_full(true);
    let id = harness.range_of(b"last").unwrap();
    while !harness.engine.is_full() {
        let record = RecordRef::put(harness.next_version(id), b"last", &[2; 600]);
        // The last one is refused.
        let _ = harness.engine.append(id, KeyHash::of(&SECRET, b"last"), &record);
        harness.turn();
    }
    harness.disk.heal();
    let before = harness.engine.lineage_len();
    let polls = idle(&mut harness, 60_000);
    assert!(polls < 3_000, "{polls} polls in a minute");
    assert!(before > ANCESTORS_KEPT && harness.engine.lineage_len() == before, "{before} ancestors");
    harness.disk.set_full(false);
    idle(&mut harness, 60_000);
    let after = harness.engine.lineage_len();
    assert!(after <= ANCESTORS_KEPT, "{after} ancestors, {before} before");
    harness.check(&keys, "with space");
}

//! Records that are never written again have the numbers of ranges that were split or merged: cleaning gives them present ones, so
//! that lineages stay short.
use crate::range_harness::{RangeHarness, ring_at};
use crate::splits::{file, whole};
use crate::support::{SECRET, scanned, small};
use fawn_ds::internals::{Engine, Options, RecordRef};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, KeyHash, KeyRange, RangeId};
use std::collections::BTreeSet;

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
fn cold_ranges(harness: &mut RangeHarness, value: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for round in 0..90 {
        split_and_merge(harness, round, value, &mut keys);
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

fn segments(harness: &RangeHarness) -> BTreeSet<String> {
    harness.disk.names().into_iter().filter(|name| name.starts_with("seg")).collect()
}

fn make_unreadable(harness: &RangeHarness) {
    segments(harness).iter().for_each(|name| harness.disk.make_unreadable(name, 4096..64 << 10));
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
    let keys = cold_ranges(&mut harness, &[1; 600]);
    make_unreadable(&harness);
    assert_eq!(split_to_parts(&mut harness, 8), 8);
    let before = harness.engine.lineage_len();
    assert!(before > ANCESTORS_KEPT, "{before} ancestors");
    let listed = segments(&harness).len();
    let polls = idle(&mut harness, 60_000);
    assert!(polls < 3_000, "{polls} polls in a minute");
    assert!(harness.engine.lineage_len() > ANCESTORS_KEPT, "nothing can be read");
    // The active segment is sealed for its old numbers once, and none without such numbers is.
    assert!(segments(&harness).len() <= listed + 2, "{listed} segments before");
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
    let keys = cold_ranges(&mut harness, &[1; 600]);
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
    let keys = cold_ranges(&mut harness, &[1; 600]);
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

/// Opens a store with lineages that are too long, more segments than it should have, and so many records of which half are dead. Returns
/// the counts of segments that cleaning has freed at each time of half a second: those with old numbers, and others.
fn freed_after_opening(durability: Durability, half_dead: u32) -> BTreeSet<(usize, usize)> {
    // Nothing is cleaned for space before the store is opened again.
    let options = Options { space_amplification_max_percent: 100_000, ..scanned(durability) };
    let mut harness = whole(7, options, true);
    // Hardly a byte of these is dead: they are no victims for space.
    let mut keys = cold_ranges(&mut harness, &[1; 6_000]);
    // Some of the splits made lineages too long for a moment.
    idle(&mut harness, 10_000);
    let with_old = segments(&harness);
    let half_dead: Vec<Vec<u8>> = (0..half_dead).map(|i| format!("half {i}").into_bytes()).collect();
    for key in half_dead.iter().chain(half_dead.iter().step_by(2)) {
        harness.write(key, Some(&[2; 600]));
        harness.turn();
    }
    (0..3).for_each(|_| harness.turn());
    make_unreadable(&harness);
    assert_eq!(split_to_parts(&mut harness, 8), 8);
    harness.disk.heal();
    let mut known = segments(&harness);
    assert!(with_old.is_subset(&known), "{with_old:?} were not all left: {known:?}");
    harness.options.space_amplification_max_percent = 0;
    harness.disk.kill(7);
    let (mut engine, _) = Engine::open(SimDevice::attach(&harness.disk), harness.options.clone(), harness.now).unwrap();
    let (mut freed, mut for_numbers, mut for_space) = (BTreeSet::new(), 0, 0);
    for _ in 0..500 {
        harness.now = harness.now.plus_ms(1);
        engine.submit(harness.now);
        engine.wait(harness.now, &mut Vec::new());
        let left = segments(&harness);
        for name in known.difference(&left) {
            *(if with_old.contains(name) { &mut for_numbers } else { &mut for_space }) += 1;
        }
        known = left;
        freed.insert((for_numbers, for_space));
    }
    assert!(engine.lineage_len() <= ANCESTORS_KEPT, "{freed:?}, {engine:?}");
    drop(engine);
    harness.reopen(7, false);
    keys.extend(half_dead);
    harness.check(&keys, "cleaned");
    freed
}

/// Segments with old numbers may be live whole: alone they would take the space that cleaning has, and give none.
#[test]
fn cleaning_for_old_numbers_takes_turns_with_cleaning_for_space() {
    let freed = freed_after_opening(Durability::Sync, 800);
    assert!(freed.last().is_some_and(|&(for_numbers, for_space)| for_numbers > 10 && for_space > 10), "{freed:?}");
    // At first the overwritten keys are not confirmed.
    assert!(freed.iter().all(|(for_numbers, for_space)| for_numbers.abs_diff(*for_space) <= 4), "{freed:?}");
}

#[test]
fn cleaning_for_old_numbers_does_not_wait_for_space_that_nothing_gives() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let freed = freed_after_opening(durability, 0);
        assert!(freed.last().is_some_and(|&(for_numbers, _)| for_numbers > 10), "{durability:?}: {freed:?}");
    }
}

/// The next segment of a nearly full store would be refused, and then writes for which the active one still has space.
#[test]
fn a_nearly_full_store_seals_no_segment_for_its_old_numbers() {
    let options = Options {
        segment_bytes: 1 << 20,
        capacity_bytes: Some(4 << 20),
        memory_bytes: 8 << 20,
        ..scanned(Durability::Memory)
    };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(8)), options, true);
    harness.add(1, KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL });
    harness.add(900, KeyRange { start: ring_at(0x80), ..KeyRange::ALL });
    // The other range has no lineage: its segments have no old numbers.
    let is_other = |harness: &RangeHarness, key: &[u8]| harness.range_of(key) == Some(RangeId(900));
    let mut number = 0;
    let mut next_key = |harness: &RangeHarness, of_other: bool| loop {
        number += 1;
        let key = format!("key {number}").into_bytes();
        if is_other(harness, &key) == of_other {
            return key;
        }
    };
    let mut keys = Vec::new();
    // Two segments, and the first part of a third one.
    for _ in 0..270 {
        let key = next_key(&harness, true);
        harness.write(&key, Some(&[3; 8_000]));
        harness.turn();
        keys.push(key);
    }
    for round in 0..260 {
        let id = 1 + 3 * round;
        for parts in [1, 2] {
            for _ in 0..parts {
                let key = next_key(&harness, false);
                harness.write(&key, Some(b"value"));
                keys.push(key);
            }
            harness.turn();
            if parts == 1 {
                harness.split(id, ring_at(0x40), id + 1, id + 2);
            } else {
                harness.merge(id + 1, id + 2, id + 3);
            }
        }
        harness.now = harness.now.plus_ms(50);
    }
    assert!(harness.engine.lineage_len() > ANCESTORS_KEPT);
    let before = segments(&harness);
    assert_eq!(before.len(), 3, "{before:?}");
    idle(&mut harness, 30_000);
    assert!(!harness.engine.is_full(), "{:?}", harness.engine);
    assert_eq!(segments(&harness), before, "no segment is prepared");
    harness.write(&keys[0], Some(b"again"));
    harness.turn();
    harness.check(&keys, "nearly full");
}

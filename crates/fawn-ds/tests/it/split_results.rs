//! Results after splits and merges: the records that a range keeps for retries stay with the ranges that take over its keys.
use crate::checkpoint_in_progress::{begin, end, filled};
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, small};
use fawn_ds::internals::{KeepReason, Options, TransferredResults};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{ClientTag, Durability, KeyRange, RangeId, RingKey, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Operations whose results are kept.
const TAGGED: u64 = 30;
/// Far below the number of records that the tests write: without the results of before, none would be left.
const RETAINED_MAX: usize = 10;

fn options() -> Options {
    Options { memory_bytes: 8 << 20, ..small(Durability::Sync) }
}

fn key(i: u64) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

/// A range that keeps results, as a member of a chain.
fn begun(seed: u64, options: Options) -> RangeHarness {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(seed)), options, false);
    harness.add(1, KeyRange::ALL);
    retain(&mut harness);
    harness
}

/// The settings of a node after an opening, and after a split.
fn retain(harness: &mut RangeHarness) {
    let ids: Vec<RangeId> = harness.models.keys().copied().collect();
    ids.into_iter().for_each(|id| harness.engine.set_retain_floor(id, Version::ZERO));
    harness.engine.set_retained_max(RETAINED_MAX);
}

fn write_tagged(harness: &mut RangeHarness, seqs: impl IntoIterator<Item = u64>) {
    harness.engine.set_retained_max(usize::MAX);
    for seq in seqs {
        let tag = ClientTag { session: 9, seq };
        harness.write_tagged(&key(seq), Some(&[7; 300]), tag, format!("result {seq}").as_bytes());
    }
    harness.settle();
}

/// Overwrites enough for segments to be cleaned and dropped.
fn overwrite(harness: &mut RangeHarness, byte: u8) {
    for round in 0..3 {
        for i in 0..300 {
            harness.write(&key(i), Some(&vec![byte + round; 400]));
        }
        harness.settle();
    }
}

/// The tagged operations among the results that a range took over.
fn results_of(harness: &mut RangeHarness, id: u32) -> BTreeSet<u64> {
    let (mut from, mut seqs) = (0, BTreeSet::new());
    loop {
        let results = harness.engine.copied_results(RangeId(id), from, 500, |record| {
            if record.tag.session == 9 {
                let expected = format!("result {}", record.tag.seq);
                assert_eq!(record.result, expected.as_bytes(), "the result of this operation");
                seqs.insert(record.tag.seq);
            }
        });
        match results.unwrap() {
            TransferredResults::Records { next } => from = next,
            TransferredResults::Done => return seqs,
            TransferredResults::Read(plan) => {
                harness.engine.read(plan, 42);
                let plan = harness.wait_for_plan();
                harness.engine.absorb(plan).unwrap();
            }
        }
    }
}

fn check(harness: &mut RangeHarness, ids: &[u32], tagged: core::ops::Range<u64>, context: &str) {
    let expected: BTreeSet<u64> = tagged.collect();
    for &id in ids {
        assert_eq!(results_of(harness, id), expected, "{context}: results of range {id}");
    }
}

#[test]
fn both_parts_of_a_split_keep_the_results() {
    for (seed, loses_power, has_checkpoints) in [(1, false, false), (2, true, false), (3, false, true), (4, true, true)]
    {
        let checkpoint_log_bytes_min = if has_checkpoints { 16 << 10 } else { u64::MAX };
        let mut harness = begun(seed, Options { checkpoint_log_bytes_min, ..options() });
        overwrite(&mut harness, 1);
        write_tagged(&mut harness, 0..TAGGED);
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        check(&mut harness, &[2, 3], 0..TAGGED, "split");
        overwrite(&mut harness, 10);
        check(&mut harness, &[2, 3], 0..TAGGED, "overwritten and cleaned");
        harness.reopen(seed, loses_power);
        check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
        retain(&mut harness);
        write_tagged(&mut harness, TAGGED..TAGGED + 1);
        let is_of_parent = harness.range_of(&key(TAGGED)) == Some(RangeId(2));
        let of_parts = 0..TAGGED + u64::from(is_of_parent);
        overwrite(&mut harness, 20);
        harness.split(2, ring_at(0x40), 4, 5);
        retain(&mut harness);
        check(&mut harness, &[3], 0..TAGGED, "the other part was split");
        check(&mut harness, &[4, 5], of_parts.clone(), "split again");
        harness.reopen(seed + 10, loses_power);
        check(&mut harness, &[3], 0..TAGGED, "the other part, opened after the second split");
        check(&mut harness, &[4, 5], of_parts, "opened after the second split");
    }
}

/// The results were copied, and the log with them is gone.
#[test]
fn both_parts_of_a_split_keep_copies_of_open_results() {
    for (seed, loses_power) in [(11, false), (12, true)] {
        let mut harness = begun(seed, Options { capacity_bytes: Some(40 * (64 << 10)), ..options() });
        let mut open = BTreeMap::new();
        for seq in 0..TAGGED {
            write_tagged(&mut harness, seq..=seq);
            open.insert(harness.engine.progress(RangeId(1)).appended, seq);
        }
        harness.engine.set_needed_from(RangeId(1), open.keys().next().copied());
        overwrite(&mut harness, 1);
        for _ in 0..20 {
            // The survivors' first segment is created meanwhile.
            harness.now = harness.now.plus_ms(200);
            harness.engine.copy_results(RangeId(1), |version, result| {
                let &seq = open.get(&version)?;
                result.extend_from_slice(format!("result {seq}").as_bytes());
                Some(ClientTag { session: 9, seq })
            });
            harness.settle();
        }
        check(&mut harness, &[1], 0..TAGGED, "copied");
        let newest = *open.keys().last().unwrap();
        assert!(harness.engine.replay_floor(RangeId(1)) > newest, "the log is given up");
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        check(&mut harness, &[2, 3], 0..TAGGED, "split");
        overwrite(&mut harness, 10);
        harness.reopen(seed, loses_power);
        check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
    }
}

#[test]
fn a_merged_range_keeps_the_results_of_both() {
    for loses_power in [false, true] {
        let mut harness = begun(5, options());
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        // The right range's operations are in earlier segments than the left one's.
        let is_right = |harness: &RangeHarness, seq: u64| harness.range_of(&key(seq)) == Some(RangeId(3));
        let (first, last): (Vec<u64>, Vec<u64>) = (0..TAGGED).partition(|&seq| is_right(&harness, seq));
        write_tagged(&mut harness, first);
        for i in (0..900).filter(|i| is_right(&harness, i % 300)).collect::<Vec<_>>() {
            harness.write(&key(i % 300), Some(&[30; 400]));
        }
        harness.settle();
        write_tagged(&mut harness, last);
        harness.merge(2, 3, 4);
        retain(&mut harness);
        check(&mut harness, &[4], 0..TAGGED, "merged");
        overwrite(&mut harness, 1);
        harness.reopen(6, loses_power);
        check(&mut harness, &[4], 0..TAGGED, "opened again");
    }
}

#[test]
fn segments_of_results_go_when_they_are_needed_no_more() {
    for is_dropped in [false, true] {
        let mut harness = begun(7, options());
        write_tagged(&mut harness, 0..TAGGED);
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        overwrite(&mut harness, 1);
        let needs_no_more = |harness: &mut RangeHarness, id: u32| {
            let committed = harness.engine.progress(RangeId(id)).committed;
            harness.engine.set_retain_floor(RangeId(id), committed);
        };
        // Commit marks that a drop waits for are a second apart.
        let pass_time = |harness: &mut RangeHarness| {
            for _ in 0..300 {
                harness.now = harness.now.plus_ms(10);
                harness.turn();
            }
        };
        let kept = |harness: &RangeHarness| harness.engine.segments_kept().get(&KeepReason::CopiedResult).copied();
        needs_no_more(&mut harness, 2);
        pass_time(&mut harness);
        assert!(kept(&harness).is_some(), "the other part needs them: {:?}", harness.engine.segments_kept());
        let dropped = harness.engine.stats().segments_dropped;
        if is_dropped {
            harness.drop_range(3);
        } else {
            needs_no_more(&mut harness, 3);
        }
        pass_time(&mut harness);
        let why = harness.engine.segments_kept();
        assert!(harness.engine.stats().segments_dropped > dropped, "a segment goes, dropped: {is_dropped}, {why:?}");
        assert_eq!(kept(&harness), None, "no result is kept, dropped: {is_dropped}");
    }
}

/// A range keeps segments of results that have records of the other part alone.
#[test]
fn results_stay_readable_when_the_other_part_is_dropped() {
    let mut harness = begun(8, options());
    let is_right = |seq: &u64| RingKey::of(&SECRET, &key(*seq)) >= ring_at(0x80);
    let (right, left): (Vec<u64>, Vec<u64>) = (0..300).partition(is_right);
    let overwrite_right = |harness: &mut RangeHarness| {
        for round in 0..4 {
            right.iter().for_each(|&seq| harness.write(&key(seq), Some(&[round; 400])));
        }
        harness.settle();
    };
    write_tagged(&mut harness, left[..10].iter().copied());
    overwrite_right(&mut harness);
    write_tagged(&mut harness, right[..10].iter().copied());
    overwrite_right(&mut harness);
    write_tagged(&mut harness, left[10..20].iter().copied());
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    let expected: BTreeSet<u64> = left[..20].iter().chain(&right[..10]).copied().collect();
    harness.drop_range(3);
    for seed in [0, 1, 2] {
        for _ in 0..300 {
            harness.now = harness.now.plus_ms(10);
            harness.turn();
        }
        assert_eq!(results_of(&mut harness, 2), expected, "the results of both parts");
        harness.reopen(seed, seed == 0);
        retain(&mut harness);
    }
}

/// A range that is split retains nothing any more. A checkpoint that went on over the split would know of no results, and an
/// opening reads no segments before it.
#[test]
fn results_survive_a_split_while_a_checkpoint_is_copied() {
    let (mut harness, _) = filled(false);
    harness.engine.set_retain_floor(RangeId(1), Version::ZERO);
    write_tagged(&mut harness, 0..TAGGED);
    begin(&mut harness);
    harness.split(1, ring_at(0x80), 2, 3);
    check(&mut harness, &[2, 3], 0..TAGGED, "split");
    end(&mut harness);
    harness.reopen(1, false);
    check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
}

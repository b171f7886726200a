//! Results after splits and merges: the records that a range keeps for retries stay with the ranges that take over its keys.
use crate::checkpoint::listed;
use crate::checkpoint_in_progress::{begin, end, filled};
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, small};
use fawn_ds::internals::{KeepReason, OpenResult, Options, TransferredResults};
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

/// Writes tagged operations to the range that has their keys. Returns their results, which are open.
fn write_open(harness: &mut RangeHarness, seqs: impl IntoIterator<Item = u64>) -> Vec<OpenResult> {
    let mut open = Vec::new();
    for seq in seqs {
        write_tagged(harness, seq..=seq);
        let range = harness.range_of(&key(seq)).unwrap();
        open.push(OpenResult::new(harness.engine.progress(range).appended, ClientTag { session: 9, seq }));
    }
    open.sort_unstable();
    open
}

/// Copies what the range is to copy. Returns the number of copies.
fn copy_open(harness: &mut RangeHarness, id: u32, open: &[OpenResult], result_of: fn(u64) -> Vec<u8>) -> usize {
    let mut copies = 0;
    harness.engine.copy_results(RangeId(id), open, |tag, result| {
        result.extend_from_slice(&result_of(tag.seq));
        copies += 1;
    });
    copies
}

/// Copies the open results of a range, until nothing is due.
fn copy_all_open(harness: &mut RangeHarness, id: u32, open: &[OpenResult]) {
    for _ in 0..20 {
        // The survivors' first segment is created meanwhile.
        harness.now = harness.now.plus_ms(200);
        copy_open(harness, id, open, |seq| format!("result {seq}").into_bytes());
        harness.settle();
    }
}

/// The results were copied, and the log with them is gone.
#[test]
fn both_parts_of_a_split_keep_copies_of_open_results() {
    for (seed, loses_power, dropped) in [(11, false, None), (12, true, None), (13, true, Some(2)), (14, true, Some(3))]
    {
        let checkpoint_log_bytes_min = if dropped.is_some() { u64::MAX } else { options().checkpoint_log_bytes_min };
        let capacity_bytes = Some(40 * (64 << 10));
        let mut harness = begun(seed, Options { capacity_bytes, checkpoint_log_bytes_min, ..options() });
        let open = write_open(&mut harness, 0..TAGGED);
        let newest = harness.engine.progress(RangeId(1)).appended;
        harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
        overwrite(&mut harness, 1);
        copy_all_open(&mut harness, 1, &open);
        check(&mut harness, &[1], 0..TAGGED, "copied");
        assert!(harness.engine.replay_floor(RangeId(1)) > newest, "the log is given up");
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        check(&mut harness, &[2, 3], 0..TAGGED, "split");
        overwrite(&mut harness, 10);
        // A record that is only a result has no key: its copies are not of the other part alone.
        dropped.into_iter().for_each(|id| harness.drop_range(id));
        let left: Vec<u32> = [2, 3].into_iter().filter(|id| Some(*id) != dropped).collect();
        harness.reopen(seed, loses_power);
        check(&mut harness, &left, 0..TAGGED, "opened again");
    }
}

/// Records that are retained later take the places of the results within the bound on all.
#[test]
fn open_results_from_before_a_split_are_copied_before_too_many_records_are_retained() {
    let mut harness = begun(17, Options { retained_records_max: 100, ..options() });
    let open = write_open(&mut harness, 0..TAGGED);
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    harness.engine.set_retained_max(usize::MAX);
    for i in 0..600 {
        harness.write(&key(i), Some(&[7; 100]));
        harness.settle();
        harness.now = harness.now.plus_ms(20);
        for id in [2, 3] {
            copy_open(&mut harness, id, &open, |seq| format!("result {seq}").into_bytes());
        }
    }
    check(&mut harness, &[2, 3], 0..TAGGED, "copied");
    harness.reopen(17, true);
    check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
}

/// Each part has half of the memory that the range had.
#[test]
fn a_split_gives_up_no_open_result() {
    let mut harness = begun(19, Options { memory_bytes: 1 << 20, retained_records_max: 100, ..options() });
    harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
    let open = write_open(&mut harness, 0..TAGGED);
    (0..900).for_each(|i| harness.write(&key(1_000 + i), Some(&[7; 20])));
    harness.settle();
    if !harness.try_split(1, ring_at(0x80), 2, 3) {
        copy_all_open(&mut harness, 1, &open);
        harness.split(1, ring_at(0x80), 2, 3);
    }
    check(&mut harness, &[2, 3], 0..TAGGED, "split");
    retain(&mut harness);
    [2, 3].into_iter().for_each(|id| copy_all_open(&mut harness, id, &open));
    check(&mut harness, &[2, 3], 0..TAGGED, "copied");
    harness.reopen(19, true);
    check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
}

/// An opening does not know which records are needed: until it is said, all of them are.
#[test]
fn a_split_at_an_opening_gives_up_no_open_result() {
    let mut harness = begun(21, Options { memory_bytes: 1 << 20, retained_records_max: 100, ..options() });
    harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
    let open = write_open(&mut harness, 0..TAGGED);
    (0..900).for_each(|i| harness.write(&key(1_000 + i), Some(&[7; 20])));
    harness.settle();
    harness.reopen(21, true);
    if !harness.try_split(1, ring_at(0x80), 2, 3) {
        harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
        copy_all_open(&mut harness, 1, &open);
        harness.split(1, ring_at(0x80), 2, 3);
    }
    check(&mut harness, &[2, 3], 0..TAGGED, "split");
    retain(&mut harness);
    [2, 3].into_iter().for_each(|id| copy_all_open(&mut harness, id, &open));
    check(&mut harness, &[2, 3], 0..TAGGED, "copied");
    harness.reopen(22, true);
    check(&mut harness, &[2, 3], 0..TAGGED, "opened again");
}

/// Both parts of a split keep the same results, which count once for the range that is merged of them.
#[test]
fn a_merge_of_the_parts_of_a_range_gives_up_no_open_result() {
    let mut harness = begun(20, Options { memory_bytes: 1 << 20, retained_records_max: 100, ..options() });
    harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
    let open = write_open(&mut harness, 0..TAGGED);
    // Of several segments.
    (0..700).for_each(|i| harness.write(&key(1_000 + i), Some(&[7; 300])));
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    check(&mut harness, &[2, 3], 0..TAGGED, "split");
    harness.merge(2, 3, 4);
    retain(&mut harness);
    check(&mut harness, &[4], 0..TAGGED, "merged");
    copy_all_open(&mut harness, 4, &open);
    check(&mut harness, &[4], 0..TAGGED, "copied");
    harness.reopen(20, true);
    check(&mut harness, &[4], 0..TAGGED, "opened again");
}

/// An opening does not know which records are needed. Records of the range's own history do not take the places of older results.
#[test]
fn an_opening_keeps_results_from_before_a_split_until_they_are_copied() {
    for retained_records_max in [100, 10] {
        let mut harness = begun(18, Options { retained_records_max: 100, ..options() });
        let open = write_open(&mut harness, 0..TAGGED);
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        harness.engine.set_retained_max(usize::MAX);
        for i in 0..600 {
            harness.write(&key(i), Some(&[7; 20]));
        }
        harness.settle();
        harness.options.retained_records_max = retained_records_max;
        harness.reopen(18, true);
        check(&mut harness, &[2, 3], 0..TAGGED, "opened");
        retain(&mut harness);
        for _ in 0..20 {
            harness.now = harness.now.plus_ms(200);
            for id in [2, 3] {
                copy_open(&mut harness, id, &open, |seq| format!("result {seq}").into_bytes());
            }
            harness.write(&key(1_000), Some(&[7; 20]));
            harness.write(&key(1_001), Some(&[7; 20]));
            harness.settle();
        }
        check(&mut harness, &[2, 3], 0..TAGGED, "copied");
        harness.reopen(18, true);
        check(&mut harness, &[2, 3], 0..TAGGED, "opened with the copies");
    }
}

/// The range retained few records of its history when it was split, and an opening finds all of them in the log.
#[test]
fn an_opening_keeps_results_of_a_retired_range_rather_than_its_history() {
    let mut harness = begun(23, Options { memory_bytes: 1 << 20, retained_records_max: 100, ..options() });
    write_tagged(&mut harness, 0..TAGGED);
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    overwrite(&mut harness, 1);
    // The last checkpoint has the results: no record of the first range is retained again.
    harness.options.checkpoint_log_bytes_min = u64::MAX;
    harness = harness.close_and_open();
    assert!(!listed(&harness.disk).is_empty());
    [2, 3].into_iter().for_each(|id| harness.engine.set_needed_from(RangeId(id), None));
    retain(&mut harness);
    let is_left = |key: &Vec<u8>| RingKey::of(&SECRET, key) < ring_at(0x80);
    let left: Vec<Vec<u8>> = (1_000..).map(key).filter(is_left).take(800).collect();
    left.iter().for_each(|key| harness.write(key, Some(&[7; 20])));
    harness.settle();
    harness.split(2, ring_at(0x40), 4, 5);
    retain(&mut harness);
    check(&mut harness, &[3, 4, 5], 0..TAGGED, "split");
    harness.reopen(23, true);
    check(&mut harness, &[3, 4, 5], 0..TAGGED, "opened");
}

/// The one parent has a few results, and has rested since. The other one has many records that are not needed.
#[test]
fn an_opening_after_a_merge_keeps_the_results_of_a_parent_that_rested() {
    let options =
        Options { memory_bytes: 1 << 20, retained_records_max: 100, checkpoint_log_bytes_min: u64::MAX, ..options() };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(24)), options, false);
    harness.add(1, KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL });
    harness.add(2, KeyRange { start: ring_at(0x80), ..KeyRange::ALL });
    retain(&mut harness);
    let is_right = |seq: &u64| RingKey::of(&SECRET, &key(*seq)) >= ring_at(0x80);
    let tagged: BTreeSet<u64> = (0..).filter(|seq| !is_right(seq)).take(50).collect();
    harness.engine.set_needed_from(RangeId(1), Some(Version::from_u64(1)));
    harness.engine.set_needed_from(RangeId(2), None);
    write_tagged(&mut harness, tagged.iter().copied());
    harness.engine.set_retained_max(RETAINED_MAX);
    for seq in (1_000..).filter(is_right).take(2_000) {
        harness.write(&key(seq), Some(&[7; 20]));
        harness.turn();
    }
    harness.settle();
    harness.merge(1, 2, 3);
    assert_eq!(results_of(&mut harness, 3), tagged, "merged");
    harness.reopen(24, true);
    assert_eq!(results_of(&mut harness, 3), tagged, "opened");
}

/// All results are in the part's own history. The range before it has many records that are not needed.
#[test]
fn an_opening_keeps_the_results_of_a_part_rather_than_the_history_of_the_range_before_it() {
    let options =
        Options { memory_bytes: 1 << 20, retained_records_max: 100, checkpoint_log_bytes_min: u64::MAX, ..options() };
    let mut harness = begun(25, options);
    harness.engine.set_needed_from(RangeId(1), None);
    let is_left = |seq: &u64| RingKey::of(&SECRET, &key(*seq)) < ring_at(0x40);
    for seq in (10_000..).filter(is_left).take(700) {
        harness.write(&key(seq), Some(&[7; 20]));
    }
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    harness.engine.set_needed_from(RangeId(2), Some(Version::from_u64(1)));
    let tagged: BTreeSet<u64> = (0..).filter(is_left).take(500).collect();
    write_tagged(&mut harness, tagged.iter().copied());
    harness.split(2, ring_at(0x40), 4, 5);
    assert_eq!(results_of(&mut harness, 4), tagged, "split");
    harness.reopen(25, true);
    assert_eq!(results_of(&mut harness, 4), tagged, "opened");
}

/// The records of both were numbered alike.
#[test]
fn a_merged_range_copies_open_results_of_one_version() {
    for loses_power in [false, true] {
        let capacity_bytes = Some(40 * (64 << 10));
        let mut harness = begun(15, Options { capacity_bytes, ..options() });
        harness.split(1, ring_at(0x80), 2, 3);
        retain(&mut harness);
        let of_range = |id: u32| {
            let is_right = move |seq: &u64| RingKey::of(&SECRET, &key(*seq)) >= ring_at(0x80);
            (0..300).filter(move |seq| is_right(seq) == (id == 3)).take(10).collect::<Vec<u64>>()
        };
        let mut open = write_open(&mut harness, of_range(2));
        open.extend(write_open(&mut harness, of_range(3)));
        open.sort_unstable();
        let expected: BTreeSet<u64> = of_range(2).into_iter().chain(of_range(3)).collect();
        harness.merge(2, 3, 4);
        retain(&mut harness);
        // All results are copied, and the copies are copied again.
        for round in 0..4 {
            overwrite(&mut harness, 1 + 3 * round);
            copy_all_open(&mut harness, 4, &open);
            assert_eq!(results_of(&mut harness, 4), expected, "copied, round {round}");
        }
        harness.reopen(15, loses_power);
        assert_eq!(results_of(&mut harness, 4), expected, "opened again");
    }
}

/// A segment with copies of several ranges is not copied for the sake of another range's copies.
#[test]
fn copies_of_two_ranges_are_not_copied_for_ever() {
    let capacity_bytes = Some(20 * (64 << 10));
    let mut harness = begun(16, Options { capacity_bytes, ..options() });
    harness.split(1, ring_at(0x80), 2, 3);
    retain(&mut harness);
    harness.engine.set_retained_max(usize::MAX);
    let (mut open, mut copies) = (BTreeMap::<u32, Vec<OpenResult>>::new(), 0);
    let result_of = |seq: u64| vec![seq as u8; 2_700];
    for seq in 0..200 {
        let id = harness.range_of(&key(seq)).unwrap();
        let results = open.entry(id.0).or_default();
        if results.len() < 10 {
            let tag = ClientTag { session: 9, seq };
            harness.write_tagged(&key(seq), Some(&[7; 300]), tag, &result_of(seq));
            results.push(OpenResult::new(harness.engine.progress(id).appended, tag));
        }
    }
    harness.settle();
    [2, 3].into_iter().for_each(|id| harness.engine.set_needed_from(RangeId(id), Some(Version::from_u64(1))));
    // Every third key is overwritten so seldom that cleaning copies it.
    for round in 0..1_600_u64 {
        let at = if round % 3 == 0 { 2_000 + round / 3 % 60 } else { 1_000 + round % 5 };
        harness.write(&key(at), Some(&[round as u8; 6_000]));
        harness.settle();
        harness.now = harness.now.plus_ms(20);
        for (&id, open) in &open {
            copies += copy_open(&mut harness, id, open, result_of);
        }
    }
    assert!(harness.engine.stats().segments_dropped > 200, "the copies' segments are sealed");
    assert!((20..=100).contains(&copies), "{copies} copies");
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

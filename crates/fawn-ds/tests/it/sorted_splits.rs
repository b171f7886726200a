//! Splits, merges, drops and clears of ranges in stores with runs.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_ranges::settle as settle_and_sort;
use crate::sorted_tier::{sorted, swept};
use crate::splits::{file, fill, history, keys, modelled, scan_all, whole};
use crate::support::SECRET;
use fawn_ds::internals::{Engine, Options, RecordLayout, RecordRef};
use fawn_flash::SimDevice;
use fawn_flash::sim::{Capture, Loss};
use fawn_types::{Durability, KeyHash, KeyRange, RangeId};
use std::collections::BTreeMap;

/// The pace of sorts depends on what is written: so small that there are many.
pub(crate) fn few(options: Options) -> Options {
    Options { sort_bytes: 1, ..options }
}

#[test]
fn random_histories_of_sorted_ranges() {
    let jobs: u64 = (0..8).map(|seed| history(seed, &few(sorted(Durability::Sync)), seed % 2 == 0)).sum();
    assert!(jobs > 150, "{jobs} jobs");
}

#[test]
fn random_histories_of_ranges_whose_runs_are_merged_in_parts() {
    let jobs: u64 = (40..48).map(|seed| history(seed, &few(swept(Durability::Sync)), seed % 2 == 0)).sum();
    assert!(jobs > 200, "{jobs} jobs");
}

#[test]
fn random_histories_of_sorted_ranges_without_checkpoints() {
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..few(sorted(Durability::Sync)) };
    let jobs: u64 = (60..66).map(|seed| history(seed, &options, seed % 2 == 0)).sum();
    assert!(jobs > 100, "{jobs} jobs");
}

/// A store with one range, nearly all of it in runs.
pub(crate) fn sorted_range(seed: u64, options: Options, is_sole: bool, keys: &[Vec<u8>]) -> RangeHarness {
    let mut harness = whole(seed, options, is_sole);
    for round in 0..3 {
        fill(&mut harness, keys, round);
    }
    for key in keys.iter().step_by(5) {
        harness.write(key, None);
    }
    // So that the last records of the keys are in sealed segments.
    for round in 0..150u8 {
        harness.write(b"another", Some(&[round; 900]));
        harness.turn();
    }
    settle_and_sort(&mut harness);
    assert!(harness.engine.runs() > 0);
    harness
}

fn check(harness: &mut RangeHarness, keys: &[Vec<u8>], context: &str) {
    harness.check(keys, context);
    let found = scan_all(harness);
    let of_keys =
        |met: Vec<(RangeId, Vec<u8>)>| met.into_iter().filter(|(_, key)| key.starts_with(b"key")).collect::<Vec<_>>();
    assert_eq!(of_keys(found), of_keys(modelled(harness)), "{context}: scans");
}

#[test]
fn both_parts_have_their_records_of_runs_at_once() {
    for is_sole in [true, false] {
        let keys = keys(500);
        let mut harness = sorted_range(1, few(sorted(Durability::Sync)), is_sole, &keys);
        harness.split(1, ring_at(0x40), 2, 3);
        check(&mut harness, &keys, "split");
        // Lengths are estimates by width: a quarter and three quarters.
        let (left, right) = (harness.engine.len(RangeId(2)), harness.engine.len(RangeId(3)));
        assert!(left * 2 < right && left > 50 && !harness.engine.is_len_exact(RangeId(2)), "{left} and {right} keys");
        harness.clear(2);
        harness.settle();
        check(&mut harness, &keys, "a part cleared");
        harness.reopen(1, true);
        check(&mut harness, &keys, "a part cleared, opened again");
        file(&mut harness);
        harness.split(3, ring_at(0x80), 4, 5);
        file(&mut harness);
        harness.settle();
        harness.merge(2, 4, 6);
        check(&mut harness, &keys, "merged with the cleared part");
        harness.reopen(2, true);
        check(&mut harness, &keys, "merged with the cleared part, opened again");
    }
}

/// One half is dropped and added again, then merged with the other: records of the dropped half are within the bounds of the
/// merged range, and under a number of its lineage.
#[test]
fn records_of_a_dropped_half_do_not_come_back_from_runs() {
    for seed in 0..4 {
        let keys = keys(400);
        let mut harness = sorted_range(seed, few(sorted(Durability::Sync)), seed % 2 == 0, &keys);
        harness.split(1, ring_at(0x80), 2, 3);
        let bounds = harness.models[&RangeId(3)].keys;
        harness.drop_range(3);
        check(&mut harness, &keys, "a half dropped");
        harness.add(4, bounds);
        check(&mut harness, &keys, "added again");
        file(&mut harness);
        harness.settle();
        harness.merge(2, 4, 5);
        check(&mut harness, &keys, "merged");
        harness.reopen(seed, true);
        check(&mut harness, &keys, "merged, opened again");
        fill(&mut harness, &keys, 9);
        settle_and_sort(&mut harness);
        check(&mut harness, &keys, "written again");
    }
}

/// A merge of runs writes records under the number of the range that has them: numbers of ranges before a split are forgotten.
#[test]
fn merges_of_runs_forget_the_numbers_of_ranges_before_a_split() {
    let keys = keys(300);
    let mut harness = sorted_range(3, few(sorted(Durability::Sync)), true, &keys);
    let (mut id, mut most) = (1, 0);
    for round in 0..120u32 {
        harness.split(id, ring_at(1 + (round * 37 % 250) as u8), id + 1, id + 2);
        for i in 0..40 {
            let at = (round * 40 + i) as usize % keys.len();
            harness.write(&keys[at], Some(&[round as u8; 700]));
            harness.turn();
        }
        settle_and_sort(&mut harness);
        harness.merge(id + 1, id + 2, id + 3);
        id += 3;
        let now = (harness.engine.lineage_len(), harness.engine.runs());
        most = if round < 40 { most.max(now.0) } else { most };
        assert!(round < 40 || now.0 <= 2 * most, "round {round}: {now:?}, {most} before");
    }
    check(&mut harness, &keys, "after 120 splits and merges");
    harness.reopen(1, true);
    check(&mut harness, &keys, "opened after 120 splits and merges");
}

/// A range that is dropped leaves runs without a record that counts, which go without being read.
#[test]
fn runs_of_a_dropped_range_go() {
    let keys = keys(300);
    let mut harness = sorted_range(4, few(sorted(Durability::Sync)), true, &keys);
    harness.split(1, ring_at(0x80), 2, 3);
    harness.drop_range(2);
    harness.drop_range(3);
    harness.add(4, KeyRange::ALL);
    settle_and_sort(&mut harness);
    assert_eq!(harness.engine.runs(), 0);
    check(&mut harness, &keys, "dropped");
}

/// A transfer empties the range, and its own history goes on meanwhile. Records of both are sorted, before the transfer's end and
/// after it.
#[test]
fn a_range_that_is_copied_here_is_sorted() {
    let mut keys = keys(400);
    let brought = keys.split_off(200);
    let mut harness = sorted_range(5, few(sorted(Durability::Sync)), false, &keys);
    let id = RangeId(1);
    let base = harness.engine.progress(id).committed;
    harness.engine.begin_transfer(id, base).unwrap();
    harness.enter(id, KeyRange::ALL, BTreeMap::new());
    check(&mut harness, &keys, "emptied");
    for (own, copied) in keys.iter().zip(&brought) {
        let record = RecordRef::put(base, copied, &[3; 400]);
        harness.engine.append_copied(id, KeyHash::of(&SECRET, copied), &record).unwrap();
        harness.models.get_mut(&id).unwrap().content.insert(copied.clone(), vec![3; 400]);
        harness.write(own, Some(&[2; 400]));
        harness.turn();
    }
    settle_and_sort(&mut harness);
    assert!(harness.engine.copying(id).is_some() && harness.engine.runs() > 0, "{:?}", harness.engine);
    harness.engine.finish_transfer(id).unwrap();
    settle_and_sort(&mut harness);
    settle_and_sort(&mut harness);
    assert!(harness.engine.copying(id).is_none(), "{:?}", harness.engine);
    for seed in 0..3 {
        check(&mut harness, &keys, "own records");
        check(&mut harness, &brought, "copied records");
        harness.reopen(seed, true);
    }
}

/// Crash images after each operation around splits, filing, sorts, merges of runs and of ranges, drops and clears: the
/// ranges that the manifest lists have all that was committed, and nothing else.
#[test]
fn a_crash_at_any_point_leaves_the_ranges_of_runs_with_everything() {
    let (mut images, mut jobs) = (0, 0);
    for seed in 0..6 {
        let keys = keys(200);
        let options = few(if seed % 3 == 0 { swept(Durability::Sync) } else { sorted(Durability::Sync) });
        let mut harness = sorted_range(seed, options, seed % 2 == 0, &keys);
        for key in keys.iter().step_by(3) {
            harness.write(key, Some(&[7; 500]));
        }
        harness.settle();
        let mut stages = vec![harness.models.clone()];
        let listed = harness.engine.stats().runs_listed;
        harness.disk.capture(Capture::Every { stride: 2, loss: Loss::Power, seed });
        let mut others = 0;
        let mut sort = |harness: &mut RangeHarness| {
            for _ in 0..40 {
                harness.write(format!("other {others}").as_bytes(), Some(&[8; 900]));
                others += 1;
                harness.turn();
            }
            for _ in 0..25 {
                harness.engine.step(16);
                harness.turn();
            }
        };
        harness.split(1, ring_at(0x70), 2, 3);
        stages.push(harness.models.clone());
        (0..4).for_each(|_| harness.turn());
        harness.split(3, ring_at(0xA0), 4, 5);
        stages.push(harness.models.clone());
        sort(&mut harness);
        file(&mut harness);
        sort(&mut harness);
        harness.settle();
        harness.merge(2, 4, 6);
        stages.push(harness.models.clone());
        file(&mut harness);
        sort(&mut harness);
        harness.drop_range(5);
        stages.push(harness.models.clone());
        sort(&mut harness);
        jobs += harness.engine.stats().runs_listed - listed;
        let options = Options { layout: RecordLayout::Log, ..harness.options.clone() };
        for image in harness.disk.take_images() {
            let context = format!("seed {seed}, operation {} (… --test it sorted_splits::)", image.op);
            let (mut engine, _) = Engine::open(SimDevice::attach(&image.disk), options.clone(), harness.now).unwrap();
            let listed: Vec<RangeId> = engine.ranges().map(|(id, _)| id).collect();
            let models = stages.iter().find(|stage| stage.keys().eq(listed.iter())).cloned();
            for id in &listed {
                let end = engine.progress(*id).appended;
                engine.commit(*id, end);
            }
            let models = models.unwrap_or_else(|| panic!("{context}: ranges {listed:?}"));
            let (options, now, is_sole) = (options.clone(), harness.now, false);
            let mut crashed = RangeHarness { disk: image.disk, engine, options, models, now, is_sole };
            check(&mut crashed, &keys, &context);
            file(&mut crashed);
            check(&mut crashed, &keys, &format!("{context}, filed"));
            images += 1;
        }
    }
    println!("{images} images, {jobs} jobs");
    assert!(images > 100 && jobs > 12, "{images} images, {jobs} jobs");
}

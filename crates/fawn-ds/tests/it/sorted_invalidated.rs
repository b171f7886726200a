//! Runs of which no record counts: dropped without being read, but not before the manifest says so.
use crate::range_harness::{RangeHarness, RangeModel, ring_at};
use crate::sorted_ranges::settle as settle_and_sort;
use crate::sorted_tier::sorted;
use crate::splits::{fill, keys, whole};
use crate::support::SECRET;
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyRange, RangeId, RingKey, Version};

const ID: RangeId = RangeId(1);

/// Sorts each segment once it is sealed.
pub(crate) fn each_segment(durability: Durability) -> Options {
    Options { sort_bytes: 1, ..sorted(durability) }
}

/// Writes the keys, and sorts nearly all of them.
pub(crate) fn fill_runs(harness: &mut RangeHarness, keys: &[Vec<u8>]) {
    fill(harness, keys, 1);
    // So that the last records of the keys are in a sealed segment.
    for round in 0..150u8 {
        harness.write(b"another", Some(&[round; 900]));
        harness.turn();
    }
    settle_and_sort(harness);
    assert!(harness.engine.runs() > 0, "{:?}", harness.engine);
}

/// Turns without writes, this far apart.
fn idle(harness: &mut RangeHarness, turns: u32, ms: u64) {
    for _ in 0..turns {
        harness.now = harness.now.plus_ms(ms);
        harness.turn();
    }
}

/// Whether the range's last record is committed, and a power loss may undo it.
fn is_undoable(harness: &RangeHarness, id: RangeId) -> bool {
    let progress = harness.engine.progress(id);
    progress.committed == progress.appended && progress.synced < progress.committed
}

/// After a power loss that undoes the range's last record, its content is as it was before.
fn check_undone(harness: &RangeHarness, id: RangeId, before: &RangeModel, keys: &[Vec<u8>], context: &str) {
    let mut undone = 0;
    for seed in 0..8 {
        let disk = harness.disk.image(Loss::Power, seed);
        let (options, now, is_sole) = (harness.options.clone(), harness.now, true);
        let (mut engine, _) = Engine::open(SimDevice::attach(&disk), options.clone(), now).unwrap();
        let end = engine.progress(id).appended;
        engine.commit(id, end);
        if end < harness.engine.progress(id).appended {
            undone += 1;
            let models = [(id, before.clone())].into_iter().collect();
            let mut crashed = RangeHarness { disk, engine, options, models, now, is_sole };
            crashed.check(keys, &format!("{context}, seed {seed}"));
        }
    }
    assert!(undone > 0, "{context}: no power loss undoes the clear");
}

/// A clear is committed, but a power loss may still undo it. The drop of another range makes the engine look for invalidated runs.
#[test]
fn a_run_stays_while_a_crash_can_undo_the_clear_that_invalidates_it() {
    for is_split in [false, true] {
        let keys = keys(400);
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut harness = RangeHarness::new(disk, each_segment(Durability::EverySecond), true);
        let (low, high) = (2, 3);
        if is_split {
            harness.add(1, KeyRange::ALL);
        } else {
            harness.add(low, KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL });
            harness.add(high, KeyRange { start: ring_at(0x80), end: None });
        }
        fill_runs(&mut harness, &keys);
        if is_split {
            harness.split(1, ring_at(0x80), low, high);
        }
        let before = harness.models[&RangeId(high)].clone();
        harness.clear(high);
        while !is_undoable(&harness, RangeId(high)) {
            harness.turn();
        }
        harness.drop_range(low);
        (0..5).for_each(|_| harness.turn());
        assert!(is_undoable(&harness, RangeId(high)), "a second has passed");
        check_undone(&harness, RangeId(high), &before, &keys, &format!("split: {is_split}"));
        settle_and_sort(&mut harness);
        (0..200).for_each(|_| {
            harness.now = harness.now.plus_ms(100);
            harness.turn();
        });
        assert_eq!(harness.engine.runs(), 0, "split: {is_split}, the clear is listed");
    }
}

/// A run leaves out what a clear has removed. Until the manifest lists that, no run is listed: a power loss may undo the clear.
#[test]
fn no_run_is_listed_while_a_crash_can_undo_a_clear() {
    let keys = keys(150);
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut harness = RangeHarness::new(disk, each_segment(Durability::EverySecond), true);
    harness.add(1, KeyRange::ALL);
    fill(&mut harness, &keys, 1);
    // The segment is gathered, and nothing is written yet.
    harness.engine.hold_runs(true);
    for round in 0..80u8 {
        harness.write(b"another", Some(&[round; 900]));
        harness.turn();
    }
    harness.settle();
    (0..100).for_each(|_| harness.turn());
    assert!(harness.engine.is_sorting() && harness.engine.runs() == 0, "{:?}", harness.engine);
    let before = harness.models[&ID].clone();
    harness.clear(ID.0);
    while !is_undoable(&harness, ID) {
        harness.turn();
    }
    harness.engine.hold_runs(false);
    (0..20).for_each(|_| harness.turn());
    assert!(is_undoable(&harness, ID), "a second has passed");
    check_undone(&harness, ID, &before, &keys, "gathered before the clear");
}

/// All records of the runs are in one half of a range. That half is dropped after the split, and the other one has their number
/// in its lineage.
#[test]
fn runs_of_a_dropped_half_go() {
    let is_low = |key: &Vec<u8>| RingKey::of(&SECRET, key) < ring_at(0x80);
    let keys: Vec<Vec<u8>> = keys(600).into_iter().filter(is_low).collect();
    let mut harness = whole(1, each_segment(Durability::Sync), true);
    fill(&mut harness, &keys, 1);
    for round in 0..150u8 {
        harness.write(&keys[0], Some(&[round; 900]));
        harness.turn();
    }
    settle_and_sort(&mut harness);
    assert!(harness.engine.runs() > 0);
    harness.split(1, ring_at(0x80), 2, 3);
    harness.drop_range(2);
    (0..100).for_each(|_| harness.turn());
    assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
}

/// Runs have records under the number of a range that was cleared before its split.
#[test]
fn runs_of_a_range_that_was_cleared_go_after_its_split() {
    let keys = keys(300);
    let mut harness = whole(1, each_segment(Durability::Sync), true);
    fill_runs(&mut harness, &keys);
    // The split comes before the next search.
    harness.engine.hold_runs(true);
    harness.clear(1);
    settle_and_sort(&mut harness);
    harness.split(1, ring_at(0x80), 2, 3);
    assert!(harness.engine.runs() > 0);
    harness.engine.hold_runs(false);
    (0..100).for_each(|_| harness.turn());
    assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
    harness.check(&keys, "cleared");
}

/// Runs have records under the number of a range that was split. Its two parts are cleared, before or after its segments are
/// filed.
#[test]
fn runs_of_a_range_that_was_split_go_once_all_parts_are_cleared() {
    for is_filed in [true, false] {
        let keys = keys(300);
        let mut harness = whole(1, each_segment(Durability::Sync), true);
        fill_runs(&mut harness, &keys);
        if !is_filed {
            let names = harness.disk.names();
            let segments = names.iter().filter(|name| name.starts_with("segment-"));
            segments.for_each(|name| harness.disk.make_unreadable(name, 4096..64 << 10));
        }
        harness.split(1, ring_at(0x80), 2, 3);
        harness.clear(2);
        (0..100).for_each(|_| harness.turn());
        assert_eq!(harness.engine.segments_to_file() == 0, is_filed);
        assert!(harness.engine.runs() > 0, "the other part counts");
        harness.clear(3);
        (0..100).for_each(|_| harness.turn());
        assert_eq!(harness.engine.runs(), 0, "filed: {is_filed}, {:?}", harness.engine);
        harness.disk.heal();
        harness.check(&keys, "cleared");
    }
}

/// All runs are dropped as invalidated between two parts of a sweep. The rest of it has nothing to list, and began again with each
/// poll.
#[test]
fn a_sweep_ends_once_a_clear_has_invalidated_all_its_runs() {
    let keys = keys(3_000);
    for parts in (20..200).step_by(30) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options { run_bytes_max: 16 << 10, ..each_segment(Durability::Sync) };
        let mut harness = RangeHarness::new(disk, options, true);
        harness.add(ID.0, KeyRange::ALL);
        let mut writes = 0;
        while harness.engine.stats().sweep_parts < parts {
            // A write could wait for the end of the sweep.
            if !harness.engine.is_sorting() {
                harness.write(&keys[writes % keys.len()], Some(&[1; 300]));
                writes += 1;
                assert!(writes < 100_000, "{:?}", harness.engine);
            }
            harness.turn();
        }
        harness.clear(ID.0);
        for _ in 0..400 {
            harness.now = harness.now.plus_ms(100);
            harness.turn();
        }
        assert!(harness.engine.runs() == 0 && !harness.engine.is_sorting(), "{parts}: {:?}", harness.engine);
        let searches = harness.engine.stats().sort_searches;
        (0..100).for_each(|_| harness.turn());
        assert!(harness.engine.stats().sort_searches < searches + 5, "{parts}");
    }
}

/// The process ends between the listing of the clear and the drop of the runs that it has invalidated.
#[test]
fn an_opening_finds_the_runs_that_a_clear_invalidated() {
    let keys = keys(400);
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut harness = RangeHarness::new(disk, each_segment(Durability::Sync), true);
    harness.add(1, KeyRange::ALL);
    fill_runs(&mut harness, &keys);
    // Runs of one age: no merge is due that would drop them as well.
    idle(&mut harness, 1000, 100);
    harness.engine.hold_runs(true);
    harness.clear(ID.0);
    harness.settle();
    (0..20).for_each(|_| harness.turn());
    assert!(harness.engine.runs() > 0, "held");
    harness.reopen(1, false);
    idle(&mut harness, 1000, 100);
    assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
    harness.check(&keys, "cleared");
}

/// In this mode only full segments are synced, and nothing is written after the clear.
#[test]
fn a_clear_in_the_mode_memory_gives_the_space_of_runs_back() {
    let keys = keys(400);
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut harness = RangeHarness::new(disk, each_segment(Durability::Memory), true);
    harness.add(1, KeyRange::ALL);
    fill_runs(&mut harness, &keys);
    harness.clear(ID.0);
    idle(&mut harness, 2000, 10);
    assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
}

/// A transfer invalidates all records of its range, those in runs as well. Nothing else may happen for long that drops
/// the runs, and the transfer needs their space.
#[test]
fn the_beginning_of_a_transfer_drops_the_runs_of_its_range() {
    let keys = keys(400);
    let mut harness = whole(1, each_segment(Durability::Sync), true);
    fill_runs(&mut harness, &keys);
    // Runs of one age: no merge is due that would drop them as well.
    idle(&mut harness, 1_000, 100);
    assert!(harness.engine.runs() > 0);
    let base = Version::new(Epoch::new(9).unwrap(), 1_000).unwrap();
    harness.engine.begin_transfer(RangeId(1), base).unwrap();
    (0..100).for_each(|_| harness.turn());
    assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
}

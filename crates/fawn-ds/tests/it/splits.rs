//! Splits and merges: the new ranges serve at once with the old records, and filing makes their indexes and counts their own.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, cached, scanned, small};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Engine, EngineError, Options, RecordLayout, RecordRef, Scan, ScanStep};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyHash, KeyRange, RangeId, RingKey, Version};

const ID: RangeId = RangeId(1);

pub(crate) fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("key {i}").into_bytes()).collect()
}

pub(crate) fn whole(seed: u64, options: Options, is_sole: bool) -> RangeHarness {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(seed)), options, is_sole);
    harness.add(1, KeyRange::ALL);
    harness
}

pub(crate) fn fill(harness: &mut RangeHarness, keys: &[Vec<u8>], byte: u8) {
    for (i, key) in keys.iter().enumerate() {
        harness.write(key, Some(&vec![byte; 200 + i % 400]));
    }
    harness.settle();
}

/// Polls until all segments are filed.
pub(crate) fn file(harness: &mut RangeHarness) {
    for _ in 0..10_000 {
        if harness.engine.segments_to_file() == 0 {
            return;
        }
        harness.now = harness.now.plus_ms(10);
        harness.turn();
    }
    panic!("filing does not end: {:?}", harness.engine);
}

/// All keys that scans of the ranges return.
pub(crate) fn scan_all(harness: &mut RangeHarness) -> Vec<(RangeId, Vec<u8>)> {
    let ids: Vec<RangeId> = harness.models.keys().copied().collect();
    let mut met = Vec::new();
    for id in ids {
        let mut cursor = 0;
        loop {
            let mut scan = Scan::new(id, cursor, 10);
            while let ScanStep::Read(plan) = harness.engine.scan_step(&mut scan, harness.now.wall).unwrap() {
                harness.engine.read(plan, 0);
                let plan = harness.wait_for_plan();
                harness.engine.absorb_scan(&mut scan, plan).unwrap();
            }
            met.extend(scan.items.into_iter().map(|item| (id, item.key)));
            cursor = scan.cursor;
            if cursor == 0 {
                break;
            }
        }
    }
    met.sort();
    if harness.engine.runs() > 0 {
        // A key that was written after it was sorted may be met in both parts of a scan.
        met.dedup();
    }
    met
}

pub(crate) fn modelled(harness: &RangeHarness) -> Vec<(RangeId, Vec<u8>)> {
    let of_range = |(&id, model): (&RangeId, &crate::range_harness::RangeModel)| {
        model.content.keys().map(move |key| (id, key.clone())).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = harness.models.iter().flat_map(of_range).collect();
    all.sort();
    all
}

#[test]
fn both_parts_serve_at_once_and_a_split_reads_nothing() {
    for is_sole in [true, false] {
        let mut harness = whole(1, small(Durability::Sync), is_sole);
        let keys = keys(900);
        fill(&mut harness, &keys, 1);
        let (reads, writes) = (harness.disk.counted(OpKind::Read), harness.disk.counted(OpKind::Write));
        harness.split(1, ring_at(0x60), 2, 3);
        let read = harness.disk.counted(OpKind::Read) - reads;
        let of_filing = harness.engine.stats().cleaning_read_bytes.div_ceil(64 << 10) + 1;
        assert!(read <= of_filing, "a split reads nothing, and filing has read {of_filing} segments: {read} reads");
        let written = harness.disk.counted(OpKind::Write) - writes;
        assert!(written <= 8, "{written} writes for a split and the epochs of both parts");
        assert!(!harness.engine.is_len_exact(RangeId(2)));
        let estimate = harness.engine.len(RangeId(2)) + harness.engine.len(RangeId(3));
        assert!((850..=900).contains(&estimate), "{estimate} keys by the width of the parts");
        // First of all: polls file the records.
        assert_eq!(scan_all(&mut harness), modelled(&harness), "scans after the split");
        harness.check(&keys, "after the split");
        for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 == 0) {
            harness.write(key, (i % 2 == 0).then_some(&[9; 100]));
        }
        harness.settle();
        harness.check(&keys, "overwritten after the split");
        let filed = harness.engine.stats().cleaning_read_bytes;
        let log = harness.engine.log_report().segment_bytes;
        file(&mut harness);
        let filed = harness.engine.stats().cleaning_read_bytes - filed;
        assert!(filed <= log + log / 4, "{filed} bytes read to file a log of {log}");
        assert!(harness.engine.is_len_exact(RangeId(2)) && harness.engine.is_len_exact(RangeId(3)));
        harness.check_len("filed");
        harness.check(&keys, "filed");
        assert_eq!(scan_all(&mut harness), modelled(&harness), "scans after filing");
        harness.reopen(1, true);
        harness.check(&keys, "opened again");
        assert_eq!(scan_all(&mut harness), modelled(&harness), "scans after an opening");
        file(&mut harness);
        harness.settle();
        harness.check_len("opened again");
        harness.merge(2, 3, 4);
        harness.check(&keys, "merged");
        assert_eq!(scan_all(&mut harness), modelled(&harness), "scans after the merge");
        file(&mut harness);
        harness.check_len("merged and filed");
        harness.reopen(2, false);
        harness.check(&keys, "opened after the merge");
    }
}

#[test]
fn what_is_in_flight_puts_a_split_off() {
    let mut harness = whole(2, small(Durability::Sync), true);
    let keys = keys(100);
    fill(&mut harness, &keys, 1);
    let middle = ring_at(0x80);
    let split = |harness: &mut RangeHarness| harness.engine.split_range(ID, middle, RangeId(2), RangeId(3));
    harness.write(&keys[0], Some(b"pending"));
    assert_eq!(split(&mut harness), Err(EngineError::Overloaded), "a record is pending");
    harness.settle();
    harness.clear(1);
    harness.engine.submit(harness.now);
    assert_eq!(split(&mut harness), Err(EngineError::Overloaded), "a clear is pending");
    harness.settle();
    let not_split = Err(EngineError::NotSplit { range: ID });
    assert_eq!(harness.engine.split_range(ID, RingKey::MIN, RangeId(2), RangeId(3)), not_split);
    let exists = Err(EngineError::RangeExists { range: ID });
    assert_eq!(harness.engine.split_range(ID, middle, RangeId(2), ID), exists);
    let unknown = Err(EngineError::UnknownRange { range: RangeId(9) });
    assert_eq!(harness.engine.split_range(RangeId(9), middle, RangeId(2), RangeId(3)), unknown);
    harness.split(1, middle, 2, 3);
    harness.check(&keys, "split after the clear");
}

#[test]
fn a_clear_of_one_part_leaves_the_other() {
    for is_filed in [false, true] {
        let mut harness = whole(3, small(Durability::Sync), true);
        let keys = keys(700);
        fill(&mut harness, &keys, 1);
        harness.split(1, ring_at(0x80), 2, 3);
        if is_filed {
            file(&mut harness);
        }
        harness.clear(2);
        harness.settle();
        harness.check(&keys, "cleared");
        assert_eq!(scan_all(&mut harness), modelled(&harness), "scans after the clear");
        harness.reopen(3, true);
        harness.check(&keys, "opened after the clear");
        file(&mut harness);
        harness.settle();
        harness.check(&keys, "filed after the clear");
        harness.check_len("filed after the clear");
    }
}

/// Drops a range, and adds another one in its place.
fn add_again(harness: &mut RangeHarness, id: u32, next: u32) {
    let keys = harness.models[&RangeId(id)].keys;
    harness.drop_range(id);
    harness.add(next, keys);
}

/// Random histories, with everything at once. Returns how many times runs were listed.
pub(crate) fn history(seed: u64, options: &Options, is_sole: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut harness = whole(seed, options.clone(), is_sole);
    let keys = keys(400);
    let (mut next, mut splits, mut merges, mut jobs) = (2, 0, 0, 0);
    for step in 0..260 {
        let context = format!("seed {seed}, step {step} (… --test it splits::)");
        for _ in 0..rng.below(40) {
            let key = &keys[rng.below(keys.len() as u64) as usize];
            let value = vec![rng.next() as u8; rng.below(900) as usize];
            harness.write(key, (rng.below(5) > 0).then_some(&value));
        }
        let ids: Vec<u32> = harness.models.keys().map(|id| id.0).collect();
        let id = ids[rng.below(ids.len() as u64) as usize];
        match rng.below(24) {
            0..4 => {
                let part = ring_at(rng.below(255) as u8 + 1);
                let keys = harness.models[&RangeId(id)].keys;
                if keys.start < part && keys.end.is_none_or(|end| part < end) && ids.len() < 6 {
                    harness.settle();
                    if harness.try_split(id, part, next, next + 1) {
                        splits += 1;
                        next += 2;
                    }
                }
            }
            4..8 => {
                let end = harness.models[&RangeId(id)].keys.end;
                let upper = harness.models.iter().find(|(_, model)| Some(model.keys.start) == end);
                if let Some((&upper, _)) = upper {
                    harness.settle();
                    if harness.try_merge(id, upper.0, next) {
                        merges += 1;
                        next += 1;
                    }
                }
            }
            8 => {
                add_again(&mut harness, id, next);
                next += 1;
            }
            9 => harness.clear(id),
            10..12 => {
                harness.settle();
                jobs += harness.engine.stats().runs_listed;
                harness.reopen(seed + step, rng.below(2) == 0);
                harness.check(&keys, &context);
            }
            12..15 => file(&mut harness),
            _ => {
                for _ in 0..rng.below(12) {
                    harness.turn();
                }
            }
        }
        if step % 10 == 9 {
            harness.settle();
            harness.check(&keys, &context);
            assert_eq!(scan_all(&mut harness), modelled(&harness), "{context}: scans");
        }
    }
    harness.settle();
    file(&mut harness);
    harness.check(&keys, &format!("seed {seed}, at the end"));
    if options.layout == RecordLayout::Log {
        harness.check_len(&format!("seed {seed}, at the end"));
    }
    assert!(splits > 5 && merges > 1, "seed {seed}: {splits} splits, {merges} merges");
    jobs + harness.engine.stats().runs_listed
}

#[test]
fn random_histories_of_sole_ranges() {
    (0..6).for_each(|seed| {
        history(seed, &small(Durability::Sync), true);
    });
}

#[test]
fn random_histories_in_chains() {
    (10..16).for_each(|seed| {
        history(seed, &small(Durability::Sync), false);
    });
}

#[test]
fn random_histories_without_checkpoints() {
    (20..24).for_each(|seed| {
        history(seed, &scanned(Durability::Sync), seed % 2 == 0);
    });
}

/// Crash images after each operation around splits, filing, cleaning, merges and drops: the ranges that the manifest lists
/// have all that was committed, and nothing else.
#[test]
fn a_crash_at_any_point_leaves_one_set_of_ranges_with_everything() {
    let mut images = 0;
    for seed in 0..6 {
        let mut harness = whole(seed, small(Durability::Sync), seed % 2 == 0);
        let keys = keys(260);
        for round in 0..3 {
            fill(&mut harness, &keys, round);
        }
        for key in keys.iter().step_by(3) {
            harness.write(key, None);
        }
        harness.settle();
        let mut stages = vec![harness.models.clone()];
        harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
        harness.split(1, ring_at(0x70), 2, 3);
        stages.push(harness.models.clone());
        (0..4).for_each(|_| harness.turn());
        harness.split(3, ring_at(0xA0), 4, 5);
        stages.push(harness.models.clone());
        file(&mut harness);
        (0..30).for_each(|_| harness.turn());
        harness.merge(2, 4, 6);
        stages.push(harness.models.clone());
        file(&mut harness);
        harness.drop_range(5);
        stages.push(harness.models.clone());
        (0..30).for_each(|_| harness.turn());
        for image in harness.disk.take_images() {
            let context = format!("seed {seed}, operation {} (… --test it splits::)", image.op);
            let (mut engine, _) =
                Engine::open(SimDevice::attach(&image.disk), harness.options.clone(), harness.now).unwrap();
            let listed: Vec<RangeId> = engine.ranges().map(|(id, _)| id).collect();
            let models = stages.iter().find(|stage| stage.keys().eq(listed.iter())).cloned();
            for id in &listed {
                let end = engine.progress(*id).appended;
                engine.commit(*id, end);
            }
            let models = models.unwrap_or_else(|| panic!("{context}: ranges {listed:?}"));
            let (options, now, is_sole) = (harness.options.clone(), harness.now, false);
            let mut crashed = RangeHarness { disk: image.disk, engine, options, models, now, is_sole };
            crashed.check(&keys, &context);
            assert_eq!(scan_all(&mut crashed), modelled(&crashed), "{context}: scans");
            images += 1;
        }
    }
    println!("{images} images");
    assert!(images > 100, "only {images} images");
}

#[test]
fn a_thousand_splits_and_merges_leave_nothing_behind() {
    let mut harness = whole(6, small(Durability::Sync), true);
    let keys = keys(120);
    fill(&mut harness, &keys, 1);
    let (mut id, mut most) = (1, (0, 0, 0));
    for round in 0..500u32 {
        harness.split(id, ring_at(1 + (round * 37 % 250) as u8), id + 1, id + 2);
        for i in 0..12 {
            harness.write(&keys[(round * 12 + i) as usize % keys.len()], Some(&[round as u8; 900]));
        }
        harness.settle();
        harness.merge(id + 1, id + 2, id + 3);
        id += 3;
        let report = harness.engine.log_report();
        let now = (harness.engine.memory().index_bytes, report.segments, harness.engine.lineage_len());
        if round == 60 {
            most = (2 * now.0, 2 * now.1, 2 * now.2);
        }
        assert!(round <= 60 || (now.0 <= most.0 && now.1 <= most.1 && now.2 <= most.2), "round {round}: {now:?}");
    }
    file(&mut harness);
    harness.check(&keys, "after 500 splits and merges");
    harness.check_len("after 500 splits and merges");
    let manifest = harness.disk.contents("manifest").unwrap().len();
    assert!(manifest < 1 << 20, "a manifest of {manifest} bytes");
    harness.reopen(6, true);
    harness.check(&keys, "opened after 500 splits and merges");
}

/// Each number of a lineage that a segment names has a place after an opening, whose empty index took 256 KiB.
#[test]
fn an_opening_after_many_splits_takes_no_memory_for_empty_indexes() {
    let options = Options { index: IndexOptions::default(), ..small(Durability::Sync) };
    let mut harness = whole(6, options, true);
    let keys = keys(240);
    for (round, pairs) in (0..60_u32).zip(keys.chunks(4)) {
        let id = 1 + 3 * round;
        let write = |harness: &mut RangeHarness, key: &Vec<u8>| harness.write(key, Some(&[round as u8; 20]));
        write(&mut harness, &pairs[0]);
        write(&mut harness, &pairs[1]);
        harness.settle();
        harness.split(id, ring_at(0x80), id + 1, id + 2);
        write(&mut harness, &pairs[2]);
        write(&mut harness, &pairs[3]);
        harness.settle();
        harness.merge(id + 1, id + 2, id + 3);
    }
    assert!(harness.engine.lineage_len() > 100, "{} numbers", harness.engine.lineage_len());
    let before = harness.engine.memory().index_bytes;
    harness.reopen(6, true);
    let after = harness.engine.memory().index_bytes;
    assert!(after < (4 << 20), "{after} bytes, {before} before");
    harness.check(&keys, "opened after 60 splits and merges");
}

/// A record of the old range that an heir's record replaced stays until that one's commit is durable: after a crash it may be
/// pending, and a rollback would leave nothing.
#[test]
fn what_died_by_an_heir_stays_until_the_heirs_commit_is_durable() {
    let mut images = 0;
    for seed in 0..6 {
        let mut harness = whole(seed, small(Durability::Sync), false);
        let keys = keys(300);
        fill(&mut harness, &keys, 1);
        harness.split(1, ring_at(0x80), 2, 3);
        if seed % 2 == 0 {
            file(&mut harness);
        }
        harness.disk.capture(Capture::Every { stride: 29, loss: Loss::Power, seed });
        for key in &keys {
            harness.write(key, Some(&[2; 600]));
            harness.engine.submit(harness.now);
            harness.engine.wait(harness.now, &mut Vec::new());
            harness.commit();
        }
        (0..20).for_each(|_| harness.turn());
        for image in harness.disk.take_images() {
            let (engine, _) =
                Engine::open(SimDevice::attach(&image.disk), harness.options.clone(), harness.now).unwrap();
            let (options, now, models) = (harness.options.clone(), harness.now, harness.models.clone());
            let mut crashed = RangeHarness { disk: image.disk, engine, options, models, now, is_sole: false };
            for key in &keys {
                let id = crashed.range_of(key).unwrap();
                let found = crashed.get(id, key).unwrap();
                assert!(found.is_some(), "seed {seed}, operation {}: {key:?} is gone", image.op);
            }
            images += 1;
        }
    }
    println!("{images} images");
    assert!(images > 60, "only {images} images");
}

/// A segment that cannot be read stays with the retired range, which serves on; the others are filed.
#[test]
fn an_unreadable_segment_is_filed_once_it_is_readable() {
    let mut harness = whole(7, small(Durability::Sync), true);
    let keys = keys(900);
    fill(&mut harness, &keys, 1);
    let names = harness.disk.names();
    let name = names.iter().find(|name| name.starts_with("segment-")).unwrap().clone();
    harness.disk.make_unreadable(&name, 4096..8192);
    harness.split(1, ring_at(0x80), 2, 3);
    for _ in 0..300 {
        harness.now = harness.now.plus_ms(10);
        harness.turn();
    }
    assert_eq!(harness.engine.segments_to_file(), 1, "only the unreadable one is left");
    assert!(harness.engine.stats().filing_failed > 0 && !harness.engine.is_len_exact(RangeId(2)));
    harness.disk.heal();
    harness.check(&keys, "with a segment that is not filed");
    harness.now = harness.now.plus_ms(20_000);
    file(&mut harness);
    harness.check(&keys, "filed at last");
    harness.check_len("filed at last");
}

#[test]
fn every_key_is_in_one_part() {
    let mut harness = whole(4, small(Durability::Sync), true);
    harness.split(1, ring_at(0x80), 2, 3);
    let keys = keys(100);
    let low = keys.iter().filter(|key| RingKey::of(&SECRET, key) < ring_at(0x80)).count();
    assert!((30..70).contains(&low), "{low} of 100 keys");
}

/// A chain's record dies by the commit of an heir. Until a mark of the heir makes that durable, a crash leaves the new
/// record pending, and the old one must still be there. Filing would count the record for the heir first: its reads hang.
#[test]
fn a_segment_stays_until_what_an_heir_overwrote_is_durably_committed() {
    let seed = 17;
    let options = cached(Durability::Sync);
    let mut harness = whole(seed, options.clone(), false);
    let keys = keys(600);
    fill(&mut harness, &keys, 1);
    // The pages are cached, so overwrites are confirmed without a read.
    harness.check(&keys, "filled");
    harness.check(&keys, "cached");
    harness.disk.hang(OpKind::Read);
    harness.split(1, ring_at(0x80), 2, 3);
    let dropped = harness.engine.stats().segments_dropped;
    harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
    for part in keys.chunks(25) {
        for key in part {
            harness.write(key, Some(&[2; 20]));
        }
        for _ in 0..4 {
            harness.turn();
        }
    }
    assert!(harness.engine.segments_to_file() > 0, "filing waits for its read");
    assert!(harness.engine.stats().segments_dropped > dropped, "segments of the parent are dropped");
    let images = harness.disk.take_images();
    println!("{} images", images.len());
    assert!(images.len() > 50, "only {} images", images.len());
    for image in images {
        image.disk.clear_faults();
        image.disk.release_hung();
        let (engine, _) = Engine::open(SimDevice::attach(&image.disk), options.clone(), harness.now).unwrap();
        let (models, now) = (harness.models.clone(), harness.now);
        let mut crashed =
            RangeHarness { disk: image.disk, engine, options: options.clone(), models, now, is_sole: false };
        for key in &keys {
            let id = crashed.range_of(key).unwrap();
            let found = crashed.get(id, key).unwrap();
            assert!(found.is_some(), "seed {seed}, operation {}: {:?}", image.op, String::from_utf8_lossy(key));
        }
    }
}

/// The manifest says that all of the parent is committed, so nothing of it may be lost any more, whatever the durability.
#[test]
fn a_split_syncs_what_the_durability_left_unsynced() {
    for durability in [Durability::EverySecond, Durability::Memory] {
        let mut harness = whole(19, small(durability), false);
        let keys = keys(40);
        for key in &keys {
            harness.write(key, Some(&[5; 100]));
        }
        if durability == Durability::EverySecond {
            harness.turn();
        }
        harness.commit();
        let progress = harness.engine.progress(ID);
        assert!(progress.committed == progress.appended && progress.synced < progress.appended, "{progress:?}");
        harness.split(1, ring_at(0x80), 2, 3);
        harness.reopen(19, true);
        harness.check(&keys, "opened after the split");
    }
}

/// A segment has the rollback of records before it. Filed for the heirs it still hides them: without it, an opening would
/// take them for committed, as all that the parent had.
#[test]
fn a_rollback_hides_records_of_the_parent_after_it_is_filed() {
    let mut harness = whole(20, scanned(Durability::Sync), false);
    let (kept, later) = (keys(60), keys(200).split_off(60));
    fill(&mut harness, &kept, 1);
    let last = harness.engine.progress(ID).committed;
    let ghosts: Vec<Vec<u8>> = (0..100).map(|i| format!("ghost {i}").into_bytes()).collect();
    for (ghost, version) in ghosts.iter().zip(last.as_u64() + 1..) {
        let record = RecordRef::put(Version::from_u64(version), ghost, &[7; 600]);
        while harness.engine.append(ID, KeyHash::of(&SECRET, ghost), &record).is_err() {
            harness.engine.submit(harness.now);
            harness.engine.wait(harness.now, &mut Vec::new());
        }
    }
    harness.engine.rollback(ID, last).unwrap();
    fill(&mut harness, &later, 2);
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    // Nothing but the rollback keeps its segment now.
    for byte in 3..6 {
        fill(&mut harness, &later, byte);
    }
    for _ in 0..50 {
        harness.turn();
    }
    harness.reopen(20, false);
    harness.check(&kept, "opened again");
    harness.check(&ghosts, "rolled back before the split");
}

/// The open frame has only records that were rolled back: all that is left of the range is synced.
#[test]
fn a_range_is_split_or_merged_right_after_a_rollback() {
    let mut harness = whole(1, small(Durability::Sync), false);
    let keys = keys(100);
    fill(&mut harness, &keys, 1);
    harness.roll_back(ID, &keys[..3]);
    assert!(harness.try_split(1, ring_at(0x60), 2, 3));
    harness.check(&keys, "split after a rollback");
    fill(&mut harness, &keys, 2);
    file(&mut harness);
    harness.roll_back(RangeId(2), &keys);
    assert!(harness.try_merge(2, 3, 4));
    harness.check(&keys, "merged after a rollback");
    harness.reopen(1, true);
    harness.check(&keys, "opened again");
}

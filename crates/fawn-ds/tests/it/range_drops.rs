//! Dropped ranges: their space is freed, nothing of them comes back, and work in flight does not touch their successors.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, manifest_commits, small};
use fawn_ds::internals::format::manifest::{self, ManifestState};
use fawn_ds::internals::{Engine, EngineError, RecordRef};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, KeyHash, KeyRange, RangeId, Version};

fn halves() -> [KeyRange; 2] {
    let middle = ring_at(0x80);
    [KeyRange { end: Some(middle), ..KeyRange::ALL }, KeyRange { start: middle, end: None }]
}

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("key {i}").into_bytes()).collect()
}

fn two_ranges(seed: u64, is_sole: bool) -> RangeHarness {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::instant(seed) });
    let mut harness = RangeHarness::new(disk, small(Durability::Sync), is_sole);
    let [low, high] = halves();
    harness.add(1, low);
    harness.add(2, high);
    harness
}

#[test]
fn a_dropped_range_frees_its_space_and_never_comes_back() {
    for is_sole in [true, false] {
        let mut harness = two_ranges(1, is_sole);
        let keys = keys(600);
        for key in &keys {
            harness.write(key, Some(&[7; 600]));
        }
        harness.settle();
        let before = harness.engine.log_report().segments;
        harness.drop_range(1);
        assert_eq!(harness.get(RangeId(1), &keys[0]), Err(EngineError::UnknownRange { range: RangeId(1) }));
        assert_eq!(harness.engine.drop_range(RangeId(1)), Err(EngineError::UnknownRange { range: RangeId(1) }));
        harness.settle();
        harness.check(&keys, "after the drop");
        harness.reopen(1, true);
        harness.check(&keys, "opened after the drop");
        harness.add(1, halves()[0]);
        harness.check(&keys, "added again");
        harness.check_len("added again");
        harness.write(&keys[0], Some(b"new"));
        harness.write(&keys[1], Some(b"new"));
        harness.settle();
        harness.reopen(2, false);
        harness.check(&keys, "opened after it was added again");
        harness.check_len("opened after it was added again");
        harness.drop_range(2);
        harness.drop_range(1);
        // A write makes the segment complete that the last records are in.
        harness.add(3, KeyRange::ALL);
        for round in 0..150u32 {
            harness.write(b"one key", Some(&vec![round as u8; 900]));
            harness.turn();
        }
        harness.settle();
        let after = harness.engine.log_report();
        assert!(after.segments < before && after.live_bytes < 1_200, "{before} segments before, then {after:?}");
    }
}

/// A verification of a dropped range ends when another range has its place, with a key of the same name whose own
/// verification is in flight as well.
#[test]
fn a_verification_in_flight_does_not_touch_the_next_range_of_its_place() {
    let mut harness = two_ranges(3, true);
    let keys: Vec<_> = keys(300).into_iter().filter(|key| harness.range_of(key) == Some(RangeId(1))).collect();
    let write_all = |harness: &mut RangeHarness| {
        for key in &keys {
            harness.write(key, Some(&[1; 700]));
        }
        harness.settle();
    };
    write_all(&mut harness);
    harness.reopen(3, false);
    harness.settle();
    harness.disk.hang(OpKind::Read);
    for key in &keys[..20] {
        harness.write(key, Some(&[2; 700]));
    }
    harness.engine.submit(harness.now);
    assert!(harness.disk.hung() > 0, "verifications are in flight");
    harness.drop_range(1);
    harness.add(1, halves()[0]);
    for key in &keys {
        harness.write(key, Some(&[3; 700]));
    }
    // Their old versions leave the window, so each of the overwrites has to read one.
    harness.settle();
    let of_dropped = harness.disk.hung();
    for key in &keys[..20] {
        harness.write(key, Some(&[4; 700]));
    }
    harness.engine.submit(harness.now);
    assert!(harness.disk.hung() > of_dropped, "verifications of the second range are in flight too");
    let reads = harness.engine.stats().verification_reads;
    harness.disk.release_hung();
    harness.disk.clear_faults();
    harness.settle();
    let again = harness.engine.stats().verification_reads - reads;
    assert_eq!(again, 0, "a verification of the dropped range read for the second one");
    harness.check(&keys, "after the place was used again");
    harness.check_len("after the place was used again");
    harness.reopen(4, true);
    harness.check(&keys, "opened again");
    harness.check_len("opened again");
}

/// Crash images after each operation: the range is there whole, or not at all.
#[test]
fn a_crash_around_a_drop_leaves_the_range_whole_or_gone() {
    let mut images = 0;
    for seed in 0..6 {
        let mut harness = two_ranges(seed, seed % 2 == 0);
        let keys = keys(400);
        for (i, key) in keys.iter().enumerate() {
            harness.write(key, Some(&vec![i as u8; 500]));
            // Deletes whose segments keep older puts hidden: the puts must not outlive them.
            if i % 3 == 0 {
                harness.write(&keys[i / 2], None);
            }
        }
        harness.settle();
        let before = harness.models.clone();
        harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
        harness.drop_range(1);
        for _ in 0..60 {
            harness.turn();
        }
        for image in harness.disk.take_images() {
            let (mut engine, _) =
                Engine::open(SimDevice::attach(&image.disk), small(Durability::Sync), harness.now).unwrap();
            for id in before.keys() {
                // Of a chain, what no mark covers is pending.
                let end = engine.progress(*id).appended;
                engine.commit(*id, end);
            }
            let models = before.iter().filter(|(id, _)| engine.ranges().any(|(listed, _)| listed == **id));
            let models = models.map(|(&id, model)| (id, model.clone())).collect();
            let mut crashed = RangeHarness { disk: image.disk, engine, models, ..two_ranges(99, true) };
            crashed.check(&keys, &format!("seed {seed}, operation {} (… --test it range_drops::)", image.op));
            images += 1;
        }
    }
    println!("{images} images");
    assert!(images > 60, "only {images} images");
}

/// Both commits may be in one write, of which a crash leaves the first part only: segments that hide records of a range go
/// after the range.
#[test]
fn the_manifest_drops_a_range_before_its_segments() {
    for is_sole in [true, false] {
        let mut harness = two_ranges(7, is_sole);
        let keys: Vec<_> = keys(900).into_iter().filter(|key| harness.range_of(key) == Some(RangeId(1))).collect();
        for key in &keys {
            harness.write(key, Some(&[7; 600]));
        }
        harness.settle();
        let (before, dropped) = (manifest_states(&harness).len(), harness.engine.stats().segments_dropped);
        harness.drop_range(1);
        harness.settle();
        assert!(harness.engine.stats().segments_dropped > dropped + 2, "segments of the range are dropped");
        let states = manifest_states(&harness);
        assert!(states.len() > before, "the manifest was not rewritten");
        let segments = states[before - 1].segments.len();
        for state in &states[before..] {
            let is_whole = state.segments.len() >= segments;
            assert!(is_whole || !state.ranges.contains_key(&RangeId(1)), "segments went before their range");
        }
    }
}

/// The state after each commit of the manifest.
fn manifest_states(harness: &RangeHarness) -> Vec<ManifestState> {
    let bytes = harness.disk.contents("manifest").unwrap();
    let ends = manifest_commits(&bytes).into_iter().map(|(_, end)| end);
    ends.map(|end| manifest::decode_all(&bytes[..end]).unwrap().state).collect()
}

#[test]
fn a_thousand_drops_leave_nothing_behind() {
    let mut harness = two_ranges(5, true);
    let mut rest = (0, 0);
    for round in 0..1_000u32 {
        harness.engine.add_range(RangeId(100 + round), KeyRange::ALL).unwrap();
        let epoch = harness.engine.next_sole_epoch(RangeId(100 + round)).unwrap();
        let version = Version::new(epoch, 1).unwrap();
        let record = RecordRef::put(version, b"pending", &[1; 300]);
        while harness.engine.append(RangeId(100 + round), KeyHash::of(&SECRET, b"pending"), &record).is_err() {
            harness.turn();
        }
        harness.drop_range(100 + round);
        harness.turn();
        let now = (harness.engine.memory().index_bytes, harness.engine.log_report().segments);
        if round == 20 {
            rest = now;
        }
        assert!(round <= 20 || (now.0 <= rest.0 && now.1 <= 8), "round {round}: {now:?} after {rest:?}");
    }
    let manifest = harness.disk.contents("manifest").unwrap().len();
    assert!(manifest < 640 << 10, "a manifest of {manifest} bytes");
}

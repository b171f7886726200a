//! Clears whose commit is not durable yet: a crash leaves them pending, so nothing that they removed may be gone for good.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::scanned;
use fawn_ds::internals::Engine;
use fawn_flash::sim::{Capture, Loss};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, RangeId, RingKey};

/// In a chain a commit is durable with its mark, which only a submit logs. Without one, a range is cleared and polls go on:
/// after any crash the clear is pending, and all keys are there.
fn clear_without_a_mark(is_split: bool) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut harness = RangeHarness::new(disk, scanned(Durability::Sync), false);
    harness.add(1, KeyRange::ALL);
    let is_left = |key: &Vec<u8>| RingKey::of(&crate::support::SECRET, key) < ring_at(0x80);
    let keys: Vec<Vec<u8>> = (0..800).map(|i| format!("key {i}").into_bytes()).filter(is_left).collect();
    for key in &keys {
        harness.write(key, Some(&[1; 500]));
    }
    harness.settle();
    // The commits so far are marked, and the segment that will have the clear has a mark.
    harness.now = harness.now.plus_ms(5_000);
    (0..4).for_each(|_| harness.turn());
    let id = if is_split { 2 } else { 1 };
    if is_split {
        harness.split(1, ring_at(0x80), 2, 3);
    }
    let models = harness.models.clone();
    harness.clear(id);
    harness.engine.submit(harness.now);
    (0..4).for_each(|_| harness.engine.wait(harness.now, &mut Vec::new()));
    let clear = harness.engine.progress(RangeId(id)).appended;
    harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 1 });
    harness.commit();
    assert_eq!(harness.engine.progress(RangeId(id)).committed, clear);
    for _ in 0..200 {
        harness.engine.wait(harness.now, &mut Vec::new());
    }
    assert!(!is_split || harness.engine.segments_to_file() == 0, "filing needs no submit");
    harness.disk.capture(Capture::Never);
    let mut images = harness.disk.take_images();
    images.push(fawn_flash::sim::Image { op: harness.disk.ops(), disk: harness.disk.image(Loss::Power, 1) });
    for image in images {
        let (engine, _) = Engine::open(SimDevice::attach(&image.disk), harness.options.clone(), harness.now).unwrap();
        assert!(engine.progress(RangeId(id)).committed < clear, "no mark covers the clear");
        let (options, now, models) = (harness.options.clone(), harness.now, models.clone());
        let mut crashed = RangeHarness { disk: image.disk, engine, options, models, now, is_sole: false };
        crashed.check(&keys, &format!("operation {}", image.op));
    }
    // With the mark the clear is listed, and its segments go.
    let before = harness.engine.log_report().segments;
    (0..40).for_each(|_| harness.turn());
    assert!(harness.engine.log_report().segments < before, "{:?}", harness.engine);
    harness.reopen(1, true);
    harness.check(&keys, "cleared");
}

#[test]
fn a_clear_without_a_durable_commit_is_not_listed() {
    clear_without_a_mark(false);
}

#[test]
fn records_that_filing_finds_cleared_stay_until_the_clear_is_durably_committed() {
    clear_without_a_mark(true);
}

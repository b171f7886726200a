//! Merges of ranges while a checkpoint is written and listed: it may have entries that the merged range must not get.
use crate::checkpoint::{files, listed};
use crate::range_harness::{RangeHarness, RangeModel, ring_at};
use crate::splits::{file, keys, whole};
use crate::support::small;
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk};
use fawn_types::{Durability, RangeId};
use std::collections::BTreeMap;

type Models = BTreeMap<RangeId, RangeModel>;

/// A range that was split in two, and whose parts have indexes of their own.
fn divided(seed: u64, keys: &[Vec<u8>]) -> RangeHarness {
    let options =
        Options { space_amplification_max_percent: 100_000, memory_bytes: 8 << 20, ..small(Durability::Sync) };
    let mut harness = whole(seed, options, true);
    for (i, key) in keys.iter().enumerate() {
        harness.write(key, Some(&[i as u8; 100]));
    }
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    harness
}

/// Files of checkpoints that are not listed.
fn unlisted(disk: &SimDisk) -> Vec<String> {
    let listed = listed(disk);
    files(disk).into_iter().filter(|name| !listed.contains(name)).collect()
}

/// Writes until a checkpoint begins, whose writes hang: the header and the only piece, and no write of the log or the manifest. Nothing
/// of the ranges is in flight then. Returns the checkpoint's file.
fn begin(harness: &mut RangeHarness) -> String {
    for i in 0..2_000 {
        harness.write(format!("another key {i}").as_bytes(), Some(&[0; 4_000]));
        harness.engine.submit(harness.now);
        harness.disk.hang(OpKind::Write);
        harness.engine.wait(harness.now, &mut Vec::new());
        let begun = unlisted(&harness.disk).pop();
        harness.disk.end_faults(OpKind::Write);
        if let Some(name) = begun.filter(|_| harness.disk.hung() == 2) {
            harness.settle();
            return name;
        }
        harness.disk.release_hung();
        (0..20).for_each(|_| harness.turn());
    }
    panic!("no checkpoint begins: {:?}", harness.engine);
}

/// Opens an image of the disk, and compares its ranges with their models of before or after the merge.
fn check_image(harness: &RangeHarness, disk: SimDisk, stages: [&Models; 2], keys: &[Vec<u8>], context: &str) {
    let (mut engine, report) = Engine::open(SimDevice::attach(&disk), harness.options.clone(), harness.now).unwrap();
    assert_eq!(report.checkpoints_refused, [], "{context}");
    let found: Vec<RangeId> = engine.ranges().map(|(id, _)| id).collect();
    let models = stages.into_iter().find(|stage| stage.keys().eq(found.iter())).cloned();
    let models = models.unwrap_or_else(|| panic!("{context}: ranges {found:?}"));
    for id in found {
        engine.commit(id, engine.progress(id).appended);
    }
    let (options, now) = (harness.options.clone(), harness.now);
    let mut opened = RangeHarness { disk, engine, options, models, now, is_sole: true };
    opened.check(keys, context);
}

#[test]
fn a_merge_gives_up_or_drops_the_checkpoint_that_is_written_or_listed() {
    let (keys, mut was_listed) = (keys(300), 0);
    for polls in 0..12 {
        let mut harness = divided(polls, &keys);
        let name = begin(&mut harness);
        harness.disk.release_hung();
        for _ in 0..polls {
            harness.engine.wait(harness.now, &mut Vec::new());
        }
        was_listed += usize::from(listed(&harness.disk).contains(&name));
        let before = harness.models.clone();
        harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: polls });
        assert!(harness.try_merge(2, 3, 4), "{polls} polls: {:?}", harness.engine);
        (0..20).for_each(|_| harness.turn());
        let context = format!("merged after {polls} polls");
        for image in harness.disk.take_images() {
            let context = format!("{context}, operation {}", image.op);
            check_image(&harness, image.disk, [&before, &harness.models], &keys, &context);
        }
        assert!(!files(&harness.disk).contains(&name), "{context}: {name} is left");
        assert_eq!(unlisted(&harness.disk), Vec::<String>::new(), "{context}");
        let checkpoints = harness.engine.stats().checkpoints;
        for i in 0..2_000 {
            if harness.engine.stats().checkpoints > checkpoints {
                break;
            }
            harness.now = harness.now.plus_ms(100);
            harness.write(format!("a later key {i}").as_bytes(), Some(&[0; 4_000]));
            harness.turn();
        }
        assert!(harness.engine.stats().checkpoints > checkpoints, "{context}: {:?}", harness.engine);
        harness.settle();
        check_image(&harness, harness.disk.image(Loss::Process, 1), [&before, &harness.models], &keys, &context);
    }
    assert!((1..12).contains(&was_listed), "in {was_listed} of 12 rounds the checkpoint was listed before the merge");
}

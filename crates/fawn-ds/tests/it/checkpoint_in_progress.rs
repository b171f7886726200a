//! Changes while a checkpoint copies the index: what it says of them must fit, or it must be given up.
use crate::checkpoint::listed;
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, small};
use fawn_ds::internals::format::checkpoint;
use fawn_ds::internals::{Engine, Lookup, Options, RecordLayout, RecordRef, View};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, RangeId, Version};

/// Keys whose entries take more pieces than may be in flight.
const KEYS: usize = 50_000;
const ID: RangeId = RangeId(1);
/// A range that receives a transfer.
const RECEIVING: RangeId = RangeId(9);

fn options() -> Options {
    let memory_bytes = 16 << 20;
    Options { space_amplification_max_percent: 0, memory_bytes, ..small(Durability::Sync) }
}

fn keys() -> Vec<Vec<u8>> {
    (0..KEYS).map(|i| format!("k{i:05}").into_bytes()).collect()
}

/// Writes these keys, many per frame: what is not overwritten leaves nothing to clean.
fn write_all<'a>(harness: &mut RangeHarness, keys: impl Iterator<Item = &'a Vec<u8>>, byte: u8) {
    for (i, key) in keys.enumerate() {
        harness.write(key, Some(&[byte; 8]));
        if i % 100 == 99 {
            harness.turn();
        }
    }
    harness.settle();
}

/// A range with many keys, and these keys.
pub(crate) fn filled(is_sole: bool) -> (RangeHarness, Vec<Vec<u8>>) {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options(), is_sole);
    harness.add(ID.0, KeyRange::ALL);
    let keys = keys();
    write_all(&mut harness, keys.iter(), 1);
    (harness, keys)
}

fn checkpoint_files(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).collect()
}

/// Writes until a checkpoint begins, whose first writes hang: the rest of the index is still to be copied.
pub(crate) fn begin(harness: &mut RangeHarness) {
    // The header and three pieces, and no write of the log or the manifest.
    let _ = begin_with(harness, 4, |_| {});
}

/// As [`begin`], with further writes each time, and so many writes that hang at most. Returns how many records were filed
/// before.
fn begin_with(harness: &mut RangeHarness, hung_max: usize, mut write: impl FnMut(&mut RangeHarness)) -> u64 {
    let mut known = checkpoint_files(&harness.disk);
    for i in 0..2_000 {
        harness.write(format!("another key {i}").as_bytes(), Some(&[0; 8_000]));
        write(harness);
        harness.engine.submit(harness.now);
        harness.disk.hang(OpKind::Write);
        harness.engine.wait(harness.now, &mut Vec::new());
        let has_begun = checkpoint_files(&harness.disk).iter().any(|name| !known.contains(name));
        let filed = harness.engine.stats().filed_records;
        if has_begun {
            (0..3).for_each(|_| harness.engine.wait(harness.now, &mut Vec::new()));
        }
        harness.disk.end_faults(OpKind::Write);
        if has_begun && (4..=hung_max).contains(&harness.disk.hung()) {
            harness.commit();
            return filed;
        }
        harness.disk.release_hung();
        (0..if has_begun { 100 } else { 1 }).for_each(|_| harness.turn());
        known = checkpoint_files(&harness.disk);
    }
    panic!("no checkpoint begins: {:?}", harness.engine);
}

/// Lets the checkpoint end, and nothing be written or cleaned meanwhile.
pub(crate) fn end(harness: &mut RangeHarness) {
    harness.disk.release_hung();
    for _ in 0..40 {
        harness.engine.submit(harness.now);
        harness.engine.wait(harness.now, &mut Vec::new());
    }
}

/// Opens a copy of the disk: each listed checkpoint is right.
fn assert_right(harness: &RangeHarness) {
    let image = harness.disk.image(Loss::Process, 1);
    let (_, report) = Engine::open(SimDevice::attach(&image), harness.options.clone(), harness.now).unwrap();
    assert_eq!(report.checkpoints_refused, []);
}

fn open_again(harness: &mut RangeHarness, keys: &[Vec<u8>]) {
    assert_right(harness);
    harness.reopen(1, false);
    let some: Vec<_> = keys.iter().step_by(97).cloned().collect();
    harness.check(&some, "opened again");
}

#[test]
fn a_clear_gives_the_checkpoint_up() {
    let (mut harness, keys) = filled(true);
    begin(&mut harness);
    harness.clear(ID.0);
    harness.settle();
    end(&mut harness);
    open_again(&mut harness, &keys);
}

#[test]
fn the_drop_of_a_range_gives_the_checkpoint_up() {
    let (mut harness, _) = filled(true);
    begin(&mut harness);
    harness.drop_range(ID.0);
    end(&mut harness);
    assert_right(&harness);
}

#[test]
fn the_beginning_of_a_transfer_gives_the_checkpoint_up() {
    let (mut harness, _) = filled(true);
    begin(&mut harness);
    harness.engine.begin_transfer(ID, Version::new(Epoch::new(9).unwrap(), 9).unwrap()).unwrap();
    end(&mut harness);
    assert_right(&harness);
}

/// Reads keep the cleaned segments: the checkpoint has entries that point there and have moved since.
#[test]
fn a_checkpoint_counts_entries_that_move_while_it_is_copied() {
    let (mut harness, keys) = filled(true);
    begin(&mut harness);
    let plan_of = |harness: &mut RangeHarness, key: &[u8]| {
        let (hash, now) = (KeyHash::of(&SECRET, key), harness.now.wall);
        match harness.engine.lookup(ID, hash, key, View::Committed, now).unwrap() {
            Lookup::Read(plan) => Some(plan),
            _ => None,
        }
    };
    let pinning = keys.iter().step_by(200).filter_map(|key| {
        let plans = [plan_of(&mut harness, key)?, plan_of(&mut harness, key)?];
        Some(plans)
    });
    let pinning: Vec<_> = pinning.collect();
    assert!(pinning.len() > 50, "{} reads", pinning.len());
    let mut later = Vec::new();
    harness.disk.hang(OpKind::Read);
    for [first, second] in pinning {
        harness.engine.read(first, 0);
        later.push(second);
    }
    harness.disk.end_faults(OpKind::Read);
    let (mut rng, moved) = (Rng::new(1), harness.engine.stats().moved_records);
    while harness.engine.stats().moved_records < moved + 2_000 {
        for _ in 0..100 {
            harness.write(&keys[rng.below(KEYS as u64 / 4) as usize], Some(&[2; 8]));
        }
        harness.turn();
        assert!(harness.engine.stats().appended_records < 200_000, "{:?}", harness.engine);
    }
    let checkpoints = harness.engine.stats().checkpoints;
    harness.disk.release_hung();
    harness.disk.hang(OpKind::Read);
    later.into_iter().for_each(|plan| harness.engine.read(plan, 0));
    harness.disk.end_faults(OpKind::Read);
    for _ in 0..100 {
        harness.turn();
        if harness.engine.stats().checkpoints > checkpoints {
            break;
        }
    }
    assert!(harness.engine.stats().checkpoints > checkpoints, "{:?}", harness.engine);
    assert_right(&harness);
}

/// Splits the range. The disk cannot be read meanwhile, so that filing is put off.
pub(crate) fn split_unfiled(harness: &mut RangeHarness) {
    for name in harness.disk.names().iter().filter(|name| name.starts_with("segment-")) {
        harness.disk.make_unreadable(name, 4096..64 << 10);
    }
    harness.split(ID.0, ring_at(0x80), 2, 3);
    let to_file = harness.engine.segments_to_file() as u64;
    while harness.engine.stats().filing_failed < to_file {
        harness.turn();
    }
    harness.disk.heal();
}

/// After a split whose filing is put off, cleaning moves entries to the heirs' indexes: not while a checkpoint is copied.
#[test]
fn nothing_moves_between_indexes_while_a_checkpoint_is_copied() {
    let (mut rng, mut unfiled) = (Rng::new(1), 0);
    for overwritten in [200, 300, 500, 700] {
        let (mut harness, keys) = filled(true);
        split_unfiled(&mut harness);
        let mut overwrite = |harness: &mut RangeHarness| {
            for _ in 0..overwritten {
                harness.write(&keys[rng.below(KEYS as u64) as usize], Some(&[2; 8]));
            }
        };
        let filed = begin_with(&mut harness, 8, &mut overwrite);
        (0..20).for_each(|_| harness.turn());
        assert_eq!(harness.engine.stats().filed_records, filed, "{:?}", harness.engine);
        end(&mut harness);
        unfiled += harness.engine.segments_to_file();
        open_again(&mut harness, &keys);
    }
    assert!(unfiled > 0);
}

/// All records of a retired range die while its index is copied. Without its place, the rest of the image would be that of an index of
/// another shape, and every opening would refuse the checkpoint.
#[test]
fn a_retired_range_keeps_its_place_while_its_index_is_copied() {
    let (mut harness, keys) = filled(true);
    split_unfiled(&mut harness);
    let _ = begin_with(&mut harness, 8, |_| {});
    let checkpoints = harness.engine.stats().checkpoints;
    // Keys of a segment in which the retired range has records go, too.
    let others: Vec<_> = (0..20).map(|i| format!("another key {i}").into_bytes()).collect();
    for (i, key) in keys.iter().chain(&others).enumerate() {
        harness.write(key, None);
        if i % 100 == 99 {
            harness.turn();
        }
    }
    harness.settle();
    assert_eq!(harness.engine.segments_to_file(), 0, "nothing is left of it: {:?}", harness.engine);
    assert_eq!(harness.engine.stats().checkpoints, checkpoints, "the index is being copied");
    end(&mut harness);
    // With most keys gone, an image is so short that another one may be due.
    assert!(harness.engine.stats().checkpoints > checkpoints, "{:?}", harness.engine);
    open_again(&mut harness, &keys);
}

/// Segments that could not be filed are tried again after a while: not while a checkpoint is copied.
#[test]
fn no_segment_is_filed_again_while_a_checkpoint_is_copied() {
    let (mut harness, keys) = filled(true);
    split_unfiled(&mut harness);
    let filed = begin_with(&mut harness, 8, |_| {});
    for _ in 0..50 {
        harness.now = harness.now.plus_ms(1_000);
        harness.turn();
    }
    assert_eq!(harness.engine.stats().filed_records, filed, "{:?}", harness.engine);
    end(&mut harness);
    open_again(&mut harness, &keys);
    for _ in 0..1_000 {
        harness.now = harness.now.plus_ms(100);
        harness.turn();
    }
    assert_eq!(harness.engine.segments_to_file(), 0);
    harness.check(&keys[..2_000], "filed");
}

/// A sort leaves segments alone that are not filed. Gathering them would move their entries to the heirs' indexes.
#[test]
fn no_segment_of_a_sort_is_filed_while_a_checkpoint_is_copied() {
    let (mut harness, keys) = filled(true);
    (harness.options.layout, harness.options.sort_bytes) = (RecordLayout::Sorted, 1 << 20);
    harness.reopen(1, false);
    harness.settle();
    // The runs are not listed before the end.
    harness.engine.hold_runs(true);
    let mut number = 0;
    let poll = |harness: &mut RangeHarness| {
        harness.engine.submit(harness.now);
        harness.engine.poll(harness.now, &mut Vec::new());
        harness.commit();
    };
    harness.disk.hang(OpKind::Read);
    while harness.disk.hung() == 0 {
        harness.now = harness.now.plus_ms(1);
        poll(&mut harness);
        number += 1;
        assert!(number < 10_000, "nothing is sorted: {:?}", harness.engine);
    }
    assert!(harness.engine.is_sorting());
    harness.split(ID.0, ring_at(0x80), 2, 3);
    // A checkpoint is due, but waits while the first segment is gathered.
    for number in 0..600 {
        harness.write(format!("another key {number}").as_bytes(), Some(&[0; 8_000]));
        poll(&mut harness);
    }
    harness.disk.end_faults(OpKind::Read);
    harness.disk.release_hung();
    let filed = begin_with(&mut harness, 8, |_| {});
    (0..50).for_each(|_| harness.turn());
    assert_eq!(harness.engine.stats().filed_records, filed, "{:?}", harness.engine);
    end(&mut harness);
    open_again(&mut harness, &keys);
}

/// Records of a transfer count once all are there, so a checkpoint would know of live records that no opening has.
#[test]
fn no_checkpoint_begins_during_a_transfer() {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), small(Durability::Sync), true);
    harness.add(ID.0, KeyRange::ALL);
    let base = Version::new(Epoch::new(9).unwrap(), 1_000).unwrap();
    harness.engine.begin_transfer(ID, base).unwrap();
    for seq in 1..=600 {
        let (key, version) = (format!("key {seq}").into_bytes(), Version::new(Epoch::new(9).unwrap(), seq).unwrap());
        let record = RecordRef::put(version, &key, &[1; 400]);
        while harness.engine.append_copied(ID, KeyHash::of(&SECRET, &key), &record).is_err() {
            harness.turn();
        }
        harness.turn();
    }
    (0..20).for_each(|_| harness.turn());
    assert_eq!(checkpoint_files(&harness.disk), Vec::<String>::new());
    let image = harness.disk.image(Loss::Process, 1);
    let (engine, _) = Engine::open(SimDevice::attach(&image), harness.options.clone(), harness.now).unwrap();
    assert_eq!(engine.log_report().live_bytes, 0, "nothing counts of what was transferred");
    harness.engine.finish_transfer(ID).unwrap();
    for seq in 0..40 {
        harness.now = harness.now.plus_ms(1_000);
        let (version, key) = (Version::new(Epoch::new(9).unwrap(), 1_001 + seq).unwrap(), b"later");
        let record = RecordRef::put(version, key, &[1; 400]);
        harness.engine.append(ID, KeyHash::of(&SECRET, key), &record).unwrap();
        harness.turn();
    }
    assert!(!checkpoint_files(&harness.disk).is_empty());
}

/// A range in one large segment, and a due checkpoint that a transfer into another range puts off. Filing the segment takes more
/// polls than there are between two attempts.
fn with_due_checkpoint() -> (RangeHarness, Vec<Vec<u8>>) {
    let options = Options { segment_bytes: 1 << 20, memory_bytes: 64 << 20, ..small(Durability::Sync) };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, true);
    harness.add(ID.0, KeyRange::ALL);
    harness.add(RECEIVING.0, KeyRange::ALL);
    harness.models.remove(&RECEIVING);
    harness.engine.begin_transfer(RECEIVING, Version::new(Epoch::new(9).unwrap(), 1_000).unwrap()).unwrap();
    let keys: Vec<_> = (0..200).map(|i| format!("key {i}").into_bytes()).collect();
    for (i, key) in keys.iter().enumerate() {
        harness.write(key, Some(&[1; 4_000]));
        if i % 20 == 19 {
            harness.turn();
        }
    }
    harness.settle();
    (harness, keys)
}

/// Lets the next attempt be due in each poll.
fn turn_slowly(harness: &mut RangeHarness) {
    for _ in 0..20 {
        harness.now = harness.now.plus_ms(10_000);
        harness.turn();
    }
}

/// If each attempt made filing begin again, it would never end.
#[test]
fn a_checkpoint_that_cannot_begin_leaves_filing_alone() {
    let (mut harness, keys) = with_due_checkpoint();
    harness.split(ID.0, ring_at(0x80), 2, 3);
    assert_eq!(harness.engine.segments_to_file(), 1);
    turn_slowly(&mut harness);
    assert_eq!(harness.engine.segments_to_file(), 0, "{:?}", harness.engine);
    assert_eq!(harness.engine.stats().checkpoints, 0);
    harness.engine.finish_transfer(RECEIVING).unwrap();
    turn_slowly(&mut harness);
    assert_eq!(harness.engine.stats().checkpoints, 1, "it was due");
    harness.check(&keys, "filed");
}

/// The device has space when it is asked, and refuses the file or its first bytes.
#[test]
fn a_checkpoint_that_the_device_refuses_leaves_filing_alone() {
    for refused in [OpKind::Create, OpKind::Allocate] {
        let (mut harness, keys) = with_due_checkpoint();
        harness.split(ID.0, ring_at(0x80), 2, 3);
        harness.engine.finish_transfer(RECEIVING).unwrap();
        assert_eq!(harness.engine.segments_to_file(), 1);
        harness.disk.fail_every(refused, DeviceFault::Full);
        let before = harness.disk.counted(refused);
        turn_slowly(&mut harness);
        assert!(harness.disk.counted(refused) > before, "{refused:?}: nothing was refused");
        assert_eq!(harness.engine.segments_to_file(), 0, "{refused:?}: {:?}", harness.engine);
        assert_eq!(harness.engine.stats().checkpoints, 0);
        harness.disk.end_faults(refused);
        turn_slowly(&mut harness);
        assert_eq!(harness.engine.stats().checkpoints, 1, "{refused:?}: it was due");
        harness.check(&keys, "filed");
    }
}

/// Writes more than a close leaves to the next opening, while the checkpoint's writes hang.
fn write_behind(harness: &mut RangeHarness) {
    for i in 0..20 {
        harness.write(format!("behind {i}").as_bytes(), Some(&[0; 8_000]));
        harness.turn();
    }
    assert!(harness.disk.hung() >= 4, "the checkpoint is in progress");
}

/// Files of checkpoints that are not listed.
fn unlisted(disk: &SimDisk) -> Vec<String> {
    let listed = listed(disk);
    checkpoint_files(disk).into_iter().filter(|name| !listed.contains(name)).collect()
}

#[test]
fn a_close_past_its_deadline_gives_up_a_checkpoint_that_hangs() {
    let (mut harness, _) = filled(true);
    begin(&mut harness);
    write_behind(&mut harness);
    let RangeHarness { disk, engine, .. } = harness;
    let (in_progress, mut calls) = (unlisted(&disk), 0);
    let is_past_deadline = &mut || {
        calls += 1;
        assert!(calls < 100, "the close goes on although the device has answered");
        if calls == 10 {
            disk.release_hung();
        }
        true
    };
    drop(engine.close_with_deadline(is_past_deadline).unwrap());
    assert!(calls >= 10 && in_progress.len() == 1, "the close came to {in_progress:?}");
    assert!(!checkpoint_files(&disk).contains(&in_progress[0]), "{in_progress:?} was completed");
}

#[test]
fn a_close_begins_no_checkpoint_past_its_deadline() {
    let (mut harness, _) = filled(true);
    begin(&mut harness);
    write_behind(&mut harness);
    let RangeHarness { disk, engine, .. } = harness;
    let first = unlisted(&disk);
    assert_eq!(first.len(), 1, "{first:?}");
    let mut is_late = false;
    // The deadline passes when the first checkpoint is listed.
    let is_past_deadline = &mut || {
        disk.release_hung();
        is_late = listed(&disk).contains(&first[0]);
        assert!(!is_late || unlisted(&disk).is_empty(), "{:?} was begun", unlisted(&disk));
        is_late
    };
    drop(engine.close_with_deadline(is_past_deadline).unwrap());
    assert!(is_late, "{first:?} was not listed");
}

//! Unit tests of cleaning's steps: how much one poll copies, and that the next poll continues.
use super::*;
use crate::format::FRAMES_OFFSET;
use crate::format::record::RecordRef;
use crate::options::Options;
use crate::range::RangeState;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyRange, Now, RangeId, RingKey, TimeMs, Version};
use pace::{STEP_BYTES, STEP_BYTES_MAX};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");
const VALUE_BYTES: usize = 400;
/// At least the length of a record, its share of frame headers included.
const RECORD_BYTES_MAX: u64 = 512;

/// A store that should have no dead bytes. It syncs what it writes, so that each segment can be dropped once it is cleaned.
fn open(disk: &SimDisk) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 1 << 20,
        memory_bytes: 64 << 20,
        durability: Durability::Sync,
        space_amplification_max_percent: 100,
        secret: Some(SECRET),
        scrub_period_ms: 0,
        ..Options::default()
    };
    let (mut engine, _) = Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap();
    engine.add_range(RANGE, KeyRange::ALL).unwrap();
    let epoch = engine.next_sole_epoch(RANGE).unwrap();
    engine.begin_sole_epoch(RANGE, epoch, None).unwrap();
    engine
}

fn put(engine: &mut Engine<SimDevice>, key: u64, seq: u64) {
    let version = Version::new(Epoch::new(engine.generation()).unwrap(), seq).unwrap();
    let hash = KeyHash::of(&SECRET, &key.to_be_bytes());
    let (key, value) = (key.to_be_bytes(), [seq as u8; VALUE_BYTES]);
    engine.append(RANGE, hash, &RecordRef::put(version, &key, &value)).unwrap();
}

fn commit(engine: &mut Engine<SimDevice>) {
    let synced = engine.progress(RANGE).synced;
    engine.commit(RANGE, synced);
}

/// A store with twenty segments, in which a tenth of the records is dead, but no time has passed: cleaning has no credit except that
/// of writes.
fn store_in_debt(disk: &SimDisk) -> Engine<SimDevice> {
    let mut engine = open(disk);
    fill(&mut engine);
    engine
}

/// Writes twenty segments, in which a tenth of the records is dead.
fn fill(engine: &mut Engine<SimDevice>) {
    let keys = (20 << 20) / RECORD_BYTES_MAX;
    let puts = (0..keys).chain((0..keys).step_by(10));
    for (key, seq) in puts.zip(1..) {
        put(engine, key, seq);
        if seq.is_multiple_of(16) {
            engine.submit(Now::at(1));
            while engine.progress(RANGE).synced < engine.progress(RANGE).appended {
                engine.wait(Now::at(1), &mut Vec::new());
            }
            commit(engine);
        }
    }
}

/// Operations that arrive during a poll wait for its end. With all of the credit spent at once, a poll took 1.6 ms.
#[test]
fn a_poll_copies_no_more_than_a_step() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = store_in_debt(&disk);
    let (mut copied, mut steps) = (0, 0);
    // By whether the host has rested for a second before the poll.
    let mut longest = [0, 0];
    for at in 0..2_000 {
        let (now, before) = (Now::at(1_000 * (1 + at / 50)), engine.survivors_end());
        engine.poll(now, &mut Vec::new());
        commit(&mut engine);
        let bytes = engine.survivors_end().0 - before.0;
        let longest = &mut longest[usize::from(at % 50 == 0)];
        (copied, *longest) = (copied + bytes, bytes.max(*longest));
        if engine.has_cleaning_step() {
            steps += 1;
            assert_eq!(engine.upkeep_at(), Some(now.mono), "the next poll is due at once");
        }
    }
    assert!(copied > 4 << 20, "{copied} bytes");
    // A poll passes the end of a segment at most once: an unused end of it, and the header of the next one.
    for (longest, step) in longest.into_iter().zip([STEP_BYTES, STEP_BYTES_MAX]) {
        assert!(longest <= step + 2 * RECORD_BYTES_MAX + u64::from(FRAMES_OFFSET), "{longest} bytes in a poll");
    }
    assert!(longest[0] >= STEP_BYTES / 2 && steps > 16, "{longest:?} bytes in a poll, {steps} steps");
    assert!(longest[1] > 2 * STEP_BYTES, "{longest:?} bytes in a poll");
}

/// A host that waits would otherwise do no step before some other write completes.
#[test]
fn a_wait_does_not_block_while_cleaning_has_a_step() {
    for is_stopped in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut engine = store_in_debt(&disk);
        let mut at_ms = 2;
        while !(engine.has_cleaning_step() && engine.in_flight() == 0) {
            at_ms += 1;
            engine.poll(Now::at(at_ms), &mut Vec::new());
            commit(&mut engine);
            assert!(at_ms < 2_000, "{:?}", engine.cleaner);
        }
        if is_stopped {
            engine.cleaner.stop();
        }
        put(&mut engine, u64::MAX, 1 << 20);
        disk.fail_every(OpKind::Write, DeviceFault::Delay { ticks: 1_000 });
        engine.submit(Now::at(at_ms));
        assert!(engine.in_flight() > 0);
        let before = engine.completed();
        engine.progressed = false;
        engine.wait(Now::at(at_ms), &mut Vec::new());
        assert_eq!(engine.completed() > before, is_stopped, "stopped: {is_stopped}");
    }
}

/// The copies of further ones would take the reserve, while other segments could be cleaned and dropped.
#[test]
fn a_full_store_cleans_segments_without_reads_before_a_second_one_with_reads() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = store_in_debt(&disk);
    let sealed: Vec<u32> =
        engine.segments.iter().filter(|segment| segment.sealed).map(|segment| segment.slot).collect();
    let read: Vec<u32> = sealed.iter().copied().step_by(2).collect();
    read.iter().for_each(|&slot| engine.segments.expect_mut(slot).pins += 1);
    let cleaned = |engine: &Engine<SimDevice>, slots: &[u32]| {
        let is_cleaned = |&&slot: &&u32| engine.segments.get(slot).is_none_or(|segment| segment.is_cleaned);
        slots.iter().filter(is_cleaned).count()
    };
    for at_ms in 2..20_000 {
        if cleaned(&engine, &sealed) >= 4 {
            break;
        }
        engine.full = true;
        engine.poll(Now::at(at_ms), &mut Vec::new());
        commit(&mut engine);
    }
    assert!(cleaned(&engine, &read) <= 1, "{} of {}", cleaned(&engine, &read), read.len());
    assert!(cleaned(&engine, &sealed) >= 4, "{} of {}", cleaned(&engine, &sealed), sealed.len());
    // With reads of all others, cleaning goes on.
    sealed.iter().for_each(|&slot| {
        if let Some(segment) = engine.segments.get_mut(slot) {
            segment.pins += 1;
        }
    });
    engine.cleaner.note_change();
    assert!(engine.best_victim(engine.survivors_room()).is_some(), "{:?}", engine.cleaner);
}

/// Copies of deletes have no index entries by which filing would miss them: the heirs would get nothing for them, and nothing would
/// keep their segment.
#[test]
fn filing_leaves_survivors_alone_until_they_are_written() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    // A victim would be finished before anything is filed.
    engine.options.space_amplification_max_percent = 1_000_000;
    fill(&mut engine);
    engine.sync_all().unwrap();
    commit(&mut engine);
    let newest = engine.segments.iter().max_by_key(|segment| segment.sequence).unwrap().slot;
    let (end, version) = (engine.survivors_end(), engine.progress(RANGE).synced);
    engine.copy_tombstone(0, (newest, FRAMES_OFFSET), version, &1_u64.to_be_bytes()).unwrap();
    assert!(engine.survivors_end() > end, "a delete is copied");
    let mut boundary = RingKey([0; 20]);
    boundary.0[0] = 0x80;
    engine.split_range(RANGE, boundary, RangeId(2), RangeId(3)).unwrap();
    disk.hang(OpKind::Write);
    // As the end of a victim does.
    engine.streams[StreamKind::Survivors].flush.wanted = true;
    let file = |engine: &mut Engine<SimDevice>, from_ms: u64| {
        for at in 0..5_000 {
            engine.submit(Now::at(from_ms + 10 * at));
            engine.poll(Now::at(from_ms + 10 * at), &mut Vec::new());
        }
        engine.segments_to_file()
    };
    assert_eq!(file(&mut engine, 1_000), 1, "all but the survivors' segment");
    disk.clear_faults();
    disk.release_hung();
    assert_eq!(file(&mut engine, 100_000), 0);
}

/// Cleaning judges the records of a retired range by the time of the heir that has their keys, and estimates their copies before.
#[test]
fn the_time_of_a_retired_range_is_the_latest_of_its_heirs() {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    put(&mut engine, 1, 1);
    engine.sync_all().unwrap();
    commit(&mut engine);
    engine.set_chain_time(RANGE, TimeMs(1_000));
    let mut boundary = RingKey([0; 20]);
    boundary.0[0] = 0x80;
    engine.split_range(RANGE, boundary, RangeId(2), RangeId(3)).unwrap();
    let retired = engine.ranges.iter().position(RangeState::is_retired).unwrap();
    for (range, at_ms, expected_ms) in [(2, 5_000, 5_000), (3, 9_000, 9_000), (2, 6_000, 9_000), (2, 10_000, 10_000)] {
        engine.set_chain_time(RangeId(range), TimeMs(at_ms));
        assert_eq!(engine.time_of(retired), TimeMs(expected_ms), "range {range} at {at_ms}");
    }
}

/// Copies of results that were noted while tombstones took much are not due for ever.
#[test]
fn copies_of_results_are_due_only_while_tombstones_take_much() {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    engine.note_due_copies(Some(7));
    let room = engine.survivors_room();
    assert_eq!(engine.best_victim(room), None);
    assert_eq!(engine.ranges[0].result_copies.keeps_tombstones, None);
}

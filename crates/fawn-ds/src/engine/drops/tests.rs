//! Unit tests of the facts that keep tombstones.
use super::*;
use crate::engine::{Event, Lookup, View};
use crate::format::record::RecordRef;
use crate::options::Options;
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyHash, KeyRange, Now, RangeId, TimeMs};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");

fn open(disk: &SimDisk, durability: Durability) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 64 << 10,
        memory_bytes: 4 << 20,
        durability,
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

fn version_of(engine: &Engine<SimDevice>, seq: u64) -> Version {
    Version::new(Epoch::new(engine.generation()).unwrap(), seq).unwrap()
}

fn turn(engine: &mut Engine<SimDevice>) {
    engine.submit(Now::at(1));
    engine.wait(Now::at(1), &mut Vec::new());
    let progress = engine.progress(RANGE);
    engine.commit(RANGE, progress.watermark_for(engine.options().durability));
}

/// Appends a record of this key and commits it.
fn write(engine: &mut Engine<SimDevice>, seq: u64, key: u64, kind: RecordKind) {
    let (key, version, value) = (key.to_be_bytes(), version_of(engine, seq), [1; 4_000]);
    let record = match kind {
        RecordKind::Put => RecordRef::put(version, &key, &value),
        kind => RecordRef::bare(kind, version, &key),
    };
    while engine.append(RANGE, KeyHash::of(&SECRET, &key), &record).is_err() {
        turn(engine);
    }
    while engine.progress(RANGE).committed < version {
        turn(engine);
    }
}

/// As [`write`]; the verification does not end.
fn write_unverified(engine: &mut Engine<SimDevice>, seq: u64, key: u64, kind: RecordKind) {
    engine.device.disk().fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    write(engine, seq, key, kind);
}

/// A store of so many live puts, of which no page is in memory.
fn cold_store(disk: &SimDisk, puts: u64, durability: Durability) -> Engine<SimDevice> {
    let mut engine = open(disk, durability);
    (1..=puts).for_each(|seq| write(&mut engine, seq, seq, RecordKind::Put));
    drop(engine.close().unwrap());
    open(disk, durability)
}

fn has(engine: &mut Engine<SimDevice>, key: u64) -> bool {
    let (key, time) = (key.to_be_bytes(), TimeMs(1));
    let mut found = engine.lookup(RANGE, KeyHash::of(&SECRET, &key), &key, View::Committed, time).unwrap();
    loop {
        let plan = match found {
            Lookup::Found(_) => return true,
            Lookup::Absent | Lookup::Unsettled => return false,
            Lookup::Read(plan) => plan,
        };
        engine.read(plan, 0);
        let mut events = Vec::new();
        while events.is_empty() {
            engine.wait(Now::at(1), &mut events);
            events.retain(|event| matches!(event, Event::Lookup { .. }));
        }
        let Some(Event::Lookup { plan, .. }) = events.pop() else { unreachable!("only these are left") };
        found = engine.resume(plan, time).unwrap();
    }
}

/// With puts that wait, one old version that cannot be read would keep the tombstones of all keys, and so would an opening that
/// verifies for minutes.
#[test]
fn tombstones_may_hide_live_puts_only_while_a_delete_waits_for_its_verification() {
    const ABSENT: u64 = 1_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = cold_store(&disk, 50, Durability::Sync);
    write(&mut engine, 1, ABSENT, RecordKind::Tombstone);
    let (version, newest) = (version_of(&engine, 1), engine.segments.iter().map(|segment| segment.sequence).max());
    let hides = |engine: &Engine<SimDevice>| engine.hides_elsewhere(0, newest.unwrap(), version);
    assert!(!hides(&engine), "all puts are live");
    let waiting =
        |engine: &Engine<SimDevice>| (engine.overlay.has_unconfirmed(0), engine.overlay.unconfirmed_deletes(0));
    write_unverified(&mut engine, 2, 1, RecordKind::Put);
    assert_eq!(waiting(&engine), (true, 0));
    assert!(!hides(&engine), "the put is live, and hides the old one itself");
    write_unverified(&mut engine, 3, 12, RecordKind::Tombstone);
    assert_eq!(waiting(&engine), (true, 1));
    assert!(hides(&engine), "the index still has the put that was deleted");
    write_unverified(&mut engine, 4, 12, RecordKind::Put);
    assert_eq!(waiting(&engine), (true, 0));
    assert!(!hides(&engine), "a put has replaced the delete");
}

/// The index still has the put that the delete hides, and a power loss may undo what has replaced the delete.
#[test]
fn a_delete_that_was_replaced_before_its_verification_is_dropped_once_that_is_durable() {
    const DELETED: u64 = 1;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = cold_store(&disk, 50, Durability::Memory);
    engine.cleaner.stop();
    let newest = |engine: &Engine<SimDevice>| engine.segments.iter().map(|segment| segment.sequence).max().unwrap();
    let (first, mut seq) = (newest(&engine), 0);
    while newest(&engine) == first {
        seq += 1;
        write(&mut engine, seq, 1_000 + seq, RecordKind::Put);
    }
    // All else in the segment of the delete dies, and no dead put elsewhere was replaced before the delete.
    let (deleted, other) = (seq + 1, 1_000 + seq);
    write_unverified(&mut engine, deleted, DELETED, RecordKind::Tombstone);
    let sequence = newest(&engine);
    let is_there = |engine: &Engine<SimDevice>| engine.segments.iter().any(|segment| segment.sequence == sequence);
    let mut seq = deleted + 1;
    while newest(&engine) < sequence + 3 {
        write(&mut engine, seq, other, RecordKind::Put);
        seq += 1;
    }
    assert_eq!(engine.overlay.unconfirmed_deletes(0), 1);
    assert!(is_there(&engine), "the delete hides the old put");
    assert!(engine.ranges[0].durably_committed() > version_of(&engine, deleted), "{engine:?}");
    write(&mut engine, seq, DELETED, RecordKind::Put);
    let (put, mut undone) = (version_of(&engine, seq), 0);
    assert_eq!(engine.overlay.unconfirmed_deletes(0), 0);
    loop {
        // As after a drop of another segment.
        engine.examine_all();
        engine.submit(Now::at(1));
        turn(&mut engine);
        for loss in 0..4 {
            let mut crashed = open(&disk.image(Loss::Power, loss), Durability::Memory);
            if crashed.progress(RANGE).appended < put {
                undone += 1;
                assert!(!has(&mut crashed, DELETED), "before record {seq}: a delete is undone");
            }
        }
        if !is_there(&engine) {
            break;
        }
        seq += 1;
        assert!(seq < 300, "the segment of the delete stays: {engine:?}");
        write(&mut engine, seq, other, RecordKind::Put);
    }
    assert!(undone > 0, "no power loss undoes the put");
    assert!(engine.overlay.has_unconfirmed(0) && has(&mut engine, DELETED), "{engine:?}");
    let mut crashed = open(&disk.image(Loss::Power, 1), Durability::Memory);
    assert!(crashed.progress(RANGE).appended >= put && has(&mut crashed, DELETED));
}

//! Unit tests of the sorted tier's jobs: orders of events that other rules make impossible today.
mod batches;
mod bounds;
mod many_runs;
mod owners;
mod rest;
mod space;
mod waits;

use super::job::{RunInputs, SourceRead};
use super::pace::{MergePace, PutRate};
use super::*;
use crate::engine::{Event, Lookup, View};
use crate::format::record::{RecordKind, RecordRef};
use crate::options::{Options, RecordLayout};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyHash, KeyRange, Now, RangeId, TimeMs};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");

fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        memory_bytes: 8 << 20,
        durability: Durability::Sync,
        secret: Some(SECRET),
        layout: RecordLayout::Sorted,
        sort_bytes: 1,
        ..Options::default()
    }
}

fn open(disk: &SimDisk) -> Engine<SimDevice> {
    open_with(disk, options())
}

fn open_with(disk: &SimDisk, options: Options) -> Engine<SimDevice> {
    let (mut engine, _) = Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap();
    engine.add_range(RANGE, KeyRange::ALL).unwrap();
    let epoch = engine.next_sole_epoch(RANGE).unwrap();
    engine.begin_sole_epoch(RANGE, epoch, None).unwrap();
    engine
}

fn turn(engine: &mut Engine<SimDevice>) {
    engine.submit(Now::at(1));
    engine.wait(Now::at(1), &mut Vec::new());
    let synced = engine.progress(RANGE).synced;
    engine.commit(RANGE, synced);
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn has(engine: &mut Engine<SimDevice>, number: u64) -> bool {
    value_of(engine, number).is_some()
}

/// The first byte of the key's value.
fn value_of(engine: &mut Engine<SimDevice>, number: u64) -> Option<u8> {
    let hash = KeyHash::of(&SECRET, &key(number));
    let time = TimeMs(1);
    let mut found = engine.lookup(RANGE, hash, &key(number), View::Committed, time).unwrap();
    loop {
        let plan = match found {
            Lookup::Found(entry) => return entry.value.first().copied(),
            Lookup::Absent | Lookup::Unsettled => return None,
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

/// A sweep of no runs.
fn sweep_of(pace: MergePace) -> RunSweep {
    let (later, from, paid_bytes, failed_bytes) = (Vec::new(), RingKey::MIN, 0, 0);
    let (age, oldest_age, later_bytes, part_bytes) = (2, 1, 1_000, 0);
    RunSweep { later, age, oldest_age, from, later_bytes, part_bytes, paid_bytes, failed_bytes, pace }
}

#[test]
fn a_segment_read_for_a_job_that_was_given_up_is_not_of_the_next_one() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    let mut numbers = 0;
    // Until a part of a segment's records was taken, and the next read is in flight.
    while engine.stats().cleaning_read_bytes == 0 {
        for _ in 0..16 {
            let epoch = Epoch::new(engine.generation()).unwrap();
            let version = Version::new(epoch, numbers + 1).unwrap();
            let hash = KeyHash::of(&SECRET, &key(numbers));
            engine.append(RANGE, hash, &RecordRef::put(version, &key(numbers), &[7; 400])).unwrap();
            numbers += 1;
        }
        turn(&mut engine);
    }
    assert!(engine.sorted.is_gathering() && engine.cleaner.has_work());
    engine.give_up_sort();
    engine.advance_sort();
    assert!(!engine.sorted.has_work(), "nothing of it is in flight");
    engine.sorted.retry_at = engine.now.mono;
    assert_eq!(engine.segments.iter().filter(|segment| segment.is_gathered).count(), 1, "the victim");
    // Without the number only the rule that nothing is chosen while there is a victim keeps the two apart.
    let id = engine.sorted.next_job();
    engine.sorted.job = Some(Box::new(SortJob::of_segments(id, Vec::new(), 1, SECRET, (1, 2 << 20))));
    while engine.sorted.has_work() {
        turn(&mut engine);
    }
    engine.close().unwrap();
    let mut engine = open(&disk);
    assert!((0..numbers).all(|number| has(&mut engine, number)));
}

/// Puts that are ahead of a sweep wait, deletes do not, and the work that lets them go on is reported.
#[test]
fn puts_wait_for_a_sweep_only_while_its_work_goes_on() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    let hash = KeyHash::of(&SECRET, &key(1));
    let version = |number| Version::new(Epoch::new(1).unwrap(), number).unwrap();
    engine.options.layout = RecordLayout::Auto;
    // Puts have 4 MiB left, until a third of that is read: three quarters of a byte for each byte of work.
    let mut left = |segments: u64| {
        engine.options.capacity_bytes = Some(segments << 20);
        engine.room_for_puts(0)
    };
    assert!((8..100).any(|segments| left(segments) >= 4 << 20));
    let pace = MergePace { to_read_bytes: (4 << 20) / 3, ..MergePace::default() };
    engine.sorted.sweep = Some(sweep_of(pace));
    let write = |engine: &mut Engine<SimDevice>, bytes| {
        engine.sorted.note_put(bytes);
        engine.hold_puts_if_ahead();
        engine.sorted.holds_puts()
    };
    assert!(!write(&mut engine, 1 << 20), "nothing is read or written for the sweep");
    let job = SortJob::of_runs(SortJobId::default(), RunInputs::default(), Vec::new(), 1, 4);
    engine.sorted.job = Some(Box::new(job));
    assert!(!write(&mut engine, (32 << 10) - 1), "not before the next part of a segment is written");
    assert!(!write(&mut engine, 1), "that much in any case");
    assert!(write(&mut engine, 1 << 20) && !engine.has_progress());
    let work_bytes = engine.put_rate().map(|rate| rate.work_bytes);
    assert_eq!(work_bytes, Some(3 * ((4 << 20) / 3)), "with what is written, the later runs, and sorts in between");
    let refused = engine.append(RANGE, hash, &RecordRef::put(version(1), &key(1), &[7; 400]));
    assert_eq!(refused, Err(EngineError::Overloaded));
    let put_bytes = engine.sorted.hold.put_bytes;
    engine.append(RANGE, hash, &RecordRef::bare(RecordKind::Tombstone, version(1), &key(1))).unwrap();
    assert_eq!(engine.sorted.hold.put_bytes, put_bytes, "deletes need no credit");
    let work = |engine: &mut Engine<SimDevice>, bytes| {
        engine.sorted.note_work(engine.now.mono, bytes);
        engine.hold_puts_if_ahead();
        engine.sorted.holds_puts()
    };
    assert!(work(&mut engine, 1 << 10) && engine.sorted.slows_puts());
    assert!(!work(&mut engine, 2 << 20) && engine.has_progress(), "they are checked without another write");
    engine.append(RANGE, hash, &RecordRef::put(version(2), &key(1), &[7; 400])).unwrap();
    assert!(!work(&mut engine, 1 << 30), "what they may write at once is bounded");
    assert!(!write(&mut engine, 1 << 17) && write(&mut engine, 5 << 17));
    assert_eq!(engine.stats.puts_held_ms, 0);
    engine.now = engine.now.plus_ms(1_000);
    assert!(write(&mut engine, 0) && engine.stats.puts_held_ms == 1_000);
    engine.now = engine.now.plus_ms(1);
    assert!(!write(&mut engine, 0), "a read hangs");
    engine.sorted.note_work(engine.now.mono, 0);
    assert!(write(&mut engine, 1 << 20), "it has ended");
    assert_eq!(engine.stats.puts_held_ms, 1_001);
    engine.hold_runs(true);
    assert!(!write(&mut engine, 0), "a scan holds the sweep");
    engine.hold_runs(false);
    assert!(write(&mut engine, 1 << 20));
    engine.full = true;
    assert!(!write(&mut engine, 0), "a full store refuses puts itself");
}

/// A sweep's pace compares what it has read with what it has to read: pages, not what else is in the files. It once ended with a
/// fifth of them unread.
#[test]
fn a_sweep_that_has_read_its_runs_has_nothing_left_to_read() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 64 << 10, capacity_bytes: Some(80 << 16), sort_bytes: 0, ..options() };
    let mut engine = open_with(&disk, options);
    let epoch = Epoch::new(engine.generation()).unwrap();
    let (mut last, mut ends) = (0_u64, 0);
    while ends < 3 {
        for _ in 0..8 {
            let number = last.wrapping_mul(0x9E37_79B9) % 6_000;
            let (version, key) = (Version::new(epoch, last + 1).unwrap(), key(number));
            let taken = engine.append(RANGE, KeyHash::of(&SECRET, &key), &RecordRef::put(version, &key, &[7; 260]));
            last += u64::from(taken.is_ok());
        }
        turn(&mut engine);
        assert!(last < 200_000, "no sweep ends");
        let SortedTier { sweep: Some(sweep), job: Some(job), .. } = &engine.sorted else { continue };
        let is_last = job.inputs.part.as_ref().is_some_and(|part| part.to.is_none());
        if is_last && matches!(job.step, SortStep::Listing(_)) {
            let MergePace { to_read_bytes, read_bytes, .. } = sweep.pace;
            assert_eq!(read_bytes, to_read_bytes);
            ends += 1;
        }
    }
}

/// A host that waits would otherwise do no step before some other write completes.
#[test]
fn a_wait_does_not_block_while_a_job_has_a_step() {
    for has_next_step in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut engine = open(&disk);
        let version = Version::new(Epoch::new(engine.generation()).unwrap(), 1).unwrap();
        engine.append(RANGE, KeyHash::of(&SECRET, &key(1)), &RecordRef::put(version, &key(1), &[7; 400])).unwrap();
        disk.fail_nth(OpKind::Write, 1, DeviceFault::Delay { ticks: 1_000 });
        engine.submit(Now::at(1));
        assert_eq!(engine.in_flight(), 1);
        let before = engine.completed();
        engine.progressed = false;
        engine.sorted.has_next_step = has_next_step;
        engine.wait(Now::at(1), &mut Vec::new());
        assert_eq!(engine.completed() - before, u64::from(!has_next_step));
    }
}

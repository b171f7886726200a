//! Unit tests of copies of open results: writes of a full store that wait for them.
use super::*;
use crate::engine::KeepReason;
use crate::options::Options;
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyHash, KeyRange, Now};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");
const TAG: ClientTag = ClientTag { session: 9, seq: 1 };

/// A member of a chain, with one result that stays open.
struct Member {
    engine: Engine<SimDevice>,
    now: Now,
    open: Option<Version>,
    result_bytes: usize,
    copies: usize,
}

fn options(segments: u64) -> Options {
    Options {
        segment_bytes: 64 << 10,
        memory_bytes: 1 << 20,
        capacity_bytes: Some(segments * (64 << 10)),
        durability: Durability::Memory,
        secret: Some(SECRET),
        scrub_period_ms: 0,
        ..Options::default()
    }
}

impl Member {
    fn open(disk: &SimDisk, segments: u64, result_bytes: usize) -> Self {
        Self::open_with(disk, options(segments), result_bytes)
    }

    fn open_with(disk: &SimDisk, options: Options, result_bytes: usize) -> Self {
        let (mut engine, _) = Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap();
        engine.add_range(RANGE, KeyRange::ALL).unwrap();
        engine.set_retain_floor(RANGE, Version::ZERO);
        Self { engine, now: Now::at(1), open: None, result_bytes, copies: 0 }
    }

    fn poll(&mut self) {
        self.engine.set_needed_from(RANGE, self.open);
        self.engine.submit(self.now);
        self.engine.wait(self.now, &mut Vec::new());
        let appended = self.engine.progress(RANGE).appended;
        self.engine.commit(RANGE, appended);
        self.now = self.now.plus_ms(5);
    }

    fn copy(&mut self) {
        if self.engine.must_copy_results(RANGE) {
            let open: Vec<OpenResult> = self.open.iter().map(|&version| OpenResult::new(version, TAG)).collect();
            let (copies, result_bytes) = (&mut self.copies, self.result_bytes);
            self.engine.copy_results(RANGE, &open, |_, result| {
                *copies += 1;
                result.resize(result_bytes, 7);
            });
        }
    }

    /// Whether only results that will be copied keep a segment.
    fn is_copied_soon(&self) -> bool {
        let copies = &self.engine.ranges[self.engine.range_at(RANGE).unwrap()].result_copies;
        let has_next = self.engine.streams[StreamKind::Survivors].next.slot().is_some();
        let is_kept = self.engine.segments_kept().contains_key(&KeepReason::Retained);
        is_kept && (self.engine.must_copy_results(RANGE) || copies.unsynced.is_some() || has_next)
    }

    fn try_write(&mut self, key: u64, has_result: bool) -> Result<(), EngineError> {
        let seq = self.engine.progress(RANGE).appended.seq() + 1;
        let version = Version::new(Epoch::new(self.engine.generation()).unwrap(), seq).unwrap();
        let (key, result) = (key.to_be_bytes(), vec![7; self.result_bytes]);
        let mut record = RecordRef::put(version, &key, &[7; 1_500]);
        if has_result {
            self.open = Some(version);
            (record.tag, record.result) = (TAG, &result);
        }
        self.engine.append(RANGE, KeyHash::of(&SECRET, &key), &record)
    }

    /// Writes until the store takes it. An iteration has writes before its copies, and after them.
    fn write(&mut self, key: u64, has_result: bool) {
        for attempt in 0..2_000 {
            match self.try_write(key, has_result) {
                Ok(()) => {
                    self.poll();
                    return self.copy();
                }
                Err(EngineError::StoreFull) => {
                    assert!(!self.engine.results_wait_for_mark(), "the mark is synced soon, and then there is space");
                    assert!(!self.is_copied_soon(), "attempt {attempt} of {key}: {:?}", self.engine);
                }
                Err(error) => assert_eq!(error, EngineError::Overloaded),
            }
            if attempt % 2 == 0 { self.poll() } else { self.copy() }
        }
        panic!("the store stays full: {:?}", self.engine);
    }
}

/// The active segment of a full store is synced only for the mark.
#[test]
fn a_write_waits_for_the_sync_that_copies_wait_for() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, 8, 1);
    (0..180).for_each(|i| member.write(100 + i, false));
    member.write(0, true);
    (0..40).for_each(|i| member.write(i % 5, false));
    (0..20).for_each(|i| member.write(10_000 + i, false));
    assert_eq!(member.copies, 1);
}

/// A put between a sync and the copies of the same iteration found the store full, and so did one while the survivors' next segment
/// was prepared for them.
#[test]
fn a_write_waits_for_copies_of_results_that_are_due() {
    for (segments, result_bytes) in (5..=8).flat_map(|segments| [(segments, 10), (segments, 9_000)]) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut member = Member::open(&disk, segments, result_bytes);
        (0..40 * (segments - 4)).for_each(|i| member.write(100 + i, false));
        member.write(0, true);
        (0..200).for_each(|i| member.write(i % 5, false));
        assert!(member.copies >= 1, "{segments} segments: {} copies", member.copies);
    }
}

fn copy_of(version: Version, result: &[u8]) -> RecordRef<'_> {
    RecordRef { tag: TAG, result, ..RecordRef::bare(RecordKind::Result, version, &[]) }
}

/// A record that does not fit into the chunk of the open frame begins another frame, behind the padding of that one. The segment has
/// space for the record, but not for these.
#[test]
fn a_copy_that_ends_a_frame_needs_space_for_the_next_one() {
    for pad_frames in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut member = Member::open_with(&disk, Options { pad_frames, ..options(64) }, 1);
        let number = member.engine.ranges[0].number;
        let segment_bytes = member.engine.options.segment_bytes as usize;
        // Slot, end and the chunk's end of the survivors' active segment.
        let active = |member: &Member| {
            let chunk = member.engine.streams[StreamKind::Survivors].window.active()?;
            Some((chunk.slot, chunk.end() as usize, chunk.end() as usize + chunk.room()))
        };
        // Appends a copy of this length at most; returns whether it was said to need a segment, and whether it took one.
        let append = |member: &mut Member, seq: u64, len: usize| {
            let mut result = vec![7; len];
            let version = Version::new(Epoch::new(1).unwrap(), seq).unwrap();
            while record::encoded_len(&copy_of(version, &result)) > len {
                result.pop();
            }
            let copy = copy_of(version, &result);
            let former = active(member);
            let is_foretold = member.engine.needs_segment_for_copy(record::encoded_len(&copy));
            for _ in 0..100 {
                if member.engine.append_survivor(0, number, &copy, RecordKind::Result).is_ok() {
                    return (is_foretold, active(member).map(|now| now.0) != former.map(|former| former.0));
                }
                member.poll();
            }
            panic!("{:?}", member.engine)
        };
        let mut seq = 0;
        let last_bytes = loop {
            seq += 1;
            assert!(seq < 1_000, "{:?}", member.engine);
            append(&mut member, seq, 900);
            let (_, end, chunk_end) = active(&member).unwrap();
            let is_open = member.engine.streams[StreamKind::Survivors].flush.open.is_some();
            if is_open && chunk_end < segment_bytes && segment_bytes - end < 16_000 {
                break segment_bytes - end;
            }
        };
        assert_eq!(append(&mut member, seq + 1, last_bytes), (true, true), "padded: {pad_frames}");
    }
}

/// Time until the store refuses a write, ms, in five seconds.
fn ms_until_refused(member: &mut Member) -> Option<u64> {
    let since = member.now;
    while member.now.mono.ms_since(since.mono) < 5_000 {
        if member.try_write(1, false) == Err(EngineError::StoreFull) {
            return Some(member.now.mono.ms_since(since.mono));
        }
        member.poll();
        member.copy();
    }
    None
}

/// A write waited as long as a sync of copies did, for ever on a device that hangs.
#[test]
fn a_write_waits_a_second_for_copies_whose_sync_hangs() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, 8, 10);
    (0..160).for_each(|i| member.write(100 + i, false));
    member.write(0, true);
    let are_unsynced = |member: &Member| member.engine.ranges[0].result_copies.unsynced.is_some();
    for i in 0.. {
        assert!(i < 10_000, "{:?}", member.engine);
        let _ = member.try_write(i % 5, false);
        member.poll();
        disk.hang(OpKind::Sync);
        member.copy();
        if are_unsynced(&member) && member.engine.full {
            break;
        }
        disk.release_hung();
    }
    let refused_ms = ms_until_refused(&mut member);
    assert!(are_unsynced(&member), "the sync hangs");
    assert!(refused_ms.is_some_and(|ms| (500..2_000).contains(&ms)), "{refused_ms:?} ms: {:?}", member.engine);
}

/// Copies wait for the mark that says that the results are committed. On a device that hangs, a write waited for ever with them.
#[test]
fn a_write_waits_a_second_for_a_mark_whose_sync_hangs() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, 8, 1);
    (0..160).for_each(|i| member.write(100 + i, false));
    member.write(0, true);
    for i in 0.. {
        assert!(i < 10_000, "{:?}", member.engine);
        let _ = member.try_write(i % 5, false);
        if member.engine.full && member.engine.results_wait_for_mark() {
            break;
        }
        member.poll();
        member.copy();
    }
    disk.hang(OpKind::Sync);
    let refused_ms = ms_until_refused(&mut member);
    assert!(member.engine.results_wait_for_mark() && disk.hung() > 0, "the sync of the mark hangs");
    assert!(refused_ms.is_some_and(|ms| (500..2_000).contains(&ms)), "{refused_ms:?} ms: {:?}", member.engine);
    disk.release_hung();
    for _ in 0..10 {
        member.poll();
        member.copy();
    }
    (0..20).for_each(|i| member.write(10_000 + i, false));
    assert_eq!(member.copies, 1);
}

/// Copies beyond a bound on the number of results free nothing. But without them results are dropped, and retries applied twice.
#[test]
fn results_get_the_last_segment_before_they_are_dropped() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, 5, 10);
    for i in 0..400 {
        let _ = member.try_write(i, false);
        member.poll();
    }
    assert_eq!(member.engine.survivors_room().segments, 1, "{:?}", member.engine);
    let (at, needed_max) = (member.engine.range_at(RANGE).unwrap(), member.engine.needed_max);
    let due = DueResults { before: u64::MAX, through: Version::ZERO, is_given_up: false };
    let kept = member.engine.ranges[at].retained[0];
    for (kept_count, expected) in [(needed_max / 2, false), (needed_max, true)] {
        member.engine.ranges[at].retained.resize(kept_count, kept);
        assert_eq!(member.engine.may_take_segment(at, &due), expected, "{kept_count} of {needed_max}");
    }
}

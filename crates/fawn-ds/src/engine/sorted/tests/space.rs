//! Unit tests of the sorted tier's space and pace: what jobs take and give back, and when puts wait.
use super::*;
use crate::engine::drop_rule::KeepReason;
use crate::engine::sorted::job::Gathered;
use crate::engine::sorted::merge_choice::SpaceLeft;
use crate::engine::sorted::sweep::SweepPart;
use crate::format::SegmentUuid;
use crate::format::run::KeyBounds;
use crate::format::segment::{PerStream, StreamKind};
use crate::sorted::SortBuffer;

pub(super) const SEGMENT_BYTES: u64 = 64 << 10;

/// A store with segments of 64 KiB, and the number of its last write.
pub(super) struct SmallStore {
    pub(super) engine: Engine<SimDevice>,
    pub(super) now: Now,
    pub(super) writes: u64,
}

impl SmallStore {
    pub(super) fn open(layout: RecordLayout, durability: Durability, sort_bytes: u64) -> Self {
        let options = Options {
            segment_bytes: SEGMENT_BYTES as u32,
            memory_bytes: 8 << 20,
            capacity_bytes: Some(256 * SEGMENT_BYTES),
            durability,
            secret: Some(SECRET),
            layout,
            sort_bytes,
            scrub_period_ms: 0,
            ..Options::default()
        };
        let disk = SimDisk::new(SimOptions::instant(1));
        disk.set_capacity_bytes(Some(512 * SEGMENT_BYTES));
        let (mut engine, _) = Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap();
        engine.add_range(RANGE, KeyRange::ALL).unwrap();
        let epoch = engine.next_sole_epoch(RANGE).unwrap();
        engine.begin_sole_epoch(RANGE, epoch, None).unwrap();
        Self { engine, now: Now::at(1), writes: 0 }
    }

    pub(super) fn put(&mut self, number: u64) {
        self.write(number, RecordKind::Put);
    }

    fn delete(&mut self, number: u64) {
        self.write(number, RecordKind::Tombstone);
    }

    fn write(&mut self, number: u64, kind: RecordKind) {
        self.writes += 1;
        let version = Version::new(Epoch::new(self.engine.generation()).unwrap(), self.writes).unwrap();
        let (key, value) = (key(number), [self.writes as u8; 400]);
        let hash = KeyHash::of(&SECRET, &key);
        let record = match kind {
            RecordKind::Put => RecordRef::put(version, &key, &value),
            _ => RecordRef::bare(kind, version, &key),
        };
        // The next segment may not be there yet.
        while let Err(error) = self.engine.append(RANGE, hash, &record) {
            assert_eq!(error, EngineError::Overloaded);
            self.turn();
            assert!(self.now.mono.0 < 1_000_000, "{:?}", self.engine);
        }
    }

    pub(super) fn turn(&mut self) {
        self.now = self.now.plus_ms(1);
        self.turn_at_once();
    }

    /// A turn that no time passes before.
    pub(super) fn turn_at_once(&mut self) {
        self.engine.submit(self.now);
        self.engine.wait(self.now, &mut Vec::new());
        let progress = self.engine.progress(RANGE);
        self.engine.commit(RANGE, progress.watermark_for(self.engine.options().durability));
        // Nothing reads: the files go in the step that enters the new runs, so that the next job has their space.
        assert_eq!(self.engine.sorted.retired.len(), 0);
    }

    /// Segments that only a sync keeps.
    fn kept_by_syncs(&self) -> u64 {
        self.engine.segments_kept().get(&KeepReason::CauseNotSynced).copied().unwrap_or(0)
    }

    /// Writes segments, the first one with the last record of it that is overwritten: only a sync keeps it then.
    fn wait_for_sync(&mut self) {
        self.put(1_000);
        while self.engine.log_report().segments < 3 {
            self.put(self.writes % 16);
            self.turn();
        }
        self.put(1_000);
        // The second turn follows the commit.
        (0..2).for_each(|_| self.turn());
        assert_eq!(self.kept_by_syncs(), 1, "{:?}", self.engine.segments_kept());
    }

    /// Writes new keys until there are so many runs, and lets the job end.
    pub(super) fn make_runs(&mut self, runs: usize) {
        while self.engine.runs() < runs || self.engine.is_sorting() {
            self.put(self.writes);
            self.turn();
            assert!(self.writes < 5_000, "{:?}", self.engine);
        }
    }

    /// Lets cleaning copy the keys that are not overwritten of each segment.
    fn copy_until<T>(&mut self, find: impl Fn(&Engine<SimDevice>) -> Option<T>) -> T {
        self.engine.options.space_amplification_max_percent = 100;
        loop {
            let number = if self.writes.is_multiple_of(8) { 1_000 + self.writes } else { self.writes % 32 };
            self.put(number);
            self.turn();
            assert!(self.writes < 20_000, "nothing is copied: {:?}", self.engine);
            if let Some(found) = find(&self.engine) {
                return found;
            }
        }
    }

    /// Puts wait after another segment of them, and so much work of the job.
    fn holds_puts(&mut self, work_bytes: u64) -> bool {
        self.engine.sorted.note_put(SEGMENT_BYTES as usize);
        self.engine.sorted.note_work(self.engine.now.mono, work_bytes);
        self.engine.hold_puts_if_ahead();
        self.engine.sorted.holds_puts()
    }
}

/// A job that has taken so many segments for its runs.
fn job_of(segments: u64) -> SortJob {
    let mut job = SortJob::of_runs(SortJobId::default(), RunInputs::default(), Vec::new(), 1, 4);
    job.space_bytes = segments * SEGMENT_BYTES;
    job
}

/// Lists the only run again, as so many later ones.
pub(super) fn enter_later(tier: &mut SortedTier, ages: u64) {
    let ListedRun { age, file_bytes, file, ref run, .. } = tier.runs[0];
    let run = run.clone();
    for later in 1..=ages {
        let entry = RunEntry { uuid: run.header().uuid, file_bytes, age: age + later };
        tier.enter(entry, run.clone(), file);
    }
}

/// Until a sync, sorted segments and the next part of a sweep may take all that is left, although puts are not ahead of it.
#[test]
fn puts_wait_for_a_sweep_once_two_segments_are_left() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let read = MergePace { to_read_bytes: 100, read_bytes: 100, ..MergePace::default() };
    let taken = store.engine.taken_segments() + store.engine.reserved_segments();
    let left = store.engine.capacity_segments() - taken;
    store.engine.sorted.sweep = Some(sweep_of(read));
    for (kept, waits) in [(3, false), (2, true), (0, true), (3, false)] {
        store.engine.sorted.job = Some(Box::new(job_of(left - kept)));
        assert_eq!(store.holds_puts(1), waits, "{kept} segments left");
    }
}

/// A merge of later runs gives its space back only at its end, as a sweep does.
#[test]
fn puts_wait_for_a_merge_of_later_runs() {
    for (work_bytes, is_paced, waits) in
        [(0, false, false), (0, true, true), (170_000, true, true), (180_000, true, false)]
    {
        let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
        let to_read_bytes = store.engine.room_for_runs(store.engine.reserved_segments());
        let mut job = job_of(0);
        job.pace = is_paced.then(|| MergePace { to_read_bytes, ..MergePace::default() });
        store.engine.sorted.job = Some(Box::new(job));
        assert_eq!(store.holds_puts(work_bytes), waits, "{work_bytes} {is_paced}");
    }
}

/// Otherwise each change of job would move puts by the space of one.
#[test]
fn space_that_a_sort_or_a_part_takes_until_its_end_is_left_to_puts() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let room = |store: &SmallStore| (store.engine.room_for_puts(0), store.engine.room_for_runs(0));
    let (of_puts, of_runs) = room(&store);
    store.engine.sorted.job = Some(Box::new(job_of(5)));
    assert_eq!(room(&store), (of_puts, of_runs - 5 * SEGMENT_BYTES));
    let mut job = job_of(5);
    job.pace = Some(MergePace::default());
    store.engine.sorted.job = Some(Box::new(job));
    let taken = (of_puts - 5 * SEGMENT_BYTES, of_runs - 5 * SEGMENT_BYTES);
    assert_eq!(room(&store), taken, "a merge of later runs has a pace of its own");
    // Its runs are entered, and count as such. Two segments are dropped soon.
    let gathered = |slot| {
        let (uuid, until, died_by) = (SegmentUuid([0; 16]), PerStream::default(), smallvec::SmallVec::new());
        Gathered { slot, uuid, until, died_by }
    };
    let mut job = job_of(5);
    (job.step, job.slots) = (SortStep::Unindex { at: 0, cursor: 0 }, vec![gathered(0), gathered(1)]);
    store.engine.sorted.job = Some(Box::new(job));
    assert_eq!(room(&store), (of_puts + 2 * SEGMENT_BYTES, of_runs));
}

#[test]
fn segments_that_only_a_sync_keeps_are_left_to_puts() {
    let mut store = SmallStore::open(RecordLayout::Log, Durability::Memory, 1);
    assert_eq!(store.engine.drops.unsynced(), 0);
    store.wait_for_sync();
    assert_eq!(store.engine.drops.unsynced() as u64, store.kept_by_syncs());
    let before = (store.engine.room_for_puts(0), store.engine.room_for_runs(0));
    store.engine.sync_all().unwrap();
    (0..4).for_each(|_| store.turn());
    assert_eq!(store.engine.drops.unsynced(), 0);
    let after = (store.engine.room_for_puts(0), store.engine.room_for_runs(0));
    assert_eq!(after, (before.0, before.1 + SEGMENT_BYTES));
}

/// In the modes without a sync for each write: puts that wait for space bring none about.
#[test]
fn a_dead_segment_is_synced_for_while_puts_wait() {
    let mut store = SmallStore::open(RecordLayout::Log, Durability::Memory, 1);
    store.wait_for_sync();
    (0..20).for_each(|_| store.turn());
    assert_eq!(store.kept_by_syncs(), 1, "nothing asks for a sync");
    let mut turns = 0;
    while store.kept_by_syncs() > 0 {
        store.engine.sorted.hold.is_scarce = true;
        store.engine.sync_for_waiting();
        store.turn();
        turns += 1;
        assert!(turns < 20, "{:?}", store.engine.segments_kept());
    }
}

/// The space of a sweep's later runs is given back at its end, except for that of their new keys.
#[test]
fn space_for_new_keys_of_the_next_sweep_is_not_left_to_puts() {
    let part = |to| SweepPart { from: RingKey::MIN, to, oldest: Vec::new() };
    let pace = MergePace { written_bytes: 700, replaced_bytes: 500, ..MergePace::default() };
    let mut tier = SortedTier { sweep: Some(sweep_of(pace)), ..SortedTier::default() };
    tier.end_part(part(Some(RingKey::MIN)), 50);
    assert_eq!((tier.growth_percent, tier.sweep.is_some()), (0, true));
    tier.end_part(part(None), 50);
    assert_eq!((tier.growth_percent, tier.sweep.is_some()), (30, false), "300 B of 1,000 B of later runs");

    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    let later_bytes: u64 = store.engine.sorted.runs[..2].iter().map(|listed| listed.file_bytes).sum();
    let capacity = |engine: &mut Engine<SimDevice>, segments| {
        engine.options.capacity_bytes = Some(segments * SEGMENT_BYTES);
        engine.space_left()
    };
    let first = |store: &mut SmallStore| {
        (8..).find(|&segments| capacity(&mut store.engine, segments) == SpaceLeft::Ample).unwrap()
    };
    let before = first(&mut store);
    store.engine.sorted.growth_percent = 200;
    let more = (first(&mut store) - before) * SEGMENT_BYTES;
    // The reserves grow with the capacity, too.
    assert!((2 * later_bytes..3 * later_bytes).contains(&more), "{more} B more for {later_bytes} B of later runs");
}

/// A merge of later runs frees hardly anything: it takes no more than it leaves to puts.
#[test]
fn a_merge_of_later_runs_leaves_half_of_the_space_to_puts() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    // The oldest one stays apart, so there is no sweep.
    store.engine.sorted.runs[0].failures.note_corrupt();
    enter_later(&mut store.engine.sorted, 17);
    let taken = store.engine.taken_segments();
    let begins = |segments| {
        store.engine.options.capacity_bytes = Some(segments * SEGMENT_BYTES);
        store.engine.sorted.note_space();
        store.engine.begin_merge()
    };
    assert!((taken..taken + 100).any(begins));
    let job = store.engine.sorted.job.take().unwrap();
    let left_bytes = store.engine.room_for_runs(store.engine.reserved_segments()) - job.space_bytes;
    let taken_bytes = job.space_bytes;
    assert!(taken_bytes > 8 * SEGMENT_BYTES / 2, "{taken_bytes} B");
    assert!((taken_bytes..taken_bytes + 2 * SEGMENT_BYTES).contains(&left_bytes), "{left_bytes} B");
}

/// The choice and the merge count alike. Otherwise a choice that just fits is refused, each time again.
#[test]
fn a_merge_of_later_runs_that_is_chosen_begins() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    store.engine.sorted.runs[0].failures.note_corrupt();
    enter_later(&mut store.engine.sorted, 30);
    let taken = store.engine.taken_segments();
    let mut begun = 0;
    for segments in taken..taken + 150 {
        store.engine.options.capacity_bytes = Some(segments * SEGMENT_BYTES);
        store.engine.sorted.note_space();
        let has_begun = store.engine.begin_merge();
        assert!(has_begun || begun == 0, "{begun} with less space");
        begun += u64::from(has_begun);
        store.engine.sorted.job = None;
    }
    assert!(begun >= 110, "{begun}: eight of them fit long before all do");
}

/// While hardly anything is cleaned, the survivors' active segment would stay open for ever, and sorted segments with it that
/// hide old records in it.
#[test]
fn survivors_are_sealed_for_the_sorted_segments_that_hide_their_records() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    let survivors = |engine: &Engine<SimDevice>| {
        let active = engine.streams[StreamKind::Survivors].window.active()?;
        let segment = engine.segments.expect(active.slot);
        (segment.live_records() > 20).then_some(segment.slot)
    };
    let slot = store.copy_until(survivors);
    // Each of the copies is old, and one of these is dead now.
    (0..200).for_each(|at| {
        store.put(1_000 + 8 * at);
        store.turn();
    });
    assert!(!store.engine.segments.expect(slot).sealed && store.engine.runs() == 0);
    store.engine.options.sort_bytes = 1;
    store.engine.sorted.note_change();
    (0..3_000).for_each(|_| store.turn());
    assert!(store.engine.runs() > 0);
    let sorted = store.engine.segments.iter().filter(|segment| segment.is_sorted).count();
    assert_eq!(sorted, 0, "{:?}", store.engine.segments_kept());
}

/// Otherwise the merge would take the place of a run that the sweep still reads, and no part would give it back.
#[test]
fn runs_of_a_sweep_are_not_merged_with_newer_ones() {
    for (newer, is_part) in [(16, true), (17, false)] {
        let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
        store.make_runs(1);
        let oldest_age = store.engine.sorted.runs[0].age;
        enter_later(&mut store.engine.sorted, newer + 1);
        let later = store.engine.sorted.runs[usize::try_from(newer).unwrap()].id;
        let sweep = RunSweep { later: vec![later], age: oldest_age + 1, ..sweep_of(MergePace::default()) };
        store.engine.sorted.sweep = Some(RunSweep { oldest_age, part_bytes: 1 << 20, ..sweep });
        assert!(store.engine.begin_merge());
        let inputs = &store.engine.sorted.job.as_ref().unwrap().inputs;
        assert_eq!(inputs.part.is_some(), is_part, "{newer} newer ones");
        assert_eq!(inputs.sources.contains(&later), is_part);
    }
}

/// Each run has the delete of a key of the run before: whichever runs are merged, the oldest of them hides a put of another.
#[test]
fn merges_of_later_runs_keep_deletes_of_keys_in_older_ones() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let (mut made, mut runs) = (0, 0);
    while store.engine.runs() >= runs {
        runs = store.engine.runs();
        made += 1;
        store.put(10_000 + made);
        store.delete(10_000 + made - 1);
        while store.engine.runs() == runs || store.engine.is_sorting() {
            store.put(store.writes);
            store.turn();
        }
        // No sweep: the oldest run stays apart.
        store.engine.sorted.runs.last_mut().unwrap().failures.note_corrupt();
        assert!(made < 40, "no merge: {:?}", store.engine);
    }
    assert!(store.engine.stats().sweep_parts == 0 && made > 16);
    let found: Vec<u64> = (1..made).filter(|run| has(&mut store.engine, 10_000 + run)).collect();
    assert_eq!(found, [], "deleted keys");
    assert!(has(&mut store.engine, 10_000 + made));
}

#[test]
fn files_of_replaced_runs_go_once_nothing_reads_them() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    while store.engine.stats().sweep_parts < 8 {
        store.put(store.writes % 1_000);
        store.turn();
        assert!(store.writes < 20_000, "no merge: {:?}", store.engine);
    }
    let tier = &store.engine.sorted;
    let (file_bytes, ListedRun { id, file_bytes: of_run, run, .. }) = (tier.file_bytes(), &tier.runs[0]);
    let (id, of_run, name) = (*id, *of_run, run::file_name(run.header().uuid));
    (0..2).for_each(|_| assert!(store.engine.pin_run(id).is_some()));
    store.engine.retire_runs(&[id]);
    for reads in [2, 1, 0] {
        store.engine.unlink_runs();
        let is_kept = reads > 0;
        assert_eq!(store.engine.device.open(&name).is_ok(), is_kept, "{reads} reads");
        assert_eq!(store.engine.sorted.file_bytes(), file_bytes - if is_kept { 0 } else { of_run });
        if is_kept {
            store.engine.unpin_run(id);
        }
    }
}

#[test]
fn segments_of_a_sort_that_was_given_up_are_free_again() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    let gathered = |store: &SmallStore| store.engine.segments.iter().filter(|segment| segment.is_gathered).count();
    while gathered(&store) == 0 {
        store.put(store.writes);
        store.turn();
        assert!(store.writes < 5_000, "no sort: {:?}", store.engine);
    }
    assert!(gathered(&store) > 2);
    store.engine.give_up_sort();
    (0..20).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting());
    let pinned = store.engine.segments.iter().filter(|segment| segment.is_gathered || segment.pins > 0).count();
    assert_eq!(pinned, 0);
}

/// A part of a sweep that the device refused at its end was written anew every ten seconds, for ever.
#[test]
fn a_job_that_finds_no_space_waits_twice_as_long_each_time() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    let now = store.engine.now.mono;
    let refuse = |store: &mut SmallStore| {
        store.engine.give_up_refused();
        store.engine.sorted.retry_at.ms_since(now) / 1_000
    };
    let waits: Vec<u64> = (0..9).map(|_| refuse(&mut store)).collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 640, 640]);
    store.engine.sorted.note_freed(now);
    assert_eq!(store.engine.sorted.retry_at, now.plus_ms(10_000), "space came back");
    assert_eq!(refuse(&mut store), 10);

    // Another program freed it.
    (0..7).for_each(|_| _ = refuse(&mut store));
    store.engine.give_up_sort();
    assert_eq!(store.engine.sorted.retry_at, now.plus_ms(640_000), "another reason shortens no wait");
    store.engine.full = true;
    while store.engine.full {
        store.put(store.writes);
        store.turn();
    }
    assert!(store.engine.sorted.retry_at <= store.engine.now.mono.plus_ms(10_000));
}

/// A put that a sort has taken is in no listed run yet.
#[test]
fn a_run_that_is_being_made_may_have_any_key() {
    let mut tier = SortedTier::default();
    let key = RingKey::of(&SECRET, &key(1));
    assert!(!tier.may_have(&key));
    tier.job = Some(Box::new(job_of(0)));
    assert!(tier.may_have(&key));
}

/// The list compares less than the bounds, and apart from the runs.
#[test]
fn the_runs_that_cover_a_key_are_those_between_whose_bounds_it_is() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    store.engine.options.run_bytes_max = SEGMENT_BYTES;
    let (mut checks, mut runs) = (0, 0);
    for round in 0..200_u64 {
        (0..64).for_each(|number| store.put((round * 64 + number) % 3_000));
        store.turn();
        let list = &store.engine.sorted.runs;
        let ends = list.iter().flat_map(|listed| [listed.bounds().lowest, listed.bounds().highest]);
        let others = (0..16).map(|number| RingKey::of(&SECRET, &key(round + number)));
        for key in ends.chain(others) {
            let covering: Vec<usize> = list.covering(&key).collect();
            let expected: Vec<usize> = (0..list.len()).filter(|&at| list[at].covers(&key)).collect();
            assert_eq!(covering, expected);
            checks += covering.len();
        }
        runs = runs.max(list.len());
    }
    assert!(runs > 20 && checks > 1_000 && store.engine.stats().sweep_parts > 10, "{runs} {checks}");
}

/// The end of a job is a change, but not for the segments of which it could take nothing.
#[test]
fn a_sort_that_took_nothing_is_not_repeated_at_once() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    // A rest, with which searches begin, has begun.
    (0..1_100).for_each(|_| store.turn());
    let before = store.engine.stats().sort_searches;
    let id = store.engine.sorted.next_job();
    store.engine.sorted.job = Some(Box::new(SortJob::of_segments(id, Vec::new(), 1, SECRET, (1, 0))));
    (0..1_000).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting());
    assert_eq!(store.engine.stats().sort_searches - before, 1, "for runs");
    (0..40).for_each(|_| store.turn());
    assert_eq!(store.engine.stats().sort_searches - before, 2, "for segments");
}

/// Otherwise a sort would get its credit from the puts that wait for it.
#[test]
fn a_sort_hurries_while_puts_wait() {
    let mut store = store_that_gathers();
    let behind = MergePace { to_read_bytes: 1 << 50, ..MergePace::default() };
    store.engine.sorted.sweep = Some(sweep_of(behind));
    assert!(store.holds_puts(0));
    let mut turns = 0;
    while store.engine.sorted.is_gathering() {
        store.turn_at_once();
        turns += 1;
        assert!(turns < 1_000, "{:?}", store.engine.stats());
    }
}

#[test]
fn a_sort_hurries_while_puts_could_use_more_work() {
    let mut store = store_that_gathers();
    let mut turns = 0;
    while store.engine.sorted.is_gathering() {
        store.engine.sorted.hold.is_scarce = true;
        assert!(!store.engine.sorted.holds_puts());
        store.turn_at_once();
        turns += 1;
        assert!(turns < 1_000, "{:?}", store.engine.stats());
    }
}

/// A store that reads more for a sort than the credit that was saved up allows.
fn store_that_gathers() -> SmallStore {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    while store.engine.log_report().segments < 40 {
        store.put(store.writes);
        store.turn();
    }
    store.engine.options.sort_bytes = 24 * SEGMENT_BYTES;
    store.engine.sorted.note_change();
    while !store.engine.sorted.is_gathering() {
        store.turn();
        assert!(store.now.mono.0 < 1_000_000, "no sort: {:?}", store.engine);
    }
    store
}

/// Sorted segments stay as long as others have older records, also copies in segments that began late.
#[test]
fn segments_with_the_oldest_versions_are_sorted_first() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    while store.engine.log_report().segments < 6 {
        store.put(store.writes);
        store.turn();
    }
    (0..10).for_each(|_| store.turn());
    let sealed = store.engine.segments.iter().filter(|segment| segment.listed_sealed);
    let mut slots: Vec<(u64, u32)> = sealed.map(|segment| (segment.sequence, segment.slot)).collect();
    slots.sort_unstable();
    let slots: Vec<u32> = slots.into_iter().map(|(_, slot)| slot).collect();
    // As if the last one had copies.
    let [first, second, .., last] = slots[..] else { unreachable!("five are sealed") };
    store.engine.segments.expect_mut(last).shares[0].lowest_put = Version::ZERO;
    store.engine.options.sort_bytes = store.engine.segments.expect(first).live_bytes() * 3;
    store.engine.sorted.note_change();
    assert!(store.engine.begin_due_sort(), "{:?}", store.engine);
    // The next one is the last.
    assert_eq!(store.engine.sorted.job.as_ref().unwrap().todo, [second, first, last]);
}

/// The files of runs that are being written have left the device's free space.
#[test]
fn a_job_does_not_change_what_the_device_has_in_all() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 20 * SEGMENT_BYTES);
    store.engine.options.run_bytes_max = SEGMENT_BYTES;
    let (mut segments, mut written_max) = (Vec::new(), 0);
    while store.engine.stats().runs_listed < 1 {
        store.put(store.writes);
        store.turn();
        store.engine.measure_device();
        segments.push(store.engine.device_segments);
        written_max = written_max.max(store.engine.sorted.job_file_bytes());
        assert!(store.writes < 10_000, "no sort: {:?}", store.engine);
    }
    assert!(written_max > 12 * SEGMENT_BYTES, "{written_max} B");
    let (min, max) = (segments.iter().min().unwrap(), segments.iter().max().unwrap());
    assert!(max - min <= 5, "{min} to {max}");
}

/// A merge of the oldest runs takes some of what it gives back. A short part is written in any case.
#[test]
fn segments_for_a_part_of_a_sweep_are_reserved_once_there_may_be_runs() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let mut reserved = |run_segments: u64, is_active: bool, capacity_segments: u64| {
        store.engine.options.run_bytes_max = run_segments * SEGMENT_BYTES;
        store.engine.options.capacity_bytes = Some(capacity_segments * SEGMENT_BYTES);
        store.engine.sorted.is_active = is_active;
        (store.engine.merge_segments(), store.engine.reserved_segments())
    };
    assert_eq!(reserved(72, false, 400), (0, 3));
    assert_eq!(reserved(72, true, 400), (90, 92), "runs of 4.5 MiB");
    assert_eq!(reserved(72, true, 256), (90, 64), "a quarter of the capacity");
    assert_eq!(reserved(51, true, 400), (0, 3), "runs of 3.2 MiB: parts of less than 4 MiB");
}

/// Pages of later runs may be read twice, at ends of parts.
#[test]
fn a_sweep_has_read_what_it_has_read_of_the_oldest_runs() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(2);
    let [newest, oldest] = &store.engine.sorted.runs[..] else { unreachable!("two were made") };
    let to_read_bytes = oldest.file_bytes;
    let sweep = sweep_of(MergePace { to_read_bytes, ..MergePace::default() });
    let (later, age, oldest_age) = (vec![newest.id], newest.age, oldest.age);
    store.engine.sorted.sweep = Some(RunSweep { later, age, oldest_age, part_bytes: 1 << 20, ..sweep });
    store.engine.sorted.note_space();
    assert!(store.engine.begin_merge());
    let mut read_bytes = 0;
    while let Some(sweep) = &store.engine.sorted.sweep {
        read_bytes = sweep.pace.read_bytes;
        store.turn();
    }
    assert_eq!(store.engine.runs(), 1);
    assert!(read_bytes <= to_read_bytes && read_bytes * 2 > to_read_bytes, "{read_bytes} B of {to_read_bytes} B");
}

/// Puts write three quarters of what is sorted meanwhile, if the records of more than two sorts are unsorted, or if the index of a
/// store that sorts for its sake is too large.
#[test]
fn puts_wait_for_the_next_sort() {
    for (layout, unsorted_bytes, memory_percent, waits) in [
        (RecordLayout::Sorted, 200_001, 0, true),
        (RecordLayout::Sorted, 200_000, 0, false),
        (RecordLayout::Auto, 0, 160, true),
        (RecordLayout::Auto, 900_000, 170, false),
        (RecordLayout::Log, 900_000, 100, false),
    ] {
        let mut store = SmallStore::open(layout, Durability::Sync, 100_000);
        store.engine.options.memory_bytes = store.engine.memory().index_bytes * memory_percent / 100;
        store.engine.sorted.sorted_at_bytes = store.engine.stats.record_bytes;
        store.engine.sorted.unsorted_bytes = unsorted_bytes;
        let rate = |work_bytes| waits.then_some(PutRate { puts_bytes: 75_000, work_bytes });
        assert_eq!(store.engine.rate_of_sorts(), rate(200_000), "{layout:?} {unsorted_bytes} {memory_percent}");
        store.engine.sorted.sweep = Some(RunSweep { part_bytes: 50_000, ..sweep_of(MergePace::default()) });
        assert_eq!(store.engine.rate_of_sorts(), rate(300_000), "a part is between two sorts");
        // Nothing is left of the sweep but its space.
        store.engine.sorted.job = Some(Box::new(job_of(0)));
        assert_eq!(store.holds_puts(1), waits, "{layout:?} {unsorted_bytes} {memory_percent}");
    }
    // A sort takes a whole segment at least: with less for its unit, puts would wait for each sweep all the time.
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.engine.sorted.unsorted_bytes = 2 * SEGMENT_BYTES;
    assert_eq!(store.engine.rate_of_sorts(), None);
    store.engine.sorted.unsorted_bytes += 1;
    let (puts_bytes, work_bytes) = (SEGMENT_BYTES / 4 * 3, 2 * SEGMENT_BYTES);
    assert_eq!(store.engine.rate_of_sorts(), Some(PutRate { puts_bytes, work_bytes }));
}

/// The order of their records takes as much memory as they do.
#[test]
fn puts_of_short_records_write_three_quarters_of_what_a_sort_of_them_takes() {
    const RECORD_BYTES: u64 = 40;
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 20);
    let stats = &mut store.engine.stats;
    (stats.record_bytes, stats.appended_records) = (RECORD_BYTES << 20, 1 << 20);
    store.engine.sorted.sorted_at_bytes = RECORD_BYTES << 20;
    store.engine.sorted.unsorted_bytes = 4 << 20;
    let PutRate { puts_bytes, work_bytes } = store.engine.rate_of_sorts().unwrap();
    let memory_bytes = SortBuffer::memory_of(work_bytes / 2, work_bytes / 2 / RECORD_BYTES);
    let memory_bytes_max = (1 << 20) / 4 * 5;
    assert!(memory_bytes.abs_diff(memory_bytes_max) < 100, "{memory_bytes} B of {memory_bytes_max} B");
    assert_eq!(puts_bytes, work_bytes / 2 / 4 * 3);
}

/// Runs of sorts are short, and end at the same ring keys, so that a sweep gives back most of the later ones before its end.
#[test]
fn runs_of_sorts_end_at_the_same_ring_keys() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let eighths = |at: u32| at << 29;
    store.engine.options.run_bytes_max = 2 << 20;
    assert_eq!(store.engine.cuts(80 << 20), (0..8).map(eighths).collect::<Vec<_>>());
    assert_eq!(store.engine.cuts(4 << 20), (0..8).map(eighths).collect::<Vec<_>>());
    assert_eq!(store.engine.cuts(3 << 19), (0..4).map(|at| eighths(2 * at)).collect::<Vec<_>>(), "not too short");
    assert_eq!(store.engine.cuts(1), [0]);
    store.engine.options.run_bytes_max = 16 << 10;
    assert_eq!(store.engine.cuts(64 << 10), (0..4).map(|at| eighths(2 * at)).collect::<Vec<_>>());
    let at = |highest: u32| {
        let mut key = RingKey::MIN;
        key.0[..4].copy_from_slice(&highest.to_be_bytes());
        key
    };
    store.engine.ranges[0].keys = KeyRange { start: at(1 << 20), end: Some(at(1 << 21)) };
    assert_eq!(
        store.engine.cuts(1 << 20),
        (8..16).map(|at| at << 17).collect::<Vec<_>>(),
        "of a small part of the ring"
    );
    for ranges in 2..40_u32 {
        // In no order of their keys.
        let place = (ranges - 2) * 17 % 38 + 2;
        let keys = KeyRange { start: at(place << 24), end: Some(at((place + 1) << 24)) };
        store.engine.add_range(RangeId(ranges), keys).unwrap();
        let cuts = store.engine.cuts(1 << 20);
        assert!((8..=16).contains(&cuts.len()) && cuts.is_sorted(), "{ranges} ranges: {cuts:?}");
        let half = store.engine.cuts(64 << 10);
        assert!(ranges > 8 || half.iter().all(|cut| cuts.contains(cut)), "{ranges} ranges: {half:?} {cuts:?}");
    }
}

/// The later runs once stayed until a sweep's end, so puts had no more space than there was at its start.
#[test]
fn a_sweep_gives_back_the_later_runs_that_it_has_passed() {
    const KEYS: u64 = 2_000;
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 6 * SEGMENT_BYTES);
    store.engine.options.run_bytes_max = 32 << 10;
    let mut newest = vec![0; KEYS as usize];
    let (mut before, mut given_back, mut sweeps, mut crossing) = (None::<(u64, usize, MergePace)>, 0, 0, 0);
    while sweeps < 3 {
        let number = store.writes.wrapping_mul(0x9E37_79B9) % KEYS;
        newest[number as usize] = (store.writes + 1) as u8;
        store.put(number);
        store.turn();
        assert!(store.writes < 100_000, "{sweeps} sweeps, {given_back} runs");
        let SortedTier { sweep, runs, .. } = &store.engine.sorted;
        let Some(RunSweep { later, age, from, pace, .. }) = sweep else {
            sweeps += u64::from(before.take().is_some());
            continue;
        };
        let is_within_an_eighth = |listed: &&ListedRun| {
            let KeyBounds { lowest, highest } = listed.bounds();
            lowest.highest() >> 29 == highest.highest() >> 29
        };
        crossing += runs.iter().filter(|listed| listed.age == 1).filter(|listed| !is_within_an_eighth(listed)).count();
        let mut of_sorts = runs.iter().filter(|listed| listed.age > 1);
        assert!(of_sorts.all(|listed| is_within_an_eighth(&listed)), "they end at eighths of the ring");
        let listed = runs.iter().filter(|listed| later.contains(&listed.id)).count();
        let former = before.replace((*age, listed, *pace)).filter(|(former, ..)| former == age);
        let Some((_, listed_before, pace_before)) = former.filter(|(_, before, _)| *before > listed) else { continue };
        assert!(*from > RingKey::MIN && pace.read_bytes >= pace_before.to_read_bytes, "earlier than it was expected");
        given_back += listed_before - listed;
        // Until the last put is committed.
        (0..2).for_each(|_| store.turn());
        for number in (0..KEYS).filter(|number| newest[*number as usize] != 0) {
            assert_eq!(value_of(&mut store.engine, number), Some(newest[number as usize]), "key {number}");
        }
    }
    assert!(given_back > 20, "{given_back} runs");
    assert!(crossing > 0, "parts of sweeps fill their runs");
}

/// Sorts are paid for the segments that they read and the runs that they write, merges for both kinds of pages.
#[test]
fn what_jobs_read_and_write_is_paid() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 6 * SEGMENT_BYTES);
    while !store.engine.sorted.is_gathering() {
        store.put(store.writes);
        store.turn();
    }
    let work_of_job = |store: &mut SmallStore| {
        store.engine.sorted.hold.work_bytes = 0;
        while store.engine.is_sorting() {
            store.turn();
        }
        store.engine.sorted.hold.work_bytes
    };
    let work = work_of_job(&mut store);
    let written: u64 = store.engine.sorted.runs.iter().map(|listed| listed.file_bytes).sum();
    assert!((written * 17 / 10..written * 23 / 10).contains(&work), "{work} B for runs of {written} B");

    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(2);
    let [newest, oldest] = &store.engine.sorted.runs[..] else { unreachable!("two were made") };
    let read = newest.pages_bytes() + oldest.pages_bytes();
    let (later, age, oldest_age) = (vec![newest.id], newest.age, oldest.age);
    let sweep = sweep_of(MergePace::default());
    store.engine.sorted.sweep = Some(RunSweep { later, age, oldest_age, part_bytes: 1 << 20, ..sweep });
    store.engine.sorted.note_space();
    assert!(store.engine.begin_merge());
    let work = work_of_job(&mut store);
    let bytes = read + store.engine.sorted.runs[0].file_bytes;
    assert!((bytes * 9 / 10..bytes * 11 / 10).contains(&work), "{work} B for {bytes} B");
}

/// A clear examines all segments of its range again, also those that wait for a sync.
#[test]
fn a_segment_that_waits_for_a_sync_counts_once() {
    let mut store = SmallStore::open(RecordLayout::Log, Durability::Memory, 1);
    while store.engine.log_report().segments < 5 {
        store.put(store.writes);
        store.turn();
    }
    for _ in 0..4 {
        store.writes += 1;
        let version = Version::new(Epoch::new(store.engine.generation()).unwrap(), store.writes).unwrap();
        store.engine.clear(RANGE, version).unwrap();
        (0..3).for_each(|_| store.turn());
        assert_eq!((store.engine.drops.unsynced(), store.kept_by_syncs()), (3, 3));
    }
}

//! Gathering: takes the records of sealed segments that count, with the reader of cleaning and at its pace.
use super::super::Engine;
use super::super::clean::{Cleaned, CopyRefused};
use super::SortedTier;
use super::job::{Gathered, SortJob, SortJobId, SortStep};
use super::pace::PutRate;
use crate::format::RangeNumber;
use crate::format::manifest::ManifestEdit;
use crate::format::record::{RecordKind, RecordRef, Stored};
use crate::format::run::RunRecord;
use crate::format::run::record::RECORD_HEADER_BYTES;
use crate::log::segments::Segment;
use crate::options::RecordLayout;
use crate::overlay::ReplacedRecord;
use crate::range::RangeState;
use crate::sorted::SortBuffer;
use fawn_flash::Device;
use fawn_types::{KeyHash, RingKey, Version};

/// Purpose of examining a segment's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum CleanGoal {
    /// To copy the records that are needed to the survivors' stream.
    Copy,
    /// To take them into a run, and copy only those that are too long for one.
    Sort(SortJobId),
}

/// Deletes with index entries may take so much of the log, one part in so many, where nothing else is sorted.
const DELETES_SHARE_MAX: u64 = 20;

/// Share of the capacity, one in so many, that a sort takes at most: until it ends, records lie in segments and in runs.
const SORTS_PER_CAPACITY: u64 = 64;

/// Records that are sorted at a time at most, bytes.
const SORT_BYTES_MAX: u64 = 256 << 20;
/// Share of the memory, one in so many, that they take at most.
pub(super) const SORTS_PER_MEMORY: u64 = 16;
/// Shortest batch of a sort, bytes: each has runs of its own.
const BATCH_BYTES_MIN: u64 = 256 << 10;
/// Sorts whose records may be unsorted before puts wait for the next one.
const SORTS_AHEAD: u64 = 2;
/// Share of the memory that the index may take before puts wait for the sorts, percent.
const INDEX_PERCENT_MAX: u64 = 60;

/// Live records that are sorted, at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SortSize {
    /// Their length, bytes.
    pub(super) bytes: u64,
    pub(super) count: u64,
}

impl SortSize {
    const fn with(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, count: self.count + other.count }
    }

    /// Memory that they and their order take, bytes.
    const fn memory_bytes(self) -> u64 {
        SortBuffer::memory_of(self.bytes, self.count)
    }
}

/// Segments of a sort that are mostly puts: the sweep after it need not give anything back.
#[derive(Clone, Copy, Debug, Default)]
struct SortGrowth {
    records: SortSize,
    segments: u64,
}

impl SortGrowth {
    const fn with(self, records: SortSize) -> Self {
        Self { records: self.records.with(records), segments: self.segments + 1 }
    }
}

/// The reason why segments are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SortReason {
    /// The layout says so.
    Layout,
    /// Deletes take much of the log, or of a segment of a full store: cleaning keeps them while a run may have what they hide.
    Deletes,
}

fn has_many_deletes(segment: &Segment) -> bool {
    segment.delete_bytes() * DELETES_SHARE_MAX > u64::from(segment.end)
}

/// The record as it is in a run, if it fits.
pub(in crate::engine) const fn run_record<'a>(record: &RecordRef<'a>, number: RangeNumber) -> RunRecord<'a> {
    let RecordRef { kind, version, key, value, flags, expires_at_ms, .. } = *record;
    RunRecord { kind, type_byte: 0, number, version, expires_at_ms, flags, key, value }
}

impl SortedTier {
    /// The range's records above `last` were rolled back: nothing waits for their commit any more.
    pub(in crate::engine) fn rolled_back(&mut self, number: RangeNumber, last: Version) {
        for (_, version) in self.activated.iter_mut().filter(|(activated, _)| *activated == number) {
            *version = last.min(*version);
        }
    }
}

impl<D: Device> Engine<D> {
    /// The next segment to gather from.
    pub(in crate::engine) fn choose_to_sort(&mut self) -> Option<(u32, SortJobId)> {
        loop {
            let job = self.sorted.job.as_mut().filter(|job| job.step == SortStep::Gather)?;
            let Some(slot) = job.todo.pop() else {
                if job.slots.is_empty() {
                    // A run without a sorted segment would only take space.
                    job.step = SortStep::GivenUp;
                } else {
                    job.end_gathering();
                }
                return None;
            };
            let id = job.id;
            let segment = self.segments.expect(slot);
            // A range was split or merged since the job began: filing is first, also because of checkpoints. A read for cleaning that hangs
            // may have begun before the job.
            if !self.has_retired_part(&segment.shares) && !segment.failures.is_hanging() {
                return Some((slot, id));
            }
            self.gathered(slot, id, false);
        }
    }

    /// Begins a sort if one is due.
    pub(super) fn begin_due_sort(&mut self) -> bool {
        let Some(reason) = self.sort_reason() else { return false };
        self.is_activated() && self.is_search_due() && self.begin_sort(reason)
    }

    /// Records that are sorted at a time, bytes.
    pub(super) fn sort_bytes(&self) -> u64 {
        let bytes = match self.options.sort_bytes {
            0 => (self.options.memory_bytes / SORTS_PER_MEMORY).min(self.capacity_bytes() / SORTS_PER_CAPACITY),
            bytes => bytes,
        };
        let bytes = bytes.min(SORT_BYTES_MAX);
        // A run of them must fit into the reserve of a full store.
        if self.full { bytes.min(2 * u64::from(self.options.segment_bytes)) } else { bytes }
    }

    /// Memory that the records of a sort take at a time at most, bytes.
    fn batch_bytes_max(&self) -> u64 {
        match self.options.sort_batch_bytes {
            // With a quarter for the order of the records: that of short ones takes more than they do.
            0 => (self.options.memory_bytes / SORTS_PER_MEMORY).clamp(BATCH_BYTES_MIN, SORT_BYTES_MAX) / 4 * 5,
            bytes => bytes,
        }
    }

    /// Memory that the records of a sort of several segments take at most, bytes.
    fn sort_memory_bytes_max(&self) -> u64 {
        // Their order has its quarter of the memory.
        self.batch_bytes_max().max(self.sort_bytes() / 4 * 5)
    }

    /// Batches of a sort of so many records, and the memory of each, bytes. Only a segment that needs more than a sort may hold is
    /// sorted in several: it is read once, and has as many runs as shorter segments would have.
    fn batches_of_sort(&self, records: SortSize) -> (u64, u64) {
        let bytes = records.memory_bytes();
        let batches = bytes.div_ceil(self.batch_bytes_max()).max(1);
        (batches, bytes.div_ceil(batches))
    }

    /// Space that the runs of a sort of so many live records take at most, bytes.
    pub(super) fn space_of_sort(&self, records: SortSize) -> u64 {
        let (batches, _) = self.batches_of_sort(records);
        batches * self.space_of_records(records.bytes.div_ceil(batches))
    }

    /// Whether the segment's reader continues: not while a batch of the job is written. A job that was given up takes no records,
    /// and the reader leaves the rest where it is.
    pub(in crate::engine) fn may_gather(&mut self, id: SortJobId) -> bool {
        let Some(job) = self.sorted.job.as_mut().filter(|job| job.id == id) else { return true };
        job.end_full_batch();
        job.step != SortStep::WriteBatch
    }

    /// Whether all segments are sorted, the oldest ones first.
    pub(super) fn sorts_all(&self) -> bool {
        match self.options.layout {
            RecordLayout::Log => false,
            RecordLayout::Sorted => true,
            RecordLayout::Auto => self.sorted.is_over_budget,
        }
    }

    /// Whether all segments are sorted before they take much of the capacity.
    pub(in crate::engine) fn sorts_soon(&self) -> bool {
        let bytes = self.sort_bytes().max(self.unsorted_bytes());
        self.sorts_all() && !self.full && bytes <= self.capacity_bytes() / 8
    }

    /// Live bytes that are still to be sorted, at most.
    fn unsorted_bytes(&self) -> u64 {
        self.sorted.unsorted_bytes + (self.stats.record_bytes - self.sorted.sorted_at_bytes)
    }

    /// The rate of puts that are ahead of the sorts, or while the index exceeds its share of the memory: three quarters of what is
    /// sorted meanwhile, since a store that begins to sort late has much to sort for long.
    pub(super) fn rate_of_sorts(&self) -> Option<PutRate> {
        // A sort takes a whole segment at least.
        let bytes = self.sort_bytes().max(u64::from(self.options.segment_bytes));
        let is_behind = match self.options.layout {
            RecordLayout::Log => false,
            RecordLayout::Sorted => self.unsorted_bytes() > SORTS_AHEAD * bytes,
            RecordLayout::Auto => self.index_bytes() * 100 > self.options.memory_bytes * INDEX_PERCENT_MAX,
        };
        let part_bytes = self.sorted.sweep.as_ref().map_or(0, |sweep| sweep.part_bytes);
        // Its records are as long as those that were appended.
        let record_bytes = self.stats.record_bytes / self.stats.appended_records.max(1);
        let record_bytes = record_bytes.max(RECORD_HEADER_BYTES as u64);
        let size_of = |bytes: u64| SortSize { bytes, count: bytes / record_bytes };
        let segment_bytes = u64::from(self.options.segment_bytes);
        let (batches, _) = self.batches_of_sort(size_of(segment_bytes));
        // The order of short records takes a part of the memory of the sort.
        let (asked_bytes, memory_bytes_max) = (self.sort_bytes(), self.sort_memory_bytes_max());
        let fitting_bytes = asked_bytes.saturating_mul(memory_bytes_max) / size_of(asked_bytes).memory_bytes().max(1);
        let taken_bytes = asked_bytes.min(fitting_bytes).max(segment_bytes);
        // Each is read and written; a part of a sweep comes between two sorts, and a merge of the last one's batches.
        let merged_bytes = if batches > 1 { taken_bytes } else { 0 };
        let work_bytes = 2 * (taken_bytes + part_bytes + merged_bytes);
        is_behind.then_some(PutRate { puts_bytes: taken_bytes / 4 * 3, work_bytes })
    }

    fn index_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum()
    }

    fn sort_reason(&mut self) -> Option<SortReason> {
        if self.options.layout == RecordLayout::Auto {
            let percent = if self.sorted.is_over_budget { 40 } else { 50 };
            self.sorted.is_over_budget = self.index_bytes() * 100 > self.options.memory_bytes * percent;
        }
        if self.sorts_all() {
            return Some(SortReason::Layout);
        }
        // Each poll asks, and the answer needs all segments.
        if self.sorted.is_active && self.is_search_due() {
            if self.full || self.deletes_take_much() {
                return Some(SortReason::Deletes);
            }
            self.sorted.segment_search.begin();
        }
        None
    }

    /// Whether deletes take more than their share of the log.
    fn deletes_take_much(&self) -> bool {
        let (mut delete_bytes, mut bytes) = (0, 0);
        for segment in self.segments.iter().filter(|segment| !segment.is_sorted) {
            delete_bytes += segment.delete_bytes();
            bytes += u64::from(segment.end);
        }
        delete_bytes * DELETES_SHARE_MAX > bytes
    }

    /// Whether all deletes have index entries that could concern a record in a run. Begins to give them some.
    fn is_activated(&mut self) -> bool {
        if !self.sorted.is_active {
            if self.reserve_manifest_to_free(0).is_err() {
                return false;
            }
            // Listed before every run and every checkpoint with the entry of a delete.
            self.manifest.commit(&[ManifestEdit::IndexDeletes]);
            self.start_manifest();
            self.sorted.is_active = true;
            let appended = |range: &RangeState| (range.number, range.progress.appended);
            self.sorted.activated = self.ranges.iter().map(appended).collect();
        }
        let Self { sorted, ranges, overlay, .. } = self;
        let has_deletes = |at: usize| overlay.unconfirmed_deletes(at) > 0;
        // Deletes that were appended before have none when they are committed. Until their verification, the index has the puts that
        // they hide, and a sort leaves these out: a power loss must not undo the deletes. That the verification ends would be too
        // much to ask: it needs a record that may be unreadable.
        let is_settled = |&mut (number, version): &mut (RangeNumber, Version)| {
            // A range that began again or was dropped has none any more.
            ranges.iter().position(|range| range.number == number).is_none_or(|at| {
                let is_safe = !has_deletes(at) || ranges[at].durably_committed() >= version;
                ranges[at].progress.committed >= version && is_safe
            })
        };
        sorted.activated.retain_mut(|activated| !is_settled(activated));
        sorted.activated.is_empty()
    }

    fn is_search_due(&self) -> bool {
        let now = self.now.mono;
        now >= self.sorted.retry_at && self.sorted.segment_search.is_due(now)
    }

    /// Begins with the oldest segments, once they have enough live records for a run and there is space for it.
    fn begin_sort(&mut self, reason: SortReason) -> bool {
        self.stats.sort_searches += 1;
        self.sorted.segment_search.begin();
        if self.sorts_soon() || self.has_little_space() {
            self.seal_survivors();
        }
        let (bytes_max, room_bytes) = (self.sort_bytes(), self.room_for_sort());
        let is_worthwhile: fn(&Segment) -> bool = match reason {
            SortReason::Layout => Segment::has_many_for_runs,
            SortReason::Deletes => has_many_deletes,
        };
        let candidates = self.segments.iter().filter(|segment| is_worthwhile(segment) && Self::may_be_sorted(segment));
        let (mut sortable, later): (Vec<&Segment>, Vec<&Segment>) =
            candidates.partition(|segment| self.is_sortable(segment));
        // Sorted segments stay as long as others have older records.
        let lowest = |segment: &Segment| segment.shares.iter().map(|share| share.lowest_put).min();
        sortable.sort_unstable_by_key(|segment| (lowest(segment), segment.sequence));
        let all_bytes: u64 = sortable.iter().chain(&later).map(|segment| segment.live_bytes()).sum();
        let (records, mut slots, passed) = self.choose_segments(&sortable, (bytes_max, room_bytes));
        let bytes = records.bytes;
        // A run for every segment would make many small ones. A full store makes space with them, and so do deletes.
        let space_bytes = self.space_of_sort(records);
        let is_paid_by_rest = space_bytes <= self.sorted.rest.bytes_max();
        let is_due = self.full || reason == SortReason::Deletes;
        let is_any_enough = is_due || is_paid_by_rest;
        let bytes_min = if is_any_enough { 1 } else { bytes_max };
        if slots.is_empty() || (slots.len() + passed == sortable.len() && bytes < bytes_min) {
            // Live bytes of sealed segments only become fewer. So only a segment that is not movable yet changes this.
            let later_bytes: u64 = later.into_iter().map(Segment::live_bytes).sum();
            if later_bytes > 0 && bytes + later_bytes >= bytes_min {
                self.sorted.segment_search.repeat_soon(self.now.mono);
            }
            // Of what was written since the last sort, records may be dead, or too long for a run.
            (self.sorted.unsorted_bytes, self.sorted.sorted_at_bytes) = (all_bytes, self.stats.record_bytes);
            return false;
        }
        (self.sorted.unsorted_bytes, self.sorted.sorted_at_bytes) = (all_bytes - bytes, self.stats.record_bytes);
        let is_only_for_rest =
            is_paid_by_rest && !is_due && slots.len() + passed == sortable.len() && bytes < bytes_max;
        let age = self.sorted.runs.first().map_or(1, |newest| newest.age + 1);
        for &slot in &slots {
            let segment = self.segments.expect_mut(slot);
            (segment.pins, segment.is_gathered) = (segment.pins + 1, true);
        }
        slots.reverse();
        let id = self.sorted.next_job();
        let mut job = SortJob::of_segments(id, slots, age, self.secret, self.batches_of_sort(records));
        job.space_bytes = space_bytes;
        job.paid_bytes = if is_only_for_rest { self.sorted.rest.pay(space_bytes) } else { 0 };
        self.sorted.job = Some(Box::new(job));
        self.sorted.was_merge = false;
        true
    }

    /// The segments of the next sort, of these in their order, which has so many live bytes at most and takes so much space: their live
    /// records and their slots. Counts those that find no space for what they would take in the end.
    fn choose_segments(
        &self,
        sortable: &[&Segment],
        (bytes_max, room_bytes): (u64, u64),
    ) -> (SortSize, Vec<u32>, usize) {
        let memory_bytes_max = self.sort_memory_bytes_max();
        let growth_bytes_max = self.room_for_growth();
        let (mut records, mut puts, mut slots) = (SortSize::default(), SortGrowth::default(), Vec::new());
        let mut passed = 0;
        for segment in sortable {
            let size = SortSize { bytes: segment.live_bytes(), count: segment.live_records() };
            let together = records.with(size);
            let is_too_long = together.bytes > bytes_max || together.memory_bytes() > memory_bytes_max;
            let space_bytes = self.space_of_sort(together);
            if (records.bytes > 0 && is_too_long) || space_bytes > room_bytes {
                break;
            }
            let puts_with = if has_many_deletes(segment) { puts } else { puts.with(size) };
            let grows = puts_with.segments > 0 && self.growth_of(puts_with) > growth_bytes_max;
            if grows || !self.has_room_for_long(segment, space_bytes) {
                passed += 1;
                continue;
            }
            (records, puts) = (together, puts_with);
            slots.push(segment.slot);
        }
        (records, slots, passed)
    }

    /// Bytes by which their runs may be longer than these segments.
    fn growth_of(&self, SortGrowth { records, segments }: SortGrowth) -> u64 {
        self.space_of_sort(records).saturating_sub(segments * u64::from(self.options.segment_bytes))
    }

    /// Whether copies of the segment's records that are too long for a run find space beside a job that takes so much. Otherwise the
    /// segment would be read for nothing, again and again.
    fn has_room_for_long(&self, segment: &Segment, space_bytes: u64) -> bool {
        let room = self.survivors_room();
        let of_job = space_bytes.div_ceil(u64::from(self.options.segment_bytes));
        segment.longer_than_runs() == 0
            || room.segments > of_job
            || self.with_frames(segment.live_bytes()) <= room.active_bytes
    }

    fn is_sortable(&self, segment: &Segment) -> bool {
        !self.has_retired_part(&segment.shares) && self.is_movable(segment)
    }

    /// Whether the segment has live records and takes no more.
    fn may_be_sorted(segment: &Segment) -> bool {
        let is_candidate = segment.sealed && !segment.is_cleaned && !segment.is_sorted;
        // The end of a read that hangs makes another search due.
        is_candidate && segment.live_records() > 0 && !segment.failures.is_hanging()
    }

    /// Copies the record of a store with runs, or takes it into the run that is being made, if it is its key's newest.
    ///
    /// # Errors
    /// [`CopyRefused`]: nothing was copied.
    pub(in crate::engine) fn clean_indexed(
        &mut self,
        at: usize,
        (slot, offset): (u32, u32),
        stored: &Stored<'_>,
        goal: CleanGoal,
    ) -> Result<Cleaned, CopyRefused> {
        let record = &stored.record;
        let hash = KeyHash::of(&self.secret, record.key);
        let pointer = self.segments.pointer(slot, offset);
        let name = self.name_of(hash.0, record.key);
        let entry = self.overlay.find(at, hash.0, || name.ident);
        if entry.is_some_and(|entry| entry.committed.is_some_and(|committed| committed.pointer == pointer)) {
            // Its verification moves it to the index, which must find it here.
            return Ok(Cleaned::Stays);
        }
        if !self.candidates(at, hash).any(|found| found == pointer) {
            return match goal {
                CleanGoal::Copy => self.clean_unindexed(at, (slot, offset), hash, record),
                // The rest of the segment hides all that the record hides.
                CleanGoal::Sort(_) => Ok(Cleaned::Gone),
            };
        }
        // A trace that an opening deferred: a run has the key's newest record. In a later run, this older one would count.
        let is_hidden = entry.is_some_and(|entry| entry.committed.is_some_and(|committed| !committed.is_put));
        if is_hidden && goal != CleanGoal::Copy {
            return Ok(Cleaned::Gone);
        }
        let original = ReplacedRecord { pointer, len_bytes: stored.encoded_len as u32 };
        let is_expired = record.expires_at_ms != 0 && self.expired_by(at).0 >= record.expires_at_ms;
        let is_dead = record.kind == RecordKind::Tombstone || (is_expired && entry.is_none());
        let mut copy = RecordRef::put(record.version, record.key, record.value);
        (copy.flags, copy.expires_at_ms) = (record.flags, record.expires_at_ms);
        if is_dead {
            copy = RecordRef::bare(RecordKind::Tombstone, record.version, record.key);
        }
        let run = run_record(&copy, self.ranges[at].number);
        if let CleanGoal::Sort(id) = goal
            && run.fits()
        {
            let job = self.sorted.job.as_mut().filter(|job| job.is_gathering(id));
            let is_taken = job.is_some_and(|job| job.take_record(&run));
            return Ok(if is_taken { Cleaned::Gone } else { Cleaned::Stays });
        }
        if is_dead && entry.is_none() {
            // No run has a key that is too long for its tombstone.
            let may_be_in_run = run.fits() && self.sorted.may_have(&RingKey::of(&self.secret, record.key));
            let sequence = self.segments.expect(slot).sequence;
            if !may_be_in_run && !self.hides_elsewhere(at, sequence, record.version) {
                self.unindex(at, hash, original);
                return Ok(Cleaned::Gone);
            }
        }
        self.copy_indexed(at, name, &copy, original)?;
        Ok(Cleaned::Gone)
    }

    /// Copies what a record without an entry may hide: deletes have had none while there were no runs, and a put none once
    /// it was found expired.
    fn clean_unindexed(
        &mut self,
        at: usize,
        (slot, offset): (u32, u32),
        hash: KeyHash,
        record: &RecordRef<'_>,
    ) -> Result<Cleaned, CopyRefused> {
        match record.kind {
            // The decision waits until the index entries have moved to the victim's copies. Until then these count as puts that
            // the delete hides, and both would be copied again and again.
            RecordKind::Tombstone => Ok(Cleaned::TombstoneOnceMoved),
            RecordKind::Put if !self.may_be_removed(at, slot, hash, record) => Ok(Cleaned::Gone),
            // A tombstone of the same version would hide the copy that a run may have. But without a copy, if a lookup removed
            // the put by a later time than the present one, the put hides older ones. It stays until a tombstone hides nothing
            // else: that time is less than the margin ahead.
            RecordKind::Put
                if self.sorted.may_have(&RingKey::of(&self.secret, record.key))
                    && !self.is_expired_for_lookups(at, record) =>
            {
                Ok(self.expires_within_margin(at, record).map_or(Cleaned::Gone, Cleaned::StaysFor))
            }
            // If it was deleted instead, a loss may undo that.
            _ if self.ranges[at].durably_committed() < self.ranges[at].progress.committed => {
                Ok(Cleaned::TombstoneOnceDurable(self.ranges[at].progress.committed))
            }
            _ => self.copy_tombstone(at, (slot, offset), record.version, record.key),
        }
    }

    /// Removes the entry of a record that nothing asks for any more.
    fn unindex(&mut self, at: usize, hash: KeyHash, old: ReplacedRecord) {
        let part = self.indexed_at(at, hash, old.pointer);
        let removed = self.ranges[part].index.remove(hash, old.pointer);
        assert!(removed, "the record was just found through this entry");
        self.note_unindexed(part, hash, old);
        self.release_old(part, old, Version::ZERO);
        self.records.remove(at, hash);
    }

    /// A segment was read to its end for a job. It is sorted if nothing had to stay, and the job is still there: another
    /// one has only a part of its records, or none.
    pub(in crate::engine) fn gathered(&mut self, slot: u32, id: SortJobId, is_whole: bool) {
        let segment = self.segments.expect_mut(slot);
        segment.had_unconfirmed = !is_whole;
        // A record that was copied has died by that, too: its index entry has moved before.
        let until = segment.died_at;
        let ranges = &self.ranges;
        let died_by = segment.shares.iter().map(|share| (share.range, ranges[share.range].number, share.died_by));
        let gathered = Gathered { slot, uuid: segment.uuid, until, died_by: died_by.collect() };
        match &mut self.sorted.job {
            Some(job) if is_whole && job.is_gathering(id) => job.slots.push(gathered),
            _ => {
                (segment.pins, segment.is_gathered) = (segment.pins - 1, false);
                self.examine_if_dead(slot);
                self.sorted.note_change();
            }
        }
    }
}

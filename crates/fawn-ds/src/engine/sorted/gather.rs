//! Gathering: takes the records of sealed segments that count, with the reader of cleaning and at its pace.
use super::super::clean::Cleaned;
use super::super::{Engine, EngineError};
use super::job::{Gathered, SortJob, SortJobId, SortStep};
use crate::format::manifest::ManifestEdit;
use crate::format::record::{RecordKind, RecordRef, Stored};
use crate::format::run::RunRecord;
use crate::format::segment::StreamKind;
use crate::format::{FRAMES_OFFSET, RangeNumber};
use crate::log::segments::{RangeShare, Segment};
use crate::options::RecordLayout;
use crate::overlay::ReplacedRecord;
use crate::range::RangeState;
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

/// The record as it is in a run, if it fits.
pub(in crate::engine) const fn run_record<'a>(record: &RecordRef<'a>, number: RangeNumber) -> RunRecord<'a> {
    let RecordRef { kind, version, key, value, flags, expires_at_ms, .. } = *record;
    RunRecord { kind, type_byte: 0, number, version, expires_at_ms, flags, key, value }
}

impl<D: Device> Engine<D> {
    /// The next segment to gather from. Begins a job if enough of the log can be sorted.
    pub(in crate::engine) fn choose_to_sort(&mut self) -> Option<(u32, SortJobId)> {
        if self.sorted.job.is_none() {
            self.begin_due_sort();
        }
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
            // A range was split or merged since the job began: filing is first, also because of checkpoints.
            if !self.has_retired_part(&self.segments.expect(slot).shares) {
                return Some((slot, id));
            }
            self.gathered(slot, id, false);
        }
    }

    /// Begins a sort if one is due.
    pub(super) fn begin_due_sort(&mut self) -> bool {
        self.is_sort_due() && self.is_activated() && self.is_search_due() && self.begin_sort()
    }

    /// Records that are sorted at a time, bytes.
    pub(super) fn sort_bytes(&self) -> u64 {
        let bytes = match self.options.sort_bytes {
            0 => (self.options.memory_bytes / 16).min(256 << 20),
            bytes => bytes,
        };
        // A run of them must fit into the reserve of a full store.
        if self.full { bytes.min(2 * u64::from(self.options.segment_bytes)) } else { bytes }
    }

    fn is_sort_due(&mut self) -> bool {
        match self.options.layout {
            RecordLayout::Log => false,
            RecordLayout::Sorted => true,
            RecordLayout::Auto => {
                let index_bytes: u64 = self.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum();
                let of_budget = |percent: u64| index_bytes * 100 > self.options.memory_bytes * percent;
                let is_over = if self.sorted.is_over_budget { of_budget(40) } else { of_budget(50) };
                self.sorted.is_over_budget = is_over;
                is_over
            }
        }
    }

    /// Whether all deletes have index entries that could concern a record in a run. Begins to give them some.
    fn is_activated(&mut self) -> bool {
        if !self.sorted.is_active {
            if self.reserve_manifest(0).is_err() {
                return false;
            }
            // Listed before every run and every checkpoint with the entry of a delete.
            self.manifest.commit(&[ManifestEdit::IndexDeletes]);
            self.start_manifest();
            self.sorted.is_active = true;
            self.count_tombstones();
            let appended = |range: &RangeState| (range.number, range.progress.appended);
            self.sorted.activated = self.ranges.iter().map(appended).collect();
        }
        let Self { sorted, ranges, overlay, .. } = self;
        // Deletes that were appended before have none when they are committed.
        let is_committed = |&mut (number, version): &mut (RangeNumber, Version)| {
            ranges.iter().all(|range| range.number != number || range.progress.committed >= version)
        };
        if !sorted.activated.is_empty() {
            sorted.activated.retain_mut(|activated| !is_committed(activated));
            let has_deletes = (0..ranges.len()).any(|at| overlay.unconfirmed_deletes(at) > 0);
            if has_deletes && sorted.activated.is_empty() {
                sorted.activated.push((RangeNumber::default(), Version::ZERO));
            }
        }
        sorted.activated.is_empty()
    }

    /// Counts the tombstones so far as puts: newer records hide them, and may be sorted and dropped before them.
    fn count_tombstones(&mut self) {
        let slots: Vec<u32> = self.segments.iter().map(|segment| segment.slot).collect();
        for slot in slots {
            let of_range = |share: &RangeShare| (share.range, share.hides_below > Version::ZERO);
            let shares: Vec<_> = self.segments.expect(slot).shares.iter().map(of_range).collect();
            for (at, _) in shares.into_iter().filter(|(_, hides)| *hides) {
                let (number, open) = (self.ranges[at].number, self.ranges[at].open_facts.lowest);
                let segment = self.segments.expect_mut(slot);
                let facts = segment.facts.numbers.iter().find(|facts| facts.number == number);
                let lowest = facts.map_or(open, |facts| facts.lowest.min(open));
                let sequence = segment.sequence;
                let lowest_put = segment.count_tombstones(at, lowest);
                self.note_lowest_put(at, slot, sequence, lowest_put);
            }
        }
    }

    fn is_search_due(&self) -> bool {
        let now = self.now.mono;
        now >= self.sorted.retry_at && self.sorted.segment_search.is_due(now)
    }

    /// Begins with the oldest segments, once they have enough live records for a run.
    fn begin_sort(&mut self) -> bool {
        self.stats.sort_searches += 1;
        self.sorted.segment_search.begin();
        let bytes_max = self.sort_bytes();
        let mut sortable: Vec<&Segment> = self.segments.iter().filter(|segment| self.is_sortable(segment)).collect();
        if self.has_no_room_for_copies() {
            // Records that are too long for a run are copied. Without room for copies, the other segments are sorted first: that
            // frees space.
            sortable.retain(|segment| segment.longer_than_runs() == 0);
        }
        sortable.sort_unstable_by_key(|segment| segment.sequence);
        let (mut bytes, mut slots) = (0, Vec::new());
        for segment in &sortable {
            if bytes > 0 && bytes + segment.live_bytes() > bytes_max {
                break;
            }
            bytes += segment.live_bytes();
            slots.push(segment.slot);
        }
        // A run for every segment would make many small ones. A full store makes space with them.
        let is_enough = if self.full { !slots.is_empty() } else { slots.len() < sortable.len() || bytes >= bytes_max };
        if !is_enough {
            // Live bytes of sealed segments only become fewer. So only a segment that is not movable yet changes this.
            let is_later = |segment: &&Segment| Self::may_be_sorted(segment) && !self.is_sortable(segment);
            let later_bytes: u64 = self.segments.iter().filter(is_later).map(Segment::live_bytes).sum();
            if later_bytes > 0 && bytes + later_bytes >= bytes_max {
                self.sorted.segment_search.repeat_soon(self.now.mono);
            }
            if self.has_little_space() {
                self.seal_survivors();
            }
            return false;
        }
        let age = self.sorted.runs.first().map_or(1, |newest| newest.age + 1);
        for &slot in &slots {
            let segment = self.segments.expect_mut(slot);
            (segment.pins, segment.is_gathered) = (segment.pins + 1, true);
        }
        slots.reverse();
        let id = self.sorted.next_job();
        self.sorted.job = Some(Box::new(SortJob::of_segments(id, slots, age, self.secret, bytes as usize)));
        self.sorted.was_merge = false;
        true
    }

    /// Seals the survivors' active segment, so that it can be sorted. Sorted segments that hide old records in it stay as
    /// long as it does, and while hardly anything is cleaned it would stay open for ever.
    fn seal_survivors(&mut self) {
        let stream = &self.streams[StreamKind::Survivors];
        let has_records = stream.window.active().is_some_and(|chunk| chunk.end() > FRAMES_OFFSET);
        if has_records {
            // Without the next segment this prepares it, and the search that follows seals. A failure has poisoned the engine,
            // or the next search meets it again.
            let _ = self.begin_in_next(StreamKind::Survivors);
            self.sorted.segment_search.repeat_soon(self.now.mono);
        }
    }

    fn is_sortable(&self, segment: &Segment) -> bool {
        let is_filed = !self.has_retired_part(&segment.shares);
        Self::may_be_sorted(segment) && is_filed && self.is_movable(segment)
    }

    /// Whether the segment has records for a run, now or once it is movable.
    fn may_be_sorted(segment: &Segment) -> bool {
        let is_candidate = segment.sealed && !segment.is_cleaned && !segment.is_sorted;
        is_candidate && segment.live_records() > 0 && segment.has_many_for_runs()
    }

    /// Copies the record of a store with runs, or takes it into the run that is being made, if it is its key's newest.
    ///
    /// # Errors
    /// As [`Engine::append`]: nothing was copied.
    pub(in crate::engine) fn clean_indexed(
        &mut self,
        at: usize,
        (slot, offset): (u32, u32),
        stored: &Stored<'_>,
        goal: CleanGoal,
    ) -> Result<Cleaned, EngineError> {
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
                CleanGoal::Copy => self.clean_unindexed(at, slot, hash, record),
                // The rest of the segment hides all that the record hides.
                CleanGoal::Sort(_) => Ok(Cleaned::Gone),
            };
        }
        let original = ReplacedRecord { pointer, len_bytes: stored.encoded_len as u32 };
        let is_expired = record.expires_at_ms != 0 && self.expired_by(at).0 >= record.expires_at_ms;
        let is_dead = record.kind == RecordKind::Tombstone || (is_expired && entry.is_none());
        let mut copy = RecordRef::put(record.version, record.key, record.value);
        (copy.flags, copy.expires_at_ms) = (record.flags, record.expires_at_ms);
        if is_dead {
            copy = RecordRef::bare(RecordKind::Tombstone, record.version, record.key);
            let ring_key = RingKey::of(&self.secret, record.key);
            let sequence = self.segments.expect(slot).sequence;
            let may_hide = self.sorted.may_have(&ring_key) || self.hides_elsewhere(at, sequence, record.version);
            if goal == CleanGoal::Copy && !may_hide && entry.is_none() {
                self.unindex(at, hash, original);
                return Ok(Cleaned::Gone);
            }
        }
        if let CleanGoal::Sort(id) = goal {
            let run = run_record(&copy, self.ranges[at].number);
            if run.fits() {
                let job = self.sorted.job.as_mut().filter(|job| job.is_gathering(id));
                let is_taken = job.is_some_and(|job| job.take_record(&run));
                return Ok(if is_taken { Cleaned::Gone } else { Cleaned::Stays });
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
        slot: u32,
        hash: KeyHash,
        record: &RecordRef<'_>,
    ) -> Result<Cleaned, EngineError> {
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
            _ => self.copy_tombstone(at, slot, record.version, record.key),
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

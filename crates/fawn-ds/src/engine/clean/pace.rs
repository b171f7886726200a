//! Pace of cleaning: when to clean, which segment, and how many bytes for each byte that clients write.
use super::super::Engine;
use super::super::append::Reserve;
use super::super::drop_rule::{RangeFacts, SegmentFacts, keep_reason};
use super::super::segments::RETRY_MS;
use super::WRITE_BYTES;
use super::victim::{Victim, VictimPurpose};
use crate::format::frame::HEADER_BYTES;
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{FRAMES_OFFSET, RangeNumber};
use crate::log::LogPosition;
use crate::log::segments::{RangeShare, Segment};
use crate::log::stream::NextSegment;
use core::ops::RangeInclusive;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError};
use fawn_types::{MonoMs, TimeMs, Version};
use std::collections::BTreeSet;

/// Segments that a store may have in any case: the active and the next one of each stream.
const SEGMENTS_MIN: u64 = 4;
/// Segments from which a store keeps one ready for cleaning. A smaller store could not spare it.
pub(crate) const CLEANED_SEGMENTS_MIN: u64 = 8;
/// Segments that copies of one segment take at most, with the unused end of each.
const SEGMENTS_OF_COPIES_MAX: u64 = 3;
/// Dead bytes below which cleaning would free nothing: copies take headers of frames.
const FULL_DEAD_BYTES_MIN: u64 = 512;
/// Bytes of a victim for each dead one, as far as the pace is concerned: least and most. A full store does not keep to it.
const BYTES_PER_DEAD: RangeInclusive<u64> = 2..=20;
/// Credit that may be saved up, bytes.
const CREDIT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a victim that one poll cleans at least, if it has credit. With records of 256 B that takes 0.1 ms, for which operations
/// that arrive meanwhile wait.
pub(super) const STEP_BYTES: u64 = 64 << 10;
/// Bytes that a poll may clean of the credit for the time that has passed, or if writes wait for cleaning.
pub(super) const STEP_BYTES_MAX: u64 = 256 << 10;
/// Credit besides that for writes, bytes per ms: an idle store pays off its debt with it.
const BYTES_PER_MS: u64 = 16 << 10;
/// Time after which cleaning that is out of credit continues without any write, ms.
const STEP_MS: u64 = 16;
/// Time between two looks for a segment to file, ms.
const FILING_MS: u64 = 250;
/// Bytes of segments that are read to be sorted for each byte that clients write.
const SORTED_PER_WRITTEN: u64 = 5;
/// Share of the log, one in so many, that tombstones may take before the puts that they hide are cleaned away.
const TOMBSTONES_SHARE_MAX: u64 = 20;
/// Time until the next search for a victim if one has found none, ms: doubled by each further one, up to the longest.
const SEARCH_MS: u64 = 1_000;
pub(super) const SEARCH_MS_MAX: u64 = 10_000;
/// Time between two searches for writes that find no space, ms.
const WRITE_SEARCH_MS: u64 = 10;

const NEVER: TimeMs = TimeMs(u64::MAX);

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time of the next search for a victim because of a change since the last one.
    pub(super) due_at: Option<MonoMs>,
    /// The next write that finds no space makes a search due, and waits for it.
    is_due_for_write: bool,
    /// The last search: its time, record bytes of clients' writes by then, and searches in a row without a change before it.
    searched_at: MonoMs,
    searched_bytes: u64,
    repeats: u32,
    /// Time of the expiry clock at which records will have expired, so that a search is due; `None` before the first poll.
    expires_at: Option<TimeMs>,
    /// The last victim was chosen because its dead puts were replaced earliest.
    was_for_tombstones: bool,
    /// Segments above the target at the last search.
    pub(super) debt: u64,
    /// Lineages were too long at the last search.
    has_old_numbers: bool,
    /// The last victim was chosen for its old numbers.
    was_for_numbers: bool,
    /// Bytes of the last victim for each dead one, rounded up: so many must be cleaned to free one.
    bytes_per_dead: u64,
    /// Bytes of victims that may be cleaned now.
    credit_bytes: u64,
    /// Bytes of victims that the present poll may clean, as far as there is credit.
    step_bytes: u64,
    /// Record bytes of clients' writes for which credit was given, and the time of the last credit.
    paid_bytes: u64,
    paid_at: MonoMs,
}

impl Pace {
    /// Whether there is a next search also without a change: only time may make a segment worthwhile, or readable again.
    const fn repeats_search(&self) -> bool {
        self.debt > 0 || self.has_old_numbers
    }

    /// A segment was sealed or dropped: the next poll searches.
    pub(super) const fn note_change(&mut self) {
        self.due_at = Some(MonoMs(0));
    }

    pub(super) const fn note_retry(&mut self) {
        self.is_due_for_write = true;
    }

    /// A write needs another segment. Each delete may have made a victim, so searches for writes keep a distance.
    pub(super) fn note_write(&mut self) {
        if core::mem::take(&mut self.is_due_for_write) {
            let at = self.searched_at.plus_ms(WRITE_SEARCH_MS);
            self.due_at = Some(self.due_at.map_or(at, |due_at| due_at.min(at)));
        }
    }

    pub(super) const fn has_credit(&self) -> bool {
        self.credit_bytes > 0
    }

    pub(super) const fn has_step(&self) -> bool {
        self.step_bytes > 0
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
        self.step_bytes = self.step_bytes.saturating_sub(bytes);
    }
}

/// Space for copies: the rest of the active segment, and whole segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurvivorsRoom {
    active_bytes: u64,
    pub(super) segments: u64,
}

impl SurvivorsRoom {
    /// Whether copies of this length in all fit. At the end of each segment but the last, nearly a whole record may be
    /// left unused.
    fn fits(self, bytes: u64, longest_bytes: u64, segment_bytes: u64) -> bool {
        let whole_bytes = segment_bytes - u64::from(FRAMES_OFFSET);
        let room = match self.segments.min(SEGMENTS_OF_COPIES_MAX).checked_sub(1) {
            None => self.active_bytes,
            Some(others) => {
                let active_bytes = self.active_bytes.saturating_sub(longest_bytes);
                active_bytes + others * (whole_bytes - longest_bytes) + whole_bytes
            }
        };
        bytes <= room
    }
}

/// A victim's merit: the bytes that are freed for each byte copied, times a power of the log's length since its last records
/// died. A segment whose records still die is cheaper later.
///
/// Of seven such formulas, simulated, this one writes the least, or within 1 % of that: at 70 % live 2.09 × what clients write
/// for uniform keys, 1.88 × for Zipf 0.99, and 1.59 × if a tenth of the keys gets nine of ten writes; at 84 % live 4.40, 3.20 and
/// 2.85. Dead bytes alone: 2.09, 2.32 and 2.54, or 4.35, 4.03 and 4.62; with the segment's age as in
/// log-structured file systems: 2.09, 1.97 and 1.59, or 4.36, 3.36 and 3.10 (`cargo run --release -p fawn-ds --example victim_choice`).
fn merit(segment: &Segment, lengths: VictimLengths, log_end: LogPosition, segment_bytes: u32) -> u64 {
    let VictimLengths { kept_bytes, dead_bytes } = lengths;
    // In a segment that was begun after `deaths_at`, nothing has died.
    let begin = LogPosition::new(segment.sequence, 0, segment_bytes);
    let quiet_bytes = log_end.0.saturating_sub(segment.deaths_at.max(begin).0) + 1;
    let (half, quarter) = (quiet_bytes.isqrt(), quiet_bytes.isqrt().isqrt());
    // Scaled by 2¹⁰, so that integers keep the order.
    (dead_bytes * 1024 / (kept_bytes + 1)).saturating_mul(half * quarter)
}

/// Bytes of a segment that cleaning would copy, and bytes that it would free.
#[derive(Clone, Copy)]
struct VictimLengths {
    kept_bytes: u64,
    dead_bytes: u64,
}

impl<D: Device> Engine<D> {
    /// Gives credit for what clients have written since the last poll, more the more segments are above the target. With one above,
    /// cleaning frees as much as is written. Sets how much of the credit this poll may spend.
    pub(super) fn earn_credit(&mut self) {
        let pace = &mut self.cleaner.pace;
        let written = self.stats.record_bytes - pace.paid_bytes;
        let passed_ms = self.now.mono.ms_since(pace.paid_at);
        (pace.paid_bytes, pace.paid_at) = (self.stats.record_bytes, self.now.mono);
        let bytes_per_dead = pace.bytes_per_dead.clamp(*BYTES_PER_DEAD.start(), *BYTES_PER_DEAD.end());
        let of_debt = written * bytes_per_dead * (pace.debt + 1) / 2;
        // Sorting must be faster than what makes it necessary.
        let of_sort = if self.sorted.is_gathering() { written * SORTED_PER_WRITTEN } else { 0 };
        let may_hurry = self.full || self.sorted.slows_puts();
        let (of_writes, of_time) = (of_debt.max(of_sort), passed_ms * BYTES_PER_MS);
        let earned = if may_hurry { CREDIT_BYTES_MAX } else { of_writes + of_time };
        // More than is earned: otherwise the credit that gathers while a chunk is read would never be spent.
        let of_time = if may_hurry { STEP_BYTES_MAX } else { of_time.min(STEP_BYTES_MAX) };
        pace.step_bytes = (2 * of_writes).max(of_time).max(STEP_BYTES);
        pace.credit_bytes = (pace.credit_bytes + earned).min(CREDIT_BYTES_MAX);
    }

    /// Time by which a poll continues the cleaning although nothing has happened. `None`: an event brings it about.
    pub(in crate::engine) fn clean_at(&self) -> Option<MonoMs> {
        let cleaner = &self.cleaner;
        if self.poisoned.is_some() || self.options.read_only || cleaner.is_stopped {
            return None;
        }
        let pace = &cleaner.pace;
        if self.has_cleaning_step() {
            return Some(self.now.mono);
        }
        if let Some(victim) = &cleaner.victim {
            // Otherwise a read is in flight that may still be waited for, or copies are not flushed or durable yet.
            let is_out_of_credit = !victim.is_reading() && !pace.has_credit();
            let credit = is_out_of_credit.then(|| pace.paid_at.plus_ms(STEP_MS));
            return [credit, victim.room_at(), self.leave_read_at(victim)].into_iter().flatten().min();
        }
        if self.sorted.is_gathering() {
            // The next segment is chosen by the next poll.
            return Some(self.now.mono);
        }
        let due = pace.due_at.map(|at| at.max(self.now.mono));
        let filing = self.has_retired().then(|| pace.paid_at.plus_ms(FILING_MS));
        let search = pace.repeats_search().then(|| self.search_at());
        let expires_at = pace.expires_at.filter(|&at| at != NEVER);
        let expiry = expires_at.map(|at| self.now.mono.plus_ms(at.0.saturating_sub(self.clock.get().0)));
        [due, filing, search, expiry].into_iter().flatten().min()
    }

    /// Whether the next poll continues the cleaning at once.
    pub(in crate::engine) fn has_cleaning_step(&self) -> bool {
        let cleaner = &self.cleaner;
        let is_active = self.poisoned.is_none() && !self.options.read_only && !cleaner.is_stopped;
        is_active && cleaner.victim.as_ref().is_some_and(Victim::has_next_step)
    }

    /// Whether another result of the search for a victim is likely: at once, or after the commit of what was written.
    fn has_changed_since_search(&self) -> bool {
        let pace = &self.cleaner.pace;
        pace.due_at.is_some() || pace.searched_bytes != self.stats.record_bytes
    }

    /// Time of the next search for a victim, unless one is due before. Without any change the intervals grow: only time may
    /// make a segment worthwhile, and a search visits all of them.
    fn search_at(&self) -> MonoMs {
        let pace = &self.cleaner.pace;
        let first_ms = if self.full { RETRY_MS } else { SEARCH_MS };
        let doublings = if self.has_changed_since_search() { 0 } else { pace.repeats.min(16) };
        pace.searched_at.plus_ms((first_ms << doublings).min(SEARCH_MS_MAX))
    }

    /// Begins with the most worthwhile segment if the store has more segments than it should.
    pub(super) fn choose_victim(&mut self) -> bool {
        let now = self.now.mono;
        let (has_changed, is_time) = (self.has_changed_since_search(), now >= self.search_at());
        // Records may have expired while the store was closed.
        let expires_at = self.cleaner.pace.expires_at.unwrap_or_else(|| self.next_expiry(|_| TimeMs(0)));
        self.cleaner.pace.expires_at = Some(expires_at);
        let pace = &mut self.cleaner.pace;
        let has_expired = self.clock.get() >= expires_at;
        let is_due = has_expired || pace.due_at.is_some_and(|at| now >= at);
        if !(is_due || pace.repeats_search() && is_time) {
            return false;
        }
        pace.repeats = if has_changed { 0 } else { pace.repeats + 1 };
        (pace.due_at, pace.is_due_for_write) = (None, false);
        (pace.searched_at, pace.searched_bytes) = (now, self.stats.record_bytes);
        let debt = self.space_debt();
        self.cleaner.pace.debt = debt;
        // The time of a chain may be behind the clock: no search follows at once.
        let soon = TimeMs(self.clock.get().0.saturating_add(SEARCH_MS_MAX));
        let next = self.next_expiry(|range| self.expired_by(range)).max(soon);
        self.cleaner.pace.expires_at = Some(next);
        let room = self.survivors_room();
        // In turns with victims that make space: one with old numbers may be live whole.
        let is_next = !core::mem::take(&mut self.cleaner.pace.was_for_numbers) || debt == 0;
        let is_begun = is_next && self.clean_old_numbers(room);
        self.cleaner.pace.has_old_numbers = self.has_long_lineages();
        if is_begun {
            return true;
        }
        if debt == 0 {
            return false;
        }
        debug_assert!(self.knows_dead_puts(), "a tombstone may go before a put that it hides");
        let Some(slot) = self.best_victim(room) else {
            self.seal_dead_survivors();
            return !is_next && self.clean_old_numbers(room);
        };
        let segment = self.segments.expect(slot);
        let dead_bytes = segment.dead_bytes(self.kept_tombstone_bytes(segment)) + self.expired_bytes(segment);
        // One that is chosen for its age may have hardly a dead byte.
        if !self.cleaner.pace.was_for_tombstones {
            self.cleaner.pace.bytes_per_dead = u64::from(segment.end).div_ceil(dead_bytes.max(1));
        }
        self.begin_cleaning(slot);
        true
    }

    /// Begins to clean the segment with the oldest number of lineages that are too long, if there is one.
    fn clean_old_numbers(&mut self, room: SurvivorsRoom) -> bool {
        let Some(slot) = self.oldest_victim(room) else { return false };
        self.cleaner.pace.was_for_numbers = true;
        self.begin_cleaning(slot);
        true
    }

    fn begin_cleaning(&mut self, slot: u32) {
        let segment = self.segments.expect_mut(slot);
        segment.pins += 1;
        let victim = Victim::new(slot, segment.end, VictimPurpose::Clean);
        self.cleaner.begin(victim, self.now.mono);
    }

    /// The segment with a record of the oldest number that should be in no lineage any more. Copies get present numbers.
    fn oldest_victim(&mut self, room: SurvivorsRoom) -> Option<u32> {
        let old = self.old_numbers();
        // Copies of segments that are live whole make no space, and take that which cleaning needs to make some.
        if old.is_empty() || self.full {
            return None;
        }
        let oldest = |segment: &Segment| {
            let mut numbers = segment.facts.numbers.iter().map(|facts| facts.number);
            Some((numbers.find(|number| old.contains(number))?, segment.slot))
        };
        let candidates = self.segments.iter().filter_map(oldest);
        let victim = candidates.filter(|&(_, slot)| self.is_copyable(self.segments.expect(slot), room)).min();
        if victim.is_none() {
            self.seal_with_numbers(&old);
        }
        victim.map(|(_, slot)| slot)
    }

    /// Seals active segments with records of these numbers, once they have successors. Otherwise these would stay as long as hardly
    /// anything is written.
    fn seal_with_numbers(&mut self, old: &BTreeSet<RangeNumber>) {
        self.measure_device();
        let is_nearly_full = self.taken_segments() + self.kept_segments() + 1 >= self.capacity_segments();
        for kind in StreamKind::ALL {
            let active = self.streams[kind].window.active().map(|chunk| self.segments.expect(chunk.slot));
            if active.is_none_or(|active| active.facts.numbers.iter().all(|facts| !old.contains(&facts.number))) {
                continue;
            }
            // Later searches try again. An error has poisoned the engine.
            let _ = match self.streams[kind].next {
                // A refusal would hold writes up that the segment still has room for.
                NextSegment::None if is_nearly_full => Ok(()),
                NextSegment::None => self.prepare(kind, Reserve::Puts),
                NextSegment::Ready(_) => self.switch_segment(kind, Reserve::Puts),
                NextSegment::Header(_) | NextSegment::Listing(..) => Ok(()),
            };
        }
    }

    /// Seals the survivors' active segment if it is nearly full, nothing in it is needed, and no segment is left: it would stay for
    /// ever, with nothing cleaned.
    fn seal_dead_survivors(&mut self) {
        let stream = &self.streams[StreamKind::Survivors];
        let Some(active) = stream.window.active().map(|chunk| self.segments.expect(chunk.slot)) else { return };
        let has_space = self.survivors_room().active_bytes > u64::from(self.options.segment_bytes) / 8;
        let has_use = |share: &RangeShare| share.live_records > 0 || self.range_facts(active, share).hides_puts;
        if has_space || !self.has_no_room_for_copies() || active.shares.iter().any(has_use) {
            return;
        }
        if stream.flush.is_written() {
            self.seal_written(StreamKind::Survivors);
        } else {
            self.write_survivors();
        }
    }

    /// The segment with the highest merit; but every other one, while tombstones take much space, that whose dead puts were
    /// replaced earliest: once these are gone, the tombstones are.
    fn best_victim(&mut self, room: SurvivorsRoom) -> Option<u32> {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // A full store cleans for little: otherwise a little that is dead in every segment would never make room.
        let dead_bytes_min = if self.full { segment_bytes / 1000 + FULL_DEAD_BYTES_MIN } else { segment_bytes / 20 };
        if !core::mem::take(&mut self.cleaner.pace.was_for_tombstones) && self.tombstones_take_much() {
            self.cleaner.pace.was_for_tombstones = true;
            // Sorted segments hide tombstones, too.
            let of_share =
                if self.sorted.is_active() { RangeShare::hidden_from_sorted } else { RangeShare::hidden_from };
            let hidden = |segment: &Segment| segment.shares.iter().map(of_share).min();
            let candidates = self.segments.iter().filter(|segment| self.is_candidate(segment, 1, room));
            let earliest = candidates.filter_map(|segment| Some((hidden(segment)?, segment.slot))).min();
            if let Some((lowest, slot)) = earliest
                && lowest < Version::from_u64(u64::MAX)
            {
                return Some(slot);
            }
        }
        let end = self.appended_end();
        let candidates = self.segments.iter().filter(|segment| self.is_candidate(segment, dead_bytes_min, room));
        let best = candidates
            .max_by_key(|segment| merit(segment, self.victim_lengths(segment), end, self.options.segment_bytes));
        best.map(|segment| segment.slot)
    }

    fn tombstones_take_much(&self) -> bool {
        let (mut tombstone_bytes, mut bytes) = (0, 0);
        // Sorted segments are sets of tombstones. With space left they wait until the records that they hide are sorted, too.
        // But a segment with many records that are too long for a run is never sorted.
        let counts_sorted = self.has_little_space();
        for segment in self.segments.iter() {
            let is_counted = segment.is_sorted && counts_sorted;
            tombstone_bytes += if is_counted { u64::from(segment.end) } else { segment.hiding_bytes() };
            bytes += u64::from(segment.end);
        }
        tombstone_bytes * TOMBSTONES_SHARE_MAX > bytes
    }

    /// Tombstones of the segment that cleaning may have to copy, bytes.
    pub(in crate::engine) fn kept_tombstone_bytes(&self, segment: &Segment) -> u64 {
        let is_hiding = |share: &RangeShare| self.hides_elsewhere(share.range, segment.sequence, share.hides_below);
        if segment.shares.iter().any(is_hiding) { segment.tombstone_bytes } else { 0 }
    }

    fn victim_lengths(&self, segment: &Segment) -> VictimLengths {
        let (tombstone_bytes, expired_bytes) = (self.kept_tombstone_bytes(segment), self.expired_bytes(segment));
        VictimLengths {
            kept_bytes: segment.live_bytes().saturating_sub(expired_bytes) + tombstone_bytes,
            dead_bytes: segment.dead_bytes(tombstone_bytes) + expired_bytes,
        }
    }

    /// Bytes of the segment's live records that cleaning would find expired, estimated.
    fn expired_bytes(&self, segment: &Segment) -> u64 {
        let expired_by = segment.shares.iter().map(|share| self.expired_by(share.range)).min();
        expired_by.map_or(0, |expired_by| segment.expired_bytes(expired_by))
    }

    /// Time when the first records of a segment will have expired that have not by the time of their range.
    fn next_expiry(&self, time_of: impl Fn(usize) -> TimeMs) -> TimeMs {
        let ends = self.segments.iter().filter_map(|segment| {
            let expired_by = segment.shares.iter().map(|share| time_of(share.range)).min()?;
            segment.expiries.next_end(expired_by, segment.facts.latest_expiry_ms)
        });
        ends.min().unwrap_or(NEVER)
    }

    /// Segments above the target: the space that live records may take, and what leaves a reserve of the capacity.
    fn space_debt(&self) -> u64 {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // Expired records are no reason to keep space.
        let live_bytes: u64 =
            self.segments.iter().map(|segment| segment.live_bytes() - self.expired_bytes(segment)).sum();
        let allowed_bytes = live_bytes.saturating_mul(self.options.space_amplification_max_percent) / 100;
        let of_runs = self.sorted.file_bytes().div_ceil(segment_bytes);
        let by_live = allowed_bytes / segment_bytes + SEGMENTS_MIN + of_runs;
        let capacity = self.capacity_segments();
        // Cleaning is due before the last segment is taken, so that writes seldom wait for it.
        let free = (capacity / 64).clamp(1, 8);
        let by_capacity = capacity.saturating_sub(self.reserved_segments() + free);
        // Segments that only wait for a sync, or for their unlink, need no cleaning.
        let waiting = self.drops.unsynced() as u64 + self.refused_segments();
        let taken = self.taken_segments().saturating_sub(waiting);
        taken.saturating_sub(by_live.min(by_capacity))
    }

    /// Space that the survivors' stream may take.
    pub(super) fn survivors_room(&self) -> SurvivorsRoom {
        let segment_bytes = self.options.segment_bytes;
        let stream = &self.streams[StreamKind::Survivors];
        let active = stream.window.active().map_or(0, |chunk| segment_bytes - chunk.end());
        let left = self.capacity_segments().saturating_sub(self.taken_segments());
        let prepared = u64::from(!matches!(stream.next, NextSegment::None));
        SurvivorsRoom { active_bytes: u64::from(active), segments: left + prepared }
    }

    /// Whether the survivors' stream gets no further segment for now.
    pub(in crate::engine) fn has_no_room_for_copies(&self) -> bool {
        self.full && self.survivors_room().segments == 0
    }

    /// Whether the survivors' space is too small for a copy of this length. A copy may also fail without memory in the write
    /// buffer, which passes.
    pub(super) fn has_no_room_for_copy(&self, len: usize) -> bool {
        let has_frame = self.streams[StreamKind::Survivors].flush.open.is_some();
        let need = len + if has_frame { 0 } else { HEADER_BYTES };
        self.has_no_room_for_copies() && self.survivors_room().active_bytes < need as u64
    }

    fn with_frames(&self, record_bytes: u64) -> u64 {
        // A frame ends with a write, and with a chunk of the window.
        let frame_bytes = (self.options.chunk_bytes() / 2).min(WRITE_BYTES as usize);
        in_frames(record_bytes, frame_bytes as u64, self.options.pad_frames)
    }

    /// Whether nothing but live records and tombstones keeps the segment for long, enough of it is dead, and what
    /// cleaning copies of it fits.
    fn is_candidate(&self, segment: &Segment, dead_bytes_min: u64, room: SurvivorsRoom) -> bool {
        let tombstone_bytes = self.kept_tombstone_bytes(segment);
        let is_worthwhile = segment.dead_bytes(tombstone_bytes) + self.expired_bytes(segment) >= dead_bytes_min;
        is_worthwhile && !self.is_left_to_sort(segment) && self.is_copyable(segment, room)
    }

    /// Whether the segment may be cleaned now, and what cleaning copies of it fits.
    fn is_copyable(&self, segment: &Segment, room: SurvivorsRoom) -> bool {
        if !segment.sealed || segment.is_cleaned || self.now.mono < segment.clean_again_at {
            return false;
        }
        let tombstone_bytes = self.kept_tombstone_bytes(segment);
        // A victim that is copied only in part frees nothing, and leaves no space for the next one.
        let segment_bytes = u64::from(self.options.segment_bytes);
        let longest_bytes = segment.lengths.longest_bytes_max().map_or(segment_bytes / 4, u64::from);
        let copied_bytes = self.with_frames(segment.live_bytes() + tombstone_bytes);
        room.fits(copied_bytes, longest_bytes, segment_bytes) && self.is_movable(segment)
    }

    /// Whether the segment is sorted soon, with more than a quarter of it live. Copies of it would be sorted later, and their old
    /// versions in a young segment would keep the sorted segments that hide them.
    fn is_left_to_sort(&self, segment: &Segment) -> bool {
        let is_mostly_dead = segment.live_bytes() * 4 < u64::from(segment.end);
        self.sorts_soon() && !segment.is_sorted && segment.has_many_for_runs() && !is_mostly_dead
    }

    /// Whether nothing but live records and tombstones keeps the segment for long.
    pub(in crate::engine) fn is_movable(&self, segment: &Segment) -> bool {
        // Deferred records stay where they are. They are confirmed soon, and most of their old versions are elsewhere.
        if !segment.sealed || segment.is_cleaned || segment.is_gathered || self.overlay.may_defer(segment.sequence) {
            return false;
        }
        // A read of it failed or hangs, which may pass.
        if segment.failures.is_barred(self.now.mono) {
            return false;
        }
        // The end of a segment that was sealed just now may not be in its file yet.
        if self.cacheable_to(segment.slot) < segment.end {
            return false;
        }
        // Survivors are read before a clear, which would clear those behind it too. During a transfer this is a guard: copies
        // lie under the transfer's number, and an opening compares their versions. A sorted record would be hidden by an older
        // one that the transfer brings, but it brings none.
        let is_changing = |range: usize| self.has_unlisted_clear(range) || self.ranges[range].copy.is_some();
        // A guard as well: records of a retired range are all older than a clear of its heirs, which have nothing of it
        // during a transfer.
        let of_retired = |range: usize| self.ranges[range].id.is_none() && self.heirs(range).any(is_changing);
        if segment.shares.iter().any(|share| is_changing(share.range) || of_retired(share.range)) {
            return false;
        }
        // Its cleaning would move entries of an index that is being copied to others.
        if self.checkpoints.is_copying() && self.has_retired_part(&segment.shares) {
            return false;
        }
        // Reads in flight, and deaths that a crash could still undo, only delay the drop.
        let facts = SegmentFacts { pins: 0, died_at: PerStream::default(), ..self.segment_facts(segment) };
        let ranges = segment.shares.iter().map(|share| {
            let facts = self.range_facts(segment, share);
            (share.range, RangeFacts { live_records: 0, hides_puts: false, died_by: Version::ZERO, ..facts })
        });
        // Cleaned again at once, it would be chosen for ever, and no other: an old version may stay unreadable.
        keep_reason(&facts, ranges).is_none() && !(segment.had_unconfirmed && self.has_unconfirmed(segment.slot))
    }

    /// Whether a committed record of the segment waits for its verification to enter the index.
    fn has_unconfirmed(&self, slot: u32) -> bool {
        let mut unconfirmed = self.overlay.all_unconfirmed();
        unconfirmed.any(|written| self.segments.slot_and_offset(written.pointer).0 == slot)
    }

    /// Segments that the capacity allows, and the device as it was last measured.
    pub(crate) fn capacity_segments(&self) -> u64 {
        let capacity_bytes = self.options.capacity_bytes.unwrap_or(u64::MAX);
        (capacity_bytes / u64::from(self.options.segment_bytes)).min(self.device_segments)
    }

    /// Whether hardly more space is left than the reserve for cleaning.
    pub(crate) fn is_nearly_full(&mut self) -> bool {
        let free_bytes = self.device.free_bytes().unwrap_or(u64::MAX);
        let (taken, free) = (self.taken_segments(), self.segments_in(free_bytes));
        let capacity = self.capacity_segments().min(taken.saturating_add(free));
        let left = capacity.saturating_sub(taken);
        left < (capacity / 10).max(self.reserved_segments() + SEGMENTS_MIN)
    }

    /// Measures the device: the store's segments and those that it has space for. The reserve for cleaning is kept on a
    /// device that others fill as well.
    pub(crate) fn measure_device(&mut self) {
        // Without an answer, the last one holds.
        if let Ok(free_bytes) = self.device.free_bytes() {
            let of_files = self.segments_and(self.sorted.file_bytes() + self.sorted.job_file_bytes());
            self.device_segments = of_files + self.segments_in(free_bytes);
        }
    }

    /// The segments for which a device has space that has so much free: the manifest gets its own first.
    pub(in crate::engine) fn segments_in(&self, free_bytes: u64) -> u64 {
        free_bytes.saturating_sub(self.manifest.growth_bytes()) / u64::from(self.options.segment_bytes)
    }

    /// Segments with a file, and as many as the runs are long, those that are being written included. Prepared segments and files
    /// whose unlink was refused count, too.
    pub(crate) fn taken_segments(&self) -> u64 {
        self.segments_and(self.sorted.file_bytes() + self.sorted.reserved_bytes())
    }

    fn refused_segments(&self) -> u64 {
        self.drops.refused_bytes().div_ceil(u64::from(self.options.segment_bytes))
    }

    fn segments_and(&self, run_bytes: u64) -> u64 {
        let of_runs = run_bytes.div_ceil(u64::from(self.options.segment_bytes));
        let prepared = self.streams.iter().filter(|stream| !matches!(stream.next, NextSegment::None)).count();
        (self.segments.len() + prepared) as u64 + of_runs + self.refused_segments()
    }

    /// Segments that only survivors and runs may use: cleaning fills one, and frees more than one with it. A sort takes one or
    /// two, and leaves those of a merge.
    pub(crate) fn reserved_segments(&self) -> u64 {
        let (capacity, of_merge) = (self.capacity_segments(), self.merge_segments());
        let of_runs = if of_merge > 0 { of_merge + 2 } else { 0 };
        // The smallest stores have none to spare.
        let share = if capacity < SEGMENTS_MIN { 0 } else { (capacity + 2) / 4 };
        3.max(of_runs).min(share)
    }

    /// Segments that puts leave free for survivors and runs. A store so small that it keeps none ready for survivors counts their
    /// next one, or one that is half empty, as one of those, but not as the only one.
    pub(crate) fn kept_segments(&self) -> u64 {
        let (survivors, segment_bytes) = (&self.streams[StreamKind::Survivors], self.options.segment_bytes);
        let is_small = (self.segments.len() as u64) < CLEANED_SEGMENTS_MIN;
        let has_next = !matches!(survivors.next, NextSegment::None);
        // Runs need whole segments.
        let has_half = || {
            !self.sorted.is_active() && survivors.window.active().is_some_and(|chunk| chunk.end() <= segment_bytes / 2)
        };
        let reserved = self.reserved_segments();
        if is_small && (has_next || has_half()) { reserved.saturating_sub(1).max(reserved.min(1)) } else { reserved }
    }

    /// Whether the survivors' next segment has to be prepared: cleaning needs it before it can free any.
    pub(crate) fn needs_survivors_next(&self) -> bool {
        let survivors = &self.streams[StreamKind::Survivors];
        let is_large = self.segments.len() as u64 >= CLEANED_SEGMENTS_MIN;
        is_large && matches!(survivors.next, NextSegment::None)
    }

    /// Whether cleaning can continue without one more segment: the survivors have their next one, into which any victim fits, or
    /// the foreground's active segment, once it is sealed, can be cleaned into their active one.
    pub(crate) fn can_clean_without_another(&self) -> bool {
        if self.streams[StreamKind::Survivors].next.is_ready() {
            return true;
        }
        let Some(active) = self.streams[StreamKind::Foreground].window.active() else { return false };
        let segment = self.segments.expect(active.slot);
        let copied_bytes = self.with_frames(segment.live_bytes() + segment.tombstone_bytes);
        let is_idle = self.cleaner.victim.is_none() && self.cleaner.moves.is_empty();
        is_idle && copied_bytes <= self.survivors_room().active_bytes
    }
}

/// At least the length of copies in frames, each but the last with `frame_bytes` of records at least.
const fn in_frames(record_bytes: u64, frame_bytes: u64, is_padded: bool) -> u64 {
    let padding_bytes = if is_padded { PAGE_BYTES } else { 0 };
    // The open frame may have records already, and a full segment ends one early.
    let frames = record_bytes / frame_bytes + 3;
    record_bytes + frames * (HEADER_BYTES + padding_bytes) as u64
}

/// Refusal of space that only survivors and runs may use.
pub(crate) fn only_reserve_left() -> DeviceError {
    DeviceError::Full { dir: "this store, except for what cleaning needs".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{HashSecret, Now};

    /// The poll that ends the filing of a segment does not search, although a search may have become due meanwhile.
    #[test]
    fn a_search_that_is_due_keeps_its_timer() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        engine.poll(Now::at(2_000), &mut Vec::new());
        assert_eq!(engine.clean_at(), None, "nothing to clean");
        (engine.cleaner.pace.debt, engine.cleaner.pace.due_at) = (1, None);
        engine.now = engine.now.plus_ms(SEARCH_MS_MAX);
        assert!(engine.clean_at().is_some_and(|at| at <= engine.now.mono));
        engine.poll(engine.now, &mut Vec::new());
        assert!(engine.clean_at().is_none_or(|at| at > engine.now.mono), "the search was made");
    }

    /// With one segment above the target, cleaning frees as much as clients write, however much of the victims is live.
    #[test]
    fn the_pace_follows_what_is_dead_of_a_victim() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        let mut earned = |debt, bytes_per_dead| {
            (engine.cleaner.pace.debt, engine.cleaner.pace.bytes_per_dead) = (debt, bytes_per_dead);
            engine.stats.record_bytes += 1_000;
            engine.earn_credit();
            core::mem::take(&mut engine.cleaner.pace.credit_bytes)
        };
        // An opening has given credit.
        earned(0, 0);
        assert_eq!([earned(1, 3), earned(1, 10)], [3_000, 10_000], "as much as is written");
        assert_eq!([earned(3, 3), earned(3, 10)], [6_000, 20_000], "twice as much");
        assert_eq!([earned(1, 0), earned(1, 1)], [2_000, 2_000], "before the first victim, and with nothing live");
        assert_eq!(earned(1, 10_000), 20_000, "hardly anything is dead");
    }

    /// A poll may spend more than writes have earned, and up to 256 KiB of what time has earned.
    #[test]
    fn a_step_is_longer_than_what_was_earned_since_the_last_one() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        (engine.cleaner.pace.debt, engine.cleaner.pace.bytes_per_dead) = (1, 10);
        let mut step_of = |written, passed_ms, is_full| {
            engine.stats.record_bytes += written;
            (engine.now, engine.full) = (engine.now.plus_ms(passed_ms), is_full);
            engine.earn_credit();
            engine.cleaner.pace.step_bytes
        };
        step_of(0, 0, false);
        assert_eq!([step_of(0, 0, false), step_of(1_000, 1, false)], [STEP_BYTES; 2]);
        assert_eq!(step_of(20_000, 0, false), 400_000, "twice what the writes have earned");
        assert_eq!([step_of(0, 4, false), step_of(0, 8, false)], [64 << 10, 128 << 10], "ticks of an embedded store");
        assert_eq!([step_of(0, 1_000, false), step_of(0, 0, true)], [STEP_BYTES_MAX; 2]);
    }

    /// Each delete of a full store may make a segment worth cleaning, and each search visits all segments.
    #[test]
    fn searches_for_writes_keep_a_distance() {
        let mut pace = Pace { searched_at: MonoMs(1_000), ..Pace::default() };
        pace.note_write();
        assert_eq!(pace.due_at, None, "nothing has changed");
        pace.note_retry();
        pace.note_write();
        assert_eq!(pace.due_at, Some(MonoMs(1_010)));
        pace.note_change();
        pace.note_retry();
        pace.note_write();
        assert_eq!(pace.due_at, Some(MonoMs(0)), "a segment was sealed or dropped");
    }

    #[test]
    fn copies_fit_if_each_segment_but_the_last_may_lack_a_record() {
        let (segment_bytes, whole_bytes) = (64 << 10, 60 << 10);
        let fits =
            |active_bytes, segments, bytes| SurvivorsRoom { active_bytes, segments }.fits(bytes, 4_000, segment_bytes);
        assert!(fits(5_000, 0, 5_000) && !fits(5_000, 0, 5_001), "no end of a segment is passed");
        assert!(fits(5_000, 1, whole_bytes + 1_000) && !fits(5_000, 1, whole_bytes + 1_001));
        assert!(fits(3_000, 1, whole_bytes) && !fits(3_000, 1, whole_bytes + 1), "no record may fit into the first");
        assert!(fits(0, 2, 2 * whole_bytes - 4_000) && !fits(0, 2, 2 * whole_bytes - 3_999));
    }

    #[test]
    fn frames_of_copies_take_what_is_reserved_at_most() {
        for (record_bytes, is_padded) in
            [0, 1, 4095, 16 << 10, 60 << 10].into_iter().flat_map(|n| [(n, false), (n, true)])
        {
            let (mut left, mut len, frame_bytes) = (record_bytes, 0, 4096);
            // The first frame is cut short by what was open, the second one by the end of a segment.
            for most in [1, 1].into_iter().chain(core::iter::repeat(frame_bytes)) {
                let records = left.min(most);
                len += HEADER_BYTES as u64 + records;
                // Padding begins wherever a page does.
                len += if is_padded { PAGE_BYTES as u64 - 1 } else { 0 };
                left -= records;
                if left == 0 {
                    break;
                }
            }
            assert!(len <= in_frames(record_bytes, frame_bytes, is_padded), "{record_bytes} B, {is_padded}: {len}");
        }
    }
}

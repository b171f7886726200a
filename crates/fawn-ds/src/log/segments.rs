//! The segment table: the files of the log, and per segment the facts that the drop rule needs.
mod invalidated;
#[cfg(test)]
mod tests;

use super::LogPosition;
use super::failures::ReadFailures;
use super::unfinished::{CopiedPart, RefusedCopies};
use crate::format::manifest::slots_max;
use crate::format::manifest::{ManifestEdit, SegmentSeal};
use crate::format::record::{self, RecordKind};
use crate::format::run;
use crate::format::segment::{PerStream, RecordFacts, StreamKind};
use crate::format::{Expiries, RangeNumber, SegmentUuid, UNIT_BYTES};
use crate::index::{Pointer, PointerWidth};
use core::cell::Cell;
use fawn_flash::FileId;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{MonoMs, TimeMs, Version};
use invalidated::InvalidatedRecords;
pub(crate) use invalidated::RolledBackRecords;
use smallvec::SmallVec;

/// Longest first read of a lookup, bytes. A longer record costs a second read, which is counted.
pub(crate) const FIRST_READ_BYTES_MAX: usize = 16 << 10;

/// Deaths over which a segment averages when they were.
const DEATHS_AVERAGED: u64 = 8;

/// One range's part of a segment. A segment has one for each range with a record of its history there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RangeShare {
    pub(crate) range: usize,
    /// Puts, live or not.
    pub(crate) puts: u64,
    pub(crate) live_records: u64,
    pub(crate) live_bytes: u64,
    /// Newest version of its records, without rolled-back ones.
    pub(crate) newest: Version,
    /// Newest version whose commit replaced or removed one of its records.
    pub(crate) died_by: Version,
    /// Lowest version of its puts, whether they are live or not. `u64::MAX` without one.
    pub(crate) lowest_put: Version,
    /// Puts that died since the opening were replaced or removed by records of this version or higher ones.
    pub(crate) lowest_death: Version,
    /// Puts died without a known replacement: it is newer than `lowest_put`.
    pub(crate) has_unknown_deaths: bool,
    /// Copies whose index entries have not moved yet. Records of this version or higher ones may replace them before.
    pub(crate) copies_in_flight: u32,
    pub(crate) lowest_in_flight: Version,
    /// Lowest version of its tombstones without index entries. `u64::MAX` without one. A tombstone hides no other tombstone, but
    /// an opening may take one for newer than a run, so sorted segments hide older ones.
    pub(crate) lowest_tombstone: Version,
    /// Highest version of a tombstone or of a put found expired: they hide older puts in other segments.
    pub(crate) hides_below: Version,
    /// Highest version of a clear, which hides all older records in other segments until the manifest lists it.
    pub(crate) clears: Version,
    /// There is a rollback: it hides records of the foreground before it.
    pub(crate) rolls_back: bool,
    /// The range is retired, and the puts are counted for those that inherit its keys: an opening read the segment after the split or
    /// merge. A checkpoint does not have it: counted twice after the next opening, puts keep more tombstones than they need.
    pub(crate) is_counted_by_heirs: bool,
}

impl RangeShare {
    pub(crate) const fn none(range: usize) -> Self {
        Self {
            range,
            puts: 0,
            live_records: 0,
            live_bytes: 0,
            newest: Version::ZERO,
            died_by: Version::ZERO,
            lowest_put: Version::from_u64(u64::MAX),
            lowest_death: Version::from_u64(u64::MAX),
            has_unknown_deaths: false,
            copies_in_flight: 0,
            lowest_in_flight: Version::from_u64(u64::MAX),
            lowest_tombstone: Version::from_u64(u64::MAX),
            hides_below: Version::ZERO,
            clears: Version::ZERO,
            rolls_back: false,
            is_counted_by_heirs: false,
        }
    }

    /// Tombstones of this version or higher ones may hide a put that is not live. `u64::MAX` if all are live.
    pub(crate) fn hidden_from(&self) -> Version {
        if self.puts <= self.live_records {
            Version::from_u64(u64::MAX)
        } else if self.has_unknown_deaths {
            self.lowest_put
        } else {
            self.lowest_death.min(self.lowest_in_flight)
        }
    }

    /// All puts that are not live now died before the opening.
    pub(crate) const fn end_recovery(&mut self) {
        self.has_unknown_deaths = self.puts > self.live_records;
    }

    /// A put died. Its replacement has this version or a higher one; zero if nothing is known.
    fn enter_death(&mut self, version: Version) {
        if version == Version::ZERO {
            self.has_unknown_deaths = true;
        } else {
            self.lowest_death = self.lowest_death.min(version);
        }
    }

    /// As [`RangeShare::hidden_from`], for the records of a sorted segment.
    pub(crate) fn hidden_from_sorted(&self) -> Version {
        self.hidden_from().min(self.lowest_tombstone)
    }

    /// Counts a record. Returns whether the lowest version of its puts, or of its tombstones, has fallen.
    #[inline(always)]
    pub(crate) fn enter(&mut self, version: Version, kind: RecordKind) -> bool {
        self.newest = self.newest.max(version);
        self.puts += u64::from(kind == RecordKind::Put);
        match kind {
            RecordKind::Put if version < self.lowest_put => {
                self.lowest_put = version;
                return true;
            }
            RecordKind::Put | RecordKind::Result | RecordKind::CommitMark => {}
            RecordKind::Tombstone => {
                self.hides_below = self.hides_below.max(version);
                if version < self.lowest_tombstone {
                    self.lowest_tombstone = version;
                    return true;
                }
            }
            RecordKind::Clear => self.clears = self.clears.max(version),
            RecordKind::Rollback => self.rolls_back = true,
        }
        false
    }
}

/// How a live record died.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// Version of the commit that must be durable before the segment is dropped; zero without one.
    pub(crate) by: Version,
    /// Lowest version that the replacement of the record, or of its copy, may have; zero if nothing is known. A tombstone of the key
    /// is at least as new.
    pub(crate) replaced_from: Version,
}

impl Death {
    const UNKNOWN: Self = Self { by: Version::ZERO, replaced_from: Version::ZERO };
}

/// The facts of an appended record that its segment counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendedRecord {
    pub(crate) version: Version,
    pub(crate) len_bytes: u32,
    /// A put is live until another record replaces it, and so is a tombstone with an index entry: it counts as a put.
    pub(crate) kind: RecordKind,
    pub(crate) is_tombstone: bool,
}

/// Length of records that do not fit a run, whatever the lengths of their headers here and there.
const SURELY_TOO_LONG_BYTES: usize = 1280;
const _: () = assert!(run::record::RECORD_BYTES_MAX + record::PEEK_BYTES + 8 <= SURELY_TOO_LONG_BYTES);

/// Histogram of a segment's record lengths, in steps of 256 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    counts: [u32; Self::STEPS],
    total: u32,
    total_bytes: u64,
    covering_bytes: u32,
}

impl Lengths {
    const STEP_BYTES: usize = 256;
    const STEPS: usize = FIRST_READ_BYTES_MAX / Self::STEP_BYTES;

    fn new() -> Self {
        Self { counts: [0; Self::STEPS], total: 0, total_bytes: 0, covering_bytes: Self::STEP_BYTES as u32 }
    }

    /// Counts a record. The estimate is updated at powers of two and at every 4,096th record.
    pub(crate) fn add(&mut self, len_bytes: usize) {
        let step = (len_bytes.saturating_sub(1) / Self::STEP_BYTES).min(Self::STEPS - 1);
        self.counts[step] += 1;
        self.total += 1;
        self.total_bytes += len_bytes as u64;
        if self.total.is_power_of_two() || self.total.is_multiple_of(4096) {
            self.covering_bytes = self.covering();
        }
    }

    /// Length of all counted records, bytes.
    pub(crate) const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// At least the length of the longest record, bytes; `None` if it is longer than all steps but the last.
    pub(crate) fn longest_bytes_max(&self) -> Option<u32> {
        let step = self.counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        (step + 1 < Self::STEPS).then_some(((step + 1) * Self::STEP_BYTES) as u32)
    }

    /// Records that are longer than this, a multiple of the step.
    fn longer_than(&self, len_bytes: usize) -> u32 {
        self.counts[len_bytes / Self::STEP_BYTES..].iter().sum()
    }

    /// The counted records by step, without empty steps.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(step, &count)| (step as u32, count))
    }

    /// Takes counts that a checkpoint has.
    pub(crate) fn load(&mut self, counts: impl Iterator<Item = (u32, u32)>, total_bytes: u64) {
        self.total_bytes = total_bytes;
        for (step, count) in counts {
            let counted = &mut self.counts[(step as usize).min(Self::STEPS - 1)];
            *counted = counted.saturating_add(count);
            self.total = self.total.saturating_add(count);
        }
        self.covering_bytes = self.covering();
    }

    /// Length that covers 99.9 % of the records counted, bytes.
    fn covering(&self) -> u32 {
        let beyond_max = self.total / 1000;
        let mut beyond = 0;
        for step in (0..Self::STEPS).rev() {
            beyond += self.counts[step];
            if beyond > beyond_max {
                return ((step + 1) * Self::STEP_BYTES) as u32;
            }
        }
        Self::STEP_BYTES as u32
    }

    pub(crate) fn covering_bytes(&self) -> u32 {
        self.covering_bytes
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) stream: StreamKind,
    pub(crate) uuid: SegmentUuid,
    /// The UUID's 64-bit form: the salt of checksums.
    pub(crate) id: u64,
    pub(crate) file: FileId,
    pub(crate) name: String,
    /// End of its last frame, bytes.
    pub(crate) end: u32,
    /// Blocks before this offset were written since the file was created or opened; later ones may be fresh.
    pub(crate) written_to: u32,
    pub(crate) sealed: bool,
    /// The manifest lists it as sealed, and thereby as synced whole.
    pub(crate) listed_sealed: bool,
    /// Reads in flight; they keep the file.
    pub(crate) pins: u32,
    /// Ranges whose newest durable commit mark is in this segment.
    pub(crate) newest_marks: u32,
    pub(crate) shares: SmallVec<[RangeShare; 1]>,
    /// Ends of the streams when a record of this segment last died. The record that replaced, removed or copied it is
    /// before them, and must be synced before a drop.
    pub(crate) died_at: PerStream<LogPosition>,
    /// End of the foreground when clients replaced or removed records of this segment: a moving average of the last ones.
    pub(crate) deaths_at: LogPosition,
    invalidated: InvalidatedRecords,
    /// Tombstones, bytes. With index entries they count as live, too.
    pub(crate) tombstone_bytes: u64,
    /// Cleaning has copied all that is needed, or has failed at a corrupt record: it is not repeated before the next open.
    pub(crate) is_cleaned: bool,
    /// It is being sorted: cleaning leaves it alone.
    pub(crate) is_gathered: bool,
    /// Its records that counted are in a run or were copied, and the manifest says so: all only hide older ones.
    pub(crate) is_sorted: bool,
    /// Filing has failed at a corrupt record, and is tried again later.
    pub(crate) is_filing_failed: bool,
    /// The last cleaning left records that the index did not have yet.
    pub(crate) had_unconfirmed: bool,
    /// Not before: records that the last cleaning left will have expired then.
    pub(crate) clean_again_at: MonoMs,
    /// The last cleaning whose copies had no room.
    pub(crate) refused_copies: Option<RefusedCopies>,
    /// Tombstones that were copied by a cleaning that ended before the end of the segment, or left records in it.
    pub(crate) copied_part: CopiedPart,
    /// Reads for cleaning or sorting that failed.
    pub(crate) failures: ReadFailures,
    pub(crate) lengths: Lengths,
    /// Puts that expire.
    pub(crate) expiries: Expiries,
    /// Copies in it that are too long for a run, of this opening.
    pub(crate) too_long: u32,
    /// Facts of its records, for its seal.
    pub(crate) facts: RecordFacts,
}

impl Segment {
    pub(crate) fn new(
        (slot, sequence): (u32, u64),
        uuid: SegmentUuid,
        stream: StreamKind,
        file: FileId,
        name: String,
    ) -> Self {
        Self {
            slot,
            sequence,
            stream,
            uuid,
            id: uuid.fold(),
            file,
            name,
            end: crate::format::FRAMES_OFFSET,
            written_to: 0,
            sealed: false,
            listed_sealed: false,
            pins: 0,
            newest_marks: 0,
            shares: SmallVec::new(),
            died_at: PerStream::default(),
            deaths_at: LogPosition::default(),
            invalidated: InvalidatedRecords::default(),
            tombstone_bytes: 0,
            is_cleaned: false,
            is_gathered: false,
            is_sorted: false,
            is_filing_failed: false,
            had_unconfirmed: false,
            clean_again_at: MonoMs(0),
            refused_copies: None,
            copied_part: CopiedPart::default(),
            failures: ReadFailures::default(),
            lengths: Lengths::new(),
            expiries: Expiries::default(),
            too_long: 0,
            facts: RecordFacts::default(),
        }
    }

    /// The edit that lists it.
    pub(crate) fn add_edit(&self) -> ManifestEdit {
        let Self { slot, uuid, sequence, stream, .. } = *self;
        ManifestEdit::AddSegment { slot, uuid, sequence, stream }
    }

    /// The edit that lists it as complete, at its present end.
    pub(crate) fn seal_edit(&self) -> ManifestEdit {
        let seal = SegmentSeal { len: self.end, facts: self.facts.clone() };
        ManifestEdit::SealSegment { slot: self.slot, seal }
    }

    /// Whether the manifest does not list it as sealed yet.
    pub(crate) const fn is_to_be_listed(&self) -> bool {
        self.sealed && !self.listed_sealed
    }

    /// The range's part of the segment, if it has records there.
    pub(crate) fn share(&self, range: usize) -> Option<&RangeShare> {
        self.shares.iter().find(|share| share.range == range)
    }

    #[inline]
    fn share_mut(&mut self, range: usize) -> &mut RangeShare {
        let at = self.shares.iter().position(|share| share.range == range).unwrap_or_else(|| {
            self.shares.push(RangeShare::none(range));
            self.shares.len() - 1
        });
        &mut self.shares[at]
    }

    /// Counts a record appended to the segment. Returns whether it is the range's first in this segment, or lowers the lowest
    /// version of the range's puts or tombstones in it.
    // As in `Engine::enter_appended`.
    #[inline(always)]
    pub(crate) fn enter_appended(&mut self, range: usize, record: &AppendedRecord) -> bool {
        let AppendedRecord { version, len_bytes, kind, is_tombstone } = *record;
        self.lengths.add(len_bytes as usize);
        let shares_before = self.shares.len();
        let share = self.share_mut(range);
        let is_lower = share.enter(version, kind);
        if kind == RecordKind::Put {
            share.live_records += 1;
            share.live_bytes += u64::from(len_bytes);
        }
        if is_tombstone {
            self.tombstone_bytes += u64::from(len_bytes);
        }
        is_lower || self.shares.len() > shares_before
    }

    /// Counts a record of any kind, not as live. Returns as [`Segment::enter_appended`].
    pub(crate) fn enter(&mut self, range: usize, version: Version, kind: RecordKind) -> bool {
        let (shares_before, is_sorted) = (self.shares.len(), self.is_sorted);
        let share = self.share_mut(range);
        let is_lower = share.enter(version, kind);
        if is_sorted {
            // Its records are no tombstones of their own: sorted segments keep none of each other.
            share.lowest_tombstone = Version::from_u64(u64::MAX);
        }
        is_lower || self.shares.len() > shares_before
    }

    pub(crate) fn add_live(&mut self, range: usize, bytes: u32) {
        let share = self.share_mut(range);
        share.live_records += 1;
        share.live_bytes += u64::from(bytes);
    }

    /// One of its records was replaced or removed; what did so lies in the foreground before `log_end`. Returns whether
    /// [`RangeShare::hidden_from`] has changed.
    pub(crate) fn remove_live(&mut self, range: usize, bytes: u32, death: Death, log_end: LogPosition) -> bool {
        self.note_death(StreamKind::Foreground, log_end);
        let (average, at) = (self.deaths_at.0, log_end.0);
        self.deaths_at.0 = if average == 0 { at } else { average + at.saturating_sub(average) / DEATHS_AVERAGED };
        self.count_death(range, bytes, death)
    }

    /// A record that one of its own hides, or is hidden by, was replaced by the range's commit of `by`, appended to the foreground before
    /// `log_end`. The record may be counted for another range.
    pub(crate) fn note_replaced(&mut self, range: usize, by: Version, log_end: LogPosition) {
        self.note_death(StreamKind::Foreground, log_end);
        self.note_died_by(range, by);
    }

    /// One of its records was copied to the survivors' stream before `log_end`, and is hidden by records of this version or higher
    /// ones. Returns as [`Segment::remove_live`].
    pub(crate) fn move_live(&mut self, range: usize, bytes: u32, hidden_from: Version, log_end: LogPosition) -> bool {
        self.note_death(StreamKind::Survivors, log_end);
        self.count_death(range, bytes, Death { by: Version::ZERO, replaced_from: hidden_from })
    }

    /// A put was appended as a copy; its index entry has not moved yet, and the record is replaced by `replaced_from` at the earliest.
    /// Returns as [`Segment::remove_live`].
    pub(crate) fn begin_copy(&mut self, range: usize, replaced_from: Version) -> bool {
        let share = self.share_mut(range);
        // It was counted as a put before: until then, all of them may have been live.
        let were_live = share.puts <= share.live_records + 1;
        let before = share.hidden_from();
        share.copies_in_flight += 1;
        share.lowest_in_flight = share.lowest_in_flight.min(replaced_from);
        were_live || share.hidden_from() != before
    }

    /// The index entry of a copy of this length has moved, or was replaced before: then the copy is dead. Returns as
    /// [`Segment::remove_live`].
    pub(crate) fn end_copy(&mut self, range: usize, live_bytes: Option<u32>, replaced_from: Version) -> bool {
        let share = self.share_mut(range);
        let before = share.hidden_from();
        match live_bytes {
            Some(bytes) => {
                share.live_records += 1;
                share.live_bytes += u64::from(bytes);
            }
            None => share.enter_death(replaced_from),
        }
        // A share that was counted again meanwhile has none in flight, and knows of no death.
        share.copies_in_flight = share.copies_in_flight.saturating_sub(1);
        if share.copies_in_flight == 0 {
            share.lowest_in_flight = Version::from_u64(u64::MAX);
        }
        share.hidden_from() != before
    }

    /// The record that one of its own died by is in this stream, before `log_end`.
    pub(crate) fn note_death(&mut self, stream: StreamKind, log_end: LogPosition) {
        self.died_at[stream] = self.died_at[stream].max(log_end);
    }

    fn count_death(&mut self, range: usize, bytes: u32, death: Death) -> bool {
        let Some(share) = self.shares.iter_mut().find(|share| share.range == range) else {
            unreachable!("{}: a record of range {range} died that was never counted", self.name)
        };
        let bytes = u64::from(bytes);
        assert!(share.live_records > 0 && share.live_bytes >= bytes, "{}: more records died than were live", self.name);
        let before = share.hidden_from();
        share.live_records -= 1;
        share.live_bytes -= bytes;
        share.died_by = share.died_by.max(death.by);
        share.enter_death(death.replaced_from);
        share.hidden_from() != before
    }

    /// All its records of the range were removed by the commit of a clear, appended before `log_end`.
    pub(crate) fn clear_range(&mut self, range: usize, by: Version, log_end: LogPosition) {
        self.note_death(StreamKind::Foreground, log_end);
        if let Some(share) = self.shares.iter_mut().find(|share| share.range == range) {
            let died_by = share.died_by.max(by);
            *share = RangeShare { live_records: 0, live_bytes: 0, has_unknown_deaths: true, died_by, ..*share };
        }
    }

    /// The range's records above `last` were rolled back, by a record appended right before `log_end`.
    pub(crate) fn roll_back(
        &mut self,
        (range, number): (usize, RangeNumber),
        last: Version,
        log_end: LogPosition,
        segment_bytes: u32,
    ) {
        let share = self.shares.iter_mut().find(|share| share.range == range && share.newest > last);
        if let Some(share) = share {
            share.newest = last;
            self.invalidate(number, last, log_end, segment_bytes);
        }
    }

    /// The range's records above `last` in the segment were rolled back.
    pub(crate) fn lower_newest(&mut self, range: usize, last: Version) {
        if let Some(share) = self.shares.iter_mut().find(|share| share.range == range) {
            share.newest = share.newest.min(last);
        }
    }

    /// The records under this number above `last` were rolled back by a record right before `log_end`.
    pub(crate) fn invalidate(&mut self, number: RangeNumber, last: Version, log_end: LogPosition, segment_bytes: u32) {
        self.load_invalidated(RolledBackRecords { number, before: log_end, above: last }, segment_bytes);
        self.note_death(StreamKind::Foreground, log_end);
    }

    /// A live record is counted for another range from now on. The puts are counted when the segment is filed.
    pub(crate) fn hand_over_live(&mut self, from: usize, to: usize, bytes: u32) {
        self.count_death(from, bytes, Death::UNKNOWN);
        self.add_live(to, bytes);
    }

    /// A record that is counted for another range died by a commit of this one.
    pub(crate) fn note_died_by(&mut self, range: usize, by: Version) {
        let share = self.share_mut(range);
        share.died_by = share.died_by.max(by);
    }

    /// Adds counts of records that are not counted for the range yet.
    pub(crate) fn add_share(&mut self, counted: &RangeShare) {
        let is_sorted = self.is_sorted;
        let share = self.share_mut(counted.range);
        share.puts += counted.puts;
        share.has_unknown_deaths |= share.puts > share.live_records;
        share.newest = share.newest.max(counted.newest);
        share.lowest_put = share.lowest_put.min(counted.lowest_put);
        share.hides_below = share.hides_below.max(counted.hides_below);
        share.rolls_back |= counted.rolls_back;
        if !is_sorted {
            share.lowest_tombstone = share.lowest_tombstone.min(counted.lowest_tombstone);
        }
    }

    pub(crate) fn remove_share(&mut self, range: usize) {
        self.shares.retain(|share| share.range != range);
    }

    /// Notes rolled-back records, also those that a checkpoint has.
    pub(crate) fn load_invalidated(&mut self, records: RolledBackRecords, segment_bytes: u32) {
        let end = LogPosition::new(self.sequence + 1, 0, segment_bytes);
        self.invalidated.add(records, end, segment_bytes);
    }

    /// Its rolled-back records.
    pub(crate) const fn invalidated(&self) -> &InvalidatedRecords {
        &self.invalidated
    }

    /// All that is needed of it was copied to the survivors' stream before `log_end`, its tombstones too.
    pub(crate) fn end_cleaning(&mut self, log_end: LogPosition) {
        self.is_cleaned = true;
        self.note_death(StreamKind::Survivors, log_end);
        self.shares.iter_mut().for_each(|share| share.hides_below = Version::ZERO);
    }

    /// The manifest says that it is sorted. Its records only hide older ones from now on.
    pub(crate) fn end_sorting(&mut self) {
        (self.is_sorted, self.is_cleaned, self.tombstone_bytes) = (true, true, 0);
        for share in &mut self.shares {
            let hides_below = share.hides_below.max(share.newest);
            let none = RangeShare::none(share.range);
            let (newest, died_by, clears, rolls_back) = (share.newest, share.died_by, share.clears, share.rolls_back);
            *share = RangeShare { newest, died_by, clears, rolls_back, hides_below, ..none };
        }
    }

    /// The manifest invalidates all records of the range so far.
    pub(crate) fn forget_range(&mut self, range: usize, number: RangeNumber) {
        self.remove_share(range);
        self.invalidated.forget_number(number);
    }

    /// Whether it is sealed and has no live record: it can be dropped unless something else keeps it.
    pub(crate) fn is_dead(&self) -> bool {
        self.sealed && self.live_records() == 0
    }

    /// Whether at least half of its records are short enough for a run, as far as known. To sort them, the others are
    /// copied: without this rule the copies would be copied again, for ever.
    pub(crate) fn has_many_for_runs(&self) -> bool {
        self.longer_than_runs() <= self.lengths.total / 2
    }

    /// Records that are too long for a run, as far as known: dead ones, too.
    pub(crate) fn longer_than_runs(&self) -> u32 {
        self.too_long.max(self.lengths.longer_than(SURELY_TOO_LONG_BYTES))
    }

    pub(crate) fn live_records(&self) -> u64 {
        self.shares.iter().map(|share| share.live_records).sum()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.live_bytes).sum()
    }

    /// Tombstones, and what else hides older records, without an index entry: bytes that cleaning may have to copy though they
    /// are not live.
    pub(crate) fn hiding_bytes(&self) -> u64 {
        let is_hiding = self.shares.iter().any(|share| share.hides_below > Version::ZERO);
        if is_hiding { self.tombstone_bytes } else { 0 }
    }

    /// Deletes with index entries, bytes: at most so many are live.
    pub(crate) fn delete_bytes(&self) -> u64 {
        self.tombstone_bytes.min(self.live_bytes())
    }

    /// Bytes that cleaning would not copy, with tombstones of this length. The unused end of the segment does not count: records too long
    /// for it would leave such an end in the next segment too.
    pub(crate) fn dead_bytes(&self, tombstone_bytes: u64) -> u64 {
        let used_bytes = match self.stream {
            StreamKind::Foreground => u64::from(self.end - crate::format::FRAMES_OFFSET),
            // Copies are written in frames as large as these: the padding of frames cannot be freed. If it counted, a full
            // store would be cleaned for ever.
            StreamKind::Survivors => self.lengths.total_bytes,
        };
        used_bytes.saturating_sub(self.live_bytes() + tombstone_bytes)
    }

    /// Estimate of the live bytes that have expired by this time. Deaths do not say whether the put had an expiry, so the share among
    /// live records is taken for that of all.
    pub(crate) fn expired_bytes(&self, expired_by: TimeMs) -> u64 {
        let expired_bytes = self.expiries.expired_bytes(expired_by, self.facts.latest_expiry_ms);
        let (live_bytes, total_bytes) = (self.live_bytes(), self.lengths.total_bytes);
        if expired_bytes == 0 { 0 } else { (live_bytes * expired_bytes / total_bytes.max(1)).min(live_bytes) }
    }

    /// Start and end of the first read for a record at `offset`: whole pages that suffice for 99.9 % of the records.
    pub(crate) fn first_read(&self, offset: u32, segment_bytes: u32) -> (u32, u32) {
        let page = PAGE_BYTES as u32;
        let from = offset - offset % page;
        let wanted = self.lengths.covering_bytes().max(crate::format::record::PEEK_BYTES as u32);
        let end = (offset + wanted).next_multiple_of(page).min(from + FIRST_READ_BYTES_MAX as u32).min(segment_bytes);
        (from, end)
    }
}

/// Which bits of a pointer name the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerLayout {
    slot_shift: u32,
}

impl PointerLayout {
    pub(crate) const fn slot_and_offset(self, pointer: Pointer) -> (u32, u32) {
        let unit = pointer.unit();
        let of_segment = unit & ((1 << self.slot_shift) - 1);
        ((unit >> self.slot_shift) as u32, of_segment as u32 * UNIT_BYTES as u32)
    }
}

#[derive(Debug)]
pub(crate) struct SegmentTable {
    slots: Vec<Option<Segment>>,
    layout: PointerLayout,
    slots_max: u32,
    count: usize,
    /// Segments visited by walks over the whole table: measures work that grows with the store.
    visited: Cell<u64>,
}

impl SegmentTable {
    pub(crate) fn new(segment_bytes: u32, pointers: PointerWidth) -> Self {
        let layout = PointerLayout { slot_shift: segment_bytes.ilog2() - UNIT_BYTES.ilog2() };
        let slots_max = slots_max(segment_bytes, pointers);
        Self { slots: Vec::new(), layout, slots_max, count: 0, visited: Cell::new(0) }
    }

    pub(crate) fn pointer(&self, slot: u32, offset: u32) -> Pointer {
        debug_assert!((offset as usize).is_multiple_of(UNIT_BYTES), "records lie on units");
        Pointer::new((u64::from(slot) << self.layout.slot_shift) | u64::from(offset / UNIT_BYTES as u32))
    }

    pub(crate) const fn slot_and_offset(&self, pointer: Pointer) -> (u32, u32) {
        self.layout.slot_and_offset(pointer)
    }

    pub(crate) const fn layout(&self) -> PointerLayout {
        self.layout
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Segment> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Segment> {
        self.slots.get_mut(slot as usize).and_then(Option::as_mut)
    }

    /// The segment of a slot that a pointer of the index or the overlay names. Segments outlive such pointers.
    pub(crate) fn expect(&self, slot: u32) -> &Segment {
        match self.get(slot) {
            Some(segment) => segment,
            None => unreachable!("slot {slot} is pointed to but holds no segment"),
        }
    }

    pub(crate) fn expect_mut(&mut self, slot: u32) -> &mut Segment {
        match self.get_mut(slot) {
            Some(segment) => segment,
            None => unreachable!("slot {slot} is pointed to but holds no segment"),
        }
    }

    /// Slots that pointers can address.
    pub(crate) const fn slots_max(&self) -> u32 {
        self.slots_max
    }

    /// The lowest free slot that no prepared segment has; `None` if pointers cannot address another.
    pub(crate) fn free_slot(&self, is_prepared: impl Fn(u32) -> bool) -> Option<u32> {
        (0..self.slots_max).find(|&slot| self.get(slot).is_none() && !is_prepared(slot))
    }

    pub(crate) fn insert(&mut self, segment: Segment) {
        let slot = segment.slot as usize;
        assert!(slot < self.slots_max as usize, "slot {slot} is past what pointers can name");
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        assert!(self.slots[slot].is_none(), "slot {slot} is taken");
        self.slots[slot] = Some(segment);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Segment> {
        let removed = self.slots.get_mut(slot as usize).and_then(Option::take);
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn visited(&self) -> u64 {
        self.visited.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        let visited = &self.visited;
        self.slots.iter().flatten().inspect(|_| visited.set(visited.get() + 1))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let visited = &self.visited;
        self.slots.iter_mut().flatten().inspect(|_| visited.set(visited.get() + 1))
    }
}

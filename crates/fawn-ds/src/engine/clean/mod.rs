//! Cleaning: live records of mostly dead segments move to the survivors' stream, and the segments can be dropped.
//!
//! One segment at a time is the *victim*: it is read in order, in chunks. A record that is current for its key is copied
//! to the survivors' stream, and so is a tombstone that still hides an older put. Once the copy is flushed, the index
//! entry moves to it, if it still points to the original. The drop rule keeps the victim until the copies are synced.
//!
//! Survivors are durably committed and keep their versions. They lie in no order of versions, so recovery merges them by
//! version.
mod choice;
mod copy;
mod deferred_tombstones;
mod file;
mod pace;
mod space;
#[cfg(test)]
mod tests;
mod victim;

use super::Engine;
use super::prefetch::PREFETCH_KEYS_MAX;
use crate::format::RangeNumber;
use crate::format::segment::StreamKind;
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::log::failures::HANGING_MS;
use crate::overlay::{KeyName, OverlayBase, ReplacedRecord};
pub(super) use copy::{Cleaned, CopyRefused};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Version};
use pace::Pace;
use smallvec::SmallVec;
pub(super) use space::{CLEANED_SEGMENTS_MIN, DELETED_SEGMENTS, only_reserve_left};
use std::collections::VecDeque;
use victim::{Victim, VictimPurpose};

/// Survivors in the open frame that start a write, bytes.
const WRITE_BYTES: u32 = 256 << 10;
/// Time without progress for which writes of a full store wait for a victim, or for copies of results, ms.
pub(super) const PROGRESS_MS_MAX: u64 = 1_000;

/// A copied record whose index entry moves once the copy is flushed.
#[derive(Clone, Copy, Debug)]
struct Move {
    range: usize,
    number: RangeNumber,
    name: KeyName,
    original: ReplacedRecord,
    copy: ReplacedRecord,
    /// Lowest version that a record may have which replaces this one before the move.
    replaced_from: Version,
    /// Lowest version that a record may have which hides the original after the move.
    original_hidden_from: Version,
    /// End of the copy in the survivors' stream.
    end: LogPosition,
}

#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    victim: Option<Victim>,
    /// Time when a read of a victim last ended, a record was last cleaned, or an index entry last moved.
    progressed_at: MonoMs,
    /// Reads of former victims that have not ended.
    reads_left: u32,
    /// In the order of the copies; all of the victim.
    moves: VecDeque<Move>,
    pace: Pace,
    /// The victim waits for a sync of the foreground.
    needs_sync: bool,
    /// The store is being closed.
    pub(super) is_stopped: bool,
    /// While a capacity that was lowered is exceeded: the fewest segments that were taken since the opening.
    over_capacity: Option<u64>,
    /// Another operation waits until nothing is written.
    is_held: bool,
    filing: file::FilingState,
}

impl Cleaner {
    /// Whether a segment is being cleaned.
    pub(crate) fn has_work(&self) -> bool {
        self.victim.is_some()
    }

    /// Whether a segment is being copied from.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.victim.as_ref().is_some_and(Victim::is_to_clean)
    }

    /// Whether a read of the victim is in flight.
    pub(crate) fn is_reading(&self) -> bool {
        self.victim.as_ref().is_some_and(Victim::is_reading)
    }

    /// Number of reads of former victims that are in flight.
    pub(crate) const fn reads_left(&self) -> u32 {
        self.reads_left
    }

    /// Begins with a victim. While the read of another one hangs, only progress with this one shows that the device does not: writes
    /// wait for its first read, and no longer.
    fn begin(&mut self, victim: Victim, now: MonoMs) {
        let waited_ms = if self.reads_left == 0 { 0 } else { PROGRESS_MS_MAX - HANGING_MS };
        let since = MonoMs(now.0.saturating_sub(waited_ms));
        self.note_progress(self.progressed_at.max(since));
        self.victim = Some(victim);
    }

    const fn note_progress(&mut self, now: MonoMs) {
        self.progressed_at = now;
    }

    /// Whether this segment is being cleaned.
    pub(crate) fn is_victim(&self, slot: u32) -> bool {
        self.victim.as_ref().is_some_and(|victim| victim.slot == slot)
    }

    /// Stops cleaning for good: nothing is copied after the recorded end of the log.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Lets cleaning rest, or go on after that.
    pub(crate) const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    const fn is_at_rest(&self) -> bool {
        self.is_stopped || self.is_held
    }

    /// Whether cleaning goes on only after a sync of the stream, for which no timer is set.
    pub(crate) fn needs_sync(&self, kind: StreamKind) -> bool {
        kind == StreamKind::Foreground && self.needs_sync
    }

    /// Whether cleaning is expected to free space: writes need only wait for it. A search that is due comes after the victim.
    pub(crate) fn is_freeing(&self, now: MonoMs) -> bool {
        match self.victim {
            // Without progress, the device may hang.
            Some(_) => now.ms_since(self.progressed_at) < PROGRESS_MS_MAX,
            None => self.pace.due_at.is_some(),
        }
    }

    /// Segments above the target at the last search for a victim.
    pub(crate) const fn debt_segments(&self) -> u64 {
        self.pace.debt
    }

    /// A segment was sealed or dropped: there may be a victim now.
    pub(crate) fn note_change(&mut self) {
        self.pace.note_change();
    }

    /// A record of this length died.
    pub(crate) fn note_dead(&mut self, bytes: u32, segment_bytes: u32) {
        self.pace.note_dead(bytes.into(), segment_bytes.into());
    }

    /// A timer has asked the device for space again, or an overwritten record was found. Only a write makes a search for a victim
    /// due then: an idle store would be searched for ever.
    pub(crate) fn note_retry(&mut self) {
        self.pace.note_retry();
    }

    /// A write needs another segment.
    pub(crate) fn note_write(&mut self) {
        self.pace.note_write();
    }
}

impl<D: Device> Engine<D> {
    /// Continues the cleaning within its pace.
    pub(crate) fn clean(&mut self) {
        if self.poisoned.is_some() || self.options.read_only {
            return;
        }
        self.cleaner.needs_sync = false;
        if self.cleaner.is_at_rest() {
            return;
        }
        self.earn_credit();
        self.forget_retired();
        let was_cleaning = self.cleaner.victim.as_ref().is_some_and(Victim::is_to_clean);
        if self.cleaner.victim.is_some() || self.choose_next() {
            self.clean_victim();
        }
        // The poll that ends a victim begins the next one: each poll between two would limit how much can be cleaned.
        if was_cleaning && self.cleaner.victim.is_none() && !self.has_retired() && self.choose_next() {
            self.clean_victim();
        }
    }

    /// Chooses a segment to clean or to file, in turn while there are both.
    fn choose_next(&mut self) -> bool {
        let may_file = self.has_retired();
        if may_file && !core::mem::take(&mut self.cleaner.filing.was_last) && self.choose_to_file() {
            self.cleaner.filing.was_last = true;
            return true;
        }
        if let Some((slot, id)) = self.choose_to_sort() {
            let end = self.segments.expect(slot).end;
            self.cleaner.begin(Victim::new(slot, end, VictimPurpose::Sort(id)), self.now.mono);
            return true;
        }
        self.choose_victim() || (may_file && self.choose_to_file())
    }

    /// Moves the index entries of survivors that are flushed.
    pub(crate) fn move_survivors(&mut self) {
        let flushed = self.streams[StreamKind::Survivors].flush.flushed;
        let mut prefetched = 0;
        while let Some(next) = self.cleaner.moves.pop_front_if(|next| next.end <= flushed) {
            if prefetched == 0 {
                prefetched = self.prefetch_moves(&next);
            }
            prefetched -= 1;
            self.move_survivor(&next);
            self.cleaner.note_progress(self.now.mono);
        }
    }

    /// Prefetches the index entries of a move and of the moves behind it in the same range. Returns the number of these moves.
    fn prefetch_moves(&self, first: &Move) -> usize {
        let (mut hashes, mut count) = ([KeyHash(first.name.hash); PREFETCH_KEYS_MAX], 1);
        for (hash, next) in
            hashes[1..].iter_mut().zip(&self.cleaner.moves).take_while(|(_, next)| next.range == first.range)
        {
            *hash = KeyHash(next.name.hash);
            count += 1;
        }
        self.ranges[first.range].index.prefetch(&hashes[..count]);
        count
    }

    /// Whether no record that is being moved was replaced since it was copied.
    pub(crate) fn copies_are_current(&self) -> bool {
        self.cleaner.moves.iter().all(|next| {
            let range = &self.ranges[next.range];
            let mut candidates = range.index.candidates(KeyHash(next.name.hash));
            range.number == next.number && candidates.any(|found| found == next.original.pointer)
        })
    }

    fn move_survivor(&mut self, next: &Move) {
        let &Move { range: at, number, name, original, copy, replaced_from, original_hidden_from, .. } = next;
        let range = &mut self.ranges[at];
        // A range that began again has another number, and its old records are invalidated.
        if range.number != number {
            return;
        }
        let is_current = range.index.replace(KeyHash(name.hash), original.pointer, copy.pointer);
        let (copied_from, copied_to) = (slot_of(self, original.pointer), slot_of(self, copy.pointer));
        let live_bytes = is_current.then_some(copy.len_bytes);
        if self.segments.expect_mut(copied_to).end_copy(at, live_bytes, replaced_from) {
            self.note_dead_puts(at, copied_to);
        }
        if !is_current {
            // Replaced or removed since: the copy is dead from the start, and the newer record hides it.
            return;
        }
        // The range may have been split or merged since, and its heir have a newer record in flight.
        let heirs: SmallVec<[usize; 2]> =
            if self.range_ids[at].is_none() { self.heirs(at).collect() } else { SmallVec::new() };
        for place in [at].into_iter().chain(heirs) {
            self.carry_replaced(place, copied_from, copied_to);
            if let Some(entry) = self.overlay.find_mut(place, name)
                && entry.base == OverlayBase::At(original)
            {
                entry.base = OverlayBase::At(copy);
            }
        }
        self.note_unindexed(at, KeyHash(name.hash), original);
        let end = self.survivors_end();
        let moved_from = self.segments.expect_mut(copied_from);
        if moved_from.move_live(at, original.len_bytes, original_hidden_from, end) {
            self.note_dead_puts(at, copied_from);
        }
        self.stats.moved_records += 1;
        self.stats.moved_bytes += u64::from(copy.len_bytes);
    }

    /// A sort of the copy waits for all that a sort of the original would wait for: a put may have replaced what hides both, and a loss
    /// may undo the put.
    fn carry_replaced(&mut self, at: usize, from: u32, to: u32) {
        let from = self.segments.expect(from);
        let died_by = from.share(at).map_or(Version::ZERO, |share| share.died_by);
        if died_by > self.ranges[at].durably_committed() {
            let log_end = from.died_at[StreamKind::Foreground];
            self.segments.expect_mut(to).note_replaced(at, died_by, log_end);
            self.note_share(at, to);
        }
    }

    /// End of the survivors' appended records.
    pub(in crate::engine) fn survivors_end(&self) -> LogPosition {
        self.streams[StreamKind::Survivors].records_end(self.options.segment_bytes)
    }
}

fn slot_of<D: Device>(engine: &Engine<D>, pointer: Pointer) -> u32 {
    engine.segments.slot_and_offset(pointer).0
}

//! Choice of a victim: which segment is worth cleaning, and which may be cleaned at all.
use super::super::Engine;
use super::super::drop_rule::{KeepReason, RangeFacts, SegmentFacts, keep_reason};
use super::pace::SEARCH_MS_MAX;
use super::space::SurvivorsRoom;
use crate::format::RangeNumber;
use crate::format::segment::{PerStream, StreamKind};
use crate::log::LogPosition;
use crate::log::segments::{RangeShare, Segment};
use crate::log::unfinished::RefusedCopies;
use fawn_flash::Device;
use fawn_types::{TimeMs, Version};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Dead bytes below which cleaning would free nothing: copies take headers of frames.
const FULL_DEAD_BYTES_MIN: u64 = 512;
/// Share of the log, one in so many, that tombstones may take before the puts that they hide are cleaned away.
const TOMBSTONES_SHARE_MAX: u64 = 20;

pub(super) const NEVER: TimeMs = TimeMs(u64::MAX);

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

/// The dead puts of a segment that expire, for an estimate of its copies.
#[derive(Clone, Copy)]
enum ExpiredPuts {
    /// All that cleaning may take for removed ones hide older ones, so that it writes a tombstone for each.
    Copied,
    /// All were replaced before they expired.
    Replaced,
}

impl<D: Device> Engine<D> {
    /// The segment with a record of the oldest number that should be in no lineage any more. Copies get present numbers.
    pub(super) fn oldest_victim(&mut self, room: SurvivorsRoom) -> Option<u32> {
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
        let victim = candidates
            .filter(|&(_, slot)| self.is_copyable(self.segments.expect(slot), room, ExpiredPuts::Copied, None))
            .min();
        if victim.is_none() {
            self.seal_with_numbers(&old);
        }
        victim.map(|(_, slot)| slot)
    }

    /// Seals active segments with records of these numbers, once they have successors. Otherwise these would stay as long as hardly
    /// anything is written.
    fn seal_with_numbers(&mut self, old: &BTreeSet<RangeNumber>) {
        self.measure_device();
        for kind in StreamKind::ALL {
            let active = self.streams[kind].window.active().map(|chunk| self.segments.expect(chunk.slot));
            if active.is_none_or(|active| active.facts.numbers.iter().all(|facts| !old.contains(&facts.number))) {
                continue;
            }
            self.seal_early(kind);
        }
    }

    /// Seals the survivors' active segment if it is nearly full, nothing in it is needed, and no segment is left: it would stay for
    /// ever, with nothing cleaned.
    pub(super) fn seal_dead_survivors(&mut self) {
        let stream = &self.streams[StreamKind::Survivors];
        let Some(active) = stream.window.active().map(|chunk| self.segments.expect(chunk.slot)) else { return };
        let has_space = self.survivors_room().active_bytes > u64::from(self.options.segment_bytes) / 8;
        let has_use = |share: &RangeShare| share.live_records > 0 || self.hides_puts(active, share);
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
    pub(super) fn best_victim(&mut self, room: SurvivorsRoom) -> Option<u32> {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // A full store cleans for little: otherwise a little that is dead in every segment would never make room.
        let dead_bytes_min = if self.full { segment_bytes / 1000 + FULL_DEAD_BYTES_MIN } else { segment_bytes / 20 };
        if !core::mem::take(&mut self.cleaner.pace.was_for_tombstones) {
            self.cleaner.pace.was_for_tombstones = self.tombstones_take_much();
            if !self.cleaner.pace.was_for_tombstones {
                self.note_due_copies(None);
            } else if let Some(slot) = self.victim_for_tombstones(room) {
                return Some(slot);
            }
        }
        let end = self.appended_end();
        let best = |expired, is_unread: bool| {
            let is_candidate = |segment: &&Segment| {
                !(is_unread && segment.pins > 0) && self.is_candidate(segment, dead_bytes_min, room, expired, None)
            };
            let candidates = self.segments.iter().filter(is_candidate);
            candidates
                .max_by_key(|segment| merit(segment, self.victim_lengths(segment), end, self.options.segment_bytes))
        };
        // A read may hang. While the space of one cleaned segment waits for reads, copies of more would use up the reserve.
        let waits = self.full && self.segments.iter().any(|segment| self.waits_for_reads(segment));
        let unread = waits.then(|| best(ExpiredPuts::Copied, true)).flatten();
        // Only a read of a segment tells which puts were replaced before they expired. If none fits surely, one is tried all the same.
        let best = unread.or_else(|| best(ExpiredPuts::Copied, false)).or_else(|| best(ExpiredPuts::Replaced, false));
        best.map(|segment| segment.slot)
    }

    /// The segment whose dead puts were replaced earliest. One that only copies of results keep has the next turn: these are due first.
    fn victim_for_tombstones(&mut self, room: SurvivorsRoom) -> Option<u32> {
        let never = Version::from_u64(u64::MAX);
        // Sorted segments hide tombstones, too.
        let of_share = if self.sorted.is_active() { RangeShare::hidden_from_sorted } else { RangeShare::hidden_from };
        let hidden = |segment: &Segment| segment.shares.iter().map(of_share).min().unwrap_or(never);
        let earliest = |but_for| {
            let is_candidate = |segment: &&Segment| {
                hidden(segment) < never && self.is_candidate(segment, 1, room, ExpiredPuts::Copied, but_for)
            };
            self.segments.iter().filter(is_candidate).min_by_key(|segment| (hidden(segment), segment.slot))
        };
        let first = earliest(Some(KeepReason::CopiedResult))?;
        if self.is_movable(first) {
            return Some(first.slot);
        }
        let (victim, sequence) = (earliest(None).map(|segment| segment.slot), first.sequence);
        self.note_due_copies(Some(sequence));
        victim
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
        let uncopied_bytes = segment.tombstone_bytes.saturating_sub(segment.copied_part.tombstone_bytes);
        let is_hiding = |share: &RangeShare| {
            share.hides_below > Version::ZERO && self.hides_elsewhere(share.range, segment.sequence, share.hides_below)
        };
        if uncopied_bytes > 0 && segment.shares.iter().any(is_hiding) { uncopied_bytes } else { 0 }
    }

    /// Bytes that cleaning may have to copy of the segment.
    fn copied_bytes_max(&self, segment: &Segment, expired: ExpiredPuts) -> u64 {
        let expired_bytes = match expired {
            ExpiredPuts::Copied => self.expired_tombstone_bytes_max(segment),
            ExpiredPuts::Replaced => 0,
        };
        segment.live_bytes() + self.kept_tombstone_bytes(segment) + expired_bytes
    }

    /// Length of the tombstones that the segment's dead puts may become, at most: a tombstone is shorter than its put. Only cleaning
    /// finds out which of them hide older ones.
    pub(super) fn expired_tombstone_bytes_max(&self, segment: &Segment) -> u64 {
        let may_hide = |share: &&RangeShare| self.hides_elsewhere(share.range, segment.sequence, share.newest);
        let times = segment.shares.iter().filter(may_hide).map(|share| self.time_of(share.range));
        // A put that was deleted before it expired may be taken for one that a lookup removed, if any record of the segment was removed.
        let has_removed = segment.shares.iter().any(|share| share.hides_below > Version::ZERO);
        let expired_bytes = times.max().map_or(0, |time| match has_removed {
            true => segment.expiries.total_bytes(),
            false => segment.expiries.begun_bytes(time),
        });
        let uncopied_bytes = segment.expiries.total_bytes().saturating_sub(segment.copied_part.expiring_bytes);
        expired_bytes.min(uncopied_bytes).min(segment.dead_bytes(segment.tombstone_bytes))
    }

    fn victim_lengths(&self, segment: &Segment) -> VictimLengths {
        let (tombstone_bytes, expired_bytes) = (self.kept_tombstone_bytes(segment), self.expired_bytes(segment));
        VictimLengths {
            kept_bytes: segment.live_bytes().saturating_sub(expired_bytes) + tombstone_bytes,
            dead_bytes: segment.dead_bytes(tombstone_bytes) + expired_bytes,
        }
    }

    /// Bytes of the segment's live records that cleaning would find expired, estimated.
    pub(super) fn expired_bytes(&self, segment: &Segment) -> u64 {
        let expired_by = segment.shares.iter().map(|share| self.expired_by(share.range)).min();
        expired_by.map_or(0, |expired_by| segment.expired_bytes(expired_by))
    }

    /// Time when the first records of a segment will have expired that have not by the time of their range.
    pub(super) fn next_expiry(&self, time_of: impl Fn(usize) -> TimeMs) -> TimeMs {
        let ends = self.segments.iter().filter_map(|segment| {
            let expired_by = segment.shares.iter().map(|share| time_of(share.range)).min()?;
            segment.expiries.next_end(expired_by, segment.facts.latest_expiry_ms)
        });
        ends.min().unwrap_or(NEVER)
    }

    /// Whether nothing but live records and tombstones keeps the segment for long, enough of it is dead, and what
    /// cleaning copies of it fits.
    fn is_candidate(
        &self,
        segment: &Segment,
        dead_bytes_min: u64,
        room: SurvivorsRoom,
        expired: ExpiredPuts,
        but_for: Option<KeepReason>,
    ) -> bool {
        let tombstone_bytes = self.kept_tombstone_bytes(segment);
        // Copied again, they leave nothing behind that is worth it.
        let result_bytes = self.result_bytes_but_for(segment, but_for);
        let dead_bytes = segment.dead_bytes(tombstone_bytes).saturating_sub(result_bytes);
        let is_worthwhile = dead_bytes + self.expired_bytes(segment) >= dead_bytes_min;
        is_worthwhile && !self.is_left_to_sort(segment, but_for) && self.is_copyable(segment, room, expired, but_for)
    }

    /// Whether the segment may be cleaned now, and what cleaning copies of it fits.
    fn is_copyable(
        &self,
        segment: &Segment,
        room: SurvivorsRoom,
        expired: ExpiredPuts,
        but_for: Option<KeepReason>,
    ) -> bool {
        if !segment.sealed || segment.is_cleaned || self.now.mono < segment.clean_again_at {
            return false;
        }
        if segment.refused_copies.is_some_and(|refused| self.is_refused_again(segment, &refused, room, expired)) {
            return false;
        }
        // A victim that is copied only in part frees nothing, and leaves no space for the next one.
        let segment_bytes = u64::from(self.options.segment_bytes);
        let longest_bytes = segment.lengths.longest_bytes_max().map_or(segment_bytes / 4, u64::from);
        let result_bytes = self.result_bytes_but_for(segment, but_for);
        let copied_bytes = self.with_frames(self.copied_bytes_max(segment, expired) + result_bytes);
        room.fits(copied_bytes, longest_bytes, segment_bytes) && self.is_movable_but_for(segment, but_for)
    }

    /// Bytes of the copies of results that a search disregards, with which they are copied first.
    fn result_bytes_but_for(&self, segment: &Segment, but_for: Option<KeepReason>) -> u64 {
        if but_for.is_some() && segment.stream == StreamKind::Survivors {
            return self.result_copies_bytes(segment.sequence);
        }
        0
    }

    /// The refusal of the segment's copies, which have no room now.
    pub(super) fn refused_copies(&self, segment: &Segment) -> RefusedCopies {
        let room_bytes = self.survivors_room().active_bytes;
        // Includes records whose copies are not flushed yet, which costs one retry more.
        let copied_bytes = self.copied_bytes_max(segment, ExpiredPuts::Replaced);
        // While a delete is verified, more deletes seem to need copies: that number must not come back.
        let before = segment.refused_copies.filter(|refused| room_bytes <= refused.room_bytes);
        RefusedCopies {
            room_bytes,
            copied_bytes: before.map_or(copied_bytes, |refused| refused.copied_bytes.min(copied_bytes)),
            again_at: self.now.mono.plus_ms(SEARCH_MS_MAX),
        }
    }

    /// Whether the segment's copies would have no room again.
    fn is_refused_again(
        &self,
        segment: &Segment,
        refused: &RefusedCopies,
        room: SurvivorsRoom,
        expired: ExpiredPuts,
    ) -> bool {
        let has_more_room = room.segments > 0 || room.active_bytes > refused.room_bytes;
        let needs_fewer = match expired {
            // The estimate includes all copies: it fits, or the segment is no victim.
            ExpiredPuts::Copied => true,
            // The estimate leaves some copies out, which may have been refused. Without fewer of the others at each retry, the segment
            // would be read for ever.
            ExpiredPuts::Replaced => self.copied_bytes_max(segment, expired) < refused.copied_bytes,
        };
        let may_fit = needs_fewer && self.now.mono >= refused.again_at;
        !has_more_room && !may_fit
    }

    /// Whether the segment is sorted soon, with more than a quarter of it live. Copies of it would be sorted later, and their old
    /// versions in a young segment would keep the sorted segments that hide them. One that a copy of a result keeps from being sorted
    /// would keep these, too.
    fn is_left_to_sort(&self, segment: &Segment, but_for: Option<KeepReason>) -> bool {
        let is_mostly_dead = segment.live_bytes() * 4 < u64::from(segment.end);
        let is_for_runs = self.sorts_soon() && !segment.is_sorted && segment.has_many_for_runs() && !is_mostly_dead;
        // Without a reason to disregard, one that cannot be sorted is no candidate anyway.
        is_for_runs && (but_for.is_none() || self.is_movable(segment))
    }

    /// Whether nothing but live records and tombstones keeps the segment for long.
    pub(in crate::engine) fn is_movable(&self, segment: &Segment) -> bool {
        self.is_movable_but_for(segment, None)
    }

    /// As [`Engine::is_movable`], or it would be without this reason to keep it.
    fn is_movable_but_for(&self, segment: &Segment, but_for: Option<KeepReason>) -> bool {
        // Deferred records stay where they are. They are confirmed soon, and most of their old versions are elsewhere.
        if !segment.sealed || segment.is_cleaned || segment.is_gathered || self.overlay.may_defer(segment.sequence) {
            return false;
        }
        // A read of it failed or hangs, which may pass.
        if segment.failures.is_barred(self.now.mono, self.full) {
            return false;
        }
        // The end of a segment that was sealed just now may not be in its file yet.
        if self.cacheable_to(segment.slot) < segment.end {
            return false;
        }
        // Survivors are read before a clear, which would clear those behind it too. Before a transfer's beginning is listed, no
        // record may have its number. Later ones may move, or be sorted: all of them lie under that number, which counts only once
        // the transfer is complete. A transferred record that is older than its key's newest is skipped only if that is in the log,
        // not in a run. But the chain takes no part that was read before its log changed.
        let is_changing = |range: usize| self.has_unlisted_clear(range) || self.ranges[range].is_beginning();
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
        // Each reason looks at all ranges: their facts are found once.
        let facts_of = |share: &RangeShare| (share.range, self.settled_facts(segment, share));
        let ranges: SmallVec<[(usize, RangeFacts); 2]> = segment.shares.iter().map(facts_of).collect();
        // Cleaned again at once, it would be chosen for ever, and no other: an old version may stay unreadable.
        // The foreground's reasons of this kind are results of transfers and merges, which leave with its log.
        let but_for = but_for.filter(|_| segment.stream == StreamKind::Survivors);
        let is_free = keep_reason(&facts, ranges.iter().copied()).is_none_or(|(why, _)| Some(why) == but_for);
        is_free && !(segment.had_unconfirmed && self.has_unconfirmed(segment.slot))
    }

    /// Whether a committed record of the segment, which may have no deferred ones, waits for its verification to enter the index.
    fn has_unconfirmed(&self, slot: u32) -> bool {
        let mut unconfirmed = self.overlay.entered_unconfirmed();
        unconfirmed.any(|written| self.segments.slot_and_offset(written.pointer).0 == slot)
    }
}

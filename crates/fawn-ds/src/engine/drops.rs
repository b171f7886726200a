//! Dropping segments: which ones are examined when, and the two steps of a removal (manifest, then unlink).
//!
//! A segment without live records is examined when an event may have ended the reason that keeps it, and costs nothing
//! until then. Segments held by a range are kept by sequence number: the older ones are released first.
use super::Engine;
use super::drop_rule::{KeepReason, RangeFacts, SegmentFacts, keep_reason};
use super::segments::RETRY_MS;
use crate::format::manifest::ManifestEdit;
use crate::format::record::RecordKind;
use crate::format::segment::{PerStream, StreamKind};
use crate::log::LogPosition;
use crate::log::segments::{AppendedRecord, RangeShare, Segment};
use crate::manifest_file::CommitNumber;
use fawn_flash::{Device, DeviceError};
use fawn_types::{MonoMs, Version};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Slot and sequence number of a segment. Slots are reused, sequence numbers are not.
type SegmentName = (u32, u64);

/// Reasons to stay that depend on a range's progress, in the order in which they are examined after that has changed.
const HELD_FOR: [KeepReason; 5] = [
    KeepReason::Pending,
    KeepReason::Retained,
    KeepReason::CopiedResult,
    KeepReason::NewestRecord,
    KeepReason::CommitNotDurable,
];

#[derive(Debug, Default)]
pub(crate) struct Drops {
    pub(super) examine: Vec<SegmentName>,
    /// Kept until the log is synced further. Each counts once, however often it is examined until then.
    unsynced: BTreeSet<SegmentName>,
    /// Whether one of them waits for the sync of this stream.
    pub(super) waits_for: PerStream<bool>,
    /// A range that holds segments has changed.
    is_released: bool,
    /// Removed from memory; their removal from the manifest is in flight.
    dropping: Vec<Dropping>,
    /// Files whose unlink the device refused for now, with their lengths.
    refused: Vec<(String, u64)>,
    /// Time of the next attempt to unlink them.
    unlink_at: MonoMs,
}

#[derive(Debug)]
struct Dropping {
    segment: Segment,
    edit_end: CommitNumber,
}

impl Drops {
    pub(crate) fn has_work(&self) -> bool {
        self.is_released || !self.examine.is_empty()
    }

    /// Whether segments are dropped soon: after a sync of the log, or of the manifest.
    pub(super) fn is_freeing(&self) -> bool {
        !self.unsynced.is_empty() || !self.dropping.is_empty()
    }

    /// Length of the files that stay until another attempt to unlink them.
    pub(super) fn refused_bytes(&self) -> u64 {
        self.refused.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Time of the next attempt to unlink files whose unlink was refused.
    pub(super) fn unlink_at(&self) -> Option<MonoMs> {
        (!self.refused.is_empty()).then_some(self.unlink_at)
    }

    /// Segments that are dropped once the log is synced further.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    pub(crate) fn synced(&mut self) {
        self.examine.extend(core::mem::take(&mut self.unsynced));
        self.waits_for = PerStream::default();
    }
}

impl<D: Device> Engine<D> {
    /// The number of segments kept for each reason.
    pub fn segments_kept(&self) -> BTreeMap<KeepReason, u64> {
        let mut kept = BTreeMap::new();
        for (why, _) in self.segments.iter().filter_map(|segment| self.kept_because(segment)) {
            *kept.entry(why).or_insert(0) += 1;
        }
        kept
    }

    /// Counts a record just appended to the segment.
    // Every write calls it: without the call, the record's fields stay in registers.
    #[inline(always)]
    pub(crate) fn enter_appended(&mut self, at: usize, slot: u32, record: &AppendedRecord) {
        let segment = self.segments.expect_mut(slot);
        if segment.enter_appended(at, record) {
            self.note_lowest(at, slot);
        }
    }

    /// Counts a record of the range in the segment, not as live.
    pub(crate) fn enter_segment(&mut self, at: usize, slot: u32, version: Version, kind: RecordKind) {
        let segment = self.segments.expect_mut(slot);
        if segment.enter(at, version, kind) {
            self.note_lowest(at, slot);
        }
    }

    /// The range has records in the segment, and the lowest version of its puts or tombstones there may have changed.
    #[cold]
    pub(in crate::engine) fn note_lowest(&mut self, at: usize, slot: u32) {
        let segment = self.segments.expect(slot);
        let share = segment.share(at).copied().unwrap_or(RangeShare::none(at));
        let range = &mut self.ranges[at];
        range.segments.insert(segment.sequence, slot);
        range.lowest_puts.set(segment.sequence, share.lowest_put);
        range.lowest_tombstones.set(segment.sequence, share.lowest_tombstone);
        self.note_dead_puts(at, slot);
    }

    /// The range's puts in the segment, live or not, have changed.
    pub(crate) fn note_dead_puts(&mut self, at: usize, slot: u32) {
        let segment = self.segments.expect(slot);
        let lowest = segment.share(at).map_or(Version::from_u64(u64::MAX), RangeShare::hidden_from);
        self.ranges[at].dead_puts_hidden_from.set(segment.sequence, lowest);
    }

    /// Whether the ranges know of all puts that tombstones may hide.
    pub(in crate::engine) fn knows_dead_puts(&self) -> bool {
        self.segments.iter().all(|segment| {
            let is_noted = |share: &RangeShare| {
                self.ranges[share.range].dead_puts_hidden_from.of(segment.sequence) <= share.hidden_from()
            };
            segment.shares.iter().all(is_noted)
        })
    }

    /// As [`Engine::note_dead_puts`], for all segments of the range.
    pub(crate) fn note_all_dead_puts(&mut self, at: usize) {
        let slots: Vec<u32> = self.ranges[at].segments.values().copied().collect();
        slots.into_iter().for_each(|slot| self.note_dead_puts(at, slot));
    }

    /// Whether another segment may have a put that a record of this version hides: by [`RangeShare::hidden_from`], or by the put's
    /// own version where live puts count.
    ///
    /// A live put is no older version of a deleted key, with two exceptions: the delete waits for its verification, or the put is in
    /// an index that a range inherited which was cleared, and the clear is not listed. In both, one range of the family may have
    /// the delete, and another one the put. A put that waits for its verification is live as well, and hides what the index has of
    /// its key: a delete between the two goes once the put is durable.
    pub(crate) fn hides_elsewhere(&self, at: usize, sequence: u64, version: Version) -> bool {
        let family = self.family(at);
        let hides_live = family.iter().any(|&at| {
            let keeps_inherited = !self.ranges[at].inherited.is_empty() && self.has_unlisted_clear(at);
            keeps_inherited || self.overlay.unconfirmed_deletes(at) > 0
        });
        family.iter().map(|&at| &self.ranges[at]).any(|range| {
            let puts = if hides_live { &range.lowest_puts } else { &range.dead_puts_hidden_from };
            puts.has_elsewhere(sequence, version)
        })
    }

    /// As [`Engine::hides_elsewhere`], with tombstones, for a record of a sorted segment.
    pub(crate) fn sorted_hides_elsewhere(&self, at: usize, sequence: u64, version: Version) -> bool {
        self.hides_elsewhere(at, sequence, version)
            || self.family(at).into_iter().any(|at| self.ranges[at].lowest_tombstones.has_elsewhere(sequence, version))
    }

    /// Whether records of other ranges in segments may be of the same keys.
    fn is_of_family(&self, at: usize) -> bool {
        self.ranges[at].id.is_none() || !self.ranges[at].inherited.is_empty()
    }

    /// Invalidates the range's records above `after` that lie before `end`, after a rollback record was appended or read.
    /// `last` is the newest one that is left. In a recovery it may be above `after`: survivors were read before.
    pub(crate) fn roll_back_segments(&mut self, at: usize, (last, after): (Version, Version), end: LogPosition) {
        let number = self.ranges[at].number;
        for &slot in self.ranges[at].segments.values().rev() {
            let segment = self.segments.expect_mut(slot);
            if segment.stream == StreamKind::Foreground {
                segment.roll_back((at, number), last.min(after), end, self.options.segment_bytes);
            }
        }
        self.release_held(at);
    }

    /// The manifest invalidates all records of the range so far.
    pub(crate) fn forget_in_segments(&mut self, at: usize) {
        self.examine_range(at);
        let number = self.ranges[at].number;
        for &slot in self.ranges[at].segments.values() {
            self.segments.expect_mut(slot).forget_range(at, number);
        }
        self.release_durable_mark(at);
    }

    /// Examines a segment after it lost a live record, a pin or a mark.
    pub(crate) fn examine_if_dead(&mut self, slot: u32) {
        let Some(segment) = self.segments.get(slot) else { return };
        if segment.is_dead() {
            self.drops.examine.push((slot, segment.sequence));
        }
    }

    pub(crate) fn examine_range(&mut self, at: usize) {
        let names = self.ranges[at].segments.iter().map(|(&sequence, &slot)| (slot, sequence));
        self.drops.examine.extend(names);
    }

    pub(crate) fn examine_all(&mut self) {
        self.drops.examine.extend(self.segments.iter().map(|segment| (segment.slot, segment.sequence)));
    }

    /// Notes that a fact of the range has changed that may have held segments.
    pub(crate) fn release_held(&mut self, at: usize) {
        if !self.ranges[at].held.is_empty() {
            self.ranges[at].is_released = true;
            self.drops.is_released = true;
        }
    }

    /// Drops the segments that nothing keeps.
    pub(crate) fn drop_dead(&mut self) {
        while self.drops.has_work() {
            while let Some(name) = self.drops.examine.pop() {
                self.examine(name);
            }
            // A drop above releases segments that only hid records in older ones.
            if core::mem::take(&mut self.drops.is_released) {
                for at in 0..self.ranges.len() {
                    if core::mem::take(&mut self.ranges[at].is_released) {
                        self.examine_held(at);
                    }
                }
            }
        }
    }

    /// Examines the range's held segments, oldest first, up to the first one that stays held, for each reason.
    fn examine_held(&mut self, at: usize) {
        if core::mem::take(&mut self.ranges[at].shows_hidden) {
            self.examine_hiding(at);
        }
        for why in HELD_FOR {
            let first = |held: &BTreeMap<(KeepReason, u64), u32>| {
                held.range((why, 0)..=(why, u64::MAX)).next().map(|(&(_, sequence), &slot)| (slot, sequence))
            };
            while let Some((slot, sequence)) = first(&self.ranges[at].held) {
                self.ranges[at].held.remove(&(why, sequence));
                self.examine((slot, sequence));
                if self.ranges[at].held.contains_key(&(why, sequence)) {
                    break;
                }
            }
        }
    }

    /// Examines all segments that hide records of the range, after a segment of it was dropped. The versions that they
    /// hide are in no order of sequence numbers.
    fn examine_hiding(&mut self, at: usize) {
        let held = &mut self.ranges[at].held;
        let hiding: Vec<_> = held.range((KeepReason::Hides, 0)..=(KeepReason::Hides, u64::MAX)).collect();
        let names: Vec<SegmentName> = hiding.into_iter().map(|(&(_, sequence), &slot)| (slot, sequence)).collect();
        for (slot, sequence) in names {
            self.ranges[at].held.remove(&(KeepReason::Hides, sequence));
            self.examine((slot, sequence));
        }
    }

    fn examine(&mut self, name: SegmentName) {
        let (slot, sequence) = name;
        let Some(segment) = self.segments.get(slot).filter(|segment| segment.sequence == sequence) else { return };
        match self.kept_because(segment) {
            None => self.drop_segment(slot),
            Some((KeepReason::CauseNotSynced, _)) => {
                for kind in StreamKind::ALL {
                    self.drops.waits_for[kind] |= segment.died_at[kind] > self.streams[kind].flush.synced;
                }
                self.drops.unsynced.insert(name);
            }
            Some((KeepReason::CommitNotDurable, Some(at))) => {
                // A mark on its way suffices, and all that are missing come with one sync: one after the other, each would wait
                // for its own.
                let lacks_mark = |share: &&RangeShare| {
                    let marked = self.ranges[share.range].marks.appended;
                    self.settled_facts(segment, share).newest.max(share.died_by) > marked
                };
                let lacking = segment.shares.iter().filter(lacks_mark).map(|share| share.range);
                let lacking: SmallVec<[usize; 2]> = lacking.collect();
                self.ranges[at].held.insert((KeepReason::CommitNotDurable, sequence), slot);
                lacking.into_iter().for_each(|at| self.ranges[at].marks.is_wanted = true);
            }
            Some((why, Some(at))) if why != KeepReason::Live => {
                self.ranges[at].held.insert((why, sequence), slot);
            }
            // Another reason ends with an event of this segment, which then examines it again.
            Some(_) => {}
        }
    }

    pub(super) fn segment_facts(&self, segment: &Segment) -> SegmentFacts {
        SegmentFacts {
            is_sealed: segment.listed_sealed,
            pins: segment.pins,
            newest_marks: segment.newest_marks,
            died_at: segment.died_at,
            synced: PerStream::from_fn(|kind| self.streams[kind].flush.synced),
        }
    }

    fn kept_because(&self, segment: &Segment) -> Option<(KeepReason, Option<usize>)> {
        // The first reasons of the rule keep most segments. The facts of the others take a look at all segments of a family.
        if !segment.listed_sealed {
            return Some((KeepReason::Open, None));
        }
        if let Some(share) = segment.shares.iter().find(|share| share.live_records > 0) {
            return Some((KeepReason::Live, Some(share.range)));
        }
        let facts = self.segment_facts(segment);
        // Each reason looks at all ranges: their facts are found once.
        let facts_of = |share: &RangeShare| (share.range, self.range_facts(segment, share));
        let ranges: SmallVec<[(usize, RangeFacts); 2]> = segment.shares.iter().map(facts_of).collect();
        keep_reason(&facts, ranges.iter().copied())
    }

    /// Whether nothing but reads in flight keeps the segment, as far as is known.
    pub(super) fn waits_for_reads(&self, segment: &Segment) -> bool {
        segment.pins > 0 && matches!(self.kept_because(segment), Some((KeepReason::Pinned, _)))
    }

    pub(super) fn range_facts(&self, segment: &Segment, share: &RangeShare) -> RangeFacts {
        RangeFacts {
            live_records: share.live_records,
            died_by: share.died_by,
            hides_puts: self.hides_puts(segment, share),
            ..self.settled_facts(segment, share)
        }
    }

    /// Whether the range's records of the segment hide puts in others.
    pub(super) fn hides_puts(&self, segment: &Segment, share: &RangeShare) -> bool {
        let listed = self.ranges[share.range].cleared.listed;
        let unlisted_clear = share.clears.max(listed) > listed;
        let hides_below = if unlisted_clear { share.hides_below.max(share.clears) } else { share.hides_below };
        let hides_elsewhere = if segment.is_sorted { Self::sorted_hides_elsewhere } else { Self::hides_elsewhere };
        hides_below > Version::ZERO && hides_elsewhere(self, share.range, segment.sequence, hides_below)
    }

    /// The range's facts without those that cleaning settles: it copies live records and what hides others.
    pub(super) fn settled_facts(&self, segment: &Segment, share: &RangeShare) -> RangeFacts {
        let range = &self.ranges[share.range];
        let sequence = segment.sequence;
        // In a sole epoch the newest record that an opening finds says how far the range is committed.
        let proves_commit = |base| share.newest > base && share.newest >= range.progress.synced;
        let facts = RangeFacts {
            live_records: 0,
            newest: share.newest,
            died_by: Version::ZERO,
            hides_puts: false,
            hides_rolled_back: share.rolls_back && self.has_rolled_back_before(share.range, sequence),
            // The heirs of a retired range have parts of their own in the segments of what they keep.
            keeps_results: range.keeps_results_in(sequence),
            committed: range.progress.committed,
            retained_above: range.complete_above,
            proves_commit: range.sole_base().is_some_and(proves_commit),
            durably_committed: range.durably_committed(),
        };
        match segment.stream {
            StreamKind::Foreground => facts,
            // Survivors are durably committed and no part of a history: nothing is resent from them or proved by them.
            StreamKind::Survivors => {
                let keeps_results = range.result_copies.keeps_segment(sequence);
                RangeFacts { newest: Version::ZERO, keeps_results, proves_commit: false, ..facts }
            }
        }
    }

    /// Whether a segment before the one with this sequence number has records that a rollback there has invalidated.
    fn has_rolled_back_before(&self, at: usize, sequence: u64) -> bool {
        let segment_bytes = self.options.segment_bytes;
        let has = |at: usize| {
            let mut before = self.ranges[at].segments.range(..sequence);
            before
                .any(|(_, &slot)| self.segments.expect(slot).invalidated().are_rolled_back_in(sequence, segment_bytes))
        };
        has(at) || (self.is_of_family(at) && self.family(at).into_iter().any(has))
    }

    fn drop_segment(&mut self, slot: u32) {
        let Some(segment) = self.segments.remove(slot) else { return };
        self.scrub_dropped();
        for share in &segment.shares {
            let range = &mut self.ranges[share.range];
            range.segments.remove(&segment.sequence);
            range.lowest_puts.remove(segment.sequence);
            range.dead_puts_hidden_from.remove(segment.sequence);
            range.lowest_tombstones.remove(segment.sequence);
            range.shows_hidden = true;
            self.release_held(share.range);
            if self.is_of_family(share.range) {
                for at in self.family(share.range) {
                    self.ranges[at].shows_hidden = true;
                    self.release_held(at);
                }
            }
        }
        let edit_end = self.manifest.commit(&[ManifestEdit::DropSegment { slot, uuid: segment.uuid }]);
        self.drops.dropping.push(Dropping { segment, edit_end });
    }

    /// Unlinks segments whose removal from the manifest is durable.
    pub(crate) fn unlink_dropped(&mut self) {
        let (mut i, before) = (0, self.drops.dropping.len());
        while i < self.drops.dropping.len() {
            if !self.manifest.is_durable(self.drops.dropping[i].edit_end) {
                i += 1;
                continue;
            }
            let Dropping { segment, .. } = self.drops.dropping.swap_remove(i);
            // Its cached pages age out: file numbers are not reused.
            self.device.close(segment.file);
            if self.unlink(segment.name, u64::from(self.options.segment_bytes)) {
                self.note_freed();
            }
            self.stats.segments_dropped += 1;
        }
        if self.drops.dropping.len() < before {
            self.measure_device();
        }
    }

    /// Tries again to unlink the files whose unlink was refused.
    pub(crate) fn retry_unlinks(&mut self) {
        if self.drops.unlink_at().is_some_and(|at| self.now.mono >= at) {
            let mut names = core::mem::take(&mut self.drops.refused).into_iter();
            // Where one is refused, the others are as well.
            while let Some((name, bytes)) = names.next()
                && self.unlink(name, bytes)
            {
                self.note_freed();
            }
            self.drops.refused.extend(names);
            self.measure_device();
        }
    }

    /// Unlinks a file that is not listed any more, now or later. Returns whether it is gone.
    pub(in crate::engine) fn unlink(&mut self, name: String, bytes: u64) -> bool {
        // If the unlink does not survive a crash, recovery removes the file as an orphan.
        match self.device.unlink(&name) {
            // The file was removed from outside; nothing reads it any more.
            Ok(()) | Err(DeviceError::NotFound { .. }) => return true,
            Err(error) if error.is_retryable() => {
                self.drops.refused.push((name, bytes));
                self.drops.unlink_at = self.now.mono.plus_ms(RETRY_MS);
            }
            Err(error) => drop(self.poison(&error)),
        }
        false
    }

    /// Space was freed: a full device is tried again at once.
    pub(in crate::engine) fn note_freed(&mut self) {
        self.cleaner.note_change();
        self.sorted.note_freed(self.now.mono);
        self.retry_at = MonoMs(0);
    }
}

#[cfg(test)]
mod tests;

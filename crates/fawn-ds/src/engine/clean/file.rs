//! Filing: after a split or merge, the index entries of a retired range move to the ranges that took over its keys.
//!
//! It reads each segment in which a retired range has a part, once, with the reader and at the pace of cleaning. Entries move
//! as their records are met. The counts of the segment for the heirs take effect at its end, for all retired ranges in it
//! at once, so a pass that is given up leaves everything as it was.
use super::super::Engine;
use super::victim::{Victim, VictimPurpose};
use crate::format::RangeNumber;
use crate::format::record::{RecordKind, Stored};
use crate::format::segment::StreamKind;
use crate::log::segments::{RangeShare, Segment};
use crate::overlay::ReplacedRecord;
use crate::range::RangeState;
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Version};

/// Time after which segments that could not be filed are tried again.
const RETRY_MS: u64 = 10_000;

/// State of filing between segments.
#[derive(Debug, Default)]
pub(super) struct FilingState {
    /// The last victim was filed: cleaning is next.
    pub(super) was_last: bool,
    retry_at: MonoMs,
}

impl<D: Device> Engine<D> {
    /// Number of segments with records of split or merged ranges that are not filed yet. Polls file them; if nothing is in
    /// flight, no event says that the next poll is due.
    pub fn segments_to_file(&self) -> usize {
        self.ranges.iter().filter(|range| range.is_retired()).map(|range| range.segments.len()).sum()
    }

    /// Begins with the oldest segment in which a retired range has a part.
    pub(super) fn choose_to_file(&mut self) -> bool {
        if self.checkpoints.is_copying() {
            // Entries that move would be in the image twice, or in neither place. A copy begins only without a victim
            // whose entries move.
            return false;
        }
        let now = self.now.mono;
        // While the entries of a segment are removed because it was sorted, none may move to an index that was passed.
        let is_ready = |slot: u32| {
            let is_ready = |segment: &Segment| {
                let is_free = !segment.is_filing_failed && (!segment.is_gathered || segment.is_sorted);
                let is_free = is_free && !segment.failures.is_hanging();
                is_free && (segment.stream == StreamKind::Foreground || self.is_written(segment))
            };
            self.segments.get(slot).is_some_and(is_ready)
        };
        let parts = self.ranges.iter().filter(|range| range.is_retired()).flat_map(|range| &range.segments);
        let Some(slot) = parts.filter(|&(_, &slot)| is_ready(slot)).min().map(|(_, &slot)| slot) else {
            if now >= self.cleaner.filing.retry_at && self.has_retired() {
                self.cleaner.filing.retry_at = now.plus_ms(RETRY_MS);
                self.segments.iter_mut().for_each(|segment| segment.is_filing_failed = false);
            }
            return false;
        };
        // A retired range's records are synced, but for survivors, so they are in frames that are written whole.
        let end = self.segments.expect(slot).end.min(self.written_frames_end(slot));
        self.segments.expect_mut(slot).pins += 1;
        self.cleaner.begin(Victim::new(slot, end, VictimPurpose::File(Vec::new())), self.now.mono);
        true
    }

    /// Whether the survivors' segment is written up to its last record. Copies of deletes have no index entries that would be
    /// missed: filing would end without them, and nothing would keep the segment.
    fn is_written(&self, segment: &Segment) -> bool {
        let stream = &self.streams[StreamKind::Survivors];
        let is_active = stream.window.active().is_some_and(|chunk| chunk.slot == segment.slot);
        let is_open = is_active && stream.flush.open.is_some();
        !is_open && segment.end <= self.written_frames_end(segment.slot)
    }

    /// Makes the segment that is being filed begin again: the ranges have changed.
    pub(crate) fn restart_filing(&mut self) {
        if let Some(victim) = self.cleaner.victim.as_mut().filter(|victim| victim.is_filed()) {
            victim.is_given_up = true;
        }
    }

    /// Files the record, and counts it for the range that it belongs to if that still inherits its part of the segment.
    pub(super) fn file_and_count(
        &mut self,
        (slot, offset): (u32, u32),
        stored: &Stored<'_>,
        counts: &mut Vec<RangeShare>,
    ) {
        let (record, number) = (&stored.record, stored.envelope.number);
        match record.kind {
            RecordKind::Put | RecordKind::Tombstone | RecordKind::Result => {}
            RecordKind::Rollback => return self.count_rollback(slot, number, counts),
            // Clears are listed. Marks say nothing: all is committed.
            RecordKind::Clear | RecordKind::CommitMark => return,
        }
        if self.ranges.iter().any(|range| range.number == number && range.id.is_some()) {
            return;
        }
        let owner = self.heir_of(number, record.key).map(|(at, _)| at);
        let (pointer, len_bytes) = (self.segments.pointer(slot, offset), stored.encoded_len as u32);
        let hash = KeyHash::of(&self.secret, record.key);
        if self.is_indexed(record.kind) {
            self.file_record(owner, hash, ReplacedRecord { pointer, len_bytes });
        }
        let kind = match record.kind {
            // The run contains the records that counted.
            RecordKind::Put | RecordKind::Tombstone if self.segments.expect(slot).is_sorted => RecordKind::Tombstone,
            // A delete of a time without runs has no entry.
            RecordKind::Tombstone
                if owner.is_some_and(|at| self.candidates(at, hash).any(|found| found == pointer)) =>
            {
                RecordKind::Put
            }
            kind => kind,
        };
        let is_invalidated = self.is_invalidated((slot, offset), number, record.version);
        if let Some(at) = owner.filter(|&at| self.is_unfiled(slot, at)) {
            // Also for a record that was rolled back, the heir has a part in the segment: it keeps the segment of the rollback.
            let share = share_of(counts, at);
            if !is_invalidated && self.is_uncounted(slot, at) {
                share.enter(record.version, kind);
            }
        }
    }

    fn count_rollback(&mut self, slot: u32, number: RangeNumber, counts: &mut Vec<RangeShare>) {
        let state = self.manifest.state();
        for (at, range) in self.ranges.iter().enumerate() {
            let entry = range.id.and_then(|id| state.ranges.get(&id));
            let has_number = entry.is_some_and(|entry| entry.lineage.iter().any(|known| known.number == number));
            if has_number && self.is_unfiled(slot, at) {
                share_of(counts, at).enter(Version::ZERO, RecordKind::Rollback);
            }
        }
    }

    /// Whether a range that this one inherits from has a part of the segment.
    fn is_unfiled(&self, slot: u32, at: usize) -> bool {
        self.inherited_parts(slot, at).next().is_some()
    }

    /// Whether puts are counted for such a part: records of its lineage are counted there.
    fn is_uncounted(&self, slot: u32, at: usize) -> bool {
        self.inherited_parts(slot, at).any(|share| !share.is_counted_by_heirs)
    }

    fn inherited_parts(&self, slot: u32, at: usize) -> impl Iterator<Item = &RangeShare> {
        let segment = self.segments.expect(slot);
        self.ranges[at].inherited.iter().filter_map(|&from| segment.share(from))
    }

    /// All records of the segment were met: it counts them for the heirs, and the retired ranges have no part in it.
    pub(super) fn end_filing(&mut self, slot: u32, counts: Vec<RangeShare>) {
        let is_retired = |share: &&RangeShare| self.ranges[share.range].is_retired();
        let retired: Vec<RangeShare> = self.segments.expect(slot).shares.iter().filter(is_retired).copied().collect();
        if retired.iter().any(|share| share.live_records > 0) {
            debug_assert!(false, "slot {slot}: records of {retired:?} were not met");
            return self.filing_failed(slot, "the index points to records that it does not have");
        }
        let sequence = self.segments.expect(slot).sequence;
        for share in &retired {
            let range = &mut self.ranges[share.range];
            range.segments.remove(&sequence);
            range.lowest_puts.remove(sequence);
            range.dead_puts_hidden_from.remove(sequence);
            range.lowest_tombstones.remove(sequence);
            range.held.retain(|&(_, held), _| held != sequence);
            self.segments.expect_mut(slot).remove_share(share.range);
        }
        for mut counted in counts {
            let at = counted.range;
            let inherits = |share: &&RangeShare| self.ranges[at].inherited.contains(&share.range);
            // Records that a lookup found expired hide older ones like tombstones, and only the segment says so.
            let hides = retired.iter().filter(inherits).map(|share| share.hides_below).max();
            counted.hides_below = hides.unwrap_or_default();
            self.segments.expect_mut(slot).add_share(&counted);
            self.note_lowest(at, slot);
        }
        for share in retired {
            for at in self.family(share.range) {
                self.ranges[at].shows_hidden = true;
                self.release_held(at);
            }
        }
        self.drops.examine.push((slot, sequence));
        self.sorted.note_change();
        self.stats.segments_filed += 1;
    }

    /// Leaves the segment with the retired ranges, whose index goes on serving.
    pub(super) fn filing_failed(&mut self, slot: u32, detail: &str) {
        self.cleaner.filing.retry_at = self.now.mono.plus_ms(RETRY_MS);
        let segment = self.segments.expect_mut(slot);
        segment.is_filing_failed = true;
        tracing::warn!(file = %segment.name, %detail, "a segment cannot be filed after a split or merge: counts stay estimates");
        self.stats.filing_failed += 1;
    }

    /// Whether cleaning or filing moves entries of retired ranges now.
    pub(crate) fn moves_retired(&self) -> bool {
        let Some(victim) = &self.cleaner.victim else { return false };
        if self.cleaner.is_stopped && self.cleaner.moves.is_empty() {
            // A close begins: the victim stays as it is.
            return false;
        }
        let shares = &self.segments.expect(victim.slot).shares;
        shares.iter().any(|share| self.ranges[share.range].is_retired())
    }

    /// Whether a retired range has a part of the segment.
    pub(in crate::engine) fn has_retired_part(&self, shares: &[RangeShare]) -> bool {
        shares.iter().any(|share| RangeState::is_retired(&self.ranges[share.range]))
    }
}

/// The counts of a range, from zero at first.
fn share_of(counts: &mut Vec<RangeShare>, at: usize) -> &mut RangeShare {
    let found = counts.iter().position(|share| share.range == at).unwrap_or_else(|| {
        counts.push(RangeShare::none(at));
        counts.len() - 1
    });
    &mut counts[found]
}

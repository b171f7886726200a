//! Copies of open results: kept for retries without the log around them.
//!
//! A result is open until its session acknowledges it, and a session may stay silent for ever. Where a bound gives up the
//! log that a range retains, the open results in it are copied to the survivors' stream first, results of a transfer included.
//! Copies are copied again once their segment is half dead.
use super::Engine;
use super::segments::RETRY_MS;
use crate::error::EngineError;
use crate::format::record::{RecordKind, RecordRef};
use crate::format::segment::StreamKind;
use crate::range::{RangeState, Retained, UnsyncedCopies};
use core::ops::Range;
use fawn_flash::Device;
use fawn_types::{ClientTag, RangeId, Version};
use std::collections::{BTreeSet, VecDeque};

impl<D: Device> Engine<D> {
    /// Whether [`Engine::copy_results`] is to be called, because open results keep log that is to be given up.
    pub fn must_copy_results(&self, range: RangeId) -> bool {
        let Ok(at) = self.range_at(range) else { return false };
        let range = &self.ranges[at];
        let Some(before) = range.result_copies.due_before else { return false };
        let is_waiting = range.result_copies.unsynced.is_some() || self.now.mono < range.result_copies.copy_at;
        // An opening takes survivors for committed.
        let is_durable = is_durable_before(range, before);
        !is_waiting && is_durable && range.copy.is_none() && self.check_writable().is_ok()
    }

    /// Copies the open results of one segment that is to be given up, which goes once the copies are synced. `open` returns
    /// the tag of the operation whose record has this version, and appends its result, if that may still be requested.
    ///
    /// One segment at a time: a full store has space for these copies, and gets more with the segment.
    pub fn copy_results(&mut self, range: RangeId, mut open: impl FnMut(Version, &mut Vec<u8>) -> Option<ClientTag>) {
        if !self.must_copy_results(range) {
            return;
        }
        let Ok(at) = self.range_at(range) else { return };
        let Some(before) = self.ranges[at].result_copies.due_before else { return };
        self.forget_closed(at, &mut open);
        let copied = match self.due_copies(at, before) {
            Some(due) => self.copy_again(at, due, &mut open),
            None => self.copy_originals(at, before, &mut open),
        };
        if copied.is_err() {
            // The copies so far count at the next attempt.
            self.ranges[at].result_copies.copy_at = self.now.mono.plus_ms(RETRY_MS);
        }
        self.sync_for_waiting();
        self.tend_result_copies();
        self.device.kick();
    }

    /// Forgets the copies of results that are not open any more.
    fn forget_closed(&mut self, at: usize, open: &mut impl FnMut(Version, &mut Vec<u8>) -> Option<ClientTag>) {
        let (kept, mut result) = (&mut self.ranges[at].result_copies.kept, Vec::new());
        let count = kept.len();
        kept.retain(|copy| {
            result.clear();
            open(copy.version, &mut result).is_some()
        });
        if kept.len() < count {
            self.release_held(at);
            self.cleaner.note_change();
        }
    }

    /// Copies what is open of these copies, which are all of one segment.
    fn copy_again(
        &mut self,
        at: usize,
        due: Range<usize>,
        open: &mut impl FnMut(Version, &mut Vec<u8>) -> Option<ClientTag>,
    ) -> Result<(), EngineError> {
        let kept = &self.ranges[at].result_copies.kept;
        let mut later: BTreeSet<Version> = kept.range(due.end..).map(|copy| copy.version).collect();
        let versions: Vec<Version> = kept.range(due.clone()).map(|copy| copy.version).collect();
        for version in versions {
            if later.insert(version) {
                self.copy_result(at, version, open)?;
            }
        }
        let end = self.survivors_end();
        let copies = &mut self.ranges[at].result_copies;
        let replaced = copies.kept.drain(due).collect();
        copies.unsynced = Some(UnsyncedCopies { before: 0, below: copies.copied_below, end, replaced });
        Ok(())
    }

    /// Copies open results of the foreground's segments before this sequence number, up to the end of the first segment with one.
    fn copy_originals(
        &mut self,
        at: usize,
        before: u64,
        open: &mut impl FnMut(Version, &mut Vec<u8>) -> Option<ClientTag>,
    ) -> Result<(), EngineError> {
        let RangeState { copied_results, retained, result_copies, .. } = &self.ranges[at];
        let mut copied: BTreeSet<Version> = result_copies.kept.iter().map(|copy| copy.version).collect();
        let originals = copied_results.iter().chain(retained).filter(|kept| kept.sequence < before);
        let mut originals: Vec<(u64, Version)> = originals.map(|kept| (kept.sequence, kept.version)).collect();
        originals.sort_by_key(|(sequence, _)| *sequence);
        let (mut last, mut copied_to) = (None, before);
        for (sequence, version) in originals {
            if last.is_some_and(|last| sequence > last) {
                copied_to = sequence;
                break;
            }
            if copied.insert(version) && self.copy_result(at, version, open)? {
                last = Some(sequence);
            }
        }
        let end = self.survivors_end();
        let range = &mut self.ranges[at];
        let below = match newest_retained_before(range, copied_to) {
            Some(newest) => Version::from_u64(newest.as_u64() + 1),
            None => range.result_copies.copied_below,
        };
        range.result_copies.due_before = (copied_to < before).then_some(before);
        range.result_copies.unsynced =
            Some(UnsyncedCopies { before: copied_to, below, end, replaced: VecDeque::new() });
        Ok(())
    }

    /// Copies the result of this record if it is open. Returns whether it is.
    fn copy_result(
        &mut self,
        at: usize,
        version: Version,
        open: &mut impl FnMut(Version, &mut Vec<u8>) -> Option<ClientTag>,
    ) -> Result<bool, EngineError> {
        let mut result = Vec::new();
        let Some(tag) = open(version, &mut result) else { return Ok(false) };
        let record = RecordRef { tag, result: &result, ..RecordRef::bare(RecordKind::Result, version, &[]) };
        let number = self.ranges[at].number;
        let (pointer, len_bytes) = self.append_survivor(at, number, &record, RecordKind::Result)?;
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        self.ranges[at].result_copies.kept.push_back(Retained { version, pointer, len_bytes, sequence });
        Ok(true)
    }

    /// The range's copies in the oldest segment before this sequence number that is at least half dead without them. On a full
    /// store, others would be copied for ever without a gain.
    fn due_copies(&self, at: usize, before: u64) -> Option<Range<usize>> {
        let kept = &self.ranges[at].result_copies.kept;
        let mut from = 0;
        while let Some(first) = kept.get(from).filter(|first| first.sequence < before) {
            let to = from + kept.range(from..).take_while(|copy| copy.sequence == first.sequence).count();
            let segment = self.segments.expect(self.segments.slot_and_offset(first.pointer).0);
            let copies_bytes: u64 = kept.range(from..to).map(|copy| u64::from(copy.len_bytes)).sum();
            if segment.sealed && (segment.live_bytes() + copies_bytes) * 2 <= u64::from(segment.end) {
                return Some(from..to);
            }
            from = to;
        }
        None
    }

    /// Notes that results of the range are to be copied if they keep segments before this sequence number that are to be given up.
    /// Returns whether copies that free space are to be made, which is new, or in progress.
    pub(super) fn note_due_results(&mut self, at: usize, before: u64) -> bool {
        let has_due_copies = self.due_copies(at, before).is_some();
        let range = &mut self.ranges[at];
        let is_before = |kept: Option<&Retained>| kept.is_some_and(|kept| kept.sequence < before);
        let has_originals = is_before(range.copied_results.front()) || is_before(range.retained.front());
        // Other copies may be of results that are not open any more.
        if !has_originals && !is_before(range.result_copies.kept.front()) {
            return false;
        }
        let former = range.result_copies.due_before.replace(before);
        let is_new = former.is_none_or(|former| former < before);
        (is_new && (has_originals || has_due_copies)) || range.result_copies.unsynced.is_some()
    }

    /// Whether the originals of copies stay until these are synced.
    pub(super) fn result_copies_wait_for_sync(&self) -> bool {
        self.ranges.iter().any(|range| range.result_copies.unsynced.is_some())
    }

    /// Gives up the originals of the copies that are synced, and asks for the marks that copies wait for.
    pub(super) fn tend_result_copies(&mut self) {
        let synced = self.streams[StreamKind::Survivors].flush.synced;
        for at in 0..self.ranges.len() {
            let range = &mut self.ranges[at];
            if range.result_copies.due_before.is_some_and(|before| !is_durable_before(range, before)) {
                // On a full store nothing else writes one.
                range.marks.is_wanted = true;
            }
            let Some(UnsyncedCopies { before, below, .. }) =
                range.result_copies.unsynced.take_if(|unsynced| unsynced.end <= synced)
            else {
                continue;
            };
            range.result_copies.copied_below = below;
            while range.copied_results.pop_front_if(|result| result.sequence < before).is_some() {}
            range.drop_retained_before(before);
            self.release_held(at);
            self.cleaner.note_change();
        }
    }

    /// The copies that these ranges keep, in the order of the stream.
    pub(super) fn result_copies_of(&self, ranges: &[usize]) -> VecDeque<Retained> {
        let copies = ranges.iter().map(|&at| &self.ranges[at].result_copies);
        let replaced = copies.clone().filter_map(|copies| copies.unsynced.as_ref()).flat_map(|copies| &copies.replaced);
        let mut kept: Vec<Retained> = copies.flat_map(|copies| &copies.kept).chain(replaced).copied().collect();
        kept.sort_by_key(|copy| (copy.sequence, copy.pointer));
        kept.dedup_by_key(|copy| (copy.sequence, copy.pointer));
        kept.into()
    }
}

/// The newest committed record that the range retains in segments before this sequence number.
fn newest_retained_before(range: &RangeState, before: u64) -> Option<Version> {
    let count = range.retained.partition_point(|kept| kept.sequence < before);
    count.checked_sub(1).map(|last| range.retained[last].version)
}

/// Whether all that the range retains in segments before this sequence number is durably committed.
fn is_durable_before(range: &RangeState, before: u64) -> bool {
    newest_retained_before(range, before).is_none_or(|newest| newest <= range.durably_committed())
}

//! Copies of open results: kept for retries without the log around them.
//!
//! A result is open until its session acknowledges it, and a session may stay silent for ever. Where a bound gives up the
//! log that a range retains, the open results in it are copied to the survivors' stream first, results of a transfer included.
//! Copies are copied again where they keep a segment with much more than them to free.
use super::Engine;
use super::clean::PROGRESS_MS_MAX;
use super::segments::RETRY_MS;
use crate::error::EngineError;
use crate::format::record::{self, RecordKind, RecordRef};
use crate::format::segment::StreamKind;
use crate::range::{RangeState, ResultCopy, Retained, UnsyncedCopies};
use core::ops::Range;
use fawn_flash::Device;
use fawn_types::{ClientTag, MonoMs, RangeId, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[cfg(test)]
mod tests;

/// Maximum bytes of results in one call, with the one that exceeds it.
const COPY_BYTES: usize = 1 << 20;
/// Minimum time between two warnings of a range, ms.
const WARN_MS: u64 = 60_000;

/// A result that may still be requested, by the record that has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpenResult {
    version: Version,
    session: u64,
    seq: u64,
}

impl OpenResult {
    /// The result of the operation with this tag, in a record of this version.
    #[must_use]
    pub const fn new(version: Version, tag: ClientTag) -> Self {
        Self { version, session: tag.session, seq: tag.seq }
    }

    const fn tag(self) -> ClientTag {
        ClientTag { session: self.session, seq: self.seq }
    }
}

/// The open results of a range, and their encoding.
struct OpenResults<'a, F> {
    /// In ascending order. Records of a merged range may have one version.
    open: &'a [OpenResult],
    put_result: F,
    left_bytes: usize,
    /// Their copies may take a further segment.
    may_take_segment: bool,
}

impl<'a, F> OpenResults<'a, F> {
    fn of_version(&self, version: Version) -> &'a [OpenResult] {
        let from = self.open.partition_point(|open| open.version < version);
        let of_version = self.open[from..].partition_point(|open| open.version == version);
        &self.open[from..from + of_version]
    }

    /// The open results that this is a copy of: without its tag, all of its version.
    fn of_copy(&self, copy: &ResultCopy) -> impl Iterator<Item = OpenResult> + use<'a, F> {
        let tag = copy.tag;
        self.of_version(copy.record.version).iter().copied().filter(move |open| !tag.is_some() || open.tag() == tag)
    }
}

/// Open results that are to be copied.
#[derive(Clone, Copy)]
struct DueResults {
    /// They are in segments before this sequence number.
    before: u64,
    /// The newest of these records of the range's history.
    through: Version,
    /// The segments are to be given up. Otherwise only the number of records is too large.
    is_given_up: bool,
}

impl DueResults {
    /// An opening takes survivors for committed.
    fn is_durable(&self, range: &RangeState) -> bool {
        self.through <= range.durably_committed()
    }

    /// No mark says yet that they are committed.
    fn is_unmarked(&self, range: &RangeState) -> bool {
        range.needs_marks() && self.through > range.marks.appended
    }
}

impl<D: Device> Engine<D> {
    /// Whether [`Engine::copy_results`] is to be called, because open results keep log that is to be given up.
    pub fn must_copy_results(&self, range: RangeId) -> bool {
        self.range_at(range).is_ok_and(|at| self.copyable_results(at).is_some())
    }

    /// Copies the open results of one segment that is to be given up, which goes once the copies are synced. `open` has all results
    /// that may still be requested, in ascending order, and `put_result` appends one of them.
    ///
    /// One segment at a time: a full store has space for these copies, and gets more with the segment.
    pub fn copy_results(
        &mut self,
        range: RangeId,
        open: &[OpenResult],
        put_result: impl FnMut(ClientTag, &mut Vec<u8>),
    ) {
        debug_assert!(open.is_sorted(), "open results are searched by version");
        let Ok(at) = self.range_at(range) else { return };
        let Some(due) = self.copyable_results(at) else { return };
        let mut open = OpenResults { open, put_result, left_bytes: COPY_BYTES, may_take_segment: true };
        self.forget_closed(at, &open);
        let keeps_tombstones = self.copies_keeping_tombstones(at).filter(|_| due.is_given_up);
        let copied = match keeps_tombstones.or_else(|| self.due_copies(at, due.before)) {
            Some(copies) => self.copy_again(at, copies, &mut open),
            None => {
                open.may_take_segment = self.may_take_segment(at, &due);
                self.copy_originals(at, due, &mut open)
            }
        };
        if copied.is_ok() || open.left_bytes < COPY_BYTES {
            self.ranges[at].result_copies.progressed_at = self.now.mono;
        }
        // The copies so far count at the next attempt, which follows at once if there are too many for one.
        if copied.is_err() && open.left_bytes > 0 {
            self.ranges[at].result_copies.copy_at = self.now.mono.plus_ms(RETRY_MS);
            if open.may_take_segment {
                self.prepare_for_copies();
            }
        }
        self.sync_for_waiting();
        self.tend_result_copies();
        self.device.kick();
    }

    /// The results of the range that are to be copied now.
    fn copyable_results(&self, at: usize) -> Option<DueResults> {
        let range = &self.ranges[at];
        let copies = &range.result_copies;
        if copies.unsynced.is_some() || self.now.mono < copies.copy_at || range.is_beginning() {
            return None;
        }
        let is_ready = |due: &DueResults| due.is_durable(range) && !self.lacks_space_for(due);
        self.due_results(at).find(is_ready).filter(|_| self.check_writable().is_ok())
    }

    /// The copies of a victim have a full store's space first, then those of one range at a time: cleaning has reckoned with it.
    fn lacks_space_for(&self, due: &DueResults) -> bool {
        due.is_given_up && self.full && (self.cleaner.is_cleaning() || self.result_copies_wait_for_sync())
    }

    /// Whether copies of these results may take a further segment. The last one is left to cleaning, unless the log that is given up
    /// has about as many dead bytes, or results would be dropped otherwise: the results of live records free nothing.
    fn may_take_segment(&self, at: usize, due: &DueResults) -> bool {
        if self.survivors_room().segments > 1 {
            return true;
        }
        let RangeState { copied_results, retained, .. } = &self.ranges[at];
        if !due.is_given_up {
            return retained.len().max(copied_results.len()) > self.needed_max / 4 * 3;
        }
        let Some(oldest) = oldest_kept(&self.ranges[at]) else { return false };
        let given_up = self.segments.iter().filter(|segment| {
            segment.stream == StreamKind::Foreground && (oldest..due.before).contains(&segment.sequence)
        });
        let dead_bytes: u64 = given_up.map(|segment| segment.dead_bytes(self.kept_tombstone_bytes(segment))).sum();
        dead_bytes >= u64::from(self.options.segment_bytes) / 4 * 3
    }

    /// The results of the range that a bound is about to give up, of log and of a number of records, and those whose copies keep
    /// tombstones.
    fn due_results(&self, at: usize) -> impl Iterator<Item = DueResults> + use<D> {
        let range = &self.ranges[at];
        let of_log = range.result_copies.due_before.map(|before| {
            let before = durable_before(range, before).unwrap_or(before);
            let through = newest_retained(range, before, Version::from_u64(u64::MAX)).unwrap_or(Version::ZERO);
            DueResults { before, through, is_given_up: true }
        });
        let of_number = range.results_beyond_bound(self.retained_share).map(|(last, through)| DueResults {
            before: last.sequence + 1,
            through,
            is_given_up: false,
        });
        // Nothing of the log is given up.
        let of_tombstones = self.copies_keeping_tombstones(at).map(|_| DueResults {
            before: 0,
            through: Version::ZERO,
            is_given_up: true,
        });
        of_log.into_iter().chain(of_number).chain(of_tombstones)
    }

    /// Whether results that are to be copied are not durably committed yet.
    pub(super) fn results_wait_for_mark(&self) -> bool {
        (0..self.ranges.len()).any(|at| self.due_results(at).any(|due| !due.is_durable(&self.ranges[at])))
    }

    /// Forgets the copies of results that are not open any more.
    fn forget_closed<F>(&mut self, at: usize, open: &OpenResults<'_, F>) {
        let kept = &mut self.ranges[at].result_copies.kept;
        let count = kept.len();
        kept.retain(|copy| open.of_copy(copy).next().is_some());
        if kept.len() < count {
            self.release_held(at);
            self.cleaner.note_change();
        }
    }

    /// Copies what is open of these copies, which are all of one segment.
    fn copy_again<F: FnMut(ClientTag, &mut Vec<u8>)>(
        &mut self,
        at: usize,
        due: Range<usize>,
        open: &mut OpenResults<'_, F>,
    ) -> Result<(), EngineError> {
        let kept = &self.ranges[at].result_copies.kept;
        let mut later: BTreeSet<OpenResult> = kept.range(due.end..).map(ResultCopy::result).collect();
        let results: Vec<OpenResult> = kept.range(due.clone()).flat_map(|copy| open.of_copy(copy)).collect();
        for result in results {
            if later.insert(result) {
                self.copy_result(at, result, open)?;
            }
        }
        let end = self.survivors_end();
        let copies = &mut self.ranges[at].result_copies;
        let replaced = copies.kept.drain(due).collect();
        let below = copies.copied_below;
        copies.unsynced =
            Some(UnsyncedCopies { before: 0, transferred_to: None, below, is_given_up: false, end, replaced });
        Ok(())
    }

    /// Copies open results of these records of the foreground, up to the end of the first segment with one.
    fn copy_originals<F: FnMut(ClientTag, &mut Vec<u8>)>(
        &mut self,
        at: usize,
        due: DueResults,
        open: &mut OpenResults<'_, F>,
    ) -> Result<(), EngineError> {
        let DueResults { before, through, is_given_up } = due;
        let RangeState { copied_results, retained, result_copies, .. } = &self.ranges[at];
        let mut copied: BTreeSet<OpenResult> = result_copies.kept.iter().map(ResultCopy::result).collect();
        let of_history = retained.iter().take_while(|kept| kept.version <= through);
        let originals = copied_results.iter().chain(of_history).filter(|kept| kept.sequence < before);
        let mut originals: Vec<(u64, Version)> = originals.map(|kept| (kept.sequence, kept.version)).collect();
        originals.sort_by_key(|(sequence, _)| *sequence);
        let (mut last, mut copied_to) = (None, before);
        for (sequence, version) in originals {
            if last.is_some_and(|last| sequence > last) {
                copied_to = sequence;
                break;
            }
            for &result in open.of_version(version) {
                if copied.insert(result) {
                    self.copy_result(at, result, open)?;
                    last = Some(sequence);
                }
            }
        }
        let end = self.survivors_end();
        let range = &mut self.ranges[at];
        let below = match newest_retained(range, copied_to, through) {
            Some(newest) => Version::from_u64(newest.as_u64() + 1),
            None => range.result_copies.copied_below,
        };
        let copies = &mut range.result_copies;
        if is_given_up {
            copies.due_before.take_if(|due_before| *due_before <= copied_to);
        }
        let (before, replaced) = (copied_to, VecDeque::new());
        // Results of a transfer in progress may follow in the same segment before the copies are synced.
        let transferred = range.copied_results.iter().filter(|kept| kept.sequence < before);
        let transferred_to = transferred.map(|kept| (kept.sequence, kept.pointer)).max();
        copies.unsynced = Some(UnsyncedCopies { before, transferred_to, below, is_given_up, end, replaced });
        Ok(())
    }

    fn copy_result<F: FnMut(ClientTag, &mut Vec<u8>)>(
        &mut self,
        at: usize,
        result: OpenResult,
        open: &mut OpenResults<'_, F>,
    ) -> Result<(), EngineError> {
        if open.left_bytes == 0 {
            return Err(EngineError::Overloaded);
        }
        let (version, tag, mut bytes) = (result.version, result.tag(), Vec::new());
        (open.put_result)(tag, &mut bytes);
        let record = RecordRef { tag, result: &bytes, ..RecordRef::bare(RecordKind::Result, version, &[]) };
        if !open.may_take_segment && self.needs_segment_for_copy(record::encoded_len(&record)) {
            return Err(EngineError::StoreFull);
        }
        let number = self.ranges[at].number;
        let (pointer, len_bytes) = self.append_survivor(at, number, &record, RecordKind::Result)?;
        open.left_bytes = open.left_bytes.saturating_sub(len_bytes as usize);
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        let record = Retained { version, pointer, len_bytes, sequence };
        self.ranges[at].result_copies.kept.push_back(ResultCopy { record, tag });
        Ok(())
    }

    /// The range's copies in the oldest segment before this sequence number that is worth it: without the copies of all ranges there
    /// is twice as much to free as they have, and enough for cleaning. Others would be copied for ever without a gain.
    fn due_copies(&self, at: usize, before: u64) -> Option<Range<usize>> {
        let kept = &self.ranges[at].result_copies.kept;
        let mut from = 0;
        while let Some(first) = kept.get(from).map(|first| first.record).filter(|first| first.sequence < before) {
            let to = kept.partition_point(|copy| copy.record.sequence <= first.sequence);
            let segment = self.segments.expect(self.segments.slot_and_offset(first.pointer).0);
            let copied_bytes = self.result_copies_bytes(first.sequence);
            let dead_bytes = segment.dead_bytes(self.kept_tombstone_bytes(segment)).saturating_sub(copied_bytes);
            if segment.sealed && dead_bytes >= (2 * copied_bytes).max(u64::from(self.options.segment_bytes) / 20) {
                return Some(from..to);
            }
            from = to;
        }
        None
    }

    /// Notes that only copies of results keep the sealed segment with this sequence number from being cleaned, and its dead puts keep
    /// tombstones. So they are copied again however few bytes are dead: at most once for each segment that survivors fill, and only
    /// while tombstones take much: `None` once they do not.
    pub(super) fn note_due_copies(&mut self, sequence: Option<u64>) {
        for range in &mut self.ranges {
            range.result_copies.keeps_tombstones = sequence;
        }
    }

    /// The range's copies in the segment that was noted so last.
    fn copies_keeping_tombstones(&self, at: usize) -> Option<Range<usize>> {
        let copies = &self.ranges[at].result_copies;
        let sequence = copies.keeps_tombstones?;
        let from = copies.kept.partition_point(|copy| copy.record.sequence < sequence);
        let to = copies.kept.partition_point(|copy| copy.record.sequence <= sequence);
        (from < to).then_some(from..to)
    }

    /// Bytes of the copies that ranges keep in this segment. Heirs of one range keep the same copies.
    pub(super) fn result_copies_bytes(&self, sequence: u64) -> u64 {
        let kept = self.ranges.iter().flat_map(|range| range.result_copies.kept_in(sequence));
        let lengths: BTreeMap<_, _> = kept.map(|copy| (copy.record.pointer, copy.record.len_bytes)).collect();
        lengths.into_values().map(u64::from).sum()
    }

    /// Notes that results of the range are to be copied if they keep segments before this sequence number that are to be given up.
    /// Returns whether copies that free space are to be made, which is new, or in progress.
    pub(super) fn note_due_results(&mut self, at: usize, before: u64) -> bool {
        let range = &mut self.ranges[at];
        let is_before = |kept: Option<&Retained>| kept.is_some_and(|kept| kept.sequence < before);
        let has_originals = is_before(range.copied_results.front()) || is_before(range.retained.front());
        // Other copies may be of results that are not open any more.
        if !has_originals && !is_before(range.result_copies.kept.front().map(|copy| &copy.record)) {
            return self.are_synced_soon(at);
        }
        let former = range.result_copies.due_before;
        let is_new = former.is_none_or(|former| former < before);
        range.result_copies.due_before = former.max(Some(before));
        if range.result_copies.unsynced.is_some() {
            return self.are_synced_soon(at);
        }
        let has_gain = has_originals || self.due_copies(at, before).is_some();
        if has_gain && is_new {
            self.ranges[at].result_copies.progressed_at = self.now.mono;
            return true;
        }
        has_gain && (self.are_committed_soon(at) || self.are_copied_soon(at))
    }

    /// Whether results that keep log are durably committed soon: the host copies them then. The mark says so, once it is synced: that
    /// is begun at once in any mode, and takes longer than a second only if the device hangs.
    fn are_committed_soon(&self, at: usize) -> bool {
        let range = &self.ranges[at];
        let marked_ms = self.now.mono.ms_since(range.marks.appended_at);
        self.due_results(at).any(|due| {
            let is_soon = match due.is_unmarked(range) {
                true => self.marks_retry_at.is_none() && self.has_copy_progress(at),
                false => marked_ms < PROGRESS_MS_MAX || self.has_copy_progress(at),
            };
            due.is_given_up && !due.is_durable(range) && is_soon
        })
    }

    /// Whether copies are made that free space, and are not synced yet.
    fn are_synced_soon(&self, at: usize) -> bool {
        self.ranges[at].result_copies.unsynced.is_some() && self.has_copy_progress(at)
    }

    /// Whether the host copies results that keep log in this iteration, or at its next attempt.
    fn are_copied_soon(&self, at: usize) -> bool {
        let range = &self.ranges[at];
        let is_ready = |due: DueResults| due.is_given_up && due.is_durable(range) && !self.lacks_space_for(&due);
        self.has_copy_progress(at) && !range.is_beginning() && self.due_results(at).any(is_ready)
    }

    /// Whether results of the range became due, began or ended to wait for a mark, or were copied, a moment ago. Attempts may fail for
    /// long, as with a device that hangs.
    fn has_copy_progress(&self, at: usize) -> bool {
        self.now.mono.ms_since(self.ranges[at].result_copies.progressed_at) < PROGRESS_MS_MAX
    }

    /// Time by which a poll is due that copies results, or logs the mark that copies wait for. `None`: an event brings it about.
    pub(super) fn copy_results_at(&self) -> Option<MonoMs> {
        if self.check_writable().is_err() {
            return None;
        }
        let attempts = self.ranges.iter().enumerate().filter_map(|(at, range)| {
            let copies = &range.result_copies;
            if copies.unsynced.is_some() || range.is_beginning() {
                return None;
            }
            let attempt_at = |due: DueResults| match due.is_durable(range) {
                true => (!self.lacks_space_for(&due)).then_some(copies.copy_at),
                false => due.is_unmarked(range).then_some(self.marks_retry_at.unwrap_or(self.now.mono)),
            };
            self.due_results(at).filter_map(attempt_at).min()
        });
        attempts.min().map(|at| at.max(self.now.mono))
    }

    /// Refuses if any range would lose results by the share of one of so many. Results that exceed it are due to be copied already.
    pub(super) fn check_results_fit(&self, ranges: usize) -> Result<(), EngineError> {
        let needed_max = self.options.needed_max(ranges);
        let fits = self.ranges.iter().all(|range| range.fits_needed_max(needed_max));
        if fits { Ok(()) } else { Err(EngineError::Overloaded) }
    }

    /// Warns that records which the range keeps for retries were dropped before their results were copied: too many for memory.
    #[cold]
    pub(crate) fn warn_of_dropped_results(&mut self, at: usize) {
        let warned_at = &mut self.ranges[at].result_copies.warned_at;
        if warned_at.is_some_and(|at| self.now.mono.ms_since(at) < WARN_MS) {
            return;
        }
        *warned_at = Some(self.now.mono);
        let number = self.ranges[at].number;
        tracing::warn!(
            ?number,
            "results were dropped before they were copied: retried operations may be applied twice"
        );
    }

    /// Whether the originals of copies stay until these are synced.
    pub(super) fn result_copies_wait_for_sync(&self) -> bool {
        self.ranges.iter().any(|range| range.result_copies.unsynced.is_some())
    }

    /// Gives up the originals of the copies that are synced, and asks for the marks that copies wait for.
    pub(super) fn tend_result_copies(&mut self) {
        let synced = self.streams[StreamKind::Survivors].flush.synced;
        for at in 0..self.ranges.len() {
            if self.due_results(at).any(|due| due.is_unmarked(&self.ranges[at])) {
                // On a full store nothing else writes one.
                self.ranges[at].marks.is_wanted = true;
            }
            let waits = self.due_results(at).any(|due| !due.is_durable(&self.ranges[at]));
            let range = &mut self.ranges[at];
            if core::mem::replace(&mut range.result_copies.waits_for_mark, waits) != waits {
                range.result_copies.progressed_at = self.now.mono;
            }
            let Some(UnsyncedCopies { before, transferred_to, below, is_given_up, .. }) =
                range.result_copies.unsynced.take_if(|unsynced| unsynced.end <= synced)
            else {
                continue;
            };
            (range.result_copies.copied_below, range.result_copies.progressed_at) = (below, self.now.mono);
            range.drop_copied_results_through(transferred_to, self.retained_share);
            if is_given_up {
                range.drop_retained_before(before);
            }
            self.release_held(at);
            self.cleaner.note_change();
        }
    }

    /// The copies that these ranges keep, in the order of the stream.
    pub(super) fn result_copies_of(&self, ranges: &[usize]) -> VecDeque<ResultCopy> {
        let copies = ranges.iter().map(|&at| &self.ranges[at].result_copies);
        let replaced = copies.clone().filter_map(|copies| copies.unsynced.as_ref()).flat_map(|copies| &copies.replaced);
        let mut kept: Vec<ResultCopy> = copies.flat_map(|copies| &copies.kept).chain(replaced).copied().collect();
        kept.sort_by_key(|copy| (copy.record.sequence, copy.record.pointer));
        kept.dedup_by_key(|copy| (copy.record.sequence, copy.record.pointer));
        kept.into()
    }
}

/// The segment with the first retained record before this sequence number that is not durably committed, if results are kept before it:
/// without space for a mark, only copies of these make some.
fn durable_before(range: &RangeState, before: u64) -> Option<u64> {
    let durable = range.durably_committed();
    let first = range.retained.get(range.retained.partition_point(|kept| kept.version <= durable))?.sequence;
    let has_results = oldest_kept(range).is_some_and(|oldest| oldest < first);
    (first < before && has_results).then_some(first)
}

/// The segment of the oldest record that is kept for retries.
fn oldest_kept(range: &RangeState) -> Option<u64> {
    // While a range is copied to this store, transferred results lie among the records of its history.
    [range.copied_results.front(), range.retained.front()].into_iter().flatten().map(|oldest| oldest.sequence).min()
}

/// The newest committed record, up to this version, that the range retains in segments before this sequence number.
fn newest_retained(range: &RangeState, before: u64, through: Version) -> Option<Version> {
    let count = range.retained.partition_point(|kept| kept.sequence < before && kept.version <= through);
    count.checked_sub(1).map(|last| range.retained[last].version)
}

//! State of one range: its index, its watermarks, and its records between append and commit.
use crate::engine::{KeepReason, OpenResult};
use crate::format::RangeNumber;
use crate::format::manifest::SoleEpochs;
use crate::format::segment::NumberFacts;
use crate::index::{Index, IndexOptions, Pointer};
use crate::log::LogPosition;
use crate::manifest_file::CommitNumber;
use crate::overlay::KeyName;
use fawn_types::{ClientTag, Durability, KeyRange, MonoMs, RangeId, TimeMs, Version};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Capacity that a queue of records keeps in any case.
const QUEUE_RECORDS_MIN: usize = 64;

/// The watermarks of a range, as versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeProgress {
    /// Newest version appended.
    pub appended: Version,
    /// Newest version written to the device: it survives `kill -9`.
    pub flushed: Version,
    /// Newest version that survives a power loss.
    pub synced: Version,
    /// Newest version committed, and therefore readable.
    pub committed: Version,
}

impl RangeProgress {
    /// Newest version that may be acknowledged in the mode `durability`.
    #[must_use]
    pub const fn watermark_for(&self, durability: Durability) -> Version {
        match durability {
            Durability::Sync => self.synced,
            Durability::EverySecond => self.flushed,
            Durability::Memory => self.appended,
        }
    }
}

/// Effect of an appended record at its commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PendingKind {
    /// A key's put or tombstone; details are in the overlay.
    OfKey {
        name: KeyName,
        /// A put counts as live in its segment from its append on; a tombstone never does.
        is_put: bool,
    },
    /// A result: no effect.
    Result,
    /// Empties the range.
    Clear,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingRecord {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    pub(crate) kind: PendingKind,
}

impl PendingRecord {
    /// A record in a place that is filled at once.
    pub(crate) const VACANT: Self =
        Self { version: Version::ZERO, pointer: Pointer::new(0), len_bytes: 0, kind: PendingKind::Clear };
}

/// A committed record retained for retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retained {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    /// The segment's sequence number: the slot may hold another segment by now.
    pub(crate) sequence: u64,
}

/// A range's commit marks in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    /// Newest version marked, and the sequence number of the mark's segment; 0 without a mark in this opening.
    pub(crate) appended: Version,
    pub(crate) sequence: u64,
    /// Time of that mark's append.
    pub(crate) appended_at: MonoMs,
    /// Version of a mark in the open frame.
    pub(crate) in_open_frame: Option<Version>,
    /// Newest version durably marked, and the slot of the mark's segment; no slot if the manifest proves the version.
    pub(crate) durable: Version,
    pub(crate) durable_slot: Option<u32>,
    /// A segment could be dropped if a newer mark were durable.
    pub(crate) is_wanted: bool,
}

/// Progress of an incoming state transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransferStage {
    /// The manifest edit that invalidates the range's old records is in flight.
    Beginning(CommitNumber),
    /// The range takes transferred records.
    Taking,
    /// All records are appended, before this position; they are not all synced yet.
    Syncing(LogPosition),
    /// All records are synced; the manifest edit that says so is in flight.
    Listing(CommitNumber),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransferState {
    pub(crate) base: Version,
    pub(crate) stage: TransferStage,
}

/// A range's newest committed clear.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clears {
    pub(crate) committed: Version,
    /// The manifest edit in flight that lists this clear.
    pub(crate) listing: Option<(CommitNumber, Version)>,
    /// Newest clear that the manifest durably lists: an opening ignores all older records without it.
    pub(crate) listed: Version,
}

/// The copies of a range's open results in the survivors' stream.
#[derive(Debug, Default)]
pub(crate) struct ResultCopies {
    /// In the order of the stream. May have several copies of a result, and copies of results that are not open any more.
    pub(crate) kept: VecDeque<ResultCopy>,
    /// Open results keep segments before this sequence number that are to be given up.
    pub(crate) due_before: Option<u64>,
    /// The segment whose dead puts keep tombstones, and in which copies keep these puts.
    pub(crate) keeps_tombstones: Option<u64>,
    /// Time of the next attempt to copy them.
    pub(crate) copy_at: MonoMs,
    /// Time when some were last copied, became due, or began or ended to wait for a mark.
    pub(crate) progressed_at: MonoMs,
    /// Open results that are due were not durably committed at the last poll.
    pub(crate) waits_for_mark: bool,
    pub(crate) unsynced: Option<UnsyncedCopies>,
    /// Time of the last warning that needed records were dropped before they were copied.
    pub(crate) warned_at: Option<MonoMs>,
    /// The open results of records below this version have durable copies.
    pub(crate) copied_below: Version,
}

/// Copies whose originals stay until the copies are synced.
#[derive(Debug)]
pub(crate) struct UnsyncedCopies {
    /// All open results of the foreground's segments before this sequence number are copied, and those of records below this
    /// version.
    pub(crate) before: u64,
    pub(crate) below: Version,
    /// Segment and place of the last transferred result that is copied.
    pub(crate) transferred_to: Option<(u64, Pointer)>,
    /// The segments are to be given up, with all that is retained there.
    pub(crate) is_given_up: bool,
    /// End of the copies in the survivors' stream.
    pub(crate) end: LogPosition,
    /// Older copies, of one segment.
    pub(crate) replaced: VecDeque<ResultCopy>,
}

/// A copy of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResultCopy {
    pub(crate) record: Retained,
    /// Of the operation; none if a checkpoint had the copy.
    pub(crate) tag: ClientTag,
}

impl ResultCopy {
    pub(crate) fn result(&self) -> OpenResult {
        OpenResult::new(self.record.version, self.tag)
    }
}

impl ResultCopies {
    pub(crate) fn keeps_segment(&self, sequence: u64) -> bool {
        let replaced = self.unsynced.as_ref().map(|unsynced| &unsynced.replaced);
        [Some(&self.kept), replaced]
            .into_iter()
            .flatten()
            .any(|copies| copies.binary_search_by_key(&sequence, |copy| copy.record.sequence).is_ok())
    }

    /// The copies in this segment.
    pub(crate) fn kept_in(&self, sequence: u64) -> impl Iterator<Item = &ResultCopy> {
        let from = self.kept.partition_point(|copy| copy.record.sequence < sequence);
        self.kept.range(from..).take_while(move |copy| copy.record.sequence == sequence)
    }

    /// Forgets all copies of a result but the newest, which is durable, as after an opening.
    pub(crate) fn drop_older_copies(&mut self) {
        let mut newer = BTreeSet::new();
        let is_newest = |copy: &ResultCopy| !copy.tag.is_some() || newer.insert(copy.result());
        let mut kept: Vec<ResultCopy> = self.kept.drain(..).rev().filter(is_newest).collect();
        kept.reverse();
        // Twice as long otherwise, for as long as these results are open.
        kept.shrink_to_fit();
        self.kept = kept.into();
    }
}

/// One version for each segment of a range, with the lowest of all first.
#[derive(Debug, Default)]
pub(crate) struct LowestVersions {
    by_sequence: BTreeMap<u64, Version>,
    sorted: BTreeSet<(Version, u64)>,
}

impl LowestVersions {
    const NONE: Version = Version::from_u64(u64::MAX);

    /// Sets the version of the segment with this sequence number; `u64::MAX` for none.
    pub(crate) fn set(&mut self, sequence: u64, lowest: Version) {
        self.remove(sequence);
        if lowest < Self::NONE {
            self.by_sequence.insert(sequence, lowest);
            self.sorted.insert((lowest, sequence));
        }
    }

    pub(crate) fn remove(&mut self, sequence: u64) {
        if let Some(lowest) = self.by_sequence.remove(&sequence) {
            self.sorted.remove(&(lowest, sequence));
        }
    }

    /// Whether another segment has this version or a lower one.
    pub(crate) fn has_elsewhere(&self, sequence: u64, version: Version) -> bool {
        let elsewhere = self.sorted.iter().find(|(_, found)| *found != sequence);
        elsewhere.is_some_and(|&(lowest, _)| lowest <= version)
    }

    /// The version of the segment with this sequence number; `u64::MAX` without one.
    pub(crate) fn of(&self, sequence: u64) -> Version {
        self.by_sequence.get(&sequence).copied().unwrap_or(Self::NONE)
    }

    fn clear(&mut self) {
        self.by_sequence.clear();
        self.sorted.clear();
    }
}

#[derive(Debug)]
pub(crate) struct RangeState {
    /// `None`: it takes no writes.
    pub(crate) id: Option<RangeId>,
    /// Names its records in the log.
    pub(crate) number: RangeNumber,
    pub(crate) keys: KeyRange,
    pub(crate) index: Index,
    pub(crate) progress: RangeProgress,
    pub(crate) pending: VecDeque<PendingRecord>,
    pub(crate) retained: VecDeque<Retained>,
    /// Versions up to here need not be retained; `None`: nothing is retained.
    pub(crate) retain_floor: Option<Version>,
    /// Records from here on are retained beyond a lowered bound, because their results may be requested again.
    pub(crate) needed_from: Option<Version>,
    /// `retained` has every record in `(complete_above, committed]`.
    pub(crate) complete_above: Version,
    pub(crate) pending_clear: Option<Version>,
    /// End of its last rollback in the log, of this opening.
    pub(crate) rolled_back_at: LogPosition,
    pub(crate) cleared: Clears,
    /// Its chain's time; `None`: the store's clock judges expiry.
    pub(crate) chain_time: Option<TimeMs>,
    /// Its commit marks in the log. In a sole epoch there are none.
    pub(crate) marks: Marks,
    /// Its last sole epochs, as the manifest durably lists them.
    pub(crate) sole: Option<SoleEpochs>,
    /// Whether the open frame has records of this range.
    pub(crate) in_open_frame: bool,
    /// Facts of these records, until their segment counts them.
    pub(crate) open_facts: NumberFacts,
    /// Segments with records of the range's history: slots by sequence number.
    pub(crate) segments: BTreeMap<u64, u32>,
    /// Lowest version of a put.
    pub(crate) lowest_puts: LowestVersions,
    /// Lowest version of a tombstone that may hide a put that is not live.
    pub(crate) dead_puts_hidden_from: LowestVersions,
    /// Lowest version of a tombstone without an index entry.
    pub(crate) lowest_tombstones: LowestVersions,
    /// Segments without live records that this range keeps: slots by reason and sequence number.
    pub(crate) held: BTreeMap<(KeepReason, u64), u32>,
    /// One of those reasons may have ended.
    pub(crate) is_released: bool,
    /// A segment with its records was dropped: another one may hide none any more.
    pub(crate) shows_hidden: bool,
    /// Places of the retired ranges from which it took over keys.
    pub(crate) inherited: SmallVec<[usize; 2]>,
    pub(crate) copy: Option<TransferState>,
    /// Results that came with a transfer, and records of the ranges before a split or merge: kept for retries, in the
    /// log's order, all older than the retained records.
    pub(crate) copied_results: VecDeque<Retained>,
    pub(crate) result_copies: ResultCopies,
}

/// Gives memory back that an opening, a transfer, or a commit of many records at once has needed.
fn shrink_queue(queue: &mut VecDeque<Retained>, retained_max: usize) {
    if queue.len() <= retained_max && queue.capacity() > 4 * retained_max.max(QUEUE_RECORDS_MIN) {
        queue.shrink_to(2 * retained_max);
    }
}

impl RangeState {
    pub(crate) fn new(id: Option<RangeId>, number: RangeNumber, keys: KeyRange, index: IndexOptions) -> Self {
        Self {
            id,
            number,
            keys,
            index: Index::new(index),
            progress: RangeProgress::default(),
            pending: VecDeque::new(),
            retained: VecDeque::new(),
            retain_floor: None,
            needed_from: None,
            complete_above: Version::ZERO,
            pending_clear: None,
            rolled_back_at: LogPosition::default(),
            cleared: Clears::default(),
            chain_time: None,
            marks: Marks::default(),
            sole: None,
            in_open_frame: false,
            open_facts: NumberFacts::none(number),
            segments: BTreeMap::new(),
            lowest_puts: LowestVersions::default(),
            dead_puts_hidden_from: LowestVersions::default(),
            lowest_tombstones: LowestVersions::default(),
            held: BTreeMap::new(),
            is_released: false,
            shows_hidden: false,
            inherited: SmallVec::new(),
            copy: None,
            copied_results: VecDeque::new(),
            result_copies: ResultCopies::default(),
        }
    }

    /// Places of the retired ranges whose indexes have records of this range: none once it was cleared, because all that
    /// it had inherited is older.
    #[inline]
    pub(crate) fn inherited(&self) -> &[usize] {
        if self.cleared.committed > Version::ZERO { &[] } else { &self.inherited }
    }

    /// Whether its keys were taken over by other ranges.
    pub(crate) fn is_retired(&self) -> bool {
        self.id.is_none() && self.number != RangeNumber::default()
    }

    /// Takes no writes from now on. All its records are committed, and the manifest proves it.
    pub(crate) fn retire(&mut self) {
        assert!(self.pending.is_empty(), "a range with pending records is not retired");
        assert!(self.open_facts.records == 0, "its records are synced, so the open frame has none");
        (self.id, self.sole, self.needed_from, self.pending_clear) = (None, None, None, None);
        let base = self.progress.appended;
        self.progress = RangeProgress { appended: base, flushed: base, synced: base, committed: base };
        self.marks = Marks { appended: base, durable: base, ..Marks::default() };
        self.end_retention();
    }

    /// A retired range as an opening finds it: with the entries that a checkpoint may have, and no others. An empty index for as many
    /// as a serving range would take 256 KiB, and a lineage may have thousands of numbers.
    pub(crate) fn retired(number: RangeNumber, keys: KeyRange, index: IndexOptions) -> Self {
        Self::new(None, number, keys, IndexOptions { entries_min: 0, ..index })
    }

    /// Fills a place that has no range.
    pub(crate) fn vacant(index: IndexOptions) -> Self {
        Self::retired(RangeNumber::default(), KeyRange::ALL, index)
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.id.is_none() && self.number == RangeNumber::default()
    }

    pub(crate) fn set_number(&mut self, number: RangeNumber) {
        self.number = number;
        self.open_facts = NumberFacts::none(number);
    }

    pub(crate) fn take_open_facts(&mut self) -> NumberFacts {
        core::mem::replace(&mut self.open_facts, NumberFacts::none(self.number))
    }

    /// Whether the range is being emptied for a transfer, and that is not durable yet.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self.copy, Some(TransferState { stage: TransferStage::Beginning(_), .. }))
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        let ResultCopies { kept, unsynced, .. } = &self.result_copies;
        let copies = kept.capacity() + unsynced.as_ref().map_or(0, |unsynced| unsynced.replaced.capacity());
        let retained = self.retained.capacity() + self.copied_results.capacity();
        self.pending.capacity() * size_of::<PendingRecord>()
            + retained * size_of::<Retained>()
            + copies * size_of::<ResultCopy>()
    }

    /// Retains a committed record above `floor` for retransmission, within `retained_max`, or `needed_max` if the oldest one is
    /// needed. Returns whether a needed record was dropped.
    pub(crate) fn retain(&mut self, record: Retained, floor: Version, retained_max: usize, needed_max: usize) -> bool {
        self.retained.push_back(record);
        let has_dropped_needed = self.bound_retained(retained_max, needed_max);
        self.drop_retained_through(floor);
        has_dropped_needed
    }

    /// As [`RangeState::retain`].
    pub(crate) fn bound_retained(&mut self, retained_max: usize, needed_max: usize) -> bool {
        let mut has_dropped_needed = false;
        while let Some(oldest) = self.retained.front() {
            let is_needed = self.needed_from().is_some_and(|needed| oldest.version >= needed);
            if self.retained.len() <= if is_needed { needed_max } else { retained_max } {
                break;
            }
            has_dropped_needed |= is_needed;
            self.drop_oldest_retained();
        }
        shrink_queue(&mut self.retained, retained_max);
        has_dropped_needed
    }

    /// Drops the transferred results up to this segment and place: there are copies of them.
    pub(crate) fn drop_copied_results_through(&mut self, last: Option<(u64, Pointer)>, retained_max: usize) {
        while self.copied_results.pop_front_if(|result| Some((result.sequence, result.pointer)) <= last).is_some() {}
        shrink_queue(&mut self.copied_results, retained_max);
    }

    /// The last of the records whose results are to be copied because too many are kept for retries: the older half of these. With
    /// the version through which records of the range's history are concerned.
    pub(crate) fn results_beyond_bound(&self, records_max: usize) -> Option<(Retained, Version)> {
        let (copied, retained) = (&self.copied_results, &self.retained);
        let bound = records_max / 4 * 3;
        if let Some(&middle) = copied.get(copied.len() / 2).filter(|_| copied.len() + retained.len() > bound) {
            return Some((middle, Version::ZERO));
        }
        let needed_from = self.needed_from()?;
        // Every poll asks, and seldom are so many needed that they have to be counted.
        retained.len().checked_sub(bound + 1).filter(|&last| retained[last].version >= needed_from)?;
        let first = self.first_needed();
        let middle = retained[first + (retained.len() - first) / 2];
        Some((middle, middle.version))
    }

    /// Records from this version on are retained beyond some bounds: the log alone has their results.
    pub(crate) fn needed_from(&self) -> Option<Version> {
        self.needed_from.map(|needed| needed.max(self.result_copies.copied_below))
    }

    /// The foreground's records that are kept for retries, in the log's order.
    pub(crate) fn kept_for_retries(&self) -> impl Iterator<Item = Retained> + '_ {
        self.copied_results.iter().chain(&self.retained).copied()
    }

    /// Records of [`RangeState::kept_for_retries`] whose results the log alone has.
    pub(crate) fn needed_for_retries(&self) -> impl Iterator<Item = Retained> + '_ {
        self.copied_results.iter().chain(self.retained.range(self.first_needed()..)).copied()
    }

    /// Place of the first needed record.
    fn first_needed(&self) -> usize {
        let is_older = |needed_from| self.retained.partition_point(|kept| kept.version < needed_from);
        self.needed_from().map_or(self.retained.len(), is_older)
    }

    /// Whether the range loses no needed record or result by this bound.
    pub(crate) fn fits_needed_max(&self, needed_max: usize) -> bool {
        self.copied_results.len() <= needed_max && self.retained.len() - self.first_needed() <= needed_max
    }

    /// Keeps a transferred result, and as many as of needed records. Returns whether another one was dropped.
    pub(crate) fn keep_copied_result(&mut self, record: Retained, needed_max: usize) -> bool {
        self.copied_results.push_back(record);
        self.bound_copied_results(needed_max)
    }

    /// As [`RangeState::keep_copied_result`]. Retained records do not count: an opening retains many that are not needed.
    pub(crate) fn bound_copied_results(&mut self, needed_max: usize) -> bool {
        let excess = self.copied_results.len().saturating_sub(needed_max);
        self.copied_results.drain(..excess);
        excess > 0
    }

    /// Starts over: the manifest invalidates all records so far, and the history continues after `base`.
    pub(crate) fn begin_again(&mut self, number: RangeNumber, base: Version) {
        self.set_number(number);
        self.index.clear();
        self.pending.clear();
        self.retained.clear();
        self.copied_results.clear();
        self.result_copies = ResultCopies::default();
        self.pending_clear = None;
        self.progress = RangeProgress { appended: base, flushed: base, synced: base, committed: base };
        self.complete_above = base;
        // The manifest proves that the base is committed, as a durable mark would.
        self.marks = Marks { appended: base, durable: base, ..Marks::default() };
        self.sole = None;
        self.segments.clear();
        self.lowest_puts.clear();
        self.dead_puts_hidden_from.clear();
        self.lowest_tombstones.clear();
        self.held.clear();
        self.inherited.clear();
        self.cleared = Clears::default();
    }

    /// Its sole epoch's base, while that lasts: all that an opening finds is committed then, and commits need no marks.
    #[inline]
    pub(crate) fn sole_base(&self) -> Option<Version> {
        self.sole.as_ref().filter(|sole| !sole.is_over).map(|sole| sole.base)
    }

    /// After any crash at least this version is committed.
    pub(crate) fn durably_committed(&self) -> Version {
        // In a sole epoch everything that an opening finds is committed.
        if self.needs_marks() { self.marks.durable } else { self.progress.synced }
    }

    /// Whether its commits need marks in the log.
    #[inline]
    pub(crate) fn needs_marks(&self) -> bool {
        self.sole.as_ref().is_none_or(|sole| sole.is_over)
    }

    /// Whether nothing but a durable commit mark is missing for the drop of a segment.
    pub(crate) fn waits_for_mark(&self) -> bool {
        let why = KeepReason::CommitNotDurable;
        self.needs_marks() && self.held.range((why, 0)..=(why, u64::MAX)).next().is_some()
    }

    /// Keeps nothing for retransmission any more.
    pub(crate) fn end_retention(&mut self) {
        self.retain_floor = None;
        self.retained = VecDeque::new();
        self.copied_results = VecDeque::new();
        self.result_copies = ResultCopies::default();
        self.complete_above = self.progress.committed;
    }

    /// Whether a segment may have one of `copied_results`.
    pub(crate) fn keeps_results_in(&self, sequence: u64) -> bool {
        let (first, last) = (self.copied_results.front(), self.copied_results.back());
        first.zip(last).is_some_and(|(first, last)| (first.sequence..=last.sequence).contains(&sequence))
    }

    pub(crate) fn drop_oldest_retained(&mut self) {
        if let Some(oldest) = self.retained.pop_front() {
            self.complete_above = oldest.version;
        }
    }

    /// Drops retained records in segments before the one with this sequence number, up to the first needed one. Returns whether
    /// any was dropped.
    pub(crate) fn drop_retained_before(&mut self, sequence: u64) -> bool {
        let (count, needed_from) = (self.retained.len(), self.needed_from());
        let is_given_up = |oldest: &Retained| {
            oldest.sequence < sequence && needed_from.is_none_or(|needed_from| oldest.version < needed_from)
        };
        while self.retained.front().is_some_and(is_given_up) {
            self.drop_oldest_retained();
        }
        self.retained.len() < count
    }

    pub(crate) fn drop_retained_through(&mut self, floor: Version) {
        while self.retained.front().is_some_and(|oldest| oldest.version <= floor) {
            self.drop_oldest_retained();
        }
        while self.copied_results.front().is_some_and(|oldest| oldest.version <= floor) {
            self.copied_results.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_to_be_copied_once_more_than_the_bound_are_needed() {
        let mut range = RangeState::new(None, RangeNumber::default(), KeyRange::ALL, IndexOptions::default());
        let version = |i: u64| Version::from_u64(10 * i);
        for len in 0..20 {
            for needed_from in (0..=210).map(Version::from_u64) {
                range.needed_from = Some(needed_from);
                let needed: Vec<u64> = (0..len).filter(|&i| version(i) >= needed_from).collect();
                // Three quarters of eight.
                let expected = (needed.len() > 6).then(|| version(needed[needed.len() / 2]));
                let found = range.results_beyond_bound(8).map(|(_, through)| through);
                assert_eq!(found, expected, "{len} records, needed from {needed_from:?}");
            }
            let kept = Retained { version: version(len), pointer: Pointer::new(0), len_bytes: 1, sequence: 1 };
            range.retained.push_back(kept);
        }
    }

    /// The needed records of one commit exceed any share; what their copies leave of the memory is given back.
    #[test]
    fn needed_records_and_transferred_results_have_bounds_of_their_own() {
        let mut range = RangeState::new(None, RangeNumber::default(), KeyRange::ALL, IndexOptions::default());
        let record =
            |i| Retained { version: Version::from_u64(i), pointer: Pointer::new(0), len_bytes: 1, sequence: 1 };
        (1..=800).for_each(|i| assert!(!range.keep_copied_result(record(i), 800), "result {i}"));
        range.needed_from = Some(Version::from_u64(1_000));
        let retain = |range: &mut RangeState, i| range.retain(record(i), Version::ZERO, 100, 800);
        (801..=1_799).for_each(|i| assert!(!retain(&mut range, i), "record {i}"));
        assert_eq!((range.retained.len(), range.complete_above), (800, Version::from_u64(999)));
        assert!(retain(&mut range, 1_800), "more are needed than there may be");
        assert_eq!((range.retained.len(), range.copied_results.len()), (800, 800));
        range.result_copies.copied_below = Version::from_u64(1_750);
        assert!(!retain(&mut range, 1_801), "their results have copies");
        assert_eq!(range.retained.len(), 100);
        assert!(range.retained.capacity() <= 400, "capacity of {}", range.retained.capacity());
        assert!(range.keep_copied_result(record(0), 800), "one of the others is dropped");
    }

    #[test]
    fn a_lowest_put_elsewhere_is_found_whatever_the_segment_itself_has() {
        let mut lowest = LowestVersions::default();
        let has =
            |lowest: &LowestVersions, sequence, version| lowest.has_elsewhere(sequence, Version::from_u64(version));
        lowest.set(1, Version::from_u64(10));
        assert!(!has(&lowest, 1, 99), "its own puts do not count");
        lowest.set(2, Version::from_u64(20));
        assert!(!has(&lowest, 1, 19) && has(&lowest, 1, 20) && has(&lowest, 2, 10), "an equal version counts");
        lowest.set(1, LowestVersions::NONE);
        assert!(!has(&lowest, 2, 99), "a segment without puts has none");
        lowest.remove(2);
        assert!(!has(&lowest, 1, 99));
    }
}

//! Owns one range of a store: its index, its three watermarks, and its records between append and commit.
use crate::engine::KeepReason;
use crate::format::manifest::SoleEpochs;
use crate::index::{Index, IndexOptions, Pointer};
use crate::log::LogPosition;
use crate::manifest_file::CommitNumber;
use crate::overlay::KeyName;
use fawn_types::{Durability, KeyRange, MonoMs, RangeId, Version};
use std::collections::{BTreeMap, VecDeque};

/// How far a range's writes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeProgress {
    /// Newest version appended.
    pub appended: Version,
    /// Newest version that the device has: it survives `kill -9`.
    pub flushed: Version,
    /// Newest version that survives power loss.
    pub synced: Version,
    /// Newest version committed, and so readable.
    pub committed: Version,
}

impl RangeProgress {
    /// Newest version that is as safe as `durability` wants it before it is acknowledged.
    #[must_use]
    pub const fn watermark_for(&self, durability: Durability) -> Version {
        match durability {
            Durability::Sync => self.synced,
            Durability::EverySecond => self.flushed,
            Durability::Memory => self.appended,
        }
    }
}

/// What an appended record does at its commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PendingKind {
    /// A key's put or tombstone: the overlay has the rest.
    OfKey {
        /// Which key.
        name: KeyName,
        /// A put lives in its segment from its append on; a tombstone never does.
        is_put: bool,
    },
    /// A result: nothing.
    Result,
    /// Empties the range.
    Clear,
}

/// A record between append and commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingRecord {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    pub(crate) kind: PendingKind,
}

/// A committed record kept for retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retained {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    /// Of its segment: a slot may have a new one by now.
    pub(crate) sequence: u64,
}

/// What commit marks of a range are in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    /// Newest version that a mark names, and the sequence number of the mark's segment; 0: there is no mark.
    pub(crate) appended: Version,
    pub(crate) sequence: u64,
    /// When that mark was appended.
    pub(crate) appended_at: MonoMs,
    /// Version of a mark in the open frame.
    pub(crate) in_open_frame: Option<Version>,
    /// Newest version that a synced mark names, and the slot of that mark's segment. Without one: by the manifest.
    pub(crate) durable: Version,
    pub(crate) durable_slot: Option<u32>,
    /// A segment could be dropped if a newer mark were durable.
    pub(crate) is_wanted: bool,
}

/// How far a copy from elsewhere has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransferStage {
    /// That everything before is invalidated is being written to the manifest.
    Beginning(CommitNumber),
    /// Records are coming.
    Taking,
    /// All are appended; they lie before this place, which is not synced yet.
    Syncing(LogPosition),
    /// All are synced; that they are all is being written to the manifest.
    Listing(CommitNumber),
}

/// A copy under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransferState {
    pub(crate) base: Version,
    pub(crate) stage: TransferStage,
}

/// One range.
#[derive(Debug)]
pub(crate) struct RangeState {
    pub(crate) id: RangeId,
    pub(crate) keys: KeyRange,
    pub(crate) index: Index,
    pub(crate) progress: RangeProgress,
    pub(crate) pending: VecDeque<PendingRecord>,
    pub(crate) retained: VecDeque<Retained>,
    /// Versions up to here need not be kept; `None`: nothing is retained.
    pub(crate) retain_floor: Option<Version>,
    /// Everything in `(complete_above, committed]` is in `retained`.
    pub(crate) complete_above: Version,
    /// Newest pending clear.
    pub(crate) pending_clear: Option<Version>,
    /// Its commit marks in the log. In a sole epoch there are none.
    pub(crate) marks: Marks,
    /// Its last sole epochs, as the manifest durably lists them.
    pub(crate) sole: Option<SoleEpochs>,
    /// Whether the open frame has records of it.
    pub(crate) in_open_frame: bool,
    /// Segments with records of its history: slots by sequence number.
    pub(crate) segments: BTreeMap<u64, u32>,
    /// Of these, the ones without live records that something of this range keeps: slots by reason and sequence number.
    pub(crate) held: BTreeMap<(KeepReason, u64), u32>,
    /// One of the reasons may have ended.
    pub(crate) is_released: bool,
    pub(crate) copy: Option<TransferState>,
    /// Results that came by a copy, kept as retained records are; older than all of those.
    pub(crate) copied_results: VecDeque<Retained>,
}

impl RangeState {
    pub(crate) fn new(id: RangeId, keys: KeyRange, index: IndexOptions) -> Self {
        Self {
            id,
            keys,
            index: Index::new(index),
            progress: RangeProgress::default(),
            pending: VecDeque::new(),
            retained: VecDeque::new(),
            retain_floor: None,
            complete_above: Version::ZERO,
            pending_clear: None,
            marks: Marks::default(),
            sole: None,
            in_open_frame: false,
            segments: BTreeMap::new(),
            held: BTreeMap::new(),
            is_released: false,
            copy: None,
            copied_results: VecDeque::new(),
        }
    }

    /// Whether it is being emptied for a copy, and that is not durable yet.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self.copy, Some(TransferState { stage: TransferStage::Beginning(_), .. }))
    }

    /// Memory of its queues, bytes.
    pub(crate) fn queue_bytes(&self) -> usize {
        let kept = self.retained.capacity() + self.copied_results.capacity();
        self.pending.capacity() * size_of::<PendingRecord>() + kept * size_of::<Retained>()
    }

    /// Keeps a committed record for retransmission, within bounds: of these, and of these with copied results.
    pub(crate) fn retain(&mut self, record: Retained, retained_max: usize, records_max: usize) {
        let Some(floor) = self.retain_floor else {
            self.complete_above = record.version;
            return;
        };
        self.retained.push_back(record);
        self.bound_retained(retained_max);
        self.bound_copied_results(records_max);
        self.drop_retained_through(floor);
    }

    pub(crate) fn bound_retained(&mut self, retained_max: usize) {
        while self.retained.len() > retained_max {
            self.drop_oldest_retained();
        }
    }

    /// Keeps a copied result, within the bound that they share with retained records.
    pub(crate) fn keep_copied_result(&mut self, record: Retained, records_max: usize) {
        self.copied_results.push_back(record);
        self.bound_copied_results(records_max);
    }

    pub(crate) fn bound_copied_results(&mut self, records_max: usize) {
        while !self.copied_results.is_empty() && self.copied_results.len() + self.retained.len() > records_max {
            self.copied_results.pop_front();
        }
    }

    /// Everything of it so far is invalidated, by the manifest: its history continues after `base`.
    pub(crate) fn begin_again(&mut self, base: Version) {
        self.index.clear();
        self.pending.clear();
        self.retained.clear();
        self.copied_results.clear();
        self.pending_clear = None;
        self.progress = RangeProgress { appended: base, flushed: base, synced: base, committed: base };
        self.complete_above = base;
        // The manifest says that the base is committed, as a durable mark would.
        self.marks = Marks { appended: base, durable: base, ..Marks::default() };
        self.sole = None;
        self.segments.clear();
        self.held.clear();
    }

    /// Its sole epoch's base, while that lasts: all that an opening finds is committed then, and commits need no marks.
    #[inline]
    pub(crate) fn sole_base(&self) -> Option<Version> {
        self.sole.and_then(|sole| if sole.is_over { None } else { Some(sole.base) })
    }

    /// Whether its commits need marks in the log.
    #[inline]
    pub(crate) fn needs_marks(&self) -> bool {
        self.sole_base().is_none()
    }

    /// Keeps nothing for retransmission any more.
    pub(crate) fn end_retention(&mut self) {
        self.retain_floor = None;
        self.retained = VecDeque::new();
        self.copied_results = VecDeque::new();
        self.complete_above = self.progress.committed;
    }

    /// Whether a segment may have results that came with a copy and are kept.
    pub(crate) fn keeps_results_in(&self, sequence: u64) -> bool {
        let (first, last) = (self.copied_results.front(), self.copied_results.back());
        first.zip(last).is_some_and(|(first, last)| (first.sequence..=last.sequence).contains(&sequence))
    }

    pub(crate) fn drop_oldest_retained(&mut self) {
        if let Some(oldest) = self.retained.pop_front() {
            self.complete_above = oldest.version;
        }
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

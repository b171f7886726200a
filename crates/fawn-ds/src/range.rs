//! Owns one range of a store: its index, its three watermarks, and its records between append and commit.
use crate::index::{Index, IndexOptions, Pointer};
use crate::overlay::KeyName;
use fawn_types::{KeyRange, RangeId, Version};
use std::collections::VecDeque;

/// How far a range's writes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Newest version appended.
    pub appended: Version,
    /// Newest version that the device has: it survives `kill -9`.
    pub flushed: Version,
    /// Newest version that survives power loss.
    pub synced: Version,
    /// Newest version committed, and so readable.
    pub committed: Version,
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
pub(crate) struct Pending {
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

/// One range.
#[derive(Debug)]
pub(crate) struct RangeState {
    pub(crate) id: RangeId,
    pub(crate) keys: KeyRange,
    pub(crate) index: Index,
    pub(crate) progress: Progress,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) retained: VecDeque<Retained>,
    /// Versions up to here need not be kept; `None`: nothing is retained.
    pub(crate) retain_floor: Option<Version>,
    /// Everything in `(complete_above, committed]` is in `retained`.
    pub(crate) complete_above: Version,
    /// Newest pending clear.
    pub(crate) pending_clear: Option<Version>,
    /// Newest version named by a commit mark in the log, and the segment that has it.
    pub(crate) marked: Version,
    pub(crate) marked_sequence: u64,
    /// Whether the open frame has records of it.
    pub(crate) in_open_frame: bool,
}

impl RangeState {
    pub(crate) fn new(id: RangeId, keys: KeyRange, index: IndexOptions) -> Self {
        Self {
            id,
            keys,
            index: Index::new(index),
            progress: Progress::default(),
            pending: VecDeque::new(),
            retained: VecDeque::new(),
            retain_floor: None,
            complete_above: Version::ZERO,
            pending_clear: None,
            marked: Version::ZERO,
            marked_sequence: 0,
            in_open_frame: false,
        }
    }

    /// Memory of its queues, bytes.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.pending.capacity() * size_of::<Pending>() + self.retained.capacity() * size_of::<Retained>()
    }

    /// Keeps a committed record for retransmission, within bounds.
    pub(crate) fn retain(&mut self, record: Retained, records_max: usize) {
        let Some(floor) = self.retain_floor else {
            self.complete_above = record.version;
            return;
        };
        self.retained.push_back(record);
        while self.retained.len() > records_max {
            self.drop_oldest_retained();
        }
        self.drop_retained_through(floor);
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
    }
}

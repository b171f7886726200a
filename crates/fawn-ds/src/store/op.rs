//! Operations that callers hand to the leader, and its responses.
use super::put_options::{PutExpiry, PutOptions};
use super::{Error, Result, Stats, Value};
use crate::engine::{CorruptRecord, ScanItem};
use crate::error::EngineError;
use fawn_types::{Condition, Version};

/// One write of a batch.
#[derive(Debug)]
pub(super) struct KeyWrite {
    pub(super) key: Vec<u8>,
    /// `None` deletes the key.
    pub(super) value: Option<Vec<u8>>,
    pub(super) expiry: PutExpiry,
}

/// A stretch of hash order to be scanned: some entries from `from` on, none from `to` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) from: u64,
    pub(super) to: Option<u64>,
    /// Of the part in runs: the log's part has met what was written up to here.
    pub(super) since: Option<Version>,
    /// Longest value that is returned with its key; longer ones are looked up when their turn comes.
    pub(super) value_bytes_max: Option<u32>,
}

#[derive(Debug)]
pub(super) enum Op {
    Get {
        key: Vec<u8>,
    },
    Contains {
        key: Vec<u8>,
    },
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        options: PutOptions,
    },
    Delete {
        key: Vec<u8>,
        condition: Condition,
    },
    /// A delete without a condition, of a key whose record is lost by this error: it needs no further lookup.
    DeleteLost {
        key: Vec<u8>,
        error: EngineError,
    },
    Batch(Vec<KeyWrite>),
    Clear,
    Scan(Stretch),
    Stats,
    Sync,
    Tick,
    Close,
}

impl Op {
    /// The one key that it is about.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Get { key }
            | Self::Contains { key }
            | Self::Put { key, .. }
            | Self::Delete { key, .. }
            | Self::DeleteLost { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether it changes anything.
    pub(super) const fn is_write(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Delete { .. } | Self::DeleteLost { .. } | Self::Batch(_) | Self::Clear)
    }
}

/// Work that the store still has to do by itself.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct TickReport {
    pub(super) is_busy: bool,
    /// The engine confirms what its opening deferred.
    pub(super) is_confirming: bool,
    /// Time until the engine wants to be polled for upkeep, whether or not any I/O completes.
    pub(super) upkeep_in_ms: Option<u64>,
    /// Time until what was written is due to be flushed or synced, by the durability mode.
    pub(super) log_due_in_ms: Option<u64>,
    /// A segment is being cleaned, or a job is in progress.
    pub(super) has_upkeep: bool,
    /// Reads, writes and syncs that have completed.
    pub(super) completed: u64,
}

#[derive(Debug)]
pub(super) enum Response {
    Value(Option<Value>),
    Found(bool),
    /// The version assigned; `None`: the condition did not hold.
    Written(Option<Version>),
    Scanned {
        items: Vec<ScanItem>,
        /// Start of the rest of the stretch; `None` at its end.
        next: Option<u64>,
        /// Records of the same cells that could not be read.
        corrupt: Vec<CorruptRecord>,
        /// Newest version committed by then.
        seen: Version,
        /// The damage that a read-only opening passed over: the scan lacks what was there.
        missing: Option<EngineError>,
    },
    Stats(Box<Stats>),
    Ticked(TickReport),
    Closed,
    Failed(Error),
}

impl Response {
    pub(super) fn into_result(self) -> Result<Self> {
        match self {
            Self::Failed(error) => Err(error),
            response => Ok(response),
        }
    }

    pub(super) fn unexpected(self) -> ! {
        unreachable!("the driver answered another operation: {self:?}")
    }
}

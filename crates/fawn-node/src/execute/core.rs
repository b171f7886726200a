//! State of execution: engine, sequencer, waiting requests, counters; no sessions.
use crate::options::{ServerInfo, ShardOptions};
use crate::pending::WaitQueue;
use crate::session::Session;
use crate::shards::PeerMailboxes;
use crate::status::ShardCounters;
use fawn_chain::Replica;
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, OperationError, ShardId, TimeMs, Version};

/// All state of a shard except its sessions, so that both can be borrowed together.
#[derive(Debug)]
pub(crate) struct ShardState<D: Device> {
    pub(crate) engine: Engine<D>,
    pub(crate) replica: Replica,
    pub(crate) pending: WaitQueue,
    pub(crate) scratch: EvaluationScratch,
    pub(crate) counters: ShardCounters,
    pub(crate) options: ShardOptions,
    pub(crate) server_info: ServerInfo,
    /// Time of a delayed `flush_all`.
    pub(crate) flush_at: Option<MonoMs>,
    /// The machine's wall clock, for reports. Expiry has a clock of its own.
    pub(crate) wall: TimeMs,
    /// The monotonic clock and expiry time.
    pub(crate) now: Now,
    /// Number of open sessions; the table is elsewhere.
    pub(crate) sessions_open: usize,
    /// Queues to the other shards of the node, if there are any.
    pub(crate) links: Option<Box<PeerMailboxes>>,
}

/// Buffers that are reused between requests.
#[derive(Debug, Default)]
pub(crate) struct EvaluationScratch {
    /// Value produced by an operation.
    pub(crate) value: Vec<u8>,
    /// Previous value.
    pub(crate) previous: Vec<u8>,
    /// Replies to several keys.
    pub(crate) multi_reply: Vec<u8>,
}

/// A larger scratch buffer is released after use.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

impl EvaluationScratch {
    /// Releases the memory of a large request.
    pub(crate) fn trim(&mut self) {
        for buffer in [&mut self.value, &mut self.previous, &mut self.multi_reply] {
            if buffer.capacity() > SCRATCH_BYTES_KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

impl<D: Device> ShardState<D> {
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.engine.secret(), key)
    }

    /// The shard that owns the key, unless it is this one.
    #[inline]
    pub(crate) fn elsewhere(&self, session: &Session, key: &[u8]) -> Option<ShardId> {
        let links = self.links.as_ref()?;
        // The requesting shard has already chosen this shard.
        if session.proxy_for.is_some() { None } else { links.elsewhere(key) }
    }

    /// The queues to other shards; call only if there are any.
    pub(crate) fn links(&mut self) -> &mut PeerMailboxes {
        let Some(links) = &mut self.links else { unreachable!("a shard without peers exchanges no messages") };
        links
    }

    /// Whether one more request may wait for a read.
    pub(crate) fn has_capacity(&self) -> bool {
        self.pending.len() < self.options.pending_max
    }

    /// The failure that stopped writes, if any.
    pub(crate) fn failure(&self) -> Option<OperationError> {
        self.engine.poisoned().map(|_| OperationError::Poisoned)
    }
}

/// The version whose commit a reader of `seen` must wait for; none if it is committed.
#[inline]
pub(crate) fn wait_for_commit(replica: &Replica, seen: Version) -> Option<Version> {
    (seen > replica.committed()).then_some(seen)
}

/// Reply for an engine's error.
#[cold]
pub(crate) fn operation_error(error: &EngineError) -> OperationError {
    match error {
        EngineError::Overloaded => OperationError::Overloaded,
        EngineError::StoreFull => OperationError::StoreFull,
        EngineError::Poisoned { .. } => OperationError::Poisoned,
        EngineError::KeyTooLong { .. } => OperationError::KeyTooLong,
        EngineError::TooLarge { limit_bytes, .. } => {
            OperationError::ValueTooLong { limit_bytes: u32::try_from(*limit_bytes).unwrap_or(u32::MAX) }
        }
        EngineError::Corrupt { .. } | EngineError::TooCorrupt { .. } => {
            tracing::error!(%error, "stored data is corrupt");
            OperationError::Corrupt
        }
        EngineError::UnknownRange { .. }
        | EngineError::RangeExists { .. }
        | EngineError::NotChained { .. }
        | EngineError::Device(_) => {
            tracing::error!(%error, "request failed");
            OperationError::Unavailable
        }
    }
}

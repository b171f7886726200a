//! Owns what execution works on: the engine, the range's replica, what waits, and the counters; no session.
use crate::options::{ProcessFacts, ShardOptions};
use crate::pending::Pending;
use crate::replica::Replica;
use crate::session::Session;
use crate::shards::Links;
use crate::status::Counters;
use fawn_ds::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, OperationError, ShardId, TimeMs};

/// Everything of a shard but its sessions, so that a session and this can be borrowed together.
#[derive(Debug)]
pub(crate) struct Core<D: Device> {
    pub(crate) engine: Engine<D>,
    pub(crate) replica: Replica,
    pub(crate) pending: Pending,
    pub(crate) scratch: Scratch,
    pub(crate) counters: Counters,
    pub(crate) options: ShardOptions,
    pub(crate) facts: ProcessFacts,
    /// When a delayed `flush_all` empties the store.
    pub(crate) flush_at: Option<MonoMs>,
    /// What the machine's wall clock shows: for reports. Expiry has a time of its own.
    pub(crate) wall: TimeMs,
    /// Sessions open: the table itself is not here.
    pub(crate) sessions_open: usize,
    /// The ways to the other shards of the node, if there are any.
    pub(crate) links: Option<Box<Links>>,
}

/// Buffers that live on between requests.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The value that an operation made.
    pub(crate) value: Vec<u8>,
    /// The value that was there before.
    pub(crate) previous: Vec<u8>,
    /// The replies to several keys.
    pub(crate) gathered: Vec<u8>,
}

/// A scratch buffer larger than this is given back after use.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

impl Scratch {
    /// Gives back what one large request took.
    pub(crate) fn trim(&mut self) {
        for buffer in [&mut self.value, &mut self.previous, &mut self.gathered] {
            if buffer.capacity() > SCRATCH_BYTES_KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

impl<D: Device> Core<D> {
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.engine.secret(), key)
    }

    /// The shard that a session's key belongs to, unless it is this one.
    #[inline]
    pub(crate) fn elsewhere(&self, session: &Session, key: &[u8]) -> Option<ShardId> {
        let links = self.links.as_ref()?;
        // What another shard asks for is here: that was decided there.
        if session.stands_for.is_some() { None } else { links.elsewhere(key) }
    }

    /// The ways to the other shards: only asked where there are some.
    pub(crate) fn links(&mut self) -> &mut Links {
        let Some(links) = &mut self.links else { unreachable!("a shard that is alone asks nobody and is not asked") };
        links
    }

    /// Whether one more request may wait for a read.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < self.options.pending_max
    }

    /// The failure that ended writes, if any.
    pub(crate) fn failure(&self) -> Option<OperationError> {
        self.engine.poisoned().map(|_| OperationError::Poisoned)
    }
}

/// What a client hears of an engine's refusal.
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
        EngineError::Corrupt { .. } | EngineError::TooDamaged { .. } => {
            tracing::error!(%error, "stored data is damaged");
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

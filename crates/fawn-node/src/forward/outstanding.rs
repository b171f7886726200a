//! Outstanding operations: requests at shards of the node, whose replies come in any order.
use crate::exec::{ReplyTarget, RequestKind, ShardOpId};
use fawn_types::KeyHash;
use slab::Slab;

/// A request at a shard. The request itself is there; it comes back if it has to be repeated.
#[derive(Debug)]
pub(crate) struct OutstandingOp {
    pub(crate) target: ReplyTarget,
    pub(crate) hash: KeyHash,
    pub(crate) kind: RequestKind,
    /// Longest value that the reply may have.
    pub(crate) grant_bytes: usize,
    /// Length of the request's message.
    pub(crate) request_bytes: usize,
    /// The key, if the reply's encoding contains it.
    pub(crate) key: Box<[u8]>,
    /// Further reads of the key that wait for the same reply.
    pub(crate) joined: Vec<ReplyTarget>,
}

/// The outstanding operations of a shard.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    ops: Slab<(u32, OutstandingOp)>,
    generation: u32,
}

impl Outstanding {
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// The number of the next operation.
    #[inline]
    pub(super) fn next_id(&self) -> ShardOpId {
        ShardOpId(u64::from(self.generation) << 32 | self.ops.vacant_key() as u64)
    }

    /// Adds the operation as [`Outstanding::next_id`].
    #[inline]
    pub(super) fn insert(&mut self, op: OutstandingOp) {
        self.ops.insert((self.generation, op));
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes the operation; its reply has arrived.
    #[inline]
    pub(super) fn remove(&mut self, ShardOpId(id): ShardOpId) -> OutstandingOp {
        let at = (id & u64::from(u32::MAX)) as usize;
        match self.ops.try_remove(at) {
            Some((generation, op)) if u64::from(generation) == id >> 32 => op,
            _ => unreachable!("an operation has one reply"),
        }
    }
}

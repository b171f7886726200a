//! Outstanding operations: requests at shards of a standalone node, whose replies arrive in any order.
use crate::SessionId;
use crate::request::{OutstandingOp, ShardOpId};
use slab::Slab;

/// The outstanding operations of a shard.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    ops: Slab<(u32, OutstandingOp)>,
    generation: u32,
}

impl Outstanding {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes granted to the session's operations.
    pub(crate) fn granted_bytes(&self, session: SessionId) -> usize {
        let of_session = self.ops.iter().filter(|(_, (_, op))| op.target.session == session);
        of_session.map(|(_, (_, op))| op.granted_bytes()).sum()
    }

    /// The number of the next operation.
    #[inline]
    pub(crate) fn next_id(&self) -> ShardOpId {
        ShardOpId(u64::from(self.generation) << 32 | self.ops.vacant_key() as u64)
    }

    /// Adds the operation as [`Outstanding::next_id`].
    #[inline]
    pub(crate) fn insert(&mut self, op: OutstandingOp) {
        self.ops.insert((self.generation, op));
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes the operation; its reply has arrived.
    #[inline]
    pub(crate) fn remove(&mut self, ShardOpId(id): ShardOpId) -> OutstandingOp {
        let at = (id & u64::from(u32::MAX)) as usize;
        match self.ops.try_remove(at) {
            Some((generation, op)) if u64::from(generation) == id >> 32 => op,
            _ => unreachable!("an operation has one reply"),
        }
    }
}

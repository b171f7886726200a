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

    /// An operation without a reply.
    pub(crate) fn get_mut(&mut self, id: ShardOpId) -> &mut OutstandingOp {
        match self.ops.get_mut(place_of(id)) {
            Some((generation, op)) if u64::from(*generation) == id.0 >> 32 => op,
            _ => unreachable!("an operation has one reply"),
        }
    }

    /// Removes the operation; its reply has arrived.
    #[inline]
    pub(crate) fn remove(&mut self, id: ShardOpId) -> OutstandingOp {
        match self.ops.try_remove(place_of(id)) {
            Some((generation, op)) if u64::from(generation) == id.0 >> 32 => op,
            _ => unreachable!("an operation has one reply"),
        }
    }
}

const fn place_of(ShardOpId(id): ShardOpId) -> usize {
    (id & u32::MAX as u64) as usize
}

//! Memory oracle: after each iteration no buffer of a shard is larger than its bound.
use super::World;
use crate::clients::{LONG_VALUE_BYTES_MAX, MULTI_KEYS_MAX};
use fawn_node::ShardStatus;
use fawn_node::cluster::NodeStatus;
use fawn_types::MemberId;

/// The longest reply of clients that have read no long value: a page of a scan.
const REPLY_BYTES_MAX: usize = 32 << 10;
/// Eighths of its budget that a store may hold. The page cache receives the part that is unused, but only at each 64th
/// poll. Until then the append window (1/8), records without a commit (1/8), retained records (1/16) and spare buffers
/// (1/16) may grow to their own limits.
const STORE_EIGHTHS_MAX: u64 = 11;
/// A request on keys that is handled when a bound is reached adds at most so many parts; one on the whole keyspace adds
/// a part per range.
const PARTS_MAX: usize = 16;

impl World {
    /// Checks the buffers of a shard.
    pub(super) fn check_memory(&self, id: MemberId, status: &NodeStatus) -> Result<(), String> {
        let Some(shard) = self.machines[self.scenario.machine_of(id)].shard(id) else { return Ok(()) };
        let (options, limits) = (self.scenario.shard(), self.scenario.limits());
        // With the default budgets no run reaches a bound of sessions.
        let of_sessions = if self.scenario.is_narrow { shard.status() } else { ShardStatus::default() };
        let replies_bytes = of_sessions.replies.held_bytes + of_sessions.replies.reserved_bytes;
        let memory = shard.engine().memory();
        let store_bytes = memory.total_bytes();
        let ranges = status.members.len().max(1);
        let parts_max = PARTS_MAX.max(self.map.ranges.len());
        // Appends make values of any length. Each value of a reply may have grown by one of which no reply has arrived yet;
        // further ones add less than another value.
        let value_bytes_seen = self.clients.value_bytes_seen;
        let value_bytes_max = value_bytes_seen + LONG_VALUE_BYTES_MAX as usize;
        let reply_bytes_max = REPLY_BYTES_MAX.max(MULTI_KEYS_MAX as usize * value_bytes_max) + value_bytes_seen;
        let bounds = [
            ("bytes of replies", replies_bytes, options.replies_bytes_max / 8 * 9 + reply_bytes_max),
            ("waiting requests", of_sessions.pending, options.pending_max + limits.parked_max + parts_max),
            ("bytes of the store", store_bytes as usize, (memory.budget_bytes / 8 * STORE_EIGHTHS_MAX) as usize),
            (
                "bytes of completions",
                status.completion_bytes,
                ranges * (limits.completions.bytes_max + reply_bytes_max),
            ),
        ];
        match bounds.iter().find(|(_, found, bound)| found > bound) {
            Some((what, found, bound)) => {
                Err(format!("shard {id}: {found} {what}, the bound is {bound}; the store: {memory:?}"))
            }
            None => Ok(()),
        }
    }
}

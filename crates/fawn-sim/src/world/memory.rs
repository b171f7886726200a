//! Memory oracle: after each iteration no buffer of a shard is larger than its bound.
use super::{World, index_of};
use fawn_node::cluster::NodeStatus;
use fawn_types::MemberId;

/// The longest reply that clients of the simulator cause: many appends to one key, or a page of a scan.
const REPLY_BYTES_MAX: usize = 32 << 10;
/// A request that is handled when a bound is reached adds at most so many parts.
const PARTS_MAX: usize = 16;

impl World {
    /// Checks the buffers of a shard.
    pub(super) fn check_memory(&self, id: MemberId, status: &NodeStatus) -> Result<(), String> {
        let Some(shard) = self.machines[index_of(id)].shard(id) else { return Ok(()) };
        let (options, limits) = (self.scenario.shard(), self.scenario.limits());
        let of_sessions = shard.status();
        let replies_bytes = of_sessions.replies.held_bytes + of_sessions.replies.reserved_bytes;
        let memory = shard.engine().memory();
        let store_bytes = memory.index_bytes + memory.overlay_bytes + memory.buffer_bytes + memory.cache_bytes;
        let ranges = status.members.len().max(1);
        // The cache shrinks a moment after buffers and indexes have grown: a sixteenth above the budget.
        let bounds = [
            ("bytes of replies", replies_bytes, options.replies_bytes_max / 8 * 9 + REPLY_BYTES_MAX),
            ("waiting requests", of_sessions.pending, options.pending_max + limits.parked_max + PARTS_MAX),
            ("bytes of the store", store_bytes as usize, (memory.budget_bytes / 16 * 17) as usize),
            (
                "bytes of completions",
                status.completion_bytes,
                ranges * (limits.completions.bytes_max + REPLY_BYTES_MAX),
            ),
        ];
        match bounds.iter().find(|(_, found, bound)| found > bound) {
            Some((what, found, bound)) => Err(format!("shard {id}: {found} {what}, the bound is {bound}")),
            None => Ok(()),
        }
    }
}

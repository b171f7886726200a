//! Counters of a shard for the admin port: event loop, store, device. They are never reset.
use fawn_flash::{IoClass, IoClassStats, IoStats};
use fawn_node::{ShardStatus, StoreStatus};

/// Counts since the start, except fields that are documented as current.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct LoopCounters {
    /// Current connections.
    pub(crate) connections: u64,
    /// Accepted connections.
    pub(crate) accepted: u64,
    /// Connections refused over the limit.
    pub(crate) refused: u64,
    /// Connections closed because they took no replies, or because all replies exceeded their bound.
    pub(crate) dropped: u64,
    /// Iterations of the event loop.
    pub(crate) iterations: u64,
    /// Reads from sockets.
    pub(crate) reads: u64,
    /// Writes to sockets.
    pub(crate) writes: u64,
    /// Bytes received.
    pub(crate) input_bytes: u64,
    /// Bytes sent.
    pub(crate) output_bytes: u64,
    /// Message batches received from other shards.
    pub(crate) batches_received: u64,
    /// Message batches sent to other shards.
    pub(crate) batches_sent: u64,
    /// Current bytes of incomplete requests.
    pub(crate) input_held_bytes: u64,
    /// Current connections whose long request waits for admission.
    pub(crate) input_waiting: u64,
    /// Current bytes of replies that clients have not taken.
    pub(crate) output_held_bytes: u64,
}

/// Counters of the clients' requests.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct NodeCounts {
    pub(crate) sessions: u64,
    pub(crate) commands: u64,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) cold_reads: u64,
    pub(crate) writes: u64,
    pub(crate) overloaded: u64,
    pub(crate) error_replies: u64,
    pub(crate) malformed: u64,
    pub(crate) stalls: u64,
    pub(crate) rereads: u64,
    pub(crate) pending: u64,
    pub(crate) uncommitted: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) reply_bytes_peak: u64,
    pub(crate) reply_reserved_bytes: u64,
    pub(crate) reply_waiting: u64,
}

impl NodeCounts {
    pub(super) fn of(status: &ShardStatus) -> Self {
        let ShardStatus { counters, replies, .. } = status;
        Self {
            sessions: status.sessions as u64,
            commands: counters.commands,
            gets: counters.gets,
            hits: counters.hits,
            misses: counters.misses,
            cold_reads: counters.cold,
            writes: counters.writes,
            overloaded: counters.overloaded,
            error_replies: counters.error_replies,
            malformed: counters.malformed,
            stalls: counters.stalls,
            rereads: counters.rereads,
            pending: status.pending as u64,
            uncommitted: status.uncommitted,
            reply_bytes: replies.held_bytes as u64,
            reply_bytes_peak: replies.held_bytes_peak as u64,
            reply_reserved_bytes: replies.reserved_bytes as u64,
            reply_waiting: replies.waiting as u64,
        }
    }
}

/// Counters of a store, its memory and its device.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct StoreCounts {
    pub(crate) keys: u64,
    pub(crate) user_bytes: u64,
    pub(crate) log_writes: u64,
    pub(crate) log_written_bytes: u64,
    pub(crate) log_syncs: u64,
    pub(crate) false_matches: u64,
    pub(crate) keys_apart: u64,
    pub(crate) corrupt_passed: u64,
    pub(crate) segments: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) memory_budget_bytes: u64,
    pub(crate) memory_index_bytes: u64,
    pub(crate) memory_overlay_bytes: u64,
    pub(crate) memory_buffer_bytes: u64,
    pub(crate) memory_cache_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) is_full: bool,
    /// The failure that stopped writes, if any.
    pub(crate) poisoned: Option<String>,
    /// The device's name.
    pub(crate) device_name: &'static str,
    /// Device operations by I/O class, in the order of the causes' names.
    pub(crate) device: Vec<DeviceCounts>,
}

impl StoreCounts {
    pub(super) fn of(store: &StoreStatus, poisoned: Option<&String>) -> Self {
        let StoreStatus { keys, engine, log, memory, device, device_name, generation, is_full } = store;
        Self {
            keys: *keys,
            user_bytes: engine.user_bytes,
            log_writes: engine.writes,
            log_written_bytes: engine.written_bytes,
            log_syncs: engine.syncs,
            false_matches: engine.false_matches,
            keys_apart: log.keys_apart,
            corrupt_passed: engine.corrupt_passed,
            segments: log.segments,
            segment_bytes: log.segment_bytes,
            live_bytes: log.live_bytes,
            memory_budget_bytes: memory.budget_bytes,
            memory_index_bytes: memory.index_bytes,
            memory_overlay_bytes: memory.overlay_bytes,
            memory_buffer_bytes: memory.buffer_bytes,
            memory_cache_bytes: memory.cache_bytes,
            generation: u64::from(*generation),
            is_full: *is_full,
            poisoned: poisoned.cloned(),
            device_name,
            device: DeviceCounts::all(device),
        }
    }
}

/// Traffic between the store and its device for one I/O class.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct DeviceCounts {
    pub(crate) class: &'static str,
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
}

impl DeviceCounts {
    pub(super) fn all(stats: &IoStats) -> Vec<Self> {
        let of = |class: &IoClass| {
            let &IoClassStats { reads, read_bytes, writes, written_bytes, syncs } = stats.of(*class);
            Self { class: class.name(), reads, read_bytes, writes, written_bytes, syncs }
        };
        IoClass::ALL.iter().map(of).collect()
    }
}

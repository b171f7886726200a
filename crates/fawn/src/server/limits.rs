//! Bounds of one shard's connections, one for each thing that a client can make grow.
use crate::config::Settings;
use fawn_types::limits::REQUEST_BYTES_MAX;
use std::time::Duration;

/// Maximum bytes read from one connection before others are served.
pub(super) const READ_BYTES: usize = 64 << 10;
/// Reads per iteration from a connection in the middle of a large request.
pub(super) const LARGE_READS_MAX: usize = 16;
/// Time for a client to read its last reply after its connection was closed.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Minimum progress, in bytes per period, of an admitted request while others wait.
pub(super) const SLOW_SENDER_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const SLOW_SENDER_BYTES_MIN: u64 = 32 << 10;
/// Pause of accepting after the system refused (no descriptors, no memory).
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum budget for incomplete requests, and for replies, bytes.
const HELD_BYTES_MIN: u64 = 4 << 20;
/// Maximum reply to a request on several keys; one such reply may exceed the budget.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Length of a request besides its largest value: key, framing, the read after it.
const REQUEST_OVERHEAD_BYTES: u64 = 1 << 20;

/// Bounds of a shard's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardLimits {
    /// Incomplete requests of all connections, bytes: beyond it large ones wait. One may exceed it.
    pub(super) input_bytes_max: usize,
    /// Untaken replies of all connections, bytes: beyond it the largest holder is closed. The reply budget makes
    /// clients wait long before.
    pub(super) output_bytes_max: usize,
    /// How long a client may leave its replies untaken.
    pub(super) stall_timeout: Duration,
    /// How long a stopping shard waits for clients to take their replies.
    pub(super) shutdown_timeout: Duration,
}

impl ShardLimits {
    /// Bounds for a shard with these settings.
    pub(super) fn of(settings: &Settings) -> Self {
        let held_bytes_max = Self::held_bytes(settings);
        Self {
            input_bytes_max: held_bytes_max,
            output_bytes_max: 2 * held_bytes_max + REPLY_BYTES_MAX,
            stall_timeout: settings.stall_timeout.0,
            shutdown_timeout: settings.shutdown_timeout.0,
        }
    }

    /// Bytes that all connections together may hold, per direction: a sixteenth of the budget. Small budgets give up to
    /// an eighth, so that one maximum value passes.
    pub(super) fn held_bytes(settings: &Settings) -> usize {
        let (share, one_value) = (settings.memory.0 / 16, settings.value_max.0 + REQUEST_OVERHEAD_BYTES);
        let wanted = share.max(one_value.min(settings.memory.0 / 8));
        wanted.clamp(HELD_BYTES_MIN, 4 * REQUEST_BYTES_MAX as u64) as usize
    }

    /// The part of the budget that is left for stores when all these buffers are full.
    pub(super) fn store_bytes(settings: &Settings) -> u64 {
        // Of a tiny budget the stores keep most: their minimum precedes a crowd of large requests.
        settings.memory.0 - (2 * Self::held_bytes(settings) as u64).min(settings.memory.0 / 4)
    }
}

//! Owns the bounds of one shard's connections; everything a client can make grow has one here.
use crate::config::Settings;
use fawn_types::limits::REQUEST_BYTES_MAX;
use std::time::Duration;

/// Bytes read from one connection before others get their turn.
pub(super) const READ_BYTES: usize = 64 << 10;
/// Reads of a turn from a connection that is in the middle of a large request.
pub(super) const LARGE_READS_MAX: usize = 16;
/// How long a closed connection is kept for the client to read its last reply.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// While others wait for the room that a long request holds, its client must send so much of it in so much time.
pub(super) const INPUT_PATIENCE: Duration = Duration::from_secs(1);
pub(super) const INPUT_PATIENCE_BYTES: u64 = 32 << 10;
/// How long accepting pauses after the system refused (no descriptors, no memory).
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Smallest room for incomplete requests, and for replies, bytes.
const HELD_BYTES_MIN: u64 = 4 << 20;
/// Longest reply to a request on several keys: the room may be exceeded by one.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// What a request needs beside its largest value: key, framing, the read behind it.
const VALUE_ROOM_BYTES: u64 = 1 << 20;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Incomplete requests of all connections, bytes: past this further long ones wait. One may exceed it.
    pub(super) input_bytes_max: usize,
    /// Replies that clients have not taken, all connections, bytes: past this the worst is closed. The shard's room for
    /// replies makes clients wait long before.
    pub(super) output_bytes_max: usize,
    /// How long a client may take nothing of what waits for it.
    pub(super) stall_timeout: Duration,
    /// How long a stopping shard waits for clients to take their replies.
    pub(super) shutdown_timeout: Duration,
}

impl Limits {
    /// Those of a shard with these settings.
    pub(super) fn of(settings: &Settings) -> Self {
        let held_bytes_max = Self::held_bytes(settings);
        Self {
            input_bytes_max: held_bytes_max,
            output_bytes_max: 2 * held_bytes_max + REPLY_BYTES_MAX,
            stall_timeout: settings.stall_timeout.0,
            shutdown_timeout: settings.shutdown_timeout.0,
        }
    }

    /// What replies of all connections, and likewise requests under way, may take before more of them wait.
    pub(super) fn held_bytes(settings: &Settings) -> usize {
        usize::try_from(held_bytes_max(settings)).unwrap_or(usize::MAX)
    }

    /// What the budget leaves for stores once all these buffers are full.
    pub(super) fn store_bytes(settings: &Settings) -> u64 {
        // Of a tiny budget the stores keep most: their floors come before a crowd of large requests.
        settings.memory.0 - (2 * held_bytes_max(settings)).min(settings.memory.0 / 4)
    }
}

/// Bytes that all connections together may hold, each way: a sixteenth of the budget. Small budgets give up to an
/// eighth, so that one largest value passes.
fn held_bytes_max(settings: &Settings) -> u64 {
    let (share, one_value) = (settings.memory.0 / 16, settings.value_max.0 + VALUE_ROOM_BYTES);
    let wanted = share.max(one_value.min(settings.memory.0 / 8));
    wanted.clamp(HELD_BYTES_MIN, 4 * REQUEST_BYTES_MAX as u64)
}

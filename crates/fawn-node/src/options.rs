//! Options of a shard: bounds, and facts about its process that clients query.
use fawn_types::{Durability, Version, limits};
use fawn_wire::CodecLimits;

/// Maximum bytes of device reads for lookups in flight; more are queued. One read may exceed it.
pub(crate) const READS_IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

/// Bounds and mode of a shard. Every buffer of a shard is bounded by one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardOptions {
    /// The watermark that acknowledges a write; must equal the engine's.
    pub durability: Durability,
    /// Maximum value length, bytes.
    pub value_bytes_max: u32,
    /// Pending replies of a session, bytes; beyond it the session's input is not consumed. One reply may exceed it.
    pub session_output_bytes_max: usize,
    /// Replies of all sessions, including those granted to reads in flight, bytes; beyond it requests
    /// that return values wait. One reply may exceed it.
    pub replies_bytes_max: usize,
    /// Keys and values of all sessions' waiting requests, bytes; beyond it input is not consumed.
    pub requests_bytes_max: usize,
    /// Requests of a session that may wait for a commit or a read; beyond it the session's input is not consumed. Also
    /// the operations that one request on several keys has at a time.
    pub session_pending_max: usize,
    /// Maximum reply to a request on several keys, bytes.
    pub reply_bytes_max: usize,
    /// Requests of all sessions that may wait for a read or for another shard; beyond it input is not consumed.
    pub pending_max: usize,
    /// Writes of all sessions that may wait for their commit; beyond it input is not consumed.
    pub uncommitted_max: u64,
    /// Writes of one epoch of a standalone shard; the next epoch begins before they are used up. More than one request
    /// writes.
    pub epoch_writes_max: u64,
    /// Maximum number of device reads for lookups in flight; more are queued.
    pub reads_in_flight_max: usize,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            value_bytes_max: limits::VALUE_BYTES_MAX as u32,
            session_output_bytes_max: 1 << 20,
            replies_bytes_max: 64 << 20,
            requests_bytes_max: 64 << 20,
            session_pending_max: 1024,
            reply_bytes_max: 64 << 20,
            pending_max: 1 << 16,
            uncommitted_max: 1 << 17,
            epoch_writes_max: Version::SEQ_SOFT_MAX,
            reads_in_flight_max: 256,
        }
    }
}

impl ShardOptions {
    /// Limits of the sessions' decoders.
    #[must_use]
    pub fn limits(&self) -> CodecLimits {
        CodecLimits { value_bytes_max: self.value_bytes_max as usize, ..CodecLimits::default() }
    }
}

/// Facts about the process, for `INFO`, `CONFIG GET` and `stats`. A shard has no clock and no environment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerInfo {
    /// Start of the process, ms since the Unix epoch.
    pub started_at_ms: u64,
    /// Process id.
    pub process_id: u32,
    /// 40 hexadecimal digits, random per start.
    pub run_id: String,
    /// Port of the RESP listener; 0: none.
    pub resp_port: u16,
    /// Port of the memcached listener; 0: none.
    pub memcached_port: u16,
    /// Threads that serve clients.
    pub threads: u16,
    /// Maximum sessions of the process.
    pub sessions_max: u32,
    /// The data directory.
    pub directory: String,
    /// The operating system, in the form of `uname -srm`.
    pub system: String,
}

impl ServerInfo {
    /// Random part of this process's boots, from its run ID, which each start draws again.
    pub(crate) fn random_part(&self) -> u32 {
        let digits = self.run_id.get(..8).unwrap_or_default();
        u32::from_str_radix(digits, 16).unwrap_or_default()
    }
}

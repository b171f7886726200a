//! Owns what a shard may be told: bounds, and the facts about its process that clients ask for.
use fawn_types::{Durability, limits};
use fawn_wire::Limits;

/// Device reads for lookups at a time, bytes; beyond, they queue. One read may exceed it.
pub(crate) const READS_IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

/// A shard's bounds and mode. Every buffer of a shard is bounded by one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardOptions {
    /// Which watermark acknowledges a write; must be what the engine was opened with.
    pub durability: Durability,
    /// Longest value, bytes.
    pub value_bytes_max: u32,
    /// Replies that a session may have waiting, bytes; beyond, its input is not consumed. One reply may exceed it.
    pub session_output_bytes_max: usize,
    /// Replies of all sessions, those that reads under way are expected to bring among them, bytes; beyond, requests
    /// that return values wait. One reply may exceed it.
    pub replies_bytes_max: usize,
    /// Keys and values of all sessions' requests under way at a cluster, bytes; beyond, input is not consumed.
    pub requests_bytes_max: usize,
    /// Requests of a session that may wait for a commit or a read; beyond, its input is not consumed.
    pub session_pending_max: usize,
    /// Longest reply to a request on several keys, bytes.
    pub reply_bytes_max: usize,
    /// Requests of all sessions that may wait for a read; beyond, they are answered "overloaded".
    pub pending_max: usize,
    /// Writes of all sessions that may wait for their commit; beyond, input is not consumed.
    pub uncommitted_max: u64,
    /// Device reads for lookups at a time; further ones queue.
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
            reads_in_flight_max: 256,
        }
    }
}

impl ShardOptions {
    /// What its decoders accept.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { value_bytes_max: self.value_bytes_max as usize, ..Limits::default() }
    }
}

/// Facts about the process, for `INFO`, `CONFIG GET` and `stats`. A shard has no clock and no environment to ask.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessFacts {
    /// When it started, ms since the Unix epoch.
    pub started_at_ms: u64,
    /// Its process id.
    pub process_id: u32,
    /// 40 hexadecimal digits, drawn anew at every start.
    pub run_id: String,
    /// Port of the RESP listener; 0: none.
    pub resp_port: u16,
    /// Port of the memcached listener; 0: none.
    pub memcached_port: u16,
    /// Threads that serve clients.
    pub threads: u16,
    /// Sessions that the process takes at most.
    pub sessions_max: u32,
    /// The data directory.
    pub directory: String,
    /// The operating system, as `uname -srm` words it.
    pub system: String,
    /// Further settings for `CONFIG GET`, by their name in the configuration file.
    pub settings: Vec<(String, String)>,
}

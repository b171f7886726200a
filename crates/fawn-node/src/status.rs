//! Owns what a shard counts and reports: one plain struct for `/metrics`, `INFO` and `stats` alike.
use fawn_ds::{EngineStats, LogReport, MemoryReport};
use fawn_flash::IoStats;

/// Counters since the shard was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Requests executed.
    pub commands: u64,
    /// Keys read.
    pub gets: u64,
    /// Of these, found.
    pub hits: u64,
    /// Of these, not found.
    pub misses: u64,
    /// Device reads started for requests.
    pub cold: u64,
    /// Records written for clients.
    pub writes: u64,
    /// Times the store was emptied.
    pub flushes: u64,
    /// Requests refused because too much was under way.
    pub overloaded: u64,
    /// Reads answered when there was no room for the answer, and asked again.
    pub asked_again: u64,
    /// Requests refused by the decoder.
    pub malformed: u64,
    /// Times a session's input had to wait.
    pub stalls: u64,
    /// Turns taken.
    pub turns: u64,
    /// Bytes of input consumed.
    pub input_bytes: u64,
    /// Bytes of output written.
    pub output_bytes: u64,
}

impl Counters {
    /// `stats reset`: what clients count; the device's and the engine's counters go on.
    pub(crate) fn reset(&mut self) {
        *self = Self { sessions_opened: self.sessions_opened, ..Self::default() };
    }
}

/// What the replies of all sessions take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepliesStatus {
    /// Replies that clients have not taken or that wait for their turn, bytes.
    pub held_bytes: usize,
    /// Most of these at a time since the start.
    pub held_bytes_peak: usize,
    /// Replies that reads under way are expected to bring, bytes.
    pub expected_bytes: usize,
    /// Sessions whose requests wait for room, though they have nothing under way.
    pub waiting: usize,
}

/// A shard at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardStatus {
    /// Counters since it was made.
    pub counters: Counters,
    /// Sessions open.
    pub sessions: usize,
    /// Requests that wait for a read or in a key's queue.
    pub pending: usize,
    /// Device reads for lookups under way, and waiting for room.
    pub reads: usize,
    /// The room of replies.
    pub replies: RepliesStatus,
    /// Writes that wait for their commit.
    pub uncommitted: u64,
    /// Keys, expired ones not met yet included.
    pub keys: u64,
    /// The engine's counters.
    pub engine: EngineStats,
    /// What the log holds.
    pub log: LogReport,
    /// Where the memory went; sessions' buffers not included.
    pub memory: MemoryReport,
    /// Requests and bytes of the device, by cause.
    pub device: IoStats,
    /// The device's name.
    pub device_name: &'static str,
    /// The opening's number.
    pub generation: u32,
    /// The failure that ended writes, if any.
    pub poisoned: Option<String>,
    /// Whether the last attempt to get space failed.
    pub is_full: bool,
}

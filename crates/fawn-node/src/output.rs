//! Effects of a shard for its host, drained by `Shard::poll_output`.
use crate::request::SessionId;

/// An effect for the host. None waits for durability: a reply appears only once its write is committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShardOutput {
    /// The session has bytes to write: `Shard::output`, then `Shard::wrote`. Emitted once until all is written.
    Writable(SessionId),
    /// The session refused input and accepts it again: offer the bytes that it did not consume.
    Resume(SessionId),
    /// The session's last reply is in its output: write the rest, then close the connection and the session.
    Close(SessionId),
}

//! Owns what a shard asks its host to do: the effects that `Shard::poll_output` drains.
use crate::SessionId;

/// An effect for the host. Nothing here waits for durability: a reply appears only once its write is committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The session has bytes to write: `Shard::output`, then `Shard::wrote`. Said once until all is written.
    Writable(SessionId),
    /// The session refused input and takes it again: offer the bytes that it did not consume.
    Resume(SessionId),
    /// The session's last reply is in its output: write what is left, then close the connection and the session.
    Close(SessionId),
}

//! Continuation of a session's input after a command, and the reasons of a stall.

/// Continuation of a session's input after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// The command is consumed; the next one may follow.
    Continue,
    /// The command is not consumed: offer it again once the stall ends.
    Stall(Stall),
    /// The command is consumed and was the session's last.
    End,
}

/// Reason of a session's stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// The session's own bounds on waiting requests and bytes.
    SessionLimit,
    /// All earlier requests of the session: a whole-keyspace command is a barrier.
    Quiet,
    /// The session's requests that return values: a request on several keys must not overtake one on the same key.
    Values,
    /// The shard's reply budget: a reply of this length is not granted. Nothing was copied, read or changed.
    ReplyBudget,
    /// The shard's bounds: log buffers, uncommitted writes, keys being loaded.
    Shard,
}

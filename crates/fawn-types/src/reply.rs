//! Protocol-independent replies, encoded by each codec for its own protocol.
use crate::{EntryRef, Version};

/// The reply to a [`crate::Request`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// The entry that was read.
    Value(EntryRef<'a>),
    /// The key to read is absent.
    Absent,
    /// The write was applied.
    Stored {
        /// The version assigned to the write.
        version: Version,
        /// Length of the whole value after the write, bytes (the reply to `APPEND`).
        value_bytes: u32,
    },
    /// The write's condition on the key's presence did not hold.
    NotStored,
    /// The key has another version than the write requires.
    VersionMismatch,
    /// The key to change is absent.
    NotFound,
    /// The key was removed.
    Deleted,
    /// The expiry was changed.
    Touched,
    /// The expiry was not changed: its condition did not hold.
    NotTouched,
    /// A signed counter's new value.
    Signed(i64),
    /// An unsigned counter's new value.
    Unsigned(u64),
    /// The previous entry, and whether the write was applied.
    Previous {
        /// The previous entry, if the key was present.
        entry: Option<EntryRef<'a>>,
        /// Whether the write's condition held.
        applied: bool,
    },
    /// The operation failed.
    Error(OperationError),
}

/// The reason why an operation failed; each codec has its own text for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperationError {
    /// The value is not a signed 64-bit decimal (Redis counters).
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    /// The value is not an unsigned 64-bit decimal (memcached counters).
    #[error("cannot increment or decrement non-numeric value")]
    NotANumber,
    /// The signed result does not fit 64 bits.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The key is longer than [`crate::limits::KEY_BYTES_MAX`].
    #[error("key longer than 65535 bytes")]
    KeyTooLong,
    /// The new value would exceed the configured maximum.
    #[error("value longer than {limit_bytes} bytes; raise value-max or split the value")]
    ValueTooLong {
        /// The configured maximum, bytes.
        limit_bytes: u32,
    },
    /// The records of one write would exceed what a segment takes, or a frame between members.
    #[error("records of one command longer than {limit_bytes} bytes, with keys and headers; split them")]
    RecordsTooLong {
        /// The maximum, bytes.
        limit_bytes: u32,
    },
    /// The store has no space: reads and deletes still work, and writes resume once there is space again.
    #[error("store full: delete keys or add space, then retry")]
    StoreFull,
    /// Too many requests are in flight; the client should retry.
    #[error("overloaded, try again")]
    Overloaded,
    /// The chain is changing or unreachable; the write may or may not have been applied.
    #[error("range unavailable, try again")]
    Unavailable,
    /// Fewer members serve than a write must survive on; an earlier attempt may have been applied.
    #[error("too few copies of the key range for writes, try again once its nodes are back")]
    TooFewCopies,
    /// Stored bytes do not match their checksum.
    #[error("stored data is corrupt: run `fawn check` on the data directory")]
    Corrupt,
    /// A device write or sync failed; the store rejects writes until it is restarted and verified.
    #[error("device failed: restart the server, then run `fawn check` on the data directory")]
    Poisoned,
    /// A device write or sync failed while a record was in flight: after a restart the record may be there.
    #[error(
        "device failed: a write in flight may or may not have been applied; restart the server, then run `fawn check` on the data directory"
    )]
    PoisonedInFlight,
}

//! Owns the protocol-independent replies. Each codec words them in its protocol's manner.
use crate::{EntryRef, Version};

/// The answer to a [`crate::Request`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// The entry asked for.
    Value(EntryRef<'a>),
    /// The key read is not there.
    Absent,
    /// Written, as this version.
    Stored {
        /// The version assigned.
        version: Version,
        /// Length of the whole value afterwards, bytes (`APPEND`).
        value_bytes: u32,
    },
    /// A condition on presence did not hold.
    NotStored,
    /// The version asked for is not the key's.
    VersionMismatch,
    /// The key to change is not there.
    NotFound,
    /// Removed.
    Deleted,
    /// The expiry was changed.
    Touched,
    /// The expiry was not changed, its condition did not hold.
    NotTouched,
    /// A signed counter's new value.
    Signed(i64),
    /// An unsigned counter's new value.
    Unsigned(u64),
    /// What was there before, and whether the write applied.
    Previous {
        /// The entry before, if any.
        entry: Option<EntryRef<'a>>,
        /// Whether the condition held.
        applied: bool,
    },
    /// It failed.
    Error(OperationError),
}

/// Why an operation failed: each protocol words these itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperationError {
    /// Redis's counters want a signed 64-bit decimal.
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    /// memcached's counters want an unsigned 64-bit decimal.
    #[error("cannot increment or decrement non-numeric value")]
    NotANumber,
    /// The signed result does not fit.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The key is longer than [`crate::limits::KEY_BYTES_MAX`].
    #[error("key longer than 65535 bytes")]
    KeyTooLong,
    /// The value would be longer than the store takes.
    #[error("value longer than {limit_bytes} bytes; raise value-max or store it in pieces")]
    ValueTooLong {
        /// The limit in force.
        limit_bytes: u32,
    },
    /// No space: reads and deletes go on, writes resume by themselves once space is back.
    #[error("store full: delete keys or add space, then retry")]
    StoreFull,
    /// Too much is under way; try again.
    #[error("overloaded, try again")]
    Overloaded,
    /// The chain is changing or unreachable; the write may or may not have happened.
    #[error("range unavailable, try again")]
    Unavailable,
    /// Stored bytes failed their checksum.
    #[error("stored data is damaged: run `fawn check` on the data directory")]
    Corrupt,
    /// A device write or sync failed; the store takes no more writes until restarted and verified.
    #[error("device failed: restart the server, then run `fawn check` on the data directory")]
    Poisoned,
}

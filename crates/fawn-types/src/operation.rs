//! The interface between a chain's head and a read-modify-write operation [DLI12 §4.2].
use crate::{EntryRef, Reply, TimeMs};
use alloc::vec::Vec;

/// The change that an operation makes to its key. The head replicates the effect, never the operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<'a> {
    /// No change; the outcome is replicated as a result-only record.
    None,
    /// Stores a new entry.
    Put {
        /// The new value.
        value: ValueCow<'a>,
        /// Client flags.
        flags: u32,
        /// Expiry time, ms since the Unix epoch; 0: never.
        expires_at_ms: u64,
    },
    /// Removes the key.
    Delete,
}

/// A value that is computed by an operation or borrowed from its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueCow<'a> {
    /// Bytes of the request itself.
    Borrowed(&'a [u8]),
    /// Computed by the operation.
    Owned(Vec<u8>),
}

impl ValueCow<'_> {
    /// The value's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            ValueCow::Borrowed(bytes) => bytes,
            ValueCow::Owned(bytes) => bytes,
        }
    }
}

/// The result of an operation. In `reply`, `Version::ZERO` is a placeholder for the version that is not assigned yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<'a> {
    /// The change to write and replicate.
    pub effect: Effect<'a>,
    /// The reply, sent to the client once the effect is committed.
    pub reply: Reply<'a>,
}

/// A read-modify-write on one key: a pure function from the key's entry to an outcome.
///
/// `current` is the latest pending entry: `None` if absent or expired at `now`. Both arguments come from the head, so
/// the result is the same on every replica whatever its own clock shows.
pub trait DataOperation<'a> {
    /// Whether [`DataOperation::apply`] uses `current`; if not, the head does not load it.
    fn needs_current(&self) -> bool;

    /// Computes the effect and the reply.
    fn apply(&self, current: Option<EntryRef<'a>>, now: TimeMs) -> Outcome<'a>;
}

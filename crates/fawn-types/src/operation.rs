//! Owns the interface of read-modify-writes: what a head needs of an operation, whoever defines it [DLI12 §4.2].
use crate::{EntryRef, Reply, TimeMs};
use alloc::vec::Vec;

/// What an operation does to its key. Replicas are sent this, never the operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<'a> {
    /// Nothing is written; the outcome travels as a result-only record.
    None,
    /// The key holds this from now on.
    Put {
        /// The new value.
        value: ValueCow<'a>,
        /// Client flags.
        flags: u32,
        /// Absolute expiry, ms; 0: never.
        expires_at_ms: u64,
    },
    /// The key is gone.
    Delete,
}

/// A value that an operation made, or that it found in its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueCow<'a> {
    /// From the request's own bytes.
    Borrowed(&'a [u8]),
    /// Computed.
    Owned(Vec<u8>),
}

impl ValueCow<'_> {
    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            ValueCow::Borrowed(bytes) => bytes,
            ValueCow::Owned(bytes) => bytes,
        }
    }
}

/// What came of an operation. In `reply`, a version still to be assigned stands as `Version::ZERO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<'a> {
    /// What is written and replicated.
    pub effect: Effect<'a>,
    /// What the client hears once the effect is committed.
    pub reply: Reply<'a>,
}

/// A read-modify-write on one key: a pure function from the key's entry to an outcome.
///
/// `current` is the latest pending entry, `None` when absent or expired at `now`; both come from the head, so that
/// every replica agrees whatever its own clock says.
pub trait Operation<'a> {
    /// Whether [`Operation::apply`] looks at `current`; if not, the head does not load it.
    fn needs_current(&self) -> bool;

    /// Evaluates it.
    fn apply(&self, current: Option<EntryRef<'a>>, now: TimeMs) -> Outcome<'a>;
}

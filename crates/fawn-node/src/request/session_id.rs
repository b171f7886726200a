//! Identifiers of sessions.

/// Identifies a session within its node; never reused, so a late event of an ended session has no receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    index: u32,
    serial: u64,
}

impl SessionId {
    /// An ID that no session has: serials start at 1.
    pub(crate) const NONE: Self = Self { index: 0, serial: 0 };

    pub(crate) const fn new(index: u32, serial: u64) -> Self {
        Self { index, serial }
    }

    /// Its place in the table of sessions.
    pub(crate) const fn index(self) -> usize {
        self.index as usize
    }

    /// Its number: `CLIENT ID`.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

//! Owns the type of wall-clock time: milliseconds since the Unix epoch. Pure code is given it, never asks for it.

/// Milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TimeMs(pub u64);

impl TimeMs {
    /// This time and `ms` more; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero if that is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

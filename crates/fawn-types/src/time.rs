//! Time as pure code receives it, always as an argument: wall-clock time for expiry, monotonic time for timers.

/// Milliseconds since 1970-01-01 UTC. It may step in both directions: it decides what has expired, never when to act.
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

/// Milliseconds of a monotonic clock with an arbitrary origin. It never falls, goes on while the machine sleeps, and
/// means nothing to another machine or after a restart: timers only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MonoMs(pub u64);

impl MonoMs {
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

/// Both clocks, read at the same moment: the first argument of everything that acts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Now {
    /// For timers.
    pub mono: MonoMs,
    /// For expiry.
    pub wall: TimeMs,
}

impl Now {
    /// Both clocks at `ms`.
    #[must_use]
    pub const fn at(ms: u64) -> Self {
        Self { mono: MonoMs(ms), wall: TimeMs(ms) }
    }

    /// Both clocks `ms` later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self { mono: self.mono.plus_ms(ms), wall: self.wall.plus_ms(ms) }
    }

    /// The later time of each clock.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { mono: self.mono.max(other.mono), wall: self.wall.max(other.wall) }
    }

    /// When the wall clock, as it stands, reaches `wall`: how a deadline that a client names becomes a timer.
    #[must_use]
    pub const fn mono_at(self, wall: TimeMs) -> MonoMs {
        self.mono.plus_ms(wall.ms_since(self.wall))
    }
}

//! Wall-clock time for expiry and monotonic time for timers. Pure code receives the time as an argument.
mod expiry_clock;

pub use expiry_clock::{ExpiryClock, PATIENCE_MS, SteadyTime, TimeJump};

/// Milliseconds since 1970-01-01 UTC. The clock may step in either direction, so it decides expiry but drives no timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TimeMs(pub u64);

impl TimeMs {
    /// This time plus `ms`; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Milliseconds of a monotonic clock with an arbitrary origin, for timers only. The clock never decreases and includes
/// system suspend. Its values are not comparable across machines or restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MonoMs(pub u64);

impl MonoMs {
    /// This time plus `ms`; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both clocks, read at the same moment: the first argument of every state-machine step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Now {
    /// The monotonic clock, for timers.
    pub mono: MonoMs,
    /// The wall clock, for expiry.
    pub wall: TimeMs,
}

impl Now {
    /// Both clocks at `ms`, for tests.
    #[must_use]
    pub const fn at(ms: u64) -> Self {
        Self { mono: MonoMs(ms), wall: TimeMs(ms) }
    }

    /// Both clocks advanced by `ms`.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self { mono: self.mono.plus_ms(ms), wall: self.wall.plus_ms(ms) }
    }

    /// The monotonic time at which the wall clock reaches `wall`, if it does not step: turns a deadline into a timer.
    #[must_use]
    pub const fn mono_at(self, wall: TimeMs) -> MonoMs {
        self.mono.plus_ms(wall.ms_since(self.wall))
    }
}

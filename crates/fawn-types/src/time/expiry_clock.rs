//! The time that judges expiry: it runs with the monotonic clock, never falls, and lets no wrong wall clock rush it.
use super::{MonoMs, Now, TimeMs};

/// How long the wall clock must stand ahead before its lead counts. Boards without a clock chip start in 1970, and a
/// wrong time source is often corrected within seconds: neither may expire what is stored.
pub const PATIENCE_MS: u64 = 60_000;
/// The speed while the time leads the wall clock, in percent: the lead shrinks by what is missing to 100.
const LEADING_PERCENT: u64 = 99;

/// A time that runs with the monotonic clock and never falls, one percent slower while it leads the wall clock.
///
/// A chain's head follows the expiry time of its node with it: a lead over that is what earlier heads had announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SteadyTime {
    time: TimeMs,
    read_at: MonoMs,
    /// Hundredths of a millisecond that have passed on top of `time`.
    hundredths: u64,
}

impl SteadyTime {
    /// Runs on from `time` at `at`.
    #[must_use]
    pub const fn new(time: TimeMs, at: MonoMs) -> Self {
        Self { time, read_at: at, hundredths: 0 }
    }

    /// The time as of the last reading.
    #[must_use]
    pub const fn get(&self) -> TimeMs {
        self.time
    }

    /// Moves on to `now`. The wall clock decides only about the speed: a lead over it shrinks, it is not jumped to.
    pub fn advance(&mut self, now: Now) -> TimeMs {
        let elapsed_ms = now.mono.ms_since(self.read_at);
        self.read_at = self.read_at.max(now.mono);
        let full = self.time.plus_ms(elapsed_ms);
        if full <= now.wall {
            (self.time, self.hundredths) = (full, 0);
            return full;
        }
        let hundredths = elapsed_ms.saturating_mul(LEADING_PERCENT).saturating_add(self.hundredths);
        self.hundredths = hundredths % 100;
        // Where the lead ends within this step, the wall clock's speed is right again.
        self.time = self.time.plus_ms(hundredths / 100).max(now.wall);
        self.time
    }

    /// Another clock says that at `at` it is no earlier than `time`.
    pub fn raise(&mut self, time: TimeMs, at: MonoMs) {
        self.time = self.time.max(time);
        self.read_at = self.read_at.max(at);
    }
}

/// A lead of the wall clock that does not count yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lead {
    since: MonoMs,
    /// The least that was seen since: a clock that jumps to and fro never stood further ahead.
    least_ms: u64,
}

/// The time that judges expiry in one store. It starts at its last persisted value; a wall clock ahead of it counts once
/// it has stood ahead for [`PATIENCE_MS`]; a lead over the wall clock shrinks by one percent of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpiryClock {
    steady: SteadyTime,
    lead: Option<Lead>,
}

impl ExpiryClock {
    /// A first start: nothing was ever judged by another time, so the wall clock is taken as it is.
    #[must_use]
    pub const fn first(now: Now) -> Self {
        Self { steady: SteadyTime::new(now.wall, now.mono), lead: None }
    }

    /// A later start: runs on from the time that was persisted, with what the monotonic clock showed then.
    #[must_use]
    pub fn resume(time: TimeMs, at: MonoMs, now: Now) -> Self {
        // Without a reboot in between, the monotonic clock has run on by what has passed; after one, it shows less than
        // what has passed. The wall clock bounds it, because a store may have been moved to a machine that runs longer.
        let passed = time.plus_ms(now.mono.ms_since(at)).min(now.wall).max(time);
        Self { steady: SteadyTime::new(passed, now.mono), lead: None }
    }

    /// The time as of the last reading.
    #[must_use]
    pub const fn get(&self) -> TimeMs {
        self.steady.get()
    }

    /// Moves on to `now`.
    pub fn advance(&mut self, now: Now) -> TimeMs {
        let time = self.steady.advance(now);
        let lead_ms = now.wall.ms_since(time);
        if lead_ms == 0 {
            self.lead = None;
            return time;
        }
        let lead = self.lead.get_or_insert(Lead { since: now.mono, least_ms: lead_ms });
        lead.least_ms = lead.least_ms.min(lead_ms);
        if now.mono.ms_since(lead.since) >= PATIENCE_MS {
            // What the wall clock leads by beyond that has not stood long enough: another wait begins.
            self.steady.raise(time.plus_ms(lead.least_ms), now.mono);
            self.lead = None;
        }
        self.steady.get()
    }
}

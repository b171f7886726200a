//! Expiry clock: follows the monotonic clock, never goes back, and ignores short jumps of the wall clock.
use super::{MonoMs, Now, TimeMs};

/// Time that the wall clock must be ahead before the expiry clock follows it.
///
/// A wrong time source is often corrected within seconds, and boards without a clock chip start in 1970 and then jump.
/// Neither may expire stored keys early.
pub const PATIENCE_MS: u64 = 60_000;
/// Lead by a step of the wall clock, at most, that a time to live takes for granted before.
const TRUSTED_LEAD_MS: u64 = 24 * 3_600_000;
/// Speed while the time is ahead of the wall clock, in percent. The lead therefore shrinks by 1 % of the elapsed time.
const LEADING_PERCENT: u64 = 99;

/// A time that advances with the monotonic clock and never goes back. It is 1 % slower while ahead of the wall clock.
///
/// A chain's head applies it to its node's expiry time: a lead then comes from the time that earlier heads announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SteadyTime {
    time: TimeMs,
    read_at: MonoMs,
    /// Elapsed hundredths of a millisecond beyond `time`.
    hundredths: u64,
}

impl SteadyTime {
    /// Starts with `time` at the monotonic time `at`.
    #[must_use]
    pub const fn new(time: TimeMs, at: MonoMs) -> Self {
        Self { time, read_at: at, hundredths: 0 }
    }

    /// The time as of the last reading.
    #[must_use]
    pub const fn get(&self) -> TimeMs {
        self.time
    }

    /// Advances to `now`. The wall clock only selects the speed: the time never jumps to it.
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
        // If the lead ends within this step, the rest of the step has full speed.
        self.time = self.time.plus_ms(hundredths / 100).max(now.wall);
        self.time
    }

    /// Raises the time to at least `time` as of the monotonic time `at`.
    pub fn raise(&mut self, time: TimeMs, at: MonoMs) {
        self.time = self.time.max(time);
        self.read_at = self.read_at.max(at);
    }
}

/// A lead of the wall clock that has not lasted for [`PATIENCE_MS`] yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClockLead {
    since: MonoMs,
    /// Minimum lead since then: only this part of the lead has lasted the whole time, even if the clock jumps.
    least_ms: u64,
    /// It was there when the store was opened: no step of the wall clock was seen, and it is most often right.
    is_from_start: bool,
}

/// A jump of an expiry time to the wall clock, unless that steps back before. A time to live that ends behind the jump counts from
/// the time that it leads to: it would end early by the jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeJump {
    /// Time until it, ms.
    pub in_ms: u64,
    /// The time that it leads to.
    pub to: TimeMs,
}

impl TimeJump {
    /// The time from which a time to live counts that is given at `now`, ms.
    #[must_use]
    pub fn begin_of(&self, life_ms: u64, now: TimeMs) -> TimeMs {
        if life_ms >= self.in_ms { now.max(self.to) } else { now }
    }
}

/// Expiry time of one store.
///
/// It starts at its last persisted value. It follows a wall clock that has been ahead for [`PATIENCE_MS`]. While it is
/// ahead of the wall clock itself, it runs 1 % slower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpiryClock {
    steady: SteadyTime,
    lead: Option<ClockLead>,
}

impl ExpiryClock {
    /// The clock of a new store: it starts at the wall clock, because no key was ever compared with another time.
    #[must_use]
    pub const fn first(now: Now) -> Self {
        Self { steady: SteadyTime::new(now.wall, now.mono), lead: None }
    }

    /// The clock of an existing store: continues from the persisted `time`, taken at the monotonic time `at`.
    #[must_use]
    pub fn resume(time: TimeMs, at: MonoMs, now: Now) -> Self {
        // Without a reboot, the monotonic clock gives the exact elapsed time; after one, it gives less. The wall clock
        // is an upper bound, because a store may have been moved to a machine with a longer uptime.
        let passed = time.plus_ms(now.mono.ms_since(at)).min(now.wall).max(time);
        let least_ms = now.wall.ms_since(passed);
        let lead = (least_ms > 0).then_some(ClockLead { since: now.mono, least_ms, is_from_start: true });
        Self { steady: SteadyTime::new(passed, now.mono), lead }
    }

    /// The time as of the last reading.
    #[must_use]
    pub const fn get(&self) -> TimeMs {
        self.steady.get()
    }

    /// The jump to expect as of the last reading, at `now`. Without one it leads to no later time.
    #[must_use]
    pub fn next_jump(&self, now: Now) -> TimeJump {
        let Some(lead) = self.lead else { return TimeJump::default() };
        let waited_ms = now.mono.ms_since(lead.since);
        // With a wall clock that is wrong by years for a moment, an entry must not live for years.
        let trusted_ms = if lead.is_from_start { u64::MAX } else { TRUSTED_LEAD_MS };
        let to = now.wall.min(self.get().plus_ms(trusted_ms));
        TimeJump { in_ms: PATIENCE_MS.saturating_sub(waited_ms), to }
    }

    /// Advances to `now`.
    pub fn advance(&mut self, now: Now) -> TimeMs {
        let time = self.steady.advance(now);
        let lead_ms = now.wall.ms_since(time);
        if lead_ms == 0 {
            self.lead = None;
            return time;
        }
        let lead = self.lead.get_or_insert(ClockLead { since: now.mono, least_ms: lead_ms, is_from_start: false });
        lead.least_ms = lead.least_ms.min(lead_ms);
        if now.mono.ms_since(lead.since) >= PATIENCE_MS {
            // The rest of the lead has not lasted long enough: another wait begins.
            self.steady.raise(time.plus_ms(lead.least_ms), now.mono);
            self.lead = None;
        }
        self.steady.get()
    }
}

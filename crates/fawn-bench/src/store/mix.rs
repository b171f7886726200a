//! A mix of operations: their kinds, their keys, and the times at which they arrive.
use crate::workload::KeyDistribution;
use fawn_types::random::SplitMix64;
use std::time::{Duration, Instant};

/// Parameters of a mix. Operations that are neither puts nor deletes are gets.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Share of puts, percent.
    pub put_percent: u32,
    /// Share of deletes, percent.
    pub delete_percent: u32,
    /// The keys of all operations.
    pub keys: KeyDistribution,
    /// The times at which operations begin.
    pub arrival: ArrivalPattern,
    /// Duration of the run.
    pub run: Duration,
    /// Number of operations after which the run ends early.
    pub operations_max: u64,
    /// Seed for kinds, keys and times.
    pub seed: u64,
}

/// The times at which operations begin.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ArrivalPattern {
    /// So many operations are in flight; the next one begins when one ends.
    InFlight(usize),
    /// So many operations arrive per second, at random times and whether or not earlier ones have ended, so that a stall
    /// counts for every operation that it delays.
    PerSecond(f64),
}

/// One operation of a mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MixedOp {
    /// Lookup of a key.
    Get,
    /// The next version of a key.
    Put,
    /// Deletion of a key.
    Delete,
}

/// The operations of a mix, in the order of their arrival.
pub struct MixSchedule {
    mix: Mix,
    random: SplitMix64,
    started: Instant,
    /// Seconds from the start to the next arrival in an open loop.
    next_s: f64,
    taken: u64,
}

impl MixSchedule {
    /// The operations of `mix`, beginning now.
    #[must_use]
    pub fn new(mix: Mix) -> Self {
        let random = SplitMix64::new(mix.seed);
        let mut schedule = Self { mix, random, started: Instant::now(), next_s: 0.0, taken: 0 };
        schedule.advance();
        schedule
    }

    /// The time at which the run began.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// The times at which its operations arrive.
    #[must_use]
    pub const fn arrival(&self) -> ArrivalPattern {
        self.mix.arrival
    }

    /// Number of operations taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// The arrival of the next operation if it has arrived by `now`, with `in_flight` others in flight.
    #[must_use]
    pub fn due(&self, now: Instant, in_flight: usize) -> Option<Instant> {
        if self.is_over(now) {
            return None;
        }
        match self.mix.arrival {
            ArrivalPattern::InFlight(depth) => (in_flight < depth).then_some(now),
            ArrivalPattern::PerSecond(_) => {
                let arrival = self.started + Duration::from_secs_f64(self.next_s);
                (arrival <= now).then_some(arrival)
            }
        }
    }

    /// Whether no more operations arrive. In an open loop, operations that arrived late in the run may still be due for
    /// as long as the run has lasted.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let passed = now.duration_since(self.started);
        self.taken >= self.mix.operations_max
            || match self.mix.arrival {
                ArrivalPattern::InFlight(_) => passed >= self.mix.run,
                ArrivalPattern::PerSecond(_) => self.next_s >= self.mix.run.as_secs_f64() || passed >= 2 * self.mix.run,
            }
    }

    /// Number of operations that arrived in the run and were never begun, because the store was too slow.
    #[must_use]
    pub fn unserved(&self) -> u64 {
        match self.mix.arrival {
            ArrivalPattern::PerSecond(rate) if self.taken < self.mix.operations_max => {
                ((self.mix.run.as_secs_f64() - self.next_s).max(0.0) * rate) as u64
            }
            _ => 0,
        }
    }

    /// Takes the operation that is due, with the number of its key.
    pub fn take(&mut self) -> (MixedOp, u64) {
        self.taken += 1;
        self.advance();
        let kind = self.random.below(100) as u32;
        let op = if kind < self.mix.put_percent {
            MixedOp::Put
        } else if kind < self.mix.put_percent + self.mix.delete_percent {
            MixedOp::Delete
        } else {
            MixedOp::Get
        };
        (op, self.mix.keys.pick(&mut self.random))
    }

    fn advance(&mut self) {
        if let ArrivalPattern::PerSecond(rate) = self.mix.arrival {
            // Independent arrivals: the gaps have an exponential distribution.
            let drawn = ((self.random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            self.next_s -= drawn.ln() / rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(arrival: ArrivalPattern) -> Mix {
        Mix {
            put_percent: 30,
            delete_percent: 20,
            keys: KeyDistribution::uniform(100),
            arrival,
            run: Duration::from_secs(1000),
            operations_max: u64::MAX,
            seed: 1,
        }
    }

    #[test]
    fn shares_are_kept_and_the_arrivals_of_an_open_loop_have_the_given_rate() {
        let mut schedule = MixSchedule::new(mix(ArrivalPattern::PerSecond(50.0)));
        let late = schedule.started() + Duration::from_secs(1500);
        let mut counts = [0_u32; 3];
        while schedule.due(late, usize::MAX).is_some() {
            counts[schedule.take().0 as usize] += 1;
        }
        let all = f64::from(counts.iter().sum::<u32>());
        assert!((49_000.0..51_000.0).contains(&all), "{counts:?} of 50,000");
        for (count, share) in counts.into_iter().zip([0.5, 0.3, 0.2]) {
            assert!((f64::from(count) / all - share).abs() < 0.01, "{counts:?}");
        }
        assert_eq!(schedule.unserved(), 0);
    }

    #[test]
    fn a_store_that_is_too_slow_leaves_operations_unserved_and_the_run_ends() {
        let mut schedule = MixSchedule::new(mix(ArrivalPattern::PerSecond(50.0)));
        for _ in 0..25_000 {
            schedule.take();
        }
        let after = schedule.started() + Duration::from_secs(2000);
        assert_eq!(schedule.due(after, 0), None);
        assert!((24_000..26_000).contains(&schedule.unserved()), "{}", schedule.unserved());
    }

    #[test]
    fn a_closed_loop_keeps_its_depth_and_its_end() {
        let mix = Mix { operations_max: 3, ..mix(ArrivalPattern::InFlight(2)) };
        let mut schedule = MixSchedule::new(mix.clone());
        let now = schedule.started();
        assert_eq!((schedule.due(now, 1), schedule.due(now, 2)), (Some(now), None));
        assert_eq!(schedule.due(now + mix.run, 0), None);
        for _ in 0..3 {
            schedule.take();
        }
        assert!(schedule.is_over(now));
    }
}

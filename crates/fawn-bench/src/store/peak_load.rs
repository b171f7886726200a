//! A load that follows the peak: each period measures the peak in a closed loop, then offers a share of it in an open loop.
//!
//! A shared machine changes its speed within minutes. A share of an earlier peak can exceed the present one, and then
//! measures a queue.
use super::mix::{ArrivalPattern, Mix};
use std::time::Duration;

/// Length of a period, unless the run is too short for [`PERIODS_MIN`] of them.
const PERIOD: Duration = Duration::from_secs(15);
const PERIODS_MIN: u32 = 4;
/// Parts of a period.
const PERIOD_PARTS: u32 = 15;
/// Parts in which the peak is measured, and in which the open loop does not count yet: the store may still catch up on the
/// cleaning that the peak has caused.
const PEAK_PARTS: u32 = 5;
const SETTLING_PARTS: u32 = 1;

/// Parameters of a load that follows the peak.
#[derive(Clone, Debug)]
pub struct PeakLoad {
    /// The operations. Duration is of all phases together, the number of operations of the open ones.
    pub mix: Mix,
    /// Operations in flight while the peak is measured.
    pub peak_depth: usize,
    /// Rate of the open phases, percent of the peak.
    pub percent: u32,
    /// Highest peak of which the open phases take their share, operations per second; `None`: the measured one. A store
    /// gets the load of another one by that one's peak, unless the machine has become too slow for it.
    pub peak_max: Option<f64>,
}

impl PeakLoad {
    /// Number of periods.
    #[must_use]
    pub fn periods(&self) -> u32 {
        ((self.mix.run.as_secs() / PERIOD.as_secs()) as u32).max(PERIODS_MIN)
    }

    /// Length of a period.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.mix.run / self.periods()
    }
}

/// The kind of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PhaseKind {
    /// A closed loop that measures the peak.
    Peak,
    /// An open loop that does not count yet.
    Settling,
    /// An open loop that counts.
    Measured,
}

/// A part of a period: a mix that ends before the next one begins.
#[derive(Clone, Debug)]
pub struct LoadPhase {
    /// The phase's kind.
    pub kind: PhaseKind,
    /// The operations of this phase.
    pub mix: Mix,
}

/// The phases of a load, in order.
pub struct PhaseSchedule<'l> {
    load: &'l PeakLoad,
    begun: u32,
    /// The present phase's kind.
    kind: PhaseKind,
    /// Operations of the open phases.
    operations: u64,
    /// Peak of the period, as the open phases take it.
    peak: f64,
}

impl<'l> PhaseSchedule<'l> {
    const KINDS: [PhaseKind; 3] = [PhaseKind::Peak, PhaseKind::Settling, PhaseKind::Measured];

    /// The phases of `load`.
    #[must_use]
    pub const fn new(load: &'l PeakLoad) -> Self {
        Self { load, begun: 0, kind: PhaseKind::Peak, operations: 0, peak: 0.0 }
    }

    /// The next phase; `None` after the last period, or once all operations are used up.
    #[must_use]
    pub fn begin_next(&mut self) -> Option<LoadPhase> {
        let phases = Self::KINDS.len() as u32;
        let left = self.load.mix.operations_max.saturating_sub(self.operations);
        if self.begun == phases * self.load.periods() || left == 0 {
            return None;
        }
        let kind = Self::KINDS[(self.begun % phases) as usize];
        self.begun += 1;
        let share_of_peak = ArrivalPattern::PerSecond((self.peak * f64::from(self.load.percent) / 100.0).max(1.0));
        // If peaks used operations up, a fast store with few of them would have no measured phase.
        let (parts, arrival, operations_max) = match kind {
            PhaseKind::Peak => (PEAK_PARTS, ArrivalPattern::InFlight(self.load.peak_depth), u64::MAX),
            PhaseKind::Settling => (SETTLING_PARTS, share_of_peak, left),
            PhaseKind::Measured => (PERIOD_PARTS - PEAK_PARTS - SETTLING_PARTS, share_of_peak, left),
        };
        let mix = Mix {
            arrival,
            run: self.load.period() * parts / PERIOD_PARTS,
            operations_max,
            // Each phase has its own random numbers.
            seed: self.load.mix.seed.wrapping_add(u64::from(self.begun) << 32),
            ..self.load.mix.clone()
        };
        self.kind = kind;
        Some(LoadPhase { kind, mix })
    }

    /// Counts the operations of the phase that has ended.
    pub fn count(&mut self, operations: u64) {
        if self.kind != PhaseKind::Peak {
            self.operations += operations;
        }
    }

    /// Sets the peak that the closed loop has measured, for the open phases of this period.
    pub fn set_peak(&mut self, ops_per_s: f64) {
        self.peak = self.load.peak_max.map_or(ops_per_s, |peak| peak.min(ops_per_s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;

    fn load(seconds: u64, percent: u32) -> PeakLoad {
        let mix = Mix {
            put_percent: 100,
            delete_percent: 0,
            keys: KeyDistribution::uniform(100),
            arrival: ArrivalPattern::InFlight(1),
            run: Duration::from_secs(seconds),
            operations_max: u64::MAX,
            seed: 1,
        };
        PeakLoad { mix, peak_depth: 256, percent, peak_max: None }
    }

    /// All phases of a load whose closed loops measure `peaks` in turn, with 1000 operations each.
    fn phases(load: &PeakLoad, peaks: &[f64]) -> Vec<LoadPhase> {
        let (mut schedule, mut peaks, mut phases) = (PhaseSchedule::new(load), peaks.iter().cycle(), Vec::new());
        while let Some(phase) = schedule.begin_next() {
            schedule.count(1000.min(phase.mix.operations_max));
            if phase.kind == PhaseKind::Peak {
                schedule.set_peak(*peaks.next().unwrap());
            }
            phases.push(phase);
        }
        phases
    }

    #[test]
    fn periods_alternate_peak_and_share_and_count_three_fifths_of_the_time() {
        let load = load(900, 90);
        assert_eq!((load.periods(), load.period()), (60, Duration::from_secs(15)));
        let phases = phases(&load, &[1000.0, 3000.0]);
        assert_eq!(phases.len(), 3 * 60);
        let seconds = |kind| phases.iter().filter(|it| it.kind == kind).map(|it| it.mix.run.as_secs()).sum::<u64>();
        assert_eq!([PhaseKind::Peak, PhaseKind::Settling, PhaseKind::Measured].map(seconds), [300, 60, 540]);
        let arrivals: Vec<_> = phases[..6].iter().map(|it| it.mix.arrival).collect();
        let (closed, open) = (ArrivalPattern::InFlight(256), ArrivalPattern::PerSecond);
        assert_eq!(arrivals, [closed, open(900.0), open(900.0), closed, open(2700.0), open(2700.0)]);
        let seeds: std::collections::BTreeSet<_> = phases.iter().map(|it| it.mix.seed).collect();
        assert_eq!(seeds.len(), phases.len(), "no phase repeats the keys of another one");
    }

    #[test]
    fn a_short_run_has_short_periods_and_a_limit_of_operations_ends_it() {
        let load = load(8, 20);
        assert_eq!((load.periods(), load.period()), (4, Duration::from_secs(2)));
        assert_eq!(phases(&load, &[10.0]).len(), 12);
        let few = PeakLoad { mix: Mix { operations_max: 2500, ..load.mix.clone() }, ..load };
        let left: Vec<_> = phases(&few, &[10.0]).iter().map(|it| it.mix.operations_max).collect();
        assert_eq!(left, [u64::MAX, 2500, 1500, u64::MAX, 500], "peaks use none of them up");
    }

    #[test]
    fn a_load_by_another_store_s_peak_is_never_above_its_own_peak() {
        let load = PeakLoad { peak_max: Some(1000.0), ..load(60, 50) };
        let phases = phases(&load, &[4000.0, 800.0, 1000.0, 6000.0]);
        let measured = phases.iter().filter(|it| it.kind == PhaseKind::Measured).map(|it| it.mix.arrival);
        let rates: Vec<_> = measured.collect();
        assert_eq!(rates, [500.0, 400.0, 500.0, 500.0].map(ArrivalPattern::PerSecond));
    }
}

//! Tally of injected faults: how often each kind occurs, and in how many runs.
use crate::faults::{APART_LONG_US, Fault, SILENCE_US_MAX};
use crate::network::NetworkOptions;
use std::fmt;

/// A kind of fault [replication.md § 8].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// One machine loses power.
    Power,
    /// All back-ends lose power.
    PowerOfAll,
    /// One process is killed.
    Kill,
    /// All back-ends are killed.
    KillOfAll,
    /// Power fails during a clean shutdown.
    PowerAtShutdown,
    /// A machine goes down while a range is copied.
    DownAtTransfer,
    /// A front-end goes down.
    FrontendDown,
    /// A machine pauses.
    Pause,
    /// A disk stalls for a short time.
    Stall,
    /// One disk is full.
    Full,
    /// All disks are full.
    FullAll,
    /// A disk cannot be read.
    ReadsFail,
    /// A write or sync fails.
    DiskFails,
    /// A disk hangs for up to a minute.
    Hang,
    /// A disk completes everything late.
    SlowDisk,
    /// A disk is replaced by an empty one.
    DiskReplaced,
    /// Links are cut in both directions.
    Cut,
    /// Links are cut in one direction.
    CutOneWay,
    /// Two neighbours are apart until one is suspected.
    Apart,
    /// Two neighbours are apart for half a minute.
    ApartLong,
    /// Frames are lost.
    Loss,
    /// Frames are duplicated.
    Duplication,
    /// Links break.
    Reset,
    /// Frames are corrupted.
    Damage,
    /// Frames arrive late.
    Late,
    /// A second process has the identity of a machine, and a newer boot.
    NewerTwin,
    /// A second process has the identity of a machine, and a boot of the same generation.
    EqualTwin,
    /// A range passes more than a hundred epochs without a write.
    IdleEpochs,
}

impl FaultKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 28] = [
        Self::Power,
        Self::PowerOfAll,
        Self::Kill,
        Self::KillOfAll,
        Self::PowerAtShutdown,
        Self::DownAtTransfer,
        Self::FrontendDown,
        Self::Pause,
        Self::Stall,
        Self::Full,
        Self::FullAll,
        Self::ReadsFail,
        Self::DiskFails,
        Self::Hang,
        Self::SlowDisk,
        Self::DiskReplaced,
        Self::Cut,
        Self::CutOneWay,
        Self::Apart,
        Self::ApartLong,
        Self::Loss,
        Self::Duplication,
        Self::Reset,
        Self::Damage,
        Self::Late,
        Self::NewerTwin,
        Self::EqualTwin,
        Self::IdleEpochs,
    ];

    /// The kinds of a scheduled fault.
    #[must_use]
    pub fn of(fault: &Fault) -> Vec<Self> {
        match fault {
            Fault::Down { machines, kill } => vec![match (machines.len() > 1, kill) {
                (false, false) => Self::Power,
                (true, false) => Self::PowerOfAll,
                (false, true) => Self::Kill,
                (true, true) => Self::KillOfAll,
            }],
            Fault::Close { power_after_ops, .. } => {
                power_after_ops.map(|_| Self::PowerAtShutdown).into_iter().collect()
            }
            Fault::FrontendDown(..) => vec![Self::FrontendDown],
            Fault::Pause(..) => vec![Self::Pause],
            Fault::Stall(..) => vec![Self::Stall],
            Fault::Full(..) => vec![Self::Full],
            Fault::FullAll(_) => vec![Self::FullAll],
            Fault::ReadsFail(..) => vec![Self::ReadsFail],
            Fault::Fail(..) => vec![Self::DiskFails],
            Fault::Cut { for_us, .. } if *for_us >= APART_LONG_US => vec![Self::ApartLong],
            Fault::Cut { for_us, .. } if *for_us > SILENCE_US_MAX => vec![Self::Apart],
            Fault::Cut { links, .. } => {
                let is_both = links.iter().any(|(from, to)| links.contains(&(*to, *from)));
                vec![if is_both { Self::Cut } else { Self::CutOneWay }]
            }
            Fault::Network(options) => {
                let NetworkOptions { loss, duplication, reset, damage, late, .. } = *options;
                let parts = [
                    (loss, Self::Loss),
                    (duplication, Self::Duplication),
                    (reset, Self::Reset),
                    (damage, Self::Damage),
                    (late, Self::Late),
                ];
                parts.into_iter().filter(|(part, _)| *part > 0).map(|(_, kind)| kind).collect()
            }
        }
    }
}

/// The faults of one run or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultTally {
    /// By kind: the number of faults, and of the runs that had any.
    counts: [(u64, u64); FaultKind::ALL.len()],
}

impl FaultTally {
    /// Counts a fault of one run.
    pub const fn note(&mut self, kind: FaultKind) {
        let (faults, runs) = &mut self.counts[kind as usize];
        *faults += 1;
        *runs = 1;
    }

    /// Adds the faults of other runs.
    pub fn add(&mut self, other: &Self) {
        for ((faults, runs), (more_faults, more_runs)) in self.counts.iter_mut().zip(other.counts) {
            *faults += more_faults;
            *runs += more_runs;
        }
    }

    /// Number of runs that had any fault of this kind.
    #[must_use]
    pub const fn runs(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize].1
    }

    /// The kinds that occurred in no run.
    pub fn missing(&self) -> impl Iterator<Item = FaultKind> {
        FaultKind::ALL.into_iter().filter(|kind| self.runs(*kind) == 0)
    }
}

impl fmt::Display for FaultTally {
    /// A line for each kind: faults, and the runs that had any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FaultKind::ALL.iter().zip(self.counts).try_for_each(|(kind, (faults, runs))| {
            let name = format!("{kind:?}");
            writeln!(f, "  {name:<16} {faults:>8} faults in {runs:>5} seeds")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::scenario::{Scenario, Twin};
    use crate::seed::Seed;

    const SEEDS: u64 = 1_000;

    /// The faults that a seed draws. The world refuses some that its durability does not survive, and adds two kinds.
    fn drawn(seed: &Seed) -> FaultTally {
        let scenario = Scenario::of(seed);
        let (mut tally, mut faults) = (FaultTally::default(), Faults::new(seed, &scenario));
        while let Some(at_us) = faults.next_us() {
            let kinds = faults.take(at_us).map(|fault| FaultKind::of(&fault)).unwrap_or_default();
            kinds.into_iter().for_each(|kind| tally.note(kind));
        }
        let hang = scenario.hang.map(|hang| if hang.late_us == 0 { FaultKind::Hang } else { FaultKind::SlowDisk });
        let kind_of = |twin: Twin| if twin.is_newer { FaultKind::NewerTwin } else { FaultKind::EqualTwin };
        let idle = scenario.idles.then_some(FaultKind::IdleEpochs);
        [hang, scenario.twin.map(kind_of), idle].into_iter().flatten().for_each(|kind| tally.note(kind));
        tally
    }

    #[test]
    fn each_kind_is_drawn_in_one_seed_of_fifty() {
        let mut all = FaultTally::default();
        (0..SEEDS).for_each(|seed| all.add(&drawn(&Seed::new(&seed.to_string()))));
        let of_world = [FaultKind::DownAtTransfer, FaultKind::DiskReplaced];
        for kind in FaultKind::ALL.into_iter().filter(|kind| !of_world.contains(kind)) {
            assert!(all.runs(kind) >= SEEDS / 50, "{kind:?} is drawn in {} of {SEEDS} seeds:\n{all}", all.runs(kind));
        }
    }

    #[test]
    fn kinds_are_counted_per_fault_and_per_run() {
        assert!((0..).zip(FaultKind::ALL).all(|(at, kind)| kind as usize == at), "kinds are in their order");
        let (mut one, mut other, mut all) = (FaultTally::default(), FaultTally::default(), FaultTally::default());
        one.note(FaultKind::Pause);
        one.note(FaultKind::Pause);
        other.note(FaultKind::Pause);
        all.add(&one);
        all.add(&other);
        assert!(all.to_string().contains("3 faults in     2 seeds"), "{all}");
        assert_eq!(all.missing().count(), FaultKind::ALL.len() - 1);
    }
}

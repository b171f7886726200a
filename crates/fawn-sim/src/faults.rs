//! Schedule of faults: kind, time, machines and duration of each, determined by the seed.
//!
//! Replication has no leases yet, so no serving member may be cut off or paused for longer than a handshake waits for
//! reports. Such a member is dropped without noticing it and could still reply to reads in its old epoch
//! [replication.md §2.3]. [`SILENCE_US_MAX`] bounds every silence below that wait, and the next silence begins only
//! after all nodes have exchanged frames again.
use crate::network::NetworkOptions;
use crate::scenario::{Enabled, Scenario};
use crate::seed::Seed;
use fawn_types::random::SplitMix64;

/// Longest pause or cut, µs.
pub const SILENCE_US_MAX: u64 = 300_000;
/// How long the simulated manager waits for reports, ms: longer than any silence and its after-effects.
pub const REPORT_WAIT_MS: u64 = 1_000;
/// Longest stall of a disk, µs: it delays the persistence of a promise, but not the stop of the old epoch.
const STALL_US_MAX: u64 = 1_500_000;
/// Longest time that all disks are full at once, and that a disk cannot be read, µs.
const FULL_ALL_US_MAX: u64 = 4_000_000;
const READS_FAIL_US_MAX: u64 = 600_000;
/// Longest cut between two back-ends that the manager both reaches, µs: long enough for a suspicion.
const APART_US_MAX: u64 = 5_000_000;
/// Duration of the cut between two neighbours in runs without other faults, µs.
pub const APART_LONG_US: u64 = 30_000_000;
/// Number of kinds of faults, the kind of a failing disk, and the time before the end in which it is likelier, µs.
const KINDS: u64 = 13;
const FAILS: u64 = 10;
const LAST_FAILS_US: u64 = 500_000;
/// Power fails at most this many disk operations after a graceful shutdown began; few shutdowns take more.
const CLOSE_OPS_MAX: u64 = 16;
/// Longest time for which a machine stays down, µs.
const DOWN_US_MAX: u64 = 3_000_000;

/// One fault. Machines are numbered from 0, front-ends after back-ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// These back-ends lose power, or (`kill`) only their processes die; each restarts after its own time, µs.
    Down {
        /// The machines and how long each is down, µs.
        machines: Vec<(u32, u64)>,
        /// Whether unsynced writes survive.
        kill: bool,
    },
    /// These back-ends are shut down gracefully and restart after their times, µs. With `power_after_ops`, the first
    /// one's power fails that many operations of its disk after the shutdown began.
    Close {
        /// The machines and how long each is down, µs.
        machines: Vec<(u32, u64)>,
        /// Disk operations until power fails, if it does.
        power_after_ops: Option<u64>,
    },
    /// A front-end loses power or its process dies, and it restarts after this time, µs. Numbered among front-ends.
    FrontendDown(u32, u64),
    /// A back-end pauses for this time, µs.
    Pause(u32, u64),
    /// A machine's disk completes no operation for this time, µs.
    Stall(u32, u64),
    /// A machine's disk is full for this time, µs, except for this many bytes.
    Full(u32, u64, u64),
    /// All back-ends' disks have no space left for so many µs.
    FullAll(u64),
    /// No read of a machine's disk works for so many µs.
    ReadsFail(u32, u64),
    /// The n-th write (or sync) of a machine's disk from now on fails.
    Fail(u32, bool, u64),
    /// Frames from the first to the second machine of each pair are lost.
    Cut {
        /// The cut directions: sender and receiver.
        links: Vec<(u32, u32)>,
        /// Duration, µs.
        for_us: u64,
    },
    /// The network's faults change.
    Network(NetworkOptions),
}

/// The schedule of one run.
#[derive(Clone, Debug)]
pub struct Faults {
    random: SplitMix64,
    /// Of faults of disks that strike where no other fault was drawn.
    media: SplitMix64,
    /// Of faults of front-ends' disks, which also strike there.
    frontend_disks: SplitMix64,
    enabled: Enabled,
    backends: u32,
    frontends: u32,
    every_us: u64,
    until_us: u64,
    next_us: u64,
    /// When all nodes have exchanged frames again after the last pause or cut.
    heard_us: u64,
}

impl Faults {
    /// The schedule of a run with this seed and scenario.
    #[must_use]
    pub fn new(seed: &Seed, scenario: &Scenario) -> Self {
        let mut random = seed.stream("faults");
        // Half of the runs start without faults; in the others faults hit the cluster while it forms.
        let next_us = random.below(2) * 1_000_000 + random.below(scenario.fault_every_us);
        let Scenario { enabled, backends, frontends, .. } = *scenario;
        Self {
            random,
            media: seed.stream("disks faults"),
            frontend_disks: seed.stream("front-ends' disks"),
            enabled,
            backends,
            frontends,
            every_us: scenario.fault_every_us,
            until_us: scenario.faults_us,
            next_us,
            heard_us: 0,
        }
    }

    /// When the next fault is due; `None` if there are no more.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        (self.next_us < self.until_us).then_some(self.next_us)
    }

    /// The end of the phase with faults.
    #[must_use]
    pub const fn until_us(&self) -> u64 {
        self.until_us
    }

    /// The fault that is due, if this draw enables it.
    pub fn take(&mut self, now_us: u64) -> Option<Fault> {
        if self.next_us()? > now_us {
            return None;
        }
        if self.enabled.apart_long {
            self.next_us = u64::MAX;
            return Some(self.apart_long());
        }
        self.next_us = now_us + 1 + self.random.below(2 * self.every_us);
        let enabled = self.enabled;
        let machine = self.random.below(u64::from(self.backends)) as u32;
        let drawn = self.random.below(KINDS);
        // Disks that fail early are mostly replaced before faults end. Late failures test a cluster without them.
        let fails_last = enabled.fail && self.until_us - now_us < LAST_FAILS_US && self.random.chance(1, 2);
        let fault = match if fails_last { FAILS } else { drawn } {
            0 if enabled.power => Some(Fault::Down { machines: vec![self.down(machine)], kill: false }),
            1 if enabled.power_of_all => Some(self.all_down(false)),
            2 if enabled.kill => Some(Fault::Down { machines: vec![self.down(machine)], kill: true }),
            3 if enabled.kill_of_all => Some(self.all_down(true)),
            4 if enabled.kill_frontend => {
                let frontend = self.random.below(u64::from(self.frontends)) as u32;
                Some(Fault::FrontendDown(frontend, self.random.below(DOWN_US_MAX / 2)))
            }
            5 if enabled.pause => self.silence(now_us).map(|us| Fault::Pause(machine, us)),
            6 if enabled.stall => Some(Fault::Stall(machine, 1 + self.random.below(STALL_US_MAX))),
            7 if enabled.cut => self.cut(machine, now_us),
            8 if enabled.unkind_network => Some(self.network()),
            9 if enabled.full => {
                let for_us = 1 + self.random.below(STALL_US_MAX);
                Some(Fault::Full(machine, for_us, self.random.below(8) << 16))
            }
            FAILS if enabled.fail => Some(Fault::Fail(machine, self.random.chance(1, 2), 1 + self.random.below(60))),
            11 if enabled.apart => self.apart(machine),
            12 if enabled.close => Some(self.close(machine)),
            _ => None,
        };
        fault.or_else(|| self.medium(machine)).or_else(|| self.frontend_disk())
    }

    /// Disks that are full all at once, or that cannot be read.
    fn medium(&mut self, machine: u32) -> Option<Fault> {
        match self.media.below(6) {
            0 if self.enabled.full_all => Some(Fault::FullAll(1 + self.media.below(FULL_ALL_US_MAX))),
            1 if self.enabled.reads_fail => Some(Fault::ReadsFail(machine, 1 + self.media.below(READS_FAIL_US_MAX))),
            _ => None,
        }
    }

    /// A fault of a front-end's disk, which hosts no range: clients must not notice it.
    fn frontend_disk(&mut self) -> Option<Fault> {
        if !self.enabled.frontend_disks {
            return None;
        }
        let random = &mut self.frontend_disks;
        let machine = self.backends + random.below(u64::from(self.frontends)) as u32;
        match random.below(8) {
            0 => Some(Fault::Stall(machine, 1 + random.below(STALL_US_MAX))),
            1 => Some(Fault::Full(machine, 1 + random.below(STALL_US_MAX), 0)),
            2 => Some(Fault::ReadsFail(machine, 1 + random.below(READS_FAIL_US_MAX))),
            // Its store writes little except at a start.
            3 => Some(Fault::Fail(machine, random.chance(1, 2), 1 + random.below(4))),
            _ => None,
        }
    }

    /// A long cut in both directions, otherwise as [`Faults::apart`].
    fn apart_long(&mut self) -> Fault {
        let others = u64::from(self.backends) - 1;
        let machine = 1 + self.random.below(others) as u32;
        let other = 1 + (machine + self.random.below(others - 1) as u32) % others as u32;
        Fault::Cut { links: vec![(machine, other), (other, machine)], for_us: APART_LONG_US }
    }

    /// A cut between two back-ends that do not host the manager, so a dropped member still learns that it was dropped.
    fn apart(&mut self, machine: u32) -> Option<Fault> {
        let other = self.random.below(u64::from(self.backends)) as u32;
        let (ways, for_us) = (1 + self.random.below(3), 1 + self.random.below(APART_US_MAX));
        if machine == other || machine == 0 || other == 0 {
            return None;
        }
        let links = [(machine, other), (other, machine)].into_iter().enumerate();
        let links = links.filter(|(way, _)| ways >> way & 1 == 1).map(|(_, link)| link).collect();
        Some(Fault::Cut { links, for_us })
    }

    /// The duration of a silence; `None` if the last one is too recent.
    fn silence(&mut self, now_us: u64) -> Option<u64> {
        let bound = [10_000, 100_000, SILENCE_US_MAX][self.random.below(3) as usize];
        let for_us = 1 + self.random.below(bound - 1);
        if now_us < self.heard_us {
            return None;
        }
        self.heard_us = now_us + for_us + REPORT_WAIT_MS * 1_000;
        Some(for_us)
    }

    fn down(&mut self, machine: u32) -> (u32, u64) {
        let bound = [20_000, 700_000, DOWN_US_MAX][self.random.below(3) as usize];
        (machine, 1_000 + self.random.below(bound))
    }

    fn all_down(&mut self, kill: bool) -> Fault {
        Fault::Down { machines: (0..self.backends).map(|machine| self.down(machine)).collect(), kill }
    }

    /// A graceful shutdown of one machine or all; sometimes power fails during it.
    fn close(&mut self, machine: u32) -> Fault {
        let chosen = if self.random.chance(1, 2) { 0..self.backends } else { machine..machine + 1 };
        let machines = chosen.map(|machine| self.down(machine)).collect();
        let power_after_ops = self.random.chance(1, 3).then(|| 1 + self.random.below(CLOSE_OPS_MAX));
        Fault::Close { machines, power_after_ops }
    }

    /// A cut of one machine from one other or from all, in one or both directions.
    fn cut(&mut self, machine: u32, now_us: u64) -> Option<Fault> {
        let all = u64::from(self.backends + self.frontends);
        let other = self.random.below(all) as u32;
        let others = if self.random.chance(1, 3) { 0..all as u32 } else { other..other + 1 };
        let ways = 1 + self.random.below(3);
        let mut links = Vec::new();
        for other in others.filter(|other| *other != machine) {
            links.extend((ways & 1 != 0).then_some((machine, other)));
            links.extend((ways & 2 != 0).then_some((other, machine)));
        }
        let for_us = self.silence(now_us)?;
        Some(Fault::Cut { links, for_us })
    }

    fn network(&mut self) -> Fault {
        let mut level = |levels: [u64; 3]| levels[self.random.below(3) as usize];
        let (loss, duplication) = (level([0, 10, 80]), level([0, 20, 200]));
        let (reset, damage) = (level([0, 1, 8]), level([0, 0, 4]));
        let late = level([0, 8, 40]);
        Fault::Network(NetworkOptions { loss, duplication, reset, damage, late, ..NetworkOptions::KIND })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_repeats_ends_and_stays_within_bounds() {
        let mut struck = 0;
        for text in 0..40 {
            let seed = Seed::new(&text.to_string());
            let scenario = Scenario::of(&seed);
            let (mut one, mut two) = (Faults::new(&seed, &scenario), Faults::new(&seed, &scenario));
            while let Some(at) = one.next_us() {
                assert!(at < scenario.faults_us);
                let fault = one.take(at);
                assert_eq!(fault, two.take(at));
                match fault {
                    Some(Fault::Pause(_, us)) => assert!(us <= SILENCE_US_MAX),
                    Some(Fault::Cut { links, for_us }) => {
                        let of_manager = links.iter().any(|(from, to)| *from == 0 || *to == 0);
                        let of_front_end = links.iter().any(|(from, to)| (*from).max(*to) >= scenario.backends);
                        let apart_us = if scenario.enabled.apart_long { APART_LONG_US } else { APART_US_MAX };
                        let bound_us = if of_manager || of_front_end { SILENCE_US_MAX } else { apart_us };
                        assert!(for_us <= bound_us, "{links:?} for {for_us} µs");
                    }
                    Some(Fault::Down { machines, kill }) => {
                        let all = machines.len() > 1;
                        let sync = scenario.durability == fawn_types::Durability::Sync;
                        assert!(!all || kill || scenario.may_lose || sync);
                    }
                    _ => {}
                }
                struck += 1;
            }
            assert_eq!(one.take(u64::MAX), None);
        }
        assert!(struck > 100);
    }
}

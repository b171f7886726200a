//! Simulated cluster: machines, network, clients and faults on one virtual clock and one thread, ordered by the seed
//! alone.
//!
//! A run has two phases. First faults are injected, and the invariants are checked after every iteration. Then faults
//! end: the cluster must heal within a bounded time, serve, and still have everything that clients observed before.
mod check;
mod hang;
mod idle;
mod inject;
mod machine;
mod memory;
mod observe;
mod sessions;
mod twin;

use crate::canary::Canary;
use crate::chain_time::ChainTimes;
use crate::clients::Clients;
use crate::faults::Faults;
use crate::network::{Arrival, Network, NetworkOptions};
use crate::scenario::Scenario;
use crate::seed::Seed;
use crate::tally::FaultTally;
use crate::trace::Trace;
use crate::transport::{FaultyTransport, OutgoingFrame};
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::RangeProgress;
use fawn_flash::SimOptions;
use fawn_flash::sim::Loss;
use fawn_node::Shard;
use fawn_node::cluster::{MemberStatus, NodeOutput, NodeStatus};
use fawn_types::random::SplitMix64;
use fawn_types::{BootId, Epoch, HashSecret, KeyRange, MemberId, NodeId, RangeId};
use machine::Machine;
use observe::Observer;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Virtual cost of one loop iteration, µs.
const TURN_US: u64 = 20;
/// Time after which a supervisor restarts a process whose disk failed, µs.
const RESTART_US: u64 = 50_000;
/// One chunk of a copy in this many is late, and the longest delay, µs: less than the time until it is requested again.
const PARTS_PER_LATE: u64 = 2;
const PART_LATE_US_MAX: u64 = 90_000;
/// Chunks may be late until this long after the last fault, µs, because copies are often made then.
const LATE_AFTER_FAULTS_US: u64 = 8_000_000;
/// Maximum steps without any progress of time; more mean that a machine spins.
const STEPS_AT_ONCE_MAX: u32 = 20_000;
/// Maximum steps of a run, ten times as many as the longest runs take: a run that does not end fails instead.
const STEPS_MAX: u64 = 12_000_000;

/// The phases of a run.
pub const PHASES: [&str; 7] = ["faults", "healing", "idle epochs", "hang", "twin", "shutdown", "checks"];

/// Result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunReport {
    /// Checksum over every event.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Number of simulated steps.
    pub steps: u64,
    /// Of several runs: the number of steps of the longest.
    pub steps_max: u64,
    /// Virtual time, µs.
    pub now_us: u64,
    /// Operations answered.
    pub answered: u64,
    /// Operations that may or may not have taken effect.
    pub unknown: u64,
    /// Faults injected.
    pub faults: u64,
    /// Keys whose history was too large to check.
    pub undecided: u64,
    /// Keys checked.
    pub keys: u64,
    /// Alarms of chain members: violations without harm.
    pub alarms: u64,
    /// Runs that continued with processes on failed disks.
    pub ran_degraded: u64,
    /// Members dropped because they reported a failure, or were suspected.
    pub dropped: u64,
    /// Clean shutdowns.
    pub closes: u64,
    /// Possible losses reported by managers.
    pub losses: u64,
    /// Answered requests on the whole keyspace.
    pub sweeps: u64,
    /// Copies of ranges begun.
    pub copies: u64,
    /// Copies compared with their tails as soon as they were complete.
    pub copies_compared: u64,
    /// Copies in progress when the receiver or another back-end was crashed.
    pub copies_hit: u64,
    /// Steps of each of the [`PHASES`].
    pub phase_steps: [u64; 7],
    /// Faults by kind.
    pub tally: FaultTally,
    /// Jobs of the sorted tier that listed runs.
    pub runs_listed: u64,
}

/// A whole cluster.
pub struct World {
    seed: Seed,
    scenario: Scenario,
    canary: Option<Canary>,
    now_us: u64,
    steps: u64,
    steps_max: u64,
    /// The map as of the cluster's creation.
    map: ClusterMap,
    /// The shard that hosts the manager.
    manager: MemberId,
    machines: Vec<Machine>,
    /// A second process with the identity of one of the machines.
    twin: Option<Machine>,
    network: Network,
    transport: FaultyTransport,
    clients: Clients,
    /// The machine that each client is connected to, or was last.
    servers: Vec<usize>,
    /// Draws the machine of each connection.
    connects: SplitMix64,
    faults: Faults,
    watch: Observer,
    trace: Trace,
    /// Random choices of the world itself, mostly the state that crashes leave.
    random: SplitMix64,
    boots: u32,
    struck: u64,
    tally: FaultTally,
    phase_steps: [u64; 7],
    copies_hit: u64,
    /// In a mode that survives one failure at a time: a failure occurred and is not healed yet.
    degraded: bool,
    /// A process ended without a clean shutdown since the cluster was last complete.
    unclean: bool,
    closes: u64,
    /// Processes of back-ends that have ended.
    ended: u64,
    /// Processes on failed disks were left when faults ended.
    ran_degraded: bool,
    /// Cut links and the times to restore them.
    cuts: Vec<(u64, NodeId, NodeId)>,
    /// Members whose copies are complete, but not yet compared with their tails.
    copied: BTreeSet<(MemberId, RangeId)>,
    compared: u64,
    /// Clients send no more requests by themselves.
    quiet: bool,
}

/// Runs one seed to its end.
///
/// # Errors
/// A finding of an oracle, or a failed assert of the product, with the last lines of the trace.
pub fn run(seed: &Seed, canary: Option<Canary>, aloud: bool) -> Result<RunReport, String> {
    let mut world = World::new(seed, canary, aloud);
    let result = catch_unwind(AssertUnwindSafe(|| world.live())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    });
    let report = world.report();
    result.map(|undecided| RunReport { undecided, ..report }).map_err(|error| {
        format!("{error}\nat {} µs, {} events; before that:{}", report.now_us, report.events, world.trace.tail())
    })
}

impl World {
    fn new(seed: &Seed, canary: Option<Canary>, aloud: bool) -> Self {
        Self::of(seed, Scenario::of(seed).with_canary(canary), canary, aloud)
    }

    fn of(seed: &Seed, scenario: Scenario, canary: Option<Canary>, aloud: bool) -> Self {
        let mut random = seed.stream("world");
        let map = first_map(&scenario, &mut random);
        let manager = scenario.manager(&map);
        let latency_ticks = 10..=scenario.disk_us_max;
        let machine = |index: u32| {
            let seed = random.next();
            let disk = |at| SimOptions {
                seed: seed.wrapping_add(at),
                shuffle: true,
                latency_ticks: latency_ticks.clone(),
                ticks_per_reap: 0,
                blocking_waits: false,
            };
            let ids = scenario.members_of(index);
            let disks = ids.zip((0..).map(disk)).collect();
            let skew_ms = random.below(3) * random.below(5_000);
            Machine::new(scenario.first_node_of(index), disks, skew_ms)
        };
        let machines = (0..scenario.backends + scenario.frontends).map(machine).collect();
        Self {
            network: Network::new(seed.number("network"), NetworkOptions::KIND),
            transport: FaultyTransport::new(seed.number("post"), canary),
            clients: Clients::new(seed, &scenario, ChainTimes::new(&map), canary),
            servers: vec![scenario.backends as usize; scenario.clients as usize],
            connects: seed.stream("connections"),
            faults: Faults::new(seed, &scenario),
            watch: Observer::new(scenario.durability, scenario.copies_min(), manager),
            trace: Trace::new(aloud),
            seed: seed.clone(),
            scenario,
            canary,
            now_us: 0,
            steps: 0,
            steps_max: STEPS_MAX,
            map,
            manager,
            machines,
            twin: None,
            random,
            boots: 0,
            struck: 0,
            tally: FaultTally::default(),
            phase_steps: [0; 7],
            copies_hit: 0,
            degraded: false,
            unclean: false,
            closes: 0,
            ended: 0,
            ran_degraded: false,
            cuts: Vec::new(),
            copied: BTreeSet::new(),
            compared: 0,
            quiet: false,
        }
    }

    fn report(&self) -> RunReport {
        let process_dropped = self.machines[0].shard(self.manager).map(|shard| shard.node_status().members_dropped);
        RunReport {
            hash: self.trace.hash(),
            events: self.trace.events(),
            steps: self.steps,
            steps_max: self.steps,
            now_us: self.now_us,
            answered: self.clients.answered,
            unknown: self.clients.unknown,
            faults: self.struck,
            undecided: 0,
            keys: self.clients.keys().count() as u64,
            alarms: self.watch.alarms,
            ran_degraded: u64::from(self.ran_degraded),
            dropped: self.watch.dropped + process_dropped.unwrap_or(0),
            closes: self.closes,
            losses: self.watch.losses,
            sweeps: self.clients.sweeps_answered,
            copies: self.watch.copies,
            copies_compared: self.compared,
            copies_hit: self.copies_hit,
            phase_steps: self.phase_steps,
            tally: self.tally,
            runs_listed: self.runs_listed(),
        }
    }

    /// Jobs of the sorted tier that listed runs, in the processes of the end.
    fn runs_listed(&self) -> u64 {
        let shards = self.machines.iter().flat_map(Machine::shards);
        shards.map(|(_, shard)| shard.engine().stats().runs_listed).sum()
    }

    /// Runs both phases. Returns the number of keys that could not be checked.
    fn live(&mut self) -> Result<u64, String> {
        self.trace.say(0, format!("seed {}: {:?}", self.seed.text(), self.scenario));
        for index in 0..self.machines.len() {
            self.start(index)?;
        }
        let mut undecided = 0;
        for phase in 0..PHASES.len() {
            let before = self.steps;
            undecided += self.run_phase(phase)?;
            self.phase_steps[phase] = self.steps - before;
        }
        Ok(undecided)
    }

    /// Runs one of the [`PHASES`]. Returns the number of keys that could not be checked.
    fn run_phase(&mut self, phase: usize) -> Result<u64, String> {
        match phase {
            0 => self.run_until(self.faults.until_us())?,
            1 => self.heal()?,
            2 if self.scenario.idles => self.pass_idle_epochs()?,
            3 => self.scenario.hang.map_or(Ok(()), |hang| self.hang(hang))?,
            4 => self.scenario.twin.map_or(Ok(()), |twin| self.run_twin(twin))?,
            5 if self.scenario.closes_at_end => self.close_all()?,
            6 => return self.check(),
            _ => {}
        }
        Ok(0)
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        self.boots += 1;
        let boot = BootId::new(self.boots, self.random.next() as u32);
        let machine = &mut self.machines[index];
        let is_full = machine.full_until_us > self.now_us;
        self.trace.say(self.now_us, format!("node {} starts as {boot:?}", machine.node.0));
        match machine.start(boot, &self.map, self.now_us, &self.scenario, self.canary) {
            // The disk's failure was injected, or it is full: a supervisor tries again.
            Err(error) if error.contains("injected failure") || is_full && error.contains("no space left") => {
                self.trace.say(self.now_us, error);
                machine.restart_us = Some(self.now_us + RESTART_US);
                Ok(())
            }
            other => other,
        }
    }

    /// Runs until the virtual time `until_us`.
    fn run_until(&mut self, until_us: u64) -> Result<(), String> {
        let mut at_once = 0;
        loop {
            let next = self.next_us().map_or(until_us, |next| next.max(self.now_us));
            if next >= until_us {
                self.now_us = self.now_us.max(until_us);
                return Ok(());
            }
            at_once = if next == self.now_us { at_once + 1 } else { 0 };
            if at_once > STEPS_AT_ONCE_MAX {
                return Err("time does not advance: some machine spins".to_owned());
            }
            self.steps += 1;
            if self.steps > self.steps_max {
                return Err(format!("no end after {} steps: {}", self.steps_max, self.words()));
            }
            self.now_us = next;
            self.step()?;
        }
    }

    fn next_us(&self) -> Option<u64> {
        let clients = self.clients.next_us(self.quiet);
        let cuts = self.cuts.iter().map(|(at, ..)| *at).min();
        let machines = self.machines.iter().chain(&self.twin).filter_map(Machine::next_us).min();
        [self.network.next_us(), clients, self.faults.next_us(), cuts, machines].into_iter().flatten().min()
    }

    /// Does everything that is due now.
    fn step(&mut self) -> Result<(), String> {
        let now_us = self.now_us;
        while let Some(at) = self.faults.next_us()
            && at <= now_us
        {
            self.inject()?;
        }
        self.mend_cuts();
        for index in 0..self.machines.len() {
            if self.machines[index].process.is_none() && self.machines[index].restart_us.is_some_and(|at| at <= now_us)
            {
                self.start(index)?;
            }
        }
        self.deliver();
        self.run_clients();
        (0..self.machines.len()).try_for_each(|index| self.wake(index))?;
        self.wake_twin()
    }

    fn mend_cuts(&mut self) {
        let now_us = self.now_us;
        for (_, from, to) in self.cuts.extract_if(.., |(at, ..)| *at <= now_us) {
            self.network.mend(from, to);
        }
    }

    /// Delivers arrivals. A paused machine receives them later, one that is down never.
    fn deliver(&mut self) {
        let now_us = self.now_us;
        while let Some((from, to, arrival)) = self.network.deliver(now_us) {
            let bytes = match &arrival {
                Arrival::Bytes(bytes) => bytes.as_slice(),
                Arrival::Reset => b"reset",
            };
            self.trace.note(now_us, b'b', from.0, to.0, bytes);
            if let Some(twin) = self.twin.as_mut().filter(|twin| twin.node == to.node()) {
                twin.inbox.push_back((from, to, arrival.clone()));
            }
            let machine = &mut self.machines[self.scenario.machine_of(to)];
            if machine.process.is_some() {
                machine.inbox.push_back((from, to, arrival));
            }
        }
    }

    /// Runs an iteration of a machine, if one is due.
    fn wake(&mut self, index: usize) -> Result<(), String> {
        let now_us = self.now_us;
        let lies = matches!(self.canary, Some(Canary::AckBeforeSync | Canary::MarkBeforeSync));
        let machine = &mut self.machines[index];
        machine.mend(now_us);
        if machine.process.is_none() || machine.is_paused(now_us) || machine.next_us().is_none_or(|at| at > now_us) {
            return Ok(());
        }
        if machine.stalled_until_us <= now_us {
            machine.disks.iter().for_each(|disk| disk.disk.advance_to(now_us));
        }
        if lies {
            machine.keep_past(now_us);
        }
        let (own_us, outputs) = machine.run_once(now_us);
        let statuses = machine.statuses();
        let (replies, replies_us) = machine.take_replies(now_us, &mut self.random)?;
        let mut is_copying = false;
        self.watch.note_received(&statuses);
        for (id, status) in &statuses {
            if self.watch.note_losses(*id, status, self.unclean)? && self.scenario.may_lose {
                self.trace.say(now_us, "what was acked may be missing".to_owned());
                self.watch.forgive();
                self.clients.forgive();
            }
        }
        // After the manager's report: in one process, members may serve after a loss in the iteration that reports it.
        for (id, status) in &statuses {
            is_copying |= status.members.iter().any(|member| member.phase == "copying");
            self.observe(*id, status)?;
            self.check_memory(*id, status)?;
        }
        self.watch.compare_changed()?;
        let machine = &mut self.machines[index];
        // No fault of a run lasts long enough: a scan that meets an unreadable record fails, and is repeated.
        if let Some((id, _)) = machine.shards().find(|(_, shard)| shard.engine().stats().corrupt_passed > 0) {
            return Err(format!("shard {id}: a scan passed a record as lost"));
        }
        let own_us = own_us.map(|at| at.max(now_us + TURN_US));
        machine.due_us = own_us.into_iter().chain(replies_us).min();
        statuses.iter().try_for_each(|(_, status)| self.compare_copied(status))?;
        outputs.into_iter().try_for_each(|(from, output)| self.carry_out(from, output))?;
        self.deliver_replies(index, &replies)?;
        if is_copying {
            self.inject_at_transfer(index)?;
        }
        if self.machines[index].is_poisoned() && (self.scenario.supervised || self.has_lost_map(index)) {
            self.trace.say(now_us, format!("node {}'s disk failed: its process is restarted", index + 1));
            self.stop(index, Loss::Process, RESTART_US)?;
        }
        Ok(())
    }

    /// Whether too many disks of a machine failed to change the map, so that the machine must be restarted.
    fn has_lost_map(&self, index: usize) -> bool {
        let nodes = self.machines[index].nodes();
        let is_well = |node: &&NodeId| !self.machines[index].has_poisoned(**node);
        index == 0 && nodes.iter().filter(is_well).count() <= nodes.len() / 2
    }

    /// Checks the invariants after an iteration, for one shard.
    fn observe(&mut self, id: MemberId, status: &NodeStatus) -> Result<(), String> {
        let now_us = self.now_us;
        let machine = &self.machines[self.scenario.machine_of(id)];
        let (engine, wall) = (machine.shard(id).map(Shard::engine), machine.clock(now_us).wall);
        let progress = |range| engine.map_or_else(RangeProgress::default, |engine| engine.progress(range));
        if id == self.manager
            && let Some(map) = machine.manager_map()
        {
            self.watch.note_map(map)?;
        }
        let news = self.watch.look(id, status, progress)?;
        self.copied.extend(news.copied);
        let has_time = |member: &&MemberStatus| observe::is_serving(member.phase) || member.phase == "failed";
        for member in status.members.iter().filter(has_time) {
            self.clients.times.note(id, member, wall, self.ended)?;
        }
        // A new epoch without records of its own is when a frame of another epoch might be accepted wrongly.
        if news.has_begun && self.random.chance(1, 2) {
            self.network.hurry(id, now_us);
        }
        Ok(())
    }

    /// Sends a frame. Late chunks of a transfer find more bugs than other late frames, so more of them are late.
    fn send(&mut self, from: MemberId, to: MemberId, frame_out: OutgoingFrame) {
        let now_us = self.now_us;
        let may_be_late = frame_out.is_part && now_us < self.faults.until_us() + LATE_AFTER_FAULTS_US;
        if may_be_late && self.random.chance(1, PARTS_PER_LATE) {
            let at_us = now_us + self.random.below(PART_LATE_US_MAX);
            return self.network.send_late(at_us, from, to, frame_out.frame);
        }
        self.network.send(now_us, from, to, frame_out.frame);
    }

    /// Sends the frames that a process output; returns the promises in them.
    fn send_frames(&mut self, from: MemberId, to: MemberId, bytes: &[u8]) -> Result<Vec<(RangeId, Epoch)>, String> {
        let wall = self.machines[self.scenario.machine_of(to)].clock(self.now_us).wall;
        let frames = self.transport.outgoing(bytes, wall)?;
        let promises = frames.iter().filter_map(|frame_out| frame_out.promise).collect();
        frames.into_iter().for_each(|frame_out| self.send(from, to, frame_out));
        Ok(promises)
    }

    fn carry_out(&mut self, id: MemberId, output: NodeOutput) -> Result<(), String> {
        let now_us = self.now_us;
        match output {
            NodeOutput::Send { to, bytes } => {
                let promises = self.send_frames(id, to, &bytes)?;
                promises.into_iter().for_each(|promise| self.watch.note_epoch(id, promise));
            }
            NodeOutput::KeepMap { .. } => return Err("the manager's shard keeps its map itself".to_owned()),
            NodeOutput::Reset { peer } => {
                self.trace.say(now_us, format!("shard {id} closes its link to {peer}"));
                self.network.break_link(id, peer, now_us);
            }
        }
        Ok(())
    }
}

/// The map with which every machine starts.
fn first_map(scenario: &Scenario, random: &mut SplitMix64) -> ClusterMap {
    let ring = RingOptions { replication: scenario.replication, virtual_ids: scenario.virtual_ids };
    let shards = scenario.shards;
    let entry = |id| NodeEntry { node: NodeId(id), shards, weight: 1, domain: 0, address: String::new() };
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&random.next().to_le_bytes());
    let nodes = (1..=scenario.nodes()).map(entry).collect();
    let mut map = ClusterMap::new(HashSecret(secret), scenario.durability, ring, nodes);
    if scenario.is_one_range()
        && let Some(entry) = map.ranges.first()
    {
        let chain: Vec<MemberId> = entry.serving().map(|member| member.id).collect();
        map.ranges = vec![RangeEntry::new(entry.range, KeyRange::ALL, &chain)];
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_end_fails() {
        let mut world = World::new(&Seed::new("0"), None, false);
        world.steps_max = 1_000;
        let error = world.live().err().unwrap_or_default();
        assert!(error.starts_with("no end after 1000 steps"), "{error}");
    }
}

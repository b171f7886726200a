//! One simulated machine: its shards' disks, which outlive its process, and its process, which is stopped and started.
use super::sessions::Connection;
use crate::canary::Canary;
use crate::network::Arrival;
use crate::scenario::Scenario;
use fawn_chain::map::{decode_state, encode_state};
use fawn_chain::{Closed, ClusterMap, ManagerOptions, PersistedState, RouterOptions};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Engine, EngineError, Options, RecordLayout};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{MapPlace, NodeConfig, NodeLimits, NodeOutput, NodeStatus};
use fawn_node::{LocalCluster, LocalOptions, ServerInfo, Shard, ShardGroup, ShardOptions};
use fawn_types::{BootId, MemberId, MonoMs, NodeId, Now, RangeId, TimeMs};
use std::collections::{BTreeMap, VecDeque};

/// The wall clock when a world begins, ms.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Monotonic clocks differ by this much, µs: a value is meaningless on another machine.
const MONO_START_US: u64 = 37_000_000;
/// How long a suspected member is not promoted, ms: short, so that it comes back within a run.
const HOLD_OFF_MS: u64 = 2_000;
/// The longest hold-off, ms; it is part of the time within which everything must serve again.
const HOLD_OFF_MS_MAX: u64 = 16_000;
/// Blobs with smaller keys are pieces of the manager's map.
const FIRST_KEY_OF_OTHERS: u32 = 1 << 30;
/// Interval at which states of a lying disk are saved, µs, and the number of them.
const PAST_EVERY_US: u64 = 3_000;
const PAST_MAX: usize = 4;
/// Time after which an unanswered operation fails, ms.
pub(super) const TIMEOUT_MS: u64 = 3_000;

/// The process of a machine: the shards of a node, each with client sessions and a store.
pub(super) type Process = ShardGroup<SimDevice>;

/// The disk of a shard, which outlives its processes.
pub(super) struct ShardDisk {
    pub(super) id: MemberId,
    options: SimOptions,
    pub(super) disk: SimDisk,
    /// Earlier states of a lying disk, oldest first.
    past: VecDeque<SimDisk>,
    /// The first state of each of its blobs, with which a shard that forgets promises restarts.
    forgotten: BTreeMap<u32, Vec<u8>>,
}

impl ShardDisk {
    fn new(id: MemberId, options: SimOptions) -> Self {
        let disk = SimDisk::new(options.clone());
        Self { id, options, disk, past: VecDeque::new(), forgotten: BTreeMap::new() }
    }

    fn open(
        &mut self,
        options: Options,
        former: BootId,
        now: Now,
        canary: Option<Canary>,
    ) -> Result<Engine<SimDevice>, String> {
        let opened = Engine::open(SimDevice::attach(&self.disk), options, now);
        let (mut engine, _) = opened.map_err(|error| error.to_string())?;
        match canary {
            Some(Canary::PromiseForgotten | Canary::MapForgotten) => {
                for (key, bytes) in &self.forgotten {
                    engine.put_blob(*key, bytes).map_err(|error| error.to_string())?;
                }
            }
            Some(Canary::KillTakenForStop) => forge_marks(&mut engine, former).map_err(|error| error.to_string())?,
            _ => {}
        }
        Ok(engine)
    }

    /// Notes the promises of a shard that will forget later ones, or its pieces of the manager's map.
    fn note_forgotten(&mut self, engine: &Engine<SimDevice>, canary: Canary) {
        for key in engine.blob_keys().collect::<Vec<_>>() {
            let bytes = engine.blob(key).unwrap_or_default();
            let is_promise = decode_state(bytes).is_ok();
            let is_forgotten = match canary {
                Canary::PromiseForgotten => is_promise,
                _ => key < FIRST_KEY_OF_OTHERS,
            };
            if is_forgotten {
                self.forgotten.entry(key).or_insert_with(|| bytes.to_vec());
            }
        }
    }

    /// Closes the store, then cuts the disk's power, which must lose nothing. With `power_after_ops`, power fails that
    /// many operations after the shutdown began, if it takes that many. Returns whether the shutdown finished.
    fn close(&mut self, shard: Shard<SimDevice>, power_after_ops: Option<u64>, seed: u64) -> bool {
        let disk = &self.disk;
        if let Some(ops) = power_after_ops {
            disk.capture(Capture::At { op: disk.ops() + ops, loss: Loss::Power, seed });
        }
        let is_closed = shard.into_engine().close().is_ok();
        disk.capture(Capture::Never);
        let image = disk.take_images().pop();
        let is_clean = image.is_none() && is_closed;
        match is_clean {
            true => disk.crash(seed),
            // The disk failed or is full.
            false => disk.kill(seed),
        }
        if let Some(image) = image {
            self.disk = image.disk;
        }
        is_clean
    }

    /// Reverts a lying disk to an earlier state. Only the log is old; the manifest is synced as reported.
    fn put_past(&mut self) {
        let Some(past) = self.past.pop_front() else { return };
        for name in past.names().iter().filter(|name| name.starts_with("segment")) {
            self.disk.put(name, &past.contents(name).unwrap_or_default());
        }
    }

    /// Limits the disk to `left_bytes` more than its current content.
    fn fill(&self, left_bytes: u64) {
        let disk = &self.disk;
        let len = |name: &String| disk.contents(name).map_or(0, |contents| contents.len() as u64);
        let used_bytes: u64 = disk.names().iter().map(|name| len(name).next_multiple_of(4096)).sum();
        disk.set_capacity_bytes(Some(used_bytes + left_bytes));
    }
}

pub(super) struct Machine {
    pub(super) node: NodeId,
    pub(super) boot: BootId,
    pub(super) process: Option<Process>,
    /// In the order of the shards.
    pub(super) disks: Vec<ShardDisk>,
    past_at_us: u64,
    /// How far its wall clock is ahead.
    skew_ms: u64,
    /// When it was last powered on: the zero point of its monotonic clock.
    powered_us: Option<u64>,
    pub(super) restart_us: Option<u64>,
    pub(super) paused_until_us: u64,
    pub(super) stalled_until_us: u64,
    /// Time until which its disks are full; 0 if they are not.
    pub(super) full_until_us: u64,
    /// Time until which reads of its disks fail; 0 if they do not.
    pub(super) unreadable_until_us: u64,
    pub(super) inbox: VecDeque<(MemberId, MemberId, Arrival)>,
    /// When its next iteration is due.
    pub(super) due_us: Option<u64>,
    /// Connections of clients.
    pub(super) connections: Vec<Connection>,
    /// Operations to which its sessions have replied.
    pub(super) answered: u64,
}

impl Machine {
    /// A machine with a shard on each disk.
    pub(super) fn new(node: NodeId, disks: Vec<(MemberId, SimOptions)>, skew_ms: u64) -> Self {
        Self {
            node,
            boot: BootId(0),
            process: None,
            disks: disks.into_iter().map(|(id, disk)| ShardDisk::new(id, disk)).collect(),
            past_at_us: 0,
            skew_ms,
            powered_us: None,
            restart_us: None,
            paused_until_us: 0,
            stalled_until_us: 0,
            full_until_us: 0,
            unreadable_until_us: 0,
            inbox: VecDeque::new(),
            due_us: None,
            connections: Vec::new(),
            answered: 0,
        }
    }

    /// A machine with its identity and a copy of its disks, as of now.
    pub(super) fn copy(&self, seed: u64) -> Self {
        let disks = self.disks.iter().zip(seed..).map(|(shard, seed)| ShardDisk {
            id: shard.id,
            options: shard.options.clone(),
            disk: shard.disk.image(Loss::Process, seed),
            past: VecDeque::new(),
            forgotten: BTreeMap::new(),
        });
        let copy = Self::new(self.node, Vec::new(), self.skew_ms);
        Self { disks: disks.collect(), powered_us: self.powered_us, ..copy }
    }

    /// Its nodes: several in a local cluster.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.disks.iter().map(|disk| disk.id.node()).collect();
        nodes.dedup();
        nodes
    }

    /// One iteration of its process. Returns when the next is due without an event, µs, and the effects for the world.
    pub(super) fn run_once(&mut self, now_us: u64) -> (Option<u64>, Vec<(MemberId, NodeOutput)>) {
        let clock = self.clock(now_us);
        let Some(process) = self.process.as_mut() else { return (None, Vec::new()) };
        for (from, to, arrival) in self.inbox.drain(..) {
            match arrival {
                Arrival::Bytes(bytes) => process.handle_bytes(clock, (from, to), &bytes),
                Arrival::Reset => process.handle_link_reset(clock, (from, to)),
            }
        }
        self.offer_inputs(clock);
        let Some(process) = self.process.as_mut() else { return (None, Vec::new()) };
        let due = process.run_once(clock);
        let outputs = std::iter::from_fn(|| process.poll_node_output()).collect();
        (due.map(|due| self.when_us(due)), outputs)
    }

    /// The values of its own clocks.
    pub(super) const fn clock(&self, now_us: u64) -> Now {
        let mono_us = now_us.saturating_sub(self.powered_at_us()) + self.mono_start_us();
        Now { mono: MonoMs(mono_us / 1_000), wall: TimeMs(EPOCH_MS + self.skew_ms + now_us / 1_000) }
    }

    /// The virtual time at which its monotonic clock reaches `time`.
    pub(super) const fn when_us(&self, time: MonoMs) -> u64 {
        time.0.saturating_mul(1_000).saturating_sub(self.mono_start_us()).saturating_add(self.powered_at_us())
    }

    const fn mono_start_us(&self) -> u64 {
        MONO_START_US * self.node.0 as u64
    }

    const fn powered_at_us(&self) -> u64 {
        match self.powered_us {
            Some(at) => at,
            None => 0,
        }
    }

    pub(super) const fn is_paused(&self, now_us: u64) -> bool {
        self.paused_until_us > now_us
    }

    /// The next time at which it acts by itself.
    pub(super) fn next_us(&self) -> Option<u64> {
        let Some(_) = &self.process else { return self.restart_us };
        let disks = self.disks.iter().filter_map(|shard| shard.disk.next_due()).min();
        let disk = disks.map(|at| at.max(self.stalled_until_us));
        let inbox = (!self.inbox.is_empty()).then_some(0);
        [self.due_us, disk, inbox].into_iter().flatten().min().map(|at| at.max(self.paused_until_us))
    }

    /// Starts its process from the content of its disks.
    ///
    /// # Errors
    /// If it does not start, which no simulated fault explains.
    pub(super) fn start(
        &mut self,
        boot: BootId,
        map: &ClusterMap,
        now_us: u64,
        scenario: &Scenario,
        canary: Option<Canary>,
    ) -> Result<(), String> {
        self.powered_us.get_or_insert(now_us);
        self.mend(now_us);
        let now = self.clock(now_us);
        let former = std::mem::replace(&mut self.boot, boot);
        self.restart_us = None;
        self.due_us = Some(now_us);
        let mut engines = Vec::new();
        for disk in &mut self.disks {
            disk.disk.advance_to(now_us);
            let opened = disk.open(options(map, scenario), former, now, canary);
            engines.push(opened.map_err(|error| format!("shard {} does not start: {error}", disk.id))?);
        }
        let shard_options = shard_options(map, scenario, canary);
        if scenario.is_local() && self.disks.len() > usize::from(scenario.shards) {
            self.process =
                Some(start_local(engines, (boot, map), (shard_options, limits(scenario, canary)), scenario, now)?);
            return Ok(());
        }
        let mut process = Process::new(self.disks[0].id);
        for (engine, disk) in engines.into_iter().zip(&self.disks) {
            let config = config(disk.id, (boot, map), scenario, canary);
            let started = Shard::in_cluster(engine, config, shard_options, ServerInfo::default(), now);
            process.insert(started.map_err(|error| format!("shard {} does not start: {error}", disk.id))?);
        }
        self.process = Some(process);
        Ok(())
    }

    /// Ends its process; `seed` decides which unsynced writes the disk keeps.
    pub(super) fn stop(&mut self, loss: Loss, seed: u64, canary: Option<Canary>) {
        for (disk, seed) in self.disks.iter_mut().zip(seed..) {
            let engine = self.process.as_ref().and_then(|process| process.shard(disk.id)).map(Shard::engine);
            if let (Some(canary @ (Canary::PromiseForgotten | Canary::MapForgotten)), Some(engine)) = (canary, engine) {
                disk.note_forgotten(engine, canary);
            }
            match loss {
                Loss::Power => disk.disk.crash(seed),
                Loss::Process => disk.disk.kill(seed),
            }
        }
        self.process = None;
        if loss == Loss::Power {
            self.powered_us = None;
            self.disks.iter_mut().for_each(ShardDisk::put_past);
        }
        self.end();
    }

    /// Shuts it down gracefully, one shard after the other, then cuts its power, which must lose nothing. With
    /// `power_after_ops`, power fails that many operations after the shutdown of the last shard began, if it takes that
    /// many. Returns whether the shutdown finished.
    pub(super) fn close(
        &mut self,
        now_us: u64,
        power_after_ops: Option<u64>,
        seed: u64,
        canary: Option<Canary>,
    ) -> bool {
        let Some(mut process) = self.process.take() else { return false };
        let last = self.disks.len() - 1;
        let mut is_clean = true;
        for (at, disk) in self.disks.iter_mut().enumerate() {
            disk.disk.advance_to(now_us);
            let Some(shard) = process.remove(disk.id) else { continue };
            is_clean &= disk.close(shard, power_after_ops.filter(|_| at == last), seed + at as u64);
        }
        if canary == Some(Canary::MarkBeforeSync) {
            self.disks.iter_mut().for_each(ShardDisk::put_past);
        }
        self.end();
        is_clean
    }

    /// Replaces the disks of a node by empty ones; its process has ended.
    pub(super) fn replace_disks(&mut self, node: NodeId) {
        for disk in self.disks.iter_mut().filter(|disk| disk.id.node() == node) {
            *disk = ShardDisk::new(disk.id, disk.options.clone());
        }
    }

    /// Discards all state of its process.
    fn end(&mut self) {
        self.disks.iter_mut().for_each(|disk| disk.past.clear());
        self.inbox.clear();
        self.due_us = None;
        self.paused_until_us = 0;
        self.stalled_until_us = 0;
        self.connections.clear();
    }

    /// Whether a shard of its process runs on a disk that failed.
    pub(super) fn is_poisoned(&self) -> bool {
        self.shards().any(|(_, shard)| shard.engine().poisoned().is_some())
    }

    /// Whether a shard of this node runs on a disk that failed.
    pub(super) fn has_poisoned(&self, node: NodeId) -> bool {
        self.shards().any(|(id, shard)| id.node() == node && shard.engine().poisoned().is_some())
    }

    /// The shards of its process.
    pub(super) fn shards(&self) -> impl Iterator<Item = (MemberId, &Shard<SimDevice>)> {
        self.process.iter().flat_map(ShardGroup::shards).map(|shard| (shard.id(), shard))
    }

    /// A shard of its process.
    pub(super) fn shard(&self, id: MemberId) -> Option<&Shard<SimDevice>> {
        self.process.as_ref()?.shard(id)
    }

    /// The status of each shard of its process.
    pub(super) fn statuses(&self) -> Vec<(MemberId, NodeStatus)> {
        self.shards().map(|(id, shard)| (id, shard.node_status())).collect()
    }

    /// The cluster's map, if its process hosts the manager.
    pub(super) fn manager_map(&self) -> Option<&ClusterMap> {
        self.shards().find_map(|(_, shard)| shard.manager_map())
    }

    /// Limits its disks to `left_bytes` more than their current content.
    pub(super) fn fill(&self, left_bytes: u64) {
        self.disks.iter().for_each(|disk| disk.fill(left_bytes));
    }

    /// Ends full disks and failing reads whose time is over.
    pub(super) fn mend(&mut self, now_us: u64) {
        if self.full_until_us > 0 && self.full_until_us <= now_us {
            self.full_until_us = 0;
            self.disks.iter().for_each(|disk| disk.disk.set_capacity_bytes(None));
        }
        if self.unreadable_until_us > 0 && self.unreadable_until_us <= now_us {
            self.unreadable_until_us = 0;
            self.disks.iter().for_each(|disk| disk.disk.end_faults(OpKind::Read));
        }
    }

    /// Saves the states that a power loss would leave now, for disks that lie about syncs.
    pub(super) fn keep_past(&mut self, now_us: u64) {
        if self.past_at_us <= now_us {
            self.past_at_us = now_us + PAST_EVERY_US;
            for ShardDisk { past, disk, .. } in &mut self.disks {
                past.push_back(disk.image(Loss::Power, now_us));
                if past.len() > PAST_MAX {
                    past.pop_front();
                }
            }
        }
    }
}

/// Marks every member of boot `former` as cleanly shut down, with its log as it is.
fn forge_marks(engine: &mut Engine<SimDevice>, former: BootId) -> Result<(), EngineError> {
    for key in engine.blob_keys().collect::<Vec<_>>() {
        let Ok(state) = decode_state(engine.blob(key).unwrap_or_default()) else { continue };
        let Some(range) = state.entry.as_ref().map(|entry| entry.range) else { continue };
        let last = engine.progress(range).appended;
        let closed = Some(Closed { boot: former, last, before: None });
        engine.put_blob(key, &encode_state(&PersistedState { closed, ..state }))?;
    }
    Ok(())
}

fn options(map: &ClusterMap, scenario: &Scenario) -> Options {
    let (layout, segment_bytes) =
        if scenario.sorts { (RecordLayout::Sorted, 128 << 10) } else { (RecordLayout::Log, 256 << 10) };
    Options {
        segment_bytes,
        layout,
        // Each segment is sorted alone and in batches, and merges with the oldest runs take several parts.
        sort_bytes: 1,
        sort_batch_bytes: 48 << 10,
        run_bytes_max: 16 << 10,
        memory_bytes: 4 << 20,
        durability: map.durability,
        value_bytes_max: 1 << 20,
        secret: Some(map.secret),
        index: IndexOptions { entries_min: 64, page_entries: 4, ..IndexOptions::default() },
        checkpoint_log_bytes_min: 64 << 10,
        // Runs last seconds, so records would never be cleaned as expired.
        expiry_margin_ms: 500,
        ..Options::default()
    }
}

fn shard_options(map: &ClusterMap, scenario: &Scenario, canary: Option<Canary>) -> ShardOptions {
    let value_bytes_max = options(map, scenario).value_bytes_max;
    let mut options = ShardOptions { durability: map.durability, value_bytes_max, ..scenario.shard() };
    if canary == Some(Canary::RequestsUnbounded) {
        (options.pending_max, options.requests_bytes_max) = (usize::MAX, usize::MAX);
    }
    options
}

/// Starts all nodes of a local cluster as the product does: with the newest map in any of their stores.
fn start_local(
    engines: Vec<Engine<SimDevice>>,
    (boot, map): (BootId, &ClusterMap),
    (shard, limits): (ShardOptions, NodeLimits),
    scenario: &Scenario,
    now: Now,
) -> Result<Process, String> {
    let (shards, is_one_range) = (scenario.shards, scenario.is_one_range());
    let options = LocalOptions { shard, limits, shards, is_one_range };
    let server_info = ServerInfo { run_id: format!("{:08x}", boot.0 as u32), ..ServerInfo::default() };
    let started = LocalCluster::start(engines, options, server_info, now);
    let (cluster, process) = started.map_err(|error| format!("the local cluster does not start: {error}"))?;
    let expected: Vec<RangeId> = map.ranges.iter().map(|entry| entry.range).collect();
    if !cluster.ranges().eq(expected.iter().copied()) || process.server().id() != scenario.manager(map) {
        return Err(format!("the local cluster has other ranges or another server than {map:?}"));
    }
    Ok(process)
}

fn config(id: MemberId, (boot, map): (BootId, &ClusterMap), scenario: &Scenario, canary: Option<Canary>) -> NodeConfig {
    let (limits, durability, map_place) = (limits(scenario, canary), map.durability, MapPlace::OwnStore);
    NodeConfig { id, boot, durability, map: map.clone(), manager: Some(scenario.manager(map)), map_place, limits }
}

/// The limits of nodes, with the manager's and front-ends' options.
fn limits(scenario: &Scenario, canary: Option<Canary>) -> NodeLimits {
    let limits = scenario.limits();
    let report_wait_ms = crate::faults::REPORT_WAIT_MS;
    let manager = ManagerOptions {
        report_wait_ms,
        hold_off_ms: HOLD_OFF_MS,
        hold_off_ms_max: HOLD_OFF_MS_MAX,
        ..ManagerOptions::default()
    };
    let timeout_ms = if canary == Some(Canary::RequestsKept) { u64::MAX / 2 } else { TIMEOUT_MS };
    let router = RouterOptions { timeout_ms, ..limits.router };
    NodeLimits { manager, router, ..limits }
}

//! One simulated machine: its disk, which outlives its process, and its process, which is stopped and started.
use super::sessions::Connection;
use crate::canary::Canary;
use crate::network::Arrival;
use fawn_chain::map::{decode_state, encode_state};
use fawn_chain::{Closed, ClusterMap, ManagerOptions, PersistedState, RouterOptions};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Engine, EngineError, Options};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{MapPlace, NodeConfig, NodeLimits, NodeStatus};
use fawn_node::{ServerInfo, Shard, ShardOptions};
use fawn_types::{BootId, Durability, MonoMs, NodeId, Now, TimeMs};
use std::collections::{BTreeMap, VecDeque};

/// The wall clock when a world begins, ms.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Monotonic clocks differ by this much, µs: a value is meaningless on another machine.
const MONO_START_US: u64 = 37_000_000;
/// How long a suspected member is not promoted, ms: short, so that it comes back within a run.
const HOLD_OFF_MS: u64 = 2_000;
/// The longest hold-off, ms; it is part of the time within which everything must serve again.
const HOLD_OFF_MS_MAX: u64 = 16_000;
/// Interval at which states of a lying disk are saved, µs, and the number of them.
const PAST_EVERY_US: u64 = 3_000;
const PAST_MAX: usize = 4;
/// Time after which an unanswered operation fails, ms.
pub(super) const TIMEOUT_MS: u64 = 3_000;

/// The process of a machine: client sessions on a node with a store.
pub(super) type Process = Shard<SimDevice>;

pub(super) struct Machine {
    pub(super) node: NodeId,
    pub(super) boot: BootId,
    pub(super) process: Option<Process>,
    pub(super) disk: SimDisk,
    /// Earlier states of a lying disk, oldest first.
    past: VecDeque<SimDisk>,
    past_at_us: u64,
    /// The first state of each of its blobs, with which a machine that forgets promises restarts.
    forgotten: BTreeMap<u32, Vec<u8>>,
    /// How far its wall clock is ahead.
    skew_ms: u64,
    /// When it was last powered on; its monotonic clock counts from there.
    powered_us: Option<u64>,
    pub(super) restart_us: Option<u64>,
    pub(super) paused_until_us: u64,
    pub(super) stalled_until_us: u64,
    /// Time until which its disk is full; 0 if it is not.
    pub(super) full_until_us: u64,
    /// Its disk reads nothing until then; 0: it does.
    pub(super) unreadable_until_us: u64,
    pub(super) inbox: VecDeque<(NodeId, Arrival)>,
    /// When its next iteration is due.
    pub(super) due_us: Option<u64>,
    /// Connections of clients.
    pub(super) connections: Vec<Connection>,
    /// Operations that its sessions have answered.
    pub(super) answered: u64,
}

impl Machine {
    pub(super) fn new(node: NodeId, disk: SimOptions, skew_ms: u64) -> Self {
        Self {
            node,
            boot: BootId(0),
            process: None,
            disk: SimDisk::new(disk),
            past: VecDeque::new(),
            past_at_us: 0,
            forgotten: BTreeMap::new(),
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
        let disk = self.disk.next_due().map(|at| at.max(self.stalled_until_us));
        let inbox = (!self.inbox.is_empty()).then_some(0);
        [self.due_us, disk, inbox].into_iter().flatten().min().map(|at| at.max(self.paused_until_us))
    }

    /// Starts its process from the content of its disk.
    ///
    /// # Errors
    /// If it does not start, which no simulated fault explains.
    pub(super) fn start(
        &mut self,
        boot: BootId,
        map: &ClusterMap,
        now_us: u64,
        limits: NodeLimits,
        canary: Option<Canary>,
    ) -> Result<(), String> {
        self.powered_us.get_or_insert(now_us);
        self.mend(now_us);
        let now = self.clock(now_us);
        let former = std::mem::replace(&mut self.boot, boot);
        self.restart_us = None;
        self.due_us = Some(now_us);
        let name = |error: &dyn std::fmt::Display| format!("node {} does not start: {error}", self.node.0);
        self.disk.advance_to(now_us);
        let opened = Engine::open(SimDevice::attach(&self.disk), options(map), now);
        let (mut engine, _) = opened.map_err(|error| name(&error))?;
        match canary {
            Some(Canary::PromiseForgotten) => {
                for (key, bytes) in &self.forgotten {
                    engine.put_blob(*key, bytes).map_err(|error| name(&error))?;
                }
            }
            Some(Canary::KillTakenForStop) => forge_marks(&mut engine, former).map_err(|error| name(&error))?,
            _ => {}
        }
        let config = config(self.node, boot, map, limits);
        let options = shard_options(map);
        let started = Shard::in_cluster(engine, config, options, ServerInfo::default(), now);
        self.process = Some(started.map_err(|error| name(&error))?);
        Ok(())
    }

    /// Ends its process; `seed` decides which unsynced writes the disk keeps.
    pub(super) fn stop(&mut self, loss: Loss, seed: u64, canary: Option<Canary>) {
        if let (Some(Canary::PromiseForgotten), Some(engine)) =
            (canary, self.process.as_ref().map(|process| process.engine()))
        {
            for key in engine.blob_keys().collect::<Vec<_>>() {
                let bytes = engine.blob(key).unwrap_or_default();
                if decode_state(bytes).is_ok() {
                    self.forgotten.entry(key).or_insert_with(|| bytes.to_vec());
                }
            }
        }
        match loss {
            Loss::Power => self.disk.crash(seed),
            Loss::Process => self.disk.kill(seed),
        }
        self.process = None;
        if loss == Loss::Power {
            self.powered_us = None;
            self.put_past();
        }
        self.end();
    }

    /// Shuts it down gracefully, then cuts its power, which must lose nothing. With `power_after_ops`, power fails that
    /// many operations after the shutdown began, if it takes that many. Returns whether the shutdown finished.
    pub(super) fn close(
        &mut self,
        now_us: u64,
        power_after_ops: Option<u64>,
        seed: u64,
        canary: Option<Canary>,
    ) -> bool {
        let disk = &self.disk;
        disk.advance_to(now_us);
        if let Some(ops) = power_after_ops {
            disk.capture(Capture::At { op: disk.ops() + ops, loss: Loss::Power, seed });
        }
        let engine = self.process.take().map(Shard::into_engine);
        let is_closed = engine.is_some_and(|engine| engine.close().is_ok());
        disk.capture(Capture::Never);
        let image = disk.take_images().pop();
        match image.is_none() && is_closed {
            true => disk.crash(seed),
            false => disk.kill(seed), // The disk failed or is full.
        }
        let in_order = image.is_none() && is_closed;
        if let Some(image) = image {
            self.disk = image.disk;
        }
        if canary == Some(Canary::MarkBeforeSync) {
            self.put_past();
        }
        self.end();
        in_order
    }

    /// Reverts a lying disk to an earlier state. Only the log is old; the manifest is synced as reported.
    fn put_past(&mut self) {
        let Some(past) = self.past.pop_front() else { return };
        for name in past.names().iter().filter(|name| name.starts_with("segment")) {
            self.disk.put(name, &past.contents(name).unwrap_or_default());
        }
    }

    /// Discards all state of its process.
    fn end(&mut self) {
        self.past.clear();
        self.inbox.clear();
        self.due_us = None;
        self.paused_until_us = 0;
        self.stalled_until_us = 0;
        self.connections.clear();
    }

    /// Whether its process runs on a disk that failed.
    pub(super) fn is_poisoned(&self) -> bool {
        self.engine().is_some_and(|engine| engine.poisoned().is_some())
    }

    /// The store of its process.
    pub(super) fn engine(&self) -> Option<&Engine<SimDevice>> {
        self.process.as_ref().map(|process| process.engine())
    }

    /// The status of its process.
    pub(super) fn status(&self) -> Option<NodeStatus> {
        self.process.as_ref().map(|process| process.node_status())
    }

    /// The cluster's map, if its process hosts the manager.
    pub(super) fn manager_map(&self) -> Option<&ClusterMap> {
        self.process.as_ref().and_then(|process| process.manager_map())
    }

    /// Limits its disk to `left_bytes` more than its current content.
    pub(super) fn fill(&self, left_bytes: u64) {
        let disk = &self.disk;
        let len = |name: &String| disk.contents(name).map_or(0, |contents| contents.len() as u64);
        let used_bytes: u64 = disk.names().iter().map(|name| len(name).next_multiple_of(4096)).sum();
        disk.set_capacity_bytes(Some(used_bytes + left_bytes));
    }

    /// Space comes back, and reads work again, when their time has come.
    pub(super) fn mend(&mut self, now_us: u64) {
        if self.full_until_us > 0 && self.full_until_us <= now_us {
            self.full_until_us = 0;
            self.disk.set_capacity_bytes(None);
        }
        if self.unreadable_until_us > 0 && self.unreadable_until_us <= now_us {
            self.unreadable_until_us = 0;
            self.disk.end_faults(OpKind::Read);
        }
    }

    /// Saves the state that a power loss would leave now, for a disk that lies about syncs.
    pub(super) fn keep_past(&mut self, now_us: u64) {
        if self.past_at_us <= now_us {
            self.past_at_us = now_us + PAST_EVERY_US;
            self.past.push_back(self.disk.image(Loss::Power, now_us));
            if self.past.len() > PAST_MAX {
                self.past.pop_front();
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

fn options(map: &ClusterMap) -> Options {
    Options {
        segment_bytes: 256 << 10,
        memory_bytes: 4 << 20,
        durability: map.durability,
        value_bytes_max: 1 << 20,
        secret: Some(map.secret),
        index: IndexOptions { entries_min: 64, page_entries: 4 },
        ..Options::default()
    }
}

fn shard_options(map: &ClusterMap) -> ShardOptions {
    let value_bytes_max = options(map).value_bytes_max;
    ShardOptions { durability: map.durability, value_bytes_max, ..ShardOptions::default() }
}

fn config(node: NodeId, boot: BootId, map: &ClusterMap, limits: NodeLimits) -> NodeConfig {
    let report_wait_ms = crate::faults::REPORT_WAIT_MS;
    let manager = ManagerOptions {
        report_wait_ms,
        hold_off_ms: HOLD_OFF_MS,
        hold_off_ms_max: HOLD_OFF_MS_MAX,
        ..ManagerOptions::default()
    };
    let frontend = RouterOptions { timeout_ms: TIMEOUT_MS, ..RouterOptions::default() };
    let limits = NodeLimits { manager, router: frontend, ..limits };
    let durability: Durability = map.durability;
    let map_place = MapPlace::OwnStore;
    NodeConfig { node, boot, durability, map: map.clone(), manager: Some(NodeId(1)), map_place, limits }
}

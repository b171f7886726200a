//! Harness of a cluster: three members in one thread, each on a simulated disk.
use crate::test_harness::{START, TestHarness};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{NodeError, NodeStatus, RangeDigest};
use fawn_node::{ClientService, LocalCluster, LocalOptions, ServerInfo, Shard, ShardGroup, ShardOptions};
use fawn_types::{Durability, HashSecret, MemberId, NodeId, Now, RangeId};
use fawn_wire::Protocol;
use std::collections::HashMap;

pub(crate) const MEMBERS: u32 = 3;

/// The options that a cluster is started with, and what its shards are started from.
pub(crate) struct ClusterSetup {
    pub(crate) options: LocalOptions,
    pub(crate) cluster: LocalCluster,
}

pub(crate) type ClusterHarness = TestHarness<ShardGroup<SimDevice>, ClusterSetup>;

pub(crate) fn open(disk: &SimDisk, options: &LocalOptions, memory_bytes: u64, now: Now) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: (4 * options.shard.value_bytes_max).next_power_of_two().max(1 << 20),
        memory_bytes,
        durability: options.shard.durability,
        value_bytes_max: options.shard.value_bytes_max,
        secret: Some(HashSecret(*b"all of a clusted")),
        ..Options::default()
    };
    Engine::open(SimDevice::attach(disk), options, now).unwrap().0
}

impl ClusterHarness {
    pub(crate) fn new(is_one_range: bool) -> Self {
        Self::with(is_one_range, Durability::Sync, 8 << 20)
    }

    pub(crate) fn with(is_one_range: bool, durability: Durability, memory_bytes: u64) -> Self {
        Self::with_values(200 << 10, is_one_range, durability, memory_bytes)
    }

    pub(crate) fn with_values(
        value_bytes_max: u32,
        is_one_range: bool,
        durability: Durability,
        memory_bytes: u64,
    ) -> Self {
        let shard = ShardOptions { durability, value_bytes_max, ..ShardOptions::default() };
        let options = LocalOptions { shard, is_one_range, ..LocalOptions::default() };
        let disks = (1..=MEMBERS).map(|seed| SimDisk::new(SimOptions::instant(u64::from(seed)))).collect();
        Self::on(disks, options, memory_bytes, START)
    }

    /// A cluster with several shards per node.
    pub(crate) fn with_shards(shards: u16) -> Self {
        let mut options = LocalOptions { shards, is_one_range: false, ..LocalOptions::default() };
        options.shard.value_bytes_max = 200 << 10;
        Self::with_options(options, 1)
    }

    /// A cluster with a maximum number of unanswered operations per range.
    pub(crate) fn with_window(window_ops_max: u64) -> Self {
        let mut options = LocalOptions { is_one_range: false, ..LocalOptions::default() };
        options.shard.value_bytes_max = 200 << 10;
        options.limits.router.window_ops_max = window_ops_max;
        Self::with_options(options, 1)
    }

    /// A harness with the key `k0`, whose ranges have lost two of three members and take no requests.
    pub(crate) fn at_dead_chains(options: LocalOptions) -> Self {
        let mut harness = Self::with_options(options, 1);
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "SET k0 v"), "+OK");
        [2, 3].into_iter().for_each(|name| harness.kill(name, 7));
        harness.run(5_000);
        harness
    }

    pub(crate) fn with_options(options: LocalOptions, seed: u64) -> Self {
        let disk = |seed| SimDisk::new(SimOptions::instant(seed));
        let stores = u64::from(MEMBERS) * u64::from(options.shards);
        let disks = (seed..seed + stores).map(disk).collect();
        Self::on(disks, options, 8 << 20, START)
    }

    pub(crate) fn on(disks: Vec<SimDisk>, options: LocalOptions, memory_bytes: u64, now: Now) -> Self {
        Self::try_on(disks, options, memory_bytes, now).unwrap()
    }

    fn try_on(disks: Vec<SimDisk>, options: LocalOptions, memory_bytes: u64, now: Now) -> Result<Self, NodeError> {
        let engines = disks.iter().map(|disk| open(disk, &options, memory_bytes, now)).collect();
        let (cluster, host) = LocalCluster::start(engines, options, ServerInfo::default(), now)?;
        let options = ClusterSetup { options, cluster };
        let clients = HashMap::new();
        Ok(Self { disks, host, now, clients, reads_replies: true, options, memory_bytes, turn_ms: 1 })
    }

    /// Stops gracefully and starts again with `disk` as that of member `name`, and with working disks.
    pub(crate) fn replace(self, name: u32, disk: SimDisk) -> Result<Self, NodeError> {
        let Self { mut disks, host, now, options: ClusterSetup { options, .. }, memory_bytes, .. } = self;
        for engine in host.into_engines() {
            let is_well = engine.poisoned().is_none();
            assert_eq!(engine.close().is_ok(), is_well, "only a store that failed does not close");
        }
        disks.iter().for_each(SimDisk::clear_faults);
        disks[name as usize - 1] = disk;
        Self::try_on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    /// All members lose power and start from the remaining state.
    pub(crate) fn crash(self, seed: u64) -> Self {
        let Self { disks, host, now, options: ClusterSetup { options, .. }, memory_bytes, .. } = self;
        drop(host);
        disks.iter().zip(seed..).for_each(|(disk, seed)| disk.crash(seed));
        Self::on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    /// Shuts down cleanly and starts again, with a power loss in between that must lose nothing.
    pub(crate) fn stop(self) -> Self {
        let Self { disks, host, now, options: ClusterSetup { options, .. }, memory_bytes, .. } = self;
        host.into_engines().into_iter().for_each(|engine| drop(engine.close().unwrap()));
        disks.iter().for_each(|disk| disk.crash(now.wall.0));
        Self::on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    /// Shuts down on disks whose syncs fail, and starts again once they work.
    pub(crate) fn stop_unsynced(self) -> Self {
        let Self { disks, host, now, options: ClusterSetup { options, .. }, memory_bytes, .. } = self;
        disks.iter().for_each(|disk| disk.fail_nth(OpKind::Sync, 1, DeviceFault::Fail));
        host.into_engines()
            .into_iter()
            .for_each(|engine| assert!(engine.close().is_err(), "a failed sync is reported"));
        disks.iter().zip(1..).for_each(|(disk, seed)| disk.crash(seed));
        Self::on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    /// The store of a member fails at its next write; its node still runs.
    pub(crate) fn fail(&mut self, name: u32) {
        self.disks[name as usize - 1].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    }

    /// Kills a member other than the first, which serves the clients, as `kill -9` of its process would.
    pub(crate) fn kill(&mut self, name: u32, seed: u64) {
        assert_ne!(self.host.server().id().node(), NodeId(name), "the clients would be lost");
        self.ids_of(name).into_iter().for_each(|id| drop(self.host.remove(id)));
        self.disks_of(name).iter().zip(seed..).for_each(|(disk, seed)| disk.kill(seed));
    }

    fn ids_of(&self, name: u32) -> Vec<MemberId> {
        self.options.cluster.ids().iter().copied().filter(|id| id.node() == NodeId(name)).collect()
    }

    fn disks_of(&self, name: u32) -> &[SimDisk] {
        let shards = usize::from(self.options.options.shards);
        &self.disks[(name as usize - 1) * shards..][..shards]
    }

    /// Restarts a killed member on its disks.
    pub(crate) fn restart(&mut self, name: u32) {
        let disks = self.disks_of(name).to_vec();
        for (id, disk) in self.ids_of(name).into_iter().zip(disks) {
            let engine = open(&disk, &self.options.options, self.memory_bytes, self.now);
            let map = self.host.server().manager_map().cloned();
            self.options.cluster.start_shard(&mut self.host, (id, engine), map.as_ref(), self.now).unwrap();
        }
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = NodeStatus> {
        self.host.shards().map(Shard::node_status)
    }

    /// Digests of each running shard's copy of `range`.
    fn digests(&mut self, range: RangeId) -> Vec<(MemberId, RangeDigest)> {
        let members = self.statuses().flat_map(|status| status.members);
        let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default();
        let digest = |id: &MemberId| Some((*id, self.host.shard_mut(*id)?.digest(range, time).unwrap()?));
        self.options.cluster.ids().iter().filter_map(digest).collect()
    }

    /// **equal-digests**: all members hold the same content. Returns the number of keys.
    pub(crate) fn assert_three_equal_copies(&mut self) -> u64 {
        self.run(500);
        let ranges: Vec<_> = self.options.cluster.ranges().collect();
        let mut keys = 0;
        for range in ranges {
            let copies = self.digests(range);
            assert_eq!(copies.len(), MEMBERS as usize, "{range:?} is on every disk");
            assert!(copies.iter().all(|(_, copy)| *copy == copies[0].1), "{range:?}: {copies:?}");
            keys += copies[0].1.keys;
        }
        keys
    }

    /// Number of device reads on all members.
    pub(crate) fn reads(&self) -> u64 {
        self.host.engines().map(|engine| engine.stats().reads).sum()
    }
}

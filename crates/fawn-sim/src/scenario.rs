//! Scenario: the parameters of a run drawn from its seed, such as the cluster's size, its durability and kinds of
//! faults.
//!
//! Each seed enables its own selection of faults, because a run with all faults at once hides rare combinations.
use crate::canary::Canary;
use crate::seed::Seed;
use fawn_chain::completions::CompletionLimits;
use fawn_chain::{ClusterMap, ReplicaOptions};
use fawn_node::ShardOptions;
use fawn_node::cluster::NodeLimits;
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, MemberId, NodeId, ShardId, Version};
use std::ops::Range;

/// One seed in this many lets a disk hang, which takes up to a minute of virtual time.
const HANG_EVERY_SEEDS: u64 = 20;

/// One seed in this many cuts two neighbours off for half a minute, and one restarts idle ranges a hundred times: these
/// runs take the most steps.
const APART_LONG_EVERY_SEEDS: u64 = 20;
const IDLE_EVERY_SEEDS: u64 = 20;

/// One seed in this many starts a second process with the identity of a machine.
const TWIN_EVERY_SEEDS: u64 = 12;

/// One seed in this many lets keys expire.
const EXPIRY_EVERY_SEEDS: u64 = 3;

/// One seed in this many sorts segments into runs.
const SORTED_EVERY_SEEDS: u64 = 4;

/// One seed in this many has client sessions on back-ends.
const BACKEND_SESSIONS_EVERY_SEEDS: u64 = 3;

/// Maximum commands of a pipeline, and of one in a run with small budgets: so many that requests wait for the budgets
/// themselves, which no number of short pipelines exceeds.
const PIPELINE_MAX: u64 = 6;
const PIPELINE_MAX_DEEP: u64 = 48;

/// One seed in this many runs all back-ends in one process, as `fawn demo` does; the number of its nodes.
const LOCAL_EVERY_SEEDS: u64 = 20;
const LOCAL_NODES: u32 = 3;

/// Parameters of one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The durability mode.
    pub durability: Durability,
    /// Number of machines that are back-ends.
    pub backends: u32,
    /// Nodes of the first machine: several in a local cluster, which has no other back-ends. All others are one node
    /// each.
    pub nodes_of_first: u32,
    /// Shards of each node, with a store each.
    pub shards: u16,
    /// R: copies of each range.
    pub replication: u8,
    /// V: virtual IDs per shard.
    pub virtual_ids: u16,
    /// Number of front-ends: nodes outside the cluster's map, whose stores host no range.
    pub frontends: u32,
    /// The machines that clients connect to.
    pub sessions: SessionPlaces,
    /// Budgets and queues are so small that requests wait for them.
    pub is_narrow: bool,
    /// Number of logical clients.
    pub clients: u32,
    /// Maximum commands of a pipeline.
    pub pipeline_max: u64,
    /// Number of keys in use at a time.
    pub keys: u32,
    /// Clients delete as much as they write.
    pub deletes_often: bool,
    /// Clients let keys expire.
    pub expires: bool,
    /// Stores have the sorted tier, and short segments, so that some keys are in runs.
    pub sorts: bool,
    /// Longest pause of a client between two operations, µs.
    pub think_us_max: u64,
    /// Longest device operation, µs.
    pub disk_us_max: u64,
    /// Records that logs keep for retransmission; a member that missed more gets a full resync.
    pub retained_records_max: usize,
    /// Duration of the phase with faults, µs.
    pub faults_us: u64,
    /// Mean time between two faults, µs.
    pub fault_every_us: u64,
    /// The enabled faults.
    pub enabled: Enabled,
    /// A process whose disk failed is restarted at once; else it stays up until faults have ended.
    pub supervised: bool,
    /// Maximum writes of one epoch.
    pub epoch_records_max: u64,
    /// Faults exceed those that the durability mode promises to survive: a loss must be reported.
    pub may_lose: bool,
    /// After all has healed, disks of one machine hang.
    pub hang: Option<Hang>,
    /// After that, two processes have one identity.
    pub twin: Option<Twin>,
    /// After healing, all machines are shut down cleanly and restarted before the final check.
    pub closes_at_end: bool,
    /// After healing, ranges stay idle for more epochs than the remembered activations.
    pub idles: bool,
}

/// The machines that clients connect to. Sessions on a back-end share its crashes, pauses and disk faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionPlaces {
    /// Front-ends only.
    FrontEnds,
    /// Back-ends only.
    BackEnds,
    /// Front-ends and back-ends.
    All,
}

impl SessionPlaces {
    fn of(seed: &Seed) -> Self {
        let mut random = seed.stream("sessions");
        match (random.chance(1, BACKEND_SESSIONS_EVERY_SEEDS), random.chance(1, 2)) {
            (false, _) => Self::FrontEnds,
            (true, false) => Self::BackEnds,
            (true, true) => Self::All,
        }
    }
}

/// Disks of one machine that complete no write or sync for a while, or each of them late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hang {
    /// Whose, numbered from 0.
    pub machine: u32,
    /// Of a local cluster: the node whose disks alone hang.
    pub node: Option<u32>,
    /// The shard whose disk alone hangs; `None`: the disks of all shards.
    pub shard: Option<u16>,
    /// For how long, µs.
    pub for_us: u64,
    /// How late writes and syncs complete, µs; 0: they do not.
    pub late_us: u64,
    /// The others are enough to go on with: enough copies to leave the machine out, and the manager's map.
    pub is_survived: bool,
}

impl Hang {
    fn of(seed: &Seed, (backends, frontends): (u32, u32), shards: u16, replication: u8) -> Option<Self> {
        let mut random = seed.stream("hangs");
        if !random.chance(1, HANG_EVERY_SEEDS) {
            return None;
        }
        let machine = random.below(u64::from(backends)) as u32;
        let for_us = [20_000_000, 20_000_000, 60_000_000][random.below(3) as usize];
        let late_us = if random.chance(1, 2) { 4_000_000 } else { 0 };
        let mut of_shards = seed.stream("hung shards");
        let shard = (shards > 1 && of_shards.chance(2, 3)).then(|| of_shards.below(u64::from(shards)) as u16);
        // The manager keeps its map on the disk of the first machine's first shard alone. A member on a slow disk
        // leaves its chains only while two others remain; one whose disk hangs leaves in any case.
        let copies_needed = if late_us > 0 { 3 } else { 2 };
        let has_manager = machine == 0 && shard.unwrap_or(0) == 0;
        let is_survived = replication >= copies_needed && backends >= 3 && !has_manager;
        if random.chance(1, 4) {
            // A front-end's store hosts no range.
            let machine = backends + random.below(u64::from(frontends)) as u32;
            return Some(Self { machine, node: None, shard, for_us, late_us, is_survived: true });
        }
        Some(Self { machine, node: None, shard, for_us, late_us, is_survived })
    }

    /// The disks of one node of a local cluster, or one of them. A majority of the nodes keeps the manager's map, so
    /// any node may be the one.
    fn of_local(seed: &Seed, shards: u16) -> Option<Self> {
        let mut random = seed.stream("hangs");
        if !random.chance(1, 2) {
            return None;
        }
        let node = Some(1 + random.below(u64::from(LOCAL_NODES)) as u32);
        let shard = random.chance(1, 2).then(|| random.below(u64::from(shards)) as u16);
        let late_us = if random.chance(1, 2) { 4_000_000 } else { 0 };
        Some(Self { machine: 0, node, shard, for_us: 20_000_000, late_us, is_survived: true })
    }
}

/// A process on a copy of a machine's disks, while the process on the disks themselves runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Twin {
    /// Whose disks are copied, numbered from 0.
    pub machine: u32,
    /// The copy was opened more often than the original; else equally often.
    pub is_newer: bool,
    /// When it starts after the copy was made, µs.
    pub after_us: u64,
    /// How long both processes run at least, µs.
    pub for_us: u64,
}

impl Twin {
    fn of(seed: &Seed, backends: u32, replication: u8) -> Option<Self> {
        let mut random = seed.stream("twins");
        // Two managers with one map are not prevented: the first machine's store must not be copied while it runs.
        if !random.chance(1, TWIN_EVERY_SEEDS) || backends < 2 {
            return None;
        }
        let machine = 1 + random.below(u64::from(backends) - 1) as u32;
        let after_us = [1_000, 100_000, 2_000_000][random.below(3) as usize];
        // A chain of one member has no other copy: the process on the older one may not win.
        let is_newer = random.chance(2, 3) && replication > 1;
        Some(Self { machine, is_newer, after_us, for_us: 1_000_000 + random.below(4_000_000) })
    }
}

/// Faults enabled in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enabled {
    /// One machine loses power.
    pub power: bool,
    /// All machines lose power.
    pub power_of_all: bool,
    /// A process is killed.
    pub kill: bool,
    /// All processes are killed.
    pub kill_of_all: bool,
    /// A front-end is killed or loses power.
    pub kill_frontend: bool,
    /// A machine pauses for a while.
    pub pause: bool,
    /// Links are cut, in one or both directions.
    pub cut: bool,
    /// Frames are lost or duplicated, and links break.
    pub unkind_network: bool,
    /// A disk stalls for a while.
    pub stall: bool,
    /// A disk is full for a while.
    pub full: bool,
    /// The link between two neighbours is cut for long, while all other nodes reach both.
    pub apart: bool,
    /// The link between two neighbours is cut for half a minute. This is the only fault of its run, which is long.
    pub apart_long: bool,
    /// All disks are full at once for a while.
    pub full_all: bool,
    /// A disk reads nothing for a while.
    pub reads_fail: bool,
    /// A write or sync fails.
    pub fail: bool,
    /// Machines are shut down gracefully.
    pub close: bool,
    /// Disks of front-ends stall, are full, read nothing, or fail.
    pub frontend_disks: bool,
}

/// Longest operation of the slowest disks, µs.
const DISK_US_SLOW: u64 = 9_000;
/// Longest pause of a client between two operations in a run with a long cut, µs. More operations would only prolong
/// the run.
const APART_LONG_THINK_US_MAX: u64 = 60_000;

impl Scenario {
    /// The scenario of `seed`.
    #[must_use]
    pub fn of(seed: &Seed) -> Self {
        let mut random = seed.stream("scenario");
        let durability = match random.below(8) {
            0 => Durability::Memory,
            1 => Durability::EverySecond,
            _ => Durability::Sync,
        };
        let backends = [3, 3, 3, 4, 5, 1, 2][random.below(7) as usize];
        let (backends, replication, virtual_ids) = layout(&mut seed.stream("layout"), backends);
        let shards = [1, 1, 1, 2, 2, 3][seed.stream("shards").below(6) as usize];
        let may_lose = durability != Durability::Sync && seed.stream("losses").chance(1, 2);
        let mut media = seed.stream("disks");
        let mut stops = seed.stream("stops");
        let close = stops.chance(1, 2);
        let is_local = seed.stream("local").chance(1, LOCAL_EVERY_SEEDS);
        let (backends, nodes_of_first, replication, virtual_ids) = match is_local {
            true => (1, LOCAL_NODES, LOCAL_NODES as u8, 1),
            false => (backends, 1, replication, virtual_ids),
        };
        let disk_us_max = [100, 400, 2_000, DISK_US_SLOW][random.below(4) as usize];
        let frontends = 1 + random.below(2) as u32;
        let clients = 3 + random.below(6) as u32;
        let keys = 2 + random.below(5) as u32;
        let think_us_max = [500, 3_000, 12_000][random.below(3) as usize];
        let faults_us = 4_000_000 + random.below(5_000_000);
        let fault_every_us = [60_000, 250_000, 900_000][random.below(3) as usize];
        let (full_all, reads_fail) = (media.chance(1, 6), media.chance(1, 4));
        let frontend_disks = seed.stream("front-ends' disks").chance(1, 3);
        let enabled = Enabled::of(&mut random, durability, may_lose);
        let mut enabled = Enabled { close, full_all, reads_fail, frontend_disks, ..enabled };
        let mut long = seed.stream("long");
        let apart_long = backends >= 3 && long.chance(1, APART_LONG_EVERY_SEEDS);
        if apart_long {
            enabled = Enabled { apart_long, ..Enabled::NONE };
        }
        let expires = seed.stream("expiry").chance(1, EXPIRY_EVERY_SEEDS);
        let (is_narrow, pipeline_max) = budgets(&mut seed.stream("memory"), keys, expires);
        let machines = (backends, frontends);
        Self {
            durability,
            backends,
            nodes_of_first,
            shards,
            replication,
            virtual_ids,
            frontends,
            sessions: if is_local { SessionPlaces::BackEnds } else { SessionPlaces::of(seed) },
            is_narrow,
            clients,
            pipeline_max,
            keys,
            deletes_often: seed.stream("deletes").chance(1, 2),
            expires,
            sorts: seed.stream("sorted tier").chance(1, SORTED_EVERY_SEEDS),
            think_us_max: if apart_long { APART_LONG_THINK_US_MAX } else { think_us_max },
            disk_us_max,
            retained_records_max: retained_records_max(think_us_max, seed.stream("copies").below(8)),
            faults_us: if apart_long { crate::faults::APART_LONG_US + 2_000_000 } else { faults_us },
            fault_every_us,
            enabled,
            supervised: seed.stream("supervisor").chance(1, 4),
            epoch_records_max: if seed.stream("epochs").chance(1, 6) { 64 } else { Version::SEQ_SOFT_MAX },
            may_lose,
            twin: Twin::of(seed, backends, replication),
            hang: if is_local { Hang::of_local(seed, shards) } else { Hang::of(seed, machines, shards, replication) },
            closes_at_end: stops.chance(1, 4),
            idles: long.chance(1, IDLE_EVERY_SEEDS),
        }
    }
}

/// Draws the numbers of back-ends, of copies and of virtual IDs. The first is `backends` unless five copies are drawn.
fn layout(random: &mut SplitMix64, backends: u32) -> (u32, u8, u16) {
    let drawn = [3, 3, 3, 3, 3, 2, 2, 2, 1, 1, 5][random.below(11) as usize];
    let backends = if drawn == 5 { 5 } else { backends };
    let replication = drawn.min(backends as u8);
    // Several ranges per node: one handshake of a node concerns several chains, and a node has different roles in them.
    let virtual_ids = [1, 1, 1, 1, 1, 2, 2, 3][random.below(8) as usize];
    (backends, replication, virtual_ids)
}

/// Draws whether budgets are small, and the longest pipeline.
fn budgets(random: &mut SplitMix64, keys: u32, expires: bool) -> (bool, u64) {
    let is_narrow = random.chance(1, 3);
    // Many operations at a time on two keys, or on keys that expire, make histories that the checker cannot decide.
    let may_be_deep = is_narrow && keys >= 4 && !expires;
    (is_narrow, if may_be_deep && random.chance(1, 2) { PIPELINE_MAX_DEEP } else { PIPELINE_MAX })
}

/// Draws the number of retained records. Mostly it is less than is written while a machine is down. It must exceed the
/// writes during one batch in flight, or a syncing member never catches up.
fn retained_records_max(think_us_max: u64, drawn: u64) -> usize {
    let batch = if think_us_max < 1_000 { 24 } else { 8 };
    [batch, batch, batch, batch, batch, 4 * batch, 16 * batch, usize::MAX][drawn as usize]
}

impl Scenario {
    /// The scenario of a run with a planted bug: it makes the circumstances frequent that only few seeds have by
    /// chance.
    #[must_use]
    pub fn with_canary(mut self, canary: Option<Canary>) -> Self {
        // Counts of stores with runs are upper bounds: a lower one could pass.
        self.sorts &= canary.is_none();
        if canary == Some(Canary::ExpiryGuessed) {
            // A read is refused while an update of a key that has just expired waits for a sync.
            (self.expires, self.disk_us_max) = (true, DISK_US_SLOW);
        }
        if canary == Some(Canary::RequestsUnbounded) {
            (self.is_narrow, self.pipeline_max) = (true, PIPELINE_MAX_DEEP);
        }
        if canary == Some(Canary::RequestsKept) && self.backends > 1 {
            let is_newer = self.replication > 1;
            self.twin = Some(Twin { machine: 1, is_newer, after_us: 1_000, for_us: 1_000_000 });
        }
        self
    }

    /// Whether one process runs all back-ends.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.nodes_of_first > 1
    }

    /// Whether one range has all keys: as in a local cluster of one shard per node.
    #[must_use]
    pub const fn is_one_range(&self) -> bool {
        self.is_local() && self.shards == 1
    }

    /// Number of nodes that are back-ends.
    #[must_use]
    pub const fn nodes(&self) -> u32 {
        self.backends + self.nodes_of_first - 1
    }

    /// The machine of a shard, numbered from 0: front-ends after back-ends.
    #[must_use]
    pub const fn machine_of(&self, id: MemberId) -> usize {
        id.node().0.saturating_sub(self.nodes_of_first) as usize
    }

    /// The first node of a machine; only the first machine may have several.
    #[must_use]
    pub const fn first_node_of(&self, machine: u32) -> NodeId {
        NodeId(if machine == 0 { 1 } else { machine + self.nodes_of_first })
    }

    /// The shards of a machine's nodes.
    pub fn members_of(&self, machine: u32) -> impl Iterator<Item = MemberId> + use<> {
        let NodeId(first) = self.first_node_of(machine);
        let (nodes, shards) = (if machine == 0 { self.nodes_of_first } else { 1 }, self.shards);
        let shards_of = move |node| (0..shards).map(move |shard| MemberId::new(NodeId(node), ShardId(shard)));
        (first..first + nodes).flat_map(shards_of)
    }

    /// The shard that hosts the manager of a cluster that was created with this map.
    #[must_use]
    pub fn manager(&self, map: &ClusterMap) -> MemberId {
        let first = MemberId::new(NodeId(1), ShardId(0));
        // A local cluster's manager is where its clients are: at the tail of its first range.
        let tail = map.ranges.first().and_then(|entry| entry.serving().next_back());
        tail.filter(|_| self.is_local()).map_or(first, |tail| tail.id)
    }

    /// Copies that a write needs before it is acknowledged: half of R, rounded up.
    #[must_use]
    pub const fn copies_min(&self) -> u8 {
        self.replication.div_ceil(2)
    }

    /// The machines with client sessions, numbered from 0: front-ends after back-ends.
    #[must_use]
    pub const fn session_machines(&self) -> Range<usize> {
        let (backends, all) = (self.backends as usize, (self.backends + self.frontends) as usize);
        match self.sessions {
            SessionPlaces::FrontEnds => backends..all,
            SessionPlaces::BackEnds => 0..backends,
            SessionPlaces::All => 0..all,
        }
    }

    /// The options of chain members.
    #[must_use]
    pub fn replica(&self) -> ReplicaOptions {
        ReplicaOptions { epoch_records_max: self.epoch_records_max, ..ReplicaOptions::default() }
    }

    /// The limits of nodes.
    #[must_use]
    pub fn limits(&self) -> NodeLimits {
        let mut limits = NodeLimits {
            // Chunks so small that a copy of a few keys takes many, with faults between them.
            transfer_chunk_bytes_max: 400,
            retained_records_max: self.retained_records_max,
            replica: self.replica(),
            ..NodeLimits::default()
        };
        if self.is_narrow {
            limits.parked_max = 16;
            limits.outbound_bytes_max = 32 << 10;
            limits.router.window_ops_max = 8;
            limits.completions =
                CompletionLimits { per_session_bytes_max: 32 << 10, bytes_max: 48 << 10, ..limits.completions };
        }
        limits
    }

    /// The options of shards, apart from durability and length of values.
    #[must_use]
    pub fn shard(&self) -> ShardOptions {
        let options = ShardOptions::default();
        match self.is_narrow {
            true => {
                ShardOptions { replies_bytes_max: 8 << 10, requests_bytes_max: 32 << 10, pending_max: 12, ..options }
            }
            false => options,
        }
    }
}

impl Enabled {
    /// No faults.
    const NONE: Self = Self {
        power: false,
        power_of_all: false,
        kill: false,
        kill_of_all: false,
        kill_frontend: false,
        pause: false,
        cut: false,
        unkind_network: false,
        stall: false,
        full: false,
        apart: false,
        apart_long: false,
        full_all: false,
        reads_fail: false,
        fail: false,
        close: false,
        frontend_disks: false,
    };

    fn of(random: &mut SplitMix64, durability: Durability, may_lose: bool) -> Self {
        let mut likely = |part| random.chance(part, 4);
        let mut enabled = Self {
            power: likely(3),
            power_of_all: likely(3),
            kill: likely(2),
            kill_of_all: likely(2),
            kill_frontend: likely(2),
            pause: likely(2),
            cut: likely(2),
            unkind_network: likely(3),
            stall: likely(2),
            full: likely(1),
            fail: likely(2),
            apart: likely(1),
            apart_long: false,
            full_all: false,
            reads_fail: false,
            close: false,
            frontend_disks: false,
        };
        // Only faults that the mode promises to survive: `everysec` survives kills, `memory` the loss of one machine.
        enabled.power_of_all &= may_lose || durability == Durability::Sync;
        enabled.kill_of_all &= may_lose || durability != Durability::Memory;
        enabled.fail &= durability == Durability::Sync;
        enabled
    }
}

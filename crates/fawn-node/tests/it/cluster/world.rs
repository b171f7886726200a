//! Cluster under test: three back-ends and a front-end on simulated disks, byte queues between them, one clock, one
//! deterministic loop.
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{
    ClientOp, ClusterReply, MapPlace, Node, NodeConfig, NodeLimits, NodeOutput, RangeDigest, SubmitError,
};
use fawn_types::random::SplitMix64;
use fawn_types::{
    BootId, Condition, Durability, Expiry, HashSecret, NodeId, Now, RangeId, Reply, Request, Update, Version,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const BACK_ENDS: u32 = 3;
/// The node that is only a front-end.
pub(crate) const FRONT_END: u32 = 4;
pub(crate) const SECRET: HashSecret = HashSecret(*b"a cluster's own ");
const START: Now = Now::at(1_700_000_000_000);

/// The owned outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Value(Vec<u8>, Version),
    Absent,
    Stored(Version),
    Signed(i64),
    Other(String),
}

impl Answer {
    fn of(reply: &ClusterReply) -> Self {
        match reply.as_reply() {
            Reply::Value(entry) => Self::Value(entry.value.to_vec(), entry.version),
            Reply::Absent => Self::Absent,
            Reply::Stored { version, .. } => Self::Stored(version),
            Reply::Signed(value) => Self::Signed(value),
            other => Self::Other(format!("{other:?}")),
        }
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Value(value, _) => Some(value),
            _ => None,
        }
    }
}

pub(crate) struct TestWorld {
    pub(crate) nodes: BTreeMap<u32, Node<SimDevice>>,
    pub(crate) disks: BTreeMap<u32, SimDisk>,
    links: BTreeMap<(u32, u32), Vec<u8>>,
    /// Directed links that lose every frame.
    pub(crate) cut: BTreeSet<(u32, u32)>,
    pub(crate) done: BTreeMap<(u32, ClientOp), Answer>,
    pub(crate) now: Now,
    pub(crate) random: SplitMix64,
    pub(crate) durability: Durability,
    pub(crate) limits: NodeLimits,
    pub(crate) memory_bytes: u64,
    /// Records that a log keeps for members that return.
    pub(crate) retained_records_max: usize,
    boots: u32,
    pub(crate) seed: u64,
    /// The map's only range, instead of the ring's.
    range: Option<RangeEntry>,
}

pub(crate) fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    set_if(key, value, Condition::Always)
}

pub(crate) fn set_if<'a>(key: &'a [u8], value: &'a [u8], condition: Condition) -> Request<'a> {
    let update = Update::Set { value, flags: 0, expiry: Expiry::Never, condition, return_previous: false };
    Request::Update { key, update }
}

impl TestWorld {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, Durability::Sync, 8 << 20)
    }

    pub(crate) fn with(seed: u64, durability: Durability, memory_bytes: u64) -> Self {
        let disk = |node: u32| SimDisk::new(SimOptions { seed: seed ^ u64::from(node), ..SimOptions::default() });
        let disks = (1..=BACK_ENDS).map(|node| (node, disk(node))).collect();
        Self::on(seed, durability, memory_bytes, disks, None)
    }

    /// On these disks, with a map of this range or of the ring's.
    pub(crate) fn on(
        seed: u64,
        durability: Durability,
        memory_bytes: u64,
        disks: BTreeMap<u32, SimDisk>,
        range: Option<RangeEntry>,
    ) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            disks,
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            done: BTreeMap::new(),
            now: START,
            random: SplitMix64::new(seed),
            durability,
            limits: NodeLimits::default(),
            memory_bytes,
            retained_records_max: 1 << 16,
            // Above the boots that served the range alone.
            boots: if range.is_some() { 100 } else { 0 },
            seed,
            range,
        };
        for node in 1..=FRONT_END {
            world.start(node);
        }
        world
    }

    fn map(&self) -> ClusterMap {
        let node = |node| NodeEntry { node: NodeId(node), weight: 1, domain: 0, address: String::new() };
        let nodes = (1..=BACK_ENDS).map(node).collect();
        let ring = RingOptions { replication: 3, virtual_ids: 1 };
        let mut map = ClusterMap::new(SECRET, self.durability, ring, nodes);
        map.ranges = self.range.clone().map_or(map.ranges, |range| vec![range]);
        map
    }

    pub(crate) fn start(&mut self, node: u32) {
        self.boots += 1;
        let config = NodeConfig {
            node: NodeId(node),
            boot: BootId::new(self.boots, 7),
            durability: self.durability,
            map: self.map(),
            manager: Some(NodeId(1)),
            map_place: MapPlace::OwnStore,
            limits: self.limits,
        };
        let engine = self.disks.get(&node).map(|disk| self.open(disk));
        let started = Node::new(config, engine, self.now).unwrap();
        assert!(self.nodes.insert(node, started).is_none(), "node {node} is already running");
    }

    /// Opens the store on `disk`.
    pub(crate) fn open(&self, disk: &SimDisk) -> Engine<SimDevice> {
        let options = Options {
            // Small segments reach boundaries often, and become dead by overwrites.
            segment_bytes: 64 << 10,
            memory_bytes: self.memory_bytes,
            durability: self.durability,
            secret: Some(SECRET),
            retained_records_max: self.retained_records_max,
            ..Options::default()
        };
        Engine::open(SimDevice::attach(disk), options, self.now).unwrap().0
    }

    /// Shuts the node down cleanly: closes its store.
    pub(crate) fn close(&mut self, node: u32) {
        let engine = self.nodes.remove(&node).and_then(Node::into_engine);
        engine.unwrap().close().unwrap();
        self.kill(node, true);
    }

    /// Kills the process; with `power`, the disk loses unsynced writes.
    pub(crate) fn kill(&mut self, node: u32, power: bool) {
        drop(self.nodes.remove(&node));
        let loss = self.random.next();
        if let Some(disk) = self.disks.get(&node) {
            if power { disk.crash(loss) } else { disk.kill(loss) }
        }
        self.links.retain(|(from, to), _| *from != node && *to != node);
        for other in self.nodes.values_mut() {
            other.handle_link_reset(self.now, NodeId(node));
        }
    }

    /// Runs one millisecond.
    pub(crate) fn step(&mut self) {
        self.now = self.now.plus_ms(1);
        let names: Vec<u32> = self.nodes.keys().copied().collect();
        for &name in &names {
            self.deliver(name);
            let now = self.now;
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let _ = node.run_once(now);
            let mut outputs = Vec::new();
            while let Some(output) = node.poll_output() {
                outputs.push(output);
            }
            outputs.into_iter().for_each(|output| self.carry_out(name, output));
        }
    }

    fn carry_out(&mut self, from: u32, output: NodeOutput) {
        match output {
            NodeOutput::Send { to: NodeId(to), bytes } => {
                if self.nodes.contains_key(&to) && !self.cut.contains(&(from, to)) {
                    self.links.entry((from, to)).or_default().extend_from_slice(&bytes);
                }
            }
            NodeOutput::Done { op, reply } => {
                let twice = self.done.insert((from, op), Answer::of(&reply));
                assert!(twice.is_none(), "{op:?} was answered twice");
            }
            NodeOutput::KeepMap { .. } => panic!("the manager's node keeps its map itself"),
            NodeOutput::Reset { peer } => panic!("the stream from {peer:?} to {from} was corrupt"),
        }
    }

    /// Delivers bytes in flight in pieces, split and joined anywhere.
    fn deliver(&mut self, to: u32) {
        let Some(node) = self.nodes.get_mut(&to) else { return };
        for ((from, _), bytes) in self.links.iter_mut().filter(|((_, link_to), _)| *link_to == to) {
            let mut left =
                if self.random.chance(1, 8) { self.random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
            while left > 0 {
                let piece = (self.random.below(4000) as usize + 1).min(left);
                node.handle_bytes(self.now, NodeId(*from), &bytes[..piece]);
                bytes.drain(..piece);
                left -= piece;
            }
        }
    }

    pub(crate) fn submit(&mut self, request: &Request<'_>) -> Result<ClientOp, SubmitError> {
        let now = self.now;
        self.nodes.get_mut(&FRONT_END).unwrap().submit(now, request)
    }

    pub(crate) fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// Runs until the operation is answered.
    pub(crate) fn wait(&mut self, op: ClientOp) -> Answer {
        for _ in 0..20_000 {
            if let Some(answer) = self.done.get(&(FRONT_END, op)) {
                return answer.clone();
            }
            self.step();
        }
        panic!("seed {}: {op:?} was not answered: {:#?}", self.seed, self.statuses());
    }

    pub(crate) fn call(&mut self, request: &Request<'_>) -> Answer {
        let op = self.submit(request).unwrap();
        self.wait(op)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Version {
        match self.call(&set(key, value)) {
            Answer::Stored(version) => version,
            other => panic!("seed {}: put answered {other:?}: {:#?}", self.seed, self.statuses()),
        }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Answer {
        self.call(&Request::Get { key })
    }

    pub(crate) fn statuses(&self) -> Vec<(u32, fawn_node::cluster::NodeStatus)> {
        self.nodes.iter().map(|(name, node)| (*name, node.status())).collect()
    }

    /// Every range's digests on all running nodes, once they are idle.
    pub(crate) fn digests(&mut self) -> BTreeMap<u32, BTreeMap<u32, RangeDigest>> {
        self.run(500);
        let ranges: Vec<RangeId> = self.map().ranges.iter().map(|entry| entry.range).collect();
        let mut all: BTreeMap<u32, BTreeMap<u32, RangeDigest>> = BTreeMap::new();
        for range in ranges {
            let members = self.statuses().into_iter().flat_map(|(_, status)| status.members);
            let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap();
            for (name, node) in &mut self.nodes {
                if let Some(digest) = node.digest(range, time).unwrap() {
                    all.entry(range.0).or_default().insert(*name, digest);
                }
            }
        }
        all
    }

    /// **equal-digests**: after healing, all members hold the same content. Returns the number of keys.
    pub(crate) fn assert_equal_copies(&mut self) -> u64 {
        let digests = self.digests();
        let mut keys = 0;
        for (range, copies) in &digests {
            let first = copies.values().next().unwrap();
            assert!(
                copies.values().all(|copy| copy == first) && copies.len() == BACK_ENDS as usize,
                "seed {}: range {range}: {copies:?} {:#?}",
                self.seed,
                self.statuses()
            );
            keys += first.keys;
        }
        keys
    }
}

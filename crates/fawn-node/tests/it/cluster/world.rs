//! Cluster under test: three back-ends and a front-end on simulated disks, byte queues between them, one clock, one
//! deterministic loop. Clients are sessions at the front-end, one per operation.
use super::commands::{Answer, TestCommand, get, set};
use crate::member;
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{MapPlace, NodeConfig, NodeLimits, NodeOutput, NodeStatus, RangeDigest};
use fawn_node::{ServerInfo, SessionId, Shard, ShardOptions, ShardOutput};
use fawn_types::random::SplitMix64;
use fawn_types::{BootId, Durability, HashSecret, NodeId, Now, RangeId, Version};
use fawn_wire::Protocol;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const BACK_ENDS: u32 = 3;
/// The node that serves the clients and hosts no range.
pub(crate) const FRONT_END: u32 = 4;
pub(crate) const SECRET: HashSecret = HashSecret(*b"a cluster's own ");
const START: Now = Now::at(1_700_000_000_000);

/// Answered sessions that stay open for a while, so that a second reply would be noticed.
const ANSWERED_MAX: usize = 64;

/// An operation of a client; numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TestOp(u64);

/// The front-end did not consume a request: it accepts no more until earlier ones are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stalled;

/// A session with one request.
struct TestSession {
    op: TestOp,
    protocol: Protocol,
    received: Vec<u8>,
}

pub(crate) struct TestWorld {
    pub(crate) nodes: BTreeMap<u32, Shard<SimDevice>>,
    pub(crate) disks: BTreeMap<u32, SimDisk>,
    links: BTreeMap<(u32, u32), Vec<u8>>,
    /// Directed links that lose every frame.
    pub(crate) cut: BTreeSet<(u32, u32)>,
    pub(crate) done: BTreeMap<TestOp, Answer>,
    /// Sessions, by their nodes, whose requests are not answered.
    asked: BTreeMap<(u32, SessionId), TestSession>,
    /// Sessions that were answered last.
    answered: VecDeque<(u32, SessionId)>,
    last_op: u64,
    pub(crate) now: Now,
    pub(crate) random: SplitMix64,
    pub(crate) durability: Durability,
    pub(crate) limits: NodeLimits,
    pub(crate) memory_bytes: u64,
    /// Records that a log keeps for members that return.
    pub(crate) retained_records_max: usize,
    boots: u32,
    pub(crate) seed: u64,
    /// Outputs of sessions stay where they are.
    is_untaken: bool,
    /// The map's only range, instead of the ring's.
    range: Option<RangeEntry>,
    /// Changes the frames that nodes send.
    pub(crate) tamper: Option<fn(&mut SplitMix64, &mut Vec<u8>)>,
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

    /// With these disks of the back-ends, and a map of this range or of the ring's.
    pub(crate) fn on(
        seed: u64,
        durability: Durability,
        memory_bytes: u64,
        mut disks: BTreeMap<u32, SimDisk>,
        range: Option<RangeEntry>,
    ) -> Self {
        // The front-end hosts no range, and is no node of the map.
        disks.insert(FRONT_END, SimDisk::new(SimOptions::instant(seed)));
        let mut world = Self {
            nodes: BTreeMap::new(),
            disks,
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            done: BTreeMap::new(),
            asked: BTreeMap::new(),
            answered: VecDeque::new(),
            last_op: 0,
            now: START,
            random: SplitMix64::new(seed),
            durability,
            limits: NodeLimits::default(),
            memory_bytes,
            retained_records_max: 1 << 16,
            // Above the boots that served the range alone.
            boots: if range.is_some() { 100 } else { 0 },
            seed,
            is_untaken: false,
            range,
            tamper: None,
        };
        for node in 1..=FRONT_END {
            world.start(node);
        }
        world
    }

    fn map(&self) -> ClusterMap {
        let node = |node| NodeEntry { node: NodeId(node), shards: 1, weight: 1, domain: 0, address: String::new() };
        let nodes = (1..=BACK_ENDS).map(node).collect();
        let ring = RingOptions { replication: 3, virtual_ids: 1 };
        let mut map = ClusterMap::new(SECRET, self.durability, ring, nodes);
        map.ranges = self.range.clone().map_or(map.ranges, |range| vec![range]);
        map
    }

    pub(crate) fn start(&mut self, node: u32) {
        self.boots += 1;
        let config = NodeConfig {
            id: member(node),
            boot: BootId::new(self.boots, 7),
            durability: self.durability,
            map: self.map(),
            manager: Some(member(1)),
            map_place: MapPlace::OwnStore,
            limits: self.limits,
        };
        let engine = self.open(&self.disks[&node]);
        let options = ShardOptions { durability: self.durability, ..ShardOptions::default() };
        let started = Shard::in_cluster(engine, config, options, ServerInfo::default(), self.now).unwrap();
        assert!(self.nodes.insert(node, started).is_none(), "node {node} is already running");
    }

    /// The boot of a node that has started once, with the world.
    pub(crate) fn boot(&self, node: u32) -> BootId {
        assert_eq!(self.boots, FRONT_END, "no node has started again");
        BootId::new(node, 7)
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
        let engine = self.nodes.remove(&node).map(Shard::into_engine);
        engine.unwrap().close().unwrap();
        self.kill(node, true);
    }

    /// Kills the process; with `power`, the disk loses unsynced writes.
    pub(crate) fn kill(&mut self, node: u32, power: bool) {
        drop(self.nodes.remove(&node));
        self.asked.retain(|(of, _), _| *of != node);
        self.answered.retain(|(of, _)| *of != node);
        let loss = self.random.next();
        if let Some(disk) = self.disks.get(&node) {
            if power { disk.crash(loss) } else { disk.kill(loss) }
        }
        self.links.retain(|(from, to), _| *from != node && *to != node);
        for other in self.nodes.values_mut() {
            other.handle_link_reset(self.now, member(node));
        }
    }

    /// Runs milliseconds without taking what the front-end's sessions were sent.
    pub(crate) fn run_raw(&mut self, steps: usize) {
        self.is_untaken = true;
        self.run(steps);
        self.is_untaken = false;
    }

    /// Runs one millisecond.
    pub(crate) fn step(&mut self) {
        self.now = self.now.plus_ms(1);
        let names: Vec<u32> = self.nodes.keys().copied().collect();
        for &name in &names {
            self.deliver(name);
            let now = self.now;
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let due = node.run_once(now);
            let is_due = due.is_some_and(|due| due <= now.mono);
            assert!(
                is_due || !node.engine().has_progress(),
                "node {name} waits for an event, and has progress to report"
            );
            let outputs: Vec<_> = std::iter::from_fn(|| node.poll_node_output()).collect();
            outputs.into_iter().for_each(|output| self.carry_out(name, output));
            self.serve_sessions(name);
        }
    }

    fn carry_out(&mut self, from: u32, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, mut bytes } => {
                let to = to.node().0;
                if let Some(tamper) = self.tamper {
                    tamper(&mut self.random, &mut bytes);
                }
                if self.nodes.contains_key(&to) && !self.cut.contains(&(from, to)) {
                    self.links.entry((from, to)).or_default().extend_from_slice(&bytes);
                }
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
                node.handle_bytes(self.now, member(*from), &bytes[..piece]);
                bytes.drain(..piece);
                left -= piece;
            }
        }
    }

    /// Reads what sessions were sent.
    fn serve_sessions(&mut self, name: u32) {
        let Some(node) = self.nodes.get_mut(&name) else { return };
        if self.is_untaken {
            while node.poll_output().is_some() {}
            return;
        }
        while let Some(output) = node.poll_output() {
            match output {
                ShardOutput::Writable(id) => {
                    let Some(session) = self.asked.get_mut(&(name, id)) else { panic!("{id:?} was answered twice") };
                    let bytes = node.output(id);
                    session.received.extend_from_slice(bytes);
                    let bytes = bytes.len();
                    node.wrote(id, bytes);
                    if let Some(answer) = Answer::parse(session.protocol, &session.received) {
                        self.done.insert(session.op, answer);
                        self.asked.remove(&(name, id));
                        self.answered.push_back((name, id));
                    }
                }
                ShardOutput::Resume(_) => {}
                ShardOutput::Close(id) => panic!("{id:?} was closed"),
            }
        }
        while self.answered.len() > ANSWERED_MAX
            && let Some((of, id)) = self.answered.pop_front()
            && let Some(node) = self.nodes.get_mut(&of)
        {
            node.close_session(id);
        }
    }

    /// Sends a command in a session of its own, so it waits for no other operation.
    pub(crate) fn submit(&mut self, command: &TestCommand) -> Result<TestOp, Stalled> {
        self.submit_at(FRONT_END, command)
    }

    /// Sends a command to this node, as [`TestWorld::submit`] does to the front-end.
    pub(crate) fn submit_at(&mut self, name: u32, command: &TestCommand) -> Result<TestOp, Stalled> {
        let node = self.nodes.get_mut(&name).unwrap();
        let id = node.open_session(command.protocol);
        let consumed = node.handle_input(self.now, id, &command.bytes);
        if consumed == 0 {
            assert!(!node.wants_input(id), "a session that takes input took none");
            node.close_session(id);
            return Err(Stalled);
        }
        assert_eq!(consumed, command.bytes.len(), "a whole request is consumed");
        self.last_op += 1;
        let op = TestOp(self.last_op);
        self.asked.insert((name, id), TestSession { op, protocol: command.protocol, received: Vec::new() });
        Ok(op)
    }

    pub(crate) fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// Runs until the operation is answered.
    pub(crate) fn wait(&mut self, op: TestOp) -> Answer {
        for _ in 0..20_000 {
            if let Some(answer) = self.done.get(&op) {
                return answer.clone();
            }
            self.step();
        }
        panic!("seed {}: {op:?} was not answered: {:#?}", self.seed, self.statuses());
    }

    pub(crate) fn call(&mut self, command: &TestCommand) -> Answer {
        let op = self.submit(command).unwrap();
        self.wait(op)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let answer = self.call(&set(key, value));
        assert_eq!(answer, Answer::Stored, "seed {}: {:#?}", self.seed, self.statuses());
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Answer {
        self.call(&get(key))
    }

    /// The version of a key that exists.
    pub(crate) fn version(&mut self, key: &[u8]) -> Version {
        match self.get(key) {
            Answer::Value(_, version) => version,
            other => panic!("seed {}: {} is no value: {other:?}", self.seed, key.escape_ascii()),
        }
    }

    pub(crate) fn status(&self, node: u32) -> NodeStatus {
        self.nodes[&node].node_status()
    }

    /// The committed map of the manager, which node 1 hosts.
    pub(crate) fn manager_map(&self) -> &ClusterMap {
        self.nodes[&1].manager_map().unwrap()
    }

    pub(crate) fn statuses(&self) -> Vec<(u32, NodeStatus)> {
        self.nodes.keys().map(|name| (*name, self.status(*name))).collect()
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

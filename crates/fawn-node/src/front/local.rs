//! Whole cluster in one thread: nodes with a store each; one of them, the server, serves the clients and hosts the manager.
//!
//! Frames are exchanged in memory, with the same codec as between machines. An iteration exchanges frames until none is
//! left; only then does each engine submit, once. All members of a chain therefore append a write in one iteration, and
//! their syncs overlap.
use super::boots::boot_of;
use super::client_service::ClientService;
use super::map_persistence::{self, MapPersistence};
use super::status::{cluster_status, of_engines};
use crate::cluster::{MapPlace, NodeConfig, NodeError, NodeLimits, NodeOutput, NodeStatus, RangeDigest};
use crate::counters::Counted;
use crate::options::{ServerInfo, ShardOptions};
use crate::output::ShardOutput;
use crate::request::SessionId;
use crate::shard::Shard;
use crate::status::{ClusterStatus, ShardCounters, ShardStatus, StoreStatus};
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{BootId, HashSecret, KeyRange, MonoMs, NodeId, Now, RangeId};
use fawn_wire::Protocol;

/// Maximum rounds of frames per iteration. If frames remain, the next iteration is due at once.
const ROUNDS_MAX: usize = 64;
/// Copies of each range, if there are enough nodes.
const REPLICATION: usize = 3;
/// Maximum age of the statistics in `INFO`.
const STATUS_MS: u64 = 100;

/// Layout of a cluster in one thread; must be the same at every start of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOptions {
    /// Options of the sessions.
    pub shard: ShardOptions,
    /// Limits of the nodes.
    pub limits: NodeLimits,
    /// Whether one range covers the whole ring, so that `MSET` is atomic for any keys. Otherwise virtual IDs divide the
    /// ring.
    pub is_one_range: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { shard: ShardOptions::default(), limits: NodeLimits::default(), is_one_range: true }
    }
}

/// A node; `None` while it is killed.
#[derive(Debug)]
struct LocalNode<D: Device> {
    name: NodeId,
    shard: Option<Shard<D>>,
    /// Has received frames that it has not handled yet.
    is_due: bool,
}

/// A cluster in one thread.
#[derive(Debug)]
pub struct LocalCluster<D: Device> {
    /// In the order of the nodes' numbers, from 1. The server serves the clients and hosts the manager; it is never
    /// killed.
    nodes: Vec<LocalNode<D>>,
    map_persistence: MapPersistence,
    /// Since when some chain takes no writes, as of the last status update.
    unavailable_since: Option<MonoMs>,
    status_at: MonoMs,
    setup: LocalSetup,
    now: Now,
}

/// The inputs that every node of the cluster is created from.
#[derive(Debug)]
struct LocalSetup {
    options: LocalOptions,
    server_info: ServerInfo,
    /// The map as of the cluster's creation.
    map: ClusterMap,
    server: NodeId,
}

impl LocalSetup {
    fn start<D: Device>(
        &self,
        (name, boot): (NodeId, BootId),
        engine: Engine<D>,
        map_place: MapPlace,
        now: Now,
    ) -> Result<Shard<D>, NodeError> {
        let config = NodeConfig {
            node: name,
            boot,
            durability: self.options.shard.durability,
            map: self.map.clone(),
            manager: Some(self.server),
            map_place,
            limits: self.options.limits,
        };
        Shard::in_cluster(engine, config, self.options.shard, self.server_info.clone(), now)
    }
}

impl<D: Device> LocalCluster<D> {
    /// A node on each engine, in the same order at every start. The engines were opened with one hash secret, in the mode
    /// of `options.shard`.
    ///
    /// # Errors
    /// When an engine was opened for another use, is of another cluster, was restored, or holds corrupt promises.
    pub fn new(
        mut engines: Vec<Engine<D>>,
        options: LocalOptions,
        server_info: ServerInfo,
        now: Now,
    ) -> Result<Self, NodeError> {
        let Some(secret) = engines.first().map(|first| *first.secret()) else { return Err(NodeError::NoStore) };
        let names: Vec<NodeId> = (1..).take(engines.len()).map(NodeId).collect();
        let kept = map_persistence::newest(engines.iter());
        let kept = kept.map_err(|cause| NodeError::Kept { what: "the cluster map".to_owned(), cause })?;
        if kept.as_ref().is_some_and(|kept| kept.secret != secret) {
            return Err(NodeError::SecretDiffers);
        }
        // A store's open generation is used once, so boots differ.
        let mut boots = Vec::with_capacity(engines.len());
        for (engine, &name) in engines.iter_mut().zip(&names) {
            boots.push(boot_of(engine, (name, server_info.random_part()), kept.as_ref())?);
        }
        let map = first_map(secret, &names, &options);
        // The tail of the first range, which the ring determines: its reads are calls.
        let last = map.ranges.first().and_then(|entry| entry.serving().next_back());
        let Some(server) = last.map(|member| member.node) else { return Err(NodeError::NoStore) };
        let setup = LocalSetup { options, server_info, map, server };
        let kept = kept.map(Box::new);
        let mut nodes = Vec::with_capacity(engines.len());
        for ((engine, &name), boot) in engines.into_iter().zip(&names).zip(boots) {
            let is_server = name == server;
            let map_place = if is_server { MapPlace::Host { kept: kept.clone() } } else { MapPlace::OwnStore };
            let shard = Some(setup.start((name, boot), engine, map_place, now)?);
            nodes.push(LocalNode { name, shard, is_due: true });
        }
        let map_persistence = MapPersistence::default();
        Ok(Self { nodes, map_persistence, unavailable_since: None, status_at: MonoMs(0), setup, now })
    }

    /// The node that serves the clients.
    fn server(&self) -> &Shard<D> {
        let server = self.nodes.iter().find(|node| node.name == self.setup.server);
        let Some(server) = server.and_then(|node| node.shard.as_ref()) else { unreachable!("the server always runs") };
        server
    }

    fn server_mut(&mut self) -> &mut Shard<D> {
        let server = self.nodes.iter_mut().find(|node| node.name == self.setup.server);
        let Some(server) = server.and_then(|node| node.shard.as_mut()) else { unreachable!("the server always runs") };
        server
    }

    fn running(&self) -> impl Iterator<Item = (NodeId, &Shard<D>)> {
        self.nodes.iter().filter_map(|node| Some((node.name, node.shard.as_ref()?)))
    }

    /// Whether all chains are active according to the manager's map.
    pub fn is_serving(&self) -> bool {
        self.server().manager_map().is_some_and(|map| map.ranges.iter().all(RangeEntry::is_active))
    }

    /// Kills a node other than the server, as `kill -9` of its process would. For tests.
    pub fn kill(&mut self, name: NodeId) {
        assert!(name != self.setup.server, "the clients of {name:?} would be lost");
        for node in &mut self.nodes {
            if node.name == name {
                node.shard = None;
            } else if let Some(shard) = &mut node.shard {
                shard.handle_link_reset(self.now, name);
            }
        }
    }

    /// Restarts a killed node on its reopened store. For tests.
    ///
    /// # Errors
    /// As [`LocalCluster::new`].
    pub fn restart(&mut self, name: NodeId, mut engine: Engine<D>) -> Result<(), NodeError> {
        let random = self.setup.server_info.random_part();
        let boot = boot_of(&mut engine, (name, random), self.server().manager_map())?;
        let Some(node) = self.nodes.iter_mut().find(|node| node.name == name) else { return Ok(()) };
        assert!(node.shard.is_none(), "{name:?} runs already");
        let mut shard = self.setup.start((name, boot), engine, MapPlace::OwnStore, self.now)?;
        // The killed process may have lost the pending map. Without this copy the map might never reach a majority.
        if let Some((revision, image)) = self.map_persistence.wanted() {
            shard.keep_map(revision, image);
        }
        node.shard = Some(shard);
        Ok(())
    }

    /// Status of every running node.
    pub fn statuses(&self) -> Vec<(NodeId, NodeStatus)> {
        self.running().map(|(name, node)| (name, node.node_status())).collect()
    }

    /// Counters of the nodes without clients, which execute requests of the server.
    fn counters_of_others(&self) -> ShardCounters {
        let mut sum = ShardCounters::default();
        self.running()
            .filter(|(name, _)| *name != self.setup.server)
            .for_each(|(_, shard)| sum.add(&shard.status().counters));
        sum
    }

    fn cluster_status(&self) -> ClusterStatus {
        cluster_status(self.server(), self.statuses())
    }

    /// Digests of each running node's copy of `range`. For checks: blocks on devices.
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digests(&mut self, range: RangeId) -> Result<Vec<(NodeId, RangeDigest)>, EngineError> {
        let members = self.running().flat_map(|(_, node)| node.node_status().members);
        let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default();
        let mut digests = Vec::new();
        for LocalNode { name, shard, .. } in &mut self.nodes {
            if let Some(shard) = shard
                && let Some(digest) = shard.digest(range, time)?
            {
                digests.push((*name, digest));
            }
        }
        Ok(digests)
    }

    /// The ranges as of the cluster's creation.
    pub fn ranges(&self) -> impl Iterator<Item = RangeId> {
        self.setup.map.ranges.iter().map(|entry| entry.range)
    }

    /// Shuts the cluster down and returns the engines of running nodes, to be closed.
    pub fn into_engines(self) -> Vec<Engine<D>> {
        self.nodes.into_iter().filter_map(|node| Some(node.shard?.into_engine())).collect()
    }

    /// One round: every node with received frames handles them. Returns whether frames are left.
    fn round(&mut self) -> bool {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            if !std::mem::take(&mut node.is_due) {
                continue;
            }
            let (name, Some(shard)) = (node.name, &mut node.shard) else { continue };
            shard.exchange();
            node.is_due = shard.has_rounds_left();
            let kept = shard.poll_map_kept();
            while let Some(output) = self.nodes[at].shard.as_mut().and_then(Shard::poll_node_output) {
                self.route(name, output);
            }
            if let Some(revision) = kept
                && self.map_persistence.note(name, revision, self.nodes.len())
            {
                let now = self.now;
                self.server_mut().handle_map_kept(now, revision);
                self.nodes.iter_mut().for_each(|node| node.is_due = true);
            }
        }
        self.nodes.iter().any(|node| node.is_due)
    }

    fn route(&mut self, from: NodeId, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, bytes } => {
                let Some(node) = self.nodes.iter_mut().find(|node| node.name == to) else { return };
                // Frames to a killed node are lost, as on a network.
                if let Some(shard) = &mut node.shard {
                    shard.handle_bytes(self.now, from, &bytes);
                    node.is_due = true;
                }
            }
            NodeOutput::KeepMap { revision, image } => {
                for node in &mut self.nodes {
                    if let Some(shard) = &mut node.shard {
                        shard.keep_map(revision, &image);
                        node.is_due = true;
                    }
                }
                self.map_persistence.begin(revision, image);
            }
            NodeOutput::Reset { peer } => unreachable!("frames from {peer:?} to {from:?} do not get corrupt in memory"),
        }
    }
}

impl<D: Device> ClientService for LocalCluster<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.server_mut().open_session(protocol)
    }

    fn close_session(&mut self, session: SessionId) {
        self.server_mut().close_session(session);
    }

    fn end_input(&mut self, session: SessionId) {
        self.server_mut().end_input(session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.server_mut().handle_input(now, session, input)
    }

    fn wants_input(&self, session: SessionId) -> bool {
        self.server().wants_input(session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.server().need_bytes(session)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.server().output(session)
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        self.server_mut().wrote(session, bytes);
    }

    fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.now = now;
        for node in &mut self.nodes {
            if let Some(shard) = &mut node.shard {
                shard.begin_iteration(now);
                node.is_due = true;
            }
        }
        if now.mono.ms_since(self.status_at) >= STATUS_MS {
            self.status_at = now.mono;
            let (stores, others) = (of_engines(self.engines()), self.counters_of_others());
            self.server_mut().set_stores(stores);
            self.server_mut().set_peer_stats(ShardStatus { counters: others, ..ShardStatus::default() });
            let serves = self.cluster_status().is_serving();
            self.unavailable_since = if serves { None } else { Some(self.unavailable_since.unwrap_or(now.mono)) };
        }
        let is_unfinished = (0..ROUNDS_MAX).all(|_| self.round());
        let shards = self.nodes.iter_mut().filter_map(|node| node.shard.as_mut());
        let due = shards.filter_map(Shard::finish_iteration).min();
        [due, is_unfinished.then_some(now.mono)].into_iter().flatten().min()
    }

    fn has_due_work(&self) -> bool {
        self.server().has_due_work()
    }

    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.server_mut().poll_output()
    }

    fn is_idle(&self) -> bool {
        self.server().is_idle() && self.engines().all(|engine| engine.in_flight() == 0)
    }

    fn status(&self) -> ShardStatus {
        let mut cluster = ClusterStatus { unavailable_since: self.unavailable_since, ..self.cluster_status() };
        assert_eq!(cluster.back_ends.len(), self.engines().count(), "every back-end that runs has a store");
        for (back_end, engine) in cluster.back_ends.iter_mut().zip(self.engines()) {
            back_end.store = StoreStatus::of(engine);
        }
        let mut status = self.server().status();
        status.counters.add(&self.counters_of_others());
        ShardStatus { cluster: Some(cluster), store: of_engines(self.engines()), ..status }
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.running().map(|(_, shard)| shard.engine())
    }
}

/// Initial map of the cluster: a pure function of the secret and the options, so every start computes the same one.
fn first_map(secret: HashSecret, names: &[NodeId], options: &LocalOptions) -> ClusterMap {
    let node = |&node| NodeEntry { node, weight: 1, domain: 0, address: String::new() };
    let replication = names.len().min(REPLICATION) as u8;
    let ring = RingOptions { replication, virtual_ids: 1 };
    let mut map = ClusterMap::new(secret, options.shard.durability, ring, names.iter().map(node).collect());
    if options.is_one_range
        && let Some(entry) = map.ranges.first()
    {
        let chain: Vec<NodeId> = entry.serving().map(|member| member.node).collect();
        map.ranges = vec![RangeEntry::new(entry.range, KeyRange::ALL, &chain)];
    }
    map
}

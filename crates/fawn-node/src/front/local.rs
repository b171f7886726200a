//! Whole cluster in one thread: nodes with a store each; the first one serves the clients and hosts the manager.
//!
//! Frames are exchanged in memory, with the same codec as between machines. An iteration exchanges frames until none is
//! left; only then does each engine submit, once. All members of a chain therefore append a write in one iteration, and
//! their syncs overlap.
use super::boots::boot_of;
use super::client_gateway::ClientGateway;
use super::client_service::ClientService;
use super::map_persistence::{self, MapPersistence};
use super::status::{cluster_status, of_engines};
use crate::cluster::{MapPlace, Node, NodeConfig, NodeError, NodeLimits, NodeOutput, NodeStatus, RangeDigest};
use crate::options::{ServerInfo, ShardOptions};
use crate::output::ShardOutput;
use crate::request::SessionId;
use crate::status::{ClusterStatus, ShardStatus, StoreStatus};
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::{Engine, EngineError, Options};
use fawn_flash::Device;
use fawn_types::{BootId, HashSecret, KeyRange, MonoMs, NodeId, Now, RangeId};
use fawn_wire::Protocol;

/// The node that serves the clients and hosts the manager.
const FIRST: NodeId = NodeId(1);
/// Maximum rounds of frames per iteration. If frames remain, the next iteration is due at once.
const ROUNDS_MAX: usize = 64;
/// Copies of each range, if there are enough nodes.
const REPLICATION: usize = 3;

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

/// A node and its gateway; `None` while it is killed.
#[derive(Debug)]
struct LocalNode<D: Device> {
    name: NodeId,
    gateway: Option<ClientGateway<D>>,
    /// Has received frames that it has not handled yet.
    is_due: bool,
}

/// A cluster in one thread.
#[derive(Debug)]
pub struct LocalCluster<D: Device> {
    /// In the order of the nodes' numbers, from 1. The first one serves the clients and hosts the manager; it is never
    /// killed.
    nodes: Vec<LocalNode<D>>,
    map_persistence: MapPersistence,
    /// Since when some chain takes no writes, as of the last status update.
    unavailable_since: Option<MonoMs>,
    setup: LocalSetup,
    now: Now,
}

/// The inputs that every node of the cluster is created from.
#[derive(Debug)]
struct LocalSetup {
    options: LocalOptions,
    /// Options of the stores.
    store: Options,
    server_info: ServerInfo,
    /// The map as of the cluster's creation.
    map: ClusterMap,
}

impl LocalSetup {
    fn gateway<D: Device>(
        &self,
        (name, boot): (NodeId, BootId),
        engine: Engine<D>,
        map_place: MapPlace,
        now: Now,
    ) -> Result<ClientGateway<D>, NodeError> {
        let config = NodeConfig {
            node: name,
            boot,
            durability: self.options.shard.durability,
            map: self.map.clone(),
            manager: Some(FIRST),
            map_place,
            limits: self.options.limits,
        };
        let node = Node::new(config, Some(engine), now)?;
        Ok(ClientGateway::new(node, self.options.shard, self.store.clone(), self.server_info.clone()))
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
        let Some(first) = engines.first() else { return Err(NodeError::ManagerNeedsStore) };
        let (store, secret) = (first.options().clone(), *first.secret());
        let names: Vec<NodeId> = (FIRST.0..).take(engines.len()).map(NodeId).collect();
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
        let setup = LocalSetup { options, store, server_info, map };
        let mut of_manager = Some(MapPlace::Host { kept: kept.map(Box::new) });
        let mut nodes = Vec::with_capacity(engines.len());
        for ((engine, &name), boot) in engines.into_iter().zip(&names).zip(boots) {
            // The first node comes first and takes it.
            let map_place = of_manager.take().unwrap_or_default();
            let gateway = Some(setup.gateway((name, boot), engine, map_place, now)?);
            nodes.push(LocalNode { name, gateway, is_due: true });
        }
        let map_persistence = MapPersistence::default();
        Ok(Self { nodes, map_persistence, unavailable_since: None, setup, now })
    }

    /// The gateway of the node that serves the clients.
    fn server(&self) -> &ClientGateway<D> {
        let server = self.nodes.first().and_then(|node| node.gateway.as_ref());
        let Some(server) = server else { unreachable!("the first node always runs") };
        server
    }

    fn server_mut(&mut self) -> &mut ClientGateway<D> {
        let server = self.nodes.first_mut().and_then(|node| node.gateway.as_mut());
        let Some(server) = server else { unreachable!("the first node always runs") };
        server
    }

    fn running(&self) -> impl Iterator<Item = (NodeId, &Node<D>)> {
        self.nodes.iter().filter_map(|node| Some((node.name, node.gateway.as_ref()?.node())))
    }

    /// Whether all chains are active according to the manager's map.
    pub fn is_serving(&self) -> bool {
        self.server().node().manager_map().is_some_and(|map| map.ranges.iter().all(RangeEntry::is_active))
    }

    /// Kills a node other than the first, as `kill -9` of its process would. For tests.
    pub fn kill(&mut self, name: NodeId) {
        assert!(name != FIRST, "the clients of {name:?} would be lost");
        for node in &mut self.nodes {
            if node.name == name {
                node.gateway = None;
            } else if let Some(gateway) = &mut node.gateway {
                gateway.handle_link_reset(self.now, name);
            }
        }
    }

    /// Restarts a killed node on its reopened store. For tests.
    ///
    /// # Errors
    /// As [`LocalCluster::new`].
    pub fn restart(&mut self, name: NodeId, mut engine: Engine<D>) -> Result<(), NodeError> {
        let random = self.setup.server_info.random_part();
        let boot = boot_of(&mut engine, (name, random), self.server().node().manager_map())?;
        let Some(node) = self.nodes.iter_mut().find(|node| node.name == name) else { return Ok(()) };
        assert!(node.gateway.is_none(), "{name:?} runs already");
        let mut gateway = self.setup.gateway((name, boot), engine, MapPlace::OwnStore, self.now)?;
        // The killed process may have lost the pending map. Without this copy the map might never reach a majority.
        if let Some((revision, image)) = self.map_persistence.wanted() {
            gateway.keep_map(revision, image);
        }
        node.gateway = Some(gateway);
        Ok(())
    }

    /// Status of every running node.
    pub fn statuses(&self) -> Vec<(NodeId, NodeStatus)> {
        self.running().map(|(name, node)| (name, node.status())).collect()
    }

    fn cluster_status(&self) -> ClusterStatus {
        cluster_status(self.server().node(), self.statuses())
    }

    /// Digests of each running node's copy of `range`. For checks: blocks on devices.
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digests(&mut self, range: RangeId) -> Result<Vec<(NodeId, RangeDigest)>, EngineError> {
        let members = self.running().flat_map(|(_, node)| node.status().members);
        let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default();
        let mut digests = Vec::new();
        for LocalNode { name, gateway, .. } in &mut self.nodes {
            if let Some(gateway) = gateway
                && let Some(digest) = gateway.digest(range, time)?
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
        self.nodes.into_iter().filter_map(|node| node.gateway?.into_node().into_engine()).collect()
    }

    /// One round: every node with received frames handles them. Returns whether frames are left.
    fn round(&mut self) -> bool {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            if !std::mem::take(&mut node.is_due) {
                continue;
            }
            let (name, Some(gateway)) = (node.name, &mut node.gateway) else { continue };
            node.is_due = gateway.exchange();
            let kept = gateway.poll_map_kept();
            while let Some(output) = self.nodes[at].gateway.as_mut().and_then(ClientGateway::poll_peer_output) {
                self.route(name, output);
            }
            if let Some(revision) = kept
                && self.map_persistence.note(name, revision, self.nodes.len())
            {
                let now = self.now;
                self.server_mut().handle_map_kept(now, revision);
                self.nodes[0].is_due = true;
            }
        }
        self.nodes.iter().any(|node| node.is_due)
    }

    fn route(&mut self, from: NodeId, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, bytes } => {
                let Some(node) = self.nodes.iter_mut().find(|node| node.name == to) else { return };
                // Frames to a killed node are lost, as on a network.
                if let Some(gateway) = &mut node.gateway {
                    gateway.handle_bytes(self.now, from, &bytes);
                    node.is_due = true;
                }
            }
            NodeOutput::KeepMap { revision, image } => {
                for node in &mut self.nodes {
                    if let Some(gateway) = &mut node.gateway {
                        gateway.keep_map(revision, &image);
                        node.is_due = true;
                    }
                }
                self.map_persistence.begin(revision, image);
            }
            NodeOutput::Reset { peer } => unreachable!("frames from {peer:?} to {from:?} do not get corrupt in memory"),
            NodeOutput::Done { op, .. } => unreachable!("{op:?} of {from:?} is answered to a session"),
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
            if let Some(gateway) = &mut node.gateway {
                gateway.begin_iteration(now);
                node.is_due = true;
            }
        }
        if self.server_mut().wants_status() {
            let behind = of_engines(self.engines());
            self.server_mut().set_backend_stats(behind);
            let serves = self.cluster_status().is_serving();
            self.unavailable_since = if serves { None } else { Some(self.unavailable_since.unwrap_or(now.mono)) };
        }
        let is_unfinished = (0..ROUNDS_MAX).all(|_| self.round());
        let gateways = self.nodes.iter_mut().filter_map(|node| node.gateway.as_mut());
        let due = gateways.filter_map(ClientGateway::finish_iteration).min();
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
        ShardStatus { cluster: Some(cluster), ..self.server().status_over(of_engines(self.engines())) }
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.running().filter_map(|(_, node)| node.engine())
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

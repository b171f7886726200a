//! Whole cluster in one thread: back-ends, and a front-end with the client sessions and the manager.
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
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{BootId, HashSecret, KeyRange, MonoMs, NodeId, Now, RangeId};
use fawn_wire::Protocol;

/// Maximum rounds of frames per iteration. If frames remain, the next iteration is due at once.
const ROUNDS_MAX: usize = 64;
/// Copies of each range, if there are enough back-ends.
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

/// A back-end; `None` while it is killed.
#[derive(Debug)]
struct LocalMember<D: Device> {
    name: NodeId,
    node: Option<Node<D>>,
    /// Has received frames that it has not handled yet.
    is_due: bool,
}

/// A cluster in one thread.
#[derive(Debug)]
pub struct LocalCluster<D: Device> {
    front: ClientGateway<D>,
    /// Back-ends in the order of their node numbers, from 1.
    members: Vec<LocalMember<D>>,
    map_persistence: MapPersistence,
    /// Since when some chain takes no writes, as of the last status update.
    unavailable_since: Option<MonoMs>,
    is_front_due: bool,
    options: LocalOptions,
    map: ClusterMap,
    /// Random part of the nodes' boots.
    random: u32,
    now: Now,
}

impl<D: Device> LocalCluster<D> {
    /// A back-end on each engine, in the same order at every start. The engines were opened with one hash
    /// secret, in the mode of `options.shard`.
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
        // A store's open generation is used once, so boots differ. The front-end has no store and uses the first one's.
        let random = server_info.random_part();
        let boot = BootId::new(first.generation(), random);
        let names: Vec<NodeId> = (1..=engines.len() as u32).map(NodeId).collect();
        let map = first_map(secret, &names, &options);
        let front_name = NodeId(names.len() as u32 + 1);
        let config = |node, boot| member_config(node, boot, front_name, &map, &options);
        let kept = map_persistence::newest(engines.iter());
        let kept = kept.map_err(|cause| NodeError::Kept { what: "the cluster map".to_owned(), cause })?;
        if kept.as_ref().is_some_and(|kept| kept.secret != secret) {
            return Err(NodeError::SecretDiffers);
        }
        let mut boots = Vec::with_capacity(engines.len());
        for (engine, &name) in engines.iter_mut().zip(&names) {
            boots.push(boot_of(engine, (name, random), kept.as_ref())?);
        }
        let map_place = MapPlace::Host { kept: kept.map(Box::new) };
        let front_config = NodeConfig { map_place, ..config(front_name, boot) };
        let front = ClientGateway::new(Node::new(front_config, None, now)?, options.shard, store, server_info);
        let mut members = Vec::with_capacity(engines.len());
        for ((engine, &name), boot) in engines.into_iter().zip(&names).zip(boots) {
            let node = Some(Node::new(config(name, boot), Some(engine), now)?);
            members.push(LocalMember { name, node, is_due: true });
        }
        let map_keeping = MapPersistence::default();
        Ok(Self {
            front,
            members,
            map_persistence: map_keeping,
            unavailable_since: None,
            is_front_due: true,
            options,
            map,
            random,
            now,
        })
    }

    /// Whether all chains are active according to the manager's map.
    pub fn is_serving(&self) -> bool {
        self.front.node().manager_map().is_some_and(|map| map.ranges.iter().all(RangeEntry::is_active))
    }

    /// Kills a member, as `kill -9` of its process would. For tests.
    pub fn kill(&mut self, name: NodeId) {
        let Some(at) = self.members.iter().position(|member| member.name == name) else { return };
        drop(self.members[at].node.take());
        let others = self.members.iter_mut().filter_map(|member| member.node.as_mut());
        others.for_each(|node| node.handle_link_reset(self.now, name));
        self.front.handle_link_reset(self.now, name);
    }

    /// Restarts a killed member on its reopened store. For tests.
    ///
    /// # Errors
    /// As [`LocalCluster::new`].
    pub fn restart(&mut self, name: NodeId, mut engine: Engine<D>) -> Result<(), NodeError> {
        let manager = self.front_name();
        let Some(member) = self.members.iter_mut().find(|member| member.name == name) else { return Ok(()) };
        assert!(member.node.is_none(), "{name:?} runs already");
        let boot = boot_of(&mut engine, (name, self.random), self.front.node().manager_map())?;
        let config = member_config(name, boot, manager, &self.map, &self.options);
        let mut node = Node::new(config, Some(engine), self.now)?;
        // The killed process may have lost the pending map. Without this copy the map might never reach a majority.
        if let Some((revision, image)) = self.map_persistence.wanted() {
            node.keep_map(revision, image);
        }
        member.node = Some(node);
        Ok(())
    }

    /// Status of every running member.
    pub fn statuses(&self) -> Vec<(NodeId, NodeStatus)> {
        let running = self.members.iter().filter_map(|member| Some((member.name, member.node.as_ref()?)));
        running.map(|(name, node)| (name, node.status())).collect()
    }

    fn cluster_status(&self) -> ClusterStatus {
        cluster_status(self.front.node(), self.statuses())
    }

    /// Digests of each running member's copy of `range`. For checks: blocks on devices.
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digests(&mut self, range: RangeId) -> Result<Vec<(NodeId, RangeDigest)>, EngineError> {
        let members =
            self.members.iter().filter_map(|member| member.node.as_ref()).flat_map(|node| node.status().members);
        let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default();
        let mut digests = Vec::new();
        for LocalMember { name, node, .. } in &mut self.members {
            if let Some(node) = node
                && let Some(digest) = node.digest(range, time)?
            {
                digests.push((*name, digest));
            }
        }
        Ok(digests)
    }

    /// The ranges as of the cluster's creation.
    pub fn ranges(&self) -> impl Iterator<Item = RangeId> {
        self.map.ranges.iter().map(|entry| entry.range)
    }

    /// Shuts the cluster down and returns the engines of running members, to be closed.
    pub fn into_engines(self) -> Vec<Engine<D>> {
        self.members.into_iter().filter_map(|member| member.node?.into_engine()).collect()
    }

    /// One round: every node with received frames handles them. Returns whether frames are left.
    fn round(&mut self) -> bool {
        if std::mem::take(&mut self.is_front_due) {
            self.is_front_due = self.front.exchange();
            while let Some(output) = self.front.poll_peer_output() {
                self.route(self.front_name(), output);
            }
        }
        for at in (0..self.members.len()).rev() {
            if !std::mem::take(&mut self.members[at].is_due) {
                continue;
            }
            let (name, now) = (self.members[at].name, self.now);
            if let Some(node) = &mut self.members[at].node {
                node.exchange(now);
            }
            while let Some(output) = self.members[at].node.as_mut().and_then(Node::poll_output) {
                self.route(name, output);
            }
            let kept = self.members[at].node.as_mut().and_then(Node::poll_map_kept);
            if kept.is_some_and(|revision| self.map_persistence.note(name, revision, self.members.len())) {
                self.front.handle_map_kept(now, kept.unwrap_or_default());
                self.is_front_due = true;
            }
        }
        self.is_front_due || self.members.iter().any(|member| member.is_due)
    }

    fn front_name(&self) -> NodeId {
        NodeId(self.members.len() as u32 + 1)
    }

    fn route(&mut self, from: NodeId, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, bytes } if to == self.front_name() => {
                self.front.handle_bytes(self.now, from, &bytes);
                self.is_front_due = true;
            }
            NodeOutput::Send { to, bytes } => {
                let Some(member) = self.members.iter_mut().find(|member| member.name == to) else { return };
                // Frames to a killed member are lost, as on a network.
                if let Some(node) = &mut member.node {
                    node.handle_bytes(self.now, from, &bytes);
                    member.is_due = true;
                }
            }
            NodeOutput::KeepMap { revision, image } => {
                for member in &mut self.members {
                    if let Some(node) = &mut member.node {
                        node.keep_map(revision, &image);
                        member.is_due = true;
                    }
                }
                self.map_persistence.begin(revision, image);
            }
            NodeOutput::Reset { peer } => unreachable!("frames from {peer:?} to {from:?} do not get corrupt in memory"),
            NodeOutput::Done { op, .. } => unreachable!("only the front-end submits, found {op:?} of {from:?}"),
        }
    }
}

impl<D: Device> ClientService for LocalCluster<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.front.open_session(protocol)
    }

    fn close_session(&mut self, session: SessionId) {
        self.front.close_session(session);
    }

    fn end_input(&mut self, session: SessionId) {
        self.front.end_input(session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.front.handle_input(now, session, input)
    }

    fn wants_input(&self, session: SessionId) -> bool {
        self.front.wants_input(session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.front.need_bytes(session)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.front.output(session)
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        self.front.wrote(session, bytes);
    }

    fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.now = now;
        self.front.begin_iteration(self.now);
        if self.front.wants_status() {
            let behind = of_engines(self.engines());
            self.front.set_backend_stats(behind);
            let serves = self.cluster_status().is_serving();
            self.unavailable_since = if serves { None } else { Some(self.unavailable_since.unwrap_or(self.now.mono)) };
        }
        self.is_front_due = true;
        self.members.iter_mut().for_each(|member| member.is_due = true);
        let is_unfinished = (0..ROUNDS_MAX).all(|_| self.round());
        let nodes = self.members.iter_mut().filter_map(|member| member.node.as_mut());
        let due = nodes.filter_map(Node::finish_iteration).min();
        let again = is_unfinished.then_some(self.now.mono);
        [due, self.front.finish_iteration(), again].into_iter().flatten().min()
    }

    fn has_due_work(&self) -> bool {
        self.front.has_due_work()
    }

    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.front.poll_output()
    }

    fn is_idle(&self) -> bool {
        self.front.is_idle() && self.engines().all(|engine| engine.in_flight() == 0)
    }

    fn status(&self) -> ShardStatus {
        let mut cluster = ClusterStatus { unavailable_since: self.unavailable_since, ..self.cluster_status() };
        assert_eq!(cluster.back_ends.len(), self.engines().count(), "every back-end that runs has a store");
        for (back_end, engine) in cluster.back_ends.iter_mut().zip(self.engines()) {
            back_end.store = StoreStatus::of(engine);
        }
        ShardStatus { cluster: Some(cluster), ..self.front.status_over(of_engines(self.engines())) }
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.members.iter().filter_map(|member| member.node.as_ref()?.engine())
    }
}

/// Configuration of one back-end.
fn member_config(node: NodeId, boot: BootId, manager: NodeId, map: &ClusterMap, options: &LocalOptions) -> NodeConfig {
    NodeConfig {
        node,
        boot,
        durability: options.shard.durability,
        map: map.clone(),
        manager: Some(manager),
        map_place: MapPlace::OwnStore,
        limits: options.limits,
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

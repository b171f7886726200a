//! Whole cluster in one thread: nodes with one or several shards, a store each.
//!
//! One shard, the server, serves the clients and hosts the manager.
use super::boots::boot_of;
use super::client_service::ClientService;
use super::map_persistence::{self, MapPersistence};
use super::shard_group::ShardGroup;
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
use fawn_types::{BootId, HashSecret, KeyRange, MemberId, MonoMs, NodeId, Now, RangeId, ShardId};
use fawn_wire::Protocol;

/// Copies of each range, if there are enough nodes.
const REPLICATION: usize = 3;
/// Maximum age of the statistics in `INFO`.
const STATUS_MS: u64 = 100;

/// Layout of a cluster in one thread; must be the same at every start of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOptions {
    /// Options of the sessions.
    pub shard: ShardOptions,
    /// Limits of each shard.
    pub limits: NodeLimits,
    /// Shards of each node.
    pub shards: u16,
    /// Whether one range covers the whole ring, so that `MSET` is atomic for any keys. Otherwise virtual IDs divide the
    /// ring.
    pub is_one_range: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { shard: ShardOptions::default(), limits: NodeLimits::default(), shards: 1, is_one_range: true }
    }
}

/// A cluster in one thread.
#[derive(Debug)]
pub struct LocalCluster<D: Device> {
    /// The shards of running nodes. The server's node is never killed.
    group: ShardGroup<D>,
    map_persistence: MapPersistence,
    /// Since when some chain takes no writes, as of the last status update.
    unavailable_since: Option<MonoMs>,
    status_at: MonoMs,
    setup: LocalSetup,
}

/// The inputs that every shard of the cluster is created from.
#[derive(Debug)]
struct LocalSetup {
    options: LocalOptions,
    server_info: ServerInfo,
    /// The map as of the cluster's creation.
    map: ClusterMap,
    server: MemberId,
    /// All shards of all nodes, running or not.
    ids: Vec<MemberId>,
}

impl LocalSetup {
    fn start<D: Device>(
        &self,
        (id, boot): (MemberId, BootId),
        engine: Engine<D>,
        map_place: MapPlace,
        now: Now,
    ) -> Result<Shard<D>, NodeError> {
        let config = NodeConfig {
            id,
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
    /// A shard on each engine: those of the first node, then those of the next, in the same order at every start. The engines
    /// were opened with one hash secret, in the mode of `options.shard`.
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
        let nodes = (1..).take(engines.len() / usize::from(options.shards));
        let shards_of = |node| (0..options.shards).map(move |shard| MemberId::new(NodeId(node), ShardId(shard)));
        let ids: Vec<MemberId> = nodes.flat_map(shards_of).collect();
        assert_eq!(ids.len(), engines.len(), "each node has {} shards", options.shards);
        let kept = Self::check_stores(engines.iter(), &options)?;
        // A store's open generation is used once, so boots differ.
        let mut boots = Vec::with_capacity(engines.len());
        for (engine, &id) in engines.iter_mut().zip(&ids) {
            boots.push(boot_of(engine, (id, server_info.random_part()), kept.as_ref())?);
        }
        let map = first_map(secret, &ids, &options);
        // The tail of the first range, which the ring determines: its reads are calls.
        let last = map.ranges.first().and_then(|entry| entry.serving().next_back());
        let Some(server) = last.map(|member| member.id) else { return Err(NodeError::NoStore) };
        let setup = LocalSetup { options, server_info, map, server, ids };
        let kept = kept.map(Box::new);
        let mut group = ShardGroup::default();
        for ((engine, &id), boot) in engines.into_iter().zip(&setup.ids).zip(boots) {
            let is_server = id == server;
            let map_place = if is_server { MapPlace::Host { kept: kept.clone() } } else { MapPlace::OwnStore };
            group.insert(id, setup.start((id, boot), engine, map_place, now)?);
        }
        let map_persistence = MapPersistence::default();
        Ok(Self { group, map_persistence, unavailable_since: None, status_at: MonoMs(0), setup })
    }

    #[inline]
    fn server(&self) -> &Shard<D> {
        let Some(server) = self.group.shard(self.setup.server) else { unreachable!("the server always runs") };
        server
    }

    #[inline]
    fn server_mut(&mut self) -> &mut Shard<D> {
        let Some(server) = self.group.shard_mut(self.setup.server) else { unreachable!("the server always runs") };
        server
    }

    /// Whether all chains are active according to the manager's map.
    pub fn is_serving(&self) -> bool {
        self.server().manager_map().is_some_and(|map| map.ranges.iter().all(RangeEntry::is_active))
    }

    /// Checks that stores are of one cluster, whose nodes have as many shards; returns its newest map. For a host that
    /// creates stores only if the others fit.
    ///
    /// # Errors
    /// When they are not, or a map does not decode.
    pub fn check_stores<'a>(
        engines: impl Iterator<Item = &'a Engine<D>> + Clone,
        options: &LocalOptions,
    ) -> Result<Option<ClusterMap>, NodeError>
    where
        D: 'a,
    {
        let kept = map_persistence::newest(engines.clone());
        let kept = kept.map_err(|cause| NodeError::Kept { what: "the cluster map".to_owned(), cause })?;
        let Some(map) = &kept else { return Ok(None) };
        if engines.into_iter().any(|engine| *engine.secret() != map.secret) {
            return Err(NodeError::SecretDiffers);
        }
        let found = map.nodes.first().map_or(options.shards, |node| node.shards);
        if found != options.shards {
            return Err(NodeError::ShardCount { expected: options.shards, found });
        }
        Ok(kept)
    }

    /// The shard that serves the clients.
    pub const fn server_id(&self) -> MemberId {
        self.setup.server
    }

    /// Kills a node other than the server's, as `kill -9` of its process would. For tests.
    pub fn kill(&mut self, node: NodeId) {
        assert!(node != self.setup.server.node(), "the clients of {node:?} would be lost");
        for id in self.setup.ids.iter().filter(|id| id.node() == node) {
            drop(self.group.remove(*id));
        }
    }

    /// Restarts a killed node on its reopened stores. For tests.
    ///
    /// # Errors
    /// As [`LocalCluster::new`].
    pub fn restart(&mut self, node: NodeId, engines: Vec<Engine<D>>, now: Now) -> Result<(), NodeError> {
        let ids: Vec<MemberId> = self.setup.ids.iter().copied().filter(|id| id.node() == node).collect();
        assert_eq!(ids.len(), engines.len(), "a store for each shard");
        for (id, mut engine) in ids.into_iter().zip(engines) {
            let random = self.setup.server_info.random_part();
            let boot = boot_of(&mut engine, (id, random), self.server().manager_map())?;
            let mut shard = self.setup.start((id, boot), engine, MapPlace::OwnStore, now)?;
            // The killed process may have lost the pending map. Without this copy the map might never reach a majority.
            if let Some((revision, image)) = self.map_persistence.wanted() {
                shard.keep_map(revision, image);
            }
            self.group.insert(id, shard);
        }
        Ok(())
    }

    /// Status of every running shard.
    pub fn statuses(&self) -> Vec<(MemberId, NodeStatus)> {
        self.group.shards().map(|(id, shard)| (id, shard.node_status())).collect()
    }

    /// Counters of the shards without clients, which execute requests of the server.
    fn counters_of_others(&self) -> ShardCounters {
        let mut sum = ShardCounters::default();
        let others = self.group.shards().filter(|(id, _)| *id != self.setup.server);
        others.for_each(|(_, shard)| sum.add(&shard.status().counters));
        sum
    }

    fn cluster_status(&self) -> ClusterStatus {
        cluster_status(self.server(), self.statuses())
    }

    /// Digests of each running shard's copy of `range`. For checks: blocks on devices.
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digests(&mut self, range: RangeId) -> Result<Vec<(MemberId, RangeDigest)>, EngineError> {
        let members = self.group.shards().flat_map(|(_, shard)| shard.node_status().members);
        let time = members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default();
        let mut digests = Vec::new();
        for (id, shard) in self.group.shards_mut() {
            digests.extend(shard.digest(range, time)?.map(|digest| (id, digest)));
        }
        Ok(digests)
    }

    /// The ranges as of the cluster's creation.
    pub fn ranges(&self) -> impl Iterator<Item = RangeId> {
        self.setup.map.ranges.iter().map(|entry| entry.range)
    }

    /// Shuts the cluster down and returns the engines of running shards, to be closed.
    pub fn into_engines(mut self) -> Vec<Engine<D>> {
        let shards = self.setup.ids.iter().filter_map(|id| self.group.remove(*id));
        shards.map(Shard::into_engine).collect()
    }

    /// Stores new maps of the manager, and notifies it once enough stores have one. Returns whether shards have new work.
    fn keep_maps(&mut self, now: Now) -> bool {
        let mut has_work = false;
        while let Some((_, output)) = self.group.poll_output() {
            // Frames to a killed shard are lost, as on a network.
            if let NodeOutput::KeepMap { revision, image } = output {
                self.group.shards_mut().for_each(|(_, shard)| shard.keep_map(revision, &image));
                self.map_persistence.begin(revision, image);
                has_work = true;
            }
        }
        let (mut is_enough, nodes) = (None, self.setup.map.nodes.len());
        for (id, shard) in self.group.shards_mut() {
            if let Some(revision) = shard.poll_map_kept()
                && self.map_persistence.note(id.node(), revision, nodes)
            {
                is_enough = Some(revision);
            }
        }
        if let Some(revision) = is_enough {
            self.server_mut().handle_map_kept(now, revision);
        }
        has_work || is_enough.is_some()
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
        self.group.begin_iteration(now);
        if now.mono.ms_since(self.status_at) >= STATUS_MS {
            self.status_at = now.mono;
            let (stores, others) = (of_engines(self.engines()), self.counters_of_others());
            self.server_mut().set_stores(stores);
            self.server_mut().set_peer_stats(ShardStatus { counters: others, ..ShardStatus::default() });
            let serves = self.cluster_status().is_serving();
            self.unavailable_since = if serves { None } else { Some(self.unavailable_since.unwrap_or(now.mono)) };
        }
        let mut is_unfinished = self.group.exchange();
        // The exchange after a committed map may bring the next map.
        while self.keep_maps(now) {
            is_unfinished = self.group.exchange();
        }
        let due = self.group.finish_iteration();
        if is_unfinished { Some(now.mono) } else { due }
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
        self.group.shards().map(|(_, shard)| shard.engine())
    }
}

/// Initial map of the cluster: a pure function of the secret and the options, so every start computes the same one.
fn first_map(secret: HashSecret, ids: &[MemberId], options: &LocalOptions) -> ClusterMap {
    let node = |id: &MemberId| NodeEntry {
        node: id.node(),
        shards: options.shards,
        weight: 1,
        domain: 0,
        address: String::new(),
    };
    let nodes: Vec<NodeEntry> = ids.iter().filter(|id| id.shard() == ShardId(0)).map(node).collect();
    let replication = nodes.len().min(REPLICATION) as u8;
    let ring = RingOptions { replication, virtual_ids: 1 };
    let mut map = ClusterMap::new(secret, options.shard.durability, ring, nodes);
    if options.is_one_range
        && let Some(entry) = map.ranges.first()
    {
        let chain: Vec<MemberId> = entry.serving().map(|member| member.id).collect();
        map.ranges = vec![RangeEntry::new(entry.range, KeyRange::ALL, &chain)];
    }
    map
}

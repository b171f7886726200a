//! Whole cluster in one thread: nodes with one or several shards, a store each.
//!
//! One shard, the server, serves the clients and hosts the manager.
use super::boots::boot_of;
use super::map_persistence;
use super::shard_group::ShardGroup;
use crate::cluster::{MapPlace, NodeConfig, NodeError, NodeLimits};
use crate::options::{ServerInfo, ShardOptions};
use crate::shard::Shard;
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RangeEntry, RingOptions};
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{HashSecret, KeyRange, MemberId, NodeId, Now, RangeId, ShardId};

/// Copies of each range, if there are enough nodes.
const REPLICATION: usize = 3;

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

/// A whole cluster in one group: the inputs that each of its shards is started from.
#[derive(Debug)]
pub struct LocalCluster {
    options: LocalOptions,
    server_info: ServerInfo,
    /// The map as of the cluster's creation.
    map: ClusterMap,
    /// Serves the clients and hosts the manager.
    server: MemberId,
    ids: Vec<MemberId>,
}

impl LocalCluster {
    /// Starts a shard on each engine: those of the first node, then those of the next, in the same order at every
    /// start. The engines were opened with one hash secret, in the mode of `options.shard`.
    ///
    /// # Errors
    /// When an engine was opened for another use, is of another cluster, was restored, or holds corrupt promises.
    pub fn start<D: Device>(
        engines: Vec<Engine<D>>,
        options: LocalOptions,
        server_info: ServerInfo,
        now: Now,
    ) -> Result<(Self, ShardGroup<D>), NodeError> {
        let Some(secret) = engines.first().map(|first| *first.secret()) else { return Err(NodeError::NoStore) };
        let nodes = (1..).take(engines.len() / usize::from(options.shards));
        let shards_of = |node| (0..options.shards).map(move |shard| MemberId::new(NodeId(node), ShardId(shard)));
        let ids: Vec<MemberId> = nodes.flat_map(shards_of).collect();
        assert_eq!(ids.len(), engines.len(), "each node has {} shards", options.shards);
        let kept = Self::check_stores(engines.iter(), &options)?;
        let map = first_map(secret, &ids, &options);
        // Without a map, a store lists only the ranges of the cluster's creation.
        let is_other = |(range, keys)| map.range(range).is_none_or(|entry| entry.keys != keys);
        if kept.is_none() && engines.iter().any(|engine| engine.ranges().any(is_other)) {
            return Err(NodeError::OtherRanges { expected: options.shards });
        }
        // The tail of the first range, which the ring determines: its reads are calls.
        let last = map.ranges.first().and_then(|entry| entry.serving().next_back());
        let Some(server) = last.map(|member| member.id) else { return Err(NodeError::NoStore) };
        let cluster = Self { options, server_info, map, server, ids };
        let mut group = ShardGroup::new(server);
        for (engine, &id) in engines.into_iter().zip(&cluster.ids) {
            cluster.start_shard(&mut group, (id, engine), kept.as_ref(), now)?;
        }
        Ok((cluster, group))
    }

    /// Starts one shard on its store. `known` is the newest map of the cluster.
    ///
    /// # Errors
    /// As [`LocalCluster::start`].
    pub fn start_shard<D: Device>(
        &self,
        group: &mut ShardGroup<D>,
        (id, mut engine): (MemberId, Engine<D>),
        known: Option<&ClusterMap>,
        now: Now,
    ) -> Result<(), NodeError> {
        let boot = boot_of(&mut engine, (id, self.server_info.random_part()), known)?;
        let kept = || known.cloned().map(Box::new);
        let config = NodeConfig {
            id,
            boot,
            durability: self.options.shard.durability,
            map: self.map.clone(),
            manager: Some(self.server),
            map_place: if id == self.server { MapPlace::Host { kept: kept() } } else { MapPlace::OwnStore },
            limits: self.options.limits,
        };
        group.insert(Shard::in_cluster(engine, config, self.options.shard, self.server_info.clone(), now)?);
        Ok(())
    }

    /// Checks that stores are of one cluster, whose nodes have as many shards; returns its newest map. For a host that
    /// creates stores only if the others fit.
    ///
    /// # Errors
    /// When they are not, or a map does not decode.
    pub fn check_stores<'a, D: Device + 'a>(
        engines: impl Iterator<Item = &'a Engine<D>> + Clone,
        options: &LocalOptions,
    ) -> Result<Option<ClusterMap>, NodeError> {
        let kept = map_persistence::newest(engines.clone())?;
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

    /// All shards of all nodes, running or not.
    pub fn ids(&self) -> &[MemberId] {
        &self.ids
    }

    /// The ranges as of the cluster's creation.
    pub fn ranges(&self) -> impl Iterator<Item = RangeId> {
        self.map.ranges.iter().map(|entry| entry.range)
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

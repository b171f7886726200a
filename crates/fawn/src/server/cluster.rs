//! Assembly of a cluster with three nodes in one thread: each shard has a directory, an engine and a share of memory.
use super::service::{GroupConfig, ServerGroup};
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::data_dir;
use crate::failure::{Exit, Failure};
use fawn_ds::internals::{Engine, Options};
use fawn_node::cluster::{NodeError, NodeLimits};
use fawn_node::{LocalCluster, LocalOptions};
use fawn_types::{MemberId, NodeId, Now, ShardId};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Number of nodes, and copies of every key.
const NODES: u32 = 3;

/// Opens or creates three nodes, whose shards have a store each.
pub(super) fn open(config: GroupConfig, now: Now) -> Result<ServerGroup, Failure> {
    let GroupConfig { settings, server_info, progress, .. } = config;
    let settings = &settings;
    // Of each node: the nodes share one thread, so more than one are for trying them out.
    let shards = settings.shards_given();
    let shard = store::shard_options(settings);
    let limits = NodeLimits {
        value_bytes_max: shard.value_bytes_max,
        // The sessions' requests may all be in flight at once, and as many again wait for budget.
        outbound_bytes_max: (2 * shard.replies_bytes_max).min(NodeLimits::default().outbound_bytes_max),
        ..NodeLimits::default()
    };
    let options = LocalOptions { shard, limits, shards, is_one_range: shards == 1 };
    let refused = |error: NodeError| Failure::new(Exit::Data, format!("{}: {error}", settings.dir.display()));
    let ids = (1..=NODES).flat_map(|node| (0..shards).map(move |shard| MemberId::new(NodeId(node), ShardId(shard))));
    let mut stores: Vec<(u32, PathBuf)> = (1..).zip(ids.map(|id| settings.dir.join(dir_name(id)))).collect();
    // A lost store is created with the secret of the others, and none is created alongside stores that do not fit.
    stores.sort_by_key(|(number, dir)| (!data_dir::is_taken(dir), *number));
    let mut engines: BTreeMap<u32, Engine<StoreDevice>> = BTreeMap::new();
    for (number, dir) in stores {
        if !data_dir::is_taken(&dir) {
            LocalCluster::check_stores(engines.values(), &options).map_err(refused)?;
        }
        let of_store = engine_options(settings, number, engines.values().next())?;
        let of_store = Options { progress: Some(progress.clone()), ..of_store };
        engines.insert(number, store::open_engine(settings, &dir, of_store, now)?);
    }
    let started = LocalCluster::start(engines.into_values().collect(), options, server_info, now);
    started.map(|(_, group)| group).map_err(refused)
}

/// Directory of a shard's store, under the data directory.
pub(super) fn dir_name(id: MemberId) -> String {
    match (id.node().0, id.shard().0) {
        (node, 0) => format!("node-{node}"),
        (node, shard) => format!("node-{node}-shard-{shard}"),
    }
}

/// Directory of the first shard's store.
pub(super) fn first_dir_name() -> String {
    dir_name(MemberId::new(NodeId(1), ShardId(0)))
}

/// With the hash secret of a store that is open: all stores share it, also after a start that was interrupted before
/// all were created.
fn engine_options(settings: &Settings, number: u32, opened: Option<&Engine<StoreDevice>>) -> Result<Options, Failure> {
    let options = store::engine_options(settings)?;
    Ok(Options {
        number_if_new: number,
        memory_bytes: options.memory_bytes / u64::from(NODES) / u64::from(settings.shards_given()),
        secret_if_new: opened.map(|engine| *engine.secret()).or(options.secret_if_new),
        ..options
    })
}

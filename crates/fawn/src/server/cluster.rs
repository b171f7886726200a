//! Assembly of a cluster with three nodes in one thread: each shard has a directory, an engine and a share of memory.
use super::ServeError;
use super::backend::{Backend, BackendConfig};
use super::limits::ShardLimits;
use super::store::{self, StoreDevice};
use crate::config::{Settings, ShardCount};
use crate::data_dir::Layout;
use fawn_ds::internals::{Engine, Options};
use fawn_node::cluster::NodeLimits;
use fawn_node::{LocalCluster, LocalOptions};
use fawn_types::{MemberId, NodeId, Now, ShardId};

/// Number of nodes, and copies of every key.
const NODES: u32 = 3;

/// Three nodes, whose shards have a store each.
pub(crate) type Cluster = LocalCluster<StoreDevice>;

impl Backend for Cluster {
    fn layout(settings: &Settings) -> Result<Layout, ServeError> {
        Ok(Layout::flat(&settings.dir))
    }

    fn open(opening: BackendConfig, now: Now) -> Result<Self, ServeError> {
        let BackendConfig { settings, server_info, .. } = opening;
        let settings = &settings;
        let mut engines: Vec<Engine<StoreDevice>> = Vec::new();
        let shards = shards_of_node(settings);
        for id in (1..=NODES).flat_map(|node| (0..shards).map(move |shard| MemberId::new(NodeId(node), ShardId(shard))))
        {
            let options = engine_options(settings, engines.len() as u32 + 1, engines.first())?;
            engines.push(store::open_engine(settings, &settings.dir.join(dir_name(id)), options, now)?);
        }
        let shard = store::shard_options(settings);
        let limits = NodeLimits {
            value_bytes_max: shard.value_bytes_max,
            // The sessions' requests may all be in flight at once, and as many again wait for budget.
            outbound_bytes_max: (2 * shard.replies_bytes_max).min(NodeLimits::default().outbound_bytes_max),
            ..NodeLimits::default()
        };
        let options = LocalOptions { shard, limits, shards, is_one_range: shards == 1 };
        let opened = Self::new(engines, options, server_info, now);
        opened.map_err(|error| ServeError::Data(format!("{}: {error}", settings.dir.display())))
    }

    fn close(self) -> Result<(), ServeError> {
        self.into_engines().into_iter().try_for_each(store::close)
    }
}

/// Shards of each node, as given: the nodes share one thread, so more than one are for trying them out.
fn shards_of_node(settings: &Settings) -> u16 {
    match settings.shards {
        Some(ShardCount::Number(shards)) => shards,
        Some(ShardCount::Auto) | None => 1,
    }
}

/// Directory of a shard's store, under the data directory.
pub(super) fn dir_name(id: MemberId) -> String {
    match (id.node().0, id.shard().0) {
        (node, 0) => format!("node-{node}"),
        (node, shard) => format!("node-{node}-shard-{shard}"),
    }
}

/// The first store's hash secret. All stores share it, also after a start that was interrupted before all were created.
fn engine_options(
    settings: &Settings,
    number: u32,
    first: Option<&Engine<StoreDevice>>,
) -> Result<Options, ServeError> {
    let mut options = store::engine_options(settings)?;
    options.number_if_new = number;
    options.memory_bytes = ShardLimits::store_bytes(settings) / u64::from(NODES) / u64::from(shards_of_node(settings));
    if let Some(first) = first {
        options.secret_if_new = Some(*first.secret());
    }
    Ok(options)
}

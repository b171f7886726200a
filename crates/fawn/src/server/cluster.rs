//! Assembly of a cluster with three nodes in one thread: a directory, an engine and a share of memory each.
use super::ServeError;
use super::backend::{Backend, BackendConfig};
use super::limits::ShardLimits;
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::data_dir::Layout;
use fawn_ds::internals::{Engine, Options};
use fawn_node::cluster::NodeLimits;
use fawn_node::front::{LocalCluster, LocalOptions};
use fawn_types::Now;
use std::path::PathBuf;

/// Number of nodes, and copies of every key.
const NODES: u32 = 3;

/// Three nodes with a store each.
pub(crate) type Cluster = LocalCluster<StoreDevice>;

impl Backend for Cluster {
    fn layout(settings: &Settings) -> Result<Layout, ServeError> {
        Ok(Layout::flat(&settings.dir))
    }

    fn open(opening: BackendConfig, now: Now) -> Result<Self, ServeError> {
        let BackendConfig { settings, server_info, .. } = opening;
        let settings = &settings;
        let mut engines: Vec<Engine<StoreDevice>> = Vec::new();
        for number in 1..=NODES {
            let options = engine_options(settings, number, engines.first())?;
            engines.push(store::open_engine(settings, &dir_of(settings, number), options, now)?);
        }
        let shard = store::shard_options(settings);
        let limits = NodeLimits {
            value_bytes_max: shard.value_bytes_max,
            // The sessions' requests may all be in flight at once, and as many again wait for budget.
            outbound_bytes_max: (2 * shard.replies_bytes_max).min(NodeLimits::default().outbound_bytes_max),
            ..NodeLimits::default()
        };
        let options = LocalOptions { shard, limits, ..LocalOptions::default() };
        let opened = Self::new(engines, options, server_info, now);
        opened.map_err(|error| ServeError::Data(format!("{}: {error}", settings.dir.display())))
    }

    fn close(self) -> Result<(), ServeError> {
        self.into_engines().into_iter().try_for_each(store::close)
    }
}

fn dir_of(settings: &Settings, number: u32) -> PathBuf {
    settings.dir.join(dir_name(number))
}

/// Directory of a node's store, under the data directory.
pub(super) fn dir_name(number: u32) -> String {
    format!("node-{number}")
}

/// The first store's hash secret. All stores share it, also after a start that was interrupted before all were created.
fn engine_options(
    settings: &Settings,
    number: u32,
    first: Option<&Engine<StoreDevice>>,
) -> Result<Options, ServeError> {
    let mut options = store::engine_options(settings)?;
    options.number_if_new = number;
    options.memory_bytes = ShardLimits::store_bytes(settings) / u64::from(NODES);
    if let Some(first) = first {
        options.secret_if_new = Some(*first.secret());
    }
    Ok(options)
}

//! Services of a process: a standalone store or a whole cluster, opened as the group of shards that a thread runs.
use super::cluster;
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::data_dir::Layout;
use crate::failure::Failure;
use fawn_ds::internals::OpenProgress;
use fawn_node::{Placement, ServerInfo, ShardGroup};
use fawn_types::{HashSecret, Now};
use std::sync::Arc;

/// The shards of one thread, on the production device.
pub(crate) type ServerGroup = ShardGroup<StoreDevice>;

/// A service of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// A store, divided among the shards, each of which has a thread.
    Standalone,
    /// Three nodes in one thread.
    Cluster,
}

/// Arguments of opening the shards of one thread.
#[derive(Clone, Debug)]
pub(crate) struct GroupConfig {
    /// The thread's part of the process's settings, with its own directory.
    pub(super) settings: Settings,
    pub(super) placement: Placement,
    /// The hash secret, if several stores share one.
    pub(super) secret: Option<HashSecret>,
    /// Facts that clients may query.
    pub(super) server_info: ServerInfo,
    pub(super) progress: Arc<OpenProgress>,
}

impl Service {
    /// The directory's division into shards; a new directory is divided as `settings` ask.
    pub(super) fn layout(self, settings: &Settings) -> Result<Layout, Failure> {
        match self {
            Self::Standalone => Layout::settle(settings, HashSecret(store::random_bytes()?)),
            Self::Cluster => Ok(Layout::flat(&settings.dir)),
        }
    }

    /// Opens or creates the stores that `config` describes.
    pub(super) fn open(self, config: GroupConfig, now: Now) -> Result<ServerGroup, Failure> {
        match self {
            Self::Standalone => store::open(config, now),
            Self::Cluster => cluster::open(config, now),
        }
    }
}

//! Services of a process: a standalone store or a whole cluster, opened as the group of shards that a thread runs.
use super::cluster;
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::data_dir::{self, Layout};
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
    /// Refuses a new directory on a disk without the space for it, before anything is made.
    pub(super) fn check_disk(self, settings: &Settings) -> Result<(), Failure> {
        match (self, data_dir::free_bytes(&settings.dir)) {
            (Self::Standalone, Some(free_bytes)) if data_dir::is_new(&settings.dir) => settings.check_disk(free_bytes),
            // The size of a demo's segments cannot be chosen: once there is space, the next start goes on with its stores.
            _ => Ok(()),
        }
    }

    /// The directory's division into shards; a new directory is divided as `settings` ask.
    pub(super) fn layout(self, settings: &Settings) -> Result<Layout, Failure> {
        match self {
            Self::Standalone => Layout::settle(settings, HashSecret(store::random_bytes()?)),
            Self::Cluster => Ok(Layout::flat(&settings.dir)),
        }
    }

    /// Refuses stores that another server uses, before the threads open and lock them.
    pub(super) fn refuse_in_use(self, settings: &Settings, layout: &Layout) -> Result<(), Failure> {
        match self {
            Self::Standalone => layout.refuse_in_use(),
            Self::Cluster => Layout::flat(&settings.dir.join(cluster::first_dir_name())).refuse_in_use(),
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

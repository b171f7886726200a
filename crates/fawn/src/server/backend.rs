//! The interface of what the event loop serves besides clients: open, close, devices, statistics.
use super::ServeError;
use super::control::ShardReport;
use super::counters::LoopCounters;
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::data_dir::Layout;
use fawn_flash::Device;
use fawn_node::ClientService;
use fawn_node::{Placement, ServerInfo, Shard};
use fawn_types::{HashSecret, Now};
use std::os::fd::RawFd;

/// Arguments of opening one shard.
#[derive(Clone, Debug)]
pub(crate) struct BackendConfig {
    /// The shard's part of the process's settings, with its own directory.
    pub(super) settings: Settings,
    pub(super) placement: Placement,
    /// The hash secret, if several stores share one.
    pub(super) secret: Option<HashSecret>,
    /// Facts that clients may query.
    pub(super) server_info: ServerInfo,
}

/// One shard's store, or a whole cluster in this thread.
pub(crate) trait Backend: ClientService<Device = StoreDevice> + Sized {
    /// The directory's division into shards; a new directory is divided as `settings` ask.
    fn layout(settings: &Settings) -> Result<Layout, ServeError>;

    /// Opens or creates the store that `opening` describes.
    fn open(opening: BackendConfig, now: Now) -> Result<Self, ServeError>;

    /// Flushes and syncs everything, then releases the directory.
    fn close(self) -> Result<(), ServeError>;

    /// The descriptors that wake an idle loop on completions; each production device has one.
    fn wake_fds(&self) -> Vec<RawFd> {
        self.engines().filter_map(|engine| engine.device().wake_fd()).collect()
    }

    /// Device operations not yet reaped.
    fn in_flight(&self) -> usize {
        self.engines().map(fawn_ds::internals::Engine::in_flight).sum()
    }

    /// Statistics and state; sums where there are several stores.
    fn report(&self, server: LoopCounters, now: Now) -> ShardReport {
        ShardReport::new(server, self.status(), now)
    }
}

impl Backend for Shard<StoreDevice> {
    fn layout(settings: &Settings) -> Result<Layout, ServeError> {
        Ok(Layout::settle(settings, HashSecret(store::random_bytes()?))?)
    }

    fn open(opening: BackendConfig, now: Now) -> Result<Self, ServeError> {
        store::open(opening, now)
    }

    fn close(self) -> Result<(), ServeError> {
        store::close(self.into_engine())
    }
}

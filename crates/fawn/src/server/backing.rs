//! Owns what the loop needs of whatever it serves, beside the clients' side: opening, closing, its devices.
use super::ServeError;
use super::control::Report;
use super::counters::Counters;
use super::store::{self, StoreDevice};
use crate::config::Settings;
use crate::layout::Layout;
use fawn_flash::Device;
use fawn_node::front::ClientHost;
use fawn_node::{Placement, ProcessFacts, Shard};
use fawn_types::{HashSecret, Now};
use std::os::fd::RawFd;

/// What one shard is opened with.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// Its part of the process's settings; the directory is its own.
    pub(super) settings: Settings,
    /// Which of how many it is.
    pub(super) placement: Placement,
    /// The secret that its store has, where several share one.
    pub(super) secret: Option<HashSecret>,
    /// What clients may ask about the process.
    pub(super) facts: ProcessFacts,
}

/// One shard's store, or a whole cluster in this thread.
pub(crate) trait Backing: ClientHost<Device = StoreDevice> + Sized {
    /// How the directory is divided among shards; a new one is divided as `settings` ask.
    fn layout(settings: &Settings) -> Result<Layout, ServeError>;

    /// Opens what `opening` names, or creates it.
    fn open(opening: Opening, now: Now) -> Result<Self, ServeError>;

    /// Flushes and syncs everything, then lets go of the directory.
    fn close(self) -> Result<(), ServeError>;

    /// Per device, the descriptor that wakes an idle loop when the device has completed something.
    fn wake_fds(&self) -> Vec<Option<RawFd>> {
        self.engines().map(|engine| engine.device().wake_fd()).collect()
    }

    /// Device operations not yet reaped.
    fn in_flight(&self) -> usize {
        self.engines().map(fawn_ds::internals::Engine::in_flight).sum()
    }

    /// How things stand; of several stores their sums.
    fn report(&self, server: Counters, now: Now) -> Report {
        Report::new(server, &self.status(), now)
    }
}

impl Backing for Shard<StoreDevice> {
    fn layout(settings: &Settings) -> Result<Layout, ServeError> {
        Ok(Layout::settle(settings, HashSecret(store::random_bytes()?))?)
    }

    fn open(opening: Opening, now: Now) -> Result<Self, ServeError> {
        store::open(opening, now)
    }

    fn close(self) -> Result<(), ServeError> {
        store::close(self.into_engine())
    }
}

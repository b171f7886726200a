//! Owns what the loop needs of whatever it serves, beside the clients' side: opening, closing, its devices.
use super::control::Report;
use super::counters::Counters;
use super::store::{self, StoreDevice};
use super::{Places, ServeError};
use crate::config::Settings;
use fawn_flash::Device;
use fawn_node::Shard;
use fawn_node::front::ClientHost;
use fawn_types::TimeMs;
use std::os::fd::RawFd;

/// One shard's store, or a whole cluster in this thread.
pub(crate) trait Backing: ClientHost<Device = StoreDevice> + Sized {
    /// Opens what `settings` name, or creates it.
    fn open(settings: &Settings, places: &Places, now: TimeMs) -> Result<Self, ServeError>;

    /// Flushes and syncs everything, then lets go of the directory.
    fn close(self) -> Result<(), ServeError>;

    /// Per device, the descriptor that wakes an idle loop when the device has completed something.
    fn wake_fds(&self) -> Vec<Option<RawFd>> {
        self.engines().map(|engine| engine.device().wake_fd()).collect()
    }

    /// Device operations not yet reaped.
    fn in_flight(&self) -> usize {
        self.engines().map(fawn_ds::Engine::in_flight).sum()
    }

    /// How things stand; of several stores their sums.
    fn report(&self, server: Counters, now: TimeMs) -> Report {
        Report::new(server, &self.status(), now)
    }
}

impl Backing for Shard<StoreDevice> {
    fn open(settings: &Settings, places: &Places, now: TimeMs) -> Result<Self, ServeError> {
        store::open(settings, places, now)
    }

    fn close(self) -> Result<(), ServeError> {
        store::close(self.into_engine())
    }
}

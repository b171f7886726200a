//! The interface of a host to what serves its clients, and a whole cluster in one thread.
mod boots;
mod client_service;
mod local;
mod map_persistence;
mod status;

pub use client_service::ClientService;
pub use local::{LocalCluster, LocalOptions};

//! Hosts of shards: a group of shards in one thread, a whole cluster in one thread, and the interface for clients.
mod boots;
mod client_service;
mod local;
mod map_persistence;
mod shard_group;
mod status;

pub use boots::{is_cluster_state, is_cluster_store};
pub use client_service::ClientService;
pub use local::{LocalCluster, LocalOptions};
pub use shard_group::ShardGroup;

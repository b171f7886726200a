//! A node without sockets, clocks or threads: sessions, execution, chain members, and the stores beneath.
//!
//! ```text
//! bytes → gateway (codec, order of replies) → shard → exec (read, update, keyspace_op) → replica → fawn-ds
//! ```
//! `fawn` feeds a [`Shard`] with bytes from sockets, `fawn-sim` with the same bytes and with frames of other shards.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod counters;
mod exec;
mod forward;
mod gateway;
pub mod group;
mod keyspace_op;
pub mod options;
pub mod output;
mod placement;
mod replica;
mod request;
pub mod shard;
pub mod status;

pub use counters::Counted;
pub use forward::MessageBatch;
pub use group::{ClientService, LocalCluster, LocalOptions, ShardGroup, is_cluster_state, is_cluster_store};
pub use options::{ServerInfo, ShardOptions};
pub use output::ShardOutput;
pub use placement::Placement;
pub use request::SessionId;
pub use shard::Shard;
pub use status::{
    BackEndStatus, ChainStatus, ClusterStatus, OpenGeneration, RepliesStatus, ShardCounters, ShardStatus, StoreStatus,
};

//! Client sessions of a cluster: the front-end of a node, and a whole cluster in one thread.
//!
//! ```text
//! bytes → session (codec, order of replies) → RequestRouter (queue per session and key) → cluster::Node → head … tail
//! bytes ← session ← RequestRouter (gathers, folds) ← NodeOutput::Done
//! ```
//! Clients see the same behaviour as with [`crate::Shard`]; [`ClientService`] is the server's interface to both.
mod boots;
mod client_gateway;
mod client_service;
mod key_queues;
mod keyspace_op;
mod local;
mod map_persistence;
mod multi;
mod request_router;
mod status;

pub use client_gateway::ClientGateway;
pub use client_service::ClientService;
pub use local::{LocalCluster, LocalOptions};

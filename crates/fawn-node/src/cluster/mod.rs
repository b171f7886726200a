//! Cluster node without sockets, clocks or threads: front-end, back-end, and the manager if this node hosts it.
//!
//! ```text
//! submit → ClusterClient (route, keep for retries) ─Request→ head (evaluate, append) ─Append→ middle ─Append→ tail
//! NodeOutput::Done ← ClusterClient ←───────────────Reply─────────────────────────────────────── tail (commit)
//! ```
//! `fawn_chain` decides roles, commits and destinations; this module moves bytes between peers, frames and the engine.
//! The log is the retransmission buffer: forwarding replays it, so a chain of one pays nothing for replication.
mod backend;
mod cluster_client;
mod config;
mod copy;
mod digest;
mod forward;
mod manager;
mod node;
mod output;
pub mod payload;
mod peer_links;
mod persist;
mod recover;
mod requests;
mod status;

pub use crate::status::MemberStatus;
pub use config::{MapPlace, NodeConfig, NodeLimits};
pub use digest::RangeDigest;
pub use node::Node;
pub use output::{ClientOp, ClusterReply, NodeOutput, SubmitError};
pub use payload::KeyspaceRequest;
pub(crate) use persist::{kept_map, replica_key};
pub use recover::NodeError;
pub use status::{BackEndCounters, NodeStatus};

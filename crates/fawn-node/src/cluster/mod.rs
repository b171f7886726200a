//! Chain members of a shard, their links to other shards, and the manager if this shard hosts it.
//!
//! ```text
//! forward/cluster_ops ─Request→ head (evaluate, append) ─Append→ middle ─Append→ tail (commit)
//! session ← forward/cluster_ops ←──────────────────────Reply──────────────────── tail
//! ```
//! `fawn_chain` decides roles, commits and destinations; this module moves bytes between peers, frames and the engine.
//! The log is the retransmission buffer: forwarding replays it, so a chain of one pays nothing for replication.
mod config;
mod digest;
mod forward;
mod manager;
mod member_host;
mod node_control;
mod output;
pub mod payload;
mod peer_links;
mod persist;
mod recover;
mod status;
mod transfer;

pub use crate::status::MemberStatus;
pub use config::{MapPlace, NodeConfig, NodeLimits};
pub use digest::RangeDigest;
pub use output::NodeOutput;
pub use payload::KeyspaceRequest;
pub use recover::NodeError;
pub use status::NodeStatus;

pub(crate) use config::{HostConfig, member_of, session_of};
pub(crate) use member_host::MemberHost;
pub(crate) use node_control::NodeControl;
pub(crate) use peer_links::PeerLinks;
pub(crate) use persist::{kept_map, replica_key, replica_of};
pub(crate) use status::node_status;

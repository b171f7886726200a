//! Owns a node of a cluster without sockets, clocks or threads: front-end, back-end, and the manager where it lives.
//!
//! ```text
//! submit → frontend (route, keep for retries) ─Request→ head (evaluate, append) ─Append→ middle ─Append→ tail
//! Output::Done ← frontend ←───────────────Reply────────────────────────────────────────── tail (commit)
//! ```
//! `fawn_chain` decides (who may, what is committed, where to), this module moves bytes: between peers, frames and the
//! engine. The log is the retransmission buffer: forwarding replays it, so a chain of one pays nothing for chains.
mod backend;
mod config;
mod copy;
mod digest;
mod forward;
mod frontend;
mod head;
mod mail;
mod manager;
mod node;
mod output;
mod parked;
pub mod payload;
mod persist;
mod recover;
mod status;
mod tail;
mod wide;

pub use config::{MapPlace, NodeConfig, NodeLimits};
pub use digest::RangeDigest;
pub use node::Node;
pub use output::{ClientOp, Output, OwnedReply, Refused};
pub use payload::WideRequest;
pub(crate) use persist::{kept_map, replica_key};
pub use recover::NodeError;
pub use status::{Counters, MemberStatus, NodeStatus};

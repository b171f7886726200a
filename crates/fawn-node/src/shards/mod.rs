//! Shards of one node: ownership of keys, and the messages between shards.
//!
//! ```text
//! session → execute → [own key] → engine
//!                   → [another's] → Outstanding → MessageBatch → (queue) → proxy session → execute → engine
//! session ← Outstanding ← MessageBatch ← (queue) ← replies of the proxy session
//! ```
//! A shard owns a slice of the ring and its store; sessions stay with their connections. The host
//! moves batches in order and without loss.
pub(crate) mod keyspace_op;
mod message_batch;
pub(crate) mod outstanding;
mod peer_mailboxes;
mod peers;
mod placement;
mod replies;

pub use message_batch::MessageBatch;
pub use placement::Placement;

pub(crate) use message_batch::MessageKind;
pub(crate) use outstanding::Outstanding;
pub(crate) use peer_mailboxes::PeerMailboxes;

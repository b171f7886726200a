//! Requests that leave a session's direct line: to other shards of the node, and behind the session's own requests.
//!
//! ```text
//! gateway → Forwarder (slot, grant, OutstandingOp) → MessageBatch → (mailbox) → serve → exec → engine
//! session ← replies ← Forwarder ← MessageBatch ← (mailbox) ← CommitWaiters or at once
//! ```
//! A shard owns a slice of the ring and its store; sessions stay with their connections. The host moves batches in order
//! and without loss. The shard that asks pays: it reserves the request and its reply before the request leaves, so a
//! shard always accepts the others' requests and replies.
mod commit_waiters;
mod fan_out;
mod forwarder;
mod key_queues;
mod message_batch;
mod multi;
mod outstanding;
mod placement;
mod ready;
mod replies;
mod serve;

pub use message_batch::MessageBatch;
pub use placement::Placement;

pub(crate) use fan_out::{flush_all, keyspace};
pub(crate) use forwarder::Forwarder;
pub(crate) use key_queues::QueuedRequest;
pub(crate) use multi::LargerItem;
pub(crate) use outstanding::OutstandingOp;

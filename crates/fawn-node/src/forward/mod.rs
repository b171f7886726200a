//! Requests that are not executed at once: sent to other shards or to chains, or queued behind requests of their
//! session.
//!
//! ```text
//! shard/single → Forwarder (slot, grant, OutstandingOp) → MessageBatch → (mailbox) → shard/peer_messages → exec
//! session ← shard/peer_replies ← Forwarder ← MessageBatch ← (mailbox) ← CommitWaiters, or at once
//! ```
//! On a standalone node a shard owns a slice of the ring and its store; sessions stay with their connections. The host
//! moves batches in order and without loss. The shard that asks pays: it reserves the request and its reply before the
//! request leaves, so a shard always accepts the others' requests and replies.
mod cluster_ops;
mod commit_waiters;
mod forwarder;
mod key_queues;
mod message_batch;
mod outstanding;
mod routes;

pub use message_batch::MessageBatch;

pub(crate) use cluster_ops::ClusterOps;
pub(crate) use forwarder::Forwarder;
pub(crate) use key_queues::{QueuedRequest, SessionQueueName};

//! Queues per session and key: one operation is at the cluster, later ones wait behind it.
//!
//! A connection's operation waits for its own earlier one on the same key [replication.md § 3]: retries may overtake
//! each other, so two are never at the cluster together. Consecutive waiting reads share one reply: all of
//! them were received before it was requested, so it is recent enough for each.
use crate::request::{ReplyTarget, RequestBody, SessionId, StoredRequest};
use fawn_types::{KeyHash, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A session and the keyed hash of a key; two keys of one hash merely share a queue.
pub(super) type SessionKey = (SessionId, KeyHash);

/// An operation of a session.
#[derive(Debug)]
pub(super) struct QueuedOp {
    pub(super) target: ReplyTarget,
    pub(super) is_update: bool,
    pub(super) request: StoredRequest,
}

impl QueuedOp {
    pub(super) fn new(target: ReplyTarget, request: &Request<'_>) -> Self {
        let is_update = matches!(request, Request::Update { .. });
        Self { target, is_update, request: StoredRequest::new(&RequestBody::Key(*request)) }
    }

    /// Without an update's bytes: enough to reply.
    fn into_answerable(self) -> Self {
        if !self.is_update {
            return self;
        }
        let request = StoredRequest::new(&RequestBody::Key(Request::Get { key: self.request.request().key() }));
        Self { request, ..self }
    }
}

/// Operations with a common reply: an update, or reads.
pub(super) type SharedReplyOps = SmallVec<[QueuedOp; 1]>;

/// One queue.
#[derive(Debug, Default)]
struct KeyQueue {
    at_cluster: SharedReplyOps,
    /// Bytes of their requests.
    at_cluster_bytes: usize,
    waiting: VecDeque<QueuedOp>,
}

/// All queues of a front-end. Bounded by its bounds on requests and bytes.
#[derive(Debug, Default)]
pub(super) struct KeyQueues {
    queues: HashMap<SessionKey, KeyQueue, FxBuildHasher>,
    requests: usize,
    bytes: usize,
}

impl KeyQueues {
    /// Requests in all queues.
    pub(super) const fn requests(&self) -> usize {
        self.requests
    }

    /// Bytes of these requests.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn contains(&self, name: SessionKey) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&name)
    }

    /// Opens a queue for an operation that was just sent, or queues `op`.
    pub(super) fn push(&mut self, name: SessionKey, op: QueuedOp, is_sent: bool) {
        let bytes = op.request.len_bytes();
        self.requests += 1;
        self.bytes += bytes;
        let line = self.queues.entry(name).or_default();
        if is_sent {
            assert!(line.at_cluster.is_empty() && line.waiting.is_empty(), "a session's operations keep their order");
            line.at_cluster_bytes = bytes;
            line.at_cluster.push(op.into_answerable());
        } else {
            line.waiting.push_back(op);
        }
    }

    /// The first waiting operation, if none of the queue is at the cluster.
    pub(super) fn next(&self, name: SessionKey) -> Option<&QueuedOp> {
        let line = self.queues.get(&name)?;
        assert!(line.at_cluster.is_empty(), "one at a time");
        line.waiting.front()
    }

    /// The first waiting operation was sent; further reads join a read.
    pub(super) fn sent(&mut self, name: SessionKey) {
        let Some(line) = self.queues.get_mut(&name) else { unreachable!("a sent operation was in a queue") };
        while let Some(op) = line.waiting.pop_front_if(|op| line.at_cluster.is_empty() || !op.is_update) {
            line.at_cluster_bytes += op.request.len_bytes();
            let is_update = op.is_update;
            line.at_cluster.push(op.into_answerable());
            if is_update {
                break;
            }
        }
        assert!(!line.at_cluster.is_empty(), "something was sent");
    }

    /// The reply has arrived: returns the operations it belongs to.
    pub(super) fn answered(&mut self, name: SessionKey) -> SharedReplyOps {
        let Some(line) = self.queues.get_mut(&name) else { unreachable!("a queue exists until its reply arrives") };
        let together = std::mem::take(&mut line.at_cluster);
        self.bytes -= std::mem::take(&mut line.at_cluster_bytes);
        self.requests -= together.len();
        together
    }

    /// The reply found no budget: its reads are repeated before all waiting operations.
    pub(super) fn put_back(&mut self, name: SessionKey, ops: impl DoubleEndedIterator<Item = QueuedOp>) {
        let Some(line) = self.queues.get_mut(&name) else { unreachable!("a queue exists until it is closed") };
        assert!(line.at_cluster.is_empty(), "an operation at the cluster is not repeated");
        for op in ops.rev() {
            self.requests += 1;
            self.bytes += op.request.len_bytes();
            line.waiting.push_front(op);
        }
    }

    /// The first waiting operation.
    pub(super) fn front(&self, name: SessionKey) -> Option<&QueuedOp> {
        self.queues.get(&name)?.waiting.front()
    }

    /// Removes the first waiting operation, which is answered locally.
    pub(super) fn refuse(&mut self, name: SessionKey) -> Option<QueuedOp> {
        let op = self.queues.get_mut(&name)?.waiting.pop_front()?;
        self.bytes -= op.request.len_bytes();
        self.requests -= 1;
        Some(op)
    }

    /// Removes an empty queue.
    pub(super) fn close_if_empty(&mut self, name: SessionKey) {
        if self.queues.get(&name).is_some_and(|line| line.at_cluster.is_empty() && line.waiting.is_empty()) {
            self.queues.remove(&name);
        }
    }
}

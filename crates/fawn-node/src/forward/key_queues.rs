//! Queues of requests that wait for their session's earlier request on the same key.
use crate::request::{ReplyTarget, SessionId, StoredRequest};
use fawn_types::{KeyHash, MonoMs, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// A session and the keyed hash of a key; two keys of one hash merely share a queue.
pub(crate) type SessionQueueName = (SessionId, KeyHash);

/// A waiting request on one key, with its reserved slot.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) target: ReplyTarget,
    pub(crate) request: StoredRequest,
    pub(crate) queued_at: MonoMs,
}

/// A queue.
#[derive(Debug, Default)]
struct SessionQueue {
    requests: VecDeque<QueuedRequest>,
    /// The first one waits for a grant.
    waits_for_grant: bool,
}

/// All queues of a shard.
#[derive(Debug, Default)]
pub(crate) struct SessionQueues {
    queues: HashMap<SessionQueueName, SessionQueue, FxBuildHasher>,
    /// Requests in all queues.
    pub(super) requests: usize,
    /// Bytes of these.
    pub(super) requests_bytes: usize,
}

impl SessionQueues {
    #[inline]
    pub(crate) fn contains(&self, name: SessionQueueName) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&name)
    }

    fn count(&mut self, request: &QueuedRequest) {
        self.requests += 1;
        self.requests_bytes += request.request.len_bytes();
    }

    /// Adds a request at the end; returns whether the queue is new.
    pub(crate) fn push(&mut self, name: SessionQueueName, request: QueuedRequest) -> bool {
        self.count(&request);
        let queue = self.queues.entry(name).or_default();
        queue.requests.push_back(request);
        queue.requests.len() == 1
    }

    /// Adds a request before all others; returns whether the queue is new.
    pub(crate) fn push_front(&mut self, name: SessionQueueName, request: QueuedRequest) -> bool {
        self.count(&request);
        let queue = self.queues.entry(name).or_default();
        queue.requests.push_front(request);
        queue.requests.len() == 1
    }

    /// Whether the first request waits for a grant.
    pub(crate) fn waits_for_grant(&self, name: SessionQueueName) -> bool {
        self.queues.get(&name).is_some_and(|queue| queue.waits_for_grant)
    }

    pub(crate) fn set_waits_for_grant(&mut self, name: SessionQueueName, waits: bool) {
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.waits_for_grant = waits;
        }
    }

    /// The first request.
    pub(crate) fn front(&self, name: SessionQueueName) -> Option<&QueuedRequest> {
        self.queues.get(&name)?.requests.front()
    }

    /// Takes the first request; returns it with whether it was the last, so that the queue is gone.
    pub(crate) fn pop(&mut self, name: SessionQueueName) -> Option<(QueuedRequest, bool)> {
        let queue = self.queues.get_mut(&name)?;
        let Some(first) = queue.requests.pop_front() else { unreachable!("an empty queue is removed") };
        let is_last = queue.requests.is_empty();
        if is_last {
            self.queues.remove(&name);
        }
        self.requests -= 1;
        self.requests_bytes -= first.request.len_bytes();
        Some((first, is_last))
    }

    /// Whether the first request reads this key.
    pub(crate) fn reads_next(&self, name: SessionQueueName, key: &[u8]) -> bool {
        let is_read = |next: &QueuedRequest| matches!(next.request.request(), Request::Get { key: of } if of == key);
        self.front(name).is_some_and(is_read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{ReplyPlace, RequestBody};
    use fawn_wire::ReplyFormat;

    #[test]
    fn two_keys_of_one_hash_share_a_queue_but_no_reply() {
        let name = (SessionId::NONE, KeyHash(7));
        let mut queues = SessionQueues::default();
        let get = |key| {
            let target = ReplyTarget { session: name.0, place: ReplyPlace::Slot(0), format: ReplyFormat::Silent };
            let request = StoredRequest::new(&RequestBody::Key(Request::Get { key }));
            QueuedRequest { target, request, queued_at: MonoMs(0) }
        };
        assert!(queues.push(name, get(b"one")) && !queues.push(name, get(b"two")));
        assert!(queues.reads_next(name, b"one") && !queues.reads_next(name, b"two"));
        assert!(queues.pop(name).is_some_and(|(_, is_last)| !is_last));
        assert!(!queues.reads_next(name, b"one") && queues.reads_next(name, b"two"));
        assert!(queues.pop(name).is_some_and(|(_, is_last)| is_last) && !queues.contains(name));
        assert_eq!((queues.requests, queues.requests_bytes), (0, 0));
    }
}

//! Waiting requests: for their device read, or in their key's queue.
//!
//! Sequence numbers follow evaluation, so N pipelined updates of one cold key cost one read [replication.md § 3]: the
//! first one opens the key's queue and reads, later requests on the key wait behind it.
use super::reads::ReadWaiter;
use crate::replica::RangeSlot;
use crate::request::{RequestHead, StoredRequest};
use fawn_ds::internals::Scan;
use fawn_types::{ClientTag, KeyHash};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A member's key, by its keyed hash: clients cannot aim at one bucket, and two keys of one hash merely share a queue.
pub(crate) type QueueName = (RangeSlot, KeyHash);

/// The bytes of a waiting request.
#[derive(Debug)]
pub(super) enum WaitingBody {
    Request(StoredRequest),
    Scan(Box<Scan>),
    /// It runs at this moment.
    Taken,
}

#[derive(Debug)]
struct WaitingRequest {
    head: RequestHead,
    body: WaitingBody,
    generation: u32,
    /// Hashes of a batch's keys after the first: it is in the queue of each.
    others: Box<[KeyHash]>,
}

impl WaitingRequest {
    /// The queues that it is in.
    fn queues(&self) -> impl Iterator<Item = QueueName> {
        let hashes = self.head.is_queued.then_some(&self.head.hash).into_iter().chain(&self.others);
        hashes.map(|hash| (self.head.slot, *hash))
    }
}

/// All waiting requests of a shard.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    requests: Slab<WaitingRequest>,
    /// Requests per key in order of arrival; the first one reads.
    queues: HashMap<QueueName, VecDeque<usize>, FxBuildHasher>,
    /// Tags of waiting updates, to drop their retries.
    tags: HashSet<ClientTag, FxBuildHasher>,
    /// Queues whose first request found the log's buffers full; they run again in the next iteration.
    pub(crate) retries: Vec<QueueName>,
    generation: u32,
}

impl WaitQueue {
    /// Number of waiting requests; a request on several keys counts per key.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether requests on the key wait in its queue.
    #[inline]
    pub(crate) fn has_queue(&self, slot: RangeSlot, hash: KeyHash) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&(slot, hash))
    }

    pub(crate) fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    pub(super) fn holds_tag(&self, tag: ClientTag) -> bool {
        !self.tags.is_empty() && self.tags.contains(&tag)
    }

    pub(super) fn insert(&mut self, head: RequestHead, body: WaitingBody, others: Box<[KeyHash]>) -> usize {
        self.generation = self.generation.wrapping_add(1);
        if head.tag.is_some() {
            self.tags.insert(head.tag);
        }
        let id = self.requests.insert(WaitingRequest { head, body, generation: self.generation, others });
        for name in self.requests[id].queues() {
            self.queues.entry(name).or_default().push_back(id);
        }
        id
    }

    /// Whether the request is first in all queues that it is in.
    pub(super) fn is_first(&self, id: usize) -> bool {
        self.requests[id].queues().all(|name| self.front(name) == Some(id))
    }

    /// All queues that a batch is in; nothing for any other request.
    pub(super) fn batch_queues(&self, id: usize) -> SmallVec<[QueueName; 4]> {
        let request = &self.requests[id];
        if request.others.is_empty() { SmallVec::new() } else { request.queues().collect() }
    }

    pub(super) fn head(&self, id: usize) -> &RequestHead {
        &self.requests[id].head
    }

    /// The request is granted a reply of at least this length.
    pub(super) fn raise_grant(&mut self, id: usize, bytes: usize) {
        let grant_bytes = &mut self.requests[id].head.grant_bytes;
        *grant_bytes = bytes.max(*grant_bytes);
    }

    /// The request that waits for this read, unless it was refused when its range stopped.
    pub(crate) fn reader(&self, at: usize, generation: u32) -> Option<&RequestHead> {
        self.requests.get(at).filter(|waiting| waiting.generation == generation).map(|waiting| &waiting.head)
    }

    pub(super) fn waiter(&self, id: usize) -> ReadWaiter {
        ReadWaiter::Request { at: id, generation: self.requests[id].generation }
    }

    /// Takes out a request's bytes while it runs; [`WaitQueue::put_back`] them, or [`WaitQueue::remove`] it.
    pub(super) fn take(&mut self, id: usize) -> WaitingBody {
        std::mem::replace(&mut self.requests[id].body, WaitingBody::Taken)
    }

    pub(super) fn put_back(&mut self, id: usize, body: WaitingBody) {
        let before = std::mem::replace(&mut self.requests[id].body, body);
        debug_assert!(matches!(before, WaitingBody::Taken), "a request is put back where it was taken");
    }

    /// Removes a request that is done. If it is in its key's queue, it is the first there.
    pub(super) fn remove(&mut self, id: usize) -> RequestHead {
        let request = self.requests.remove(id);
        self.tags.remove(&request.head.tag);
        for name in request.queues() {
            let Some(queue) = self.queues.get_mut(&name) else { unreachable!("a queued request is in a queue") };
            assert_eq!(queue.pop_front(), Some(id), "requests on a key are executed in order");
            if queue.is_empty() {
                self.queues.remove(&name);
            }
        }
        request.head
    }

    /// The first request in a key's queue.
    pub(super) fn front(&self, name: QueueName) -> Option<usize> {
        self.queues.get(&name)?.front().copied()
    }

    /// Removes all requests of a member, in no particular order. None of them was executed.
    pub(super) fn take_range(&mut self, slot: RangeSlot) -> Vec<RequestHead> {
        let of_range =
            |(id, waiting): (usize, &WaitingRequest)| (waiting.head.slot == slot).then_some((id, waiting.head));
        let taken: Vec<(usize, RequestHead)> = self.requests.iter().filter_map(of_range).collect();
        for (id, head) in &taken {
            self.requests.remove(*id);
            self.tags.remove(&head.tag);
        }
        self.queues.retain(|(of, _), _| *of != slot);
        taken.into_iter().map(|(_, head)| head).collect()
    }
}

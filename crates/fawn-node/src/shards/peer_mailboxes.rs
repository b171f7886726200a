//! A shard's queues to and from the other shards: batches to send, outstanding requests, reserved bytes.
use super::{MessageBatch, Placement, message_batch::MessageKind};
use crate::SessionId;
use crate::keyspace_op::KeyspaceOp;
use crate::options::ShardOptions;
use crate::shards::outstanding::Outstanding;
use crate::status::ShardStatus;
use fawn_types::{HashSecret, ShardId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::VecDeque;

/// Replies for one shard that wait to be sent, bytes; beyond it they wait in their session, whose input stalls.
const ANSWERS_BYTES_MAX: usize = 256 << 10;

/// Memory of batches that is kept for reuse; more is released.
const SPARE_BYTES_MAX: usize = 2 * ANSWERS_BYTES_MAX;

/// Queues between the shards of a node; a shard that is alone has none.
#[derive(Debug)]
pub(crate) struct PeerMailboxes {
    placement: Placement,
    secret: HashSecret,
    /// Batch for each shard, including this one: whole-keyspace requests treat all shards alike.
    outbox: Vec<MessageBatch>,
    /// Memory of received batches, for new ones.
    spare: Vec<MessageBatch>,
    spare_bytes: usize,
    /// Proxy sessions here, per shard and requesting session.
    pub(super) peers: Vec<HashMap<SessionId, SessionId, FxBuildHasher>>,
    /// Proxy sessions with replies to send, and proxy sessions that accept requests again.
    pub(super) ready_replies: VecDeque<SessionId>,
    pub(super) resumed: VecDeque<SessionId>,
    /// Requests that these sessions could not accept yet.
    pub(super) unprocessed_input: HashMap<SessionId, Vec<u8>, FxBuildHasher>,
    /// Outstanding requests, and their reserved bytes.
    requests: usize,
    requests_bytes: usize,
    /// Sessions with reads to repeat, because their replies found no budget.
    pub(super) deferred: VecDeque<SessionId>,
    pub(super) keyspace_ops: Slab<KeyspaceOp>,
    /// Requests without a waiting session.
    pub(super) internal_requests: Outstanding,
    /// Counters of the other shards.
    pub(crate) peer_stats: ShardStatus,
    /// A batch arrived in this iteration.
    pub(super) has_moved: bool,
}

impl PeerMailboxes {
    pub(crate) fn new(placement: Placement, secret: HashSecret) -> Self {
        let count = usize::from(placement.count());
        assert!(count > 1, "a shard without peers has no mailboxes");
        Self {
            placement,
            secret,
            outbox: vec![MessageBatch::default(); count],
            spare: Vec::new(),
            spare_bytes: 0,
            peers: vec![HashMap::default(); count],
            ready_replies: VecDeque::new(),
            resumed: VecDeque::new(),
            unprocessed_input: HashMap::default(),
            requests: 0,
            requests_bytes: 0,
            deferred: VecDeque::new(),
            keyspace_ops: Slab::new(),
            internal_requests: Outstanding::default(),
            peer_stats: ShardStatus::default(),
            has_moved: false,
        }
    }

    pub(crate) const fn placement(&self) -> Placement {
        self.placement
    }

    /// Number of shards of the node.
    pub(super) fn count(&self) -> usize {
        self.outbox.len()
    }

    /// The shard that owns the key, unless it is this one.
    #[inline]
    pub(crate) fn elsewhere(&self, key: &[u8]) -> Option<ShardId> {
        let owner = self.placement.owner(&self.secret, key);
        (owner != self.placement.shard()).then_some(owner)
    }

    /// Whether one more request may be sent.
    pub(crate) const fn has_capacity(&self, options: &ShardOptions) -> bool {
        self.requests < options.pending_max && self.requests_bytes <= options.requests_bytes_max
    }

    /// Reserves a request; returns the bytes that it uses until its reply.
    #[inline]
    pub(super) fn ask(&mut self, to: ShardId, session: SessionId, put: impl FnOnce(&mut Vec<u8>)) -> usize {
        let batch = &mut self.outbox[usize::from(to.0)];
        let before = batch.bytes();
        batch.add(MessageKind::Requests, session, put);
        let bytes = batch.bytes() - before;
        self.requests += 1;
        self.requests_bytes += bytes;
        bytes
    }

    /// Releases a request that is answered or whose session has ended.
    pub(super) const fn answered(&mut self, bytes: usize) {
        self.requests -= 1;
        self.requests_bytes -= bytes;
    }

    /// Sends a message to all other shards.
    pub(crate) fn send_to_all(&mut self, kind: MessageKind, session: SessionId) {
        let me = usize::from(self.placement.shard().0);
        let others = self.outbox.iter_mut().enumerate().filter(|(at, _)| *at != me);
        others.for_each(|(_, batch)| batch.add(kind, session, |_| {}));
    }

    /// Sends a message to one shard.
    pub(super) fn send_message(&mut self, to: ShardId, kind: MessageKind, session: SessionId) {
        self.outbox[usize::from(to.0)].add(kind, session, |_| {});
    }

    /// Queues replies of the proxy session for `of` of shard `to`; returns whether they fit.
    pub(super) fn answer(&mut self, (to, of): (ShardId, SessionId), frames: &[u8]) -> bool {
        let batch = &mut self.outbox[usize::from(to.0)];
        let has_room = batch.bytes() < ANSWERS_BYTES_MAX;
        if has_room {
            batch.add(MessageKind::Replies, of, |out| out.extend_from_slice(frames));
        }
        has_room
    }

    /// The batch for that shard.
    pub(crate) fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        let at = usize::from(to.0);
        if self.outbox[at].is_empty() {
            return None;
        }
        let next = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= next.capacity_bytes();
        Some(std::mem::replace(&mut self.outbox[at], next))
    }

    /// Returns the memory of a received batch.
    pub(super) fn keep_spare(&mut self, batch: MessageBatch) {
        let spare_bytes = self.spare_bytes + batch.capacity_bytes();
        if self.spare.len() < self.outbox.len() && spare_bytes <= SPARE_BYTES_MAX {
            self.spare_bytes = spare_bytes;
            self.spare.push(batch.emptied());
        }
    }

    /// The batch for this shard itself.
    pub(super) fn take_own(&mut self) -> Option<MessageBatch> {
        self.take_batch(self.placement.shard())
    }

    /// Number of outstanding requests.
    pub(crate) const fn requests(&self) -> usize {
        self.requests
    }

    /// Number of proxy sessions.
    pub(crate) fn proxy_sessions(&self) -> usize {
        self.peers.iter().map(HashMap::len).sum()
    }

    /// Whether a reply arrived in this iteration: further requests may be sent.
    pub(crate) const fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Whether replies wait for space in a batch.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.ready_replies.is_empty()
    }

    /// Whether the next iteration has work without an event.
    pub(crate) fn is_due(&self) -> bool {
        !self.resumed.is_empty() || !self.outbox[usize::from(self.placement.shard().0)].is_empty()
    }

    /// Whether nothing is outstanding, neither here nor for other shards.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == 0
            && self.keyspace_ops.is_empty()
            && self.deferred.is_empty()
            && self.ready_replies.is_empty()
            && self.unprocessed_input.is_empty()
            && self.outbox.iter().all(MessageBatch::is_empty)
    }
}

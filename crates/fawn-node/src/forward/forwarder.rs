//! Forwarder of a shard: outboxes, outstanding operations, queues per session and key, whole-keyspace operations.
use super::MessageBatch;
use super::cluster_ops::ClusterOps;
use super::commit_waiters::CommitWaiters;
use super::key_queues::{QueuedRequest, SessionQueueName, SessionQueues};
use super::outstanding::Outstanding;
use super::routes::Routes;
use crate::gateway::Session;
use crate::keyspace_op::KeyspaceOp;
use crate::options::ShardOptions;
use crate::placement::Placement;
use crate::request::{Destination, Origin, OutstandingOp, RequestKind, ShardOpId};
use crate::status::ShardStatus;
use fawn_chain::RangeEntry;
use fawn_types::{HashSecret, OperationError, Reply, ShardId, Version};
use fawn_wire::internal::{
    Message, RequestBody, RequestFields, put_larger_message, put_notice, put_reply_message, put_request_message,
};
use slab::Slab;
use std::collections::VecDeque;

/// Memory of batches that is kept for reuse; more is released.
const SPARE_BYTES_MAX: usize = 512 << 10;

/// All requests of a shard's sessions that are at other shards or at chains, or queued behind requests of their
/// session.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// This shard.
    pub(crate) shard: ShardId,
    routes: Routes,
    /// All keys are this shard's.
    is_alone: bool,
    /// Operations of a cluster's node at chains. A standalone node has none.
    pub(crate) cluster: Option<Box<ClusterOps>>,
    /// Batch for each shard, including this one: whole-keyspace requests treat all shards alike.
    outbox: Vec<MessageBatch>,
    /// Memory of received batches, for new ones.
    spare: Vec<MessageBatch>,
    spare_bytes: usize,
    pub(crate) outstanding: Outstanding,
    /// Bytes of outstanding requests, at shards and at chains.
    outstanding_bytes: usize,
    pub(crate) key_queues: SessionQueues,
    /// Queues whose first request may begin.
    pub(crate) ready: VecDeque<SessionQueueName>,
    /// Memory of the keys of requests on several keys that wait.
    pub(crate) multis_bytes: usize,
    pub(crate) keyspace_ops: Slab<KeyspaceOp>,
    /// Replies to shards that wait for a commit here.
    commit_waiters: CommitWaiters,
    /// Counters of the other shards.
    pub(crate) peer_stats: ShardStatus,
    /// A reply or a device event arrived in this iteration: stalled sessions may continue.
    pub(crate) has_moved: bool,
}

impl Forwarder {
    pub(crate) fn new(placement: Placement, secret: HashSecret, cluster: Option<Box<ClusterOps>>) -> Self {
        let routes = match &cluster {
            Some(cluster) => Routes::of_map(cluster.map()),
            None => Routes::of_shards(secret, placement.count()),
        };
        Self {
            shard: placement.shard(),
            routes,
            is_alone: cluster.is_none() && placement.count() == 1,
            cluster,
            outbox: vec![MessageBatch::default(); usize::from(placement.count())],
            spare: Vec::new(),
            spare_bytes: 0,
            outstanding: Outstanding::default(),
            outstanding_bytes: 0,
            key_queues: SessionQueues::default(),
            ready: VecDeque::new(),
            multis_bytes: 0,
            keyspace_ops: Slab::new(),
            commit_waiters: CommitWaiters::default(),
            peer_stats: ShardStatus::default(),
            has_moved: false,
        }
    }

    /// Number of parts of a request on the whole keyspace: the shards of the node, or the ranges of the cluster.
    pub(crate) const fn parts(&self) -> usize {
        self.routes.len()
    }

    /// The destination of a part; the map never has fewer ranges than before.
    pub(crate) fn part(&self, index: usize) -> Destination {
        self.routes.of_range(index)
    }

    pub(crate) fn all_parts(&self) -> Vec<Destination> {
        (0..self.parts()).map(|index| self.part(index)).collect()
    }

    /// The destination of requests on the key.
    pub(crate) fn destination(&self, key: &[u8]) -> Destination {
        self.routes.of_key(key)
    }

    /// Whether this shard is the destination.
    #[inline]
    pub(crate) fn is_here(&self, to: Destination) -> bool {
        to == Destination::Shard(self.shard)
    }

    /// The destination of requests on the key, unless this shard executes them.
    #[inline]
    pub(crate) fn remote_destination(&self, key: &[u8]) -> Option<Destination> {
        if self.is_alone {
            return None;
        }
        let to = self.destination(key);
        (!self.is_here(to)).then_some(to)
    }

    /// The map has a newer entry.
    pub(crate) fn handle_entry(&mut self, entry: &RangeEntry) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.handle_entry(entry);
        self.routes = Routes::of_map(cluster.map());
    }

    /// Requests elsewhere or in queues.
    pub(crate) fn requests(&self) -> usize {
        self.outstanding.len() + self.cluster.as_ref().map_or(0, |cluster| cluster.len()) + self.key_queues.requests
    }

    /// Bytes granted to the session's requests elsewhere.
    pub(crate) fn granted_bytes(&self, session: &Session) -> usize {
        if !session.own_keys.has_open_values() {
            return 0;
        }
        let at_chains = self.cluster.as_ref().map_or(0, |cluster| cluster.granted_bytes(session.id));
        self.outstanding.granted_bytes(session.id) + at_chains
    }

    /// Whether one more request may be sent or queued.
    pub(crate) fn has_capacity(&self, options: &ShardOptions) -> bool {
        let bytes = self.outstanding_bytes + self.key_queues.requests_bytes + self.multis_bytes;
        self.requests() < options.pending_max && bytes <= options.requests_bytes_max
    }

    /// Whether operations on some range wait for its window.
    pub(crate) fn has_full_windows(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.has_unstarted())
    }

    /// Whether one more request to this destination may be sent.
    pub(crate) fn accepts(&self, to: Destination, options: &ShardOptions) -> bool {
        let has_window = match (to, &self.cluster) {
            (Destination::Chain(range), Some(cluster)) => cluster.has_capacity(range),
            _ => true,
        };
        has_window && self.has_capacity(options)
    }

    /// Sends a request.
    #[inline]
    pub(crate) fn send(&mut self, to: Destination, op: OutstandingOp, body: &RequestBody<'_>, is_latest: bool) {
        match to {
            Destination::Shard(shard) => self.send_to_shard(shard, op, body, is_latest),
            Destination::Chain(range) => {
                let Some(cluster) = &mut self.cluster else { unreachable!("only a cluster has chains") };
                self.outstanding_bytes += cluster.start(range, op, body);
            }
        }
    }

    #[inline]
    fn send_to_shard(&mut self, to: ShardId, mut op: OutstandingOp, body: &RequestBody<'_>, is_latest: bool) {
        let ShardOpId(id) = self.outstanding.next_id();
        let grant_bytes = match op.kind {
            RequestKind::Value => u32::try_from(op.grant_bytes).unwrap_or(u32::MAX),
            _ => u32::MAX,
        };
        let fields = RequestFields { op: id, hash: op.hash, grant_bytes, is_latest };
        let out = &mut self.outbox[usize::from(to.0)].bytes;
        let before_bytes = out.len();
        put_request_message(&fields, |out| body.put(out), out);
        op.request_bytes = out.len() - before_bytes;
        self.insert(op);
    }

    /// The origin of the next operation of this shard's sessions.
    pub(crate) fn next_origin(&self) -> Origin {
        Origin::Shard { shard: self.shard, op: self.outstanding.next_id() }
    }

    /// Adds the operation of [`Forwarder::next_origin`].
    #[inline]
    pub(crate) fn insert(&mut self, op: OutstandingOp) {
        self.outstanding_bytes += op.request_bytes;
        self.outstanding.insert(op);
    }

    /// An operation of this shard's sessions, if `shard` is this one.
    pub(crate) fn own_op(&mut self, shard: ShardId, op: ShardOpId) -> Option<&mut OutstandingOp> {
        (shard == self.shard).then(|| self.outstanding.get_mut(op))
    }

    /// An operation has ended: its reply, or its refusal for a longer value, has arrived.
    pub(crate) const fn note_end(&mut self, op: &OutstandingOp) {
        self.outstanding_bytes -= op.request_bytes;
        self.has_moved = true;
    }

    /// Adds a request to its session's queue on the key.
    pub(crate) fn queue(&mut self, name: SessionQueueName, session: &mut Session, request: QueuedRequest) {
        if self.key_queues.push(name, request) {
            session.own_keys.open_queue(name.1);
        }
    }

    /// Makes the queue ready: an earlier request of its session on its key has its reply.
    #[inline]
    pub(crate) fn wake(&mut self, name: SessionQueueName) {
        if self.key_queues.contains(name) {
            self.ready.push_back(name);
        }
    }

    /// Replies to a shard, now or with the commit of a version.
    #[inline]
    pub(crate) fn reply(&mut self, to: (ShardId, ShardOpId), reply: &Reply<'_>, wait: Option<Version>) {
        match wait {
            None => put_reply_message(to.1.0, reply, &mut self.outbox[usize::from(to.0.0)].bytes),
            Some(version) => self.commit_waiters.push(to, reply, version),
        }
    }

    /// Sends the replies whose versions are committed.
    pub(crate) fn settle(&mut self, committed: Version, failed: Option<OperationError>) {
        self.commit_waiters.settle(committed, failed, &mut self.outbox);
    }

    /// Returns a request to the shard that sent it: the value of its reply is longer than its grant.
    pub(crate) fn give_back(&mut self, (to, op): (ShardId, ShardOpId), bytes: usize, body: &RequestBody<'_>) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        put_larger_message(op.0, bytes, body, &mut self.outbox[usize::from(to.0)].bytes);
    }

    /// Sends a notice to all other shards.
    pub(crate) fn notify_others(&mut self, notice: Message<'_>) {
        let me = usize::from(self.shard.0);
        let others = self.outbox.iter_mut().enumerate().filter(|(at, _)| *at != me);
        others.for_each(|(_, batch)| put_notice(notice, &mut batch.bytes));
    }

    /// The batch for that shard.
    pub(crate) fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        let at = usize::from(to.0);
        if self.outbox[at].is_empty() {
            return None;
        }
        let next = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= next.bytes.capacity();
        Some(std::mem::replace(&mut self.outbox[at], next))
    }

    /// Returns the memory of a received batch.
    pub(crate) fn keep_spare(&mut self, mut batch: MessageBatch) {
        batch.bytes.clear();
        let spare_bytes = self.spare_bytes + batch.bytes.capacity();
        if self.spare.len() < self.outbox.len() && spare_bytes <= SPARE_BYTES_MAX {
            self.spare_bytes = spare_bytes;
            self.spare.push(batch);
        }
    }

    /// Whether the next iteration has work without an event.
    pub(crate) fn is_due(&self) -> bool {
        !self.ready.is_empty() || !self.outbox[usize::from(self.shard.0)].is_empty()
    }

    /// Whether nothing is outstanding, neither here nor for other shards.
    pub(crate) fn is_idle(&self) -> bool {
        let bytes = self.outstanding_bytes + self.key_queues.requests_bytes;
        assert!(self.requests() > 0 || bytes == 0, "{bytes} bytes of no request");
        self.requests() == 0
            && self.keyspace_ops.is_empty()
            && self.commit_waiters.is_empty()
            && self.outbox.iter().all(MessageBatch::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_batches_is_always_reused() {
        let (one, other) = (ShardId(0), ShardId(1));
        let Some(placement) = Placement::new(one, 2) else { unreachable!("two shards") };
        let mut forward = Forwarder::new(placement, HashSecret([1; 16]), None);
        for round in 0..SPARE_BYTES_MAX as u64 / 8 {
            forward.reply((other, ShardOpId(round)), &Reply::Deleted, None);
            let Some(batch) = forward.take_batch(other) else { unreachable!("it has a reply") };
            forward.keep_spare(batch);
            assert_eq!(forward.spare.len(), 1, "round {round}");
        }
    }
}

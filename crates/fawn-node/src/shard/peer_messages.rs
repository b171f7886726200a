//! Messages of the node's shards: their requests are executed, their replies are delivered.
//!
//! A shard executes the requests of others as its own. It has no session for them: the shard that asks orders them, and
//! a request that has to wait is parked with its origin.
use super::{Shard, ShardContext};
use crate::forward::MessageBatch;
use crate::replica::RangeSlot;
use crate::request::{Origin, RequestBody, RequestMessage, ShardOpId, bound_scan};
use crate::status::ShardStatus;
use fawn_ds::internals::PREFETCH_KEYS_MAX;
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, ShardId};
use fawn_wire::internal::{Message, RequestFields};
use smallvec::SmallVec;

/// Maximum keys of one scan step for a shard.
const SCAN_KEYS_MAX: u32 = 256;

/// Requests that are prefetched together.
type Received<'a> = SmallVec<[(RequestFields, RequestBody<'a>); PREFETCH_KEYS_MAX]>;

impl<D: Device> Shard<D> {
    /// Receives a batch from another shard.
    pub fn handle_batch(&mut self, now: Now, from: ShardId, batch: MessageBatch) {
        self.note_time(now);
        self.handle_messages(from, batch);
    }

    fn handle_messages(&mut self, from: ShardId, batch: MessageBatch) {
        let mut requests = Received::new();
        for message in batch.messages() {
            match message {
                Message::Request { fields, body } => {
                    requests.push((fields, body));
                    if requests.len() == PREFETCH_KEYS_MAX {
                        self.execute_for(from, &mut requests);
                    }
                }
                Message::Reply { op, reply } => {
                    let op = self.state.forward.outstanding.remove(ShardOpId(op));
                    self.host().handle_reply(&op, &reply);
                }
                Message::Larger { op, bytes, body } => {
                    let op = self.state.forward.outstanding.remove(ShardOpId(op));
                    self.host().handle_larger(op, bytes as usize, &body);
                }
                Message::ResetStats => self.state.reset_counters(),
                Message::DropDelayedFlush => self.state.flush_at = None,
            }
        }
        self.execute_for(from, &mut requests);
        drop(requests);
        self.state.forward.keep_spare(batch);
    }

    /// The batch for that shard, if there is one.
    pub fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        self.state.forward.take_batch(to)
    }

    /// Sum of the other shards' counters: clients see the whole node.
    pub fn set_peer_stats(&mut self, others: ShardStatus) {
        self.state.forward.peer_stats = others;
    }

    /// Handles messages of this shard to itself.
    pub(crate) fn handle_own_batch(&mut self) {
        let me = self.state.forward.shard;
        if let Some(batch) = self.take_batch(me) {
            self.handle_messages(me, batch);
        }
    }

    pub(crate) fn host(&mut self) -> ShardContext<'_, D> {
        ShardContext { state: &mut self.state, sessions: &mut self.sessions }
    }

    fn execute_for(&mut self, from: ShardId, requests: &mut Received<'_>) {
        if requests.len() > 1 {
            let on_key = |(fields, body): &(RequestFields, RequestBody<'_>)| match body {
                RequestBody::Key(_) => Some(fields.hash),
                RequestBody::Keyspace(_) => None,
            };
            let hashes: SmallVec<[KeyHash; PREFETCH_KEYS_MAX]> = requests.iter().filter_map(on_key).collect();
            self.state.host.engine.prefetch(self.state.member().id, &hashes);
        }
        for (RequestFields { op, hash, grant_bytes, is_latest }, body) in requests.drain(..) {
            let (body, grant_bytes) = (bound_scan(body, SCAN_KEYS_MAX), grant_bytes as usize);
            let message = RequestMessage { slot: RangeSlot::ONLY, hash, tag: None, is_latest, grant_bytes, body };
            self.state.counters.executed_for_peers += u64::from(from != self.state.forward.shard);
            let origin = Origin::Shard { shard: from, op: ShardOpId(op) };
            self.host().resumption().begin(&message, origin);
        }
    }
}

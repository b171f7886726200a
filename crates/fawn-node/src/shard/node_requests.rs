//! Requests of front-ends to members of this shard: checked against epoch, range and role, executed, and answered by
//! frames.
use super::node_replies::NodeReplies;
use super::{ShardContext, ShardState};
use crate::cluster::payload::decode_request;
use crate::cluster::{MemberHost, member_of};
use crate::keyspace_op::PART_RECORDS_MIN;
use crate::replica::RangeSlot;
use crate::request::{Origin, RequestBody, RequestMessage, Tag, bound_scan};
use fawn_chain::message::RefusedReason;
use fawn_chain::{Body, Frame, Header, Role};
use fawn_flash::Device;
use fawn_types::{ClientTag, KeyHash, RingKey};
use fawn_wire::internal::KeyspaceRequest;

/// Maximum keys requested per page of a scan. A page may exceed this by one index cell, and even then keys of maximum
/// length fit one frame.
const SCAN_KEYS_MAX: u32 = 64;
const _: () = assert!(SCAN_KEYS_MAX as usize >= PART_RECORDS_MIN);

/// The key hash of the index: the low 64 bits of the ring key, so one pass over the key computes both.
fn key_hash_of(ring_key: &RingKey) -> KeyHash {
    let mut low = [0; 8];
    low.copy_from_slice(&ring_key.0[12..]);
    KeyHash(u64::from_be_bytes(low))
}

impl<D: Device> ShardContext<'_, D> {
    /// Handles a front-end's request: checks epoch, range and role, then executes it.
    pub(super) fn handle_request(
        &mut self,
        header: Header,
        (op, client, first_incomplete): (u64, ClientTag, u64),
        payload: &[u8],
    ) {
        let Ok((session, grant, body)) = decode_request(payload) else {
            return self.state.host.counters.malformed += 1;
        };
        let origin = Origin::Node { from: header.from, op, session, range: header.range, epoch: header.epoch };
        let Some(slot) = self.state.host.members.find(header.range) else {
            return self.state.node_replies().refuse(&origin, RefusedReason::WrongRange);
        };
        let replica = &self.state.host.members[slot].replica;
        if replica.admit_epoch(header.epoch).is_err() {
            return self.state.refuse_stale(slot, header, &origin);
        }
        let mut tag = None;
        if body.is_update() {
            // The tail derives the receiver of the reply from the tag alone, so the tag must be the sender's.
            if client != (ClientTag { session, seq: op }) || member_of(session) != header.from {
                return self.state.host.counters.malformed += 1;
            }
            let is_head = matches!(replica.role(), Some(Role::Head | Role::Single));
            let control = self.state.control.as_ref();
            let is_present = control.is_some_and(|control| control.boots.is_present(header.from, header.boot));
            if !is_head || !is_present {
                return self.state.refuse_stale(slot, header, &origin);
            }
            tag = Some(Tag { client, first_incomplete });
        }
        let Some(hash) = self.hash_in_range(slot, &body) else {
            return self.state.node_replies().refuse(&origin, RefusedReason::WrongRange);
        };
        let (body, grant_bytes) = (bound_scan(body, SCAN_KEYS_MAX), grant as usize);
        let message = RequestMessage { slot, hash, tag, is_latest: false, grant_bytes, body };
        self.resumption().begin(&message, origin);
    }

    /// The hash of the request's key, if it has one, unless a key is not in the member's range.
    fn hash_in_range(&self, slot: RangeSlot, body: &RequestBody<'_>) -> Option<KeyHash> {
        let (secret, replica) = (self.state.host.engine.secret(), &self.state.host.members[slot].replica);
        let (hash, is_covered) = match body {
            RequestBody::Key(request) => {
                let ring_key = RingKey::of(secret, request.key());
                (key_hash_of(&ring_key), replica.covers(&ring_key))
            }
            RequestBody::Keyspace(KeyspaceRequest::SetAll(pairs)) => {
                (KeyHash(0), pairs.iter().all(|(key, _)| replica.covers(&RingKey::of(secret, key))))
            }
            RequestBody::Keyspace(_) => (KeyHash(0), true),
        };
        is_covered.then_some(hash)
    }
}

impl<D: Device> ShardState<D> {
    fn node_replies(&mut self) -> NodeReplies<'_> {
        let Self { host: MemberHost { encoded, counters, .. }, links, .. } = self;
        NodeReplies { links, encoded, counters }
    }

    /// Refuses a request of `header`'s epoch as stale. Also sends the range's entry if the sender's is older.
    fn refuse_stale(&mut self, slot: RangeSlot, header: Header, origin: &Origin) {
        let Self { host: MemberHost { members, announced_to, .. }, links, .. } = self;
        let (range, replica) = (members[slot].id, &members[slot].replica);
        if let Some(entry) = replica.entry().filter(|entry| entry.epoch > header.epoch)
            && !announced_to.contains(&(header.from, range))
        {
            announced_to.push((header.from, range));
            let body = Body::Entry(entry.clone());
            links.send(header.from, &Frame { header: links.header(range, replica.epoch()), body });
        }
        self.node_replies().refuse(origin, RefusedReason::StaleEpoch);
    }
}

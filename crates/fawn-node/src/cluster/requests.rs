//! Front-ends' requests at a back-end: checked against epoch, range and role, executed, and answered by frames.
use super::backend::BackEnd;
use super::config::node_of;
use super::payload::{decode_body, put_reply, put_result_as_reply};
use super::peer_links::PeerLinks;
use super::status::BackEndCounters;
use crate::exec::{ReplySink, Resumption, handle_commit};
use crate::replica::{MemberTable, RangeSlot};
use crate::request::{Execution, Origin, RequestBody, RequestHead, RequestMessage, Tag};
use fawn_chain::message::RefusedReason;
use fawn_chain::{Body, Frame, Header, Rejection, Role};
use fawn_ds::internals::LookupPlan;
use fawn_flash::Device;
use fawn_types::{ClientTag, KeyHash, RangeId, Reply, RingKey, Version};
use fawn_wire::internal::KeyspaceRequest;

/// Maximum keys requested per page of a scan. A page may exceed this by one index cell, and even then keys of maximum
/// length fit one frame.
const SCAN_KEYS_MAX: u32 = 64;

/// The key hash of the index: the low 64 bits of the ring key, so one pass over the key computes both.
fn key_hash_of(ring_key: &RingKey) -> KeyHash {
    let mut low = [0; 8];
    low.copy_from_slice(&ring_key.0[12..]);
    KeyHash(u64::from_be_bytes(low))
}

/// Receiver of the executor's replies for one member: frames to the front-ends.
struct NodeReplies<'a> {
    links: &'a mut PeerLinks,
    encoded: &'a mut Vec<u8>,
    counters: &'a mut BackEndCounters,
    /// Of the member's frames.
    header: Header,
}

impl NodeReplies<'_> {
    fn send(&mut self, origin: &Origin, reply: &Reply<'_>) {
        let Origin::Node { node, op, session } = *origin else { unreachable!("a back-end executes for front-ends") };
        self.encoded.clear();
        put_reply(self.encoded, session, reply);
        self.links.send_reply(node, self.header, op, self.encoded);
    }

    /// Sends a reply, unless it must wait for a commit: then the front-end asks again, and finds what was committed.
    fn send_committed(&mut self, origin: &Origin, reply: &Reply<'_>, wait: Option<Version>) {
        match wait {
            None => self.send(origin, reply),
            Some(_) => self.send_refusal(origin, RefusedReason::Overloaded),
        }
    }

    fn send_refusal(&mut self, origin: &Origin, reason: RefusedReason) {
        let Origin::Node { node, op, .. } = *origin else { unreachable!("a back-end executes for front-ends") };
        self.counters.refused += 1;
        self.links.send(node, Frame { header: self.header, body: Body::Refused { op, reason } });
    }
}

impl ReplySink for NodeReplies<'_> {
    fn reply(&mut self, head: &RequestHead, _key: &[u8], reply: &Reply<'_>, wait: Option<Version>) {
        self.send_committed(&head.origin, reply, wait);
    }

    fn refuse(&mut self, head: &RequestHead, rejection: &Rejection) {
        self.send_refusal(&head.origin, reason_of(rejection));
    }
}

const fn reason_of(rejection: &Rejection) -> RefusedReason {
    match rejection {
        Rejection::TooFewCopies => RefusedReason::TooFewCopies,
        // The manager begins a new epoch for the latter.
        Rejection::Overloaded | Rejection::EpochFull => RefusedReason::Overloaded,
        Rejection::NotServing | Rejection::StaleEpoch { .. } | Rejection::WrongMember { .. } => {
            RefusedReason::StaleEpoch
        }
    }
}

fn header_of(members: &MemberTable, slot: RangeSlot, links: &PeerLinks) -> Header {
    links.header(members[slot].id, members[slot].replica.epoch())
}

impl<D: Device> BackEnd<D> {
    /// Handles a front-end's request: checks epoch, range and role, then executes it.
    pub(super) fn handle_request(
        &mut self,
        header: Header,
        (op, client, first_incomplete): (u64, ClientTag, u64),
        payload: &[u8],
        links: &mut PeerLinks,
    ) {
        let Ok((session, body)) = decode_body(payload) else { return self.counters.malformed += 1 };
        let origin = Origin::Node { node: header.from, op, session };
        let Some(slot) = self.members.find(header.range) else {
            return self.refuse(header.range, &origin, RefusedReason::WrongRange, links);
        };
        let replica = &self.members[slot].replica;
        if replica.admit_epoch(header.epoch).is_err() {
            return self.refuse_stale(slot, header, &origin, links);
        }
        let mut tag = None;
        if body.is_update() {
            // The tail derives the receiver of the reply from the tag alone, so the tag must be the sender's.
            if client != (ClientTag { session, seq: op }) || node_of(session) != header.from {
                return self.counters.malformed += 1;
            }
            if !matches!(replica.role(), Some(Role::Head | Role::Single)) {
                return self.refuse_stale(slot, header, &origin, links);
            }
            tag = Some(Tag { client, first_incomplete });
        }
        let Some(message) = self.message(slot, tag, body) else {
            return self.refuse(header.range, &origin, RefusedReason::WrongRange, links);
        };
        match self.execute(&message, origin, links) {
            Ok(()) => {}
            Err(RefusedReason::StaleEpoch) => self.refuse_stale(slot, header, &origin, links),
            Err(reason) => self.refuse(header.range, &origin, reason, links),
        }
    }

    /// The message for a member, unless a key is not in its range.
    fn message<'a>(&self, slot: RangeSlot, tag: Option<Tag>, body: RequestBody<'a>) -> Option<RequestMessage<'a>> {
        let (secret, replica) = (self.engine.secret(), &self.members[slot].replica);
        let request = match body {
            RequestBody::Key(request) => {
                let ring_key = RingKey::of(secret, request.key());
                let hash = key_hash_of(&ring_key);
                let message = RequestMessage { slot, hash, tag, is_latest: false, grant_bytes: usize::MAX, body };
                return replica.covers(&ring_key).then_some(message);
            }
            RequestBody::Keyspace(KeyspaceRequest::Scan { cursor, count }) => {
                KeyspaceRequest::Scan { cursor, count: count.clamp(1, SCAN_KEYS_MAX) }
            }
            RequestBody::Keyspace(request) => request,
        };
        let is_covered = match request {
            KeyspaceRequest::SetAll(pairs) => pairs.iter().all(|(key, _)| replica.covers(&RingKey::of(secret, key))),
            _ => true,
        };
        is_covered.then(|| RequestMessage::keyspace(slot, tag, request))
    }

    fn execute(
        &mut self,
        message: &RequestMessage<'_>,
        origin: Origin,
        links: &mut PeerLinks,
    ) -> Result<(), RefusedReason> {
        let Resumption { exec, engine, members, now, mut sink } = self.resumption(message.slot, links);
        match exec.execute(engine, members, message, now, |reply, wait| sink.send_committed(&origin, reply, wait)) {
            Execution::Replied => Ok(()),
            Execution::Park(parking) if exec.has_capacity() => {
                exec.park(engine, parking, message, origin);
                Ok(())
            }
            Execution::Park(_) | Execution::Blocked | Execution::Larger { .. } => Err(RefusedReason::Overloaded),
            Execution::Refused(rejection) => Err(reason_of(&rejection)),
        }
    }

    /// The executor with all that a request to a member needs.
    fn resumption<'a>(&'a mut self, slot: RangeSlot, links: &'a mut PeerLinks) -> Resumption<'a, D, NodeReplies<'a>> {
        let header = header_of(&self.members, slot, links);
        let Self { engine, members, exec, encoded, counters, now, .. } = self;
        Resumption { exec, engine, members, now: *now, sink: NodeReplies { links, encoded, counters, header } }
    }

    /// A device read for a request has ended.
    pub(super) fn request_read(&mut self, id: usize, generation: u32, plan: LookupPlan, links: &mut PeerLinks) {
        // A request of a range that stopped was refused then.
        if let Some(slot) = self.exec.wait_queue.reader(id, generation).map(|head| head.slot) {
            self.resumption(slot, links).handle_read(id, plan);
        }
    }

    /// Refuses all waiting requests of a member that stopped serving.
    pub(super) fn handle_stopped(&mut self, slot: RangeSlot, links: &mut PeerLinks) {
        self.resumption(slot, links).handle_stopped(slot);
    }

    /// Commits all records through `through`. At a tail, also replies to their operations.
    pub(super) fn commit(&mut self, slot: RangeSlot, through: Version, links: &mut PeerLinks) {
        let header = header_of(&self.members, slot, links);
        let Self { engine, members, encoded, counters, .. } = self;
        handle_commit(engine, &mut members[slot], through, |tag, done| {
            counters.replies += 1;
            encoded.clear();
            put_result_as_reply(encoded, tag.session, done.version, &done.result);
            links.send_reply(node_of(tag.session), header, tag.seq, encoded);
        });
    }

    /// Counters, with those of the executor.
    pub(super) fn counters(&self) -> BackEndCounters {
        let executed = self.exec.counters;
        BackEndCounters {
            reads: executed.gets,
            writes: executed.writes + executed.flushes,
            cold: executed.cold,
            retries_answered: executed.retries_answered,
            ..self.counters
        }
    }

    /// Replies that a request was not executed.
    fn refuse(&mut self, range: RangeId, origin: &Origin, reason: RefusedReason, links: &mut PeerLinks) {
        let epoch = self.members.find(range).map(|slot| self.members[slot].replica.epoch()).unwrap_or_default();
        let header = links.header(range, epoch);
        let mut replies = NodeReplies { links, encoded: &mut self.encoded, counters: &mut self.counters, header };
        replies.send_refusal(origin, reason);
    }

    /// Refuses a request of `header`'s epoch as stale. Also sends the range's entry if the sender's is older.
    fn refuse_stale(&mut self, slot: RangeSlot, header: Header, origin: &Origin, links: &mut PeerLinks) {
        let (range, replica) = (self.members[slot].id, &self.members[slot].replica);
        if let Some(entry) = replica.entry().filter(|entry| entry.epoch > header.epoch)
            && !self.announced_to.contains(&(header.from, range))
        {
            self.announced_to.push((header.from, range));
            let body = Body::Entry(entry.clone());
            links.send(header.from, Frame { header: links.header(range, replica.epoch()), body });
        }
        self.refuse(range, origin, RefusedReason::StaleEpoch, links);
    }
}

//! Outstanding requests of a session at other shards: sent in order, answered in order, per shard.
//!
//! A shard executes a session's requests as if the session were its own (`peers.rs`), so requests on one key
//! keep their order. One rule is added here: a read whose reply is not admitted is repeated with a grant. Hence
//! a write to a key waits until the session's reads of that key have their replies, and a later read whose reply
//! overtook a dropped one is repeated too.
use super::peer_mailboxes::PeerMailboxes;
use crate::SessionId;
use crate::exec::{ReplyPlace, ReplyTarget};
use crate::gateway::{Flow, ShardState, Stall};
use crate::session::{OutBuf, Session};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, Request, ShardId, limits};
use fawn_wire::internal::put_request_frame;
use fawn_wire::{ReplyFormat, encode_reply};
use std::collections::VecDeque;

/// An outstanding request to a shard.
#[derive(Debug)]
pub(super) enum Awaited {
    /// On one key.
    Op(ForwardedOp),
    /// A part of a whole-keyspace request: its index in the table, and its bytes.
    Keyspace { at: usize, bytes: usize },
}

/// An outstanding request on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardedOp {
    /// Number of the request in its session.
    number: u64,
    pub(super) place: ReplyPlace,
    hash: KeyHash,
    format: ReplyFormat,
    pub(super) is_update: bool,
    is_reread: bool,
    /// Key length in the per-shard FIFO; 0 if the reply encoding does not need the key.
    key_bytes: usize,
    /// Bytes reserved for the request.
    pub(super) bytes: usize,
}

impl ForwardedOp {
    pub(super) const fn new(place: ReplyPlace, hash: KeyHash, format: ReplyFormat, is_update: bool) -> Self {
        Self { number: 0, place, hash, format, is_update, is_reread: false, key_bytes: 0, bytes: 0 }
    }

    /// Target of the reply.
    pub(super) const fn reply_target(&self, session: SessionId) -> ReplyTarget {
        ReplyTarget { session, place: self.place, format: self.format }
    }
}

/// A read whose reply found no budget, with everything needed to repeat it.
#[derive(Debug)]
pub(super) struct DeferredRead {
    pub(super) asked: ForwardedOp,
    pub(super) key: Box<[u8]>,
    /// Length of the dropped reply; 0 if it was dropped for the order of reads.
    pub(super) bytes: usize,
}

/// Outstanding requests to one shard, in order.
#[derive(Debug, Default)]
struct PeerFifo {
    awaited: VecDeque<Awaited>,
    /// Keys of these requests, concatenated: first in, first out, so none needs an allocation. Bounded
    /// by the bytes reserved for the requests.
    keys: OutBuf,
}

/// Memory for keys that an idle FIFO keeps.
const KEPT_BYTES: usize = 4 << 10;

/// A session's outstanding requests.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    peers: Vec<PeerFifo>,
    next_number: u64,
    /// Reads without a reply, including deferred ones.
    reads: usize,
    /// Repeated reads without a reply.
    repeated: usize,
    /// Reads whose replies found no budget, in the order of their numbers.
    pub(super) deferred: VecDeque<DeferredRead>,
}

impl Outstanding {
    fn peer(&mut self, shard: ShardId) -> &mut PeerFifo {
        let at = usize::from(shard.0);
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, PeerFifo::default);
        }
        &mut self.peers[at]
    }

    fn push(&mut self, shard: ShardId, asked: ForwardedOp, key: &[u8]) {
        let way = self.peer(shard);
        way.keys.bytes.extend_from_slice(key);
        way.awaited.push_back(Awaited::Op(ForwardedOp { key_bytes: key.len(), ..asked }));
    }

    /// The request of the shard's next reply. After a request on one key, call [`Outstanding::drop_key`].
    pub(super) fn pop(&mut self, shard: ShardId) -> Option<Awaited> {
        let mut awaited = self.peers.get_mut(usize::from(shard.0))?.awaited.pop_front()?;
        if let Awaited::Op(asked) = &mut awaited {
            self.repeated -= usize::from(std::mem::replace(&mut asked.is_reread, false));
        }
        Some(awaited)
    }

    /// The key of the request that was popped last.
    pub(super) fn key(&self, shard: ShardId, asked: &ForwardedOp) -> &[u8] {
        &self.peers[usize::from(shard.0)].keys.as_slice()[..asked.key_bytes]
    }

    /// Releases the key of the request that was popped last.
    pub(super) fn drop_key(&mut self, shard: ShardId, asked: &ForwardedOp) {
        let keys = &mut self.peers[usize::from(shard.0)].keys;
        keys.consume(asked.key_bytes);
        if keys.is_empty() && keys.bytes.capacity() > KEPT_BYTES {
            keys.bytes = Vec::new();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Awaited> {
        self.peers.iter().flat_map(|way| &way.awaited)
    }

    /// Whether a read has no reply yet.
    pub(crate) const fn reads(&self) -> bool {
        self.reads > 0
    }

    /// Whether a read of the key (or of one with its hash, which is harmless) has no reply yet.
    fn reads_key(&self, hash: KeyHash) -> bool {
        self.reads > 0
            && self.all().any(|awaited| match awaited {
                Awaited::Op(asked) => !asked.is_update && asked.hash == hash,
                Awaited::Keyspace { .. } => false,
            })
    }

    /// Whether a request must wait before it is sent, because it would overtake a repeated read.
    fn must_wait(&self, hash: KeyHash, is_update: bool) -> bool {
        !self.deferred.is_empty() || is_update && self.reads_key(hash)
    }

    /// A read has its reply.
    pub(super) const fn read_ended(&mut self) {
        self.reads -= 1;
    }

    /// Whether an earlier read of the same key is deferred, or was repeated.
    pub(super) fn is_overtaking(&self, asked: &ForwardedOp) -> bool {
        let is_before = |other: &ForwardedOp| other.number < asked.number && other.hash == asked.hash;
        self.deferred.iter().any(|late| is_before(&late.asked))
            || self.repeated > 0 && self.all().any(|other| matches!(other, Awaited::Op(other) if is_before(other)))
    }

    /// Defers a read, in order.
    pub(super) fn put_deferred(&mut self, late: DeferredRead) {
        let at = self.deferred.partition_point(|other| other.asked.number < late.asked.number);
        self.deferred.insert(at, late);
    }

    /// All requests without a reply.
    pub(super) fn drain(&mut self) -> (impl Iterator<Item = Awaited>, impl Iterator<Item = DeferredRead>) {
        (self.peers.drain(..).flat_map(|way| way.awaited), self.deferred.drain(..))
    }

    /// The shards with a proxy session for this session.
    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.peers.len() as u16).map(ShardId)
    }
}

impl PeerMailboxes {
    /// Sends a request, encoded by `put`, for a session. Its reply is encoded with `key`.
    pub(super) fn send(
        &mut self,
        session: &mut Session,
        to: ShardId,
        (asked, key): (ForwardedOp, &[u8]),
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let bytes = self.ask(to, session.id, put);
        let outstanding = session.outstanding.get_or_insert_default();
        let number = outstanding.next_number;
        outstanding.next_number += 1;
        outstanding.reads += usize::from(!asked.is_update);
        outstanding.push(to, ForwardedOp { number, bytes, ..asked }, key);
    }

    /// Repeats a read whose reply found no budget.
    pub(super) fn send_again(
        &mut self,
        (outstanding, session): (&mut Outstanding, SessionId),
        to: ShardId,
        late: &DeferredRead,
    ) {
        let request = Request::Get { key: &late.key };
        let bytes = self.ask(to, session, |out| put_request_frame(&request, late.asked.hash, out));
        outstanding.repeated += 1;
        outstanding.push(to, ForwardedOp { bytes, is_reread: true, ..late.asked }, &late.key);
    }

    /// Sends a part of a whole-keyspace request.
    pub(super) fn send_keyspace_op(
        &mut self,
        (outstanding, session): (&mut Outstanding, SessionId),
        (to, at): (ShardId, usize),
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let bytes = self.ask(to, session, put);
        outstanding.peer(to).awaited.push_back(Awaited::Keyspace { at, bytes });
    }
}

/// Data for the reply's encoding, and for a repetition of a read.
const fn asked_of<'a>(
    target: ReplyPlace,
    hash: KeyHash,
    request: &Request<'a>,
    format: ReplyFormat,
) -> (ForwardedOp, &'a [u8]) {
    // Replies without a value do not contain the key.
    let key = if request.returns_value() { request.key() } else { &[] };
    (ForwardedOp::new(target, hash, format, matches!(request, Request::Update { .. })), key)
}

/// A single request on another shard's key.
pub(crate) fn single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (to, hash): (ShardId, KeyHash),
    request: &Request<'_>,
    format: ReplyFormat,
) -> Flow {
    if let Err(stall) = admit(state, session, hash, matches!(request, Request::Update { .. })) {
        return Flow::Stall(stall);
    }
    if request.key().len() > limits::KEY_BYTES_MAX {
        let reply = Reply::Error(OperationError::KeyTooLong);
        session.replies.respond(|out| encode_reply(format, request.key(), &reply, out));
        return Flow::Continue;
    }
    let values = u32::from(request.returns_value());
    if !session.grant(session.replies.estimate_bytes(values)) {
        return Flow::Stall(Stall::ReplyBudget);
    }
    let slot = session.replies.reserve_estimate(values);
    let asked = asked_of(ReplyPlace::Slot(slot), hash, request, format);
    state.counters.forwarded += 1;
    state.links().send(session, to, asked, |out| put_request_frame(request, hash, out));
    Flow::Continue
}

/// One key of a request on several keys: [`admit`] has admitted the whole request.
pub(crate) fn item<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (to, hash): (ShardId, KeyHash),
    request: &Request<'_>,
    target: ReplyPlace,
) {
    let asked = asked_of(target, hash, request, ReplyFormat::Silent);
    state.counters.forwarded += 1;
    state.links().send(session, to, asked, |out| put_request_frame(request, hash, out));
}

/// Reason why a request on another shard's key must wait, if any.
pub(crate) fn admit<D: Device>(
    state: &ShardState<D>,
    session: &Session,
    hash: KeyHash,
    is_update: bool,
) -> Result<(), Stall> {
    if session.outstanding.as_ref().is_some_and(|outstanding| outstanding.must_wait(hash, is_update)) {
        return Err(Stall::Reads);
    }
    match &state.links {
        Some(links) if !links.has_capacity(&state.options) => Err(Stall::Shard),
        _ => Ok(()),
    }
}

//! Outstanding requests of a session at other shards: sent in order, answered in order, per shard.
//!
//! A shard executes a session's requests as if the session were its own (`peers.rs`), so requests on one key
//! keep their order. One rule is added here: a read whose reply finds no budget is dropped and repeated. Hence
//! a write to a key waits until the session's reads of that key have their replies, and a later read whose reply
//! overtook a dropped one is repeated too.
use super::links::Links;
use crate::SessionId;
use crate::execute::{Core, Flow, Stall};
use crate::pending::{Asker, Target};
use crate::session::{OutBuf, Session};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, Request, ShardId, limits};
use fawn_wire::native::put_request_frame;
use fawn_wire::{Shape, encode_reply};
use std::collections::VecDeque;

/// An outstanding request to a shard.
#[derive(Debug)]
pub(super) enum Awaited {
    /// On one key.
    Op(Asked),
    /// A part of a request on all ranges: its place in the table, and its bytes.
    Wide { at: usize, bytes: usize },
}

/// An outstanding request on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Number of the request in its session.
    number: u64,
    pub(super) target: Target,
    hash: KeyHash,
    shape: Shape,
    pub(super) is_update: bool,
    is_again: bool,
    /// Key length in the per-shard FIFO; 0 if the reply encoding does not need the key.
    key_bytes: usize,
    /// Bytes reserved for the request.
    pub(super) bytes: usize,
}

impl Asked {
    pub(super) const fn new(target: Target, hash: KeyHash, shape: Shape, is_update: bool) -> Self {
        Self { number: 0, target, hash, shape, is_update, is_again: false, key_bytes: 0, bytes: 0 }
    }

    /// Target of the reply.
    pub(super) const fn asker<'a>(&self, session: SessionId, key: &'a [u8]) -> Asker<'a> {
        Asker { session, target: self.target, shape: self.shape, key, is_queued: self.is_update }
    }
}

/// A read whose reply found no budget, with everything needed to repeat it.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) asked: Asked,
    pub(super) key: Box<[u8]>,
}

/// Outstanding requests to one shard, in order.
#[derive(Debug, Default)]
struct Way {
    awaited: VecDeque<Awaited>,
    /// Keys of these requests, concatenated: first in, first out, so none needs an allocation. Bounded
    /// by the bytes reserved for the requests.
    keys: OutBuf,
}

/// Memory for keys that an idle FIFO keeps.
const KEPT_BYTES: usize = 4 << 10;

/// A session's outstanding requests.
#[derive(Debug, Default)]
pub(crate) struct Away {
    ways: Vec<Way>,
    next_number: u64,
    /// Reads without a reply, including deferred ones.
    reads: usize,
    /// Repeated reads without a reply.
    again: usize,
    /// Reads whose replies found no budget, in the order of their numbers.
    pub(super) late: VecDeque<Late>,
}

impl Away {
    fn way(&mut self, shard: ShardId) -> &mut Way {
        let at = usize::from(shard.0);
        if self.ways.len() <= at {
            self.ways.resize_with(at + 1, Way::default);
        }
        &mut self.ways[at]
    }

    fn push(&mut self, shard: ShardId, asked: Asked, key: &[u8]) {
        let way = self.way(shard);
        way.keys.bytes.extend_from_slice(key);
        way.awaited.push_back(Awaited::Op(Asked { key_bytes: key.len(), ..asked }));
    }

    /// The request of the shard's next reply. After a request on one key, call [`Away::drop_key`].
    pub(super) fn pop(&mut self, shard: ShardId) -> Option<Awaited> {
        let mut awaited = self.ways.get_mut(usize::from(shard.0))?.awaited.pop_front()?;
        if let Awaited::Op(asked) = &mut awaited {
            self.again -= usize::from(std::mem::replace(&mut asked.is_again, false));
        }
        Some(awaited)
    }

    /// The key of the request that was popped last.
    pub(super) fn key(&self, shard: ShardId, asked: &Asked) -> &[u8] {
        &self.ways[usize::from(shard.0)].keys.as_slice()[..asked.key_bytes]
    }

    /// Releases the key of the request that was popped last.
    pub(super) fn drop_key(&mut self, shard: ShardId, asked: &Asked) {
        let keys = &mut self.ways[usize::from(shard.0)].keys;
        keys.consume(asked.key_bytes);
        if keys.is_empty() && keys.bytes.capacity() > KEPT_BYTES {
            keys.bytes = Vec::new();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Awaited> {
        self.ways.iter().flat_map(|way| &way.awaited)
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
                Awaited::Wide { .. } => false,
            })
    }

    /// Whether a request must wait before it is sent, because it would overtake a repeated read.
    fn must_wait(&self, hash: KeyHash, is_update: bool) -> bool {
        !self.late.is_empty() || is_update && self.reads_key(hash)
    }

    /// A read has its reply.
    pub(super) const fn read_ended(&mut self) {
        self.reads -= 1;
    }

    /// Whether an earlier read of the same key is deferred, or was repeated.
    pub(super) fn is_overtaking(&self, asked: &Asked) -> bool {
        let is_before = |other: &Asked| other.number < asked.number && other.hash == asked.hash;
        self.late.iter().any(|late| is_before(&late.asked))
            || self.again > 0 && self.all().any(|other| matches!(other, Awaited::Op(other) if is_before(other)))
    }

    /// Defers a read, in order.
    pub(super) fn put_late(&mut self, late: Late) {
        let at = self.late.partition_point(|other| other.asked.number < late.asked.number);
        self.late.insert(at, late);
    }

    /// All requests without a reply.
    pub(super) fn drain(&mut self) -> (impl Iterator<Item = Awaited>, impl Iterator<Item = Late>) {
        (self.ways.drain(..).flat_map(|way| way.awaited), self.late.drain(..))
    }

    /// The shards with a proxy session for this session.
    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.ways.len() as u16).map(ShardId)
    }
}

impl Links {
    /// Sends a request, encoded by `put`, for a session. Its reply is encoded with `key`.
    pub(super) fn send(
        &mut self,
        session: &mut Session,
        to: ShardId,
        (asked, key): (Asked, &[u8]),
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let bytes = self.ask(to, session.id, put);
        let away = session.away.get_or_insert_default();
        let number = away.next_number;
        away.next_number += 1;
        away.reads += usize::from(!asked.is_update);
        away.push(to, Asked { number, bytes, ..asked }, key);
    }

    /// Repeats a read whose reply found no budget.
    pub(super) fn send_again(&mut self, (away, session): (&mut Away, SessionId), to: ShardId, late: &Late) {
        let request = Request::Get { key: &late.key };
        let bytes = self.ask(to, session, |out| put_request_frame(&request, late.asked.hash, out));
        away.again += 1;
        away.push(to, Asked { bytes, is_again: true, ..late.asked }, &late.key);
    }

    /// Sends a part of a request on all ranges.
    pub(super) fn send_wide(
        &mut self,
        (away, session): (&mut Away, SessionId),
        (to, at): (ShardId, usize),
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let bytes = self.ask(to, session, put);
        away.way(to).awaited.push_back(Awaited::Wide { at, bytes });
    }
}

/// Data for the reply's encoding, and for a repetition of a read.
const fn asked_of<'a>(target: Target, hash: KeyHash, request: &Request<'a>, shape: Shape) -> (Asked, &'a [u8]) {
    // Replies without a value do not contain the key.
    let key = if request.returns_value() { request.key() } else { &[] };
    (Asked::new(target, hash, shape, matches!(request, Request::Update { .. })), key)
}

/// A single request on another shard's key.
pub(crate) fn single<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    (to, hash): (ShardId, KeyHash),
    request: &Request<'_>,
    shape: Shape,
) -> Flow {
    if let Err(stall) = admit(core, session, hash, matches!(request, Request::Update { .. })) {
        return Flow::Stall(stall);
    }
    if request.key().len() > limits::KEY_BYTES_MAX {
        let reply = Reply::Error(OperationError::KeyTooLong);
        session.replies.respond(|out| encode_reply(shape, request.key(), &reply, out));
        return Flow::Next;
    }
    let slot = session.replies.reserve(u32::from(request.returns_value()));
    let asked = asked_of(Target::Slot(slot), hash, request, shape);
    core.counters.away += 1;
    core.links().send(session, to, asked, |out| put_request_frame(request, hash, out));
    Flow::Next
}

/// One key of a request on several keys: [`admit`] has admitted the whole request.
pub(crate) fn item<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    (to, hash): (ShardId, KeyHash),
    request: &Request<'_>,
    target: Target,
) {
    let asked = asked_of(target, hash, request, Shape::Silent);
    core.counters.away += 1;
    core.links().send(session, to, asked, |out| put_request_frame(request, hash, out));
}

/// Reason why a request on another shard's key must wait, if any.
pub(crate) fn admit<D: Device>(core: &Core<D>, session: &Session, hash: KeyHash, is_update: bool) -> Result<(), Stall> {
    if session.away.as_ref().is_some_and(|away| away.must_wait(hash, is_update)) {
        return Err(Stall::Reads);
    }
    match &core.links {
        Some(links) if !links.has_room(&core.options) => Err(Stall::Shard),
        _ => Ok(()),
    }
}

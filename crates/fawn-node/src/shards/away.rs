//! Owns a session's requests that are away at other shards: asked in order, answered in order, each shard by itself.
//!
//! A shard answers a session's requests as if the session were its own (`peers.rs`), so what a session asks of one key
//! keeps its order there. One thing is decided here: a read whose answer finds no room is dropped and asked again. So
//! a write to a key waits until the session's reads of that key have their answers, and a later read of it whose answer
//! overtook an earlier one is asked again too.
use super::links::Links;
use crate::SessionId;
use crate::execute::{Core, Flow, Stall};
use crate::pending::{Op, Target};
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, Request, ShardId, limits};
use fawn_wire::native::put_request_frame;
use fawn_wire::{Shape, encode_reply};
use std::collections::VecDeque;

/// Something that was asked of a shard.
#[derive(Debug)]
pub(super) enum Awaited {
    /// On one key.
    Op(Asked),
    /// A part of a request on all ranges: its place in the table, and what it was asked with.
    Wide { at: usize, bytes: usize },
}

/// A request on one key; of an update what it takes to answer it, of a read also what it takes to ask again.
#[derive(Debug)]
pub(super) struct Asked {
    /// Requests of a session are numbered in their order.
    pub(super) number: u64,
    /// Updates among them are `is_queued`.
    pub(super) op: Op,
    bytes: usize,
    is_again: bool,
}

/// A session's requests that are away.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// Per shard, in order.
    asked: Vec<VecDeque<Awaited>>,
    next_number: u64,
    /// Reads without an answer, the late ones included.
    reads: usize,
    /// Reads that were asked again and have no answer yet.
    again: usize,
    /// Reads whose answers found no room, in the order of their numbers.
    pub(super) late: VecDeque<Asked>,
}

impl Away {
    fn push(&mut self, shard: ShardId, awaited: Awaited) {
        let at = usize::from(shard.0);
        if self.asked.len() <= at {
            self.asked.resize_with(at + 1, VecDeque::new);
        }
        self.asked[at].push_back(awaited);
    }

    /// What the next answer of that shard is for.
    pub(super) fn pop(&mut self, shard: ShardId) -> Option<Awaited> {
        let mut awaited = self.asked.get_mut(usize::from(shard.0))?.pop_front()?;
        if let Awaited::Op(asked) = &mut awaited {
            self.again -= usize::from(std::mem::replace(&mut asked.is_again, false));
        }
        Some(awaited)
    }

    /// Whether a read is without its answer.
    pub(crate) const fn reads(&self) -> bool {
        self.reads > 0
    }

    /// Whether a read of the key (or of one with its hash, which is harmless) is without its answer.
    fn reads_key(&self, hash: KeyHash) -> bool {
        self.reads > 0
            && self.asked.iter().flatten().any(|awaited| match awaited {
                Awaited::Op(Asked { op, .. }) => !op.is_queued && op.hash == hash,
                Awaited::Wide { .. } => false,
            })
    }

    /// Whether a request must wait before it goes away: it would overtake what is to be asked again.
    fn must_wait(&self, hash: KeyHash, is_update: bool) -> bool {
        !self.late.is_empty() || is_update && self.reads_key(hash)
    }

    /// A read has its answer.
    pub(super) const fn read_ended(&mut self) {
        self.reads -= 1;
    }

    /// Whether an earlier read of the same key is to be asked again, or has been.
    pub(super) fn is_overtaking(&self, asked: &Asked) -> bool {
        let is_before = |other: &Asked| other.number < asked.number && other.op.hash == asked.op.hash;
        self.late.iter().any(is_before)
            || self.again > 0
                && self.asked.iter().flatten().any(|other| matches!(other, Awaited::Op(other) if is_before(other)))
    }

    /// It is to be asked again, in its order.
    pub(super) fn put_late(&mut self, asked: Asked) {
        let at = self.late.partition_point(|late| late.number < asked.number);
        self.late.insert(at, asked);
    }

    /// Everything that has no answer yet.
    pub(super) fn drain(&mut self) -> (impl Iterator<Item = Awaited>, impl Iterator<Item = Asked>) {
        (self.asked.drain(..).flatten(), self.late.drain(..))
    }

    /// The shards that know the session.
    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.asked.len() as u16).map(ShardId)
    }
}

impl Asked {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Links {
    /// Sends a request away for a session: what `put` writes.
    pub(super) fn send(&mut self, session: &mut Session, to: ShardId, op: Op, put: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.ask(to, session.id, put);
        let away = session.away.get_or_insert_default();
        let number = away.next_number;
        away.next_number += 1;
        away.reads += usize::from(!op.is_queued);
        away.push(to, Awaited::Op(Asked { number, op, bytes, is_again: false }));
    }

    /// Asks a read again whose answer found no room.
    pub(super) fn send_again(&mut self, (away, session): (&mut Away, SessionId), to: ShardId, mut asked: Asked) {
        let request = Request::Get { key: asked.op.key() };
        asked.bytes = self.ask(to, session, |out| put_request_frame(&request, out));
        (asked.is_again, away.again) = (true, away.again + 1);
        away.push(to, Awaited::Op(asked));
    }

    /// Sends a part of a request on all ranges away.
    pub(super) fn send_wide(
        &mut self,
        (away, session): (&mut Away, SessionId),
        (to, at): (ShardId, usize),
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let bytes = self.ask(to, session, put);
        away.push(to, Awaited::Wide { at, bytes });
    }
}

/// What it takes to answer a request, and to ask a read again.
fn op_of(session: &Session, target: Target, hash: KeyHash, request: &Request<'_>, shape: Shape) -> Op {
    // Replies without a value are worded without the key.
    let key = if request.returns_value() { request.key() } else { &[] };
    let mut op = Op::get(session.id, target, hash, key, shape);
    op.is_queued = matches!(request, Request::Update { .. });
    op
}

/// A request by itself on another shard's key.
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
    let op = op_of(session, Target::Slot(slot), hash, request, shape);
    core.counters.away += 1;
    core.links().send(session, to, op, |out| put_request_frame(request, out));
    Flow::Next
}

/// One key of a request on several: [`admit`] has let the whole request pass.
pub(crate) fn item<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    (to, hash): (ShardId, KeyHash),
    request: &Request<'_>,
    target: Target,
) {
    let op = op_of(session, target, hash, request, Shape::Silent);
    core.counters.away += 1;
    core.links().send(session, to, op, |out| put_request_frame(request, out));
}

/// What a request on another shard's key must wait for, if anything.
pub(crate) fn admit<D: Device>(core: &Core<D>, session: &Session, hash: KeyHash, is_update: bool) -> Result<(), Stall> {
    if session.away.as_ref().is_some_and(|away| away.must_wait(hash, is_update)) {
        return Err(Stall::Reads);
    }
    match &core.links {
        Some(links) if !links.has_room(&core.options) => Err(Stall::Shard),
        _ => Ok(()),
    }
}

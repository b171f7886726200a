//! Requests on several keys: `MGET`, `DEL`, `EXISTS`, memcached's multi-key `get`, and the atomic `MSET`.
use super::{Flow, MultiReply, PendingMulti, ShardState, Stall, single};
use crate::exec::{Execution, HashedPair, Parking, ReplyPlace, ReplyTarget, refusal_error};
use crate::replica::RangeSlot;
use crate::session::Session;
use crate::shards::keyspace_op::{KeyOwners, place_of};
use crate::shards::{self, outstanding};
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, OperationError, Reply, Request, ShardId, Update, limits};
use fawn_wire::{MultiCommand, ReplyFold, ReplyFormat, encode_done, encode_error};

/// Executes a request on several keys.
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    multi: &MultiCommand<'_>,
    now: Now,
) -> Flow {
    assert!(!multi.is_empty(), "the decoder refuses requests on no key");
    let is_write = multi.requests().next().is_some_and(|request| matches!(request, Request::Update { .. }));
    if is_write
        && !session.own_reads.is_empty()
        && multi.keys().any(|key| session.own_reads.last(state.hash(key)).is_some())
    {
        return Flow::Stall(Stall::Reads);
    }
    if state.links.is_some() {
        for key in multi.keys() {
            if let Err(stall) = outstanding::admit(state, session, state.hash(key), is_write) {
                return Flow::Stall(stall);
            }
        }
    }
    match multi.multi_reply.fold {
        ReplyFold::Atomic(format) => match place_of(state, multi.keys()) {
            KeyOwners::Here => set_all(state, session, pairs_of(multi), format, now),
            KeyOwners::At(owner) => shards::keyspace_op::set_all(state, session, (owner, pairs_of(multi)), format),
            KeyOwners::Apart => shards::keyspace_op::refuse_apart(session),
        },
        ReplyFold::Each(_) | ReplyFold::Count => {
            let values = if matches!(multi.multi_reply.fold, ReplyFold::Each(_)) { multi.multi_reply.len } else { 0 };
            // The length of all values together is not known before they are found: any space admits the request.
            let bytes = if state.links.is_some() { session.replies.estimate_bytes(values) } else { 1 };
            if values > 0 && !session.grant(bytes) {
                return Flow::Stall(Stall::ReplyBudget);
            }
            gather(state, session, multi, now);
            Flow::Continue
        }
    }
}

/// Keys with values, as in `MSET`.
fn pairs_of<'a>(multi: &MultiCommand<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
    multi.requests().map(|request| {
        let Request::Update { key, update: Update::Set { value, .. } } = request else {
            unreachable!("an atomic batch consists of plain sets")
        };
        (key, value)
    })
}

/// `MSET`: one batch in the log, complete or absent after a crash.
pub(super) fn set_all<'a, D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    format: ReplyFormat,
    now: Now,
) -> Flow {
    let pairs: Vec<HashedPair<'a>> = pairs.map(|(key, value)| (state.hash(key), key, value)).collect();
    let ShardState { exec, engine, members, .. } = state;
    let member = &mut members[RangeSlot::ONLY];
    let execution = exec.set_all(engine, member, (RangeSlot::ONLY, None), &pairs, now, |reply, wait| {
        pairs.iter().for_each(|(hash, ..)| session.note(*hash, wait));
        session.replies.respond_after(wait, |out| match reply {
            Reply::Error(error) => encode_error(format, *error, out),
            _ => encode_done(format, out),
        });
    });
    match execution {
        Execution::Blocked => return Flow::Stall(Stall::Shard),
        Execution::Refused(rejection) => {
            session.replies.respond(|out| encode_error(format, refusal_error(&rejection), out));
        }
        _ => {}
    }
    Flow::Continue
}

/// Independent requests whose replies become one.
fn gather<D: Device>(state: &mut ShardState<D>, session: &mut Session, multi: &MultiCommand<'_>, now: Now) {
    let bytes = std::mem::take(&mut state.multi_reply);
    let mut multi_reply = MultiReply::new(multi.multi_reply, bytes, state.options.reply_bytes_max);
    let mut batch = None;
    for request in multi.requests() {
        step(state, session, &request, now, &mut multi_reply, &mut batch);
    }
    match batch {
        None => {
            multi_reply.finish();
            session.replies.respond_after(multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
            state.multi_reply = multi_reply.bytes;
        }
        Some(batch) => {
            let values = if state.links.is_some() { multi_reply.values() } else { 0 };
            let slot = session.replies.reserve_estimate(values);
            state.multis[batch] = PendingMulti { session: session.id, slot, multi_reply: Some(multi_reply) };
        }
    }
}

/// Executes one key: an immediate reply, or a waiting item of `batch`.
fn step<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    request: &Request<'_>,
    now: Now,
    multi_reply: &mut MultiReply,
    batch: &mut Option<usize>,
) {
    let key = request.key();
    let hash = state.hash(key);
    if let Some(owner) = state.elsewhere(session, key) {
        return step_forwarded(state, session, (owner, hash), request, multi_reply, batch);
    }
    // The length of an item is bounded with the whole reply.
    let execution = single::begin(state, session, (hash, request), usize::MAX, now, |session, reply, wait| {
        session.note(hash, wait);
        multi_reply.push(key, reply, wait);
    });
    let parking = match execution {
        Execution::Replied => return,
        Execution::Park(parking) => parking,
        // Earlier keys are done, so the request cannot be offered again as a whole: this key is queued alone.
        Execution::Blocked => Parking::Retry,
        Execution::Refused(rejection) => {
            return multi_reply.push(key, &Reply::Error(refusal_error(&rejection)), None);
        }
        Execution::Larger { .. } => unreachable!("an item has no limit"),
    };
    if !state.exec.has_capacity() {
        state.counters.overloaded += 1;
        return multi_reply.push(key, &Reply::Error(OperationError::Overloaded), None);
    }
    // The slot is reserved before the replies exist: operations refer to it.
    let multi = *batch.get_or_insert_with(|| state.multis.insert(PendingMulti::unfilled()));
    let place = ReplyPlace::Item { multi, item: multi_reply.push_unknown(key) };
    let target = ReplyTarget { session: session.id, place, format: ReplyFormat::Silent };
    single::park(state, session, (hash, request), parking, target);
}

/// Forwards one key to the shard that owns it.
fn step_forwarded<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    owner: (ShardId, KeyHash),
    request: &Request<'_>,
    multi_reply: &mut MultiReply,
    batch: &mut Option<usize>,
) {
    let key = request.key();
    if key.len() > limits::KEY_BYTES_MAX {
        return multi_reply.push(key, &Reply::Error(OperationError::KeyTooLong), None);
    }
    let multi = *batch.get_or_insert_with(|| state.multis.insert(PendingMulti::unfilled()));
    let target = ReplyPlace::Item { multi, item: multi_reply.push_unknown(key) };
    outstanding::item(state, session, owner, request, target);
}

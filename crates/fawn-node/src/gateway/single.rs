//! Requests on one key: executed in place, and parked with a reserved slot if they must wait.
use super::{Flow, ShardState, Stall};
use crate::exec::{Execution, Origin, Parking, ReplyPlace, ReplyTarget, RequestBody, RequestMessage, refusal_error};
use crate::replica::RangeSlot;
use crate::session::Session;
use crate::shards::outstanding;
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, OperationError, Reply, Request, ShardId, Version};
use fawn_wire::{ReplyFormat, encode_reply};

/// Executes a request on one key, with its hash and the shard that owns it unless it is this one. Hot path: no
/// allocation for a `GET` in memory.
#[inline]
pub(crate) fn execute_single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, owner): (KeyHash, Option<ShardId>),
    (request, format): (&Request<'_>, ReplyFormat),
    now: Now,
) -> Flow {
    if let Some(owner) = owner {
        return outstanding::single(state, session, (owner, hash), request, format);
    }
    let Request::Get { key } = request else { return execute_in_order(state, session, (hash, request), format, now) };
    if !session.own_reads.is_empty() || session.queued > 0 {
        return execute_in_order(state, session, (hash, request), format, now);
    }
    // In place: the message of a read is never built in memory.
    let message = message_of(state, session, (hash, request), session.allowed_bytes());
    let ShardState { exec, engine, members, .. } = state;
    let member = &mut members[RangeSlot::ONLY];
    let emit = |reply: &Reply<'_>, wait| respond(hash, key, format)(session, reply, wait);
    match exec.read(engine, member, &message, key, now, emit) {
        Execution::Replied => Flow::Continue,
        other => conclude(state, session, (hash, request), format, other, now),
    }
}

/// An update, or a read that may have to follow earlier requests of its session.
fn execute_in_order<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    format: ReplyFormat,
    now: Now,
) -> Flow {
    let grant_bytes = if request.returns_value() { session.allowed_bytes() } else { usize::MAX };
    match begin(state, session, (hash, request), grant_bytes, now, respond(hash, request.key(), format)) {
        Execution::Replied => Flow::Continue,
        other => conclude(state, session, (hash, request), format, other, now),
    }
}

/// Encodes the reply into the session's output.
#[inline]
fn respond(hash: KeyHash, key: &[u8], format: ReplyFormat) -> impl FnOnce(&mut Session, &Reply<'_>, Option<Version>) {
    move |session, reply, wait| {
        if let Reply::Value(entry) | Reply::Previous { entry: Some(entry), .. } = reply {
            session.use_allowance(entry.value.len());
        }
        session.note(hash, wait);
        session.replies.respond_after(wait, |out| encode_reply(format, key, reply, out));
    }
}

/// Executes a request of this shard, unless it must follow earlier requests of its session.
#[inline]
pub(super) fn begin<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    grant_bytes: usize,
    now: Now,
    emit: impl FnOnce(&mut Session, &Reply<'_>, Option<Version>),
) -> Execution {
    let is_read = matches!(request, Request::Get { .. });
    // A session has reads in flight or queued requests on one key, never both: a write waits for reads in flight, and
    // a read follows either.
    if let Some(before) = session.own_reads.last(hash) {
        return Execution::Park(Parking::Behind(before));
    }
    if is_read && session.queued > 0 && state.exec.wait_queue.has_queue(RangeSlot::ONLY, hash) {
        return Execution::Park(Parking::Queue);
    }
    let message = message_of(state, session, (hash, request), grant_bytes);
    let ShardState { exec, engine, members, .. } = state;
    exec.execute(engine, members, &message, now, |reply, wait| emit(session, reply, wait))
}

/// The session's request as a message. It sees nothing older than the session's own writes and earlier reads.
#[inline]
fn message_of<'a, D: Device>(
    state: &ShardState<D>,
    session: &Session,
    (hash, request): (KeyHash, &Request<'a>),
    grant_bytes: usize,
) -> RequestMessage<'a> {
    let is_latest = !session.own_writes.is_empty()
        && session.own_writes.latest(hash).is_some_and(|version| version > state.member().replica.committed());
    RequestMessage { slot: RangeSlot::ONLY, hash, tag: None, is_latest, grant_bytes, body: RequestBody::Key(*request) }
}

/// A request that was not executed at once.
#[cold]
fn conclude<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    format: ReplyFormat,
    execution: Execution,
    now: Now,
) -> Flow {
    let parking = match execution {
        Execution::Replied => return Flow::Continue,
        Execution::Blocked => return Flow::Stall(Stall::Shard),
        Execution::Larger { bytes } if session.grant(bytes) => {
            let again = begin(state, session, (hash, request), bytes, now, respond(hash, request.key(), format));
            assert!(!matches!(again, Execution::Larger { .. }), "{bytes} bytes are granted");
            return conclude(state, session, (hash, request), format, again, now);
        }
        Execution::Larger { .. } => return Flow::Stall(Stall::ReplyBudget),
        Execution::Refused(rejection) => return refuse(session, request.key(), format, refusal_error(&rejection)),
        Execution::Park(parking) => parking,
    };
    let returns_value = request.returns_value();
    let bytes = match &parking {
        Parking::Behind(_) if matches!(request, Request::Update { .. }) => return Flow::Stall(Stall::Reads),
        _ if !state.exec.has_capacity() => {
            state.counters.overloaded += 1;
            return refuse(session, request.key(), format, OperationError::Overloaded);
        }
        // In the key's queue, a reply that waits for its client would block other clients' updates.
        Parking::Queue if returns_value => return Flow::Stall(Stall::Shard),
        Parking::Read(plan) if returns_value => plan.read_bytes(),
        // The length is known when the earlier read has ended.
        _ => 0,
    };
    if !session.grant(bytes) {
        return Flow::Stall(Stall::ReplyBudget);
    }
    let place = ReplyPlace::Slot(session.replies.reserve(bytes));
    park(state, session, (hash, request), parking, ReplyTarget { session: session.id, place, format });
    Flow::Continue
}

fn refuse(session: &mut Session, key: &[u8], format: ReplyFormat, error: OperationError) -> Flow {
    session.replies.respond(|out| encode_reply(format, key, &Reply::Error(error), out));
    Flow::Continue
}

/// Parks a request, and lets the session's later requests on the key follow it.
pub(super) fn park<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    parking: Parking,
    target: ReplyTarget,
) {
    let message = message_of(state, session, (hash, request), usize::MAX);
    let is_queued = message.body.is_update() || matches!(parking, Parking::Queue | Parking::Retry);
    let id = state.exec.park(&mut state.engine, parking, &message, Origin::Local(target));
    if is_queued {
        session.queued += 1;
    } else {
        session.own_reads.push(hash, id);
    }
}

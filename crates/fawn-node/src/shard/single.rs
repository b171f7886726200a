//! Requests on one key: executed in place; parked, sent or queued with a reserved slot if they must wait.
use super::ShardState;
use crate::cluster::MemberHost;
use crate::exec::refusal_error;
use crate::forward::QueuedRequest;
use crate::gateway::{Flow, Session, Stall};
use crate::replica::RangeSlot;
use crate::request::{
    Destination, Execution, OutstandingOp, Parking, ReplyPlace, ReplyTarget, RequestBody, RequestMessage, StoredRequest,
};
use fawn_flash::Device;
use fawn_types::{KeyHash, RangeId, Reply, Request, Version};
use fawn_wire::{ReplyFormat, encode_reply};

/// Executes a request on one key, with its hash and its destination unless this shard executes it. Hot path: no
/// allocation for a `GET` in memory.
#[inline]
pub(crate) fn execute_single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, destination): (KeyHash, Option<Destination>),
    (request, format): (&Request<'_>, ReplyFormat),
) -> Flow {
    if session.own_keys.must_wait(hash) {
        return queue(state, session, hash, request, format);
    }
    let is_latest = matches!(request, Request::Get { .. }) && reads_latest(state, session, hash);
    if let Some(to) = destination {
        if let (Destination::Chain(range), Request::Get { key }) = (to, request) {
            let allowed_bytes = session.allowed_bytes();
            let emit = |reply: &Reply<'_>| respond(hash, key, format)(session, reply, None);
            if read_at_tail(state, (range, hash, key), allowed_bytes, emit) {
                return Flow::Continue;
            }
        }
        return forward(state, session, (to, hash), (request, format), is_latest);
    }
    let Request::Get { key } = request else {
        let grant_bytes = if request.returns_value() { session.allowed_bytes() } else { usize::MAX };
        let emit = respond(hash, request.key(), format);
        return match begin(state, session, (hash, request), (is_latest, grant_bytes), emit) {
            Execution::Replied => Flow::Continue,
            other => conclude(state, session, (hash, request), (format, is_latest), other),
        };
    };
    // In place: the message of a read is never built in memory.
    let message = message_of((hash, request), is_latest, session.allowed_bytes());
    let emit = |reply: &Reply<'_>, wait: Option<Version>| respond(hash, key, format)(session, reply, wait);
    match state.host.at(RangeSlot::ONLY).read(&message, key, emit) {
        Execution::Replied => Flow::Continue,
        other => conclude(state, session, (hash, request), (format, is_latest), other),
    }
}

/// Whether a read by the session must see the key's newest value, pending or not.
#[inline]
fn reads_latest<D: Device>(state: &ShardState<D>, session: &Session, hash: KeyHash) -> bool {
    !session.own_keys.is_empty() && session.own_keys.reads_latest(hash, state.committed())
}

/// Replies to a read of a chain whose tail is here, if the value is in memory and its reply waits for nothing. Any
/// other read is sent to the chain like those of other nodes. Returns whether it replied.
#[inline]
pub(super) fn read_at_tail<D: Device>(
    state: &mut ShardState<D>,
    (range, hash, key): (RangeId, KeyHash, &[u8]),
    grant_bytes: usize,
    emit: impl FnOnce(&Reply<'_>),
) -> bool {
    let (Some(slot), Some(cluster)) = (state.host.members.find(range), &state.forward.cluster) else { return false };
    let mut tail = state.host.at(slot);
    // As for a request in a frame: the member serves in the epoch of the map that led here.
    let epoch = cluster.map().range(range).map(|entry| entry.epoch);
    if epoch.is_none_or(|epoch| tail.member.replica.admit_epoch(epoch).is_err()) {
        return false;
    }
    let body = RequestBody::Key(Request::Get { key });
    let message = RequestMessage { slot, hash, tag: None, is_latest: false, grant_bytes, body };
    let mut withheld = None;
    let execution = tail.read(&message, key, |reply, wait| match wait {
        None => emit(reply),
        Some(_) => withheld = Some(matches!(reply, Reply::Value(_))),
    });
    if let Some(is_hit) = withheld {
        tail.exec.counters.uncount_read(is_hit);
        return false;
    }
    matches!(execution, Execution::Replied)
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

/// Executes a request of this shard.
#[inline]
pub(super) fn begin<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    (is_latest, grant_bytes): (bool, usize),
    emit: impl FnOnce(&mut Session, &Reply<'_>, Option<Version>),
) -> Execution {
    let message = message_of((hash, request), is_latest, grant_bytes);
    state.host.at(RangeSlot::ONLY).execute(&message, |reply, wait| emit(session, reply, wait))
}

#[inline]
const fn message_of<'a>(
    (hash, request): (KeyHash, &Request<'a>),
    is_latest: bool,
    grant_bytes: usize,
) -> RequestMessage<'a> {
    RequestMessage { slot: RangeSlot::ONLY, hash, tag: None, is_latest, grant_bytes, body: RequestBody::Key(*request) }
}

/// A request that was not executed at once.
#[cold]
fn conclude<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    (format, is_latest): (ReplyFormat, bool),
    execution: Execution,
) -> Flow {
    let parking = match execution {
        Execution::Replied => return Flow::Continue,
        Execution::Blocked => return Flow::Stall(Stall::Shard),
        Execution::Larger { bytes } if session.grant(bytes) => {
            let emit = respond(hash, request.key(), format);
            let again = begin(state, session, (hash, request), (is_latest, bytes), emit);
            assert!(!matches!(again, Execution::Larger { .. }), "{bytes} bytes are granted");
            return conclude(state, session, (hash, request), (format, is_latest), again);
        }
        Execution::Larger { .. } => return Flow::Stall(Stall::ReplyBudget),
        Execution::Refused(rejection) => {
            let error = Reply::Error(refusal_error(&rejection));
            session.replies.respond(|out| encode_reply(format, request.key(), &error, out));
            return Flow::Continue;
        }
        Execution::Park(parking) => parking,
    };
    if !state.forward.has_capacity(&state.options) {
        return Flow::Stall(Stall::Shard);
    }
    let bytes = match &parking {
        Parking::Read(plan) if request.returns_value() => plan.read_bytes().max(session.first_grant_bytes()),
        _ if request.returns_value() => session.first_grant_bytes(),
        _ => 0,
    };
    if !session.grant(bytes) {
        return Flow::Stall(Stall::ReplyBudget);
    }
    let place = ReplyPlace::Slot(session.replies.reserve(bytes));
    let target = ReplyTarget { session: session.id, place, format };
    park(state, session, (hash, request), (is_latest, bytes), parking, target);
    Flow::Continue
}

/// Parks a request of this shard, as an operation that is outstanding here; the session's later requests on the key
/// respect it.
pub(super) fn park<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, request): (KeyHash, &Request<'_>),
    (is_latest, grant_bytes): (bool, usize),
    parking: Parking,
    target: ReplyTarget,
) {
    let longest_bytes = if request.returns_value() { grant_bytes } else { usize::MAX };
    let message = message_of((hash, request), is_latest, longest_bytes);
    let here = Destination::Shard(state.forward.shard);
    let mut op = OutstandingOp::new(here, target, hash, &message.body, grant_bytes);
    session.own_keys.begin(hash, op.kind);
    let MemberHost { exec, engine, .. } = &mut state.host;
    op.request_bytes = exec.park(engine, parking, &message, state.forward.next_origin());
    state.forward.insert(op);
}

/// Sends a request to its destination, with a grant for its reply.
fn forward<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    to: (Destination, KeyHash),
    (request, format): (&Request<'_>, ReplyFormat),
    is_latest: bool,
) -> Flow {
    if !state.forward.accepts(to.0, &state.options) {
        return Flow::Stall(Stall::Shard);
    }
    let bytes = if request.returns_value() { session.first_grant_bytes() } else { 0 };
    if !session.grant(bytes) {
        return Flow::Stall(Stall::ReplyBudget);
    }
    let place = ReplyPlace::Slot(session.replies.reserve(bytes));
    let target = ReplyTarget { session: session.id, place, format };
    send(state, session, to, &RequestBody::Key(*request), (is_latest, bytes), target);
    Flow::Continue
}

/// Sends a request that has its slot and grant.
pub(super) fn send<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (to, hash): (Destination, KeyHash),
    body: &RequestBody<'_>,
    (is_latest, grant_bytes): (bool, usize),
    target: ReplyTarget,
) {
    let op = OutstandingOp::new(to, target, hash, body, grant_bytes);
    session.own_keys.begin(hash, op.kind);
    state.counters.forwarded += 1;
    state.forward.send(to, op, body, is_latest);
}

/// Queues a request behind the session's earlier ones on the key.
#[cold]
fn queue<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    hash: KeyHash,
    request: &Request<'_>,
    format: ReplyFormat,
) -> Flow {
    if !state.forward.has_capacity(&state.options) {
        return Flow::Stall(Stall::Shard);
    }
    let place = ReplyPlace::Slot(session.replies.reserve(0));
    let target = ReplyTarget { session: session.id, place, format };
    let request = StoredRequest::new(&RequestBody::Key(*request));
    let queued_at = state.host.now.mono;
    state.forward.queue((session.id, hash), session, QueuedRequest { target, request, queued_at });
    Flow::Continue
}

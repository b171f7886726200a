//! Whole-keyspace requests on one shard: barriers, executed once their session has no pending request.
use super::{Flow, ShardState, Stall, multi};
use crate::exec::{Execution, Origin, Parking, ReplyPlace, ReplyTarget, RequestMessage, refusal_error};
use crate::keyspace_op::{KeyspaceOp, KeyspaceOpKind, ScanState};
use crate::replica::RangeSlot;
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, TimeMs, Version};
use fawn_wire::internal::KeyspaceRequest;
use fawn_wire::{KeyspaceCommand, ReplyFormat, encode_done, encode_reply};

/// Keys of one scan step for another shard, whatever was requested: the requesting shard continues from there.
const SCAN_KEYS_MAX: u32 = 256;

/// Executes the request, or stalls the session until it is quiet.
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    keyspace: &KeyspaceCommand<'_>,
    now: Now,
) -> Flow {
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    let (kind, part) = match *keyspace {
        KeyspaceCommand::FlushAll { at_ms, format } if at_ms > now.wall.0 => {
            state.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(format, out));
            return Flow::Continue;
        }
        KeyspaceCommand::FlushAll { format, .. } => (KeyspaceOpKind::Flush(format), KeyspaceRequest::Clear),
        KeyspaceCommand::DbSize => (KeyspaceOpKind::DbSize, KeyspaceRequest::Count),
        KeyspaceCommand::Scan { .. } => {
            let scan = ScanState::new(keyspace);
            let Some((_, part)) = scan.next_part(1) else {
                session.replies.respond(ScanState::encode_nothing);
                return Flow::Continue;
            };
            (KeyspaceOpKind::Scan(scan), part)
        }
    };
    let mut keyspace_op = KeyspaceOp::new(session.id, 0, kind);
    keyspace_op.asked();
    let message = RequestMessage::keyspace(RangeSlot::ONLY, None, part);
    let parking = match run(state, session, &message, now, |session, reply, wait| {
        keyspace_op.take(reply, 1);
        session.replies.respond_after(wait, |out| keyspace_op.encode(out));
    }) {
        Ok(parking) => parking,
        Err(flow) => {
            let is_flushed = flow == Flow::Continue && keyspace_op.failed().is_none() && message.body.is_update();
            // An earlier delayed flush is replaced by this one.
            state.flush_at = state.flush_at.filter(|_| !is_flushed);
            return flow;
        }
    };
    keyspace_op.slot = session.replies.reserve(0);
    let place = ReplyPlace::Part { operation: state.keyspace_ops.insert(keyspace_op) };
    let origin = Origin::Local(ReplyTarget { session: session.id, place, format: ReplyFormat::Silent });
    state.exec.park(&mut state.engine, parking, &message, origin);
    Flow::Continue
}

/// Executes another shard's request on this one's whole range, or stalls the proxy session until it is quiet.
pub(crate) fn execute_for_peer<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    request: &KeyspaceRequest<'_>,
    now: Now,
) -> Flow {
    let format = ReplyFormat::Native;
    let request = match *request {
        // Keys like any other: the log keeps the order among the session's requests.
        KeyspaceRequest::SetAll(pairs) => return multi::set_all(state, session, pairs.iter(), format, now),
        _ if !session.is_quiet() => return Flow::Stall(Stall::Quiet),
        KeyspaceRequest::Scan { cursor, count } => {
            KeyspaceRequest::Scan { cursor, count: count.clamp(1, SCAN_KEYS_MAX) }
        }
        request => request,
    };
    let message = RequestMessage::keyspace(RangeSlot::ONLY, None, request);
    let mut is_flushed = false;
    let parking = match run(state, session, &message, now, |session, reply, wait| {
        is_flushed = message.body.is_update() && !matches!(reply, Reply::Error(_));
        session.replies.respond_after(wait, |out| encode_reply(format, &[], reply, out));
    }) {
        Ok(parking) => parking,
        Err(flow) => {
            // A delayed flush of any shard is replaced by this one.
            state.flush_at = state.flush_at.filter(|_| !is_flushed);
            return flow;
        }
    };
    let place = ReplyPlace::Slot(session.replies.reserve(0));
    let origin = Origin::Local(ReplyTarget { session: session.id, place, format });
    let id = state.exec.park(&mut state.engine, parking, &message, origin);
    // A scan is one of the session's reads in flight: its reply ends it like any other.
    session.own_reads.push(message.hash, id);
    Flow::Continue
}

/// Executes a request on this shard's range. Returns what a scan waits for, or the flow of any other request.
fn run<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    message: &RequestMessage<'_>,
    now: Now,
    emit: impl FnOnce(&mut Session, &Reply<'_>, Option<Version>),
) -> Result<Parking, Flow> {
    let ShardState { exec, engine, members, .. } = state;
    let mut emit = Some(emit);
    let execution = exec.execute(engine, members, message, now, |reply, wait| {
        wait.into_iter().for_each(|version| session.own_writes.push_clear(version));
        emit.take().into_iter().for_each(|emit| emit(session, reply, wait));
    });
    let error = match execution {
        Execution::Park(parking) if exec.has_capacity() => return Ok(parking),
        Execution::Blocked => return Err(Flow::Stall(Stall::Shard)),
        Execution::Park(_) => {
            state.counters.overloaded += 1;
            OperationError::Overloaded
        }
        Execution::Refused(rejection) => refusal_error(&rejection),
        Execution::Replied | Execution::Larger { .. } => return Err(Flow::Continue),
    };
    emit.into_iter().for_each(|emit| emit(session, &Reply::Error(error), None));
    Err(Flow::Continue)
}

/// Empties the shard's range for a delayed `FLUSHALL`. Returns whether it is over.
pub(crate) fn clear<D: Device>(state: &mut ShardState<D>) -> bool {
    let ShardState { exec, engine, members, now, .. } = state;
    let (message, mut failed) = (RequestMessage::keyspace(RangeSlot::ONLY, None, KeyspaceRequest::Clear), None);
    let execution = exec.execute(engine, members, &message, *now, |reply, _| {
        failed = if let Reply::Error(error) = reply { Some(*error) } else { None };
    });
    match execution {
        Execution::Blocked => return false,
        Execution::Refused(rejection) => failed = Some(refusal_error(&rejection)),
        _ => {}
    }
    if let Some(error) = failed {
        tracing::error!(%error, "the delayed flush_all failed");
    }
    true
}

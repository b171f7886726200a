//! Reads of one key: cached values are encoded directly into the session's output, other reads wait.
//!
//! A session reads committed values, and its own pending writes: that value is taken now and the
//! reply waits for their commit. A pipelined `SET a`, `GET a`, `SET a` therefore never stalls, and no client sees a
//! value that could still be undone.
use super::core::{operation_error, wait_for_commit};
use super::{Blocked, Flow, ShardState, Stall};
use crate::pending::{PendingOp, ReadWaiter, ReplyPlace, WaitQueue};
use crate::session::Session;
use crate::status::ShardCounters;
use fawn_chain::Replica;
use fawn_ds::internals::{EngineError, Lookup, LookupPlan, View};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, TimeMs, Version};
use fawn_wire::{ReplyFormat, encode_reply};

/// A single `GET`. Hot path: no allocation when the page is cached and no earlier request on the key waits.
#[inline]
pub(crate) fn single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, key): (KeyHash, &[u8]),
    format: ReplyFormat,
) -> Flow {
    let mut is_granted = true;
    let later = begin(state, session, hash, key, |session, reply, wait| {
        if let Reply::Value(entry) = reply {
            is_granted = session.grant(entry.value.len());
        }
        if is_granted {
            session.replies.respond_after(wait, |out| encode_reply(format, key, reply, out));
        }
    });
    if !is_granted {
        // Counted when it is executed.
        (state.counters.gets, state.counters.hits) = (state.counters.gets - 1, state.counters.hits - 1);
        return Flow::Stall(Stall::ReplyBudget);
    }
    match later {
        Some(later) => park_single(state, session, hash, key, format, later),
        None => Flow::Continue,
    }
}

/// Replies by `emit`, or returns why the read must wait.
#[inline]
pub(crate) fn begin<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    emit: impl FnOnce(&mut Session, &Reply<'_>, Option<Version>),
) -> Option<Blocked> {
    let Ok(now) = state.replica.admit_read(state.now) else {
        emit(session, &Reply::Error(OperationError::Unavailable), None);
        return None;
    };
    // A session has reads in flight or queued requests on one key, never both: a write waits for reads in flight, and
    // a read follows either.
    if let Some(before) = session.own_reads.last(hash) {
        return Some(Blocked::Behind(before));
    }
    if session.queued > 0 && state.pending.keys.contains(hash) {
        return Some(Blocked::Queue);
    }
    let view = view_of(state, Some(session), hash);
    let lookup = state.engine.lookup(state.replica.range(), hash, key, view, now);
    let wait_for = |seen: Option<Version>| wait_for(&state.replica, view, seen);
    let emit = |reply: &Reply<'_>, wait: Option<Version>| {
        if wait.is_some() {
            session.note(hash, wait);
        }
        emit(session, reply, wait);
    };
    answer(lookup, &mut state.counters, wait_for, emit).map(Blocked::Read)
}

/// The view of the key that the session needs: no older than its own writes and earlier reads.
#[inline]
pub(crate) fn view_of<D: Device>(state: &ShardState<D>, session: Option<&Session>, hash: KeyHash) -> View {
    let session = session.filter(|session| !session.own_writes.is_empty());
    let version = session.and_then(|session| session.own_writes.latest(hash));
    match version.and_then(|version| wait_for_commit(&state.replica, version)) {
        Some(_) => View::Latest,
        None => View::Committed,
    }
}

/// The version whose commit a reply waits for, given the version it saw. A pending absence has no version, so it
/// waits for the newest one.
#[inline]
fn wait_for(replica: &Replica, view: View, seen: Option<Version>) -> Option<Version> {
    match view {
        View::Committed => None,
        View::Latest => wait_for_commit(replica, seen.unwrap_or(replica.last())),
    }
}

/// Replies by `emit` with the result of `lookup`; `wait_for` maps the seen version to the version to wait for.
#[inline]
fn answer(
    lookup: Result<Lookup<'_>, EngineError>,
    counters: &mut ShardCounters,
    wait_for: impl FnOnce(Option<Version>) -> Option<Version>,
    emit: impl FnOnce(&Reply<'_>, Option<Version>),
) -> Option<LookupPlan> {
    match lookup {
        Ok(Lookup::Found(entry)) => {
            counters.gets += 1;
            counters.hits += 1;
            emit(&Reply::Value(entry), wait_for(Some(entry.version)));
        }
        Ok(Lookup::Absent) => {
            counters.gets += 1;
            counters.misses += 1;
            emit(&Reply::Absent, wait_for(None));
        }
        Ok(Lookup::Read(plan)) => return Some(plan),
        Err(error) => {
            counters.gets += 1;
            emit(&Reply::Error(operation_error(&error)), None);
        }
    }
    None
}

#[cold]
fn park_single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    format: ReplyFormat,
    later: Blocked,
) -> Flow {
    if !state.has_capacity() {
        state.counters.overloaded += 1;
        let reply = Reply::Error(OperationError::Overloaded);
        session.replies.respond(|out| encode_reply(format, key, &reply, out));
        return Flow::Continue;
    }
    let bytes = match &later {
        Blocked::Read(plan) => plan.read_bytes(),
        // The length is known when the earlier read has ended.
        Blocked::Behind(_) => 0,
        // In the key's queue, a reply that waits for its client would block other clients' updates.
        Blocked::Queue => return Flow::Stall(Stall::Shard),
    };
    if !session.grant(bytes) {
        return Flow::Stall(Stall::ReplyBudget);
    }
    let target = ReplyPlace::Slot(session.replies.reserve(bytes));
    park(state, session, PendingOp::get(session.id, target, hash, key, format), later);
    Flow::Continue
}

/// Parks a read.
pub(crate) fn park<D: Device>(state: &mut ShardState<D>, session: &mut Session, mut op: PendingOp, later: Blocked) {
    let hash = op.hash;
    match later {
        Blocked::Read(plan) => {
            op.view = view_of(state, Some(session), hash);
            let op = state.pending.ops.insert(op);
            session.own_reads.push(hash, op);
            start(state, plan, op);
        }
        Blocked::Behind(before) => {
            let op = state.pending.ops.insert(op);
            session.own_reads.push(hash, op);
            state.pending.follow(before, op);
        }
        Blocked::Queue => {
            op.is_queued = true;
            session.queued += 1;
            let op = state.pending.ops.insert(op);
            state.pending.keys.push(hash, op);
        }
    }
}

/// Schedules a device read for `op`.
pub(crate) fn start<D: Device>(state: &mut ShardState<D>, plan: LookupPlan, op: usize) {
    state.counters.cold += 1;
    state.pending.reads.start(&mut state.engine, plan, ReadWaiter::Op(op));
}

/// Outcome of a resumed read.
pub(crate) enum ReadOutcome {
    Answered,
    /// It needs the device (again).
    Read(LookupPlan),
    /// `emit` has queued it for a larger grant.
    Larger,
}

/// Resumes a parked read, with the plan that its device read filled, or from the start when it is first in its key's
/// queue. `emit` returns whether it accepted the reply.
pub(crate) fn resume_read<D: Device>(
    state: &mut ShardState<D>,
    op: &PendingOp,
    plan: Option<LookupPlan>,
    now: TimeMs,
    emit: impl FnOnce(&mut WaitQueue, &Reply<'_>, Option<Version>) -> bool,
) -> ReadOutcome {
    let ShardState { engine, pending, replica, counters, .. } = state;
    let (before, mut is_taken) = (*counters, true);
    let lookup = match plan {
        Some(plan) => engine.resume(plan, now),
        None => engine.lookup(replica.range(), op.hash, op.key(), op.view, now),
    };
    let emit = |reply: &Reply<'_>, wait| is_taken = emit(pending, reply, wait);
    match answer(lookup, counters, |seen| wait_for(replica, op.view, seen), emit) {
        Some(plan) => ReadOutcome::Read(plan),
        None if is_taken => ReadOutcome::Answered,
        None => {
            // It is counted when it is executed.
            *counters = before;
            ReadOutcome::Larger
        }
    }
}

//! Owns reads of one key: the cached ones answered straight into the session's output, the others made to wait.
//!
//! A session reads what is committed, but its own writes under way as if they were: their value is taken now and the
//! reply waits for their commit. So a pipelined `SET a`, `GET a`, `SET a` takes no detour, and nobody hears of a value
//! that could still be undone.
use super::core::operation_error;
use super::{Core, Later};
use crate::pending::{Op, Pending, Target, Waiter};
use crate::session::Session;
use crate::status::Counters;
use fawn_ds::{EngineError, Lookup, LookupPlan, View};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, TimeMs, Version};
use fawn_wire::{Shape, encode_reply};

/// A `GET` by itself. The hot path: nothing here allocates when the page is cached and nothing waits before it.
#[inline]
pub(crate) fn single<D: Device>(core: &mut Core<D>, session: &mut Session, key: &[u8], shape: Shape, now: TimeMs) {
    let hash = core.hash(key);
    let later = begin(core, session, hash, key, now, |session, reply, wait| {
        session.replies.respond_after(wait, |out| encode_reply(shape, key, reply, out));
    });
    if let Some(later) = later {
        park_single(core, session, hash, key, shape, later);
    }
}

/// Answers by `emit`, or says what for the read must wait.
#[inline]
pub(crate) fn begin<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    now: TimeMs,
    emit: impl FnOnce(&mut Session, &Reply<'_>, Option<Version>),
) -> Option<Later> {
    if session.updates_queued > 0 && core.pending.keys.contains(hash) {
        return Some(Later::Queue);
    }
    let own = own_write(core, Some(session), hash);
    let view = if own.is_some() { View::Latest } else { View::Committed };
    let lookup = core.engine.lookup(core.replica.range(), hash, key, view, now);
    let wait_for = |seen: Option<Version>| match own {
        None => None,
        Some(own) => core.replica.wait_for(seen.unwrap_or(own)),
    };
    answer(lookup, &mut core.counters, wait_for, |reply, wait| emit(session, reply, wait)).map(Later::Read)
}

/// The session's newest write of the key that is not committed.
#[inline]
pub(crate) fn own_write<D: Device>(core: &Core<D>, session: Option<&Session>, hash: KeyHash) -> Option<Version> {
    let session = session.filter(|session| !session.own.is_empty())?;
    session.own.latest(hash).and_then(|version| core.replica.wait_for(version))
}

/// Answers by `emit` what `lookup` found; `wait_for` says what a reply that saw a version, or no entry, waits for.
#[inline]
fn answer(
    lookup: Result<Lookup<'_>, EngineError>,
    counters: &mut Counters,
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
    core: &mut Core<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    shape: Shape,
    later: Later,
) {
    if !core.has_room() {
        core.counters.overloaded += 1;
        let reply = Reply::Error(OperationError::Overloaded);
        return session.replies.respond(|out| encode_reply(shape, key, &reply, out));
    }
    let target = Target::Slot(session.replies.reserve());
    park(core, session, Op::get(session.id, target, hash, key, shape), later);
}

/// Lets a read wait.
pub(crate) fn park<D: Device>(core: &mut Core<D>, session: &mut Session, mut op: Op, later: Later) {
    let hash = op.hash;
    match later {
        Later::Read(plan) => {
            session.reading.push(hash);
            let op = core.pending.ops.insert(op);
            start(core, plan, op);
        }
        Later::Queue => {
            op.is_queued = true;
            let op = core.pending.ops.insert(op);
            core.pending.keys.push(hash, op);
        }
    }
}

/// Reads from the device for `op`.
pub(crate) fn start<D: Device>(core: &mut Core<D>, plan: LookupPlan, op: usize) {
    core.counters.cold += 1;
    core.pending.reads.start(&mut core.engine, plan, Waiter::Op(op));
}

/// Goes on with a read that waited: with the plan that its device read filled, or anew when its key's queue has come
/// to it. `own` is its session's newest write of the key. A plan that comes back needs the device (again).
pub(crate) fn go_on<D: Device>(
    core: &mut Core<D>,
    own: Option<Version>,
    op: &Op,
    plan: Option<LookupPlan>,
    now: TimeMs,
    emit: impl FnOnce(&mut Pending, &Reply<'_>, Option<Version>),
) -> Option<LookupPlan> {
    let view = if own.is_some() { View::Latest } else { View::Committed };
    let Core { engine, pending, replica, counters, .. } = core;
    let lookup = match plan {
        Some(plan) => engine.resume(plan, now),
        None => engine.lookup(replica.range(), op.hash, op.key(), view, now),
    };
    // A plan may have been made on a pending value that is committed by now: then there is nothing to wait for.
    let wait_for = |seen: Option<Version>| match (seen, own) {
        (Some(seen), _) => replica.wait_for(seen),
        (None, own) => own,
    };
    answer(lookup, counters, wait_for, |reply, wait| emit(pending, reply, wait))
}

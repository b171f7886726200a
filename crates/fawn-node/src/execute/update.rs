//! Updates of one key: evaluated at once if the value is in memory or not needed, else queued while it is loaded.
use super::core::{operation_error, wait_for_commit};
use super::evaluate::{EvaluatedReply, UpdateDecision, Write, evaluate};
use super::{Blocked, Flow, ShardState, Stall, read};
use crate::pending::{PendingOp, ReplyPlace};
use crate::session::Session;
use fawn_chain::Rejection;
use fawn_dli::StringOperation;
use fawn_ds::internals::format::record::{RecordKind, RecordRef};
use fawn_ds::internals::{EngineError, Lookup, View};
use fawn_flash::Device;
use fawn_types::operation::{DataOperation, Effect};
use fawn_types::{ClientTag, EntryRef, KeyHash, OperationError, Reply, TimeMs, Update, Version, limits};
use fawn_wire::{ReplyFormat, encode_reply};

/// Outcome of an update.
#[derive(Debug)]
pub(crate) enum Updated {
    /// Evaluated. The reply may be sent once `wait` is committed.
    Done { answer: EvaluatedReply, wrote: Option<Version>, wait: Option<Version> },
    /// The value must be loaded first.
    Later(Blocked),
    /// The log's buffers are full: retry after an iteration.
    Stall,
    /// The value that it returns is longer than the limit; nothing was evaluated.
    Larger { bytes: usize },
}

impl Updated {
    fn refused(error: OperationError) -> Self {
        Self::Done { answer: EvaluatedReply::error(error), wrote: None, wait: None }
    }
}

/// A single update.
#[inline]
pub(crate) fn single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, key): (KeyHash, &[u8]),
    update: &Update<'_>,
    format: ReplyFormat,
    now: TimeMs,
) -> Flow {
    if session.own_reads.last(hash).is_some() {
        return Flow::Stall(Stall::Reads);
    }
    let returns_value = update.returns_value();
    let limit_bytes = if returns_value { session.grantable_bytes() } else { usize::MAX };
    match begin(state, (hash, key), update, limit_bytes, now) {
        Updated::Done { answer, wrote, wait } => {
            session.note(hash, wrote.or(wait));
            let reply = answer.reply(&state.scratch, wrote.unwrap_or_default());
            if let Reply::Value(entry) | Reply::Previous { entry: Some(entry), .. } = reply {
                session.grant(entry.value.len());
            }
            session.replies.respond_after(wait, |out| encode_reply(format, key, &reply, out));
        }
        Updated::Later(_) if !state.has_capacity() => {
            state.counters.overloaded += 1;
            let reply = Reply::Error(OperationError::Overloaded);
            session.replies.respond(|out| encode_reply(format, key, &reply, out));
        }
        Updated::Later(Blocked::Queue) if returns_value => return Flow::Stall(Stall::Shard),
        Updated::Larger { bytes } => {
            let is_granted = session.grant(bytes);
            assert!(!is_granted, "{bytes} bytes are more than the session could be granted");
            return Flow::Stall(Stall::ReplyBudget);
        }
        Updated::Later(later) => {
            let bytes = if let (true, Blocked::Read(plan)) = (returns_value, &later) { plan.read_bytes() } else { 0 };
            if !session.grant(bytes) {
                return Flow::Stall(Stall::ReplyBudget);
            }
            let target = ReplyPlace::Slot(session.replies.reserve(bytes));
            session.queued += 1;
            park(state, PendingOp::update(session.id, target, hash, (key, update), format), later);
        }
        Updated::Stall => return Flow::Stall(Stall::Shard),
    }
    Flow::Continue
}

/// Evaluates an update unless earlier ones on its key are being loaded, or its value must be.
#[inline]
pub(crate) fn begin<D: Device>(
    state: &mut ShardState<D>,
    (hash, key): (KeyHash, &[u8]),
    update: &Update<'_>,
    limit_bytes: usize,
    now: TimeMs,
) -> Updated {
    if key.len() > limits::KEY_BYTES_MAX {
        return Updated::refused(OperationError::KeyTooLong);
    }
    if state.replica.uncommitted() >= state.options.uncommitted_max {
        return Updated::Stall;
    }
    if state.pending.keys.contains(hash) {
        return Updated::Later(Blocked::Queue);
    }
    run(state, (hash, key), update, limit_bytes, now)
}

/// Evaluates an update that is first in its key's queue.
pub(crate) fn run<D: Device>(
    state: &mut ShardState<D>,
    (hash, key): (KeyHash, &[u8]),
    update: &Update<'_>,
    limit_bytes: usize,
    now: TimeMs,
) -> Updated {
    if !update.needs_current() {
        return run_blind(state, hash, key, update, now);
    }
    let lookup = state.engine.lookup(state.replica.range(), hash, key, View::Latest, now);
    let limits = (state.options.value_bytes_max, limit_bytes);
    let decided = decide(lookup, &mut state.scratch, limits, update, now);
    apply_decided(state, hash, key, decided)
}

/// Outcome of a lookup for an update.
pub(crate) enum DecidedUpdate {
    Decision {
        decision: UpdateDecision,
        /// The version of the found entry.
        seen: Option<Version>,
    },
    Read(fawn_ds::internals::LookupPlan),
    Larger {
        bytes: usize,
    },
    Error(OperationError),
}

/// Evaluates `update` on the result of `lookup`, unless it returns a value that is longer than the limit.
pub(crate) fn decide(
    lookup: Result<Lookup<'_>, EngineError>,
    scratch: &mut super::EvaluationScratch,
    (value_bytes_max, limit_bytes): (u32, usize),
    update: &Update<'_>,
    now: TimeMs,
) -> DecidedUpdate {
    let entry = match lookup {
        Ok(Lookup::Found(entry)) => Some(entry),
        Ok(Lookup::Absent) => None,
        Ok(Lookup::Read(plan)) => return DecidedUpdate::Read(plan),
        Err(error) => return DecidedUpdate::Error(operation_error(&error)),
    };
    if let Some(EntryRef { value, .. }) = entry
        && value.len() > limit_bytes
    {
        return DecidedUpdate::Larger { bytes: value.len() };
    }
    let decision = evaluate(scratch, *update, value_bytes_max, entry, now);
    DecidedUpdate::Decision { decision, seen: entry.map(|entry| entry.version) }
}

/// A write that does not depend on the current value: the value goes from the input to the log without a copy.
fn run_blind<D: Device>(
    state: &mut ShardState<D>,
    hash: KeyHash,
    key: &[u8],
    update: &Update<'_>,
    now: TimeMs,
) -> Updated {
    let outcome = StringOperation::new(*update, state.options.value_bytes_max).apply(None, now);
    let (kind, value, flags, expires_at_ms) = match &outcome.effect {
        Effect::Put { value, flags, expires_at_ms } => (RecordKind::Put, value.as_slice(), *flags, *expires_at_ms),
        Effect::Delete => (RecordKind::Tombstone, &[][..], 0, 0),
        Effect::None => {
            let Reply::Error(error) = outcome.reply else { unreachable!("a blind write applies or fails") };
            return Updated::refused(error);
        }
    };
    let Reply::Stored { version, value_bytes } = outcome.reply else { unreachable!("a blind write returns `Stored`") };
    let answer = EvaluatedReply::plain(Reply::Stored { version, value_bytes });
    ended(append(state, hash, key, (kind, value, flags, expires_at_ms)), answer)
}

/// Appends the result of an evaluation.
pub(crate) fn apply_decided<D: Device>(
    state: &mut ShardState<D>,
    hash: KeyHash,
    key: &[u8],
    decided: DecidedUpdate,
) -> Updated {
    let (UpdateDecision { write, answer }, seen) = match decided {
        DecidedUpdate::Decision { decision, seen } => (decision, seen),
        DecidedUpdate::Read(plan) => return Updated::Later(Blocked::Read(plan)),
        DecidedUpdate::Larger { bytes } => return Updated::Larger { bytes },
        DecidedUpdate::Error(error) => return Updated::refused(error),
    };
    let value = std::mem::take(&mut state.scratch.value);
    let updated = match write {
        Write::None => {
            // A reply must not be undone, so it waits for what it depends on. An absence has no version to wait for but
            // the newest (a pending tombstone may be the reason).
            let wait = wait_for_commit(&state.replica, seen.unwrap_or(state.replica.last()));
            Updated::Done { answer, wrote: None, wait }
        }
        Write::Put { flags, expires_at_ms } => {
            ended(append(state, hash, key, (RecordKind::Put, &value, flags, expires_at_ms)), answer)
        }
        Write::Delete => ended(append(state, hash, key, (RecordKind::Tombstone, &[], 0, 0)), answer),
    };
    state.scratch.value = value;
    updated
}

fn ended(appended: Result<Version, EngineError>, answer: EvaluatedReply) -> Updated {
    match appended {
        Ok(version) => Updated::Done { answer, wrote: Some(version), wait: Some(version) },
        Err(EngineError::Overloaded) => Updated::Stall,
        Err(error) => Updated::refused(operation_error(&error)),
    }
}

/// Appends one record as the range's next version.
#[inline]
fn append<D: Device>(
    state: &mut ShardState<D>,
    hash: KeyHash,
    key: &[u8],
    (kind, value, flags, expires_at_ms): (RecordKind, &[u8], u32, u64),
) -> Result<Version, EngineError> {
    let before = state.replica.last();
    let version = state.replica.assign(state.now).map_err(refused)?;
    let record = RecordRef { kind, version, key, value, flags, expires_at_ms, tag: ClientTag::NONE, result: &[] };
    match state.engine.append(state.replica.range(), hash, &record) {
        Ok(()) => {
            state.counters.writes += 1;
            Ok(version)
        }
        Err(error) => Err(retract(state, before, error)),
    }
}

/// The log did not take what was assigned after `before`.
#[cold]
pub(crate) fn retract<D: Device>(state: &mut ShardState<D>, before: Version, error: EngineError) -> EngineError {
    state.replica.retract(before);
    error
}

/// The engine's error for a version that is not assigned.
#[cold]
pub(crate) fn refused(refusal: Rejection) -> EngineError {
    match refusal {
        Rejection::Overloaded => EngineError::Overloaded,
        // After 68 billion writes since the last start.
        Rejection::EpochFull => EngineError::Poisoned { first: "the epoch's sequence numbers are used up".to_owned() },
        other => EngineError::Poisoned { first: other.to_string() },
    }
}

/// Parks an update: it opens its key's queue, or joins it.
pub(crate) fn park<D: Device>(state: &mut ShardState<D>, op: PendingOp, later: Blocked) {
    let hash = op.hash;
    let op = state.pending.ops.insert(op);
    state.pending.keys.push(hash, op);
    match later {
        Blocked::Read(plan) => {
            assert_eq!(state.pending.keys.front(hash), Some(op), "only the first of a key loads");
            read::start(state, plan, op);
        }
        Blocked::Queue => {}
        Blocked::Behind(_) => unreachable!("updates do not follow reads, their session's input waits"),
    }
}

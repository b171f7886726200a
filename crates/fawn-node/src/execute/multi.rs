//! Requests on several keys: `MGET`, `DEL`, `EXISTS`, memcached's multi-key `get`, and the atomic `MSET`.
use super::core::operation_error;
use super::update::{self, Updated};
use super::{Blocked, Flow, ShardState, Stall, read};
use crate::pending::{MultiReply, PendingMulti, PendingOp, ReplyPlace};
use crate::session::Session;
use crate::shards::keyspace_op::{KeyOwners, place_of};
use crate::shards::{self, outstanding};
use fawn_chain::Rejection;
use fawn_ds::internals::EngineError;
use fawn_ds::internals::format::record::{RecordKind, RecordRef};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, Request, ShardId, TimeMs, Update, Version, limits};
use fawn_wire::{MultiCommand, ReplyFold, ReplyFormat, encode_done, encode_error};

/// Executes a request on several keys.
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    multi: &MultiCommand<'_>,
    now: TimeMs,
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
            KeyOwners::Here => set_all(state, session, pairs_of(multi), format),
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
    mut pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    format: ReplyFormat,
) -> Flow {
    // Updates that wait for their value precede the batch.
    if state.pending.keys.len() > 0 && pairs.clone().any(|(key, _)| state.pending.keys.contains(state.hash(key))) {
        return Flow::Stall(Stall::Shard);
    }
    if state.replica.uncommitted() >= state.options.uncommitted_max {
        return Flow::Stall(Stall::Shard);
    }
    match append_all(state, &mut pairs) {
        Ok((hashes, last)) => {
            for (hash, version) in hashes {
                session.own_writes.push(hash, version);
            }
            session.replies.respond_after(Some(last), |out| encode_done(format, out));
        }
        Err(EngineError::Overloaded) => return Flow::Stall(Stall::Shard),
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| encode_error(format, error, out));
        }
    }
    Flow::Continue
}

/// Appends the batch; returns the hashes with their versions, and the last version.
fn append_all<'a, D: Device>(
    state: &mut ShardState<D>,
    pairs: &mut (impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone),
) -> Result<(Vec<(KeyHash, Version)>, Version), EngineError> {
    let count = pairs.clone().count();
    let before = state.replica.last();
    let first = state.replica.assign_batch(state.now, count as u64).map_err(update::refused)?;
    append_from(state, first, count, pairs).map_err(|error| update::retract(state, before, error))
}

fn append_from<'a, D: Device>(
    state: &mut ShardState<D>,
    first: Version,
    count: usize,
    pairs: &mut impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<(Vec<(KeyHash, Version)>, Version), EngineError> {
    let mut records = Vec::with_capacity(count);
    for ((key, value), seq) in pairs.zip(first.seq()..) {
        if key.len() > limits::KEY_BYTES_MAX {
            return Err(EngineError::KeyTooLong { found_bytes: key.len(), limit_bytes: limits::KEY_BYTES_MAX });
        }
        let version = Version::new(first.epoch(), seq).ok_or_else(|| update::refused(Rejection::EpochFull))?;
        records.push((state.hash(key), RecordRef { kind: RecordKind::Put, ..RecordRef::put(version, key, value) }));
    }
    state.engine.append_batch(state.replica.range(), &records)?;
    let hashes: Vec<_> = records.iter().map(|(hash, record)| (*hash, record.version)).collect();
    let last = hashes.last().map_or(first, |(_, version)| *version);
    state.counters.writes += hashes.len() as u64;
    Ok((hashes, last))
}

/// Independent requests whose replies become one.
fn gather<D: Device>(state: &mut ShardState<D>, session: &mut Session, multi: &MultiCommand<'_>, now: TimeMs) {
    let bytes = std::mem::take(&mut state.scratch.multi_reply);
    let mut multi_reply = MultiReply::new(multi.multi_reply, bytes, state.options.reply_bytes_max);
    let mut batch = None;
    for request in multi.requests() {
        step(state, session, &request, now, &mut multi_reply, &mut batch);
    }
    match batch {
        None => {
            multi_reply.finish();
            session.replies.respond_after(multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
            state.scratch.multi_reply = multi_reply.bytes;
        }
        Some(batch) => {
            let values = if state.links.is_some() { multi_reply.values() } else { 0 };
            let slot = session.replies.reserve_estimate(values);
            state.pending.batches[batch] = PendingMulti { session: session.id, slot, multi_reply: Some(multi_reply) };
        }
    }
}

/// Executes one key: an immediate reply, or a waiting item of `batch`.
fn step<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    request: &Request<'_>,
    now: TimeMs,
    multi_reply: &mut MultiReply,
    batch: &mut Option<usize>,
) {
    let key = request.key();
    let hash = state.hash(key);
    if let Some(owner) = state.elsewhere(session, key) {
        return step_forwarded(state, session, (owner, hash), request, multi_reply, batch);
    }
    let later = match request {
        Request::Get { .. } => {
            read::begin(state, session, hash, key, |_, reply, wait| multi_reply.push(key, reply, wait))
        }
        Request::Update { update, .. } => update_step(state, session, hash, key, update, now, multi_reply),
    };
    let Some(later) = later else { return };
    if !state.has_capacity() {
        state.counters.overloaded += 1;
        return multi_reply.push(key, &Reply::Error(OperationError::Overloaded), None);
    }
    // The slot is reserved before the replies exist: operations refer to it.
    let batch = *batch.get_or_insert_with(|| state.pending.batches.insert(PendingMulti::unfilled()));
    let target = ReplyPlace::Item { batch, item: multi_reply.push_unknown(key) };
    match request {
        Request::Get { .. } => {
            read::park(state, session, PendingOp::get(session.id, target, hash, key, ReplyFormat::Silent), later);
        }
        Request::Update { update, .. } => {
            session.queued += 1;
            update::park(state, PendingOp::update(session.id, target, hash, (key, update), ReplyFormat::Silent), later);
        }
    }
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
    let batch = *batch.get_or_insert_with(|| state.pending.batches.insert(PendingMulti::unfilled()));
    let target = ReplyPlace::Item { batch, item: multi_reply.push_unknown(key) };
    outstanding::item(state, session, owner, request, target);
}

fn update_step<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    update: &Update<'_>,
    now: TimeMs,
    multi_reply: &mut MultiReply,
) -> Option<Blocked> {
    match update::begin(state, (hash, key), update, usize::MAX, now) {
        Updated::Done { answer, wrote, wait } => {
            session.note(hash, wrote.or(wait));
            multi_reply.push(key, &answer.reply(&state.scratch, wrote.unwrap_or_default()), wait);
            None
        }
        Updated::Later(later) => Some(later),
        Updated::Larger { .. } => unreachable!("an item has no limit"),
        // Earlier keys are done, so the request cannot be offered again as a whole: this key is queued alone.
        Updated::Stall => {
            if !state.pending.keys.contains(hash) {
                state.pending.keys.retry_later(hash);
            }
            Some(Blocked::Queue)
        }
    }
}

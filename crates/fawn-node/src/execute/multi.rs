//! Requests on several keys: `MGET`, `DEL`, `EXISTS`, memcached's multi-key `get`, and the atomic `MSET`.
use super::core::operation_error;
use super::update::{self, Updated};
use super::{Core, Flow, Later, Stall, read};
use crate::pending::{Batch, Gathered, Op, Target};
use crate::session::Session;
use crate::shards::wide::{Place, place_of};
use crate::shards::{self, away};
use fawn_chain::Refusal;
use fawn_ds::internals::EngineError;
use fawn_ds::internals::format::record::{RecordKind, RecordRef};
use fawn_flash::Device;
use fawn_types::{KeyHash, OperationError, Reply, Request, ShardId, TimeMs, Update, Version, limits};
use fawn_wire::{Fold, Multi, Shape, encode_done, encode_error};

/// Executes a request on several keys.
pub(crate) fn execute<D: Device>(core: &mut Core<D>, session: &mut Session, multi: &Multi<'_>, now: TimeMs) -> Flow {
    assert!(!multi.is_empty(), "the decoder refuses requests on no key");
    let is_write = multi.requests().next().is_some_and(|request| matches!(request, Request::Update { .. }));
    if is_write && !session.reading.is_empty() && multi.keys().any(|key| session.reading.last(core.hash(key)).is_some())
    {
        return Flow::Stall(Stall::Reads);
    }
    if core.links.is_some() {
        for key in multi.keys() {
            if let Err(stall) = away::admit(core, session, core.hash(key), is_write) {
                return Flow::Stall(stall);
            }
        }
    }
    match multi.gather.fold {
        Fold::Atomic(shape) => match place_of(core, multi.keys()) {
            Place::Here => set_all(core, session, pairs_of(multi), shape),
            Place::At(owner) => shards::wide::set_all(core, session, (owner, pairs_of(multi)), shape),
            Place::Apart => shards::wide::refuse_apart(session),
        },
        Fold::Each(_) | Fold::Count => {
            gather(core, session, multi, now);
            Flow::Next
        }
    }
}

/// Keys with values, as in `MSET`.
fn pairs_of<'a>(multi: &Multi<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
    multi.requests().map(|request| {
        let Request::Update { key, update: Update::Set { value, .. } } = request else {
            unreachable!("an atomic batch consists of plain sets")
        };
        (key, value)
    })
}

/// `MSET`: one batch in the log, complete or absent after a crash.
pub(super) fn set_all<'a, D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    mut pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    shape: Shape,
) -> Flow {
    // Updates that wait for their value precede the batch.
    if core.pending.keys.len() > 0 && pairs.clone().any(|(key, _)| core.pending.keys.contains(core.hash(key))) {
        return Flow::Stall(Stall::Shard);
    }
    if core.replica.uncommitted() >= core.options.uncommitted_max {
        return Flow::Stall(Stall::Shard);
    }
    match append_all(core, &mut pairs) {
        Ok((hashes, last)) => {
            for (hash, version) in hashes {
                session.own.push(hash, version);
            }
            session.replies.respond_after(Some(last), |out| encode_done(shape, out));
        }
        Err(EngineError::Overloaded) => return Flow::Stall(Stall::Shard),
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| encode_error(shape, error, out));
        }
    }
    Flow::Next
}

/// Appends the batch; returns the hashes with their versions, and the last version.
fn append_all<'a, D: Device>(
    core: &mut Core<D>,
    pairs: &mut (impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone),
) -> Result<(Vec<(KeyHash, Version)>, Version), EngineError> {
    let count = pairs.clone().count();
    let before = core.replica.last();
    let first = core.replica.assign_batch(core.now, count as u64).map_err(update::refused)?;
    append_from(core, first, count, pairs).map_err(|error| update::retract(core, before, error))
}

fn append_from<'a, D: Device>(
    core: &mut Core<D>,
    first: Version,
    count: usize,
    pairs: &mut impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<(Vec<(KeyHash, Version)>, Version), EngineError> {
    let mut records = Vec::with_capacity(count);
    for ((key, value), seq) in pairs.zip(first.seq()..) {
        if key.len() > limits::KEY_BYTES_MAX {
            return Err(EngineError::KeyTooLong { found_bytes: key.len(), limit_bytes: limits::KEY_BYTES_MAX });
        }
        let version = Version::new(first.epoch(), seq).ok_or_else(|| update::refused(Refusal::EpochFull))?;
        records.push((core.hash(key), RecordRef { kind: RecordKind::Put, ..RecordRef::put(version, key, value) }));
    }
    core.engine.append_batch(core.replica.range(), &records)?;
    let hashes: Vec<_> = records.iter().map(|(hash, record)| (*hash, record.version)).collect();
    let last = hashes.last().map_or(first, |(_, version)| *version);
    core.counters.writes += hashes.len() as u64;
    Ok((hashes, last))
}

/// Independent requests whose replies become one.
fn gather<D: Device>(core: &mut Core<D>, session: &mut Session, multi: &Multi<'_>, now: TimeMs) {
    let bytes = std::mem::take(&mut core.scratch.gathered);
    let mut gathered = Gathered::new(multi.gather, bytes, core.options.reply_bytes_max);
    let mut batch = None;
    for request in multi.requests() {
        step(core, session, &request, now, &mut gathered, &mut batch);
    }
    match batch {
        None => {
            gathered.finish();
            session.replies.respond_after(gathered.wait, |out| out.extend_from_slice(&gathered.bytes));
            core.scratch.gathered = gathered.bytes;
        }
        Some(batch) => {
            let slot = session.replies.reserve(gathered.values());
            core.pending.batches[batch] = Batch { session: session.id, slot, gathered: Some(gathered) };
        }
    }
}

/// Executes one key: an immediate reply, or a waiting item of `batch`.
fn step<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    request: &Request<'_>,
    now: TimeMs,
    gathered: &mut Gathered,
    batch: &mut Option<usize>,
) {
    let key = request.key();
    let hash = core.hash(key);
    if let Some(owner) = core.elsewhere(session, key) {
        return step_away(core, session, (owner, hash), request, gathered, batch);
    }
    let later = match request {
        Request::Get { .. } => read::begin(core, session, hash, key, |_, reply, wait| gathered.push(key, reply, wait)),
        Request::Update { update, .. } => update_step(core, session, hash, key, update, now, gathered),
    };
    let Some(later) = later else { return };
    if !core.has_room() {
        core.counters.overloaded += 1;
        return gathered.push(key, &Reply::Error(OperationError::Overloaded), None);
    }
    // The slot is reserved before the replies exist: operations refer to it.
    let batch = *batch.get_or_insert_with(|| core.pending.batches.insert(Batch::unfilled()));
    let target = Target::Item { batch, item: gathered.push_unknown(key) };
    match request {
        Request::Get { .. } => {
            read::park(core, session, Op::get(session.id, target, hash, key, Shape::Silent), later);
        }
        Request::Update { update, .. } => {
            session.queued += 1;
            update::park(core, Op::update(session.id, target, hash, (key, update), Shape::Silent), later);
        }
    }
}

/// Forwards one key to the shard that owns it.
fn step_away<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    owner: (ShardId, KeyHash),
    request: &Request<'_>,
    gathered: &mut Gathered,
    batch: &mut Option<usize>,
) {
    let key = request.key();
    if key.len() > limits::KEY_BYTES_MAX {
        return gathered.push(key, &Reply::Error(OperationError::KeyTooLong), None);
    }
    let batch = *batch.get_or_insert_with(|| core.pending.batches.insert(Batch::unfilled()));
    let target = Target::Item { batch, item: gathered.push_unknown(key) };
    away::item(core, session, owner, request, target);
}

fn update_step<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    hash: KeyHash,
    key: &[u8],
    update: &Update<'_>,
    now: TimeMs,
    gathered: &mut Gathered,
) -> Option<Later> {
    match update::begin(core, hash, key, update, now) {
        Updated::Done { answer, wrote, wait } => {
            session.note(hash, wrote.or(wait));
            gathered.push(key, &answer.reply(&core.scratch, wrote.unwrap_or_default()), wait);
            None
        }
        Updated::Later(later) => Some(later),
        // Earlier keys are done, so the request cannot be offered again as a whole: this key is queued alone.
        Updated::Stall => {
            if !core.pending.keys.contains(hash) {
                core.pending.keys.retry_later(hash);
            }
            Some(Later::Queue)
        }
    }
}

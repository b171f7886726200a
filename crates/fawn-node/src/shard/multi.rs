//! Requests on several keys: `MGET`, `DEL`, `EXISTS`, memcached's multi-key `get`, and the atomic `MSET`.
use super::{ShardState, single};
use crate::exec::{HashedPair, refusal_error};
use crate::gateway::{Flow, MultiReply, PendingMulti, Session, Stall};
use crate::keyspace_op::CROSS_SLOT;
use crate::replica::RangeSlot;
use crate::request::{Destination, Execution, Parking, ReplyPlace, ReplyTarget, RequestBody};
use fawn_chain::message::FRAME_BYTES_MAX;
use fawn_flash::Device;
use fawn_types::{ClientTag, KeyHash, OperationError, Reply, Request, Update};
use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, put_pair};
use fawn_wire::{MultiCommand, ReplyFold, ReplyFormat, encode_done, encode_error};

/// Bytes that the items of one request share as their first grants.
const ITEMS_BYTES: usize = 1 << 20;
/// Maximum length of a batch for a chain: a frame holds it.
const CHAIN_BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX - (128 << 10);
/// Minimum of such a grant.
const ITEM_BYTES_MIN: usize = 64;

/// Executes a request on several keys.
pub(crate) fn execute<D: Device>(state: &mut ShardState<D>, session: &mut Session, multi: &MultiCommand<'_>) -> Flow {
    assert!(!multi.is_empty(), "the decoder refuses requests on no key");
    if session.own_keys.has_open_values() && multi.keys().any(|key| session.own_keys.must_wait(state.hash(key))) {
        return Flow::Stall(Stall::Values);
    }
    if !accepts_all(state, multi) {
        return Flow::Stall(Stall::Shard);
    }
    match multi.multi_reply.fold {
        ReplyFold::Atomic(format) => match owner_of(state, multi.keys()) {
            Some(to) if state.forward.is_here(to) => set_all(state, session, multi, format),
            Some(to) => forward_set_all(state, session, to, multi, format),
            None => {
                session.replies.respond(|out| out.extend_from_slice(CROSS_SLOT));
                Flow::Continue
            }
        },
        ReplyFold::Each(_) | ReplyFold::Count => {
            let is_read = multi.requests().next().is_some_and(|request| request.returns_value());
            let items = multi.len().min(state.options.session_pending_max);
            // The length of all values here is not known before they are found: any space admits the request.
            let item_bytes = if is_read { item_grant(session, items) } else { 0 };
            if is_read && !session.grant(item_bytes * items) {
                return Flow::Stall(Stall::ReplyBudget);
            }
            gather(state, session, multi, item_bytes);
            Flow::Continue
        }
    }
}

/// Whether requests on all its keys may be sent.
fn accepts_all<D: Device>(state: &ShardState<D>, multi: &MultiCommand<'_>) -> bool {
    let forward = &state.forward;
    forward.has_capacity(&state.options)
        && (!forward.has_full_windows()
            || multi
                .keys()
                .filter_map(|key| forward.remote_destination(key))
                .all(|to| forward.accepts(to, &state.options)))
}

/// Grant of each item that waits: a share of 1 MiB, since the values of a long list are mostly short.
fn item_grant(session: &Session, items: usize) -> usize {
    session.first_grant_bytes().min((ITEMS_BYTES / items).max(ITEM_BYTES_MIN))
}

/// The owner of all keys of an atomic batch; `None` if they are in several logs: no batch of one log can hold them.
fn owner_of<'a, D: Device>(state: &ShardState<D>, mut keys: impl Iterator<Item = &'a [u8]>) -> Option<Destination> {
    let owner = keys.next().map(|key| state.forward.destination(key))?;
    (state.forward.parts() == 1 || keys.all(|key| state.forward.destination(key) == owner)).then_some(owner)
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
fn set_all<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    multi: &MultiCommand<'_>,
    format: ReplyFormat,
) -> Flow {
    let pairs: Vec<HashedPair<'_>> = pairs_of(multi).map(|(key, value)| (state.hash(key), key, value)).collect();
    let execution = state.host.at(RangeSlot::ONLY).set_all(RangeSlot::ONLY, ClientTag::NONE, &pairs, |reply, wait| {
        pairs.iter().for_each(|(hash, ..)| session.note(*hash, wait));
        session.replies.respond_after(wait, |out| match reply {
            Reply::Error(error) => encode_error(format, *error, out),
            _ => encode_done(format, out),
        });
    });
    match execution {
        // Its keys' queues are short: each ends with a device read.
        Execution::Blocked | Execution::Park(_) => return Flow::Stall(Stall::Shard),
        Execution::Refused(rejection) => {
            session.replies.respond(|out| encode_error(format, refusal_error(&rejection), out));
        }
        Execution::Replied | Execution::Larger { .. } => {}
    }
    Flow::Continue
}

/// `MSET` on keys of one other log.
fn forward_set_all<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    to: Destination,
    multi: &MultiCommand<'_>,
    format: ReplyFormat,
) -> Flow {
    let is_chain = matches!(to, Destination::Chain(_));
    // The head may execute a repeated request after the session's later ones: these wait for the reply.
    if is_chain && !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    let mut bytes = Vec::new();
    for (key, value) in pairs_of(multi) {
        put_pair(&mut bytes, key, value);
    }
    let Ok(pairs) = KeyValuePairs::new(&bytes) else { unreachable!("pairs that were just encoded decode") };
    if is_chain && bytes.len() > CHAIN_BATCH_BYTES_MAX {
        let error = OperationError::RecordsTooLong { limit_bytes: CHAIN_BATCH_BYTES_MAX as u32 };
        session.replies.respond(|out| encode_error(format, error, out));
        return Flow::Continue;
    }
    let body = RequestBody::Keyspace(KeyspaceRequest::SetAll(pairs));
    let place = ReplyPlace::Slot(session.replies.reserve(0));
    let target = ReplyTarget { session: session.id, place, format };
    single::send(state, session, (to, KeyHash(0)), &body, (false, 0), target);
    if is_chain {
        session.stalled = Some(Stall::Quiet);
    }
    Flow::Continue
}

/// Independent requests whose replies become one. `item_bytes`: grant of each value that is not known at once.
fn gather<D: Device>(state: &mut ShardState<D>, session: &mut Session, multi: &MultiCommand<'_>, item_bytes: usize) {
    let bytes = std::mem::take(&mut state.multi_reply);
    let multi_reply = MultiReply::new(multi.multi_reply, bytes, state.options.reply_bytes_max);
    let mut pending = PendingMulti::new(session.id, multi_reply, multi.each, item_bytes);
    // The session has unfinished requests before this one. Its own items need no order.
    let is_latest = !session.own_keys.is_empty();
    for request in multi.requests() {
        step(state, session, &request, is_latest, &mut pending);
    }
    let multi_reply = &mut pending.multi_reply;
    if multi_reply.is_complete() {
        multi_reply.finish();
        session.replies.note_inner_error(multi_reply.has_inner_error);
        session.replies.respond_after(multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
        state.multi_reply = pending.multi_reply.bytes;
        return;
    }
    if multi_reply.has_unstarted() {
        // No key is recorded yet for these: the session's next requests wait for the reply.
        session.stalled = Some(Stall::Quiet);
    }
    pending.slot = session.replies.reserve(multi_reply.held_bytes() + pending.outstanding_bytes);
    pending.keys_bytes = multi_reply.keys_bytes();
    state.forward.multis_bytes += pending.keys_bytes;
    // At the place that the items' operations refer to: no other request was executed meanwhile.
    state.multis.insert(pending);
}

/// Executes one key: an immediate reply, or an item that waits.
fn step<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    request: &Request<'_>,
    is_latest: bool,
    pending: &mut PendingMulti,
) {
    let key = request.key();
    if pending.outstanding >= state.options.session_pending_max {
        return pending.multi_reply.push_unstarted(key);
    }
    let (hash, multi) = (state.hash(key), state.multis.vacant_key());
    if let Some(to) = state.forward.remote_destination(key) {
        if let (Destination::Chain(range), Request::Get { key }) = (to, request) {
            let emit = |reply: &Reply<'_>| pending.multi_reply.push(key, reply, None);
            if single::read_at_tail(state, (range, hash, key), usize::MAX, emit) {
                return;
            }
        }
        let grant_bytes = if request.returns_value() { pending.item_bytes } else { 0 };
        let target = pending.reserve_item(multi, key, grant_bytes);
        return single::send(state, session, (to, hash), &RequestBody::Key(*request), (is_latest, grant_bytes), target);
    }
    // The length of an item is bounded with the whole reply.
    let multi_reply = &mut pending.multi_reply;
    let emit = |session: &mut Session, reply: &Reply<'_>, wait| {
        session.note(hash, wait);
        multi_reply.push(key, reply, wait);
    };
    let execution = single::begin(state, session, (hash, request), (is_latest, usize::MAX), emit);
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
    let grant_bytes = match &parking {
        // Reads are of whole pages: for a long list of short values their sum is far more than the reply.
        Parking::Read(plan)
            if request.returns_value() && pending.outstanding_bytes + plan.read_bytes() <= ITEMS_BYTES =>
        {
            plan.read_bytes().max(pending.item_bytes)
        }
        _ if request.returns_value() => pending.item_bytes,
        _ => 0,
    };
    let target = pending.reserve_item(multi, key, grant_bytes);
    single::park(state, session, (hash, request), (is_latest, grant_bytes), parking, target);
}

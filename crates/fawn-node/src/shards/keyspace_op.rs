//! Whole-keyspace requests on a node with several shards: a part to each shard, this one included.
use super::outstanding::{ForwardedOp, Outstanding};
use crate::SessionId;
use crate::exec::ReplyPlace;
use crate::gateway::{Flow, ShardContext, ShardState, Stall};
use crate::keyspace_op::{CROSS_SLOT, KeyspaceOp, KeyspaceOpKind, ScanState};
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, OperationError, Reply, ShardId, TimeMs, limits};
use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, put_keyspace_frame, put_pair};
use fawn_wire::{KeyspaceCommand, ReplyFormat, encode_done, encode_error};

/// Executes the request, or stalls the session until it is quiet. The session's next requests wait for the replies.
pub(crate) fn keyspace<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    keyspace: &KeyspaceCommand<'_>,
    now: Now,
) -> Flow {
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *keyspace {
        KeyspaceCommand::FlushAll { at_ms, format } if at_ms > now.wall.0 => {
            state.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(format, out));
        }
        // One record per shard, so not atomic across shards [replication.md § 5].
        KeyspaceCommand::FlushAll { format, .. } => {
            ask_all(state, session, KeyspaceOpKind::Flush(format), &KeyspaceRequest::Clear)
        }
        KeyspaceCommand::DbSize => ask_all(state, session, KeyspaceOpKind::DbSize, &KeyspaceRequest::Count),
        KeyspaceCommand::Scan { .. } => {
            let scan = ScanState::new(keyspace);
            match scan.next_part(state.links().count()) {
                Some((at, part)) => ask(state, session, KeyspaceOpKind::Scan(scan), (at..at + 1, &part)),
                None => session.replies.respond(ScanState::encode_nothing),
            }
        }
    }
    Flow::Continue
}

fn ask_all<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    form: KeyspaceOpKind,
    part: &KeyspaceRequest<'_>,
) {
    let count = state.links().count();
    ask(state, session, form, (0..count, part));
}

/// Sends the parts to these shards.
fn ask<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    form: KeyspaceOpKind,
    (shards, part): (std::ops::Range<usize>, &KeyspaceRequest<'_>),
) {
    assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
    let slot = session.replies.reserve(0);
    let links = state.links();
    let at = links.keyspace_ops.insert(KeyspaceOp::new(session.id, slot, form));
    let outstanding = session.outstanding.get_or_insert_default();
    for shard in shards {
        links.keyspace_ops[at].asked();
        links.send_keyspace_op((outstanding, session.id), (ShardId(shard as u16), at), |out| {
            put_keyspace_frame(part, out)
        });
    }
    session.stalled = Some(Stall::Quiet);
}

/// A delayed `flush_all` that is due; no session waits for it.
pub(crate) fn flush_all<D: Device>(state: &mut ShardState<D>) {
    let links = state.links();
    let at =
        links.keyspace_ops.insert(KeyspaceOp::new(SessionId::NOBODY, 0, KeyspaceOpKind::Flush(ReplyFormat::Silent)));
    let mut internal_requests = std::mem::take(&mut links.internal_requests);
    for shard in 0..links.count() {
        links.keyspace_ops[at].asked();
        let to = (ShardId(shard as u16), at);
        links.send_keyspace_op((&mut internal_requests, SessionId::NOBODY), to, |out| {
            put_keyspace_frame(&KeyspaceRequest::Clear, out)
        });
    }
    links.internal_requests = internal_requests;
}

/// Owners of the keys of an atomic batch.
pub(crate) enum KeyOwners {
    Here,
    At(ShardId),
    /// Several shards: no batch of one log can hold the keys.
    Apart,
}

/// Finds the owners of the keys of an atomic batch.
pub(crate) fn place_of<'a, D: Device>(state: &ShardState<D>, mut keys: impl Iterator<Item = &'a [u8]>) -> KeyOwners {
    let Some(links) = &state.links else { return KeyOwners::Here };
    let first = keys.next().and_then(|key| links.elsewhere(key));
    if keys.any(|key| links.elsewhere(key) != first) {
        return KeyOwners::Apart;
    }
    first.map_or(KeyOwners::Here, KeyOwners::At)
}

/// `MSET` on keys of one other shard.
pub(crate) fn set_all<'a, D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (to, pairs): (ShardId, impl Iterator<Item = (&'a [u8], &'a [u8])>),
    format: ReplyFormat,
) -> Flow {
    if let Err(stall) = super::outstanding::admit(state, session, KeyHash(0), false) {
        return Flow::Stall(stall);
    }
    let mut bytes = Vec::new();
    for (key, value) in pairs {
        if key.len() > limits::KEY_BYTES_MAX {
            session.replies.respond(|out| encode_error(format, OperationError::KeyTooLong, out));
            return Flow::Continue;
        }
        put_pair(&mut bytes, key, value);
    }
    let Ok(pairs) = KeyValuePairs::new(&bytes) else { unreachable!("pairs that were just encoded decode") };
    let slot = session.replies.reserve(0);
    let asked = ForwardedOp::new(ReplyPlace::Slot(slot), KeyHash(0), format, true);
    state.counters.forwarded += 1;
    state.links().send(session, to, (asked, &[]), |out| put_keyspace_frame(&KeyspaceRequest::SetAll(pairs), out));
    Flow::Continue
}

/// `MSET` on keys of several shards.
pub(crate) fn refuse_apart(session: &mut Session) -> Flow {
    session.replies.respond(|out| out.extend_from_slice(CROSS_SLOT));
    Flow::Continue
}

impl<D: Device> ShardContext<'_, D> {
    /// Receives the reply to a part of a whole-keyspace request.
    pub(super) fn keyspace_op_replied(&mut self, outstanding: &mut Outstanding, at: usize, reply: &Reply<'_>) {
        let links = self.state.links();
        let ranges = links.count();
        let keyspace_op = &mut links.keyspace_ops[at];
        if let Some((next, part)) = keyspace_op.take(reply, ranges) {
            let id = keyspace_op.session;
            keyspace_op.asked();
            return links
                .send_keyspace_op((outstanding, id), (ShardId(next as u16), at), |out| put_keyspace_frame(&part, out));
        }
        if !keyspace_op.is_over() {
            return;
        }
        let keyspace_op = links.keyspace_ops.remove(at);
        if let (Some(error), SessionId::NOBODY) = (keyspace_op.failed(), keyspace_op.session) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = self.sessions.get_mut(keyspace_op.session) else { return };
        session.replies.complete(keyspace_op.slot, None, |out| keyspace_op.encode(out));
        self.sessions.schedule(keyspace_op.session);
    }
}

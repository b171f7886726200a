//! Whole-keyspace requests on a node with several shards: a part to each shard, this one included.
use super::away::{Asked, Away};
use crate::SessionId;
use crate::execute::{Core, Flow, Host, Stall};
use crate::pending::Target;
use crate::session::Session;
use crate::wide::{CROSS_SLOT, Form, ScanState, Wide};
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, OperationError, Reply, ShardId, TimeMs, limits};
use fawn_wire::native::{Pairs, WideRequest, put_pair, put_wide_frame};
use fawn_wire::{Keyspace, Shape, encode_done, encode_error};

/// Executes the request, or stalls the session until it is quiet. The session's next requests wait for the replies.
pub(crate) fn keyspace<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    keyspace: &Keyspace<'_>,
    now: Now,
) -> Flow {
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *keyspace {
        Keyspace::FlushAll { at_ms, shape } if at_ms > now.wall.0 => {
            core.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(shape, out));
        }
        // One record per shard, so not atomic across shards [replication.md § 5].
        Keyspace::FlushAll { shape, .. } => ask_all(core, session, Form::Flush(shape), &WideRequest::Clear),
        Keyspace::DbSize => ask_all(core, session, Form::DbSize, &WideRequest::Count),
        Keyspace::Scan { .. } => {
            let scan = ScanState::new(keyspace);
            match scan.next_part(core.links().count()) {
                Some((at, part)) => ask(core, session, Form::Scan(scan), (at..at + 1, &part)),
                None => session.replies.respond(ScanState::encode_nothing),
            }
        }
    }
    Flow::Next
}

fn ask_all<D: Device>(core: &mut Core<D>, session: &mut Session, form: Form, part: &WideRequest<'_>) {
    let count = core.links().count();
    ask(core, session, form, (0..count, part));
}

/// Sends the parts to these shards.
fn ask<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    form: Form,
    (shards, part): (std::ops::Range<usize>, &WideRequest<'_>),
) {
    assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
    let slot = session.replies.reserve(0);
    let links = core.links();
    let at = links.wides.insert(Wide::new(session.id, slot, form));
    let away = session.away.get_or_insert_default();
    for shard in shards {
        links.wides[at].asked();
        links.send_wide((away, session.id), (ShardId(shard as u16), at), |out| put_wide_frame(part, out));
    }
    session.stalled = Some(Stall::Quiet);
}

/// A delayed `flush_all` that is due; no session waits for it.
pub(crate) fn flush_all<D: Device>(core: &mut Core<D>) {
    let links = core.links();
    let at = links.wides.insert(Wide::new(SessionId::NOBODY, 0, Form::Flush(Shape::Silent)));
    let mut house = std::mem::take(&mut links.house);
    for shard in 0..links.count() {
        links.wides[at].asked();
        let to = (ShardId(shard as u16), at);
        links.send_wide((&mut house, SessionId::NOBODY), to, |out| put_wide_frame(&WideRequest::Clear, out));
    }
    links.house = house;
}

/// Owners of the keys of an atomic batch.
pub(crate) enum Place {
    Here,
    At(ShardId),
    /// Several shards: no batch of one log can hold the keys.
    Apart,
}

/// Finds the owners of the keys of an atomic batch.
pub(crate) fn place_of<'a, D: Device>(core: &Core<D>, mut keys: impl Iterator<Item = &'a [u8]>) -> Place {
    let Some(links) = &core.links else { return Place::Here };
    let first = keys.next().and_then(|key| links.elsewhere(key));
    if keys.any(|key| links.elsewhere(key) != first) {
        return Place::Apart;
    }
    first.map_or(Place::Here, Place::At)
}

/// `MSET` on keys of one other shard.
pub(crate) fn set_all<'a, D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    (to, pairs): (ShardId, impl Iterator<Item = (&'a [u8], &'a [u8])>),
    shape: Shape,
) -> Flow {
    if let Err(stall) = super::away::admit(core, session, KeyHash(0), false) {
        return Flow::Stall(stall);
    }
    let mut bytes = Vec::new();
    for (key, value) in pairs {
        if key.len() > limits::KEY_BYTES_MAX {
            session.replies.respond(|out| encode_error(shape, OperationError::KeyTooLong, out));
            return Flow::Next;
        }
        put_pair(&mut bytes, key, value);
    }
    let Ok(pairs) = Pairs::new(&bytes) else { unreachable!("pairs that were just encoded decode") };
    let slot = session.replies.reserve(0);
    let asked = Asked::new(Target::Slot(slot), KeyHash(0), shape, true);
    core.counters.away += 1;
    core.links().send(session, to, (asked, &[]), |out| put_wide_frame(&WideRequest::SetAll(pairs), out));
    Flow::Next
}

/// `MSET` on keys of several shards.
pub(crate) fn refuse_apart(session: &mut Session) -> Flow {
    session.replies.respond(|out| out.extend_from_slice(CROSS_SLOT));
    Flow::Next
}

impl<D: Device> Host<'_, D> {
    /// Receives the reply to a part of a whole-keyspace request.
    pub(super) fn wide_answered(&mut self, away: &mut Away, at: usize, reply: &Reply<'_>) {
        let links = self.core.links();
        let ranges = links.count();
        let wide = &mut links.wides[at];
        if let Some((next, part)) = wide.take(reply, ranges) {
            let id = wide.session;
            wide.asked();
            return links.send_wide((away, id), (ShardId(next as u16), at), |out| put_wide_frame(&part, out));
        }
        if !wide.is_over() {
            return;
        }
        let wide = links.wides.remove(at);
        if let (Some(error), SessionId::NOBODY) = (wide.failed(), wide.session) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = self.sessions.get_mut(wide.session) else { return };
        session.replies.complete(wide.slot, None, |out| wide.encode(out));
        self.sessions.list(wide.session);
    }
}

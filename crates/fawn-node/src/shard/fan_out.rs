//! Whole-keyspace requests: a part to each shard of the node, this one included, or to each chain, and one folded
//! reply.
use super::{ShardContext, ShardState};
use crate::forward::ClusterOps;
use crate::gateway::{Flow, Session, Stall};
use crate::keyspace_op::{KeyspaceOp, KeyspaceOpKind, ScanState};
use crate::request::{Destination, OutstandingOp, ReplyPlace, ReplyTarget, RequestBody, SessionId};
use fawn_chain::Header;
use fawn_flash::Device;
use fawn_types::{KeyHash, Reply, TimeMs};
use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, Message};
use fawn_wire::{KeyspaceCommand, ReplyFormat, encode_done};

/// Executes the request, or stalls the session until it is quiet and the shard has capacity. The session's next requests
/// wait for the reply.
pub(crate) fn keyspace<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    keyspace: &KeyspaceCommand<'_>,
) -> Flow {
    let now = state.host.now;
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    if !state.forward.has_capacity(&state.options) {
        return Flow::Stall(Stall::Shard);
    }
    if let KeyspaceCommand::FlushAll { .. } = keyspace {
        // The node has at most one delayed flush, which each further flush replaces.
        state.flush_at = None;
        state.forward.notify_others(Message::DropDelayedFlush);
    }
    match *keyspace {
        KeyspaceCommand::FlushAll { at_ms, format } if at_ms > now.wall.0 => {
            state.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(format, out));
        }
        // One record per shard, so not atomic across shards [replication.md § 5].
        KeyspaceCommand::FlushAll { format, .. } => {
            let parts = state.forward.all_parts();
            ask(state, session, KeyspaceOpKind::Flush(format), &parts, &KeyspaceRequest::Clear);
        }
        KeyspaceCommand::DbSize => {
            let parts = state.forward.all_parts();
            ask(state, session, KeyspaceOpKind::DbSize, &parts, &KeyspaceRequest::Count);
        }
        KeyspaceCommand::Scan { .. } => {
            let scan = ScanState::new(keyspace);
            match scan.next_part(state.forward.parts()) {
                Some((at, part)) => {
                    let to = state.forward.part(at);
                    ask(state, session, KeyspaceOpKind::Scan(scan), &[to], &part);
                }
                None => session.replies.respond(ScanState::encode_nothing),
            }
        }
    }
    Flow::Continue
}

/// Sends the part to each destination. The session's next requests wait for the reply.
fn ask<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    kind: KeyspaceOpKind,
    destinations: &[Destination],
    part: &KeyspaceRequest<'_>,
) {
    assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
    let slot = session.replies.reserve(0);
    begin(state, KeyspaceOp::new(session.id, slot, kind), destinations, part);
    session.stalled = Some(Stall::Quiet);
}

fn begin<D: Device>(
    state: &mut ShardState<D>,
    keyspace_op: KeyspaceOp,
    destinations: &[Destination],
    part: &KeyspaceRequest<'_>,
) {
    let operation = state.forward.keyspace_ops.insert(keyspace_op);
    destinations.iter().for_each(|to| send_part(state, operation, *to, part));
}

fn send_part<D: Device>(state: &mut ShardState<D>, operation: usize, to: Destination, part: &KeyspaceRequest<'_>) {
    let keyspace_op = &mut state.forward.keyspace_ops[operation];
    keyspace_op.left += 1;
    let place = ReplyPlace::Part { operation };
    let target = ReplyTarget { session: keyspace_op.session, place, format: ReplyFormat::Silent };
    let body = RequestBody::Keyspace(*part);
    state.forward.send(to, OutstandingOp::new(to, target, KeyHash(0), &body, 0), &body, false);
}

/// A delayed `flush_all` that is due; no session waits for it.
pub(crate) fn flush_all<D: Device>(state: &mut ShardState<D>) {
    let keyspace_op = KeyspaceOp::new(SessionId::NONE, 0, KeyspaceOpKind::Flush(ReplyFormat::Silent));
    let parts = state.forward.all_parts();
    begin(state, keyspace_op, &parts, &KeyspaceRequest::Clear);
}

/// Acknowledges the replies of the range that this shard has, as its head wants, unless an update on its way does so. If
/// either fails, the head asks again. One that is the head no more is ignored, once this shard knows.
pub(crate) fn acknowledge<D: Device>(state: &mut ShardState<D>, Header { from, range, epoch, .. }: Header) {
    let is_present = |cluster: &ClusterOps| {
        let entry = cluster.map().range(range);
        entry.is_some_and(|entry| epoch > entry.epoch || epoch == entry.epoch && entry.head() == Some(from))
    };
    if state.forward.cluster.as_ref().is_some_and(|cluster| is_present(cluster) && cluster.may_acknowledge(range)) {
        let keyspace_op = KeyspaceOp::new(SessionId::NONE, 0, KeyspaceOpKind::Acknowledge);
        begin(state, keyspace_op, &[Destination::Chain(range)], &KeyspaceRequest::SetAll(KeyValuePairs::EMPTY));
    }
}

impl<D: Device> ShardContext<'_, D> {
    /// Receives the reply to a part of a whole-keyspace request.
    pub(super) fn keyspace_op_replied(&mut self, operation: usize, reply: &Reply<'_>) {
        let parts = self.state.forward.parts();
        let keyspace_op = &mut self.state.forward.keyspace_ops[operation];
        // Only a scan has parts one after the other. Without its session the rest would be read for no reply.
        let next = keyspace_op.take(reply, parts).filter(|_| self.sessions.get(keyspace_op.session).is_some());
        if let Some((next, part)) = next {
            let to = self.state.forward.part(next);
            return send_part(self.state, operation, to, &part);
        }
        if keyspace_op.left > 0 {
            return;
        }
        let keyspace_op = self.state.forward.keyspace_ops.remove(operation);
        if let Some(error) = keyspace_op.failed.filter(|_| keyspace_op.is_delayed_flush()) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = self.sessions.get_mut(keyspace_op.session) else { return };
        session.replies.complete(keyspace_op.slot, None, |out| keyspace_op.encode(out));
        self.sessions.schedule(keyspace_op.session);
    }
}

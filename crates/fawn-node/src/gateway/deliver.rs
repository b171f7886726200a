//! Delivery of late replies: to a session's slot, to an item of a request on several keys, or to a whole-keyspace
//! operation; accepted, queued for a larger grant, or refused.
use super::PendingMulti;
use crate::exec::{Admit, Origin, ReplyPlace, ReplySink, ReplyTarget, RequestHead, refusal_error};
use crate::keyspace_op::KeyspaceOp;
use crate::session::Sessions;
use fawn_chain::Rejection;
use fawn_types::{Reply, Version};
use fawn_wire::encode_reply;
use slab::Slab;

/// Receiver of the executor's replies to sessions of this shard.
pub(crate) struct LocalReplies<'a> {
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) multis: &'a mut Slab<PendingMulti>,
    pub(crate) keyspace_ops: &'a mut Slab<KeyspaceOp>,
}

fn target(head: &RequestHead) -> &ReplyTarget {
    let Origin::Local(target) = &head.origin else { unreachable!("a shard executes for its own sessions") };
    target
}

impl ReplySink for LocalReplies<'_> {
    fn admit_read(&mut self, head: &RequestHead, bytes: usize) -> bool {
        let ReplyTarget { session, place: ReplyPlace::Slot(slot), .. } = *target(head) else { return true };
        let Some((session, _, budget)) = self.sessions.get_with_pool(session) else { return true };
        if !head.is_queued {
            return budget.grant(session, slot, bytes) || {
                budget.queue_read(session, slot, bytes);
                false
            };
        }
        if session.replies.reserved_bytes(slot) > 0 {
            // It returns a value. It holds its key's queue, so it is counted but does not wait.
            session.replies.set_reserved(slot, bytes);
        }
        true
    }

    fn admit_value(&mut self, head: &RequestHead, bytes: usize) -> Admit {
        admit_value(self.sessions, target(head), bytes)
    }

    fn is_granted(&self, head: &RequestHead, bytes: usize) -> bool {
        is_granted(self.sessions, target(head), bytes)
    }

    fn reply(&mut self, id: usize, head: &RequestHead, key: &[u8], reply: &Reply<'_>, wait: Option<Version>) {
        let target = target(head);
        if let ReplyPlace::Part { operation } = target.place {
            let mut keyspace_op = self.keyspace_ops.remove(operation);
            let Some(session) = self.sessions.get_mut(target.session) else { return };
            keyspace_op.take(reply, 1);
            session.replies.complete(keyspace_op.slot, None, |out| keyspace_op.encode(out));
            return self.sessions.schedule(target.session);
        }
        if let Some(session) = self.sessions.get_mut(target.session) {
            if head.is_queued {
                session.queued -= 1;
            } else if head.next.is_none() {
                session.own_reads.ended(head.hash, id);
            }
            session.note(head.hash, wait);
        }
        deliver(self.sessions, self.multis, target, key, reply, wait);
        self.sessions.update_budget(target.session);
    }

    fn refuse(&mut self, id: usize, head: &RequestHead, rejection: &Rejection) {
        self.reply(id, head, &[], &Reply::Error(refusal_error(rejection)), None);
    }
}

/// Whether the budget admits `reply` to a read. If not, the read is queued for a grant of the reply's length.
pub(crate) fn admit_reply(sessions: &mut Sessions, target: &ReplyTarget, reply: &Reply<'_>) -> Admit {
    match reply {
        Reply::Value(entry) => admit_value(sessions, target, entry.value.len()),
        _ => Admit::Accept,
    }
}

fn admit_value(sessions: &mut Sessions, target: &ReplyTarget, bytes: usize) -> Admit {
    let Some((session, _, budget)) = sessions.get_with_pool(target.session) else { return Admit::Accept };
    match target.place {
        ReplyPlace::Slot(slot) if budget.grant(session, slot, bytes) => Admit::Accept,
        ReplyPlace::Slot(slot) => {
            budget.queue_read(session, slot, bytes);
            Admit::Retry
        }
        ReplyPlace::Item { .. } if !budget.admits_partial(bytes) => Admit::Reject,
        ReplyPlace::Item { .. } | ReplyPlace::Part { .. } => Admit::Accept,
    }
}

/// Whether a queued read has its grant of `bytes`, or needs none because its session has ended.
pub(crate) fn is_granted(sessions: &Sessions, target: &ReplyTarget, bytes: usize) -> bool {
    let (ReplyPlace::Slot(slot), Some(session)) = (target.place, sessions.get(target.session)) else {
        return true;
    };
    session.replies.reserved_bytes(slot) >= bytes
}

/// Delivers a reply to a request on one key; nothing happens if the session has ended.
pub(crate) fn deliver(
    sessions: &mut Sessions,
    multis: &mut Slab<PendingMulti>,
    target: &ReplyTarget,
    key: &[u8],
    reply: &Reply<'_>,
    wait: Option<Version>,
) {
    match target.place {
        ReplyPlace::Slot(slot) => {
            let Some(session) = sessions.get_mut(target.session) else { return };
            session.replies.complete(slot, wait, |out| encode_reply(target.format, key, reply, out));
            sessions.schedule(target.session);
        }
        ReplyPlace::Item { multi, item } => {
            let Some(multi_reply) = &mut multis[multi].multi_reply else {
                unreachable!("nothing completes while its request is being executed")
            };
            multi_reply.complete(item, reply, wait);
            if !multi_reply.is_complete() {
                let held_bytes = multi_reply.held_bytes();
                let PendingMulti { session, slot, .. } = multis[multi];
                if let Some(session) = sessions.get_mut(session) {
                    session.replies.set_partial(slot, held_bytes);
                    sessions.schedule(target.session);
                }
            } else {
                deliver_multi(sessions, multis.remove(multi));
            }
        }
        ReplyPlace::Part { .. } => unreachable!("a whole-keyspace operation folds its replies"),
    }
}

fn deliver_multi(sessions: &mut Sessions, multi: PendingMulti) {
    let PendingMulti { session: id, slot, multi_reply: Some(mut multi_reply) } = multi else { return };
    let Some(session) = sessions.get_mut(id) else { return };
    multi_reply.finish();
    session.replies.complete(slot, multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
    sessions.schedule(id);
}

//! Delivery of late replies: to a session's slot, to an item of a request on several keys, or to another shard; accepted,
//! queued for a larger grant, or refused.
use super::PendingMulti;
use crate::exec::{Admit, Origin, ReplyPlace, ReplySink, ReplyTarget, RequestBody, RequestHead, refusal_error};
use crate::forward::Forwarder;
use crate::session::Sessions;
use fawn_chain::Rejection;
use fawn_types::{Reply, Version};
use fawn_wire::encode_reply;
use slab::Slab;

/// Receiver of the executor's replies: sessions of this shard, and other shards.
pub(crate) struct ShardReplies<'a> {
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) multis: &'a mut Slab<PendingMulti>,
    pub(crate) forward: &'a mut Forwarder,
}

impl ReplySink for ShardReplies<'_> {
    fn admit_read(&mut self, head: &RequestHead, bytes: usize) -> Admit {
        let target = match &head.origin {
            Origin::Local(target) => target,
            Origin::Shard { .. } if bytes > head.grant_bytes => return Admit::Return,
            Origin::Shard { .. } | Origin::Node { .. } => return Admit::Accept,
        };
        let ReplyTarget { session, place: ReplyPlace::Slot(slot), .. } = *target else { return Admit::Accept };
        let Some((session, _, budget)) = self.sessions.get_with_pool(session) else { return Admit::Accept };
        if head.is_queued {
            if session.replies.reserved_bytes(slot) > 0 {
                // It returns a value. It holds its key's queue, so it is counted but does not wait.
                session.replies.set_reserved(slot, bytes);
            }
        } else if !budget.grant(session, slot, bytes) {
            budget.queue_read(session, slot, bytes);
            return Admit::Retry;
        }
        Admit::Accept
    }

    fn admit_value(&mut self, head: &RequestHead, bytes: usize) -> Admit {
        match &head.origin {
            Origin::Shard { .. } if bytes > head.grant_bytes => Admit::Return,
            // A read in its key's queue keeps its place.
            Origin::Local(target) if !head.is_queued => admit_value(self.sessions, target, bytes),
            _ => Admit::Accept,
        }
    }

    fn is_granted(&self, head: &RequestHead, bytes: usize) -> bool {
        let Origin::Local(target) = &head.origin else { return true };
        is_granted(self.sessions, target, bytes)
    }

    fn give_back(&mut self, head: &RequestHead, bytes: usize, body: &RequestBody<'_>) {
        let Origin::Shard { shard, op } = head.origin else { unreachable!("only shards grant at a distance") };
        self.forward.give_back((shard, op), bytes, body);
    }

    fn reply(&mut self, head: &RequestHead, key: &[u8], reply: &Reply<'_>, wait: Option<Version>) {
        let target = match &head.origin {
            Origin::Local(target) => target,
            Origin::Shard { shard, op } => return self.forward.reply((*shard, *op), reply, wait),
            Origin::Node { .. } => unreachable!("a shard executes for no node"),
        };
        if let Some(session) = self.sessions.get_mut(target.session) {
            session.own_keys.end(head.hash, head.kind);
            session.note(head.hash, wait);
        }
        self.forward.wake((target.session, head.hash));
        deliver(self.sessions, self.multis, target, key, reply, wait);
        self.sessions.update_budget(target.session);
    }

    fn refuse(&mut self, head: &RequestHead, rejection: &Rejection) {
        self.reply(head, &[], &Reply::Error(refusal_error(rejection)), None);
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
    let PendingMulti { session: id, slot, multi_reply: Some(mut multi_reply), .. } = multi else { return };
    let Some(session) = sessions.get_mut(id) else { return };
    multi_reply.finish();
    session.replies.complete(slot, multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
    sessions.schedule(id);
}

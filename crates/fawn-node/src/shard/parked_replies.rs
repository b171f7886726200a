//! Replies of the executor to parked requests: to sessions of this shard, to other shards, and to front-ends.
use super::node_replies::{NodeReplies, larger, reason_of};
use crate::exec::{ReplySink, refusal_error};
use crate::forward::Forwarder;
use crate::gateway::{PendingMulti, Sessions, admit_value, deliver, is_granted};
use crate::request::{Admit, Origin, ReplyPlace, ReplyTarget, RequestBody, RequestHead};
use fawn_chain::Rejection;
use fawn_types::{Reply, Version};
use slab::Slab;

/// Receiver of the executor's replies: sessions of this shard, other shards, and front-ends.
pub(crate) struct ShardReplies<'a> {
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) multis: &'a mut Slab<PendingMulti>,
    pub(crate) forward: &'a mut Forwarder,
    pub(crate) nodes: NodeReplies<'a>,
}

impl ReplySink for ShardReplies<'_> {
    fn admit_read(&mut self, head: &RequestHead, bytes: usize) -> Admit {
        let target = match &head.origin {
            Origin::Local(target) => target,
            Origin::Shard { .. } | Origin::Node { .. } if bytes > head.grant_bytes => return Admit::Return,
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
            Origin::Shard { .. } | Origin::Node { .. } if bytes > head.grant_bytes => Admit::Return,
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
        match head.origin {
            Origin::Shard { shard, op } => self.forward.give_back((shard, op), bytes, body),
            Origin::Node { .. } => self.nodes.refuse(&head.origin, larger(bytes)),
            Origin::Local(_) => unreachable!("a session's request waits here for its grant"),
        }
    }

    fn reply(&mut self, head: &RequestHead, key: &[u8], reply: &Reply<'_>, wait: Option<Version>) {
        let target = match &head.origin {
            Origin::Local(target) => target,
            Origin::Shard { shard, op } => return self.forward.reply((*shard, *op), reply, wait),
            Origin::Node { .. } => return self.nodes.send(&head.origin, reply, wait),
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
        match head.origin {
            Origin::Node { .. } => self.nodes.refuse(&head.origin, reason_of(rejection)),
            _ => self.reply(head, &[], &Reply::Error(refusal_error(rejection)), None),
        }
    }
}

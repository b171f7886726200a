//! Replies of the executor to parked requests: to operations of the node's shards, and to front-ends.
use super::node_replies::{NodeReplies, larger, reason_of};
use crate::exec::{ReplySink, refusal_error};
use crate::forward::Forwarder;
use crate::gateway::Sessions;
use crate::request::{Origin, ReplyPlace, RequestBody, RequestHead};
use fawn_chain::Rejection;
use fawn_types::{Reply, Version};

/// Receiver of the executor's replies: operations of shards, this one included, and of front-ends.
pub(crate) struct ShardReplies<'a> {
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) forward: &'a mut Forwarder,
    pub(crate) nodes: NodeReplies<'a>,
}

impl ReplySink for ShardReplies<'_> {
    fn admit(&mut self, head: &RequestHead, bytes: usize) -> bool {
        bytes <= head.grant_bytes || self.extend_grant(&head.origin, bytes)
    }

    fn give_back(&mut self, head: &RequestHead, bytes: usize, body: &RequestBody<'_>) {
        match head.origin {
            Origin::Shard { shard, op } => self.forward.give_back((shard, op), bytes, body),
            Origin::Node { .. } => self.nodes.refuse(&head.origin, larger(bytes)),
        }
    }

    fn reply(&mut self, head: &RequestHead, reply: &Reply<'_>, wait: Option<Version>) {
        match head.origin {
            Origin::Shard { shard, op } => self.forward.reply((shard, op), reply, wait),
            Origin::Node { .. } => self.nodes.send(&head.origin, reply, wait),
        }
    }

    fn refuse(&mut self, head: &RequestHead, rejection: &Rejection) {
        match head.origin {
            Origin::Node { .. } => self.nodes.refuse(&head.origin, reason_of(rejection)),
            Origin::Shard { .. } => self.reply(head, &Reply::Error(refusal_error(rejection)), None),
        }
    }
}

impl ShardReplies<'_> {
    /// Extends the grant of a session of this shard, so that the next part of its value is read without a new lookup.
    fn extend_grant(&mut self, origin: &Origin, bytes: usize) -> bool {
        let Origin::Shard { shard, op: id } = *origin else { return false };
        let Some(op) = self.forward.own_op(shard, id).filter(|op| op.joined.is_empty()) else { return false };
        let (ReplyPlace::Slot(slot), Some((session, _, budget))) =
            (op.target.place, self.sessions.get_with_pool(op.target.session))
        else {
            return false;
        };
        let is_granted = budget.grant(session, slot, bytes);
        op.grant_bytes = if is_granted { bytes.max(op.grant_bytes) } else { op.grant_bytes };
        is_granted
    }
}

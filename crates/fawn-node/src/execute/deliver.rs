//! Delivery of late replies: to a session's slot, or to an item of a request on several keys.
use crate::pending::{PendingMulti, ReplyPlace, ReplyTarget};
use crate::session::Sessions;
use fawn_types::{Reply, Version};
use fawn_wire::encode_reply;
use slab::Slab;

/// Delivers `reply`; nothing happens if the session has ended.
pub(crate) fn deliver(
    sessions: &mut Sessions,
    batches: &mut Slab<PendingMulti>,
    reply_target: &ReplyTarget<'_>,
    reply: &Reply<'_>,
    wait: Option<Version>,
) {
    match reply_target.target {
        ReplyPlace::Slot(slot) => {
            let Some(session) = sessions.get_mut(reply_target.session) else { return };
            session.replies.complete(slot, wait, |out| encode_reply(reply_target.format, reply_target.key, reply, out));
            sessions.schedule(reply_target.session);
        }
        ReplyPlace::Item { batch, item } => {
            let Some(multi_reply) = &mut batches[batch].multi_reply else {
                unreachable!("nothing completes while its request is being executed")
            };
            multi_reply.complete(item, reply, wait);
            if !multi_reply.is_complete() {
                let held_bytes = multi_reply.held_bytes();
                let PendingMulti { session, slot, .. } = batches[batch];
                if let Some(session) = sessions.get_mut(session) {
                    session.replies.set_partial(slot, held_bytes);
                    sessions.schedule(reply_target.session);
                }
            } else {
                deliver_batch(sessions, batches.remove(batch));
            }
        }
    }
}

fn deliver_batch(sessions: &mut Sessions, batch: PendingMulti) {
    let PendingMulti { session: id, slot, multi_reply: Some(mut multi_reply) } = batch else { return };
    let Some(session) = sessions.get_mut(id) else { return };
    multi_reply.finish();
    session.replies.complete(slot, multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
    sessions.schedule(id);
}

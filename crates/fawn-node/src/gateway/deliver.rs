//! Delivery of late replies: to a session's slot, or to an item of a request on several keys.
use super::{PendingMulti, Sessions};
use crate::request::{ReplyPlace, ReplyTarget};
use fawn_types::Reply;
use fawn_wire::encode_reply;
use slab::Slab;

/// Delivers a reply to a request on one key; nothing happens if the session has ended. Returns the bytes that the end of
/// a request on several keys releases.
pub(crate) fn deliver(
    sessions: &mut Sessions,
    multis: &mut Slab<PendingMulti>,
    target: &ReplyTarget,
    key: &[u8],
    reply: &Reply<'_>,
) -> usize {
    match target.place {
        ReplyPlace::Slot(slot) => {
            let Some(session) = sessions.get_mut(target.session) else { return 0 };
            session.replies.complete(slot, None, |out| encode_reply(target.format, key, reply, out));
            sessions.schedule(target.session);
        }
        ReplyPlace::Item { multi, item } => {
            let PendingMulti { slot, multi_reply, .. } = &mut multis[multi];
            multi_reply.complete(item, reply);
            let is_complete = multi_reply.is_complete();
            if let Some(session) = sessions.get_mut(target.session) {
                if is_complete {
                    multi_reply.finish();
                    session.replies.note_inner_error(multi_reply.has_inner_error);
                    session.replies.complete(*slot, multi_reply.wait, |out| out.extend_from_slice(&multi_reply.bytes));
                } else {
                    let held_bytes = multi_reply.held_bytes();
                    session.replies.set_reserved(*slot, held_bytes.max(session.replies.reserved_bytes(*slot)));
                }
                sessions.schedule(target.session);
            }
            if is_complete {
                return multis.remove(multi).keys_bytes;
            }
        }
        ReplyPlace::Part { .. } => unreachable!("a whole-keyspace operation folds its replies"),
    }
    0
}

//! Delivery of late replies: to a session's slot, or to an item of a request on several keys.
use crate::pending::{Asker, Batch, Target};
use crate::session::Sessions;
use fawn_types::{Reply, Version};
use fawn_wire::encode_reply;
use slab::Slab;

/// Delivers `reply`; nothing happens if the session has ended.
pub(crate) fn deliver(
    sessions: &mut Sessions,
    batches: &mut Slab<Batch>,
    asker: &Asker<'_>,
    reply: &Reply<'_>,
    wait: Option<Version>,
) {
    match asker.target {
        Target::Slot(slot) => {
            let Some(session) = sessions.get_mut(asker.session) else { return };
            session.replies.complete(slot, wait, |out| encode_reply(asker.shape, asker.key, reply, out));
            sessions.list(asker.session);
        }
        Target::Item { batch, item } => {
            let Some(gathered) = &mut batches[batch].gathered else {
                unreachable!("nothing completes while its request is being executed")
            };
            gathered.complete(item, reply, wait);
            if !gathered.is_complete() {
                let held_bytes = gathered.held_bytes();
                let Batch { session, slot, .. } = batches[batch];
                if let Some(session) = sessions.get_mut(session) {
                    session.replies.hold_part(slot, held_bytes);
                    sessions.list(asker.session);
                }
            } else {
                deliver_batch(sessions, batches.remove(batch));
            }
        }
    }
}

fn deliver_batch(sessions: &mut Sessions, batch: Batch) {
    let Batch { session: id, slot, gathered: Some(mut gathered) } = batch else { return };
    let Some(session) = sessions.get_mut(id) else { return };
    gathered.finish();
    session.replies.complete(slot, gathered.wait, |out| out.extend_from_slice(&gathered.bytes));
    sessions.list(id);
}

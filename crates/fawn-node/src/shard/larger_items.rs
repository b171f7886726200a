//! Items of requests on several keys whose values are longer than their grants.
use super::ShardContext;
use crate::request::{LargerItem, OutstandingOp, ReplyPlace};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply};

impl<D: Device> ShardContext<'_, D> {
    /// An item came back: it is sent again once the whole reply is granted its length.
    pub(super) fn repeat_item(&mut self, multi: usize, larger: LargerItem) {
        let pending = &mut self.state.multis[multi];
        pending.outstanding_bytes -= larger.op.grant_bytes;
        pending.larger.push_back(larger);
        if pending.larger.len() == 1 {
            self.repeat_items(multi);
        }
    }

    pub(super) fn run_granted_multis(&mut self) {
        for _ in 0..self.state.forward.ungranted_multis.len() {
            let Some((multi, bytes)) = self.state.forward.ungranted_multis.pop_front() else { return };
            let pending = &self.state.multis[multi];
            let is_due = self
                .sessions
                .get(pending.session)
                .is_none_or(|session| session.replies.reserved_bytes(pending.slot) >= bytes);
            if is_due {
                self.repeat_items(multi);
            } else {
                self.state.forward.ungranted_multis.push_back((multi, bytes));
            }
        }
    }

    /// Sends items that came back, up to the first that is not granted. At least one waits.
    fn repeat_items(&mut self, multi: usize) {
        loop {
            let pending = &self.state.multis[multi];
            let (Some(next), Some(multi_reply)) = (pending.larger.front(), &pending.multi_reply) else { return };
            let is_too_long = multi_reply.held_bytes() + next.bytes > self.state.options.reply_bytes_max;
            let wanted_bytes = multi_reply.held_bytes() + pending.outstanding_bytes + next.bytes;
            let (id, slot) = (pending.session, pending.slot);
            let is_wanted = match self.sessions.get_with_pool(id) {
                Some((session, _, budget)) if !is_too_long => {
                    if !budget.grant(session, slot, wanted_bytes) {
                        budget.queue_slot(session, slot, wanted_bytes);
                        return self.state.forward.ungranted_multis.push_back((multi, wanted_bytes));
                    }
                    true
                }
                _ => false,
            };
            let Some(next) = self.state.multis[multi].larger.pop_front() else { return };
            if is_wanted {
                self.send_again(multi, next);
            } else if self.drop_item(multi, &next, is_too_long) {
                return;
            }
        }
    }

    fn send_again(&mut self, multi: usize, LargerItem { op, bytes, request }: LargerItem) {
        let to = self.state.forward.destination(request.request().key());
        self.state.multis[multi].outstanding_bytes += bytes;
        // As new as the first attempt would have been, whose session may have updated the key before.
        self.state.forward.send(to, OutstandingOp { grant_bytes: bytes, ..op }, &request.body(), true);
    }

    /// Ends an item without its value. Returns whether the whole request has ended.
    fn drop_item(&mut self, multi: usize, larger: &LargerItem, is_too_long: bool) -> bool {
        self.end_on_key(&larger.op);
        let pending = &mut self.state.multis[multi];
        if let Some(multi_reply) = pending.multi_reply.as_mut().filter(|_| is_too_long) {
            multi_reply.set_too_long();
        }
        let ReplyPlace::Item { .. } = larger.op.target.place else { unreachable!("only items are repeated here") };
        self.deliver(&larger.op.target, &[], &Reply::Error(OperationError::Unavailable));
        !self.state.multis.contains(multi)
    }
}

//! Items of requests on several keys that are sent later: of long lists, and those whose values are longer than their
//! grants.
use super::ShardContext;
use crate::gateway::UngrantedRequest;
use crate::request::{LargerItem, OutstandingOp, ReplyPlace, ReplyTarget};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply};
use fawn_wire::ReplyFormat;

impl<D: Device> ShardContext<'_, D> {
    /// An item came back: it is sent again once the whole reply is granted its length.
    pub(super) fn repeat_item(&mut self, multi: usize, larger: LargerItem) {
        self.state.multis[multi].larger.push_back(larger);
        self.send_items(multi);
    }

    /// Sends items that came back or have not begun, up to the first that is not granted.
    pub(super) fn send_items(&mut self, multi: usize) {
        loop {
            self.start_item(multi);
            let pending = &self.state.multis[multi];
            let Some(next) = pending.larger.front() else { return };
            if pending.waits_for_grant {
                return;
            }
            let held_bytes = pending.multi_reply.held_bytes();
            let is_too_long = held_bytes + next.bytes > self.state.options.reply_bytes_max;
            let wanted_bytes = held_bytes + pending.outstanding_bytes + next.bytes;
            let (id, slot) = (pending.session, pending.slot);
            let is_wanted = match self.sessions.get_with_pool(id) {
                _ if pending.failed.is_some() => false,
                // An update runs although its session has ended.
                None => next.bytes == 0,
                Some((session, _, budget)) if !is_too_long => {
                    if !budget.grant(session, slot, wanted_bytes) {
                        self.state.multis[multi].waits_for_grant = true;
                        return budget.queue_slot(session, slot, UngrantedRequest::Multi(multi), wanted_bytes);
                    }
                    true
                }
                _ => false,
            };
            let Some(next) = self.state.multis[multi].larger.pop_front() else { return };
            if is_wanted {
                self.send(multi, next);
            } else if self.drop_item(multi, &next, is_too_long) {
                return;
            }
        }
    }

    /// Begins the next item of a list, unless the operations of others use the list's bound.
    fn start_item(&mut self, multi: usize) {
        let outstanding_max = self.state.options.session_pending_max;
        let pending = &mut self.state.multis[multi];
        if !pending.larger.is_empty() || pending.outstanding >= outstanding_max {
            return;
        }
        let Some((item, request)) = pending.start_next() else { return };
        let place = ReplyPlace::Item { multi, item };
        let target = ReplyTarget { session: pending.session, place, format: ReplyFormat::Silent };
        // Its length is not known yet: a grant of more than fits would make the whole reply too long.
        let reply_bytes_max = self.state.options.reply_bytes_max;
        let left_bytes = reply_bytes_max.saturating_sub(pending.multi_reply.held_bytes()).max(1);
        let bytes = if request.request().returns_value() { pending.item_bytes.min(left_bytes) } else { 0 };
        let key = request.request().key();
        let (hash, to) = (self.state.hash(key), self.state.forward.destination(key));
        let op = OutstandingOp::new(to, target, hash, &request.body(), bytes);
        if let Some(session) = self.sessions.get_mut(target.session) {
            session.own_keys.begin(hash, op.kind);
        }
        self.state.counters.forwarded += u64::from(!self.state.forward.is_here(to));
        self.state.multis[multi].larger.push_back(LargerItem { op, bytes, request });
    }

    fn send(&mut self, multi: usize, LargerItem { op, bytes, request }: LargerItem) {
        let to = self.state.forward.destination(request.request().key());
        let pending = &mut self.state.multis[multi];
        (pending.outstanding, pending.outstanding_bytes) = (pending.outstanding + 1, pending.outstanding_bytes + bytes);
        // As new as the first attempt would have been, whose session may have updated the key before.
        self.state.forward.send(to, OutstandingOp { grant_bytes: bytes, ..op }, &request.body(), true);
    }

    /// Ends an item without its value. Returns whether the whole request has ended.
    fn drop_item(&mut self, multi: usize, larger: &LargerItem, is_too_long: bool) -> bool {
        self.end_on_key(&larger.op);
        let pending = &mut self.state.multis[multi];
        if is_too_long {
            pending.multi_reply.set_too_long();
        }
        let ReplyPlace::Item { .. } = larger.op.target.place else { unreachable!("only items are repeated here") };
        let error = pending.failed.unwrap_or(OperationError::Unavailable);
        self.deliver(&larger.op.target, &[], &Reply::Error(error));
        self.sessions.update_budget(larger.op.target.session);
        !self.state.multis.contains(multi)
    }
}

//! Requests on several keys at a front-end: one operation per key, gathered in order; `MSET` as one batch of a range.
use super::request_router::RequestRouter;
use crate::cluster::KeyspaceRequest;
use crate::cluster::payload::{KeyValuePairs, put_pair};
use crate::gateway::{Flow, MultiReply, PendingMulti, Session, Stall};
use crate::keyspace_op::{CROSS_SLOT, KeyspaceOpKind};
use crate::request::ReplyPlace;
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, Request, RingKey, Update, limits};
use fawn_wire::{MultiCommand, ReplyFold, ReplyFormat, encode_error};

impl<D: Device> RequestRouter<D> {
    pub(super) fn multi(&mut self, session: &mut Session, multi: &MultiCommand<'_>, now: Now) -> Flow {
        assert!(!multi.is_empty(), "the decoder refuses requests on no key");
        if !self.has_capacity(multi.requests().map(|request| request.key())) {
            return Flow::Stall(Stall::Shard);
        }
        match multi.multi_reply.fold {
            ReplyFold::Atomic(format) => self.set_all(session, multi, format, now),
            ReplyFold::Each(_) | ReplyFold::Count => {
                let values =
                    if matches!(multi.multi_reply.fold, ReplyFold::Each(_)) { multi.multi_reply.len } else { 0 };
                if !session.grant(session.replies.estimate_bytes(values)) {
                    return Flow::Stall(Stall::ReplyBudget);
                }
                self.gather(session, multi, now);
                Flow::Continue
            }
        }
    }

    fn gather(&mut self, session: &mut Session, multi: &MultiCommand<'_>, now: Now) {
        let mut multi_reply = MultiReply::new(multi.multi_reply, Vec::new(), self.options.reply_bytes_max);
        // The slot is reserved before the replies exist: operations refer to it.
        let multi_at = self.multis.insert(PendingMulti::unfilled());
        for request in multi.requests() {
            let item = multi_reply.push_unknown(request.key());
            if let Err(error) =
                self.begin(session, &request, ReplyPlace::Item { multi: multi_at, item }, ReplyFormat::Silent, now)
            {
                multi_reply.complete(item, &Reply::Error(error), None);
            }
        }
        if multi_reply.is_complete() {
            self.multis.remove(multi_at);
            multi_reply.finish();
            return session.replies.respond(|out| out.extend_from_slice(&multi_reply.bytes));
        }
        let slot = session.replies.reserve_estimate(multi_reply.values());
        self.multis[multi_at] =
            PendingMulti { session: session.id, slot, multi_reply: Some(multi_reply), ..PendingMulti::unfilled() };
    }

    /// A barrier for its session: its keys are in no queue.
    fn set_all(&mut self, session: &mut Session, multi: &MultiCommand<'_>, format: ReplyFormat, now: Now) -> Flow {
        if !session.is_quiet() {
            return Flow::Stall(Stall::Quiet);
        }
        let (mut pairs, mut place) = (Vec::new(), None);
        for request in multi.requests() {
            let Request::Update { key, update: Update::Set { value, .. } } = request else {
                unreachable!("an atomic batch consists of plain sets")
            };
            if key.len() > limits::KEY_BYTES_MAX {
                session.replies.respond(|out| encode_error(format, OperationError::KeyTooLong, out));
                return Flow::Continue;
            }
            let ring_key = RingKey::of(&self.node.map().secret, key);
            let range = |key: &RingKey| self.node.map().range_of(key).map(|entry| entry.range);
            let first = *place.get_or_insert(ring_key);
            if range(&first) != range(&ring_key) {
                session.replies.respond(|out| out.extend_from_slice(CROSS_SLOT));
                return Flow::Continue;
            }
            put_pair(&mut pairs, key, value);
        }
        let (Ok(pairs), Some(place)) = (KeyValuePairs::new(&pairs), place) else {
            unreachable!("pairs that were just encoded decode")
        };
        self.begin_keyspace_op(
            session,
            KeyspaceOpKind::SetAll(format),
            &[(place, KeyspaceRequest::SetAll(pairs))],
            now,
        );
        Flow::Continue
    }
}

//! Replies of other shards: matched to requests by order, delivered to the session's slots.
use super::outstanding::{Awaited, DeferredRead, ForwardedOp, Outstanding};
use crate::SessionId;
use crate::exec::{Admit, ReplyPlace};
use crate::gateway::{ShardContext, admit_reply, deliver, is_granted};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, ShardId};
use fawn_wire::internal::read_reply_frame;

impl<D: Device> ShardContext<'_, D> {
    /// Receives replies of a shard to a session's requests, in order.
    pub(crate) fn handle_replies(&mut self, from: ShardId, session: SessionId, frames: &[u8]) {
        if session == SessionId::NOBODY {
            let mut internal_requests = std::mem::take(&mut self.links().internal_requests);
            self.take_replies(&mut internal_requests, (from, session), frames);
            self.links().internal_requests = internal_requests;
            return;
        }
        // Taken out of the session: each reply changes the session's slots. An ended session gets
        // nothing.
        let Some(mut outstanding) = self.sessions.get_mut(session).and_then(|session| session.outstanding.take())
        else {
            return;
        };
        self.take_replies(&mut outstanding, (from, session), frames);
        if let Some(session) = self.sessions.get_mut(session) {
            debug_assert!(session.outstanding.is_none(), "replies send no requests");
            session.outstanding = Some(outstanding);
        }
    }

    fn take_replies(
        &mut self,
        outstanding: &mut Outstanding,
        (from, session): (ShardId, SessionId),
        mut frames: &[u8],
    ) {
        while let Some((reply, used)) = read_reply_frame(frames) {
            frames = &frames[used..];
            let Some(awaited) = outstanding.pop(from) else { return };
            match awaited {
                Awaited::Op(asked) => self.handle_reply(outstanding, (from, session), &asked, &reply),
                Awaited::Keyspace { at, bytes } => {
                    self.links().answered(bytes);
                    self.keyspace_op_replied(outstanding, at, &reply);
                }
            }
        }
        assert!(frames.is_empty(), "{from:?} sends whole replies, found {} more bytes", frames.len());
    }

    fn handle_reply(
        &mut self,
        outstanding: &mut Outstanding,
        (from, session): (ShardId, SessionId),
        asked: &ForwardedOp,
        reply: &Reply<'_>,
    ) {
        self.links().answered(asked.bytes);
        let (target, key) = (asked.reply_target(session), outstanding.key(from, asked));
        let is_overtaking = !asked.is_update && outstanding.is_overtaking(asked);
        let fit = match asked.is_update {
            // It must not be executed twice.
            true => Admit::Accept,
            false if is_overtaking => Admit::Retry,
            false => admit_reply(self.sessions, &target, reply),
        };
        if matches!(fit, Admit::Retry) {
            let bytes = match reply {
                Reply::Value(entry) if !is_overtaking => entry.value.len(),
                _ => 0,
            };
            let key = key.into();
            self.defer(outstanding, session, DeferredRead { asked: *asked, key, bytes });
        } else {
            deliver(self.sessions, &mut self.state.multis, &target, key, fit.reply(reply), None);
            self.sessions.update_budget(session);
            if !asked.is_update {
                outstanding.read_ended();
            }
        }
        outstanding.drop_key(from, asked);
    }

    fn defer(&mut self, outstanding: &mut Outstanding, session: SessionId, late: DeferredRead) {
        self.state.counters.rereads += 1;
        let is_first = outstanding.deferred.is_empty();
        outstanding.put_deferred(late);
        if is_first {
            self.links().deferred.push_back(session);
        }
    }

    /// Repeats reads whose replies were not admitted, once they have their grants.
    pub(crate) fn retry_deferred_reads(&mut self) {
        let Some(links) = &mut self.state.links else { return };
        for _ in 0..links.deferred.len() {
            let Some(id) = links.deferred.pop_front() else { return };
            let Some(mut outstanding) = self.sessions.get_mut(id).and_then(|session| session.outstanding.take()) else {
                continue;
            };
            let is_due = |late: &mut DeferredRead| is_granted(self.sessions, &late.asked.reply_target(id), late.bytes);
            while let Some(late) = outstanding.deferred.pop_front_if(is_due) {
                let Some(owner) = links.elsewhere(&late.key) else { unreachable!("a key's shard never changes") };
                links.send_again((&mut outstanding, id), owner, &late);
            }
            if !outstanding.deferred.is_empty() {
                links.deferred.push_back(id);
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.outstanding = Some(outstanding);
            }
        }
    }

    /// Drops the outstanding requests of a session that is about to end.
    pub(crate) fn forget_outstanding(&mut self, id: SessionId) {
        let Some(mut outstanding) = self.sessions.get_mut(id).and_then(|session| session.outstanding.take()) else {
            return;
        };
        for shard in outstanding.shards() {
            self.links().send_message(shard, super::message_batch::MessageKind::SessionClosed, id);
        }
        let (asked, late) = outstanding.drain();
        for awaited in asked {
            match awaited {
                Awaited::Op(asked) => {
                    self.links().answered(asked.bytes);
                    self.give_up(id, &asked);
                }
                Awaited::Keyspace { at, bytes } => {
                    let links = self.links();
                    links.answered(bytes);
                    links.keyspace_ops.try_remove(at);
                }
            }
        }
        late.for_each(|late| self.give_up(id, &late.asked));
    }

    /// A request on several keys ends when each key has its reply.
    fn give_up(&mut self, session: SessionId, asked: &ForwardedOp) {
        if let ReplyPlace::Item { .. } = asked.place {
            let reply = Reply::Error(OperationError::Unavailable);
            // Items need no key: the request on several keys has it.
            deliver(self.sessions, &mut self.state.multis, &asked.reply_target(session), &[], &reply, None);
        }
    }
}

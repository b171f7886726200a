//! Replies of other shards: matched to requests by order, delivered to the session's slots.
use super::away::{Asked, Awaited, Away, Late};
use crate::SessionId;
use crate::execute::{Fit, Host, deliver, fits, is_due};
use crate::pending::Target;
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, ShardId};
use fawn_wire::native::read_reply_frame;

impl<D: Device> Host<'_, D> {
    /// Receives replies of a shard to a session's requests, in order.
    pub(crate) fn answers(&mut self, from: ShardId, session: SessionId, frames: &[u8]) {
        if session == SessionId::NOBODY {
            let mut house = std::mem::take(&mut self.links().house);
            self.take_answers(&mut house, (from, session), frames);
            self.links().house = house;
            return;
        }
        // Taken out of the session: each reply changes the session's slots. An ended session gets
        // nothing.
        let Some(mut away) = self.sessions.get_mut(session).and_then(|session| session.away.take()) else { return };
        self.take_answers(&mut away, (from, session), frames);
        if let Some(session) = self.sessions.get_mut(session) {
            debug_assert!(session.away.is_none(), "answers ask nothing new");
            session.away = Some(away);
        }
    }

    fn take_answers(&mut self, away: &mut Away, (from, session): (ShardId, SessionId), mut frames: &[u8]) {
        while let Some((reply, used)) = read_reply_frame(frames) {
            frames = &frames[used..];
            let Some(awaited) = away.pop(from) else { return };
            match awaited {
                Awaited::Op(asked) => self.answered(away, (from, session), &asked, &reply),
                Awaited::Wide { at, bytes } => {
                    self.links().answered(bytes);
                    self.wide_answered(away, at, &reply);
                }
            }
        }
        assert!(frames.is_empty(), "{from:?} hands over whole answers, found {} bytes behind them", frames.len());
    }

    fn answered(&mut self, away: &mut Away, (from, session): (ShardId, SessionId), asked: &Asked, reply: &Reply<'_>) {
        self.links().answered(asked.bytes);
        let asker = asked.asker(session, away.key(from, asked));
        let is_overtaking = !asked.is_update && away.is_overtaking(asked);
        let fit = if is_overtaking { Fit::Later } else { fits(self.sessions, &asker, reply) };
        if matches!(fit, Fit::Later) {
            self.ask_later(away, session, Late { asked: *asked, key: asker.key.into() });
        } else {
            deliver(self.sessions, &mut self.core.pending.batches, &asker, fit.reply(reply), None);
            self.sessions.note(session);
            if !asked.is_update {
                away.read_ended();
            }
        }
        away.drop_key(from, asked);
    }

    fn ask_later(&mut self, away: &mut Away, session: SessionId, late: Late) {
        self.core.counters.asked_again += 1;
        let is_first = away.late.is_empty();
        away.put_late(late);
        if is_first {
            self.links().late.push_back(session);
        }
    }

    /// Repeats reads whose replies found no budget, as far as there is some now.
    pub(crate) fn ask_late(&mut self) {
        let Some(links) = &mut self.core.links else { return };
        let mut promised_bytes = 0;
        for _ in 0..links.late.len() {
            let Some(id) = links.late.pop_front() else { return };
            let Some(mut away) = self.sessions.get_mut(id).and_then(|session| session.away.take()) else { continue };
            let mut is_due = |late: &mut Late| {
                let asker = late.asked.asker(id, &late.key);
                is_due(self.sessions, &asker, &mut promised_bytes)
            };
            while let Some(late) = away.late.pop_front_if(&mut is_due) {
                let Some(owner) = links.elsewhere(&late.key) else { unreachable!("a key's shard is for life") };
                links.send_again((&mut away, id), owner, &late);
            }
            if !away.late.is_empty() {
                links.late.push_back(id);
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.away = Some(away);
            }
        }
    }

    /// Drops the outstanding requests of a session that is about to end.
    pub(crate) fn forget_away(&mut self, id: SessionId) {
        let Some(mut away) = self.sessions.get_mut(id).and_then(|session| session.away.take()) else { return };
        for shard in away.shards() {
            self.links().tell(shard, super::letter::Kind::Closed, id);
        }
        let (asked, late) = away.drain();
        for awaited in asked {
            match awaited {
                Awaited::Op(asked) => {
                    self.links().answered(asked.bytes);
                    self.give_up(id, &asked);
                }
                Awaited::Wide { at, bytes } => {
                    let links = self.links();
                    links.answered(bytes);
                    links.wides.try_remove(at);
                }
            }
        }
        late.for_each(|late| self.give_up(id, &late.asked));
    }

    /// A request on several keys ends when each key has its reply.
    fn give_up(&mut self, session: SessionId, asked: &Asked) {
        if let Target::Item { .. } = asked.target {
            let reply = Reply::Error(OperationError::Unavailable);
            // Items need no key: the request on several keys has it.
            deliver(self.sessions, &mut self.core.pending.batches, &asked.asker(session, &[]), &reply, None);
        }
    }
}

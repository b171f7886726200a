//! Owns the answers of other shards: each finds its request by the order, and its place among the session's replies.
use super::away::{Asked, Awaited, Away};
use crate::SessionId;
use crate::execute::{Fit, Host, deliver, fits, is_due};
use crate::pending::Target;
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, ShardId};
use fawn_wire::native::read_reply_frame;

impl<D: Device> Host<'_, D> {
    /// Answers of a shard to a session's requests, in their order.
    pub(crate) fn answers(&mut self, from: ShardId, session: SessionId, mut frames: &[u8]) {
        while let Some((reply, used)) = read_reply_frame(frames) {
            frames = &frames[used..];
            // A session that has ended meanwhile hears nothing.
            let Some(awaited) = self.away_of(session).and_then(|away| away.pop(from)) else { return };
            match awaited {
                Awaited::Op(asked) => self.answered(asked, &reply),
                Awaited::Wide { at, bytes } => {
                    self.links().answered(bytes);
                    self.wide_answered(at, &reply);
                }
            }
        }
        assert!(frames.is_empty(), "{from:?} hands over whole answers, found {} bytes behind them", frames.len());
    }

    fn away_of(&mut self, session: SessionId) -> Option<&mut Away> {
        if session == SessionId::NOBODY {
            return Some(&mut self.links().house);
        }
        self.sessions.get_mut(session)?.away.as_deref_mut()
    }

    fn answered(&mut self, asked: Asked, reply: &Reply<'_>) {
        self.links().answered(asked.bytes());
        let (session, is_read) = (asked.op.session, !asked.op.is_queued);
        let is_overtaking = is_read && self.away_of(session).is_some_and(|away| away.is_overtaking(&asked));
        let fit = if is_overtaking { Fit::Later } else { fits(self.sessions, &asked.op, reply) };
        if matches!(fit, Fit::Later) {
            return self.ask_later(asked);
        }
        if is_read && let Some(away) = self.away_of(session) {
            away.read_ended();
        }
        deliver(self.sessions, &mut self.core.pending.batches, &asked.op, fit.reply(reply), None);
        self.sessions.note(session);
    }

    fn ask_later(&mut self, asked: Asked) {
        let session = asked.op.session;
        self.core.counters.asked_again += 1;
        let Some(away) = self.away_of(session) else { return };
        let is_first = away.late.is_empty();
        away.put_late(asked);
        if is_first {
            self.links().late.push_back(session);
        }
    }

    /// Asks again for what there was no room for, where there is some now.
    pub(crate) fn ask_late(&mut self) {
        let Some(links) = &mut self.core.links else { return };
        let mut promised_bytes = 0;
        for _ in 0..links.late.len() {
            let Some(id) = links.late.pop_front() else { return };
            let Some(mut away) = self.sessions.get_mut(id).and_then(|session| session.away.take()) else { continue };
            while let Some(asked) = away.late.pop_front_if(|late| is_due(self.sessions, &late.op, &mut promised_bytes))
            {
                let Some(owner) = links.elsewhere(asked.op.key()) else { unreachable!("a key's shard is for life") };
                links.send_again((&mut away, id), owner, asked);
            }
            if !away.late.is_empty() {
                links.late.push_back(id);
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.away = Some(away);
            }
        }
    }

    /// A session is about to end: nobody waits for its answers any more.
    pub(crate) fn forget_away(&mut self, id: SessionId) {
        let Some(mut away) = self.sessions.get_mut(id).and_then(|session| session.away.take()) else { return };
        for shard in away.shards() {
            self.links().tell(shard, super::letter::Kind::Closed, id);
        }
        let (asked, late) = away.drain();
        for awaited in asked {
            match awaited {
                Awaited::Op(asked) => {
                    self.links().answered(asked.bytes());
                    self.give_up(&asked);
                }
                Awaited::Wide { at, bytes } => {
                    let links = self.links();
                    links.answered(bytes);
                    links.wides.try_remove(at);
                }
            }
        }
        late.for_each(|asked| self.give_up(&asked));
    }

    /// A request on several keys ends when each has its answer.
    fn give_up(&mut self, asked: &Asked) {
        if let Target::Item { .. } = asked.op.target {
            let reply = Reply::Error(OperationError::Unavailable);
            deliver(self.sessions, &mut self.core.pending.batches, &asked.op, &reply, None);
        }
    }
}

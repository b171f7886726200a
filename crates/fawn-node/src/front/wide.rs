//! Whole-keyspace requests at a front-end: parts for all chains; the session is barred meanwhile.
use super::desk::{Desk, Purpose};
use crate::SessionId;
use crate::cluster::{Refused, WideRequest};
use crate::session::{Session, Sessions};
use crate::wide::{Form, ScanState, Wide};
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, RingKey};
use fawn_wire::{Keyspace, Shape};

impl<D: Device> Desk<D> {
    /// Start of each range, in ring order.
    fn places(&self) -> Vec<RingKey> {
        self.node.map().ranges.iter().map(|entry| entry.keys.start).collect()
    }

    /// `DBSIZE`: the sum over all ranges, each at its own moment.
    pub(super) fn count_keys(&mut self, session: &mut Session, now: Now) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Count)).collect();
        self.begin_wide(session, Form::DbSize, &parts, now);
    }

    /// `FLUSHALL`: one record per chain, so not atomic across chains [replication.md § 5].
    pub(super) fn flush(&mut self, session: &mut Session, shape: Shape, now: Now) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Clear)).collect();
        self.counters.flushes += 1;
        self.begin_wide(session, Form::Flush(shape), &parts, now);
    }

    /// `SCAN`: a step, one range after the other. The session is quiet.
    pub(super) fn scan(&mut self, session: &mut Session, keyspace: &Keyspace<'_>, now: Now) {
        let scan = ScanState::new(keyspace);
        let ranges = &self.node.map().ranges;
        match scan.next_part(ranges.len()) {
            Some((at, part)) => {
                let place = ranges[at].keys.start;
                self.begin_wide(session, Form::Scan(scan), &[(place, part)], now);
            }
            None => session.replies.respond(ScanState::encode_nothing),
        }
    }

    /// A delayed `flush_all` that is due; no session waits for it.
    pub(super) fn flush_if_due(&mut self, sessions: &mut Sessions, now: Now) {
        if self.flush_at.is_none_or(|at| at > now.mono) {
            return;
        }
        self.flush_at = None;
        self.counters.flushes += 1;
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Clear)).collect();
        let at = self.wides.insert(Wide::new(SessionId::NOBODY, 0, Form::Flush(Shape::Silent)));
        self.send_parts(at, &parts, now);
        if self.wides[at].is_over() {
            self.finish_wide(sessions, at);
        }
    }

    /// Sends its parts; the session is quiet, and barred until all are answered.
    pub(super) fn begin_wide(
        &mut self,
        session: &mut Session,
        form: Form,
        parts: &[(RingKey, WideRequest<'_>)],
        now: Now,
    ) {
        assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
        let slot = session.replies.reserve(0);
        let at = self.wides.insert(Wide::new(session.id, slot, form));
        self.send_parts(at, parts, now);
        if self.wides[at].is_over() {
            let wide = self.wides.remove(at);
            return session.replies.complete(slot, None, |out| wide.encode(out));
        }
        session.queued += 1;
        self.barred.insert(session.id);
    }

    fn send_parts(&mut self, at: usize, parts: &[(RingKey, WideRequest<'_>)], now: Now) {
        self.has_submitted = true;
        for (place, request) in parts {
            let wide = &mut self.wides[at];
            match self.node.submit_wide(now, *place, request) {
                Ok(op) => {
                    wide.asked();
                    self.at_cluster.insert(op, Purpose::Wide(at));
                }
                Err(Refused::Overloaded) => wide.fail(OperationError::Overloaded),
                Err(Refused::Operation(error)) => wide.fail(error),
            }
        }
    }

    /// Receives the reply to one of its parts.
    pub(super) fn wide_done(&mut self, sessions: &mut Sessions, at: usize, reply: &Reply<'_>, now: Now) {
        let ranges = &self.node.map().ranges;
        if let Some((next, part)) = self.wides[at].take(reply, ranges.len()) {
            let place = ranges[next].keys.start;
            self.send_parts(at, &[(place, part)], now);
        }
        if self.wides[at].is_over() {
            self.finish_wide(sessions, at);
        }
    }

    fn finish_wide(&mut self, sessions: &mut Sessions, at: usize) {
        let wide = self.wides.remove(at);
        self.barred.remove(&wide.session);
        if let (Some(error), SessionId::NOBODY) = (wide.failed(), wide.session) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = sessions.get_mut(wide.session) else { return };
        session.queued -= 1;
        session.replies.complete(wide.slot, None, |out| wide.encode(out));
        sessions.list(wide.session);
    }
}

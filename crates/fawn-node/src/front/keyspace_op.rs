//! Whole-keyspace requests at a front-end: parts for all chains; the session is fenced until all replies arrive.
use super::request_router::{OpOwner, RequestRouter};
use crate::cluster::{KeyspaceRequest, SubmitError};
use crate::gateway::{Session, Sessions};
use crate::keyspace_op::{KeyspaceOp, KeyspaceOpKind, ScanState};
use crate::request::SessionId;
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, RingKey};
use fawn_wire::{KeyspaceCommand, ReplyFormat};

impl<D: Device> RequestRouter<D> {
    /// Start of each range, in ring order.
    fn places(&self) -> Vec<RingKey> {
        self.node.map().ranges.iter().map(|entry| entry.keys.start).collect()
    }

    /// `DBSIZE`: the sum over all ranges, each at its own moment.
    pub(super) fn count_keys(&mut self, session: &mut Session, now: Now) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, KeyspaceRequest::Count)).collect();
        self.begin_keyspace_op(session, KeyspaceOpKind::DbSize, &parts, now);
    }

    /// `FLUSHALL`: one record per chain, so not atomic across chains [replication.md § 5].
    pub(super) fn flush(&mut self, session: &mut Session, format: ReplyFormat, now: Now) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, KeyspaceRequest::Clear)).collect();
        self.counters.flushes += 1;
        self.begin_keyspace_op(session, KeyspaceOpKind::Flush(format), &parts, now);
    }

    /// `SCAN`: a step, one range after the other. The session is quiet.
    pub(super) fn scan(&mut self, session: &mut Session, keyspace: &KeyspaceCommand<'_>, now: Now) {
        let scan = ScanState::new(keyspace);
        let ranges = &self.node.map().ranges;
        match scan.next_part(ranges.len()) {
            Some((at, part)) => {
                let place = ranges[at].keys.start;
                self.begin_keyspace_op(session, KeyspaceOpKind::Scan(scan), &[(place, part)], now);
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
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, KeyspaceRequest::Clear)).collect();
        let at =
            self.keyspace_ops.insert(KeyspaceOp::new(SessionId::NOBODY, 0, KeyspaceOpKind::Flush(ReplyFormat::Silent)));
        self.send_parts(at, &parts, now);
        if self.keyspace_ops[at].is_over() {
            self.finish_keyspace_op(sessions, at);
        }
    }

    /// Sends its parts; the session is quiet, and fenced until all replies arrive.
    pub(super) fn begin_keyspace_op(
        &mut self,
        session: &mut Session,
        form: KeyspaceOpKind,
        parts: &[(RingKey, KeyspaceRequest<'_>)],
        now: Now,
    ) {
        assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
        let slot = session.replies.reserve(0);
        let at = self.keyspace_ops.insert(KeyspaceOp::new(session.id, slot, form));
        self.send_parts(at, parts, now);
        if self.keyspace_ops[at].is_over() {
            let keyspace_op = self.keyspace_ops.remove(at);
            return session.replies.complete(slot, None, |out| keyspace_op.encode(out));
        }
        session.queued += 1;
        self.fenced.insert(session.id);
    }

    fn send_parts(&mut self, at: usize, parts: &[(RingKey, KeyspaceRequest<'_>)], now: Now) {
        self.has_submitted = true;
        for (place, request) in parts {
            let keyspace_op = &mut self.keyspace_ops[at];
            match self.node.submit_keyspace_op(now, *place, request) {
                Ok(op) => {
                    keyspace_op.asked();
                    self.at_cluster.insert(op, OpOwner::Keyspace(at));
                }
                Err(SubmitError::Overloaded) => keyspace_op.fail(OperationError::Overloaded),
                Err(SubmitError::Operation(error)) => keyspace_op.fail(error),
            }
        }
    }

    /// Receives the reply to one of its parts.
    pub(super) fn keyspace_op_done(&mut self, sessions: &mut Sessions, at: usize, reply: &Reply<'_>, now: Now) {
        let ranges = &self.node.map().ranges;
        if let Some((next, part)) = self.keyspace_ops[at].take(reply, ranges.len()) {
            let place = ranges[next].keys.start;
            self.send_parts(at, &[(place, part)], now);
        }
        if self.keyspace_ops[at].is_over() {
            self.finish_keyspace_op(sessions, at);
        }
    }

    fn finish_keyspace_op(&mut self, sessions: &mut Sessions, at: usize) {
        let keyspace_op = self.keyspace_ops.remove(at);
        self.fenced.remove(&keyspace_op.session);
        if let (Some(error), SessionId::NOBODY) = (keyspace_op.failed(), keyspace_op.session) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = sessions.get_mut(keyspace_op.session) else { return };
        session.queued -= 1;
        session.replies.complete(keyspace_op.slot, None, |out| keyspace_op.encode(out));
        sessions.schedule(keyspace_op.session);
    }
}

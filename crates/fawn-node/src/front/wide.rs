//! Owns requests that no single key names: sent to one range or to all, their answers folded into one reply.
use super::desk::{Desk, Purpose};
use super::scan::ScanState;
use crate::SessionId;
use crate::cluster::{Refused, WideRequest};
use crate::session::{Session, Sessions};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, RingKey, TimeMs};
use fawn_wire::{Shape, encode_done, encode_error, resp};

/// How the answers become one reply.
#[derive(Debug)]
pub(super) enum Form {
    DbSize,
    Flush(Shape),
    SetAll(Shape),
    Scan(ScanState),
}

/// One under way.
#[derive(Debug)]
pub(super) struct Wide {
    pub(super) session: SessionId,
    /// Its place among the session's replies.
    pub(super) slot: u64,
    pub(super) form: Form,
    /// Answers still to come.
    left: u32,
    sum: u64,
    pub(super) failed: Option<OperationError>,
}

impl<D: Device> Desk<D> {
    /// Where each range begins, in ring order.
    fn places(&self) -> Vec<RingKey> {
        self.node.map().ranges.iter().map(|entry| entry.keys.start).collect()
    }

    /// `DBSIZE`: the sum over all ranges, each at its own moment.
    pub(super) fn count_keys(&mut self, session: &mut Session, now: TimeMs) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Count)).collect();
        self.begin_wide(session, Form::DbSize, &parts, now);
    }

    /// `FLUSHALL`: one record per chain, so not atomic across chains [replication.md § 5].
    pub(super) fn flush(&mut self, session: &mut Session, shape: Shape, now: TimeMs) {
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Clear)).collect();
        self.counters.flushes += 1;
        self.begin_wide(session, Form::Flush(shape), &parts, now);
    }

    /// A delayed `flush_all` whose time has come: nobody waits for it.
    pub(super) fn flush_if_due(&mut self, sessions: &mut Sessions, now: TimeMs) {
        if self.flush_at.is_none_or(|at| at > now) {
            return;
        }
        self.flush_at = None;
        self.counters.flushes += 1;
        let parts: Vec<_> = self.places().into_iter().map(|place| (place, WideRequest::Clear)).collect();
        let wide = Wide {
            session: SessionId::NOBODY,
            slot: 0,
            form: Form::Flush(Shape::Silent),
            left: 0,
            sum: 0,
            failed: None,
        };
        let at = self.wides.insert(wide);
        self.send_parts(at, &parts, now);
        if self.wides[at].left == 0 {
            self.finish_wide(sessions, at);
        }
    }

    /// Sends its parts; the session is quiet, and barred until all are answered.
    pub(super) fn begin_wide(
        &mut self,
        session: &mut Session,
        form: Form,
        parts: &[(RingKey, WideRequest<'_>)],
        now: TimeMs,
    ) {
        assert!(session.is_quiet(), "requests on the whole keyspace are barriers");
        let slot = session.replies.reserve(0);
        let at = self.wides.insert(Wide { session: session.id, slot, form, left: 0, sum: 0, failed: None });
        self.send_parts(at, parts, now);
        if self.wides[at].left == 0 {
            let wide = self.wides.remove(at);
            return session.replies.complete(slot, None, |out| encode(&wide, out));
        }
        session.queued += 1;
        self.barred.insert(session.id);
    }

    pub(super) fn send_parts(&mut self, at: usize, parts: &[(RingKey, WideRequest<'_>)], now: TimeMs) {
        self.has_submitted = true;
        for (place, request) in parts {
            let wide = &mut self.wides[at];
            match self.node.submit_wide(now, *place, request) {
                Ok(op) => {
                    wide.left += 1;
                    self.at_cluster.insert(op, Purpose::Wide(at));
                }
                Err(Refused::Overloaded) => wide.failed = Some(OperationError::Overloaded),
                Err(Refused::Operation(error)) => wide.failed = Some(error),
            }
        }
    }

    /// An answer to one of its parts.
    pub(super) fn wide_done(&mut self, sessions: &mut Sessions, at: usize, reply: &Reply<'_>, now: TimeMs) {
        let wide = &mut self.wides[at];
        wide.left -= 1;
        match (reply, &mut wide.form) {
            (Reply::Error(error), _) => wide.failed = Some(*error),
            (Reply::Unsigned(keys), Form::DbSize) => wide.sum += keys,
            (Reply::Deleted, Form::Flush(_)) | (Reply::Stored { .. }, Form::SetAll(_)) => {}
            (Reply::Value(page), Form::Scan(scan)) => {
                if let Some(part) = scan.take_page(page.value, &self.node.map().ranges) {
                    self.send_parts(at, &[part], now);
                }
            }
            // The peer is of another version, or broken.
            _ => wide.failed = Some(OperationError::Unavailable),
        }
        if self.wides[at].left == 0 {
            self.finish_wide(sessions, at);
        }
    }

    fn finish_wide(&mut self, sessions: &mut Sessions, at: usize) {
        let wide = self.wides.remove(at);
        self.barred.remove(&wide.session);
        if let (Some(error), SessionId::NOBODY) = (wide.failed, wide.session) {
            tracing::error!(%error, "the delayed flush_all failed");
        }
        let Some(session) = sessions.get_mut(wide.session) else { return };
        session.queued -= 1;
        session.replies.complete(wide.slot, None, |out| encode(&wide, out));
        sessions.list(wide.session);
    }
}

fn encode(wide: &Wide, out: &mut Vec<u8>) {
    match (&wide.form, wide.failed) {
        (Form::DbSize, None) => resp::encode::integer(wide.sum.cast_signed(), out),
        (Form::Flush(shape) | Form::SetAll(shape), None) => encode_done(*shape, out),
        (Form::Flush(shape) | Form::SetAll(shape), Some(error)) => encode_error(*shape, error, out),
        (Form::Scan(scan), None) => scan.encode(out),
        (Form::DbSize | Form::Scan(_), Some(error)) => resp::encode::error(error, out),
    }
}

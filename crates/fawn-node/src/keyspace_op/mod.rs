//! Whole-keyspace operations: parts for all ranges, together or one after the other, and one folded reply.
//!
//! The caller sends the parts, to the shards of the node or to the chains of the cluster; this module counts and folds
//! the replies.
mod scan;

use crate::request::SessionId;
pub(crate) use scan::{PART_RECORDS_MIN, ScanState};

use fawn_types::{OperationError, Reply};
use fawn_wire::internal::KeyspaceRequest;
use fawn_wire::{ReplyFormat, encode_done, encode_error, resp};

/// Reply to an `MSET` that cannot be one atomic batch.
pub(crate) const CROSS_SLOT: &[u8] =
    b"-CROSSSLOT keys are in different ranges: give them one {tag}, or set them one by one\r\n";

/// Kind of an operation, which decides how its replies are folded.
#[derive(Debug)]
pub(crate) enum KeyspaceOpKind {
    /// A batch without pairs, whose record acknowledges replies. No session waits for it.
    Acknowledge,
    DbSize,
    Flush(ReplyFormat),
    Scan(ScanState),
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct KeyspaceOp {
    pub(crate) session: SessionId,
    /// Its slot among the session's replies.
    pub(crate) slot: u64,
    kind: KeyspaceOpKind,
    /// Outstanding replies.
    pub(crate) left: u32,
    sum: u64,
    pub(crate) failed: Option<OperationError>,
}

impl KeyspaceOp {
    pub(crate) const fn new(session: SessionId, slot: u64, form: KeyspaceOpKind) -> Self {
        Self { session, slot, kind: form, left: 0, sum: 0, failed: None }
    }

    /// Receives a reply; returns the next part and its index among the `ranges`.
    pub(crate) fn take(&mut self, reply: &Reply<'_>, ranges: usize) -> Option<(usize, KeyspaceRequest<'static>)> {
        assert!(self.left > 0, "a reply without an outstanding part");
        self.left -= 1;
        match (reply, &mut self.kind) {
            (Reply::Error(error), _) => self.failed = Some(*error),
            (Reply::Unsigned(keys), KeyspaceOpKind::DbSize) => self.sum += keys,
            (Reply::Deleted | Reply::Stored { .. }, KeyspaceOpKind::Flush(_) | KeyspaceOpKind::Acknowledge) => {}
            (Reply::Value(page), KeyspaceOpKind::Scan(scan)) => return scan.take_page(page.value, ranges),
            // The peer has another version, or is broken.
            _ => self.failed = Some(OperationError::Unavailable),
        }
        None
    }

    /// Whether this is a flush that no session waits for.
    pub(crate) fn is_delayed_flush(&self) -> bool {
        self.session == SessionId::NONE && matches!(self.kind, KeyspaceOpKind::Flush(_))
    }

    /// The reply, once the operation is done.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match (&self.kind, self.failed) {
            (KeyspaceOpKind::Acknowledge, _) => {}
            (KeyspaceOpKind::DbSize, None) => resp::encode::integer(self.sum.cast_signed(), out),
            (KeyspaceOpKind::Flush(format), None) => encode_done(*format, out),
            (KeyspaceOpKind::Flush(format), Some(error)) => encode_error(*format, error, out),
            (KeyspaceOpKind::Scan(scan), None) => scan.encode(out),
            (KeyspaceOpKind::DbSize | KeyspaceOpKind::Scan(_), Some(error)) => resp::encode::error(error, out),
        }
    }
}

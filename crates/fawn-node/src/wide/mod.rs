//! Whole-keyspace operations: parts for all ranges, together or one after the other, and one folded reply.
//!
//! The caller sends the parts, a front-end to its chains or a shard to the shards of its node; this module counts and
//! folds the replies.
mod scan;

pub(crate) use scan::ScanState;

use crate::SessionId;
use fawn_types::{OperationError, Reply};
use fawn_wire::native::WideRequest;
use fawn_wire::{Shape, encode_done, encode_error, resp};

/// Reply to an `MSET` that cannot be one atomic batch.
pub(crate) const CROSS_SLOT: &[u8] =
    b"-CROSSSLOT keys are in different ranges: give them one {tag}, or set them one by one\r\n";

/// Kind of an operation, and the way its replies are folded.
#[derive(Debug)]
pub(crate) enum Form {
    DbSize,
    Flush(Shape),
    SetAll(Shape),
    Scan(ScanState),
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Wide {
    pub(crate) session: SessionId,
    /// Its slot among the session's replies.
    pub(crate) slot: u64,
    form: Form,
    /// Outstanding replies.
    left: u32,
    sum: u64,
    failed: Option<OperationError>,
}

impl Wide {
    pub(crate) const fn new(session: SessionId, slot: u64, form: Form) -> Self {
        Self { session, slot, form, left: 0, sum: 0, failed: None }
    }

    /// A part was sent: its reply will arrive.
    pub(crate) const fn asked(&mut self) {
        self.left += 1;
    }

    /// A part could not be sent.
    pub(crate) const fn fail(&mut self, error: OperationError) {
        self.failed = Some(error);
    }

    pub(crate) const fn failed(&self) -> Option<OperationError> {
        self.failed
    }

    /// Whether no reply is outstanding.
    pub(crate) const fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Receives a reply; returns the next part and its index among the `ranges`.
    pub(crate) fn take(&mut self, reply: &Reply<'_>, ranges: usize) -> Option<(usize, WideRequest<'static>)> {
        assert!(self.left > 0, "an answer that nobody waits for");
        self.left -= 1;
        match (reply, &mut self.form) {
            (Reply::Error(error), _) => self.failed = Some(*error),
            (Reply::Unsigned(keys), Form::DbSize) => self.sum += keys,
            (Reply::Deleted | Reply::Stored { .. }, Form::Flush(_)) | (Reply::Stored { .. }, Form::SetAll(_)) => {}
            (Reply::Value(page), Form::Scan(scan)) => return scan.take_page(page.value, ranges),
            // The peer has another version, or is broken.
            _ => self.failed = Some(OperationError::Unavailable),
        }
        None
    }

    /// The reply, once the operation is done.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match (&self.form, self.failed) {
            (Form::DbSize, None) => resp::encode::integer(self.sum.cast_signed(), out),
            (Form::Flush(shape) | Form::SetAll(shape), None) => encode_done(*shape, out),
            (Form::Flush(shape) | Form::SetAll(shape), Some(error)) => encode_error(*shape, error, out),
            (Form::Scan(scan), None) => scan.encode(out),
            (Form::DbSize | Form::Scan(_), Some(error)) => resp::encode::error(error, out),
        }
    }
}

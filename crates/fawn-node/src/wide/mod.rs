//! Owns requests that no single key names, asked of every range or one after the other: answers folded into one reply.
//!
//! Whoever asks, a front-end its chains or a shard the shards of its node, sends the parts; this only counts and folds.
mod scan;

pub(crate) use scan::ScanState;

use crate::SessionId;
use fawn_types::{OperationError, Reply};
use fawn_wire::native::WideRequest;
use fawn_wire::{Shape, encode_done, encode_error, resp};

/// What `MSET` answers where no batch can be atomic.
pub(crate) const CROSS_SLOT: &[u8] =
    b"-CROSSSLOT keys are in different ranges: give them one {tag}, or set them one by one\r\n";

/// How the answers become one reply.
#[derive(Debug)]
pub(crate) enum Form {
    DbSize,
    Flush(Shape),
    SetAll(Shape),
    Scan(ScanState),
}

/// One under way.
#[derive(Debug)]
pub(crate) struct Wide {
    pub(crate) session: SessionId,
    /// Its place among the session's replies.
    pub(crate) slot: u64,
    form: Form,
    /// Answers still to come.
    left: u32,
    sum: u64,
    failed: Option<OperationError>,
}

impl Wide {
    pub(crate) const fn new(session: SessionId, slot: u64, form: Form) -> Self {
        Self { session, slot, form, left: 0, sum: 0, failed: None }
    }

    /// A part was asked: its answer will come.
    pub(crate) const fn asked(&mut self) {
        self.left += 1;
    }

    /// A part could not be asked.
    pub(crate) const fn fail(&mut self, error: OperationError) {
        self.failed = Some(error);
    }

    pub(crate) const fn failed(&self) -> Option<OperationError> {
        self.failed
    }

    /// Whether no answer is still to come.
    pub(crate) const fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Takes an answer; what is to be asked next, and of which of the `ranges`.
    pub(crate) fn take(&mut self, reply: &Reply<'_>, ranges: usize) -> Option<(usize, WideRequest<'static>)> {
        assert!(self.left > 0, "an answer that nobody waits for");
        self.left -= 1;
        match (reply, &mut self.form) {
            (Reply::Error(error), _) => self.failed = Some(*error),
            (Reply::Unsigned(keys), Form::DbSize) => self.sum += keys,
            (Reply::Deleted | Reply::Stored { .. }, Form::Flush(_)) | (Reply::Stored { .. }, Form::SetAll(_)) => {}
            (Reply::Value(page), Form::Scan(scan)) => return scan.take_page(page.value, ranges),
            // The peer is of another version, or broken.
            _ => self.failed = Some(OperationError::Unavailable),
        }
        None
    }

    /// The reply, once it is over.
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

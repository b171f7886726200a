//! Combination of the replies to a request on several keys into one reply. Holds no keys.
use crate::{Shape, encode_done, encode_error, encode_reply, resp};
use alloc::vec::Vec;
use fawn_types::{OperationError, Reply};

/// The way to combine several replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// Encodes each reply in order: an array in RESP; in memcached text, lines that end with `END`.
    Each(Shape),
    /// Counts the successful replies (`DEL`, `EXISTS`).
    Count,
    /// One success for all: the requests are applied together or not at all (`MSET`).
    Atomic(Shape),
}

/// Combines the replies to one [`crate::Multi`]. Call [`begin`](Self::begin), then [`add`](Self::add) for each reply in
/// the order of the keys, then [`finish`](Self::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather {
    /// The way to combine the replies.
    pub fold: Fold,
    /// Number of requests.
    pub len: u32,
    hits: u32,
    failed: Option<OperationError>,
}

impl Gather {
    pub(crate) const fn new(fold: Fold, len: usize) -> Self {
        // REQUEST_ARGS_MAX is far below u32::MAX.
        Self { fold, len: len as u32, hits: 0, failed: None }
    }

    /// Appends the header, if the reply has one. Call before the first reply.
    pub fn begin(&self, out: &mut Vec<u8>) {
        if let Fold::Each(Shape::Resp(..)) = self.fold {
            resp::encode::array_header(self.len as usize, out);
        }
    }

    /// Adds the reply for the next key.
    pub fn add(&mut self, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
        // Only a RESP array can hold an error as an element. Any other combined reply fails as a whole.
        if let (Reply::Error(error), false) = (reply, matches!(self.fold, Fold::Each(Shape::Resp(..)))) {
            self.failed.get_or_insert(*error);
            return;
        }
        match self.fold {
            Fold::Each(shape) => encode_reply(shape, key, reply, out),
            Fold::Count => self.hits += u32::from(resp::encode::is_hit(reply)),
            Fold::Atomic(_) => {}
        }
    }

    /// Appends the end of the reply. Call after the last reply.
    pub fn finish(&self, out: &mut Vec<u8>) {
        match (self.fold, self.failed) {
            (Fold::Each(shape @ Shape::Memcached(_)), Some(error)) => encode_error(shape, error, out),
            (Fold::Each(Shape::Memcached(_)), None) => out.extend_from_slice(b"END\r\n"),
            (Fold::Each(_), _) => {}
            (Fold::Count, None) => resp::encode::integer(i64::from(self.hits), out),
            (Fold::Count, Some(error)) => resp::encode::error(error, out),
            (Fold::Atomic(shape), None) => encode_done(shape, out),
            (Fold::Atomic(shape), Some(error)) => encode_error(shape, error, out),
        }
    }
}

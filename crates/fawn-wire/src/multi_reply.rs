//! Combination of the replies to a request on several keys into one reply. Holds no keys.
use crate::{ReplyFormat, encode_done, encode_error, encode_reply, resp};
use alloc::vec::Vec;
use fawn_types::{OperationError, Reply};

/// The way to combine several replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyFold {
    /// Encodes each reply in order: an array in RESP; in memcached text, lines that end with `END`.
    Each(ReplyFormat),
    /// Counts the successful replies (`DEL`, `EXISTS`).
    Count,
    /// One success for all: the requests are applied together or not at all (`MSET`).
    Atomic(ReplyFormat),
}

/// Combines the replies to one [`crate::MultiCommand`]. Call [`begin`](Self::begin), then [`add`](Self::add) for each
/// reply in the order of the keys, then [`finish`](Self::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiReplyEncoder {
    /// The way to combine the replies.
    pub fold: ReplyFold,
    /// Number of requests.
    pub len: u32,
    hits: u32,
    failed: Option<OperationError>,
}

impl MultiReplyEncoder {
    pub(crate) const fn new(fold: ReplyFold, len: usize) -> Self {
        // REQUEST_ARGS_MAX is far below u32::MAX.
        Self { fold, len: len as u32, hits: 0, failed: None }
    }

    /// Appends the header, if the reply has one. Call before the first reply.
    pub fn begin(&self, out: &mut Vec<u8>) {
        if let ReplyFold::Each(ReplyFormat::Resp(..)) = self.fold {
            resp::encode::array_header(self.len as usize, out);
        }
    }

    /// Adds the reply for the next key.
    pub fn add(&mut self, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
        if let Reply::Error(error) = reply {
            self.failed.get_or_insert(*error);
            // Only a RESP array can hold an error as an element. Any other combined reply fails as a whole.
            if !matches!(self.fold, ReplyFold::Each(ReplyFormat::Resp(..))) {
                return;
            }
        }
        match self.fold {
            ReplyFold::Each(format) => encode_reply(format, key, reply, out),
            ReplyFold::Count => self.hits += u32::from(resp::encode::is_hit(reply)),
            ReplyFold::Atomic(_) => {}
        }
    }

    /// Whether any of the replies is an error.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Appends the end of the reply. Call after the last reply.
    pub fn finish(&self, out: &mut Vec<u8>) {
        match (self.fold, self.failed) {
            (ReplyFold::Each(format @ ReplyFormat::Memcached(_)), Some(error)) => encode_error(format, error, out),
            (ReplyFold::Each(ReplyFormat::Memcached(_)), None) => out.extend_from_slice(b"END\r\n"),
            (ReplyFold::Each(_), _) => {}
            (ReplyFold::Count, None) => resp::encode::integer(i64::from(self.hits), out),
            (ReplyFold::Count, Some(error)) => resp::encode::error(error, out),
            (ReplyFold::Atomic(format), None) => encode_done(format, out),
            (ReplyFold::Atomic(format), Some(error)) => encode_error(format, error, out),
        }
    }
}

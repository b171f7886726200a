//! The encoding of a [`Reply`]: a small copyable value, produced by the decoder and used by the encoder.
use crate::{RespVersion, memcached, resp};
use alloc::vec::Vec;
use fawn_types::{OperationError, Reply, TimeMs};

/// The encoding of one reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyFormat {
    /// No reply: memcached's `noreply`.
    Silent,
    /// RESP, in the given version.
    Resp(RespFormat, RespVersion),
    /// memcached text.
    Memcached(MemcachedFormat),
}

impl ReplyFormat {
    /// Whether a reply with a value contains the key.
    #[must_use]
    pub const fn contains_key(self) -> bool {
        matches!(self, Self::Memcached(_))
    }
}

/// The encoding of a reply in RESP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RespFormat {
    /// The value, or null (`GET`, `GETSET`, `GETDEL`, `GETEX`, `SET … GET`, each of `MGET`).
    Bulk,
    /// `OK`, or null if the condition did not hold (`SET`).
    OkOrNull,
    /// 1 or 0 for success or failure, presence or absence (`SETNX`, `EXPIRE`, `PERSIST`, `DEL`, `EXISTS`).
    Flag,
    /// The counter's new value.
    Counter,
    /// Length of the value read, 0 if absent (`STRLEN`).
    Length,
    /// Length of the value written (`APPEND`).
    LengthWritten,
    /// `string` or `none` (`TYPE`).
    TypeName,
    /// Time to live; -1 without expiry, -2 if absent (`TTL`, `PTTL`).
    Remaining {
        /// Time of the request.
        now: TimeMs,
        /// Whether the unit is seconds, rounded; otherwise milliseconds.
        seconds: bool,
    },
    /// Time of expiry; -1 without expiry, -2 if absent (`EXPIRETIME`, `PEXPIRETIME`).
    ExpiresAt {
        /// Whether the unit is seconds, rounded; otherwise milliseconds.
        seconds: bool,
    },
}

/// The encoding of a reply in memcached text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemcachedFormat {
    /// `VALUE …`, then `END` (`get` of one key).
    Get {
        /// Whether the reply includes the version (`gets`).
        cas: bool,
    },
    /// `VALUE …` without `END`, one of several values.
    Value {
        /// Whether the reply includes the version (`gets`).
        cas: bool,
    },
    /// `STORED`, `NOT_STORED`, `EXISTS`, `NOT_FOUND`.
    Stored,
    /// The counter's new value, or `NOT_FOUND`.
    Number,
    /// `DELETED`, `NOT_FOUND`.
    Deleted,
    /// `TOUCHED`, `NOT_FOUND`.
    Touched,
    /// `OK`.
    Ok,
}

/// Appends `reply` to a request on `key`, encoded as `reply_format`.
#[inline]
pub fn encode_reply(format: ReplyFormat, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
    match (format, reply) {
        // The two most frequent replies, short enough to be inlined.
        (ReplyFormat::Resp(RespFormat::Bulk, _), Reply::Value(entry)) => resp::encode::bulk(entry.value, out),
        (ReplyFormat::Resp(RespFormat::OkOrNull, _), Reply::Stored { .. }) => out.extend_from_slice(b"+OK\r\n"),
        (ReplyFormat::Silent, _) => {}
        (ReplyFormat::Resp(format, version), _) => resp::encode::reply(format, version, reply, out),
        (ReplyFormat::Memcached(format), _) => memcached::encode::reply(format, key, reply, out),
    }
}

/// Appends the success of a request without content (`FLUSHALL`, `QUIT`): `OK`.
pub fn encode_done(format: ReplyFormat, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Silent => {}
        ReplyFormat::Resp(..) => out.extend_from_slice(b"+OK\r\n"),
        ReplyFormat::Memcached(_) => out.extend_from_slice(b"OK\r\n"),
    }
}

/// Appends an error.
#[cold]
pub fn encode_error(format: ReplyFormat, error: OperationError, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Silent => {}
        ReplyFormat::Resp(..) => resp::encode::error(error, out),
        ReplyFormat::Memcached(_) => memcached::encode::error(error, out),
    }
}

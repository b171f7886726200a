//! Owns how a [`Reply`] is worded: a small copyable value made by the decoder, used by the encoder.
use crate::{RespVersion, memcached, native, resp};
use alloc::vec::Vec;
use fawn_types::{OperationError, Reply, TimeMs, Version};

/// How one reply is worded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Not at all: memcached's `noreply`.
    Silent,
    /// In RESP, of the version given.
    Resp(RespShape, RespVersion),
    /// In memcached text.
    Memcached(MemcachedShape),
    /// As a native frame: all of it, for another shard to word.
    Native,
}

/// How RESP words a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RespShape {
    /// The value, or null (`GET`, `GETSET`, `GETDEL`, `GETEX`, `SET … GET`, each of `MGET`).
    Bulk,
    /// `OK`, or null when the condition did not hold (`SET`).
    OkOrNull,
    /// 1 or 0: done or not, there or not (`SETNX`, `EXPIRE`, `PERSIST`, `DEL`, `EXISTS`).
    Flag,
    /// The counter's new value.
    Counter,
    /// Length of the value found, 0 if absent (`STRLEN`).
    Length,
    /// Length of the value written (`APPEND`).
    LengthWritten,
    /// `string` or `none` (`TYPE`).
    TypeName,
    /// Time left, or -1 without expiry, -2 if absent (`TTL`, `PTTL`).
    Remaining {
        /// When it was asked.
        now: TimeMs,
        /// Seconds, rounded, or else milliseconds.
        seconds: bool,
    },
    /// Time of expiry, or -1, -2 (`EXPIRETIME`, `PEXPIRETIME`).
    ExpiresAt {
        /// Seconds, rounded, or else milliseconds.
        seconds: bool,
    },
}

/// How memcached words a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemcachedShape {
    /// `VALUE …`, then `END` (`get` of one key).
    Get {
        /// With the version (`gets`).
        cas: bool,
    },
    /// `VALUE …` alone, one of several.
    Value {
        /// With the version (`gets`).
        cas: bool,
    },
    /// `STORED`, `NOT_STORED`, `EXISTS`, `NOT_FOUND`.
    Stored,
    /// The number, or `NOT_FOUND`.
    Number,
    /// `DELETED`, `NOT_FOUND`.
    Deleted,
    /// `TOUCHED`, `NOT_FOUND`.
    Touched,
    /// `OK`.
    Ok,
}

/// Words `reply` to a request on `key` as `shape` says, appended to `out`.
#[inline]
pub fn encode_reply(shape: Shape, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
    match shape {
        Shape::Silent => {}
        Shape::Resp(shape, version) => resp::encode::reply(shape, version, reply, out),
        Shape::Memcached(shape) => memcached::encode::reply(shape, key, reply, out),
        Shape::Native => native::put_reply_frame(reply, out),
    }
}

/// Words the success of a request without content (`FLUSHALL`, `QUIT`): `OK`.
pub fn encode_done(shape: Shape, out: &mut Vec<u8>) {
    match shape {
        Shape::Silent => {}
        Shape::Resp(..) => out.extend_from_slice(b"+OK\r\n"),
        Shape::Memcached(_) => out.extend_from_slice(b"OK\r\n"),
        Shape::Native => native::put_reply_frame(&Reply::Stored { version: Version::ZERO, value_bytes: 0 }, out),
    }
}

/// Words a failure.
#[cold]
pub fn encode_error(shape: Shape, error: OperationError, out: &mut Vec<u8>) {
    match shape {
        Shape::Silent => {}
        Shape::Resp(..) => resp::encode::error(error, out),
        Shape::Memcached(_) => memcached::encode::error(error, out),
        Shape::Native => native::put_reply_frame(&Reply::Error(error), out),
    }
}

//! Messages between the shards of a node: requests, replies, and notices, one after another in a batch.
//!
//! ```text
//! request: len u32 | 0 u8 | op u64 | hash u64 | grant u32 | latest u8 | request      (len: of the last field)
//! reply:   len u32 | 1 u8 | op u64 | reply
//! larger:  len u32 | 2 u8 | op u64 | bytes u32 | request
//! notice:  0 u32   | 3 u8 (reset statistics), 4 u8 (drop the delayed flush)
//! ```
//! `op` is the sender's number of the operation. The hash of the key spares the receiver its computation: all shards of
//! a node have one secret. All numbers are little-endian.
use super::reply::{put_result, read_result};
use super::request::RequestBody;
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};
use fawn_types::{KeyHash, Reply, Version};

const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const LARGER: u8 = 2;
const RESET_STATS: u8 = 3;
const DROP_DELAYED_FLUSH: u8 = 4;

/// A request's fields apart from the request itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestFields {
    /// The sender's number of the operation.
    pub op: u64,
    /// Hash of the key, if there is one.
    pub hash: KeyHash,
    /// Longest value in the reply, bytes.
    pub grant_bytes: u32,
    /// Whether the newest value is read, pending or not.
    pub is_latest: bool,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A request for the receiver's range.
    Request {
        /// All fields but the request.
        fields: RequestFields,
        /// The request.
        body: RequestBody<'a>,
    },
    /// The reply to a request.
    Reply {
        /// The operation.
        op: u64,
        /// The reply.
        reply: Reply<'a>,
    },
    /// The request had no effect: its reply has a value of this length, which is not granted.
    Larger {
        /// The operation.
        op: u64,
        /// Length to be granted.
        bytes: u32,
        /// The request.
        body: RequestBody<'a>,
    },
    /// A client has reset the statistics.
    ResetStats,
    /// A client has replaced the delayed flush of the keyspace.
    DropDelayedFlush,
}

impl<'a> Message<'a> {
    /// Decodes the first message of `input`; returns it with the rest.
    ///
    /// # Errors
    /// If the bytes do not begin with a whole valid message.
    #[inline]
    pub fn read(input: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let mut reader = FrameReader::new(input);
        let len = reader.u32("length")? as usize;
        let message = match reader.u8("message kind")? {
            REQUEST => {
                let (op, hash) = (reader.u64("operation")?, KeyHash(reader.u64("hash")?));
                let (grant_bytes, is_latest) = (reader.u32("grant")?, reader.flag("latest")?);
                let fields = RequestFields { op, hash, grant_bytes, is_latest };
                Self::Request { fields, body: RequestBody::read(reader.take("request", len)?)? }
            }
            REPLY => {
                let op = reader.u64("operation")?;
                Self::Reply { op, reply: read_result(reader.take("reply", len)?, Version::ZERO)? }
            }
            LARGER => {
                let (op, bytes) = (reader.u64("operation")?, reader.u32("length of the value")?);
                Self::Larger { op, bytes, body: RequestBody::read(reader.take("request", len)?)? }
            }
            RESET_STATS => Self::ResetStats,
            DROP_DELAYED_FLUSH => Self::DropDelayedFlush,
            found => return Err(DecodeError::Value { what: "message kind", found: u64::from(found) }),
        };
        Ok((message, reader.rest()))
    }
}

/// Appends a request, whose body `put` appends. Keys must not exceed the key length limit.
#[inline]
pub fn put_request_message(fields: &RequestFields, put: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    let RequestFields { op, hash, grant_bytes, is_latest } = *fields;
    let mut header = [0; 26];
    header[4] = REQUEST;
    header[5..13].copy_from_slice(&op.to_le_bytes());
    header[13..21].copy_from_slice(&hash.0.to_le_bytes());
    header[21..25].copy_from_slice(&grant_bytes.to_le_bytes());
    header[25] = u8::from(is_latest);
    put_counted(&header, put, out);
}

/// Appends a reply.
#[inline]
pub fn put_reply_message(op: u64, reply: &Reply<'_>, out: &mut Vec<u8>) {
    let mut header = [0; 13];
    header[4] = REPLY;
    header[5..13].copy_from_slice(&op.to_le_bytes());
    put_counted(&header, |out| put_result(out, reply), out);
}

/// Appends the return of a request whose value of `bytes` was not granted.
pub fn put_larger_message(op: u64, bytes: u32, body: &RequestBody<'_>, out: &mut Vec<u8>) {
    let mut header = Vec::new();
    header.put_u32(0);
    header.push(LARGER);
    header.put_u64(op);
    header.put_u32(bytes);
    put_counted(&header, |out| body.put(out), out);
}

/// Appends a notice: a message without fields.
pub fn put_notice(notice: Message<'_>, out: &mut Vec<u8>) {
    let kind = match notice {
        Message::ResetStats => RESET_STATS,
        Message::DropDelayedFlush => DROP_DELAYED_FLUSH,
        other => unreachable!("a message with fields is no notice: {other:?}"),
    };
    out.put_u32(0);
    out.push(kind);
}

/// Appends a header that begins with a length, then what `put` appends, of which it is the length.
#[inline]
fn put_counted(header: &[u8], put: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(header);
    put(out);
    let len = (out.len() - at - header.len()) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::KeyspaceRequest;
    use fawn_types::Request;

    #[test]
    fn messages_come_one_after_another_and_whole() {
        let get = RequestBody::Key(Request::Get { key: b"key" });
        let clear = RequestBody::Keyspace(KeyspaceRequest::Clear);
        let fields = RequestFields { op: 1 << 40, hash: KeyHash(77), grant_bytes: 512, is_latest: true };
        let of_range = RequestFields { op: 9, hash: KeyHash(0), grant_bytes: u32::MAX, is_latest: false };
        let messages = [
            Message::Request { fields, body: get },
            Message::Request { fields: of_range, body: clear },
            Message::Reply { op: 7, reply: Reply::Signed(-7) },
            Message::Larger { op: 8, bytes: 70_000, body: get },
            Message::ResetStats,
            Message::DropDelayedFlush,
        ];
        let mut bytes = Vec::new();
        for message in messages {
            match message {
                Message::Request { fields, body } => put_request_message(&fields, |out| body.put(out), &mut bytes),
                Message::Reply { op, reply } => put_reply_message(op, &reply, &mut bytes),
                Message::Larger { op, bytes: value, body } => put_larger_message(op, value, &body, &mut bytes),
                notice => put_notice(notice, &mut bytes),
            }
        }
        let mut rest = bytes.as_slice();
        for message in messages {
            let before = rest;
            let (found, after) = Message::read(rest).unwrap_or((Message::ResetStats, &[]));
            assert_eq!(found, message);
            rest = after;
            for cut in 0..before.len() - after.len() {
                assert!(Message::read(&before[..cut]).is_err(), "{message:?} cut at {cut}");
            }
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let unknown = DecodeError::Value { what: "message kind", found: 5 };
        assert_eq!(Message::read(&[0, 0, 0, 0, 5]), Err(unknown));
    }
}

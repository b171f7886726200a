//! FAWN's internal protocol: messages for requests and replies, and their frames between the shards of a node.
//!
//! ```text
//! request frame: len u32 | hash u64 | message                (len: of the message; hash: of the key)
//! reply frame:   len u32 | message
//! request:       kind u8 | key_len u16 | key | fields of the kind | value or bytes to the end
//! reply:         kind u8 | fields of the kind | value to the end     (also the result in a record on flash)
//! ```
//! If the high bit of a reply's kind is set, the version is omitted: it is the version of the record that contains
//! the reply. All numbers are little-endian. `docs/formats/peer-payloads.md` has the tables.
mod bytes;
mod keyspace_op;
mod reply;
mod request;

pub use bytes::MessageDecodeError;
pub use keyspace_op::{
    KeyValuePairs, KeyspaceRequest, is_keyspace, put_keyspace, put_pair, put_scan_page, read_keyspace, read_scan_page,
};
pub use reply::{EncodedReply, put_result, read_result};
pub use request::{put_request, read_request};

use crate::{CodecLimits, Command, Decoded, ReplyFormat};
use alloc::vec::Vec;
use fawn_types::{KeyHash, OperationError, Reply, Request, Version, limits};

/// Bytes before the message of a reply.
const HEADER_BYTES: usize = 4;
/// Bytes before the message of a request. The header includes the key's hash, so the receiver need not compute it
/// again: all shards of a node have the same secret.
const REQUEST_HEADER_BYTES: usize = 12;
/// Maximum size of a message without its key and value.
const FIELDS_BYTES_MAX: usize = 64;

/// The decoder of one internal connection; it is stateless.
#[derive(Clone, Debug)]
pub struct InternalState {
    frame_bytes_max: usize,
}

impl InternalState {
    pub(crate) fn new(limits: CodecLimits) -> Self {
        // The largest request on one key must fit, even if the configured request limit is smaller.
        let one_bytes = limits.value_bytes_max + limits::KEY_BYTES_MAX + FIELDS_BYTES_MAX;
        Self { frame_bytes_max: limits.request_bytes_max.max(one_bytes) }
    }

    #[inline]
    pub(crate) fn decode<'a>(&self, input: &'a [u8]) -> Decoded<'a> {
        let Some(([len @ .., _, _, _, _, _, _, _, _], rest)) = input.split_first_chunk::<REQUEST_HEADER_BYTES>() else {
            return Decoded::Incomplete { need_bytes: REQUEST_HEADER_BYTES };
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > self.frame_bytes_max {
            return refuse(input.len());
        }
        let Some(form) = rest.get(..len) else {
            return Decoded::Incomplete { need_bytes: REQUEST_HEADER_BYTES + len };
        };
        let command = if is_keyspace(form) {
            read_keyspace(form).map(Command::Wide)
        } else {
            read_request(form).map(|request| Command::Single { request, format: ReplyFormat::Native })
        };
        match command {
            Ok(command) => Decoded::Command { command, consumed: REQUEST_HEADER_BYTES + len },
            Err(_) => refuse(input.len()),
        }
    }
}

/// The hash in the header of the complete request at the start of `input`. Meaningless for a request without a key.
#[inline]
pub(crate) fn carried_hash(input: &[u8]) -> Option<KeyHash> {
    let (hash, _) = input.get(HEADER_BYTES..)?.split_first_chunk::<8>()?;
    Some(KeyHash(u64::from_le_bytes(*hash)))
}

/// Closes the connection: after an invalid frame, the start of the next one is unknown.
#[cold]
fn refuse(consumed: usize) -> Decoded<'static> {
    let mut message = Vec::new();
    put_reply_frame(&Reply::Error(OperationError::Unavailable), &mut message);
    Decoded::fatal(message, consumed)
}

fn put_frame<const N: usize>(out: &mut Vec<u8>, header: [u8; N], put_form: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&header);
    put_form(out);
    let len = (out.len() - at - N) as u32;
    out[at..at + HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// A request's header with the length still zero.
fn header(KeyHash(hash): KeyHash) -> [u8; REQUEST_HEADER_BYTES] {
    let mut header = [0; REQUEST_HEADER_BYTES];
    header[HEADER_BYTES..].copy_from_slice(&hash.to_le_bytes());
    header
}

/// Appends the frame of a request on a key with this hash. The key must not exceed the key length limit.
pub fn put_request_frame(request: &Request<'_>, hash: KeyHash, out: &mut Vec<u8>) {
    put_frame(out, header(hash), |out| put_request(request, out));
}

/// Appends the frame of a request on a whole range.
pub fn put_keyspace_frame(request: &KeyspaceRequest<'_>, out: &mut Vec<u8>) {
    put_frame(out, header(KeyHash(0)), |out| put_keyspace(request, out));
}

/// Appends a reply's frame.
pub fn put_reply_frame(reply: &Reply<'_>, out: &mut Vec<u8>) {
    put_frame(out, [0; HEADER_BYTES], |out| put_result(out, reply));
}

/// The first complete reply frame of `input`, and its length. An invalid reply is returned as `Unavailable`.
#[must_use]
#[inline]
pub fn read_reply_frame(input: &[u8]) -> Option<(Reply<'_>, usize)> {
    let (len, rest) = input.split_first_chunk::<HEADER_BYTES>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let reply = read_result(rest.get(..len)?, Version::ZERO);
    Some((reply.unwrap_or(Reply::Error(OperationError::Unavailable)), HEADER_BYTES + len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codec, Protocol};
    use fawn_types::TimeMs;

    #[test]
    fn frames_are_read_whole_or_not_at_all() {
        let (get, clear) = (Request::Get { key: b"key" }, KeyspaceRequest::Clear);
        let mut bytes = Vec::new();
        put_request_frame(&get, KeyHash(77), &mut bytes);
        assert_eq!((carried_hash(&bytes), carried_hash(&bytes[..11])), (Some(KeyHash(77)), None));
        let first = bytes.len();
        put_keyspace_frame(&clear, &mut bytes);
        let mut codec = Codec::new(Protocol::Internal, CodecLimits::default());
        for cut in 0..first {
            let Decoded::Incomplete { need_bytes } = codec.decode(&bytes[..cut], TimeMs(0)) else { panic!("at {cut}") };
            assert!(need_bytes > cut && need_bytes <= first);
        }
        let single = Command::Single { request: get, format: ReplyFormat::Native };
        assert_eq!(codec.decode(&bytes, TimeMs(0)), Decoded::Command { command: single, consumed: first });
        let rest = &bytes[first..];
        let keyspace = Decoded::Command { command: Command::Wide(clear), consumed: rest.len() };
        assert_eq!(codec.decode(rest, TimeMs(0)), keyspace);
    }

    #[test]
    fn what_is_no_frame_ends_the_connection() {
        let mut codec = Codec::new(Protocol::Internal, CodecLimits::default());
        for bytes in [&[255; 12][..], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99], &[0; 12]] {
            assert!(matches!(codec.decode(bytes, TimeMs(0)), Decoded::Error { fatal: true, .. }), "{bytes:?}");
        }
    }

    #[test]
    fn reply_frames_come_one_after_another() {
        let mut bytes = Vec::new();
        for reply in [Reply::Absent, Reply::Signed(-7)] {
            put_reply_frame(&reply, &mut bytes);
        }
        let (reply, at) = read_reply_frame(&bytes).unwrap_or((Reply::Deleted, 0));
        assert_eq!(reply, Reply::Absent);
        assert_eq!(read_reply_frame(&bytes[at..]), Some((Reply::Signed(-7), bytes.len() - at)));
        assert_eq!(read_reply_frame(&bytes[..at - 1]), None);
    }
}

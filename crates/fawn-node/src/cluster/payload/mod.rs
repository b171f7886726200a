//! Payloads of peer frames: a session followed by a request or reply in internal format, and records.
//!
//! ```text
//! request: session u64 | grant u32 | encoded request, on a key or on a range
//! reply:   session u64 | encoded reply with its version
//! records: as in a segment, each for place (0, 0), so any log of the range can append them
//! ```
//! The result in a record is an encoded reply too. `docs/formats/peer-payloads.md` has the tables.
mod records;

pub(crate) use fawn_wire::internal::put_result;
pub use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, RequestBody, put_pair};
pub(crate) use records::{put_record, records_of};

use fawn_types::bytes::{DecodeError, FrameReader};
use fawn_types::{OperationError, Reply, Version};
use fawn_wire::internal;

/// Appends a request of the front-end session `session`; `grant_bytes`: longest value in the reply. The caller has
/// checked the length of its keys.
pub fn encode_request(session: u64, grant_bytes: u32, body: &RequestBody<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    out.extend_from_slice(&grant_bytes.to_le_bytes());
    body.put(out);
}

/// The session, the grant and the request of a payload; the request borrows from it.
///
/// # Errors
/// When the bytes are not a request.
pub fn decode_request(payload: &[u8]) -> Result<(u64, u32, RequestBody<'_>), DecodeError> {
    let mut reader = FrameReader::new(payload);
    Ok((reader.u64("session")?, reader.u32("grant")?, RequestBody::read(reader.rest())?))
}

/// Appends a whole reply payload.
pub(crate) fn put_reply(out: &mut Vec<u8>, session: u64, reply: &Reply<'_>) {
    out.extend_from_slice(&session.to_le_bytes());
    put_result(out, reply);
}

/// Appends the reply payload for a committed record's `result`.
pub(crate) fn put_result_as_reply(out: &mut Vec<u8>, session: u64, version: Version, result: &[u8]) {
    let reply = internal::read_result(result, version).unwrap_or(Reply::Error(OperationError::Corrupt));
    put_reply(out, session, &reply);
}

/// The session and the reply of a payload.
///
/// # Errors
/// When the bytes are not a reply.
pub fn decode_reply(payload: &[u8]) -> Result<(u64, Reply<'_>), DecodeError> {
    let mut reader = FrameReader::new(payload);
    Ok((reader.u64("session")?, internal::read_result(reader.rest(), Version::ZERO)?))
}

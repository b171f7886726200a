//! Payloads of peer frames: a session followed by a request or reply in internal format, and records.
//!
//! ```text
//! request: session u64 | encoded request, on a key or on a range
//! reply:   session u64 | encoded reply with its version
//! records: as in a segment, each for place (0, 0), so any log of the range can append them
//! ```
//! The result in a record is an encoded reply too. `docs/formats/peer-payloads.md` has the tables.
mod records;

use crate::request::RequestBody;
pub(crate) use fawn_wire::internal::{EncodedReply, put_result};
pub use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, MessageDecodeError, put_pair};
pub(crate) use records::{put_record, records_of};

use fawn_types::{OperationError, Reply, Request, Version};
use fawn_wire::internal;

/// Splits a payload into the session and the encoded request or reply.
fn split(payload: &[u8]) -> Result<(u64, &[u8]), MessageDecodeError> {
    let Some((session, form)) = payload.split_first_chunk::<8>() else {
        return Err(MessageDecodeError::Truncated { field: "session" });
    };
    Ok((u64::from_le_bytes(*session), form))
}

/// Appends `request` of the front-end session `session` to `out`. The caller has checked the key's length.
pub fn encode_request(session: u64, request: &Request<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    internal::put_request(request, out);
}

/// The session and the request of a payload; borrows from it.
///
/// # Errors
/// When the bytes are not a request on a key.
pub fn decode_request(payload: &[u8]) -> Result<(u64, Request<'_>), MessageDecodeError> {
    let (session, form) = split(payload)?;
    Ok((session, internal::read_request(form)?))
}

/// The session and the request of a payload, on a key or on a range.
pub(super) fn decode_body(payload: &[u8]) -> Result<(u64, RequestBody<'_>), MessageDecodeError> {
    let (session, form) = split(payload)?;
    Ok((session, RequestBody::read(form)?))
}

/// Appends `request` of the front-end session `session`.
pub fn encode_keyspace(session: u64, request: &KeyspaceRequest<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    internal::put_keyspace(request, out);
}

/// The session and the request of a payload; borrows from it.
///
/// # Errors
/// When the bytes are not a whole-keyspace request.
pub fn decode_keyspace(payload: &[u8]) -> Result<(u64, KeyspaceRequest<'_>), MessageDecodeError> {
    let (session, form) = split(payload)?;
    Ok((session, internal::read_keyspace(form)?))
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
pub fn decode_reply(payload: &[u8]) -> Result<(u64, Reply<'_>), MessageDecodeError> {
    let (session, form) = split(payload)?;
    Ok((session, internal::read_result(form, Version::ZERO)?))
}

//! Owns what peer frames carry for nodes: requests and replies in their native form behind a session, and records.
//!
//! ```text
//! request: session u64 | the form of a request, on a key or on a range
//! reply:   session u64 | the form of a reply, its version filled in
//! records: as in a segment, each for place (0, 0): any log of the range can take them
//! ```
//! A result in a record is the form of a reply too. `docs/formats/peer-payloads.md` has the tables.
mod records;

pub use fawn_wire::native::{FormError, Pairs, WideRequest, put_pair};
pub(crate) use fawn_wire::native::{OwnedForm, put_result, put_scan_page};
pub(crate) use records::{put_record, records_of};

use fawn_types::{OperationError, Reply, Request, Version};
use fawn_wire::native;

/// The session in front, and the form behind it.
fn split(payload: &[u8]) -> Result<(u64, &[u8]), FormError> {
    let Some((session, form)) = payload.split_first_chunk::<8>() else {
        return Err(FormError::Truncated { field: "session" });
    };
    Ok((u64::from_le_bytes(*session), form))
}

/// Appends `request` of the front-end session `session` to `out`. The key is within its limit: the caller's duty.
pub fn encode_request(session: u64, request: &Request<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    native::put_request(request, out);
}

/// The session and the request of a payload; borrows from it.
///
/// # Errors
/// When the bytes are no request.
pub fn decode_request(payload: &[u8]) -> Result<(u64, Request<'_>), FormError> {
    let (session, form) = split(payload)?;
    Ok((session, native::read_request(form)?))
}

/// Whether the payload is a wide request's.
pub(crate) fn is_wide(payload: &[u8]) -> bool {
    split(payload).is_ok_and(|(_, form)| native::is_wide(form))
}

/// Appends `request` of the front-end session `session`.
pub fn encode_wide(session: u64, request: &WideRequest<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    native::put_wide(request, out);
}

/// The session and the request of a payload; borrows from it.
///
/// # Errors
/// When the bytes are no wide request.
pub fn decode_wide(payload: &[u8]) -> Result<(u64, WideRequest<'_>), FormError> {
    let (session, form) = split(payload)?;
    Ok((session, native::read_wide(form)?))
}

/// Appends a whole reply payload.
pub(crate) fn put_reply(out: &mut Vec<u8>, session: u64, reply: &Reply<'_>) {
    out.extend_from_slice(&session.to_le_bytes());
    put_result(out, reply);
}

/// Appends the reply that a committed record's `result` stands for.
pub(crate) fn put_result_as_reply(out: &mut Vec<u8>, session: u64, version: Version, result: &[u8]) {
    let reply = native::read_result(result, version).unwrap_or(Reply::Error(OperationError::Corrupt));
    put_reply(out, session, &reply);
}

/// The session and the reply of a payload.
///
/// # Errors
/// When the bytes are no reply.
pub fn decode_reply(payload: &[u8]) -> Result<(u64, Reply<'_>), FormError> {
    let (session, form) = split(payload)?;
    Ok((session, native::read_result(form, Version::ZERO)?))
}

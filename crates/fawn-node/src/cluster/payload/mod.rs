//! Payloads of peer frames: a session followed by a request or reply in internal format, and records.
//!
//! ```text
//! request: session u64 | encoded request, on a key or on a range
//! reply:   session u64 | encoded reply with its version
//! records: as in a segment, each for place (0, 0), so any log of the range can append them
//! ```
//! The result in a record is an encoded reply too. `docs/formats/peer-payloads.md` has the tables.
mod records;

pub(crate) use fawn_wire::internal::{EncodedReply, put_result, put_scan_page};
pub use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, MessageDecodeError, put_pair};
pub(crate) use records::{put_record, records_of};

use fawn_types::{ClientTag, OperationError, Reply, Request, Version};
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

/// Whether the payload is a whole-keyspace request.
pub(crate) fn is_keyspace(payload: &[u8]) -> bool {
    split(payload).is_ok_and(|(_, form)| internal::is_keyspace(form))
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

/// The session's first incomplete operation is too far back for two bytes. A later record acknowledges it.
const NOTHING_ACKNOWLEDGED: u16 = u16::MAX;

/// Appends the session's acknowledgement position to the result of a record, so that replicas free older completions.
pub(crate) fn put_acknowledged(result: &mut Vec<u8>, tag: ClientTag, first_incomplete: u64) {
    let behind = u16::try_from(tag.seq.saturating_sub(first_incomplete)).unwrap_or(NOTHING_ACKNOWLEDGED);
    result.extend_from_slice(&behind.to_le_bytes());
}

/// Splits a record's result into the reply and the session's first incomplete operation when it was written.
pub(crate) fn split_acknowledged(tag: ClientTag, result: &[u8]) -> (&[u8], u64) {
    match result.split_last_chunk::<2>() {
        Some((result, behind)) => match u16::from_le_bytes(*behind) {
            NOTHING_ACKNOWLEDGED => (result, 0),
            behind => (result, tag.seq.saturating_sub(u64::from(behind))),
        },
        None => (result, 0),
    }
}

/// The session and the reply of a payload.
///
/// # Errors
/// When the bytes are not a reply.
pub fn decode_reply(payload: &[u8]) -> Result<(u64, Reply<'_>), MessageDecodeError> {
    let (session, form) = split(payload)?;
    Ok((session, internal::read_result(form, Version::ZERO)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_acknowledges_no_more_than_its_session_did() {
        for (seq, first_incomplete) in [(1, 1), (100, 37), (70_000, 4_465), (70_000, 4_464), (1 << 40, 1), (5, 6)] {
            let tag = ClientTag { session: 1, seq };
            let mut result = b"result".to_vec();
            put_acknowledged(&mut result, tag, first_incomplete);
            let (form, acknowledged) = split_acknowledged(tag, &result);
            assert_eq!(form, b"result");
            let expected = if seq - first_incomplete.min(seq) < 0xffff { first_incomplete.min(seq) } else { 0 };
            assert_eq!(acknowledged, expected, "operation {seq}, first incomplete {first_incomplete}");
        }
    }
}

//! Result of a tagged update as its record stores it: the encoded reply, then the client's acknowledgement position.
use fawn_types::ClientTag;

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

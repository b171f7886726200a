//! Record encoder: one copy into the caller's buffer, one pass of the checksum, no allocation.
use super::{Envelope, HEADER_BYTES, NARROW_RESULT_BYTES_MAX, RecordPlace, RecordRef, extension};
use crate::format::bytes::put;
use crate::format::{UNIT_BYTES, round_up_unit};
use fawn_types::ClientTag;
use fawn_types::checksum::{checksum32, salt};

/// Bytes of the extensions in `bits`, without the result's own bytes.
pub(super) const fn extensions_len(bits: u8) -> usize {
    let mut len = 0;
    if bits & extension::EXPIRY != 0 {
        len += 8;
    }
    if bits & extension::FLAGS != 0 {
        len += 4;
    }
    if bits & extension::TAG != 0 {
        len += 16;
    }
    if bits & extension::RESULT != 0 {
        len += 2;
    }
    if bits & extension::WIDE_RESULT != 0 {
        len += 4;
    }
    len
}

/// The extensions that a record needs: a zero field is left out, so each record has one encoding.
fn extensions_of(record: &RecordRef<'_>) -> u8 {
    let mut bits = 0;
    if record.expires_at_ms != 0 {
        bits |= extension::EXPIRY;
    }
    if record.flags != 0 {
        bits |= extension::FLAGS;
    }
    if record.tag != ClientTag::NONE {
        bits |= extension::TAG;
    }
    match record.result.len() {
        0 => {}
        1..=NARROW_RESULT_BYTES_MAX => bits |= extension::RESULT,
        _ => bits |= extension::WIDE_RESULT,
    }
    bits
}

fn len_before_padding(record: &RecordRef<'_>, bits: u8) -> usize {
    HEADER_BYTES + extensions_len(bits) + record.result.len() + record.key.len() + record.value.len()
}

/// Length of `record` in a segment, a multiple of [`UNIT_BYTES`].
#[must_use]
pub fn encoded_len(record: &RecordRef<'_>) -> usize {
    round_up_unit(len_before_padding(record, extensions_of(record)))
}

/// Writes `record` to the start of `out`, padding included, and returns its checksum for the frame's chain.
///
/// # Panics
/// If `out` is shorter than [`encoded_len`], or a length exceeds the format's limit: a caller's error.
pub fn encode_into(record: &RecordRef<'_>, envelope: Envelope, place: RecordPlace, out: &mut [u8]) -> u32 {
    assert!(record.is_well_formed(), "a {:?} with these lengths has no encoding", record.kind);
    assert!((place.offset as usize).is_multiple_of(UNIT_BYTES), "records lie at multiples of {UNIT_BYTES}");
    let bits = extensions_of(record);
    let end = len_before_padding(record, bits);
    let out = &mut out[..round_up_unit(end)];

    let sizes = record.value.len() as u32 | u32::from(record.kind as u8) << 24;
    out[4..8].copy_from_slice(&sizes.to_le_bytes());
    out[8..10].copy_from_slice(&(record.key.len() as u16).to_le_bytes());
    out[10] = if envelope.continues { bits | extension::CONTINUES } else { bits };
    out[11] = 0;
    out[12..16].copy_from_slice(&envelope.number.0.to_le_bytes());
    out[16..24].copy_from_slice(&record.version.as_u64().to_le_bytes());
    let at = put_extensions(record, bits, out);
    let at = put(out, at, record.key);
    let at = put(out, at, record.value);
    assert_eq!(at, end, "the length announced is the length written");
    out[end..].fill(0);

    let checksum = checksum32(&out[4..end], salt(place.segment_id, u64::from(place.offset)));
    out[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

fn put_extensions(record: &RecordRef<'_>, bits: u8, out: &mut [u8]) -> usize {
    let mut at = HEADER_BYTES;
    if bits & extension::EXPIRY != 0 {
        at = put(out, at, &record.expires_at_ms.to_le_bytes());
    }
    if bits & extension::FLAGS != 0 {
        at = put(out, at, &record.flags.to_le_bytes());
    }
    if bits & extension::TAG != 0 {
        at = put(out, at, &record.tag.session.to_le_bytes());
        at = put(out, at, &record.tag.seq.to_le_bytes());
    }
    if bits & extension::RESULT != 0 {
        at = put(out, at, &(record.result.len() as u16).to_le_bytes());
        at = put(out, at, record.result);
    }
    if bits & extension::WIDE_RESULT != 0 {
        at = put(out, at, &(record.result.len() as u32).to_le_bytes());
        at = put(out, at, record.result);
    }
    at
}

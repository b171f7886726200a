//! Segment header decoder.
use super::{CHECKSUM_AT, HEADER_BYTES, MAGIC, SegmentHeader, StreamKind};
use crate::format::bytes::{array, is_zero, u32_at, u64_at};
use crate::format::{
    FORMAT_OLDEST, FORMAT_VERSION, HeaderError, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SegmentUuid, StoreUuid,
};
use fawn_types::checksum::checksum64;

const WHAT: &str = "segment header";

/// Decodes the header at the start of a segment file.
///
/// # Errors
/// If it is not a whole header of a known format.
pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
    let (expected, found) = (HEADER_BYTES, bytes.len());
    if found < expected {
        return Err(HeaderError::Truncated { what: WHAT, expected, found });
    }
    check_frozen(bytes, MAGIC, CHECKSUM_AT, WHAT)?;
    if !is_zero(&bytes[64..CHECKSUM_AT]) || !is_zero(&bytes[CHECKSUM_AT + 8..HEADER_BYTES]) {
        return Err(field("reserved bytes", "zero", "not zero"));
    }
    let stream = u32_at(bytes, 60);
    let header = SegmentHeader {
        slot: u32_at(bytes, 12),
        uuid: SegmentUuid(array(bytes, 16)),
        store: StoreUuid(array(bytes, 32)),
        sequence: u64_at(bytes, 48),
        segment_bytes: u32_at(bytes, 56),
        stream: StreamKind::from_u32(stream).ok_or_else(|| field("stream", "0 or 1", &stream.to_string()))?,
    };
    let len = header.segment_bytes;
    if !len.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&len) {
        let expected = format!("a power of two from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}");
        return Err(field("segment length", &expected, &len.to_string()));
    }
    if header.sequence == 0 {
        return Err(field("sequence number", "at least 1", "0"));
    }
    Ok(header)
}

fn field(field: &'static str, expected: &str, found: &str) -> HeaderError {
    HeaderError::Field { what: WHAT, field, expected: expected.to_owned(), found: found.to_owned() }
}

/// Checks the part that no later format may change: magic at 0, format number at 8, XXH3-64 of everything before it at
/// `checksum_at`. The checksum is checked first, so that a corrupt format number does not pass for a newer format.
pub(in crate::format) fn check_frozen(
    bytes: &[u8],
    magic: [u8; 8],
    checksum_at: usize,
    what: &'static str,
) -> Result<(), HeaderError> {
    let found: [u8; 8] = array(bytes, 0);
    if found != magic {
        return Err(HeaderError::Magic { what, expected: magic, found });
    }
    let (expected, found) = (checksum64(&bytes[..checksum_at]), u64_at(bytes, checksum_at));
    if expected != found {
        return Err(HeaderError::Checksum { what, expected, found });
    }
    match u32_at(bytes, 8) {
        FORMAT_OLDEST..=FORMAT_VERSION => Ok(()),
        0 => {
            let (expected, found) = ("at least 1".to_owned(), "0".to_owned());
            Err(HeaderError::Field { what, field: "format", expected, found })
        }
        found @ ..FORMAT_OLDEST => Err(HeaderError::Older { what, oldest: FORMAT_OLDEST, found }),
        found => Err(HeaderError::Newer { what, supported: FORMAT_VERSION, found }),
    }
}

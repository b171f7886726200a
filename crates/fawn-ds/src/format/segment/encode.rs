//! Segment header encoder.
use super::{CHECKSUM_AT, HEADER_BYTES, MAGIC, SegmentHeader};
use crate::format::bytes::put;
use crate::format::{FORMAT_VERSION, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use fawn_types::checksum::checksum64;

/// Writes `header` to the first [`HEADER_BYTES`] of `out`.
///
/// # Panics
/// If the segment's length is invalid or `out` is too short: a caller's error.
pub fn encode(header: &SegmentHeader, out: &mut [u8]) {
    let bytes = header.segment_bytes;
    assert!(bytes.is_power_of_two() && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes), "{bytes} B segment");
    assert!(header.sequence > 0, "segment sequence numbers begin at 1");
    let out = &mut out[..HEADER_BYTES];
    out.fill(0);
    put(out, 0, &MAGIC);
    put(out, 8, &FORMAT_VERSION.to_le_bytes());
    put(out, 12, &header.slot.to_le_bytes());
    put(out, 16, &header.uuid.0);
    put(out, 32, &header.store.0);
    put(out, 48, &header.sequence.to_le_bytes());
    put(out, 56, &bytes.to_le_bytes());
    put(out, 60, &(header.stream as u32).to_le_bytes());
    let checksum = checksum64(&out[..CHECKSUM_AT]);
    put(out, CHECKSUM_AT, &checksum.to_le_bytes());
}

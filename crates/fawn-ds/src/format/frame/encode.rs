//! Frame encoder: writes the header; its records are already in the caller's buffer.
use super::{FrameHeader, HEADER_BYTES, MAGIC};
use crate::format::UNIT_BYTES;
use crate::format::bytes::put;
use fawn_types::checksum::{checksum32, salt};

/// Writes `header` to the first [`HEADER_BYTES`] of `out`.
///
/// # Panics
/// If the lengths contradict each other or `out` is too short: a caller's error.
pub fn encode_header(header: &FrameHeader, out: &mut [u8]) {
    let unit = UNIT_BYTES as u32;
    assert!(header.offset.is_multiple_of(unit) && header.frame_bytes.is_multiple_of(unit), "frames lie on units");
    assert!(header.record_bytes.is_multiple_of(unit), "records are padded to units");
    assert!(header.frame_bytes as usize >= HEADER_BYTES + header.record_bytes as usize, "a frame holds its records");
    let out = &mut out[..HEADER_BYTES];
    put(out, 0, &MAGIC);
    put(out, 8, &header.frame_bytes.to_le_bytes());
    put(out, 12, &header.record_bytes.to_le_bytes());
    put(out, 16, &header.count.to_le_bytes());
    put(out, 20, &header.generation.to_le_bytes());
    put(out, 24, &header.uuid.0);
    put(out, 40, &header.offset.to_le_bytes());
    put(out, 44, &header.synced.offset.to_le_bytes());
    put(out, 48, &header.synced.sequence.to_le_bytes());
    put(out, 56, &header.chain.0.to_le_bytes());
    let checksum = checksum32(&out[8..], salt(header.uuid.fold(), u64::from(header.offset)));
    put(out, 4, &checksum.to_le_bytes());
}

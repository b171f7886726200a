//! The tail file: frames of the log that a killed process had acknowledged and not yet written to their segment.
//!
//! It is a ring of [`TAIL_BYTES`]. A frame is in it as in its segment, at a multiple of [`FRAME_ALIGNMENT`]; anything may be
//! between two frames, and frames that the log has by now are overwritten. A frame names its segment, its offset and the
//! open generation. Only frames of the manifest's last generation count: an opening makes them part of the log before it
//! begins the next generation.
use super::SegmentUuid;
use super::bytes::{array, u32_at};
use super::frame::{self, FrameHeader, HEADER_BYTES};

/// Name of the file in the store's directory.
pub const FILE_NAME: &str = "tail";
/// Length of the file, bytes.
pub const TAIL_BYTES: usize = 256 << 10;
/// Frames are at multiples of this, bytes.
pub const FRAME_ALIGNMENT: usize = 64;

/// Visits the whole frames of this generation or a later one, which is for the caller to refuse.
pub fn frames(bytes: &[u8], generation: u32, segment_bytes: u32, mut visit: impl FnMut(&FrameHeader, &[u8])) {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= HEADER_BYTES) {
        let len = match frame_at(rest, segment_bytes) {
            Some(header) if header.generation >= generation => {
                let len = header.frame_bytes as usize;
                visit(&header, &rest[..len]);
                len
            }
            _ => FRAME_ALIGNMENT,
        };
        at = (at + len).next_multiple_of(FRAME_ALIGNMENT);
    }
}

fn frame_at(bytes: &[u8], segment_bytes: u32) -> Option<FrameHeader> {
    let (uuid, offset) = (SegmentUuid(array(bytes, 24)), u32_at(bytes, 40));
    let header = frame::decode_header(bytes, uuid, offset, segment_bytes).ok()?;
    let is_whole = bytes.len() >= header.frame_bytes as usize && frame::verify(&header, bytes).is_ok();
    is_whole.then_some(header)
}

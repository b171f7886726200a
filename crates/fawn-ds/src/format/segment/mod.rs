//! Segment header: the first block of every segment file, written and synced before the segment is listed.
//!
//! ```text
//! 0 magic "FAWN-SEG" | 8 format u32 | 12 slot u32 | 16 segment uuid | 32 store uuid | 48 sequence u64
//! 56 segment_bytes u32 | 60 stream u32 | 64 zeros | 504 checksum u64 | 512 zeros to 4096
//! ```
//! All non-zero bytes are in one sector, so the header is complete or absent. Magic, format and checksum keep
//! their places in every later format, so that an old version can distinguish "newer" from "corrupt".
mod decode;
mod encode;
mod facts;
mod stream;

pub(in crate::format) use decode::check_frozen;
pub use decode::decode;
pub use encode::encode;
pub use facts::{NumberFacts, RecordFacts};
pub use stream::{PerStream, StreamKind};

use super::{FRAMES_OFFSET, SegmentUuid, StoreUuid};

/// Length of the header, bytes; frames start after it.
pub const HEADER_BYTES: usize = FRAMES_OFFSET as usize;
/// First bytes of every segment file.
pub const MAGIC: [u8; 8] = *b"FAWN-SEG";

const CHECKSUM_AT: usize = 504;

const _: () = assert!(CHECKSUM_AT + 8 == fawn_flash::buffer::SECTOR_BYTES);

/// Identity of a segment file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Its permanent name.
    pub uuid: SegmentUuid,
    /// The store it belongs to.
    pub store: StoreUuid,
    /// High bits of the pointers into it; reused once the segment is dropped.
    pub slot: u32,
    /// Its place among all segments of the store, from 1; grows, never reused.
    pub sequence: u64,
    /// Its full length, bytes: a power of two.
    pub segment_bytes: u32,
    /// The stream that it belongs to.
    pub stream: StreamKind,
}

/// File name of the segment `uuid` in `slot`.
///
/// The UUID's part distinguishes a slot's new segment from the old one, whose unlinking may not be durable.
#[must_use]
pub fn file_name(slot: u32, uuid: SegmentUuid) -> String {
    format!("segment-{slot:06}-{:016x}.fawn", uuid.fold())
}

/// Whether a name has the form of [`file_name`]: an unlisted file of that form is an orphan of a crash and may be
/// removed.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("segment-").and_then(|rest| rest.strip_suffix(".fawn")) else { return false };
    let Some((slot, id)) = rest.split_once('-') else { return false };
    let is_slot = slot.len() >= 6 && slot.bytes().all(|byte| byte.is_ascii_digit());
    is_slot && id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

//! Frame: the records of one flush in a segment, accepted whole or not at all.
//!
//! ```text
//! 0 magic "FwnF" | 4 header checksum u32 | 8 frame_bytes u32 | 12 record_bytes u32 | 16 count u32 | 20 generation u32
//! 24 segment uuid | 40 offset u32 | 44 synced offset u32 | 48 synced sequence u64 | 56 chain u64 | 64 records | padding
//! ```
//! The header has a checksum of its own, so that recovery can trust its watermark although the frame's records, or
//! frames before it, are corrupt. The chain binds it to exactly its records: a record left over from an earlier attempt
//! at the same place has a good checksum, but is not part of the chain.
mod decode;
mod encode;

pub use decode::{FrameError, Records, decode_header, records, verify};
pub use encode::encode_header;

use super::{SegmentUuid, Watermark};
use fawn_types::checksum::salt;

/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 64;
/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FwnF";

const _: () = assert!(HEADER_BYTES.is_multiple_of(super::UNIT_BYTES));

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The segment it was written to.
    pub uuid: SegmentUuid,
    /// The open generation of the writer; never falls within a segment.
    pub generation: u32,
    /// Offset of the header in its segment.
    pub offset: u32,
    /// Bytes up to the next frame: header, records, padding.
    pub frame_bytes: u32,
    /// Bytes of the records.
    pub record_bytes: u32,
    /// Number of records.
    pub count: u32,
    /// Position up to which the log was known to be synced when the frame was written.
    pub synced: Watermark,
    /// Mix of all records' checksums in order.
    pub chain: Chain,
}

impl FrameHeader {
    /// Start of the next frame.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.offset + self.frame_bytes
    }
}

/// Running mix of the records' checksums: one multiplication each, order matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain(pub u64);

impl Chain {
    /// The chain without records.
    pub const EMPTY: Self = Self(0);

    /// The chain with one more record.
    #[must_use]
    pub const fn then(self, record_checksum: u32) -> Self {
        // The high bit makes a checksum of zero change more than the mix.
        Self(salt(self.0, record_checksum as u64 | 1 << 63))
    }
}

//! The on-flash format, byte for byte: records, frames, segment headers, the manifest, and the segment scan.
//!
//! Pure functions of bytes, without a device or a clock. Encoders and decoders have files of their own, and no decoder
//! panics on any input. `docs/formats/fawn-ds.md` specifies the format; a test compares its worked examples with this
//! code.
pub mod checkpoint;
mod expiries;
pub mod frame;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub mod id;
pub mod manifest;
pub(crate) mod page_sums;
pub mod record;
pub mod run;
pub mod scan;
pub mod segment;
pub mod tail;
pub mod walk;

mod bytes;

pub use expiries::Expiries;
pub use id::{RangeNumber, SegmentUuid, StoreUuid, Watermark};

/// The format number that this code writes; it reads all numbers from [`FORMAT_OLDEST`] up to it. The format page has the
/// upgrade rule.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest format number that this code reads. Before the first release, older ones are not read any more.
pub const FORMAT_OLDEST: u32 = 2;
/// Unit of record lengths, offsets and index pointers, bytes: 2³² units of 16 B are 64 GiB, 2⁴⁰ are 16 TiB per store.
pub const UNIT_BYTES: usize = 16;
/// Offset of a segment's first frame, bytes: after the header's block.
pub const FRAMES_OFFSET: u32 = 4096;
/// Smallest segment, bytes: the header's block and a few frames.
pub const SEGMENT_BYTES_MIN: u32 = 64 << 10;
/// Largest segment, bytes: offsets fit 31 bits.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

const _: () = assert!(FRAMES_OFFSET as usize == fawn_flash::buffer::PAGE_BYTES);
const _: () = assert!((FRAMES_OFFSET as usize).is_multiple_of(UNIT_BYTES));
const _: () = assert!(SEGMENT_BYTES_MIN > 2 * FRAMES_OFFSET && SEGMENT_BYTES_MAX <= i32::MAX as u32 + 1);

/// The next multiple of [`UNIT_BYTES`] at or above `bytes`.
#[must_use]
pub const fn round_up_unit(bytes: usize) -> usize {
    bytes.next_multiple_of(UNIT_BYTES)
}

/// Error of a file header that this code cannot read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// The file is shorter than the header.
    #[error("{what}: {found} bytes where {expected} were expected; the file was cut short")]
    Truncated {
        /// The kind of header.
        what: &'static str,
        /// Header length, bytes.
        expected: usize,
        /// Bytes present.
        found: usize,
    },
    /// The first bytes are not the format's magic.
    #[error("{what}: begins with {found:02x?}, expected {expected:02x?}; is this a FAWN-DS file?")]
    Magic {
        /// The kind of header.
        what: &'static str,
        /// The magic of this format.
        expected: [u8; 8],
        /// The first bytes found.
        found: [u8; 8],
    },
    /// The format is older than all that this code reads.
    #[error(
        "{what}: format {found} was written by a fawn before its first release, this one reads from {oldest}; move the \
         directory away and create a new store"
    )]
    Older {
        /// The kind of header.
        what: &'static str,
        /// The oldest format that this code reads.
        oldest: u32,
        /// The format found.
        found: u32,
    },
    /// The format is newer than this code.
    #[error("{what}: format {found} was written by a newer fawn, this one reads up to {supported}; upgrade fawn")]
    Newer {
        /// The kind of header.
        what: &'static str,
        /// The newest format that this code reads.
        supported: u32,
        /// The format found.
        found: u32,
    },
    /// The content has a layout of another build. Nothing is lost: such a file can be derived from others.
    #[error("{what}: layout {found} is of another build of fawn, this one reads {expected}")]
    Layout {
        /// The kind of header.
        what: &'static str,
        /// The layout that this code reads.
        expected: u32,
        /// The layout found.
        found: u32,
    },
    /// The bytes differ from those that were written.
    #[error("{what}: checksum {found:016x}, expected {expected:016x}; the header is corrupt")]
    Checksum {
        /// The kind of header.
        what: &'static str,
        /// Computed from the bytes.
        expected: u64,
        /// Stored in the header.
        found: u64,
    },
    /// The checksum holds, but a field has an invalid value.
    #[error("{what}: {field} is {found}, expected {expected}")]
    Field {
        /// The kind of header.
        what: &'static str,
        /// The field's name.
        field: &'static str,
        /// Accepted values.
        expected: String,
        /// Value found.
        found: String,
    },
}

impl HeaderError {
    /// Whether the file is whole, and of a format that this code does not read.
    #[must_use]
    pub const fn is_of_other_format(&self) -> bool {
        matches!(self, Self::Newer { .. } | Self::Older { .. })
    }
}

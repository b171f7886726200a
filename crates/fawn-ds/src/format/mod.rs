//! Owns what lies on flash, byte for byte: records, frames, segment headers, the manifest, and the scan of a segment.
//!
//! Pure: bytes in, values out; no device, no clock. Encoders and decoders live in files of their own and are specified
//! by `docs/formats/fawn-ds.md`, whose worked examples a test compares with this code. No decoder panics, whatever
//! the bytes.
pub mod frame;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub mod id;
pub mod manifest;
pub mod record;
pub mod scan;
pub mod segment;

mod bytes;

pub use id::{SegmentUuid, StoreUuid, Watermark};

/// The format that this code writes; it reads all from 1 up to this one. The upgrade rule is in the format page.
pub const FORMAT_VERSION: u32 = 1;
/// Unit of record lengths, offsets and index pointers, bytes: 2³² units of 16 B are 64 GiB per store.
pub const UNIT_BYTES: usize = 16;
/// Where a segment's first frame starts, bytes: after the header's block.
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

/// Why a header does not name a format that this code reads.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// Too few bytes.
    #[error("{what}: {found} bytes where {expected} were expected; the file was cut short: run `fawn check`")]
    Truncated {
        /// Which header.
        what: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// Other first bytes.
    #[error("{what}: begins with {found:02x?}, expected {expected:02x?}; is this a FAWN-DS file?")]
    Magic {
        /// Which header.
        what: &'static str,
        /// The magic of this format.
        expected: [u8; 8],
        /// The first bytes there.
        found: [u8; 8],
    },
    /// A format from the future.
    #[error("{what}: format {found} was written by a newer fawn, this one reads up to {supported}; upgrade fawn")]
    Newer {
        /// Which header.
        what: &'static str,
        /// The newest format that this code reads.
        supported: u32,
        /// The format there.
        found: u32,
    },
    /// The bytes are not those that were written.
    #[error("{what}: checksum {found:016x}, expected {expected:016x}; the header is corrupt: run `fawn check`")]
    Checksum {
        /// Which header.
        what: &'static str,
        /// Computed from the bytes.
        expected: u64,
        /// Stored with them.
        found: u64,
    },
    /// The checksum holds, a value does not.
    #[error("{what}: {field} is {found}, expected {expected}; run `fawn check`")]
    Field {
        /// Which header.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
}

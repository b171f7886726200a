//! Checkpoint: an image of the indexes and of what the segments' records left in memory, so that an opening need not scan
//! them again.
//!
//! ```text
//! file:  0 magic "FAWN-CKP" | 8 format u32 | 12 layout of the content u32 | 16 uuid | 32 store uuid | 48 position of each stream from
//!        which on records are not in it, 2 × (sequence u64, offset u32, zero u32) | 80 zeros | 504 checksum u64 | 512 zeros to 4096 | pieces, each at a multiple of 4096
//! piece: 0 checksum u64 | 8 content_bytes u32 | 12 zero u32 | 16 content | zeros
//! ```
//! All pieces but the last are [`PIECE_BYTES`] long and full. Their contents, one after the other, are the [`content`].
pub mod content;

use super::bytes::{array, is_zero, put, u32_at, u64_at};
use super::segment::{PerStream, StreamKind};
use super::{FORMAT_VERSION, HeaderError, SegmentUuid, StoreUuid, Watermark};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::checksum::{checksum64, salt};

/// First bytes of every checkpoint.
pub const MAGIC: [u8; 8] = *b"FAWN-CKP";
/// Length of the header, bytes; the first piece follows it.
pub const HEADER_BYTES: usize = PAGE_BYTES;
/// Length of a piece, bytes.
pub const PIECE_BYTES: usize = 64 << 10;
/// Longest content of a piece, bytes.
pub const PIECE_CONTENT_BYTES: usize = PIECE_BYTES - PIECE_HEADER_BYTES;

const PIECE_HEADER_BYTES: usize = 16;
const CHECKSUM_AT: usize = 504;
const LAYOUT_AT: usize = 12;
const FROM_AT: usize = 48;
const FROM_BYTES: usize = 16;
/// Layout of the content. Earlier builds had no expiries of segments, 1, or stored the entries of a cell one after the other, 0.
const LAYOUT: u32 = 2;
const WHAT: &str = "checkpoint header";

/// Identity of a checkpoint, and where the log continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointHeader {
    /// Its permanent name.
    pub uuid: SegmentUuid,
    /// The store it belongs to.
    pub store: StoreUuid,
    /// Position of each stream from which on records are not in it.
    pub from: PerStream<Watermark>,
}

/// Name of the checkpoint's file.
#[must_use]
pub fn file_name(uuid: SegmentUuid) -> String {
    format!("checkpoint-{:016x}.fawn", uuid.fold())
}

/// Whether a name has the form of [`file_name`]: an unlisted file of that form is an orphan of a crash.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let id = name.strip_prefix("checkpoint-").and_then(|rest| rest.strip_suffix(".fawn"));
    id.is_some_and(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Encodes the header into the first [`HEADER_BYTES`] of `out`, which are zero.
pub fn encode_header(header: &CheckpointHeader, out: &mut [u8]) {
    put(out, 0, &MAGIC);
    put(out, 8, &FORMAT_VERSION.to_le_bytes());
    put(out, LAYOUT_AT, &LAYOUT.to_le_bytes());
    put(out, 16, &header.uuid.0);
    put(out, 32, &header.store.0);
    for kind in StreamKind::ALL {
        let at = FROM_AT + FROM_BYTES * kind as usize;
        put(out, at, &header.from[kind].sequence.to_le_bytes());
        put(out, at + 8, &header.from[kind].offset.to_le_bytes());
    }
    let checksum = checksum64(&out[..CHECKSUM_AT]);
    put(out, CHECKSUM_AT, &checksum.to_le_bytes());
}

/// Decodes a header.
///
/// # Errors
/// [`HeaderError`] says what is wrong with it.
pub fn decode_header(bytes: &[u8]) -> Result<CheckpointHeader, HeaderError> {
    let (expected, found) = (HEADER_BYTES, bytes.len());
    if found < expected {
        return Err(HeaderError::Truncated { what: WHAT, expected, found });
    }
    super::segment::check_frozen(bytes, MAGIC, CHECKSUM_AT, WHAT)?;
    let layout = u32_at(bytes, LAYOUT_AT);
    if layout != LAYOUT {
        return Err(HeaderError::Layout { what: WHAT, expected: LAYOUT, found: layout });
    }
    let is_reserved_zero = is_zero(&bytes[60..64]) && is_zero(&bytes[76..CHECKSUM_AT]);
    if !is_reserved_zero || !is_zero(&bytes[CHECKSUM_AT + 8..HEADER_BYTES]) {
        let (expected, found) = ("zeros".to_owned(), "other bytes".to_owned());
        return Err(HeaderError::Field { what: WHAT, field: "a reserved field", expected, found });
    }
    let from_of = |kind: StreamKind| {
        let at = FROM_AT + FROM_BYTES * kind as usize;
        Watermark { sequence: u64_at(bytes, at), offset: u32_at(bytes, at + 8) }
    };
    Ok(CheckpointHeader {
        uuid: SegmentUuid(array(bytes, 16)),
        store: StoreUuid(array(bytes, 32)),
        from: PerStream::from_fn(from_of),
    })
}

/// Encodes the piece at `offset` of the file: content, then zeros to a multiple of a page.
///
/// # Panics
/// If the content is longer than [`PIECE_CONTENT_BYTES`], or `out` too short: a caller's error.
pub fn encode_piece(uuid: SegmentUuid, offset: u64, content: &[u8], out: &mut [u8]) -> usize {
    assert!(content.len() <= PIECE_CONTENT_BYTES, "a piece has at most {PIECE_CONTENT_BYTES} B of content");
    put(out, 8, &(content.len() as u32).to_le_bytes());
    out[12..PIECE_HEADER_BYTES].fill(0);
    let end = put(out, PIECE_HEADER_BYTES, content);
    let checksum = checksum64(&out[8..end]) ^ salt(uuid.fold(), offset);
    put(out, 0, &checksum.to_le_bytes());
    let padded = end.next_multiple_of(PAGE_BYTES);
    out[end..padded].fill(0);
    padded
}

/// The content of the piece at `offset` of the file; `None` if these are other bytes than were written there.
#[must_use]
pub fn decode_piece(uuid: SegmentUuid, offset: u64, bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..PIECE_HEADER_BYTES)?;
    let end = PIECE_HEADER_BYTES + (u32_at(header, 8) as usize).min(PIECE_BYTES);
    let checked = bytes.get(8..end)?;
    let is_intact = checksum64(checked) ^ salt(uuid.fold(), offset) == u64_at(header, 0);
    (is_intact && u32_at(header, 12) == 0).then(|| &bytes[PIECE_HEADER_BYTES..end])
}

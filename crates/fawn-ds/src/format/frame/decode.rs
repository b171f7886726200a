//! Frame decoder: the header alone, then the whole frame against its chain, then its records one by one.
use super::{Chain, FrameHeader, HEADER_BYTES, MAGIC};
use crate::format::bytes::{array, is_zero, u32_at, u64_at};
use crate::format::record::{self, RecordError, RecordPlace, Stored};
use crate::format::{FRAMES_OFFSET, SegmentUuid, UNIT_BYTES, Watermark};
use fawn_types::checksum::{checksum32, salt};

/// Reasons why bytes are not a whole frame of this segment at this place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The bytes end before the frame does.
    #[error("frame at byte {offset}: {found} bytes where {expected} were expected")]
    Truncated {
        /// Offset of the frame.
        offset: u32,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// No frame begins here.
    #[error("frame at byte {offset}: begins with {found:08x}, expected {expected:08x}")]
    Magic {
        /// Offset of the frame.
        offset: u32,
        /// The magic.
        expected: u32,
        /// The bytes found.
        found: u32,
    },
    /// A corrupt header.
    #[error("frame at byte {offset}: header checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Offset of the frame.
        offset: u32,
        /// Computed from the bytes and their place.
        expected: u32,
        /// Stored with them.
        found: u32,
    },
    /// A whole header that does not belong here, or that contradicts itself.
    #[error("frame at byte {offset}: {field} is {found}, expected {expected}")]
    Field {
        /// Offset of the frame.
        offset: u32,
        /// The field.
        field: &'static str,
        /// Expected value.
        expected: u64,
        /// Found value.
        found: u64,
    },
    /// One of its records is corrupt.
    #[error("frame at byte {offset}: {error}")]
    Record {
        /// Offset of the frame.
        offset: u32,
        /// The record's error.
        error: RecordError,
    },
}

/// Decodes the header at the start of `bytes`, which are at `offset` of the segment `uuid` of `segment_bytes`.
///
/// Certifies the header alone: its watermark can be trusted, its records are still to be verified.
///
/// # Errors
/// When there is no whole header of this segment and place.
pub fn decode_header(
    bytes: &[u8],
    uuid: SegmentUuid,
    offset: u32,
    segment_bytes: u32,
) -> Result<FrameHeader, FrameError> {
    let (expected, found) = (HEADER_BYTES, bytes.len());
    if found < expected {
        return Err(FrameError::Truncated { offset, expected, found });
    }
    let bytes = &bytes[..HEADER_BYTES];
    let (expected, found) = (u32::from_le_bytes(MAGIC), u32_at(bytes, 0));
    if found != expected {
        return Err(FrameError::Magic { offset, expected, found });
    }
    let expected = checksum32(&bytes[8..], salt(uuid.fold(), u64::from(offset)));
    let found = u32_at(bytes, 4);
    if found != expected {
        return Err(FrameError::Checksum { offset, expected, found });
    }
    let header = FrameHeader {
        frame_bytes: u32_at(bytes, 8),
        record_bytes: u32_at(bytes, 12),
        count: u32_at(bytes, 16),
        generation: u32_at(bytes, 20),
        uuid: SegmentUuid(array(bytes, 24)),
        offset: u32_at(bytes, 40),
        synced: Watermark { sequence: u64_at(bytes, 48), offset: u32_at(bytes, 44) },
        chain: Chain(u64_at(bytes, 56)),
    };
    check_header(&header, uuid, offset, segment_bytes).map(|()| header)
}

/// A checksum of 32 bits accepts one foreign header in 2³²; the UUID itself and the offset exclude it.
fn check_header(header: &FrameHeader, uuid: SegmentUuid, offset: u32, segment_bytes: u32) -> Result<(), FrameError> {
    let refuse = |field, expected, found| Err(FrameError::Field { offset, field, expected, found });
    if header.uuid != uuid {
        return refuse("segment uuid (folded)", uuid.fold(), header.uuid.fold());
    }
    if header.offset != offset {
        return refuse("offset", u64::from(offset), u64::from(header.offset));
    }
    let unit = UNIT_BYTES as u32;
    if offset < FRAMES_OFFSET || !offset.is_multiple_of(unit) {
        return refuse("offset", u64::from(FRAMES_OFFSET), u64::from(offset));
    }
    if !header.record_bytes.is_multiple_of(unit) || !header.frame_bytes.is_multiple_of(unit) {
        return refuse("remainder of the lengths by 16", 0, u64::from(header.record_bytes | header.frame_bytes) % 16);
    }
    // In 64 bits: lengths from flash may be anything.
    let least = HEADER_BYTES as u64 + u64::from(header.record_bytes);
    if u64::from(header.frame_bytes) < least {
        return refuse("frame length", least, u64::from(header.frame_bytes));
    }
    let end = u64::from(offset) + u64::from(header.frame_bytes);
    if end > u64::from(segment_bytes) {
        return refuse("end", u64::from(segment_bytes), end);
    }
    Ok(())
}

/// Checks that `frame`, the whole of it, holds exactly the records that `header` was written for.
///
/// # Errors
/// The first error; then no record of the frame counts.
pub fn verify(header: &FrameHeader, frame: &[u8]) -> Result<(), FrameError> {
    let offset = header.offset;
    let (expected, found) = (header.frame_bytes as usize, frame.len());
    if found < expected {
        return Err(FrameError::Truncated { offset, expected, found });
    }
    let refuse = |field, expected, found| Err(FrameError::Field { offset, field, expected, found });
    let (segment_id, end) = (header.uuid.fold(), HEADER_BYTES + header.record_bytes as usize);
    let (mut at, mut chain, mut count, mut continues) = (HEADER_BYTES, Chain::EMPTY, 0u32, false);
    while at < end {
        let place = RecordPlace { segment_id, offset: offset + at as u32 };
        let stored = record::decode(&frame[at..end], place).map_err(|error| FrameError::Record { offset, error })?;
        chain = chain.then(u32_at(frame, at));
        at += stored.encoded_len;
        count += 1;
        continues = stored.envelope.continues;
    }
    assert_eq!(at, end, "no record was accepted past the records' end");
    if count != header.count {
        return refuse("number of records", u64::from(header.count), u64::from(count));
    }
    if chain != header.chain {
        return refuse("chain of record checksums", header.chain.0, chain.0);
    }
    if continues {
        return refuse("batch going on past the frame", 0, 1);
    }
    if !is_zero(&frame[end..header.frame_bytes as usize]) {
        return refuse("padding", 0, 1);
    }
    Ok(())
}

/// The records of a frame that [`verify`] accepted, with their offsets in the segment.
#[must_use]
pub fn records<'a>(header: &FrameHeader, frame: &'a [u8]) -> Records<'a> {
    let end = frame.len().min(HEADER_BYTES + header.record_bytes as usize);
    Records { bytes: &frame[HEADER_BYTES.min(end)..end], offset: header.offset + HEADER_BYTES as u32 }
}

/// Iterator of [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    offset: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = (u32, Stored<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        // Verified before: an error here means the caller did not, and the rest is not yielded.
        let stored = record::decode_verified(self.bytes, offset).ok()?;
        self.bytes = &self.bytes[stored.encoded_len..];
        self.offset += stored.encoded_len as u32;
        Some((offset, stored))
    }
}

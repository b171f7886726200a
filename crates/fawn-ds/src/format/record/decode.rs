//! Record decoder: bounds first, then the checksum, then the meaning of the fields.
use super::encode::extensions_len;
use super::{
    Envelope, HEADER_BYTES, NARROW_RESULT_BYTES_MAX, RESULT_BYTES_LIMIT, RecordKind, RecordPlace, RecordRef, extension,
};
use crate::format::bytes::{array, u16_at, u32_at, u64_at};
use crate::format::{RangeNumber, UNIT_BYTES, round_up_unit};
use fawn_types::checksum::{checksum32, salt};
use fawn_types::{ClientTag, Version};

/// A record in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored<'a> {
    /// Its content.
    pub record: RecordRef<'a>,
    /// Its range's local number, and whether its batch continues.
    pub envelope: Envelope,
    /// Bytes up to the next record.
    pub encoded_len: usize,
}

/// Errors of bytes that are not the record written at this position. They never mean that a key is absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// The record exceeds the given bytes.
    #[error("record at byte {offset}: {found} bytes where {expected} were expected")]
    Truncated {
        /// Offset of the record in its segment.
        offset: u32,
        /// Bytes of the record, or of a part that determines its length.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The bytes differ from those that were written here.
    #[error("record at byte {offset}: checksum {found:08x}, expected {expected:08x}; corrupt or misplaced bytes")]
    Checksum {
        /// Offset of the record in its segment.
        offset: u32,
        /// Computed from the bytes and their place.
        expected: u32,
        /// Stored with them.
        found: u32,
    },
    /// The checksum holds, a field does not.
    #[error("record at byte {offset}: {field} is {found:#x}, which this format does not know")]
    Field {
        /// Offset of the record in its segment.
        offset: u32,
        /// The field.
        field: &'static str,
        /// Found value.
        found: u64,
    },
}

impl RecordError {
    /// Whether more bytes could complete the record: it needs a second read, and is not corrupt.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}

/// Offsets of the parts of a record; guarantees only that all of them are within the bytes.
struct Parts {
    bits: u8,
    result_len: usize,
    key_len: usize,
    value_len: usize,
}

impl Parts {
    /// Reads the lengths; besides the header it needs only the result's length.
    fn read(bytes: &[u8], offset: u32) -> Result<Self, RecordError> {
        let found = bytes.len();
        if found < HEADER_BYTES {
            return Err(RecordError::Truncated { offset, expected: HEADER_BYTES, found });
        }
        let bits = bytes[10];
        let mut parts = Self {
            bits,
            result_len: 0,
            key_len: usize::from(u16_at(bytes, 8)),
            value_len: (u32_at(bytes, 4) & 0x00FF_FFFF) as usize,
        };
        if bits & (extension::RESULT | extension::WIDE_RESULT) == 0 {
            return Ok(parts);
        }
        // Either length field is the last extension. A record with both kinds of result is refused later.
        let end = HEADER_BYTES + extensions_len(bits);
        if found < end {
            return Err(RecordError::Truncated { offset, expected: parts.encoded_len(), found });
        }
        parts.result_len = if bits & extension::WIDE_RESULT != 0 {
            u32_at(bytes, end - 4) as usize
        } else {
            usize::from(u16_at(bytes, end - 2))
        };
        if parts.result_len > RESULT_BYTES_LIMIT {
            let found = parts.result_len as u64;
            return Err(RecordError::Field { offset, field: "result length", found });
        }
        Ok(parts)
    }

    /// As [`Parts::read`] for a record that must be wholly within the bytes.
    fn of_whole(bytes: &[u8], offset: u32) -> Result<Self, RecordError> {
        let parts = Self::read(bytes, offset)?;
        let (expected, found) = (parts.encoded_len(), bytes.len());
        if found < expected {
            return Err(RecordError::Truncated { offset, expected, found });
        }
        Ok(parts)
    }

    /// Cannot overflow: 24 + 34 + 2¹⁶ + 2 × 2²⁴ + 64.
    fn len(&self) -> usize {
        HEADER_BYTES + extensions_len(self.bits) + self.result_len + self.key_len + self.value_len
    }

    fn encoded_len(&self) -> usize {
        round_up_unit(self.len())
    }
}

/// Length of the record at the start of `bytes`: the size of the read that a lookup needs. [`super::PEEK_BYTES`] always
/// suffice.
///
/// Nothing is verified: a corrupt header yields any length up to [`super::RECORD_BYTES_LIMIT`], and [`decode`] refuses
/// the record.
///
/// # Errors
/// [`RecordError::Truncated`] if there are too few bytes; [`RecordError::Field`] if the length exceeds the limit.
pub fn peek_len(bytes: &[u8]) -> Result<usize, RecordError> {
    Parts::read(bytes, 0).map(|parts| parts.encoded_len())
}

/// A record's key and range before they are verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeekedKey<'a> {
    pub(crate) number: RangeNumber,
    pub(crate) key: &'a [u8],
    pub(crate) encoded_len: usize,
}

/// The key of the record at the start of `bytes`, for a prefetch: nothing is verified.
///
/// # Errors
/// [`RecordError::Truncated`] if it exceeds `bytes`; [`RecordError::Field`] if its length exceeds the limit.
pub(crate) fn peek_key(bytes: &[u8]) -> Result<PeekedKey<'_>, RecordError> {
    let parts = Parts::of_whole(bytes, 0)?;
    let key_at = parts.len() - parts.value_len - parts.key_len;
    let number = RangeNumber(u32_at(bytes, 12));
    Ok(PeekedKey { number, key: &bytes[key_at..key_at + parts.key_len], encoded_len: parts.encoded_len() })
}

/// Decodes and verifies the record at the start of `bytes`.
///
/// # Errors
/// [`RecordError::Truncated`] if it exceeds `bytes`; other errors if the bytes differ from those written there.
pub fn decode(bytes: &[u8], place: RecordPlace) -> Result<Stored<'_>, RecordError> {
    let offset = place.offset;
    let parts = Parts::of_whole(bytes, offset)?;
    let expected = checksum32(&bytes[4..parts.len()], salt(place.segment_id, u64::from(offset)));
    let found = u32_at(bytes, 0);
    if expected != found {
        return Err(RecordError::Checksum { offset, expected, found });
    }
    fields(bytes, &parts, offset)
}

/// Like [`decode`] for bytes that it accepted before: skips the checksum, still never panics.
///
/// # Errors
/// As [`decode`], except for the checksum.
pub fn decode_verified(bytes: &[u8], offset: u32) -> Result<Stored<'_>, RecordError> {
    let parts = Parts::of_whole(bytes, offset)?;
    fields(bytes, &parts, offset)
}

/// The fields of a record that is wholly within `bytes`. Refuses fields that the encoder cannot have written.
fn fields<'a>(bytes: &'a [u8], parts: &Parts, offset: u32) -> Result<Stored<'a>, RecordError> {
    let refuse = |field, found| Err(RecordError::Field { offset, field, found });
    let Some(kind) = RecordKind::from_u8(bytes[7]) else { return refuse("kind", u64::from(bytes[7])) };
    if parts.bits & !extension::ALL != 0 {
        return refuse("extensions", u64::from(parts.bits));
    }
    if bytes[11] != 0 {
        return refuse("reserved byte", u64::from(bytes[11]));
    }
    let len = parts.len();
    if !is_padding_zero(bytes, len, parts.encoded_len()) {
        return refuse("padding", u64::from(bytes[len]));
    }
    let value_at = len - parts.value_len;
    let key_at = value_at - parts.key_len;
    let mut record = RecordRef::bare(kind, Version::from_u64(u64_at(bytes, 16)), &bytes[key_at..value_at]);
    record.value = &bytes[value_at..len];
    record.result = &bytes[key_at - parts.result_len..key_at];
    if !read_extensions(bytes, parts.bits, &mut record) {
        return refuse("an extension's content", 0);
    }
    if !record.is_well_formed() {
        return refuse("key or value length for this kind", kind as u64);
    }
    let envelope =
        Envelope { number: RangeNumber(u32_at(bytes, 12)), continues: parts.bits & extension::CONTINUES != 0 };
    Ok(Stored { record, envelope, encoded_len: parts.encoded_len() })
}

/// Whether the padding from `len` to `end`, less than a unit, is zero. One wide load, because every lookup checks it.
fn is_padding_zero(bytes: &[u8], len: usize, end: usize) -> bool {
    let padding = end - len;
    debug_assert!(padding < UNIT_BYTES && end >= UNIT_BYTES, "a record is longer than a unit");
    let last = u128::from_le_bytes(array(bytes, end - UNIT_BYTES));
    padding == 0 || last >> (8 * (UNIT_BYTES - padding)) == 0
}

/// Whether each extension has content: an empty one would give a record two encodings.
fn read_extensions(bytes: &[u8], bits: u8, record: &mut RecordRef<'_>) -> bool {
    let mut at = HEADER_BYTES;
    if bits & extension::EXPIRY != 0 {
        record.expires_at_ms = u64_at(bytes, at);
        at += 8;
    }
    if bits & extension::FLAGS != 0 {
        record.flags = u32_at(bytes, at);
        at += 4;
    }
    if bits & extension::TAG != 0 {
        record.tag = ClientTag { session: u64_at(bytes, at), seq: u64_at(bytes, at + 8) };
    }
    (bits & extension::EXPIRY == 0 || record.expires_at_ms != 0)
        && (bits & extension::FLAGS == 0 || record.flags != 0)
        && (bits & extension::TAG == 0 || record.tag != ClientTag::NONE)
        && match bits & (extension::RESULT | extension::WIDE_RESULT) {
            0 => true,
            extension::RESULT => !record.result.is_empty(),
            extension::WIDE_RESULT => record.result.len() > NARROW_RESULT_BYTES_MAX,
            // Both kinds of result.
            _ => false,
        }
}

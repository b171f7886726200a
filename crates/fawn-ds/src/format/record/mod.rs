//! Record: a key's write, a result, or a mark on a range; self-checking and bound to its place in a segment.
//!
//! ```text
//! 0 checksum u32 | 4 value_len u24, kind u8 | 8 key_len u16 | 10 extensions u8 | 11 zero u8 | 12 range's local number u32
//! 16 version u64 | 24 [expiry u64] [flags u32] [tag u64 u64] [result_len u16, result] | key | value | zeros to 16 B
//! ```
mod decode;
mod encode;
mod fast_path;

pub(crate) use decode::{PeekedKey, peek_key};
pub use decode::{RecordError, Stored, decode, decode_verified, peek_len};
pub use encode::{encode_into, encoded_len};
pub(crate) use fast_path::{PlainRecord, decode_plain};

use crate::format::{RangeNumber, round_up_unit};
use fawn_types::{ClientTag, Version};

/// Length of the fixed part, bytes.
pub const HEADER_BYTES: usize = 24;
/// Bytes that always suffice for [`peek_len`].
pub const PEEK_BYTES: usize = HEADER_BYTES + 8 + 4 + 16 + 4;
/// Maximum value length of the format, bytes: 24 bits. A store's own limit is lower.
pub const VALUE_BYTES_LIMIT: usize = (1 << 24) - 1;
/// Maximum key length of the format, bytes.
pub const KEY_BYTES_LIMIT: usize = u16::MAX as usize;
/// Maximum length of a reply without the value that it returns, bytes.
pub const RESULT_HEADER_BYTES_MAX: usize = 64;
/// Maximum result length of the format, bytes: a value, in the reply that returns it.
pub const RESULT_BYTES_LIMIT: usize = VALUE_BYTES_LIMIT + RESULT_HEADER_BYTES_MAX;
/// Maximum result length that is stored in 16 bits, bytes.
pub(super) const NARROW_RESULT_BYTES_MAX: usize = u16::MAX as usize;
/// Maximum record length, bytes.
pub const RECORD_BYTES_LIMIT: usize =
    round_up_unit(PEEK_BYTES + KEY_BYTES_LIMIT + RESULT_BYTES_LIMIT + VALUE_BYTES_LIMIT);

const _: () = assert!(fawn_types::limits::KEY_BYTES_MAX <= KEY_BYTES_LIMIT);
const _: () = assert!(fawn_types::limits::VALUE_BYTES_MAX <= VALUE_BYTES_LIMIT);
const _: () = assert!(RECORD_BYTES_LIMIT <= u32::MAX as usize);

/// Bits of the byte at 10; extensions follow the header in bit order.
pub(crate) mod extension {
    /// Expiry, u64 ms.
    pub(crate) const EXPIRY: u8 = 1;
    /// Client flags, u32.
    pub(crate) const FLAGS: u8 = 1 << 1;
    /// Client tag, two u64.
    pub(crate) const TAG: u8 = 1 << 2;
    /// Result of up to 65,535 bytes, u16 length and bytes.
    pub(crate) const RESULT: u8 = 1 << 3;
    /// Without bytes: the next record belongs to the same batch.
    pub(crate) const CONTINUES: u8 = 1 << 4;
    /// Longer result, u32 length and bytes.
    pub(crate) const WIDE_RESULT: u8 = 1 << 5;
    /// All extensions of this format.
    pub(crate) const ALL: u8 = EXPIRY | FLAGS | TAG | RESULT | CONTINUES | WIDE_RESULT;
}

/// Kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// The key holds the value.
    Put = 1,
    /// The key is deleted.
    Tombstone = 2,
    /// No change: the result of an operation, for its retries.
    Result = 3,
    /// The range was emptied: its records up to this version are invalidated.
    Clear = 4,
    /// The range was committed through this version.
    CommitMark = 5,
    /// Records of the range above this version that were written before this one are invalidated.
    Rollback = 6,
}

impl RecordKind {
    /// From its number on flash.
    #[must_use]
    pub const fn from_u8(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Put),
            2 => Some(Self::Tombstone),
            3 => Some(Self::Result),
            4 => Some(Self::Clear),
            5 => Some(Self::CommitMark),
            6 => Some(Self::Rollback),
            _ => None,
        }
    }

    /// Whether it is a write of its key.
    #[must_use]
    pub const fn is_of_key(self) -> bool {
        matches!(self, Self::Put | Self::Tombstone)
    }
}

/// A record's content, borrowed.
// In this order because 28 bytes of zeros in a row (expiry, tag, flags) are written by two overlapping stores, and the read of the
// tag, which needs both, waits until they have left the store buffer: 1.5 % of a bulk load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RecordRef<'a> {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Client flags; 0: none stored.
    pub flags: u32,
    /// Its position in the range's history.
    pub version: Version,
    /// The key; empty for marks.
    pub key: &'a [u8],
    /// The value; only a put has one.
    pub value: &'a [u8],
    /// Expiry, ms since the Unix epoch; 0: never, none stored.
    pub expires_at_ms: u64,
    /// Tag of the operation that wrote it; all zero: none stored.
    pub tag: ClientTag,
    /// Reply to the client, for retries; empty: none stored.
    pub result: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// A record of `kind` for `key` without other fields: a tombstone, or a mark with an empty key.
    #[must_use]
    pub const fn bare(kind: RecordKind, version: Version, key: &'a [u8]) -> Self {
        Self { kind, version, key, value: &[], flags: 0, expires_at_ms: 0, tag: ClientTag::NONE, result: &[] }
    }

    /// A plain put.
    #[must_use]
    pub const fn put(version: Version, key: &'a [u8], value: &'a [u8]) -> Self {
        let mut record = Self::bare(RecordKind::Put, version, key);
        record.value = value;
        record
    }

    /// Whether lengths and kind fit the format; asserted by the encoder, checked by the decoder.
    #[must_use]
    pub(crate) fn is_well_formed(&self) -> bool {
        let fits = self.key.len() <= KEY_BYTES_LIMIT
            && self.value.len() <= VALUE_BYTES_LIMIT
            && self.result.len() <= RESULT_BYTES_LIMIT;
        let is_mark = matches!(self.kind, RecordKind::Clear | RecordKind::CommitMark | RecordKind::Rollback);
        fits && (self.kind == RecordKind::Put || self.value.is_empty()) && (!is_mark || self.key.is_empty())
    }
}

/// A record's fields besides its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The local number of the record's range. In frames between members, whose logs have other numbers, it is the
    /// range's id.
    pub number: RangeNumber,
    /// Whether the next record of the same frame belongs to the same atomic batch.
    pub continues: bool,
}

/// Position of a record: the salt of its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    /// The segment's UUID, folded.
    pub segment_id: u64,
    /// Offset of the record's first byte in the segment.
    pub offset: u32,
}

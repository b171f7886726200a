//! Record of a run: a put or tombstone without checksum and padding, since its page has one checksum and no gaps.
//!
//! ```text
//! 0 bits u8 | 1 space and type u8 | 2 key_len u16 | 4 value_len u16 | 6 range's local number u32 | 10 version u64
//! 18 [expiry u64] [flags u32] | key | value
//! ```
use super::super::RangeNumber;
use super::super::bytes::{put, u16_at, u32_at, u64_at};
use super::super::record::RecordKind;
use fawn_types::{EntryRef, Version};

/// Number of spaces.
pub const SPACES: usize = 4;
/// Length of a record without extensions, key and value, bytes.
pub const RECORD_HEADER_BYTES: usize = 18;
/// Maximum length of a record, bytes: four fill a page, so every page of equal records is at least four fifths full.
pub const RECORD_BYTES_MAX: usize = (super::PAGE_BYTES - super::page::PAGE_HEADER_BYTES) / 4;

const EXPIRY: u8 = 1;
const FLAGS: u8 = 1 << 1;
const TOMBSTONE: u8 = 1 << 7;

/// A set of records with an order of its own: keys of users, parts of containers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Space(u8);

impl Space {
    /// The users' keys.
    pub const KEYS: Self = Self(0);

    /// The space with this number; `None` from [`SPACES`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < SPACES { Some(Self(number)) } else { None }
    }

    /// The space of a record with this space and type byte: the lowest two bits.
    #[must_use]
    pub const fn of_type_byte(type_byte: u8) -> Self {
        Self(type_byte & (SPACES as u8 - 1))
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The content of a record, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunRecord<'a> {
    /// A put or a tombstone.
    pub kind: RecordKind,
    /// The record's space (bits 0 and 1) and type.
    pub type_byte: u8,
    /// The range's local number.
    pub number: RangeNumber,
    /// Its position in the range's history.
    pub version: Version,
    /// Expiry, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
    /// Client flags.
    pub flags: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value; only a put has one.
    pub value: &'a [u8],
}

impl<'a> RunRecord<'a> {
    /// A put in the space of users' keys, without expiry and flags.
    #[must_use]
    pub const fn put(number: RangeNumber, version: Version, key: &'a [u8], value: &'a [u8]) -> Self {
        Self { kind: RecordKind::Put, type_byte: 0, number, version, expires_at_ms: 0, flags: 0, key, value }
    }

    /// The tombstone of the same write: what an expired put becomes while it hides older copies.
    #[must_use]
    pub const fn to_tombstone(self) -> Self {
        Self { kind: RecordKind::Tombstone, expires_at_ms: 0, flags: 0, value: &[], ..self }
    }

    /// Its space.
    #[must_use]
    pub const fn space(&self) -> Space {
        Space::of_type_byte(self.type_byte)
    }

    /// The entry that a put stores.
    #[must_use]
    pub const fn entry(&self) -> EntryRef<'a> {
        EntryRef { value: self.value, flags: self.flags, expires_at_ms: self.expires_at_ms, version: self.version }
    }

    const fn bits(&self) -> u8 {
        (if self.expires_at_ms != 0 { EXPIRY } else { 0 })
            | (if self.flags != 0 { FLAGS } else { 0 })
            | (if matches!(self.kind, RecordKind::Tombstone) { TOMBSTONE } else { 0 })
    }

    /// Length in a page, bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        RECORD_HEADER_BYTES + extensions_len(self.bits()) + self.key.len() + self.value.len()
    }

    /// Whether a page may hold it: longer records stay in the log.
    #[must_use]
    pub const fn fits(&self) -> bool {
        let is_of_key = self.kind.is_of_key();
        let has_value = !self.value.is_empty() || self.expires_at_ms != 0 || self.flags != 0;
        is_of_key && (!has_value || matches!(self.kind, RecordKind::Put)) && self.encoded_len() <= RECORD_BYTES_MAX
    }

    /// Writes it to the start of `out`, and returns its length.
    ///
    /// # Panics
    /// If it does not [fit](Self::fits), or `out` is too short: a caller's error.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        assert!(self.fits(), "a {:?} of {} bytes is no record of a run", self.kind, self.encoded_len());
        let bits = self.bits();
        out[0] = bits;
        out[1] = self.type_byte;
        put(out, 2, &(self.key.len() as u16).to_le_bytes());
        put(out, 4, &(self.value.len() as u16).to_le_bytes());
        put(out, 6, &self.number.0.to_le_bytes());
        let mut at = put(out, 10, &self.version.as_u64().to_le_bytes());
        if bits & EXPIRY != 0 {
            at = put(out, at, &self.expires_at_ms.to_le_bytes());
        }
        if bits & FLAGS != 0 {
            at = put(out, at, &self.flags.to_le_bytes());
        }
        let at = put(out, at, self.key);
        put(out, at, self.value)
    }

    /// The record at the start of `bytes`, and its length; `None` if the encoder cannot have written it.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let bits = header[0];
        let key_at = RECORD_HEADER_BYTES + extensions_len(bits);
        let value_at = key_at + usize::from(u16_at(header, 2));
        let end = value_at + usize::from(u16_at(header, 4));
        if bits & !(EXPIRY | FLAGS | TOMBSTONE) != 0 || end > RECORD_BYTES_MAX {
            return None;
        }
        let bytes = bytes.get(..end)?;
        let expires_at_ms = if bits & EXPIRY != 0 { u64_at(bytes, RECORD_HEADER_BYTES) } else { 0 };
        let flags = if bits & FLAGS != 0 { u32_at(bytes, key_at - 4) } else { 0 };
        let record = Self {
            kind: if bits & TOMBSTONE != 0 { RecordKind::Tombstone } else { RecordKind::Put },
            type_byte: header[1],
            number: RangeNumber(u32_at(header, 6)),
            version: Version::from_u64(u64_at(header, 10)),
            expires_at_ms,
            flags,
            key: &bytes[key_at..value_at],
            value: &bytes[value_at..],
        };
        // An empty extension would give a record two encodings.
        (record.bits() == bits && record.fits()).then_some((record, end))
    }
}

const fn extensions_len(bits: u8) -> usize {
    (if bits & EXPIRY != 0 { 8 } else { 0 }) + (if bits & FLAGS != 0 { 4 } else { 0 })
}

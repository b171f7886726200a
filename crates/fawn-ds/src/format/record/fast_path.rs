//! Fast path of record decoding: whole puts with no extensions but an expiry and flags.
//!
//! It reports no errors and builds no record: anything that it does not accept goes to [`super::decode`].
use super::{HEADER_BYTES, RecordKind, RecordPlace, extension};
use crate::format::bytes::{array, u32_at, u64_at};
use crate::format::{UNIT_BYTES, round_up_unit};
use fawn_types::Version;
use fawn_types::checksum::{checksum32, salt};

/// The fields of such a record that a lookup needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRecord<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expires_at_ms: u64,
    pub(crate) version: Version,
    pub(crate) encoded_len: u32,
}

/// The put of `key` at the start of `bytes`, if [`super::decode`] would accept it; with `place`, its checksum is
/// verified.
#[inline]
pub(crate) fn decode_plain<'a>(bytes: &'a [u8], key: &[u8], place: Option<RecordPlace>) -> Option<PlainRecord<'a>> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    // Value's length (24 bits), kind, key's length (16), extensions, zero.
    let word = u64_at(header, 4);
    let (value_len, key_len) = ((word & 0x00FF_FFFF) as usize, (word >> 32) as u16);
    let (kind, bits) = ((word >> 24) as u8, (word >> 48) as u8);
    let known = extension::EXPIRY | extension::FLAGS | extension::CONTINUES;
    if kind != RecordKind::Put as u8 || word >> 56 != 0 || bits & !known != 0 || usize::from(key_len) != key.len() {
        return None;
    }
    let mut key_at = HEADER_BYTES;
    let (mut expires_at_ms, mut flags) = (0, 0);
    // The encoder omits an empty extension, so a present one is not zero.
    if bits & extension::EXPIRY != 0 {
        expires_at_ms = u64::from_le_bytes(*bytes[key_at..].first_chunk()?);
        key_at += 8;
        if expires_at_ms == 0 {
            return None;
        }
    }
    if bits & extension::FLAGS != 0 {
        flags = u32::from_le_bytes(*bytes[key_at..].first_chunk()?);
        key_at += 4;
        if flags == 0 {
            return None;
        }
    }
    let value_at = key_at + key.len();
    let len = value_at + value_len;
    let record = bytes.get(..round_up_unit(len))?;
    let padding = record.len() - len;
    let last = u128::from_le_bytes(array(record, record.len() - UNIT_BYTES));
    let is_padded = padding == 0 || last >> (8 * (UNIT_BYTES - padding)) == 0;
    if !is_padded || record[key_at..value_at] != *key {
        return None;
    }
    if let Some(RecordPlace { segment_id, offset }) = place
        && checksum32(&record[4..len], salt(segment_id, u64::from(offset))) != u32_at(header, 0)
    {
        return None;
    }
    let (value, version) = (&record[value_at..len], Version::from_u64(u64_at(header, 16)));
    Some(PlainRecord { value, flags, expires_at_ms, version, encoded_len: record.len() as u32 })
}

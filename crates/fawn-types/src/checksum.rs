//! Owns the integrity checks, frozen by `docs/formats/`: XXH3-64, and its 32-bit form salted by where the bytes lie.
use crate::random::SplitMix64;
use twox_hash::XxHash3_64;

/// XXH3-64 of `bytes`: frame headers, manifest entries, peer frames.
#[must_use]
pub fn checksum64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Binds a checksum to a place: `id` is the segment's UUID folded to 64 bits, `offset_bytes` the place within it.
///
/// A recycled block or a misdirected read has another salt, so its intact records do not pass.
#[must_use]
pub const fn salt(id: u64, offset_bytes: u64) -> u64 {
    SplitMix64::mix(id ^ offset_bytes.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The 32-bit salted checksum of a record.
#[must_use]
pub fn checksum32(bytes: &[u8], salt: u64) -> u32 {
    let h = XxHash3_64::oneshot(bytes) ^ salt;
    (h ^ (h >> 32)) as u32
}

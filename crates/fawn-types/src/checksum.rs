//! Integrity checks frozen by `docs/formats/`: XXH3-64, and a 32-bit form salted with the data's location.
use crate::random::SplitMix64;
use twox_hash::XxHash3_64;

/// XXH3-64 of `bytes`, for frame headers, manifest entries and peer frames.
#[must_use]
pub fn checksum64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The salt that binds a checksum to a location: `id` is the segment's UUID folded to 64 bits, `offset_bytes` the
/// offset within the segment.
///
/// A record in a recycled block or from a misdirected read was written with another salt, so its check fails.
#[must_use]
pub const fn salt(id: u64, offset_bytes: u64) -> u64 {
    SplitMix64::mix(id ^ offset_bytes.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The low 32 bits of XXH3-64 of a record, folded and salted by [`salt`].
#[must_use]
pub fn checksum32(bytes: &[u8], salt: u64) -> u32 {
    let h = XxHash3_64::oneshot(bytes) ^ salt;
    (h ^ (h >> 32)) as u32
}

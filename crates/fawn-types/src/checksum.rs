//! Integrity checks frozen by `docs/formats/`: XXH3-64, and a 32-bit form salted with the data's location.
use crate::random::SplitMix64;
use core::hash::Hasher;
use twox_hash::XxHash3_64;

/// XXH3-64 of `bytes`, for frame headers, manifest entries and peer frames.
#[must_use]
pub fn checksum64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// XXH3-64 of bytes that arrive in pieces; equal to [`checksum64`] of all of them.
#[derive(Clone)]
pub struct StreamChecksum(XxHash3_64);

impl StreamChecksum {
    /// The checksum of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(XxHash3_64::new())
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.finish()
    }
}

impl Default for StreamChecksum {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for StreamChecksum {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "StreamChecksum({:016x})", self.get())
    }
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

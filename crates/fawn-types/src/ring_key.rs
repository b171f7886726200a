//! Owns where a key lives: the keyed hashes, the 160-bit ring key, the `{tag}` rule and key ranges.
use crate::sip;
use core::fmt;
use core::hash::Hasher;
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher13_128};

/// The cluster's secret for placing keys, kept in the cluster map and in each store's manifest.
///
/// Keyed, so that a client who does not know it cannot aim its keys at one node or one index page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret(pub [u8; 16]);

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(…)")
    }
}

/// SipHash-1-3 of the whole key: the index's address and the low 64 bits of the ring key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of the whole `key`.
    #[must_use]
    pub fn of(secret: &HashSecret, key: &[u8]) -> Self {
        Self(sip::hash(&secret.0, key))
    }
}

/// 96 bits of the tag's hash ‖ 64 bits of the whole key's hash; compared big-endian, as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingKey(pub [u8; 20]);

impl RingKey {
    /// The smallest point of the ring.
    pub const MIN: Self = Self([0; 20]);

    /// Where `key` lives.
    #[must_use]
    pub fn of(secret: &HashSecret, key: &[u8]) -> Self {
        let tag = tag_hash(secret, key);
        let mut bytes = [0; 20];
        bytes[..12].copy_from_slice(&tag[..12]);
        bytes[12..].copy_from_slice(&KeyHash::of(secret, key).0.to_be_bytes());
        Self(bytes)
    }

    /// The highest 32 bits of where `key` lives: enough where ranges are cut that coarsely, at half the price.
    #[must_use]
    #[inline]
    pub fn highest_of(secret: &HashSecret, key: &[u8]) -> u32 {
        // The bytes of a ring key are those of the hash in little endian, read as a number in big endian.
        (sip::first_half(&secret.0, tag_of(key)) as u32).swap_bytes()
    }

    /// The boundary at or below this key: its 64 low bits cleared.
    #[must_use]
    pub fn boundary(self) -> Self {
        let mut bytes = self.0;
        bytes[12..].fill(0);
        Self(bytes)
    }

    /// Whether the 64 low bits are zero, as every range boundary's are, so that a tag never straddles two chains.
    #[must_use]
    pub fn is_boundary(&self) -> bool {
        self.0[12..] == [0; 8]
    }
}

impl fmt::Debug for RingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[inline]
fn tag_hash(secret: &HashSecret, key: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher13_128::new_with_key(&secret.0);
    hasher.write(tag_of(key));
    hasher.finish128().as_bytes()
}

/// The part of `key` that decides its chain: the non-empty text between the first `{` and the next `}`, else all of it.
#[must_use]
pub fn tag_of(key: &[u8]) -> &[u8] {
    if !has_open(key) {
        return key;
    }
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    match key[open + 1..].iter().position(|&byte| byte == b'}') {
        Some(len) if len > 0 => &key[open + 1..open + 1 + len],
        _ => key,
    }
}

/// Whether a `{` is in it: of most keys nothing more is asked, so eight bytes are looked at together.
#[inline]
fn has_open(key: &[u8]) -> bool {
    const LOWEST: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let is_in = |word: &[u8; 8]| {
        // Where the byte was, zero is now; the lowest zero byte of a word sets its highest bit here, none sets none.
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes([b'{'; 8]);
        differs.wrapping_sub(LOWEST) & !differs & HIGHEST != 0
    };
    match key.last_chunk::<8>() {
        Some(last) => key.as_chunks::<8>().0.iter().any(is_in) || is_in(last),
        None => key.contains(&b'{'),
    }
}

/// A piece of the ring: `start ≤ key < end`; `end = None` is the ring's end. Both boundaries have 64 zero low bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// First ring key inside.
    pub start: RingKey,
    /// First ring key above; `None`: up to the end of the ring.
    pub end: Option<RingKey>,
}

impl KeyRange {
    /// The whole ring.
    pub const ALL: Self = Self { start: RingKey::MIN, end: None };

    /// Whether `key` lies inside.
    #[must_use]
    pub fn contains(&self, key: &RingKey) -> bool {
        *key >= self.start && self.end.is_none_or(|end| *key < end)
    }
}

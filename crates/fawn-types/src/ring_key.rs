//! Placement of keys: keyed hashes, the 160-bit ring key, the hash-tag rule and key ranges.
use crate::sip;
use core::fmt;
use core::hash::Hasher;
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher13_128};

/// The cluster's secret for placing keys, stored in the cluster map and in every store's manifest.
///
/// The hash is keyed so that a client without the secret cannot choose keys that overload one node or index page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret(pub [u8; 16]);

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(…)")
    }
}

/// SipHash-1-3 of the whole key: its position in the index, and the low 64 bits of its ring key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of the whole `key`.
    #[must_use]
    pub fn of(secret: &HashSecret, key: &[u8]) -> Self {
        Self(sip::hash(&secret.0, key))
    }
}

/// 96 bits of the hash tag's hash ‖ 64 bits of the whole key's hash; compared as a big-endian number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingKey(pub [u8; 20]);

impl RingKey {
    /// The smallest point of the ring.
    pub const MIN: Self = Self([0; 20]);

    /// The ring key of `key`.
    #[must_use]
    pub fn of(secret: &HashSecret, key: &[u8]) -> Self {
        let tag = tag_hash(secret, key);
        let mut bytes = [0; 20];
        bytes[..12].copy_from_slice(&tag[..12]);
        bytes[12..].copy_from_slice(&KeyHash::of(secret, key).0.to_be_bytes());
        Self(bytes)
    }

    /// The highest 32 bits of `key`'s ring key, at half the cost; enough if all range boundaries are multiples of 2¹²⁸.
    #[must_use]
    #[inline]
    pub fn highest_of(secret: &HashSecret, key: &[u8]) -> u32 {
        // A ring key starts with the hash in little-endian byte order and is compared as a big-endian number.
        (sip::first_half(&secret.0, tag_of(key)) as u32).swap_bytes()
    }

    /// Its highest 32 bits.
    #[must_use]
    pub const fn highest(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// The highest boundary at or below this key: the key with its low 64 bits cleared.
    #[must_use]
    pub fn boundary(self) -> Self {
        let mut bytes = self.0;
        bytes[12..].fill(0);
        Self(bytes)
    }

    /// Whether the low 64 bits are zero, as in every range boundary: keys with one hash tag share a chain.
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

/// The hash tag: the part of `key` that decides its chain. It is the non-empty text between the first `{` and the
/// next `}`, or else the whole key.
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

/// Whether `key` contains a `{`. Most keys do not, so this check examines eight bytes at a time.
#[inline]
fn has_open(key: &[u8]) -> bool {
    const LOWEST: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let is_in = |word: &[u8; 8]| {
        // `differs` has a zero byte where `word` has a `{`. The expression marks the lowest zero byte; it is 0 without
        // one.
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes([b'{'; 8]);
        differs.wrapping_sub(LOWEST) & !differs & HIGHEST != 0
    };
    match key.last_chunk::<8>() {
        Some(last) => key.as_chunks::<8>().0.iter().any(is_in) || is_in(last),
        None => key.contains(&b'{'),
    }
}

/// A part of the ring: `start ≤ key < end`; `end = None` is the end of the ring. Boundaries have 64 low zero bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// The first ring key inside.
    pub start: RingKey,
    /// The first ring key after the range; `None`: the range ends with the ring.
    pub end: Option<RingKey>,
}

impl KeyRange {
    /// The whole ring.
    pub const ALL: Self = Self { start: RingKey::MIN, end: None };

    /// Whether the range contains `key`.
    #[must_use]
    pub fn contains(&self, key: &RingKey) -> bool {
        *key >= self.start && self.end.is_none_or(|end| *key < end)
    }
}

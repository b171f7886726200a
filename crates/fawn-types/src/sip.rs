//! SipHash-1-3 of a contiguous slice. Every key is hashed once or twice, so this is a hot path.
//!
//! Equal to the `siphasher` crate, whose streaming hashers are slower; a test compares the two. The 128-bit variant
//! is a different function: its first half is not the 64-bit hash.

/// The 128-bit variant mixes this constant into its initial and final state.
const WIDE: u64 = 0xee;

struct SipState {
    v: [u64; 4],
}

impl SipState {
    #[inline]
    const fn new(secret: &[u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *secret;
        let (k0, k1) = (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest));
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { v }
    }

    #[inline]
    const fn round(&mut self) {
        let [v0, v1, v2, v3] = self.v;
        let (v0, v2) = (v0.wrapping_add(v1), v2.wrapping_add(v3));
        let (v1, v3) = (v1.rotate_left(13) ^ v0, v3.rotate_left(16) ^ v2);
        let (v0, v2) = (v0.rotate_left(32).wrapping_add(v3), v2.wrapping_add(v1));
        self.v = [v0, v1.rotate_left(17) ^ v2, v2.rotate_left(32), v3.rotate_left(21) ^ v0];
    }

    #[inline]
    const fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let last = match bytes.last_chunk::<8>() {
            // The last eight bytes, shifted to drop the ones that the loop has already processed.
            Some(last) if !rest.is_empty() => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
            Some(_) => 0,
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        self.word(last | (bytes.len() as u64) << 56);
    }

    #[inline]
    const fn finish(&mut self, mark: u64) -> u64 {
        self.v[2] ^= mark;
        self.round();
        self.round();
        self.round();
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }
}

#[inline]
pub(crate) fn hash(secret: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut state = SipState::new(secret);
    state.bytes(bytes);
    state.finish(0xff)
}

/// The first half of the 128-bit hash; the second half would cost three more rounds.
#[inline]
pub(crate) fn first_half(secret: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut state = SipState::new(secret);
    state.v[1] ^= WIDE;
    state.bytes(bytes);
    state.finish(WIDE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hasher;
    use siphasher::sip::SipHasher13;
    use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher13_128};

    #[test]
    fn both_are_what_the_library_says() {
        let secret: [u8; 16] = core::array::from_fn(|at| 0xa3 ^ (at as u8).wrapping_mul(29));
        let bytes: [u8; 600] = core::array::from_fn(|at| (at * 131 % 251) as u8);
        for bytes in (0..bytes.len()).flat_map(|len| [&bytes[..len], &bytes[bytes.len() - len..]]) {
            let (mut plain, mut wide) = (SipHasher13::new_with_key(&secret), SipHasher13_128::new_with_key(&secret));
            plain.write(bytes);
            wide.write(bytes);
            assert_eq!(hash(&secret, bytes), plain.finish(), "{} bytes", bytes.len());
            assert_eq!(first_half(&secret, bytes), wide.finish128().h1, "{} bytes", bytes.len());
        }
    }
}

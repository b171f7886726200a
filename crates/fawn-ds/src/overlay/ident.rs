//! Second hash of a key's name: a polynomial with the key's bytes as coefficients, at a secret point of a prime field.
//!
//! Two keys agree in it with a probability of about n ÷ 2^61 at most over the choice of the point, if the longer one has n words of
//! seven bytes: a polynomial has no more roots than its degree [Carter and Wegman 1979]. So a client without the secret
//! cannot choose keys that agree in it and in [`KeyHash`]. A key of sixteen bytes takes three multiplications, a third of the
//! work of a second SipHash.
use fawn_types::{HashSecret, KeyHash};

/// The field's prime, 2^61 − 1: products of two of its numbers are reduced by a shift and an addition.
const PRIME_BITS: u32 = 61;
const PRIME: u64 = (1 << PRIME_BITS) - 1;
/// Bytes of a coefficient: all are below the prime.
const WORD_BYTES: usize = 7;
const WORD_MASK: u64 = (1 << (8 * WORD_BYTES)) - 1;

/// The secret point.
#[derive(Clone, Copy)]
pub(crate) struct IdentPoint(u64);

impl IdentPoint {
    /// The point of a store with this secret.
    pub(crate) fn of(secret: &HashSecret) -> Self {
        let apart = HashSecret(secret.0.map(|byte| byte ^ 0xA5));
        Self(KeyHash::of(&apart, b"").0 % PRIME)
    }

    /// The polynomial of `key`, below 2^61: its length first, so that keys of different lengths have different polynomials.
    #[inline]
    pub(crate) fn ident_of(self, key: &[u8]) -> u64 {
        let mut value = key.len() as u64;
        let mut rest = key;
        while let Some(word) = rest.first_chunk::<8>() {
            value = self.then(value, u64::from_le_bytes(*word) & WORD_MASK);
            rest = &rest[WORD_BYTES..];
        }
        let last = match key.last_chunk::<8>() {
            // The last eight bytes, shifted to drop the ones that the loop has taken. At least one is left.
            Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        self.then(value, last)
    }

    #[inline]
    fn then(self, value: u64, coefficient: u64) -> u64 {
        let sum = u128::from(value) * u128::from(self.0) + u128::from(coefficient);
        let folded = (sum as u64 & PRIME) + (sum >> PRIME_BITS) as u64;
        if folded >= PRIME { folded - PRIME } else { folded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::random::SplitMix64;

    /// The definition, by words and remainders.
    fn expected(point: u128, key: &[u8]) -> u64 {
        let words = if key.is_empty() { vec![0] } else { key.chunks(WORD_BYTES).map(word_of).collect() };
        let next = |value: u128, word: u128| (value * point + word) % u128::from(PRIME);
        words.into_iter().fold(key.len() as u128, next) as u64
    }

    fn word_of(bytes: &[u8]) -> u128 {
        bytes.iter().rev().fold(0, |word, byte| word << 8 | u128::from(*byte))
    }

    #[test]
    fn it_is_the_polynomial_for_every_length() {
        let mut random = SplitMix64::new(7);
        let bytes: Vec<u8> = (0..600).map(|_| random.next() as u8).collect();
        for point in [0, 1, PRIME - 1, random.next() % PRIME] {
            for len in 0..bytes.len() {
                let key = &bytes[..len];
                assert_eq!(IdentPoint(point).ident_of(key), expected(point.into(), key), "{len} bytes at {point}");
            }
            let ones = [0xff; 100];
            assert_eq!(IdentPoint(point).ident_of(&ones), expected(point.into(), &ones), "ones at {point}");
        }
    }

    #[test]
    fn keys_that_differ_in_one_bit_or_in_zeros_at_an_end_differ() {
        let point = IdentPoint::of(&HashSecret([3; 16]));
        let mut seen = std::collections::BTreeSet::new();
        let zeros = [0; 30];
        assert!((0..zeros.len()).all(|len| seen.insert(point.ident_of(&zeros[..len]))), "of any number of zeros");
        for bit in 0..8 * zeros.len() {
            let mut key = zeros;
            key[bit / 8] = 1 << (bit % 8);
            assert!(seen.insert(point.ident_of(&key)), "with bit {bit}");
        }
    }

    #[test]
    fn another_secret_is_another_point() {
        let ident_of = |secret| IdentPoint::of(&HashSecret([secret; 16])).ident_of(b"key");
        assert_ne!(ident_of(3), ident_of(4));
    }
}

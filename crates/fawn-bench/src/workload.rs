//! Keys and values of the workloads: computed from their number, so that every read can be verified.

use fawn_types::random::SplitMix64;

/// Computes the 16-byte key of number `n`: a mixed number in hexadecimal, so that neighbours share no prefix.
pub fn key_into(n: u64, out: &mut [u8; 16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mixed = SplitMix64::mix(n.wrapping_add(0x51_7C_C1_B7));
    for (place, byte) in out.iter_mut().enumerate() {
        *byte = DIGITS[(mixed >> (60 - 4 * place) & 15) as usize];
    }
}

/// Values computed from their number and version. They are cut from a pool of random bytes, because fresh random bytes
/// per value would take longer than a good store takes to write them.
pub struct Values {
    pool: Vec<u8>,
}

impl Values {
    const POOL_BYTES: usize = 256 << 10;

    /// A pool for values of up to `value_bytes_max`.
    #[must_use]
    pub fn new(value_bytes_max: usize) -> Self {
        let mut random = SplitMix64::new(0xFA_3E);
        let words = (Self::POOL_BYTES + value_bytes_max).div_ceil(8);
        Self { pool: (0..words).flat_map(|_| random.next().to_le_bytes()).collect() }
    }

    /// Computes the value of number `n` in version `round`. Its first eight bytes are unique to number and version;
    /// most values differ in the rest, too.
    pub fn fill(&self, n: u64, round: u64, out: &mut [u8]) {
        let stamp = SplitMix64::mix(n ^ round.rotate_left(40));
        let at = (stamp >> 32) as usize % (self.pool.len() - out.len());
        out.copy_from_slice(&self.pool[at..at + out.len()]);
        let stamp_bytes = out.len().min(8);
        out[..stamp_bytes].copy_from_slice(&stamp.to_le_bytes()[..stamp_bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ_and_values_follow_their_number() {
        let mut keys = BTreeSet::new();
        for n in 0..10_000 {
            let mut key = [0; 16];
            key_into(n, &mut key);
            assert!(keys.insert(key), "number {n} repeats a key");
        }
        let values = Values::new(100);
        let (mut a, mut b) = ([0; 100], [0; 100]);
        values.fill(1, 0, &mut a);
        values.fill(1, 0, &mut b);
        assert_eq!(a, b);
        values.fill(1, 1, &mut b);
        assert_ne!(a, b, "a new version has another value");
        values.fill(2, 0, &mut b);
        assert_ne!(a[..8], b[..8], "so has another number");
        assert_ne!(a[8..], b[8..], "in all of its bytes");
    }
}

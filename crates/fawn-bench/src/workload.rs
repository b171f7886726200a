//! Owns what is asked: keys and values that can be recomputed from their number, so that every read can be verified.

use fawn_types::random::SplitMix64;

/// The 16-byte key of number `n`: hexadecimal of a mixed number, so neighbours share no prefix.
pub fn key_into(n: u64, out: &mut [u8; 16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mixed = SplitMix64::mix(n.wrapping_add(0x51_7C_C1_B7));
    for (place, byte) in out.iter_mut().enumerate() {
        *byte = DIGITS[(mixed >> (60 - 4 * place) & 15) as usize];
    }
}

/// The value of number `n` in its `round`-th version: half of it compressible, as real values are.
pub fn value_into(n: u64, round: u64, out: &mut [u8]) {
    let mut random = SplitMix64::new(n ^ round.rotate_left(32));
    for chunk in out.chunks_mut(16) {
        let word = random.next().to_le_bytes();
        let (noise, rest) = chunk.split_at_mut(chunk.len().min(8));
        noise.copy_from_slice(&word[..noise.len()]);
        rest.fill(b'v');
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
        let (mut a, mut b) = ([0; 100], [0; 100]);
        value_into(1, 0, &mut a);
        value_into(1, 0, &mut b);
        assert_eq!(a, b);
        value_into(1, 1, &mut b);
        assert_ne!(a, b, "a new version has another value");
    }
}

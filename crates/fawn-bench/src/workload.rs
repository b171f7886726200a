//! Keys and values of the workloads: computed from their number, so that every read can be verified.

use fawn_types::random::SplitMix64;
use std::sync::Arc;

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

/// A distribution of key numbers. Clones share the table of weights: it has 8 B a key.
#[derive(Clone, Debug)]
pub struct KeyDistribution {
    keys: u64,
    exponent: f64,
    /// Sums of the weights by rank; `None` for the uniform distribution.
    sums: Option<Arc<[f64]>>,
}

impl KeyDistribution {
    /// Each of `keys` numbers is as likely as any other.
    #[must_use]
    pub const fn uniform(keys: u64) -> Self {
        Self { keys, exponent: 0.0, sums: None }
    }

    /// The number of rank r, from 1 on, has the weight r^−`exponent`. Ranks are scattered over the numbers.
    #[must_use]
    pub fn zipf(keys: u64, exponent: f64) -> Self {
        if exponent == 0.0 {
            return Self::uniform(keys);
        }
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        Self { keys, exponent, sums: Some((1..=keys).map(weight).collect()) }
    }

    /// Number of distinct keys.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// The exponent of its weights; 0 for the uniform distribution.
    #[must_use]
    pub const fn exponent(&self) -> f64 {
        self.exponent
    }

    /// Draws a number.
    pub fn pick(&self, random: &mut SplitMix64) -> u64 {
        let Some(sums) = &self.sums else { return random.below(self.keys) };
        let drawn = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * sums[sums.len() - 1];
        let rank = (sums.partition_point(|sum| *sum <= drawn) as u64).min(self.keys - 1);
        scatter(rank, self.keys)
    }
}

/// A permutation of the numbers below `keys`: hot keys must not be neighbours in the log.
#[must_use]
pub fn scatter(rank: u64, keys: u64) -> u64 {
    let mask = keys.next_power_of_two() - 1;
    let mut at = rank;
    loop {
        // Odd multipliers and shifts permute a power of two; a number that is no key is permuted once more.
        at = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask;
        at ^= at >> 9;
        at = at.wrapping_mul(0xD6E8_FEB8_6659_FD93) & mask;
        at ^= at >> 7;
        if at < keys {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranks_are_scattered_without_loss_and_zipf_draws_the_hottest_as_often_as_its_weight() {
        for keys in [1, 7, 1000, 1024] {
            let places: BTreeSet<u64> = (0..keys).map(|rank| scatter(rank, keys)).collect();
            assert_eq!(places.len() as u64, keys);
        }
        let (keys, draws) = (1000, 100_000);
        let (zipf, mut random) = (KeyDistribution::zipf(keys, 0.99), SplitMix64::new(1));
        let mut counts = vec![0_u32; keys as usize];
        (0..draws).for_each(|_| counts[zipf.pick(&mut random) as usize] += 1);
        let sum: f64 = (1..=keys).map(|rank| (rank as f64).powf(-0.99)).sum();
        for rank in [0, 1, 9] {
            let expected = f64::from(draws) * (rank as f64 + 1.0).powf(-0.99) / sum;
            let found = f64::from(counts[scatter(rank, keys) as usize]);
            assert!((found / expected - 1.0).abs() < 0.1, "rank {rank}: {found}, expected {expected}");
        }
        let copy = zipf.clone();
        let (table, copied) = (zipf.sums.unwrap(), copy.sums.unwrap());
        assert!(Arc::ptr_eq(&table, &copied), "a clone has no table of its own");
        let uniform = KeyDistribution::zipf(keys, 0.0);
        assert!((0..draws).all(|_| uniform.pick(&mut random) < keys));
    }

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

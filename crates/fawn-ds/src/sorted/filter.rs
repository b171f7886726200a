//! Filters: ribbons over the hashes of a run's keys, with `bits` per slot and one false positive in 2^`bits`.
//!
//! A ribbon is the solution of one linear equation per key: the exclusive or of the slots that a key's 128-bit
//! coefficient selects is the key's fingerprint. Equations are solved as they arrive; each has its lowest bit at another
//! slot, so the band is triangular. The seed counts up from 0, so equal keys yield equal bytes.
use crate::format::run::tail::{FILTER_BITS_MAX, FilterParts};
use fawn_types::random::SplitMix64;

/// Slots that one key's coefficient reaches, and slots of a column's two words.
const BAND_SLOTS: u32 = 128;
/// Extra slots: one in this many. With fewer, the equations of 65,536 keys often have no solution.
const SPARE_SLOTS: usize = 24;
/// Attempts without more slots.
const SEEDS: u32 = 4;

/// A key's equation.
struct Equation {
    start: u32,
    coefficient: u128,
    fingerprint: u16,
}

impl Equation {
    #[inline]
    fn of(hash: u64, seed: u32, slots: u32, bits: u8) -> Self {
        let hash = SplitMix64::mix(hash ^ u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let starts = u64::from(slots - BAND_SLOTS + 1);
        let start = ((u128::from(hash) * u128::from(starts)) >> 64) as u32;
        let (low, high) = (SplitMix64::mix(hash.wrapping_add(1)), SplitMix64::mix(hash.wrapping_add(2)));
        let fingerprint = SplitMix64::mix(hash.wrapping_add(3)) as u16 & mask(bits);
        // An odd coefficient: the slot at the start always counts.
        Self { start, coefficient: u128::from(high) << 64 | u128::from(low) | 1, fingerprint }
    }
}

const fn mask(bits: u8) -> u16 {
    (u16::MAX as u32 >> (16 - bits as u32)) as u16
}

/// Builds the filter of these keys' hashes for pages from `first_page` on.
///
/// # Panics
/// If `bits` is 0 or above [`FILTER_BITS_MAX`]: a caller's error.
#[must_use]
pub fn build(hashes: &[u64], bits: u8, first_page: u32) -> FilterParts {
    assert!((1..=FILTER_BITS_MAX).contains(&bits), "fingerprints of {bits} bits");
    let mut slots = (hashes.len() + hashes.len() / SPARE_SLOTS).next_multiple_of(BAND_SLOTS as usize) as u32;
    slots = slots.max(BAND_SLOTS);
    for seed in 0.. {
        if seed >= SEEDS {
            // Any number of keys is solvable with enough slots: two keys with equal equations are one.
            slots += (slots / 64).next_multiple_of(BAND_SLOTS);
        }
        if let Some(band) = Band::of(hashes, seed, slots, bits) {
            return FilterParts { first_page, seed, slots, bits, words: band.solve(bits) };
        }
    }
    unreachable!("each attempt has more slots than the one before")
}

/// The triangular equations, one per slot; 0: none.
struct Band(Vec<(u128, u16)>);

impl Band {
    /// `None` if the equations contradict each other.
    fn of(hashes: &[u64], seed: u32, slots: u32, bits: u8) -> Option<Self> {
        let mut rows = vec![(0, 0); slots as usize];
        for &hash in hashes {
            let Equation { start, mut coefficient, mut fingerprint } = Equation::of(hash, seed, slots, bits);
            let mut at = start as usize;
            loop {
                let (row, result) = &mut rows[at];
                if *row == 0 {
                    (*row, *result) = (coefficient, fingerprint);
                    break;
                }
                coefficient ^= *row;
                fingerprint ^= *result;
                if coefficient == 0 {
                    // The equation follows from others, or contradicts them.
                    if fingerprint != 0 {
                        return None;
                    }
                    break;
                }
                let zeros = coefficient.trailing_zeros();
                coefficient >>= zeros;
                at += zeros as usize;
            }
        }
        Some(Self(rows))
    }

    /// The slots, from the last to the first.
    fn solve(self, bits: u8) -> Box<[u64]> {
        let columns = usize::from(bits);
        let mut words = vec![0_u64; self.0.len() / 64 * columns];
        // The solved slots above the current one, lowest first, per column.
        let mut above = [0_u128; FILTER_BITS_MAX as usize];
        for (slot, (coefficient, fingerprint)) in self.0.iter().enumerate().rev() {
            for (column, above) in above[..columns].iter_mut().enumerate() {
                let window = *above << 1;
                let bit = parity(window & coefficient) ^ (fingerprint >> column & 1) as u32;
                *above = window | u128::from(bit);
                words[word_at(slot, column, columns)] |= u64::from(bit) << (slot % 64);
            }
        }
        words.into_boxed_slice()
    }
}

fn parity(bits: u128) -> u32 {
    bits.count_ones() & 1
}

/// The word of a slot's bit: two words per column, the columns of 128 slots together.
const fn word_at(slot: usize, column: usize, columns: usize) -> usize {
    (slot / BAND_SLOTS as usize * columns + column) * 2 + slot / 64 % 2
}

impl FilterParts {
    /// Whether a key with this hash may be among the filter's; never false for one that is.
    #[must_use]
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let Equation { start, coefficient, fingerprint } = Equation::of(hash, self.seed, self.slots, self.bits);
        let columns = usize::from(self.bits);
        let (block, shift) = ((start / BAND_SLOTS) as usize, start % BAND_SLOTS);
        (0..columns).all(|column| {
            let at = (block * columns + column) * 2;
            let mut window = self.column(at) >> shift;
            if shift > 0 {
                window |= self.column(at + columns * 2) << (BAND_SLOTS - shift);
            }
            parity(window & coefficient) == u32::from(fingerprint >> column & 1)
        })
    }

    /// The 128 bits of a column. Words beyond the end are zeros, as no start reaches them.
    #[inline]
    fn column(&self, at: usize) -> u128 {
        match self.words.get(at..at + 2) {
            Some(words) => u128::from(words[1]) << 64 | u128::from(words[0]),
            None => 0,
        }
    }

    /// Memory of the filter, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.words)
    }
}

//! Bytes per key and false candidates per miss, counted while the index grows.
use crate::index::{Index, IndexOptions, Pointer, PointerWidth};
use fawn_types::KeyHash;
use fawn_types::random::SplitMix64;

/// The bounds of the design, storage.md § 2.
const BYTES_PER_KEY_MAX: f64 = 7.0;
const WIDE_BYTES_PER_KEY_MAX: f64 = 8.1;
const FALSE_PER_MISS_MAX: f64 = 0.003;

fn grow_to(index: &mut Index, hashes: &mut SplitMix64, entries: u32) {
    while index.len() < entries {
        let pointer = Pointer::new(u64::from(index.len()));
        index.insert(KeyHash(hashes.next()), pointer).unwrap();
    }
}

/// Candidates per lookup of hashes that were never inserted.
fn false_per_miss(index: &Index, misses: u32, seed: u64) -> f64 {
    let mut absent = SplitMix64::new(!seed);
    let count = |hash| {
        let found = index.candidates(hash).count();
        assert_eq!(index.has_candidates(hash), found > 0);
        found
    };
    let found: usize = (0..misses).map(|_| count(KeyHash(absent.next()))).sum();
    found as f64 / f64::from(misses)
}

/// The formula of the decision page: every doubling since creation adds three quarters of a fresh page.
fn false_expected(page_entries: f64, doublings: f64) -> f64 {
    page_entries / 32_768.0 * (1.0 + 0.75 * doublings)
}

#[test]
fn one_to_two_million_keys_every_five_percent() {
    let widths = [(PointerWidth::Bits32, BYTES_PER_KEY_MAX), (PointerWidth::Bits40, WIDE_BYTES_PER_KEY_MAX)];
    widths.into_iter().for_each(|(pointers, bytes_per_key_max)| grow_and_count(pointers, bytes_per_key_max));
}

fn grow_and_count(pointers: PointerWidth, bytes_per_key_max: f64) {
    let mut index = Index::new(IndexOptions { pointers, ..IndexOptions::default() });
    let mut hashes = SplitMix64::new(1);
    for percent in (100..=200).step_by(5) {
        grow_to(&mut index, &mut hashes, percent * 10_000);
        let bytes_per_key = index.resident_bytes() as f64 / f64::from(index.len());
        assert!(bytes_per_key <= bytes_per_key_max, "{bytes_per_key:.3} B/key at {} keys", index.len());
        let rate = false_per_miss(&index, 100_000, u64::from(percent));
        // 5 sigma of 100,000 trials at the expected 0.00085 is 0.00046.
        assert!(rate <= false_expected(16.0, 1.0) + 0.000_46, "{rate:.5} false per miss at {} keys", index.len());
    }
}

/// Only the number of doublings since creation matters: 16 k → 800 k is 1 M → 50 M in miniature.
#[test]
fn fifty_fold_growth_keeps_false_reads_below_the_bound() {
    let options = IndexOptions { entries_min: 1 << 14, ..IndexOptions::default() };
    let (mut index, mut hashes) = (Index::new(options), SplitMix64::new(2));
    for step in 1..=25 {
        grow_to(&mut index, &mut hashes, step * 32_768);
        let rate = false_per_miss(&index, 200_000, u64::from(step));
        assert!(rate <= FALSE_PER_MISS_MAX, "{rate:.5} false per miss at {} keys", index.len());
    }
    let rate = false_per_miss(&index, 1_000_000, 3);
    let expected = false_expected(16.0, 50f64.log2());
    assert!((0.9..=1.1).contains(&(rate / expected)), "{rate:.5} measured, {expected:.5} expected: the model is off");
}

#[test]
fn refilled_entries_are_as_selective_as_new_ones() {
    let options = IndexOptions { entries_min: 1 << 12, ..IndexOptions::default() };
    let (mut index, mut hashes) = (Index::new(options), SplitMix64::new(4));
    grow_to(&mut index, &mut hashes, 1 << 18);
    let before = false_per_miss(&index, 400_000, 5);
    let mut again = SplitMix64::new(4);
    for pointer in 0..u64::from(index.len()) {
        assert!(index.refill(KeyHash(again.next()), Pointer::new(pointer)));
    }
    let after = false_per_miss(&index, 400_000, 5);
    assert!(after < before / 2.0, "{before:.5} false per miss before, {after:.5} after a refill of all entries");
}

#[test]
fn memory_returns_as_keys_go() {
    let (mut index, mut hashes) = (Index::default(), SplitMix64::new(6));
    let empty = index.resident_bytes();
    grow_to(&mut index, &mut hashes, 300_000);
    let full = index.resident_bytes();
    let mut again = SplitMix64::new(6);
    for pointer in 0..300_000 {
        assert!(index.remove(KeyHash(again.next()), Pointer::new(pointer)));
    }
    assert!(index.is_empty());
    assert!(index.resident_bytes() < empty + (full - empty) / 50, "{} B left of {full} B", index.resident_bytes());
    index.clear();
    assert_eq!(index.resident_bytes(), empty);
}

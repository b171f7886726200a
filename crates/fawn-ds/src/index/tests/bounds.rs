//! The index at its bounds: equal hashes, exhausted fragments, fragments by hand.
use crate::index::fragment::{bits, descend, first_match, fresh, matches};
use crate::index::{Index, IndexError, IndexOptions, PAGE_ENTRIES_MAX, Pointer};
use fawn_types::KeyHash;
use fawn_types::random::SplitMix64;

#[test]
fn equal_hashes_fill_one_page_and_then_are_refused() {
    let mut index = Index::default();
    let hash = KeyHash(0x0123_4567_89ab_cdef);
    for pointer in 0..PAGE_ENTRIES_MAX as u64 {
        index.insert(hash, Pointer::new(pointer)).unwrap();
    }
    let refused = index.insert(hash, Pointer::new(u64::from(u32::MAX))).unwrap_err();
    assert_eq!(refused, IndexError::PageFull { hash: hash.0 });
    assert!(refused.to_string().contains("hash secret"), "{refused}");
    assert_eq!(index.candidates(hash).count(), PAGE_ENTRIES_MAX);
    assert!(index.remove(hash, Pointer::new(7)));
    index.insert(hash, Pointer::new(u64::from(u32::MAX))).unwrap();
    assert!(index.candidates(hash).any(|found| found == Pointer::new(u64::from(u32::MAX))));
}

#[test]
fn a_full_page_survives_the_splits_that_growth_brings() {
    let mut index = Index::new(IndexOptions { entries_min: 0, page_entries: 4, ..IndexOptions::default() });
    let (hash, mut others) = (KeyHash(u64::MAX), SplitMix64::new(9));
    (0..400).for_each(|pointer| index.insert(hash, Pointer::new(pointer)).unwrap());
    for pointer in 400..20_000 {
        index.insert(KeyHash(others.next()), Pointer::new(pointer)).unwrap();
    }
    for pointer in 0..400 {
        assert!(index.replace(hash, Pointer::new(pointer), Pointer::new(pointer | 1 << 31)), "{pointer} lost");
    }
}

/// 64 pages of 2 to 2^21 pages would need four million entries; removing entries during growth keeps only the pages.
#[test]
fn growth_waits_for_a_refill_rather_than_lose_an_entry() {
    let mut index = Index::new(IndexOptions { entries_min: 0, page_entries: 2, ..IndexOptions::default() });
    let (old, mut others) = (KeyHash(0), SplitMix64::new(11));
    index.insert(old, Pointer::new(0)).unwrap();
    let mut pointer = 0;
    while index.growth_blocked().is_none() {
        pointer += 1;
        index.insert(KeyHash(others.next() | 1 << 62), Pointer::new(pointer)).unwrap();
        assert!(pointer < 1 << 23, "growth never ran out of bits");
    }
    let cursor = index.growth_blocked().unwrap();
    assert_eq!(index.cell(cursor).stale(1).collect::<Vec<_>>(), [Pointer::new(0)]);
    assert!(index.candidates(old).any(|found| found == Pointer::new(0)));
    assert!(index.refill(old, Pointer::new(0)));
    pointer += 1;
    index.insert(KeyHash(1 << 62), Pointer::new(pointer)).unwrap();
    assert_ne!(index.growth_blocked(), Some(cursor));
    assert!(index.remove(old, Pointer::new(0)));
}

#[test]
fn fragments_lose_their_top_bit_at_each_split() {
    let hash = 0b1010_1100_1111_0000_u64 << 48 | 0xffff_ffff_ffff;
    let mut entry = fresh(hash, 0);
    assert_eq!((entry, bits(entry)), (0b1010_1100_1111_0001, 15));
    for depth in 0..15 {
        assert!(matches(entry, fresh(hash, depth)));
        assert!(!matches(entry, fresh(hash ^ 1 << (63 - depth), depth)));
        let (side, rest) = descend(entry).unwrap();
        assert_eq!(side, hash << depth >> 63 == 1);
        assert_eq!(bits(rest), 14 - depth);
        entry = rest;
    }
    assert_eq!((entry, descend(entry)), (0x8000, None));
    assert!(matches(entry, 0x1235) && matches(entry, 0xffff), "no bit left: matches all");
}

#[test]
fn the_wide_comparison_finds_what_the_narrow_one_does() {
    let mut random = SplitMix64::new(12);
    for len in 0..70 {
        let entries: Vec<u16> = (0..len).map(|_| (random.next() as u16 & 0xc000) | 0x2000).collect();
        let query = random.next() as u16 | 1;
        for from in 0..=len {
            let narrow = (from..len).find(|&at| matches(entries[at], query));
            assert_eq!(first_match(&entries, query, from), narrow);
        }
    }
}

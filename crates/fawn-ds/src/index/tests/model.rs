//! The index against a multimap, with scans during growth.
use crate::format::checkpoint::content;
use crate::index::{Cell, CellImage, Index, IndexOptions, PAGE_ENTRIES_MAX, Pointer, PointerWidth};
use fawn_types::KeyHash;
use fawn_types::random::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};

/// Few bits of hash at the top and the bottom: fragments collide often, pages stay uneven.
const NARROW: u64 = 0xfff0_0000_0000_0003;

fn options(seed: u64) -> IndexOptions {
    let pointers = if seed.is_multiple_of(2) { PointerWidth::Bits32 } else { PointerWidth::Bits40 };
    IndexOptions { entries_min: 0, page_entries: 4, pointers }
}

struct IndexModel {
    index: Index,
    pointers: BTreeMap<(u64, Pointer), ()>,
    random: SplitMix64,
    pointer_next: u64,
    pointer_bits: u32,
    hash_mask: u64,
}

impl IndexModel {
    /// Odd seeds have the longer pointers.
    fn new(seed: u64, hash_mask: u64) -> Self {
        let options = options(seed);
        Self {
            index: Index::new(options),
            pointers: BTreeMap::new(),
            random: SplitMix64::new(seed),
            pointer_next: 0,
            pointer_bits: options.pointers.bits(),
            hash_mask,
        }
    }

    fn hash(&mut self) -> KeyHash {
        KeyHash(self.random.next() & self.hash_mask)
    }

    fn pointer(&mut self) -> Pointer {
        self.pointer_next += 1;
        // An odd factor: every pointer is another one, in all of its bits.
        Pointer::new(self.pointer_next.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << self.pointer_bits) - 1))
    }

    /// An entry at or after a random place, so that most operations find one.
    fn some_entry(&mut self) -> Option<(KeyHash, Pointer)> {
        let from = (self.hash().0, Pointer::new(0));
        let entry = self.pointers.range(from..).next().or_else(|| self.pointers.iter().next());
        entry.map(|(&(hash, pointer), ())| (KeyHash(hash), pointer))
    }

    fn step(&mut self, inserts_of_ten: u64) {
        if self.random.next() % 10 < inserts_of_ten {
            let (hash, pointer) = (self.hash(), self.pointer());
            self.index.insert(hash, pointer).unwrap();
            self.pointers.insert((hash.0, pointer), ());
            return;
        }
        let Some((hash, pointer)) = self.some_entry() else { return };
        if self.random.next().is_multiple_of(3) {
            assert!(self.index.remove(hash, pointer));
            assert!(!self.index.remove(hash, pointer), "removed twice");
            self.pointers.remove(&(hash.0, pointer));
        } else {
            let new = self.pointer();
            assert!(self.index.replace(hash, pointer, new));
            assert!(!self.index.replace(hash, pointer, new), "replaced twice");
            self.pointers.remove(&(hash.0, pointer));
            self.pointers.insert((hash.0, new), ());
        }
    }

    /// candidates-complete for every entry, and no other candidates.
    fn check(&self) {
        assert_eq!(self.index.len() as usize, self.pointers.len());
        for &(hash, pointer) in self.pointers.keys() {
            let found = self.index.candidates(KeyHash(hash)).filter(|&found| found == pointer).count();
            assert!(self.index.has_candidates(KeyHash(hash)));
            assert_eq!(found, 1, "{pointer:?} of hash {hash:#018x}");
        }
        let (mut scanned, mut cursor, mut pages, mut walked) = (Vec::<Pointer>::new(), Some(0), 0, Vec::new());
        while let Some(at) = cursor {
            let cell = self.index.cell(at);
            pages += usize::from(!cell.is_empty());
            assert_eq!(cell.pointers().len(), cell.len());
            scanned.extend(cell.pointers());
            cursor = cell.next;
            walked.push((at, cell));
        }
        for from in [0, 1, walked.len() / 2, walked.len() - 1] {
            let content = |cell: &Cell<'_>| (cell.next, cell.depth(), cell.entries().collect::<Vec<_>>());
            let listed = self.index.cells(walked[from].0).map(|cell| content(&cell));
            assert!(listed.eq(walked[from..].iter().map(|(_, cell)| content(cell))), "cells from {from} on");
        }
        assert_eq!(self.index.slab.assert_dense(), pages, "slots-dense: a slot per page that has entries");
        let mut expected: Vec<Pointer> = self.pointers.keys().map(|&(_, pointer)| pointer).collect();
        scanned.sort_unstable();
        expected.sort_unstable();
        assert_eq!(scanned, expected, "cells-cover: each entry once");
    }
}

#[test]
fn behaves_as_a_multimap() {
    for seed in 0..4 {
        let mut model = IndexModel::new(seed, NARROW);
        for phase in 0..8 {
            // Grow, churn, shrink to almost nothing, grow again.
            let inserts_of_ten = [9, 8, 5, 2, 1, 9, 3, 7][phase];
            (0..6_000).for_each(|_| model.step(inserts_of_ten));
            model.check();
        }
    }
}

#[test]
fn a_scan_sees_every_entry_present_throughout_growth() {
    let mut model = IndexModel::new(77, u64::MAX);
    (0..2_000).for_each(|_| model.step(10));
    let mut untouched: BTreeSet<(u64, Pointer)> = model.pointers.keys().copied().collect();
    let (mut seen, mut cursor) = (BTreeSet::new(), Some(0));
    while let Some(at) = cursor {
        let cell = model.index.cell(at);
        seen.extend(cell.pointers());
        assert!(cell.next.is_none_or(|next| next > at), "the cursor must advance");
        cursor = cell.next;
        (0..15).for_each(|_| model.step(9));
        untouched.retain(|entry| model.pointers.contains_key(entry));
    }
    assert!(model.index.len() > 6_000, "the scan must have lived through growth");
    assert!(untouched.len() > 200, "some entries must have stayed");
    let missed: Vec<_> = untouched.iter().filter(|(_, pointer)| !seen.contains(pointer)).collect();
    assert!(missed.is_empty(), "missed {missed:?}");
}

#[test]
fn an_image_copied_during_growth_has_every_entry_that_did_not_change() {
    for (seed, hash_mask) in [(1, u64::MAX), (2, NARROW), (3, u64::MAX)] {
        let mut model = IndexModel::new(seed, hash_mask);
        (0..2_000).for_each(|_| model.step(10));
        let before = model.pointers.clone();
        let mut image = Index::with_pages(options(seed), model.index.pages()).unwrap();
        let (mut cursor, mut pages, mut parts) = (0, 0, 0);
        loop {
            let cell = model.index.cell(cursor);
            let mut bytes = Vec::new();
            content::encode_cell(&cell, &mut bytes);
            let mut source = &bytes[..];
            let copied = content::decode_cell(&mut source, options(seed).pointers).unwrap();
            if image.load_page(cursor, copied).unwrap() {
                pages += 1;
            } else {
                parts += usize::from(!cell.is_empty());
                image.load_cell(cursor, copied.depth, &mut copied.entries().collect::<Vec<_>>()).unwrap();
            }
            let Some(next) = cell.next else { break };
            cursor = next;
            (0..15).for_each(|_| model.step(9));
        }
        assert!(model.index.pages() > 2 * image.pages(), "seed {seed}: pages split meanwhile");
        assert!(pages > 20 && parts > 20, "seed {seed}: {pages} whole pages and {parts} parts");
        let unchanged: Vec<_> = before.keys().filter(|entry| model.pointers.contains_key(entry)).collect();
        assert!(unchanged.len() > 200, "seed {seed}");
        for &&(hash, pointer) in &unchanged {
            let found = image.candidates(KeyHash(hash)).filter(|&found| found == pointer).count();
            assert_eq!(found, 1, "seed {seed}: {pointer:?} of hash {hash:#018x}");
        }
        // The loaded index lives on as any other.
        let removed = unchanged.iter().filter(|&&&(hash, pointer)| image.remove(KeyHash(hash), pointer)).count();
        assert_eq!(removed, unchanged.len());
        let fresh = model.pointer();
        image.insert(KeyHash(7), fresh).unwrap();
        assert!(image.candidates(KeyHash(7)).any(|found| found == fresh));
    }
}

#[test]
fn an_impossible_image_is_refused() {
    let options = IndexOptions { entries_min: 0, page_entries: 4, ..IndexOptions::default() };
    for pages in [0, 1, 63] {
        assert!(Index::with_pages(options, pages).is_err(), "{pages} pages");
    }
    let mut image = Index::with_pages(options, 100).unwrap();
    assert_eq!(image.pages(), 100);
    let depth = image.cell(0).depth();
    let cell = CellImage { depth, fragments: &[[0; 2]], low_bits: &[[0; 4]], high_bits: &[] };
    assert!(image.load_page(0, cell).is_err(), "a vacant entry");
    let cell = CellImage { depth: depth + 1, fragments: &[[1; 2]], ..cell };
    assert_eq!((image.load_page(0, cell), image.len()), (Ok(false), 0), "a part of a page");
    let mut load = |depth: u32, count: usize, fragment: u16| {
        let mut entries: Vec<_> = (0..count).map(|at| (fragment | (at << 1) as u16, Pointer::new(at as u64))).collect();
        image.load_cell(0, depth, &mut entries)
    };
    assert!(load(depth - 1, 1, 1).is_err(), "a cell of two pages");
    assert!(load(depth, 511, 1).is_err(), "more entries than a page has");
    assert!(load(depth, 1, 0).is_err(), "a vacant entry");
    load(depth, 1, 1).unwrap();
    assert_eq!(image.len(), 1, "refused cells add nothing");
    let (fragments, low_bits) = ([[1; 2]; PAGE_ENTRIES_MAX + 1], [[0; 4]; PAGE_ENTRIES_MAX + 1]);
    for (first_hash, depth, len) in
        [(0, depth, 1), (1 << 63, depth, 0), (1 << 63, depth, fragments.len()), (1 << 63, depth - 1, 1)]
    {
        let cell = CellImage { depth, fragments: &fragments[..len], low_bits: &low_bits[..len], high_bits: &[] };
        assert_eq!(image.load_page(first_hash, cell), Ok(false), "depth {depth}, {len} entries");
    }
    assert_eq!(image.len(), 1);
}

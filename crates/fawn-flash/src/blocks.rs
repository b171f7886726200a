//! `Blocks`: an array of equal blocks that grows and shrinks at its end.
//!
//! Resident memory exceeds the blocks in use by at most a thirty-second; a general allocator guarantees no such bound.
//! Each 2 MiB that is fully in use becomes a huge page. In a large structure the next one is huge from the start: its unused
//! rest is within the bound, and the system need not copy it later. So is one that is expected to be filled; if it is not, its rest
//! is additional.
use crate::region::{PlainBytes, Region};
use std::alloc::{Layout, handle_alloc_error};

/// Equal blocks, numbered from zero.
#[derive(Debug)]
pub struct Blocks<T> {
    regions: Vec<Region<T>>,
    len: usize,
    /// The last region was huge from the start. The system needs no advice about it, which costs it a wait for other CPUs.
    is_last_huge: bool,
    /// Blocks that may hold memory: those in use, and some after them that are kept for reuse.
    touched: usize,
    /// So many blocks will be in use soon.
    expected: usize,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { regions: Vec::new(), len: 0, is_last_huge: false, touched: 0, expected: 0 }
    }
}

impl<T: PlainBytes> Blocks<T> {
    /// Memory beside the blocks in use at most, one part in so many of theirs.
    pub const UNUSED_SHARE: usize = 32;

    /// Blocks in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Resident memory, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.touched * size_of::<T>() + self.regions.capacity() * size_of::<Region<T>>()
    }

    /// So many blocks will be in use soon: memory for them is taken in huge pages. With 0, nothing is known any more.
    pub fn expect(&mut self, blocks: usize) {
        self.expected = blocks;
    }

    /// Adds a block with unspecified content at the end and returns its number.
    pub fn push(&mut self) -> usize {
        let at = self.len;
        if at == self.regions.len() * Region::<T>::ITEMS {
            if let Some(full) = self.regions.last().filter(|_| !self.is_last_huge) {
                full.collapse();
            }
            let is_huge = self.regions.len() >= Self::UNUSED_SHARE || at + Region::<T>::ITEMS <= self.expected;
            let region = if is_huge { Region::huge() } else { Region::small() };
            let Some(region) = region else { handle_alloc_error(Layout::new::<T>()) };
            self.regions.push(region);
            self.is_last_huge = is_huge;
            if is_huge {
                self.touched = at + Region::<T>::ITEMS;
            }
        }
        self.len += 1;
        self.touched = self.touched.max(self.len);
        at
    }

    /// Removes the last block.
    ///
    /// # Panics
    /// If no block is in use.
    pub fn pop(&mut self) {
        assert!(self.len > 0, "no block is in use");
        self.len -= 1;
        // Keep some blocks, so that a large structure that alternates between sizes makes no system call each time.
        let kept = self.len / Self::UNUSED_SHARE;
        if self.touched - self.len > kept {
            self.discard_from(self.len + kept / 2);
        }
    }

    fn discard_from(&mut self, from: usize) {
        let items = Region::<T>::ITEMS;
        self.regions.truncate(from.div_ceil(items));
        // Its discarded blocks come back in small pages.
        self.is_last_huge = false;
        let end = self.touched.min(self.regions.len() * items);
        if from < end
            && let Some(last) = self.regions.last_mut()
        {
            last.discard(from % items..end - (from - from % items));
        }
        self.touched = from;
    }

    /// The content of a block.
    ///
    /// # Panics
    /// If it is not in use; the same holds for the methods below.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> &T {
        assert!(at < self.len, "block {at} is not in use, {} are", self.len);
        self.regions[at / Region::<T>::ITEMS].get(at % Region::<T>::ITEMS)
    }

    /// The mutable content of a block.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        assert!(at < self.len, "block {at} is not in use, {} are", self.len);
        self.regions[at / Region::<T>::ITEMS].get_mut(at % Region::<T>::ITEMS)
    }

    /// The mutable content of two different blocks.
    #[must_use]
    pub fn pair_mut(&mut self, first: usize, second: usize) -> [&mut T; 2] {
        assert_ne!(first, second, "two mutable references to one block");
        let (first, second) = (std::ptr::from_mut(self.get_mut(first)), std::ptr::from_mut(self.get_mut(second)));
        // SAFETY: (1) both are in use, by `get_mut`, and different, so they do not overlap; (2) creating the second
        // reference accessed no byte of the first; (3) they live as long as the borrow of `self`, which excludes every
        // other access.
        unsafe { [&mut *first, &mut *second] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_use_and_content_stays() {
        let mut blocks = Blocks::<[u16; 4096]>::default();
        for round in 0..3 {
            while blocks.len() < 700 {
                let at = blocks.push();
                blocks.get_mut(at).fill(at as u16);
            }
            assert!(blocks.resident_bytes() < 701 * 8192, "{} B", blocks.resident_bytes());
            while blocks.len() > 200 * round {
                blocks.pop();
                assert!(blocks.resident_bytes() <= (blocks.len() * 33 / 32 + 1) * 8192, "{blocks:?}");
            }
            assert!((0..blocks.len()).all(|at| blocks.get(at).iter().all(|&unit| unit == at as u16)), "round {round}");
        }
    }

    #[test]
    fn a_large_structure_takes_whole_regions() {
        let mut blocks = Blocks::<[u16; 4096]>::default();
        let (per_region, small) = (Region::<[u16; 4096]>::ITEMS, Blocks::<[u16; 4096]>::UNUSED_SHARE);
        let resident = |blocks: &Blocks<_>| blocks.touched / per_region;
        while blocks.len() < small * per_region {
            blocks.push();
        }
        assert_eq!(resident(&blocks), small);
        blocks.push();
        assert_eq!(resident(&blocks), small + 1, "all of the region counts");
        blocks.pop();
        assert_eq!(resident(&blocks), small + 1, "a push and a pop in turn map nothing");
        (0..per_region / 2).for_each(|_| blocks.pop());
        assert!(blocks.touched - blocks.len() <= blocks.len() / small, "{blocks:?}");
    }

    #[test]
    fn what_is_expected_takes_whole_regions() {
        let mut blocks = Blocks::<[u16; 4096]>::default();
        let per_region = Region::<[u16; 4096]>::ITEMS;
        blocks.expect(2 * per_region + 1);
        let touched_with = |blocks: &mut Blocks<_>, count| {
            while blocks.len() < count {
                blocks.push();
            }
            blocks.touched
        };
        assert_eq!(touched_with(&mut blocks, 1), per_region);
        assert_eq!(touched_with(&mut blocks, per_region + 1), 2 * per_region);
        let third = 2 * per_region + 1;
        assert_eq!(touched_with(&mut blocks, third), third, "not all of the third region is expected");
        blocks.expect(0);
        assert_eq!(touched_with(&mut blocks, third + per_region), third + per_region);
    }

    #[test]
    fn two_blocks_are_written_at_once() {
        let mut blocks = Blocks::<[u16; 4096]>::default();
        let (first, second) = (blocks.push(), blocks.push());
        let [one, other] = blocks.pair_mut(second, first);
        (one[0], other[0]) = (1, 2);
        assert_eq!((blocks.get(first)[0], blocks.get(second)[0]), (2, 1));
    }

    #[test]
    #[should_panic(expected = "is not in use")]
    fn what_was_given_back_is_not_read() {
        let mut blocks = Blocks::<[u16; 4096]>::default();
        blocks.push();
        blocks.pop();
        let _ = blocks.get(0);
    }
}

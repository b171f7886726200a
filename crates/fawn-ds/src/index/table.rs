//! Addresses of index pages: linear hashing over the bits of the key hash, high bits first.
//!
//! Page `a` of depth `d` holds the hashes whose top `d` bits, in reverse order, are `a`. With reversed bits the page
//! that a split adds comes after all others, so the table only grows at its end, by chunks: no copy, no second table.
//! Chunks of a large table lie in huge pages: a lookup of its handle would miss the TLB otherwise, with nested paging for as long
//! as several reads of memory.
use super::slab::{ALLOCATOR_BYTES, BlockHandle};
use fawn_flash::{Blocks, prefetch};

/// Handles per chunk: 4 KiB.
const CHUNK_LEN: usize = 1024;
/// Minimum number of pages, as a power of two; keeps every depth above zero.
pub(super) const LEVEL_MIN: u32 = 6;
/// Maximum number of pages, as a power of two: owners are 32-bit.
const LEVEL_MAX: u32 = 31;

/// A page's index in the table and the hash bits that it implies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Address {
    pub(super) page: u32,
    pub(super) depth: u32,
}

/// The handles of all pages.
pub(super) struct CellTable {
    chunks: Blocks<[u32; CHUNK_LEN]>,
    pages: u32,
    /// Every page has been split at least to this depth; those below `pages - 2^level` once more.
    level: u32,
}

impl CellTable {
    /// A table of `2^level` empty pages.
    pub(super) fn new(level: u32) -> Self {
        assert!((LEVEL_MIN..=LEVEL_MAX).contains(&level), "level {level} is outside {LEVEL_MIN}..={LEVEL_MAX}");
        match Self::with_pages(1 << level) {
            Some(table) => table,
            None => unreachable!("checked above"),
        }
    }

    /// A table of that many empty pages; `None` if no table has this number.
    pub(super) fn with_pages(pages: u32) -> Option<Self> {
        let level = pages.checked_ilog2()?;
        if !(LEVEL_MIN..=LEVEL_MAX).contains(&level) {
            return None;
        }
        let mut table = Self { chunks: Blocks::default(), pages, level };
        let chunks = (pages as usize).div_ceil(CHUNK_LEN);
        table.chunks.expect(chunks);
        (0..chunks).for_each(|_| table.add_chunk());
        Some(table)
    }

    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.chunks.resident_bytes() + ALLOCATOR_BYTES
    }

    /// The page of `hash`.
    #[inline]
    pub(super) fn address(&self, hash: u64) -> Address {
        let backwards = hash.reverse_bits() as u32;
        let page = backwards & low_mask(self.level);
        if page < self.pages - (1 << self.level) {
            Address { page: backwards & low_mask(self.level + 1), depth: self.level + 1 }
        } else {
            Address { page, depth: self.level }
        }
    }

    /// The page to split next; `None` when no more pages can be numbered.
    pub(super) fn split_next(&self) -> Option<Address> {
        (self.level < LEVEL_MAX).then_some(Address { page: self.pages - (1 << self.level), depth: self.level })
    }

    /// The first hash of the page at `address`.
    pub(super) fn first_hash(address: Address) -> u64 {
        u64::from(address.page).reverse_bits()
    }

    /// Adds the sibling of the page returned by [`Self::split_next`]; both are one bit deeper from now on.
    pub(super) fn split(&mut self, left: BlockHandle, right: BlockHandle) {
        assert!(self.level < LEVEL_MAX, "pages beyond 2^{LEVEL_MAX} cannot be numbered");
        let page = self.pages - (1 << self.level);
        self.set(page, left);
        let at = self.pages as usize;
        if at / CHUNK_LEN == self.chunks.len() {
            self.add_chunk();
        }
        self.pages += 1;
        self.set(at as u32, right);
        if self.pages == 1 << (self.level + 1) {
            self.level += 1;
        }
    }

    #[inline]
    pub(super) fn handle(&self, page: u32) -> BlockHandle {
        debug_assert!(page < self.pages);
        BlockHandle(self.chunks.get(page as usize / CHUNK_LEN)[page as usize % CHUNK_LEN])
    }

    /// Prefetches the page's handle.
    #[inline]
    pub(super) fn fetch(&self, page: u32) {
        prefetch(&self.chunks.get(page as usize / CHUNK_LEN)[page as usize % CHUNK_LEN..][..1]);
    }

    pub(super) fn set(&mut self, page: u32, handle: BlockHandle) {
        assert!(page < self.pages, "page {page} does not exist, there are {}", self.pages);
        self.chunks.get_mut(page as usize / CHUNK_LEN)[page as usize % CHUNK_LEN] = handle.0;
    }

    fn add_chunk(&mut self) {
        let at = self.chunks.push();
        *self.chunks.get_mut(at) = [BlockHandle::NONE.0; CHUNK_LEN];
    }
}

fn low_mask(bits: u32) -> u32 {
    // Correct for 32 too, the depth of the last pages.
    u32::MAX >> (32 - bits)
}

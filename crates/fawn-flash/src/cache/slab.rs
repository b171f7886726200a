//! Page memory of the cache: mappings of 2 MiB, allocated and freed in steps of a half or a whole one.
//!
//! The memory is mapped directly. An allocator may keep freed memory, but a smaller budget must reduce the resident
//! size at once. The steps of a large cache are huge pages. The steps of a small cache are halves of a region, which
//! take memory page by page.
use crate::buffer::PAGE_BYTES;
use crate::region::Region;

/// Pages by which a small cache grows.
pub(super) const CHUNK_PAGES: usize = 256;
pub(super) const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// Chunks before the first huge page. A step of two chunks is then an eighth of the cache, and less beyond.
const SMALL_CHUNKS: usize = 16;

type CachePage = [u8; PAGE_BYTES];

const REGION_CHUNKS: usize = Region::<CachePage>::ITEMS / CHUNK_PAGES;
const _: () = assert!(REGION_CHUNKS == 2 && SMALL_CHUNKS.is_multiple_of(REGION_CHUNKS));

/// Page frames, numbered densely from zero.
#[derive(Default)]
pub(super) struct PageSlab {
    regions: Vec<Region<CachePage>>,
    chunks: usize,
}

impl PageSlab {
    pub(super) const fn chunks(&self) -> usize {
        self.chunks
    }

    /// The largest number of chunks, up to `chunks`, that a slab can have.
    pub(super) const fn chunks_within(chunks: usize) -> usize {
        if chunks > SMALL_CHUNKS { chunks - chunks % REGION_CHUNKS } else { chunks }
    }

    /// Adds one step of frames at the end. Returns `false` if the system has no memory left: the cache then keeps its
    /// size.
    pub(super) fn grow(&mut self) -> bool {
        let is_small = self.chunks < SMALL_CHUNKS;
        if self.chunks.is_multiple_of(REGION_CHUNKS) {
            let Some(region) = (if is_small { Region::small() } else { Region::huge() }) else { return false };
            self.regions.push(region);
        }
        self.chunks += if is_small { 1 } else { REGION_CHUNKS };
        true
    }

    /// Number of chunks without the last step.
    pub(super) const fn chunks_before(&self) -> usize {
        self.chunks - if self.chunks > SMALL_CHUNKS { REGION_CHUNKS } else { 1 }
    }

    /// Frees the last step.
    pub(super) fn shrink(&mut self) {
        self.chunks = self.chunks_before();
        self.regions.truncate(self.chunks.div_ceil(REGION_CHUNKS));
        if !self.chunks.is_multiple_of(REGION_CHUNKS)
            && let Some(half) = self.regions.last_mut()
        {
            half.discard(CHUNK_PAGES..Region::<CachePage>::ITEMS);
        }
    }

    #[inline]
    pub(super) fn page(&self, frame: u32) -> &CachePage {
        self.regions[frame as usize / Region::<CachePage>::ITEMS].get(frame as usize % Region::<CachePage>::ITEMS)
    }

    #[inline]
    pub(super) fn page_mut(&mut self, frame: u32) -> &mut CachePage {
        self.regions[frame as usize / Region::<CachePage>::ITEMS].get_mut(frame as usize % Region::<CachePage>::ITEMS)
    }

    /// Copies the content of a frame.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let content = *self.page(from);
        *self.page_mut(to) = content;
    }
}

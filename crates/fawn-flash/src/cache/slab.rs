//! Owns the cache's page memory: regions of 2 MiB, taken from the system and given back in steps of one or half of one.
//!
//! Straight mappings and not the allocator's, because a budget that shrinks must show in the resident size at once;
//! an allocator may keep what was freed. A large cache's steps are huge pages; a small one's are halves of a region, which
//! take memory page by page.
use crate::buffer::PAGE_BYTES;
use crate::region::Region;

/// Pages that a small cache grows by.
pub(super) const CHUNK_PAGES: usize = 256;
/// Bytes of those.
pub(super) const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// Chunks before the first huge page: a step of two of them is an eighth of the cache there, and less beyond.
const SMALL_CHUNKS: usize = 16;

type Page = [u8; PAGE_BYTES];

/// Chunks per region.
const REGION_CHUNKS: usize = Region::<Page>::ITEMS / CHUNK_PAGES;
const _: () = assert!(REGION_CHUNKS == 2 && SMALL_CHUNKS.is_multiple_of(REGION_CHUNKS));

/// Page frames, numbered densely.
#[derive(Default)]
pub(super) struct Slab {
    regions: Vec<Region<Page>>,
    chunks: usize,
}

impl Slab {
    pub(super) const fn chunks(&self) -> usize {
        self.chunks
    }

    /// The most chunks that a slab can have within `chunks`.
    pub(super) const fn chunks_within(chunks: usize) -> usize {
        if chunks > SMALL_CHUNKS { chunks - chunks % REGION_CHUNKS } else { chunks }
    }

    /// Adds a step of frames at the end; `false` when the system has no memory to give: the cache then stays as small as
    /// it is.
    pub(super) fn grow(&mut self) -> bool {
        let is_small = self.chunks < SMALL_CHUNKS;
        if self.chunks.is_multiple_of(REGION_CHUNKS) {
            let Some(region) = (if is_small { Region::small() } else { Region::huge() }) else { return false };
            self.regions.push(region);
        }
        self.chunks += if is_small { 1 } else { REGION_CHUNKS };
        true
    }

    /// Chunks that remain once the last step is given back.
    pub(super) const fn chunks_before(&self) -> usize {
        self.chunks - if self.chunks > SMALL_CHUNKS { REGION_CHUNKS } else { 1 }
    }

    /// Gives the last step back.
    pub(super) fn shrink(&mut self) {
        self.chunks = self.chunks_before();
        self.regions.truncate(self.chunks.div_ceil(REGION_CHUNKS));
        if !self.chunks.is_multiple_of(REGION_CHUNKS)
            && let Some(half) = self.regions.last_mut()
        {
            half.discard(CHUNK_PAGES..Region::<Page>::ITEMS);
        }
    }

    #[inline]
    pub(super) fn page(&self, frame: u32) -> &Page {
        self.regions[frame as usize / Region::<Page>::ITEMS].get(frame as usize % Region::<Page>::ITEMS)
    }

    #[inline]
    pub(super) fn page_mut(&mut self, frame: u32) -> &mut Page {
        self.regions[frame as usize / Region::<Page>::ITEMS].get_mut(frame as usize % Region::<Page>::ITEMS)
    }

    /// Copies a frame's content.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let content = *self.page(from);
        *self.page_mut(to) = content;
    }
}

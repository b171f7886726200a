//! Owns the cache's page memory: mappings of 1 MiB, taken from the system one by one and given back the same way.
//!
//! Straight mappings and not the allocator's, because a budget that shrinks must show in the resident size at once;
//! an allocator may keep what was freed.
use crate::buffer::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::NonNull;

/// Pages per mapping.
pub(super) const CHUNK_PAGES: usize = 256;
/// Bytes per mapping.
pub(super) const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;

type Page = [u8; PAGE_BYTES];

/// `CHUNK_PAGES` pages, zero and without memory until written.
struct Chunk {
    start: NonNull<Page>,
}

// SAFETY: (1) a chunk owns its mapping alone; (2) it has no interior mutability.
unsafe impl Send for Chunk {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// `None` when the system has no memory to give: the cache then stays as small as it is.
    fn map() -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: (1) no address is asked for, so no mapping of ours is replaced; (2) the result is checked.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), CHUNK_BYTES, protection, MapFlags::PRIVATE) };
        NonNull::new(start.ok()?.cast()).map(|start| Self { start })
    }

    fn page(&self, index: usize) -> &Page {
        assert!(index < CHUNK_PAGES);
        // SAFETY: (1) in bounds by the assertion; (2) mapped, readable and initialised (zeros) since `map`;
        // (3) aligned, for mappings start at pages and a `Page` needs no alignment; (4) `&self` excludes writers.
        unsafe { self.start.add(index).as_ref() }
    }

    fn page_mut(&mut self, index: usize) -> &mut Page {
        assert!(index < CHUNK_PAGES);
        // SAFETY: as in `page`, and (4) `&mut self` excludes every other access.
        unsafe { self.start.add(index).as_mut() }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: (1) mapped in `map` with this length; (2) no reference outlives the chunk that lent it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), CHUNK_BYTES) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be given back");
    }
}

/// Page frames, numbered densely.
#[derive(Default)]
pub(super) struct Slab {
    chunks: Vec<Chunk>,
}

impl Slab {
    pub(super) const fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Adds a chunk of frames at the end.
    pub(super) fn grow(&mut self) -> bool {
        Chunk::map().map(|chunk| self.chunks.push(chunk)).is_some()
    }

    /// Gives the last chunk back.
    pub(super) fn shrink(&mut self) {
        self.chunks.pop();
    }

    pub(super) fn page(&self, frame: u32) -> &Page {
        self.chunks[frame as usize / CHUNK_PAGES].page(frame as usize % CHUNK_PAGES)
    }

    pub(super) fn page_mut(&mut self, frame: u32) -> &mut Page {
        self.chunks[frame as usize / CHUNK_PAGES].page_mut(frame as usize % CHUNK_PAGES)
    }

    /// Copies a frame's content.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let content = *self.page(from);
        *self.page_mut(to) = content;
    }
}

//! Page cache: 4 KiB pages of a device's files, within a memory budget that can change at run time.
//!
//! Eviction is S3-FIFO [Yang et al., SOSP 2023]. A new page enters a small queue of a tenth of the frames, and moves to
//! the main queue only if it is used again there. A page that returns soon after its eviction enters the main queue at
//! once.
//!
//! S3-FIFO was chosen over LRU and CLOCK because a scan (recovery, verification, pre-copy) passes through the small
//! queue and evicts nothing else. It was chosen over ARC and W-TinyLFU because a hit stores at most one byte and moves
//! no list node.
//!
//! The cache has no operation to remove a whole file, which would visit every frame. A device never reuses a file's ID,
//! so pages of a deleted file are never requested again and are evicted like other unused pages.
//!
//! Page memory grows and shrinks in steps of 1 MiB (2 MiB huge pages in a large cache), so that the resident size
//! follows the use and the budget.
mod ghosts;
mod queues;
mod slab;
mod table;

use crate::FileId;
use crate::buffer::PAGE_BYTES;
use crate::prefetch;
pub use ghosts::{GHOST_BYTES, Ghosts};
use queues::{CacheQueue, QUEUE_BYTES, Queues};
use slab::{CHUNK_BYTES, CHUNK_PAGES, PageSlab};
use std::ops::Range;
use table::{FRAMES_MAX, FrameTable};

/// Key of an empty frame: no page has both this file and this page number.
const NO_KEY: u64 = u64::MAX;
/// Fraction of the frames in the small queue, one in ten: the paper's best over its traces.
const SMALL_SHARE: usize = 10;
/// Maximum overhead per page: key, links, mark, hash table (4 B at a load of one third or more), ghosts.
const OVERHEAD_BYTES_MAX: usize = size_of::<u64>() + QUEUE_BYTES + 12 + GHOST_BYTES;
const _: () = assert!(OVERHEAD_BYTES_MAX <= 40);
/// Memory of one growth step of a small cache, with its overhead.
const CHUNK_COST_BYTES: usize = CHUNK_BYTES + CHUNK_PAGES * OVERHEAD_BYTES_MAX;

/// Counters of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Lookups that found the page.
    pub hits: u64,
    /// Lookups that did not find the page.
    pub misses: u64,
    /// Pages added.
    pub inserts: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages added that a slightly larger cache would still have held: they were evicted within the last
    /// [`PageCache::set_marginal_bytes`] of evictions.
    pub marginal_hits: u64,
}

/// A cache of pages by (file, page number).
pub struct PageCache {
    slab: PageSlab,
    keys: Vec<u64>,
    queues: Queues,
    table: FrameTable,
    ghosts: Ghosts,
    chunks_max: usize,
    /// Evictions within which a returned page counts as a marginal hit.
    marginal_evictions: u32,
    stats: CacheStats,
}

const fn key_of(file: FileId, page: u32) -> u64 {
    (file.0 as u64) << 32 | page as u64
}

impl PageCache {
    /// A cache that takes at most `budget_bytes`, including its own tables. Below about 1 MiB it caches nothing.
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        let mut cache = Self {
            slab: PageSlab::default(),
            keys: Vec::new(),
            queues: Queues::new(),
            table: FrameTable::new(0),
            ghosts: Ghosts::new(0),
            chunks_max: 0,
            marginal_evictions: 0,
            stats: CacheStats::default(),
        };
        cache.set_budget_bytes(budget_bytes);
        cache
    }

    /// The page, if cached. Counts a hit or a miss, and a use of the page.
    #[inline]
    pub fn get(&mut self, file: FileId, page: u32) -> Option<&[u8; PAGE_BYTES]> {
        let Some(frame) = self.table.find(key_of(file, page), &self.keys) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.queues.touch(frame);
        Some(self.slab.page(frame))
    }

    /// The result of `judge` on the page, if the page is cached and `judge` returns `Some`: only then a hit and a use
    /// are counted. `needed` is the byte range that `judge` reads, as far as known; it is prefetched as a whole.
    #[inline]
    pub fn get_if<T>(
        &mut self,
        file: FileId,
        page: u32,
        needed: Range<usize>,
        judge: impl FnOnce(&[u8; PAGE_BYTES]) -> Option<T>,
    ) -> Option<T> {
        let key = key_of(file, page);
        // Prefetch the likely frame's bytes while its key is still being compared.
        if let Some(frame) = self.table.guess(key) {
            prefetch(&self.slab.page(frame)[needed]);
        }
        let frame = self.table.find(key, &self.keys)?;
        let taken = judge(self.slab.page(frame))?;
        self.stats.hits += 1;
        self.queues.touch(frame);
        Some(taken)
    }

    /// Prefetch for [`PageCache::get_if`], step one of two: the table's word for the page.
    #[inline]
    pub fn prefetch_table(&self, file: FileId, page: u32) {
        self.table.fetch(key_of(file, page));
    }

    /// Step two: the page's bytes, if it is cached.
    #[inline]
    pub fn prefetch_bytes(&self, file: FileId, page: u32, needed: Range<usize>) {
        if let Some(frame) = self.table.guess(key_of(file, page)) {
            prefetch(&self.slab.page(frame)[needed]);
            prefetch(&self.keys[frame as usize..=frame as usize]);
            self.queues.fetch(frame);
        }
    }

    /// As [`PageCache::get`], but counts nothing.
    #[must_use]
    pub fn peek(&self, file: FileId, page: u32) -> Option<&[u8; PAGE_BYTES]> {
        self.table.find(key_of(file, page), &self.keys).map(|frame| self.slab.page(frame))
    }

    /// Caches a page's content, replacing an older one; may evict other pages.
    ///
    /// # Panics
    /// If `content` is not one page long.
    pub fn insert(&mut self, file: FileId, page: u32, content: &[u8]) {
        assert_eq!(content.len(), PAGE_BYTES, "the cache holds whole pages");
        let key = key_of(file, page);
        assert!(key != NO_KEY, "the key of empty frames");
        if let Some(frame) = self.table.find(key, &self.keys) {
            self.slab.page_mut(frame).copy_from_slice(content);
            return;
        }
        let returned = self.ghosts.take(FrameTable::hash(key));
        self.stats.marginal_hits += u64::from(returned.is_some_and(|age| age <= self.marginal_evictions));
        let queue = if returned.is_some() { CacheQueue::Main } else { CacheQueue::Small };
        let Some(frame) = self.take_frame() else { return };
        self.slab.page_mut(frame).copy_from_slice(content);
        self.keys[frame as usize] = key;
        self.table.insert(key, frame);
        self.queues.set_uses(frame, 0);
        self.queues.push(queue, frame);
        self.stats.inserts += 1;
    }

    /// Removes a page.
    pub fn invalidate(&mut self, file: FileId, page: u32) {
        if let Some(frame) = self.table.find(key_of(file, page), &self.keys) {
            self.forget(frame);
        }
    }

    /// Removes a file's pages in `pages`.
    pub fn invalidate_pages(&mut self, file: FileId, pages: Range<u32>) {
        if pages.len() <= self.keys.len() {
            pages.for_each(|page| self.invalidate(file, page));
            return;
        }
        let is_meant = |key: u64| key >> 32 == u64::from(file.0) && pages.contains(&(key as u32));
        for frame in 0..self.keys.len() {
            if self.keys[frame] != NO_KEY && is_meant(self.keys[frame]) {
                self.forget(frame as u32);
            }
        }
    }

    /// The part of a budget that a cache uses: it grows by steps.
    #[must_use]
    pub fn usable_bytes(budget_bytes: usize) -> usize {
        Self::chunks_within(budget_bytes) * CHUNK_COST_BYTES
    }

    fn chunks_within(budget_bytes: usize) -> usize {
        PageSlab::chunks_within((budget_bytes / CHUNK_COST_BYTES).min(FRAMES_MAX / CHUNK_PAGES))
    }

    /// Changes the budget. Shrinking evicts pages and returns memory before it returns; small steps are cheap.
    pub fn set_budget_bytes(&mut self, budget_bytes: usize) {
        self.chunks_max = Self::chunks_within(budget_bytes);
        while self.slab.chunks() > self.chunks_max {
            self.drop_chunks();
        }
        let frames_max = self.chunks_max * CHUNK_PAGES;
        // A rebuild visits all pages, so a table of twice the size stays while memory moves between two caches.
        let (slots, wanted) = (self.table.slots(), FrameTable::slots_for(frames_max));
        if slots < wanted || slots > 2 * wanted {
            self.rebuild_table(frames_max);
        }
        if Ghosts::places_for(frames_max) != self.ghosts.places() {
            self.ghosts = Ghosts::new(frames_max);
        }
        // Reserves address space only: memory is taken as frames come into use.
        self.queues.reserve(frames_max);
        self.keys.reserve_exact(frames_max.saturating_sub(self.keys.len()));
    }

    /// Sets the amount of memory for which [`CacheStats::marginal_hits`] counts: hits that so many more bytes would have
    /// brought.
    pub fn set_marginal_bytes(&mut self, bytes: usize) {
        self.marginal_evictions = (bytes / PAGE_BYTES) as u32;
    }

    /// Memory allocated, including the tables, whether or not the system has backed all of it.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let frame_bytes = PAGE_BYTES + size_of::<u64>() + QUEUE_BYTES;
        self.keys.len() * frame_bytes + self.table.slots() * size_of::<u32>() + self.ghosts.places() * GHOST_BYTES
    }

    /// Cached pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.queues.len(CacheQueue::Small) + self.queues.len(CacheQueue::Main)
    }

    /// Hits, misses, inserts and evictions so far.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// A frame in no queue: a free frame, a new one, or one of an evicted page.
    fn take_frame(&mut self) -> Option<u32> {
        if self.queues.len(CacheQueue::Free) == 0 {
            if self.slab.chunks() < self.chunks_max && self.slab.grow() {
                let frames = self.slab.chunks() * CHUNK_PAGES;
                self.keys.resize(frames, NO_KEY);
                self.queues.grow(frames);
            } else {
                self.evict();
            }
        }
        self.queues.pop(CacheQueue::Free)
    }

    /// Frees one frame, if any holds a page.
    fn evict(&mut self) {
        let small_target = self.keys.len() / SMALL_SHARE;
        while self.queues.len(CacheQueue::Small) > small_target || self.queues.len(CacheQueue::Main) == 0 {
            let Some(frame) = self.queues.pop(CacheQueue::Small) else { return };
            if self.queues.uses(frame) > 1 {
                self.queues.set_uses(frame, 0);
                self.queues.push(CacheQueue::Main, frame);
            } else {
                self.ghosts.insert(FrameTable::hash(self.keys[frame as usize]));
                return self.vacate(frame);
            }
        }
        // Terminates: every round decrements a use count, and a frame with a count of zero leaves.
        while let Some(frame) = self.queues.pop(CacheQueue::Main) {
            match self.queues.uses(frame) {
                0 => return self.vacate(frame),
                uses => {
                    self.queues.set_uses(frame, uses - 1);
                    self.queues.push(CacheQueue::Main, frame);
                }
            }
        }
    }

    fn vacate(&mut self, frame: u32) {
        self.stats.evictions += 1;
        self.unname(frame);
    }

    fn forget(&mut self, frame: u32) {
        self.queues.remove(frame);
        self.unname(frame);
    }

    fn unname(&mut self, frame: u32) {
        self.table.remove(self.keys[frame as usize], &self.keys);
        self.keys[frame as usize] = NO_KEY;
        self.queues.push(CacheQueue::Free, frame);
    }

    /// Moves the pages of the last growth step into free frames before it, and frees the step.
    fn drop_chunks(&mut self) {
        let kept = self.slab.chunks_before() * CHUNK_PAGES;
        while self.queues.len(CacheQueue::Free) < self.keys.len() - kept {
            self.evict();
        }
        let (start, end) = (kept as u32, self.keys.len() as u32);
        for frame in (start..end).filter(|&frame| self.keys[frame as usize] == NO_KEY).collect::<Vec<_>>() {
            self.queues.remove(frame);
        }
        for frame in start..end {
            if self.keys[frame as usize] != NO_KEY {
                self.relocate(frame);
            }
        }
        self.keys.truncate(kept);
        self.keys.shrink_to(kept);
        self.queues.truncate(kept);
        self.slab.shrink();
    }

    fn relocate(&mut self, from: u32) {
        let Some(to) = self.queues.pop(CacheQueue::Free) else { unreachable!("one frame was freed per page to move") };
        let key = self.keys[from as usize];
        self.slab.copy(from, to);
        self.table.rename(key, &self.keys, to);
        self.keys[to as usize] = key;
        self.keys[from as usize] = NO_KEY;
        self.queues.relocate(from, to);
    }

    fn rebuild_table(&mut self, frames_max: usize) {
        self.table = FrameTable::new(frames_max);
        for (frame, &key) in self.keys.iter().enumerate().filter(|&(_, &key)| key != NO_KEY) {
            self.table.insert(key, frame as u32);
        }
    }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageCache({} pages, {} B, {:?})", self.pages(), self.resident_bytes(), self.stats)
    }
}

//! Owns the page cache: 4 KiB pages of a device's files in one budget that may change while it runs.
//!
//! Eviction is S3-FIFO [Yang et al., SOSP 2023]: a new page enters a small queue of a tenth of the frames and moves to
//! the main queue only when it was used again there; a page that comes back soon after leaving goes to the main queue
//! at once. It was chosen over LRU and CLOCK because a scan (recovery, verification, pre-copy) flows through the small
//! queue and leaves the rest alone, and over ARC and W-TinyLFU because a hit stores at most one byte: no list moves.
//! There is no way to forget a whole file: a device never uses a file's number twice, so pages of a file that is gone are
//! never asked for again and leave as unused ones do. Looking for them would cost a look at every frame.
//! Page memory is taken and given back in steps of 1 MiB, a large cache's in huge pages of 2 MiB, so that the resident size
//! follows the use and the budget.
mod ghosts;
mod queues;
mod slab;
mod table;

use crate::FileId;
use crate::buffer::PAGE_BYTES;
use crate::prefetch;
use ghosts::{GHOST_BYTES, Ghosts};
use queues::{QUEUE_BYTES, Queue, Queues};
use slab::{CHUNK_BYTES, CHUNK_PAGES, Slab};
use std::ops::Range;
use table::{FRAMES_MAX, Table};

/// Key of a frame without a page: page number and file are never both all ones.
const NO_KEY: u64 = u64::MAX;
/// Share of the frames that new pages pass through: one in ten, as the paper found best over its traces.
const SMALL_SHARE: usize = 10;
/// At most, per page: key, links, mark, hash table (4 B at a load of one third or more), ghosts.
const OVERHEAD_BYTES_MAX: usize = size_of::<u64>() + QUEUE_BYTES + 12 + GHOST_BYTES;
const _: () = assert!(OVERHEAD_BYTES_MAX <= 40);

/// What the cache did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Pages asked for and there.
    pub hits: u64,
    /// Pages asked for and not there.
    pub misses: u64,
    /// Pages added.
    pub inserts: u64,
    /// Pages pushed out for room.
    pub evictions: u64,
}

/// Pages by (file, page number).
pub struct PageCache {
    slab: Slab,
    keys: Vec<u64>,
    queues: Queues,
    table: Table,
    ghosts: Ghosts,
    chunks_max: usize,
    stats: CacheStats,
}

const fn key_of(file: FileId, page: u32) -> u64 {
    (file.0 as u64) << 32 | page as u64
}

impl PageCache {
    /// A cache that takes at most `budget_bytes`, its own tables included; below about 1 MiB it caches nothing.
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        let mut cache = Self {
            slab: Slab::default(),
            keys: Vec::new(),
            queues: Queues::new(),
            table: Table::new(0),
            ghosts: Ghosts::new(0),
            chunks_max: 0,
            stats: CacheStats::default(),
        };
        cache.set_budget_bytes(budget_bytes);
        cache
    }

    /// The page, if it is here. Counts a hit or a miss and the page's use.
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

    /// What `judge` makes of the page, if it is here and `judge` takes it: only then a hit and the page's use are counted.
    /// `needed` are the bytes that it will look at, as far as known: all of them are fetched at once.
    #[inline]
    pub fn get_if<T>(
        &mut self,
        file: FileId,
        page: u32,
        needed: Range<usize>,
        judge: impl FnOnce(&[u8; PAGE_BYTES]) -> Option<T>,
    ) -> Option<T> {
        let key = key_of(file, page);
        // The likely frame's bytes are on their way while its key is still compared.
        if let Some(frame) = self.table.guess(key) {
            prefetch(&self.slab.page(frame)[needed]);
        }
        let frame = self.table.find(key, &self.keys)?;
        let taken = judge(self.slab.page(frame))?;
        self.stats.hits += 1;
        self.queues.touch(frame);
        Some(taken)
    }

    /// First of two steps ahead of a [`PageCache::get_if`]: has that fetched which says where the page is.
    #[inline]
    pub fn fetch_place(&self, file: FileId, page: u32) {
        self.table.fetch(key_of(file, page));
    }

    /// Second step: has the bytes fetched, if the page is here.
    #[inline]
    pub fn fetch_bytes(&self, file: FileId, page: u32, needed: Range<usize>) {
        if let Some(frame) = self.table.guess(key_of(file, page)) {
            prefetch(&self.slab.page(frame)[needed]);
            prefetch(&self.keys[frame as usize..=frame as usize]);
            self.queues.fetch(frame);
        }
    }

    /// As [`PageCache::get`], leaving no trace.
    #[must_use]
    pub fn peek(&self, file: FileId, page: u32) -> Option<&[u8; PAGE_BYTES]> {
        self.table.find(key_of(file, page), &self.keys).map(|frame| self.slab.page(frame))
    }

    /// Keeps a page's content, replacing an older one; may evict others.
    ///
    /// # Panics
    /// When `content` is not one page long.
    pub fn insert(&mut self, file: FileId, page: u32, content: &[u8]) {
        assert_eq!(content.len(), PAGE_BYTES, "the cache holds whole pages");
        let key = key_of(file, page);
        assert!(key != NO_KEY, "no file has that page");
        if let Some(frame) = self.table.find(key, &self.keys) {
            self.slab.page_mut(frame).copy_from_slice(content);
            return;
        }
        let queue = if self.ghosts.take(Table::hash(key)) { Queue::Main } else { Queue::Small };
        let Some(frame) = self.take_frame() else { return };
        self.slab.page_mut(frame).copy_from_slice(content);
        self.keys[frame as usize] = key;
        self.table.insert(key, frame);
        self.queues.set_uses(frame, 0);
        self.queues.push(queue, frame);
        self.stats.inserts += 1;
    }

    /// Forgets a page.
    pub fn invalidate(&mut self, file: FileId, page: u32) {
        if let Some(frame) = self.table.find(key_of(file, page), &self.keys) {
            self.forget(frame);
        }
    }

    /// Forgets a file's pages in `pages`.
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

    /// Changes the budget. Shrinking evicts and gives memory back before it returns; small steps cost little.
    pub fn set_budget_bytes(&mut self, budget_bytes: usize) {
        let chunk_cost = CHUNK_BYTES + CHUNK_PAGES * OVERHEAD_BYTES_MAX;
        self.chunks_max = Slab::chunks_within((budget_bytes / chunk_cost).min(FRAMES_MAX / CHUNK_PAGES));
        while self.slab.chunks() > self.chunks_max {
            self.drop_chunks();
        }
        let frames_max = self.chunks_max * CHUNK_PAGES;
        if Table::slots_for(frames_max) != self.table.slots() {
            self.rebuild_table(frames_max);
        }
        if Ghosts::places_for(frames_max) != self.ghosts.places() {
            self.ghosts = Ghosts::new(frames_max);
        }
        // Address space only: memory is taken as frames come into use.
        self.queues.reserve(frames_max);
        self.keys.reserve_exact(frames_max.saturating_sub(self.keys.len()));
    }

    /// Memory taken, tables included, whether or not the system has backed all of it yet.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let frame_bytes = PAGE_BYTES + size_of::<u64>() + QUEUE_BYTES;
        self.keys.len() * frame_bytes + self.table.slots() * size_of::<u32>() + self.ghosts.places() * GHOST_BYTES
    }

    /// Pages held.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.queues.len(Queue::Small) + self.queues.len(Queue::Main)
    }

    /// Hits, misses, inserts, evictions so far.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// A frame that stands nowhere: a free one, a new one, or that of an evicted page.
    fn take_frame(&mut self) -> Option<u32> {
        if self.queues.len(Queue::Free) == 0 {
            if self.slab.chunks() < self.chunks_max && self.slab.grow() {
                let frames = self.slab.chunks() * CHUNK_PAGES;
                self.keys.resize(frames, NO_KEY);
                self.queues.grow(frames);
            } else {
                self.evict();
            }
        }
        self.queues.pop(Queue::Free)
    }

    /// Makes one frame free, if any holds a page.
    fn evict(&mut self) {
        let small_target = self.keys.len() / SMALL_SHARE;
        while self.queues.len(Queue::Small) > small_target || self.queues.len(Queue::Main) == 0 {
            let Some(frame) = self.queues.pop(Queue::Small) else { return };
            if self.queues.uses(frame) > 1 {
                self.queues.set_uses(frame, 0);
                self.queues.push(Queue::Main, frame);
            } else {
                self.ghosts.insert(Table::hash(self.keys[frame as usize]));
                return self.vacate(frame);
            }
        }
        // Ends: every round lowers a use count, and a count of zero leaves.
        while let Some(frame) = self.queues.pop(Queue::Main) {
            match self.queues.uses(frame) {
                0 => return self.vacate(frame),
                uses => {
                    self.queues.set_uses(frame, uses - 1);
                    self.queues.push(Queue::Main, frame);
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
        self.queues.push(Queue::Free, frame);
    }

    /// Moves the last step's pages into free frames before it and gives the step back.
    fn drop_chunks(&mut self) {
        let kept = self.slab.chunks_before() * CHUNK_PAGES;
        while self.queues.len(Queue::Free) < self.keys.len() - kept {
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
        let Some(to) = self.queues.pop(Queue::Free) else { unreachable!("as many frames were freed as leave") };
        let key = self.keys[from as usize];
        self.slab.copy(from, to);
        self.table.rename(key, &self.keys, to);
        self.keys[to as usize] = key;
        self.keys[from as usize] = NO_KEY;
        self.queues.relocate(from, to);
    }

    fn rebuild_table(&mut self, frames_max: usize) {
        self.table = Table::new(frames_max);
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

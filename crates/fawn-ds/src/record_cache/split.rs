//! Division of the caches' memory between pages and records, by their marginal hits.
//!
//! A marginal hit is a device read that slightly more memory for one cache would have saved: it requests a page or a
//! record that was evicted a short while ago. Memory moves in steps to the cache with more of them.
use fawn_flash::{CacheStats, PageCache};

/// Pages keep this part of the memory, one in sixteen, so that lookups find the page that they have just read.
const PAGES_SHARE_MIN: u64 = 16;
/// And this many bytes, a growth step of the page cache: with less it holds nothing, and has no marginal hits either.
const PAGES_BYTES_MIN: u64 = 11 << 17;
/// Steps of memory in all.
const STEPS: u64 = 32;
/// Marginal hits from which on a comparison counts.
const EVIDENCE_MIN: u64 = 64;

/// The division, and the counts at its last change.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheSplit {
    /// Steps of the record cache.
    record_steps: u64,
    pages_before: u64,
    records_before: u64,
}

impl CacheSplit {
    /// Bytes of the record cache, of `total_bytes` for both, after these counts of both caches. It gets none before the
    /// page cache has evicted: pages are then enough.
    pub fn record_bytes(&mut self, total_bytes: u64, pages: CacheStats, records: CacheStats) -> u64 {
        if pages.evictions == 0 || total_bytes < 2 * PAGES_BYTES_MIN {
            return 0;
        }
        let (of_pages, of_records) =
            (pages.marginal_hits - self.pages_before, records.marginal_hits - self.records_before);
        if self.record_steps == 0 {
            self.record_steps = STEPS / 4;
        } else if of_pages + of_records >= EVIDENCE_MIN {
            (self.pages_before, self.records_before) = (pages.marginal_hits, records.marginal_hits);
            // A difference of an eighth or less may be chance: memory that moves costs evictions.
            if of_records > of_pages + of_pages / 8 {
                self.record_steps = (self.record_steps + 1).min(STEPS);
            } else if of_pages > of_records + of_records / 8 {
                self.record_steps = (self.record_steps - 1).max(1);
            }
        }
        let pages_min = (total_bytes / PAGES_SHARE_MIN).max(PAGES_BYTES_MIN);
        let page_bytes = (total_bytes - total_bytes * self.record_steps / STEPS).max(pages_min);
        // The page cache grows by large steps: records take the rest.
        total_bytes - PageCache::usable_bytes(page_bytes as usize) as u64
    }

    /// The amount of memory for which marginal hits are counted, bytes.
    #[must_use]
    pub const fn marginal_bytes(total_bytes: u64) -> u64 {
        total_bytes / STEPS
    }
}

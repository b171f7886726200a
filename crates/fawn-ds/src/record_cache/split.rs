//! Division of the caches' memory between pages and records, by their marginal hits.
//!
//! While pages leave memory unused, records get it: a lookup in the record cache takes half the time of one in a page. A
//! marginal hit is a device read that slightly more memory for one cache would have saved: it requests a page or a
//! record that was evicted a short while ago. Memory moves in steps to the cache with more of them.
use fawn_flash::{CacheStats, PageCache};

/// Pages keep this part of the memory, one in sixteen, so that lookups find the page that they have just read.
const PAGES_SHARE_MIN: u64 = 16;
/// And this many bytes, a growth step of the page cache: with less it holds nothing, and has no marginal hits either.
const PAGES_BYTES_MIN: u64 = 11 << 17;
/// Bytes of pages for each unused one at most, for records to get these.
const PAGES_PER_UNUSED_MAX: u64 = 3;
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
    /// Bytes of the record cache, of `total_bytes` for both, after these counts of both caches, the page cache being of
    /// `page_bytes`.
    pub fn record_bytes(
        &mut self,
        total_bytes: u64,
        page_bytes: u64,
        (pages, records): (CacheStats, CacheStats),
    ) -> u64 {
        if total_bytes < 2 * PAGES_BYTES_MIN {
            return 0;
        }
        let pages_min = (total_bytes / PAGES_SHARE_MIN).max(PAGES_BYTES_MIN);
        if pages.evictions == 0 {
            return unused_bytes(total_bytes, page_bytes.max(pages_min));
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

/// Bytes that pages do not use, apart from a part that they may grow by until the next computation. None if few lookups
/// would find their record there: the others would search it in vain.
fn unused_bytes(total_bytes: u64, page_bytes: u64) -> u64 {
    let growth_bytes = (total_bytes / PAGES_SHARE_MIN).max(2 * PAGES_BYTES_MIN);
    let unused = total_bytes.saturating_sub(page_bytes + growth_bytes);
    if unused < page_bytes / PAGES_PER_UNUSED_MAX { 0 } else { unused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_get_what_pages_leave_unless_that_is_little() {
        let mut split = CacheSplit::default();
        let none = CacheStats::default();
        let mut records = |page_bytes| split.record_bytes(160 << 20, page_bytes, (none, none));
        assert_eq!(records(0), 140 << 20, "a sixteenth for pages, and one for their growth");
        assert_eq!(records(100 << 20), 50 << 20);
        assert_eq!(records(120 << 20), 0, "30 MiB are less than a third of the pages");
        assert_eq!(records(160 << 20), 0);
        let evicted = CacheStats { evictions: 1, ..none };
        assert!((30 << 20..50 << 20).contains(&split.record_bytes(160 << 20, 160 << 20, (evicted, none))));
    }
}

//! Batched prefetch: loads the cache lines that the next lookups or appends will access.
//!
//! A lookup in memory has four dependent misses of the CPU caches: the index page's handle, the index page, the page
//! cache's table, the record (`docs/decisions/2026-11-21-hot-paths.md`). Misses of different keys are independent, so
//! that prefetches stage by stage overlap them.
use super::Engine;
use crate::format::record::RecordRef;
pub use crate::index::PREFETCH_KEYS_MAX;
use crate::index::Pointer;
use crate::log::segments::Segment;
use core::ops::Range;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{KeyHash, RangeId};

/// Maximum prefetched bytes per record.
const NEEDED_BYTES_MAX: usize = 320;

impl<D: Device> Engine<D> {
    /// Prefetches the memory that [`Engine::lookup`] or [`Engine::append`] of these keys will access. Changes only
    /// their speed. Only the first [`PREFETCH_KEYS_MAX`] hashes are used.
    pub fn prefetch(&self, range: RangeId, hashes: &[KeyHash]) {
        let Ok(at) = self.range_at(range) else { return };
        if self.records.is_on() {
            self.prefetch_cached(at, hashes);
        } else {
            self.prefetch_indexed(at, hashes);
        }
    }

    /// Prefetches the cached records among the keys, and index and page of the others.
    #[inline(never)]
    fn prefetch_cached(&self, at: usize, hashes: &[KeyHash]) {
        let hashes = &hashes[..hashes.len().min(PREFETCH_KEYS_MAX)];
        hashes.iter().for_each(|&hash| self.records.prefetch_table(hash));
        let (mut others, mut count) = ([KeyHash(0); PREFETCH_KEYS_MAX], 0);
        for &hash in hashes {
            // A cached record is found before the index. If it is overwritten, the index is not prefetched.
            if !self.records.prefetch_record(hash) {
                others[count] = hash;
                count += 1;
            }
        }
        self.prefetch_indexed(at, &others[..count]);
    }

    /// Prefetches index and page of the keys.
    #[inline]
    fn prefetch_indexed(&self, at: usize, hashes: &[KeyHash]) {
        let hashes = &hashes[..hashes.len().min(PREFETCH_KEYS_MAX)];
        let mut pointers = [Pointer::new(0); PREFETCH_KEYS_MAX];
        let mut found = 0;
        self.ranges[at].index.prefetch_candidates(hashes, |pointer| {
            pointers[found] = pointer;
            found += 1;
            self.prefetch_table(pointer);
        });
        debug_assert!(found <= hashes.len(), "one candidate per key");
        pointers[..found].iter().for_each(|&pointer| self.prefetch_record(pointer));
    }

    /// As [`Engine::prefetch`], for up to [`PREFETCH_KEYS_MAX`] records about to be appended.
    pub(crate) fn prefetch_records(&self, range: RangeId, records: &[(KeyHash, RecordRef<'_>)]) {
        debug_assert!(records.len() <= PREFETCH_KEYS_MAX, "more than are prefetched at once");
        let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
        for (hash, (of_record, _)) in hashes.iter_mut().zip(records) {
            *hash = *of_record;
        }
        // A single record gains nothing: it has no other misses to overlap with.
        if records.len() > 1
            && let Ok(at) = self.range_at(range)
        {
            self.prefetch_indexed(at, &hashes[..records.len()]);
        }
    }

    #[inline]
    fn prefetch_table(&self, pointer: Pointer) {
        let (slot, offset) = self.segments.slot_and_offset(pointer);
        if let Some(segment) = self.segments.get(slot) {
            self.cache.prefetch_table(segment.file, offset / PAGE_BYTES as u32);
        }
    }

    #[inline]
    fn prefetch_record(&self, pointer: Pointer) {
        let (slot, offset) = self.segments.slot_and_offset(pointer);
        if let Some(segment) = self.segments.get(slot) {
            let needed = record_range_in_page(segment, offset);
            self.cache.prefetch_bytes(segment.file, offset / PAGE_BYTES as u32, needed);
        }
    }
}

/// The part of the page to prefetch for a record at `offset`. Its length is not known yet, so the estimate is the
/// length that covers 99.9 % of the segment's records. The CPU's own prefetcher covers longer runs.
#[inline]
pub(super) fn record_range_in_page(segment: &Segment, offset: u32) -> Range<usize> {
    let from = offset as usize % PAGE_BYTES;
    from..PAGE_BYTES.min(from + (segment.lengths.covering_bytes() as usize).min(NEEDED_BYTES_MAX))
}

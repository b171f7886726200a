//! Owns fetching ahead: what lookups of several keys are about to touch, brought into the processor's caches together.
//!
//! A lookup in memory waits four times in a row for main memory: the index's page, the pointer in it, the cache's table,
//! the record. Those of different keys do not depend on each other, so done in step they wait together.
use super::Engine;
use crate::format::record::RecordRef;
use crate::index::Pointer;
use crate::log::segments::Segment;
use core::ops::Range;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{KeyHash, RangeId};

/// Keys at once: as many misses as a core keeps under way, and few enough that nothing is pushed out before its use.
pub const PREFETCH_KEYS_MAX: usize = 16;

/// Bytes of a record that are fetched.
const NEEDED_BYTES_MAX: usize = 320;

impl<D: Device> Engine<D> {
    /// Touches what [`Engine::lookup`] or [`Engine::append`] of these keys will; changes nothing but their speed. Looks
    /// at the first [`PREFETCH_KEYS_MAX`].
    pub fn prefetch(&self, range: RangeId, hashes: &[KeyHash]) {
        let hashes = &hashes[..hashes.len().min(PREFETCH_KEYS_MAX)];
        let Ok(at) = self.range_at(range) else { return };
        let index = &self.ranges[at].index;
        index.prefetch(hashes);
        let mut pointers = [Pointer(0); PREFETCH_KEYS_MAX];
        let mut found = 0;
        for &hash in hashes {
            // A second candidate is rare, and not worth the wait for the others.
            if let Some(pointer) = index.candidates(hash).next() {
                pointers[found] = pointer;
                found += 1;
                self.fetch_place(pointer);
            }
        }
        debug_assert!(found <= hashes.len(), "one candidate per key");
        pointers[..found].iter().for_each(|&pointer| self.fetch_record(pointer));
    }

    /// As [`Engine::prefetch`], for up to [`PREFETCH_KEYS_MAX`] records about to be appended.
    pub(crate) fn prefetch_records(&self, range: RangeId, records: &[(KeyHash, RecordRef<'_>)]) {
        debug_assert!(records.len() <= PREFETCH_KEYS_MAX, "more than are warmed at once");
        let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
        for (hash, (of_record, _)) in hashes.iter_mut().zip(records) {
            *hash = *of_record;
        }
        // One alone would only wait for the same lines a moment earlier.
        if records.len() > 1 {
            self.prefetch(range, &hashes[..records.len()]);
        }
    }

    #[inline]
    fn fetch_place(&self, pointer: Pointer) {
        let (slot, offset) = self.segments.place(pointer);
        if let Some(segment) = self.segments.get(slot) {
            self.cache.fetch_place(segment.file, offset / PAGE_BYTES as u32);
        }
    }

    #[inline]
    fn fetch_record(&self, pointer: Pointer) {
        let (slot, offset) = self.segments.place(pointer);
        if let Some(segment) = self.segments.get(slot) {
            let needed = needed_of(segment, offset);
            self.cache.fetch_bytes(segment.file, offset / PAGE_BYTES as u32, needed);
        }
    }
}

/// The part of its page that a record takes, about: a step is as coarse as the lengths are known, and the processor
/// follows a run that goes on by itself.
#[inline]
pub(super) fn needed_of(segment: &Segment, offset: u32) -> Range<usize> {
    let from = offset as usize % PAGE_BYTES;
    from..PAGE_BYTES.min(from + (segment.lengths.covering_bytes() as usize).min(NEEDED_BYTES_MAX))
}

//! Owns fetching ahead: what lookups of several keys are about to touch, brought into the processor's caches together.
//!
//! A lookup in memory waits four times in a row for main memory: the index's page, the pointer in it, the cache's table,
//! the record. Those of different keys do not depend on each other, so done in step they wait together.
use super::Engine;
use crate::format::record::RecordRef;
use crate::index::Pointer;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{KeyHash, RangeId};
use smallvec::SmallVec;

/// Keys at once: as many misses as a core keeps under way, and few enough that nothing is pushed out before its use.
pub const WARM_KEYS_MAX: usize = 16;

/// What the processor fetches at once, bytes.
const LINE_BYTES: usize = 64;
/// Lines of a record that are touched; the processor follows a run that goes on by itself.
const LINES_MAX: usize = 4;

impl<D: Device> Engine<D> {
    /// Touches what [`Engine::lookup`] or [`Engine::append`] of these keys will; changes nothing but their speed. Looks
    /// at the first [`WARM_KEYS_MAX`].
    pub fn warm(&self, range: RangeId, hashes: &[KeyHash]) {
        let hashes = &hashes[..hashes.len().min(WARM_KEYS_MAX)];
        let Ok(at) = self.range_at(range) else { return };
        let index = &self.ranges[at].index;
        // Finding the pages touches them; only then are they looked at.
        let mut pages: SmallVec<[_; WARM_KEYS_MAX]> = SmallVec::new();
        pages.extend(hashes.iter().map(|&hash| index.candidates(hash)));
        let mut pointers = [Pointer(0); WARM_KEYS_MAX];
        let mut found = 0;
        for candidates in &mut pages {
            // A second candidate is rare, and not worth the wait for the others.
            if let Some(pointer) = candidates.next() {
                pointers[found] = pointer;
                found += 1;
            }
        }
        debug_assert!(found <= hashes.len(), "one candidate per key");
        let touched = pointers[..found].iter().fold(0, |touched, &pointer| touched ^ self.touch(pointer));
        std::hint::black_box(touched);
    }

    /// As [`Engine::warm`], for up to [`WARM_KEYS_MAX`] records about to be appended.
    pub(crate) fn warm_records(&self, range: RangeId, records: &[(KeyHash, RecordRef<'_>)]) {
        debug_assert!(records.len() <= WARM_KEYS_MAX, "more than are warmed at once");
        let mut hashes = [KeyHash(0); WARM_KEYS_MAX];
        for (hash, (of_record, _)) in hashes.iter_mut().zip(records) {
            *hash = *of_record;
        }
        // One alone would only wait for the same lines a moment earlier.
        if records.len() > 1 {
            self.warm(range, &hashes[..records.len()]);
        }
    }

    /// Reads a byte of each line of the record's start, if its page is cached.
    #[inline]
    fn touch(&self, pointer: Pointer) -> u8 {
        let (slot, offset) = self.segments.place(pointer);
        let Some(segment) = self.segments.get(slot) else { return 0 };
        let Some(page) = self.cache.peek(segment.file, offset / PAGE_BYTES as u32) else { return 0 };
        let from = offset as usize % PAGE_BYTES;
        let line = |line: usize| page.get(from + line * LINE_BYTES).copied().unwrap_or(0);
        (0..LINES_MAX).fold(0, |touched, at| touched ^ line(at))
    }
}

//! Use of the record cache: lookups before the index, offers of records just read, refresh at each commit, and the
//! division of memory between the two caches.
//!
//! The cache holds what is committed and nothing else. So every change of a key's committed record passes here: commits,
//! transferred records, records found expired; a cleared range is dropped as a whole. Records that move within the log
//! need no change, because the cache knows no locations.
use super::Engine;
use super::fast_path::MemoryHit;
use super::fetch::{Hit, Location, Rejected};
use super::lookup::{FastFind, Lookup, OverlayHit, View};
use super::sorted::RunsPassed;
use crate::error::EngineError;
use crate::format::record::{self, RecordKind};
use crate::format::segment::StreamKind;
use crate::overlay::{KeyName, SPARE_PLACES};
use crate::range::PendingRecord;
use crate::record_cache::{CacheSplit, RecordPosition};
use fawn_flash::{CacheStats, Device};
use fawn_types::{EntryRef, KeyHash, TimeMs};
use std::collections::VecDeque;

/// Part of the caches' memory, one in sixteen, by which the record cache may grow between two computations: the page
/// cache keeps its memory until records take it.
const GROWTH_SHARE: u64 = 16;
const GROWTH_BYTES_MIN: u64 = 512 << 10;
/// Bytes by which it may shrink: some 50,000 records are evicted in a few milliseconds.
const SHRINK_BYTES_MAX: u64 = 16 << 20;
/// Found in pages that all fit, one record in so many is offered to a full record cache.
const OFFER_EVERY: u64 = 8;

impl<D: Device> Engine<D> {
    /// As [`Engine::lookup`], while the record cache is in use. A function of its own, so that a store whose keys are all
    /// in pages pays for one test.
    #[inline(never)]
    pub(super) fn lookup_cached(
        &mut self,
        at: usize,
        hash: KeyHash,
        key: &[u8],
        (view, now): (View, TimeMs),
    ) -> Result<Lookup<'_>, EngineError> {
        let is_committed = self.sees_committed(at, hash, key, view);
        if is_committed && let Some(found) = self.find_cached(at, hash, key, now) {
            self.stats.hits += 1;
            return Ok(Lookup::Found(self.records.entry(found)));
        }
        match self.find_fast(at, hash, key, (view, now)) {
            FastFind::Hit(hit) => {
                self.stats.hits += 1;
                let MemoryHit { flags, expires_at_ms, version, .. } = hit;
                if is_committed && hit.is_in_page() && self.takes_offer() {
                    self.records.offer(at, hash, key, EntryRef { value: &self.scratch, flags, expires_at_ms, version });
                }
                Ok(Lookup::Found(EntryRef { value: self.value_of(&hit), flags, expires_at_ms, version }))
            }
            FastFind::Absent => self.absent(),
            FastFind::Unknown => self.find_at(at, hash, key, (view, now), (Rejected::new(), RunsPassed::default())),
        }
    }

    /// Whether the view shows the key's committed record: no pending record and no pending clear hides it.
    #[inline]
    fn sees_committed(&self, at: usize, hash: KeyHash, key: &[u8], view: View) -> bool {
        view == View::Committed || matches!(self.find_in_overlay(at, hash, key, view), OverlayHit::Index)
    }

    /// Whether a record that was found in a page is offered. If pages are not evicted, that saves no device read but time: with
    /// the record cache full, not more than most offers would take.
    #[inline]
    fn takes_offer(&self) -> bool {
        self.cache.stats().evictions > 0
            || self.records.has_free_memory()
            || self.stats.hits.is_multiple_of(OFFER_EVERY)
    }

    /// The key's cached record. Expiry is left to the slow path: it removes the record, or finds a pending one that keeps
    /// the key.
    #[inline]
    fn find_cached(&mut self, at: usize, hash: KeyHash, key: &[u8], now: TimeMs) -> Option<RecordPosition> {
        let found = self.records.find(at, hash, key)?;
        let expires_at_ms = self.records.entry(found).expires_at_ms;
        (expires_at_ms == 0 || now.0 < expires_at_ms).then_some(found)
    }

    /// Offers a record that the slow path found, read from the device or in a page, to the record cache.
    pub(super) fn offer_hit(&mut self, at: usize, (hash, key): (KeyHash, &[u8]), view: View, hit: &Hit) {
        if hit.kind != RecordKind::Put || !self.sees_committed(at, hash, key, view) {
            return;
        }
        let bytes: &[u8] = match (hit.location, &self.resume) {
            (Location::Scratch, _) => &self.scratch,
            (Location::Resume { at }, Some(resume)) => &resume.buf[at..],
            // The window's records are in memory already.
            (Location::Resume { .. } | Location::Window { .. }, _) => return,
        };
        let Hit { flags, expires_at_ms, version, .. } = *hit;
        let value = &bytes[hit.value.clone()];
        self.records.offer(at, hash, key, EntryRef { value, flags, expires_at_ms, version });
    }

    /// Replaces or removes the key's cached record, because this one is committed now.
    #[inline]
    pub(super) fn refresh_cached(&mut self, at: usize, name: KeyName, is_put: bool, pending: &PendingRecord) {
        if !self.records.is_empty() && self.records.has(at, KeyHash(name.hash)) {
            self.refresh_found(at, KeyHash(name.hash), is_put, pending);
        }
    }

    #[inline(never)]
    fn refresh_found(&mut self, at: usize, hash: KeyHash, is_put: bool, pending: &PendingRecord) {
        let (slot, offset) = self.segments.slot_and_offset(pending.pointer);
        // Usually the record is still in the window. A hot key that is written often then needs no read after any write.
        let window = &self.streams[StreamKind::Foreground].window;
        let bytes = window.record(slot, offset).filter(|_| is_put);
        match bytes.map(|bytes| record::decode_verified(bytes, offset)) {
            Some(Ok(stored)) if stored.record.kind == RecordKind::Put => {
                let record = stored.record;
                let (value, flags, expires_at_ms) = (record.value, record.flags, record.expires_at_ms);
                let entry = EntryRef { value, flags, expires_at_ms, version: record.version };
                self.records.replace(at, hash, record.key, entry);
            }
            _ => self.records.remove(at, hash),
        }
    }

    /// Divides the memory that index, overlay and buffers leave between the page cache and the record cache.
    pub(crate) fn balance_memory(&mut self) {
        if self.pool.drop_unused(self.now.mono) {
            self.drop_unused_places();
        }
        let report = self.memory();
        let used = report.total_bytes() - report.cache_bytes - report.record_cache_bytes;
        // The caches always keep a sixteenth, so that lookups find the page they have just read.
        let caches = self.options.memory_bytes.saturating_sub(used).max(self.options.memory_bytes / 16);
        let marginal_bytes = CacheSplit::marginal_bytes(caches) as usize;
        self.cache.set_marginal_bytes(marginal_bytes);
        self.records.set_marginal_bytes(marginal_bytes);
        let records = self.options.record_cache_bytes.unwrap_or_else(|| {
            let stats = (self.cache.stats(), self.records.stats());
            let (wanted, before) =
                (self.split.record_bytes(caches, report.cache_bytes, stats), report.record_cache_bytes);
            let most = before + (caches / GROWTH_SHARE).max(GROWTH_BYTES_MIN);
            wanted.clamp(before.saturating_sub(SHRINK_BYTES_MAX), most)
        });
        let records = records.min(caches);
        self.records.set_budget_bytes(records as usize);
        self.cache.set_budget_bytes((caches - records) as usize);
    }

    /// Returns memory that a large batch or many writers needed once: queues keep their capacity otherwise, and the caches
    /// would go without.
    fn drop_unused_places(&mut self) {
        self.overlay.drop_unused();
        drop_unused(&mut self.verify_queue);
        self.ranges.iter_mut().for_each(|range| drop_unused(&mut range.pending));
    }

    /// Counters of the page cache.
    pub fn page_cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Counters of the record cache.
    pub fn record_cache_stats(&self) -> CacheStats {
        self.records.stats()
    }
}

/// Shrinks a queue that is nearly empty.
fn drop_unused<T>(queue: &mut VecDeque<T>) {
    let wanted = (2 * queue.len()).max(SPARE_PLACES);
    if queue.capacity() > 4 * wanted {
        queue.shrink_to(wanted);
    }
}

//! Deferred records of an opening: the newest record of each key that the index may have an older version of.
//!
//! Only a read of that version shows whether it is the key's own, and there may be millions of them. The opening leaves these
//! reads to the engine, which makes them while it serves. Lookups find a deferred record meanwhile, so it must be newer than
//! what the index has of its key.
use crate::engine::Engine;
use crate::options::Options;
use crate::overlay::{CopyRank, DeferredRecord, KeyName, PLACE_BYTES, PlaceTable, Written};
use fawn_flash::{Device, prefer_huge_pages, prefetch};
use fawn_types::{KeyHash, Version};

/// Maximum memory of a deferred record.
pub(crate) const DEFERRED_BYTES: usize = size_of::<DeferredRecord>() + PLACE_BYTES;

/// Part of the memory budget that the filter of survivors takes.
const FILTER_SHARE: usize = 64;
const FILTER_WORDS_MIN: usize = 1 << 10;
/// Most words: a bit for each of a billion survivors.
const FILTER_WORDS_MAX: usize = 1 << 24;

/// The deferred records by key.
#[derive(Debug)]
pub(super) struct DeferredRecords {
    records: Vec<DeferredRecord>,
    /// Their places by key, of each range.
    tables: Vec<PlaceTable>,
    keys_max: usize,
    /// Lowest and highest sequence number of their segments.
    segments: (u64, u64),
    /// A bit for the hashes of all survivors that were read, and the highest version of these.
    survivors: Vec<u64>,
    survivors_highest: Version,
    filter_words: usize,
}

/// Whether a record of this version and rank replaces the known one of its key. Of two that are equal in both, one is the
/// copy of the other.
fn replaces(version: Version, rank: CopyRank, known: &DeferredRecord) -> bool {
    (version, rank) > (known.written.version, known.rank)
}

impl DeferredRecords {
    pub(super) fn new(options: &Options) -> Self {
        // A read-only engine may be read at once and without a poll.
        let keys_max = if options.read_only { 0 } else { options.deferred_keys_max() };
        let filter_words = options.memory_bytes as usize / FILTER_SHARE / size_of::<u64>();
        let filter_words = filter_words.clamp(FILTER_WORDS_MIN, FILTER_WORDS_MAX);
        let (survivors, survivors_highest) = (Vec::new(), Version::ZERO);
        let (records, tables) = (Vec::new(), Vec::new());
        Self { records, tables, keys_max, segments: (u64::MAX, 0), survivors, survivors_highest, filter_words }
    }

    /// Leaves memory for indexes of so many bytes.
    pub(super) fn bound_beside(&mut self, options: &Options, index_bytes: u64) {
        self.keys_max = self.keys_max.min(options.deferred_keys_max_beside(index_bytes));
    }

    /// Makes room for the keys of so many scanned records of each range, and for so many in all.
    pub(super) fn expect(&mut self, by_range: &[u64], records: u64) {
        let keys = usize::try_from(records).unwrap_or(usize::MAX).min(self.keys_max);
        let share_of = |of_range: u64| (u128::from(of_range) * keys as u128 / u128::from(records.max(1))) as usize;
        self.tables = by_range.iter().map(|&of_range| PlaceTable::with_capacity(share_of(of_range))).collect();
        // Address space alone: memory is taken once it is used. A system that counts both may refuse it; then the list grows as
        // it is needed.
        if self.records.try_reserve_exact(keys).is_ok() {
            prefer_huge_pages(self.records.spare_capacity_mut());
        }
    }

    /// All keys are compared by the opening.
    pub(super) const fn defer_nothing(&mut self) {
        self.keys_max = 0;
    }

    /// Notes a survivor that is not deferred.
    pub(super) fn add_survivor(&mut self, hash: u64, version: Version) {
        self.survivors.resize(self.filter_words, 0);
        self.survivors_highest = self.survivors_highest.max(version);
        let (word, bit) = self.bit_of(hash);
        self.survivors[word] |= bit;
    }

    /// Whether the key may have a survivor that is at least as new, and not deferred.
    pub(super) fn may_have_newer_survivor(&self, hash: u64, version: Version) -> bool {
        if version > self.survivors_highest {
            return false;
        }
        let (word, bit) = self.bit_of(hash);
        self.survivors[word] & bit != 0
    }

    const fn bit_of(&self, hash: u64) -> (usize, u64) {
        let place = (hash as u128 * (self.filter_words as u128 * 64)) >> 64;
        ((place / 64) as usize, 1 << (place % 64))
    }

    /// Whether memory for further keys is left.
    pub(super) fn has_room(&self) -> bool {
        self.records.len() < self.keys_max
    }

    fn find(&self, range: usize, name: KeyName) -> Option<usize> {
        let is_of_key = |at: u32| {
            let known = &self.records[at as usize];
            known.name == name && known.range() == range
        };
        self.tables.get(range)?.find(name.hash, is_of_key).map(|at| at as usize)
    }

    /// Prefetches the places of a range's keys.
    pub(super) fn prefetch_places(&self, range: usize, hashes: &[KeyHash]) {
        let Some(table) = self.tables.get(range) else { return };
        hashes.iter().for_each(|hash| table.prefetch(hash.0));
    }

    /// Prefetches the records of keys whose places were prefetched before.
    pub(super) fn prefetch_records(&self, range: usize, hashes: &[KeyHash]) {
        let Some(table) = self.tables.get(range) else { return };
        let places = hashes.iter().filter_map(|hash| table.find(hash.0, |_| true));
        places.for_each(|at| prefetch(&self.records[at as usize..][..1]));
    }

    /// Takes a record of a key that has a deferred one; the newer of the two stays. Returns whether it has.
    pub(super) fn replace<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        (range, name): (usize, KeyName),
        record: impl FnOnce() -> DeferredRecord,
    ) -> bool {
        let Some(at) = self.find(range, name) else { return false };
        let record = record();
        if replaces(record.written.version, record.rank, &self.records[at]) {
            let old = core::mem::replace(&mut self.records[at], record);
            self.count(engine, record.range(), &record.written);
            if old.written.is_put {
                engine.release_old(record.range(), old.written.replaced(), record.written.version);
            }
        }
        true
    }

    /// Adds a record of a key that has none.
    pub(super) fn insert<D: Device>(&mut self, engine: &mut Engine<D>, record: DeferredRecord) {
        self.records.push(record);
        self.enter(self.records.len() - 1);
        self.count(engine, record.range(), &record.written);
    }

    fn enter(&mut self, at: usize) {
        let record = &self.records[at];
        if self.tables.len() <= record.range() {
            self.tables.resize_with(record.range() + 1, PlaceTable::default);
        }
        self.tables[record.range()].insert(record.name.hash, at as u32, self.keys_max);
    }

    /// A put is live until its verification says otherwise.
    fn count<D: Device>(&mut self, engine: &mut Engine<D>, range: usize, written: &Written) {
        let (slot, _) = engine.segments.slot_and_offset(written.pointer);
        let segment = engine.segments.expect_mut(slot);
        let (lowest, highest) = self.segments;
        self.segments = (lowest.min(segment.sequence), highest.max(segment.sequence));
        if written.is_put {
            segment.add_live(range, written.len_bytes);
        }
    }

    pub(super) fn forget_range(&mut self, range: usize) {
        let before = self.records.len();
        self.records.retain(|known| known.range() != range);
        if self.records.len() == before {
            // Each clear of the log comes here.
            return;
        }
        self.tables.iter_mut().for_each(PlaceTable::clear);
        (0..self.records.len()).for_each(|at| self.enter(at));
    }

    /// Hands the records over to the overlay.
    pub(super) fn hand_over<D: Device>(&mut self, engine: &mut Engine<D>) {
        let (records, tables) = (core::mem::take(&mut self.records), core::mem::take(&mut self.tables));
        engine.overlay.defer(records, tables, self.segments);
    }
}

//! Record cache: small records that were read twice, packed, within a memory budget that can change at run time.
//!
//! Hot records lie one to a page, so a page cache wastes most of its memory on their neighbours. This cache holds the
//! records alone. It is found by the key's hash before overlay and index, and always holds what is committed: the engine
//! replaces or removes a key's record at each commit. It is never a source of recovery.
//!
//! Eviction is S3-FIFO [Yang et al., SOSP 2023] over bytes. A new record enters a small queue of a tenth of the memory,
//! and moves to the main queue if it is used there, or if it returns soon after its eviction. A hit changes at most the
//! use count in the table; records of both queues lie in the order of their eviction (`slabs`).
mod slabs;
mod split;
mod table;

use fawn_flash::CacheStats;
use fawn_flash::cache::{GHOST_BYTES, Ghosts};
use fawn_types::{EntryRef, KeyHash};
pub(crate) use slabs::{CachedRecord, RecordPosition};
use slabs::{PACKED_BYTES_MAX, RecordQueue, RecordSlabs, SLAB_BYTES, SLAB_COST_BYTES, SLABS_MAX};
pub use split::CacheSplit;
use table::{EntryPlace, RecordTable};

/// Fraction of the bytes in the small queue, one in ten, as in the page cache.
const SMALL_SHARE: usize = 10;
/// Uses in the small queue from which on a record moves to the main queue.
const PROMOTED_USES: u64 = 1;
/// Records that one insert examines at most; if that frees no room, the insert is dropped.
const EVICTIONS_MAX: usize = 256;
/// Length of a record that is assumed while there are too few to tell.
const USUAL_BYTES: usize = 256;
/// Below this budget the cache is off: its spare slabs and tables would take most of it.
const BUDGET_BYTES_MIN: usize = 256 << 10;
/// Longest budget that is used, bytes: that many slabs have places.
const BUDGET_BYTES_MAX: usize = SLABS_MAX * SLAB_COST_BYTES;

/// A cache of records by range and key.
pub struct RecordCache {
    slabs: RecordSlabs,
    table: RecordTable,
    ghosts: Ghosts,
    budget_bytes: usize,
    /// Evictions within which a returned record counts as a marginal hit.
    marginal_evictions: u32,
    /// Names of the ranges' contents. A cleared range gets a new name, so its records are never found again and are
    /// evicted like other unused ones.
    spaces: Vec<u32>,
    last_space: u32,
    stats: CacheStats,
}

impl RecordCache {
    /// A cache that takes at most `budget_bytes`, including its own tables. Below 256 KiB it caches nothing.
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        let mut cache = Self {
            slabs: RecordSlabs::default(),
            table: RecordTable::default(),
            ghosts: Ghosts::new(0),
            budget_bytes: 0,
            marginal_evictions: 0,
            spaces: Vec::new(),
            last_space: 0,
            stats: CacheStats::default(),
        };
        cache.set_budget_bytes(budget_bytes);
        cache
    }

    /// Whether lookups can find anything.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Whether records are taken.
    #[inline]
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.slabs.slabs_max() > 0
    }

    /// Whether a record can be added without an eviction.
    #[inline]
    #[must_use]
    pub fn has_free_memory(&self) -> bool {
        self.slabs.has_unused_slab()
    }

    /// The record of a key, if cached. Counts a hit or a miss, and a use of the record.
    #[inline]
    pub(crate) fn find(&mut self, range: usize, hash: KeyHash, key: &[u8]) -> Option<RecordPosition> {
        let (space, slabs) = (self.space_of(range), &self.slabs);
        let is_it = |at| {
            let record = slabs.get(at);
            record.space == space && record.key == key
        };
        let Some(place) = self.table.find(hash, is_it) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.table.touch(place);
        Some(self.table.position(place))
    }

    /// The entry at a position just found.
    #[inline]
    pub(crate) fn entry(&self, at: RecordPosition) -> EntryRef<'_> {
        let CachedRecord { value, flags, expires_at_ms, version, .. } = self.slabs.get(at);
        EntryRef { value, flags, expires_at_ms, version }
    }

    /// The entry of a key, if cached.
    pub fn get(&mut self, range: usize, hash: KeyHash, key: &[u8]) -> Option<EntryRef<'_>> {
        let at = self.find(range, hash, key)?;
        Some(self.entry(at))
    }

    /// Cached records of a range with the hashes `first..=last`, in no order, if that takes no more than `buckets_max`
    /// buckets of the table. Counts no hits and no uses.
    pub(crate) fn between(
        &self,
        range: usize,
        (first, last): (KeyHash, KeyHash),
        buckets_max: usize,
    ) -> impl Iterator<Item = CachedRecord<'_>> {
        let is_short = !self.is_empty() && self.table.buckets_between(first, last) <= buckets_max;
        let positions = is_short.then(|| self.table.between(first, last)).into_iter().flatten();
        let space = self.space_of(range);
        positions
            .map(|at| self.slabs.get(at))
            .filter(move |record| record.space == space && (first..=last).contains(&record.hash))
    }

    /// Prefetch for lookups, step one of two: the table's line.
    #[inline]
    pub(crate) fn prefetch_table(&self, hash: KeyHash) {
        self.table.prefetch(hash);
    }

    /// Step two: the record. Returns whether the key may be cached.
    #[inline]
    pub(crate) fn prefetch_record(&self, hash: KeyHash) -> bool {
        self.table.guess(hash).is_some_and(|at| {
            self.slabs.prefetch(at);
            true
        })
    }

    /// Takes a key's committed entry, which a lookup has just found elsewhere, if it is short enough.
    pub fn offer(&mut self, range: usize, hash: KeyHash, key: &[u8], entry: EntryRef<'_>) {
        let record = self.record_of(range, hash, key, entry);
        if !self.is_on() || record.packed_len() > PACKED_BYTES_MAX {
            return;
        }
        self.remove(range, hash);
        let queue = match self.ghosts.take(hash.0) {
            Some(age) => {
                self.stats.marginal_hits += u64::from(age <= self.marginal_evictions);
                RecordQueue::Main
            }
            None => RecordQueue::Small,
        };
        self.insert(queue, &record);
    }

    /// Whether some record with this hash is cached for the range.
    #[inline]
    #[must_use]
    pub fn has(&self, range: usize, hash: KeyHash) -> bool {
        self.place_of(range, hash).is_some()
    }

    /// Replaces a key's cached record by the entry that is committed now. Does nothing if none is cached.
    pub fn replace(&mut self, range: usize, hash: KeyHash, key: &[u8], entry: EntryRef<'_>) {
        let Some(place) = self.place_of(range, hash) else { return };
        let at = self.table.position(place);
        let record = self.record_of(range, hash, key, entry);
        let (len, old) = (record.packed_len(), self.slabs.get(at));
        // A key of the same hash has no other place either.
        if old.packed_len() == len {
            self.slabs.overwrite(at, &record);
            return;
        }
        self.remove(range, hash);
        if len <= PACKED_BYTES_MAX {
            self.insert(RecordQueue::Main, &record);
        }
    }

    /// Removes all records with this hash of the range.
    #[inline]
    pub fn remove(&mut self, range: usize, hash: KeyHash) {
        while let Some(place) = self.place_of(range, hash) {
            self.table.remove(place);
        }
    }

    /// Removes all records of a range, at constant cost.
    pub fn clear_range(&mut self, range: usize) {
        if self.spaces.len() <= range {
            self.spaces.resize(range + 1, 0);
        }
        if self.last_space == u32::MAX {
            self.empty();
        }
        self.last_space += 1;
        self.spaces[range] = self.last_space;
    }

    /// Evicts everything and forgets all names of spaces.
    #[cold]
    fn empty(&mut self) {
        let budget_bytes = self.budget_bytes;
        self.set_budget_bytes(0);
        self.set_budget_bytes(budget_bytes);
        self.spaces.fill(0);
        self.last_space = 0;
    }

    /// Changes the budget. Shrinking evicts records and returns memory before it returns.
    pub fn set_budget_bytes(&mut self, budget_bytes: usize) {
        let budget_bytes = budget_bytes.min(BUDGET_BYTES_MAX);
        self.budget_bytes = budget_bytes;
        let records = if budget_bytes < BUDGET_BYTES_MIN { 0 } else { self.records_within(budget_bytes) };
        // New ghosts begin empty, so they must not alternate between two sizes while the mean length varies.
        let (places, wanted) = (self.ghosts.places(), Ghosts::places_for(records));
        if places < wanted || places > 2 * wanted {
            self.ghosts = Ghosts::new(records);
        }
        // Evict to the size that the table is to have, then shrink it; a table of short records may still be larger.
        self.fit(records, RecordTable::bytes_for(records));
        self.table.shrink(records);
        self.fit(records, self.table.resident_bytes());
        self.slabs.shrink_lists();
    }

    /// Sets the amount of memory for which [`CacheStats::marginal_hits`] counts: hits that so many more bytes would have
    /// brought.
    pub fn set_marginal_bytes(&mut self, bytes: usize) {
        self.marginal_evictions = (bytes / self.mean_bytes()) as u32;
    }

    /// Memory allocated, including the tables, whether or not the system has backed all of it.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.slabs.resident_bytes() + self.table.resident_bytes() + self.ghosts.places() * GHOST_BYTES
    }

    /// Cached records.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.table.len()
    }

    /// Hits, misses, inserts and evictions so far.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    #[inline]
    fn space_of(&self, range: usize) -> u32 {
        self.spaces.get(range).copied().unwrap_or(0)
    }

    fn record_of<'r>(&mut self, range: usize, hash: KeyHash, key: &'r [u8], entry: EntryRef<'r>) -> CachedRecord<'r> {
        if self.space_of(range) == 0 {
            self.clear_range(range);
        }
        let EntryRef { value, flags, expires_at_ms, version } = entry;
        CachedRecord { space: self.space_of(range), hash, key, value, flags, expires_at_ms, version }
    }

    #[inline]
    fn place_of(&self, range: usize, hash: KeyHash) -> Option<EntryPlace> {
        let (space, slabs) = (self.space_of(range), &self.slabs);
        self.table.find(hash, |at| {
            let record = slabs.get(at);
            record.hash == hash && record.space == space
        })
    }

    fn mean_bytes(&self) -> usize {
        let bytes = self.slabs.bytes(RecordQueue::Small) + self.slabs.bytes(RecordQueue::Main);
        if self.records() < 64 { USUAL_BYTES } else { (bytes / self.records()).clamp(32, PACKED_BYTES_MAX) }
    }

    fn records_within(&self, budget_bytes: usize) -> usize {
        budget_bytes / (self.mean_bytes() + RecordTable::bytes_for(1) + GHOST_BYTES)
    }

    /// Sets the number of slabs to the memory that the ghosts, and a table of this size or for this many records, leave.
    fn fit(&mut self, records: usize, table_bytes: usize) {
        let table = table_bytes.max(RecordTable::bytes_for(records));
        let left = self.budget_bytes.saturating_sub(table + self.ghosts.places() * GHOST_BYTES);
        self.slabs.set_slabs_max(if records == 0 { 0 } else { left / SLAB_COST_BYTES });
        while self.slabs.slabs() > self.slabs.slabs_max() {
            while !self.slabs.has_free_slab() && self.evict(false) {}
            let table = &mut self.table;
            let is_dropped = self.slabs.drop_last(|hash, from, to| {
                if let Some(place) = table.find(hash, |at| at == from) {
                    table.set_position(place, to, table.uses(place));
                }
            });
            assert!(is_dropped, "an eviction frees a slab, or none is in use");
        }
    }

    /// Adds a record to a queue, if there is room for it.
    fn insert(&mut self, queue: RecordQueue, record: &CachedRecord<'_>) {
        let table_bytes = self.table.resident_bytes();
        let has_entry = self.table.has_room(record.hash);
        if self.table.resident_bytes() > table_bytes {
            self.fit(self.records_within(self.budget_bytes), self.table.resident_bytes());
        }
        // In a full bucket a record that was read once must not displace others: a scan would. It enters when it returns.
        if !has_entry && queue == RecordQueue::Small {
            self.ghosts.insert(record.hash.0);
            return;
        }
        if self.make_room(queue, record.packed_len())
            && let Some(at) = self.slabs.push(queue, record)
        {
            self.table.insert(record.hash, at);
            self.stats.inserts += 1;
        }
    }

    /// Evicts until a record of this length has room in the queue; `false` if that would take too long.
    fn make_room(&mut self, queue: RecordQueue, len: usize) -> bool {
        for _ in 0..EVICTIONS_MAX {
            if self.slabs.has_room(queue, len) {
                return true;
            }
            if !self.evict(true) {
                break;
            }
        }
        self.slabs.has_room(queue, len)
    }

    /// Passes the oldest record of a queue: evicts it, or moves it within or to the main queue if it was used and `moves`
    /// are wanted. Returns `false` if both queues are empty.
    fn evict(&mut self, moves: bool) -> bool {
        let small_max = self.slabs.slabs_max() * SLAB_BYTES / SMALL_SHARE;
        let is_small_due = self.slabs.bytes(RecordQueue::Small) > small_max;
        let order = [RecordQueue::Small, RecordQueue::Main];
        let [first, second] = if is_small_due { order } else { [order[1], order[0]] };
        let mut queue = first;
        let mut drained = self.slabs.drain(first);
        if drained.is_none() {
            queue = second;
            drained = self.slabs.drain(second);
        }
        let Some(at) = drained else { return false };
        let hash = self.slabs.get(at).hash;
        let Some(place) = self.table.find(hash, |position| position == at) else { return true };
        let uses = self.table.uses(place);
        let kept_uses = match queue {
            RecordQueue::Small => (uses >= PROMOTED_USES).then_some(0),
            RecordQueue::Main => uses.checked_sub(1),
        };
        if let Some(uses) = kept_uses.filter(|_| moves)
            && let Some(to) = self.slabs.copy_to_main(at)
        {
            self.table.set_position(place, to, uses);
            return true;
        }
        self.table.remove(place);
        self.ghosts.insert(hash.0);
        self.stats.evictions += 1;
        true
    }
}

impl core::fmt::Debug for RecordCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RecordCache({} records, {} B, {:?})", self.records(), self.resident_bytes(), self.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::Version;
    use fawn_types::random::SplitMix64;

    /// Records of two ranges, the first and the last hash among them, against the hashes themselves, as the table grows and shrinks.
    #[test]
    fn records_between_two_hashes_are_those_of_the_range() {
        let mut cache = RecordCache::new(4 << 20);
        let mut rng = SplitMix64::new(5);
        let mut hashes = vec![0, u64::MAX, 1 << 34, (1 << 34) - 1];
        let entry = EntryRef { value: b"v", flags: 0, expires_at_ms: 0, version: Version::from_u64(1) };
        for round in 0..40 {
            hashes.extend((0..100).map(|_| rng.next()));
            for range in 0..2 {
                hashes.iter().for_each(|&hash| cache.offer(range, KeyHash(hash), &hash.to_le_bytes(), entry));
            }
            if round == 30 {
                cache.set_budget_bytes(512 << 10);
            }
            let cached: Vec<u64> = hashes.iter().copied().filter(|&hash| cache.has(1, KeyHash(hash))).collect();
            assert!(cached.len() > hashes.len() / 4, "{} of {}", cached.len(), hashes.len());
            for part in 0..20 {
                let (one, other) = (rng.next(), rng.next() >> (3 * part));
                let (first, last) = if part == 0 { (0, u64::MAX) } else { (one.min(other), one.max(other)) };
                let mut found: Vec<u64> =
                    cache.between(1, (KeyHash(first), KeyHash(last)), usize::MAX).map(|record| record.hash.0).collect();
                let mut expected: Vec<u64> =
                    cached.iter().copied().filter(|hash| (first..=last).contains(hash)).collect();
                found.sort_unstable();
                expected.sort_unstable();
                expected.dedup();
                assert_eq!(found, expected, "round {round}, {first:x} to {last:x}");
            }
        }
        assert_eq!(cache.between(1, (KeyHash(0), KeyHash(u64::MAX)), 64).count(), 0, "more buckets than that");
        cache.clear_range(1);
        assert_eq!(cache.between(1, (KeyHash(0), KeyHash(u64::MAX)), usize::MAX).count(), 0);
    }

    /// The spaces' names are used up: a record of the first one must not be found as one of now.
    #[test]
    fn spaces_are_named_anew_once_their_names_are_used_up() {
        let mut cache = RecordCache::new(4 << 20);
        let entry = EntryRef { value: b"v", flags: 0, expires_at_ms: 0, version: Version::from_u64(1) };
        cache.offer(0, KeyHash(1), b"cleared", entry);
        cache.last_space = u32::MAX;
        (0..2).for_each(|_| cache.clear_range(0));
        assert!(cache.get(0, KeyHash(1), b"cleared").is_none());
        cache.offer(0, KeyHash(2), b"new", entry);
        cache.offer(1, KeyHash(2), b"new", entry);
        cache.clear_range(1);
        assert!(cache.get(0, KeyHash(2), b"new").is_some() && cache.get(1, KeyHash(2), b"new").is_none());
    }
}

//! Prefetching for the log's records: the memory that each one will access is fetched two steps before its turn.
use super::decode::{DecodedBatch, DecodedRecord};
use super::index_build::IndexBuilder;
use crate::index::PREFETCH_KEYS_MAX;
use fawn_flash::Device;
use fawn_types::KeyHash;

/// Keys of one range whose places are prefetched.
struct PrefetchedKeys {
    range: usize,
    hashes: [KeyHash; PREFETCH_KEYS_MAX],
    len: usize,
}

impl PrefetchedKeys {
    const NONE: Self = Self { range: 0, hashes: [KeyHash(0); PREFETCH_KEYS_MAX], len: 0 };

    fn hashes(&self) -> &[KeyHash] {
        &self.hashes[..self.len]
    }
}

impl<D: Device> IndexBuilder<'_, D> {
    /// Applies the next records of the log.
    pub(super) fn records(&mut self, slot: u32, batch: &DecodedBatch) {
        let chunks = batch.records.chunks(PREFETCH_KEYS_MAX);
        // The second step reads memory that the first one has prefetched, one chunk earlier.
        let mut ahead = chunks.clone();
        let first = self.prefetch_places(ahead.next().unwrap_or_default());
        self.prefetch_pages(&first);
        let mut next = self.prefetch_places(ahead.next().unwrap_or_default());
        for records in chunks {
            let after_next = self.prefetch_places(ahead.next().unwrap_or_default());
            self.prefetch_pages(&next);
            next = after_next;
            records.iter().for_each(|record| self.record(slot, record, batch.key_of(record)));
        }
    }

    /// Prefetches where the index and the deferred records have the keys of the first record's range.
    #[inline]
    fn prefetch_places(&self, records: &[DecodedRecord]) -> PrefetchedKeys {
        let mut keys = PrefetchedKeys::NONE;
        let Some(number) = records.first().map(|record| record.number) else { return keys };
        let Some(&at) = self.numbers.get(&number) else { return keys };
        keys.range = at;
        for record in records.iter().filter(|record| record.number == number) {
            keys.hashes[keys.len] = KeyHash(record.name.hash);
            keys.len += 1;
        }
        self.engine.ranges[at].index.prefetch_handles(keys.hashes());
        self.deferred.prefetch_places(at, keys.hashes());
        keys
    }

    /// Prefetches the index's fragments and the deferred records of these keys.
    #[inline]
    fn prefetch_pages(&self, keys: &PrefetchedKeys) {
        if keys.len > 0 {
            self.engine.ranges[keys.range].index.prefetch_fragments(keys.hashes());
            self.deferred.prefetch_records(keys.range, keys.hashes());
        }
    }
}

//! Statistics of an embedded store.
use crate::engine::Engine;
use fawn_flash::Device;

/// Contents of a store, work since it was opened, and its use of memory. Sizes are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Keys, as [`crate::Store::len`] estimates them.
    pub keys: u64,
    /// Segment files of the log.
    pub segments: u64,
    /// Space that they take on the device.
    pub disk_bytes: u64,
    /// Space of the records that are current; the rest of `disk_bytes` is overwritten, deleted or not yet used.
    pub live_bytes: u64,
    /// Lookups, those for conditions included.
    pub lookups: u64,
    /// Lookups that found a value.
    pub hits: u64,
    /// Device reads for lookups.
    pub device_reads: u64,
    /// Writes, deletes and clears.
    pub writes: u64,
    /// Key and value bytes of these.
    pub user_bytes: u64,
    /// Bytes that the log wrote for them, headers and padding included.
    pub log_bytes: u64,
    /// Syncs that were not part of a write.
    pub syncs: u64,
    /// The budget of [`crate::Builder::memory`].
    pub memory_budget_bytes: u64,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Memory of writes in flight, device buffers included.
    pub buffer_bytes: u64,
    /// Memory of cached pages and records.
    pub cache_bytes: u64,
}

impl Stats {
    pub(super) fn of<D: Device>(engine: &Engine<D>) -> Self {
        let (stats, log, memory) = (engine.stats(), engine.log_report(), engine.memory());
        Self {
            keys: engine.len(super::RANGE),
            segments: log.segments,
            disk_bytes: log.segment_bytes,
            live_bytes: log.live_bytes,
            lookups: stats.lookups,
            hits: stats.hits,
            device_reads: stats.reads,
            writes: stats.appended_records,
            user_bytes: stats.user_bytes,
            log_bytes: stats.written_bytes,
            syncs: stats.syncs,
            memory_budget_bytes: memory.budget_bytes,
            index_bytes: memory.index_bytes,
            buffer_bytes: memory.overlay_bytes + memory.buffer_bytes,
            cache_bytes: memory.cache_bytes + memory.record_cache_bytes,
        }
    }

    /// Memory in use, bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.index_bytes + self.buffer_bytes + self.cache_bytes
    }
}

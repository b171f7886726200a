//! Owns what the engine counts: reads per get, false reads, amplification, and where the memory went.

/// Counters since the engine was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Lookups begun.
    pub lookups: u64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Device reads for lookups.
    pub reads: u64,
    /// Of these, second reads for records longer than their segment's 99.9 %.
    pub second_reads: u64,
    /// Records looked at whose key was another: fragment matches.
    pub false_matches: u64,
    /// Device reads that confirm overwritten keys' old versions.
    pub verification_reads: u64,
    /// Old versions that could not be read or were corrupt, each time that they were tried.
    pub verifications_failed: u64,
    /// Old versions confirmed without a device read.
    pub verifications_free: u64,
    /// Corrupt or unreadable records that scans came by and passed.
    pub corrupt_passed: u64,
    /// Records appended.
    pub appended_records: u64,
    /// Key and value bytes appended.
    pub user_bytes: u64,
    /// Record bytes appended, headers and padding included.
    pub record_bytes: u64,
    /// Writes of the log.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Frames closed.
    pub frames: u64,
    /// Syncs of log files, durable writes not counted.
    pub syncs: u64,
    /// Segments dropped.
    pub segments_dropped: u64,
    /// Expired records that a lookup met and removed.
    pub expired: u64,
}

/// A gauge of what the store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogReport {
    /// Segments.
    pub segments: u64,
    /// Bytes that segments take on the device.
    pub segment_bytes: u64,
    /// Bytes of records that are current.
    pub live_bytes: u64,
    /// Segments that walks over all of them have come by since the opening: what writes and idle polls cost beyond what
    /// they do. A writing turn must not add to it.
    pub segments_visited: u64,
    /// Keys in the overlay.
    pub overlay_keys: u64,
    /// Old versions waiting for confirmation.
    pub verifications_queued: u64,
    /// Overwritten or deleted keys whose old version could not be read, or is corrupt. Each keeps an entry in memory
    /// that answers for the key, and is tried again from time to time.
    pub keys_apart: u64,
}

/// Where the memory went, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// The budget.
    pub budget_bytes: u64,
    /// Indexes of all ranges.
    pub index_bytes: u64,
    /// Keys in flight and pending records.
    pub overlay_bytes: u64,
    /// Append window and I/O buffers, those of reads in flight included.
    pub buffer_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
}

impl MemoryReport {
    /// All of it.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.index_bytes + self.overlay_bytes + self.buffer_bytes + self.cache_bytes
    }
}

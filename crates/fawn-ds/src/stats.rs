//! Engine statistics: reads per lookup, false reads, write amplification, and memory use.

/// Counters since the engine was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Lookups begun.
    pub lookups: u64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Device reads for lookups.
    pub reads: u64,
    /// Second reads for records longer than 99.9 % of their segment's; included in `reads`.
    pub second_reads: u64,
    /// Records read that belonged to another key: false fragment matches.
    pub false_matches: u64,
    /// Device reads that verify old versions of overwritten keys.
    pub verification_reads: u64,
    /// Attempts to verify an old version that was unreadable or corrupt.
    pub verifications_failed: u64,
    /// Old versions verified without a device read.
    pub verifications_free: u64,
    /// Records that scans came by and passed because they are lost: corrupt, or unreadable for long.
    pub corrupt_passed: u64,
    /// Records appended.
    pub appended_records: u64,
    /// Key and value bytes appended.
    pub user_bytes: u64,
    /// Record bytes appended, headers and padding included, without the copies of cleaning.
    pub record_bytes: u64,
    /// Frames copied into the tail file, by which they were acknowledged before any write.
    pub tail_frames: u64,
    /// Writes of the log, with those of cleaning.
    pub writes: u64,
    /// Bytes of log writes.
    pub written_bytes: u64,
    /// Frames closed.
    pub frames: u64,
    /// Syncs of log files, durable writes not counted.
    pub syncs: u64,
    /// Segments dropped.
    pub segments_dropped: u64,
    /// Expired records that a lookup or cleaning found and removed.
    pub expired: u64,
    /// Segments cleaned: their live records were copied.
    pub segments_cleaned: u64,
    /// Live records that cleaning moved.
    pub moved_records: u64,
    /// Bytes of these records.
    pub moved_bytes: u64,
    /// Tombstones that cleaning copied, because they hide older records.
    pub moved_tombstones: u64,
    /// Bytes of segments read for cleaning.
    pub cleaning_read_bytes: u64,
    /// Bytes that the scrub has read of sealed segments and runs.
    pub scrub_bytes: u64,
    /// Segments and runs that the scrub has read and judged.
    pub scrub_segments: u64,
    /// Records that the scrub found corrupt or unreadable, each once; a page of a run, and damage outside of records, counts as one.
    pub scrub_corrupt_records: u64,
    /// Reads of the scrub that failed or hang.
    pub scrub_reads_failed: u64,
    /// Checkpoints written and listed.
    pub checkpoints: u64,
    /// Searches for segments to sort or runs to merge. Writes and idle polls must not add to it: each visits all of them.
    pub sort_searches: u64,
    /// Merges that were given up, because a run is corrupt or unreadable, or a read of it hangs.
    pub merges_failed: u64,
    /// Bytes written to runs.
    pub sort_bytes: u64,
    /// Time for which puts waited for sorts and merges, ms.
    pub puts_held_ms: u64,
    /// Jobs of the sorted tier whose runs were listed.
    pub runs_listed: u64,
    /// Parts of merges with the oldest runs that are listed.
    pub sweep_parts: u64,
    /// Bytes written for checkpoints.
    pub checkpoint_bytes: u64,
    /// Attempts to clean a segment that failed, because it is corrupt or unreadable, or a read of it hangs.
    pub cleaning_failed: u64,
    /// Segments whose records of split or merged ranges were filed under the new ones.
    pub segments_filed: u64,
    /// Index entries that moved with that.
    pub filed_records: u64,
    /// Attempts at a segment that failed, because it is corrupt or unreadable.
    pub filing_failed: u64,
}

/// Gauges of the store's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogReport {
    /// Segments.
    pub segments: u64,
    /// Bytes that segments take on the device.
    pub segment_bytes: u64,
    /// Bytes of records that are current in segments.
    pub live_bytes: u64,
    /// Runs of sorted records.
    pub runs: u64,
    /// Bytes that runs take on the device.
    pub run_bytes: u64,
    /// Segments beyond the target of cleaning, at its last search for a victim.
    pub cleaning_debt_segments: u64,
    /// Segments visited by walks over all segments since the open. Writes and idle polls must not add to it: their cost
    /// would grow with the store.
    pub segments_visited: u64,
    /// Keys in the overlay.
    pub overlay_keys: u64,
    /// Old versions queued for verification.
    pub verifications_queued: u64,
    /// Overwritten or deleted keys whose old version is unreadable or corrupt. Each keeps an overlay entry, and
    /// verification is retried periodically.
    pub keys_apart: u64,
}

/// Memory use by purpose, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// The budget for all of it.
    pub budget_bytes: u64,
    /// Indexes of all ranges.
    pub index_bytes: u64,
    /// Keys in flight and pending records.
    pub overlay_bytes: u64,
    /// Append window and I/O buffers, including those of reads in flight.
    pub buffer_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
    /// Record cache.
    pub record_cache_bytes: u64,
}

impl MemoryReport {
    /// Memory in use, bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.index_bytes + self.overlay_bytes + self.buffer_bytes + self.cache_bytes + self.record_cache_bytes
    }
}

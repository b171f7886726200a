//! Counters and state of a shard: one table of values for `/metrics`, `INFO`, `stats` and `/status`.
use crate::counters;
use crate::counters::{Counted, CounterNames, CounterVisitor};
use fawn_ds::internals::{Engine, EngineStats, LogReport, MemoryReport};
use fawn_flash::{Device, IoClass, IoClassStats, IoStats};
use fawn_types::{Durability, Epoch, MemberId, MonoMs, RangeId, TimeMs, Version};

/// Age of a write or sync in flight from which its disk counts as hung, ms.
pub const SLOW_AFTER_MS: u64 = 2_000;

counters! {
    /// Counters since the shard was created.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ShardCounters {
        sessions_opened: u64, "Sessions opened.", info "Stats:total_connections_received", stats "total_connections";
        sessions_refused: u64, "Client connections beyond the limit.", prometheus "fawn_connections_refused_total",
            info "Stats:rejected_connections", stats "rejected_connections";
        commands: u64, "Requests executed.", prometheus "fawn_commands_total", info "Stats:total_commands_processed";
        gets: u64, "Keys read.", prometheus "fawn_gets_total", stats "cmd_get";
        hits: u64, "Keys read and found.",
            prometheus "fawn_get_hits_total", info "Stats:keyspace_hits", stats "get_hits";
        misses: u64, "Keys read and not found.",
            prometheus "fawn_get_misses_total", info "Stats:keyspace_misses", stats "get_misses";
        cold: u64, "Device reads started for requests.",
            prometheus "fawn_cold_reads_total", info "Fawn:cold_reads", stats "fawn_cold_reads";
        forwarded: u64, "Requests sent to other shards of the node, and to chains.";
        executed_for_peers: u64, "Requests executed for other shards of the node; not part of `commands`.";
        writes: u64, "Records written for clients.", prometheus "fawn_writes_total", stats "cmd_set";
        flushes: u64, "Times the store was emptied.", stats "cmd_flush";
        // As in Redis: every error reply, whether the request was refused or failed; memcached's too.
        error_replies: u64, "Replies that were errors.",
            prometheus "fawn_error_replies_total", info "Stats:total_error_replies";
        malformed: u64, "Requests refused by the decoder, and frames that violate the protocol.", prometheus "fawn_malformed_total";
        stalls: u64, "Times a connection's input had to wait.", prometheus "fawn_stalls_total", info "Fawn:stalls";
        retries_answered: u64, "Repeated updates answered from their records.";
        chain_refused: u64, "Requests of front-ends refused, which repeat them: stale epoch, wrong range, overload.",
            prometheus "fawn_chain_refused_total";
        records_sent_bytes: u64, "Bytes of records sent to other members.", prometheus "fawn_chain_sent_bytes_total";
        records_received: u64, "Records appended from other members.", prometheus "fawn_chain_received_records_total";
        frames_cut: u64, "Frames with records that the log did not accept.", prometheus "fawn_chain_cut_frames_total";
        resyncs: u64, "Full resyncs begun: no sender's log reached back far enough.",
            prometheus "fawn_chain_resyncs_total";
        alarms: u64, "Harmless violations of the protocol, each logged.", prometheus "fawn_chain_alarms_total";
        rereads: u64, "Requests repeated because their reply was longer than granted.",
            prometheus "fawn_rereads_total";
        iterations: u64, "Iterations.", info "Fawn:turns";
        input_bytes: u64, "Bytes of input consumed.", info "Stats:total_net_input_bytes", stats "bytes_read";
        output_bytes: u64, "Bytes of output written.", info "Stats:total_net_output_bytes", stats "bytes_written";
    }
}

impl ShardCounters {
    /// A read whose reply would have had to wait was not replied to. It is repeated, and counted then.
    #[cold]
    pub(crate) const fn uncount_read(&mut self, is_hit: bool) {
        self.gets -= 1;
        if is_hit { self.hits -= 1 } else { self.misses -= 1 }
    }

    /// `stats reset`: resets clients' counters; the counters of device and engine continue.
    pub(crate) fn reset(&mut self) {
        *self = Self { sessions_opened: self.sessions_opened, ..Self::default() };
    }
}

counters! {
    /// Usage of the reply budget. Peaks may have occurred at different times: their sum is a bound.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RepliesStatus {
        held_bytes: usize, "Replies waiting for their turn or their client.", prometheus "fawn_reply_bytes";
        held_bytes_peak: usize, "Most of these at a time.", prometheus "fawn_reply_peak_bytes";
        reserved_bytes: usize, "Replies granted to reads in flight.",
            prometheus "fawn_reply_reserved_bytes";
        waiting: usize, "Connections and reads that wait for the reply budget.", prometheus "fawn_reply_waiting";
    }
}

counters! {
    /// State of a shard.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct ShardStatus {
        counters: ShardCounters, "Counters since it was created.";
        replies: RepliesStatus, "Reply budget.";
        sessions: usize, "Open sessions.", info "Clients:connected_clients", stats "curr_connections";
        pending: usize, "Requests that wait for a read or for their key.",
            prometheus "fawn_pending_requests", info "Clients:pending_requests", stats "fawn_pending";
        reads: usize, "Device reads for lookups, in flight or queued.";
        uncommitted: u64, "Writes that wait for their commit.",
            prometheus "fawn_uncommitted_writes", info "Fawn:uncommitted_writes", stats "fawn_uncommitted";
    }
    apart {
        store: StoreStatus, "The store; in a cluster in one thread the sum of its stores.";
        cluster: Option<ClusterStatus>, "State of the chains of a cluster in one thread.";
    }
}

/// One chain, as its manager and its members report it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainStatus {
    /// Its range.
    pub range: RangeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether the epoch is active rather than in preparation.
    pub is_active: bool,
    /// Durability mode of the epoch.
    pub durability: Durability,
    /// Members that serve and can store writes.
    pub copies: usize,
    /// Whether it takes writes: all of its members can store them.
    pub takes_writes: bool,
    /// Configured number of members.
    pub copies_wanted: usize,
}

/// Status of one chain member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// The range.
    pub range: RangeId,
    /// The promised epoch.
    pub epoch: Epoch,
    /// The phase as one word: idle, prepared, …, head, middle, tail, single, syncing, copying; failed, broken.
    pub phase: &'static str,
    /// Durability mode of the epoch.
    pub durability: Durability,
    /// Version of the last record in the log.
    pub last: Version,
    /// Version through which records are known to be committed.
    pub committed: Version,
    /// Chain time, by which the member judges expiry.
    pub time: TimeMs,
    /// Chain time when the member began to serve in its epoch.
    pub time_began: TimeMs,
    /// Number of indexed keys.
    pub keys: u64,
    /// During a full resync: keys received so far, and the approximate total.
    pub copied: Option<(u64, u64)>,
    /// Why the member is unusable until a restart, if it is.
    pub broken: Option<String>,
}

counters! {
    /// State of a store.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct StoreStatus {
        keys: u64, "Keys, expired ones not met yet included.", prometheus "fawn_keys", stats "curr_items";
        user_bytes: u64, "Bytes of keys and values appended.", prometheus "fawn_user_bytes_total";
        tail_frames: u64, "Frames of the log that were acknowledged by a copy into the tail file.",
            prometheus "fawn_tail_frames_total";
        log_writes: u64, "Writes of the log.", prometheus "fawn_log_writes_total";
        log_written_bytes: u64, "Bytes of these.", prometheus "fawn_log_written_bytes_total";
        log_syncs: u64, "Syncs of the log.", prometheus "fawn_log_syncs_total";
        false_matches: u64, "Records looked at whose key was another.",
            prometheus "fawn_false_matches_total", info "Fawn:false_matches";
        keys_apart: u64, "Written keys whose old version cannot be read.", prometheus "fawn_keys_apart";
        corrupt_passed: u64, "Lost records that scans left out: corrupt, or unreadable for 10 s.",
            prometheus "fawn_scan_damaged_total";
        appended_records: u64, "Records appended.", stats "total_items";
        expired: u64, "Expired records that a lookup or cleaning found and removed.",
            info "Stats:expired_keys", stats "get_expired";
        segments: u64, "Segments of the log.",
            prometheus "fawn_segments", info "Fawn:segments", stats "fawn_segments";
        segment_bytes: u64, "Bytes that segments take on the device.",
            prometheus "fawn_segment_bytes", info "Persistence:aof_current_size";
        live_bytes: u64, "Bytes of current records in segments.",
            prometheus "fawn_live_bytes", info "Fawn:live_bytes", stats "bytes";
        runs: u64, "Runs of sorted records.", prometheus "fawn_runs", info "Fawn:runs";
        run_bytes: u64, "Bytes that runs take on the device.", prometheus "fawn_run_bytes", info "Fawn:run_bytes";
        sorted_bytes: u64, "Bytes written to runs, by sorts of segments and merges of runs.",
            prometheus "fawn_sorted_bytes_total", info "Fawn:sorted_bytes";
        merges_failed: u64, "Merges given up, because a run is corrupt or unreadable, or a read of it hangs.",
            prometheus "fawn_merges_failed_total", info "Fawn:merges_failed";
        writes_held_ms: u64, "Milliseconds for which writes waited for sorts and merges.",
            prometheus "fawn_writes_held_ms_total", info "Fawn:writes_held_ms";
        segments_cleaned: u64, "Segments whose live records were moved, so that they can be dropped.",
            prometheus "fawn_segments_cleaned_total", info "Fawn:segments_cleaned";
        segments_dropped: u64, "Segments dropped.",
            prometheus "fawn_segments_dropped_total", info "Fawn:segments_dropped";
        moved_bytes: u64, "Bytes of live records that cleaning moved.",
            prometheus "fawn_moved_bytes_total", info "Fawn:moved_bytes";
        cleaning_debt_segments: u64, "Segments beyond what live records and the reserve allow: cleaning is behind.",
            prometheus "fawn_cleaning_debt_segments", info "Fawn:cleaning_debt_segments";
        cleaning_failed: u64, "Attempts to clean a segment that failed, because a record is corrupt or unreadable, or a read hangs.",
            prometheus "fawn_cleaning_failed_total", info "Fawn:cleaning_failed";
        scrub_bytes: u64, "Bytes that the background scrub has read.",
            prometheus "fawn_scrub_bytes_total", info "Fawn:scrub_bytes";
        scrub_segments: u64, "Segments and sorted runs that the background scrub has verified.",
            prometheus "fawn_scrub_segments_total", info "Fawn:scrub_segments";
        scrub_corrupt_records: u64, "Records, or pages of sorted runs, that the background scrub found corrupt or unreadable, each logged with its place.",
            prometheus "fawn_scrub_corrupt_records_total", info "Fawn:scrub_corrupt_records";
        scrub_reads_failed: u64, "Reads of the background scrub that failed or hang.",
            prometheus "fawn_scrub_reads_failed_total", info "Fawn:scrub_reads_failed";
        checkpoints: u64, "Checkpoints written: an opening reads only the log behind the last one.",
            prometheus "fawn_checkpoints_total", info "Fawn:checkpoints";
        checkpoint_bytes: u64, "Bytes written for checkpoints.",
            prometheus "fawn_checkpoint_bytes_total", info "Fawn:checkpoint_bytes";
        memory_budget_bytes: u64, "The memory budget.",
            prometheus "fawn_memory_budget_bytes", info "Memory:maxmemory", stats "limit_maxbytes";
        memory_index_bytes: u64, "Memory of indexes.",
            prometheus "fawn_memory_index_bytes", info "Memory:used_memory_index";
        memory_overlay_bytes: u64, "Memory of keys in flight.",
            prometheus "fawn_memory_overlay_bytes", info "Memory:used_memory_overlay";
        memory_buffer_bytes: u64, "Memory of write and device buffers.",
            prometheus "fawn_memory_buffer_bytes", info "Memory:used_memory_buffers";
        memory_cache_bytes: u64, "Memory of the page cache.",
            prometheus "fawn_memory_cache_bytes", info "Memory:used_memory_page_cache";
        memory_record_cache_bytes: u64, "Memory of the record cache.",
            prometheus "fawn_memory_record_cache_bytes", info "Memory:used_memory_record_cache";
        page_cache_hits: u64, "Pages found in the page cache.",
            prometheus "fawn_page_cache_hits_total", info "Fawn:page_cache_hits";
        page_cache_misses: u64, "Pages not found in the page cache.",
            prometheus "fawn_page_cache_misses_total", info "Fawn:page_cache_misses";
        record_cache_hits: u64, "Lookups answered from the record cache.",
            prometheus "fawn_record_cache_hits_total", info "Fawn:record_cache_hits";
        record_cache_misses: u64, "Lookups not answered from the record cache while it was in use.",
            prometheus "fawn_record_cache_misses_total", info "Fawn:record_cache_misses";
        record_cache_inserts: u64, "Records added to the record cache.",
            prometheus "fawn_record_cache_inserts_total";
        record_cache_evictions: u64, "Records evicted from the record cache.",
            prometheus "fawn_record_cache_evictions_total";
        oldest_write_ms: u64, "Age of the oldest write or sync in flight, milliseconds: one of seconds shows a disk that hangs.",
            prometheus "fawn_oldest_write_ms";
        is_full: bool, "1 while there is no space for writes.", prometheus "fawn_store_full", info "Fawn:store_full";
        poisoned: Option<String>, "1 after a failed write or sync.",
            prometheus "fawn_store_poisoned", stats "fawn_poisoned";
        generation: OpenGeneration, "The store's open generation.", info "Fawn:generation";
    }
    apart {
        device: IoStats, "Requests and bytes of the device, by I/O class.";
        device_name: &'static str, "The device's name.";
    }
}

counters! {
    /// Traffic between a store and its device.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceCounters {
        reads: u64, "Device reads.", prometheus "fawn_device_reads_total", stats "fawn_device_reads";
        read_bytes: u64, "Bytes read.", prometheus "fawn_device_read_bytes_total", stats "fawn_device_read_bytes";
        writes: u64, "Device writes.", prometheus "fawn_device_writes_total", stats "fawn_device_writes";
        written_bytes: u64, "Bytes written.",
            prometheus "fawn_device_written_bytes_total", stats "fawn_device_written_bytes";
        syncs: u64, "Syncs, durable writes included.",
            prometheus "fawn_device_syncs_total", stats "fawn_device_syncs";
    }
}

impl From<&IoClassStats> for DeviceCounters {
    fn from(&IoClassStats { reads, read_bytes, writes, written_bytes, syncs }: &IoClassStats) -> Self {
        Self { reads, read_bytes, writes, written_bytes, syncs }
    }
}

/// The store's open generation; of several stores, the highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenGeneration(pub u32);

impl Counted for OpenGeneration {
    fn add(&mut self, other: &Self) {
        self.0 = self.0.max(other.0);
    }

    fn visit_as(&self, names: &'static CounterNames, visit: &mut CounterVisitor<'_>) {
        visit(names, u64::from(self.0));
    }
}

impl Counted for IoStats {
    fn add(&mut self, other: &Self) {
        Self::add(self, other);
    }
}

impl Counted for Option<ClusterStatus> {
    fn add(&mut self, other: &Self) {
        assert!(other.is_none(), "a cluster is in one thread");
    }
}

impl StoreStatus {
    /// Reads the state of a store.
    pub(crate) fn of<D: Device>(engine: &Engine<D>) -> Self {
        let (pages, records) = (engine.page_cache_stats(), engine.record_cache_stats());
        Self {
            keys: engine.ranges().map(|(range, _)| engine.len(range)).sum(),
            oldest_write_ms: engine.oldest_write_ms(),
            is_full: engine.is_full(),
            poisoned: engine.poisoned().map(str::to_owned),
            generation: OpenGeneration(engine.generation()),
            page_cache_hits: pages.hits,
            page_cache_misses: pages.misses,
            record_cache_hits: records.hits,
            record_cache_misses: records.misses,
            record_cache_inserts: records.inserts,
            record_cache_evictions: records.evictions,
            device: engine.device().stats().clone(),
            device_name: engine.device().name(),
            ..Self::of_reports(engine.stats(), &engine.log_report(), &engine.memory())
        }
    }

    /// The part of the state in these reports.
    #[must_use]
    pub fn of_reports(engine: &EngineStats, log: &LogReport, memory: &MemoryReport) -> Self {
        Self {
            user_bytes: engine.user_bytes,
            tail_frames: engine.tail_frames,
            log_writes: engine.writes,
            log_written_bytes: engine.written_bytes,
            log_syncs: engine.syncs,
            false_matches: engine.false_matches,
            keys_apart: log.keys_apart,
            corrupt_passed: engine.corrupt_passed,
            appended_records: engine.appended_records,
            expired: engine.expired,
            segments: log.segments,
            segment_bytes: log.segment_bytes,
            live_bytes: log.live_bytes,
            runs: log.runs,
            run_bytes: log.run_bytes,
            sorted_bytes: engine.sort_bytes,
            merges_failed: engine.merges_failed,
            writes_held_ms: engine.puts_held_ms,
            segments_cleaned: engine.segments_cleaned,
            segments_dropped: engine.segments_dropped,
            moved_bytes: engine.moved_bytes,
            cleaning_debt_segments: log.cleaning_debt_segments,
            cleaning_failed: engine.cleaning_failed,
            scrub_bytes: engine.scrub_bytes,
            scrub_segments: engine.scrub_segments,
            scrub_corrupt_records: engine.scrub_corrupt_records,
            scrub_reads_failed: engine.scrub_reads_failed,
            checkpoints: engine.checkpoints,
            checkpoint_bytes: engine.checkpoint_bytes,
            memory_budget_bytes: memory.budget_bytes,
            memory_index_bytes: memory.index_bytes,
            memory_overlay_bytes: memory.overlay_bytes,
            memory_buffer_bytes: memory.buffer_bytes,
            memory_cache_bytes: memory.cache_bytes,
            memory_record_cache_bytes: memory.record_cache_bytes,
            ..Self::default()
        }
    }

    /// Memory in use, bytes, without sessions' buffers.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_index_bytes
            + self.memory_overlay_bytes
            + self.memory_buffer_bytes
            + self.memory_cache_bytes
            + self.memory_record_cache_bytes
    }

    /// Device traffic of each I/O class.
    pub fn devices(&self) -> impl Iterator<Item = (IoClass, DeviceCounters)> {
        IoClass::ALL.into_iter().map(|class| (class, self.device.of(class).into()))
    }
}

/// State of a back-end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackEndStatus {
    /// Its shard.
    pub id: MemberId,
    /// The failure that stopped its store's writes, if any.
    pub poisoned: Option<String>,
    /// Its chain members.
    pub members: Vec<MemberStatus>,
    /// Its store; empty where only the chains were requested.
    pub store: StoreStatus,
}

/// State of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterStatus {
    /// Its chains, in ring order.
    pub chains: Vec<ChainStatus>,
    /// Its running back-ends.
    pub back_ends: Vec<BackEndStatus>,
    /// Since when some chain takes no writes; a change of its members takes milliseconds.
    pub unavailable_since: Option<MonoMs>,
    /// Members dropped since the start because they failed or were suspected.
    pub members_dropped: u64,
    /// Proposals, since the start, of epochs after which acknowledged writes may be missing.
    pub possible_losses: u64,
}

impl ClusterStatus {
    /// Whether some chain has fewer copies than configured.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.chains.iter().any(|chain| !chain.is_active || chain.copies < chain.copies_wanted)
    }

    /// Whether every chain takes reads and writes.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.chains.iter().all(|chain| chain.takes_writes)
    }
}

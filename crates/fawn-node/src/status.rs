//! Counters and state of a shard: one plain struct for `/metrics`, `INFO` and `stats`.
use crate::cluster::MemberStatus;
use fawn_ds::internals::{Engine, EngineStats, LogReport, MemoryReport};
use fawn_flash::{Device, IoStats};
use fawn_types::{Durability, Epoch, MonoMs, NodeId, RangeId};

/// Counters since the shard was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShardCounters {
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Requests executed.
    pub commands: u64,
    /// Keys read.
    pub gets: u64,
    /// Keys read and found.
    pub hits: u64,
    /// Keys read and not found.
    pub misses: u64,
    /// Device reads started for requests.
    pub cold: u64,
    /// Requests sent to other shards of the node.
    pub forwarded: u64,
    /// Requests executed for other shards of the node; not part of [`Self::commands`].
    pub executed_for_peers: u64,
    /// Records written for clients.
    pub writes: u64,
    /// Times the store was emptied.
    pub flushes: u64,
    /// Requests refused for overload.
    pub overloaded: u64,
    /// Reads of other shards or nodes repeated because their replies found no budget.
    pub rereads: u64,
    /// Error replies of any kind, in either protocol.
    pub error_replies: u64,
    /// Requests refused by the decoder.
    pub malformed: u64,
    /// Times a session's input stalled.
    pub stalls: u64,
    /// Iterations.
    pub iterations: u64,
    /// Bytes of input consumed.
    pub input_bytes: u64,
    /// Bytes of output written.
    pub output_bytes: u64,
}

impl ShardCounters {
    /// `stats reset`: resets clients' counters; the counters of device and engine continue.
    pub(crate) fn reset(&mut self) {
        *self = Self { sessions_opened: self.sessions_opened, ..Self::default() };
    }

    fn add(&mut self, other: &Self) {
        // Destructured: a forgotten counter does not compile.
        let Self {
            sessions_opened,
            commands,
            gets,
            hits,
            misses,
            cold,
            writes,
            flushes,
            overloaded,
            rereads: asked_again,
            error_replies,
            malformed,
            stalls,
            iterations,
            input_bytes,
            output_bytes,
            forwarded: away,
            executed_for_peers: served,
        } = other;
        self.sessions_opened += sessions_opened;
        self.commands += commands;
        self.gets += gets;
        self.hits += hits;
        self.misses += misses;
        self.cold += cold;
        self.writes += writes;
        self.flushes += flushes;
        self.overloaded += overloaded;
        self.rereads += asked_again;
        self.error_replies += error_replies;
        self.malformed += malformed;
        self.stalls += stalls;
        self.iterations += iterations;
        self.input_bytes += input_bytes;
        self.output_bytes += output_bytes;
        self.forwarded += away;
        self.executed_for_peers += served;
    }
}

/// Usage of the reply budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepliesStatus {
    /// Replies in memory, untaken or waiting for their turn, bytes.
    pub held_bytes: usize,
    /// Maximum of that since the start.
    pub held_bytes_peak: usize,
    /// Replies granted to reads in flight, bytes; estimated if another shard or node reads.
    pub reserved_bytes: usize,
    /// Sessions and reads queued for reply budget.
    pub waiting: usize,
}

impl RepliesStatus {
    /// Peaks may have occurred at different times: their sum is a bound.
    const fn add(&mut self, other: &Self) {
        let Self { held_bytes, held_bytes_peak, reserved_bytes: expected_bytes, waiting } = other;
        self.held_bytes += *held_bytes;
        self.held_bytes_peak += *held_bytes_peak;
        self.reserved_bytes += *expected_bytes;
        self.waiting += *waiting;
    }
}

/// State of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardStatus {
    /// Counters since it was created.
    pub counters: ShardCounters,
    /// Open sessions.
    pub sessions: usize,
    /// Proxy sessions of other shards.
    pub proxy_sessions: usize,
    /// Requests that wait for a read, in a key's queue, or for another shard.
    pub pending: usize,
    /// Device reads for lookups, in flight or queued.
    pub reads: usize,
    /// Reply budget.
    pub replies: RepliesStatus,
    /// Uncommitted writes.
    pub uncommitted: u64,
    /// The store; in a cluster in one thread the sum of its stores.
    pub store: StoreStatus,
    /// The failure that stopped writes, if any.
    pub poisoned: Option<String>,
    /// State of the chains of a cluster in one thread.
    pub cluster: Option<ClusterStatus>,
}

impl ShardStatus {
    /// Adds another shard of the same node: their keys are disjoint. A cluster has no other shards.
    pub fn add(&mut self, other: &Self) {
        let Self {
            counters,
            sessions,
            proxy_sessions: standing,
            pending,
            reads,
            replies,
            uncommitted,
            store,
            poisoned,
            cluster,
        } = other;
        assert!(cluster.is_none(), "a cluster is in one thread");
        self.counters.add(counters);
        self.sessions += sessions;
        self.proxy_sessions += standing;
        self.pending += pending;
        self.reads += reads;
        self.replies.add(replies);
        self.uncommitted += uncommitted;
        self.store.add(store);
        if self.poisoned.is_none() {
            self.poisoned.clone_from(poisoned);
        }
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

/// State of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreStatus {
    /// Keys, including expired ones that no operation has met yet.
    pub keys: u64,
    /// Counters of the engine.
    pub engine: EngineStats,
    /// Contents of the log.
    pub log: LogReport,
    /// Memory by use, without sessions' buffers.
    pub memory: MemoryReport,
    /// Requests and bytes of the device, by I/O class.
    pub device: IoStats,
    /// The device's name.
    pub device_name: &'static str,
    /// The store's open generation.
    pub generation: u32,
    /// Whether the last attempt to get space failed.
    pub is_full: bool,
}

impl StoreStatus {
    /// Reads the state of a store.
    pub(crate) fn of<D: Device>(engine: &Engine<D>) -> Self {
        Self {
            keys: engine.ranges().map(|(range, _)| engine.len(range)).sum(),
            engine: *engine.stats(),
            log: engine.log_report(),
            memory: engine.memory(),
            device: engine.device().stats().clone(),
            device_name: engine.device().name(),
            generation: engine.generation(),
            is_full: engine.is_full(),
        }
    }

    /// Adds another store with other keys.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { keys, engine, log, memory, device, device_name, generation, is_full } = other;
        self.keys += keys;
        add_stats(&mut self.engine, engine);
        add_log(&mut self.log, log);
        add_memory(&mut self.memory, memory);
        self.device.add(device);
        if !device_name.is_empty() {
            self.device_name = device_name;
        }
        self.generation = self.generation.max(*generation);
        self.is_full |= is_full;
    }
}

fn add_stats(sum: &mut EngineStats, stats: &EngineStats) {
    sum.lookups += stats.lookups;
    sum.hits += stats.hits;
    sum.reads += stats.reads;
    sum.second_reads += stats.second_reads;
    sum.false_matches += stats.false_matches;
    sum.verification_reads += stats.verification_reads;
    sum.verifications_failed += stats.verifications_failed;
    sum.verifications_free += stats.verifications_free;
    sum.corrupt_passed += stats.corrupt_passed;
    sum.appended_records += stats.appended_records;
    sum.user_bytes += stats.user_bytes;
    sum.record_bytes += stats.record_bytes;
    sum.writes += stats.writes;
    sum.written_bytes += stats.written_bytes;
    sum.frames += stats.frames;
    sum.syncs += stats.syncs;
    sum.segments_dropped += stats.segments_dropped;
    sum.expired += stats.expired;
}

fn add_log(sum: &mut LogReport, log: &LogReport) {
    sum.segments += log.segments;
    sum.segments_visited += log.segments_visited;
    sum.segment_bytes += log.segment_bytes;
    sum.live_bytes += log.live_bytes;
    sum.overlay_keys += log.overlay_keys;
    sum.verifications_queued += log.verifications_queued;
    sum.keys_apart += log.keys_apart;
}

fn add_memory(sum: &mut MemoryReport, memory: &MemoryReport) {
    sum.budget_bytes += memory.budget_bytes;
    sum.index_bytes += memory.index_bytes;
    sum.overlay_bytes += memory.overlay_bytes;
    sum.buffer_bytes += memory.buffer_bytes;
    sum.cache_bytes += memory.cache_bytes;
}

/// State of a back-end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackEndStatus {
    /// Its node.
    pub node: NodeId,
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
    /// Activations since the start after which acknowledged writes may be missing.
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

//! Owns what a shard counts and reports: one plain struct for `/metrics`, `INFO` and `stats` alike.
use crate::cluster::MemberStatus;
use fawn_ds::{Engine, EngineStats, LogReport, MemoryReport};
use fawn_flash::{Device, IoStats};
use fawn_types::{Durability, Epoch, MonoMs, NodeId, RangeId};

/// Counters since the shard was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Requests executed.
    pub commands: u64,
    /// Keys read.
    pub gets: u64,
    /// Of these, found.
    pub hits: u64,
    /// Of these, not found.
    pub misses: u64,
    /// Device reads started for requests.
    pub cold: u64,
    /// Requests sent to other shards of the node, whose keys they are on.
    pub away: u64,
    /// Requests executed for other shards of the node; none of [`Self::commands`].
    pub served: u64,
    /// Records written for clients.
    pub writes: u64,
    /// Times the store was emptied.
    pub flushes: u64,
    /// Requests refused because too much was under way.
    pub overloaded: u64,
    /// Reads answered when there was no room for the answer, and asked again.
    pub asked_again: u64,
    /// Replies that were errors, whatever the reason, in either protocol.
    pub error_replies: u64,
    /// Requests refused by the decoder.
    pub malformed: u64,
    /// Times a session's input had to wait.
    pub stalls: u64,
    /// Turns taken.
    pub turns: u64,
    /// Bytes of input consumed.
    pub input_bytes: u64,
    /// Bytes of output written.
    pub output_bytes: u64,
}

impl Counters {
    /// `stats reset`: what clients count; the device's and the engine's counters go on.
    pub(crate) fn reset(&mut self) {
        *self = Self { sessions_opened: self.sessions_opened, ..Self::default() };
    }

    fn add(&mut self, other: &Self) {
        // Taken apart: a counter that is forgotten here does not compile.
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
            asked_again,
            error_replies,
            malformed,
            stalls,
            turns,
            input_bytes,
            output_bytes,
            away,
            served,
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
        self.asked_again += asked_again;
        self.error_replies += error_replies;
        self.malformed += malformed;
        self.stalls += stalls;
        self.turns += turns;
        self.input_bytes += input_bytes;
        self.output_bytes += output_bytes;
        self.away += away;
        self.served += served;
    }
}

/// What the replies of all sessions take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepliesStatus {
    /// Replies that clients have not taken or that wait for their turn, bytes.
    pub held_bytes: usize,
    /// Most of these at a time since the start.
    pub held_bytes_peak: usize,
    /// Replies that reads under way are expected to bring, bytes.
    pub expected_bytes: usize,
    /// Sessions whose requests wait for room, though they have nothing under way.
    pub waiting: usize,
}

impl RepliesStatus {
    /// The peaks need not have been at one time: their sum is a bound.
    const fn add(&mut self, other: &Self) {
        let Self { held_bytes, held_bytes_peak, expected_bytes, waiting } = other;
        self.held_bytes += *held_bytes;
        self.held_bytes_peak += *held_bytes_peak;
        self.expected_bytes += *expected_bytes;
        self.waiting += *waiting;
    }
}

/// A shard at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardStatus {
    /// Counters since it was made.
    pub counters: Counters,
    /// Sessions open.
    pub sessions: usize,
    /// Sessions that stand for other shards' sessions, which ask for keys of this one.
    pub standing: usize,
    /// Requests that wait for a read, in a key's queue, or for another shard.
    pub pending: usize,
    /// Device reads for lookups under way, and waiting for room.
    pub reads: usize,
    /// The room of replies.
    pub replies: RepliesStatus,
    /// Writes that wait for their commit.
    pub uncommitted: u64,
    /// The store; of a cluster in one thread the sum of those behind it.
    pub store: StoreStatus,
    /// The failure that ended writes, if any.
    pub poisoned: Option<String>,
    /// Of a cluster in one thread: how its chains stand.
    pub cluster: Option<ClusterStatus>,
}

impl ShardStatus {
    /// Adds another shard of the same node: their keys are different ones. Of clusters there is one, without others.
    pub fn add(&mut self, other: &Self) {
        let Self { counters, sessions, standing, pending, reads, replies, uncommitted, store, poisoned, cluster } =
            other;
        assert!(cluster.is_none(), "a cluster is in one thread");
        self.counters.add(counters);
        self.sessions += sessions;
        self.standing += standing;
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

/// One chain as its manager and its members have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainStatus {
    /// Its range.
    pub range: RangeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether the epoch is active, not under preparation.
    pub is_active: bool,
    /// When a write of the epoch counts as kept.
    pub durability: Durability,
    /// Members that serve and can keep what is written.
    pub copies: usize,
    /// Whether it takes writes: all of its members can keep them.
    pub takes_writes: bool,
    /// Members that there should be.
    pub copies_wanted: usize,
}

/// A store at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreStatus {
    /// Keys, expired ones not met yet included.
    pub keys: u64,
    /// The engine's counters.
    pub engine: EngineStats,
    /// What the log holds.
    pub log: LogReport,
    /// Where the memory went; sessions' buffers not included.
    pub memory: MemoryReport,
    /// Requests and bytes of the device, by cause.
    pub device: IoStats,
    /// The device's name.
    pub device_name: &'static str,
    /// The opening's number.
    pub generation: u32,
    /// Whether the last attempt to get space failed.
    pub is_full: bool,
}

impl StoreStatus {
    /// The store as it stands.
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

    /// Adds another store, of other keys.
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
    sum.damaged_passed += stats.damaged_passed;
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

/// One back-end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackEndStatus {
    /// Which.
    pub node: NodeId,
    /// The failure that ended its store's writes, if any.
    pub poisoned: Option<String>,
    /// Its chain members.
    pub members: Vec<MemberStatus>,
    /// Its store; left empty where only the chains are asked about.
    pub store: StoreStatus,
}

/// How a cluster stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterStatus {
    /// Its chains, in ring order.
    pub chains: Vec<ChainStatus>,
    /// Its running back-ends.
    pub back_ends: Vec<BackEndStatus>,
    /// Since when some chain does not take writes; a change of its members takes milliseconds.
    pub stands_since: Option<MonoMs>,
    /// Members dropped since the start because they failed or were suspected.
    pub members_dropped: u64,
    /// Activations since the start after which acknowledged writes may be missing.
    pub possible_losses: u64,
}

impl ClusterStatus {
    /// Whether some chain has fewer copies than it should.
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

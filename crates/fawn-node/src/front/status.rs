//! Owns sums over the stores behind a front-end: one status for `/metrics`, `INFO` and `stats`.
use crate::status::ShardStatus;
use fawn_ds::{Engine, EngineStats, LogReport, MemoryReport};
use fawn_flash::Device;

/// The sums. Keys are those of the fullest copy: every member of a chain has them all.
pub(super) fn of_engines<'a, D: Device + 'a>(engines: impl Iterator<Item = &'a Engine<D>>) -> ShardStatus {
    let mut sum = ShardStatus { device_name: "none", ..ShardStatus::default() };
    for engine in engines {
        let keys = engine.ranges().map(|(range, _)| engine.len(range)).sum();
        sum.keys = sum.keys.max(keys);
        add_stats(&mut sum.engine, engine.stats());
        add_log(&mut sum.log, &engine.log_report());
        add_memory(&mut sum.memory, &engine.memory());
        sum.device.add(engine.device().stats());
        sum.device_name = engine.device().name();
        sum.generation = sum.generation.max(engine.generation());
        sum.poisoned = sum.poisoned.take().or(engine.poisoned().map(str::to_owned));
        sum.is_full |= engine.is_full();
    }
    sum
}

fn add_stats(sum: &mut EngineStats, stats: &EngineStats) {
    sum.lookups += stats.lookups;
    sum.hits += stats.hits;
    sum.reads += stats.reads;
    sum.second_reads += stats.second_reads;
    sum.false_matches += stats.false_matches;
    sum.verification_reads += stats.verification_reads;
    sum.verifications_free += stats.verifications_free;
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
    sum.segment_bytes += log.segment_bytes;
    sum.live_bytes += log.live_bytes;
    sum.overlay_keys += log.overlay_keys;
    sum.verifications_queued += log.verifications_queued;
}

fn add_memory(sum: &mut MemoryReport, memory: &MemoryReport) {
    sum.budget_bytes += memory.budget_bytes;
    sum.index_bytes += memory.index_bytes;
    sum.overlay_bytes += memory.overlay_bytes;
    sum.buffer_bytes += memory.buffer_bytes;
    sum.cache_bytes += memory.cache_bytes;
}

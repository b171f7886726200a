//! Owns sums over the stores behind a front-end, for `/metrics`, `INFO` and `stats`; and how the chains stand.
use crate::cluster::{Node, NodeStatus};
use crate::status::{BackEndStatus, ChainStatus, ClusterStatus, ShardStatus, StoreStatus};
use fawn_chain::RangeEntry;
use fawn_ds::{Engine, EngineStats, LogReport, MemoryReport};
use fawn_flash::Device;
use fawn_types::NodeId;

/// The sums. Keys are those of the fullest copy: every member of a chain has them all.
pub(super) fn of_engines<'a, D: Device + 'a>(engines: impl Iterator<Item = &'a Engine<D>>) -> ShardStatus {
    let mut sum = StoreStatus { device_name: "none", ..StoreStatus::default() };
    let mut poisoned = None;
    for engine in engines {
        let StoreStatus { keys, engine: stats, log, memory, device, device_name, generation, is_full } =
            StoreStatus::of(engine);
        sum.keys = sum.keys.max(keys);
        add_stats(&mut sum.engine, &stats);
        add_log(&mut sum.log, &log);
        add_memory(&mut sum.memory, &memory);
        sum.device.add(&device);
        sum.device_name = device_name;
        sum.generation = sum.generation.max(generation);
        sum.is_full |= is_full;
        poisoned = poisoned.or(engine.poisoned().map(str::to_owned));
    }
    ShardStatus { store: sum, poisoned, ..ShardStatus::default() }
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

/// How the chains of a cluster stand: as the manager that `front` hosts has them, and its members say themselves.
pub(super) fn cluster_status<D: Device>(front: &Node<D>, members: Vec<(NodeId, NodeStatus)>) -> ClusterStatus {
    let of_manager = front.status();
    let chains = front.manager_map().into_iter().flat_map(|map| {
        let copies_wanted = usize::from(map.ring.replication);
        map.ranges.iter().map(move |entry| (entry, copies_wanted))
    });
    let serves = |entry: &RangeEntry, node: NodeId| {
        let status = members.iter().find(|(name, _)| *name == node);
        let mut copies = status.into_iter().flat_map(|(_, status)| &status.members);
        copies.any(|copy| {
            let is_well = copy.phase != "failed" && copy.broken.is_none();
            copy.range == entry.range && copy.epoch == entry.epoch && is_well
        })
    };
    let chain = |(entry, copies_wanted): (&RangeEntry, usize)| {
        let copies = entry.serving().filter(|member| serves(entry, member.node)).count();
        ChainStatus {
            range: entry.range,
            epoch: entry.epoch,
            is_active: entry.is_active(),
            durability: entry.durability,
            copies,
            takes_writes: entry.is_active() && copies > 0 && copies == entry.serving().count(),
            copies_wanted,
        }
    };
    let chains = chains.map(chain).collect();
    let back_end = |(node, status): (NodeId, NodeStatus)| BackEndStatus {
        node,
        poisoned: status.poisoned,
        store: StoreStatus::default(),
        members: status.members,
    };
    ClusterStatus {
        chains,
        back_ends: members.into_iter().map(back_end).collect(),
        stands_since: None,
        members_dropped: of_manager.members_dropped,
        possible_losses: of_manager.possible_losses,
    }
}

//! `/metrics`: every counter and gauge under Prometheus's conventions (`_total`, base units, a help line each).
use crate::server::ShardReport;
use fawn_flash::IoClass;
use fawn_node::cluster::MemberStatus;
use fawn_node::counters::{Counted, CounterNames};
use fawn_node::status::{DeviceCounters, StoreStatus};
use fawn_node::{BackEndStatus, ClusterStatus, counters};
use std::time::Duration;

counters! {
    /// Values of a cluster; all 0 for a single store.
    #[derive(Default)]
    struct ClusterValues {
        chains: u64, "Chains of a cluster.", prometheus "fawn_chains";
        degraded: u64, "Chains with fewer copies than they should have.", prometheus "fawn_chains_degraded";
        copies_min: u64, "Copies of the chain that has fewest.", prometheus "fawn_chain_copies_min";
        members_dropped: u64, "Members dropped for failing or on suspicion.", prometheus "fawn_members_dropped_total";
        possible_losses: u64, "Proposals of epochs after which acknowledged writes may be missing.",
            prometheus "fawn_possible_losses_total";
    }
}

impl From<&ClusterStatus> for ClusterValues {
    fn from(ClusterStatus { chains, members_dropped, possible_losses, .. }: &ClusterStatus) -> Self {
        Self {
            chains: chains.len() as u64,
            degraded: chains.iter().filter(|chain| chain.copies < chain.copies_wanted).count() as u64,
            copies_min: chains.iter().map(|chain| chain.copies).min().unwrap_or(0) as u64,
            members_dropped: *members_dropped,
            possible_losses: *possible_losses,
        }
    }
}

counters! {
    /// Values of a copy during a full resync; 0 otherwise.
    struct CopyValues {
        is_copying: bool, "1 while a back-end copies a whole range.", prometheus "fawn_copying";
        keys: u64, "Keys copied so far.", prometheus "fawn_copying_keys";
        keys_estimated: u64, "Estimated number of keys of the whole range.", prometheus "fawn_copying_keys_estimated";
    }
}

impl From<&MemberStatus> for CopyValues {
    fn from(MemberStatus { copied, .. }: &MemberStatus) -> Self {
        let (keys, keys_estimated) = copied.unwrap_or_default();
        Self { is_copying: copied.is_some(), keys, keys_estimated }
    }
}

/// Renders the page.
pub(super) fn text(uptime: Duration, reports: &[ShardReport]) -> String {
    let mut text = String::with_capacity(16 << 10);
    head(&mut text, "fawn_build_info", "The version that runs; always 1.");
    text += concat!("fawn_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n");
    head(&mut text, "fawn_uptime_seconds", "Time since the start.");
    text += &format!("fawn_uptime_seconds {}\n", uptime.as_secs());
    let shards = || reports.iter().enumerate().map(|(shard, report)| (format!("shard=\"{shard}\""), report));
    families(&mut text, shards().map(|(labels, report)| (labels, rows(&report.server))).collect());
    families(&mut text, shards().map(|(labels, report)| (labels, rows(&report.node))).collect());
    let of_cluster = |report: &ShardReport| report.node.cluster.as_ref().map(ClusterValues::from).unwrap_or_default();
    families(&mut text, shards().map(|(labels, report)| (labels, rows(&of_cluster(report)))).collect());
    families(&mut text, stores(reports).map(|(labels, store)| (labels, rows(store))).collect());
    families(&mut text, copies(reports).map(|(labels, copy)| (labels, rows(&CopyValues::from(copy)))).collect());
    let devices = |(labels, store): (String, &StoreStatus)| {
        let of_class = |(class, device): (IoClass, DeviceCounters)| {
            (format!("{labels},class=\"{}\"", class.name()), rows(&device))
        };
        store.devices().map(of_class).collect::<Vec<_>>()
    };
    families(&mut text, stores(reports).flat_map(devices).collect());
    text
}

/// A table's values that this page has.
type MetricRows = Vec<(&'static CounterNames, u64)>;

fn rows(table: &impl Counted) -> MetricRows {
    let mut rows = MetricRows::new();
    table.visit(&mut |names, value| {
        if !names.prometheus.is_empty() {
            rows.push((names, value));
        }
    });
    rows
}

/// A family per row, with a sample for each of the tables, which are of one kind.
fn families(text: &mut String, tables: Vec<(String, MetricRows)>) {
    let names = tables.first().map(|(_, rows)| rows.as_slice()).unwrap_or_default();
    for (row, (names, _)) in names.iter().enumerate() {
        head(text, names.prometheus, names.help);
        for (labels, rows) in &tables {
            *text += &format!("{}{{{labels}}} {}\n", names.prometheus, rows[row].1);
        }
    }
}

/// Back-ends' copies of ranges with their labels; none for a single store.
fn copies(reports: &[ShardReport]) -> impl Iterator<Item = (String, &MemberStatus)> {
    let clusters = reports.iter().filter_map(|report| report.node.cluster.as_ref());
    clusters.flat_map(|cluster| &cluster.back_ends).flat_map(|back_end| {
        let labels = move |copy: &MemberStatus| format!("{},range=\"{}\"", labels_of(back_end), copy.range.0);
        back_end.members.iter().map(move |copy| (labels(copy), copy))
    })
}

/// Labels of a back-end. A cluster runs in one thread, so `shard` is the shard's number on its node, not the thread's.
fn labels_of(back_end: &BackEndStatus) -> String {
    format!("shard=\"{}\",node=\"{}\"", back_end.id.shard().0, back_end.id.node().0)
}

/// All stores with their labels.
fn stores(reports: &[ShardReport]) -> impl Iterator<Item = (String, &StoreStatus)> {
    reports.iter().enumerate().flat_map(|(shard, report)| {
        report
            .stores()
            .map(move |(back_end, store)| (back_end.map_or_else(|| format!("shard=\"{shard}\""), labels_of), store))
    })
}

fn head(text: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    *text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::LoopCounters;
    use fawn_ds::internals::{EngineStats, LogReport, MemoryReport};
    use fawn_node::{ChainStatus, OpenGeneration, RepliesStatus, ShardCounters, ShardStatus};
    use fawn_types::{Durability, Epoch, MemberId, MonoMs, NodeId, RangeId, ShardId, Version};

    #[test]
    fn names_follow_the_conventions() {
        let page = text(Duration::ZERO, &[single(), report()]);
        let heads = page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let mut names: Vec<&str> = heads.clone().map(|(name, _)| name).collect();
        for (name, help) in heads {
            let legal = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(legal && name.starts_with("fawn_"), "{name}");
            assert!(help.ends_with('.'), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands twice");
    }

    /// A cluster with node 2 in full resync and node 3 healthy.
    fn report() -> ShardReport {
        let member = |phase, copied| MemberStatus {
            range: RangeId(7),
            epoch: Epoch::default(),
            phase,
            durability: Durability::Sync,
            last: Version::ZERO,
            committed: Version::ZERO,
            time: fawn_types::TimeMs(0),
            time_began: fawn_types::TimeMs(0),
            keys: 30,
            copied,
            broken: None,
        };
        let back_end = |node, phase, copied| BackEndStatus {
            id: MemberId::new(NodeId(node), ShardId(0)),
            poisoned: None,
            members: vec![member(phase, copied)],
            store: StoreStatus::default(),
        };
        let cluster = ClusterStatus {
            chains: Vec::new(),
            back_ends: vec![back_end(2, "copying", Some((30, 400))), back_end(3, "tail", None)],
            unavailable_since: None,
            members_dropped: 0,
            possible_losses: 0,
        };
        let status = ShardStatus { cluster: Some(cluster), ..ShardStatus::default() };
        ShardReport { server: LoopCounters::default(), node: status, now: MonoMs::default() }
    }

    /// A single store whose values all differ: a value under another's name changes the page.
    fn single() -> ShardReport {
        let server = LoopCounters {
            connections: 1,
            accepted: 2,
            dropped: 4,
            iterations: 5,
            reads: 6,
            writes: 7,
            input_bytes: 8,
            output_bytes: 9,
            batches_received: 10,
            batches_sent: 11,
            input_held_bytes: 12,
            input_waiting: 13,
            output_held_bytes: 14,
        };
        let counters = ShardCounters {
            sessions_opened: 101,
            sessions_refused: 3,
            commands: 102,
            gets: 103,
            hits: 104,
            misses: 105,
            cold: 106,
            forwarded: 107,
            executed_for_peers: 108,
            writes: 109,
            flushes: 110,
            rereads: 112,
            error_replies: 113,
            malformed: 114,
            stalls: 115,
            iterations: 116,
            input_bytes: 117,
            output_bytes: 118,
            retries_answered: 119,
            chain_refused: 120,
            records_sent_bytes: 121,
            records_received: 122,
            frames_cut: 123,
            resyncs: 124,
            alarms: 125,
        };
        let replies = RepliesStatus { held_bytes: 201, held_bytes_peak: 202, reserved_bytes: 203, waiting: 204 };
        let status = ShardStatus {
            counters,
            sessions: 301,
            pending: 303,
            reads: 304,
            replies,
            uncommitted: 305,
            store: store(),
            cluster: None,
        };
        ShardReport { server, node: status, now: MonoMs::default() }
    }

    fn store() -> StoreStatus {
        let engine = EngineStats {
            false_matches: 401,
            corrupt_passed: 402,
            appended_records: 403,
            user_bytes: 404,
            writes: 405,
            written_bytes: 406,
            syncs: 407,
            expired: 408,
            segments_dropped: 409,
            segments_cleaned: 410,
            moved_bytes: 411,
            cleaning_failed: 412,
            checkpoints: 413,
            checkpoint_bytes: 414,
            scrub_bytes: 415,
            scrub_segments: 416,
            scrub_corrupt_records: 417,
            scrub_reads_failed: 418,
            sort_bytes: 419,
            merges_failed: 420,
            puts_held_ms: 440,
            tail_frames: 421,
            ..EngineStats::default()
        };
        let log = LogReport {
            segments: 501,
            segment_bytes: 502,
            live_bytes: 503,
            keys_apart: 504,
            cleaning_debt_segments: 505,
            runs: 506,
            run_bytes: 507,
            ..LogReport::default()
        };
        let memory = MemoryReport {
            budget_bytes: 601,
            index_bytes: 602,
            overlay_bytes: 603,
            buffer_bytes: 604,
            cache_bytes: 605,
            record_cache_bytes: 606,
        };
        StoreStatus {
            keys: 701,
            page_cache_hits: 703,
            page_cache_misses: 704,
            record_cache_hits: 705,
            record_cache_misses: 706,
            record_cache_inserts: 707,
            record_cache_evictions: 708,
            device_name: "sim",
            generation: OpenGeneration(702),
            oldest_write_ms: 709,
            is_full: true,
            poisoned: Some("EIO".to_owned()),
            ..StoreStatus::of_reports(&engine, &log, &memory)
        }
    }

    /// Each family as a whole, sorted: a page's order of families has no meaning.
    #[test]
    fn the_page_is_as_recorded() {
        let page = text(Duration::from_secs(77), &[single(), report()]).replace(env!("CARGO_PKG_VERSION"), "VERSION");
        let mut families: Vec<&str> = page.split("# HELP ").collect();
        families.sort_unstable();
        assert_eq!(
            families.join("# HELP "),
            include_str!("../../tests/golden/metrics.txt"),
            "tests/golden/metrics.txt"
        );
    }

    #[test]
    fn chains_with_fewer_copies_are_counted() {
        let chain = |copies| ChainStatus {
            range: RangeId(1),
            epoch: Epoch::default(),
            is_active: true,
            durability: Durability::Sync,
            copies,
            takes_writes: true,
            copies_wanted: 3,
        };
        let values = |chains| {
            let back_ends = Vec::new();
            let ClusterValues { chains, degraded, copies_min, .. } = ClusterValues::from(&ClusterStatus {
                chains,
                back_ends,
                unavailable_since: None,
                members_dropped: 0,
                possible_losses: 0,
            });
            (chains, degraded, copies_min)
        };
        assert_eq!(values(vec![chain(3)]), (1, 0, 3));
        assert_eq!(values(vec![chain(3), chain(2)]), (2, 1, 2));
    }

    #[test]
    fn a_copy_under_way_is_shown_per_node_and_range() {
        let report = report();
        let json = report.json();
        let copy = |at: usize| &json["cluster"]["back_ends"][at]["copies"][0];
        assert_eq!(copy(0)["phase"], "copying");
        assert_eq!(copy(0)["copying"], serde_json::json!({ "keys": 30, "keys_estimated": 400 }));
        assert!(copy(1)["copying"].is_null(), "{json}");
        let text = text(Duration::ZERO, &[report]);
        for (name, of_copied) in [("fawn_copying", 1), ("fawn_copying_keys", 30), ("fawn_copying_keys_estimated", 400)]
        {
            for (node, value) in [(2, of_copied), (3, 0)] {
                let sample = format!("{name}{{shard=\"0\",node=\"{node}\",range=\"7\"}} {value}");
                assert!(text.lines().any(|line| line == sample), "{sample} is missing of\n{text}");
            }
        }
    }
}

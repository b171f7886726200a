//! `/metrics`: every counter and gauge under Prometheus's conventions (`_total`, base units, a help line each).
use crate::server::{ClusterReport, CopyReport, DeviceCounts, ShardReport, StoreCounts};
use std::fmt::Write;
use std::time::Duration;

/// Counter or gauge.
#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
}

/// A metric with a value per shard.
struct Metric {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&ShardReport) -> u64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&ShardReport) -> u64) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, value }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&ShardReport) -> u64) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, value }
}

/// A value of the cluster; 0 for a single store.
fn of(report: &ShardReport, value: fn(&ClusterReport) -> u64) -> u64 {
    report.cluster.as_ref().map_or(0, value)
}

const METRICS: &[Metric] = &[
    gauge("fawn_connections", "Client connections open.", |r| r.server.connections),
    counter("fawn_connections_accepted_total", "Client connections accepted.", |r| r.server.accepted),
    counter("fawn_connections_refused_total", "Client connections beyond the limit.", |r| r.server.refused),
    counter("fawn_connections_dropped_total", "Client connections closed for holding too much.", |r| r.server.dropped),
    counter("fawn_loop_iterations_total", "Iterations of the event loop.", |r| r.server.iterations),
    counter("fawn_socket_reads_total", "Reads from client sockets.", |r| r.server.reads),
    counter("fawn_socket_writes_total", "Writes to client sockets.", |r| r.server.writes),
    counter("fawn_received_bytes_total", "Bytes received from clients.", |r| r.server.input_bytes),
    counter("fawn_sent_bytes_total", "Bytes sent to clients.", |r| r.server.output_bytes),
    counter("fawn_shard_messages_received_total", "Message batches from the process's other shards.", |r| {
        r.server.batches_received
    }),
    counter("fawn_shard_messages_sent_total", "Message batches to the process's other shards.", |r| {
        r.server.batches_sent
    }),
    gauge("fawn_input_held_bytes", "Bytes of incomplete requests.", |r| r.server.input_held_bytes),
    gauge("fawn_input_waiting", "Connections whose long request waits for admission.", |r| r.server.input_waiting),
    gauge("fawn_output_held_bytes", "Bytes of replies that clients have not taken.", |r| r.server.output_held_bytes),
    counter("fawn_commands_total", "Requests executed.", |r| r.node.commands),
    counter("fawn_gets_total", "Keys read.", |r| r.node.gets),
    counter("fawn_get_hits_total", "Keys read and found.", |r| r.node.hits),
    counter("fawn_get_misses_total", "Keys read and not found.", |r| r.node.misses),
    counter("fawn_cold_reads_total", "Device reads started for requests.", |r| r.node.cold_reads),
    counter("fawn_writes_total", "Records written for clients.", |r| r.node.writes),
    counter("fawn_overloaded_total", "Requests refused because too much was in flight.", |r| r.node.overloaded),
    counter("fawn_error_replies_total", "Replies that were errors.", |r| r.node.error_replies),
    counter("fawn_malformed_total", "Requests refused by the decoder.", |r| r.node.malformed),
    counter("fawn_stalls_total", "Times a connection's input had to wait.", |r| r.node.stalls),
    counter(
        "fawn_rereads_total",
        "Reads of other shards and nodes repeated because their reply was over budget.",
        |r| r.node.rereads,
    ),
    gauge("fawn_reply_bytes", "Replies waiting for their turn or their client.", |r| r.node.reply_bytes),
    gauge("fawn_reply_peak_bytes", "Most of these at a time.", |r| r.node.reply_bytes_peak),
    gauge(
        "fawn_reply_reserved_bytes",
        "Replies granted to reads in flight; estimated if another shard or node reads.",
        |r| r.node.reply_reserved_bytes,
    ),
    gauge("fawn_reply_waiting", "Connections and reads that wait for the reply budget.", |r| r.node.reply_waiting),
    gauge("fawn_pending_requests", "Requests that wait for a read or for their key.", |r| r.node.pending),
    gauge("fawn_uncommitted_writes", "Writes that wait for their commit.", |r| r.node.uncommitted),
    gauge("fawn_chains", "Chains of a cluster.", |r| of(r, |c| c.chains.len() as u64)),
    gauge("fawn_chains_degraded", "Chains with fewer copies than they should have.", |r| {
        of(r, ClusterReport::degraded)
    }),
    gauge("fawn_chain_copies_min", "Copies of the chain that has fewest.", |r| of(r, ClusterReport::copies_min)),
    counter("fawn_members_dropped_total", "Members dropped for failing or on suspicion.", |r| {
        of(r, |c| c.members_dropped)
    }),
    counter("fawn_possible_losses_total", "New epochs after which acknowledged writes may be missing.", |r| {
        of(r, |c| c.possible_losses)
    }),
];

/// A metric with a value per store: per shard, and per back-end in a cluster.
struct StoreMetric {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&StoreCounts) -> u64,
}

const fn store_counter(name: &'static str, help: &'static str, value: fn(&StoreCounts) -> u64) -> StoreMetric {
    StoreMetric { name, kind: MetricKind::Counter, help, value }
}

const fn store_gauge(name: &'static str, help: &'static str, value: fn(&StoreCounts) -> u64) -> StoreMetric {
    StoreMetric { name, kind: MetricKind::Gauge, help, value }
}

const STORE_METRICS: &[StoreMetric] = &[
    store_gauge("fawn_keys", "Keys, expired ones not met yet included.", |s| s.keys),
    store_counter("fawn_user_bytes_total", "Bytes of keys and values appended.", |s| s.user_bytes),
    store_counter("fawn_log_writes_total", "Writes of the log.", |s| s.log_writes),
    store_counter("fawn_log_written_bytes_total", "Bytes of these.", |s| s.log_written_bytes),
    store_counter("fawn_log_syncs_total", "Syncs of the log.", |s| s.log_syncs),
    store_counter("fawn_false_matches_total", "Records looked at whose key was another.", |s| s.false_matches),
    store_gauge("fawn_keys_apart", "Written keys whose old version cannot be read.", |s| s.keys_apart),
    store_counter(
        "fawn_scan_damaged_total",
        "Lost records that scans left out: corrupt, or unreadable for 10 s.",
        |s| s.corrupt_passed,
    ),
    store_gauge("fawn_segments", "Segments of the log.", |s| s.segments),
    store_gauge("fawn_segment_bytes", "Bytes that segments take on the device.", |s| s.segment_bytes),
    store_gauge("fawn_live_bytes", "Bytes of current records.", |s| s.live_bytes),
    store_gauge("fawn_memory_budget_bytes", "The memory budget.", |s| s.memory_budget_bytes),
    store_gauge("fawn_memory_index_bytes", "Memory of indexes.", |s| s.memory_index_bytes),
    store_gauge("fawn_memory_overlay_bytes", "Memory of keys in flight.", |s| s.memory_overlay_bytes),
    store_gauge("fawn_memory_buffer_bytes", "Memory of write and device buffers.", |s| s.memory_buffer_bytes),
    store_gauge("fawn_memory_cache_bytes", "Memory of the page cache.", |s| s.memory_cache_bytes),
    store_gauge("fawn_store_full", "1 while there is no space for writes.", |s| s.is_full as u64),
    store_gauge("fawn_store_poisoned", "1 after a failed write or sync.", |s| s.poisoned.is_some() as u64),
];

/// A metric with a value per store and I/O class.
struct DeviceMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&DeviceCounts) -> u64,
}

const DEVICE_METRICS: &[DeviceMetric] = &[
    DeviceMetric { name: "fawn_device_reads_total", help: "Device reads.", value: |c| c.reads },
    DeviceMetric { name: "fawn_device_read_bytes_total", help: "Bytes read.", value: |c| c.read_bytes },
    DeviceMetric { name: "fawn_device_writes_total", help: "Device writes.", value: |c| c.writes },
    DeviceMetric { name: "fawn_device_written_bytes_total", help: "Bytes written.", value: |c| c.written_bytes },
    DeviceMetric { name: "fawn_device_syncs_total", help: "Syncs, durable writes included.", value: |c| c.syncs },
];

/// A gauge with a value per back-end and range during a full resync; 0 otherwise.
struct CopyMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&CopyReport) -> u64,
}

const COPY_METRICS: &[CopyMetric] = &[
    CopyMetric {
        name: "fawn_copying",
        help: "1 while a back-end's copy of a range is made anew.",
        value: |c| u64::from(c.copying.is_some()),
    },
    CopyMetric {
        name: "fawn_copying_keys",
        help: "Keys that such a copy has.",
        value: |c| c.copying.map_or(0, |copying| copying.keys),
    },
    CopyMetric {
        name: "fawn_copying_keys_estimated",
        help: "About so many keys it will have.",
        value: |c| c.copying.map_or(0, |copying| copying.keys_estimated),
    },
];

/// Renders the page.
pub(super) fn text(uptime: Duration, reports: &[ShardReport]) -> String {
    let mut text = String::with_capacity(16 << 10);
    head(&mut text, "fawn_build_info", MetricKind::Gauge, "The version that runs; always 1.");
    line(&mut text, format_args!("fawn_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    head(&mut text, "fawn_uptime_seconds", MetricKind::Gauge, "Time since the start.");
    line(&mut text, format_args!("fawn_uptime_seconds {}", uptime.as_secs()));
    for metric in METRICS {
        head(&mut text, metric.name, metric.kind, metric.help);
        for (shard, report) in reports.iter().enumerate() {
            line(&mut text, format_args!("{}{{shard=\"{shard}\"}} {}", metric.name, (metric.value)(report)));
        }
    }
    for metric in STORE_METRICS {
        head(&mut text, metric.name, metric.kind, metric.help);
        for (place, store) in stores(reports) {
            line(&mut text, format_args!("{}{{{place}}} {}", metric.name, (metric.value)(store)));
        }
    }
    copies(&mut text, reports);
    for metric in DEVICE_METRICS {
        head(&mut text, metric.name, MetricKind::Counter, metric.help);
        for (place, store) in stores(reports) {
            for counts in &store.device {
                let (name, class, value) = (metric.name, counts.class, (metric.value)(counts));
                line(&mut text, format_args!("{name}{{{place},class=\"{class}\"}} {value}"));
            }
        }
    }
    text
}

/// Copies in full resync; none for a single store.
fn copies(text: &mut String, reports: &[ShardReport]) {
    for metric in COPY_METRICS {
        head(text, metric.name, MetricKind::Gauge, metric.help);
        for (shard, report) in reports.iter().enumerate() {
            let back_ends = report.cluster.iter().flat_map(|cluster| &cluster.back_ends);
            for (node, copy) in back_ends.flat_map(|b| b.copies.iter().map(|copy| (b.node, copy))) {
                let (name, range, value) = (metric.name, copy.range, (metric.value)(copy));
                line(text, format_args!("{name}{{shard=\"{shard}\",node=\"{node}\",range=\"{range}\"}} {value}"));
            }
        }
    }
}

/// All stores with their labels.
fn stores(reports: &[ShardReport]) -> impl Iterator<Item = (String, &StoreCounts)> {
    reports.iter().enumerate().flat_map(|(shard, report)| {
        report.stores().map(move |(node, store)| match node {
            None => (format!("shard=\"{shard}\""), store),
            Some(node) => (format!("shard=\"{shard}\",node=\"{node}\""), store),
        })
    })
}

fn head(text: &mut String, name: &str, kind: MetricKind, help: &str) {
    let kind = match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    };
    line(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _: std::fmt::Result = writeln!(text, "{words}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::LoopCounters;
    use fawn_ds::internals::{EngineStats, LogReport, MemoryReport};
    use fawn_flash::IoStats;
    use fawn_node::cluster::MemberStatus;
    use fawn_node::{BackEndStatus, ClusterStatus, RepliesStatus, ShardCounters, ShardStatus, StoreStatus};
    use fawn_types::{Durability, Epoch, NodeId, Now, RangeId, Version};

    #[test]
    fn names_follow_the_conventions() {
        let of_shards = METRICS.iter().map(|metric| (metric.name, metric.kind, metric.help));
        let of_stores = STORE_METRICS.iter().map(|metric| (metric.name, metric.kind, metric.help));
        let of_copies = COPY_METRICS.iter().map(|metric| (metric.name, MetricKind::Gauge, metric.help));
        let metrics: Vec<_> = of_shards.chain(of_stores).chain(of_copies).collect();
        let mut names: Vec<&str> = metrics.iter().map(|(name, ..)| *name).collect();
        let device = DEVICE_METRICS.iter().map(|metric| metric.name);
        assert!(device.clone().all(|name| name.starts_with("fawn_device_") && name.ends_with("_total")));
        names.extend(device);
        let count = names.len();
        for (name, kind, help) in metrics {
            let legal = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(legal && name.starts_with("fawn_"), "{name}");
            assert_eq!(name.ends_with("_total"), matches!(kind, MetricKind::Counter), "{name}");
            assert!(help.ends_with('.'), "{name}");
        }
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
            keys: 30,
            copied,
            broken: None,
        };
        let back_end = |node, phase, copied| BackEndStatus {
            node: NodeId(node),
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
        ShardReport::new(Default::default(), &status, Now::default())
    }

    /// A single store whose values all differ: a value under another's name changes the page.
    fn single() -> ShardReport {
        let server = LoopCounters {
            connections: 1,
            accepted: 2,
            refused: 3,
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
            commands: 102,
            gets: 103,
            hits: 104,
            misses: 105,
            cold: 106,
            forwarded: 107,
            executed_for_peers: 108,
            writes: 109,
            flushes: 110,
            overloaded: 111,
            rereads: 112,
            error_replies: 113,
            malformed: 114,
            stalls: 115,
            iterations: 116,
            input_bytes: 117,
            output_bytes: 118,
        };
        let replies = RepliesStatus { held_bytes: 201, held_bytes_peak: 202, reserved_bytes: 203, waiting: 204 };
        let status = ShardStatus {
            counters,
            sessions: 301,
            proxy_sessions: 302,
            pending: 303,
            reads: 304,
            replies,
            uncommitted: 305,
            store: store(),
            poisoned: Some("EIO".to_owned()),
            cluster: None,
        };
        ShardReport::new(server, &status, Now::default())
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
            ..EngineStats::default()
        };
        let log =
            LogReport { segments: 501, segment_bytes: 502, live_bytes: 503, keys_apart: 504, ..LogReport::default() };
        let memory = MemoryReport {
            budget_bytes: 601,
            index_bytes: 602,
            overlay_bytes: 603,
            buffer_bytes: 604,
            cache_bytes: 605,
        };
        let device = IoStats::default();
        StoreStatus { keys: 701, engine, log, memory, device, device_name: "sim", generation: 702, is_full: true }
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
    fn a_copy_under_way_is_shown_per_node_and_range() {
        let report = report();
        let json = serde_json::to_value(&report).expect("a report is JSON");
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

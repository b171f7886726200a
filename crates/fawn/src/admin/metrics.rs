//! Owns `/metrics`: every counter and gauge under Prometheus's conventions (`_total`, base units, a help line each).
use crate::server::{ClusterReport, DeviceCounts, Report};
use std::fmt::Write;
use std::time::Duration;

/// Whether a value only grows.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// One metric with a value per shard.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&Report) -> u64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Report) -> u64) -> Metric {
    Metric { name, kind: Kind::Counter, help, value }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Report) -> u64) -> Metric {
    Metric { name, kind: Kind::Gauge, help, value }
}

/// A cluster's value; 0 for a store by itself.
fn of(report: &Report, value: fn(&ClusterReport) -> u64) -> u64 {
    report.cluster.as_ref().map_or(0, value)
}

const METRICS: &[Metric] = &[
    gauge("fawn_connections", "Client connections open.", |r| r.server.connections),
    counter("fawn_connections_accepted_total", "Client connections accepted.", |r| r.server.accepted),
    counter("fawn_connections_refused_total", "Client connections beyond the limit.", |r| r.server.refused),
    counter("fawn_connections_dropped_total", "Client connections closed for holding too much.", |r| r.server.dropped),
    counter("fawn_turns_total", "Turns of the event loop.", |r| r.server.turns),
    counter("fawn_socket_reads_total", "Reads from client sockets.", |r| r.server.reads),
    counter("fawn_socket_writes_total", "Writes to client sockets.", |r| r.server.writes),
    counter("fawn_received_bytes_total", "Bytes received from clients.", |r| r.server.input_bytes),
    counter("fawn_sent_bytes_total", "Bytes sent to clients.", |r| r.server.output_bytes),
    gauge("fawn_input_held_bytes", "Bytes of incomplete requests.", |r| r.server.input_held_bytes),
    gauge("fawn_output_held_bytes", "Bytes of replies that clients have not taken.", |r| r.server.output_held_bytes),
    counter("fawn_commands_total", "Requests executed.", |r| r.node.commands),
    counter("fawn_gets_total", "Keys read.", |r| r.node.gets),
    counter("fawn_get_hits_total", "Keys read and found.", |r| r.node.hits),
    counter("fawn_get_misses_total", "Keys read and not found.", |r| r.node.misses),
    counter("fawn_cold_reads_total", "Device reads started for requests.", |r| r.node.cold_reads),
    counter("fawn_writes_total", "Records written for clients.", |r| r.node.writes),
    counter("fawn_overloaded_total", "Requests refused because too much was under way.", |r| r.node.overloaded),
    counter("fawn_malformed_total", "Requests refused by the decoder.", |r| r.node.malformed),
    counter("fawn_stalls_total", "Times a connection's input had to wait.", |r| r.node.stalls),
    gauge("fawn_pending_requests", "Requests that wait for a read or for their key.", |r| r.node.pending),
    gauge("fawn_uncommitted_writes", "Writes that wait for their commit.", |r| r.node.uncommitted),
    gauge("fawn_keys", "Keys, expired ones not met yet included.", |r| r.node.keys),
    counter("fawn_user_bytes_total", "Bytes of keys and values appended.", |r| r.node.user_bytes),
    counter("fawn_log_writes_total", "Writes of the log.", |r| r.node.log_writes),
    counter("fawn_log_written_bytes_total", "Bytes of these.", |r| r.node.log_written_bytes),
    counter("fawn_log_syncs_total", "Syncs of the log.", |r| r.node.log_syncs),
    counter("fawn_false_matches_total", "Records looked at whose key was another.", |r| r.node.false_matches),
    gauge("fawn_segments", "Segments of the log.", |r| r.node.segments),
    gauge("fawn_segment_bytes", "Bytes that segments take on the device.", |r| r.node.segment_bytes),
    gauge("fawn_live_bytes", "Bytes of current records.", |r| r.node.live_bytes),
    gauge("fawn_memory_budget_bytes", "The memory budget.", |r| r.node.memory_budget_bytes),
    gauge("fawn_memory_index_bytes", "Memory of indexes.", |r| r.node.memory_index_bytes),
    gauge("fawn_memory_overlay_bytes", "Memory of keys in flight.", |r| r.node.memory_overlay_bytes),
    gauge("fawn_memory_buffer_bytes", "Memory of write and device buffers.", |r| r.node.memory_buffer_bytes),
    gauge("fawn_memory_cache_bytes", "Memory of the page cache.", |r| r.node.memory_cache_bytes),
    gauge("fawn_store_full", "1 while there is no space for writes.", |r| r.node.is_full as u64),
    gauge("fawn_store_poisoned", "1 after a failed write or sync.", |r| r.poisoned.is_some() as u64),
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

/// One metric with a value per shard and cause.
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

/// The page.
pub(super) fn text(uptime: Duration, reports: &[Report]) -> String {
    let mut text = String::with_capacity(16 << 10);
    head(&mut text, "fawn_build_info", Kind::Gauge, "The version that runs; always 1.");
    line(&mut text, format_args!("fawn_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    head(&mut text, "fawn_uptime_seconds", Kind::Gauge, "Time since the start.");
    line(&mut text, format_args!("fawn_uptime_seconds {}", uptime.as_secs()));
    for metric in METRICS {
        head(&mut text, metric.name, metric.kind, metric.help);
        for (shard, report) in reports.iter().enumerate() {
            line(&mut text, format_args!("{}{{shard=\"{shard}\"}} {}", metric.name, (metric.value)(report)));
        }
    }
    for metric in DEVICE_METRICS {
        head(&mut text, metric.name, Kind::Counter, metric.help);
        for (shard, report) in reports.iter().enumerate() {
            for counts in &report.device {
                let (name, cause, value) = (metric.name, counts.cause, (metric.value)(counts));
                line(&mut text, format_args!("{name}{{shard=\"{shard}\",cause=\"{cause}\"}} {value}"));
            }
        }
    }
    text
}

fn head(text: &mut String, name: &str, kind: Kind, help: &str) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    line(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _: std::fmt::Result = writeln!(text, "{words}");
}

#[cfg(test)]
mod tests {
    use super::{DEVICE_METRICS, Kind, METRICS};

    #[test]
    fn names_follow_the_conventions() {
        let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let device = DEVICE_METRICS.iter().map(|metric| metric.name);
        assert!(device.clone().all(|name| name.starts_with("fawn_device_") && name.ends_with("_total")));
        names.extend(device);
        let count = names.len();
        for metric in METRICS {
            let legal = metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(legal && metric.name.starts_with("fawn_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), matches!(metric.kind, Kind::Counter), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands twice");
    }
}

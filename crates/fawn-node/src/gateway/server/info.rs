//! Text of `INFO`: Redis's field names for clients and dashboards, FAWN's own in a section.
use crate::counters::Counted;
use crate::options::ServerInfo;
use crate::status::ShardStatus;
use fawn_types::TimeMs;
use fawn_wire::{Args, identity};
use std::fmt::{Display, Write};

type Section = fn(&mut Text, &ServerInfo, &ShardStatus, TimeMs);

/// Sections in the order of their output.
const SECTIONS: [(&str, Section); 9] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
    ("Fawn", fawn),
];

/// Lines of `name:value`.
struct Text(String);

impl Text {
    fn line(&mut self, name: &str, value: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    /// The rows of a table in this section.
    fn counters(&mut self, section: &str, table: &impl Counted) {
        table.visit(&mut |names, value| match names.info.split_once(':') {
            Some((of, name)) if of == section => self.line(name, value),
            _ => {}
        });
    }
}

/// The requested sections; all if none is named.
pub(super) fn text(server_info: &ServerInfo, status: &ShardStatus, asked: Args<'_>, now: TimeMs) -> String {
    let mut text = Text(String::with_capacity(2048));
    for (name, section) in SECTIONS {
        if is_asked(name, asked) {
            if !text.0.is_empty() {
                text.0.push_str("\r\n");
            }
            let _ = write!(text.0, "# {name}\r\n");
            section(&mut text, server_info, status, now);
            text.counters(name, status);
            text.counters(name, &status.store);
        }
    }
    text.0
}

fn is_asked(name: &str, mut asked: Args<'_>) -> bool {
    let all: [&[u8]; 3] = [b"default", b"all", b"everything"];
    asked.is_empty()
        || asked.any(|word| {
            word.eq_ignore_ascii_case(name.as_bytes()) || all.iter().any(|all| word.eq_ignore_ascii_case(all))
        })
}

fn server(text: &mut Text, server_info: &ServerInfo, _: &ShardStatus, now: TimeMs) {
    let uptime_s = now.ms_since(TimeMs(server_info.started_at_ms)) / 1000;
    text.line("redis_version", identity::REDIS_VERSION);
    text.line("fawn_version", env!("CARGO_PKG_VERSION"));
    text.line("redis_mode", "standalone");
    text.line("os", &server_info.system);
    text.line("arch_bits", usize::BITS);
    text.line("process_id", server_info.process_id);
    text.line("run_id", &server_info.run_id);
    text.line("tcp_port", server_info.resp_port);
    text.line("memcached_port", server_info.memcached_port);
    text.line("server_time_usec", now.0.saturating_mul(1000));
    text.line("uptime_in_seconds", uptime_s);
    text.line("uptime_in_days", uptime_s / 86_400);
    text.line("io_threads_active", u8::from(server_info.threads > 1));
    text.line("data_directory", &server_info.directory);
}

fn clients(text: &mut Text, server_info: &ServerInfo, _: &ShardStatus, _: TimeMs) {
    text.line("maxclients", server_info.sessions_max);
    text.line("blocked_clients", 0);
}

fn memory(text: &mut Text, _: &ServerInfo, status: &ShardStatus, _: TimeMs) {
    text.line("used_memory", status.store.memory_bytes());
    // Nothing is evicted: values are on flash, only cached pages are dropped.
    text.line("maxmemory_policy", "noeviction");
}

fn persistence(text: &mut Text, _: &ServerInfo, status: &ShardStatus, _: TimeMs) {
    text.line("loading", 0);
    text.line("async_loading", 0);
    text.line("rdb_changes_since_last_save", status.uncommitted);
    text.line("rdb_bgsave_in_progress", 0);
    text.line("rdb_last_bgsave_status", "ok");
    text.line("aof_enabled", 1);
    text.line("aof_rewrite_in_progress", 0);
    text.line("aof_last_write_status", if status.store.poisoned.is_some() { "err" } else { "ok" });
}

fn stats(text: &mut Text, _: &ServerInfo, _: &ShardStatus, _: TimeMs) {
    text.line("rejected_connections", 0);
    text.line("evicted_keys", 0);
}

fn replication(text: &mut Text, _: &ServerInfo, _: &ShardStatus, _: TimeMs) {
    text.line("role", "master");
    text.line("connected_slaves", 0);
}

fn cluster(text: &mut Text, _: &ServerInfo, _: &ShardStatus, _: TimeMs) {
    text.line("cluster_enabled", 0);
}

fn keyspace(text: &mut Text, _: &ServerInfo, status: &ShardStatus, _: TimeMs) {
    if status.store.keys > 0 {
        text.line("db0", format_args!("keys={},expires=0,avg_ttl=0", status.store.keys));
    }
}

fn fawn(text: &mut Text, _: &ServerInfo, status: &ShardStatus, _: TimeMs) {
    text.line("device", status.store.device_name);
    text.line("poisoned", status.store.poisoned.as_deref().unwrap_or(""));
    for (class, device) in status.store.devices() {
        let mut value = Vec::new();
        device.visit(&mut |names, count| value.push(format!("{}={count}", names.field)));
        text.line(&format!("device_{}", class.name()), value.join(","));
    }
}

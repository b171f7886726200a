//! Text of `INFO`: Redis's field names for clients and dashboards, FAWN's own in a section.
use crate::counters::{Counted, CounterNames};
use crate::options::ServerInfo;
use crate::status::ShardStatus;
use fawn_types::TimeMs;
use fawn_wire::{Args, identity};
use std::fmt::Write;

/// Sections in the order of their output.
const SECTIONS: [&str; 9] =
    ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "Cluster", "Keyspace", "Fawn"];

/// The requested sections; all if none is named.
pub(super) fn text(server_info: &ServerInfo, status: &ShardStatus, asked: Args<'_>, now: TimeMs) -> String {
    let (mut text, lines) = (String::with_capacity(2048), lines(server_info, status, now));
    for section in SECTIONS.into_iter().filter(|section| is_asked(section, asked)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        // Writing to a string does not fail.
        let _ = write!(text, "# {section}\r\n");
        for (name, value) in &lines {
            if let Some((of, name)) = name.split_once(':')
                && of == section
            {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    text
}

fn is_asked(name: &str, mut asked: Args<'_>) -> bool {
    let all: [&[u8]; 3] = [b"default", b"all", b"everything"];
    asked.is_empty()
        || asked.any(|word| {
            word.eq_ignore_ascii_case(name.as_bytes()) || all.iter().any(|all| word.eq_ignore_ascii_case(all))
        })
}

/// The lines of all sections, each named `Section:name` as in the tables of counters.
fn lines(server_info: &ServerInfo, status: &ShardStatus, now: TimeMs) -> Vec<(String, String)> {
    let (uptime_s, store) = (now.ms_since(TimeMs(server_info.started_at_ms)) / 1000, &status.store);
    let text = |value: &dyn ToString| value.to_string();
    let mut lines = vec![
        ("Server:redis_version", text(&identity::REDIS_VERSION)),
        ("Server:fawn_version", text(&env!("CARGO_PKG_VERSION"))),
        ("Server:redis_mode", text(&"standalone")),
        ("Server:os", text(&server_info.system)),
        ("Server:arch_bits", text(&usize::BITS)),
        ("Server:process_id", text(&server_info.process_id)),
        ("Server:run_id", text(&server_info.run_id)),
        ("Server:tcp_port", text(&server_info.resp_port)),
        ("Server:memcached_port", text(&server_info.memcached_port)),
        ("Server:server_time_usec", text(&now.0.saturating_mul(1000))),
        ("Server:uptime_in_seconds", text(&uptime_s)),
        ("Server:uptime_in_days", text(&(uptime_s / 86_400))),
        ("Server:io_threads_active", text(&u8::from(server_info.threads > 1))),
        ("Server:data_directory", text(&server_info.directory)),
        ("Clients:maxclients", text(&server_info.sessions_max)),
        ("Clients:blocked_clients", text(&0)),
        ("Memory:used_memory", text(&store.memory_bytes())),
        // Nothing is evicted: values are on flash, only cached pages are dropped.
        ("Memory:maxmemory_policy", text(&"noeviction")),
        ("Persistence:loading", text(&0)),
        ("Persistence:async_loading", text(&0)),
        ("Persistence:rdb_changes_since_last_save", text(&status.uncommitted)),
        ("Persistence:rdb_bgsave_in_progress", text(&0)),
        ("Persistence:rdb_last_bgsave_status", text(&"ok")),
        ("Persistence:aof_enabled", text(&1)),
        ("Persistence:aof_rewrite_in_progress", text(&0)),
        ("Persistence:aof_last_write_status", text(&if store.poisoned.is_some() { "err" } else { "ok" })),
        ("Stats:rejected_connections", text(&0)),
        ("Stats:evicted_keys", text(&0)),
        ("Replication:role", text(&"master")),
        ("Replication:connected_slaves", text(&0)),
        ("Cluster:cluster_enabled", text(&0)),
        ("Fawn:device", text(&store.device_name)),
        ("Fawn:poisoned", text(&store.poisoned.as_deref().unwrap_or(""))),
    ];
    if store.keys > 0 {
        lines.push(("Keyspace:db0", format!("keys={},expires=0,avg_ttl=0", store.keys)));
    }
    let mut lines: Vec<(String, String)> = lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (class, device) in store.devices() {
        let mut value = Vec::new();
        device.visit(&mut |names, count| value.push(format!("{}={count}", names.field)));
        lines.push((format!("Fawn:device_{}", class.name()), value.join(",")));
    }
    let mut add = |names: &'static CounterNames, value: u64| lines.push((names.info.to_owned(), text(&value)));
    status.visit(&mut add);
    store.visit(&mut add);
    lines
}

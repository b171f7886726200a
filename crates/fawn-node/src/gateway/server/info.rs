//! Text of `INFO`: Redis's field names for clients and dashboards, FAWN's own in a section.
use crate::counters::Counted;
use crate::options::ServerInfo;
use crate::status::ShardStatus;
use fawn_types::TimeMs;
use fawn_wire::{Args, identity};
use std::fmt::{Display, Write};

/// Sections in the order of their output.
const SECTIONS: [&str; 9] =
    ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "Cluster", "Keyspace", "Fawn"];

/// The requested sections; all if none is named.
pub(super) fn text(server_info: &ServerInfo, status: &ShardStatus, asked: Args<'_>, now: TimeMs) -> String {
    let mut lines = Vec::new();
    for_each_line(server_info, status, now, &mut |name, value| {
        // Only lines of the requested sections are formatted.
        if let Some((section, name)) = name.split_once(':').filter(|(section, _)| is_asked(section, asked)) {
            lines.push((section.to_owned(), format!("{name}:{value}\r\n")));
        }
    });
    let mut text = String::with_capacity(2048);
    for section in SECTIONS.into_iter().filter(|section| is_asked(section, asked)) {
        // Writing to a string does not fail.
        let _ = write!(text, "{}# {section}\r\n", if text.is_empty() { "" } else { "\r\n" });
        lines.iter().filter(|(of, _)| of == section).for_each(|(_, line)| text.push_str(line));
    }
    text
}

fn is_asked(section: &str, mut asked: Args<'_>) -> bool {
    let all: [&[u8]; 3] = [b"default", b"all", b"everything"];
    asked.is_empty()
        || asked.any(|word| {
            word.eq_ignore_ascii_case(section.as_bytes()) || all.iter().any(|all| word.eq_ignore_ascii_case(all))
        })
}

/// Calls `add` for each line with its value. A line's name is `Section:name`, as in the tables of counters.
fn for_each_line(server_info: &ServerInfo, status: &ShardStatus, now: TimeMs, add: &mut dyn FnMut(&str, &dyn Display)) {
    let (uptime_s, store) = (now.ms_since(TimeMs(server_info.started_at_ms)) / 1000, &status.store);
    let fixed: [(&str, &dyn Display); 32] = [
        ("Server:redis_version", &identity::REDIS_VERSION),
        ("Server:fawn_version", &env!("CARGO_PKG_VERSION")),
        ("Server:redis_mode", &"standalone"),
        ("Server:os", &server_info.system),
        ("Server:arch_bits", &usize::BITS),
        ("Server:process_id", &server_info.process_id),
        ("Server:run_id", &server_info.run_id),
        ("Server:tcp_port", &server_info.resp_port),
        ("Server:memcached_port", &server_info.memcached_port),
        ("Server:server_time_usec", &now.0.saturating_mul(1000)),
        ("Server:uptime_in_seconds", &uptime_s),
        ("Server:uptime_in_days", &(uptime_s / 86_400)),
        ("Server:io_threads_active", &u8::from(server_info.threads > 1)),
        ("Server:data_directory", &server_info.directory),
        ("Clients:maxclients", &server_info.sessions_max),
        ("Clients:blocked_clients", &0),
        ("Memory:used_memory", &store.memory_bytes()),
        // Nothing is evicted: values are on flash, only cached pages are dropped.
        ("Memory:maxmemory_policy", &"noeviction"),
        ("Persistence:loading", &0),
        ("Persistence:async_loading", &0),
        ("Persistence:rdb_changes_since_last_save", &status.uncommitted),
        ("Persistence:rdb_bgsave_in_progress", &0),
        ("Persistence:rdb_last_bgsave_status", &"ok"),
        ("Persistence:aof_enabled", &1),
        ("Persistence:aof_rewrite_in_progress", &0),
        ("Persistence:aof_last_write_status", &if store.poisoned.is_some() { "err" } else { "ok" }),
        ("Stats:evicted_keys", &0),
        ("Replication:role", &"master"),
        ("Replication:connected_slaves", &0),
        ("Cluster:cluster_enabled", &0),
        ("Fawn:device", &store.device_name),
        ("Fawn:poisoned", &store.poisoned.as_deref().unwrap_or("")),
    ];
    fixed.into_iter().for_each(|(name, value)| add(name, value));
    if store.keys > 0 {
        add("Keyspace:db0", &format_args!("keys={},expires=0,avg_ttl=0", store.keys));
    }
    for (class, device) in store.devices() {
        let mut value = Vec::new();
        device.visit(&mut |names, count| value.push(format!("{}={count}", names.field)));
        add(&format!("Fawn:device_{}", class.name()), &value.join(","));
    }
    status.visit(&mut |names, value| add(names.info, &value));
    store.visit(&mut |names, value| add(names.info, &value));
}

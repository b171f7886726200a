//! memcached's general `stats`: its names, this store's numbers.
use crate::counters::{Counted, CounterNames};
use crate::options::ServerInfo;
use crate::status::{DeviceCounters, ShardStatus};
use fawn_types::TimeMs;

pub(super) fn general(server_info: &ServerInfo, status: &ShardStatus, now: TimeMs) -> Vec<(&'static str, String)> {
    let text = |value: &dyn ToString| value.to_string();
    let mut lines = vec![
        ("pid", text(&server_info.process_id)),
        ("uptime", text(&(now.ms_since(TimeMs(server_info.started_at_ms)) / 1000))),
        ("time", text(&(now.0 / 1000))),
        ("version", text(&env!("CARGO_PKG_VERSION"))),
        ("pointer_size", text(&usize::BITS)),
        ("max_connections", text(&server_info.sessions_max)),
        ("accepting_conns", text(&1)),
        ("threads", text(&server_info.threads)),
        ("evictions", text(&0)),
        ("fawn_device", text(&status.store.device_name)),
        ("fawn_memory_bytes", text(&status.store.memory_bytes())),
    ];
    let mut add = |names: &'static CounterNames, value: u64| {
        if !names.stats.is_empty() {
            lines.push((names.stats, text(&value)));
        }
    };
    status.visit(&mut add);
    status.store.visit(&mut add);
    DeviceCounters::from(&status.store.device.total()).visit(&mut add);
    lines
}

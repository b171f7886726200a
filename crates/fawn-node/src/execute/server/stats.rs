//! memcached's general `stats`: its names, this store's numbers.
use crate::options::ServerInfo;
use crate::status::ShardStatus;
use fawn_types::TimeMs;

pub(super) fn general(server_info: &ServerInfo, status: &ShardStatus, now: TimeMs) -> Vec<(&'static str, String)> {
    let counters = status.counters;
    let device = status.store.device.total();
    let text = |value: &dyn ToString| value.to_string();
    vec![
        ("pid", text(&server_info.process_id)),
        ("uptime", text(&(now.ms_since(TimeMs(server_info.started_at_ms)) / 1000))),
        ("time", text(&(now.0 / 1000))),
        ("version", text(&env!("CARGO_PKG_VERSION"))),
        ("pointer_size", text(&usize::BITS)),
        ("max_connections", text(&server_info.sessions_max)),
        ("curr_connections", text(&status.sessions)),
        ("total_connections", text(&counters.sessions_opened)),
        ("cmd_get", text(&counters.gets)),
        ("cmd_set", text(&counters.writes)),
        ("cmd_flush", text(&counters.flushes)),
        ("get_hits", text(&counters.hits)),
        ("get_misses", text(&counters.misses)),
        ("get_expired", text(&status.store.engine.expired)),
        ("bytes_read", text(&counters.input_bytes)),
        ("bytes_written", text(&counters.output_bytes)),
        ("limit_maxbytes", text(&status.store.memory.budget_bytes)),
        ("accepting_conns", text(&1)),
        ("threads", text(&server_info.threads)),
        ("bytes", text(&status.store.log.live_bytes)),
        ("curr_items", text(&status.store.keys)),
        ("total_items", text(&status.store.engine.appended_records)),
        ("evictions", text(&0)),
        ("fawn_cold_reads", text(&counters.cold)),
        ("fawn_pending", text(&status.pending)),
        ("fawn_uncommitted", text(&status.uncommitted)),
        ("fawn_overloaded", text(&counters.overloaded)),
        ("fawn_device", text(&status.store.device_name)),
        ("fawn_device_reads", text(&device.reads)),
        ("fawn_device_read_bytes", text(&device.read_bytes)),
        ("fawn_device_writes", text(&device.writes)),
        ("fawn_device_written_bytes", text(&device.written_bytes)),
        ("fawn_device_syncs", text(&device.syncs)),
        ("fawn_memory_bytes", text(&status.store.memory.total_bytes())),
        ("fawn_segments", text(&status.store.log.segments)),
        ("fawn_poisoned", text(&u8::from(status.poisoned.is_some()))),
    ]
}

//! `CONFIG GET` and `stats settings`: Redis's parameter names with this store's values.
use crate::options::{ServerInfo, ShardOptions};
use fawn_ds::internals::Options;
use fawn_types::Durability;
use fawn_wire::{Args, glob};

/// Parameters with their values.
pub(super) fn settings(
    options: &ShardOptions,
    server_info: &ServerInfo,
    engine: &Options,
) -> Vec<(&'static str, String)> {
    let fsync = match options.durability {
        Durability::Sync => "always",
        Durability::EverySecond => "everysec",
        Durability::Memory => "no",
    };
    // Each of the process's shards has as much.
    let memory_bytes = engine.memory_bytes * u64::from(server_info.threads.max(1));
    let mut settings = vec![
        // redis-benchmark queries these two before it starts.
        ("save", String::new()),
        ("appendonly", "yes".to_owned()),
        ("appendfsync", fsync.to_owned()),
        ("databases", "1".to_owned()),
        ("dir", server_info.directory.clone()),
        ("maxmemory", memory_bytes.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("maxclients", server_info.sessions_max.to_string()),
        ("port", server_info.resp_port.to_string()),
        ("timeout", "0".to_owned()),
        ("io-threads", server_info.threads.to_string()),
        ("cluster-enabled", "no".to_owned()),
        ("proto-max-bulk-len", options.value_bytes_max.to_string()),
        ("memcached-port", server_info.memcached_port.to_string()),
        ("durability", options.durability.name().to_owned()),
        ("segment-bytes", engine.segment_bytes.to_string()),
        ("value-bytes-max", options.value_bytes_max.to_string()),
        ("session-output-bytes-max", options.session_output_bytes_max.to_string()),
        ("session-pending-max", options.session_pending_max.to_string()),
        ("pending-max", options.pending_max.to_string()),
        ("reads-in-flight-max", options.reads_in_flight_max.to_string()),
    ];
    settings.sort_unstable_by_key(|(name, _)| *name);
    settings
}

/// Parameters that match any of the patterns, each once; names are compared in lower case.
pub(super) fn matching<'a>(
    settings: &'a [(&'static str, String)],
    patterns: Args<'a>,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    settings
        .iter()
        .filter(move |(name, _)| {
            let mut patterns = patterns;
            patterns.any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
        })
        .map(|(name, value)| (*name, value.as_str()))
}

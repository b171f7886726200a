//! Requests on the server: `INFO`, `CONFIG GET`, `COMMAND`, memcached's `stats`. All read one status.
mod config;
mod info;
mod stats;

use super::Session;
use crate::options::{ServerInfo, ShardOptions};
use crate::status::ShardStatus;
use fawn_types::TimeMs;
use fawn_wire::{ServerCommand, commands, memcached, resp};

/// Server state besides its status.
pub(crate) struct ServerContext<'a> {
    pub(crate) server_info: &'a ServerInfo,
    pub(crate) options: &'a ShardOptions,
    pub(crate) store: &'a fawn_ds::internals::Options,
}

/// Replies to the request; returns whether the counters that clients see are to be reset.
pub(crate) fn answer(
    about: &ServerContext<'_>,
    status: impl Fn() -> ShardStatus,
    session: &mut Session,
    server: &ServerCommand<'_>,
    now: TimeMs,
) -> bool {
    let version = session.codec.resp_version();
    let settings = || config::settings(about.options, about.server_info, about.store);
    match server {
        ServerCommand::Info { sections } => {
            let text = info::text(about.server_info, &status(), *sections, now);
            session.replies.respond(|out| resp::encode::text(version, text.as_bytes(), out));
        }
        ServerCommand::ConfigGet { patterns } => {
            let settings = settings();
            let asked: Vec<(&str, &str)> = config::matching(&settings, *patterns).collect();
            session.replies.respond(|out| resp::encode::pairs(version, &asked, out));
        }
        ServerCommand::Command(query) => session.replies.respond(|out| commands::answer(query, version, out)),
        ServerCommand::Stats { argument: Some(b"reset") } => {
            session.replies.respond(|out| out.extend_from_slice(b"RESET\r\n"));
            return true;
        }
        ServerCommand::Stats { argument } => {
            let lines = match argument {
                None => stats::general(about.server_info, &status(), now),
                Some(b"settings") => settings(),
                // `items`, `slabs`, `sizes`, `conns`: this store has nothing under these names.
                Some(_) => Vec::new(),
            };
            let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
            session.replies.respond(|out| memcached::encode::stats(&lines, out));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counted;
    use crate::status::{OpenGeneration, RepliesStatus, ShardCounters, StoreStatus};
    use fawn_ds::internals::{EngineStats, LogReport, MemoryReport};
    use fawn_wire::Args;

    /// A status whose values all differ: a value under another's name changes a page.
    fn status() -> ShardStatus {
        let counters = ShardCounters {
            sessions_opened: 101,
            sessions_refused: 100,
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
        ShardStatus {
            counters,
            sessions: 301,
            pending: 303,
            reads: 304,
            replies,
            uncommitted: 305,
            store: store(),
            cluster: None,
        }
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
            is_full: true,
            poisoned: Some("write of segment-1: EIO".to_owned()),
            ..StoreStatus::of_reports(&engine, &log, &memory)
        }
    }

    /// The sections in order, with their lines sorted: clients read `INFO` by name.
    fn sorted_sections(text: &str) -> String {
        let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        let section = |section: &str| {
            let (head, lines) = section.split_once("\r\n").expect("a section has a head");
            let mut lines: Vec<&str> = lines.split_terminator("\r\n").collect();
            lines.sort_unstable();
            format!("{head}\n{}\n", lines.join("\n"))
        };
        text.split("\r\n\r\n").map(section).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn info_is_as_recorded() {
        let info = info::text(&ServerInfo::default(), &status(), Args::default(), TimeMs(9_000));
        assert_eq!(sorted_sections(&info), include_str!("../../../tests/golden/info.txt"), "tests/golden/info.txt");
    }

    #[test]
    fn stats_are_as_recorded() {
        let lines = stats::general(&ServerInfo::default(), &status(), TimeMs(9_000));
        let mut lines: Vec<String> = lines.iter().map(|(name, value)| format!("STAT {name} {value}\n")).collect();
        lines.sort_unstable();
        let text = lines.concat().replace(env!("CARGO_PKG_VERSION"), "VERSION");
        assert_eq!(text, include_str!("../../../tests/golden/stats.txt"), "tests/golden/stats.txt");
    }

    #[test]
    fn every_value_is_added() {
        let values = |status: &ShardStatus| {
            let mut values = Vec::new();
            status.visit(&mut |names, value| values.push((names.field, value)));
            status.store.visit(&mut |names, value| values.push((names.field, value)));
            values
        };
        let mut sum = status();
        sum.add(&status());
        for ((field, one), (_, two)) in values(&status()).into_iter().zip(values(&sum)) {
            let is_number = !["is_full", "poisoned", "generation"].contains(&field);
            assert_eq!(two, if is_number { 2 * one } else { one }, "{field}");
        }
    }
}

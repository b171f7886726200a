//! Owns requests on the server: `INFO`, `CONFIG GET`, `COMMAND`, memcached's `stats`. All read one status.
mod config;
mod info;
mod stats;

use super::{Core, Flow};
use crate::session::Session;
use crate::status::ShardStatus;
use fawn_flash::Device;
use fawn_types::TimeMs;
use fawn_wire::{Server, commands, memcached, resp};

/// Answers it.
pub(crate) fn execute<D: Device>(core: &mut Core<D>, session: &mut Session, server: &Server<'_>, now: TimeMs) -> Flow {
    let version = session.codec.resp_version();
    match server {
        Server::Info { sections } => {
            let text = info::text(&core.facts, &core.status(), *sections, now);
            session.replies.respond(|out| resp::encode::text(version, text.as_bytes(), out));
        }
        Server::ConfigGet { patterns } => {
            let settings = config::settings(&core.options, &core.facts, core.engine.options());
            let asked: Vec<(&str, &str)> = config::matching(&settings, *patterns).collect();
            session.replies.respond(|out| resp::encode::pairs(version, &asked, out));
        }
        Server::Command(query) => session.replies.respond(|out| commands::answer(query, version, out)),
        Server::Stats { argument: Some(b"reset") } => {
            core.reset_counters();
            session.replies.respond(|out| out.extend_from_slice(b"RESET\r\n"));
        }
        Server::Stats { argument } => {
            let settings = || config::settings(&core.options, &core.facts, core.engine.options());
            let lines = match argument {
                None => stats::general(&core.facts, &core.status(), now),
                Some(b"settings") => settings(),
                // `items`, `slabs`, `sizes`, `conns`: this store has nothing under these names.
                Some(_) => Vec::new(),
            };
            let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
            session.replies.respond(|out| memcached::encode::stats(&lines, out));
        }
    }
    Flow::Next
}

impl<D: Device> Core<D> {
    /// Counters and gauges at this moment.
    pub(crate) fn status(&self) -> ShardStatus {
        ShardStatus {
            counters: self.counters,
            sessions: self.sessions_open,
            pending: self.pending.len(),
            reads: self.pending.reads.in_flight() + self.pending.reads.waiting(),
            uncommitted: self.replica.uncommitted(),
            keys: self.engine.len(self.replica.range()),
            engine: *self.engine.stats(),
            log: self.engine.log_report(),
            memory: self.engine.memory(),
            device: self.engine.device().stats().clone(),
            device_name: self.engine.device().name(),
            generation: self.engine.generation(),
            poisoned: self.engine.poisoned().map(str::to_owned),
            is_full: self.engine.is_full(),
        }
    }

    /// `stats reset`: what clients count; the device's and the engine's counters go on.
    fn reset_counters(&mut self) {
        let sessions_opened = self.counters.sessions_opened;
        self.counters = crate::Counters { sessions_opened, ..crate::Counters::default() };
    }
}

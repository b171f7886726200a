//! Requests on the server: `INFO`, `CONFIG GET`, `COMMAND`, memcached's `stats`. All read one status.
mod config;
mod info;
mod stats;

use super::{Flow, ShardState};
use crate::options::{ServerInfo, ShardOptions};
use crate::session::Session;
use crate::shards::MessageKind;
use crate::status::{RepliesStatus, ShardStatus, StoreStatus};
use fawn_flash::Device;
use fawn_types::TimeMs;
use fawn_wire::{ServerCommand, commands, memcached, resp};

/// Server state besides its status.
pub(crate) struct ServerContext<'a> {
    pub(crate) server_info: &'a ServerInfo,
    pub(crate) options: &'a ShardOptions,
    pub(crate) store: &'a fawn_ds::internals::Options,
}

pub(crate) fn execute<D: Device>(state: &mut ShardState<D>, session: &mut Session, server: &ServerCommand<'_>) -> Flow {
    let about =
        ServerContext { server_info: &state.server_info, options: &state.options, store: state.engine.options() };
    let status = || {
        let mut status = state.status();
        if let Some(links) = &state.links {
            status.add(&links.peer_stats);
        }
        status
    };
    if answer(&about, status, session, server, state.wall) {
        state.counters.reset();
        if let Some(links) = &mut state.links {
            links.send_to_all(MessageKind::ResetStats, session.id);
        }
    }
    Flow::Continue
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

impl<D: Device> ShardState<D> {
    /// Current counters and gauges.
    pub(crate) fn status(&self) -> ShardStatus {
        ShardStatus {
            counters: self.counters,
            sessions: self.sessions_open,
            proxy_sessions: self.links.as_ref().map_or(0, |links| links.proxy_sessions()),
            pending: self.pending.len() + self.links.as_ref().map_or(0, |links| links.requests()),
            // The owner of the sessions fills this in.
            replies: RepliesStatus::default(),
            reads: self.pending.reads.in_flight() + self.pending.reads.waiting(),
            uncommitted: self.replica.uncommitted(),
            store: StoreStatus::of(&self.engine),
            poisoned: self.engine.poisoned().map(str::to_owned),
            cluster: None,
        }
    }
}

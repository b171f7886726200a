//! Requests on the server: `INFO`, `CONFIG GET`, `COMMAND`, memcached's `stats`. All read one status.
mod config;
mod info;
mod stats;

use super::{Core, Flow};
use crate::options::{ProcessFacts, ShardOptions};
use crate::session::Session;
use crate::shards::Kind;
use crate::status::{RepliesStatus, ShardStatus, StoreStatus};
use fawn_flash::Device;
use fawn_types::TimeMs;
use fawn_wire::{Server, commands, memcached, resp};

/// Server state besides its status.
pub(crate) struct About<'a> {
    pub(crate) facts: &'a ProcessFacts,
    pub(crate) options: &'a ShardOptions,
    pub(crate) store: &'a fawn_ds::internals::Options,
}

pub(crate) fn execute<D: Device>(core: &mut Core<D>, session: &mut Session, server: &Server<'_>) -> Flow {
    let about = About { facts: &core.facts, options: &core.options, store: core.engine.options() };
    let status = || {
        let mut status = core.status();
        if let Some(links) = &core.links {
            status.add(&links.others);
        }
        status
    };
    if answer(&about, status, session, server, core.wall) {
        core.counters.reset();
        if let Some(links) = &mut core.links {
            links.tell_all(Kind::Reset, session.id);
        }
    }
    Flow::Next
}

/// Replies to the request; returns whether the counters that clients see are to be reset.
pub(crate) fn answer(
    about: &About<'_>,
    status: impl Fn() -> ShardStatus,
    session: &mut Session,
    server: &Server<'_>,
    now: TimeMs,
) -> bool {
    let version = session.codec.resp_version();
    let settings = || config::settings(about.options, about.facts, about.store);
    match server {
        Server::Info { sections } => {
            let text = info::text(about.facts, &status(), *sections, now);
            session.replies.respond(|out| resp::encode::text(version, text.as_bytes(), out));
        }
        Server::ConfigGet { patterns } => {
            let settings = settings();
            let asked: Vec<(&str, &str)> = config::matching(&settings, *patterns).collect();
            session.replies.respond(|out| resp::encode::pairs(version, &asked, out));
        }
        Server::Command(query) => session.replies.respond(|out| commands::answer(query, version, out)),
        Server::Stats { argument: Some(b"reset") } => {
            session.replies.respond(|out| out.extend_from_slice(b"RESET\r\n"));
            return true;
        }
        Server::Stats { argument } => {
            let lines = match argument {
                None => stats::general(about.facts, &status(), now),
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

impl<D: Device> Core<D> {
    /// Current counters and gauges.
    pub(crate) fn status(&self) -> ShardStatus {
        ShardStatus {
            counters: self.counters,
            sessions: self.sessions_open,
            standing: self.links.as_ref().map_or(0, |links| links.standing()),
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

//! Execution: from a decoded command to replies, appended records, and waiting requests.
pub(crate) mod connection;
mod core;
mod deliver;
mod evaluate;
mod fit;
mod keyspace;
mod multi;
mod read;
mod resume;
mod scan;
pub(crate) mod server;
mod update;
mod wide;

pub(crate) use keyspace::clear;

pub(crate) use self::core::{Core, Scratch, operation_error};
pub(crate) use deliver::deliver;
pub(crate) use evaluate::{Decision, Write, evaluate};
pub(crate) use fit::{Fit, fits, is_due};
pub(crate) use resume::Host;
pub(crate) use scan::log_damaged;

use crate::session::Session;
use crate::shards::{away, wide as node_wide};
use fawn_ds::internals::LookupPlan;
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, Request, ShardId};
use fawn_wire::{Command, Shape};

/// What happens to a session's input after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// The command is consumed; the next one may follow.
    Next,
    /// The command is not consumed: offer it again once the stall ends.
    Stall(Stall),
    /// The command is consumed and was the session's last.
    End,
}

/// Reason of a session's stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// The session's own bounds on waiting requests and bytes.
    Room,
    /// All earlier requests of the session: a whole-keyspace command is a barrier.
    Quiet,
    /// The session's reads in flight: a write must not overtake them.
    Reads,
    /// The shard's reply budget: the request returns values.
    Replies,
    /// The shard's bounds: log buffers, uncommitted writes, keys being loaded.
    Shard,
}

/// Why a request is not answered at once.
#[derive(Debug)]
pub(crate) enum Later {
    /// Its record is on flash.
    Read(LookupPlan),
    /// This earlier read of the key by the same session is in flight.
    Behind(usize),
    /// Earlier operations on the key are being loaded.
    Queue,
}

/// Executes `command` for `session`.
#[inline]
pub(crate) fn execute<D: Device>(core: &mut Core<D>, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
    match command {
        Command::Single { request, shape } => {
            let place = (core.hash(request.key()), core.elsewhere(session, request.key()));
            execute_single(core, session, place, (&request, shape), now)
        }
        Command::Multi(multi) => multi::execute(core, session, &multi, now.wall),
        Command::Keyspace(keyspace) if core.links.is_some() => node_wide::keyspace(core, session, &keyspace, now),
        Command::Keyspace(keyspace) => keyspace::execute(core, session, &keyspace, now),
        Command::Wide(request) => wide::execute(core, session, &request, now.wall),
        Command::Connection(connection) => connection::execute(session, &connection),
        Command::Server(server) => server::execute(core, session, &server),
    }
}

/// Executes a request on one key, with its hash and the shard that owns it unless it is this one.
#[inline]
pub(crate) fn execute_single<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    (hash, owner): (KeyHash, Option<ShardId>),
    (request, shape): (&Request<'_>, Shape),
    now: Now,
) -> Flow {
    if let Some(owner) = owner {
        return away::single(core, session, (owner, hash), request, shape);
    }
    match request {
        Request::Get { key } => {
            read::single(core, session, (hash, key), shape);
            Flow::Next
        }
        Request::Update { key, update } => update::single(core, session, (hash, key), update, shape, now.wall),
    }
}

//! Execution: from a decoded command to replies, appended records, and waiting requests.
pub(crate) mod connection;
mod core;
mod deliver;
mod evaluate;
mod fit;
mod keyspace;
mod keyspace_op;
mod multi;
mod read;
mod resume;
mod scan;
pub(crate) mod server;
mod update;

pub(crate) use keyspace::clear;

pub(crate) use self::core::{EvaluationScratch, ShardState, operation_error};
pub(crate) use deliver::deliver;
pub(crate) use evaluate::{UpdateDecision, Write, evaluate};
pub(crate) use fit::{Admit, admit_reply, is_granted};
pub(crate) use resume::ShardContext;
pub(crate) use scan::check_whole;

use crate::session::Session;
use crate::shards::{keyspace_op as node_wide, outstanding};
use fawn_ds::internals::LookupPlan;
use fawn_flash::Device;
use fawn_types::{KeyHash, Now, Request, ShardId};
use fawn_wire::{Command, ReplyFormat};

/// Continuation of a session's input after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// The command is consumed; the next one may follow.
    Continue,
    /// The command is not consumed: offer it again once the stall ends.
    Stall(Stall),
    /// The command is consumed and was the session's last.
    End,
}

/// Reason of a session's stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// The session's own bounds on waiting requests and bytes.
    SessionLimit,
    /// All earlier requests of the session: a whole-keyspace command is a barrier.
    Quiet,
    /// The session's reads in flight: a write must not overtake them.
    Reads,
    /// The shard's reply budget: a reply of this length is not granted. Nothing was copied, read or changed.
    ReplyBudget,
    /// The shard's bounds: log buffers, uncommitted writes, keys being loaded.
    Shard,
}

/// Why a request is not answered at once.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// Its record is on flash.
    Read(LookupPlan),
    /// This earlier read of the key by the same session is in flight.
    Behind(usize),
    /// Earlier operations on the key are being loaded.
    Queue,
}

/// Executes `command` for `session`.
#[inline]
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    command: Command<'_>,
    now: Now,
) -> Flow {
    match command {
        Command::Single { request, format } => {
            let place = (state.hash(request.key()), state.elsewhere(session, request.key()));
            execute_single(state, session, place, (&request, format), now)
        }
        Command::Multi(multi) => multi::execute(state, session, &multi, now.wall),
        Command::Keyspace(keyspace) if state.links.is_some() => node_wide::keyspace(state, session, &keyspace, now),
        Command::Keyspace(keyspace) => keyspace::execute(state, session, &keyspace, now),
        Command::Wide(request) => keyspace_op::execute(state, session, &request, now.wall),
        Command::Connection(connection) => connection::execute(session, &connection),
        Command::Server(server) => server::execute(state, session, &server),
    }
}

/// Executes a request on one key, with its hash and the shard that owns it unless it is this one.
#[inline]
pub(crate) fn execute_single<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    (hash, owner): (KeyHash, Option<ShardId>),
    (request, format): (&Request<'_>, ReplyFormat),
    now: Now,
) -> Flow {
    if let Some(owner) = owner {
        return outstanding::single(state, session, (owner, hash), request, format);
    }
    match request {
        Request::Get { key } => read::single(state, session, (hash, key), format),
        Request::Update { key, update } => update::single(state, session, (hash, key), update, format, now.wall),
    }
}

//! Gateway of a shard: a session's command is executed here, sent to another shard, or answered at once.
pub(crate) mod connection;
mod deliver;
mod multi;
mod multi_reply;
pub(crate) mod server;
mod single;
mod state;

pub(crate) use deliver::{ShardReplies, admit_reply, deliver, is_granted};
pub(crate) use multi_reply::{MultiReply, PendingMulti};
pub(crate) use single::execute_single;
pub(crate) use state::{ShardContext, ShardState};

use crate::forward;
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::Now;
use fawn_wire::Command;

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
    /// The session's requests that return values: a request on several keys must not overtake one on the same key.
    Values,
    /// The shard's reply budget: a reply of this length is not granted. Nothing was copied, read or changed.
    ReplyBudget,
    /// The shard's bounds: log buffers, uncommitted writes, keys being loaded.
    Shard,
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
            let place = (state.hash(request.key()), state.elsewhere(request.key()));
            execute_single(state, session, place, (&request, format), now)
        }
        Command::Multi(multi) => multi::execute(state, session, &multi, now),
        Command::Keyspace(keyspace) => forward::keyspace(state, session, &keyspace, now),
        Command::Connection(connection) => connection::execute(session, &connection),
        Command::Server(server) => server::execute(state, session, &server),
    }
}

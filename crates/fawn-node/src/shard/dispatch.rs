//! Dispatch of a session's command: executed here, sent to another shard, or answered at once.
use super::{ShardState, fan_out, multi, server, single};
use crate::gateway::connection;
use crate::gateway::{Flow, Session};
use fawn_flash::Device;
use fawn_types::Now;
use fawn_wire::Command;

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
            single::execute_single(state, session, place, (&request, format), now)
        }
        Command::Multi(multi) => multi::execute(state, session, &multi, now),
        Command::Keyspace(keyspace) => fan_out::keyspace(state, session, &keyspace, now),
        Command::Connection(connection) => connection::execute(session, &connection),
        Command::Server(server) => server::execute(state, session, &server),
    }
}

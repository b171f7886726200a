//! Requests on the server, answered from the status of all shards.
use super::ShardState;
use crate::counters::Counted;
use crate::gateway::server::{ServerContext, answer};
use crate::gateway::{Flow, Session};
use fawn_flash::Device;
use fawn_wire::ServerCommand;
use fawn_wire::internal::Message;

pub(crate) fn execute<D: Device>(state: &mut ShardState<D>, session: &mut Session, server: &ServerCommand<'_>) -> Flow {
    let about =
        ServerContext { server_info: &state.server_info, options: &state.options, store: state.host.engine.options() };
    let status = || {
        let mut status = state.status();
        status.add(&state.forward.peer_stats);
        status
    };
    if answer(&about, status, session, server, state.wall) {
        state.reset_counters();
        state.forward.notify_others(Message::ResetStats);
    }
    Flow::Continue
}

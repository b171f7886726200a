//! Whole-keyspace requests: barriers, executed once their session has no pending request.
use super::core::operation_error;
use super::{Flow, ShardState, Stall, scan};
use crate::session::Session;
use fawn_ds::internals::EngineError;
use fawn_flash::Device;
use fawn_types::{Now, TimeMs, Version};
use fawn_wire::{KeyspaceCommand, ReplyFormat, encode_done, encode_error, resp};

/// Executes the request, or stalls the session until it is quiet.
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    keyspace: &KeyspaceCommand<'_>,
    now: Now,
) -> Flow {
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *keyspace {
        KeyspaceCommand::FlushAll { at_ms, format } if at_ms > now.wall.0 => {
            state.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(format, out));
        }
        KeyspaceCommand::FlushAll { format, .. } => return flush(state, session, format),
        KeyspaceCommand::DbSize => {
            let keys = state.engine.len(state.replica.range());
            session.replies.respond(|out| resp::encode::integer(keys as i64, out));
        }
        KeyspaceCommand::Scan { .. } => scan::begin(state, session, scan::ScanRequest::of(keyspace), now.wall),
    }
    Flow::Continue
}

pub(super) fn flush<D: Device>(state: &mut ShardState<D>, session: &mut Session, format: ReplyFormat) -> Flow {
    match clear(state) {
        Ok(version) => {
            // An earlier delayed flush is replaced by this one.
            state.flush_at = None;
            session.own_writes.push_clear(version);
            session.replies.respond_after(Some(version), |out| encode_done(format, out));
        }
        Err(EngineError::Overloaded) => return Flow::Stall(Stall::Shard),
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| encode_error(format, error, out));
        }
    }
    Flow::Continue
}

/// Empties the range with one record. Updates that wait for their value find the key absent.
pub(crate) fn clear<D: Device>(state: &mut ShardState<D>) -> Result<Version, EngineError> {
    let before = state.replica.last();
    let version = state.replica.assign(state.now).map_err(super::update::refused)?;
    if let Err(error) = state.engine.clear(state.replica.range(), version) {
        return Err(super::update::retract(state, before, error));
    }
    state.counters.flushes += 1;
    Ok(version)
}

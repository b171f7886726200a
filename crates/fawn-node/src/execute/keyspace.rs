//! Whole-keyspace requests: barriers, executed once their session has no pending request.
use super::core::operation_error;
use super::{Core, Flow, Stall, scan};
use crate::session::Session;
use fawn_ds::internals::EngineError;
use fawn_flash::Device;
use fawn_types::{Now, TimeMs, Version};
use fawn_wire::{Keyspace, Shape, encode_done, encode_error, resp};

/// Executes the request, or stalls the session until it is quiet.
pub(crate) fn execute<D: Device>(core: &mut Core<D>, session: &mut Session, keyspace: &Keyspace<'_>, now: Now) -> Flow {
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *keyspace {
        Keyspace::FlushAll { at_ms, shape } if at_ms > now.wall.0 => {
            core.flush_at = Some(now.mono_at(TimeMs(at_ms)));
            session.replies.respond(|out| encode_done(shape, out));
        }
        Keyspace::FlushAll { shape, .. } => return flush(core, session, shape),
        Keyspace::DbSize => {
            let keys = core.engine.len(core.replica.range());
            session.replies.respond(|out| resp::encode::integer(keys as i64, out));
        }
        Keyspace::Scan { .. } => scan::begin(core, session, scan::Step::of(keyspace), now.wall),
    }
    Flow::Next
}

pub(super) fn flush<D: Device>(core: &mut Core<D>, session: &mut Session, shape: Shape) -> Flow {
    match clear(core) {
        Ok(version) => {
            // An earlier delayed flush is replaced by this one.
            core.flush_at = None;
            session.own.push_clear(version);
            session.replies.respond_after(Some(version), |out| encode_done(shape, out));
        }
        Err(EngineError::Overloaded) => return Flow::Stall(Stall::Shard),
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| encode_error(shape, error, out));
        }
    }
    Flow::Next
}

/// Empties the range with one record. Updates that wait for their value find the key absent.
pub(crate) fn clear<D: Device>(core: &mut Core<D>) -> Result<Version, EngineError> {
    let before = core.replica.last();
    let version = core.replica.assign(core.now).map_err(super::update::refused)?;
    if let Err(error) = core.engine.clear(core.replica.range(), version) {
        return Err(super::update::retract(core, before, error));
    }
    core.counters.flushes += 1;
    Ok(version)
}

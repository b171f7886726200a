//! Owns what other shards of the node ask of this one's range as a whole: counts, steps of scans, clears, batches.
use super::{Core, Flow, Stall, keyspace, multi, scan};
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{Reply, TimeMs};
use fawn_wire::Shape;
use fawn_wire::native::{WideRequest, put_reply_frame};

/// Keys that one step of a scan looks at, whatever it asks for: the asking shard goes on where it ended.
const SCAN_KEYS_MAX: usize = 256;

/// Executes it, or stalls the session until it is quiet: a barrier, as where it was asked.
pub(crate) fn execute<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    request: &WideRequest<'_>,
    now: TimeMs,
) -> Flow {
    if let WideRequest::SetAll(pairs) = request {
        // On keys like any other: its order among the session's requests is kept by the log.
        return multi::set_all(core, session, pairs.iter(), Shape::Native);
    }
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *request {
        WideRequest::Count => {
            let keys = core.engine.len(core.replica.range());
            session.replies.respond(|out| put_reply_frame(&Reply::Unsigned(keys), out));
            Flow::Next
        }
        WideRequest::Scan { cursor, count } => {
            let step =
                scan::Step { cursor, count: (count as usize).clamp(1, SCAN_KEYS_MAX), wording: scan::Wording::Page };
            scan::begin(core, session, step, now);
            Flow::Next
        }
        WideRequest::Clear => keyspace::flush(core, session, Shape::Native),
        WideRequest::SetAll(_) => unreachable!("done above"),
    }
}

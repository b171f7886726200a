//! Requests of other shards on this one's whole range: counts, scan steps, clears, batches.
use super::{Core, Flow, Stall, keyspace, multi, scan};
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{Reply, TimeMs};
use fawn_wire::Shape;
use fawn_wire::native::{WideRequest, put_reply_frame};

/// Keys of one scan step, whatever was requested: the asking shard continues from there.
const SCAN_KEYS_MAX: usize = 256;

/// Executes the request, or stalls the proxy session until it is quiet: a barrier.
pub(crate) fn execute<D: Device>(
    core: &mut Core<D>,
    session: &mut Session,
    request: &WideRequest<'_>,
    now: TimeMs,
) -> Flow {
    if let WideRequest::SetAll(pairs) = request {
        // Keys like any other: the log keeps the order among the session's requests.
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

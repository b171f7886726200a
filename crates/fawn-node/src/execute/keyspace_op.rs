//! Requests of other shards on this one's whole range: counts, scan steps, clears, batches.
use super::{Flow, ShardState, Stall, keyspace, multi, scan};
use crate::session::Session;
use fawn_flash::Device;
use fawn_types::{Reply, TimeMs};
use fawn_wire::ReplyFormat;
use fawn_wire::internal::{KeyspaceRequest, put_reply_frame};

/// Keys of one scan step, whatever was requested: the requesting shard continues from there.
const SCAN_KEYS_MAX: usize = 256;

/// Executes the request, or stalls the proxy session until it is quiet: a barrier.
pub(crate) fn execute<D: Device>(
    state: &mut ShardState<D>,
    session: &mut Session,
    request: &KeyspaceRequest<'_>,
    now: TimeMs,
) -> Flow {
    if let KeyspaceRequest::SetAll(pairs) = request {
        // Keys like any other: the log keeps the order among the session's requests.
        return multi::set_all(state, session, pairs.iter(), ReplyFormat::Native);
    }
    if !session.is_quiet() {
        return Flow::Stall(Stall::Quiet);
    }
    match *request {
        KeyspaceRequest::Count => {
            let keys = state.engine.len(state.replica.range());
            session.replies.respond(|out| put_reply_frame(&Reply::Unsigned(keys), out));
            Flow::Continue
        }
        KeyspaceRequest::Scan { cursor, count } => {
            let step = scan::ScanRequest {
                cursor,
                count: (count as usize).clamp(1, SCAN_KEYS_MAX),
                wording: scan::Wording::Page,
            };
            scan::begin(state, session, step, now);
            Flow::Continue
        }
        KeyspaceRequest::Clear => keyspace::flush(state, session, ReplyFormat::Native),
        KeyspaceRequest::SetAll(_) => unreachable!("done above"),
    }
}

//! `SCAN`: steps of whole index cells; keys are read from their records, one device read at a time.
use super::ShardState;
use super::core::operation_error;
use super::resume::ShardContext;
pub(crate) use crate::pending::ScanReplyFormat as Wording;
use crate::pending::{ReadWaiter, ScanOp};
use crate::session::Session;
use fawn_ds::internals::{CorruptRecord, LookupPlan, Scan, ScanStep};
use fawn_flash::Device;
use fawn_types::{EntryRef, OperationError, Reply, TimeMs, Version};
use fawn_wire::internal::{put_reply_frame, put_scan_page};
use fawn_wire::{KeyspaceCommand, glob, resp};

/// Maximum keys of one step, whatever `COUNT` requests: the reply is bounded.
const COUNT_MAX: usize = 10_000;

/// Parameters of a step.
pub(crate) struct ScanRequest {
    pub(crate) cursor: u64,
    pub(crate) count: usize,
    pub(crate) wording: Wording,
}

impl ScanRequest {
    /// A client's request.
    pub(crate) fn of(keyspace: &KeyspaceCommand<'_>) -> Self {
        let KeyspaceCommand::Scan { cursor, pattern, count, .. } = *keyspace else { unreachable!("only scans scan") };
        let (pattern, wants_strings) = (pattern.map(<[u8]>::to_vec), keyspace.wants_strings());
        Self { cursor, count: count.clamp(1, COUNT_MAX), wording: Wording::Resp { pattern, wants_strings } }
    }
}

/// Runs a step; the session is quiet.
pub(crate) fn begin<D: Device>(state: &mut ShardState<D>, session: &mut Session, step: ScanRequest, now: TimeMs) {
    let ScanRequest { cursor, count, wording } = step;
    if !state.has_capacity() {
        state.counters.overloaded += 1;
        return session.replies.respond(|out| encode_error(&wording, OperationError::Overloaded, out));
    }
    let mut scan = Scan::new(state.replica.range(), cursor, count);
    let step = state.engine.scan_step(&mut scan, now);
    let mut op = ScanOp { session: session.id, slot: 0, scan, wording };
    match step {
        Ok(ScanStep::Done) => session.replies.respond(|out| encode(&op, out)),
        Ok(ScanStep::Read(plan)) => {
            op.slot = session.replies.reserve(0);
            let waiter = ReadWaiter::Scan(state.pending.scans.insert(op));
            state.pending.reads.start(&mut state.engine, plan, waiter);
        }
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| encode_error(&op.wording, error, out));
        }
    }
}

fn encode(op: &ScanOp, out: &mut Vec<u8>) {
    if let Err(error) = check_whole(&op.scan) {
        return encode_error(&op.wording, error, out);
    }
    let found = op.scan.items.iter().map(|item| item.key.as_slice());
    match &op.wording {
        Wording::Resp { pattern, wants_strings } => {
            let is_match = |key: &[u8]| pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key));
            let keys: Vec<&[u8]> = found.filter(|key| *wants_strings && is_match(key)).collect();
            resp::encode::scan(op.scan.cursor, &keys, out);
        }
        Wording::Page => {
            let mut page = Vec::new();
            put_scan_page(&mut page, op.scan.cursor, found);
            let entry = EntryRef { value: &page, flags: 0, expires_at_ms: 0, version: Version::ZERO };
            put_reply_frame(&Reply::Value(entry), out);
        }
    }
}

/// Checks that a step has all keys but those of lost records. A step over records whose reads failed fails as a whole: a
/// client that repeats it with its cursor misses no key.
///
/// The protocol has no place for a lost key, and an error in place of the page would end every scan there. So the page
/// goes without it; the log says where its record is, and a metric counts it.
pub(crate) fn check_whole(scan: &Scan) -> Result<(), OperationError> {
    let mut checked = Ok(());
    for CorruptRecord { file, offset_bytes, detail, is_lost } in &scan.corrupt {
        match is_lost {
            true => tracing::error!(file, offset_bytes, detail, "a scan left out a lost record"),
            false => {
                tracing::warn!(file, offset_bytes, detail, "a scan fails at a record that cannot be read now");
                checked = Err(OperationError::Unavailable);
            }
        }
    }
    checked
}

fn encode_error(wording: &Wording, error: OperationError, out: &mut Vec<u8>) {
    match wording {
        Wording::Resp { .. } => resp::encode::error(error, out),
        Wording::Page => put_reply_frame(&Reply::Error(error), out),
    }
}

impl<D: Device> ShardContext<'_, D> {
    /// A scan's device read has ended.
    pub(crate) fn scan_read_ended(&mut self, plan: LookupPlan, id: usize) {
        let ShardState { engine, pending, .. } = &mut *self.state;
        let op = &mut pending.scans[id];
        let Some(session) = self.sessions.get_mut(op.session) else {
            pending.scans.remove(id);
            return;
        };
        let absorbed = engine.absorb_scan(&mut op.scan, plan);
        let step = absorbed.and_then(|()| engine.scan_step(&mut op.scan, self.now));
        match step {
            Ok(ScanStep::Read(plan)) => return pending.reads.start(engine, plan, ReadWaiter::Scan(id)),
            Ok(ScanStep::Done) => session.replies.complete(op.slot, None, |out| encode(op, out)),
            Err(error) => {
                let error = operation_error(&error);
                session.replies.complete(op.slot, None, |out| encode_error(&op.wording, error, out));
            }
        }
        let op = pending.scans.remove(id);
        self.sessions.schedule(op.session);
    }
}

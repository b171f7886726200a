//! Owns `SCAN`: steps of whole index cells, the keys read from their records, one device read after the other.
use super::Core;
use super::core::operation_error;
use super::resume::Host;
use crate::pending::{ScanOp, Waiter};
use crate::session::Session;
use fawn_ds::{LookupPlan, Scan, ScanStep};
use fawn_flash::Device;
use fawn_types::{OperationError, TimeMs};
use fawn_wire::{Keyspace, glob, resp};

/// Most keys of one step, whatever `COUNT` says: its reply is bounded.
const COUNT_MAX: usize = 10_000;

/// Begins a step; the session is quiet.
pub(crate) fn begin<D: Device>(core: &mut Core<D>, session: &mut Session, keyspace: &Keyspace<'_>, now: TimeMs) {
    let Keyspace::Scan { cursor, pattern, count, .. } = *keyspace else { unreachable!("only scans scan") };
    if !core.has_room() {
        core.counters.overloaded += 1;
        return session.replies.respond(|out| resp::encode::error(OperationError::Overloaded, out));
    }
    let mut scan = Scan::new(core.replica.range(), cursor, count.clamp(1, COUNT_MAX));
    let step = core.engine.scan_step(&mut scan, now);
    let pattern = pattern.map(<[u8]>::to_vec);
    let mut op = ScanOp { session: session.id, slot: 0, scan, pattern, wants_strings: keyspace.wants_strings() };
    match step {
        Ok(ScanStep::Done) => session.replies.respond(|out| encode(&op, out)),
        Ok(ScanStep::Read(plan)) => {
            op.slot = session.replies.reserve(0);
            let waiter = Waiter::Scan(core.pending.scans.insert(op));
            core.pending.reads.start(&mut core.engine, plan, waiter);
        }
        Err(error) => {
            let error = operation_error(&error);
            session.replies.respond(|out| resp::encode::error(error, out));
        }
    }
}

fn encode(op: &ScanOp, out: &mut Vec<u8>) {
    let is_match = |key: &[u8]| op.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key));
    let found = op.scan.items.iter().map(|item| item.key.as_slice());
    let keys: Vec<&[u8]> = found.filter(|key| op.wants_strings && is_match(key)).collect();
    resp::encode::scan(op.scan.cursor, &keys, out);
}

impl<D: Device> Host<'_, D> {
    /// A scan's device read has ended.
    pub(crate) fn scan_read_ended(&mut self, plan: LookupPlan, id: usize) {
        let Core { engine, pending, .. } = &mut *self.core;
        let op = &mut pending.scans[id];
        let Some(session) = self.sessions.get_mut(op.session) else {
            pending.scans.remove(id);
            return;
        };
        let step = engine.absorb(plan).and_then(|()| engine.scan_step(&mut op.scan, self.now));
        match step {
            Ok(ScanStep::Read(plan)) => return pending.reads.start(engine, plan, Waiter::Scan(id)),
            Ok(ScanStep::Done) => session.replies.complete(op.slot, None, |out| encode(op, out)),
            Err(error) => {
                let error = operation_error(&error);
                session.replies.complete(op.slot, None, |out| resp::encode::error(error, out));
            }
        }
        let op = pending.scans.remove(id);
        self.sessions.list(op.session);
    }
}

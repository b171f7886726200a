//! Resumption of waiting requests: bytes have arrived, or the request is first in its key's queue.
use super::deliver::deliver;
use super::read::ReadOutcome;
use super::update::{self, Updated};
use super::{Admit, Blocked, ShardState, admit_reply, is_granted, read};
use crate::pending::{DeferredOp, PendingOp, ReadWaiter, ReplyPlace};
use crate::session::Sessions;
use crate::shards::PeerMailboxes;
use fawn_ds::internals::LookupPlan;
use fawn_flash::Device;
use fawn_types::{KeyHash, Reply, TimeMs};

/// Both halves of a shard, for work that may reply to any session.
pub(crate) struct ShardContext<'a, D: Device> {
    pub(crate) state: &'a mut ShardState<D>,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) now: TimeMs,
}

/// Outcome of running an operation.
enum OpProgress {
    /// It is stored again and keeps waiting.
    Waits,
    /// It is done and removed; `next` follows it.
    Done { next: Option<usize> },
}

impl<D: Device> ShardContext<'_, D> {
    /// The queues to other shards; call only if there are any.
    pub(crate) fn links(&mut self) -> &mut PeerMailboxes {
        self.state.links()
    }

    /// A device read has ended: `user` identifies its operation.
    pub(crate) fn read_ended(&mut self, plan: LookupPlan, user: u64) {
        self.state.pending.reads.ended(plan.read_bytes());
        match ReadWaiter::from_token(user) {
            ReadWaiter::Op(id) => self.op_read_ended(plan, id),
            ReadWaiter::Scan(id) => self.scan_read_ended(plan, id),
        }
    }

    fn op_read_ended(&mut self, plan: LookupPlan, id: usize) {
        let op = self.state.pending.take(id);
        let (hash, is_queued) = (op.hash, op.is_queued);
        let progress = if op.is_update() {
            let updated = self.evaluate_loaded(&op, plan);
            self.after_update(id, op, updated)
        } else {
            self.resume_op(id, op, Some(plan))
        };
        match progress {
            OpProgress::Waits => {}
            OpProgress::Done { .. } if is_queued => {
                self.state.pending.keys.pop(hash);
                self.run_queue(hash);
            }
            OpProgress::Done { next } => self.run_followers(next),
        }
    }

    /// Runs a session's reads of one key up to the first that must wait.
    fn run_followers(&mut self, mut next: Option<usize>) {
        while let Some(id) = next.take() {
            let op = self.state.pending.take(id);
            if let OpProgress::Done { next: after } = self.read_again(id, op) {
                next = after;
            }
        }
    }

    /// Continues the reads that were granted their length.
    pub(crate) fn run_granted(&mut self) {
        for _ in 0..self.state.pending.deferred.len() {
            let Some(deferred) = self.state.pending.deferred.pop_front() else { return };
            let DeferredOp { op: id, bytes, .. } = deferred;
            if !is_granted(self.sessions, &self.state.pending.ops[id].reply_target(), bytes) {
                self.state.pending.deferred.push_back(deferred);
                continue;
            }
            if let Some(plan) = deferred.plan {
                read::start(self.state, plan, id);
                continue;
            }
            let op = self.state.pending.take(id);
            if let OpProgress::Done { next } = self.read_again(id, op) {
                self.run_followers(next);
            }
        }
    }

    /// Starts a device read within the grant of its slot; otherwise the read waits for a larger one.
    fn start_read(&mut self, id: usize, op: &PendingOp, plan: LookupPlan) {
        let bytes = plan.read_bytes();
        if let (ReplyPlace::Slot(slot), false) = (op.target, op.is_queued)
            && let Some((session, _, budget)) = self.sessions.get_with_pool(op.session)
            && !budget.grant(session, slot, bytes)
        {
            budget.queue_read(session, slot, bytes);
            return self.state.pending.deferred.push_back(DeferredOp { op: id, plan: Some(plan), bytes });
        }
        read::start(self.state, plan, id);
    }

    /// Retries requests that found the log's buffers full.
    pub(crate) fn retry_queues(&mut self) {
        for hash in self.state.pending.keys.take_retries() {
            self.run_queue(hash);
        }
    }

    /// Runs a key's queue up to the first operation that must wait.
    fn run_queue(&mut self, hash: KeyHash) {
        while let Some(id) = self.state.pending.keys.front(hash) {
            let op = self.state.pending.take(id);
            let progress = match op.as_update() {
                Some(update) => {
                    let updated = update::run(self.state, (hash, op.key()), &update, usize::MAX, self.now);
                    self.after_update(id, op, updated)
                }
                None => self.read_again(id, op),
            };
            if matches!(progress, OpProgress::Waits) {
                return;
            }
            self.state.pending.keys.pop(hash);
        }
    }

    fn evaluate_loaded(&mut self, op: &PendingOp, plan: LookupPlan) -> Updated {
        let Some(update) = op.as_update() else { unreachable!("only updates are evaluated") };
        let ShardState { engine, scratch, options, .. } = &mut *self.state;
        let lookup = engine.resume(plan, self.now);
        let limits = (options.value_bytes_max, usize::MAX);
        let decided = update::decide(lookup, scratch, limits, &update, self.now);
        update::apply_decided(self.state, op.hash, op.key(), decided)
    }

    /// Replies to an evaluated update; otherwise stores it again.
    fn after_update(&mut self, id: usize, op: PendingOp, updated: Updated) -> OpProgress {
        let hash = op.hash;
        match updated {
            Updated::Done { answer, wrote, wait } => {
                if let Some(session) = self.sessions.get_mut(op.session) {
                    session.queued -= 1;
                    session.note(hash, wrote.or(wait));
                }
                self.state.pending.ops.remove(id);
                let reply = answer.reply(&self.state.scratch, wrote.unwrap_or_default());
                deliver(self.sessions, &mut self.state.pending.batches, &op.reply_target(), &reply, wait);
                return OpProgress::Done { next: None };
            }
            Updated::Later(Blocked::Read(plan)) => {
                if let (Some(session), ReplyPlace::Slot(slot)) = (self.sessions.get_mut(op.session), op.target)
                    && session.replies.reserved_bytes(slot) > 0
                {
                    // It returns a value. It holds its key's queue, so it is counted but does not wait.
                    session.replies.set_reserved(slot, plan.read_bytes());
                }
                self.state.pending.put_back(id, op);
                read::start(self.state, plan, id);
            }
            Updated::Later(Blocked::Queue | Blocked::Behind(_)) | Updated::Stall => {
                self.state.pending.put_back(id, op);
                self.state.pending.keys.retry_later(hash);
            }
            Updated::Larger { .. } => unreachable!("a queued update has no limit"),
        }
        OpProgress::Waits
    }

    /// Runs a read that is first in its key's queue.
    fn read_again(&mut self, id: usize, mut op: PendingOp) -> OpProgress {
        op.view = read::view_of(self.state, self.sessions.get(op.session), op.hash);
        self.resume_op(id, op, None)
    }

    /// Replies to a read whose bytes have arrived, or stores it again and starts another device read.
    fn resume_op(&mut self, id: usize, op: PendingOp, plan: Option<LookupPlan>) -> OpProgress {
        let (sessions, mut larger_bytes) = (&mut *self.sessions, 0);
        let went = read::resume_read(self.state, &op, plan, self.now, |pending, reply, wait| {
            let fit = admit_reply(sessions, &op.reply_target(), reply);
            if let (Admit::Retry, Reply::Value(entry)) = (fit, reply) {
                larger_bytes = entry.value.len();
                return false;
            }
            if let Some(session) = sessions.get_mut(op.session) {
                session.note(op.hash, wait);
            }
            deliver(sessions, &mut pending.batches, &op.reply_target(), fit.reply(reply), wait);
            sessions.update_budget(op.session);
            true
        });
        match went {
            ReadOutcome::Answered => {}
            ReadOutcome::Read(plan) => {
                self.start_read(id, &op, plan);
                self.state.pending.put_back(id, op);
                return OpProgress::Waits;
            }
            ReadOutcome::Larger => {
                self.state.pending.put_back(id, op);
                self.state.pending.deferred.push_back(DeferredOp { op: id, plan: None, bytes: larger_bytes });
                return OpProgress::Waits;
            }
        }
        if let Some(session) = self.sessions.get_mut(op.session) {
            if op.is_queued {
                session.queued -= 1;
            } else if op.next.is_none() {
                session.own_reads.ended(op.hash, id);
            }
        }
        self.state.pending.ops.remove(id);
        OpProgress::Done { next: op.next }
    }
}

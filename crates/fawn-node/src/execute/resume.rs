//! Resumption of waiting requests: bytes have arrived, or the request is first in its key's queue.
use super::deliver::deliver;
use super::read::Went;
use super::update::{self, Updated};
use super::{Core, Fit, Later, fits, is_due, read};
use crate::pending::{Op, Waiter};
use crate::session::Sessions;
use crate::shards::Links;
use fawn_ds::internals::LookupPlan;
use fawn_flash::Device;
use fawn_types::{KeyHash, TimeMs};

/// Both halves of a shard, for work that may reply to any session.
pub(crate) struct Host<'a, D: Device> {
    pub(crate) core: &'a mut Core<D>,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) now: TimeMs,
}

/// Outcome of running an operation.
enum Progress {
    /// It is stored again and keeps waiting.
    Waits,
    /// It is done and removed; `next` follows it.
    Done { next: Option<usize> },
}

impl<D: Device> Host<'_, D> {
    /// The queues to other shards; call only if there are any.
    pub(crate) fn links(&mut self) -> &mut Links {
        self.core.links()
    }

    /// A device read has ended: `user` identifies its operation.
    pub(crate) fn read_ended(&mut self, plan: LookupPlan, user: u64) {
        self.core.pending.reads.ended(plan.read_bytes());
        match Waiter::from_user(user) {
            Waiter::Op(id) => self.op_read_ended(plan, id),
            Waiter::Scan(id) => self.scan_read_ended(plan, id),
        }
    }

    fn op_read_ended(&mut self, plan: LookupPlan, id: usize) {
        let op = self.core.pending.take(id);
        let (hash, is_queued) = (op.hash, op.is_queued);
        let progress = if op.is_update() {
            let updated = self.evaluate_loaded(&op, plan);
            self.after_update(id, op, updated)
        } else {
            self.go_on_reading(id, op, Some(plan))
        };
        match progress {
            Progress::Waits => {}
            Progress::Done { .. } if is_queued => {
                self.core.pending.keys.pop(hash);
                self.run_queue(hash);
            }
            Progress::Done { next } => self.run_followers(next),
        }
    }

    /// Runs a session's reads of one key up to the first that must wait.
    fn run_followers(&mut self, mut next: Option<usize>) {
        while let Some(id) = next.take() {
            let op = self.core.pending.take(id);
            if let Progress::Done { next: after } = self.read_anew(id, op) {
                next = after;
            }
        }
    }

    /// Repeats reads whose replies found no budget, as far as there is some now.
    pub(crate) fn retry_late(&mut self) {
        let mut promised_bytes = 0;
        for _ in 0..self.core.pending.late.len() {
            let Some(id) = self.core.pending.late.pop_front() else { return };
            if !is_due(self.sessions, &self.core.pending.ops[id].asker(), &mut promised_bytes) {
                self.core.pending.late.push_back(id);
                continue;
            }
            let op = self.core.pending.take(id);
            if let Progress::Done { next } = self.read_anew(id, op) {
                self.run_followers(next);
            }
        }
    }

    /// Retries requests that found the log's buffers full.
    pub(crate) fn retry_queues(&mut self) {
        for hash in self.core.pending.keys.take_retries() {
            self.run_queue(hash);
        }
    }

    /// Runs a key's queue up to the first operation that must wait.
    fn run_queue(&mut self, hash: KeyHash) {
        while let Some(id) = self.core.pending.keys.front(hash) {
            let op = self.core.pending.take(id);
            let progress = match op.as_update() {
                Some(update) => {
                    let updated = update::run(self.core, hash, op.key(), &update, self.now);
                    self.after_update(id, op, updated)
                }
                None => self.read_anew(id, op),
            };
            if matches!(progress, Progress::Waits) {
                return;
            }
            self.core.pending.keys.pop(hash);
        }
    }

    fn evaluate_loaded(&mut self, op: &Op, plan: LookupPlan) -> Updated {
        let Some(update) = op.as_update() else { unreachable!("only updates are evaluated") };
        let Core { engine, scratch, options, .. } = &mut *self.core;
        let lookup = engine.resume(plan, self.now);
        let decided = update::decide(lookup, scratch, options.value_bytes_max, &update, self.now);
        update::apply_decided(self.core, op.hash, op.key(), decided)
    }

    /// Replies to an evaluated update; otherwise stores it again.
    fn after_update(&mut self, id: usize, op: Op, updated: Updated) -> Progress {
        let hash = op.hash;
        match updated {
            Updated::Done { answer, wrote, wait } => {
                if let Some(session) = self.sessions.get_mut(op.session) {
                    session.queued -= 1;
                    session.note(hash, wrote.or(wait));
                }
                self.core.pending.ops.remove(id);
                let reply = answer.reply(&self.core.scratch, wrote.unwrap_or_default());
                deliver(self.sessions, &mut self.core.pending.batches, &op.asker(), &reply, wait);
                return Progress::Done { next: None };
            }
            Updated::Later(Later::Read(plan)) => {
                self.core.pending.put_back(id, op);
                read::start(self.core, plan, id);
            }
            Updated::Later(Later::Queue | Later::Behind(_)) | Updated::Stall => {
                self.core.pending.put_back(id, op);
                self.core.pending.keys.retry_later(hash);
            }
        }
        Progress::Waits
    }

    /// Runs a read that is first in its key's queue.
    fn read_anew(&mut self, id: usize, mut op: Op) -> Progress {
        op.view = read::view_of(self.core, self.sessions.get(op.session), op.hash);
        self.go_on_reading(id, op, None)
    }

    /// Replies to a read whose bytes have arrived; otherwise stores it again and reads on.
    fn go_on_reading(&mut self, id: usize, op: Op, plan: Option<LookupPlan>) -> Progress {
        let sessions = &mut *self.sessions;
        let went = read::go_on(self.core, &op, plan, self.now, |pending, reply, wait| {
            let fit = fits(sessions, &op.asker(), reply);
            if matches!(fit, Fit::Later) {
                return false;
            }
            if let Some(session) = sessions.get_mut(op.session) {
                session.note(op.hash, wait);
            }
            deliver(sessions, &mut pending.batches, &op.asker(), fit.reply(reply), wait);
            sessions.note(op.session);
            true
        });
        match went {
            Went::Answered => {}
            Went::Read(plan) => {
                self.core.pending.put_back(id, op);
                read::start(self.core, plan, id);
                return Progress::Waits;
            }
            Went::NoRoom => {
                self.core.pending.put_back(id, op);
                self.core.pending.late.push_back(id);
                return Progress::Waits;
            }
        }
        if let Some(session) = self.sessions.get_mut(op.session) {
            if op.is_queued {
                session.queued -= 1;
            } else if op.next.is_none() {
                session.reading.ended(op.hash, id);
            }
        }
        self.core.pending.ops.remove(id);
        Progress::Done { next: op.next }
    }
}

//! Group commit for callers that block: one leader at a time drives the engine for all.
//!
//! Callers queue their operations. A caller that finds no leader becomes the leader: it executes everything queued,
//! submits once, waits once, and commits for everyone. So concurrent durable writes share one flush and one sync, and
//! device reads of several callers go in parallel.
#[cfg(test)]
mod tests;

use super::clock::{self, Clock};
use super::driver::Driver;
use super::executor::READS_IN_FLIGHT_MAX;
use super::op::{Op, Response};
use super::{Error, Result};
use crate::engine::PREFETCH_KEYS_MAX;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Operations of one [`EngineQueue::call_many`] that are queued at a time: enough to keep the device busy. A turn executes all that
/// is queued before it flushes and syncs, and before operations that arrive meanwhile. Each response makes room for one more.
const OPS_QUEUED_MAX: usize = 2 * READS_IN_FLIGHT_MAX;

/// The queue that callers share, with their results.
#[derive(Debug, Default)]
struct Inbox {
    queue: VecDeque<(u64, Op)>,
    done: HashMap<u64, Response, FxBuildHasher>,
    next_id: u64,
    has_leader: bool,
    /// A leader panicked: the engine's state is unknown, so no operation reaches it any more.
    has_failed: bool,
    /// The close, once it was ordered: no operation is taken after it.
    close: Option<u64>,
    /// The close takes too long: the operations before it are no longer waited for.
    has_given_up: bool,
    /// Something was written or synced since the last tick.
    has_written: bool,
    /// The ticker waits for a write.
    ticker_sleeps: bool,
}

impl Inbox {
    fn is_given_up(&self, id: u64) -> bool {
        self.has_given_up && self.close != Some(id)
    }

    /// Why no response to the operation will come.
    fn refusal(&self, id: u64) -> Option<Error> {
        if self.has_failed {
            return Some(Error::panicked());
        }
        self.is_given_up(id).then_some(Error::Closed)
    }
}

/// The operations of one [`EngineQueue::call_many`], by their place among them.
struct ManyCalls {
    /// Operations without a response, oldest first.
    queued: VecDeque<(u64, usize)>,
    responses: Vec<Option<Result<Response>>>,
}

impl ManyCalls {
    /// Takes the response if it is of one of them.
    fn take(&mut self, id: u64, response: Response) -> Option<Response> {
        let Ok(at) = self.queued.binary_search_by_key(&id, |&(queued, _)| queued) else { return Some(response) };
        let (_, place) = self.queued.remove(at)?;
        self.responses[place] = Some(response.into_result());
        None
    }

    /// Takes the responses that a leader has put there.
    fn take_done(&mut self, inbox: &mut Inbox) {
        if inbox.done.is_empty() {
            return;
        }
        let responses = &mut self.responses;
        self.queued.retain(|&(id, place)| {
            let Some(response) = inbox.done.remove(&id) else { return true };
            responses[place] = Some(response.into_result());
            false
        });
    }

    fn fail(&mut self, error: &Error) {
        self.queued.drain(..).for_each(|(_, place)| self.responses[place] = Some(Err(error.clone())));
    }
}

/// A store's engine behind its queue.
pub(super) struct EngineQueue {
    inbox: Mutex<Inbox>,
    /// Operations are done, or there is no leader.
    changed: Condvar,
    /// The ticker has something to do.
    tick_due: Condvar,
    /// Locked by the leader alone, or by a close after its panic.
    driver: Mutex<Driver>,
    clock: Arc<dyn Clock>,
}

/// The right to drive the engine. When a panic drops it, every caller's operation fails: no other thread would wake
/// the callers, and an engine that stopped in the middle of a change must not be used again.
struct Leadership<'s> {
    shared: &'s EngineQueue,
    is_done: bool,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox();
        inbox.has_leader = false;
        if !self.is_done {
            inbox.has_failed = true;
            inbox.queue.clear();
        }
        drop(inbox);
        self.shared.changed.notify_all();
    }
}

impl EngineQueue {
    pub(super) fn new(driver: Driver, clock: Arc<dyn Clock>) -> Self {
        let (changed, tick_due) = (Condvar::new(), Condvar::new());
        Self { inbox: Mutex::new(Inbox::default()), changed, tick_due, driver: Mutex::new(driver), clock }
    }

    pub(super) fn call(&self, op: Op) -> Result<Response> {
        let mut inbox = self.inbox();
        let id = self.push(&mut inbox, op)?;
        self.answer(inbox, id)
    }

    /// Many operations together: their device reads go in parallel.
    pub(super) fn call_many(&self, ops: impl Iterator<Item = Op>) -> Vec<Result<Response>> {
        // The iterator is the caller's own code: it may use the store itself, so no lock is held while it runs.
        let ops: Vec<Op> = ops.collect();
        let mut calls = ManyCalls { queued: VecDeque::new(), responses: ops.iter().map(|_| None).collect() };
        let mut ops = ops.into_iter().enumerate();
        loop {
            let mut inbox = self.inbox();
            calls.take_done(&mut inbox);
            for (place, op) in ops.by_ref().take(OPS_QUEUED_MAX - calls.queued.len()) {
                match self.push(&mut inbox, op) {
                    Ok(id) => calls.queued.push_back((id, place)),
                    Err(error) => calls.responses[place] = Some(Err(error)),
                }
            }
            let Some(&(oldest, _)) = calls.queued.front() else {
                if ops.len() > 0 {
                    continue;
                }
                break;
            };
            if let Some(error) = inbox.refusal(oldest) {
                calls.fail(&error);
            } else if inbox.has_leader {
                drop(self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner));
            } else {
                inbox.has_leader = true;
                drop(inbox);
                self.lead(oldest, |id, response| calls.take(id, response));
            }
        }
        let response = |response: Option<_>| response.unwrap_or_else(|| unreachable!("all are answered"));
        calls.responses.into_iter().map(response).collect()
    }

    pub(super) fn close(&self) -> Result<()> {
        // This thread may be the leader that panics.
        let closed = catch_unwind(AssertUnwindSafe(|| self.call_close())).unwrap_or_else(|_| Err(Error::panicked()));
        if self.inbox().has_failed {
            // The failed engine has the directory.
            self.driver().drop_engine();
        }
        closed
    }

    fn call_close(&self) -> Result<()> {
        let mut inbox = self.inbox();
        let pushed = self.push(&mut inbox, Op::Close);
        // Under the same lock: no operation is queued behind the close. The ticker of a failed store ends by this, too.
        inbox.close = Some(inbox.next_id);
        self.tick_due.notify_all();
        self.answer(inbox, pushed?).map(drop)
    }

    /// Ends the operations that wait with a close, which goes on.
    pub(super) fn give_up(&self) {
        let mut inbox = self.inbox();
        inbox.has_given_up = true;
        // Callers get `Closed` for queued operations, so none may take place. The engine keeps started ones: the device has their buffers.
        inbox.queue.retain(|(_, op)| matches!(op, Op::Close));
        drop(inbox);
        self.changed.notify_all();
    }

    /// Waits for `interval`, or without one for the next write; that ends the wait of a store that `is_calm` in any case.
    /// Returns whether something was written since the last time; `None` when the store closes.
    pub(super) fn wait_for_tick(&self, interval: Option<Duration>, is_calm: bool) -> Option<bool> {
        let mut inbox = self.inbox();
        inbox.ticker_sleeps = is_calm;
        let waits = |inbox: &mut Inbox| !(inbox.close.is_some() || is_calm && inbox.has_written);
        inbox = match interval {
            Some(interval) => {
                let waited = self.tick_due.wait_timeout_while(inbox, interval, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.tick_due.wait_while(inbox, waits).unwrap_or_else(PoisonError::into_inner),
        };
        inbox.ticker_sleeps = false;
        let has_written = core::mem::take(&mut inbox.has_written);
        inbox.close.is_none().then_some(has_written)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // No code that can panic runs under this lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        // A leader that panicked has failed the store.
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, inbox: &mut Inbox, op: Op) -> Result<u64> {
        if inbox.has_failed {
            return Err(Error::panicked());
        }
        // The thread of a close that has given up may queue it late.
        let has_ended = inbox.close.is_some() || inbox.has_given_up && !matches!(op, Op::Close);
        if has_ended {
            return Err(Error::Closed);
        }
        // Behind a sync, space may come back.
        if op.is_write() || matches!(op, Op::Sync) {
            inbox.has_written = true;
            if core::mem::take(&mut inbox.ticker_sleeps) {
                self.tick_due.notify_all();
            }
        }
        inbox.next_id += 1;
        inbox.queue.push_back((inbox.next_id, op));
        Ok(inbox.next_id)
    }

    /// Has the operation done by the leader, or becomes the leader.
    fn answer<'s>(&'s self, mut inbox: MutexGuard<'s, Inbox>, id: u64) -> Result<Response> {
        loop {
            if let Some(response) = inbox.done.remove(&id) {
                return response.into_result();
            }
            if let Some(error) = inbox.refusal(id) {
                return Err(error);
            }
            if !inbox.has_leader {
                inbox.has_leader = true;
                drop(inbox);
                let mut mine = None;
                self.lead(id, |done, response| if done == id { mine.replace(response) } else { Some(response) });
                return mine.map_or(Err(Error::Closed), Response::into_result);
            }
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drives the engine for all until responses came that the caller takes, or none come any more for its operation `id`; then
    /// another caller that still waits takes over. `take` gives back responses of others.
    fn lead(&self, id: u64, mut take: impl FnMut(u64, Response) -> Option<Response>) {
        let mut leadership = Leadership { shared: self, is_done: false };
        let mut driver = self.driver();
        loop {
            driver.set_time(clock::read(&*self.clock));
            let queued = core::mem::take(&mut self.inbox().queue);
            start_all(&mut driver, queued);
            driver.turn();
            let mut inbox = self.inbox();
            let mut has_own = false;
            for (done, response) in driver.take_done() {
                match take(done, response) {
                    // The operation's caller has returned without it.
                    Some(_) if inbox.is_given_up(done) => {}
                    Some(response) => _ = inbox.done.insert(done, response),
                    None => has_own = true,
                }
            }
            if has_own || inbox.is_given_up(id) {
                drop(inbox);
                leadership.is_done = true;
                return;
            }
            let (is_news, has_given_up) = (!inbox.done.is_empty(), inbox.has_given_up);
            drop(inbox);
            if is_news {
                self.changed.notify_all();
            }
            driver.wait(has_given_up);
        }
    }
}

fn start_all(driver: &mut Driver, mut queued: VecDeque<(u64, Op)>) {
    while !queued.is_empty() {
        let together = queued.len().min(PREFETCH_KEYS_MAX);
        driver.warm(queued.iter().take(together).map(|(_, op)| op));
        for (id, op) in queued.drain(..together) {
            driver.start(id, op);
        }
    }
}

impl fmt::Debug for EngineQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineQueue").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}

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
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::vec;

/// Operations of one [`EngineQueue::call_many`] that are queued at a time: enough to keep the device busy. A turn executes all that
/// is queued before it flushes and syncs, and before operations that arrive meanwhile. Each response makes room for one more.
const OPS_QUEUED_MAX: usize = 2 * READS_IN_FLIGHT_MAX;

/// The queue that callers share, with their results.
#[derive(Debug, Default)]
struct Inbox {
    queue: VecDeque<(u64, Op)>,
    done: HashMap<u64, Response, FxBuildHasher>,
    /// Operations of callers with many, by the ID of the call.
    many: BTreeMap<u64, ManyCalls>,
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

    /// Refuses new operations of a store that is failed or closed.
    fn admit(&self, is_close: bool) -> Result<()> {
        if self.has_failed {
            return Err(Error::panicked());
        }
        // The thread of a close that has given up may queue it late.
        let has_ended = self.close.is_some() || self.has_given_up && !is_close;
        if has_ended { Err(Error::Closed) } else { Ok(()) }
    }

    /// Queues the first of many operations. Returns the ID of the call.
    fn push_many(&mut self, mut calls: ManyCalls) -> u64 {
        let id = self.next_id + 1;
        self.next_id = id + calls.responses.len() as u64;
        self.queue.extend(core::iter::from_fn(|| calls.take_unqueued(id)).take(OPS_QUEUED_MAX));
        self.many.insert(id, calls);
        id
    }

    fn has_all_responses(&self, many: u64) -> bool {
        self.many.get(&many).is_some_and(|calls| calls.unanswered == 0)
    }

    /// Keeps a response for its caller. Returns whether the caller has all of its responses now.
    fn deliver(&mut self, id: u64, response: Response) -> bool {
        if self.is_given_up(id) {
            // The operation's caller has returned without it.
            return false;
        }
        if let Some((&call, calls)) = self.many.range_mut(..id).next_back()
            && let Ok(place) = usize::try_from(id - call - 1)
            && let Some(place) = calls.responses.get_mut(place)
        {
            *place = Some(response);
            calls.unanswered -= 1;
            // The leader refills the queue: until the caller's thread ran, the leader would wait for the device.
            self.queue.extend(calls.take_unqueued(call));
            return calls.unanswered == 0;
        }
        self.done.insert(id, response);
        true
    }
}

/// The operations of one [`EngineQueue::call_many`]. Their IDs follow the ID of the call, in their order.
struct ManyCalls {
    unqueued: vec::IntoIter<Op>,
    responses: Vec<Option<Response>>,
    unanswered: usize,
}

impl ManyCalls {
    fn new(ops: Vec<Op>) -> Self {
        let unanswered = ops.len();
        Self { responses: ops.iter().map(|_| None).collect(), unqueued: ops.into_iter(), unanswered }
    }

    /// The next operation to be queued, with its ID.
    fn take_unqueued(&mut self, call: u64) -> Option<(u64, Op)> {
        let place = self.responses.len() - self.unqueued.len();
        self.unqueued.next().map(|op| (call + 1 + place as u64, op))
    }

    /// Leaves the operations that are not queued without a response, and returns them.
    fn end_unqueued(&mut self) -> vec::IntoIter<Op> {
        self.unanswered -= self.unqueued.len();
        core::mem::take(&mut self.unqueued)
    }

    /// The results in the order of the operations: `error` for those without a response.
    fn into_results(self, error: &Error) -> Vec<Result<Response>> {
        let result = |response: Option<Response>| response.map_or_else(|| Err(error.clone()), Response::into_result);
        self.responses.into_iter().map(result).collect()
    }
}

/// Without the keys and values of all operations: the leader waits for the lock while the queue is printed.
impl fmt::Debug for ManyCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unqueued, unanswered) = (self.unqueued.len(), self.unanswered);
        f.debug_struct("ManyCalls")
            .field("unqueued", &unqueued)
            .field("unanswered", &unanswered)
            .finish_non_exhaustive()
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
    /// Times that a leader has waited for the device.
    #[cfg(test)]
    waits: std::sync::atomic::AtomicUsize,
}

/// The right to drive the engine. When a panic drops it, every caller's operation fails: no other thread would wake
/// the callers, and an engine that stopped in the middle of a change must not be used again.
struct Leadership<'s> {
    shared: &'s EngineQueue,
    id: u64,
    is_done: bool,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox();
        inbox.has_leader = false;
        if !self.is_done {
            inbox.has_failed = true;
            inbox.queue.clear();
            inbox.many.remove(&self.id);
        }
        drop(inbox);
        self.shared.changed.notify_all();
    }
}

impl EngineQueue {
    pub(super) fn new(driver: Driver, clock: Arc<dyn Clock>) -> Self {
        let (changed, tick_due) = (Condvar::new(), Condvar::new());
        Self {
            inbox: Mutex::new(Inbox::default()),
            changed,
            tick_due,
            driver: Mutex::new(driver),
            clock,
            #[cfg(test)]
            waits: Default::default(),
        }
    }

    pub(super) fn call(&self, op: Op) -> Result<Response> {
        let mut inbox = self.inbox();
        let id = self.push(&mut inbox, op)?;
        self.answer(inbox, id)
    }

    /// Many reads together: they go to the device in parallel.
    pub(super) fn call_many(&self, ops: impl Iterator<Item = Op>) -> Vec<Result<Response>> {
        // The iterator is the caller's own code: it may use the store itself, so no lock is held while it runs.
        let calls = ManyCalls::new(ops.collect());
        let mut inbox = self.inbox();
        if let Err(error) = inbox.admit(false) {
            // The leader waits for the lock.
            drop(inbox);
            return calls.into_results(&error);
        }
        let id = inbox.push_many(calls);
        let error = loop {
            if inbox.has_all_responses(id) {
                // Only operations that a close has left unqueued have no response.
                break Error::Closed;
            }
            if let Some(error) = inbox.refusal(id) {
                break error;
            }
            if inbox.has_leader {
                inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            } else {
                inbox.has_leader = true;
                drop(inbox);
                self.lead(id);
                inbox = self.inbox();
            }
        };
        let calls = inbox.many.remove(&id);
        drop(inbox);
        let Some(calls) = calls else { unreachable!("only the caller removes its operations") };
        calls.into_results(&error)
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
        // Dropped at the end, without the lock: the leader waits for that.
        let _unqueued: Vec<_> = inbox.many.values_mut().map(ManyCalls::end_unqueued).collect();
        self.tick_due.notify_all();
        self.answer(inbox, pushed?).map(drop)
    }

    /// Ends the operations that wait with a close, which goes on.
    pub(super) fn give_up(&self) {
        let mut inbox = self.inbox();
        inbox.has_given_up = true;
        // Callers get `Closed` for operations that no leader has taken, so none of these may take place. The engine keeps the others: the
        // device may have their buffers.
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
        inbox.admit(matches!(op, Op::Close))?;
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
                return self.lead(id).map_or(Err(Error::Closed), Response::into_result);
            }
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drives the engine for all callers until `id`, an operation or a call of many, is answered or given up; then another caller
    /// that still waits takes over. Returns the response to an operation.
    fn lead(&self, id: u64) -> Option<Response> {
        let mut leadership = Leadership { shared: self, id, is_done: false };
        let mut driver = self.driver();
        loop {
            driver.set_time(clock::read(&*self.clock));
            let queued = core::mem::take(&mut self.inbox().queue);
            start_all(&mut driver, queued);
            driver.turn();
            let mut inbox = self.inbox();
            let (mut own, mut is_news) = (None, false);
            for (done, response) in driver.take_done() {
                if done == id {
                    own = Some(response);
                } else {
                    is_news |= inbox.deliver(done, response);
                }
            }
            if own.is_some() || inbox.has_all_responses(id) || inbox.is_given_up(id) {
                drop(inbox);
                leadership.is_done = true;
                return own;
            }
            let (has_next, has_given_up) = (!inbox.queue.is_empty(), inbox.has_given_up);
            drop(inbox);
            if is_news {
                self.changed.notify_all();
            }
            if has_next {
                // The device does not starve: each turn takes in completions, too.
                continue;
            }
            #[cfg(test)]
            self.waits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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

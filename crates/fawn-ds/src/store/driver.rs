//! The leader's hand on the engine while the store is open, and on its close.
use super::executor::OpExecutor;
use super::op::{Op, Response};
use super::{BoxedDevice, Error};
use crate::engine::Engine;
use fawn_types::Now;

/// An open store's engine with its operations.
pub(super) struct Driver {
    state: DriverState,
    /// The close, while the engine is open for the operations before it.
    closing: Option<u64>,
    done: Vec<(u64, Response)>,
}

#[expect(clippy::large_enum_variant, reason = "one per store, in one place")]
enum DriverState {
    Open(OpExecutor),
    Closed,
}

impl Driver {
    pub(super) fn new(engine: Engine<BoxedDevice>) -> Self {
        Self { state: DriverState::Open(OpExecutor::new(engine)), closing: None, done: Vec::new() }
    }

    /// Responses since the last call, by operation.
    pub(super) fn take_done(&mut self) -> Vec<(u64, Response)> {
        if let DriverState::Open(executor) = &mut self.state {
            executor.take_done(&mut self.done);
        }
        core::mem::take(&mut self.done)
    }

    /// Fetches the memory that the first lookups and writes of these will touch. One alone would gain nothing.
    pub(super) fn warm<'o>(&self, ops: impl ExactSizeIterator<Item = &'o Op>) {
        if let DriverState::Open(executor) = &self.state
            && ops.len() > 1
        {
            executor.warm(ops);
        }
    }

    /// The time of everything until the next call.
    pub(super) fn set_time(&mut self, now: Now) {
        if let DriverState::Open(executor) = &mut self.state {
            executor.set_time(now);
        }
    }

    /// A close begins here and ends in [`Driver::wait`].
    pub(super) fn start(&mut self, id: u64, op: Op) {
        match &mut self.state {
            DriverState::Open(executor) if matches!(op, Op::Close) => {
                executor.end_lookups();
                self.closing = Some(id);
            }
            DriverState::Open(executor) => executor.start(id, op),
            DriverState::Closed => self.done.push((id, Response::Failed(Error::Closed))),
        }
    }

    /// Submits once, reaps completions, acknowledges.
    pub(super) fn turn(&mut self) {
        if let DriverState::Open(executor) = &mut self.state {
            executor.turn();
        }
    }

    /// Waits for a completion if anything is in flight, a millisecond at most, then acknowledges. A close ends the engine once no
    /// other operation waits for it, or if all have given up: that takes as long as the device does.
    pub(super) fn wait(&mut self, has_given_up: bool) {
        match (&mut self.state, self.closing) {
            (DriverState::Open(executor), Some(id)) if has_given_up || !executor.has_operations() => self.close(id),
            (DriverState::Open(executor), _) => executor.wait(),
            (DriverState::Closed, _) => {}
        }
    }

    /// Drops the engine without a close. Operations in flight end first; then the directory is free.
    pub(super) fn drop_engine(&mut self) {
        self.state = DriverState::Closed;
    }

    fn close(&mut self, id: u64) {
        if let DriverState::Open(executor) = core::mem::replace(&mut self.state, DriverState::Closed) {
            let closed = executor.close(&mut self.done);
            self.done.push((id, closed.map_or_else(Response::Failed, |()| Response::Closed)));
        }
    }
}

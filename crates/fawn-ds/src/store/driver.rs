//! The leader's hand on the engine while the store is open, and on the result of closing afterwards.
use super::executor::OpExecutor;
use super::op::{Op, Response};
use super::{BoxedDevice, Error, Result};
use crate::engine::Engine;
use fawn_types::Now;

/// An open store's engine with its operations, or the result of its closing.
pub(super) struct Driver {
    state: DriverState,
    done: Vec<(u64, Response)>,
}

#[expect(clippy::large_enum_variant, reason = "one per store, in one place")]
enum DriverState {
    Open(OpExecutor),
    Closed(Result<()>),
}

impl Driver {
    pub(super) fn new(engine: Engine<BoxedDevice>) -> Self {
        Self { state: DriverState::Open(OpExecutor::new(engine)), done: Vec::new() }
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

    pub(super) fn start(&mut self, id: u64, op: Op) {
        match &mut self.state {
            _ if matches!(op, Op::Close) => {
                let closed = self.close();
                self.done.push((id, closed.map_or_else(Response::Failed, |()| Response::Closed)));
            }
            DriverState::Open(executor) => executor.start(id, op),
            DriverState::Closed(_) => self.done.push((id, Response::Failed(Error::Closed))),
        }
    }

    /// Submits once, reaps completions, acknowledges.
    pub(super) fn turn(&mut self) {
        if let DriverState::Open(executor) = &mut self.state {
            executor.turn();
        }
    }

    /// Waits for a completion if anything is in flight, a millisecond at most, then acknowledges.
    pub(super) fn wait(&mut self) {
        if let DriverState::Open(executor) = &mut self.state {
            executor.wait();
        }
    }

    fn close(&mut self) -> Result<()> {
        let closed = match core::mem::replace(&mut self.state, DriverState::Closed(Ok(()))) {
            DriverState::Open(executor) => executor.close(&mut self.done),
            DriverState::Closed(closed) => closed,
        };
        self.state = DriverState::Closed(closed.clone());
        closed
    }
}

//! Deadlines of connections, in two queues. Each queue has one constant time-out, so first in is first due: no timer
//! per connection, no periodic sweep.
use std::collections::VecDeque;
use std::time::Instant;

/// A connection and its deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnDeadline {
    pub(super) at: Instant,
    pub(super) slot: usize,
    /// The connection's serial; a later user of the slot has another.
    pub(super) serial: u64,
}

/// Connections with a deadline.
#[derive(Debug, Default)]
pub(super) struct ConnTimers {
    /// Clients that took no more output.
    pub(super) stalled: VecDeque<ConnDeadline>,
    /// Closed connections whose client may still be reading.
    pub(super) lingering: VecDeque<ConnDeadline>,
}

impl ConnTimers {
    pub(super) fn next_due(&self) -> Option<Instant> {
        [self.stalled.front(), self.lingering.front()].into_iter().flatten().map(|due| due.at).min()
    }
}

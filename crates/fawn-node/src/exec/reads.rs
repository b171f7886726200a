//! Bound on device reads for lookups: the rest waits in order of arrival.
use crate::options::READS_IN_FLIGHT_BYTES_MAX;
use fawn_ds::internals::{Engine, LookupPlan};
use fawn_flash::Device;
use slab::Slab;
use std::collections::VecDeque;

/// Receiver of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadWaiter {
    /// The waiting request in this place, if its generation matches: the place may have been reused.
    Request { at: usize, generation: u32 },
    /// A replay of the log for a peer.
    Replay { at: usize },
    /// A chunk of a transfer.
    Transfer { at: usize },
}

/// Lookups that need the device.
#[derive(Debug)]
pub(crate) struct Reads {
    /// Receivers of the reads in flight, by the engine's token.
    in_flight: Slab<ReadWaiter>,
    in_flight_bytes: usize,
    in_flight_max: usize,
    waiting: VecDeque<(LookupPlan, ReadWaiter)>,
}

impl Reads {
    pub(super) fn new(in_flight_max: usize) -> Self {
        assert!(in_flight_max > 0, "a bound of 0 reads would answer no cold key");
        Self { in_flight: Slab::new(), in_flight_bytes: 0, in_flight_max, waiting: VecDeque::new() }
    }

    /// Reads for `waiter`, now or after earlier reads.
    pub(crate) fn start<D: Device>(&mut self, engine: &mut Engine<D>, plan: LookupPlan, waiter: ReadWaiter) {
        self.waiting.push_back((plan, waiter));
        self.refill(engine);
    }

    /// The plan's read has ended; queued reads start. Returns its receiver.
    pub(crate) fn ended<D: Device>(&mut self, engine: &mut Engine<D>, plan: &LookupPlan, user: u64) -> ReadWaiter {
        let waiter = self.in_flight.remove(user as usize);
        self.in_flight_bytes -= plan.read_bytes();
        self.refill(engine);
        waiter
    }

    fn refill<D: Device>(&mut self, engine: &mut Engine<D>) {
        while self.in_flight.len() < self.in_flight_max
            && (self.in_flight.is_empty() || self.in_flight_bytes < READS_IN_FLIGHT_BYTES_MAX)
            && let Some((plan, waiter)) = self.waiting.pop_front()
        {
            self.in_flight_bytes += plan.read_bytes();
            engine.read(plan, self.in_flight.insert(waiter) as u64);
        }
    }

    /// Reads in flight or queued.
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len() + self.waiting.len()
    }
}

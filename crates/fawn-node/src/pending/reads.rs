//! Bound on device reads for lookups: the rest waits in order of arrival.
use crate::options::READS_IN_FLIGHT_BYTES_MAX;
use fawn_ds::internals::{Engine, LookupPlan};
use fawn_flash::Device;
use std::collections::VecDeque;

/// Owner of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadWaiter {
    /// A request on one key.
    Op(usize),
    /// A scan.
    Scan(usize),
}

impl ReadWaiter {
    /// The token for the engine: the number, and one bit for the kind.
    const fn to_token(self) -> u64 {
        match self {
            Self::Op(at) => (at as u64) << 1,
            Self::Scan(at) => (at as u64) << 1 | 1,
        }
    }

    pub(crate) const fn from_token(user: u64) -> Self {
        let at = (user >> 1) as usize;
        if user & 1 == 0 { Self::Op(at) } else { Self::Scan(at) }
    }
}

/// Lookups that need the device.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: usize,
    in_flight_bytes: usize,
    in_flight_max: usize,
    waiting: VecDeque<(LookupPlan, ReadWaiter)>,
}

impl Reads {
    pub(crate) fn new(in_flight_max: usize) -> Self {
        assert!(in_flight_max > 0, "a bound of 0 reads would answer no cold key");
        Self { in_flight: 0, in_flight_bytes: 0, in_flight_max, waiting: VecDeque::new() }
    }

    /// Reads for `waiter`, now or after earlier reads.
    pub(crate) fn start<D: Device>(&mut self, engine: &mut Engine<D>, plan: LookupPlan, waiter: ReadWaiter) {
        self.waiting.push_back((plan, waiter));
        self.refill(engine);
    }

    /// A read of this many bytes has ended.
    pub(crate) fn ended(&mut self, bytes: usize) {
        assert!(self.in_flight > 0, "a read ends once");
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
    }

    /// Submits reads within the bounds.
    pub(crate) fn refill<D: Device>(&mut self, engine: &mut Engine<D>) {
        while self.in_flight < self.in_flight_max
            && (self.in_flight == 0 || self.in_flight_bytes < READS_IN_FLIGHT_BYTES_MAX)
            && let Some((plan, waiter)) = self.waiting.pop_front()
        {
            self.in_flight += 1;
            self.in_flight_bytes += plan.read_bytes();
            engine.read(plan, waiter.to_token());
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

//! Bound on device reads for lookups: the rest waits in order of arrival.
use crate::options::READS_IN_FLIGHT_BYTES_MAX;
use fawn_ds::internals::{Engine, LookupPlan};
use fawn_flash::Device;
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

const REPLAY_BIT: u64 = 1 << 63;
const TRANSFER_BIT: u64 = 1 << 62;
/// Bits of a waiting request's generation.
pub(super) const GENERATION_BITS: u32 = 30;

impl ReadWaiter {
    /// The token for the engine.
    const fn to_token(self) -> u64 {
        match self {
            Self::Request { at, generation } => (generation as u64) << 32 | at as u64,
            Self::Replay { at } => REPLAY_BIT | at as u64,
            Self::Transfer { at } => TRANSFER_BIT | at as u64,
        }
    }

    const fn from_token(user: u64) -> Self {
        let at = (user & u32::MAX as u64) as usize;
        match user {
            _ if user & REPLAY_BIT != 0 => Self::Replay { at },
            _ if user & TRANSFER_BIT != 0 => Self::Transfer { at },
            _ => Self::Request { at, generation: (user >> 32) as u32 },
        }
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
    pub(super) fn new(in_flight_max: usize) -> Self {
        assert!(in_flight_max > 0, "a bound of 0 reads would answer no cold key");
        Self { in_flight: 0, in_flight_bytes: 0, in_flight_max, waiting: VecDeque::new() }
    }

    /// Reads for `waiter`, now or after earlier reads.
    pub(crate) fn start<D: Device>(&mut self, engine: &mut Engine<D>, plan: LookupPlan, waiter: ReadWaiter) {
        self.waiting.push_back((plan, waiter));
        self.refill(engine);
    }

    /// The plan's read has ended; queued reads start. Returns its receiver.
    pub(crate) fn ended<D: Device>(&mut self, engine: &mut Engine<D>, plan: &LookupPlan, user: u64) -> ReadWaiter {
        assert!(self.in_flight > 0, "a read ends once");
        self.in_flight -= 1;
        self.in_flight_bytes -= plan.read_bytes();
        self.refill(engine);
        ReadWaiter::from_token(user)
    }

    fn refill<D: Device>(&mut self, engine: &mut Engine<D>) {
        while self.in_flight < self.in_flight_max
            && (self.in_flight == 0 || self.in_flight_bytes < READS_IN_FLIGHT_BYTES_MAX)
            && let Some((plan, waiter)) = self.waiting.pop_front()
        {
            self.in_flight += 1;
            self.in_flight_bytes += plan.read_bytes();
            engine.read(plan, waiter.to_token());
        }
    }

    /// Reads in flight or queued.
    pub(crate) fn len(&self) -> usize {
        self.in_flight + self.waiting.len()
    }
}

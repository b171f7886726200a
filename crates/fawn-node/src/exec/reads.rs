//! Bound on device reads for lookups: the rest waits in order of arrival. Reads that hang count no more, so that a few pages which
//! cannot be read do not stop the lookups of all others.
use crate::options::READS_IN_FLIGHT_BYTES_MAX;
use fawn_ds::internals::{Engine, HANGING_MS, LookupPlan, ReadPlace};
use fawn_flash::{Device, DeviceError};
use fawn_types::MonoMs;
use slab::Slab;
use std::collections::VecDeque;

/// Reads that hang and do not count, at most; their bytes have the bound of those that count.
const LEFT_MAX: usize = 256;
/// Distance of searches for reads that hang, ms.
const LOOK_MS: u64 = 100;

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

/// A read in flight.
#[derive(Debug)]
struct LookupRead {
    waiter: ReadWaiter,
    place: ReadPlace,
    len_bytes: usize,
    /// Time of the search that met it first.
    met_at: Option<MonoMs>,
    is_left: bool,
}

/// Reads by number and length.
#[derive(Clone, Copy, Debug, Default)]
struct ReadCount {
    reads: usize,
    bytes: usize,
}

impl ReadCount {
    const fn add(&mut self, bytes: usize) {
        self.reads += 1;
        self.bytes += bytes;
    }

    const fn remove(&mut self, bytes: usize) {
        self.reads -= 1;
        self.bytes -= bytes;
    }

    /// Whether one more may begin.
    const fn has_room(&self, reads_max: usize) -> bool {
        self.reads < reads_max && (self.reads == 0 || self.bytes < READS_IN_FLIGHT_BYTES_MAX)
    }
}

/// Lookups that need the device.
#[derive(Debug)]
pub(crate) struct Reads {
    /// The reads in flight, by the engine's token.
    in_flight: Slab<LookupRead>,
    in_flight_max: usize,
    /// Reads in flight that count.
    counted: ReadCount,
    /// Reads that hang, which do not count.
    left: ReadCount,
    look_at: MonoMs,
    waiting: VecDeque<(LookupPlan, ReadWaiter)>,
    /// Lookups whose reads contain one that was left: they wait for its end.
    behind: Vec<(LookupPlan, ReadWaiter)>,
    /// Lookups that have failed with the read that they waited for.
    failed: VecDeque<(LookupPlan, ReadWaiter)>,
}

impl Reads {
    pub(super) fn new(in_flight_max: usize) -> Self {
        assert!(in_flight_max > 0, "a bound of 0 reads would answer no cold key");
        Self {
            in_flight: Slab::new(),
            in_flight_max,
            counted: ReadCount::default(),
            left: ReadCount::default(),
            look_at: MonoMs(0),
            waiting: VecDeque::new(),
            behind: Vec::new(),
            failed: VecDeque::new(),
        }
    }

    /// Reads for `waiter`, now or after earlier reads.
    pub(crate) fn start<D: Device>(&mut self, engine: &mut Engine<D>, plan: LookupPlan, waiter: ReadWaiter) {
        self.waiting.push_back((plan, waiter));
        self.begin_waiting(engine);
    }

    /// The plan's read has ended; queued reads start. Returns its receiver.
    pub(crate) fn ended<D: Device>(&mut self, engine: &mut Engine<D>, plan: &LookupPlan, user: u64) -> ReadWaiter {
        let LookupRead { waiter, place, len_bytes, is_left, .. } = self.in_flight.remove(user as usize);
        if is_left {
            self.left.remove(len_bytes);
            self.end_behind(&place, plan.failure());
        } else {
            self.counted.remove(len_bytes);
        }
        self.begin_waiting(engine);
        waiter
    }

    /// Ends lookups behind a read that has ended: each would wait as long for the same failure. Others begin, unless another read
    /// hangs that they contain.
    fn end_behind(&mut self, place: &ReadPlace, failure: Option<&DeviceError>) {
        let mut behind = std::mem::take(&mut self.behind);
        if let Some(failure) = failure {
            let failed = behind.extract_if(.., |(plan, _)| plan.place().contains(place));
            self.failed.extend(failed.map(|(mut plan, waiter)| {
                plan.fail(failure.clone());
                (plan, waiter)
            }));
        }
        // Thousands may wait behind others.
        let is_due = |place: &ReadPlace, of: &ReadPlace| of.contains(place) && !self.hangs(of);
        let due: Vec<_> = behind.extract_if(.., |(plan, _)| is_due(place, &plan.place())).collect();
        self.waiting.extend(due);
        self.behind = behind;
    }

    /// A lookup whose read has failed with another one.
    pub(crate) fn pop_failed(&mut self) -> Option<(LookupPlan, ReadWaiter)> {
        self.failed.pop_front()
    }

    /// Looks for reads that hang after a poll, once in a while. Queued reads have their room.
    pub(crate) fn look<D: Device>(&mut self, engine: &mut Engine<D>) {
        let now = engine.polled_at();
        if !self.in_flight.is_empty() && now >= self.look_at {
            self.look_at = now.plus_ms(LOOK_MS);
            self.leave_hanging(now);
            self.begin_waiting(engine);
        }
    }

    fn begin_waiting<D: Device>(&mut self, engine: &mut Engine<D>) {
        while self.counted.has_room(self.in_flight_max)
            && let Some((plan, waiter)) = self.waiting.pop_front()
        {
            let (place, len_bytes) = (plan.place(), plan.read_bytes());
            if self.hangs(&place) {
                self.behind.push((plan, waiter));
                continue;
            }
            self.counted.add(len_bytes);
            let read = LookupRead { waiter, place, len_bytes, met_at: None, is_left: false };
            engine.read(plan, self.in_flight.insert(read) as u64);
        }
    }

    fn leave_hanging(&mut self, now: MonoMs) {
        for (_, read) in self.in_flight.iter_mut().filter(|(_, read)| !read.is_left) {
            // At its beginning, the time of the last poll may have been long before.
            let met_at = *read.met_at.get_or_insert(now);
            if now >= met_at.plus_ms(HANGING_MS) && self.left.has_room(LEFT_MAX) {
                read.is_left = true;
                self.counted.remove(read.len_bytes);
                self.left.add(read.len_bytes);
            }
        }
    }

    /// Whether a read was left that this one contains.
    fn hangs(&self, place: &ReadPlace) -> bool {
        self.left.reads > 0 && self.in_flight.iter().any(|(_, read)| read.is_left && place.contains(&read.place))
    }

    /// Reads in flight or queued.
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len() + self.waiting.len() + self.behind.len() + self.failed.len()
    }
}

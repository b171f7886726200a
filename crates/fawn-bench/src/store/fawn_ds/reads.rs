//! Read workloads on FAWN-DS, and the verification of a load.
use super::session::{BenchSession, RANGE, now};
use crate::store::Gets;
use crate::{BenchError, Row, row};
use fawn_ds::internals::{EngineError, Event, Lookup, LookupPlan, Scan, ScanStep, View};
use fawn_flash::Device;
use fawn_types::Now;
use fawn_types::random::SplitMix64;
use hdrhistogram::Histogram;
use std::time::Instant;

/// Number of lookups in flight during verification.
const VERIFY_DEPTH: usize = 32;
/// Number of operations between two readings of the clock; one of them is timed.
const CLOCK_EVERY: u64 = 64;
/// Maximum number of lookups issued before the next poll of the device.
const BURST: usize = 64;
/// Keys of a scan's step.
const SCAN_KEYS: usize = 128;

#[derive(Clone, Copy)]
struct ReadSlot {
    n: u64,
    sent: Instant,
}

/// The lookups in flight, with their latencies.
struct LookupsInFlight {
    slots: Vec<ReadSlot>,
    free: Vec<usize>,
    nanos: Histogram<u64>,
    operations: u64,
}

impl LookupsInFlight {
    fn new(depth: usize) -> Self {
        let slots = vec![ReadSlot { n: 0, sent: Instant::now() }; depth];
        Self { slots, free: (0..depth).collect(), nanos: row::histogram(), operations: 0 }
    }

    fn land(&mut self, slot: usize) {
        self.nanos.saturating_record(self.slots[slot].sent.elapsed().as_nanos() as u64);
        self.operations += 1;
        self.free.push(slot);
    }
}

impl<D: Device> BenchSession<D> {
    /// Compares every key's value with the last one written.
    pub(super) fn verify(&mut self) -> Result<(), BenchError> {
        let keys = self.shape.keys;
        let (held, live) = (self.len(), keys - self.deleted());
        // Runs count older records of their keys, too.
        if held != live && (self.engine.runs() == 0 || held < live) {
            return Err(BenchError::Unverified(format!("fawn-ds holds {held} keys, expected {live}")));
        }
        let mut expected = vec![0; self.shape.value_bytes];
        let mut numbers = 0..keys;
        let flight = self.drive(
            VERIFY_DEPTH,
            |_| numbers.next(),
            |session_values, n, round, value| {
                let expected = round.map(|round| {
                    session_values.fill(n, round, &mut expected);
                    &expected[..]
                });
                if value == expected {
                    return Ok(());
                }
                let found = if value.is_some() { "another value" } else { "nothing" };
                let expected = round.map_or("nothing".to_owned(), |round| format!("its version {round}"));
                Err(BenchError::Unverified(format!("fawn-ds, key number {n}: found {found}, expected {expected}")))
            },
        )?;
        assert_eq!(flight.operations, keys, "every key must be read exactly once");
        Ok(())
    }

    /// Measures `depth` lookups in flight for the given duration.
    pub(super) fn gets_in_flight(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let (mark, mut random) = (self.mark(), SplitMix64::new(gets.seed));
        let (keys, value_bytes) = (self.shape.keys, self.shape.value_bytes);
        let deadline = Instant::now() + gets.run;
        let before = *self.engine.stats();
        let next = |now: Instant| (now < deadline).then(|| pick(&mut random, keys, gets.present));
        let flight = self.drive(gets.depth, next, |_, n, _, value| check(n, value, gets.present, value_bytes))?;
        let mut row = self.row(&mark, flight.operations).latencies(&flight.nanos).with("depth", gets.depth);
        row.device_reads_per_op = Some(self.reads_per_op(&mark, flight.operations));
        let stats = self.engine.stats();
        let false_reads = (stats.false_matches - before.false_matches) as f64 / flight.operations.max(1) as f64;
        let second_reads = stats.second_reads - before.second_reads;
        Ok(row.with("false_reads_per_op", format!("{false_reads:.5}")).with("second_reads", second_reads))
    }

    /// Measures lookups one at a time.
    pub(super) fn gets_one_by_one(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let (mark, mut random) = (self.mark(), SplitMix64::new(gets.seed));
        let (keys, value_bytes) = (self.shape.keys, self.shape.value_bytes);
        let deadline = Instant::now() + gets.run;
        let (mut nanos, mut operations, mut sent) = (row::histogram(), 0_u64, Instant::now());
        while sent < deadline {
            let now = now();
            for timed in (0..CLOCK_EVERY).map(|at| at == 0) {
                let n = pick(&mut random, keys, gets.present);
                self.get_blocking(n, now, |value| check(n, value, gets.present, value_bytes))?;
                if timed {
                    nanos.saturating_record(sent.elapsed().as_nanos() as u64);
                }
            }
            operations += CLOCK_EVERY;
            // As the turns of a server: they divide the memory between the caches.
            self.engine.poll(now, &mut self.events);
            self.events.clear();
            sent = Instant::now();
        }
        let mut row = self.row(&mark, operations).latencies(&nanos).with("threads", 1);
        row.device_reads_per_op = Some(self.reads_per_op(&mark, operations));
        Ok(row)
    }

    /// Scans the first keys in hash order, at least so many.
    pub(super) fn scan(&mut self, keys: u64) -> Result<Row, BenchError> {
        let (mark, now) = (self.mark(), now());
        let (mut met, mut cursor) = (0, 0);
        while met < keys {
            let mut scan = Scan::new(RANGE, cursor, SCAN_KEYS);
            while let ScanStep::Read(plan) = self.engine.scan_step(&mut scan, now.wall).map_err(read_failed)? {
                self.engine.read(plan, 0);
                let plan = self.await_read(now);
                self.engine.absorb_scan(&mut scan, plan).map_err(read_failed)?;
            }
            (met, cursor) = (met + scan.items.len() as u64, scan.cursor);
            if cursor == 0 && met < keys {
                return Err(BenchError::Unverified(format!("fawn-ds: a scan met {met} keys, expected {keys}")));
            }
        }
        let mut row = self.row(&mark, met);
        row.device_reads_per_op = Some(self.reads_per_op(&mark, met));
        Ok(row)
    }

    /// The plan of the only read in flight, once it is complete.
    fn await_read(&mut self, now: Now) -> LookupPlan {
        loop {
            self.engine.wait(now, &mut self.events);
            let read = self.events.drain(..).find_map(|event| match event {
                Event::Lookup { plan, .. } => Some(plan),
                _ => None,
            });
            if let Some(plan) = read {
                return plan;
            }
        }
    }

    fn get_blocking(
        &mut self,
        n: u64,
        now: Now,
        mut check: impl FnMut(Option<&[u8]>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let (hash, key) = self.hash(n);
        let mut answer = self.engine.lookup(self.range_of(&key), hash, &key, View::Committed, now.wall);
        loop {
            let plan = match answer.map_err(read_failed)? {
                Lookup::Found(entry) => return check(Some(entry.value)),
                Lookup::Absent | Lookup::Unsettled => return check(None),
                Lookup::Read(plan) => plan,
            };
            self.engine.read(plan, 0);
            let plan = self.await_read(now);
            answer = self.engine.resume(plan, now.wall);
        }
    }

    /// Keeps `depth` lookups in flight until `next` returns no more keys. `check` receives the result of each lookup.
    fn drive(
        &mut self,
        depth: usize,
        mut next: impl FnMut(Instant) -> Option<u64>,
        mut check: impl FnMut(&crate::workload::Values, u64, Option<u64>, Option<&[u8]>) -> Result<(), BenchError>,
    ) -> Result<LookupsInFlight, BenchError> {
        let mut flight = LookupsInFlight::new(depth);
        let mut more = true;
        while more || flight.free.len() < depth {
            let now = now();
            for _ in 0..BURST {
                let Some(&slot) = flight.free.last() else { break };
                let sent = Instant::now();
                let Some(n) = next(sent) else {
                    more = false;
                    break;
                };
                flight.free.pop();
                flight.slots[slot] = ReadSlot { n, sent };
                let (hash, key) = self.hash(n);
                let round = self.round_if_there(n);
                let range = self.range_of(&key);
                let answer = self.engine.lookup(range, hash, &key, View::Committed, now.wall).map_err(read_failed)?;
                let plan = settle(answer, |value| check(&self.values, n, round, value))?;
                match plan {
                    Some(plan) => self.engine.read(plan, slot as u64),
                    None => flight.land(slot),
                }
            }
            let mut events = std::mem::take(&mut self.events);
            self.engine.wait(now, &mut events);
            for event in events.drain(..) {
                let Event::Lookup { plan, user } = event else { continue };
                let n = flight.slots[user as usize].n;
                let round = self.round_if_there(n);
                let answer = self.engine.resume(plan, now.wall).map_err(read_failed)?;
                let plan = settle(answer, |value| check(&self.values, n, round, value))?;
                match plan {
                    Some(plan) => self.engine.read(plan, user),
                    None => flight.land(user as usize),
                }
            }
            self.events = events;
        }
        Ok(flight)
    }

    fn round_if_there(&self, n: u64) -> Option<u64> {
        if n < self.shape.keys { self.round_of(n) } else { None }
    }
}

/// Checks a final result, or returns the plan to read.
pub(super) fn settle(
    answer: Lookup<'_>,
    check: impl FnOnce(Option<&[u8]>) -> Result<(), BenchError>,
) -> Result<Option<LookupPlan>, BenchError> {
    match answer {
        Lookup::Found(entry) => check(Some(entry.value)).map(|()| None),
        Lookup::Absent | Lookup::Unsettled => check(None).map(|()| None),
        Lookup::Read(plan) => Ok(Some(plan)),
    }
}

/// A key that is present, or one that was never written.
fn pick(random: &mut SplitMix64, keys: u64, present: bool) -> u64 {
    random.below(keys) + if present { 0 } else { keys }
}

/// A cheap check during the measurement; the values themselves were verified after the load.
fn check(n: u64, value: Option<&[u8]>, present: bool, value_bytes: usize) -> Result<(), BenchError> {
    match value {
        Some(value) if present && value.len() == value_bytes => Ok(()),
        None if !present => Ok(()),
        Some(value) => Err(BenchError::Unverified(format!("key number {n} has {} bytes", value.len()))),
        None => Err(BenchError::Unverified(format!("key number {n} is missing"))),
    }
}

pub(super) fn read_failed(error: EngineError) -> BenchError {
    BenchError::failed("fawn-ds, lookup", error)
}

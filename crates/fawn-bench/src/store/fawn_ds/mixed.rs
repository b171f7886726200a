//! Mixes of gets, puts and deletes on FAWN-DS, in a closed or an open loop.
use super::reads::{read_failed, settle};
use super::session::{BenchSession, MeasurementStart, RANGE, now};
use crate::store::KEY_BYTES;
use crate::store::mix::{ArrivalPattern, Mix, MixSchedule, MixedOp};
use crate::{BenchError, Row, machine, row};
use fawn_ds::internals::format::record;
use fawn_ds::internals::{EngineStats, Event, LookupPlan, RecordRef, View};
use fawn_flash::{Device, IoClass};
use fawn_types::{Now, Version};
use hdrhistogram::Histogram;
use slab::Slab;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of operations begun in one loop iteration.
const BURST: usize = 64;
/// Number of samples that are taken over the planned duration.
const SAMPLES: u32 = 60;
/// Quantiles of the latency distribution in the series.
const QUANTILES: [f64; 10] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1.0];

/// A get in flight.
#[derive(Clone, Copy)]
struct ReadInFlight {
    n: u64,
    arrived: Instant,
}

/// State of a run.
struct MixRun<'m> {
    schedule: MixSchedule<'m>,
    reads: Slab<ReadInFlight>,
    /// Writes that are not acknowledged, oldest first.
    writes: VecDeque<(Version, MixedOp, Instant)>,
    /// A write that the engine had no space for.
    refused: Option<(MixedOp, u64, Instant)>,
    may_be_absent: bool,
    nanos: Histogram<u64>,
    ended: [u64; 3],
    samples: MixSamples,
}

/// The course of a run.
struct MixSamples {
    every: Duration,
    next: Instant,
    ended: u64,
    slowest_ns: u64,
    /// The last time at which an operation ended, or at which none was in flight.
    progress_at: Instant,
    longest_stop: Duration,
    memory_bytes_max: u64,
    resident_bytes_max: u64,
    ops_per_s: Vec<f64>,
    max_us: Vec<f64>,
    debt_segments: Vec<f64>,
}

impl MixSamples {
    fn new(run: Duration, started: Instant) -> Self {
        let every = (run / SAMPLES).max(Duration::from_millis(1));
        Self {
            every,
            next: started + every,
            ended: 0,
            slowest_ns: 0,
            progress_at: started,
            longest_stop: Duration::ZERO,
            memory_bytes_max: 0,
            resident_bytes_max: 0,
            ops_per_s: Vec::new(),
            max_us: Vec::new(),
            debt_segments: Vec::new(),
        }
    }

    fn count(&mut self, now: Instant, nanos: u64) {
        (self.ended, self.slowest_ns) = (self.ended + 1, self.slowest_ns.max(nanos));
        self.note_progress(now);
    }

    fn note_progress(&mut self, now: Instant) {
        self.longest_stop = self.longest_stop.max(now.duration_since(self.progress_at));
        self.progress_at = now;
    }

    /// Takes a sample if one is due. A run takes at most twice its time: so the series are bounded.
    fn take<D: Device>(&mut self, now: Instant, session: &BenchSession<D>) {
        if now >= self.next {
            self.add(now, session);
        }
    }

    fn add<D: Device>(&mut self, now: Instant, session: &BenchSession<D>) {
        let passed = (now + self.every).saturating_duration_since(self.next).max(Duration::from_nanos(1));
        self.ops_per_s.push((self.ended as f64 / passed.as_secs_f64()).round());
        self.max_us.push(self.slowest_ns as f64 / 1e3);
        self.debt_segments.push(session.engine.log_report().cleaning_debt_segments as f64);
        self.memory_bytes_max = self.memory_bytes_max.max(session.engine.memory().total_bytes());
        let resident = machine::resident_bytes_of(std::process::id()).unwrap_or_default();
        self.resident_bytes_max = self.resident_bytes_max.max(resident);
        (self.ended, self.slowest_ns, self.next) = (0, 0, now + self.every);
    }
}

impl MixRun<'_> {
    fn in_flight(&self) -> usize {
        self.reads.len() + self.writes.len() + usize::from(self.refused.is_some())
    }

    fn end(&mut self, op: MixedOp, arrived: Instant, now: Instant) {
        let nanos = now.duration_since(arrived).as_nanos() as u64;
        self.nanos.saturating_record(nanos);
        self.ended[op as usize] += 1;
        self.samples.count(now, nanos);
    }

    fn check(&self, n: u64, value: Option<&[u8]>, value_bytes: usize) -> Result<(), BenchError> {
        match value {
            Some(value) if value.len() == value_bytes => Ok(()),
            None if self.may_be_absent => Ok(()),
            Some(value) => Err(BenchError::Unverified(format!("key number {n} has {} bytes", value.len()))),
            None => Err(BenchError::Unverified(format!("key number {n} is missing"))),
        }
    }
}

impl<D: Device> BenchSession<D> {
    /// Runs the mix, then waits until all of its writes are confirmed and in the files.
    pub(super) fn mixed(&mut self, mix: &Mix) -> Result<Row, BenchError> {
        let (mark, before) = (self.mark(), *self.engine.stats());
        let io_before = self.engine.device().stats().clone();
        let schedule = MixSchedule::new(mix);
        let samples = MixSamples::new(mix.run, schedule.started());
        let mut run = MixRun {
            schedule,
            reads: Slab::new(),
            writes: VecDeque::new(),
            refused: None,
            may_be_absent: mix.delete_percent > 0 || self.deleted() > 0,
            nanos: row::histogram(),
            ended: [0; 3],
            samples,
        };
        loop {
            let at = Instant::now();
            let is_over = run.schedule.is_over(at);
            if is_over && run.in_flight() == 0 {
                break;
            }
            if run.in_flight() == 0 {
                run.samples.note_progress(at);
            }
            if at.saturating_duration_since(run.samples.progress_at) > self.patience {
                return Err(self.no_progress());
            }
            let now = now();
            self.begin_due(&mut run, now)?;
            self.run_iteration(&mut run, now, mix.arrival)?;
            run.samples.take(Instant::now(), self);
        }
        // The rest of the last interval: a short run has no other sample.
        run.samples.add(Instant::now(), self);
        let operations = run.ended.iter().sum();
        let mut row = self.row(&mark, operations).latencies(&run.nanos);
        if matches!(mix.arrival, ArrivalPattern::PerSecond(_)) {
            // An open loop polls while nothing arrives.
            row.cpu_us_per_op = None;
        }
        row.device_reads_per_op = Some(self.reads_per_op(&mark, operations));
        let read_bytes = self.engine.device().stats().total().read_bytes - io_before.total().read_bytes;
        row = row.measuring("read_bytes_per_op", read_bytes as f64 / operations.max(1) as f64);
        self.acknowledge_all()?;
        self.write_all()?;
        let puts = run.ended[MixedOp::Put as usize];
        row.device_bytes_written_per_user_byte = (puts > 0).then(|| self.written_per_user_byte(&mark, puts));
        for class in IoClass::ALL {
            let written = self.engine.device().stats().of(class).written_bytes - io_before.of(class).written_bytes;
            row = row.measuring(&format!("written_bytes_{}", class.name()), written as f64);
        }
        Ok(self.describe(row, &run, &mark, &before))
    }

    fn describe(&self, row: Row, run: &MixRun<'_>, mark: &MeasurementStart, before: &EngineStats) -> Row {
        let stats = self.engine.stats();
        let record_bytes = (stats.record_bytes - before.record_bytes).max(1) as f64;
        let written = self.written_since(mark) as f64;
        let mut row = row
            .measuring("gets", run.ended[MixedOp::Get as usize] as f64)
            .measuring("puts", run.ended[MixedOp::Put as usize] as f64)
            .measuring("deletes", run.ended[MixedOp::Delete as usize] as f64)
            .measuring("unserved", run.schedule.unserved() as f64)
            .measuring("record_bytes", record_bytes)
            .measuring("written_per_record_byte", written / record_bytes)
            .measuring("segments_cleaned", (stats.segments_cleaned - before.segments_cleaned) as f64)
            .measuring("moved_bytes", (stats.moved_bytes - before.moved_bytes) as f64)
            .measuring("longest_stop_ms", run.samples.longest_stop.as_secs_f64() * 1e3)
            .measuring("memory_bytes_max", run.samples.memory_bytes_max as f64)
            .measuring("rss_bytes_max", run.samples.resident_bytes_max as f64)
            .measuring("interval_s", run.samples.every.as_secs_f64());
        let samples = &run.samples;
        row.series.insert("ops_per_s".into(), samples.ops_per_s.clone());
        row.series.insert("max_us".into(), samples.max_us.clone());
        row.series.insert("debt_segments".into(), samples.debt_segments.clone());
        row.series.insert("quantile".into(), QUANTILES.to_vec());
        let latencies = QUANTILES.iter().map(|quantile| run.nanos.value_at_quantile(*quantile) as f64 / 1e3);
        row.series.insert("latency_us_at_quantile".into(), latencies.collect());
        row
    }

    /// Begins operations that have arrived, until a write finds no space.
    fn begin_due(&mut self, run: &mut MixRun<'_>, now: Now) -> Result<(), BenchError> {
        if let Some((op, n, arrived)) = run.refused.take() {
            self.begin(run, op, n, arrived, now)?;
        }
        let at = Instant::now();
        for _ in 0..BURST {
            if run.refused.is_some() {
                break;
            }
            let Some(arrived) = run.schedule.due(at, run.in_flight()) else { break };
            let (op, n) = run.schedule.take();
            self.begin(run, op, n, arrived, now)?;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        run: &mut MixRun<'_>,
        op: MixedOp,
        n: u64,
        arrived: Instant,
        now: Now,
    ) -> Result<(), BenchError> {
        if op != MixedOp::Get {
            match self.try_write(n, op == MixedOp::Put)? {
                Some(version) => run.writes.push_back((version, op, arrived)),
                None => run.refused = Some((op, n, arrived)),
            }
            return Ok(());
        }
        let (hash, key) = self.hash(n);
        let value_bytes = self.shape.value_bytes;
        let answer = self.engine.lookup(RANGE, hash, &key, View::Committed, now.wall).map_err(read_failed)?;
        match settle(answer, |value| run.check(n, value, value_bytes))? {
            Some(plan) => {
                let user = run.reads.insert(ReadInFlight { n, arrived });
                self.engine.read(plan, user as u64);
            }
            None => run.end(MixedOp::Get, arrived, Instant::now()),
        }
        Ok(())
    }

    /// One loop iteration: submit writes, reap, finish lookups, commit, and acknowledge.
    fn run_iteration(&mut self, run: &mut MixRun<'_>, now: Now, arrival: ArrivalPattern) -> Result<(), BenchError> {
        let mut events = std::mem::take(&mut self.events);
        self.engine.submit(now);
        match arrival {
            ArrivalPattern::InFlight(_) if run.schedule.due(Instant::now(), run.in_flight()).is_none() => {
                self.engine.wait(now, &mut events);
            }
            _ => self.engine.poll(now, &mut events),
        }
        for event in events.drain(..) {
            match event {
                Event::Lookup { plan, user } => self.resume(run, plan, user, now)?,
                Event::Poisoned => {
                    return Err(BenchError::failed("fawn-ds", self.engine.poisoned().unwrap_or("poisoned")));
                }
                Event::Progress | Event::SpaceBack => {}
            }
        }
        self.events = events;
        self.commit();
        let (committed, at) = (self.engine.progress(RANGE).committed, Instant::now());
        while let Some((_, op, arrived)) = run.writes.pop_front_if(|(version, ..)| *version <= committed) {
            run.end(op, arrived, at);
        }
        Ok(())
    }

    fn resume(&mut self, run: &mut MixRun<'_>, plan: LookupPlan, user: u64, now: Now) -> Result<(), BenchError> {
        let ReadInFlight { n, arrived } = run.reads[user as usize];
        let value_bytes = self.shape.value_bytes;
        let answer = self.engine.resume(plan, now.wall).map_err(read_failed)?;
        match settle(answer, |value| run.check(n, value, value_bytes))? {
            Some(plan) => self.engine.read(plan, user),
            None => {
                run.reads.remove(user as usize);
                run.end(MixedOp::Get, arrived, Instant::now());
            }
        }
        Ok(())
    }
}

/// Length in the log of a record with a value of this length, bytes.
#[must_use]
pub fn record_bytes_of(value_bytes: usize) -> u64 {
    record::encoded_len(&RecordRef::put(Version::ZERO, &[0; KEY_BYTES], &vec![0; value_bytes])) as u64
}

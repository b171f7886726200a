//! Mixes of gets, puts and deletes on FAWN-DS, in a closed or an open loop.
use super::reads::{read_failed, settle};
use super::samples::MixSamples;
use super::session::{BenchSession, MeasurementStart, RANGE, now};
use crate::store::KEY_BYTES;
use crate::store::mix::{ArrivalPattern, Mix, MixSchedule, MixedOp};
use crate::{BenchError, Row};
use fawn_ds::internals::format::record;
use fawn_ds::internals::{EngineStats, Event, LookupPlan, RecordRef, View};
use fawn_flash::{Device, IoClass, IoStats};
use fawn_types::{Now, Version};
use slab::Slab;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of operations begun in one loop iteration.
const BURST: usize = 64;
/// Number of samples that are taken over the planned duration.
const SAMPLES: u32 = 60;
/// A get in flight.
#[derive(Clone, Copy)]
struct ReadInFlight {
    n: u64,
    arrived: Instant,
}

/// State of a run.
pub(super) struct MixRun {
    pub(super) schedule: MixSchedule,
    reads: Slab<ReadInFlight>,
    /// Writes that are not acknowledged, oldest first.
    writes: VecDeque<(Version, MixedOp, Instant)>,
    /// A write that the engine had no space for.
    refused: Option<(MixedOp, u64, Instant)>,
    may_be_absent: bool,
    /// Operations by kind, counted or not.
    ended: [u64; 3],
    unserved: u64,
    pub(super) samples: MixSamples,
}

/// Counters before a run.
pub(super) struct MixStart {
    mark: MeasurementStart,
    engine: EngineStats,
    io: IoStats,
}

impl MixRun {
    /// Begins the next phase, while no operation is in flight.
    pub(super) fn begin_phase(&mut self, mix: Mix, counts: bool) {
        self.schedule = MixSchedule::new(mix);
        self.samples.begin_phase(counts, self.schedule.started());
    }

    fn in_flight(&self) -> usize {
        self.reads.len() + self.writes.len() + usize::from(self.refused.is_some())
    }

    fn end(&mut self, op: MixedOp, arrived: Instant, now: Instant) {
        self.ended[op as usize] += 1;
        self.samples.count(now, now.duration_since(arrived).as_nanos() as u64);
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
        let every = (mix.run / SAMPLES).max(Duration::from_millis(1));
        let (start, mut run) = self.begin_mix(mix, every);
        self.run_phase(&mut run)?;
        // The rest of the last interval: a short run has no other sample.
        run.samples.add(Instant::now(), self);
        let mut row = self.end_mix(&run, &start)?;
        if matches!(mix.arrival, ArrivalPattern::PerSecond(_)) {
            // An open loop polls while nothing arrives.
            row.cpu_us_per_op = None;
        }
        Ok(row)
    }

    /// A run that begins with `mix`, and has a sample every so often.
    pub(super) fn begin_mix(&self, mix: &Mix, every: Duration) -> (MixStart, MixRun) {
        let start =
            MixStart { mark: self.mark(), engine: *self.engine.stats(), io: self.engine.device().stats().clone() };
        let schedule = MixSchedule::new(mix.clone());
        let samples = MixSamples::new(every, schedule.started());
        let run = MixRun {
            schedule,
            reads: Slab::new(),
            writes: VecDeque::new(),
            refused: None,
            may_be_absent: mix.delete_percent > 0 || self.deleted() > 0,
            ended: [0; 3],
            unserved: 0,
            samples,
        };
        (start, run)
    }

    /// Runs the schedule until all of its operations have ended.
    pub(super) fn run_phase(&mut self, run: &mut MixRun) -> Result<(), BenchError> {
        loop {
            let at = Instant::now();
            if run.in_flight() == 0 {
                if run.schedule.is_over(at) {
                    break;
                }
                run.samples.note_progress(at);
            }
            if at.saturating_duration_since(run.samples.progress_at) > self.patience {
                return Err(self.no_progress());
            }
            let now = now();
            self.begin_due(run, now)?;
            self.run_iteration(run, now)?;
            run.samples.take(Instant::now(), self);
        }
        run.unserved += run.schedule.unserved();
        Ok(())
    }

    /// The row of a run whose operations have ended, once all of its writes are confirmed and in the files.
    pub(super) fn end_mix(&mut self, run: &MixRun, start: &MixStart) -> Result<Row, BenchError> {
        let operations: u64 = run.ended.iter().sum();
        let mut row = self.row(&start.mark, operations);
        row.device_reads_per_op = Some(self.reads_per_op(&start.mark, operations));
        let read_bytes = self.engine.device().stats().total().read_bytes - start.io.total().read_bytes;
        row = row.measuring("read_bytes_per_op", read_bytes as f64 / operations.max(1) as f64);
        self.acknowledge_all()?;
        self.write_all()?;
        let puts = run.ended[MixedOp::Put as usize];
        row.device_bytes_written_per_user_byte = (puts > 0).then(|| self.written_per_user_byte(&start.mark, puts));
        for class in IoClass::ALL {
            let written = self.engine.device().stats().of(class).written_bytes - start.io.of(class).written_bytes;
            row = row.measuring(&format!("written_bytes_{}", class.name()), written as f64);
        }
        Ok(run.samples.describe(self.describe(row, run, start)))
    }

    fn describe(&self, row: Row, run: &MixRun, start: &MixStart) -> Row {
        let (stats, before) = (self.engine.stats(), &start.engine);
        let record_bytes = (stats.record_bytes - before.record_bytes).max(1) as f64;
        let written = self.written_since(&start.mark) as f64;
        row.measuring("gets", run.ended[MixedOp::Get as usize] as f64)
            .measuring("puts", run.ended[MixedOp::Put as usize] as f64)
            .measuring("deletes", run.ended[MixedOp::Delete as usize] as f64)
            .measuring("unserved", run.unserved as f64)
            .measuring("record_bytes", record_bytes)
            .measuring("written_per_record_byte", written / record_bytes)
            .measuring("segments_cleaned", (stats.segments_cleaned - before.segments_cleaned) as f64)
            .measuring("moved_bytes", (stats.moved_bytes - before.moved_bytes) as f64)
    }

    /// Begins operations that have arrived, until a write finds no space.
    fn begin_due(&mut self, run: &mut MixRun, now: Now) -> Result<(), BenchError> {
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

    fn begin(&mut self, run: &mut MixRun, op: MixedOp, n: u64, arrived: Instant, now: Now) -> Result<(), BenchError> {
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
    fn run_iteration(&mut self, run: &mut MixRun, now: Now) -> Result<(), BenchError> {
        let mut events = std::mem::take(&mut self.events);
        self.engine.submit(now);
        match run.schedule.arrival() {
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

    fn resume(&mut self, run: &mut MixRun, plan: LookupPlan, user: u64, now: Now) -> Result<(), BenchError> {
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

//! An open engine with the state of the load generator: assigned versions, rounds per key, counters.
use crate::store::{DataShape, KEY_BYTES};
use crate::workload::{Values, key_into};
use crate::{BenchError, Row, machine};
use fawn_ds::internals::{Engine, EngineError, Event, Options, PREFETCH_KEYS_MAX, RecordRef};
use fawn_flash::{Device, IoClassStats};
use fawn_types::{Epoch, HashSecret, KeyHash, KeyRange, RangeId, Version};
use std::time::{Duration, Instant};

/// The engine's only range.
pub(super) const RANGE: RangeId = RangeId(1);
/// Number of writes per loop iteration, as in a busy server.
pub(super) const TURN_WRITES: u64 = 64;
/// Time added to now, so that all timers of the engine are due.
const LATER_MS: u64 = 60_000;

pub(super) struct BenchSession<D: Device> {
    pub(super) engine: Engine<D>,
    pub(super) shape: DataShape,
    pub(super) events: Vec<Event>,
    pub(super) values: Values,
    /// Number of overwrites per key.
    rounds: Vec<u16>,
    value: Vec<u8>,
    epoch: Epoch,
    seq: u64,
}

/// Resources used before a measurement.
pub(super) struct MeasurementStart {
    at: Instant,
    cpu: Duration,
    io: IoClassStats,
}

impl<D: Device> BenchSession<D> {
    pub(super) fn open(device: D, mut options: Options, shape: DataShape) -> Result<Self, BenchError> {
        options.secret = Some(HashSecret(*b"fawn-bench-16-by"));
        let failed = |error: &dyn std::fmt::Display| BenchError::failed("fawn-ds, opening", error);
        let (mut engine, _) = Engine::open(device, options, now()).map_err(|error| failed(&error))?;
        engine.add_range(RANGE, KeyRange::ALL).map_err(|error| failed(&error))?;
        let epoch = engine.next_sole_epoch(RANGE).ok_or_else(|| failed(&"epochs are used up"))?;
        engine.begin_sole_epoch(RANGE, epoch, None).map_err(|error| failed(&error))?;
        let (rounds, value) = (vec![0; shape.keys as usize], vec![0; shape.value_bytes]);
        let values = Values::new(shape.value_bytes);
        Ok(Self { engine, shape, events: Vec::new(), values, rounds, value, epoch, seq: 0 })
    }

    pub(super) fn hash(&self, n: u64) -> (KeyHash, [u8; KEY_BYTES]) {
        let mut key = [0; KEY_BYTES];
        key_into(n, &mut key);
        (KeyHash::of(self.engine.secret(), &key), key)
    }

    /// Appends key number `n` with its value of `round`. Runs loop iterations while the engine is overloaded.
    pub(super) fn put(&mut self, n: u64, round: u64) -> Result<Version, BenchError> {
        let (hash, key) = self.hash(n);
        self.put_hashed(n, round, hash, &key)
    }

    /// Puts the keys from `first` on: as many as the engine prefetches at once, or all remaining ones.
    pub(super) fn put_warmed(&mut self, first: u64) -> Result<(), BenchError> {
        let count = (self.shape.keys - first).min(PREFETCH_KEYS_MAX as u64) as usize;
        let mut hashed = [(KeyHash(0), [0; KEY_BYTES]); PREFETCH_KEYS_MAX];
        let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
        for (i, n) in (first..first + count as u64).enumerate() {
            hashed[i] = self.hash(n);
            hashes[i] = hashed[i].0;
        }
        self.engine.prefetch(RANGE, &hashes[..count]);
        for (n, (hash, key)) in (first..).zip(&hashed[..count]) {
            self.put_hashed(n, 0, *hash, key)?;
        }
        Ok(())
    }

    fn put_hashed(&mut self, n: u64, round: u64, hash: KeyHash, key: &[u8; KEY_BYTES]) -> Result<Version, BenchError> {
        self.values.fill(n, round, &mut self.value);
        self.seq += 1;
        let version = Version::new(self.epoch, self.seq)
            .ok_or_else(|| BenchError::failed("fawn-ds", "versions are used up; fewer --seconds"))?;
        loop {
            let record = RecordRef::put(version, key, &self.value);
            match self.engine.append(RANGE, hash, &record) {
                Ok(()) => return Ok(version),
                Err(EngineError::Overloaded) => self.turn(true)?,
                Err(error) => return Err(BenchError::failed("fawn-ds, append", error)),
            }
        }
    }

    /// Puts the next version of key number `n`.
    pub(super) fn put_next_round(&mut self, n: u64) -> Result<Version, BenchError> {
        let round = &mut self.rounds[n as usize];
        // The round wraps around after 65,536 overwrites, which is harmless: only the newest value is expected.
        *round = round.wrapping_add(1);
        let round = u64::from(*round);
        self.put(n, round)
    }

    /// Puts the next version, and runs a loop iteration as often as a server would.
    pub(super) fn put_in_turns(&mut self, n: u64) -> Result<(), BenchError> {
        self.put_next_round(n)?;
        if self.seq.is_multiple_of(TURN_WRITES) { self.turn(false) } else { Ok(()) }
    }

    /// One loop iteration: submit writes, poll or wait for completions, commit as the durability mode allows. No lookup
    /// may be in flight.
    pub(super) fn turn(&mut self, wait: bool) -> Result<(), BenchError> {
        let now = now();
        self.engine.submit(now);
        if wait {
            self.engine.wait(now, &mut self.events)
        } else {
            self.engine.poll(now, &mut self.events)
        }
        let poisoned = self.events.drain(..).any(|event| matches!(event, Event::Poisoned));
        if poisoned {
            return Err(BenchError::failed("fawn-ds", self.engine.poisoned().unwrap_or("poisoned")));
        }
        self.commit();
        Ok(())
    }

    /// Commits as the durability mode allows, like a store without replicas. Returns the last committed version.
    pub(super) fn commit(&mut self) -> Version {
        let progress = self.engine.progress(RANGE);
        let through = progress.watermark_for(self.engine.options().durability);
        self.engine.commit(RANGE, through);
        through
    }

    /// Waits until every put is acknowledged and the old version of every overwritten key is confirmed.
    pub(super) fn acknowledge_all(&mut self) -> Result<(), BenchError> {
        loop {
            self.turn(true)?;
            let progress = self.engine.progress(RANGE);
            let queued = self.engine.log_report().verifications_queued;
            if progress.committed == progress.appended && queued == 0 {
                return Ok(());
            }
        }
    }

    /// Waits until everything appended is in the files.
    pub(super) fn write_all(&mut self) -> Result<(), BenchError> {
        self.engine.submit(now().plus_ms(LATER_MS));
        while self.engine.watermarks().flushed < self.engine.watermarks().appended {
            self.turn(true)?;
            self.engine.submit(now().plus_ms(LATER_MS));
        }
        Ok(())
    }

    /// The round that key number `n` must hold now.
    pub(super) fn round_of(&self, n: u64) -> u64 {
        u64::from(self.rounds[n as usize])
    }

    pub(super) fn mark(&self) -> MeasurementStart {
        MeasurementStart { at: Instant::now(), cpu: machine::own_cpu(), io: self.engine.device().stats().total() }
    }

    /// A row with `operations` since `mark`.
    pub(super) fn row(&self, mark: &MeasurementStart, operations: u64) -> Row {
        let cpu = machine::own_cpu().saturating_sub(mark.cpu);
        let row = Row::new("store", "fawn-ds", "").timed(operations, mark.at.elapsed(), Some(cpu));
        let row = row.with("keys", self.shape.keys).with("value_bytes", self.shape.value_bytes);
        let durability = format!("{:?}", self.engine.options().durability).to_lowercase();
        let memory = self.engine.memory();
        let mut row = row.with("memory_bytes", self.shape.memory_bytes).with("durability", durability);
        row = row.with("device", self.engine.device().name()).with("index_bytes", memory.index_bytes);
        row = row.with("rss_bytes", machine::resident_bytes_of(std::process::id()).unwrap_or_default());
        row.dram_bytes_per_key = Some(memory.index_bytes as f64 / self.engine.len(RANGE).max(1) as f64);
        row
    }

    /// Device reads since `mark`, per operation.
    pub(super) fn reads_per_op(&self, mark: &MeasurementStart, operations: u64) -> f64 {
        let reads = self.engine.device().stats().total().reads - mark.io.reads;
        reads as f64 / operations.max(1) as f64
    }

    /// Bytes written by the device since `mark`, per byte of keys and values.
    pub(super) fn written_per_user_byte(&self, mark: &MeasurementStart, operations: u64) -> f64 {
        let written = self.engine.device().stats().total().written_bytes - mark.io.written_bytes;
        written as f64 / (operations.max(1) * (KEY_BYTES + self.shape.value_bytes) as u64) as f64
    }
}

/// Reads the machine's clocks, since the engine takes the time as an argument.
pub(super) use fawn_flash::clock::now;

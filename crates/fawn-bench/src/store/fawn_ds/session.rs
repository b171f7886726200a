//! An open engine with the state of the load generator: assigned versions, rounds per key, counters.
use crate::store::{DataShape, KEY_BYTES};
use crate::workload::{Values, key_into};
use crate::{BenchError, Row, machine};
use fawn_ds::internals::{Engine, EngineError, Event, Options, PREFETCH_KEYS_MAX, RecordKind, RecordRef};
use fawn_flash::{Device, IoClassStats};
use fawn_types::{Epoch, HashSecret, KeyHash, KeyRange, RangeId, RingKey, Version};
use std::time::{Duration, Instant};

/// The engine's first range, and its only one except in loads of several ranges.
pub(super) const RANGE: RangeId = RangeId(1);
/// Number of writes per loop iteration, as in a busy server.
pub(super) const TURN_WRITES: u64 = 64;
/// Round of a key that is deleted; rounds of values skip it.
const DELETED: u16 = u16::MAX;
/// Time without progress after which a run ends with an error, unless chosen otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Time added to now, so that all timers of the engine are due.
const LATER_MS: u64 = 60_000;
/// Time without work of the sorted tier after which a rest ends, and maximum length of a rest. The tier rests a second after the
/// last write.
const REST_CALM: Duration = Duration::from_secs(2);
const REST_MAX: Duration = Duration::from_secs(900);

pub(super) struct BenchSession<D: Device> {
    /// The contender's name.
    pub(super) name: &'static str,
    pub(super) engine: Engine<D>,
    pub(super) shape: DataShape,
    pub(super) events: Vec<Event>,
    pub(super) values: Values,
    /// Number of overwrites per key.
    rounds: Vec<u16>,
    value: Vec<u8>,
    /// The epoch of each range.
    epochs: Vec<Epoch>,
    seq: u64,
    /// Time without progress after which a run ends with an error: the store may be full for good.
    pub(super) patience: Duration,
}

/// Resources used before a measurement.
pub(super) struct MeasurementStart {
    at: Instant,
    cpu: Duration,
    io: IoClassStats,
}

impl MeasurementStart {
    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

impl<D: Device> BenchSession<D> {
    /// Opens a new store with `ranges` ranges of equal size.
    pub(super) fn open(device: D, mut options: Options, shape: DataShape, ranges: u32) -> Result<Self, BenchError> {
        options.secret = Some(HashSecret(*b"fawn-bench-16-by"));
        let failed = |error: &dyn std::fmt::Display| BenchError::failed("fawn-ds, opening", error);
        let (mut engine, _) = Engine::open(device, options, now()).map_err(|error| failed(&error))?;
        let mut epochs = Vec::with_capacity(ranges as usize);
        for at in 0..ranges {
            let range = RangeId(RANGE.0 + at);
            let end = (at + 1 < ranges).then(|| start_of(at + 1, ranges));
            let keys = KeyRange { start: start_of(at, ranges), end };
            engine.add_range(range, keys).map_err(|error| failed(&error))?;
            let epoch = engine.next_sole_epoch(range).ok_or_else(|| failed(&"epochs are used up"))?;
            engine.begin_sole_epoch(range, epoch, None).map_err(|error| failed(&error))?;
            epochs.push(epoch);
        }
        let (rounds, value) = (vec![0; shape.keys as usize], vec![0; shape.value_bytes]);
        let values = Values::new(shape.value_bytes);
        let (name, events) = ("fawn-ds", Vec::new());
        Ok(Self { name, engine, shape, events, values, rounds, value, epochs, seq: 0, patience: PATIENCE })
    }

    /// The range of a key.
    pub(super) fn range_of(&self, key: &[u8]) -> RangeId {
        if self.epochs.len() == 1 {
            return RANGE;
        }
        RangeId(RANGE.0 + part_of(RingKey::highest_of(self.engine.secret(), key), self.epochs.len() as u32))
    }

    fn ranges(&self) -> impl Iterator<Item = RangeId> + use<D> {
        (RANGE.0..RANGE.0 + self.epochs.len() as u32).map(RangeId)
    }

    /// Number of keys that the store holds.
    pub(super) fn len(&self) -> u64 {
        self.ranges().map(|range| self.engine.len(range)).sum()
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

    /// Puts the keys from `first` to `end` for the first time, prefetched in groups.
    pub(super) fn put_first(&mut self, first: u64, end: u64) -> Result<(), BenchError> {
        (first..end).step_by(PREFETCH_KEYS_MAX).try_for_each(|first| self.put_prefetched(first, end))
    }

    /// Puts the keys from `first` on: as many as the engine prefetches at once, or all up to `end`.
    fn put_prefetched(&mut self, first: u64, end: u64) -> Result<(), BenchError> {
        let count = (end - first).min(PREFETCH_KEYS_MAX as u64) as usize;
        let mut hashed = [(KeyHash(0), [0; KEY_BYTES]); PREFETCH_KEYS_MAX];
        let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
        for (i, n) in (first..first + count as u64).enumerate() {
            hashed[i] = self.hash(n);
            hashes[i] = hashed[i].0;
        }
        if self.epochs.len() == 1 {
            self.engine.prefetch(RANGE, &hashes[..count]);
        } else {
            for (hash, key) in &hashed[..count] {
                self.engine.prefetch(self.range_of(key), std::slice::from_ref(hash));
            }
        }
        for (n, (hash, key)) in (first..).zip(&hashed[..count]) {
            self.put_hashed(n, 0, *hash, key)?;
        }
        Ok(())
    }

    fn put_hashed(&mut self, n: u64, round: u64, hash: KeyHash, key: &[u8; KEY_BYTES]) -> Result<Version, BenchError> {
        let mut refused_at = None;
        loop {
            if let Some(version) = self.try_append(n, Some(round), hash, key)? {
                return Ok(version);
            }
            if refused_at.get_or_insert_with(Instant::now).elapsed() > self.patience {
                return Err(self.no_progress());
            }
            self.turn(true)?;
        }
    }

    /// The end of a run without progress.
    pub(super) fn no_progress(&self) -> BenchError {
        let full = if self.engine.is_full() { ", and the store is full" } else { "" };
        let (report, kept) = (self.engine.log_report(), self.engine.segments_kept());
        let seconds = self.patience.as_secs_f64();
        BenchError::failed("fawn-ds", format!("no operation ended for {seconds} s{full}: {report:?}, kept {kept:?}"))
    }

    /// Appends the value of key number `n` in `round`, or its deletion; `None` if the engine has no space for it now.
    fn try_append(
        &mut self,
        n: u64,
        round: Option<u64>,
        hash: KeyHash,
        key: &[u8; KEY_BYTES],
    ) -> Result<Option<Version>, BenchError> {
        let range = self.range_of(key);
        self.seq += 1;
        let version = Version::new(self.epochs[(range.0 - RANGE.0) as usize], self.seq)
            .ok_or_else(|| BenchError::failed("fawn-ds", "versions are used up; fewer --seconds"))?;
        let record = match round {
            Some(round) => {
                self.values.fill(n, round, &mut self.value);
                RecordRef::put(version, key, &self.value)
            }
            None => RecordRef::bare(RecordKind::Tombstone, version, key),
        };
        match self.engine.append(range, hash, &record) {
            Ok(()) => Ok(Some(version)),
            Err(EngineError::Overloaded | EngineError::StoreFull) => Ok(None),
            Err(error) => Err(BenchError::failed("fawn-ds, append", error)),
        }
    }

    /// Writes the next version of key number `n`, or deletes it, if the engine has space for that now. Runs no loop
    /// iteration.
    pub(super) fn try_write(&mut self, n: u64, is_put: bool) -> Result<Option<Version>, BenchError> {
        let (hash, key) = self.hash(n);
        let round = if is_put { next_round(self.rounds[n as usize]) } else { DELETED };
        let version = self.try_append(n, is_put.then_some(u64::from(round)), hash, &key)?;
        if version.is_some() {
            self.rounds[n as usize] = round;
        }
        Ok(version)
    }

    /// Puts the next version of key number `n`.
    pub(super) fn put_next_round(&mut self, n: u64) -> Result<Version, BenchError> {
        let round = next_round(self.rounds[n as usize]);
        self.rounds[n as usize] = round;
        self.put(n, u64::from(round))
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

    /// Commits as the durability mode allows, like a store without replicas.
    pub(super) fn commit(&mut self) {
        for range in self.ranges() {
            let progress = self.engine.progress(range);
            let through = progress.watermark_for(self.engine.options().durability);
            if through > progress.committed {
                self.engine.commit(range, through);
            }
        }
    }

    /// Waits until every put is acknowledged and the old version of every overwritten key is confirmed.
    pub(super) fn acknowledge_all(&mut self) -> Result<(), BenchError> {
        loop {
            self.turn(true)?;
            let mut progress = self.ranges().map(|range| self.engine.progress(range));
            let is_acknowledged = progress.all(|progress| progress.committed == progress.appended);
            let queued = self.engine.log_report().verifications_queued;
            if is_acknowledged && queued == 0 {
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

    /// Takes turns until the sorted tier has done what it does while nothing is written.
    pub(super) fn rest(&mut self) -> Result<(), BenchError> {
        let begun = Instant::now();
        let mut worked = begun;
        while worked.elapsed() < REST_CALM {
            if begun.elapsed() > REST_MAX {
                return Err(BenchError::failed(self.name, "the sorted tier does not come to rest"));
            }
            self.turn(true)?;
            if self.engine.is_sorting() {
                worked = Instant::now();
            }
        }
        Ok(())
    }

    /// The round that key number `n` must hold now; `None` if it is deleted.
    pub(super) fn round_of(&self, n: u64) -> Option<u64> {
        let round = self.rounds[n as usize];
        (round != DELETED).then_some(u64::from(round))
    }

    /// Number of keys that are deleted.
    pub(super) fn deleted(&self) -> u64 {
        self.rounds.iter().filter(|round| **round == DELETED).count() as u64
    }

    pub(super) fn mark(&self) -> MeasurementStart {
        MeasurementStart { at: Instant::now(), cpu: machine::own_cpu(), io: self.engine.device().stats().total() }
    }

    /// A row with `operations` since `mark`.
    pub(super) fn row(&self, mark: &MeasurementStart, operations: u64) -> Row {
        let cpu = machine::own_cpu().saturating_sub(mark.cpu);
        let row = Row::new("store", self.name, "").timed(operations, mark.at.elapsed(), Some(cpu));
        let row = row.with("keys", self.shape.keys).with("value_bytes", self.shape.value_bytes);
        let durability = format!("{:?}", self.engine.options().durability).to_lowercase();
        let memory = self.engine.memory();
        let mut row = row.with("memory_bytes", self.shape.memory_bytes).with("durability", durability);
        row = row.with("device", self.engine.device().name()).with("index_bytes", memory.index_bytes);
        row = row.with("rss_bytes", machine::resident_bytes_of(std::process::id()).unwrap_or_default());
        // The store's own count has older records of runs.
        let keys = if self.engine.runs() == 0 { self.len() } else { self.shape.keys - self.deleted() };
        row.dram_bytes_per_key = Some(memory.index_bytes as f64 / keys.max(1) as f64);
        if self.engine.runs() == 0 { row } else { row.measuring("runs", self.engine.runs() as f64) }
    }

    /// Device reads since `mark`, per operation.
    pub(super) fn reads_per_op(&self, mark: &MeasurementStart, operations: u64) -> f64 {
        let reads = self.engine.device().stats().total().reads - mark.io.reads;
        reads as f64 / operations.max(1) as f64
    }

    /// Bytes written by the device since it was opened.
    pub(super) fn written_bytes(&self) -> u64 {
        self.engine.device().stats().total().written_bytes
    }

    /// Bytes written by the device since `mark`.
    pub(super) fn written_since(&self, mark: &MeasurementStart) -> u64 {
        self.written_bytes() - mark.io.written_bytes
    }

    /// Bytes written by the device since `mark`, per byte of keys and values.
    pub(super) fn written_per_user_byte(&self, mark: &MeasurementStart, operations: u64) -> f64 {
        self.written_since(mark) as f64 / (operations.max(1) * (KEY_BYTES + self.shape.value_bytes) as u64) as f64
    }
}

/// The round after `round`. Rounds repeat after 65,535 overwrites, which is harmless: only the newest value is expected.
const fn next_round(round: u16) -> u16 {
    let next = round.wrapping_add(1);
    if next == DELETED { 0 } else { next }
}

/// The range, of `ranges` equal ones, of ring keys with these highest 32 bits.
const fn part_of(highest: u32, ranges: u32) -> u32 {
    ((highest as u64 * ranges as u64) >> 32) as u32
}

/// The first ring key of range `at` of `ranges` equal ones.
fn start_of(at: u32, ranges: u32) -> RingKey {
    let highest = (u64::from(at) << 32).div_ceil(u64::from(ranges)) as u32;
    let mut bytes = RingKey::MIN.0;
    bytes[..4].copy_from_slice(&highest.to_be_bytes());
    RingKey(bytes)
}

/// Reads the machine's clocks, since the engine takes the time as an argument.
pub(super) use fawn_flash::clock::now;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_the_range_whose_bounds_contain_it() {
        for ranges in [2, 3, 7, 256] {
            assert_eq!((part_of(0, ranges), part_of(u32::MAX, ranges)), (0, ranges - 1));
            for at in 1..ranges {
                let first = start_of(at, ranges).highest();
                assert_eq!((part_of(first - 1, ranges), part_of(first, ranges)), (at - 1, at), "{at} of {ranges}");
            }
        }
    }

    #[test]
    fn rounds_never_equal_the_mark_of_a_deletion() {
        assert_eq!((next_round(0), next_round(DELETED - 1), next_round(DELETED)), (1, 0, 0));
    }
}

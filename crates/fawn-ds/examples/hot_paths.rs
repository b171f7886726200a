//! Benchmark of the engine's hot paths on a real device, with one thread: load, get, put, durable put, overwrites that are cleaned.
//!
//! `cargo run --release -p fawn-ds --example hot_paths -- <directory> <load|get|records|missing|cold|durable|clean> [records]
//! [value bytes] [writers]`, where `records` is `get` with all records in the record cache; on a shared machine, count
//! instructions with `valgrind --tool=callgrind --toggle-collect='*::gets_again'` (or `gets_warmed`, `misses`,
//! `puts`, `overwrites`).
use fawn_ds::internals::{Engine, EngineError, Event, Lookup, Options, PREFETCH_KEYS_MAX, RecordRef, View};
use fawn_flash::{Device, DeviceOptions, FileDevice, IoClass};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, HashSecret, KeyHash, KeyRange, Now, RangeId, TimeMs, Version};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const RANGE: RangeId = RangeId(0);
const WRITERS: u64 = 64;
/// Length of a record without its value and padding, bytes.
const KEY_AND_HEADER_BYTES: u64 = 40;
/// Share of a cleaned store's capacity that is live, without padding.
const LIVE_PERCENT: u64 = 80;
/// Times that the overwrites write the capacity.
const CHURN_CAPACITIES: u64 = 2;
/// Segments of a cleaned store at most, and half of that at least.
const SEGMENTS_MAX: u64 = 128;
/// Longest wait of a put for space.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);
const TURN_PUTS: u64 = 2 * PREFETCH_KEYS_MAX as u64;

struct HotPathsBench {
    engine: Engine<FileDevice>,
    events: Vec<Event>,
    next: Version,
    begun: Instant,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (dir, what) = (
        args.next().ok_or("name an empty directory")?,
        args.next().ok_or("load, get, records, missing, cold, durable or clean?")?,
    );
    let records: u64 = args.next().map_or(Ok(1 << 20), |text| text.parse())?;
    let value_bytes: usize = args.next().map_or(Ok(256), |text| text.parse())?;
    let writers: u64 = args.next().map_or(Ok(WRITERS), |text| text.parse())?;
    let (durability, memory) = match &*what {
        "durable" => (Durability::Sync, 1 << 30),
        "cold" => (Durability::Memory, 64 << 20),
        "clean" => (Durability::Memory, 256 << 20),
        _ => (Durability::Memory, 3 << 30),
    };
    let mut options = Options { durability, memory_bytes: memory, ..Options::default() };
    options.record_cache_bytes = Some(if what == "records" { 1 << 30 } else { 0 });
    let capacity_bytes = records * (value_bytes as u64 + KEY_AND_HEADER_BYTES) * 100 / LIVE_PERCENT;
    options.capacity_bytes = (what == "clean").then_some(capacity_bytes);
    if what == "clean" {
        options.segment_bytes = (capacity_bytes / SEGMENTS_MAX).next_power_of_two() as u32;
    }
    let mut bench = HotPathsBench::open(Path::new(&dir), options)?;
    let value = vec![7; value_bytes];
    if what == "durable" {
        timed(&format!("durable puts, {writers} writers"), records, || bench.durable(records, &value, writers))?;
    } else {
        let seconds = timed("puts of new keys", records, || bench.puts(records, &value))?;
        println!("  {:.2} GB/s of records", bench.engine.stats().record_bytes as f64 / seconds / 1e9);
        bench.settle();
    }
    if what == "get" || what == "records" {
        (0..3).try_for_each(|_| bench.gets(records, records))?;
        timed("gets, cached, in random order", records, || bench.gets_again(records, records))?;
        timed("gets, cached, 16 prefetched together", records, || bench.gets_warmed(records, records))?;
        timed("overwrites of keys in memory", records, || bench.puts(records, &value))?;
    }
    if what == "missing" {
        bench.misses(records, records)?;
        timed("gets of absent keys", records, || bench.misses(records, records))?;
    }
    if what == "clean" {
        let count = CHURN_CAPACITIES * records * 100 / LIVE_PERCENT;
        bench.overwrites(count, records, &value)?;
        timed("overwrites at 80 % of the capacity, cleaned", count, || bench.overwrites(count, records, &value))?;
    }
    if what == "cold" {
        let count = records.min(200_000);
        timed("gets, cold, 32 in flight", count, || bench.cold(count, records))?;
    }
    bench.settle();
    let (stats, log) = (*bench.engine.stats(), bench.engine.device().stats());
    let flush = log.of(IoClass::Flush);
    println!("{stats:?}\nflush {flush:?}\nsystem calls {}", log.system_calls);
    bench.engine.close()?;
    Ok(())
}

fn timed<T>(what: &str, records: u64, work: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let (begun, cpu_begun) = (Instant::now(), cpu_ns()?);
    work()?;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_ns()? - cpu_begun);
    let per = |total: f64| total / records as f64;
    println!(
        "{what}: {:.0} ns each, {:.3} M/s; {:.0} ns of CPU each",
        per(seconds * 1e9),
        records as f64 / seconds / 1e6,
        per(cpu)
    );
    Ok(seconds)
}

/// CPU time of this thread, ns: more reliable than the clock on a shared machine.
fn cpu_ns() -> Result<f64, Box<dyn Error>> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(line.split(' ').next().ok_or("schedstat has fields")?.parse()?)
}

fn key_of(i: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = i;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

impl HotPathsBench {
    fn open(dir: &Path, mut options: Options) -> Result<Self, Box<dyn Error>> {
        let device = FileDevice::open(dir, &DeviceOptions::default())?;
        options.secret_if_new = Some(HashSecret([3; 16]));
        let (mut engine, _) = Engine::open(device, options, Now::at(1))?;
        engine.add_range(RANGE, KeyRange::ALL)?;
        let epoch = engine.next_sole_epoch(RANGE).ok_or("too many openings")?;
        engine.begin_sole_epoch(RANGE, epoch, None)?;
        let next = Version::new(epoch, 1).ok_or("no first version")?;
        Ok(Self { engine, events: Vec::new(), next, begun: Instant::now() })
    }

    fn now(&self) -> Now {
        Now::at(1 + self.begun.elapsed().as_millis() as u64)
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.engine.secret(), key)
    }

    fn append(&mut self, (hash, key): &(KeyHash, [u8; 16]), value: &[u8]) -> Result<(), EngineError> {
        let record = RecordRef::put(self.next, key, value);
        self.engine.append(RANGE, *hash, &record)?;
        self.next = self.next.next().unwrap_or(self.next);
        Ok(())
    }

    /// Bulk load: hashes the keys of a batch once and prefetches them together.
    #[inline(never)]
    fn puts(&mut self, records: u64, value: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut batch = Vec::with_capacity(PREFETCH_KEYS_MAX);
        for first in (0..records).step_by(PREFETCH_KEYS_MAX) {
            batch.clear();
            batch.extend((first..records).take(PREFETCH_KEYS_MAX).map(|i| self.hashed(i)));
            let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
            hashes.iter_mut().zip(&batch).for_each(|(hash, (of_key, _))| *hash = *of_key);
            self.engine.prefetch(RANGE, &hashes[..batch.len()]);
            for put in &batch {
                self.put_when_possible(put, value)?;
            }
            if first % TURN_PUTS == 0 {
                self.turn();
            }
        }
        self.turn();
        Ok(())
    }

    /// Overwrites of random keys, in batches that are prefetched together.
    #[inline(never)]
    fn overwrites(&mut self, count: u64, records: u64, value: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut random = SplitMix64::new(self.next.seq());
        for _ in 0..count / PREFETCH_KEYS_MAX as u64 {
            let batch: [_; PREFETCH_KEYS_MAX] = std::array::from_fn(|_| self.hashed(random.next() % records));
            self.engine.prefetch(RANGE, &batch.map(|(hash, _)| hash));
            for put in &batch {
                self.put_when_possible(put, value)?;
            }
            self.turn();
        }
        Ok(())
    }

    /// Waits while the engine refuses the put for now.
    fn put_when_possible(&mut self, put: &(KeyHash, [u8; 16]), value: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut refused_at = None;
        while let Err(error) = self.append(put, value) {
            let waited = refused_at.get_or_insert_with(Instant::now).elapsed();
            let is_retried = match error {
                EngineError::Overloaded => true,
                EngineError::StoreFull => waited < SPACE_WAIT_MAX,
                _ => false,
            };
            if !is_retried {
                return Err(error.into());
            }
            self.engine.wait(self.now(), &mut self.events);
            self.turn();
        }
        Ok(())
    }

    fn hashed(&self, i: u64) -> (KeyHash, [u8; 16]) {
        let key = key_of(i);
        (self.hash(&key), key)
    }

    fn turn(&mut self) {
        let now = self.now();
        self.engine.submit(now);
        self.engine.poll(now, &mut self.events);
        self.events.clear();
        let progress = self.engine.progress(RANGE);
        let through = progress.watermark_for(self.engine.options().durability);
        self.engine.commit(RANGE, through);
    }

    /// `writers` writers that each wait for their last put.
    #[inline(never)]
    fn durable(&mut self, records: u64, value: &[u8], writers: u64) -> Result<(), Box<dyn Error>> {
        let (mut sent, first) = (0, self.next.seq());
        loop {
            let done = self.engine.progress(RANGE).synced.seq().saturating_sub(first - 1);
            if done >= records {
                return Ok(());
            }
            while sent < records && sent - done < writers {
                self.append(&self.hashed(sent), value)?;
                sent += 1;
            }
            self.turn();
            self.engine.wait(self.now(), &mut self.events);
            self.turn();
        }
    }

    #[inline(never)]
    fn gets(&mut self, count: u64, records: u64) -> Result<(), Box<dyn Error>> {
        let mut random = SplitMix64::new(5);
        for _ in 0..count {
            let key = key_of(random.next() % records);
            let hash = self.hash(&key);
            let plan = match self.engine.lookup(RANGE, hash, &key, View::Committed, TimeMs(1))? {
                Lookup::Found(entry) => {
                    std::hint::black_box(entry.value.len());
                    continue;
                }
                Lookup::Absent | Lookup::Unsettled => return Err("a key that was put is absent".into()),
                Lookup::Read(plan) => plan,
            };
            self.engine.read(plan, 0);
            while self.reads_done(Now::at(1))? == 0 {}
        }
        Ok(())
    }

    /// Gets of keys that were never put. The index has no candidate for nearly all of them.
    #[inline(never)]
    fn misses(&mut self, count: u64, records: u64) -> Result<(), Box<dyn Error>> {
        let mut random = SplitMix64::new(7);
        for _ in 0..count {
            let key = key_of(records + random.next() % records);
            let hash = self.hash(&key);
            match self.engine.lookup(RANGE, hash, &key, View::Committed, TimeMs(1))? {
                Lookup::Found(_) => return Err("a key that was never put is found".into()),
                Lookup::Absent | Lookup::Unsettled => {}
                Lookup::Read(plan) => drop(plan),
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn gets_again(&mut self, count: u64, records: u64) -> Result<(), Box<dyn Error>> {
        self.gets(count, records)
    }

    #[inline(never)]
    fn gets_warmed(&mut self, count: u64, records: u64) -> Result<(), Box<dyn Error>> {
        let mut random = SplitMix64::new(5);
        let mut keys = [[0; 16]; PREFETCH_KEYS_MAX];
        let mut hashes = [KeyHash(0); PREFETCH_KEYS_MAX];
        for _ in 0..count / PREFETCH_KEYS_MAX as u64 {
            for (key, hash) in keys.iter_mut().zip(&mut hashes) {
                *key = key_of(random.next() % records);
                *hash = self.hash(key);
            }
            self.engine.prefetch(RANGE, &hashes);
            for (key, hash) in keys.iter().zip(hashes) {
                match self.engine.lookup(RANGE, hash, key, View::Committed, TimeMs(1))? {
                    Lookup::Found(entry) => std::hint::black_box(entry.value.len()),
                    Lookup::Absent | Lookup::Unsettled | Lookup::Read(_) => {
                        return Err("a key that was put is not in memory".into());
                    }
                };
            }
        }
        Ok(())
    }

    fn reads_done(&mut self, now: Now) -> Result<u64, Box<dyn Error>> {
        self.engine.wait(now, &mut self.events);
        let mut done = 0;
        for event in std::mem::take(&mut self.events) {
            if let Event::Lookup { plan, user } = event {
                match self.engine.resume(plan, now.wall)? {
                    Lookup::Found(_) => done += 1,
                    Lookup::Absent | Lookup::Unsettled => return Err("a key that was put is absent".into()),
                    Lookup::Read(plan) => self.engine.read(plan, user),
                }
            }
        }
        Ok(done)
    }

    #[inline(never)]
    fn cold(&mut self, count: u64, records: u64) -> Result<(), Box<dyn Error>> {
        let mut random = SplitMix64::new(9);
        let (mut asked, mut in_flight) = (0, 0);
        while asked < count || in_flight > 0 {
            while asked < count && in_flight < 32 {
                let key = key_of(random.next() % records);
                let hash = self.hash(&key);
                asked += 1;
                if let Lookup::Read(plan) = self.engine.lookup(RANGE, hash, &key, View::Committed, TimeMs(1))? {
                    self.engine.read(plan, 0);
                    in_flight += 1;
                }
            }
            if in_flight > 0 {
                in_flight -= self.reads_done(Now::at(1))?;
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        while self.engine.in_flight() > 0 || self.engine.progress(RANGE).flushed < self.engine.progress(RANGE).appended
        {
            self.turn();
            self.engine.wait(self.now().plus_ms(1000), &mut self.events);
            self.events.clear();
        }
    }
}

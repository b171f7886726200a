//! Simulation of the two caches on traces: device reads per get of the page cache alone, and of page and record cache with
//! the same memory, at fixed divisions and at the adaptive one.
//!
//! ```text
//! cargo run --release -p fawn-bench --example cache_traces -- [--out FILE.jsonl] [--records N] [--only WORKLOAD]
//! ```
//! The work is counted, so a run repeats digit for digit and may share its machine.
use fawn_bench::sink::Sink;
use fawn_bench::workload::{KeyDistribution, scatter};
use fawn_bench::{BenchError, Row};
use fawn_ds::internals::{CacheSplit, RecordCache};
use fawn_flash::{FileId, PageCache};
use fawn_types::random::SplitMix64;
use fawn_types::{EntryRef, KeyHash, Version};
use std::path::PathBuf;

const VALUE_BYTES: usize = 256;
/// A record in the log: header, key of 16 bytes, value, padding.
const LOG_BYTES: u64 = 304;
const PAGE_BYTES: u64 = 4096;
const FILE: FileId = FileId(1);
/// Gets between two computations of the division.
const BALANCE_GETS: u64 = 1024;
/// Gets of the warm-up, and of the measurement, per record.
const WARM_UP: u64 = 6;
const MEASURED: u64 = 4;

/// Order in which records are read.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pattern {
    Zipf(f64),
    Uniform,
    /// Zipf 0.99; every fourth get is the next record of an endless scan.
    Scan,
    /// A tenth of the records gets nine tenths of the gets, and moves by a tenth of itself every `records / 4` gets.
    Moving,
    /// Runs of 16 neighbours, the starts by Zipf 0.99.
    Neighbours,
}

const PATTERNS: [(&str, Pattern); 7] = [
    ("zipf 0.8", Pattern::Zipf(0.8)),
    ("zipf 0.99", Pattern::Zipf(0.99)),
    ("zipf 1.1", Pattern::Zipf(1.1)),
    ("uniform", Pattern::Uniform),
    ("zipf 0.99 and scan", Pattern::Scan),
    ("moving hot set", Pattern::Moving),
    ("neighbours", Pattern::Neighbours),
];
const BUDGETS_PERCENT: [u64; 3] = [2, 10, 25];

/// Division of the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Division {
    Pages,
    /// Percent for the record cache.
    Fixed(u64),
    Adaptive,
}

const DIVISIONS: [Division; 6] = [
    Division::Pages,
    Division::Fixed(25),
    Division::Fixed(50),
    Division::Fixed(75),
    Division::Fixed(90),
    Division::Adaptive,
];

struct Trace {
    pattern: Pattern,
    records: u64,
    keys: KeyDistribution,
    rng: SplitMix64,
    gets: u64,
    scanned: u64,
    run: u64,
}

impl Trace {
    fn new(pattern: Pattern, records: u64) -> Self {
        let theta = match pattern {
            Pattern::Zipf(theta) => theta,
            _ => 0.99,
        };
        Self {
            pattern,
            records,
            keys: KeyDistribution::zipf(records, theta),
            rng: SplitMix64::new(7),
            gets: 0,
            scanned: 0,
            run: 0,
        }
    }

    /// A record of the Zipf distribution.
    fn zipf(&mut self) -> u64 {
        self.keys.pick(&mut self.rng)
    }

    fn next(&mut self) -> u64 {
        self.gets += 1;
        match self.pattern {
            Pattern::Zipf(_) => self.zipf(),
            Pattern::Uniform => self.rng.below(self.records),
            Pattern::Scan if self.gets.is_multiple_of(4) => {
                self.scanned = (self.scanned + 1) % self.records;
                self.scanned
            }
            Pattern::Scan => self.zipf(),
            Pattern::Moving => {
                let hot = self.records / 10;
                let start = self.gets / (self.records / 4) * (hot / 10);
                let rank = if self.rng.chance(9, 10) {
                    (start + self.rng.below(hot)) % self.records
                } else {
                    self.rng.below(self.records)
                };
                scatter(rank, self.records)
            }
            Pattern::Neighbours => {
                if self.gets % 16 == 1 {
                    self.run = self.zipf();
                }
                self.run = (self.run + 1) % self.records;
                self.run
            }
        }
    }
}

struct Caches {
    pages: PageCache,
    records: RecordCache,
    split: CacheSplit,
    division: Division,
    budget_bytes: u64,
    reads: u64,
    page: Vec<u8>,
    record_bytes: u64,
}

impl Caches {
    fn new(division: Division, budget_bytes: u64) -> Self {
        let mut caches = Self {
            pages: PageCache::new(0),
            records: RecordCache::new(0),
            split: CacheSplit::default(),
            division,
            budget_bytes,
            reads: 0,
            page: vec![0; PAGE_BYTES as usize],
            record_bytes: 0,
        };
        caches.balance();
        caches
    }

    fn balance(&mut self) {
        let total = self.budget_bytes;
        self.record_bytes = match self.division {
            Division::Pages => 0,
            Division::Fixed(percent) => {
                total - PageCache::usable_bytes((total * (100 - percent) / 100) as usize) as u64
            }
            Division::Adaptive => {
                let stats = (self.pages.stats(), self.records.stats());
                self.split.record_bytes(total, self.pages.resident_bytes() as u64, stats)
            }
        };
        let marginal = CacheSplit::marginal_bytes(total) as usize;
        self.pages.set_marginal_bytes(marginal);
        self.records.set_marginal_bytes(marginal);
        self.records.set_budget_bytes(self.record_bytes as usize);
        self.pages.set_budget_bytes((total - self.record_bytes) as usize);
    }

    fn get(&mut self, record: u64) {
        let (key, hash) = (record.to_le_bytes(), KeyHash(SplitMix64::mix(record ^ 0x5EED)));
        let mut stored_key = [0; 16];
        stored_key[..8].copy_from_slice(&key);
        if let Some(entry) = self.records.get(0, hash, &stored_key) {
            assert_eq!(entry.value[..8], key, "another key's value");
            return;
        }
        let (first, last) = (record * LOG_BYTES / PAGE_BYTES, (record * LOG_BYTES + LOG_BYTES - 1) / PAGE_BYTES);
        let mut is_cached = true;
        for page in first..=last {
            is_cached &= self.pages.get(FILE, page as u32).is_some();
        }
        if !is_cached {
            self.reads += 1;
            for page in first..=last {
                self.pages.insert(FILE, page as u32, &self.page);
            }
        }
        let mut value = [0; VALUE_BYTES];
        value[..8].copy_from_slice(&key);
        let entry = EntryRef { value: &value, flags: 0, expires_at_ms: 0, version: Version::from_u64(record + 1) };
        self.records.offer(0, hash, &stored_key, entry);
    }

    fn run(&mut self, trace: &mut Trace, gets: u64) -> u64 {
        let before = self.reads;
        for n in 0..gets {
            let record = trace.next();
            self.get(record);
            if n % BALANCE_GETS == 0 {
                self.balance();
            }
        }
        let resident = (self.pages.resident_bytes() + self.records.resident_bytes()) as u64;
        assert!(resident <= self.budget_bytes * 102 / 100, "{resident} B of {} B", self.budget_bytes);
        self.reads - before
    }
}

struct TraceArgs {
    out: Option<PathBuf>,
    records: u64,
    only: Option<String>,
}

fn args() -> Result<TraceArgs, BenchError> {
    let mut found = TraceArgs { out: None, records: 1_000_000, only: None };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| BenchError::failed(name.clone(), "needs a value"))?;
        match &*name {
            "--out" => found.out = Some(value.into()),
            "--records" => found.records = value.parse().map_err(|error| BenchError::failed(value, error))?,
            "--only" => found.only = Some(value),
            _ => return Err(BenchError::failed(name, "is no option: --out, --records, --only")),
        }
    }
    Ok(found)
}

fn main() -> Result<(), BenchError> {
    let TraceArgs { out, records, only } = args()?;
    let mut sink = Sink::open(false, out.as_deref(), &std::env::temp_dir())?;
    for (name, pattern) in PATTERNS.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        for percent in BUDGETS_PERCENT {
            let budget_bytes = records * LOG_BYTES * percent / 100;
            let mut pages_alone = 0;
            for division in DIVISIONS {
                let mut trace = Trace::new(pattern, records);
                let mut caches = Caches::new(division, budget_bytes);
                caches.run(&mut trace, WARM_UP * records);
                let (gets, reads) = (MEASURED * records, caches.run(&mut trace, MEASURED * records));
                if division == Division::Pages {
                    pages_alone = reads;
                }
                let mut row = Row::new("cache", &format!("{division:?}"), &format!("{name}, {percent} %"))
                    .with("records", records)
                    .with("value_bytes", VALUE_BYTES)
                    .with("gets", gets)
                    .with("budget_bytes", budget_bytes)
                    .with("record_cache_bytes", caches.record_bytes)
                    .with("records_cached", caches.records.records())
                    .with("to_pages_alone", format!("{:.4}", reads as f64 / pages_alone as f64));
                row.device_reads_per_op = Some(reads as f64 / gets as f64);
                eprintln!(
                    "{name}, {percent} %, {division:?}: {:.4} reads per get, {:.3} of pages alone, {} % records",
                    reads as f64 / gets as f64,
                    reads as f64 / pages_alone as f64,
                    caches.record_bytes * 100 / budget_bytes,
                );
                sink.emit(row)?;
            }
        }
    }
    Ok(())
}

//! Gets by the size of the store [FAWN09 Table 2], and by skew and memory.
use super::{FigureRun, steady::CHURN_MAX};
use crate::device::DeviceBenchOptions;
use crate::store::mix::{ArrivalPattern, Mix};
use crate::store::{DataShape, Gets, KEY_BYTES};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};

/// The paper's store sizes, in KiB; memory was 256 MiB.
const PAPER_KIB: [u64; 7] = [10, 125 << 10, 250 << 10, 500 << 10, 1 << 20, 2 << 20, 3584 << 10];
const PAPER_MEMORY_KIB: u64 = 256 << 10;
const PAPER_VALUE_BYTES: [usize; 2] = [1024, 256];
/// Keys that the smallest store has at least.
const KEYS_MIN: u64 = 10;
/// Largest file of the raw device, bytes.
const RAW_FILE_BYTES_MAX: u64 = 8 << 30;
/// Smallest budget of a store, bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Smallest budget of the skewed gets, bytes.
const SKEWED_MEMORY_BYTES_MIN: u64 = 1 << 20;
const SKEWS: [f64; 4] = [0.0, 0.8, 0.99, 1.1];
/// Share of the keys that a scan visits, one in so many: each may be a device read.
const SCANNED_SHARE: u64 = 8;
const BUDGET_PERCENTS: [u64; 3] = [2, 10, 25];
/// Gets per key before those of a distribution are counted.
const WARMING_GETS: u64 = 3;

impl FigureRun<'_> {
    /// The largest store has `--keys` values of 1 KiB; the others, and the memory, are in the paper's proportion.
    pub(super) fn lookups(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let largest_bytes = options.keys * (KEY_BYTES + PAPER_VALUE_BYTES[0]) as u64;
        let scaled = |kib: u64| (u128::from(largest_bytes) * u128::from(kib) / u128::from(PAPER_KIB[6])) as u64;
        let memory_bytes = options.memory_bytes.unwrap_or(scaled(PAPER_MEMORY_KIB)).max(MEMORY_BYTES_MIN);
        for value_bytes in PAPER_VALUE_BYTES {
            for paper_kib in PAPER_KIB {
                let keys = (scaled(paper_kib) / (KEY_BYTES + value_bytes) as u64).max(KEYS_MIN);
                let shape = DataShape { keys, value_bytes, memory_bytes };
                self.fill_and_verify(&shape)?;
                for depth in [1, options.depth] {
                    let point = format!("{value_bytes} B, paper's {paper_kib} KiB, depth {depth}");
                    let with_axes = |row: Row| {
                        row.with("paper_kib", paper_kib).with("value_bytes", value_bytes).with("depth", depth)
                    };
                    for pair in 0..options.pairs {
                        let warm = shape.user_bytes() < memory_bytes / 2;
                        let gets = Gets { depth, run: options.run, present: true, warm, seed: self.seed(pair) };
                        self.each(&point, pair, |contender| contender.gets(&gets).map(with_axes).map(Some))?;
                    }
                }
                self.discard()?;
            }
            for depth in [1, options.depth] {
                self.raw_reads(largest_bytes, value_bytes, depth)?;
            }
        }
        Ok(())
    }

    /// The device alone, on a file of the largest store's size: the paper's file-system baseline.
    fn raw_reads(&mut self, largest_bytes: u64, value_bytes: usize, depth: usize) -> Result<(), BenchError> {
        let options = self.options;
        let file_bytes = largest_bytes.clamp(1 << 20, RAW_FILE_BYTES_MAX).next_multiple_of(1 << 20);
        let raw = DeviceBenchOptions { file_bytes, depth, run: options.run, seed: options.seed };
        self.raw.prepare(&raw)?;
        let point = format!("{value_bytes} B, paper's {} KiB, depth {depth}", PAPER_KIB[6]);
        for pair in 0..options.pairs {
            let row = self.raw.random_reads(&DeviceBenchOptions { seed: self.seed(pair), ..raw })?;
            let row = row.with("paper_kib", PAPER_KIB[6]).with("value_bytes", value_bytes).with("depth", depth);
            self.emit(row, &point, pair)?;
        }
        Ok(())
    }

    /// Gets of a Zipf distribution, uniform ones and scans, with budgets smaller than the data: device reads count, not time. Each
    /// contender's caches are warmed by three times as many gets as there are keys: with half as many, neither the division of the
    /// memory nor the queues had settled after another distribution. A scan follows the gets of each distribution.
    pub(super) fn skewed_gets(&mut self) -> Result<(), BenchError> {
        let (options, value_bytes) = (self.options, self.options.value_bytes);
        let shape = DataShape { keys: options.keys, value_bytes, memory_bytes: 0 };
        for percent in BUDGET_PERCENTS {
            let memory_bytes = shape.user_bytes() * percent / 100;
            if memory_bytes < SKEWED_MEMORY_BYTES_MIN {
                let needed = SKEWED_MEMORY_BYTES_MIN * 100 / percent / (KEY_BYTES + value_bytes) as u64 + 1;
                return Err(self.refuse(format!(
                    "a budget of {percent} % of the data is {memory_bytes} bytes, expected at least \
                     {SKEWED_MEMORY_BYTES_MIN}; give --keys {needed} or more"
                )));
            }
        }
        for percent in BUDGET_PERCENTS {
            let shape = DataShape { memory_bytes: shape.user_bytes() * percent / 100, ..shape };
            self.fill_and_verify(&shape)?;
            for skew in SKEWS {
                let mix = Mix {
                    put_percent: 0,
                    delete_percent: 0,
                    keys: KeyDistribution::zipf(shape.keys, skew),
                    arrival: ArrivalPattern::InFlight(1),
                    run: options.run,
                    operations_max: u64::MAX,
                    seed: options.seed,
                };
                // The same number of gets for a slow and a fast store.
                let arrival = ArrivalPattern::InFlight(options.depth);
                let warming = Mix { arrival, run: CHURN_MAX, operations_max: WARMING_GETS * shape.keys, ..mix.clone() };
                for contender in &mut *self.contenders {
                    contender.mixed(&warming)?;
                }
                for pair in 0..options.pairs {
                    let mix = Mix { seed: self.seed(pair), ..mix.clone() };
                    let with_axes = |row: Row| row.with("zipf", skew).with("budget_percent", percent);
                    let point = format!("{}, budget {percent} %", name_of(skew));
                    self.each(&point, pair, |contender| Ok(contender.mixed(&mix)?.map(with_axes)))?;
                    let scanned = shape.keys.div_ceil(SCANNED_SHARE);
                    self.each(&format!("scan after {point}"), pair, |contender| {
                        let with_axes = |row: Row| row.with("after_zipf", skew).with("budget_percent", percent);
                        Ok(contender.scan(scanned)?.map(with_axes))
                    })?;
                }
            }
            self.discard()?;
        }
        Ok(())
    }
}

fn name_of(skew: f64) -> String {
    if skew == 0.0 { "uniform".to_owned() } else { format!("Zipf {skew}") }
}

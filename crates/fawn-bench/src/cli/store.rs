//! Owns `fawn bench store`.
use super::output::{Output, Pairs};
use crate::store::ladder::{self, Engine, StoreOptions, Workload};
use crate::{BenchError, units};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// The stores in turn, each workload against the raw device of the same minute where that is its bound.
///
/// Loads use random key order, 16-byte keys, incompressible values, no compression. Cached data is half of the budget or
/// less, cold data four times the budget or more. RocksDB's writes of `memory` go without its write-ahead log.
#[derive(Args)]
pub(super) struct Store {
    /// A store; give it again for another. Ratios are FAWN-DS over the others.
    #[arg(long = "engine", value_name = "ENGINE", value_enum, default_value = "fawn-ds")]
    engines: Vec<Engine>,
    /// A workload; give it again for another [default: all].
    #[arg(long = "workload", value_name = "WORKLOAD", value_enum)]
    workloads: Vec<Workload>,
    /// Where the stores are made, each in a directory of its own that is removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Distinct keys.
    #[arg(long, value_name = "N", default_value = "400000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size of every workload but the bulk load.
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = units::parse_size)]
    value_bytes: u64,
    /// Value size of the bulk load.
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = units::parse_size)]
    load_value_bytes: u64,
    /// Memory budget of each store [default: 256M for writes, what fits for cached reads, a quarter of the data for cold
    /// ones].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<u64>,
    /// Time per run of workloads that run by time.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = units::parse_seconds)]
    seconds: Duration,
    /// Lookups in flight on cold data (threads, for RocksDB).
    #[arg(long, value_name = "N", default_value = "32", value_parser = units::parse_count)]
    depth: u64,
    /// Writers that wait for their sync.
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::parse_count)]
    writers: u64,
    /// Decides which keys are read and written.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pairs: Pairs,
    #[command(flatten)]
    output: Output,
}

impl Store {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let all = || Workload::value_variants().to_vec();
        let options = StoreOptions {
            workloads: if self.workloads.is_empty() { all() } else { self.workloads },
            engines: self.engines,
            keys: self.keys,
            value_bytes: self.value_bytes as usize,
            load_value_bytes: self.load_value_bytes as usize,
            memory_bytes: self.memory,
            run: self.seconds,
            pairs: self.pairs.count(),
            depth: self.depth as usize,
            writers: self.writers as usize,
            seed: self.seed,
            dir: self.dir,
        };
        let mut sink = self.output.sink(options.dir.parent().unwrap_or(&options.dir))?;
        ladder::run(&options, &mut sink)?;
        sink.finish();
        // Only if nothing of others' lies there.
        let _ = std::fs::remove_dir(&options.dir);
        Ok(())
    }
}

//! The command `fawn bench store`.
use super::output::{OutputArgs, PairArgs};
use crate::store::figures::Figure;
use crate::store::ladder::{self, EngineChoice, StoreOptions, Workload};
use crate::{BenchError, units};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Compares stores, alternating; workloads limited by the device are also compared with the raw device.
///
/// Keys are 16 bytes and loaded in random order; values are incompressible; compression is off. Cached workloads have
/// at most a third of the budget as data, cold workloads at least four times the budget. RocksDB's `memory` writes bypass
/// its write-ahead log.
#[derive(Args)]
pub(super) struct StoreArgs {
    /// Store to measure; may be repeated. Ratios are FAWN-DS over the others.
    #[arg(long = "engine", value_name = "ENGINE", value_enum, default_value = "fawn-ds")]
    engines: Vec<EngineChoice>,
    /// Workload to run; may be repeated [default: all, or none with --figure].
    #[arg(long = "workload", value_name = "WORKLOAD", value_enum)]
    workloads: Vec<Workload>,
    /// Experiment of a paper to run; may be repeated. Sizes follow --keys, durations --seconds.
    #[arg(long = "figure", value_name = "FIGURE", value_enum)]
    figures: Vec<Figure>,
    /// Directory for the stores; each gets a new subdirectory, removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Directory with the programs of the peers.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_peer_programs().to_owned())]
    peer_programs: PathBuf,
    /// Number of distinct keys.
    #[arg(long, value_name = "N", default_value = "400000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size of all workloads except the bulk load.
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = units::parse_size)]
    value_bytes: u64,
    /// Value size of the bulk load.
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = units::parse_size)]
    load_value_bytes: u64,
    /// Memory budget of each store [default: 256M for writes, enough for all data for cached reads, a quarter of the
    /// data for cold reads].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_memory)]
    memory: Option<u64>,
    /// Duration of a run, for workloads of limited duration.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = units::parse_seconds)]
    seconds: Duration,
    /// Number of lookups in flight on cold data (threads, for RocksDB).
    #[arg(long, value_name = "N", default_value = "32", value_parser = units::parse_count)]
    depth: u64,
    /// Number of writers that wait for their sync.
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::parse_count)]
    writers: u64,
    /// Largest number of ranges or stores that a load is divided into.
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=256))]
    parts_max: u32,
    /// Seed for the choice of keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pairs: PairArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl StoreArgs {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let all = || Workload::value_variants().to_vec();
        let options = StoreOptions {
            workloads: if self.workloads.is_empty() && self.figures.is_empty() { all() } else { self.workloads },
            figures: self.figures,
            parts_max: self.parts_max,
            peer_programs: self.peer_programs,
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
        // Removes the directory only if it is empty.
        let _ = std::fs::remove_dir(&options.dir);
        sink.finish()
    }
}

//! Owns `fawn bench memory`.
use super::output::{Output, binary};
use crate::footprint::{self, FootprintOptions};
use crate::store::ladder;
use crate::{BenchError, units};
use clap::Args;
use std::path::PathBuf;

/// Many small records and many idle connections within a budget: fails if more was ever resident than the budget, a
/// tenth of it and 32 MiB.
///
/// Also tells the index's bytes per key. Smaller runs hold the same bound: --keys 500000 --memory 32M --connections 500.
#[derive(Args)]
pub(super) struct Memory {
    /// The `fawn` to be measured [default: this program].
    #[arg(long, value_name = "FILE")]
    fawn: Option<PathBuf>,
    /// Where it keeps its files, in a directory of its own that is removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Distinct keys, 16 bytes each.
    #[arg(long, value_name = "N", default_value = "20000000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = units::parse_size)]
    value_bytes: u64,
    /// The budget.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_size)]
    memory: u64,
    /// Idle connections.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = units::parse_count)]
    connections: u64,
    /// Random reads after load and check.
    #[arg(long, value_name = "N", default_value = "500000", value_parser = units::parse_count)]
    reads: u64,
    #[command(flatten)]
    output: Output,
}

impl Memory {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let options = FootprintOptions {
            binary: binary(self.fawn)?,
            keys: self.keys,
            value_bytes: self.value_bytes as usize,
            memory_bytes: self.memory,
            connections: self.connections as usize,
            reads: self.reads,
            dir: self.dir,
        };
        let mut sink = self.output.sink(options.dir.parent().unwrap_or(&options.dir))?;
        let outcome = footprint::run(&options, &mut sink);
        sink.finish();
        // Only if nothing of others' lies there.
        let _ = std::fs::remove_dir(&options.dir);
        outcome
    }
}

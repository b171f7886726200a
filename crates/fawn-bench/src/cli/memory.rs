//! The command `fawn bench memory`.
use super::output::{OutputArgs, binary};
use crate::footprint::{self, FootprintOptions};
use crate::store::ladder;
use crate::{BenchError, units};
use clap::Args;
use std::path::PathBuf;

/// Loads many small records and opens many idle connections within a memory budget. Fails if the peak of resident
/// memory exceeds 110 % of the budget plus 32 MiB.
///
/// Also reports the index's bytes per key. The limit holds for smaller runs, too: --keys 500000 --memory 32M
/// --connections 500.
#[derive(Args)]
pub(super) struct MemoryArgs {
    /// The `fawn` binary to measure [default: this program].
    #[arg(long, value_name = "FILE")]
    fawn: Option<PathBuf>,
    /// Directory for the data; a new subdirectory is created and removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Number of distinct keys, 16 bytes each.
    #[arg(long, value_name = "N", default_value = "20000000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = units::parse_size)]
    value_bytes: u64,
    /// Memory budget.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_memory)]
    memory: u64,
    /// Number of idle connections.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = units::parse_count)]
    connections: u64,
    /// Number of random reads after loading and verifying.
    #[arg(long, value_name = "N", default_value = "500000", value_parser = units::parse_count)]
    reads: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl MemoryArgs {
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
        // Removes the directory only if it is empty.
        let _ = std::fs::remove_dir(&options.dir);
        outcome.and(sink.finish())
    }
}

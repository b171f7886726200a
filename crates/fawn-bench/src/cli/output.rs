//! Flags common to several levels: number of runs, and destination of the rows.
use crate::sink::Sink;
use crate::{BenchError, pairs::PAIRS_MIN, units};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct OutputArgs {
    /// Prints each row as one line of JSON, and no table.
    #[arg(long)]
    json: bool,
    /// Also appends the rows to this file (JSON lines), and adds the machine to machine.json next to it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct PairArgs {
    /// Number of runs of each side, alternating; fewer than five are not a valid comparison.
    #[arg(long, value_name = "N", default_value = "5", value_parser = units::parse_count)]
    pairs: u64,
}

impl PairArgs {
    pub(super) fn count(&self) -> usize {
        if self.pairs < PAIRS_MIN as u64 {
            crate::print_note(format_args!("fewer than {PAIRS_MIN} pairs: not a valid comparison"));
        }
        self.pairs as usize
    }
}

impl OutputArgs {
    pub(super) fn sink(&self, data_dir: &Path) -> Result<Sink, BenchError> {
        Sink::open(self.json, self.out.as_deref(), data_dir)
    }
}

/// Path of the binary to measure; by default, this program.
pub(super) fn binary(given: Option<PathBuf>) -> Result<PathBuf, BenchError> {
    given.map_or_else(|| std::env::current_exe().map_err(|error| BenchError::failed("this program's path", error)), Ok)
}

//! Owns the flags that rungs share: how often, and where rows go.
use crate::sink::Sink;
use crate::{BenchError, pairs::PAIRS_MIN, units};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct Output {
    /// Prints each row as a JSON object on a line of its own, and no table.
    #[arg(long)]
    json: bool,
    /// Appends the rows to this file too (JSON lines), and writes machine.json beside it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct Pairs {
    /// Runs of each side, in turn; fewer than five are no comparison.
    #[arg(long, value_name = "N", default_value = "5", value_parser = units::parse_count)]
    pairs: u64,
}

impl Pairs {
    pub(super) fn count(&self) -> usize {
        if self.pairs < PAIRS_MIN as u64 {
            eprintln!("fewer than {PAIRS_MIN} pairs: good for a look, not for a claim");
        }
        self.pairs as usize
    }
}

impl Output {
    pub(super) fn sink(&self, data_dir: &Path) -> Result<Sink, BenchError> {
        Sink::open(self.json, self.out.as_deref(), data_dir)
    }
}

/// Where to find the binary to be measured: this very program, unless told otherwise.
pub(super) fn binary(given: Option<PathBuf>) -> Result<PathBuf, BenchError> {
    given.map_or_else(|| std::env::current_exe().map_err(|error| BenchError::failed("this program's path", error)), Ok)
}

//! The command `fawn bench report`.
use crate::{BenchError, report};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// Prints the table of a directory of results: medians and ratios within pairs, computed from the raw rows.
#[derive(Args)]
pub(super) struct ReportArgs {
    /// The directory; all *.jsonl files in it are read.
    dir: PathBuf,
}

impl ReportArgs {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let table = report::table(&report::read_dir(&self.dir)?);
        write!(std::io::stdout(), "{table}").map_err(|error| BenchError::failed("standard output", error))
    }
}

//! Owns `fawn bench report`.
use crate::{BenchError, report};
use clap::Args;
use std::path::PathBuf;

/// Prints the table of a directory of results: medians, ratios within pairs, from the raw rows alone.
#[derive(Args)]
pub(super) struct Report {
    /// The directory; every *.jsonl in it is read.
    dir: PathBuf,
}

impl Report {
    pub(super) fn run(self) -> Result<(), BenchError> {
        print!("{}", report::table(&report::read_dir(&self.dir)?));
        Ok(())
    }
}

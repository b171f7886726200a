//! Command `fawn dump`.
use crate::dump::{self, DumpFormat};
use crate::failure::Failure;
use crate::salvage::open_layout;
use std::path::{Path, PathBuf};

/// Writes every live key of a data directory, with value, memcached flags and expiry, as text.
///
/// Reads the files of all shards in sequence and changes nothing; the server must be stopped. A damaged store is dumped
/// as far as it can be read: every loss is reported on standard error, and the command ends with exit code 8. A key
/// whose newest record is lost may then be missing or have an older value, and a deleted one may be back.
#[derive(clap::Args)]
#[command(
    after_long_help = "Examples:\n  fawn dump /var/lib/fawn -o fawn.jsonl\n  fawn load fawn.jsonl --server 127.0.0.1:6380\n  \
                       fawn dump /var/lib/fawn | zstd > fawn.jsonl.zst\n  \
                       fawn dump /var/lib/fawn --format resp | redis-cli -p 6379 --pipe"
)]
pub(super) struct Dump {
    /// The data directory; no server may be using it.
    dir: PathBuf,
    /// Format of the output.
    #[arg(long, value_enum, value_name = "FORM", default_value = "jsonl")]
    format: DumpFormat,
    /// The file to write; it gets its name when it is complete. `-` or nothing: standard output. The rest of a damaged
    /// store does not replace FILE: if FILE exists, it is written to FILE.damaged, in place of an earlier one.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Dump {
    pub(super) fn run(self) -> Result<(), Failure> {
        let layout = open_layout(&self.dir)?;
        let output = self.output.filter(|path| path != Path::new("-"));
        let summary = dump::run(&layout, self.format, output.as_deref())?;
        summary.verdict(&self.dir)
    }
}

//! Command `fawn load`.
use super::target::Target;
use crate::failure::{Exit, Failure};
use crate::load::{self, Fields, Format, InputRows, LoadProgress, Present, Summary};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Loads a file of rows into a server.
///
/// Each row is one SET, pipelined. A bad row is reported with its line number on standard error and counted; later rows
/// are still loaded, and the command ends with exit code 5 unless --skip-bad is given. Loading
/// the same file again is harmless.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  apt-cache dumpavail | fawn load --format deb822 --key Package\n  \
                             fawn load --format jsonl --key id --value body --prefix user: users.jsonl")]
pub(super) struct Load {
    /// The file; `-` or nothing: standard input.
    file: Option<PathBuf>,
    /// Format of the input.
    #[arg(long, value_enum, value_name = "FORM")]
    format: Format,
    /// Field with the key.
    #[arg(long, value_name = "FIELD")]
    key: String,
    /// Field with the value; without it the value is the whole row.
    #[arg(long, value_name = "FIELD")]
    value: Option<String>,
    /// Prefix of every key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Report bad rows without failing.
    #[arg(long)]
    skip_bad: bool,
    #[command(flatten)]
    target: Target,
}

impl Load {
    pub(super) fn run(self) -> Result<(), Failure> {
        let file = self.file.filter(|path| path != Path::new("-"));
        let Input { reader, name, total_bytes } = open(file.as_deref())?;
        let fields = Fields { key: self.key, value: self.value, prefix: self.prefix };
        let mut client = self.target.connect()?;
        let mut rows = InputRows::new(self.format, reader, fields);
        let progress = LoadProgress::new(total_bytes);
        let summary = load::send(&mut rows, |_| true, &name, &mut client, Present::Replaced, &progress)?;
        report(&summary);
        match summary.bad_rows {
            0 => Ok(()),
            _ if self.skip_bad => Ok(()),
            1 => Err(Failure::new(Exit::BadRows, format!("{name}: 1 row was not loaded, listed above"))),
            bad => Err(Failure::new(Exit::BadRows, format!("{name}: {bad} rows were not loaded, listed above"))),
        }
    }
}

/// The input of a load.
struct Input {
    reader: Box<dyn BufRead>,
    /// Name in messages.
    name: String,
    /// Length, if known.
    total_bytes: Option<u64>,
}

fn open(file: Option<&Path>) -> Result<Input, Failure> {
    let Some(path) = file else {
        let reader = Box::new(std::io::stdin().lock());
        return Ok(Input { reader, name: "standard input".to_owned(), total_bytes: None });
    };
    let fail = || Failure::about(Exit::Failed, path.display());
    let file = File::open(path).map_err(fail())?;
    let metadata = file.metadata().map_err(fail())?;
    let total_bytes = metadata.is_file().then_some(metadata.len());
    let reader = Box::new(BufReader::with_capacity(1 << 20, file));
    Ok(Input { reader, name: path.display().to_string(), total_bytes })
}

fn report(summary: &Summary) {
    let seconds = summary.elapsed.as_secs_f64().max(1e-9);
    println!(
        "{} rows loaded, {:.1} MB in {seconds:.2} s: {:.0} rows/s, {:.1} MB/s; {} bad rows",
        summary.rows,
        summary.bytes as f64 / 1e6,
        summary.rows as f64 / seconds,
        summary.bytes as f64 / 1e6 / seconds,
        summary.bad_rows,
    );
}

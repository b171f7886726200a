//! Command `fawn load`.
use super::target::Target;
use crate::failure::{Exit, Failure};
use crate::load::{self, Fields, Format, InputRows, LoadProgress, Present, Summary};
use crate::printing::{print_note, print_result};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// A dump's first line is shorter.
const FIRST_LINE_BYTES_MAX: u64 = 16 << 10;

/// Loads a file of rows, or a dump of `fawn dump`, into a server.
///
/// Each row is one SET, pipelined. A bad row is reported with its line number on standard error and counted; later rows
/// are still loaded, and the command ends with exit code 5 unless --skip-bad is given. A row that the server refuses,
/// because it is full for example, is reported likewise, and the exit code is then 4, also with --skip-bad. Loading the
/// same file again is harmless.
///
/// A dump is recognised by its first line, and loaded with flags and expiry. One that is cut short or changed is refused:
/// a file before anything of it is loaded, another input at its end.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  apt-cache dumpavail | fawn load --format deb822 --key Package\n  \
                             fawn load --format jsonl --key id --value body --prefix user: users.jsonl\n  \
                             fawn load fawn.jsonl")]
pub(super) struct Load {
    /// The file; `-` or nothing: standard input.
    file: Option<PathBuf>,
    /// Format of the input; not for a dump.
    #[arg(long, value_enum, value_name = "FORM", requires = "key")]
    format: Option<Format>,
    /// Field with the key.
    #[arg(long, value_name = "FIELD", requires = "format")]
    key: Option<String>,
    /// Field with the value; without it the value is the whole row.
    #[arg(long, value_name = "FIELD", requires = "format")]
    value: Option<String>,
    /// Prefix of every key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Report bad rows of the input without failing.
    #[arg(long)]
    skip_bad: bool,
    #[command(flatten)]
    target: Target,
}

impl Load {
    pub(super) fn run(self) -> Result<(), Failure> {
        let file = self.file.filter(|path| path != Path::new("-"));
        let Input { reader, name, total_bytes } = open(file.as_deref())?;
        let (format, reader) = match self.format {
            Some(format) => (format, reader),
            None => (Format::Dump, expect_dump(reader, &name)?),
        };
        if let Some(path) = file.as_deref().filter(|_| format == Format::Dump && total_bytes.is_some()) {
            verify(path)?;
        }
        let fields = Fields { key: self.key.unwrap_or_default(), value: self.value, prefix: self.prefix };
        let mut client = self.target.connect()?;
        let mut rows = InputRows::new(format, reader, fields);
        let progress = LoadProgress::new(total_bytes);
        let summary = load::send(&mut rows, |_| true, &name, &mut client, Present::Replaced, &progress)?;
        report(&summary);
        if rows.is_complete_dump() == Some(false) {
            print_note("note: the dump is of a damaged store: it has what was left of it");
        }
        verdict(&summary, &name, self.skip_bad)
    }
}

/// The failure of a load that left out rows.
fn verdict(summary: &Summary, name: &str, skip_bad: bool) -> Result<(), Failure> {
    let rows = |count: u64| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    match (summary.refused, summary.bad_rows) {
        // The input is not the cause, so --skip-bad does not apply.
        (refused @ 1.., bad) => {
            let rest = if bad == 0 { String::new() } else { format!("; {} of the input cannot be loaded", rows(bad)) };
            let refused = rows(refused);
            Err(Failure::new(Exit::Server, format!("{name}: the server refused {refused}, listed above{rest}")))
        }
        (0, 0) => Ok(()),
        (0, _) if skip_bad => Ok(()),
        (0, 1) => Err(Failure::new(Exit::BadRows, format!("{name}: 1 row was not loaded, listed above"))),
        (0, bad) => Err(Failure::new(Exit::BadRows, format!("{name}: {bad} rows were not loaded, listed above"))),
    }
}

/// Without a format the input must be a dump.
fn expect_dump(mut reader: Box<dyn BufRead>, name: &str) -> Result<Box<dyn BufRead>, Failure> {
    let mut first = Vec::new();
    let read = (&mut reader).take(FIRST_LINE_BYTES_MAX).read_until(b'\n', &mut first);
    read.map_err(Failure::about(Exit::Failed, name))?;
    if load::is_dump(&first) {
        return Ok(Box::new(Cursor::new(first).chain(reader)));
    }
    let words = if first.starts_with(b"*") {
        "looks like commands of Redis's protocol; pass it to `redis-cli --pipe`"
    } else {
        "is no dump of `fawn dump`; say what it is with --format and --key"
    };
    Err(Failure::new(Exit::Usage, format!("{name}: {words}")))
}

/// Refuses a file that is not as it was written, before anything of it is loaded.
fn verify(path: &Path) -> Result<(), Failure> {
    let Input { reader, name, .. } = open(Some(path))?;
    let fields = Fields { key: String::new(), value: None, prefix: String::new() };
    let verified = InputRows::new(Format::Dump, reader, fields).verify_dump();
    verified.map_err(|error| {
        let exit = if error.kind() == std::io::ErrorKind::InvalidData { Exit::BadRows } else { Exit::Failed };
        Failure::new(exit, format!("{name}: {error}; nothing of it was loaded"))
    })
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
    let refused = match summary.refused {
        0 => String::new(),
        refused => format!(", {refused} refused by the server"),
    };
    let expired = match summary.expired {
        0 => String::new(),
        expired => format!(", {expired} expired"),
    };
    print_result(format_args!(
        "{} rows loaded, {:.1} MB in {seconds:.2} s: {:.0} rows/s, {:.1} MB/s; {} bad rows{expired}{refused}",
        summary.rows,
        summary.bytes as f64 / 1e6,
        summary.rows as f64 / seconds,
        summary.bytes as f64 / 1e6 / seconds,
        summary.bad_rows,
    ));
}

//! The destination of rows: standard output as they arrive, and a file with the machine's description next to it.
use crate::{BenchError, Row, machine, report};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Name of the file with machine descriptions, next to the rows: a list with one entry per command.
pub const MACHINE_FILE: &str = "machine.json";

/// Receives rows. Each row is written at once, so that a later failure loses no measurement.
pub struct Sink {
    json: bool,
    quiet: bool,
    /// Identity of this command: rows of two commands are never a pair.
    run: String,
    file: Option<(PathBuf, File)>,
    rows: Vec<Row>,
    /// The first failure to print: all measurements are made, and the command fails at its end.
    unprinted: Option<std::io::Error>,
}

impl Sink {
    /// Prints rows as JSON or text, and appends them to `file` if given. The machine's description includes the file
    /// system of `data_dir`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(json: bool, file: Option<&Path>, data_dir: &Path) -> Result<Self, BenchError> {
        let run = run_name();
        let file = file.map(|path| open_rows(path, data_dir, &run)).transpose()?;
        Ok(Self { json, quiet: false, run, file, rows: Vec::new(), unprinted: None })
    }

    /// Collects rows without printing, for tests.
    #[must_use]
    pub fn quiet() -> Self {
        Self { json: true, quiet: true, run: run_name(), file: None, rows: Vec::new(), unprinted: None }
    }

    /// Prints and stores a row.
    ///
    /// # Errors
    /// If the row cannot be written.
    pub fn emit(&mut self, row: Row) -> Result<(), BenchError> {
        let row = row.with("run", &self.run);
        if let Some((path, file)) = &mut self.file {
            writeln!(file, "{}", row.to_json())
                .map_err(|error| BenchError::failed(path.display().to_string(), error))?;
        }
        if !self.quiet {
            self.print(&if self.json { row.to_json() } else { row.to_text() });
        }
        self.rows.push(row);
        Ok(())
    }

    /// All rows so far.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn print(&mut self, text: &str) {
        if let Err(error) = writeln!(std::io::stdout(), "{text}") {
            self.unprinted.get_or_insert(error);
        }
    }

    /// Prints the table of medians and ratios, unless the output is JSON.
    ///
    /// # Errors
    /// If that or a row could not be printed.
    pub fn finish(mut self) -> Result<(), BenchError> {
        if !self.json {
            self.print(&format!("\n{}", report::table(&self.rows)));
        }
        self.unprinted.map_or(Ok(()), |error| Err(BenchError::failed("standard output", error)))
    }
}

/// Seconds since 1970 and this process's ID: unique among the commands on this machine.
fn run_name() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", since.as_secs(), std::process::id())
}

fn open_rows(path: &Path, data_dir: &Path, run: &str) -> Result<(PathBuf, File), BenchError> {
    let failed = |error: std::io::Error| BenchError::failed(path.display().to_string(), error);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut facts = machine::describe(data_dir);
    facts.insert("command".to_owned(), std::env::args().skip(1).collect::<Vec<_>>().join(" "));
    facts.insert("run".to_owned(), run.to_owned());
    facts.insert("rows".to_owned(), path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    add_machine(&path.with_file_name(MACHINE_FILE), &facts)?;
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    Ok((path.to_owned(), file))
}

/// Appends an entry to the list in `path`. Existing entries are kept; a single description, the format of older
/// versions, becomes the first entry.
fn add_machine(path: &Path, facts: &BTreeMap<String, String>) -> Result<(), BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError::failed(path.display().to_string(), error);
    let mut entries = match std::fs::read_to_string(path) {
        Ok(text) => match serde_json::from_str(&text).map_err(|error| failed(&error))? {
            serde_json::Value::Array(entries) => entries,
            single => vec![single],
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(&error)),
    };
    entries.push(serde_json::json!(facts));
    let text = serde_json::to_string_pretty(&entries).map_err(|error| failed(&error))? + "\n";
    // Write a new file and rename it: a crash here does not lose the earlier entries.
    let aside = path.with_extension("json.new");
    std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, path)).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_reach_the_file_at_once_and_the_machine_stands_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/store.jsonl");
        let mut sink = Sink::open(true, Some(&path), dir.path()).unwrap();
        sink.quiet = true;
        sink.emit(Row::new("store", "fawn-ds", "get")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<Row>(text.trim()).unwrap(), sink.rows()[0]);
        let machine = std::fs::read_to_string(dir.path().join("run").join(MACHINE_FILE)).unwrap();
        assert!(machine.contains("\"cores\"") && machine.contains("\"command\""), "{machine}");
    }

    #[test]
    fn every_command_of_a_folder_stays_described() {
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join(MACHINE_FILE);
        // The format of older versions.
        std::fs::write(&machine, r#"{"command": "first"}"#).unwrap();
        for name in ["a.jsonl", "b.jsonl"] {
            drop(Sink::open(true, Some(&dir.path().join(name)), dir.path()).unwrap());
        }
        let entries: Vec<BTreeMap<String, String>> =
            serde_json::from_str(&std::fs::read_to_string(&machine).unwrap()).unwrap();
        assert_eq!(entries[0]["command"], "first");
        assert_eq!(entries[1..].iter().map(|entry| &*entry["rows"]).collect::<Vec<_>>(), ["a.jsonl", "b.jsonl"]);
        assert!(entries[1..].iter().all(|entry| entry["kernel"].contains('.') && !entry["run"].is_empty()));
        // A corrupt list may hold results of another run: report it instead of overwriting it.
        std::fs::write(&machine, "[").unwrap();
        let refused = Sink::open(true, Some(&dir.path().join("c.jsonl")), dir.path()).err().unwrap().to_string();
        assert!(refused.contains("machine.json"), "{refused}");
        assert_eq!(std::fs::read_to_string(&machine).unwrap(), "[");
    }
}

//! Owns where rows go: to standard output as they come, and to a file beside the machine's description.
use crate::{BenchError, Row, machine, report};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The machine's description lies beside the rows under this name.
pub const MACHINE_FILE: &str = "machine.json";

/// Takes rows. What has been measured is never lost to a later failure: each row is written when it comes.
pub struct Sink {
    json: bool,
    quiet: bool,
    file: Option<(PathBuf, File)>,
    rows: Vec<Row>,
}

impl Sink {
    /// Prints rows as JSON or as text, and appends them to `file` where one is given. `data_dir` is what the machine's
    /// description names the file system of.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(json: bool, file: Option<&Path>, data_dir: &Path) -> Result<Self, BenchError> {
        let file = file.map(|path| open_rows(path, data_dir)).transpose()?;
        Ok(Self { json, quiet: false, file, rows: Vec::new() })
    }

    /// Keeps rows without printing, for tests.
    #[must_use]
    pub fn quiet() -> Self {
        Self { json: true, quiet: true, file: None, rows: Vec::new() }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn emit(&mut self, row: Row) -> Result<(), BenchError> {
        if let Some((path, file)) = &mut self.file {
            writeln!(file, "{}", row.to_json())
                .map_err(|error| BenchError::failed(path.display().to_string(), error))?;
        }
        if !self.quiet {
            println!("{}", if self.json { row.to_json() } else { row.to_text() });
        }
        self.rows.push(row);
        Ok(())
    }

    /// Everything taken so far.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Ends with the table of medians and ratios, for people only.
    pub fn finish(self) {
        if !self.json {
            println!("\n{}", report::table(&self.rows));
        }
    }
}

fn open_rows(path: &Path, data_dir: &Path) -> Result<(PathBuf, File), BenchError> {
    let failed = |error: std::io::Error| BenchError::failed(path.display().to_string(), error);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut facts = machine::describe(data_dir);
    facts.insert("command".to_owned(), std::env::args().skip(1).collect::<Vec<_>>().join(" "));
    let facts = serde_json::to_string_pretty(&facts).map_err(|error| BenchError::failed(MACHINE_FILE, error))?;
    std::fs::write(path.with_file_name(MACHINE_FILE), facts + "\n").map_err(failed)?;
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    Ok((path.to_owned(), file))
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
}

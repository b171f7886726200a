//! Progress of a load: a bar with rate and remaining time on a terminal; bad rows always.
use super::BadRow;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;

/// Without a terminal, a line is printed whenever this share of the input is done.
const LINE_PERCENT: u64 = 10;

/// Progress display; without a terminal it prints bad rows and requested lines only.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    bar: ProgressBar,
    lines: Option<ProgressLines>,
}

/// Progress in plain lines.
#[derive(Debug)]
struct ProgressLines {
    total_bytes: u64,
    /// Percentage of the next line.
    next_percent: Cell<u64>,
}

impl LoadProgress {
    /// Creates a display for an input of this many bytes, if known.
    pub(crate) fn new(total_bytes: Option<u64>) -> Self {
        let (bar, template) = match total_bytes {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:30} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left  {msg}",
            ),
            None => (ProgressBar::no_length(), "{spinner} {bytes}  {bytes_per_sec}  {elapsed}  {msg}"),
        };
        // The templates are constants; indicatif's default replaces one that a new version rejects.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, lines: None }
    }

    /// Like [`LoadProgress::new`], with plain lines where there is no terminal.
    pub(crate) fn with_lines(total_bytes: u64) -> Self {
        let next_percent = Cell::new(LINE_PERCENT);
        let lines = (!std::io::stderr().is_terminal()).then_some(ProgressLines { total_bytes, next_percent });
        Self { lines, ..Self::new(Some(total_bytes)) }
    }

    /// Updates consumed bytes and stored rows.
    pub(super) fn show(&self, consumed_bytes: u64, rows: u64) {
        self.bar.set_position(consumed_bytes);
        self.bar.set_message(format!("{rows} rows"));
        let Some(lines) = &self.lines else { return };
        let percent = consumed_bytes.saturating_mul(100) / lines.total_bytes.max(1);
        if percent >= lines.next_percent.get() {
            eprintln!("{percent:>3}%  {rows} rows");
            lines.next_percent.set(percent / LINE_PERCENT * LINE_PERCENT + LINE_PERCENT);
        }
    }

    /// Prints a bad row above the bar.
    pub(super) fn bad_row(&self, name: &str, bad: &BadRow) {
        self.bar.suspend(|| eprintln!("{name}:{}: {}", bad.line, bad.reason));
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

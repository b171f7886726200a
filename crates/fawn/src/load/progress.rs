//! Progress of a load: a bar with rate and remaining time on a terminal; bad rows always.
use super::BadRow;
use crate::printing::print_note;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;

/// Without a terminal, a line is printed whenever this share of the input is done.
const LINE_PERCENT: u64 = 10;

/// Progress display; without a terminal it prints bad rows and requested lines only.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    bar: ProgressBar,
    /// Percentage of the next plain line, if these are printed.
    next_percent: Option<Cell<u64>>,
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
        Self { bar, next_percent: None }
    }

    /// Like [`LoadProgress::new`], with plain lines where there is no terminal.
    pub(crate) fn with_lines(total_bytes: u64) -> Self {
        let next_percent = (!std::io::stderr().is_terminal()).then_some(Cell::new(LINE_PERCENT));
        Self { next_percent, ..Self::new(Some(total_bytes)) }
    }

    /// Updates consumed bytes and stored rows.
    pub(crate) fn show(&self, consumed_bytes: u64, rows: u64) {
        self.bar.set_position(consumed_bytes);
        self.bar.set_message(format!("{rows} rows"));
        let Some((next_percent, total_bytes)) = self.next_percent.as_ref().zip(self.bar.length()) else { return };
        let percent = consumed_bytes.saturating_mul(100) / total_bytes.max(1);
        if percent >= next_percent.get() {
            print_note(format_args!("{percent:>3}%  {rows} rows"));
            next_percent.set(percent / LINE_PERCENT * LINE_PERCENT + LINE_PERCENT);
        }
    }

    /// Prints a bad row above the bar.
    pub(super) fn bad_row(&self, name: &str, bad: &BadRow) {
        self.bar.suspend(|| print_note(format_args!("{name}:{}: {}", bad.line, bad.reason)));
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

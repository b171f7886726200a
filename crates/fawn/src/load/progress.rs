//! Owns what a user sees of a load: a bar with rate and time left on a terminal, bad rows always.
use super::BadRow;
use indicatif::{ProgressBar, ProgressStyle};

/// A load's face; silent where standard error is not a terminal, but for bad rows.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For an input of so many bytes, if that is known.
    pub(crate) fn new(total_bytes: Option<u64>) -> Self {
        let (bar, template) = match total_bytes {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:30} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left  {msg}",
            ),
            None => (ProgressBar::no_length(), "{spinner} {bytes}  {bytes_per_sec}  {elapsed}  {msg}"),
        };
        // The templates are constants; indicatif's default stands in should a new version reject one.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// So much of the input is consumed, so many rows are stored.
    pub(super) fn show(&self, consumed_bytes: u64, rows: u64) {
        self.bar.set_position(consumed_bytes);
        self.bar.set_message(format!("{rows} rows"));
    }

    /// Names a bad row, above the bar.
    pub(super) fn bad_row(&self, name: &str, bad: &BadRow) {
        self.bar.suspend(|| eprintln!("{name}:{}: {}", bad.line, bad.reason));
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

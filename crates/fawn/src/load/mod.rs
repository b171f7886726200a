//! Bulk loading: rows of a file, pipelined to a server; every bad row counted and reported by its line.
mod deb822;
mod jsonl;
mod lines;
mod progress;
mod row;
mod send;

pub(crate) use progress::LoadProgress;
pub(crate) use row::{BadRow, LoadRow, NextRow};
pub(crate) use send::{Present, Summary, send};

use lines::InputLines;
use std::io::BufRead;

/// Format of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// Stanzas of `Field: value` lines, separated by a blank line: Debian's Packages files. The value is the stanza,
    /// without the separator.
    Deb822,
    /// A JSON object per line. The value is the line, or one of its fields.
    Jsonl,
}

/// Selection of key and value.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// Field with the key.
    pub(crate) key: String,
    /// Field with the value; none: the whole row.
    pub(crate) value: Option<String>,
    /// Prefix of every key.
    pub(crate) prefix: String,
}

/// The rows of an input.
#[derive(Debug)]
pub(crate) struct InputRows<R> {
    format: Format,
    lines: InputLines<R>,
    fields: Fields,
}

impl<R: BufRead> InputRows<R> {
    pub(crate) const fn new(format: Format, input: R, fields: Fields) -> Self {
        Self { format, lines: InputLines::new(input), fields }
    }

    /// The next row.
    ///
    /// # Errors
    /// If the input itself cannot be read further.
    pub(crate) fn next_row(&mut self) -> NextRow {
        match self.format {
            Format::Deb822 => self.next_stanza(),
            Format::Jsonl => self.next_object(),
        }
    }

    /// Bytes of the input consumed so far.
    pub(crate) const fn consumed_bytes(&self) -> u64 {
        self.lines.consumed_bytes
    }
}

//! Bulk loading: rows of a file, pipelined to a server; every bad row counted and reported by its line.
mod deb822;
mod dump;
mod jsonl;
mod lines;
mod progress;
mod row;
mod send;

pub(crate) use dump::is_dump;
pub(crate) use progress::LoadProgress;
pub(crate) use row::{BadRow, LoadRow, NextRow};
pub(crate) use send::{Present, Summary, send};

use crate::dump::jsonl::LINE_BYTES_MAX;
use dump::DumpState;
use lines::InputLines;
use row::ROW_BYTES_MAX;
use std::io::BufRead;

/// Format of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// Stanzas of `Field: value` lines, separated by a blank line: Debian's Packages files. The value is the stanza,
    /// without the separator.
    Deb822,
    /// A JSON object per line. The value is the line, or one of its fields.
    Jsonl,
    /// The output of `fawn dump`, recognised by its first line.
    #[value(skip)]
    Dump,
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
    dump: DumpState,
}

impl<R: BufRead> InputRows<R> {
    pub(crate) fn new(format: Format, input: R, fields: Fields) -> Self {
        let bytes_max = if format == Format::Dump { LINE_BYTES_MAX } else { ROW_BYTES_MAX };
        Self { format, lines: InputLines::new(input, bytes_max), fields, dump: DumpState::default() }
    }

    /// The next row.
    ///
    /// # Errors
    /// If the input itself cannot be read further; [`std::io::ErrorKind::InvalidData`] if a dump is not as it was written.
    pub(crate) fn next_row(&mut self) -> NextRow {
        match self.format {
            Format::Deb822 => self.next_stanza(),
            Format::Jsonl => self.next_object(),
            Format::Dump => self.next_dump_row(),
        }
    }

    /// Bytes of the input consumed so far.
    pub(crate) const fn consumed_bytes(&self) -> u64 {
        self.lines.consumed_bytes
    }
}

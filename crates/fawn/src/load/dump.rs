//! Dumps of `fawn dump` as an input: each row has flags and expiry; the last line has the count and the checksum.
use super::lines::InputLine;
use super::row::key_within_limit;
use super::{BadRow, InputRows, LoadRow, NextRow};
use crate::dump::base64;
use crate::dump::jsonl::{END_PREFIX, FORMAT, HEADER_PREFIX};
use fawn_types::checksum::StreamChecksum;
use serde::Deserialize;
use std::io::{BufRead, Error, ErrorKind};

/// The lines read so far.
#[derive(Debug, Default)]
pub(super) struct DumpState {
    checksum: StreamChecksum,
    records: u64,
    /// The last line was read. Whether the dumped store was sound.
    ended: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DumpLine {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    #[serde(default)]
    flags: u32,
    #[serde(default)]
    expires_at_ms: u64,
}

#[derive(Deserialize)]
struct DumpHeader {
    fawn_dump: u64,
}

#[derive(Deserialize)]
struct DumpEnd {
    records: u64,
    complete: bool,
    xxh3: String,
}

/// Whether this is the beginning of a dump.
pub(crate) fn is_dump(beginning: &[u8]) -> bool {
    beginning.starts_with(HEADER_PREFIX)
}

fn invalid<T>(words: impl Into<String>) -> std::io::Result<T> {
    Err(Error::new(ErrorKind::InvalidData, words.into()))
}

impl<R: BufRead> InputRows<R> {
    /// Reads the rest of a dump without its rows: whether it is as it was written.
    ///
    /// # Errors
    /// As [`InputRows::next_row`].
    pub(crate) fn verify_dump(&mut self) -> std::io::Result<()> {
        let mut text = Vec::new();
        while self.read_dump_line(&mut text)? {}
        Ok(())
    }

    /// Whether the dumped store was sound; `None` before the end.
    pub(crate) const fn is_complete_dump(&self) -> Option<bool> {
        self.dump.ended
    }

    /// The next row of a dump.
    pub(super) fn next_dump_row(&mut self) -> NextRow {
        let mut text = Vec::new();
        if !self.read_dump_line(&mut text)? {
            return Ok(None);
        }
        let line = self.lines.number;
        let row: Result<DumpLine, _> = serde_json::from_slice(&text);
        Ok(Some(row.map_err(|error| BadRow::new(line, format!("not a line of a dump: {error}"))).and_then(|row| {
            let DumpLine { key, key_base64, value, value_base64, flags, expires_at_ms } = row;
            let found = bytes_of("key", (key, key_base64), line)?;
            let key = key_within_limit([self.fields.prefix.as_bytes(), &found].concat(), line)?;
            let value = bytes_of("value", (value, value_base64), line)?;
            Ok(LoadRow { key, value, flags, expires_at_ms, line })
        })))
    }

    /// Reads the next line of a key; false at the end, which is checked.
    fn read_dump_line(&mut self, text: &mut Vec<u8>) -> std::io::Result<bool> {
        loop {
            text.clear();
            let line = self.lines.read(text)?;
            match line {
                InputLine::TooLong => return invalid(format!("line {} is too long for a dump", self.lines.number)),
                InputLine::End if self.dump.ended.is_some() => return Ok(false),
                InputLine::End => return invalid("the dump is cut short: its last line is missing"),
                InputLine::Whole if self.dump.ended.is_some() => return invalid("there is more behind the dump's end"),
                InputLine::Whole if text.last() != Some(&b'\n') => {
                    return invalid("the dump is cut short: its last line is incomplete");
                }
                InputLine::Whole => {}
            }
            if self.lines.number == 1 {
                check_header(text)?;
            } else if text.starts_with(END_PREFIX) {
                self.dump.end(text)?;
                continue;
            }
            self.dump.checksum.update(text);
            if self.lines.number > 1 {
                self.dump.records += 1;
                return Ok(true);
            }
        }
    }
}

impl DumpState {
    fn end(&mut self, text: &[u8]) -> std::io::Result<()> {
        let Ok(DumpEnd { records, complete, xxh3 }) = serde_json::from_slice(text) else {
            return invalid("the dump was changed: its last line is none of a dump");
        };
        if records != self.records {
            return invalid(format!(
                "the dump was changed: it has {} keys, and its last line says {records}",
                self.records
            ));
        }
        let found = format!("{:016x}", self.checksum.get());
        if xxh3 != found {
            return invalid(format!("the dump was changed: its checksum is {found}, and its last line says {xxh3}"));
        }
        self.ended = Some(complete);
        Ok(())
    }
}

fn check_header(text: &[u8]) -> std::io::Result<()> {
    match serde_json::from_slice(text) {
        Ok(DumpHeader { fawn_dump: FORMAT }) => Ok(()),
        Ok(DumpHeader { fawn_dump }) => {
            invalid(format!("the dump has format {fawn_dump}, and this fawn reads {FORMAT}; load it with a newer fawn"))
        }
        Err(error) => invalid(format!("the dump was changed: its first line is none of a dump: {error}")),
    }
}

/// The bytes of a field that is there as text or as base64.
fn bytes_of(name: &str, (text, encoded): (Option<String>, Option<String>), line: u64) -> Result<Vec<u8>, BadRow> {
    match (text, encoded) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(encoded)) => base64::decode(encoded.as_bytes())
            .ok_or_else(|| BadRow::new(line, format!("field `{name}_base64`: not base64"))),
        _ => Err(BadRow::new(line, format!("expected `{name}` or `{name}_base64`"))),
    }
}

//! Debian's control format: stanzas of fields, continued by lines that begin with a space, ended by a blank line.
//!
//! The value is the stanza byte for byte, without its last line end and the blank line. The last stanza of a file
//! is therefore the same with or without a final line end.
use super::lines::{InputLine, InputLines};
use super::row::{ROW_BYTES_MAX, Rows, key_of, too_long};
use super::{BadRow, Fields, LoadRow};
use std::io::BufRead;

/// Rows of an input in control format.
#[derive(Debug)]
pub(super) struct Deb822<R> {
    lines: InputLines<R>,
    fields: Fields,
}

/// A stanza, as far as it was read.
#[derive(Default)]
struct Stanza {
    row: LoadRow,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    /// Field that the next continuation line continues.
    open: OpenField,
    bad: Option<BadRow>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum OpenField {
    /// No field yet: a continuation line is an error.
    #[default]
    Nothing,
    /// Another field, or the key, which has one line.
    Other,
    /// The value's field.
    Value,
}

impl<R: BufRead> Deb822<R> {
    pub(super) const fn new(input: R, fields: Fields) -> Self {
        Self { lines: InputLines::new(input, ROW_BYTES_MAX), fields }
    }

    /// Adds one line to the stanza. After a bad line the rest of the stanza is skipped.
    fn take(&self, stanza: &mut Stanza, at: usize) {
        let number = self.lines.number;
        if stanza.row.value.len() > ROW_BYTES_MAX {
            stanza.row.value.truncate(at);
            stanza.bad.get_or_insert_with(|| too_long(number));
        }
        if stanza.bad.is_some() {
            // A bad stanza keeps no memory, however long it is.
            stanza.row.value.clear();
            return;
        }
        let line = stanza.row.value[at..].strip_suffix(b"\n").unwrap_or(&stanza.row.value[at..]);
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            match (stanza.open, &mut stanza.value) {
                (OpenField::Nothing, _) => {
                    stanza.bad = Some(BadRow::new(number, "a continuation line before any field"));
                }
                (OpenField::Value, Some(value)) => {
                    value.push(b'\n');
                    value.extend_from_slice(line);
                }
                _ => {}
            }
            return;
        }
        let Some(colon) = line.iter().position(|&byte| byte == b':').filter(|&at| at > 0) else {
            stanza.bad = Some(BadRow::new(number, "expected `Field: value`, found a line without a field's name"));
            return;
        };
        let (name, content) = (&line[..colon], line[colon + 1..].trim_ascii());
        stanza.open = OpenField::Other;
        if name.eq_ignore_ascii_case(self.fields.key.as_bytes()) {
            stanza.key = Some(content.to_vec());
        }
        if self.fields.value.as_ref().is_some_and(|wanted| name.eq_ignore_ascii_case(wanted.as_bytes())) {
            stanza.value = Some(content.to_vec());
            stanza.open = OpenField::Value;
        }
    }

    /// The row of the complete stanza.
    fn close(&self, stanza: Stanza) -> Result<LoadRow, BadRow> {
        if let Some(bad) = stanza.bad {
            return Err(bad);
        }
        let line = stanza.row.line;
        let key = key_of(&self.fields, stanza.key.as_deref(), line)?;
        let value = match &self.fields.value {
            None => without_line_end(stanza.row.value),
            Some(name) => stanza.value.ok_or_else(|| BadRow::new(line, format!("no field `{name}` for the value")))?,
        };
        Ok(LoadRow { key, value, line })
    }
}

fn without_line_end(mut stanza: Vec<u8>) -> Vec<u8> {
    if stanza.last() == Some(&b'\n') {
        stanza.pop();
    }
    stanza
}

impl<R: BufRead> Rows for Deb822<R> {
    fn next_row(&mut self) -> std::io::Result<Option<Result<LoadRow, BadRow>>> {
        let (mut stanza, mut begun) = (Stanza::default(), false);
        loop {
            let at = stanza.row.value.len();
            let kind = self.lines.read(&mut stanza.row.value)?;
            let is_blank = stanza.row.value[at..].iter().all(u8::is_ascii_whitespace);
            match kind {
                InputLine::End if !begun => return Ok(None),
                InputLine::End => return Ok(Some(self.close(stanza))),
                InputLine::Whole if is_blank && begun => {
                    stanza.row.value.truncate(at);
                    return Ok(Some(self.close(stanza)));
                }
                InputLine::Whole if is_blank => stanza.row.value.clear(),
                InputLine::Whole | InputLine::TooLong => {
                    if !begun {
                        (begun, stanza.row.line) = (true, self.lines.number);
                    }
                    if kind == InputLine::TooLong {
                        let number = self.lines.number;
                        stanza.bad.get_or_insert_with(|| too_long(number));
                    } else {
                        self.take(&mut stanza, at);
                    }
                }
            }
        }
    }

    fn consumed_bytes(&self) -> u64 {
        self.lines.consumed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Deb822, Fields, Rows};

    fn all(text: &str, value: Option<&str>) -> Vec<String> {
        let (key, value) = ("Package".to_owned(), value.map(str::to_owned));
        let mut rows = Deb822::new(text.as_bytes(), Fields { key, value, prefix: String::new() });
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().expect("a slice reads") {
            found.push(match row {
                Ok(row) => {
                    let text = |bytes| String::from_utf8(bytes).expect("ASCII");
                    format!("{}={}={:?}", row.line, text(row.key), text(row.value))
                }
                Err(bad) => format!("{}! {}", bad.line, bad.reason),
            });
        }
        assert_eq!(rows.consumed_bytes(), text.len() as u64, "all of it is consumed");
        found
    }

    #[test]
    fn a_stanza_is_its_bytes_without_its_separator() {
        let text = "\n\nPackage: a\nDescription: x\n more\n\n\nPackage: b\nSize: 1";
        assert_eq!(all(text, None), [r#"3=a="Package: a\nDescription: x\n more""#, r#"8=b="Package: b\nSize: 1""#]);
        assert_eq!(
            all(text, Some("description")),
            [r#"3=a="x\n more""#, "8! no field `Description` for the value"]
                .map(|line| line.replace("`Description`", "`description`"))
        );
    }

    #[test]
    fn a_bad_stanza_is_named_by_its_line_and_the_next_is_read() {
        let text = "Package: a\nnonsense\nmore: x\n\n lost\nPackage: b\n\nSize: 3\n\nPackage:\n\nPackage: c\n";
        assert_eq!(
            all(text, None),
            [
                "2! expected `Field: value`, found a line without a field's name",
                "5! a continuation line before any field",
                "8! no field `Package` for the key",
                "10! field `Package` for the key is empty",
                r#"12=c="Package: c""#,
            ]
        );
        assert!(all("", None).is_empty() && all("\n \n", None).is_empty());
    }
}

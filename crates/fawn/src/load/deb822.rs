//! Debian's control format: stanzas of fields, continued by lines that begin with a space, ended by a blank line.
//!
//! The value is the stanza byte for byte, without its last line end and the blank line. The last stanza of a file
//! is therefore the same with or without a final line end.
use super::lines::InputLine;
use super::row::{ROW_BYTES_MAX, key_of, too_long};
use super::{BadRow, InputRows, LoadRow, NextRow};
use std::io::BufRead;

/// The fields of a stanza for key and value. The key has one line, the value may be continued.
#[derive(Default)]
struct StanzaFields<'a> {
    key: Option<&'a [u8]>,
    value: Option<Vec<u8>>,
}

impl<R: BufRead> InputRows<R> {
    /// The next stanza.
    pub(super) fn next_stanza(&mut self) -> NextRow {
        let (mut stanza, mut first, mut bad) = (Vec::new(), None, None);
        loop {
            let at = stanza.len();
            let kind = self.lines.read(&mut stanza)?;
            if kind == InputLine::End {
                break;
            }
            if kind == InputLine::Whole && stanza[at..].trim_ascii().is_empty() {
                stanza.truncate(at);
                if first.is_some() {
                    break;
                }
                continue;
            }
            let number = self.lines.number;
            let first_number = *first.get_or_insert(number);
            if kind == InputLine::TooLong || stanza.len() > ROW_BYTES_MAX {
                // An error in an earlier line is reported rather than the length.
                bad.get_or_insert_with(|| {
                    self.fields_of(&stanza[..at], first_number).err().unwrap_or_else(|| too_long(number))
                });
            }
            if bad.is_some() {
                // A stanza that is too long keeps no memory, however long it is.
                stanza.clear();
            }
        }
        Ok(first.map(|first| bad.map_or_else(|| self.stanza_row(&stanza, first), Err)))
    }

    /// The row of the stanza that begins at line `first`.
    fn stanza_row(&self, stanza: &[u8], first: u64) -> Result<LoadRow, BadRow> {
        let StanzaFields { key, value } = self.fields_of(stanza, first)?;
        let key = key_of(&self.fields, key, first)?;
        let value = match &self.fields.value {
            None => stanza.strip_suffix(b"\n").unwrap_or(stanza).to_vec(),
            Some(name) => value.ok_or_else(|| BadRow::new(first, format!("no field `{name}` for the value")))?,
        };
        Ok(LoadRow { key, value, line: first, ..LoadRow::default() })
    }

    fn fields_of<'a>(&self, stanza: &'a [u8], first: u64) -> Result<StanzaFields<'a>, BadRow> {
        let (mut fields, mut in_value) = (StanzaFields::default(), false);
        for (number, line) in (first..).zip(stanza.split_inclusive(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if line.starts_with(b" ") || line.starts_with(b"\t") {
                if number == first {
                    return Err(BadRow::new(number, "a continuation line before any field"));
                }
                if let Some(value) = fields.value.as_mut().filter(|_| in_value) {
                    value.push(b'\n');
                    value.extend_from_slice(line);
                }
                continue;
            }
            let Some(colon) = line.iter().position(|&byte| byte == b':').filter(|&at| at > 0) else {
                return Err(BadRow::new(number, "expected `Field: value`, found a line without a field's name"));
            };
            let (name, content) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(self.fields.key.as_bytes()) {
                fields.key = Some(content);
            }
            in_value = self.fields.value.as_ref().is_some_and(|wanted| name.eq_ignore_ascii_case(wanted.as_bytes()));
            if in_value {
                fields.value = Some(content.to_vec());
            }
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use crate::load::{Fields, Format, InputRows};

    fn all(text: &str, value: Option<&str>) -> Vec<String> {
        let (key, value) = ("Package".to_owned(), value.map(str::to_owned));
        let mut rows = InputRows::new(Format::Deb822, text.as_bytes(), Fields { key, value, prefix: String::new() });
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

//! JSON lines: an object per line; the key is one of its fields, the value the line or another field.
use super::lines::InputLine;
use super::row::{key_of, too_long};
use super::{BadRow, InputRows, LoadRow, NextRow};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::BufRead;

impl<R: BufRead> InputRows<R> {
    /// The next object.
    pub(super) fn next_object(&mut self) -> NextRow {
        let mut text = Vec::new();
        loop {
            text.clear();
            match self.lines.read(&mut text)? {
                InputLine::End => return Ok(None),
                InputLine::TooLong => return Ok(Some(Err(too_long(self.lines.number)))),
                InputLine::Whole if text.trim_ascii().is_empty() => {}
                InputLine::Whole => return Ok(Some(self.object_row(text.trim_ascii()))),
            }
        }
    }

    fn object_row(&self, text: &[u8]) -> Result<LoadRow, BadRow> {
        let line = self.lines.number;
        // Fields stay text: as floating-point numbers, long ones would lose digits.
        let object: BTreeMap<String, &RawValue> = serde_json::from_slice(text).map_err(|error| {
            let is_other = error.is_data() && !text.starts_with(b"{");
            let other = "expected an object, found another JSON value".to_owned();
            BadRow::new(line, if is_other { other } else { format!("not JSON: {error}") })
        })?;
        let key = object.get(&self.fields.key).map(|value| scalar(value, &self.fields.key, line)).transpose()?;
        let key = key_of(&self.fields, key.as_deref(), line)?;
        let value = match &self.fields.value {
            None => text.to_vec(),
            Some(name) => match object.get(name) {
                None => return Err(BadRow::new(line, format!("no field `{name}` for the value"))),
                Some(value) => string(value, line)?.unwrap_or_else(|| value.get().as_bytes().to_vec()),
            },
        };
        Ok(LoadRow { key, value, line, ..LoadRow::default() })
    }
}

/// Bytes of a key: only strings and numbers with one obvious form.
fn scalar(value: &RawValue, name: &str, line: u64) -> Result<Vec<u8>, BadRow> {
    if let Some(text) = string(value, line)? {
        return Ok(text);
    }
    if value.get().starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Ok(value.get().as_bytes().to_vec());
    }
    Err(BadRow::new(line, format!("field `{name}` for the key: expected a string or a number")))
}

/// The text of a string; `None`: another value.
fn string(value: &RawValue, line: u64) -> Result<Option<Vec<u8>>, BadRow> {
    if !value.get().starts_with('"') {
        return Ok(None);
    }
    let text: String =
        serde_json::from_str(value.get()).map_err(|error| BadRow::new(line, format!("not JSON: {error}")))?;
    Ok(Some(text.into_bytes()))
}

#[cfg(test)]
mod tests {
    use crate::load::{Fields, Format, InputRows};

    #[test]
    fn keys_and_values_are_fields_and_bad_lines_have_numbers() {
        let text = "{\"id\":1,\"v\":\"x\"}\n\nnope\n[1]\n{\"id\":null,\"v\":2}\n{\"v\":2}\n{\"id\":\"b\",\"v\":[1, 2]}";
        let fields = Fields { key: "id".to_owned(), value: Some("v".to_owned()), prefix: "p:".to_owned() };
        let mut rows = InputRows::new(Format::Jsonl, text.as_bytes(), fields);
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().expect("a slice reads") {
            found.push(row.map(|row| (row.line, row.key, row.value)).map_err(|bad| bad.line));
        }
        assert_eq!(
            found,
            [
                Ok((1, b"p:1".to_vec(), b"x".to_vec())),
                Err(3),
                Err(4),
                Err(5),
                Err(6),
                Ok((7, b"p:b".to_vec(), b"[1, 2]".to_vec())),
            ]
        );
        assert_eq!(rows.consumed_bytes(), text.len() as u64);
    }

    #[test]
    fn without_a_value_field_the_value_is_the_line() {
        let fields = Fields { key: "id".to_owned(), value: None, prefix: String::new() };
        let mut rows = InputRows::new(Format::Jsonl, &b"{ \"id\": \"a\" }\r\n"[..], fields);
        let row = rows.next_row().expect("reads").expect("a row").expect("good");
        assert_eq!(row.value, b"{ \"id\": \"a\" }");
    }
}

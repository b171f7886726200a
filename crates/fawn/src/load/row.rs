//! Rows of all input formats, and rows that cannot be loaded.
use super::Fields;
use fawn_types::limits::{KEY_BYTES_MAX, REQUEST_BYTES_MAX};

/// Maximum row length, bytes: a longer one cannot be sent as one request, whatever the server's limit.
pub(super) const ROW_BYTES_MAX: usize = REQUEST_BYTES_MAX / 2;

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LoadRow {
    /// The key.
    pub(crate) key: Vec<u8>,
    /// The value.
    pub(crate) value: Vec<u8>,
    /// memcached's flags.
    pub(crate) flags: u32,
    /// Expiry, ms since 1970; 0: never.
    pub(crate) expires_at_ms: u64,
    /// Line where the row begins, from 1.
    pub(crate) line: u64,
}

/// A row that cannot be loaded. Later rows can.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadRow {
    /// Line of the problem, from 1.
    pub(crate) line: u64,
    /// Expected and found.
    pub(crate) reason: String,
}

impl BadRow {
    pub(super) fn new(line: u64, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// A row, good or bad; `None` at the end.
pub(crate) type NextRow = std::io::Result<Option<Result<LoadRow, BadRow>>>;

/// The whole key, or the reason why there is none.
pub(super) fn key_of(fields: &Fields, found: Option<&[u8]>, line: u64) -> Result<Vec<u8>, BadRow> {
    let Some(found) = found else { return Err(BadRow::new(line, format!("no field `{}` for the key", fields.key))) };
    let key = [fields.prefix.as_bytes(), found].concat();
    match key.len() {
        0 => Err(BadRow::new(line, format!("field `{}` for the key is empty", fields.key))),
        _ => key_within_limit(key, line),
    }
}

pub(super) fn key_within_limit(key: Vec<u8>, line: u64) -> Result<Vec<u8>, BadRow> {
    let len = key.len();
    if len > KEY_BYTES_MAX {
        return Err(BadRow::new(line, format!("a key of {len} bytes; the longest is {KEY_BYTES_MAX}")));
    }
    Ok(key)
}

/// A row that exceeds the limit.
pub(super) fn too_long(line: u64) -> BadRow {
    BadRow::new(line, format!("a row of more than {ROW_BYTES_MAX} bytes"))
}

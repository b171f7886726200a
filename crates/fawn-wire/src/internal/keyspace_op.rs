//! The binary encoding of requests on a whole range and of atomic batches.
//!
//! ```text
//! kind u8 (16 count, 17 scan, 18 clear, 19 set all) | fields
//! scan:    cursor u64 | count u32        the reply's value: cursor u64 | (key_len u16 | key) …
//! set all: (key_len u16 | value_len u32 | key | value) …
//! ```
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};
use fawn_types::limits;

/// First kind of the requests on a range; requests on one key have lower kinds.
const FIRST_KIND: u8 = 16;

/// A request on one whole range, or on several of its keys at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyspaceRequest<'a> {
    /// Number of keys committed at the tail.
    Count,
    /// Keys in hash order, starting at a position.
    Scan {
        /// Position to continue from; 0 starts a scan.
        cursor: u64,
        /// Approximate number of keys.
        count: u32,
    },
    /// Removes all keys of the range, as one record.
    Clear,
    /// Sets all of these keys or none. Without keys it changes nothing.
    SetAll(KeyValuePairs<'a>),
}

/// Key-value pairs, encoded by [`put_pair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyValuePairs<'a>(&'a [u8]);

impl<'a> KeyValuePairs<'a> {
    /// No pairs.
    pub const EMPTY: Self = Self(&[]);

    /// Verifies bytes encoded by [`put_pair`].
    ///
    /// # Errors
    /// If the bytes are not valid pairs.
    pub fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = FrameReader::new(bytes);
        while !reader.is_empty() {
            read_pair(&mut reader)?;
        }
        Ok(Self(bytes))
    }

    /// The keys with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let mut reader = FrameReader::new(self.0);
        core::iter::from_fn(move || if reader.is_empty() { None } else { read_pair(&mut reader).ok() })
    }
}

/// Appends a pair. The key must not exceed the key length limit.
pub fn put_pair(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    assert!(key.len() <= limits::KEY_BYTES_MAX, "a key of {} bytes", key.len());
    out.put_u16(key.len() as u16);
    out.put_u32(value.len() as u32);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn read_pair<'a>(reader: &mut FrameReader<'a>) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
    let key_len = usize::from(reader.u16("key length")?);
    let value_len = reader.u32("value length")? as usize;
    Ok((reader.take("key", key_len)?, reader.take("value", value_len)?))
}

/// Whether the message is a request on a range.
#[must_use]
pub fn is_keyspace(form: &[u8]) -> bool {
    form.first().is_some_and(|kind| *kind >= FIRST_KIND)
}

/// Appends `request`.
pub fn put_keyspace(request: &KeyspaceRequest<'_>, out: &mut Vec<u8>) {
    match *request {
        KeyspaceRequest::Count => out.push(FIRST_KIND),
        KeyspaceRequest::Scan { cursor, count } => {
            out.push(FIRST_KIND + 1);
            out.put_u64(cursor);
            out.put_u32(count);
        }
        KeyspaceRequest::Clear => out.push(FIRST_KIND + 2),
        KeyspaceRequest::SetAll(KeyValuePairs(pairs)) => {
            out.push(FIRST_KIND + 3);
            out.extend_from_slice(pairs);
        }
    }
}

/// Decodes a request on a range; the result borrows from the bytes.
///
/// # Errors
/// If the bytes are not a valid request on a range.
pub fn read_keyspace(form: &[u8]) -> Result<KeyspaceRequest<'_>, DecodeError> {
    let mut reader = FrameReader::new(form);
    let request = match reader.u8("kind")? {
        16 => KeyspaceRequest::Count,
        17 => KeyspaceRequest::Scan { cursor: reader.u64("cursor")?, count: reader.u32("count")? },
        18 => KeyspaceRequest::Clear,
        19 => KeyspaceRequest::SetAll(KeyValuePairs::new(reader.rest())?),
        found => return Err(DecodeError::Value { what: "kind", found: u64::from(found) }),
    };
    reader.finish("request")?;
    Ok(request)
}

/// Appends one step of a scan: the cursor to continue with, then the keys.
pub fn put_scan_page<'a>(out: &mut Vec<u8>, cursor: u64, keys: impl Iterator<Item = &'a [u8]>) {
    out.put_u64(cursor);
    for key in keys {
        out.put_u16(key.len() as u16);
        out.extend_from_slice(key);
    }
}

/// The cursor and the keys of a scan's reply; iteration stops at an invalid key.
#[must_use]
pub fn read_scan_page(page: &[u8]) -> Option<(u64, impl Iterator<Item = &[u8]>)> {
    let mut reader = FrameReader::new(page);
    let cursor = reader.u64("cursor").ok()?;
    let keys = core::iter::from_fn(move || {
        let len = reader.u16("key length").ok()?;
        reader.take("key", usize::from(len)).ok()
    });
    Some((cursor, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyspace_request_survives_and_no_prefix_panics() {
        let mut pairs = Vec::new();
        put_pair(&mut pairs, b"key", b"value");
        put_pair(&mut pairs, b"", b"");
        let all = KeyValuePairs::new(&pairs).unwrap_or(KeyValuePairs(&[]));
        assert_eq!(all.iter().collect::<Vec<_>>(), [(&b"key"[..], &b"value"[..]), (b"", b"")]);
        let scan = KeyspaceRequest::Scan { cursor: 1 << 63, count: 9 };
        for request in [KeyspaceRequest::Count, scan, KeyspaceRequest::Clear, KeyspaceRequest::SetAll(all)] {
            let mut bytes = Vec::new();
            put_keyspace(&request, &mut bytes);
            assert!(is_keyspace(&bytes));
            assert_eq!(read_keyspace(&bytes), Ok(request));
            (0..bytes.len()).for_each(|cut| assert!(read_keyspace(&bytes[..cut]) != Ok(request)));
            let is_set_all = matches!(request, KeyspaceRequest::SetAll(_));
            bytes.push(1);
            assert!(read_keyspace(&bytes).is_err() || is_set_all, "trailing bytes");
        }
    }

    #[test]
    fn scan_pages_survive() {
        let mut page = Vec::new();
        put_scan_page(&mut page, 5, [&b"a"[..], b"bc"].into_iter());
        let read = read_scan_page(&page).map(|(cursor, keys)| (cursor, keys.collect::<Vec<_>>()));
        assert_eq!(read, Some((5, alloc::vec![&b"a"[..], b"bc"])));
        assert!(read_scan_page(&page[..7]).is_none());
    }
}

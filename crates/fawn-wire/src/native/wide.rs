//! The binary encoding of requests on a whole range and of atomic batches.
//!
//! ```text
//! kind u8 (16 count, 17 scan, 18 clear, 19 set all) | fields
//! scan:    cursor u64 | count u32        the reply's value: cursor u64 | (key_len u16 | key) …
//! set all: (key_len u16 | value_len u32 | key | value) …
//! ```
use super::bytes::{FormError, Reader, put_u32, put_u64};
use alloc::vec::Vec;
use fawn_types::limits;

/// First kind of the requests on a range; requests on one key have lower kinds.
const FIRST_KIND: u8 = 16;

/// A request on one whole range, or on several of its keys at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WideRequest<'a> {
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
    /// Sets all of these keys or none.
    SetAll(Pairs<'a>),
}

/// Key-value pairs, encoded by [`put_pair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pairs<'a>(&'a [u8]);

impl<'a> Pairs<'a> {
    /// Verifies bytes encoded by [`put_pair`].
    ///
    /// # Errors
    /// If the bytes are not valid pairs.
    pub fn new(bytes: &'a [u8]) -> Result<Self, FormError> {
        let mut reader = Reader(bytes);
        while !reader.is_empty() {
            read_pair(&mut reader)?;
        }
        Ok(Self(bytes))
    }

    /// The keys with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let mut reader = Reader(self.0);
        core::iter::from_fn(move || if reader.is_empty() { None } else { read_pair(&mut reader).ok() })
    }
}

/// Appends a pair. The key must not exceed the key length limit.
pub fn put_pair(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    assert!(key.len() <= limits::KEY_BYTES_MAX, "a key of {} bytes", key.len());
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    put_u32(out, value.len() as u32);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn read_pair<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), FormError> {
    let key_len = usize::from(reader.u16("key length")?);
    let value_len = reader.u32("value length")? as usize;
    Ok((reader.take("key", key_len)?, reader.take("value", value_len)?))
}

/// Whether the message is a request on a range.
#[must_use]
pub fn is_wide(form: &[u8]) -> bool {
    form.first().is_some_and(|kind| *kind >= FIRST_KIND)
}

/// Appends `request`.
pub fn put_wide(request: &WideRequest<'_>, out: &mut Vec<u8>) {
    match *request {
        WideRequest::Count => out.push(FIRST_KIND),
        WideRequest::Scan { cursor, count } => {
            out.push(FIRST_KIND + 1);
            put_u64(out, cursor);
            put_u32(out, count);
        }
        WideRequest::Clear => out.push(FIRST_KIND + 2),
        WideRequest::SetAll(Pairs(pairs)) => {
            out.push(FIRST_KIND + 3);
            out.extend_from_slice(pairs);
        }
    }
}

/// Decodes a request on a range; the result borrows from the bytes.
///
/// # Errors
/// If the bytes are not a valid request on a range.
pub fn read_wide(form: &[u8]) -> Result<WideRequest<'_>, FormError> {
    let mut reader = Reader(form);
    let request = match reader.u8("kind")? {
        16 => WideRequest::Count,
        17 => WideRequest::Scan { cursor: reader.u64("cursor")?, count: reader.u32("count")? },
        18 => WideRequest::Clear,
        19 => WideRequest::SetAll(Pairs::new(reader.rest())?),
        found => return Err(FormError::Field { field: "kind", found: u64::from(found) }),
    };
    reader.finish()?;
    Ok(request)
}

/// Appends one step of a scan: the cursor to continue with, then the keys.
pub fn put_scan_page<'a>(out: &mut Vec<u8>, cursor: u64, keys: impl Iterator<Item = &'a [u8]>) {
    put_u64(out, cursor);
    for key in keys {
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(key);
    }
}

/// The cursor and the keys of a scan's reply; iteration stops at an invalid key.
#[must_use]
pub fn read_scan_page(page: &[u8]) -> Option<(u64, impl Iterator<Item = &[u8]>)> {
    let mut reader = Reader(page);
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
    fn every_wide_request_survives_and_no_prefix_panics() {
        let mut pairs = Vec::new();
        put_pair(&mut pairs, b"key", b"value");
        put_pair(&mut pairs, b"", b"");
        let all = Pairs::new(&pairs).unwrap_or(Pairs(&[]));
        assert_eq!(all.iter().collect::<Vec<_>>(), [(&b"key"[..], &b"value"[..]), (b"", b"")]);
        let scan = WideRequest::Scan { cursor: 1 << 63, count: 9 };
        for request in [WideRequest::Count, scan, WideRequest::Clear, WideRequest::SetAll(all)] {
            let mut bytes = Vec::new();
            put_wide(&request, &mut bytes);
            assert!(is_wide(&bytes));
            assert_eq!(read_wide(&bytes), Ok(request));
            (0..bytes.len()).for_each(|cut| assert!(read_wide(&bytes[..cut]) != Ok(request)));
            let is_set_all = matches!(request, WideRequest::SetAll(_));
            bytes.push(1);
            assert!(read_wide(&bytes).is_err() || is_set_all, "trailing bytes");
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

//! Page of a run: records of one space in the order of their ring keys, under one checksum bound to run and offset.
//!
//! ```text
//! 0 checksum u32 | 4 end of the records u16 | 6 count u16 | 8 records, without gaps | zeros to 4096
//! ```
use super::super::SegmentUuid;
use super::super::bytes::{is_zero, put, u16_at, u32_at};
use super::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RunRecord};
use super::{PAGE_BYTES, page_offset};
use fawn_types::checksum::{checksum32, salt};

/// Length of a page's header, bytes.
pub const PAGE_HEADER_BYTES: usize = 8;
/// Maximum count of records in a page.
pub const RECORDS_MAX: usize = (PAGE_BYTES - PAGE_HEADER_BYTES) / RECORD_HEADER_BYTES;

const _: () = assert!(PAGE_HEADER_BYTES + RECORD_BYTES_MAX <= PAGE_BYTES && RECORDS_MAX <= u16::MAX as usize);

/// Errors of bytes that are not the page written at this place. They never mean that a key is absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunPageError {
    /// The bytes are no whole page.
    #[error("{found} bytes where a page of {PAGE_BYTES} was expected")]
    Truncated {
        /// Bytes given.
        found: usize,
    },
    /// The bytes differ from those that were written here.
    #[error("checksum {found:08x}, expected {expected:08x}; corrupt or misplaced bytes")]
    Checksum {
        /// Computed from the bytes and their place.
        expected: u32,
        /// Stored with them.
        found: u32,
    },
    /// The checksum holds, the content does not.
    #[error("{what}, which this format does not know")]
    Content {
        /// The fault.
        what: &'static str,
    },
}

/// Adds records to a page until it is full.
#[derive(Debug)]
pub struct PageBuilder {
    bytes: Box<[u8; PAGE_BYTES]>,
    end: usize,
    count: u16,
}

impl Default for PageBuilder {
    fn default() -> Self {
        Self { bytes: Box::new([0; PAGE_BYTES]), end: PAGE_HEADER_BYTES, count: 0 }
    }
}

impl PageBuilder {
    /// Whether it has no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of its records and header.
    #[must_use]
    pub const fn used_bytes(&self) -> usize {
        self.end
    }

    /// Whether the record has space left.
    #[must_use]
    pub const fn has_space(&self, record: &RunRecord<'_>) -> bool {
        self.end + record.encoded_len() <= PAGE_BYTES
    }

    /// Adds a record that [has space](Self::has_space).
    pub fn push(&mut self, record: &RunRecord<'_>) {
        self.end += record.encode(&mut self.bytes[self.end..]);
        self.count += 1;
    }

    /// Writes the page to the start of `out`, begins the next one, and returns the checksum.
    pub fn finish(&mut self, uuid: SegmentUuid, page: u32, out: &mut [u8]) -> u32 {
        assert!(!self.is_empty(), "a page has at least one record");
        put(&mut self.bytes[..], 4, &(self.end as u16).to_le_bytes());
        put(&mut self.bytes[..], 6, &self.count.to_le_bytes());
        self.bytes[self.end..].fill(0);
        let checksum = checksum_of(&self.bytes[..], uuid, page);
        put(&mut self.bytes[..], 0, &checksum.to_le_bytes());
        out[..PAGE_BYTES].copy_from_slice(&self.bytes[..]);
        (self.end, self.count) = (PAGE_HEADER_BYTES, 0);
        checksum
    }
}

fn checksum_of(bytes: &[u8], uuid: SegmentUuid, page: u32) -> u32 {
    checksum32(&bytes[4..PAGE_BYTES], salt(uuid.fold(), page_offset(page)))
}

/// A page whose checksum was verified.
#[derive(Clone, Copy, Debug)]
pub struct RunPage<'a> {
    records: &'a [u8],
    count: u16,
    checksum: u32,
}

impl<'a> RunPage<'a> {
    /// Verifies and decodes the page at the start of `bytes`, all its records included.
    ///
    /// # Errors
    /// If these are other bytes than were written there.
    pub fn decode(bytes: &'a [u8], uuid: SegmentUuid, page: u32) -> Result<Self, RunPageError> {
        let Some(bytes) = bytes.get(..PAGE_BYTES) else { return Err(RunPageError::Truncated { found: bytes.len() }) };
        let (expected, found) = (checksum_of(bytes, uuid, page), u32_at(bytes, 0));
        if expected != found {
            return Err(RunPageError::Checksum { expected, found });
        }
        Self::decode_verified(bytes)
    }

    /// As [`Self::decode`] for bytes that it accepted before: skips the checksum, still never panics.
    ///
    /// # Errors
    /// As above, except for the checksum.
    pub fn decode_verified(bytes: &'a [u8]) -> Result<Self, RunPageError> {
        let fault = |what| Err(RunPageError::Content { what });
        let Some(bytes) = bytes.get(..PAGE_BYTES) else { return Err(RunPageError::Truncated { found: bytes.len() }) };
        let (end, count) = (usize::from(u16_at(bytes, 4)), u16_at(bytes, 6));
        if !(PAGE_HEADER_BYTES..=PAGE_BYTES).contains(&end) || count == 0 || !is_zero(&bytes[end..]) {
            return fault("a page of other bounds");
        }
        let page = Self { records: &bytes[PAGE_HEADER_BYTES..end], count, checksum: u32_at(bytes, 0) };
        let mut records = page.records();
        let Some(first) = records.next() else { return fault("a page without a record") };
        let others = records.by_ref().try_fold(1, |n, record| (record.space() == first.space()).then_some(n + 1));
        if others != Some(count) || !records.rest.is_empty() {
            return fault("a record or a count of records");
        }
        Ok(page)
    }

    /// The records in order.
    pub fn records(&self) -> RunRecords<'a> {
        RunRecords { rest: self.records }
    }

    /// Length of its records, bytes.
    #[must_use]
    pub const fn used_bytes(&self) -> usize {
        self.records.len()
    }

    /// Count of the records, at least 1.
    #[must_use]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// The stored checksum, for a [`super::PageChain`].
    #[must_use]
    pub const fn checksum(&self) -> u32 {
        self.checksum
    }

    /// The record of `key`.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<RunRecord<'a>> {
        self.records().find(|record| record.key == key)
    }

    /// The first and the last record.
    #[must_use]
    pub fn ends(&self) -> Option<(RunRecord<'a>, RunRecord<'a>)> {
        let mut records = self.records();
        let first = records.next()?;
        Some((first, records.last().unwrap_or(first)))
    }
}

/// The records of a page, one after the other; ends early at one that is none.
#[derive(Clone, Debug)]
pub struct RunRecords<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for RunRecords<'a> {
    type Item = RunRecord<'a>;

    fn next(&mut self) -> Option<RunRecord<'a>> {
        let (record, len) = RunRecord::decode(self.rest)?;
        self.rest = &self.rest[len..];
        Some(record)
    }
}

//! An open run: identity, counts, fences and filters; opening reads header, footer and tail, and no page. A salvage builds them from
//! the pages.
use super::RunWriterOptions;
use super::fences::{FenceError, Fences};
use super::writer::Contents;
use crate::format::checkpoint::PIECE_BYTES;
use crate::format::run::tail::{FilterParts, decode_facts, decode_pieces};
use crate::format::run::{
    self, FOOTER_BYTES, HEADER_BYTES, PAGES_MAX, RunFooter, RunHeader, Space, decode_footer, decode_header,
    filter_hash, page_offset,
};
use crate::format::segment::RecordFacts;
use crate::format::{HeaderError, SegmentUuid, StoreUuid};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, FileId, IoClass, Token};
use fawn_types::bytes::DecodeError;
use fawn_types::{HashSecret, RingKey};
use std::collections::VecDeque;
use std::ops::Range;

use super::PageSpan;

/// Pages of one read of a salvage: 1 MiB.
const CHUNK_PAGES: usize = 256;
/// Bits per key of the filters that a salvage builds.
const FILTER_BITS: u8 = 10;

/// Error of a run. None of them means that a key is absent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// The device returned an error.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The header or footer is not one of this format: the file was cut short, or is no run.
    #[error("{file}: {error}")]
    Header {
        /// Name of the run's file.
        file: String,
        /// The fault.
        error: HeaderError,
    },
    /// The file is another run's, or another store's.
    #[error("{file}: {what} is {found:02x?}, expected {expected:02x?}; was the file copied from elsewhere?")]
    Foreign {
        /// Name of the run's file.
        file: String,
        /// The uuid that differs.
        what: &'static str,
        /// The uuid expected.
        expected: [u8; 16],
        /// The uuid found.
        found: [u8; 16],
    },
    /// The length of the file is not the one that its footer or the manifest says.
    #[error("{file}: {found_bytes} bytes, expected {expected_bytes}; restore the file from a backup")]
    Length {
        /// Name of the run's file.
        file: String,
        /// Length expected.
        expected_bytes: u64,
        /// Length found.
        found_bytes: u64,
    },
    /// Stored bytes differ from those that were written.
    #[error("{file} is corrupt at byte {offset_bytes}: {detail}")]
    Corrupt {
        /// Name of the run's file.
        file: String,
        /// Offset of the page or piece.
        offset_bytes: u64,
        /// Description of the fault.
        detail: String,
    },
}

/// An open run.
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) name: String,
    pub(super) footer: RunFooter,
    pub(super) secret: HashSecret,
    pub(super) facts: RecordFacts,
    pub(super) fences: Fences,
    pub(super) filters: Vec<FilterParts>,
}

impl Run {
    /// The run with this uuid, from the file's first and last block and the bytes between its last page and the footer.
    ///
    /// # Errors
    /// If they are not those of this run.
    pub fn load(
        expected: RunHeader,
        secret: &HashSecret,
        header: &[u8],
        footer: &[u8],
        tail: &[u8],
    ) -> Result<Self, RunError> {
        let name = run::file_name(expected.uuid);
        let footer = check_ends(&name, expected, header, footer)?;
        let corrupt =
            |detail: String| RunError::Corrupt { file: name.clone(), offset_bytes: footer.tail_offset(), detail };
        let tail = decode_pieces(&footer, tail).map_err(|error: DecodeError| corrupt(error.to_string()))?;
        if tail.facts.records() != footer.records {
            return Err(corrupt(format!("facts of {} records, expected {}", tail.facts.records(), footer.records)));
        }
        let fences = Fences::load(tail.fences, &footer).map_err(|error: FenceError| corrupt(error.to_string()))?;
        Ok(Self { name, footer, secret: *secret, facts: tail.facts, fences, filters: tail.filters })
    }

    /// Opens the run with this identity and length, as the manifest lists it. Blocks; for recovery.
    ///
    /// # Errors
    /// As [`Run::load`], or the device's error.
    pub fn open<D: Device>(
        device: &mut D,
        expected: RunHeader,
        secret: &HashSecret,
        expected_bytes: u64,
    ) -> Result<(Self, FileId), RunError> {
        let file = device.open(&run::file_name(expected.uuid))?;
        let mut read = || Self::read(device, file, expected, secret, expected_bytes);
        // One read may have been misdirected or have failed.
        let run = read().or_else(|_| read());
        if run.is_err() {
            device.close(file);
        }
        Ok((run?, file))
    }

    fn read<D: Device>(
        device: &mut D,
        file: FileId,
        expected: RunHeader,
        secret: &HashSecret,
        expected_bytes: u64,
    ) -> Result<Self, RunError> {
        let name = run::file_name(expected.uuid);
        let found_bytes = device.len(file)?;
        let least = (HEADER_BYTES + FOOTER_BYTES) as u64;
        if found_bytes != expected_bytes || expected_bytes < least {
            return Err(RunError::Length { file: name, expected_bytes: expected_bytes.max(least), found_bytes });
        }
        let header = read(device, file, 0, HEADER_BYTES)?;
        let footer_bytes = read(device, file, expected_bytes - FOOTER_BYTES as u64, FOOTER_BYTES)?;
        let footer = check_ends(&name, expected, &header, &footer_bytes)?;
        if footer.file_bytes() != found_bytes {
            return Err(RunError::Length { file: name, expected_bytes: footer.file_bytes(), found_bytes });
        }
        let tail = match footer.tail_bytes {
            0 => AlignedBuf::zeroed(HEADER_BYTES),
            len => read(device, file, footer.tail_offset(), len as usize)?,
        };
        Self::load(expected, secret, &header, &footer_bytes, &tail[..footer.tail_bytes as usize])
    }

    /// As [`Run::open`], but from intact pages alone: header, tail, footer and the file's length may be others. Returns the number
    /// of records that the run once had, too, if a footer or tail that is intact has it. `None`: no page is intact. For a salvage.
    ///
    /// # Errors
    /// The device's. Pages that cannot be read are as corrupt ones, unless the error is retryable.
    pub fn open_pages<D: Device>(
        device: &mut D,
        expected: RunHeader,
        secret: &HashSecret,
        expected_bytes: u64,
    ) -> Result<Option<(Self, FileId, Option<u64>)>, DeviceError> {
        let file = device.open(&run::file_name(expected.uuid))?;
        let found = Self::read_pages(device, file, expected, secret, expected_bytes);
        if !matches!(found, Ok(Some(_))) {
            device.close(file);
        }
        Ok(found?.map(|(run, records)| (run, file, records)))
    }

    fn read_pages<D: Device>(
        device: &mut D,
        file: FileId,
        expected: RunHeader,
        secret: &HashSecret,
        expected_bytes: u64,
    ) -> Result<Option<(Self, Option<u64>)>, DeviceError> {
        // The blocks between the header and the footer: pages, then the tail, which no page decodes from.
        let blocks = u32::try_from(expected_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX).saturating_sub(2);
        let found_blocks = u32::try_from(device.len(file)?.div_ceil(PAGE_BYTES as u64)).unwrap_or(u32::MAX);
        let end = blocks.min(found_blocks).min(PAGES_MAX);
        let options = RunWriterOptions::new(expected, *secret, FILTER_BITS);
        let mut contents = Contents::empty();
        for first in (0..end).step_by(CHUNK_PAGES) {
            let pages = first..end.min(first + CHUNK_PAGES as u32);
            visit_pages(device, file, pages, &mut |page, bytes| contents.take_page(&options, page, bytes))?;
        }
        contents.end_tail(options.filter_bits);
        let run = contents.into_run(&options);
        if run.footer.pages == 0 {
            return Ok(None);
        }
        let footer = read_left(device, file, page_offset(blocks), FOOTER_BYTES)?;
        let footer = footer.and_then(|bytes| decode_footer(&bytes).ok()).filter(|footer| footer.header == expected);
        let records = match footer {
            Some(footer) => Some(footer.records),
            None => {
                // Behind other pages than the last one is no tail.
                let tail_at = run.footer.tail_offset();
                let piece = read_left(device, file, tail_at, PIECE_BYTES)?;
                piece.and_then(|piece| decode_facts(expected.uuid, tail_at, &piece)).map(|facts| facts.records())
            }
        };
        Ok(Some((run, records)))
    }

    /// The run's identity.
    #[must_use]
    pub const fn header(&self) -> RunHeader {
        self.footer.header
    }

    /// Name of its file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret of its ring keys.
    pub(crate) const fn secret(&self) -> &HashSecret {
        &self.secret
    }

    /// Counts and bounds.
    #[must_use]
    pub const fn footer(&self) -> &RunFooter {
        &self.footer
    }

    /// Facts of its records.
    #[must_use]
    pub const fn facts(&self) -> &RecordFacts {
        &self.facts
    }

    /// The pages that may hold `key`, by the fences alone.
    #[must_use]
    pub fn locate(&self, space: Space, key: &RingKey) -> Option<PageSpan> {
        self.fences.locate(space, key)
    }

    /// Whether the run may hold `key`, by fences and filters; never false for a key that it holds.
    #[must_use]
    pub fn may_contain(&self, space: Space, key: &RingKey) -> bool {
        self.candidates(space, key).is_some()
    }

    /// Whether this page may hold `key`, by fences and filters; never false for the page that holds it.
    #[must_use]
    pub fn may_contain_at(&self, space: Space, key: &RingKey, page: u32) -> bool {
        self.candidates(space, key).is_some_and(|span| (span.first..=span.last).contains(&page))
    }

    /// The pages that may hold keys from `from` to before `to`.
    #[must_use]
    pub fn extent(&self, space: Space, from: &RingKey, to: Option<&RingKey>) -> core::ops::Range<u32> {
        self.fences.extent(space, from, to)
    }

    /// The pages that may hold `key`, by fences and filters.
    pub(super) fn candidates(&self, space: Space, key: &RingKey) -> Option<PageSpan> {
        let span = self.fences.locate(space, key)?;
        let hash = filter_hash(space, key);
        let last = self.filters.partition_point(|filter| filter.first_page <= span.last);
        let first = self.filters[..last].partition_point(|filter| filter.first_page <= span.first).saturating_sub(1);
        self.filters[first..last].iter().any(|filter| filter.may_contain(hash)).then_some(span)
    }

    /// Memory of the run, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.fences_bytes() + self.filters_bytes() + size_of::<Self>() + size_of_val(&*self.facts.numbers)
    }

    /// Memory of its fences, bytes.
    #[must_use]
    pub fn fences_bytes(&self) -> usize {
        self.fences.memory_bytes()
    }

    /// Memory of its filters, bytes.
    #[must_use]
    pub fn filters_bytes(&self) -> usize {
        self.filters.iter().map(FilterParts::memory_bytes).sum()
    }

    pub(crate) fn corrupt(&self, page: u32, detail: impl ToString) -> RunError {
        RunError::Corrupt { file: self.name.clone(), offset_bytes: page_offset(page), detail: detail.to_string() }
    }
}

fn check_ends(name: &str, expected: RunHeader, header: &[u8], footer: &[u8]) -> Result<RunFooter, RunError> {
    let named = |error| RunError::Header { file: name.to_owned(), error };
    let (header, footer) = (decode_header(header).map_err(named)?, decode_footer(footer).map_err(named)?);
    for found in [header, footer.header] {
        let foreign = |what, expected, found| RunError::Foreign { file: name.to_owned(), what, expected, found };
        let (SegmentUuid(uuid), StoreUuid(store)) = (found.uuid, found.store);
        if store != expected.store.0 {
            return Err(foreign("the store's uuid", expected.store.0, store));
        }
        if uuid != expected.uuid.0 {
            return Err(foreign("the run's uuid", expected.uuid.0, uuid));
        }
    }
    Ok(footer)
}

/// Passes pages to `take`, which returns whether they are intact. Others are read again, each by itself: the first read may have failed
/// at another page, or come from another place.
fn visit_pages<D: Device>(
    device: &mut D,
    file: FileId,
    pages: Range<u32>,
    take: &mut impl FnMut(u32, &[u8]) -> bool,
) -> Result<(), DeviceError> {
    let bytes = read_left(device, file, page_offset(pages.start), pages.len() * PAGE_BYTES)?;
    for (at, page) in pages.clone().enumerate() {
        let is_intact = bytes.as_ref().is_some_and(|bytes| take(page, &bytes[at * PAGE_BYTES..]));
        if !is_intact && pages.len() > 1 {
            visit_pages(device, file, page..page + 1, take)?;
        }
    }
    Ok(())
}

/// Reads what can be read; `None`: the disk has lost it.
fn read_left<D: Device>(
    device: &mut D,
    file: FileId,
    offset: u64,
    len_bytes: usize,
) -> Result<Option<AlignedBuf>, DeviceError> {
    match read(device, file, offset, len_bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_retryable() => Err(error),
        Err(_) => Ok(None),
    }
}

fn read<D: Device>(device: &mut D, file: FileId, offset: u64, len_bytes: usize) -> Result<AlignedBuf, DeviceError> {
    const READ: Token = Token(u64::MAX);
    device.submit_read(file, offset, AlignedBuf::zeroed(len_bytes), IoClass::Recovery, READ);
    let mut done = VecDeque::new();
    loop {
        device.wait(&mut done);
        for completion in done.drain(..) {
            assert!(completion.token == READ, "an opening has the device for itself");
            completion.result?;
            if let Some(buf) = completion.buf {
                return Ok(buf);
            }
        }
    }
}

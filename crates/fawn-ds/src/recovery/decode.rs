//! Decoding of the log's records for the opening: everything that needs only a segment's bytes.
use super::work_queue::QueuedWork;
use crate::format::RangeNumber;
use crate::format::frame::FrameHeader;
use crate::format::page_sums::PageSums;
use crate::format::record::{RecordKind, Stored};
use crate::format::scan::{ScanInput, ScanReport, Scanner, Visitor};
use crate::overlay::{IdentPoint, KeyName};
use fawn_flash::AlignedBuf;
use fawn_types::{ClientTag, HashSecret, KeyHash, Version};
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// A record of a verified frame, without the bytes that the index does not need.
#[derive(Clone, Debug)]
pub(super) struct DecodedRecord {
    pub(super) offset: u32,
    /// Bytes up to the next record.
    pub(super) len_bytes: u32,
    pub(super) kind: RecordKind,
    pub(super) number: RangeNumber,
    pub(super) version: Version,
    pub(super) expires_at_ms: u64,
    pub(super) tag: ClientTag,
    pub(super) name: KeyName,
    /// Place in [`DecodedBatch::keys`], of a range that was split or merged.
    key: Range<u32>,
}

/// The store's hashes of keys.
#[derive(Clone, Copy)]
pub(super) struct KeyNames {
    pub(super) secret: HashSecret,
    pub(super) ident_point: IdentPoint,
}

impl KeyNames {
    /// The record, without its key.
    pub(super) fn decoded(&self, offset: u32, stored: &Stored<'_>) -> DecodedRecord {
        let record = &stored.record;
        let hash = KeyHash::of(&self.secret, record.key).0;
        DecodedRecord {
            offset,
            len_bytes: stored.encoded_len as u32,
            kind: record.kind,
            number: stored.envelope.number,
            version: record.version,
            expires_at_ms: record.expires_at_ms,
            tag: record.tag,
            name: KeyName { hash, ident: self.ident_point.ident_of(record.key) },
            key: 0..0,
        }
    }
}

/// The records that end in a part of a segment.
#[derive(Debug, Default)]
pub(super) struct DecodedBatch {
    pub(super) records: Vec<DecodedRecord>,
    keys: Vec<u8>,
}

impl DecodedBatch {
    /// The record's key, if its range was split or merged; else nothing.
    pub(super) fn key_of(&self, record: &DecodedRecord) -> &[u8] {
        &self.keys[record.key.start as usize..record.key.end as usize]
    }

    fn clear(&mut self) {
        self.records.clear();
        self.keys.clear();
    }
}

/// A step of a segment's scan. A batch is an earlier one, for its memory.
#[derive(Debug)]
pub(super) enum DecodeJob {
    Part { input: ScanInput, buf: AlignedBuf, batch: DecodedBatch },
    End { input: ScanInput },
}

/// The result of a [`DecodeJob`].
#[derive(Debug)]
pub(super) enum DecodeResult {
    Batch {
        buf: AlignedBuf,
        batch: DecodedBatch,
    },
    /// The report, and the sums of a segment that takes more frames.
    End {
        report: ScanReport,
        pages: PageSums,
    },
}

/// Scans segments one after the other.
pub(super) struct LogDecoder {
    names: KeyNames,
    /// Only the keys of these numbers tell the range that their records belong to.
    retired: HashSet<RangeNumber, FxBuildHasher>,
    segment: Option<(Scanner, PageSums)>,
}

impl LogDecoder {
    pub(super) const fn new(names: KeyNames, retired: HashSet<RangeNumber, FxBuildHasher>) -> Self {
        Self { names, retired, segment: None }
    }

    fn segment(&mut self, input: ScanInput) -> (Scanner, PageSums) {
        self.segment.take().unwrap_or_else(|| (Scanner::new(input), PageSums::default()))
    }
}

impl QueuedWork for LogDecoder {
    type Job = DecodeJob;
    type Done = DecodeResult;

    fn run(&mut self, job: DecodeJob) -> DecodeResult {
        match job {
            DecodeJob::Part { input, buf, mut batch } => {
                batch.clear();
                let (mut scanner, mut pages) = self.segment(input);
                let is_unsealed = input.sealed_len.is_none();
                let mut visitor =
                    DecodingVisitor { decoder: self, batch: &mut batch, pages: is_unsealed.then_some(&mut pages) };
                scanner.push(&buf, &mut visitor);
                self.segment = Some((scanner, pages));
                DecodeResult::Batch { buf, batch }
            }
            DecodeJob::End { input } => {
                let (scanner, pages) = self.segment(input);
                DecodeResult::End { report: scanner.finish(), pages }
            }
        }
    }
}

struct DecodingVisitor<'d> {
    decoder: &'d LogDecoder,
    batch: &'d mut DecodedBatch,
    pages: Option<&'d mut PageSums>,
}

impl Visitor for DecodingVisitor<'_> {
    fn frame(&mut self, _header: &FrameHeader, bytes: &[u8]) {
        if let Some(pages) = &mut self.pages {
            pages.add(bytes);
        }
    }

    fn record(&mut self, offset: u32, stored: &Stored<'_>) {
        let LogDecoder { names, retired, .. } = self.decoder;
        let DecodedBatch { records, keys } = &mut *self.batch;
        let mut record = names.decoded(offset, stored);
        if retired.contains(&record.number) {
            record.key.start = keys.len() as u32;
            keys.extend_from_slice(stored.record.key);
            record.key.end = keys.len() as u32;
        }
        records.push(record);
    }
}

//! One pass of the scrub over a segment: the scan that an opening makes, and after damage a walk that finds what is lost.
use super::ScrubFinding;
use crate::check::judge_header;
use crate::format::FRAMES_OFFSET;
use crate::format::record::Stored;
use crate::format::scan::{OTHER_RECORDS, ScanInput, Scanner, SegmentVerdict, SyncedLog};
use crate::format::segment::{HEADER_BYTES, SegmentHeader};
use crate::format::walk::{RecordWalk, WalkInput};
use crate::log::segments::Segment;
use core::ops::Range;

/// A pass in progress; its bytes are pushed in order, from the start of the file.
#[derive(Debug)]
pub(super) struct SegmentPass {
    expected: SegmentHeader,
    header: Result<(), String>,
    kind: PassKind,
}

#[derive(Debug)]
enum PassKind {
    /// Judges the segment as a check does.
    Scan(Scanner),
    /// Finds the records that are lost. A scan ended at `offset`; `None`: it could not be read.
    Walk { walk: RecordWalk, offset: Option<u64>, detail: String },
}

/// Result of a pass.
#[derive(Debug)]
pub(super) enum Judged {
    Sound,
    /// The scan ended here.
    Corrupt {
        offset: u64,
        detail: String,
    },
    Lost(Vec<ScrubFinding>),
}

impl SegmentPass {
    pub(super) fn scan(segment: &Segment, expected: SegmentHeader) -> Self {
        let SegmentHeader { uuid, sequence, segment_bytes, .. } = expected;
        let input = ScanInput { uuid, sequence, segment_bytes, sealed_len: Some(segment.end) };
        Self { expected, header: Ok(()), kind: PassKind::Scan(Scanner::new(input)) }
    }

    /// After damage at this offset, or a failed read.
    pub(super) fn walk(segment: &Segment, expected: SegmentHeader, offset: Option<u64>, detail: String) -> Self {
        let input = WalkInput { uuid: segment.uuid, end: segment.end, written: segment.end };
        let kind = PassKind::Walk { walk: RecordWalk::new(input), offset, detail };
        Self { expected, header: Ok(()), kind }
    }

    pub(super) const fn is_scan(&self) -> bool {
        matches!(self.kind, PassKind::Scan(_))
    }

    /// Takes the next bytes of the file, from this offset on.
    pub(super) fn push(&mut self, bytes: &[u8], at: u64) {
        let frames = if at == 0 { &bytes[FRAMES_OFFSET as usize..] } else { bytes };
        if at == 0 {
            self.header = judge_header(&bytes[..HEADER_BYTES], &self.expected);
        }
        match &mut self.kind {
            PassKind::Scan(scanner) => scanner.push(frames, &mut |_: u32, _: &Stored<'_>| {}),
            PassKind::Walk { walk, .. } => walk.push(frames, &mut |_, _| {}),
        }
    }

    /// Ends the pass over the segment.
    pub(super) fn judge(self, segment: &Segment) -> Judged {
        match self.kind {
            PassKind::Scan(scanner) => judge_scan(scanner, self.header, segment),
            PassKind::Walk { walk, offset, detail } => Judged::Lost(lost(walk, self.header, offset, &detail, segment)),
        }
    }

    /// Bytes that wait for the rest of their frame or record.
    pub(super) fn resident_bytes(&self) -> usize {
        match &self.kind {
            PassKind::Scan(scanner) => scanner.resident_bytes(),
            PassKind::Walk { walk, .. } => walk.resident_bytes(),
        }
    }
}

fn judge_scan(scanner: Scanner, header: Result<(), String>, segment: &Segment) -> Judged {
    if let Err(detail) = header {
        return Judged::Corrupt { offset: 0, detail };
    }
    let scan = scanner.finish();
    // The seal proves that all of it was synced: no other evidence is needed.
    let verdict = scan.validate(&SyncedLog::default(), Some(&segment.facts));
    let corrupt_at = |offset, detail| Judged::Corrupt { offset: u64::from(offset), detail };
    match verdict {
        SegmentVerdict::Clean => Judged::Sound,
        SegmentVerdict::OtherRecords => corrupt_at(FRAMES_OFFSET, OTHER_RECORDS.to_owned()),
        SegmentVerdict::TornAt { offset } | SegmentVerdict::CorruptAt { offset, .. } => {
            let why = scan.damage.map_or_else(|| "frames are missing".to_owned(), |error| error.to_string());
            corrupt_at(offset, why)
        }
    }
}

/// The damage of a segment: its header's, and the gaps that a walk found. If a scan refused what has neither, as the padding
/// of a frame, that is a finding too: the next opening refuses it.
fn lost(
    walk: RecordWalk,
    header: Result<(), String>,
    offset: Option<u64>,
    detail: &str,
    segment: &Segment,
) -> Vec<ScrubFinding> {
    let finding = |bytes: Range<u64>, records: u64, detail: &str| {
        let (file, detail) = (segment.name.clone(), detail.to_owned());
        ScrubFinding { file, bytes, records, detail }
    };
    let header = header.err().map(|detail| finding(0..HEADER_BYTES as u64, 1, &detail));
    let gaps = walk.finish(&mut |_, _| {}).gaps;
    // Without a frame header the number of records is unknown.
    let gaps = gaps.iter().map(|gap| {
        let bytes = u64::from(gap.from)..u64::from(gap.to);
        finding(bytes, gap.records.unwrap_or(1).max(1), detail)
    });
    let mut findings: Vec<_> = header.into_iter().chain(gaps).collect();
    if findings.is_empty() {
        findings.extend(offset.map(|offset| finding(offset..offset, 1, detail)));
    }
    findings
}

//! Record walk: visits every intact record of a segment in log order, whatever is between them.
//!
//! A scan ends at the first damage, because nothing behind it may be accepted by an open. A salvage takes all of it:
//! after damage the walk continues at the next bytes that are a frame header or a record of this segment and offset.
//! Their checksums are salted with a keyed UUID, so no client can store a value that passes for a record.
use super::bytes::is_zero;
use super::frame::{self, FrameHeader, HEADER_BYTES};
use super::record::{self, PEEK_BYTES, RecordKind, RecordPlace, Stored, extension};
use super::segment::RecordFacts;
use super::{FRAMES_OFFSET, SegmentUuid, UNIT_BYTES};

/// Bytes that may be hashed in vain while searching, as a multiple of the segment: a value full of bytes that look like
/// records must not cost quadratic time.
const SEARCH_FACTOR: usize = 4;

/// The segment to walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkInput {
    /// The segment's UUID.
    pub uuid: SegmentUuid,
    /// End of the bytes to visit.
    pub end: u32,
    /// End of the bytes that are known to be written: zeros before it are damage. Zeros behind it may be the end.
    pub written: u32,
}

/// Bytes of a segment without an intact record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkGap {
    /// Its first byte.
    pub from: u32,
    /// Its end.
    pub to: u32,
    /// Number of records that were there, if it is known.
    pub records: Option<u64>,
}

/// Result of a walk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WalkReport {
    /// Facts of the records that were visited.
    pub facts: RecordFacts,
    /// Bytes without records, in order.
    pub gaps: Vec<WalkGap>,
    /// The highest generation of the frames with an intact header.
    pub generation: u32,
}

/// A frame whose header is intact.
#[derive(Clone, Copy, Debug)]
struct WalkFrame {
    records_end: u32,
    end: u32,
    /// Records that it was written with, and that were found.
    count: u32,
    found: u32,
    gap: Option<(u32, u32)>,
}

/// The finding at an offset.
enum WalkStep {
    Frame(FrameHeader),
    /// A record of this length.
    Record(usize),
    /// Neither.
    Other,
    /// It takes more bytes to know.
    NeedsMore,
}

/// A walk in progress.
#[derive(Debug)]
pub struct RecordWalk {
    input: WalkInput,
    segment_id: u64,
    /// Offset of the next bytes to look at.
    at: u32,
    /// Bytes from `buf_at` on.
    buf: Vec<u8>,
    buf_at: u32,
    frame: Option<WalkFrame>,
    /// Start of the present gap, and the end of its bytes other than zero.
    gap: Option<u32>,
    gap_data_end: u32,
    /// The present gap began where a frame header was due.
    gap_at_header: bool,
    search_bytes_left: usize,
    report: WalkReport,
}

impl RecordWalk {
    /// Starts a walk; the first bytes pushed are those at [`FRAMES_OFFSET`].
    #[must_use]
    pub fn new(input: WalkInput) -> Self {
        Self {
            input,
            segment_id: input.uuid.fold(),
            at: FRAMES_OFFSET,
            buf: Vec::new(),
            buf_at: FRAMES_OFFSET,
            frame: None,
            gap: None,
            gap_data_end: FRAMES_OFFSET,
            gap_at_header: false,
            search_bytes_left: SEARCH_FACTOR * input.end as usize,
            report: WalkReport::default(),
        }
    }

    /// Takes the next bytes of the segment, and visits the records in them with their offsets.
    pub fn push(&mut self, chunk: &[u8], visit: &mut impl FnMut(u32, &Stored<'_>)) {
        let pushed_to = self.buf_at + self.buf.len() as u32;
        let chunk = &chunk[..chunk.len().min(self.input.end.saturating_sub(pushed_to) as usize)];
        self.buf.extend_from_slice(chunk);
        self.run(visit, false);
        let done = ((self.at - self.buf_at) as usize).min(self.buf.len());
        self.buf.drain(..done);
        self.buf_at += done as u32;
    }

    /// Memory of the bytes that wait for the rest of their record.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.buf.capacity()
    }

    /// Ends the walk.
    pub fn finish(mut self, visit: &mut impl FnMut(u32, &Stored<'_>)) -> WalkReport {
        // Bytes that were never pushed, of a file that was cut short, are missing like damaged ones.
        self.run(visit, true);
        let written = self.input.written.min(self.input.end);
        if self.gap.is_none() && self.at < written {
            self.begin_gap();
        }
        if self.frame.is_some() {
            self.end_frame();
        }
        let to = self.gap_data_end.max(written);
        if self.gap.is_some_and(|from| from < to) {
            self.end_gap(to);
        }
        self.report
    }

    fn run(&mut self, visit: &mut impl FnMut(u32, &Stored<'_>), is_last: bool) {
        let buf = core::mem::take(&mut self.buf);
        while self.at < self.input.end {
            if self.frame.is_some_and(|frame| self.at >= frame.records_end) {
                self.end_frame();
                continue;
            }
            let Some(bytes) = buf.get((self.at - self.buf_at) as usize..).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            match self.step(bytes, is_last) {
                WalkStep::Frame(header) => self.begin_frame(&header),
                WalkStep::Record(len) => self.visit(&bytes[..len], visit),
                WalkStep::Other => self.pass_unit(bytes),
                WalkStep::NeedsMore => break,
            }
        }
        self.buf = buf;
    }

    fn step(&mut self, bytes: &[u8], is_last: bool) -> WalkStep {
        let left = (self.frame.map_or(self.input.end, |frame| frame.records_end) - self.at) as usize;
        let has = |wanted: usize| bytes.len() >= wanted.min(left);
        if !is_last && !has(HEADER_BYTES.max(PEEK_BYTES)) {
            return WalkStep::NeedsMore;
        }
        // A frame has no header within its records: the UUID in it is unguessable.
        if self.frame.is_none()
            && let Ok(header) = frame::decode_header(bytes, self.input.uuid, self.at, self.input.end)
        {
            return WalkStep::Frame(header);
        }
        let Some(len) = plausible_len(bytes).filter(|&len| len <= left) else { return WalkStep::Other };
        let is_searching = self.frame.is_none() || self.gap.is_some();
        if is_searching && self.search_bytes_left < len {
            return WalkStep::Other;
        }
        if bytes.len() < len {
            return if is_last { WalkStep::Other } else { WalkStep::NeedsMore };
        }
        let place = RecordPlace { segment_id: self.segment_id, offset: self.at };
        if record::decode(&bytes[..len], place).is_ok() {
            return WalkStep::Record(len);
        }
        if is_searching {
            self.search_bytes_left -= len;
        }
        WalkStep::Other
    }

    fn begin_frame(&mut self, header: &FrameHeader) {
        self.end_gap(self.at);
        self.report.generation = self.report.generation.max(header.generation);
        self.frame = Some(WalkFrame {
            records_end: self.at + HEADER_BYTES as u32 + header.record_bytes,
            end: header.end(),
            count: header.count,
            found: 0,
            gap: None,
        });
        self.at += HEADER_BYTES as u32;
    }

    fn end_frame(&mut self) {
        let records_end = self.frame.map_or(self.at, |frame| frame.records_end);
        self.end_gap(records_end);
        let Some(frame) = self.frame.take() else { return };
        if frame.found < frame.count {
            let (from, to) = frame.gap.unwrap_or((records_end, records_end));
            let records = Some(u64::from(frame.count - frame.found));
            self.report.gaps.push(WalkGap { from, to, records });
        }
        self.at = frame.end.max(self.at);
    }

    fn visit(&mut self, bytes: &[u8], visit: &mut impl FnMut(u32, &Stored<'_>)) {
        let Ok(stored) = record::decode_verified(bytes, self.at) else { unreachable!("it was decoded just now") };
        self.end_gap(self.at);
        if let Some(frame) = &mut self.frame {
            frame.found += 1;
        }
        self.report.facts.count(stored.envelope.number, &stored.record);
        visit(self.at, &stored);
        self.at += stored.encoded_len as u32;
    }

    fn begin_gap(&mut self) {
        self.gap = Some(self.at);
        self.gap_data_end = self.at;
        self.gap_at_header = self.frame.is_none();
    }

    fn pass_unit(&mut self, bytes: &[u8]) {
        if self.gap.is_none() {
            self.begin_gap();
        }
        let unit = &bytes[..bytes.len().min(UNIT_BYTES)];
        self.at += UNIT_BYTES as u32;
        if !is_zero(unit) {
            self.gap_data_end = self.at;
        }
    }

    fn end_gap(&mut self, to: u32) {
        let Some(from) = self.gap.take() else { return };
        if let Some(frame) = &mut self.frame {
            frame.gap = Some((frame.gap.map_or(from, |(first, _)| first), to));
            return;
        }
        // A gap as long as the header that was due there, and followed by a record, hid no record.
        let is_header = self.gap_at_header && (to - from) as usize == HEADER_BYTES;
        let records = is_header.then_some(0);
        self.report.gaps.push(WalkGap { from, to, records });
    }
}

/// Length of the record that begins here, if the fields that are cheap to check allow one.
fn plausible_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..record::HEADER_BYTES)?;
    RecordKind::from_u8(header[7])?;
    if header[10] & !extension::ALL != 0 || header[11] != 0 {
        return None;
    }
    record::peek_len(bytes).ok()
}

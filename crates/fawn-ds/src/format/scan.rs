//! Segment scan: accepts frames in order up to the first damage, then decides whether that is a torn end or corruption.
//!
//! Pure and streaming: the caller pushes the segment's bytes in order, in chunks of any size. A frame within a chunk is
//! read in place; only a frame that straddles chunks is copied.
//!
//! After the first damage no record is yielded, but the rest is searched for frame headers. Each header tells how far
//! the log was synced when it was written. Damage below that position is corruption of acknowledged data; at or above
//! it is the unfinished end of the log.
use super::bytes::is_zero;
use super::frame::{self, FrameError, FrameHeader, HEADER_BYTES};
use super::record::Stored;
use super::segment::RecordFacts;
use super::{FRAMES_OFFSET, SegmentUuid, UNIT_BYTES, Watermark};
use std::collections::BTreeMap;

/// The segment to scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanInput {
    /// The segment's UUID.
    pub uuid: SegmentUuid,
    /// Its position in the append stream.
    pub sequence: u64,
    /// Its full length, bytes.
    pub segment_bytes: u32,
    /// End of its last frame, if the manifest has it. The frames up to there were synced, and later bytes are not read.
    pub sealed_len: Option<u32>,
}

/// Receiver of a scan's results. A frame precedes its records; frames come in order of their offsets.
pub trait Visitor {
    /// A frame was accepted: its header, and all of its bytes.
    fn frame(&mut self, header: &FrameHeader, bytes: &[u8]) {
        let _ = (header, bytes);
    }

    /// A record of the frame, and its offset in the segment.
    fn record(&mut self, offset: u32, stored: &Stored<'_>);
}

impl<F: FnMut(u32, &Stored<'_>)> Visitor for F {
    fn record(&mut self, offset: u32, stored: &Stored<'_>) {
        self(offset, stored);
    }
}

/// Verdict on a segment's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentVerdict {
    /// Only zeros follow the last frame.
    Clean,
    /// The bytes after the last frame were never known to be synced: truncate the file there, and sync.
    TornAt {
        /// End of the last valid frame.
        offset: u32,
    },
    /// Synced bytes are corrupt: quarantine and report, never truncate.
    CorruptAt {
        /// End of the last valid frame.
        offset: u32,
        /// Synced end of the log.
        watermark: Watermark,
    },
    /// All frames are whole, but they have other records than the manifest lists: never repaired.
    OtherRecords,
}

/// Description of [`SegmentVerdict::OtherRecords`].
pub const OTHER_RECORDS: &str = "its frames are whole, but the manifest lists other facts of its records";

/// Evidence of how far a log was synced: the watermarks of all frames, the segments that have frames, and the end that
/// the manifest records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SyncedLog {
    /// Highest offset known to be synced, by the segment's sequence number.
    offsets: BTreeMap<u64, u32>,
    /// The highest watermark.
    newest: Watermark,
    /// The highest sequence number of a segment with a frame.
    last_with_frames: u64,
}

impl SyncedLog {
    /// Starts with the manifest's end of the log, before any segment was scanned.
    #[must_use]
    pub fn new(end_of_log: Watermark) -> Self {
        let mut known = Self::default();
        known.add_watermark(end_of_log);
        known
    }

    /// Adds the evidence of a scanned segment's frames.
    pub fn add(&mut self, report: &ScanReport) {
        let ScanInput { sequence, segment_bytes, .. } = report.input;
        for watermark in [report.first_watermark, report.watermark] {
            // A watermark at the end of a full segment is written as the start of the next one.
            self.add_watermark(match (watermark.sequence.checked_sub(1), watermark.offset) {
                (Some(sequence), 0) => Watermark { sequence, offset: segment_bytes },
                _ => watermark,
            });
        }
        if report.has_frame() {
            self.last_with_frames = self.last_with_frames.max(sequence);
        }
    }

    fn add_watermark(&mut self, watermark: Watermark) {
        let Watermark { sequence, offset } = watermark;
        self.newest = self.newest.max(watermark);
        let known = self.offsets.entry(sequence).or_default();
        *known = offset.max(*known);
    }

    /// Offset up to which the segment with this sequence number is known to be synced.
    #[must_use]
    pub fn synced_in(&self, sequence: u64) -> u32 {
        // The first frame of a segment is encoded after everything before it was synced.
        let is_whole = sequence < self.newest.sequence.max(self.last_with_frames);
        if is_whole { u32::MAX } else { self.offsets.get(&sequence).copied().unwrap_or_default() }
    }

    /// Evidence that damage at `here` concerns synced bytes, if there is any.
    fn beyond_damage(&self, here: Watermark) -> Option<Watermark> {
        if self.newest > here {
            return Some(self.newest);
        }
        // The first frame of a segment is encoded after everything before it was synced.
        let next = Watermark { sequence: self.last_with_frames, offset: FRAMES_OFFSET };
        (next.sequence > here.sequence).then_some(next)
    }

    /// Evidence that bytes after `here` in its own segment were synced, if there is any.
    fn beyond_zeros(&self, here: Watermark) -> Option<Watermark> {
        let Watermark { sequence, offset: end } = here;
        let offset = *self.offsets.get(&sequence)?;
        (offset > end).then_some(Watermark { sequence, offset })
    }
}

/// Result of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanReport {
    /// The scanned segment.
    pub input: ScanInput,
    /// End of the last valid frame, bytes.
    pub valid_len: u32,
    /// The error there; `None`: only zeros follow.
    pub damage: Option<FrameError>,
    /// The highest watermark of any frame header, including headers after the damage.
    pub watermark: Watermark,
    /// The watermark of the first frame header: the end of the segment before.
    pub first_watermark: Watermark,
    /// The highest generation of any frame header. Above the manifest's, it shows that the manifest lost its end.
    pub generation: u32,
    /// Frames accepted.
    pub frames: u64,
    /// Records yielded.
    pub records: u64,
    /// Facts of these records.
    pub facts: RecordFacts,
}

impl ScanReport {
    /// Whether any frame header was found, with valid records or not.
    #[must_use]
    pub const fn has_frame(&self) -> bool {
        // Generations begin at 1, with the first open.
        self.generation > 0
    }

    /// The verdict, given the evidence of all segments and the manifest, and the facts that the manifest lists.
    #[must_use]
    pub fn validate(&self, known: &SyncedLog, listed: Option<&RecordFacts>) -> SegmentVerdict {
        let (sequence, offset) = (self.input.sequence, self.valid_len);
        let here = Watermark { sequence, offset };
        if let Some(sealed_len) = self.input.sealed_len {
            // A seal proves that the frames up to it were synced; later bytes were not read.
            let watermark = Watermark { sequence, offset: sealed_len };
            return if watermark > here {
                SegmentVerdict::CorruptAt { offset, watermark }
            } else if listed.is_some_and(|listed| *listed != self.facts) {
                SegmentVerdict::OtherRecords
            } else {
                SegmentVerdict::Clean
            };
        }
        // Zeros are damage only below an end recorded for this very segment: otherwise it may have ended here.
        let beyond = known.beyond_zeros(here);
        match (beyond.or_else(|| self.damage.and(known.beyond_damage(here))), self.damage) {
            (Some(watermark), _) => SegmentVerdict::CorruptAt { offset, watermark },
            (None, Some(_)) => SegmentVerdict::TornAt { offset },
            (None, None) => SegmentVerdict::Clean,
        }
    }
}

/// A scan in progress.
#[derive(Debug)]
pub struct Scanner {
    report: ScanReport,
    /// Past the damage: searches for headers only.
    is_searching: bool,
    /// Offset of the first byte not yet consumed.
    offset: u32,
    /// Bytes from `offset` on that need later bytes to be decoded; at most one frame.
    carry: Vec<u8>,
    /// Bytes from `offset` on needed to continue.
    need: usize,
    /// The error at `valid_len`; reported only if bytes other than zero follow.
    suspect: Option<FrameError>,
}

impl Scanner {
    /// Starts a scan; the first bytes pushed are those at [`FRAMES_OFFSET`].
    #[must_use]
    pub fn new(input: ScanInput) -> Self {
        let report = ScanReport {
            input,
            valid_len: FRAMES_OFFSET,
            damage: None,
            watermark: Watermark::NONE,
            first_watermark: Watermark::NONE,
            generation: 0,
            frames: 0,
            records: 0,
            facts: RecordFacts::default(),
        };
        let (carry, suspect) = (Vec::new(), None);
        Self { report, is_searching: false, offset: FRAMES_OFFSET, carry, need: HEADER_BYTES, suspect }
    }

    /// Continues behind the valid frames of an earlier scan of the same segment, to which more may have been appended; the
    /// first bytes pushed are those at [`ScanReport::valid_len`].
    #[must_use]
    pub fn resume(report: ScanReport) -> Self {
        let offset = report.valid_len;
        Self { offset, report: ScanReport { damage: None, ..report.clone() }, ..Self::new(report.input) }
    }

    /// Takes the next bytes of the segment.
    pub fn push(&mut self, chunk: &[u8], visitor: &mut impl Visitor) {
        let mut rest = self.clip(chunk);
        while !rest.is_empty() {
            if self.carry.is_empty() {
                let used = self.consume(rest, visitor);
                self.carry.extend_from_slice(&rest[used..]);
                return;
            }
            // A little more than needed, so that a search leaves the carry and continues in the chunk.
            let wanted = self.need.saturating_sub(self.carry.len()) + HEADER_BYTES;
            let take = wanted.min(rest.len());
            let mut carry = std::mem::take(&mut self.carry);
            carry.extend_from_slice(&rest[..take]);
            if carry.len() < self.need {
                self.carry = carry;
                return;
            }
            let used = self.consume(&carry, visitor);
            let left = carry.len() - used;
            if left <= take {
                rest = &rest[take - left..];
                carry.clear();
            } else {
                carry.drain(..used);
                rest = &rest[take..];
            }
            self.carry = carry;
        }
    }

    /// The part of `chunk` that belongs to the segment.
    fn clip<'a>(&self, chunk: &'a [u8]) -> &'a [u8] {
        let end = self.end() as usize;
        let at = self.offset as usize + self.carry.len();
        &chunk[..chunk.len().min(end.saturating_sub(at))]
    }

    /// End of the bytes to scan.
    fn end(&self) -> u32 {
        let input = &self.report.input;
        input.sealed_len.unwrap_or(input.segment_bytes).min(input.segment_bytes)
    }

    /// Consumes bytes from `self.offset` on as far as possible, and sets `need` for the rest.
    fn consume(&mut self, bytes: &[u8], visitor: &mut impl Visitor) -> usize {
        let mut used = 0;
        while !self.is_searching {
            match self.frame_at(&bytes[used..]) {
                Ok(Some(header)) => {
                    let frame = &bytes[used..used + header.frame_bytes as usize];
                    self.accept(&header, frame, visitor);
                    used += frame.len();
                }
                Ok(None) => return used,
                Err(error) => self.suspect(error),
            }
        }
        used + self.search(&bytes[used..])
    }

    /// A verified frame at the start of `bytes`; `None`: needs more bytes.
    fn frame_at(&mut self, bytes: &[u8]) -> Result<Option<FrameHeader>, FrameError> {
        self.need = HEADER_BYTES;
        if bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let header = frame::decode_header(bytes, self.report.input.uuid, self.offset, self.end())?;
        let (field, expected, found) = ("generation", self.report.generation, header.generation);
        if found < expected {
            let (expected, found) = (u64::from(expected), u64::from(found));
            return Err(FrameError::Field { offset: self.offset, field, expected, found });
        }
        // Bounded: the header was checked against the segment's length.
        self.need = header.frame_bytes as usize;
        if bytes.len() < self.need {
            return Ok(None);
        }
        frame::verify(&header, bytes)?;
        Ok(Some(header))
    }

    fn accept(&mut self, header: &FrameHeader, bytes: &[u8], visitor: &mut impl Visitor) {
        assert_eq!(header.offset, self.offset, "frames follow one another");
        self.offset = header.end();
        self.need = HEADER_BYTES;
        self.note_header(header);
        let report = &mut self.report;
        report.valid_len = header.end();
        report.generation = header.generation;
        report.frames += 1;
        report.records += u64::from(header.count);
        visitor.frame(header, bytes);
        for (offset, stored) in frame::records(header, bytes) {
            report.facts.count(stored.envelope.number, &stored.record);
            visitor.record(offset, &stored);
        }
    }

    /// Ends the acceptance of frames. It was damage only if bytes other than zero follow.
    fn suspect(&mut self, error: FrameError) {
        assert_eq!(self.offset, self.report.valid_len, "damage begins where the good frames end");
        self.suspect = Some(error);
        self.is_searching = true;
        self.need = HEADER_BYTES;
    }

    /// Searches for frame headers at every unit, including the corrupt frame's own; returns the bytes searched.
    fn search(&mut self, bytes: &[u8]) -> usize {
        self.need = HEADER_BYTES;
        if bytes.len() < HEADER_BYTES {
            return 0;
        }
        let done = (bytes.len() - HEADER_BYTES) / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES;
        // Preallocated space is mostly zeros: it is skipped at memory speed.
        if !is_zero(&bytes[..done]) {
            self.report.damage = self.report.damage.or(self.suspect);
            for at in (0..done).step_by(UNIT_BYTES) {
                self.header_at(&bytes[at..], at as u32);
            }
        }
        self.offset += done as u32;
        done
    }

    fn header_at(&mut self, bytes: &[u8], ahead: u32) {
        if !bytes.starts_with(&frame::MAGIC) {
            return;
        }
        let ScanInput { uuid, segment_bytes, .. } = self.report.input;
        if let Ok(header) = frame::decode_header(bytes, uuid, self.offset + ahead, segment_bytes) {
            self.note_header(&header);
        }
    }

    fn note_header(&mut self, header: &FrameHeader) {
        let report = &mut self.report;
        if !report.has_frame() {
            report.first_watermark = header.synced;
        }
        report.watermark = report.watermark.max(header.synced);
        report.generation = report.generation.max(header.generation);
    }

    /// Memory of the bytes that wait for the rest of their frame.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.carry.capacity()
    }

    /// Ends the scan, at the end of the segment or of its file.
    #[must_use]
    pub fn finish(mut self) -> ScanReport {
        let carry = std::mem::take(&mut self.carry);
        if !self.is_searching && !carry.is_empty() {
            let (offset, expected, found) = (self.offset, self.need, carry.len());
            self.suspect(FrameError::Truncated { offset, expected, found });
        }
        let used = self.search(&carry);
        if !is_zero(&carry[used..]) {
            self.report.damage = self.report.damage.or(self.suspect);
        }
        self.report
    }
}

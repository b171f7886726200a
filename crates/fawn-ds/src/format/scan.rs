//! Owns the scan of one segment: frames in order up to the first damage, then the judgement of what lies beyond it.
//!
//! Pure and streaming: the caller pushes the segment's bytes in chunks of any size, in order. Whole frames inside a
//! chunk are read where they lie; only one that straddles chunks is copied. After the first damage nothing more is
//! yielded, but the rest is still searched for frame headers, because each tells how far the log was synced when it was
//! written: damage below that is corruption of promised data, at or above it the unfinished end of the log.
use super::bytes::is_zero;
use super::frame::{self, FrameError, FrameHeader, HEADER_BYTES};
use super::record::Stored;
use super::{FRAMES_OFFSET, SegmentUuid, UNIT_BYTES, Watermark};
use std::collections::BTreeMap;

/// Which bytes a scan is about to be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanInput {
    /// The segment's name.
    pub uuid: SegmentUuid,
    /// Its place in the append stream.
    pub sequence: u64,
    /// Its full length, bytes.
    pub segment_bytes: u32,
    /// Where its last frame ends, if the manifest says so; then all of that was synced, and nothing beyond is read.
    pub sealed_len: Option<u32>,
}

/// What a scan yields. Frames come before their records, in order of their offsets.
pub trait Visitor {
    /// A frame was accepted.
    fn frame(&mut self, header: &FrameHeader) {
        let _ = header;
    }

    /// A record of the frame, and where it lies in the segment.
    fn record(&mut self, offset: u32, stored: &Stored<'_>);
}

impl<F: FnMut(u32, &Stored<'_>)> Visitor for F {
    fn record(&mut self, offset: u32, stored: &Stored<'_>) {
        self(offset, stored);
    }
}

/// What to do about a segment's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentVerdict {
    /// Nothing but zeros follows the last frame.
    Clean,
    /// What follows was never known to be synced: cut the segment here, physically, and sync.
    TornAt {
        /// Where the last good frame ends.
        offset: u32,
    },
    /// Something that was synced is corrupt: quarantine and report, never cut.
    CorruptAt {
        /// Where the last good frame ends.
        offset: u32,
        /// How far the log was synced.
        watermark: Watermark,
    },
}

/// How far a log is known to have been synced: by the watermarks of all frames, by which segments have frames at all,
/// and by the end that the manifest records.
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
    /// What the manifest says, before any segment was scanned.
    #[must_use]
    pub fn new(end_of_log: Watermark) -> Self {
        let mut known = Self::default();
        known.add_watermark(end_of_log);
        known
    }

    /// Adds what the frames of a scanned segment say.
    pub fn add(&mut self, report: &ScanReport) {
        let ScanInput { sequence, segment_bytes, .. } = report.input;
        for watermark in [report.first_watermark, report.watermark] {
            // The end of a full segment is written as the start of the next one.
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

    /// How far damage at `here` proves to be damage to synced bytes.
    fn beyond_damage(&self, here: Watermark) -> Option<Watermark> {
        if self.newest > here {
            return Some(self.newest);
        }
        // The first frame of a segment is encoded when everything before it is synced.
        let next = Watermark { sequence: self.last_with_frames, offset: FRAMES_OFFSET };
        (next.sequence > here.sequence).then_some(next)
    }

    /// How far the segment of `here` is known to be synced, if that is beyond `here`.
    fn beyond_zeros(&self, here: Watermark) -> Option<Watermark> {
        let Watermark { sequence, offset: end } = here;
        let offset = *self.offsets.get(&sequence)?;
        (offset > end).then_some(Watermark { sequence, offset })
    }
}

/// What a scan found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanReport {
    /// What was scanned.
    pub input: ScanInput,
    /// Where the last good frame ends, bytes.
    pub valid_len: u32,
    /// What is wrong there; `None`: only zeros follow.
    pub damage: Option<FrameError>,
    /// The highest watermark of any frame header, beyond the damage included.
    pub watermark: Watermark,
    /// The watermark of the first frame header: where the segment before ended.
    pub first_watermark: Watermark,
    /// The highest generation of any frame header; one above the manifest's says that the manifest lost its tail.
    pub generation: u32,
    /// Frames accepted.
    pub frames: u64,
    /// Records yielded.
    pub records: u64,
}

impl ScanReport {
    /// Whether any frame header was found, whatever became of its records.
    #[must_use]
    pub const fn has_frame(&self) -> bool {
        // Generations begin at 1, with the first opening.
        self.generation > 0
    }

    /// The verdict, given what all segments and the manifest say about how far the log was synced.
    #[must_use]
    pub fn validate(&self, known: &SyncedLog) -> SegmentVerdict {
        let (sequence, offset) = (self.input.sequence, self.valid_len);
        let here = Watermark { sequence, offset };
        if let Some(sealed_len) = self.input.sealed_len {
            // All of it was synced before it was sealed, and nothing beyond was read.
            let watermark = Watermark { sequence, offset: sealed_len };
            return if watermark > here {
                SegmentVerdict::CorruptAt { offset, watermark }
            } else {
                SegmentVerdict::Clean
            };
        }
        // Zeros count as damage only below an end that is known for this very segment: it may have ended just there.
        let beyond = known.beyond_zeros(here);
        match (beyond.or_else(|| self.damage.and(known.beyond_damage(here))), self.damage) {
            (Some(watermark), _) => SegmentVerdict::CorruptAt { offset, watermark },
            (None, Some(_)) => SegmentVerdict::TornAt { offset },
            (None, None) => SegmentVerdict::Clean,
        }
    }
}

/// A scan under way.
#[derive(Debug)]
pub struct Scanner {
    report: ScanReport,
    /// The damage is behind; only headers are looked for.
    is_searching: bool,
    /// Of the first byte not yet consumed.
    offset: u32,
    /// Bytes from `offset` on that could not be judged alone; at most one frame.
    carry: Vec<u8>,
    /// Bytes from `offset` on that are needed to go on.
    need: usize,
    /// The error at `valid_len`, to be reported if anything but zeros follows.
    suspect: Option<FrameError>,
}

impl Scanner {
    /// A scan that expects the segment's bytes from [`FRAMES_OFFSET`] on.
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
        };
        let (carry, suspect) = (Vec::new(), None);
        Self { report, is_searching: false, offset: FRAMES_OFFSET, carry, need: HEADER_BYTES, suspect }
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
            // A little more than needed, so that a search gets out of the carry and back into the chunk.
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

    /// Where the bytes that count end.
    fn end(&self) -> u32 {
        let input = &self.report.input;
        input.sealed_len.unwrap_or(input.segment_bytes).min(input.segment_bytes)
    }

    /// Consumes what it can of `bytes`, which begin at `self.offset`; leaves in `need` what it must see to go on.
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

    /// A verified frame at the start of `bytes`; `None`: more bytes are needed.
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
        // Bounded by the segment's length, which the header was checked against.
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
        visitor.frame(header);
        for (offset, stored) in frame::records(header, bytes) {
            visitor.record(offset, &stored);
        }
    }

    /// From here on nothing is accepted; whether it is damage depends on whether anything but zeros is found.
    fn suspect(&mut self, error: FrameError) {
        assert_eq!(self.offset, self.report.valid_len, "damage begins where the good frames end");
        self.suspect = Some(error);
        self.is_searching = true;
        self.need = HEADER_BYTES;
    }

    /// Looks for frame headers at every unit, the corrupt frame's own included; returns how much it is done with.
    fn search(&mut self, bytes: &[u8]) -> usize {
        self.need = HEADER_BYTES;
        if bytes.len() < HEADER_BYTES {
            return 0;
        }
        let done = (bytes.len() - HEADER_BYTES) / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES;
        // Preallocated space is zeros, mostly: passed at the speed of memory.
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

    /// The end of the segment, or of its file: what was found.
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

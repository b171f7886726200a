//! Record bytes without device I/O: from the append window, the read just resumed, or the page cache.
use super::Engine;
use crate::error::EngineError;
use crate::format::record::{self, PEEK_BYTES, RecordError, RecordKind, RecordPlace, Stored};
use crate::index::Pointer;
use crate::log::segments::Segment;
use crate::options::Options;
use crate::overlay::KeyName;
use core::ops::Range;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, PageCache};
use fawn_types::{KeyHash, Version};

/// Longest record assembled from cached pages, bytes; longer ones bypass the cache.
pub(crate) const GATHER_BYTES_MAX: usize = 64 << 10;

/// Whole pages of one segment, or of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadSpan {
    pub(crate) slot: u32,
    /// The segment's sequence number: the slot may hold another segment by the time of the read.
    pub(crate) sequence: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Pages from this offset on were not wholly written at submission, and are not cached.
    pub(crate) cacheable_to: u32,
    /// Second read: the record turned out longer than 99.9 % of its segment's records.
    pub(crate) is_second: bool,
}

/// Bytes of a finished device read, for the lookup that requested them.
#[derive(Debug)]
pub(crate) struct FetchResume {
    pub(crate) span: ReadSpan,
    pub(crate) buf: AlignedBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    Window { slot: u32, offset: u32 },
    Resume { at: usize },
    Scratch,
}

/// A record that matched the lookup.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) location: Location,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    /// Value's range, from the record's start.
    pub(crate) value: Range<usize>,
    /// Key length; the key ends where the value begins.
    pub(crate) key_bytes: usize,
    pub(crate) flags: u32,
    pub(crate) expires_at_ms: u64,
    pub(crate) version: Version,
    pub(crate) kind: RecordKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'k> {
    Key(&'k [u8]),
    Name(KeyName),
    Any,
}

/// Candidates already examined: pointer, segment sequence number, and the corruption or the failed read, if any. A resumed lookup
/// does not read them again; without this list it could alternate between two candidates forever.
pub(crate) type Rejected = Vec<(Pointer, u64, Option<Box<EngineError>>)>;

/// Result of examining one candidate.
#[derive(Debug)]
pub(crate) enum Probe {
    Match(Hit),
    /// Another key's record.
    Other,
    /// Needs a device read.
    Missing(ReadSpan),
}

/// Result of a read attempt in memory, with the found key's hash where it is another key's record.
enum MemoryRead {
    Judged(Result<Option<Hit>, RecordError>, u64),
    Missing(ReadSpan),
}

impl<D: Device> Engine<D> {
    /// Examines the record at `pointer` and compares it with `expected`.
    ///
    /// If another key's record cannot be reached from its own key through the index, it is corruption, not a collision.
    pub(crate) fn probe(&mut self, at: usize, pointer: Pointer, expected: Expected<'_>) -> Result<Probe, EngineError> {
        let (slot, offset) = self.segments.slot_and_offset(pointer);
        let (judged, found_hash) = match self.read_in_memory(pointer, slot, offset, expected) {
            MemoryRead::Missing(span) => return Ok(Probe::Missing(span)),
            MemoryRead::Judged(judged, found_hash) => (judged, found_hash),
        };
        match judged {
            Ok(Some(hit)) => Ok(Probe::Match(hit)),
            Ok(None) => {
                self.stats.false_matches += 1;
                let leads_here = self.candidates(at, KeyHash(found_hash)).any(|found| found == pointer);
                if leads_here {
                    Ok(Probe::Other)
                } else {
                    Err(self.unreachable_record(slot, offset, "its key leads elsewhere"))
                }
            }
            Err(error) => Err(self.unreachable_record(slot, offset, &error.to_string())),
        }
    }

    /// As [`Engine::corrupt`]. Drops the cached pages of the record, because only this one read may have been wrong.
    fn unreachable_record(&mut self, slot: u32, offset: u32, detail: &str) -> EngineError {
        self.set_resume(None);
        let (file, page) = (self.segments.expect(slot).file, offset / PAGE_BYTES as u32);
        self.cache.invalidate_pages(file, page..page + (GATHER_BYTES_MAX / PAGE_BYTES) as u32 + 1);
        self.corrupt(slot, offset, detail)
    }

    /// As [`Engine::probe`]; remembers candidates that did not match, and skips them.
    pub(crate) fn probe_once(
        &mut self,
        at: usize,
        pointer: Pointer,
        expected: Expected<'_>,
        rejected: &mut Rejected,
    ) -> Result<Probe, EngineError> {
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        let is_it = |judged: &&(Pointer, u64, _)| judged.0 == pointer && judged.1 == sequence;
        if let Some((_, _, damage)) = rejected.iter().find(is_it) {
            return damage.as_ref().map_or(Ok(Probe::Other), |damage| Err((**damage).clone()));
        }
        let look = self.probe(at, pointer, expected);
        match &look {
            Ok(Probe::Other) => rejected.push((pointer, sequence, None)),
            Err(damage) => rejected.push((pointer, sequence, Some(Box::new(damage.clone())))),
            Ok(Probe::Match(_) | Probe::Missing(_)) => {}
        }
        look
    }

    pub(crate) fn corrupt(&self, slot: u32, offset_bytes: u32, detail: &str) -> EngineError {
        let file = self.segments.expect(slot).name.clone();
        EngineError::Corrupt { file, offset_bytes, detail: detail.to_owned() }
    }

    fn read_in_memory(&mut self, pointer: Pointer, slot: u32, offset: u32, expected: Expected<'_>) -> MemoryRead {
        // A record that is not in the window was written whole. A read beyond that would be repeated for ever, because
        // no read returns bytes that were not written at its submission.
        let written_to = self.cacheable_to(slot);
        let segment = self.segments.expect(slot);
        let end = segment.end.min(written_to);
        let place = RecordPlace { segment_id: segment.id, offset };
        let (secret, ident_point) = (&self.secret, self.ident_point);
        let judge = |stored: Stored<'_>, bytes: &[u8], location: Location| {
            let found = stored.record.key;
            let is_wanted = match expected {
                Expected::Key(key) => found == key,
                Expected::Name(name) => {
                    KeyHash::of(secret, found).0 == name.hash && ident_point.ident_of(found) == name.ident
                }
                Expected::Any => true,
            };
            if !is_wanted {
                return (None, KeyHash::of(secret, found).0);
            }
            (Some(hit_of(&stored, bytes, pointer, location)), 0)
        };
        if let Some(bytes) = self.streams[segment.stream].window.record(slot, offset) {
            // This process encoded the record, and it has not left memory since: no checksum needed.
            let read = record::decode_verified(bytes, offset);
            return read_of(read.map(|stored| judge(stored, bytes, Location::Window { slot, offset })));
        }
        if let Some((bytes, start)) = resumed(self.resume.as_ref(), segment.sequence, slot, offset) {
            match record::decode(bytes, place) {
                Err(RecordError::Truncated { .. }) => return longer(segment, end, bytes, place, &self.options),
                read => return read_of(read.map(|stored| judge(stored, bytes, Location::Resume { at: start }))),
            }
        }
        let page = offset / PAGE_BYTES as u32;
        let within = offset as usize % PAGE_BYTES;
        let Some(bytes) = self.cache.get(segment.file, page).map(|page| &page[within..]) else {
            let (from, to) = segment.first_read(offset, self.options.segment_bytes);
            return MemoryRead::Missing(ReadSpan::new(segment, from, to, false));
        };
        match record::decode(bytes, place) {
            Err(RecordError::Truncated { .. }) => {}
            read => {
                self.scratch.clear();
                if let Ok(stored) = &read {
                    self.scratch.extend_from_slice(&bytes[..stored.encoded_len]);
                }
                return read_of(read.map(|stored| judge(stored, bytes, Location::Scratch)));
            }
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(bytes);
        let gathered = gather(&mut self.scratch, &mut self.cache, segment, end, place, &self.options);
        match gathered {
            SpanBytes::Missing(span) => MemoryRead::Missing(span),
            SpanBytes::Whole => {
                let read = record::decode(&self.scratch, place);
                read_of(read.map(|stored| judge(stored, &self.scratch, Location::Scratch)))
            }
        }
    }

    /// The record's bytes if it is in the append window of its segment's stream.
    #[inline]
    pub(crate) fn in_window(&self, slot: u32, offset: u32) -> Option<&[u8]> {
        self.streams[self.segments.get(slot)?.stream].window.record(slot, offset)
    }

    /// Bytes at the location, from the record's start.
    pub(crate) fn bytes_at(&self, location: Location) -> &[u8] {
        match location {
            Location::Window { slot, offset } => self.in_window(slot, offset).unwrap_or(&[]),
            Location::Resume { at } => self.resume.as_ref().map_or(&[], |resume| &resume.buf[at..]),
            Location::Scratch => &self.scratch,
        }
    }
}

/// In place of a slot: the span is of a run, and its sequence number is the run's id.
const RUN_SLOT: u32 = u32::MAX;

impl ReadSpan {
    /// A page of a run.
    pub(crate) const fn of_run(id: u64, offset: u64, is_second: bool) -> Self {
        let from = offset as u32;
        Self { slot: RUN_SLOT, sequence: id, from, to: from + PAGE_BYTES as u32, cacheable_to: u32::MAX, is_second }
    }

    /// The run that it is of, if it is of one.
    pub(crate) fn run(&self) -> Option<u64> {
        (self.slot == RUN_SLOT).then_some(self.sequence)
    }

    /// Whether both have a page in common.
    pub(crate) const fn overlaps(&self, other: &Self) -> bool {
        self.is_of_file_of(other) && self.from < other.to && other.from < self.to
    }

    /// Whether it has all pages of the other one.
    pub(crate) const fn contains(&self, other: &Self) -> bool {
        self.is_of_file_of(other) && self.from <= other.from && other.to <= self.to
    }

    const fn is_of_file_of(&self, other: &Self) -> bool {
        self.sequence == other.sequence && self.slot == other.slot
    }

    fn new(segment: &Segment, from: u32, to: u32, is_second: bool) -> Self {
        let (slot, sequence) = (segment.slot, segment.sequence);
        Self { slot, sequence, from, to, cacheable_to: 0, is_second }
    }

    /// The pages of `offset..end`, known to hold one record.
    fn covering(segment: &Segment, offset: u32, end: u32, segment_bytes: u32) -> Self {
        let page = PAGE_BYTES as u32;
        let to = end.next_multiple_of(page).min(segment_bytes);
        Self::new(segment, offset - offset % page, to, true)
    }

    pub(crate) fn len(&self) -> usize {
        (self.to - self.from) as usize
    }
}

enum SpanBytes {
    Whole,
    Missing(ReadSpan),
}

/// Bytes needed to decode the record at `offset`. If `bytes` does not reach the length fields: the longest header, but
/// not past the end of what is written, where the last record may be shorter than that.
fn wanted_len(written_end: u32, offset: u32, bytes: &[u8]) -> usize {
    let left = written_end.saturating_sub(offset) as usize;
    record::peek_len(bytes).unwrap_or(PEEK_BYTES.min(left))
}

/// Appends cached pages to `scratch` until the record is whole; `scratch` holds its first bytes up to a page's end. A
/// length past the end of what is written is corruption: the bytes are returned as they are, and fail to decode.
fn gather(
    scratch: &mut Vec<u8>,
    cache: &mut PageCache,
    segment: &Segment,
    written_end: u32,
    place: RecordPlace,
    options: &Options,
) -> SpanBytes {
    let offset = place.offset;
    loop {
        let len = wanted_len(written_end, offset, scratch);
        let end = offset as usize + len;
        if len <= scratch.len() || end > written_end as usize {
            return SpanBytes::Whole;
        }
        let span = ReadSpan::covering(segment, offset, end as u32, options.segment_bytes);
        if len > GATHER_BYTES_MAX {
            return SpanBytes::Missing(span);
        }
        let next = (offset as usize + scratch.len()) / PAGE_BYTES;
        let Some(page) = cache.get(segment.file, next as u32) else {
            // The header itself is cut off, so the segment's usual record length is the better estimate.
            let (_, to) = segment.first_read(offset, options.segment_bytes);
            return SpanBytes::Missing(ReadSpan { to: span.to.max(to), is_second: false, ..span });
        };
        scratch.extend_from_slice(&page[..]);
    }
}

fn hit_of(stored: &Stored<'_>, bytes: &[u8], pointer: Pointer, location: Location) -> Hit {
    let record = &stored.record;
    let value_at = record.value.as_ptr() as usize - bytes.as_ptr() as usize;
    Hit {
        location,
        pointer,
        len_bytes: stored.encoded_len as u32,
        value: value_at..value_at + record.value.len(),
        key_bytes: record.key.len(),
        flags: record.flags,
        expires_at_ms: record.expires_at_ms,
        version: record.version,
        kind: record.kind,
    }
}

fn read_of<T: Into<(Option<Hit>, u64)>>(read: Result<T, RecordError>) -> MemoryRead {
    match read.map(Into::into) {
        Ok((hit, found_hash)) => MemoryRead::Judged(Ok(hit), found_hash),
        Err(error) => MemoryRead::Judged(Err(error), 0),
    }
}

fn past_end(offset: u32, len: usize) -> RecordError {
    RecordError::Field { offset, field: "length past what is written of the segment", found: len as u64 }
}

/// The bytes from `offset` on, and their position in the read just resumed, if that covers them.
fn resumed(resume: Option<&FetchResume>, sequence: u64, slot: u32, offset: u32) -> Option<(&[u8], usize)> {
    let resume = resume?;
    let ReadSpan { from, .. } = resume.span;
    // Bytes that were not written when the read was submitted may be anything.
    let to = resume.span.to.min(resume.span.cacheable_to);
    let covers = resume.span.slot == slot && resume.span.sequence == sequence && from <= offset && offset < to;
    let start = offset.checked_sub(from)? as usize;
    covers.then(|| (&resume.buf[start..(to - from) as usize], start))
}

/// The second read of a record for which the first was too short.
fn longer(segment: &Segment, written_end: u32, bytes: &[u8], place: RecordPlace, options: &Options) -> MemoryRead {
    let len = wanted_len(written_end, place.offset, bytes);
    let end = place.offset as usize + len;
    if len <= bytes.len() || end > written_end as usize {
        // A second read cannot help: the length itself is corrupt.
        return MemoryRead::Judged(Err(past_end(place.offset, len)), 0);
    }
    MemoryRead::Missing(ReadSpan::covering(segment, place.offset, end as u32, options.segment_bytes))
}

//! Owns finding a record's bytes without the device: append window, the read just resumed, page cache.
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

/// Records up to this length are put together from cached pages; longer ones are read past the cache, bytes.
pub(crate) const GATHER_BYTES_MAX: usize = 64 << 10;

/// Whole pages of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadSpan {
    pub(crate) slot: u32,
    /// Of its segment: the slot may have another by the time it is read.
    pub(crate) sequence: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Pages from here on were not wholly flushed when it was submitted: they are not cached.
    pub(crate) cacheable_to: u32,
    /// The record turned out longer than 99.9 % of its segment's.
    pub(crate) is_second: bool,
}

/// Bytes that a device read brought, kept while the lookup that asked for them goes on.
#[derive(Debug)]
pub(crate) struct FetchResume {
    pub(crate) span: ReadSpan,
    pub(crate) buf: AlignedBuf,
}

/// Where a record's bytes are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    Window { slot: u32, offset: u32 },
    Resume { at: usize },
    Scratch,
}

/// A record that is the one looked for.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) location: Location,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    /// Of the value, from the record's start.
    pub(crate) value: Range<usize>,
    /// Of the key, which ends where the value begins.
    pub(crate) key_bytes: usize,
    pub(crate) flags: u32,
    pub(crate) expires_at_ms: u64,
    pub(crate) version: Version,
    pub(crate) kind: RecordKind,
}

/// Whose record is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'k> {
    Key(&'k [u8]),
    Name(KeyName),
    Any,
}

/// Candidates already judged, with their segments' sequence numbers and what is corrupt about them, if anything: they
/// are not read again when a lookup goes on, which without them could alternate between two candidates for ever.
pub(crate) type Rejected = Vec<(Pointer, u64, Option<Box<EngineError>>)>;

/// What looking at a candidate gave.
#[derive(Debug)]
pub(crate) enum Probe {
    Match(Hit),
    /// Another key's record.
    Other,
    /// The device has to be asked.
    Missing(ReadSpan),
}

/// What was learnt of a record without keeping hold of its bytes.
enum MemoryRead {
    Judged(Result<Option<Hit>, RecordError>, u64),
    Missing(ReadSpan),
}

impl<D: Device> Engine<D> {
    /// Looks at the record at `pointer`: is it `wanted`'s?
    ///
    /// A candidate whose own key does not lead to it through the index is damage, not a collision.
    pub(crate) fn probe(&mut self, at: usize, pointer: Pointer, expected: Expected<'_>) -> Result<Probe, EngineError> {
        let (slot, offset) = self.segments.place(pointer);
        let (judged, found_hash) = match self.read_in_memory(pointer, slot, offset, expected) {
            MemoryRead::Missing(span) => return Ok(Probe::Missing(span)),
            MemoryRead::Judged(judged, found_hash) => (judged, found_hash),
        };
        match judged {
            Ok(Some(hit)) => Ok(Probe::Match(hit)),
            Ok(None) => {
                self.stats.false_matches += 1;
                let leads_here = self.ranges[at].index.candidates(KeyHash(found_hash)).any(|found| found == pointer);
                if leads_here {
                    Ok(Probe::Other)
                } else {
                    Err(self.unreachable_record(slot, offset, "its key leads elsewhere"))
                }
            }
            Err(error) => Err(self.unreachable_record(slot, offset, &error.to_string())),
        }
    }

    /// As [`Engine::corrupt`]; what memory has of the record is forgotten: perhaps only that read went wrong.
    fn unreachable_record(&mut self, slot: u32, offset: u32, detail: &str) -> EngineError {
        self.set_resume(None);
        let (file, page) = (self.segments.expect(slot).file, offset / PAGE_BYTES as u32);
        self.cache.invalidate_pages(file, page..page + (GATHER_BYTES_MAX / PAGE_BYTES) as u32 + 1);
        self.corrupt(slot, offset, detail)
    }

    /// As [`Engine::probe`], remembering and skipping what is another key's.
    pub(crate) fn probe_once(
        &mut self,
        at: usize,
        pointer: Pointer,
        expected: Expected<'_>,
        rejected: &mut Rejected,
    ) -> Result<Probe, EngineError> {
        let sequence = self.segments.expect(self.segments.place(pointer).0).sequence;
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
        let segment = self.segments.expect(slot);
        let place = RecordPlace { segment_id: segment.id, offset };
        let (secret, ident_secret) = (&self.secret, &self.ident_secret);
        let judge = |stored: Stored<'_>, bytes: &[u8], location: Location| {
            let found = stored.record.key;
            let is_wanted = match expected {
                Expected::Key(key) => found == key,
                Expected::Name(name) => {
                    KeyHash::of(secret, found).0 == name.hash && KeyHash::of(ident_secret, found).0 == name.ident
                }
                Expected::Any => true,
            };
            if !is_wanted {
                return (None, KeyHash::of(secret, found).0);
            }
            (Some(hit_of(&stored, bytes, pointer, location)), 0)
        };
        if let Some(bytes) = self.window.record(slot, offset) {
            // Encoded by this process and never out of its memory since: the checksum has nothing to tell.
            let read = record::decode_verified(bytes, offset);
            return read_of(read.map(|stored| judge(stored, bytes, Location::Window { slot, offset })));
        }
        if let Some((bytes, start)) = resumed(self.resume.as_ref(), segment.sequence, slot, offset) {
            match record::decode(bytes, place) {
                Err(RecordError::Truncated { .. }) => return longer(segment, slot, bytes, place, &self.options),
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
        let gathered = gather(&mut self.scratch, &mut self.cache, segment, place, &self.options);
        match gathered {
            SpanBytes::Missing(span) => MemoryRead::Missing(span),
            SpanBytes::Whole => {
                let read = record::decode(&self.scratch, place);
                read_of(read.map(|stored| judge(stored, &self.scratch, Location::Scratch)))
            }
        }
    }

    /// The bytes of a record that was found, from its start.
    pub(crate) fn bytes_at(&self, location: Location) -> &[u8] {
        match location {
            Location::Window { slot, offset } => self.window.record(slot, offset).unwrap_or(&[]),
            Location::Resume { at } => self.resume.as_ref().map_or(&[], |resume| &resume.buf[at..]),
            Location::Scratch => &self.scratch,
        }
    }
}

impl ReadSpan {
    fn new(segment: &Segment, from: u32, to: u32, is_second: bool) -> Self {
        let (slot, sequence) = (segment.slot, segment.sequence);
        Self { slot, sequence, from, to, cacheable_to: 0, is_second }
    }

    /// The pages of `offset..end`, known to be one record's.
    fn covering(segment: &Segment, offset: u32, end: u32, segment_bytes: u32) -> Self {
        let page = PAGE_BYTES as u32;
        let to = end.next_multiple_of(page).min(segment_bytes);
        Self::new(segment, offset - offset % page, to, true)
    }

    pub(crate) fn len(&self) -> usize {
        (self.to - self.from) as usize
    }
}

/// What putting a record together from cached pages came to.
enum SpanBytes {
    Whole,
    Missing(ReadSpan),
}

/// Bytes of the record at `offset` that must be at hand. Where those there do not reach its lengths, those that surely
/// do, but not past the segment's end: its last record may be shorter than the longest header.
fn wanted_len(segment: &Segment, offset: u32, bytes: &[u8]) -> usize {
    let left = segment.end.saturating_sub(offset) as usize;
    record::peek_len(bytes).unwrap_or(PEEK_BYTES.min(left))
}

/// Appends cached pages to `scratch`, which holds a record's first bytes up to a page's end, until it is whole. A length
/// past the segment's end is damage: what is there is as whole as it gets, and will not decode.
fn gather(
    scratch: &mut Vec<u8>,
    cache: &mut PageCache,
    segment: &Segment,
    place: RecordPlace,
    options: &Options,
) -> SpanBytes {
    let offset = place.offset;
    loop {
        let len = wanted_len(segment, offset, scratch);
        let end = offset as usize + len;
        if len <= scratch.len() || end > segment.end as usize {
            return SpanBytes::Whole;
        }
        let span = ReadSpan::covering(segment, offset, end as u32, options.segment_bytes);
        if len > GATHER_BYTES_MAX {
            return SpanBytes::Missing(span);
        }
        let next = (offset as usize + scratch.len()) / PAGE_BYTES;
        let Some(page) = cache.get(segment.file, next as u32) else {
            // Where the header itself is cut, the usual length is the better guess.
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
    RecordError::Field { offset, field: "length past the segment's end", found: len as u64 }
}

/// The bytes from `offset` on, and where they start, if the read just resumed brought them.
fn resumed(resume: Option<&FetchResume>, sequence: u64, slot: u32, offset: u32) -> Option<(&[u8], usize)> {
    let resume = resume?;
    let ReadSpan { from, .. } = resume.span;
    // What was not flushed when the read was submitted may have come back as anything.
    let to = resume.span.to.min(resume.span.cacheable_to);
    let covers = resume.span.slot == slot && resume.span.sequence == sequence && from <= offset && offset < to;
    let start = offset.checked_sub(from)? as usize;
    covers.then(|| (&resume.buf[start..(to - from) as usize], start))
}

/// What the second read of a record must cover whose first one was too short.
fn longer(segment: &Segment, slot: u32, bytes: &[u8], place: RecordPlace, options: &Options) -> MemoryRead {
    debug_assert_eq!(segment.slot, slot);
    let len = wanted_len(segment, place.offset, bytes);
    let end = place.offset as usize + len;
    if len <= bytes.len() || end > segment.end as usize {
        // No second read helps: the length itself is corrupt.
        return MemoryRead::Judged(Err(past_end(place.offset, len)), 0);
    }
    MemoryRead::Missing(ReadSpan::covering(segment, place.offset, end as u32, options.segment_bytes))
}

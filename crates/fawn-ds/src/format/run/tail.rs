//! Tail of a run: the parts that stay in memory, so that opening a run reads them and none of its pages.
//!
//! The content is cut into pieces as a checkpoint's is, bound to uuid and offset by the same checksum:
//! ```text
//! facts:   tombstones u32 | latest expiry u64 | count u32, per local number: number u32, records u32, lowest u64, highest u64
//! fences:  first area of each space, 5 × u32 | first group of each space, 5 × u32 | end of the coordinates u32
//!          per area: first prefix u64, last prefix u64, coordinate u32 | per group: prefix u64, coordinates before it u32
//!          per page: low byte of its coordinate | count u32, words of the high bits u64
//! filters: count u32, per filter: first page u32, seed u32, slots u32, bits u8 | its words u64
//! ```
use super::super::RangeNumber;
use super::super::checkpoint::{PIECE_BYTES, PIECE_CONTENT_BYTES, decode_piece, encode_piece};
use super::super::segment::{NumberFacts, RecordFacts};
use super::{PAGE_BYTES, PAGES_MAX, RunFooter, SPACES};
use crate::format::SegmentUuid;
use fawn_types::Version;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};

/// The highest 64 bits of a ring key. Two words, so that lists of it with a `u32` have no padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyPrefix([u32; 2]);

impl KeyPrefix {
    /// From the number.
    #[must_use]
    pub const fn new(prefix: u64) -> Self {
        Self([(prefix >> 32) as u32, prefix as u32])
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        (self.0[0] as u64) << 32 | self.0[1] as u64
    }
}

/// A stretch of prefixes (the highest 64 bits of ring keys) that fences map linearly to coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceArea {
    /// Prefix of its first fence.
    pub first: KeyPrefix,
    /// Prefix of its last fence.
    pub last: KeyPrefix,
    /// Its first coordinate, without those of groups before it.
    pub base: u32,
}

/// Pages that begin under one hash tag: its records have coordinates by the low 64 bits of their ring keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceGroup {
    /// The tag's prefix.
    pub prefix: KeyPrefix,
    /// Coordinates of all groups before it.
    pub before: u32,
}

const _: () = assert!(size_of::<FenceArea>() == 20 && size_of::<FenceGroup>() == 12);

/// Fences: the first ring key of each page, as ascending coordinates in Elias–Fano form.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FenceParts {
    /// First area of each space, then the count of areas.
    pub area_starts: [u32; SPACES + 1],
    /// First group of each space, then the count of groups.
    pub group_starts: [u32; SPACES + 1],
    /// Coordinates of all areas.
    pub area_coordinates: u32,
    /// Coordinates of all groups.
    pub group_coordinates: u32,
    /// The areas, ascending within a space.
    pub areas: Box<[FenceArea]>,
    /// The groups, ascending within a space.
    pub groups: Box<[FenceGroup]>,
    /// The low byte of each page's coordinate.
    pub lows: Box<[u8]>,
    /// Bit `(coordinate >> 8) + page` of each page.
    pub highs: Box<[u64]>,
}

/// A filter over the records of consecutive pages: a ribbon of slots, stored as columns of 128 slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterParts {
    /// First page that it covers; it ends where the next one begins.
    pub first_page: u32,
    /// Seed of its hashes.
    pub seed: u32,
    /// Count of slots, a multiple of 128.
    pub slots: u32,
    /// Bits of a fingerprint.
    pub bits: u8,
    /// The columns: for each 128 slots, two words per bit of a fingerprint.
    pub words: Box<[u64]>,
}

impl FilterParts {
    /// Words of a filter of this size.
    #[must_use]
    pub const fn words_of(slots: u32, bits: u8) -> usize {
        slots as usize / 64 * bits as usize
    }
}

/// All that a run keeps in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunTail {
    /// Facts of its records.
    pub facts: RecordFacts,
    /// Its fences.
    pub fences: FenceParts,
    /// Its filters, by first page.
    pub filters: Vec<FilterParts>,
}

/// Maximum bits of a filter's fingerprint.
pub const FILTER_BITS_MAX: u8 = 16;

impl RunTail {
    /// Appends the content to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let RecordFacts { tombstones, latest_expiry_ms, numbers } = &self.facts;
        out.put_u32(*tombstones);
        out.put_u64(*latest_expiry_ms);
        out.put_u32(numbers.len() as u32);
        for NumberFacts { number, records, lowest, highest } in numbers {
            out.put_u32(number.0);
            out.put_u32(*records);
            out.put_u64(lowest.as_u64());
            out.put_u64(highest.as_u64());
        }
        self.fences.encode(out);
        out.put_u32(self.filters.len() as u32);
        for filter in &self.filters {
            [filter.first_page, filter.seed, filter.slots].iter().for_each(|&field| out.put_u32(field));
            out.put_u8(filter.bits);
            filter.words.iter().for_each(|&word| out.put_u64(word));
        }
    }

    /// Decodes the content of a run of this many pages.
    ///
    /// # Errors
    /// If the content is not one that [`Self::encode`] writes.
    pub fn decode(content: &[u8], pages: u32) -> Result<Self, DecodeError> {
        let mut reader = FrameReader::new(content);
        let facts = read_facts(&mut reader)?;
        let fences = FenceParts::decode(&mut reader, pages)?;
        let count = reader.u32("filters")?;
        let mut filters = Vec::new();
        let mut next_page = 0;
        for _ in 0..count {
            let filter = read_filter(&mut reader)?;
            // The first filter begins at page 0, each other one behind the one before.
            let is_next = if filters.is_empty() { filter.first_page == 0 } else { filter.first_page >= next_page };
            if !is_next || filter.first_page >= pages {
                return Err(DecodeError::Value { what: "first page of a filter", found: u64::from(filter.first_page) });
            }
            next_page = filter.first_page + 1;
            filters.push(filter);
        }
        if filters.is_empty() && pages > 0 {
            return Err(DecodeError::Value { what: "filters", found: 0 });
        }
        reader.finish("run tail")?;
        Ok(Self { facts, fences, filters })
    }
}

/// The facts at the beginning of a tail, from its first piece, which is at `offset` of the file. `None`: it is corrupt, or they
/// continue in the next one.
#[must_use]
pub fn decode_facts(uuid: SegmentUuid, offset: u64, piece: &[u8]) -> Option<RecordFacts> {
    read_facts(&mut FrameReader::new(decode_piece(uuid, offset, piece)?)).ok()
}

fn read_facts(reader: &mut FrameReader<'_>) -> Result<RecordFacts, DecodeError> {
    let (tombstones, latest_expiry_ms) = (reader.u32("tombstones")?, reader.u64("latest expiry")?);
    let count = reader.u32("local numbers")?;
    let mut numbers: Vec<NumberFacts> = Vec::new();
    for _ in 0..count {
        let facts = NumberFacts {
            number: RangeNumber(reader.u32("local number")?),
            records: reader.u32("records")?,
            lowest: Version::from_u64(reader.u64("lowest version")?),
            highest: Version::from_u64(reader.u64("highest version")?),
        };
        let is_ascending = numbers.last().is_none_or(|last| last.number < facts.number);
        if !is_ascending || facts.records == 0 || facts.lowest > facts.highest {
            return Err(DecodeError::Value { what: "facts of a local number", found: u64::from(facts.number.0) });
        }
        numbers.push(facts);
    }
    Ok(RecordFacts { tombstones, latest_expiry_ms, numbers })
}

fn read_filter(reader: &mut FrameReader<'_>) -> Result<FilterParts, DecodeError> {
    let (first_page, seed, slots) = (reader.u32("first page")?, reader.u32("seed")?, reader.u32("slots")?);
    let bits = reader.u8("bits of a fingerprint")?;
    if slots == 0 || !slots.is_multiple_of(128) {
        return Err(DecodeError::Value { what: "slots of a filter", found: u64::from(slots) });
    }
    if bits == 0 || bits > FILTER_BITS_MAX {
        return Err(DecodeError::Value { what: "bits of a fingerprint", found: u64::from(bits) });
    }
    let words = read_words(reader, FilterParts::words_of(slots, bits))?;
    Ok(FilterParts { first_page, seed, slots, bits, words })
}

fn read_words(reader: &mut FrameReader<'_>, count: usize) -> Result<Box<[u64]>, DecodeError> {
    // The bytes are taken before memory is: a corrupt count cannot ask for more than the content has.
    let (words, _) = reader.take("words", count.saturating_mul(8))?.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

impl FenceParts {
    fn encode(&self, out: &mut Vec<u8>) {
        self.area_starts.iter().chain(&self.group_starts).for_each(|&start| out.put_u32(start));
        out.put_u32(self.area_coordinates);
        out.put_u32(self.group_coordinates);
        for area in &self.areas {
            out.put_u64(area.first.get());
            out.put_u64(area.last.get());
            out.put_u32(area.base);
        }
        for group in &self.groups {
            out.put_u64(group.prefix.get());
            out.put_u32(group.before);
        }
        out.extend_from_slice(&self.lows);
        out.put_u32(self.highs.len() as u32);
        self.highs.iter().for_each(|&word| out.put_u64(word));
    }

    fn decode(reader: &mut FrameReader<'_>, pages: u32) -> Result<Self, DecodeError> {
        let mut starts = [[0; SPACES + 1]; 2];
        for start in starts.as_flattened_mut() {
            *start = reader.u32("first area or group of a space")?;
        }
        let [area_starts, group_starts] = starts;
        let (area_coordinates, group_coordinates) = (reader.u32("coordinates")?, reader.u32("coordinates")?);
        let counts = [area_starts[SPACES], group_starts[SPACES]];
        let is_ascending = starts.iter().all(|starts| starts[0] == 0 && starts.is_sorted());
        if !is_ascending || counts.iter().any(|&count| count > pages) {
            return Err(DecodeError::Value { what: "count of areas or groups", found: u64::from(counts[0]) });
        }
        let mut areas = Vec::new();
        for _ in 0..counts[0] {
            let first = KeyPrefix::new(reader.u64("an area's first prefix")?);
            let last = KeyPrefix::new(reader.u64("an area's last prefix")?);
            areas.push(FenceArea { first, last, base: reader.u32("an area's coordinate")? });
        }
        let mut groups = Vec::new();
        for _ in 0..counts[1] {
            let prefix = KeyPrefix::new(reader.u64("a group's prefix")?);
            groups.push(FenceGroup { prefix, before: reader.u32("coordinates")? });
        }
        let lows = reader.take("low bytes of fences", pages as usize)?.into();
        let count = reader.u32("count of words")? as usize;
        let highs = read_words(reader, count)?;
        let (areas, groups) = (areas.into_boxed_slice(), groups.into_boxed_slice());
        Ok(Self { area_starts, group_starts, area_coordinates, group_coordinates, areas, groups, lows, highs })
    }
}

/// Length of the pieces of this much content, bytes.
#[must_use]
pub const fn pieces_bytes(content: usize) -> u64 {
    let (whole, rest) = (content / PIECE_CONTENT_BYTES, content % PIECE_CONTENT_BYTES);
    let last = if rest == 0 { 0 } else { (PIECE_BYTES - PIECE_CONTENT_BYTES + rest).next_multiple_of(PAGE_BYTES) };
    (whole * PIECE_BYTES + last) as u64
}

/// Encodes the next piece of `content`, which will be at `offset` of the file, into `out`; returns its length and the
/// content that it took.
pub fn encode_next_piece(uuid: SegmentUuid, offset: u64, content: &[u8], out: &mut [u8]) -> (usize, usize) {
    let taken = content.len().min(PIECE_CONTENT_BYTES);
    (encode_piece(uuid, offset, &content[..taken], out), taken)
}

/// Decodes the tail of the run with this footer from the bytes between its last page and the footer.
///
/// # Errors
/// If they differ from those that were written.
pub fn decode_pieces(footer: &RunFooter, bytes: &[u8]) -> Result<RunTail, DecodeError> {
    let what = "run tail";
    if bytes.len() as u64 != footer.tail_bytes || footer.pages > PAGES_MAX {
        let need_bytes = footer.tail_bytes as usize;
        return Err(DecodeError::Truncated { what, need_bytes, have_bytes: bytes.len() });
    }
    let mut content = Vec::new();
    let mut offset = footer.tail_offset();
    for piece in bytes.chunks(PIECE_BYTES) {
        let Some(part) = decode_piece(footer.header.uuid, offset, piece) else {
            return Err(DecodeError::Checksum { what, expected: offset, found: piece.len() as u64 });
        };
        content.extend_from_slice(part);
        offset += PIECE_BYTES as u64;
    }
    if pieces_bytes(content.len()) != footer.tail_bytes {
        return Err(DecodeError::Trailing { what, extra_bytes: bytes.len() });
    }
    RunTail::decode(&content, footer.pages)
}

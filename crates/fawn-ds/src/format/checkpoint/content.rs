//! Content of a checkpoint: the cells of each range's index, then the ranges' and the segments' state.
//!
//! ```text
//! content: count of ranges u32 | per range: number u32 | pages u32 | cells | then per range: its end
//!          count of segments that lie before the position u32 | per segment: its part
//!          count of segments in which it is u32, 0 or 1 | its part: slot, sequence, live records, died by, hides below
//! cell:    entries in bits 0–9 and depth in bits 10–15 of a u16 | fragments, u16 each | low bits of the pointers, u32 each
//!          | bits 32–39 of pointers of 40 bits, u8 each
//! ```
//! A cell's columns are those of an index page in memory: a checkpoint copies them whole.
//! A range's cells are in hash order, without gaps: each begins where the one before ends, so their depths tell when
//! hash order ends. The state behind the cells is of a later time than any of them.
use crate::format::RangeNumber;
use crate::format::bytes::{u16_at, u32_at, u64_at};
use crate::index::{Cell, CellColumns, CellImage, Index, Pointer, PointerWidth};
use fawn_types::{TimeMs, Version};

/// Content that no checkpoint has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ContentError(pub String);

/// Takes the next `len` bytes.
fn take<'a>(source: &mut &'a [u8], len: usize) -> Result<&'a [u8], ContentError> {
    let (taken, rest) = source.split_at_checked(len).ok_or_else(|| ContentError("it is cut short".to_owned()))?;
    *source = rest;
    Ok(taken)
}

/// A record that is kept for retransmission, or a transferred result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordImage {
    /// Its version.
    pub version: Version,
    /// Its place.
    pub pointer: Pointer,
    /// Its length, bytes.
    pub len_bytes: u32,
    /// Sequence number of its segment.
    pub sequence: u64,
}

/// State of a range besides its index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeImage {
    /// Its local number.
    pub number: RangeNumber,
    /// Newest committed version.
    pub committed: Version,
    /// Version of its newest committed clear.
    pub cleared: Version,
    /// `retained` has all committed records above this version that lie in the checkpoint's segments.
    pub complete_above: Version,
    /// Records kept for retransmission, oldest first.
    pub retained: Vec<RecordImage>,
    /// Transferred results kept for retries, oldest first.
    pub copied_results: Vec<RecordImage>,
}

/// One range's records in a segment, as far as the drop rule and cleaning need to know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareImage {
    /// Local number of the range.
    pub number: RangeNumber,
    /// Its puts, live or not.
    pub puts: u64,
    /// Entries of the image that point to the segment.
    pub live_records: u64,
    /// Length of their records, bytes.
    pub live_bytes: u64,
    /// Newest version of its records, without rolled-back ones.
    pub newest: Version,
    /// Newest version that replaced or removed one of them.
    pub died_by: Version,
    /// Lowest version of its puts; `u64::MAX` without one.
    pub lowest_put: Version,
    /// Highest version of a record that hides older puts.
    pub hides_below: Version,
    /// Highest version of a clear.
    pub clears: Version,
    /// There is a rollback.
    pub rolls_back: bool,
}

impl ShareImage {
    /// Of a segment without records of the range.
    #[must_use]
    pub const fn none(number: RangeNumber) -> Self {
        Self {
            number,
            puts: 0,
            live_records: 0,
            live_bytes: 0,
            newest: Version::ZERO,
            died_by: Version::ZERO,
            lowest_put: Version::from_u64(u64::MAX),
            hides_below: Version::ZERO,
            clears: Version::ZERO,
            rolls_back: false,
        }
    }
}

/// Records of a range in a segment that a rollback invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidatedImage {
    /// Local number of the range.
    pub number: RangeNumber,
    /// They lie before this position of the log.
    pub before: u64,
    /// Their versions are above this one.
    pub above: Version,
}

/// A segment's records, as far as the drop rule and cleaning need to know them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentImage {
    /// Its slot.
    pub slot: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Tombstones in it, bytes.
    pub tombstone_bytes: u64,
    /// All records in it, bytes.
    pub record_bytes: u64,
    /// Count of its records by length: steps of 256 B, without empty ones.
    pub lengths: Vec<(u32, u32)>,
    /// Expiry time from which the steps of `expiries` are counted.
    pub expiry_base: TimeMs,
    /// Bytes of its puts that expire: steps of time until then, without empty ones.
    pub expiries: Vec<(u32, u32)>,
    /// The ranges with records in it.
    pub shares: Vec<ShareImage>,
    /// Rolled-back records in it.
    pub invalidated: Vec<InvalidatedImage>,
}

impl SegmentImage {
    /// Of a segment without records.
    #[must_use]
    pub fn none(slot: u32, sequence: u64) -> Self {
        let (lengths, expiries, shares, invalidated) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let expiry_base = TimeMs(0);
        Self {
            slot,
            sequence,
            tombstone_bytes: 0,
            record_bytes: 0,
            lengths,
            expiry_base,
            expiries,
            shares,
            invalidated,
        }
    }
}

/// Most entries of a cell that its header can count.
const CELL_ENTRIES_MAX: usize = (1 << CELL_DEPTH_SHIFT) - 1;
const CELL_DEPTH_SHIFT: u32 = 10;
const CELL_HEADER_BYTES: usize = size_of::<u16>();
/// Length of a count.
pub const COUNT_BYTES: usize = 4;
/// Length of the beginning of a range's cells.
pub const RANGE_START_BYTES: usize = 8;

const fn entry_bytes(pointers: PointerWidth) -> usize {
    size_of::<u16>() + pointers.bytes()
}

const _: () = assert!(crate::index::PAGE_ENTRIES_MAX <= CELL_ENTRIES_MAX);

/// Appends a count.
pub fn encode_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

/// The next count.
///
/// # Errors
/// If there are fewer bytes.
pub fn decode_count(source: &mut &[u8]) -> Result<u32, ContentError> {
    Ok(u32_at(take(source, COUNT_BYTES)?, 0))
}

/// Appends the beginning of a range's cells.
pub fn encode_range_start(number: RangeNumber, pages: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.0.to_le_bytes());
    out.extend_from_slice(&pages.to_le_bytes());
}

/// The beginning of a range's cells: its number and the pages of its index.
///
/// # Errors
/// If there are fewer bytes.
pub fn decode_range_start(source: &mut &[u8]) -> Result<(RangeNumber, u32), ContentError> {
    let bytes = take(source, RANGE_START_BYTES)?;
    Ok((RangeNumber(u32_at(bytes, 0)), u32_at(bytes, 4)))
}

/// Length of an index's cells in a checkpoint, bytes.
#[must_use]
pub fn cells_bytes(index: &Index) -> u64 {
    let entries_bytes = u64::from(index.len()) * entry_bytes(index.pointer_width()) as u64;
    entries_bytes + u64::from(index.pages()) * CELL_HEADER_BYTES as u64
}

fn encode_pointer(pointer: Pointer, pointers: PointerWidth, out: &mut Vec<u8>) {
    out.extend_from_slice(&pointer.unit().to_le_bytes()[..pointers.bytes()]);
}

fn pointer_at(bytes: &[u8], at: usize, pointers: PointerWidth) -> Pointer {
    let low = u64::from(u32_at(bytes, at));
    // A copy whose length the compiler does not know is a call, one for each entry of an opening.
    let high = match pointers {
        PointerWidth::Bits32 => 0,
        PointerWidth::Bits40 => u64::from(bytes[at + 4]),
    };
    Pointer::new(high << 32 | low)
}

/// Appends a cell.
pub fn encode_cell(cell: &Cell<'_>, out: &mut Vec<u8>) {
    let header = (cell.depth() << CELL_DEPTH_SHIFT) as u16 | cell.len() as u16;
    let CellColumns { fragments, low_units, high_units } = cell.columns();
    let begin = out.len();
    let end = begin + size_of_val(&header) + size_of_val(fragments) + size_of_val(low_units) + size_of_val(high_units);
    out.resize(end, 0);
    let (mut places, _) = out[begin..].as_chunks_mut::<2>();
    for units in [&[header][..], fragments, low_units, high_units] {
        let (of_column, others) = places.split_at_mut(units.len());
        // On a little-endian machine this is one copy.
        of_column.iter_mut().zip(units).for_each(|(place, unit)| *place = unit.to_le_bytes());
        places = others;
    }
    if !high_units.is_empty() && !cell.len().is_multiple_of(2) {
        // The last unit has one byte too many.
        out.truncate(end - 1);
    }
}

/// Length of the cell that begins with these bytes; `None` if they end before that tells.
#[must_use]
pub fn cell_bytes(bytes: &[u8], pointers: PointerWidth) -> Option<usize> {
    let header = u16_at(bytes.get(..CELL_HEADER_BYTES)?, 0);
    Some(CELL_HEADER_BYTES + (usize::from(header) & CELL_ENTRIES_MAX) * entry_bytes(pointers))
}

/// The next cell.
///
/// # Errors
/// If there are fewer bytes.
// A call would pass the cell through memory: written by fields and read in other lengths, each one waits for the store.
#[inline(always)]
pub fn decode_cell<'a>(source: &mut &'a [u8], pointers: PointerWidth) -> Result<CellImage<'a>, ContentError> {
    let header = u16_at(take(source, CELL_HEADER_BYTES)?, 0);
    let (depth, entries) = (u32::from(header >> CELL_DEPTH_SHIFT), usize::from(header) & CELL_ENTRIES_MAX);
    let bytes = take(source, entries * entry_bytes(pointers))?;
    let (fragments, bytes) = bytes.split_at(entries * size_of::<u16>());
    let (low_bits, high_bits) = bytes.split_at(entries * size_of::<u32>());
    Ok(CellImage { depth, fragments: fragments.as_chunks().0, low_bits: low_bits.as_chunks().0, high_bits })
}

/// Appends the state of a range.
pub fn encode_range(range: &RangeImage, pointers: PointerWidth, out: &mut Vec<u8>) {
    out.extend_from_slice(&range.number.0.to_le_bytes());
    for version in [range.committed, range.cleared, range.complete_above] {
        out.extend_from_slice(&version.as_u64().to_le_bytes());
    }
    for records in [&range.retained, &range.copied_results] {
        encode_count(records.len(), out);
        for RecordImage { version, pointer, len_bytes, sequence } in records {
            out.extend_from_slice(&version.as_u64().to_le_bytes());
            encode_pointer(*pointer, pointers, out);
            out.extend_from_slice(&len_bytes.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
    }
}

/// The state of the next range.
///
/// # Errors
/// If there are fewer bytes.
pub fn decode_range(source: &mut &[u8], pointers: PointerWidth) -> Result<RangeImage, ContentError> {
    let bytes = take(source, 28)?;
    let version = |at| Version::from_u64(u64_at(bytes, at));
    let number = RangeNumber(u32_at(bytes, 0));
    let (committed, cleared, complete_above) = (version(4), version(12), version(20));
    let (retained, copied_results) = (decode_records(source, pointers)?, decode_records(source, pointers)?);
    Ok(RangeImage { number, committed, cleared, complete_above, retained, copied_results })
}

fn decode_records(source: &mut &[u8], pointers: PointerWidth) -> Result<Vec<RecordImage>, ContentError> {
    let count = decode_count(source)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let behind = 8 + pointers.bytes();
        let bytes = take(source, behind + 12)?;
        records.push(RecordImage {
            version: Version::from_u64(u64_at(bytes, 0)),
            pointer: pointer_at(bytes, 8, pointers),
            len_bytes: u32_at(bytes, behind),
            sequence: u64_at(bytes, behind + 4),
        });
    }
    Ok(records)
}

/// Appends the part of a segment.
pub fn encode_segment(segment: &SegmentImage, out: &mut Vec<u8>) {
    out.extend_from_slice(&segment.slot.to_le_bytes());
    out.extend_from_slice(&segment.sequence.to_le_bytes());
    out.extend_from_slice(&segment.tombstone_bytes.to_le_bytes());
    out.extend_from_slice(&segment.record_bytes.to_le_bytes());
    encode_steps(&segment.lengths, out);
    out.extend_from_slice(&segment.expiry_base.0.to_le_bytes());
    encode_steps(&segment.expiries, out);
    encode_count(segment.shares.len(), out);
    for share in &segment.shares {
        out.extend_from_slice(&share.number.0.to_le_bytes());
        out.extend_from_slice(&u32::from(share.rolls_back).to_le_bytes());
        out.extend_from_slice(&share.puts.to_le_bytes());
        out.extend_from_slice(&share.live_records.to_le_bytes());
        out.extend_from_slice(&share.live_bytes.to_le_bytes());
        for version in [share.newest, share.died_by, share.lowest_put, share.hides_below, share.clears] {
            out.extend_from_slice(&version.as_u64().to_le_bytes());
        }
    }
    encode_count(segment.invalidated.len(), out);
    for InvalidatedImage { number, before, above } in &segment.invalidated {
        out.extend_from_slice(&number.0.to_le_bytes());
        out.extend_from_slice(&before.to_le_bytes());
        out.extend_from_slice(&above.as_u64().to_le_bytes());
    }
}

fn encode_steps(steps: &[(u32, u32)], out: &mut Vec<u8>) {
    encode_count(steps.len(), out);
    for (step, counted) in steps {
        out.extend_from_slice(&step.to_le_bytes());
        out.extend_from_slice(&counted.to_le_bytes());
    }
}

fn decode_steps(source: &mut &[u8]) -> Result<Vec<(u32, u32)>, ContentError> {
    let mut steps = Vec::new();
    for _ in 0..decode_count(source)? {
        let bytes = take(source, 8)?;
        steps.push((u32_at(bytes, 0), u32_at(bytes, 4)));
    }
    Ok(steps)
}

/// The part of the next segment.
///
/// # Errors
/// If there are fewer bytes.
pub fn decode_segment(source: &mut &[u8]) -> Result<SegmentImage, ContentError> {
    let bytes = take(source, 28)?;
    let (slot, sequence) = (u32_at(bytes, 0), u64_at(bytes, 4));
    let (tombstone_bytes, record_bytes) = (u64_at(bytes, 12), u64_at(bytes, 20));
    let lengths = decode_steps(source)?;
    let expiry_base = TimeMs(u64_at(take(source, 8)?, 0));
    let expiries = decode_steps(source)?;
    let (mut shares, mut invalidated) = (Vec::new(), Vec::new());
    for _ in 0..decode_count(source)? {
        let bytes = take(source, 72)?;
        let version = |at| Version::from_u64(u64_at(bytes, at));
        shares.push(ShareImage {
            number: RangeNumber(u32_at(bytes, 0)),
            rolls_back: u32_at(bytes, 4) != 0,
            puts: u64_at(bytes, 8),
            live_records: u64_at(bytes, 16),
            live_bytes: u64_at(bytes, 24),
            newest: version(32),
            died_by: version(40),
            lowest_put: version(48),
            hides_below: version(56),
            clears: version(64),
        });
    }
    for _ in 0..decode_count(source)? {
        let bytes = take(source, 20)?;
        invalidated.push(InvalidatedImage {
            number: RangeNumber(u32_at(bytes, 0)),
            before: u64_at(bytes, 4),
            above: Version::from_u64(u64_at(bytes, 12)),
        });
    }
    Ok(SegmentImage {
        slot,
        sequence,
        tombstone_bytes,
        record_bytes,
        lengths,
        expiry_base,
        expiries,
        shares,
        invalidated,
    })
}

//! Decoding of a checkpoint for the opening: everything that needs only its bytes, and which parts of segments are in it.
use super::work_queue::QueuedWork;
use crate::format::checkpoint::content::{self, COUNT_BYTES, ContentError, RANGE_START_BYTES};
use crate::format::checkpoint::{self, PIECE_BYTES};
use crate::format::{RangeNumber, SegmentUuid};
use crate::index::{CellImage, Pointer, PointerWidth};
use crate::log::segments::PointerLayout;
use fawn_flash::AlignedBuf;

/// Deepest cell that an index has.
const DEPTH_MAX: u32 = 47;

/// The contents of the pieces in a checkpoint's bytes from this offset of its file on, or the offset of a corrupt one.
pub(super) fn contents(uuid: SegmentUuid, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], u64>> {
    let pieces = bytes.chunks(PIECE_BYTES).zip((offset..).step_by(PIECE_BYTES));
    pieces.map(move |(piece, offset)| checkpoint::decode_piece(uuid, offset, piece).ok_or(offset))
}

pub(super) fn corrupt_piece(offset: u64) -> String {
    format!("the piece at byte {offset} is corrupt")
}

/// The part of each slot's segment that is in a checkpoint: the offset before which its records are.
#[derive(Clone, Debug)]
pub(super) struct PartsInImage {
    pub(super) layout: PointerLayout,
    pub(super) ends: Vec<u32>,
}

impl PartsInImage {
    /// The pointer's slot, if its record is in the checkpoint.
    fn slot_of(&self, pointer: Pointer) -> Option<usize> {
        let (slot, offset) = self.layout.slot_and_offset(pointer);
        self.ends.get(slot as usize).filter(|&&end| offset < end).map(|_| slot as usize)
    }

    /// Counts a cell's entries by slot. Returns whether all of them still count.
    fn count(&self, cell: CellImage<'_>, entries: &mut [u32]) -> bool {
        let mut are_all_current = true;
        for pointer in cell.pointers() {
            match self.slot_of(pointer) {
                Some(slot) => entries[slot] += 1,
                None => are_all_current = false,
            }
        }
        are_all_current
    }

    /// The entries of a cell that still count.
    pub(super) fn current_of(&self, cell: CellImage<'_>) -> impl Iterator<Item = (u16, Pointer)> {
        cell.entries().filter(|&(_, pointer)| self.slot_of(pointer).is_some())
    }
}

/// A unit of a checkpoint's content that is loaded at once.
#[derive(Debug)]
pub(super) enum ImageItem {
    /// The number of ranges.
    Ranges(u32),
    /// The range's local number. The cells of its index with so many pages follow.
    Range(RangeNumber, u32),
    /// A cell, at this place of the content.
    Cell { at: u32, first_hash: u64, are_all_current: bool },
    /// How many entries of the range point to each slot, of those that still count.
    EndOfCells(Vec<u32>),
    /// The content from this place on is the state of ranges and segments.
    State { at: u32 },
}

/// The content of a part of a checkpoint's file, divided into items.
#[derive(Debug, Default)]
pub(super) struct ImagePart {
    pub(super) content: Vec<u8>,
    pub(super) items: Vec<ImageItem>,
}

/// Bytes of the file from an offset on. The part is an earlier one, for its memory.
#[derive(Debug)]
pub(super) struct ImageJob {
    pub(super) offset: u64,
    pub(super) buf: AlignedBuf,
    pub(super) part: ImagePart,
}

/// The result of an [`ImageJob`].
#[derive(Debug)]
pub(super) struct DecodedPart {
    pub(super) buf: AlignedBuf,
    pub(super) part: Result<ImagePart, ContentError>,
}

/// Kind of the next item.
#[derive(Debug)]
enum NextItem {
    Ranges,
    Range,
    /// The cell of this hash position.
    Cell {
        first_hash: u64,
        entries: Vec<u32>,
    },
    State,
}

/// Decodes a checkpoint's parts one after the other.
#[derive(Debug)]
pub(super) struct ImageDecoder {
    uuid: SegmentUuid,
    pointers: PointerWidth,
    parts: PartsInImage,
    expected: NextItem,
    /// Ranges whose cells have not begun.
    ranges_left: u32,
    /// The beginning of what continues in the next part.
    begun: Vec<u8>,
}

impl ImageDecoder {
    pub(super) const fn new(uuid: SegmentUuid, pointers: PointerWidth, parts: PartsInImage) -> Self {
        Self { uuid, pointers, parts, expected: NextItem::Ranges, ranges_left: 0, begun: Vec::new() }
    }

    fn decode(&mut self, offset: u64, bytes: &[u8], mut part: ImagePart) -> Result<ImagePart, ContentError> {
        part.content.clear();
        part.content.append(&mut self.begun);
        for content in contents(self.uuid, offset, bytes) {
            part.content.extend_from_slice(content.map_err(|offset| ContentError(corrupt_piece(offset)))?);
        }
        self.divide(part)
    }

    /// Finds the items of a part.
    pub(super) fn divide(&mut self, mut part: ImagePart) -> Result<ImagePart, ContentError> {
        part.items.clear();
        let mut at = 0;
        while let Some(len) = self.next_bytes(&part.content[at..]) {
            self.add_item(at, &part.content[at..at + len], &mut part.items)?;
            at += len;
        }
        if matches!(self.expected, NextItem::State) {
            part.items.push(ImageItem::State { at: at as u32 });
        } else {
            self.begun.extend_from_slice(&part.content[at..]);
        }
        Ok(part)
    }

    /// Length of the next item; `None` if these bytes have none as a whole.
    fn next_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let len = match self.expected {
            NextItem::Ranges => COUNT_BYTES,
            NextItem::Range => RANGE_START_BYTES,
            NextItem::Cell { .. } => content::cell_bytes(bytes, self.pointers)?,
            NextItem::State => return None,
        };
        (len <= bytes.len()).then_some(len)
    }

    fn add_item(&mut self, at: usize, mut bytes: &[u8], items: &mut Vec<ImageItem>) -> Result<(), ContentError> {
        match &mut self.expected {
            NextItem::Ranges => {
                self.ranges_left = content::decode_count(&mut bytes)?;
                items.push(ImageItem::Ranges(self.ranges_left));
                self.expect_range();
            }
            NextItem::Range => {
                let (number, pages) = content::decode_range_start(&mut bytes)?;
                items.push(ImageItem::Range(number, pages));
                self.ranges_left -= 1;
                self.expected = NextItem::Cell { first_hash: 0, entries: vec![0; self.parts.ends.len()] };
            }
            NextItem::Cell { first_hash, entries } => {
                let cell = content::decode_cell(&mut bytes, self.pointers)?;
                if !(1..=DEPTH_MAX).contains(&cell.depth) || *first_hash << cell.depth != 0 {
                    return Err(ContentError("a cell does not begin where the one before ends".to_owned()));
                }
                let are_all_current = self.parts.count(cell, entries);
                items.push(ImageItem::Cell { at: at as u32, first_hash: *first_hash, are_all_current });
                match first_hash.checked_add(1 << (64 - cell.depth)) {
                    Some(next) => *first_hash = next,
                    None => {
                        items.push(ImageItem::EndOfCells(core::mem::take(entries)));
                        self.expect_range();
                    }
                }
            }
            NextItem::State => unreachable!("the state is not divided"),
        }
        Ok(())
    }

    fn expect_range(&mut self) {
        self.expected = if self.ranges_left > 0 { NextItem::Range } else { NextItem::State };
    }
}

impl QueuedWork for ImageDecoder {
    type Job = ImageJob;
    type Done = DecodedPart;

    fn run(&mut self, ImageJob { offset, buf, part }: ImageJob) -> DecodedPart {
        let part = self.decode(offset, &buf, part);
        DecodedPart { buf, part }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::format::checkpoint::PIECE_CONTENT_BYTES;
    use crate::index::{Index, IndexOptions};
    use crate::log::segments::SegmentTable;
    use fawn_types::KeyHash;
    use fawn_types::random::SplitMix64;

    pub(in crate::recovery) const UUID: SegmentUuid = SegmentUuid([7; 16]);
    pub(in crate::recovery) const SEGMENT_BYTES: u32 = 64 << 20;

    /// Two ranges with 20,000 entries each in two segments, and so many bytes of state.
    pub(in crate::recovery) fn content(pointers: PointerWidth, state_bytes: u32) -> Vec<u8> {
        let segments = SegmentTable::new(SEGMENT_BYTES, pointers);
        let (mut bytes, mut random) = (Vec::new(), SplitMix64::new(5));
        content::encode_count(2, &mut bytes);
        for number in [3, 4] {
            let mut index = Index::new(IndexOptions { pointers, ..IndexOptions::default() });
            for i in 0..20_000 {
                index.insert(KeyHash(random.next()), segments.pointer(i % 2, (i + 1) << 5)).unwrap();
            }
            content::encode_range_start(RangeNumber(number), index.pages(), &mut bytes);
            index.cells(0).for_each(|cell| content::encode_cell(&cell, &mut bytes));
        }
        bytes.extend((0..state_bytes).map(|i| i as u8));
        bytes
    }

    /// The content's pieces, from this offset of a file on.
    pub(in crate::recovery) fn pieces(content: &[u8], offset: u64) -> Vec<u8> {
        let mut file = vec![0; content.len() + content.len() / 16 + 2 * PIECE_BYTES];
        let mut at = 0;
        for part in content.chunks(PIECE_CONTENT_BYTES) {
            at += checkpoint::encode_piece(UUID, offset + at as u64, part, &mut file[at..]);
        }
        file.truncate(at);
        file
    }

    fn decoder(pointers: PointerWidth, ends: Vec<u32>) -> ImageDecoder {
        let layout = SegmentTable::new(SEGMENT_BYTES, pointers).layout();
        ImageDecoder::new(UUID, pointers, PartsInImage { layout, ends })
    }

    /// First hash, whether all entries are current, and the entries.
    type DecodedCell = (u64, bool, Vec<(u16, Pointer)>);

    /// The items of a file that is read in parts of so many bytes: cells with their entries, counts by slot, the state.
    #[derive(PartialEq, Debug, Default)]
    struct Decoded {
        ranges: Vec<(RangeNumber, u32)>,
        cells: Vec<DecodedCell>,
        entries: Vec<Vec<u32>>,
        state: Vec<u8>,
    }

    fn decode(file: &[u8], part_bytes: usize, pointers: PointerWidth, ends: &[u32]) -> Result<Decoded, ContentError> {
        let (mut decoder, mut decoded) = (decoder(pointers, ends.to_vec()), Decoded::default());
        let (mut part, mut offset) = (ImagePart::default(), 0);
        for bytes in file.chunks(part_bytes) {
            part = decoder.decode(offset, bytes, part)?;
            offset += bytes.len() as u64;
            for item in &part.items {
                match item {
                    ImageItem::Ranges(count) => assert_eq!(*count, 2),
                    ImageItem::Range(number, pages) => decoded.ranges.push((*number, *pages)),
                    ImageItem::Cell { at, first_hash, are_all_current } => {
                        let cell = content::decode_cell(&mut &part.content[*at as usize..], pointers)?;
                        decoded.cells.push((*first_hash, *are_all_current, cell.entries().collect()));
                    }
                    ImageItem::EndOfCells(entries) => decoded.entries.push(entries.clone()),
                    ImageItem::State { at } => decoded.state.extend_from_slice(&part.content[*at as usize..]),
                }
            }
        }
        Ok(decoded)
    }

    #[test]
    fn items_are_the_same_wherever_the_parts_of_a_file_end() {
        for pointers in [PointerWidth::Bits32, PointerWidth::Bits40] {
            let file = pieces(&content(pointers, 100_000), 0);
            let whole = decode(&file, usize::MAX, pointers, &[u32::MAX; 2]).unwrap();
            assert_eq!(whole.entries, [[10_000; 2]; 2]);
            assert_eq!((whole.ranges.len(), whole.state.len()), (2, 100_000));
            assert!(whole.cells.iter().all(|(_, are_all_current, _)| *are_all_current));
            for pieces in 1..4 {
                assert!(decode(&file, pieces * PIECE_BYTES, pointers, &[u32::MAX; 2]).unwrap() == whole, "{pieces}");
            }
        }
    }

    #[test]
    fn entries_outside_of_the_checkpoint_are_not_counted() {
        let pointers = PointerWidth::Bits40;
        let file = pieces(&content(pointers, 100_000), 0);
        // The second segment is missing, and of the first one a part is in the image.
        let decoded = decode(&file, PIECE_BYTES, pointers, &[100 << 5]).unwrap();
        assert_eq!(decoded.entries, [[50]; 2]);
        assert!(decoded.cells.iter().any(|(_, are_all_current, _)| !*are_all_current));
    }

    #[test]
    fn a_corrupt_piece_is_named_and_a_short_file_has_no_state() {
        let pointers = PointerWidth::Bits40;
        let mut file = pieces(&content(pointers, 100_000), 0);
        assert_eq!(decode(&file[..2 * PIECE_BYTES], PIECE_BYTES, pointers, &[u32::MAX; 2]).unwrap().state, []);
        file[2 * PIECE_BYTES + 500] ^= 1;
        let refused = decode(&file, PIECE_BYTES, pointers, &[u32::MAX; 2]).unwrap_err();
        assert_eq!(refused, ContentError(corrupt_piece(2 * PIECE_BYTES as u64)));
    }
}

//! Loading a checkpoint: an opening takes from it what the log before it would say, and scans only the rest.
//!
//! A checkpoint is used whole or not at all: it is read into indexes of its own, and its live counts must be those of its
//! entries. One that is torn, of another store or in contradiction with the manifest is passed over, with a warning, for
//! the one before or for a scan of the whole log.
use super::OpenReport;
use super::image_decode::{
    DecodedPart, ImageDecoder, ImageItem, ImageJob, ImagePart, PartsInImage, contents, corrupt_piece,
};
use super::index_build::IndexBuilder;
use super::sequential::SequentialRead;
use super::work_queue::{THREAD_BYTES_MIN, WorkQueue};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::checkpoint::content::{
    self, ContentError, InvalidatedImage, RangeImage, RecordImage, SegmentImage, ShareImage,
};
use crate::format::checkpoint::{self, CheckpointHeader, HEADER_BYTES};
use crate::format::manifest::CheckpointEntry;
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{Expiries, RangeNumber, StoreUuid, Watermark};
use crate::index::{CellImage, Index, IndexImageError, IndexOptions, Pointer};
use crate::log::LogPosition;
use crate::log::segments::{RangeShare, RolledBackRecords, Segment, SegmentTable};
use crate::range::{ResultCopy, Retained};
use core::cmp::Ordering;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::{ClientTag, Version};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

const READS_IN_FLIGHT: usize = 4;
/// A cell is prefetched so many cells ahead.
const CELLS_AHEAD: u64 = 16;
/// The memory of an index is estimated at every such part of hash order.
const ESTIMATED_PART: u64 = 1 << 58;
/// Offset of the first piece.
const CONTENT_AT: u64 = HEADER_BYTES as u64;

/// Why a checkpoint was not loaded.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
enum LoadError {
    /// The bytes read are no checkpoint, or none of this log.
    #[error("{0}")]
    Refused(#[from] ContentError),
    /// The system cannot open or read it for now.
    #[error("{0}")]
    Unread(DeviceError),
}

impl From<DeviceError> for LoadError {
    fn from(error: DeviceError) -> Self {
        if error.is_retryable() { Self::Unread(error) } else { Self::Refused(ContentError(error.to_string())) }
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, ContentError> {
    Err(ContentError(why.into()))
}

/// Opens a listed checkpoint's file and verifies its header. The reads are of the rest.
fn open_file<D: Device>(
    device: &mut D,
    &CheckpointEntry { uuid, len_bytes }: &CheckpointEntry,
    store: StoreUuid,
    class: IoClass,
) -> Result<(FileId, CheckpointHeader, SequentialRead), LoadError> {
    let file = device.open(&checkpoint::file_name(uuid))?;
    let mut header = SequentialRead::new(file, (0, CONTENT_AT), 1, class);
    let refused = match header.next(device).map(|bytes| bytes.map(checkpoint::decode_header)) {
        Ok(Some(Ok(header))) if header.uuid == uuid && header.store == store => {
            let reads = SequentialRead::new(file, (CONTENT_AT, len_bytes.max(CONTENT_AT)), READS_IN_FLIGHT, class);
            return Ok((file, header, reads));
        }
        Ok(Some(Ok(_))) => ContentError("the file is another checkpoint than the manifest lists".to_owned()).into(),
        Ok(Some(Err(error))) => ContentError(error.to_string()).into(),
        Ok(None) => ContentError("it has no header".to_owned()).into(),
        Err(error) => error.into(),
    };
    header.settle(device);
    device.close(file);
    Err(refused)
}

/// A range's index with the entries that still count, and how many of them point to each slot.
struct IndexImage {
    number: RangeNumber,
    index: Index,
    entries: Vec<u32>,
}

/// A verified checkpoint.
pub(super) struct CheckpointImage {
    from: PerStream<Watermark>,
    indexes: Vec<IndexImage>,
    ranges: Vec<RangeImage>,
    segments: Vec<SegmentImage>,
    /// The segment in which the survivors' position is, with its live records before it.
    partial: Vec<SegmentImage>,
}

/// Verifies a listed checkpoint's header, and the checksums of its pieces.
///
/// # Errors
/// The first offset that is corrupt, and how.
pub(crate) fn verify_pieces<D: Device>(
    device: &mut D,
    entry: &CheckpointEntry,
    store: StoreUuid,
) -> Result<(), (u64, String)> {
    let opened = open_file(device, entry, store, IoClass::Verification);
    let (file, _, mut reads) = opened.map_err(|error| (0, error.to_string()))?;
    let (mut offset, mut corrupt) = (CONTENT_AT, None);
    while corrupt.is_none() {
        match reads.next(device) {
            Ok(Some(bytes)) => {
                let at = contents(entry.uuid, offset, bytes).find_map(Result::err);
                corrupt = at.map(|at| (at, corrupt_piece(at)));
                offset += bytes.len() as u64;
            }
            Ok(None) => break,
            Err(error) => corrupt = Some((offset, error.to_string())),
        }
    }
    reads.settle(device);
    device.close(file);
    corrupt.map_or(Ok(()), Err)
}

/// Reads a checkpoint.
fn load<D: Device>(engine: &mut Engine<D>, entry: CheckpointEntry) -> Result<CheckpointImage, LoadError> {
    let Engine { device, segments, options, manifest, store, .. } = engine;
    let (file, header, mut reads) = open_file(device, &entry, *store, IoClass::Recovery)?;
    if let Some(progress) = &options.progress {
        progress.plan(entry.len_bytes);
        reads = reads.counted_by(Some(progress));
    }
    let seal_of = |slot| manifest.state().segments.get(&slot).and_then(|entry| entry.seal.as_ref());
    let mut before = segments.iter().filter(|segment| segment.sequence < header.from[segment.stream].sequence);
    let image = if before.any(|segment| seal_of(segment.slot).is_none()) {
        Err(ContentError("a segment that lies before it is not sealed".to_owned()).into())
    } else {
        let mut parts = parts_in_image(segments, &header.from);
        // Their records are in runs.
        segments.iter().filter(|segment| segment.is_sorted).for_each(|segment| parts.ends[segment.slot as usize] = 0);
        let decoder = || ImageDecoder::new(entry.uuid, options.index.pointers, parts.clone());
        let mut decoder = WorkQueue::new(entry.len_bytes >= THREAD_BYTES_MIN, decoder);
        let mut loader = ImageLoader::new(options.index, &parts, entry.len_bytes);
        let loaded = load_parts(device, &mut reads, &mut decoder, &mut loader);
        loaded.and_then(|()| Ok(loader.finish(header.from)?))
    };
    reads.settle(device);
    device.close(file);
    let image = image?;
    image.verify(segments)?;
    Ok(image)
}

/// Loads what the decoder makes of a checkpoint's file: reads and decoding run ahead.
fn load_parts<D: Device>(
    device: &mut D,
    reads: &mut SequentialRead,
    decoder: &mut WorkQueue<ImageDecoder>,
    loader: &mut ImageLoader<'_>,
) -> Result<(), LoadError> {
    let (mut offset, mut spare) = (CONTENT_AT, Vec::new());
    loop {
        while decoder.has_room()
            && let Some(buf) = reads.take(device)?
        {
            let len = buf.len() as u64;
            decoder.push(ImageJob { offset, buf, part: spare.pop().unwrap_or_default() });
            offset += len;
        }
        let Some(DecodedPart { buf, part }) = decoder.next() else { return Ok(()) };
        reads.give_back(buf);
        let mut part = part?;
        loader.add(&mut part)?;
        spare.push(part);
    }
}

/// For each slot: the part of its segment that is in a checkpoint which begins there.
fn parts_in_image(segments: &SegmentTable, from: &PerStream<Watermark>) -> PartsInImage {
    let mut ends = Vec::new();
    for segment in segments.iter() {
        let Watermark { sequence, offset } = from[segment.stream];
        let slot = segment.slot as usize;
        ends.resize(ends.len().max(slot + 1), 0);
        ends[slot] = match segment.sequence.cmp(&sequence) {
            Ordering::Less => u32::MAX,
            Ordering::Equal => offset,
            Ordering::Greater => 0,
        };
    }
    PartsInImage { layout: segments.layout(), ends }
}

/// Loads a checkpoint's items into indexes of its own.
struct ImageLoader<'p> {
    options: IndexOptions,
    parts: &'p PartsInImage,
    /// Length of the file, bytes.
    len_bytes: u64,
    ranges: u32,
    indexes: Vec<IndexImage>,
    /// Content behind the cells, as a whole; `None` until it begins.
    state: Option<Vec<u8>>,
    current: SmallVec<[(u16, Pointer); 64]>,
}

impl<'p> ImageLoader<'p> {
    fn new(options: IndexOptions, parts: &'p PartsInImage, len_bytes: u64) -> Self {
        let (indexes, current) = (Vec::new(), SmallVec::new());
        Self { options, parts, len_bytes, ranges: 0, indexes, state: None, current }
    }

    fn add(&mut self, part: &mut ImagePart) -> Result<(), ContentError> {
        for item in &mut part.items {
            match item {
                ImageItem::Ranges(count) => self.ranges = *count,
                ImageItem::Range(number, pages) => self.begin_index(*number, *pages)?,
                ImageItem::Cell { at, first_hash, are_all_current } => {
                    let cell = content::decode_cell(&mut &part.content[*at as usize..], self.options.pointers)?;
                    self.add_cell(*first_hash, cell, *are_all_current)
                        .map_err(|error| ContentError(error.to_string()))?;
                }
                ImageItem::EndOfCells(entries) => {
                    if let Some(image) = self.indexes.last_mut() {
                        image.index.end_cells();
                        image.entries = core::mem::take(entries);
                    }
                }
                ImageItem::State { at } => {
                    self.state.get_or_insert_default().extend_from_slice(&part.content[*at as usize..]);
                }
            }
        }
        Ok(())
    }

    fn begin_index(&mut self, number: RangeNumber, pages: u32) -> Result<(), ContentError> {
        if u64::from(pages) > self.len_bytes {
            return refuse("an index has more pages than the file has bytes");
        }
        let index = Index::with_pages(self.options, pages).map_err(|error| ContentError(error.to_string()))?;
        self.indexes.push(IndexImage { number, index, entries: Vec::new() });
        Ok(())
    }

    /// Adds the entries of a cell that still count.
    fn add_cell(&mut self, first_hash: u64, cell: CellImage<'_>, are_all_current: bool) -> Result<(), IndexImageError> {
        let Some(IndexImage { index, .. }) = self.indexes.last_mut() else {
            unreachable!("cells follow the beginning of a range")
        };
        // Most cells are as deep as this one.
        index.fetch_cell(first_hash.wrapping_add(CELLS_AHEAD << (64 - cell.depth)));
        if first_hash.is_multiple_of(ESTIMATED_PART) {
            index.expect_cells(first_hash);
        }
        if are_all_current && index.load_page(first_hash, cell)? {
            return Ok(());
        }
        self.current.clear();
        self.current.extend(self.parts.current_of(cell));
        index.load_cell(first_hash, cell.depth, &mut self.current)
    }

    fn finish(self, from: PerStream<Watermark>) -> Result<CheckpointImage, ContentError> {
        let Some(state) = self.state else { return refuse("it is cut short") };
        let mut source = &state[..];
        let mut ranges = Vec::new();
        for _ in 0..self.ranges {
            ranges.push(content::decode_range(&mut source, self.options.pointers)?);
        }
        let (segments, partial) = (read_segments(&mut source)?, read_segments(&mut source)?);
        if !source.is_empty() {
            return refuse("it has bytes behind its content");
        }
        Ok(CheckpointImage { from, indexes: self.indexes, ranges, segments, partial })
    }
}

fn read_segments(source: &mut &[u8]) -> Result<Vec<SegmentImage>, ContentError> {
    let mut images = Vec::new();
    for _ in 0..content::decode_count(source)? {
        images.push(content::decode_segment(source)?);
    }
    Ok(images)
}

impl CheckpointImage {
    /// Index entries that count.
    fn entries(&self) -> u64 {
        self.indexes.iter().map(|image| u64::from(image.index.len())).sum()
    }

    /// Checks the live counts against the entries, and that no segment before the position is missing.
    fn verify(&self, segments: &SegmentTable) -> Result<(), ContentError> {
        let mut left: HashMap<(usize, RangeNumber), u64, FxBuildHasher> = HashMap::default();
        for IndexImage { number, entries, .. } in &self.indexes {
            let counted = entries.iter().enumerate().filter(|(_, count)| **count > 0);
            left.extend(counted.map(|(slot, &count)| ((slot, *number), u64::from(count))));
        }
        let mut known = 0;
        for image in self.segments.iter().chain(&self.partial) {
            let Some(segment) = segments.get(image.slot).filter(|segment| segment.sequence == image.sequence) else {
                continue;
            };
            known += usize::from(segment.sequence < self.from[segment.stream].sequence);
            if segment.is_sorted {
                // It was sorted after the checkpoint, or while that was written.
                continue;
            }
            for share in &image.shares {
                let found = left.remove(&(image.slot as usize, share.number)).unwrap_or_default();
                if found != share.live_records {
                    let live = share.live_records;
                    return refuse(format!("{found} entries point to {}, where {live} records are live", segment.name));
                }
            }
        }
        let is_before = |segment: &&Segment| segment.sequence < self.from[segment.stream].sequence;
        let before = segments.iter().filter(is_before).count();
        if known != before || !left.is_empty() {
            return refuse("it lacks segments that lie before it");
        }
        Ok(())
    }
}

impl<D: Device> IndexBuilder<'_, D> {
    /// Fills the engine from the newest checkpoint that is whole. Returns where its log continues.
    ///
    /// # Errors
    /// If the system cannot open or read one for now: the scan of the whole log may take a hundred times as long.
    pub(super) fn load_checkpoint(&mut self, report: &mut OpenReport) -> Result<PerStream<Watermark>, OpenError> {
        // A check and a salvage read everything.
        let is_wanted = !self.engine.options.read_only;
        let listed = self.engine.manifest.state().checkpoints.clone();
        for entry in listed.into_iter().rev().filter(|_| is_wanted) {
            let loaded = match load(self.engine, entry) {
                // A single read may have been misdirected or have failed. A refused checkpoint is used by no later opening either.
                Err(LoadError::Refused(_)) => load(self.engine, entry),
                loaded => loaded,
            };
            match loaded {
                Ok(image) => {
                    report.checkpoint_entries = Some(image.entries());
                    let from = self.take_image(image);
                    self.bound_deferred();
                    return Ok(from);
                }
                Err(LoadError::Unread(error)) => return Err(error.into()),
                Err(LoadError::Refused(error)) => {
                    let file = checkpoint::file_name(entry.uuid);
                    tracing::warn!(%file, %error, "a checkpoint cannot be used: more of the log is scanned");
                    report.checkpoints_refused.push((file, error.to_string()));
                }
            }
        }
        Ok(PerStream::default())
    }

    /// Leaves memory for the indexes as they are now.
    pub(super) fn bound_deferred(&mut self) {
        let index_bytes = self.engine.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum();
        self.deferred.bound_beside(&self.engine.options, index_bytes);
    }

    fn take_image(&mut self, image: CheckpointImage) -> PerStream<Watermark> {
        let mut cleared = Vec::new();
        for (loaded, range) in image.indexes.into_iter().zip(image.ranges) {
            let at = self.numbers.get(&range.number).copied().filter(|&at| self.tentative[at].is_whole());
            let Some(at) = at.filter(|_| loaded.number == range.number) else { continue };
            if self.tentative[at].cleared > range.cleared {
                // Cleared after the checkpoint: none of its entries counts.
                cleared.push(at);
            } else {
                self.engine.ranges[at].index = loaded.index;
            }
            self.take_range(at, &range);
        }
        for segment in &image.segments {
            self.take_segment(segment, &cleared);
        }
        for segment in &image.partial {
            self.take_partial(segment, &cleared);
        }
        self.from = PerStream::from_fn(|kind| image.from[kind]);
        self.engine.checkpoints.last.from = image.from;
        image.from
    }

    fn take_range(&mut self, at: usize, image: &RangeImage) {
        let listed = self.tentative[at].cleared;
        self.engine.recover_clears(at, listed, listed.max(image.cleared));
        let tentative = &mut self.tentative[at];
        tentative.cleared = listed.max(image.cleared);
        tentative.committed = image.committed;
        let segments = &self.engine.segments;
        let needed_max = self.engine.needed_max;
        let is_listed = |kept: &&RecordImage| {
            let segment = segments.get(segments.slot_and_offset(kept.pointer).0);
            segment.is_some_and(|segment| segment.sequence == kept.sequence)
        };
        let range = &mut self.engine.ranges[at];
        range.progress.committed = range.progress.committed.max(image.committed);
        range.progress.appended = range.progress.appended.max(image.committed);
        if range.retain_floor.is_none() {
            range.complete_above = image.committed;
            return;
        }
        // Records before one whose segment was dropped since are not retained any more either.
        let gone = image.retained.iter().rposition(|kept| !is_listed(&kept));
        range.complete_above = gone.map_or(image.complete_above, |gone| image.retained[gone].version);
        if range.id.is_none() {
            // A retired range retains nothing, but its heirs keep the records behind the checkpoint for retries.
            range.complete_above = Version::ZERO;
        }
        let kept = &image.retained[gone.map_or(0, |gone| gone + 1)..];
        range.retained = kept.iter().map(retained_of).collect();
        let results = image.copied_results.iter().filter(is_listed);
        let is_survivor = |kept: &&RecordImage| {
            let segment = segments.get(segments.slot_and_offset(kept.pointer).0);
            segment.is_some_and(|segment| segment.stream == StreamKind::Survivors)
        };
        range.copied_results = results.clone().filter(|kept| !is_survivor(kept)).map(retained_of).collect();
        let copy_of = |kept: &RecordImage| ResultCopy { record: retained_of(kept), tag: ClientTag::NONE };
        range.result_copies.kept = results.filter(is_survivor).map(copy_of).collect();
        range.bound_retained(needed_max, needed_max);
        if range.bound_copied_results(needed_max) {
            self.engine.warn_of_dropped_results(at);
        }
    }

    fn take_segment(&mut self, image: &SegmentImage, cleared: &[usize]) {
        let &SegmentImage { slot, sequence, tombstone_bytes, .. } = image;
        let listed = self.engine.segments.get(slot).is_some_and(|segment| segment.sequence == sequence);
        let seal = self.engine.manifest.state().segments.get(&slot).and_then(|entry| entry.seal.clone());
        let Some(seal) = seal.filter(|_| listed) else { return };
        let numbers = &self.numbers;
        let place_of = |number| numbers.get(&number).copied();
        let segment = self.engine.segments.expect_mut(slot);
        (segment.end, segment.facts, segment.tombstone_bytes) = (seal.len, seal.facts.clone(), tombstone_bytes);
        (segment.sealed, segment.listed_sealed) = (true, true);
        if !segment.is_sorted {
            // All of a sorted segment is read again, and its records are counted then.
            segment.lengths.load(image.lengths.iter().copied(), image.record_bytes);
            segment.expiries = Expiries::load(image.expiry_base, &image.expiries);
        }
        for &InvalidatedImage { number, before, above } in &image.invalidated {
            if place_of(number).is_some() {
                let records = RolledBackRecords { number, before: LogPosition(before), above };
                segment.load_invalidated(records, self.engine.options.segment_bytes);
            }
        }
        let stream = segment.stream;
        for share in &image.shares {
            let Some(at) = place_of(share.number) else { continue };
            let mut share = share_of(at, share, cleared.contains(&at));
            if seal.facts.tombstones > 0 {
                // Some of them may have no entry.
                let number = self.engine.ranges[at].number;
                let facts = seal.facts.numbers.iter().find(|facts| facts.number == number);
                share.lowest_tombstone = facts.map_or(Version::ZERO, |facts| facts.lowest);
            }
            segment.shares.push(share);
            let range = &mut self.engine.ranges[at];
            range.segments.insert(sequence, slot);
            if !segment.is_sorted {
                range.lowest_puts.set(sequence, share.lowest_put);
                range.lowest_tombstones.set(sequence, share.lowest_tombstone);
            }
        }
        if segment.is_sorted {
            segment.end_sorting();
        }
        for facts in seal.facts.numbers.iter().filter(|_| stream == StreamKind::Survivors) {
            if let Some(at) = self.numbers.get(&facts.number).copied() {
                self.note_survivors(at, facts.highest);
                let heirs: Vec<usize> = self.engine.heirs(at).collect();
                heirs.into_iter().for_each(|heir| self.note_survivors(heir, facts.highest));
            }
        }
    }

    /// Takes the live records of a segment that is scanned for the rest.
    fn take_partial(&mut self, image: &SegmentImage, cleared: &[usize]) {
        let is_listed = |segment: &&mut Segment| segment.sequence == image.sequence;
        let Some(segment) = self.engine.segments.get_mut(image.slot).filter(is_listed) else { return };
        for share in &image.shares {
            let at = self.numbers.get(&share.number).copied().filter(|at| !cleared.contains(at));
            // Otherwise the scan alone says whether the range has any records there.
            if let Some(at) = at.filter(|_| *share != ShareImage::none(share.number)) {
                let is_counted_by_heirs = self.engine.ranges[at].is_retired();
                segment.shares.push(RangeShare { is_counted_by_heirs, ..share_of(at, share, segment.is_sorted) });
                self.engine.ranges[at].segments.insert(image.sequence, image.slot);
            }
        }
    }
}

fn share_of(at: usize, image: &ShareImage, is_cleared: bool) -> RangeShare {
    let &ShareImage { puts, newest, died_by, lowest_put, hides_below, clears, rolls_back, .. } = image;
    let (live_records, live_bytes) = if is_cleared { (0, 0) } else { (image.live_records, image.live_bytes) };
    RangeShare {
        puts,
        live_records,
        live_bytes,
        newest,
        died_by,
        lowest_put,
        hides_below,
        clears,
        rolls_back,
        ..RangeShare::none(at)
    }
}

fn retained_of(&RecordImage { version, pointer, len_bytes, sequence }: &RecordImage) -> Retained {
    Retained { version, pointer, len_bytes, sequence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentUuid;
    use crate::format::checkpoint::PIECE_BYTES;
    use crate::index::PointerWidth;
    use crate::recovery::image_decode::tests::{SEGMENT_BYTES, UUID, content, pieces};
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::KeyHash;
    use fawn_types::random::SplitMix64;

    const HUGE_PAGE_BYTES: usize = 2 << 20;

    /// Without an estimate, an index grows page by page, and the system copies its memory to huge pages later. The hashes of this one
    /// are in the first half, so the estimate is twice its length.
    #[test]
    fn an_index_is_loaded_into_huge_pages_that_its_first_part_makes_expect() {
        let options = IndexOptions { pointers: PointerWidth::Bits32, ..IndexOptions::default() };
        let (mut index, mut hashes) = (Index::new(options), SplitMix64::new(1));
        for i in 0..400_000 {
            index.insert(KeyHash(hashes.next() >> 1), Pointer::new(i)).unwrap();
        }
        let mut bytes = Vec::new();
        content::encode_count(1, &mut bytes);
        content::encode_range_start(RangeNumber(1), index.pages(), &mut bytes);
        index.cells(0).for_each(|cell| content::encode_cell(&cell, &mut bytes));
        let range = RangeImage {
            number: RangeNumber(1),
            committed: Version::ZERO,
            cleared: Version::ZERO,
            complete_above: Version::ZERO,
            retained: Vec::new(),
            copied_results: Vec::new(),
        };
        content::encode_range(&range, options.pointers, &mut bytes);
        (0..2).for_each(|_| content::encode_count(0, &mut bytes));
        let segments = SegmentTable::new(64 << 20, options.pointers);
        let parts = PartsInImage { layout: segments.layout(), ends: vec![u32::MAX] };
        let mut loader = ImageLoader::new(options, &parts, bytes.len() as u64);
        let part = ImagePart { content: bytes, items: Vec::new() };
        let mut decoder = ImageDecoder::new(SegmentUuid([0; 16]), options.pointers, parts.clone());
        loader.add(&mut decoder.divide(part).unwrap()).unwrap();
        let loaded = loader.finish(PerStream::default()).unwrap();
        let loaded = &loaded.indexes[0].index;
        assert_eq!(loaded.len(), index.len());
        let [copied, loaded] = [&index, loaded].map(Index::resident_bytes);
        assert!((HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES).contains(&copied), "{copied} bytes");
        // The first huge page was begun before anything was known.
        assert!((2 * HUGE_PAGE_BYTES..5 * HUGE_PAGE_BYTES / 2).contains(&loaded), "{loaded} bytes, {copied} before");
    }

    /// The result of loading the file "image".
    #[derive(PartialEq, Debug)]
    struct LoadedImage {
        result: Result<(), LoadError>,
        /// By range and slot.
        entries: Vec<Vec<u32>>,
        state: Vec<u8>,
        operations: u64,
    }

    fn load_image(disk: &SimDisk, len: u64, has_thread: bool) -> LoadedImage {
        let before = disk.ops();
        let options = IndexOptions::default();
        let mut device = SimDevice::attach(disk);
        let file = device.open("image").unwrap();
        let mut reads = SequentialRead::new(file, (CONTENT_AT, len), READS_IN_FLIGHT, IoClass::Recovery);
        let layout = SegmentTable::new(SEGMENT_BYTES, options.pointers).layout();
        let parts = PartsInImage { layout, ends: vec![u32::MAX; 2] };
        let decoder = || ImageDecoder::new(UUID, options.pointers, parts.clone());
        let (mut decoder, mut loader) = (WorkQueue::new(has_thread, decoder), ImageLoader::new(options, &parts, len));
        let result = load_parts(&mut device, &mut reads, &mut decoder, &mut loader);
        reads.settle(&mut device);
        assert_eq!(device.in_flight(), 0);
        let entries = loader.indexes.iter().map(|image| image.entries.clone()).collect();
        LoadedImage { result, entries, state: loader.state.unwrap_or_default(), operations: disk.ops() - before }
    }

    #[test]
    fn an_image_is_loaded_alike_with_and_without_a_thread_up_to_its_first_corrupt_piece() {
        const STATE_BYTES: u32 = 5 << 20;
        let content = content(IndexOptions::default().pointers, STATE_BYTES);
        let mut file = vec![0; HEADER_BYTES];
        file.extend(pieces(&content, CONTENT_AT));
        let disk = SimDisk::new(SimOptions::instant(1));
        disk.put("image", &file);
        let len = file.len() as u64;
        let whole = load_image(&disk, len, false);
        assert_eq!((&whole.result, &whole.entries), (&Ok(()), &vec![vec![10_000; 2]; 2]));
        assert!(whole.state == content[content.len() - STATE_BYTES as usize..]);
        assert!(load_image(&disk, len, true) == whole);
        // A byte of the last piece of each part.
        for end in (1..).map(|part| CONTENT_AT + (part << 20)).take_while(|&end| end < len) {
            disk.flip_bits("image", end - 100, 1);
            let refused = load_image(&disk, len, true);
            let expected = ContentError(corrupt_piece(end - PIECE_BYTES as u64));
            assert_eq!(refused.result, Err(expected.into()));
            assert!(load_image(&disk, len, false) == refused);
            disk.flip_bits("image", end - 100, 1);
        }
    }
}

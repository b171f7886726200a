//! The content of a checkpoint: cells of the indexes, then the state of ranges and segments.
use super::{CheckpointStep, CheckpointWriter};
use crate::engine::Engine;
use crate::format::Watermark;
use crate::format::checkpoint::content::{self, InvalidatedImage, RangeImage, RecordImage, SegmentImage, ShareImage};
use crate::format::segment::{PerStream, StreamKind};
use crate::log::segments::{RolledBackRecords, Segment};
use crate::range::Retained;
use fawn_flash::Device;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Entries whose records died after their cells were copied: count and bytes.
pub(super) type DiedSince = HashMap<(u32, usize), (u64, u64), FxBuildHasher>;

/// A segment that is in the image up to an offset only: its live records there when the checkpoint began, and those that
/// died before their cells were copied.
#[derive(Debug)]
pub(super) struct PartialSegment {
    pub(super) slot: u32,
    pub(super) sequence: u64,
    /// By range: records, bytes.
    pub(super) live: HashMap<usize, (u64, u64), FxBuildHasher>,
}

impl<D: Device> Engine<D> {
    /// Encodes cells, and the state behind the last one, until at least `bytes` of content are not written yet.
    pub(super) fn encode_content(&self, writer: &mut CheckpointWriter, bytes: usize) {
        while writer.unwritten_bytes() < bytes
            && let CheckpointStep::Cells { at, cursor } = writer.step
        {
            let Some(range) = writer.order.get(at).map(|&place| &self.ranges[place]) else {
                self.encode_state(writer);
                writer.step = CheckpointStep::Content;
                return;
            };
            if cursor == 0 {
                content::encode_range_start(range.number, range.index.pages(), &mut writer.content);
            }
            let mut next = None;
            for cell in range.index.cells(cursor) {
                content::encode_cell(&cell, &mut writer.content);
                next = cell.next;
                if writer.unwritten_bytes() >= bytes {
                    break;
                }
            }
            writer.step = match next {
                Some(cursor) => CheckpointStep::Cells { at, cursor },
                None => CheckpointStep::Cells { at: at + 1, cursor: 0 },
            };
        }
    }

    /// Encodes the state of ranges and segments behind the last cell.
    fn encode_state(&self, writer: &mut CheckpointWriter) {
        let segment_bytes = self.options.segment_bytes;
        writer.ends = PerStream::from_fn(|kind| self.streams[kind].records_end(segment_bytes));
        let from = writer.from;
        for &at in &writer.order {
            let range = &self.ranges[at];
            let first_scanned = from[StreamKind::Foreground].sequence;
            let in_image = |kept: &&Retained| kept.sequence < first_scanned;
            let image_of = |&Retained { version, pointer, len_bytes, sequence }: &Retained| RecordImage {
                version,
                pointer,
                len_bytes,
                sequence,
            };
            let is_copy_in_image = |copy: &&Retained| {
                let offset = self.segments.slot_and_offset(copy.pointer).1;
                Watermark { sequence: copy.sequence, offset } < from[StreamKind::Survivors]
            };
            let copies = range.result_copies.kept.iter().map(|copy| &copy.record).filter(is_copy_in_image);
            let results = range.copied_results.iter().filter(in_image).chain(copies);
            let image = RangeImage {
                number: range.number,
                committed: range.progress.committed,
                cleared: range.cleared.committed,
                complete_above: range.complete_above,
                retained: range.retained.iter().filter(in_image).map(image_of).collect(),
                copied_results: results.map(image_of).collect(),
            };
            content::encode_range(&image, self.options.index.pointers, &mut writer.content);
        }
        let is_whole = |segment: &&Segment| segment.sequence < from[segment.stream].sequence;
        let whole: Vec<_> = self.segments.iter().filter(is_whole).collect();
        content::encode_count(whole.len(), &mut writer.content);
        for segment in whole {
            let image = self.image_of_segment(segment, &writer.died_since);
            content::encode_segment(&image, &mut writer.content);
        }
        let partial = writer.partial.iter().map(|partial| self.image_of_partial(partial));
        let partial: Vec<_> = partial.collect();
        content::encode_count(partial.len(), &mut writer.content);
        partial.iter().for_each(|image| content::encode_segment(image, &mut writer.content));
    }

    fn image_of_segment(&self, segment: &Segment, died_since: &DiedSince) -> SegmentImage {
        let number_of = |at: usize| self.ranges[at].number;
        let shares = segment.shares.iter().map(|share| {
            let (records, bytes) = died_since.get(&(segment.slot, share.range)).copied().unwrap_or_default();
            ShareImage {
                number: number_of(share.range),
                puts: share.puts,
                live_records: share.live_records + records,
                live_bytes: share.live_bytes + bytes,
                newest: share.newest,
                died_by: share.died_by,
                lowest_put: share.lowest_put,
                hides_below: share.hides_below,
                clears: share.clears,
                rolls_back: share.rolls_back,
            }
        });
        let invalidated = segment
            .invalidated()
            .iter()
            .map(|&RolledBackRecords { number, before, above }| InvalidatedImage { number, before: before.0, above });
        let (expiry_base, expiries) = segment.expiries.counts();
        SegmentImage {
            slot: segment.slot,
            sequence: segment.sequence,
            tombstone_bytes: segment.tombstone_bytes,
            record_bytes: segment.lengths.total_bytes(),
            lengths: segment.lengths.counts().collect(),
            expiry_base,
            expiries,
            shares: shares.collect(),
            invalidated: invalidated.collect(),
        }
    }

    /// The live records, and what the records do not say: by what they died, and which of them were found expired. An
    /// opening scans the segment.
    fn image_of_partial(&self, partial: &PartialSegment) -> SegmentImage {
        let &PartialSegment { slot, sequence, ref live } = partial;
        let segment = self.segments.get(slot).filter(|segment| segment.sequence == sequence);
        let shares = live.iter().map(|(&at, &(live_records, live_bytes))| {
            let none = ShareImage::none(self.ranges[at].number);
            let share = segment.and_then(|segment| segment.shares.iter().find(|share| share.range == at));
            let (died_by, hides_below) =
                share.map_or((none.died_by, none.hides_below), |share| (share.died_by, share.hides_below));
            ShareImage { live_records, live_bytes, died_by, hides_below, ..none }
        });
        SegmentImage { shares: shares.collect(), ..SegmentImage::none(slot, sequence) }
    }
}

//! Space for runs: how long they may be, what jobs may take, and what is kept for merges.
use super::super::Engine;
use super::super::clean::DELETED_SEGMENTS;
use super::gather::SortSize;
use super::merge_choice::SpaceLeft;
use crate::format::run::PAGES_MAX;
use crate::format::run::record::RECORD_HEADER_BYTES;
use crate::format::segment::StreamKind;
use crate::log::segments::{RangeShare, Segment};
use crate::log::stream::NextSegment;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::KeyRange;
use fawn_types::Version;

/// Longest run, bytes, and shortest maximum: each has a few KiB besides its pages.
const RUN_BYTES_MAX: u64 = 256 << 20;
const RUN_BYTES_MIN: u64 = 1 << 20;
/// Share of the capacity, one in so many, that a run takes at most.
const RUNS_PER_CAPACITY: u64 = 128;
/// Bytes of a short run besides its pages: header, footer, and their alignment.
const RUN_OVERHEAD_BYTES: u64 = 16 << 10;
/// Segments of a log that cleaning hardly makes shorter: the active and the next one of each stream, or as many sealed ones.
const SHORT_LOG_SEGMENTS: usize = 4;
/// Part of a sweep that may exceed the capacity, bytes.
const SHORT_PART_BYTES: u64 = 4 << 20;
/// Runs of a sort or of a merge of later runs, and the usual length of the shortest ones, bytes.
const LATER_RUNS_PER_JOB: u64 = 8;
const LATER_RUN_BYTES_MIN: u64 = 512 << 10;
/// Full runs that a part of a sweep takes at most. Its last run may be short, and is one of several in the next sweep.
const RUNS_PER_PART: u64 = 4;
/// Share of the capacity, one in so many, below which the space that puts have is little.
const LITTLE_PER_CAPACITY: u64 = 32;
/// Share of the capacity, one in so many, that the space of puts leaves to the next job at most.
const JOBS_PER_CAPACITY: u64 = 32;
/// Live records per page of a run at least, bytes: the page ends before a record of at most a quarter of it.
const PAGE_FILLED_BYTES: u64 = PAGE_BYTES as u64 * 3 / 4;
/// Filters and fences of a page, bytes: 10.5 bits for each of 195 records of 21 B.
const PAGE_OVERHEAD_BYTES: u64 = 256;

fn later_runs(bytes: u64, run_bytes_max: u64) -> u64 {
    let least = LATER_RUN_BYTES_MIN.min(run_bytes_max);
    (bytes / least).clamp(1, LATER_RUNS_PER_JOB).next_power_of_two()
}

/// Space that runs of so many pages take at most if the longest one has so many bytes, bytes.
pub(super) fn space_of_pages(pages: u64, run_bytes_max: u64) -> u64 {
    let bytes = pages * (PAGE_BYTES as u64 + PAGE_OVERHEAD_BYTES);
    bytes + (bytes / run_bytes_max + 2 * later_runs(bytes, run_bytes_max)) * RUN_OVERHEAD_BYTES
}

impl<D: Device> Engine<D> {
    /// Whether puts have little space left besides what jobs need.
    pub(in crate::engine) fn has_little_space(&self) -> bool {
        self.space_left() != SpaceLeft::Ample
    }

    pub(super) fn space_left(&self) -> SpaceLeft {
        if self.full {
            return SpaceLeft::None;
        }
        let runs = &self.sorted.runs;
        let oldest_age = runs.last().map_or(0, |listed| listed.age);
        let later = runs.iter().take_while(|listed| listed.age > oldest_age);
        let later_bytes: u64 = later.map(|listed| listed.file_bytes).sum();
        let growth_bytes = later_bytes * self.sorted.growth_percent / 100;
        let left = self.room_for_puts(self.part_bytes_max());
        if left < self.capacity_bytes() / LITTLE_PER_CAPACITY + growth_bytes {
            SpaceLeft::Little
        } else {
            SpaceLeft::Ample
        }
    }

    /// Longest run that is written, bytes. So short that a part of a sweep is a small share of the space.
    pub(super) fn run_bytes_max(&self) -> u64 {
        if self.options.run_bytes_max > 0 {
            return self.options.run_bytes_max.clamp(PAGE_BYTES as u64, u64::from(PAGES_MAX) * PAGE_BYTES as u64);
        }
        let shortest = RUN_BYTES_MIN.min(u64::from(self.options.segment_bytes));
        (self.capacity_bytes() / RUNS_PER_CAPACITY).clamp(shortest, RUN_BYTES_MAX)
    }

    /// Ring keys, by their highest 32 bits, at which a run of a sort or of a merge of later ones ends, whose records take so many
    /// bytes: a sweep gives back what it has passed. They depend on nothing but the store's ranges, so that runs of all ages end
    /// at the same ones. Otherwise an older run that goes on would keep the newer ones that it overlaps.
    pub(super) fn cuts(&self, bytes: u64) -> Vec<u32> {
        let runs = self.later_runs(bytes);
        let hosted = self.ranges.iter().filter(|range| range.id.is_some());
        let mut keys: Vec<KeyRange> = hosted.map(|range| range.keys).collect();
        keys.sort_unstable_by_key(|keys| keys.start);
        let per_range = runs.div_ceil((keys.len() as u64).max(1)).next_power_of_two();
        let of_range = |keys: &KeyRange| {
            let start = u64::from(keys.start.highest());
            let end = keys.end.map_or(1 << 32, |end| u64::from(end.highest()));
            (0..per_range).map(move |at| (start + end.saturating_sub(start) * at / per_range) as u32)
        };
        let ends: Vec<u32> = keys.iter().flat_map(of_range).collect();
        let step = (ends.len() as u64 / runs).max(1) as usize;
        ends.into_iter().step_by(step).collect()
    }

    /// Number of such runs, and at most twice as many if the store has several ranges. Powers of two have cuts in common.
    fn later_runs(&self, bytes: u64) -> u64 {
        later_runs(bytes, self.run_bytes_max())
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_segments().saturating_mul(u64::from(self.options.segment_bytes))
    }

    /// Segments that are kept for merges, which give back more than they take: one of the oldest runs, and what later ones
    /// have of its keys.
    pub(in crate::engine) fn merge_segments(&self) -> u64 {
        let bytes = self.run_bytes_max() * 5 / 4;
        let is_kept = self.sorted.is_active && bytes > SHORT_PART_BYTES;
        if is_kept { bytes.div_ceil(u64::from(self.options.segment_bytes)) } else { 0 }
    }

    /// Space that a part of a sweep may take, bytes. A short one is written whatever space there is: it gives back what it
    /// takes, and in a store so small even a few pages around each run count.
    pub(super) fn room_for_part(&self) -> u64 {
        self.room_for_runs(0).max(SHORT_PART_BYTES)
    }

    /// Space that the parts of a sweep take that begins now, bytes: so little that puts have most of what is left.
    pub(super) fn part_bytes_max(&self) -> u64 {
        let room = self.room_for_runs(self.reserved_segments());
        (room / 2).max(SHORT_PART_BYTES).min(RUNS_PER_PART * self.run_bytes_max())
    }

    /// Space that puts have left besides parts of a sweep, and the sorts between them, bytes.
    pub(super) fn room_for_puts(&self, part_bytes: u64) -> u64 {
        let of_job = part_bytes.max(self.space_of_records(self.sort_bytes()));
        let of_job = of_job.min(self.capacity_bytes() / JOBS_PER_CAPACITY);
        let left = self.room_for_runs(self.reserved_segments()) + self.soon_free_bytes();
        // The unused parts of the active and the next segment count, so that the result falls steadily. Three segments are
        // subtracted, because streams take whole ones.
        let segment_bytes = u64::from(self.options.segment_bytes);
        let stream = &self.streams[StreamKind::Foreground];
        let active_bytes = stream.window.active().map_or(0, |chunk| segment_bytes - u64::from(chunk.end()));
        let next_bytes = if matches!(stream.next, NextSegment::None) { 0 } else { segment_bytes };
        (left + active_bytes + next_bytes).saturating_sub(of_job + 3 * segment_bytes)
    }

    /// Space that counts as taken only until a part of a sweep, a sort or a sync ends, bytes.
    fn soon_free_bytes(&self) -> u64 {
        let job = self.sorted.job.as_ref().filter(|job| job.pace.is_none());
        let (reserved_bytes, sorted) = job.map_or((0, 0), |job| (job.reserved_bytes(), job.sorted_segments()));
        reserved_bytes + (sorted + self.drops.unsynced()) as u64 * u64::from(self.options.segment_bytes)
    }

    /// Space that new runs may take if so many segments are kept, bytes.
    pub(super) fn room_for_runs(&self, kept: u64) -> u64 {
        let left = self.segments_max_of_runs().saturating_sub(self.taken_segments() + kept);
        left.saturating_mul(u64::from(self.options.segment_bytes))
    }

    /// Space that a sort may take, bytes: survivors keep a segment, since cleaning frees space in any case, and merges theirs. But if
    /// all runs of a full store are of one age, nothing gives space back before the deletes of the log are in a run, which a sweep
    /// merges with what they hide: the sort of one segment may take the space of merges, and if the log is short, a short segment
    /// may exceed the capacity, as a short part of a sweep may.
    pub(super) fn room_for_sort(&self) -> u64 {
        let (of_survivors, of_segment) = (u64::from(self.needs_survivors_next()), self.space_of_segment());
        let room = self.room_for_runs(self.merge_segments() + of_survivors);
        let runs = &self.sorted.runs;
        let is_swept = runs.first().is_some_and(|newest| runs.last().is_some_and(|oldest| oldest.age == newest.age));
        if !(self.full && is_swept) || room >= of_segment {
            return room;
        }
        let room = self.room_for_runs(of_survivors).min(of_segment);
        let is_short = self.segments.len() <= SHORT_LOG_SEGMENTS;
        if !is_short || self.taken_segments() > self.capacity_segments() {
            return room;
        }
        room.max(of_segment.min(SHORT_PART_BYTES))
    }

    /// Space by which runs of puts may be longer than their segments, bytes: deletes find theirs behind that, and their sort what they
    /// leave to it.
    pub(super) fn room_for_growth(&self) -> u64 {
        if !self.bounds_growth() {
            return u64::MAX;
        }
        let kept = self.kept_from_deletes() + DELETED_SEGMENTS + u64::from(self.needs_survivors_next());
        self.room_for_runs(kept)
    }

    /// Segments that deletes leave to the sort of one segment, without which they would give nothing back, unless it is so short that
    /// it may exceed the capacity.
    pub(in crate::engine) fn segments_of_sort(&self) -> u64 {
        let bytes = self.space_of_segment();
        let is_kept = self.sorted.is_active && bytes > SHORT_PART_BYTES;
        if is_kept { bytes.div_ceil(u64::from(self.options.segment_bytes)) } else { 0 }
    }

    /// Space that the sort of a whole segment takes at most, bytes.
    fn space_of_segment(&self) -> u64 {
        let bytes = u64::from(self.options.segment_bytes);
        // The shortest records have the most batches.
        self.space_of_sort(SortSize { bytes, count: bytes / RECORD_HEADER_BYTES as u64 })
    }

    /// Space that runs of so many pages take at most, bytes.
    pub(super) fn space_of_pages(&self, pages: u64) -> u64 {
        space_of_pages(pages, self.run_bytes_max())
    }

    /// Space that runs of so many bytes of live records take at most, bytes.
    pub(super) fn space_of_records(&self, record_bytes: u64) -> u64 {
        self.space_of_pages(record_bytes.div_ceil(PAGE_FILLED_BYTES))
    }

    /// Seals the survivors' active segment if sorted segments stay because of old records in it: while hardly anything is
    /// cleaned, it would stay open for ever.
    pub(super) fn seal_survivors(&mut self) {
        let stream = &self.streams[StreamKind::Survivors];
        let Some(active) = stream.window.active().map(|chunk| self.segments.expect(chunk.slot)) else { return };
        if !self.keeps_sorted_segments(active) {
            return;
        }
        // A victim appends to it. Otherwise the search that follows the write of its frames seals it.
        self.sorted.segment_search.repeat_soon(self.now.mono);
        if self.cleaner.has_work() {
            return;
        }
        let flush = &mut self.streams[StreamKind::Survivors].flush;
        if flush.is_written() {
            self.seal_written(StreamKind::Survivors);
        } else {
            flush.wanted |= flush.open.is_some();
        }
    }

    /// Whether no other segment has as old records that sorted segments may hide.
    fn keeps_sorted_segments(&self, active: &Segment) -> bool {
        let is_oldest = |share: &RangeShare| {
            let lowest = share.hidden_from_sorted();
            lowest < Version::from_u64(u64::MAX) && !self.sorted_hides_elsewhere(share.range, active.sequence, lowest)
        };
        self.segments.iter().any(|segment| segment.is_sorted) && active.shares.iter().any(is_oldest)
    }
}

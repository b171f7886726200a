//! Flush state: the open frame, closed frames and their writes, and the flushed and synced watermarks.
use super::LogPosition;
use crate::format::frame::Chain;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{MonoMs, Version};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Log writes in flight, at most. More than one only if they share no block.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Whole pages of frames that are only in the tail file, from which on they are written to the log, bytes.
pub(crate) const WRITE_OUT_BYTES: u32 = 64 << 10;
/// Minimum size of a frame that is padded to a page, so that the next frame need not wait for the shared block, bytes.
pub(crate) const PAD_FRAME_BYTES_MIN: u32 = 64 << 10;
/// A small durable write into fresh blocks is extended by zeros to a multiple of this, bytes. The file system then
/// records the blocks as written once instead of at every sync. Unwritten blocks read as zeros anyway.
pub(crate) const ZEROS_AHEAD_BYTES: u32 = 256 << 10;
/// Bytes and milliseconds that `memory` durability collects before a write: a whole window chunk, if the budget allows
/// chunks of that size. Each write costs a system call and a disk command.
pub(crate) const MEMORY_FLUSH_BYTES: u32 = 2 << 20;
pub(crate) const MEMORY_FLUSH_MS: u64 = 50;
/// Interval of syncs in `everysec` durability.
pub(crate) const EVERYSEC_SYNC_MS: u64 = 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFrame {
    pub(crate) slot: u32,
    /// Offset of the frame header in the segment.
    pub(crate) offset: u32,
    pub(crate) count: u32,
    pub(crate) chain: Chain,
    pub(crate) tombstones: u32,
    pub(crate) latest_expiry_ms: u64,
}

impl OpenFrame {
    pub(crate) const fn new(slot: u32, offset: u32) -> Self {
        Self { slot, offset, count: 0, chain: Chain::EMPTY, tombstones: 0, latest_expiry_ms: 0 }
    }
}

/// A frame's effect on one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameRange {
    pub(crate) range: usize,
    /// Last version appended, in this frame or before.
    pub(crate) appended: Version,
    pub(crate) marked: Option<Version>,
}

pub(crate) type FrameRanges = SmallVec<[FrameRange; 1]>;

/// A closed frame that is not flushed yet. Its header is encoded as late as possible, so that it carries the newest synced
/// watermark.
#[derive(Debug)]
pub(crate) struct ClosedFrame {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) offset: u32,
    pub(crate) end: u32,
    pub(crate) record_bytes: u32,
    pub(crate) count: u32,
    pub(crate) chain: Chain,
    pub(crate) ranges: FrameRanges,
    pub(crate) is_in_tail: bool,
}

/// Bytes of the log, in one segment, that no write has begun to write. Their frames' headers are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unwritten {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) from: u32,
    pub(crate) end: u32,
}

/// A write of the log in flight.
#[derive(Debug)]
pub(crate) struct LogWrite {
    pub(crate) slot: u32,
    /// End of its pages, possibly with zeros behind the frames.
    pub(crate) pages_end: u32,
    pub(crate) end: LogPosition,
    pub(crate) done: bool,
}

/// Flushed bytes of one segment that wait for a sync.
#[derive(Debug)]
pub(crate) struct Unsynced {
    pub(crate) slot: u32,
    /// The segment's sequence number; `end` cannot tell, since a full segment's end is the next one's start.
    pub(crate) sequence: u64,
    pub(crate) end: LogPosition,
    pub(crate) ranges: FrameRanges,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncInFlight {
    pub(crate) covers: LogPosition,
}

#[derive(Debug, Default)]
pub(crate) struct FlushState {
    pub(crate) open: Option<OpenFrame>,
    /// Oldest first; the first `started` frames are in the tail file or for a write to take.
    pub(crate) frames: VecDeque<ClosedFrame>,
    pub(crate) started: usize,
    pub(crate) unwritten: Option<Unwritten>,
    /// Position up to which the log is written without waiting for whole pages.
    pub(crate) write_through: LogPosition,
    /// In log order.
    pub(crate) writes: VecDeque<LogWrite>,
    /// Number of `writes[0]` since the open; completions name writes by it.
    pub(crate) first_write: u64,
    pub(crate) unsynced: VecDeque<Unsynced>,
    /// End of what the next sync covers, while that is written.
    pub(crate) sync_waits_for: Option<LogPosition>,
    pub(crate) sync: Option<SyncInFlight>,
    /// End of the frames that survive the end of the process: in the tail file, or written.
    pub(crate) flushed: LogPosition,
    /// End of what is written to the segments' files; may be within a frame.
    pub(crate) written: LogPosition,
    pub(crate) synced: LogPosition,
    /// A flush was requested while a write was in flight.
    pub(crate) wanted: bool,
    pub(crate) last_flush: MonoMs,
    pub(crate) last_sync: MonoMs,
}

impl FlushState {
    /// Whether a write from this offset on may start: there are not too many, and the last one does not cover its block.
    pub(crate) fn can_start_write(&self, slot: u32, from: u32) -> bool {
        let block = from - from % PAGE_BYTES as u32;
        self.writes.len() < WRITES_IN_FLIGHT_MAX
            && self.writes.back().is_none_or(|last| last.slot != slot || last.done || block >= last.pages_end)
    }

    /// Takes a frame whose header is encoded: it follows the other unwritten bytes.
    pub(crate) fn add_unwritten(&mut self, slot: u32, sequence: u64, (from, end): (u32, u32)) {
        match &mut self.unwritten {
            Some(unwritten) => {
                assert_eq!((unwritten.sequence, unwritten.end), (sequence, from), "frames follow each other");
                unwritten.end = end;
            }
            None => self.unwritten = Some(Unwritten { slot, sequence, from, end }),
        }
    }

    /// Marks the write with this number as complete; the written end passes every write whose predecessors are complete.
    pub(crate) fn complete(&mut self, number: u64) {
        self.writes[(number - self.first_write) as usize].done = true;
        while let Some(write) = self.writes.pop_front_if(|write| write.done) {
            assert!(write.end > self.written, "the written end only grows");
            self.written = write.end;
            self.first_write += 1;
        }
    }

    /// End of the last frame that is written whole.
    pub(crate) fn written_frames_end(&self) -> LogPosition {
        let written = self.unsynced.partition_point(|unsynced| unsynced.end <= self.written);
        written.checked_sub(1).map_or(self.synced, |last| self.unsynced[last].end)
    }

    /// The next frame that is flushed.
    pub(crate) fn pop_flushed(&mut self, segment_bytes: u32) -> Option<ClosedFrame> {
        let written = self.written;
        let is_flushed = |frame: &mut ClosedFrame| {
            frame.is_in_tail || written >= LogPosition::new(frame.sequence, frame.end, segment_bytes)
        };
        let frame = if self.started > 0 { self.frames.pop_front_if(is_flushed) } else { None };
        self.started -= usize::from(frame.is_some());
        frame
    }

    /// Invalidates a range's records above `after`. Frames before this call must not count for the records that get
    /// these versions later.
    pub(crate) fn roll_back(&mut self, at: usize, after: Version) {
        let closed = self.frames.iter_mut().map(|frame| &mut frame.ranges);
        let flushed = self.unsynced.iter_mut().map(|unsynced| &mut unsynced.ranges);
        for found in closed.chain(flushed).flatten().filter(|found| found.range == at) {
            found.appended = found.appended.min(after);
        }
    }

    /// Invalidates all records of a range: frames before this call no longer count for it.
    pub(crate) fn forget_range(&mut self, at: usize) {
        self.frames.iter_mut().for_each(|frame| frame.ranges.retain(|found| found.range != at));
        self.unsynced.iter_mut().for_each(|unsynced| unsynced.ranges.retain(|found| found.range != at));
    }

    pub(crate) fn closed_end(&self, segment_bytes: u32) -> LogPosition {
        let last = self.frames.back();
        last.map_or(self.flushed, |frame| LogPosition::new(frame.sequence, frame.end, segment_bytes))
    }

    /// Whether no frame is open or queued, and all are written.
    pub(crate) fn is_written(&self) -> bool {
        self.open.is_none() && self.frames.is_empty() && self.unwritten.is_none() && self.writes.is_empty()
    }

    /// Whether all frames are written, and no sync is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_written() && self.sync.is_none()
    }
}

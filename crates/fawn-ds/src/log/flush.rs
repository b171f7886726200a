//! Flush state: the open frame, closed frames and their writes, and the flushed and synced watermarks.
use super::LogPosition;
use crate::format::frame::Chain;
use fawn_types::{MonoMs, Version};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Log writes in flight, at most. More than one only if their frames share no block.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 8;
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

/// A closed frame that is not flushed yet. Its header is encoded when its write starts, so that it carries the newest
/// synced watermark.
#[derive(Debug)]
pub(crate) struct ClosedFrame {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) offset: u32,
    pub(crate) end: u32,
    pub(crate) record_bytes: u32,
    pub(crate) count: u32,
    pub(crate) chain: Chain,
    /// End of its write: whole pages, possibly with zeros after the frame.
    pub(crate) write_end: u32,
    pub(crate) ranges: FrameRanges,
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
    /// Oldest first; the first `started` frames are submitted.
    pub(crate) frames: VecDeque<ClosedFrame>,
    pub(crate) started: usize,
    /// Number of `frames[0]` since the open; completions name frames by it.
    pub(crate) first_number: u64,
    pub(crate) unsynced: VecDeque<Unsynced>,
    pub(crate) sync: Option<SyncInFlight>,
    pub(crate) flushed: LogPosition,
    pub(crate) synced: LogPosition,
    /// A flush was requested while a write was in flight.
    pub(crate) wanted: bool,
    pub(crate) last_flush: MonoMs,
    pub(crate) last_sync: MonoMs,
}

impl FlushState {
    /// Marks the frame with this number as written.
    pub(crate) fn complete(&mut self, number: u64) {
        let at = (number - self.first_number) as usize;
        assert!(at < self.started, "frame {number} completes without having been started");
        self.frames[at].done = true;
    }

    pub(crate) fn pop_done(&mut self) -> Option<ClosedFrame> {
        if !self.frames.front()?.done {
            return None;
        }
        self.started -= 1;
        self.first_number += 1;
        self.frames.pop_front()
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

    /// Whether no frame is open, queued or in flight.
    pub(crate) fn is_flushed(&self) -> bool {
        self.open.is_none() && self.frames.is_empty()
    }

    /// Whether no frame is open, queued or in flight, and no sync is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_flushed() && self.sync.is_none()
    }
}

//! Owns the state of flushing: the open frame, frames on their way to the device, and what is known to be there.
use super::LogPosition;
use crate::format::frame::Chain;
use fawn_types::{MonoMs, Version};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Writes of the log in flight at most; more than one only between frames that share no block.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Frames from this size on are padded to a page, so that the next one need not wait for their last block, bytes.
pub(crate) const PAD_FRAME_BYTES_MIN: u32 = 64 << 10;
/// A small durable write that enters blocks never written before is followed by zeros up to a multiple of this, bytes: the
/// file system notes once that they are written, not with every sync. The log reads as zeros there anyway.
pub(crate) const ZEROS_AHEAD_BYTES: u32 = 256 << 10;
/// What `memory` durability gathers before it writes, bytes and milliseconds: a whole piece of the window, where the
/// budget allows pieces of that size. Each write costs a system call and a word to the disk.
pub(crate) const MEMORY_FLUSH_BYTES: u32 = 2 << 20;
pub(crate) const MEMORY_FLUSH_MS: u64 = 50;
/// How long `everysec` leaves flushed bytes unsynced.
pub(crate) const EVERYSEC_SYNC_MS: u64 = 1000;

/// The frame that records are being added to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFrame {
    pub(crate) slot: u32,
    /// Of its header in the segment.
    pub(crate) offset: u32,
    pub(crate) count: u32,
    pub(crate) chain: Chain,
}

/// What a frame has of one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameRange {
    pub(crate) range: usize,
    /// Last version appended, in this frame or before.
    pub(crate) appended: Version,
    /// Version of the commit mark in the frame.
    pub(crate) marked: Option<Version>,
}

pub(crate) type FrameRanges = SmallVec<[FrameRange; 1]>;

/// A closed frame that is not flushed yet. Its header is encoded when its write starts: the synced watermark in it is
/// the one of that time.
#[derive(Debug)]
pub(crate) struct ClosedFrame {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) offset: u32,
    pub(crate) end: u32,
    pub(crate) record_bytes: u32,
    pub(crate) count: u32,
    pub(crate) chain: Chain,
    /// Where its write ends: whole pages, perhaps zeros after them.
    pub(crate) write_end: u32,
    pub(crate) ranges: FrameRanges,
    pub(crate) done: bool,
}

/// Flushed bytes of one segment that wait for a sync.
#[derive(Debug)]
pub(crate) struct Unsynced {
    pub(crate) slot: u32,
    /// Of its segment; the position of a full segment's end is the next one's start already.
    pub(crate) sequence: u64,
    pub(crate) end: LogPosition,
    pub(crate) ranges: FrameRanges,
}

/// A sync under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncInFlight {
    pub(crate) covers: LogPosition,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct FlushState {
    pub(crate) open: Option<OpenFrame>,
    /// Oldest first; the first `started` of them are with the device.
    pub(crate) frames: VecDeque<ClosedFrame>,
    pub(crate) started: usize,
    /// Number of `frames[0]` since opening: what completions are matched by.
    pub(crate) first_number: u64,
    pub(crate) unsynced: VecDeque<Unsynced>,
    pub(crate) sync: Option<SyncInFlight>,
    pub(crate) flushed: LogPosition,
    pub(crate) synced: LogPosition,
    /// A flush was asked for while one was under way.
    pub(crate) wanted: bool,
    pub(crate) last_flush: MonoMs,
    pub(crate) last_sync: MonoMs,
}

impl FlushState {
    /// Marks the frame with this number written.
    pub(crate) fn complete(&mut self, number: u64) {
        let at = (number - self.first_number) as usize;
        assert!(at < self.started, "frame {number} completes without having been started");
        self.frames[at].done = true;
    }

    /// Takes the oldest frame if it is written.
    pub(crate) fn pop_done(&mut self) -> Option<ClosedFrame> {
        if !self.frames.front()?.done {
            return None;
        }
        self.started -= 1;
        self.first_number += 1;
        self.frames.pop_front()
    }

    /// A range's records above `after` are invalidated: the frames that carry them say nothing about whoever gets these
    /// versions next, which are in later frames.
    pub(crate) fn roll_back(&mut self, at: usize, after: Version) {
        let closed = self.frames.iter_mut().map(|frame| &mut frame.ranges);
        let flushed = self.unsynced.iter_mut().map(|unsynced| &mut unsynced.ranges);
        for found in closed.chain(flushed).flatten().filter(|found| found.range == at) {
            found.appended = found.appended.min(after);
        }
    }

    /// Everything of a range so far is invalidated: frames on their way say nothing about it any more.
    pub(crate) fn forget_range(&mut self, at: usize) {
        self.frames.iter_mut().for_each(|frame| frame.ranges.retain(|found| found.range != at));
        self.unsynced.iter_mut().for_each(|unsynced| unsynced.ranges.retain(|found| found.range != at));
    }

    /// End of the last frame that was closed.
    pub(crate) fn closed_end(&self, segment_bytes: u32) -> LogPosition {
        let last = self.frames.back();
        last.map_or(self.flushed, |frame| LogPosition::new(frame.sequence, frame.end, segment_bytes))
    }

    /// Whether every write has completed and none waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_none() && self.frames.is_empty() && self.sync.is_none()
    }
}

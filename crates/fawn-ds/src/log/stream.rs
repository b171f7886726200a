//! A stream of the log: segments that are filled, flushed and synced in one order.
use super::LogPosition;
use super::flush::{FlushState, OpenFrame};
use super::segments::Segment;
use super::window::Window;
use crate::format::{Watermark, frame};
use crate::manifest_file::CommitNumber;
use fawn_types::MonoMs;

/// The segment after the active one. Each step is durable before the next.
#[derive(Debug)]
pub(crate) enum NextSegment {
    None,
    /// Its header is in flight, or the sync of its name.
    Header(Segment),
    /// Its listing in the manifest is in flight.
    Listing(Segment, CommitNumber),
    /// It can take data.
    Ready(Segment),
}

impl NextSegment {
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }
}

impl NextSegment {
    /// The slot that it will take.
    pub(crate) const fn slot(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Header(segment) | Self::Listing(segment, _) | Self::Ready(segment) => Some(segment.slot),
        }
    }

    /// Whether its file exists, but the segment is not listed durably yet.
    pub(crate) const fn is_being_listed(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Listing(..))
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) window: Window,
    pub(crate) flush: FlushState,
    pub(crate) next: NextSegment,
    /// Synced end of the stream at its last recording in the manifest.
    pub(crate) recorded_end: LogPosition,
    /// Time before which its end, which found no space in the manifest, is not recorded.
    pub(crate) end_retry_at: MonoMs,
}

impl Stream {
    pub(crate) fn new(now: MonoMs) -> Self {
        Self {
            window: Window::default(),
            flush: FlushState { last_flush: now, last_sync: now, ..FlushState::default() },
            next: NextSegment::None,
            recorded_end: LogPosition(0),
            end_retry_at: MonoMs(0),
        }
    }

    /// Opens a frame at the end of the active chunk, unless one is open.
    pub(crate) fn open_frame(&mut self) {
        if self.flush.open.is_some() {
            return;
        }
        let Some(chunk) = self.window.active_mut() else { return };
        let offset = chunk.end();
        chunk.spare()[..frame::HEADER_BYTES].fill(0);
        chunk.len += frame::HEADER_BYTES;
        self.flush.open = Some(OpenFrame::new(chunk.slot, offset));
    }

    /// End of the appended records.
    pub(crate) fn appended_end(&self, segment_bytes: u32) -> LogPosition {
        let active = self.window.active();
        active.map_or(self.flush.flushed, |chunk| LogPosition::new(chunk.sequence, chunk.end(), segment_bytes))
    }

    /// As [`Self::appended_end`], but not the start of an active segment without records: nothing is synced there until
    /// one is appended, which on a full store may be never.
    pub(crate) fn records_end(&self, segment_bytes: u32) -> LogPosition {
        match self.flush.open {
            Some(_) => self.appended_end(segment_bytes),
            None => self.flush.closed_end(segment_bytes),
        }
    }

    /// The synced end, as frames carry it.
    pub(crate) const fn synced_watermark(&self, segment_bytes: u32) -> Watermark {
        let synced = self.flush.synced;
        Watermark { sequence: synced.sequence(segment_bytes), offset: synced.offset(segment_bytes) }
    }

    /// Whether all segments before this one are synced whole. A new segment takes data only then.
    ///
    /// Frames are flushed in log order. While a frame of an older segment is queued, the predecessor is not even
    /// flushed. If none is queued and no frame of this segment is flushed, the last flushed frame is the predecessor's
    /// last.
    pub(crate) fn predecessor_is_synced(&self, sequence: u64, segment_bytes: u32) -> bool {
        let flush = &self.flush;
        let has_older_queued = flush.frames.front().is_some_and(|frame| frame.sequence < sequence);
        // The end of a full segment equals the start of the next: only a position past it proves a flushed frame.
        let has_begun = flush.flushed > LogPosition::new(sequence, 0, segment_bytes);
        !has_older_queued && (has_begun || flush.synced >= flush.flushed)
    }

    /// Whether everything appended is synced.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.flush.is_idle() && self.flush.unsynced.is_empty()
    }
}

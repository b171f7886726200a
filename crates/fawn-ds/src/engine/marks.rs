//! Commit marks: records that say how far a range of a chain is committed, and how far that is durable.
//!
//! A range in a sole epoch has none: all that an opening finds of that is committed. Any other range has at most one
//! mark a second while it commits, one at the start of each segment, and one when a segment could be dropped if it were
//! durable that its records died. A segment never has a record of a range before a mark of it: recovery takes the
//! records before the first mark for committed.
use super::Engine;
use super::append::Reserve;
use super::segments::RETRY_MS;
use crate::error::EngineError;
use crate::format::frame;
use crate::format::record::{self, RecordKind, RecordRef};
use crate::format::segment::StreamKind;
use fawn_flash::Device;
use fawn_types::Version;

/// Minimum time between two periodic marks of a range.
const MARK_MS: u64 = 1000;

const fn mark_of(committed: Version) -> RecordRef<'static> {
    RecordRef::bare(RecordKind::CommitMark, committed, &[])
}

impl<D: Device> Engine<D> {
    /// Logs the marks that are due: in a frame that is written anyway, or once the log has been idle.
    pub(crate) fn log_marks(&mut self) {
        let now = self.now.mono;
        let flush = &self.streams[StreamKind::Foreground].flush;
        let may_write = flush.open.is_some() || now.ms_since(flush.last_flush) >= MARK_MS;
        for at in 0..self.ranges.len() {
            let range = &self.ranges[at];
            if !range.needs_marks() || range.progress.committed <= range.marks.appended {
                continue;
            }
            let is_due = may_write && !self.full && now.ms_since(range.marks.appended_at) >= MARK_MS;
            if (is_due || range.marks.is_wanted) && self.append_mark(at).is_err() {
                // A mark only saves work and space: without space for it now, the next submit tries again.
                self.marks_retry_at = Some(now.plus_ms(RETRY_MS));
                return;
            }
        }
        self.marks_retry_at = None;
    }

    /// Logs a mark for every range with unmarked commits, as far as there is space. Blocks while room is being made.
    pub(crate) fn mark_everything(&mut self) {
        // A wait with held events would return at once.
        let mut events = Vec::new();
        for at in 0..self.ranges.len() {
            let range = &self.ranges[at];
            if range.progress.committed <= range.marks.appended {
                continue;
            }
            // Without the mark, recovery takes the records for pending. The next segment may be in preparation.
            while matches!(self.append_mark(at), Err(EngineError::Overloaded)) && self.has_writes_in_flight() {
                self.wait(self.now, &mut events);
            }
        }
        self.held_events.append(&mut events);
    }

    /// Logs how far a range is committed; not part of the range's history.
    pub(crate) fn append_mark(&mut self, at: usize) -> Result<(), EngineError> {
        let range = &self.ranges[at];
        if range.id.is_none() || !range.needs_marks() || range.is_beginning() {
            return Ok(());
        }
        self.check_writable()?;
        self.make_room(record::encoded_len(&mark_of(Version::ZERO)), Reserve::Marks)?;
        self.encode_mark(at);
        Ok(())
    }

    /// Makes room in the open frame for `len` bytes of the range's records, after a mark if the segment has none yet.
    pub(crate) fn make_room_for(&mut self, at: usize, len: usize, reserve: Reserve) -> Result<(), EngineError> {
        if !self.ranges[at].needs_marks() {
            return self.make_room(len, reserve);
        }
        self.make_room(len + record::encoded_len(&mark_of(Version::ZERO)), reserve)?;
        let active = self.streams[StreamKind::Foreground].window.active().map(|chunk| chunk.sequence);
        if active != Some(self.ranges[at].marks.sequence) {
            self.encode_mark(at);
        }
        Ok(())
    }

    fn encode_mark(&mut self, at: usize) {
        let mark = mark_of(self.ranges[at].progress.committed);
        let len = record::encoded_len(&mark);
        self.encode(at, &mark, len, false);
        let sequence = self.streams[StreamKind::Foreground].window.active().map_or(0, |chunk| chunk.sequence);
        let marks = &mut self.ranges[at].marks;
        marks.appended = mark.version;
        marks.appended_at = self.now.mono;
        marks.sequence = sequence;
        marks.in_open_frame = Some(mark.version);
        marks.is_wanted = false;
    }

    /// Length of a frame with one mark per range, bytes.
    pub(crate) fn marks_bytes(&self) -> usize {
        frame::HEADER_BYTES + self.ranges.len() * record::encoded_len(&mark_of(Version::ZERO))
    }

    /// A mark in the segment became durable: every recovery reads it as long as the segment stays.
    pub(crate) fn mark_is_durable(&mut self, at: usize, version: Version, slot: u32) {
        if !self.ranges[at].needs_marks() || self.ranges[at].id.is_none() {
            // A mark of an earlier epoch, or of a retired range, keeps no segment now.
            return;
        }
        self.release_durable_mark(at);
        let marks = &mut self.ranges[at].marks;
        marks.durable = marks.durable.max(version);
        marks.durable_slot = Some(slot);
        self.segments.expect_mut(slot).newest_marks += 1;
        self.release_held(at);
    }

    /// Unpins the segment with the range's newest durable mark.
    pub(crate) fn release_durable_mark(&mut self, at: usize) {
        if let Some(slot) = self.ranges[at].marks.durable_slot.take() {
            self.segments.expect_mut(slot).newest_marks -= 1;
            self.examine_if_dead(slot);
        }
    }
}

//! Writing checkpoints: an image of the indexes, copied cell by cell while writes continue, and of the segments' facts.
//!
//! A checkpoint begins at a position of each stream. All records before it are settled: the index has them or has replaced
//! them. An opening loads the image without the entries that point behind the position, or into segments that are gone,
//! and scans the log from there. So a cell may be copied at any time: what changes later is found by that scan. The scan
//! must not come by a put without coming by the tombstone that hides it: the foreground's position is the start of a
//! segment, but that of the survivors, which lie in no order, is where their copies are still current.
//!
//! Live counts must fit the copied entries. They are copied last, and a record that died after its cell was copied
//! counts as live there.
mod due;
mod image;
mod position;

use super::clean::{CLEANED_SEGMENTS_MIN, only_reserve_left};
use super::{Engine, InFlight};
use crate::format::checkpoint::content;
use crate::format::checkpoint::{self, CheckpointHeader, HEADER_BYTES, PIECE_BYTES, PIECE_CONTENT_BYTES};
use crate::format::manifest::{CheckpointEntry, ManifestEdit};
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{SegmentUuid, Watermark};
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::manifest_file::CommitNumber;
use crate::overlay::ReplacedRecord;
pub(crate) use due::LastCheckpoint;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, FileId, IoClass};
use fawn_types::{KeyHash, MonoMs};
use image::{DiedSince, PartialSegment};

/// Share of the image, and of the shortest log behind a checkpoint, from which a close writes one: an opening takes longer for
/// a byte of the log than for one of an image.
const CLOSE_SHARE: u64 = 16;
/// Pieces in flight.
const PIECES_IN_FLIGHT_MAX: u32 = 4;
/// Step of the file's allocation, bytes.
const ALLOCATE_BYTES_MAX: u64 = 1 << 20;
/// Time after a refusal before the next checkpoint begins.
const RETRY_MS: u64 = 10_000;
/// Checkpoints kept: if the newest turns out corrupt, the one before still serves.
const KEPT: usize = 2;

/// Step of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CheckpointStep {
    /// Copies cells: of the range at this place of `order`, from this hash on.
    Cells { at: usize, cursor: u64 },
    /// All content is encoded.
    Content,
    /// The file's sync is in flight.
    Syncing,
    /// Waits until the log is synced as far as the image knows it.
    Log,
    /// The manifest edit that lists it is in flight.
    Listing(CommitNumber),
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct CheckpointWriter {
    uuid: SegmentUuid,
    name: String,
    file: FileId,
    from: PerStream<Watermark>,
    /// State of the last checkpoint when this one began.
    last: LastCheckpoint,
    /// Places of the ranges, by local number.
    order: Vec<usize>,
    step: CheckpointStep,
    /// Encoded content, and how much of it is in pieces already.
    content: Vec<u8>,
    taken: usize,
    /// Offset of the next piece.
    offset: u64,
    allocated: u64,
    in_flight: u32,
    died_since: DiedSince,
    /// The survivors' segment in which their position is.
    partial: Option<PartialSegment>,
    /// Ends of the streams' records when the last content was encoded.
    ends: PerStream<LogPosition>,
    /// It became invalid or was refused space: its file goes once nothing is in flight.
    is_given_up: bool,
}

impl CheckpointWriter {
    const fn is_given_up_and_idle(&self) -> bool {
        self.is_given_up && self.in_flight == 0
    }
}

/// State of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    pub(crate) last: LastCheckpoint,
    /// Length of an image when the log behind the last checkpoint had the length below. The indexes need not be looked at again
    /// until an image is due by it, or the log is longer: clears, drops and sorts make an image shorter.
    image_bytes: u64,
    image_seen_at: u64,
    writer: Option<Box<CheckpointWriter>>,
    retry_at: MonoMs,
    /// The device had no space for the last one: that was logged.
    was_refused: bool,
    /// A survivor whose old version cannot be read prevents them: that was logged.
    has_warned: bool,
    /// Checkpoints begun in this opening.
    begun: u64,
    /// Files to unlink once a commit is durable.
    retired: Vec<(String, CommitNumber)>,
}

impl Checkpoints {
    /// Whether a checkpoint waits until this stream, synced up to `synced`, is synced further.
    pub(crate) fn waits_for(&self, kind: StreamKind, synced: LogPosition) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.step == CheckpointStep::Log && synced < writer.ends[kind])
    }

    /// Files of checkpoints that are not listed any more.
    pub(crate) fn retire(&mut self, names: impl Iterator<Item = String>) {
        self.retired.extend(names.map(|name| (name, CommitNumber::default())));
    }

    /// Whether a checkpoint waits for the log.
    fn is_stuck(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.step == CheckpointStep::Log)
    }

    /// Memory of the content that is encoded ahead of its writes, bytes.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.writer.as_ref().map_or(0, |writer| writer.content.capacity())
    }

    /// This commit drops all checkpoints, which have these files: the log that an opening scans is `log_bytes` long.
    pub(crate) fn retire_all_with(&mut self, names: Vec<String>, listed: CommitNumber, log_bytes: u64) {
        self.retired.extend(names.into_iter().map(|name| (name, listed)));
        match &mut self.writer {
            // The state before is that of the last one again, if this one is given up.
            Some(writer) if !matches!(writer.step, CheckpointStep::Listing(_)) => {
                writer.last = LastCheckpoint::of_none(log_bytes);
            }
            _ => self.last = LastCheckpoint::of_none(log_bytes),
        }
    }

    /// Whether an image is being copied, or is given up but has writes in flight.
    pub(crate) fn is_copying(&self) -> bool {
        let copies =
            |writer: &CheckpointWriter| matches!(writer.step, CheckpointStep::Cells { .. } | CheckpointStep::Content);
        self.writer.as_deref().is_some_and(copies)
    }

    /// Whether a checkpoint is being written.
    pub(crate) fn has_work(&self) -> bool {
        self.writer.is_some()
    }
}

impl<D: Device> Engine<D> {
    /// Continues the checkpoint in progress, or begins one that is due.
    pub(crate) fn advance_checkpoint(&mut self) {
        if self.poisoned.is_some() || self.options.read_only {
            return;
        }
        if self.checkpoints.writer.is_some() {
            self.continue_checkpoint();
        } else if self.is_checkpoint_due() {
            self.begin_checkpoint();
        }
    }

    fn image_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| content::cells_bytes(&range.index)).sum()
    }

    /// Writes a checkpoint at a close, unless there is little that an opening would scan instead. Blocks.
    pub(crate) fn checkpoint_at_close(&mut self, is_past_deadline: &mut dyn FnMut() -> bool) {
        let is_written = |writer: &CheckpointWriter| !writer.is_given_up;
        let was_writing = self.checkpoints.writer.as_deref().is_some_and(is_written);
        let listed = self.stats.checkpoints;
        self.finish_checkpoint(is_past_deadline);
        if was_writing && self.stats.checkpoints == listed {
            // The next one would be given up, too.
            return;
        }
        let least = self.least_log_bytes().max(self.image_bytes()) / CLOSE_SHARE;
        let is_due = self.checkpoints.writer.is_none() && self.checkpoints.last.log_bytes >= least;
        if is_due
            && self.shortens_opening()
            && self.poisoned.is_none()
            && !self.options.read_only
            && !is_past_deadline()
        {
            self.begin_checkpoint();
        }
        self.finish_checkpoint(is_past_deadline);
    }

    /// Whether an opening would do less behind a checkpoint that begins now than behind the last one: scan a shorter log, or
    /// find fewer older records in the image, for which it would read more than an image is long.
    fn shortens_opening(&self) -> bool {
        let (position, last) = (self.checkpoint_position(), &self.checkpoints.last);
        let begins_later = StreamKind::ALL.into_iter().any(|kind| position[kind] > last.from[kind]);
        begins_later || last.overwritten * PAGE_BYTES as u64 > self.image_bytes()
    }

    /// Waits for the checkpoint that is being written, if there is one.
    fn finish_checkpoint(&mut self, is_past_deadline: &mut dyn FnMut() -> bool) {
        let mut events = Vec::new();
        while self.checkpoints.writer.is_some() && self.poisoned.is_none() {
            if is_past_deadline() || (self.checkpoints.is_stuck() && self.device.in_flight() == 0) {
                // A close waits for nothing but the device, and not for all of that.
                self.give_up_checkpoint();
            }
            self.wait(self.now, &mut events);
        }
        self.held_events.append(&mut events);
    }

    fn begin_checkpoint(&mut self) {
        if !self.copies_are_current() {
            // They are flushed in a moment.
            return;
        }
        if self.has_survivor_apart() {
            self.warn_of_unconfirmed_survivor();
        }
        let is_deferring = self.overlay.deferred() > 0 || self.has_unconfirmed_survivor();
        if is_deferring || self.ranges.iter().any(|range| range.copy.is_some()) {
            // It would begin where the last one does. A range's transferred records count only once all are there.
            self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
            return;
        }
        if self.is_position_held() && !self.shortens_opening() {
            // As long as that lasts, each checkpoint would be written for nothing.
            self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
            return;
        }
        if !self.has_checkpoint_space() {
            return self.checkpoint_refused(&only_reserve_left());
        }
        // Last, because filing begins again: attempts that are refused would let no large segment be filed. The device has still to
        // give space: if it refused the last attempt, this one waits until the segment is filed.
        if !self.checkpoints.was_refused {
            self.restart_filing();
        }
        if self.moves_retired() {
            // Entries that move could be in the image twice, or in neither place.
            return;
        }
        self.checkpoints.begun += 1;
        self.checkpoints.has_warned = false;
        // Segments count up from 1: no segment has this number.
        let uuid = SegmentUuid::derive(&self.secret, self.store, self.generation, u64::MAX - self.checkpoints.begun);
        let name = checkpoint::file_name(uuid);
        let file = match self.device.create(&name) {
            Ok(file) => file,
            Err(error) => return self.checkpoint_refused(&error),
        };
        let mut order: Vec<usize> = (0..self.ranges.len()).filter(|&at| !self.ranges[at].is_vacant()).collect();
        order.sort_by_key(|&at| self.ranges[at].number);
        let mut content = Vec::new();
        content::encode_count(order.len(), &mut content);
        let from = self.checkpoint_position();
        let writer = CheckpointWriter {
            uuid,
            name,
            file,
            from,
            partial: self.partial_segment(from[StreamKind::Survivors]),
            last: self.checkpoints.last,
            order,
            step: CheckpointStep::Cells { at: 0, cursor: 0 },
            content,
            taken: 0,
            offset: 0,
            allocated: 0,
            in_flight: 0,
            died_since: DiedSince::default(),
            ends: PerStream::default(),
            is_given_up: false,
        };
        self.checkpoints.writer = Some(Box::new(writer));
        self.checkpoints.last = LastCheckpoint { from, ..LastCheckpoint::default() };
        self.write_checkpoint_header();
        self.continue_checkpoint();
    }

    /// Says once that the log grows without a checkpoint until the old version can be read, or its key is written again.
    fn warn_of_unconfirmed_survivor(&mut self) {
        // A checkpoint that begins before the survivor would do, but not for every opening: that compares what it scans of such
        // survivors with what the image has. It refuses the store if the old version cannot be read and its segment has newer records,
        // so that the old version may be the newer one.
        if !core::mem::replace(&mut self.checkpoints.has_warned, true) {
            tracing::warn!("no checkpoint is written while the old version of a copied record cannot be read");
        }
    }

    /// Whether an image leaves the log its reserve, and segments enough to be cleaned.
    fn has_checkpoint_space(&mut self) -> bool {
        let Ok(free_bytes) = self.device.free_bytes() else { return true };
        let image_bytes = self.image_bytes() + self.checkpoint_allocation_bytes();
        let free = self.segments_in(free_bytes.saturating_sub(image_bytes));
        let is_large = self.taken_segments() + free >= CLEANED_SEGMENTS_MIN;
        is_large && free >= self.reserved_segments()
    }

    /// Space that is allocated at once; what is left of it at the end stays.
    fn checkpoint_allocation_bytes(&self) -> u64 {
        ALLOCATE_BYTES_MAX.min(u64::from(self.options.segment_bytes)).max(PIECE_BYTES as u64)
    }

    fn write_checkpoint_header(&mut self) {
        let Some(writer) = &self.checkpoints.writer else { return };
        let header = CheckpointHeader { uuid: writer.uuid, store: self.store, from: writer.from };
        let mut buf = self.pool.take(HEADER_BYTES);
        buf[..HEADER_BYTES].fill(0);
        checkpoint::encode_header(&header, &mut buf);
        self.write_checkpoint(buf, HEADER_BYTES);
    }

    /// Writes the next bytes of the file, unless the device has no space for them.
    fn write_checkpoint(&mut self, buf: AlignedBuf, len: usize) {
        let allocation_bytes = self.checkpoint_allocation_bytes();
        let Some(writer) = &mut self.checkpoints.writer else { return };
        let (file, offset) = (writer.file, writer.offset);
        if offset + len as u64 > writer.allocated {
            if let Err(error) = self.device.allocate(file, writer.allocated, allocation_bytes) {
                writer.is_given_up = true;
                self.pool.give(buf);
                return self.checkpoint_refused(&error);
            }
            writer.allocated += allocation_bytes;
        }
        writer.offset += len as u64;
        writer.in_flight += 1;
        self.stats.checkpoint_bytes += len as u64;
        let token = self.track_write(InFlight::Checkpoint);
        self.device.submit_write(file, offset, buf, len, IoClass::Checkpoint, token);
    }

    fn checkpoint_refused(&mut self, error: &DeviceError) {
        self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
        if error.is_retryable() {
            if !core::mem::replace(&mut self.checkpoints.was_refused, true) {
                tracing::warn!(%error, "no checkpoint is written: openings scan more of the log");
            }
        } else {
            self.poison(error);
        }
    }

    /// Leaves the space of a full device to the log: without a segment for survivors, cleaning would free none.
    pub(crate) fn yield_checkpoint_space(&mut self) {
        self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
        self.give_up_checkpoint();
    }

    /// Gives up the checkpoint in progress, because a range's records were invalidated as a whole.
    pub(crate) fn give_up_checkpoint(&mut self) {
        if let Some(writer) = &mut self.checkpoints.writer
            && !matches!(writer.step, CheckpointStep::Listing(_))
        {
            writer.is_given_up = true;
        }
    }

    /// Whether the checkpoint in progress has still to copy the index entry of this hash, which points to `pointer`.
    pub(crate) fn will_copy(&self, at: usize, hash: KeyHash, pointer: Pointer) -> bool {
        let Some(writer) = &self.checkpoints.writer else { return false };
        let (slot, offset) = self.segments.slot_and_offset(pointer);
        let segment = self.segments.expect(slot);
        let is_before = Watermark { sequence: segment.sequence, offset } < writer.from[segment.stream];
        is_before && matches!(writer.step, CheckpointStep::Cells { .. }) && !writer.has_copied(at, hash)
    }

    /// The index entry of this hash no longer points to `old`.
    #[inline]
    pub(crate) fn note_unindexed(&mut self, at: usize, hash: KeyHash, old: ReplacedRecord) {
        // Behind its content, or given up, its counts may be of a range that has gone.
        let counts = |writer: &&mut Box<CheckpointWriter>| {
            !writer.is_given_up && matches!(writer.step, CheckpointStep::Cells { .. } | CheckpointStep::Content)
        };
        if let Some(writer) = self.checkpoints.writer.as_mut().filter(counts) {
            let (slot, offset) = self.segments.slot_and_offset(old.pointer);
            let segment = self.segments.expect(slot);
            let position = Watermark { sequence: segment.sequence, offset };
            if position >= writer.from[segment.stream] {
                return;
            }
            let (has_copied, len_bytes) = (writer.has_copied(at, hash), u64::from(old.len_bytes));
            match &mut writer.partial {
                Some(partial) if partial.sequence == segment.sequence => {
                    if !has_copied && let Some((records, bytes)) = partial.live.get_mut(&at) {
                        *records -= 1;
                        *bytes -= len_bytes;
                    }
                }
                _ if has_copied => {
                    let (records, bytes) = writer.died_since.entry((slot, at)).or_default();
                    *records += 1;
                    *bytes += len_bytes;
                }
                _ => {}
            }
        }
    }

    fn continue_checkpoint(&mut self) {
        let Some(writer) = &self.checkpoints.writer else { return };
        if writer.is_given_up {
            return self.remove_checkpoint();
        }
        match writer.step {
            CheckpointStep::Cells { .. } | CheckpointStep::Content => self.write_content(),
            CheckpointStep::Syncing => {}
            CheckpointStep::Log => self.list_checkpoint(),
            CheckpointStep::Listing(number) => {
                if self.manifest.is_durable(number) {
                    self.checkpoints.writer = None;
                    self.checkpoints.was_refused = false;
                    self.stats.checkpoints += 1;
                }
            }
        }
    }

    /// Removes the file of a checkpoint that was given up, once nothing of it is in flight.
    fn remove_checkpoint(&mut self) {
        let Some(writer) = self.checkpoints.writer.take_if(|writer| writer.in_flight == 0) else { return };
        let since = self.checkpoints.last;
        self.checkpoints.last = LastCheckpoint {
            from: writer.last.from,
            log_bytes: writer.last.log_bytes + since.log_bytes,
            records: writer.last.records + since.records,
            rewritten: writer.last.rewritten + since.rewritten,
            overwritten: writer.last.overwritten + since.overwritten,
        };
        self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
        self.device.close(writer.file);
        self.unlink(writer.name, 0);
    }

    /// Encodes and writes the next piece.
    fn write_content(&mut self) {
        let Some(mut writer) = self.checkpoints.writer.take() else { return };
        if writer.in_flight >= PIECES_IN_FLIGHT_MAX {
            self.checkpoints.writer = Some(writer);
            return;
        }
        if matches!(writer.step, CheckpointStep::Cells { .. }) {
            // Hardly more than a cell moves. The state of many segments, encoded as a whole, would move for each piece.
            writer.content.drain(..writer.taken);
            writer.taken = 0;
            self.encode_content(&mut writer, PIECE_CONTENT_BYTES);
        }
        // Only the last piece is shorter.
        let len = writer.unwritten_bytes().min(PIECE_CONTENT_BYTES);
        let mut buf = self.pool.take(PIECE_BYTES);
        let piece = &writer.content[writer.taken..writer.taken + len];
        let piece_bytes = checkpoint::encode_piece(writer.uuid, writer.offset, piece, &mut buf);
        writer.taken += len;
        let is_written = writer.step == CheckpointStep::Content && writer.in_flight == 0;
        self.checkpoints.writer = Some(writer);
        if len > 0 {
            self.write_checkpoint(buf, piece_bytes);
            return;
        }
        self.pool.give(buf);
        if is_written {
            self.sync_checkpoint();
        }
    }

    fn sync_checkpoint(&mut self) {
        let Some(writer) = &mut self.checkpoints.writer else { return };
        writer.step = CheckpointStep::Syncing;
        writer.in_flight += 1;
        let file = writer.file;
        let token = self.track_write(InFlight::CheckpointSync);
        self.device.submit_sync(file, IoClass::Checkpoint, token);
    }

    /// A write of the checkpoint is complete.
    pub(crate) fn checkpoint_written(&mut self) {
        if let Some(writer) = &mut self.checkpoints.writer {
            writer.in_flight -= 1;
        }
    }

    /// The checkpoint's file is synced: its name is next.
    pub(crate) fn checkpoint_synced(&mut self) {
        let token = self.track_write(InFlight::CheckpointName);
        self.device.submit_sync_dir(IoClass::Checkpoint, token);
    }

    /// The checkpoint's name is durable.
    pub(crate) fn checkpoint_name_synced(&mut self) {
        self.checkpoint_written();
        if let Some(writer) = &mut self.checkpoints.writer {
            writer.step = CheckpointStep::Log;
        }
    }

    /// Lists the checkpoint, once all that it knows of the log is synced, and every segment in it is listed as sealed.
    fn list_checkpoint(&mut self) {
        let Some(writer) = &self.checkpoints.writer else { return };
        let is_synced = StreamKind::ALL.into_iter().all(|kind| self.streams[kind].flush.synced >= writer.ends[kind]);
        // Every segment before it is sealed, and is listed as such when no seal is left to list.
        if !is_synced || self.has_unlisted {
            return;
        }
        let (uuid, len_bytes, file) = (writer.uuid, writer.offset, writer.file);
        if self.reserve_manifest(0).is_err() {
            return self.give_up_checkpoint();
        }
        let listed = &self.manifest.state().checkpoints;
        let retired: Vec<_> = listed.iter().rev().skip(KEPT - 1).map(|&CheckpointEntry { uuid, .. }| uuid).collect();
        let drops = retired.iter().map(|&uuid| ManifestEdit::DropCheckpoint { uuid });
        let edits: Vec<_> = drops.chain([ManifestEdit::AddCheckpoint { uuid, len_bytes }]).collect();
        let number = self.manifest.commit(&edits);
        self.checkpoints.retired.extend(retired.into_iter().map(|uuid| (checkpoint::file_name(uuid), number)));
        self.device.close(file);
        if let Some(writer) = &mut self.checkpoints.writer {
            writer.step = CheckpointStep::Listing(number);
        }
        self.start_manifest();
    }

    /// Unlinks the files of checkpoints whose removal from the manifest is durable.
    pub(crate) fn unlink_checkpoints(&mut self) {
        let is_durable = |(_, number): &mut (String, CommitNumber)| self.manifest.is_durable(*number);
        let retired: Vec<_> = self.checkpoints.retired.extract_if(.., is_durable).collect();
        // Their space is not counted as the log's, but the device may have refused segments without it.
        for (name, _) in retired {
            if self.unlink(name, 0) {
                self.retry_at = MonoMs(0);
            }
        }
    }
}

impl CheckpointWriter {
    /// Content that is not in a piece yet, bytes.
    fn unwritten_bytes(&self) -> usize {
        self.content.len() - self.taken
    }

    /// Whether the cell of this hash was copied.
    fn has_copied(&self, at: usize, hash: KeyHash) -> bool {
        let CheckpointStep::Cells { at: next, cursor } = self.step else { return self.step == CheckpointStep::Content };
        match self.order.iter().position(|&place| place == at) {
            Some(place) => place < next || (place == next && hash.0 < cursor),
            None => false,
        }
    }
}

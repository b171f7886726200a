//! Writing checkpoints: an image of the indexes, copied cell by cell while writes go on, and of the segments' facts.
//!
//! A checkpoint begins at a position of each stream. All records before it are settled: the index has them or has replaced
//! them. An opening loads the image without the entries that point behind the position, or into segments that are gone,
//! and scans the log from there. So a cell may be copied at any time: what changes later is found by that scan. The scan
//! must not come by a put without coming by the tombstone that hides it: the foreground's position is the start of a
//! segment, but that of the survivors, which lie in no order, is where their copies are still current.
//!
//! Live counts must fit the copied entries. They are copied last, and a record that died after its cell was copied
//! counts as live there.
use super::{Engine, InFlight};
use crate::format::checkpoint::content::{self, RangeImage, RecordImage, SegmentImage, ShareImage, VoidImage};
use crate::format::checkpoint::{self, CheckpointHeader, HEADER_BYTES, PIECE_BYTES, PIECE_CONTENT_BYTES};
use crate::format::manifest::{CheckpointEntry, ManifestEdit};
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{FRAMES_OFFSET, SegmentUuid, Watermark};
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::log::segments::Segment;
use crate::manifest_file::CommitNumber;
use crate::overlay::ReplacedRecord;
use crate::range::Retained;
use fawn_flash::{AlignedBuf, Device, DeviceError, FileId, IoClass};
use fawn_types::{KeyHash, MonoMs, Version};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The log behind the last checkpoint may be this many times as long as the next image.
const LOG_PER_IMAGE: u64 = 10;
/// Share of that at which a close writes a checkpoint.
const CLOSE_SHARE: u64 = 16;
/// Pieces in flight.
const PIECES_IN_FLIGHT_MAX: u32 = 4;
/// Step of the file's allocation, bytes.
const ALLOCATE_BYTES: u64 = 1 << 20;
/// Time after a refusal before the next checkpoint begins.
const RETRY_MS: u64 = 10_000;
/// Checkpoints kept: if the newest turns out corrupt, the one before still serves.
const KEPT: usize = 2;

/// Entries whose records died after their cells were copied: count and bytes.
type DiedSince = HashMap<(u32, usize), (u64, u64), FxBuildHasher>;

/// A segment that is in the image up to an offset only: its live records there when the checkpoint began, and those that
/// died before their cells were copied.
#[derive(Debug)]
struct PartialSegment {
    slot: u32,
    sequence: u64,
    /// By range: records, bytes.
    live: HashMap<usize, (u64, u64), FxBuildHasher>,
}

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
    /// Bytes of log frames since the last checkpoint when this one began.
    log_bytes: u64,
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
    /// The survivors' segment in which their position lies.
    partial: Option<PartialSegment>,
    /// Ends of the streams when the last content was encoded.
    ends: PerStream<LogPosition>,
    /// It became invalid or was refused space: its file goes once nothing is in flight.
    is_given_up: bool,
}

/// State of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// Bytes of log frames since the last checkpoint began.
    pub(crate) log_bytes: u64,
    writer: Option<Box<CheckpointWriter>>,
    retry_at: MonoMs,
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

    /// Whether a checkpoint waits for the log.
    fn is_stuck(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.step == CheckpointStep::Log)
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
        if self.checkpoints.writer.is_none() {
            if self.checkpoints.log_bytes >= self.log_bytes_max() && self.now.mono >= self.checkpoints.retry_at {
                self.begin_checkpoint();
            }
            return;
        }
        self.continue_checkpoint();
    }

    /// Bytes of log frames after which a checkpoint is due.
    fn log_bytes_max(&self) -> u64 {
        (LOG_PER_IMAGE * self.image_bytes()).max(self.options.checkpoint_log_bytes_min)
    }

    fn image_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| content::cells_bytes(&range.index)).sum()
    }

    /// Writes a checkpoint at a close, if an opening would otherwise scan much more than an image. Blocks.
    pub(crate) fn checkpoint_at_close(&mut self) {
        let least = (self.options.checkpoint_log_bytes_min / CLOSE_SHARE).max(self.image_bytes());
        let is_due = self.checkpoints.writer.is_none() && self.checkpoints.log_bytes >= least;
        if is_due && self.poisoned.is_none() && !self.options.read_only {
            self.begin_checkpoint();
        }
        let mut events = Vec::new();
        while self.checkpoints.writer.is_some() && self.poisoned.is_none() {
            if self.checkpoints.is_stuck() && self.device.in_flight() == 0 {
                // A close waits for nothing but the device.
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
        if self.ranges.iter().any(|range| range.copy.is_some()) {
            // Its transferred records count only once all are there.
            self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
            return;
        }
        self.checkpoints.begun += 1;
        // Segments count up from 1: no segment has this number.
        let uuid = SegmentUuid::derive(&self.secret, self.store, self.generation, u64::MAX - self.checkpoints.begun);
        let name = checkpoint::file_name(uuid);
        let file = match self.device.create(&name) {
            Ok(file) => file,
            Err(error) => return self.checkpoint_refused(&error),
        };
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
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
            log_bytes: core::mem::take(&mut self.checkpoints.log_bytes),
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
        self.write_checkpoint_header();
        self.continue_checkpoint();
    }

    /// The segment in which the survivors' position lies, and its live records: all of them lie before it, since an entry
    /// moves to a copy when that is flushed.
    fn partial_segment(&self, from: Watermark) -> Option<PartialSegment> {
        let Watermark { sequence, offset } = from;
        let segment = self.segments.iter().find(|segment| segment.sequence == sequence)?;
        let live = segment.shares.iter().map(|share| (share.range, (share.live_records, share.live_bytes)));
        let is_partial = segment.stream == StreamKind::Survivors && offset > FRAMES_OFFSET;
        is_partial.then(|| PartialSegment { slot: segment.slot, sequence, live: live.collect() })
    }

    /// The position at which a checkpoint can begin now.
    fn checkpoint_position(&self) -> PerStream<Watermark> {
        let mut from = PerStream::from_fn(|kind| {
            let stream = &self.streams[kind];
            let flushed = self.flushed_end(kind);
            match kind {
                StreamKind::Foreground => {
                    let begun = stream.window.active().map_or(flushed.sequence, |chunk| chunk.sequence);
                    Watermark { sequence: begun.min(flushed.sequence), offset: 0 }
                }
                // Copies that are not flushed have not moved their index entries yet.
                StreamKind::Survivors => flushed,
            }
        });
        let sequence_of = |pointer| self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        let pending = self.ranges.iter().filter_map(|range| range.pending.front()).map(|pending| pending.pointer);
        let unconfirmed = self.overlay.all_unconfirmed().map(|written| written.pointer);
        let unsettled = pending.chain(unconfirmed).map(sequence_of).min().unwrap_or(u64::MAX);
        let begun = &mut from[StreamKind::Foreground].sequence;
        *begun = unsettled.min(*begun);
        while let Some(lower) = self.hiding_position(&from) {
            from = lower;
        }
        from
    }

    /// End of the stream's flushed records: the end of a full segment is not the start of the next.
    fn flushed_end(&self, kind: StreamKind) -> Watermark {
        let (segment_bytes, flushed) = (self.options.segment_bytes, self.streams[kind].flush.flushed);
        match flushed.offset(segment_bytes) {
            0 => Watermark { sequence: flushed.sequence(segment_bytes).saturating_sub(1), offset: segment_bytes },
            offset => Watermark { sequence: flushed.sequence(segment_bytes), offset },
        }
    }

    /// A lower position, if a segment before this one hides puts that lie behind it.
    fn hiding_position(&self, from: &PerStream<Watermark>) -> Option<PerStream<Watermark>> {
        let start_of = |segment: &Segment| Watermark { sequence: segment.sequence, offset: 0 };
        let is_scanned = |segment: &Segment| start_of(segment) >= from[segment.stream];
        let mut lowest = vec![Version::from_u64(u64::MAX); self.ranges.len()];
        for share in self.segments.iter().filter(|segment| is_scanned(segment)).flat_map(|segment| &segment.shares) {
            lowest[share.range] = lowest[share.range].min(share.lowest_put);
        }
        let mut lower = *from;
        for segment in self.segments.iter().filter(|segment| !is_scanned(segment)) {
            // Versions grow in a range's own history, so only its transferred records can be hidden by earlier ones.
            let is_hiding = segment.shares.iter().any(|share| {
                share.hides_below >= lowest[share.range] || lowest[share.range] <= self.range_base(share.range)
            });
            if is_hiding {
                lower[segment.stream] = lower[segment.stream].min(start_of(segment));
            }
        }
        (lower != *from).then_some(lower)
    }

    /// Version up to which the range's records were transferred.
    fn range_base(&self, at: usize) -> Version {
        let listed = self.manifest.state().ranges.get(&self.range_ids[at]);
        listed.and_then(|listed| listed.beginning).map_or(Version::ZERO, |beginning| beginning.base)
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
        let Some(writer) = &mut self.checkpoints.writer else { return };
        let (file, offset) = (writer.file, writer.offset);
        if offset + len as u64 > writer.allocated {
            if let Err(error) = self.device.allocate(file, writer.allocated, ALLOCATE_BYTES) {
                writer.is_given_up = true;
                self.pool.give(buf);
                return self.checkpoint_refused(&error);
            }
            writer.allocated += ALLOCATE_BYTES;
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
            tracing::warn!(%error, "no checkpoint is written: openings scan more of the log");
        } else {
            self.poison(error);
        }
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
        if let Some(writer) = &mut self.checkpoints.writer {
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
                    self.stats.checkpoints += 1;
                }
            }
        }
    }

    /// Removes the file of a checkpoint that was given up, once nothing of it is in flight.
    fn remove_checkpoint(&mut self) {
        let Some(writer) = self.checkpoints.writer.take_if(|writer| writer.in_flight == 0) else { return };
        self.checkpoints.log_bytes += writer.log_bytes;
        self.checkpoints.retry_at = self.now.mono.plus_ms(RETRY_MS);
        self.device.close(writer.file);
        // If the unlink is refused for now, or does not survive a crash, recovery removes the file as an orphan.
        if let Err(error) = self.device.unlink(&writer.name)
            && !error.is_retryable()
        {
            self.poison(&error);
        }
    }

    /// Encodes and writes the next piece.
    fn write_content(&mut self) {
        let Some(mut writer) = self.checkpoints.writer.take() else { return };
        if writer.in_flight >= PIECES_IN_FLIGHT_MAX {
            self.checkpoints.writer = Some(writer);
            return;
        }
        while writer.content.len() - writer.taken < PIECE_CONTENT_BYTES
            && let CheckpointStep::Cells { at, cursor } = writer.step
        {
            writer.step = self.encode_next_cell((at, cursor), &mut writer);
        }
        // Only the last piece is shorter: before it, the loop above has filled one.
        let len = (writer.content.len() - writer.taken).min(PIECE_CONTENT_BYTES);
        let mut buf = self.pool.take(PIECE_BYTES);
        let piece = &writer.content[writer.taken..writer.taken + len];
        let piece_bytes = checkpoint::encode_piece(writer.uuid, writer.offset, piece, &mut buf);
        writer.taken += len;
        if writer.taken == writer.content.len() {
            writer.content.clear();
            writer.taken = 0;
        }
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

    /// Encodes the next cell, or what follows the last one. Returns the next step.
    fn encode_next_cell(&self, (at, cursor): (usize, u64), writer: &mut CheckpointWriter) -> CheckpointStep {
        let Some(range) = writer.order.get(at).map(|&place| &self.ranges[place]) else {
            self.encode_state(writer);
            return CheckpointStep::Content;
        };
        if cursor == 0 {
            content::encode_range_start(range.number, range.index.pages(), &mut writer.content);
        }
        let cell = range.index.cell(cursor);
        content::encode_cell(&cell, &mut writer.content);
        match cell.next {
            Some(cursor) => CheckpointStep::Cells { at, cursor },
            None => CheckpointStep::Cells { at: at + 1, cursor: 0 },
        }
    }

    /// Encodes the state of ranges and segments behind the last cell.
    fn encode_state(&self, writer: &mut CheckpointWriter) {
        let segment_bytes = self.options.segment_bytes;
        writer.ends = PerStream::from_fn(|kind| self.streams[kind].appended_end(segment_bytes));
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
            let image = RangeImage {
                number: range.number,
                committed: range.progress.committed,
                cleared: range.cleared.committed,
                complete_above: range.complete_above,
                retained: range.retained.iter().filter(in_image).map(image_of).collect(),
                copied_results: range.copied_results.iter().filter(in_image).map(image_of).collect(),
            };
            content::encode_range(&image, &mut writer.content);
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
        let voids =
            segment.voids().map(|(at, before, above)| VoidImage { number: number_of(at), before: before.0, above });
        SegmentImage {
            slot: segment.slot,
            sequence: segment.sequence,
            tombstone_bytes: segment.tombstone_bytes,
            record_bytes: segment.lengths.total_bytes(),
            lengths: segment.lengths.counts().collect(),
            shares: shares.collect(),
            voids: voids.collect(),
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
        let (lengths, voids) = (Vec::new(), Vec::new());
        let (tombstone_bytes, record_bytes) = (0, 0);
        SegmentImage { slot, sequence, tombstone_bytes, record_bytes, lengths, shares: shares.collect(), voids }
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
        self.checkpoint_written();
        if let Err(error) = self.device.sync_dir() {
            self.poison(&error);
            return;
        }
        if let Some(writer) = &mut self.checkpoints.writer {
            writer.step = CheckpointStep::Log;
        }
    }

    /// Lists the checkpoint, once all that it knows of the log is synced, and every segment in it is listed as sealed.
    fn list_checkpoint(&mut self) {
        let Some(writer) = &self.checkpoints.writer else { return };
        let is_synced = StreamKind::ALL.into_iter().all(|kind| self.streams[kind].flush.synced >= writer.ends[kind]);
        // Every segment that lies before it is sealed, and is listed as such when no seal is left to list.
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
        for (name, _) in retired {
            match self.device.unlink(&name) {
                // A refused unlink, or one that a crash undoes, leaves an orphan for the next opening.
                Err(error) if !error.is_retryable() && !matches!(error, DeviceError::NotFound { .. }) => {
                    self.poison(&error);
                }
                _ => {}
            }
        }
    }
}

impl CheckpointWriter {
    /// Whether the cell of this hash was copied.
    fn has_copied(&self, at: usize, hash: KeyHash) -> bool {
        let CheckpointStep::Cells { at: next, cursor } = self.step else { return self.step == CheckpointStep::Content };
        match self.order.iter().position(|&place| place == at) {
            Some(place) => place < next || (place == next && hash.0 < cursor),
            None => false,
        }
    }
}

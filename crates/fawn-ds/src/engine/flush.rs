//! Flushing: closes frames, keeps one write in flight per block, syncs by durability mode, advances the watermarks.
use super::{Engine, InFlight};
use crate::error::EngineError;
use crate::format::frame::{self, FrameHeader};
use crate::format::segment::StreamKind;
use crate::log::LogPosition;
use crate::log::flush::{
    ClosedFrame, EVERYSEC_SYNC_MS, FrameRange, FrameRanges, LogWrite, MEMORY_FLUSH_BYTES, MEMORY_FLUSH_MS, OpenFrame,
    PAD_FRAME_BYTES_MIN, SyncInFlight, Unsynced, Unwritten, WRITE_OUT_BYTES, ZEROS_AHEAD_BYTES,
};
use crate::log::stream::Stream;
use crate::range::RangeState;
use core::ops::Range;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, IoClass, IoRequest, Token};
use fawn_types::{Durability, Now};

impl<D: Device> Engine<D> {
    /// Starts one write for all appended records, a sync if the durability mode needs one, and verifications. While a
    /// write is in flight the next one waits for it, so later appends share it (group commit).
    pub fn submit(&mut self, now: Now) {
        self.now = now;
        self.log_marks();
        if self.flush_is_due() {
            self.streams[StreamKind::Foreground].flush.wanted = true;
        }
        self.advance_flush();
        self.pump_verifications();
        self.device.kick();
    }

    /// Whether the durability mode requires the foreground's open frame to be written now.
    fn flush_is_due(&self) -> bool {
        let stream = &self.streams[StreamKind::Foreground];
        let Some(open) = stream.flush.open else { return false };
        let end = stream.window.active().map_or(open.offset, |chunk| chunk.end());
        match self.options.durability {
            Durability::Sync | Durability::EverySecond => true,
            Durability::Memory => {
                end - open.offset >= MEMORY_FLUSH_BYTES
                    || self.now.mono.ms_since(stream.flush.last_flush) >= MEMORY_FLUSH_MS
            }
        }
    }

    /// In each stream, closes the open frame if its write could start, then starts all possible writes and a due sync.
    pub(crate) fn advance_flush(&mut self) {
        if self.poisoned.is_some() || self.options.read_only {
            return;
        }
        for kind in StreamKind::ALL {
            self.start_writes(kind);
            if self.streams[kind].flush.wanted && self.can_write_open_frame(kind) {
                self.streams[kind].flush.wanted = false;
                self.close_frame(kind, false);
                self.start_writes(kind);
            }
            self.start_sync(kind);
        }
    }

    /// A frame is closed as late as possible: while its write would have to wait, it keeps growing.
    fn can_write_open_frame(&self, kind: StreamKind) -> bool {
        let stream = &self.streams[kind];
        let flush = &stream.flush;
        let Some(open) = flush.open else { return false };
        if flush.started < flush.frames.len() {
            return false;
        }
        let end = stream.window.active().map_or(open.offset, |chunk| chunk.end());
        self.may_write_to(kind, self.segments.expect(open.slot).sequence)
            && (self.place_in_tail(kind, open.offset, end).is_some()
                || flush.can_start_write(open.slot, flush.unwritten.map_or(open.offset, |unwritten| unwritten.from)))
    }

    /// Whether a frame of a segment may be written. The frame's header must carry the synced end of the segment before,
    /// and a split waits for the manifest while cleaning may already copy records under the numbers of its heirs.
    fn may_write_to(&self, kind: StreamKind, sequence: u64) -> bool {
        self.streams[kind].predecessor_is_synced(sequence, self.options.segment_bytes)
            && self.manifest.are_heirs_durable()
    }

    /// Closes the open frame. A frame of the foreground is padded to a page if `pad` is set or the frame is large.
    ///
    /// No client waits for survivors, so their frames may wait for a shared block. Padded, copies would take more space
    /// than the originals, and cleaning of a full store would free nothing.
    pub(crate) fn close_frame(&mut self, kind: StreamKind, pad: bool) {
        let stream = &mut self.streams[kind];
        let Some(open) = stream.flush.open.take() else { return };
        let segment_bytes = self.options.segment_bytes;
        let segment = self.segments.expect_mut(open.slot);
        let Some(chunk) = stream.window.active_mut() else { unreachable!("an open frame has a chunk") };
        assert_eq!(chunk.slot, open.slot, "the open frame is in the newest chunk");
        let start = (open.offset - chunk.base) as usize;
        let record_bytes = (chunk.len - start - frame::HEADER_BYTES) as u32;
        let unpadded = chunk.end();
        let large = unpadded - open.offset >= PAD_FRAME_BYTES_MIN;
        let mut end = unpadded;
        if (kind == StreamKind::Foreground && (pad || large)) || self.options.pad_frames {
            end = unpadded.next_multiple_of(PAGE_BYTES as u32).min(segment_bytes);
            let padding_bytes = (end - unpadded) as usize;
            chunk.spare()[..padding_bytes].fill(0);
            chunk.len += padding_bytes;
        }
        segment.end = end;
        segment.facts.tombstones += open.tombstones;
        segment.facts.latest_expiry_ms = segment.facts.latest_expiry_ms.max(open.latest_expiry_ms);
        let (slot, sequence) = (open.slot, segment.sequence);
        let OpenFrame { offset, count, chain, .. } = open;
        let ranges = match kind {
            StreamKind::Foreground => self.take_frame_ranges(slot),
            // Survivors are no part of a history: no version of a range becomes durable with them.
            StreamKind::Survivors => FrameRanges::new(),
        };
        let last = &mut self.checkpoints.last;
        (last.log_bytes, last.records) = (last.log_bytes + u64::from(end - offset), last.records + u64::from(count));
        let is_in_tail = false;
        let frame = ClosedFrame { slot, sequence, offset, end, record_bytes, count, chain, ranges, is_in_tail };
        self.streams[kind].flush.frames.push_back(frame);
        self.stats.frames += 1;
    }

    /// Whether each write of the stream is durable on completion. No client waits for survivors: a sync covers many of
    /// their writes.
    fn writes_durably(&self, kind: StreamKind) -> bool {
        kind == StreamKind::Foreground && self.options.durability == Durability::Sync
    }

    /// Encodes the header of a closed frame into its chunk. This is done as late as possible: at the close, the synced
    /// watermark may not have covered the previous segment yet.
    fn encode_frame_header(&mut self, kind: StreamKind, at: usize) {
        let stream = &mut self.streams[kind];
        let frame = &stream.flush.frames[at];
        let header = FrameHeader {
            uuid: self.segments.expect(frame.slot).uuid,
            generation: self.generation,
            offset: frame.offset,
            frame_bytes: frame.end - frame.offset,
            record_bytes: frame.record_bytes,
            count: frame.count,
            synced: stream.synced_watermark(self.options.segment_bytes),
            chain: frame.chain,
        };
        let Some(bytes) = stream.window.frame_mut(frame.slot, frame.offset, frame.end) else { not_in_its_piece() };
        frame::encode_header(&header, bytes);
    }

    fn take_frame_ranges(&mut self, slot: u32) -> FrameRanges {
        let facts = &mut self.segments.expect_mut(slot).facts;
        let touched = self.ranges.iter_mut().enumerate().filter(|(_, range)| range.in_open_frame);
        touched
            .map(|(at, range)| {
                range.in_open_frame = false;
                facts.add(&range.take_open_facts());
                let marked = range.marks.in_open_frame.take();
                FrameRange { range: at, appended: range.progress.appended, marked }
            })
            .collect()
    }

    /// Takes closed frames in log order: small ones into the tail file, others into writes as far as none shares a block
    /// with a write in flight. Then starts the writes that are due.
    pub(crate) fn start_writes(&mut self, kind: StreamKind) {
        while self.poisoned.is_none() {
            let flush = &self.streams[kind].flush;
            let at = flush.started;
            let Some(&ClosedFrame { slot, sequence, offset, end, .. }) = flush.frames.get(at) else { break };
            if !self.may_write_to(kind, sequence) {
                break;
            }
            let place = self.place_in_tail(kind, offset, end);
            let from = flush.unwritten.map_or(offset, |unwritten| unwritten.from);
            if place.is_none() && !flush.can_start_write(slot, from) {
                break;
            }
            self.encode_frame_header(kind, at);
            let log_end = LogPosition::new(sequence, end, self.options.segment_bytes);
            if let Some(place) = place {
                self.copy_to_tail((kind, at), place, log_end);
            }
            let flush = &mut self.streams[kind].flush;
            flush.started += 1;
            flush.add_unwritten(slot, sequence, (offset, end));
            flush.last_flush = self.now.mono;
            if place.is_none() {
                flush.write_through = flush.write_through.max(log_end);
                self.write_out(kind);
            }
            self.frames_flushed(kind);
        }
        self.write_out(kind);
    }

    /// The place of a frame in the tail file. `None`: a write must flush it, because the durability mode asks for more than
    /// the file gives, the frame is large, or the file has no room.
    fn place_in_tail(&self, kind: StreamKind, offset: u32, end: u32) -> Option<usize> {
        if kind != StreamKind::Foreground || end - offset >= PAD_FRAME_BYTES_MIN {
            return None;
        }
        self.tail.as_ref()?.place((end - offset) as usize)
    }

    /// Copies a closed frame into the tail file: it survives the end of the process from now on.
    fn copy_to_tail(&mut self, (kind, at): (StreamKind, usize), place: usize, log_end: LogPosition) {
        let Stream { window, flush, .. } = &mut self.streams[kind];
        let frame = &mut flush.frames[at];
        let Some(bytes) = window.frame_bytes(frame.slot, frame.offset, frame.end) else { not_in_its_piece() };
        let Some(tail) = &mut self.tail else { unreachable!("a place is in a tail file") };
        self.device.store(tail.file, place as u64, bytes);
        tail.add(place, bytes.len(), log_end);
        frame.is_in_tail = true;
        self.stats.tail_frames += 1;
    }

    /// Starts the writes of unwritten bytes: all of them through a position that a sync or a large frame needs, of the rest
    /// many whole pages at a time. Bytes of the tail file that share a page are written once that way.
    fn write_out(&mut self, kind: StreamKind) {
        let segment_bytes = self.options.segment_bytes;
        while self.poisoned.is_none()
            && let Some(unwritten) = self.streams[kind].flush.unwritten
        {
            let Unwritten { slot, sequence, from, end } = unwritten;
            let Stream { window, flush, .. } = &self.streams[kind];
            let whole = end - end % PAGE_BYTES as u32;
            let due = if flush.write_through >= LogPosition::new(sequence, end, segment_bytes) {
                end
            } else if flush.write_through > LogPosition::new(sequence, from, segment_bytes) {
                whole.max(flush.write_through.offset(segment_bytes))
            } else if whole.saturating_sub(from) >= WRITE_OUT_BYTES {
                whole
            } else {
                return;
            };
            let to = due.min(window.chunk_end(slot, from));
            if !flush.can_start_write(slot, from) {
                return;
            }
            self.start_write(kind, unwritten, to);
        }
    }

    fn start_write(&mut self, kind: StreamKind, unwritten: Unwritten, to: u32) {
        let Unwritten { slot, sequence, from, end } = unwritten;
        let is_durable = self.writes_durably(kind);
        let pages_end = self.pages_end(slot, from..to, is_durable);
        let segment = self.segments.expect_mut(slot);
        segment.written_to = segment.written_to.max(pages_end);
        let first = from - from % PAGE_BYTES as u32;
        let flush = &self.streams[kind].flush;
        let number = flush.first_write + flush.writes.len() as u64;
        let token = self.track_write(InFlight::Write { stream: kind, number });
        let mut write = self.log_write(kind, (slot, first), to..pages_end, token);
        if is_durable {
            write = write.durable();
        }
        self.device.submit(write);
        let log_end = LogPosition::new(sequence, to, self.options.segment_bytes);
        let flush = &mut self.streams[kind].flush;
        flush.writes.push_back(LogWrite { slot, pages_end, end: log_end, done: false });
        flush.unwritten = (to < end).then_some(Unwritten { from: to, ..unwritten });
        self.stats.writes += 1;
        self.stats.written_bytes += u64::from(pages_end - first);
    }

    /// End of a write's pages: the last one, or zeros written ahead of it. A large write always enters fresh blocks, and the
    /// next one shall not wait for its zeros.
    fn pages_end(&self, slot: u32, bytes: Range<u32>, is_durable: bool) -> u32 {
        let pages_end = bytes.end.next_multiple_of(PAGE_BYTES as u32);
        let is_small = bytes.end - bytes.start < PAD_FRAME_BYTES_MIN;
        let is_fresh = pages_end > self.segments.expect(slot).written_to;
        if is_durable && is_small && is_fresh {
            pages_end.next_multiple_of(ZEROS_AHEAD_BYTES).min(self.options.segment_bytes)
        } else {
            pages_end
        }
    }

    /// The write of the log's bytes up to `zeros.start`, and zeros behind them. Without zeros it shares the window's buffer.
    /// With zeros it copies, because the next frame continues in the last page.
    fn log_write(&mut self, kind: StreamKind, (slot, from): (u32, u32), zeros: Range<u32>, token: Token) -> IoRequest {
        let class = io_class(kind);
        let file = self.segments.expect(slot).file;
        if zeros.is_empty() {
            let Some(bytes) = self.streams[kind].window.share_frame(slot, from, zeros.start) else {
                not_in_its_piece()
            };
            return IoRequest::write_shared(file, u64::from(from), bytes, class, token);
        }
        let (len_bytes, padded_bytes) = ((zeros.start - from) as usize, (zeros.end - from) as usize);
        let mut buf = self.pool.take(padded_bytes);
        let Some(bytes) = self.streams[kind].window.frame_bytes(slot, from, zeros.start) else { not_in_its_piece() };
        buf[..len_bytes].copy_from_slice(bytes);
        buf[len_bytes..padded_bytes].fill(0);
        IoRequest::write(file, u64::from(from), buf, padded_bytes, class, token)
    }

    /// Completes a write of the log.
    pub(crate) fn write_done(&mut self, kind: StreamKind, number: u64) {
        let flush = &mut self.streams[kind].flush;
        flush.complete(number);
        if kind == StreamKind::Foreground
            && let Some(tail) = &mut self.tail
        {
            tail.release(flush.written);
        }
        self.frames_flushed(kind);
        if self.writes_durably(kind) {
            // Each write is durable on completion, and all writes before it are complete.
            self.advance_synced(kind, self.streams[kind].flush.flushed);
        }
        if kind == StreamKind::Survivors {
            self.move_survivors();
        }
        self.drop_written_chunks(kind);
    }

    /// The flushed watermark passes every frame that is flushed, and whose predecessors are.
    fn frames_flushed(&mut self, kind: StreamKind) {
        let segment_bytes = self.options.segment_bytes;
        while let Some(frame) = self.streams[kind].flush.pop_flushed(segment_bytes) {
            let end = LogPosition::new(frame.sequence, frame.end, segment_bytes);
            let flush = &mut self.streams[kind].flush;
            assert!(end > flush.flushed, "the flushed watermark only grows");
            flush.flushed = end;
            for &FrameRange { range, appended, .. } in &frame.ranges {
                let progress = &mut self.ranges[range].progress;
                progress.flushed = progress.flushed.max(appended.min(progress.appended));
            }
            let (slot, sequence, ranges) = (frame.slot, frame.sequence, frame.ranges);
            self.streams[kind].flush.unsynced.push_back(Unsynced { slot, sequence, end, ranges });
            self.progressed = true;
        }
    }

    pub(crate) fn advance_synced(&mut self, kind: StreamKind, to: LogPosition) {
        let flush = &mut self.streams[kind].flush;
        assert!(to <= flush.flushed, "only what was flushed is synced");
        if to > flush.synced {
            flush.synced = to;
            // One of them may have to wait for a commit mark, too: then it is a debt again.
            if self.drops.unsynced() > 0 {
                self.cleaner.note_change();
            }
            self.drops.synced();
        }
        while self.streams[kind].flush.unsynced.front().is_some_and(|unsynced| unsynced.end <= to) {
            let Some(unsynced) = self.streams[kind].flush.unsynced.pop_front() else { break };
            for &FrameRange { range, appended, marked } in &unsynced.ranges {
                let progress = &mut self.ranges[range].progress;
                progress.synced = progress.synced.max(appended.min(progress.appended));
                match marked {
                    Some(version) => self.mark_is_durable(range, version, unsynced.slot),
                    // A sync is in a sole epoch what a mark is elsewhere.
                    None if !self.ranges[range].needs_marks() => self.release_held(range),
                    None => {}
                }
            }
            self.progressed = true;
        }
    }

    /// Syncs the oldest segment with flushed but unsynced bytes. A sealed, wholly written segment is synced at once,
    /// because its successor waits; otherwise the durability mode decides.
    fn start_sync(&mut self, kind: StreamKind) {
        let flush = &self.streams[kind].flush;
        let Some(first) = flush.unsynced.front().filter(|_| flush.sync.is_none()) else { return };
        let segment_bytes = self.options.segment_bytes;
        let sequence = first.sequence;
        let Some(segment) = self.segments.get(first.slot).filter(|segment| segment.sequence == sequence) else {
            return;
        };
        let end = LogPosition::new(sequence, segment.end, segment_bytes);
        let is_whole = segment.sealed && flush.flushed >= end;
        let is_due = match kind {
            StreamKind::Foreground => {
                let is_due = self.options.durability == Durability::EverySecond
                    && self.now.mono.ms_since(flush.last_sync) >= EVERYSEC_SYNC_MS;
                is_due || self.transfer_waits_for_sync()
            }
            StreamKind::Survivors => false,
        };
        if !is_whole && !is_due && !self.flush_everything && !self.needs_sync(kind) {
            // A later sync covers more.
            self.streams[kind].flush.sync_waits_for = None;
            return;
        }
        let file = segment.file;
        let flush = &mut self.streams[kind].flush;
        // The end of a frame: a watermark within one would call a torn frame corrupt.
        let covers = *flush.sync_waits_for.get_or_insert(flush.flushed.min(end));
        if flush.written < covers {
            flush.write_through = flush.write_through.max(covers);
            return self.write_out(kind);
        }
        flush.sync_waits_for = None;
        flush.sync = Some(SyncInFlight { covers });
        flush.last_sync = self.now.mono;
        self.stats.syncs += 1;
        let token = self.track_write(InFlight::Sync { stream: kind });
        self.device.submit_sync(file, io_class(kind), token);
    }

    /// Starts the syncs that dead segments or a checkpoint wait for, as far as they are due.
    pub(crate) fn sync_for_waiting(&mut self) {
        for kind in StreamKind::ALL {
            if self.needs_sync(kind) {
                let flush = &mut self.streams[kind].flush;
                flush.wanted |= flush.open.is_some();
                self.advance_flush();
            }
        }
    }

    /// Whether a dead segment, cleaning or a checkpoint waits for a sync of the stream that nothing else brings about soon:
    /// survivors have no timer, and no write can wait for the foreground's while all of them wait for space.
    fn needs_sync(&self, kind: StreamKind) -> bool {
        let are_writes_waiting = self.full || self.sorted.slows_puts();
        let drops_wait = self.drops.waits_for[kind] && (kind == StreamKind::Survivors || are_writes_waiting);
        let results_wait = || match kind {
            StreamKind::Foreground => self.results_wait_for_mark(),
            StreamKind::Survivors => self.result_copies_wait_for_sync(),
        };
        // In memory mode, nothing else syncs a mark before the segment is full.
        let waits_for_mark = |range: &RangeState| range.marks.appended > range.marks.durable && range.waits_for_mark();
        let marks_wait =
            || kind == StreamKind::Foreground && are_writes_waiting && self.ranges.iter().any(waits_for_mark);
        let is_waited_for = drops_wait || marks_wait() || self.cleaner.needs_sync(kind) || self.sort_waits_for(kind);
        is_waited_for || self.checkpoints.waits_for(kind, self.streams[kind].flush.synced) || results_wait()
    }

    pub(crate) fn sync_done(&mut self, kind: StreamKind) {
        if let Some(sync) = self.streams[kind].flush.sync.take() {
            self.advance_synced(kind, sync.covers);
        }
    }

    pub(crate) fn drop_written_chunks(&mut self, kind: StreamKind) {
        let stream = &mut self.streams[kind];
        let (written, segment_bytes) = (stream.flush.written, self.options.segment_bytes);
        let is_written = |sequence, end| written >= LogPosition::new(sequence, end, segment_bytes);
        stream.window.drop_written(is_written, &mut self.pool);
    }

    /// Writes and syncs everything, blocks until it is done, and returns the device. Reads may still be in flight: a
    /// read that never ends would block the close forever.
    ///
    /// # Errors
    /// [`EngineError::Poisoned`] if a write or sync failed.
    pub fn close(self) -> Result<D, EngineError> {
        self.close_with_deadline(&mut || false)
    }

    /// As [`Engine::close`], without the checkpoint if `is_past_deadline` returns true before it is complete: the next opening then reads
    /// more of the log.
    ///
    /// # Errors
    /// [`EngineError::Poisoned`] if a write or sync failed.
    pub fn close_with_deadline(mut self, is_past_deadline: &mut dyn FnMut() -> bool) -> Result<D, EngineError> {
        self.give_up_sort();
        self.mark_everything();
        self.cleaner.stop();
        // Before the end of the log: in one write with that last commit, this commit would not be certified by it.
        self.persist_clock();
        self.sync_all()?;
        StreamKind::ALL.into_iter().for_each(|kind| self.record_end_of_log(kind));
        self.sync_all()?;
        self.checkpoint_at_close(is_past_deadline);
        self.certify();
        self.sync_all()?;
        if self.tail.is_some() {
            self.unlink_tail();
        }
        Ok(self.device)
    }

    /// Writes and syncs everything, and blocks until it is durable.
    ///
    /// # Errors
    /// [`EngineError::Poisoned`] if a write or sync failed.
    pub fn sync_all(&mut self) -> Result<(), EngineError> {
        let before = core::mem::replace(&mut self.flush_everything, true);
        self.finish_all();
        self.flush_everything = before;
        match &self.poisoned {
            Some(first) => Err(EngineError::Poisoned { first: first.clone() }),
            None => Ok(()),
        }
    }

    fn finish_all(&mut self) {
        let mut events = Vec::new();
        // A full store would copy segment after segment meanwhile, each of them one more write to wait for.
        self.cleaner.hold(true);
        while self.poisoned.is_none() && !self.options.read_only && !self.is_quiet() {
            for kind in StreamKind::ALL {
                let flush = &mut self.streams[kind].flush;
                flush.wanted |= flush.open.is_some();
            }
            self.advance_flush();
            self.wait(self.now, &mut events);
        }
        self.cleaner.hold(false);
        self.held_events.append(&mut events);
    }

    /// Whether everything is synced and no write is in flight. Reads do not count: an unreadable old version must not
    /// block a close.
    fn is_quiet(&self) -> bool {
        self.streams.iter().all(Stream::is_at_rest) && !self.has_writes_in_flight()
    }

    pub(crate) fn has_writes_in_flight(&self) -> bool {
        self.in_flight.iter().any(|(_, operation)| operation.is_of_log())
    }
}

const fn io_class(kind: StreamKind) -> IoClass {
    match kind {
        StreamKind::Foreground => IoClass::Flush,
        StreamKind::Survivors => IoClass::Cleaning,
    }
}

fn not_in_its_piece() -> ! {
    unreachable!("a frame stays in its chunk until it is flushed")
}

//! Appends: encodes records into the open frame of the append window and enters them in overlay, segment and range.
use super::verify::pending_bytes;
use super::{Engine, PREFETCH_KEYS_MAX};
use crate::error::EngineError;
use crate::format::frame;
use crate::format::record::{self, Envelope, RecordKind, RecordPlace, RecordRef};
use crate::format::segment::StreamKind;
use crate::index::Pointer;
use crate::log::segments::AppendedRecord;
use crate::log::stream::Stream;
use crate::log::window::Chunk;
use crate::overlay::{OverlayBase, Written};
use crate::range::{PendingKind, PendingRecord, RangeProgress, RangeState};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, prefetch};
use fawn_types::{KeyHash, RangeId, Version, limits};

/// Prefetched bytes after a record, in the window's free space; the CPU's own prefetcher covers longer runs.
const FETCH_AHEAD_BYTES_MAX: usize = 2048;

impl<D: Device> Engine<D> {
    /// Appends a record to the log: pending until [`Engine::commit`]. Versions of a range must grow.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] (poll, then retry), [`EngineError::StoreFull`], a length limit, or the store is
    /// poisoned. After an error nothing has changed.
    pub fn append(&mut self, range: RangeId, hash: KeyHash, record: &RecordRef<'_>) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        self.check_begun(at)?;
        let len = self.check_record(record)?;
        if record.kind.is_of_key() {
            self.check_apart(at, hash, record.key)?;
        }
        self.make_room_for(at, len, Reserve::of([record]))?;
        self.append_one(at, hash, record, len, false);
        Ok(())
    }

    /// Appends records that all survive a crash or none. They share one frame.
    ///
    /// # Errors
    /// As [`Engine::append`]; [`EngineError::TooLarge`] when together they exceed half a segment.
    pub fn append_batch(&mut self, range: RangeId, records: &[(KeyHash, RecordRef<'_>)]) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        self.check_begun(at)?;
        let mut len = 0;
        for (hash, record) in records {
            len += self.check_record(record)?;
            if record.kind.is_of_key() {
                self.check_apart(at, *hash, record.key)?;
            }
        }
        let limit_bytes = self.options.segment_bytes as usize / 2;
        if len > limit_bytes {
            return Err(EngineError::TooLarge { found_bytes: len, limit_bytes });
        }
        self.make_room_for(at, len, Reserve::of(records.iter().map(|(_, record)| record)))?;
        let mut left = records.len();
        for records in records.chunks(PREFETCH_KEYS_MAX) {
            self.prefetch_records(range, records);
            for (hash, record) in records {
                left -= 1;
                self.append_one(at, *hash, record, record::encoded_len(record), left > 0);
            }
        }
        Ok(())
    }

    /// Checks that a client's batch of so many records leaves memory for others until its commit: about 350 B each, however short
    /// they are. Records of a peer are not checked: its chain has taken them.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`] if together they need more than a quarter of the memory budget.
    pub fn check_batch(&self, records: usize) -> Result<(), EngineError> {
        let (found_bytes, limit_bytes) = (pending_bytes(records, records), self.options.batch_pending_bytes_max());
        if found_bytes > limit_bytes {
            return Err(EngineError::TooLarge { found_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Empties a range as of `version`; pending until committed, like any record.
    ///
    /// # Errors
    /// As [`Engine::append`].
    pub fn clear(&mut self, range: RangeId, version: Version) -> Result<(), EngineError> {
        self.append(range, KeyHash(0), &RecordRef::bare(RecordKind::Clear, version, &[]))
    }

    /// Refuses writes to a range until the transfer that empties it is durable: after an earlier crash its old records
    /// would count together with the new one.
    pub(crate) fn check_begun(&self, at: usize) -> Result<(), EngineError> {
        if self.ranges[at].is_beginning() { Err(EngineError::Overloaded) } else { Ok(()) }
    }

    /// Returns the record's length if it is within all limits and the engine can take it now.
    pub(super) fn check_record(&self, record: &RecordRef<'_>) -> Result<usize, EngineError> {
        self.check_writable()?;
        let (key_len, value_len) = (record.key.len(), record.value.len());
        if key_len > limits::KEY_BYTES_MAX {
            return Err(EngineError::KeyTooLong { found_bytes: key_len, limit_bytes: limits::KEY_BYTES_MAX });
        }
        let limit_bytes = (self.options.value_bytes_max as usize).min(record::VALUE_BYTES_LIMIT);
        if value_len > limit_bytes {
            return Err(EngineError::TooLarge { found_bytes: value_len, limit_bytes });
        }
        // A result may be as long as a value. It does not count against the limit of the record that carries it.
        let result_len = record.result.len();
        if result_len > 0 && result_len > self.options.result_bytes_max() {
            let limit_bytes = self.options.result_bytes_max();
            return Err(EngineError::TooLarge { found_bytes: result_len, limit_bytes });
        }
        let (len, limit_bytes) = (record::encoded_len(record), self.options.record_bytes_max());
        if len - result_len > limit_bytes {
            return Err(EngineError::TooLarge { found_bytes: len - result_len, limit_bytes });
        }
        self.check_pending()?;
        if record.kind == RecordKind::Put && self.sorted.holds_puts() {
            return Err(EngineError::Overloaded);
        }
        Ok(len)
    }

    /// Encodes one record in the space that [`Engine::make_room`] reserved, and enters it in all tables.
    fn append_one(&mut self, at: usize, hash: KeyHash, record: &RecordRef<'_>, len: usize, continues: bool) {
        let version = record.version;
        let RangeState { progress: RangeProgress { appended: last, .. }, sole, .. } = &self.ranges[at];
        assert!(version > *last, "versions of a range grow: {version:?} after {last:?}");
        if let Some(sole) = sole.as_ref().filter(|sole| !sole.is_over) {
            // An opening would take it for committed, or for a record of a chain.
            assert!(version.epoch() == sole.epoch, "{version:?} in the sole epoch {:?}", sole.epoch);
        }
        let is_of_key = record.kind.is_of_key();
        // The base is looked up before the window can return the new record for the key.
        let known = is_of_key.then(|| self.base_of(at, hash, record.key));
        let (slot, pointer) = self.encode(at, record, len, continues);
        let is_put = self.is_indexed(record.kind);
        let (len_bytes, kind) = (len as u32, if is_put { RecordKind::Put } else { record.kind });
        let is_tombstone = record.kind == RecordKind::Tombstone;
        self.enter_appended(at, slot, &AppendedRecord { version, len_bytes, kind, is_tombstone });
        let written = Written { version, pointer, len_bytes, is_put };
        let kind = match known {
            Some((name, base)) => {
                self.enter_overlay(at, name, base, written);
                PendingKind::OfKey { name, is_put }
            }
            None if record.kind == RecordKind::Clear => {
                self.ranges[at].pending_clear = Some(version);
                PendingKind::Clear
            }
            None => PendingKind::Result,
        };
        let range = &mut self.ranges[at];
        range.progress.appended = version;
        // Filled in its place: a call would pass it through memory, written by fields and read in longer parts, each of which waits
        // until the copy of the value before is stored.
        *range.pending.push_back_mut(PendingRecord::VACANT) = PendingRecord { version, pointer, len_bytes, kind };
        self.pending_records += 1;
        self.stats.appended_records += 1;
        self.sorted.note_put(if record.kind == RecordKind::Put { len } else { 0 });
        self.stats.user_bytes += (record.key.len() + record.value.len()) as u64;
    }

    /// `base` is `None` if the overlay has an entry for the key.
    // A call would pass base and record through memory.
    #[inline(always)]
    fn enter_overlay(&mut self, at: usize, name: crate::overlay::KeyName, base: Option<OverlayBase>, written: Written) {
        match base {
            None => {
                if let Some(entry) = self.overlay.find_mut(at, name) {
                    entry.push_pending(written);
                }
            }
            Some(base) => {
                self.overlay.insert(at, name, base, written);
                if base == OverlayBase::Unknown {
                    self.queue_verification(at, name);
                }
            }
        }
    }

    /// Logs a commit mark or a rollback.
    pub(crate) fn append_control(&mut self, at: usize, kind: RecordKind, version: Version) -> Result<(), EngineError> {
        let record = RecordRef::bare(kind, version, &[]);
        let len = record::encoded_len(&record);
        self.check_writable()?;
        self.make_room(len, Reserve::Marks)?;
        let (slot, _) = self.encode(at, &record, len, false);
        if kind == RecordKind::Rollback {
            self.enter_segment(at, slot, Version::ZERO, RecordKind::Rollback);
        }
        Ok(())
    }

    /// Encodes the record into the open frame; returns its slot and pointer.
    pub(super) fn encode(&mut self, at: usize, record: &RecordRef<'_>, len: usize, continues: bool) -> (u32, Pointer) {
        let envelope = Envelope { number: self.ranges[at].number, continues };
        let (slot, pointer) = self.encode_in(StreamKind::Foreground, envelope, record, len);
        self.stats.record_bytes += len as u64;
        let range = &mut self.ranges[at];
        range.in_open_frame = true;
        if !matches!(record.kind, RecordKind::CommitMark | RecordKind::Rollback) {
            range.open_facts.count(record.version);
        }
        (slot, pointer)
    }

    /// Encodes the record into the open frame of a stream; returns its slot and pointer.
    // Every write calls it with a constant stream.
    #[inline(always)]
    pub(super) fn encode_in(
        &mut self,
        kind: StreamKind,
        envelope: Envelope,
        record: &RecordRef<'_>,
        len: usize,
    ) -> (u32, Pointer) {
        let Stream { window, flush, .. } = &mut self.streams[kind];
        let (Some(chunk), Some(open)) = (window.active_mut(), flush.open.as_mut()) else {
            unreachable!("make_room opens a frame in a chunk")
        };
        let (slot, offset) = (chunk.slot, chunk.end());
        let place = RecordPlace { segment_id: self.segments.expect(slot).id, offset };
        let out = &mut chunk.spare()[..len];
        open.chain = open.chain.then(record::encode_into(record, envelope, place, out));
        open.count += 1;
        chunk.len += len;
        // The next record is encoded here, and its checksum reads the lines just written: without the prefetch it
        // stalls.
        let ahead = chunk.spare();
        prefetch(&ahead[..len.min(FETCH_AHEAD_BYTES_MAX).min(ahead.len())]);
        if !matches!(record.kind, RecordKind::CommitMark | RecordKind::Rollback) {
            open.tombstones += u32::from(record.kind == RecordKind::Tombstone);
        }
        if record.expires_at_ms != 0 {
            open.latest_expiry_ms = open.latest_expiry_ms.max(record.expires_at_ms);
            self.segments.expect_mut(slot).expiries.add(len as u32, record.expires_at_ms, self.clock.get());
        }
        (slot, self.segments.pointer(slot, offset))
    }

    /// Makes room for `len` more bytes in the open frame; opens a frame, a chunk or a segment as needed. The caller has
    /// checked that the store takes writes.
    ///
    /// `reserve` selects how much of the space kept back on a full device may be used.
    #[inline]
    pub(crate) fn make_room(&mut self, len: usize, reserve: Reserve) -> Result<(), EngineError> {
        // Nearly every record fits into the open frame, long before the next segment must be prepared.
        let segment_bytes = self.options.segment_bytes;
        let stream = &self.streams[StreamKind::Foreground];
        let fits = |chunk: &Chunk| {
            let segment_room = segment_bytes - chunk.end();
            let is_early = segment_room > segment_bytes / 2 && !self.full;
            chunk.room() >= len && segment_room as usize >= len && (is_early || stream.next.is_ready())
        };
        if stream.flush.open.is_some() && stream.window.active().is_some_and(fits) {
            return Ok(());
        }
        self.extend_room(StreamKind::Foreground, len, reserve)
    }

    /// Opens a frame, a chunk or a segment as needed, and prepares the next segment in time.
    #[inline(never)]
    pub(super) fn extend_room(&mut self, kind: StreamKind, len: usize, reserve: Reserve) -> Result<(), EngineError> {
        self.check_writable()?;
        let segment_bytes = self.options.segment_bytes;
        loop {
            let stream = &self.streams[kind];
            let Some(chunk) = stream.window.active() else {
                self.begin_in_next(kind, reserve)?;
                continue;
            };
            let need = len + if stream.flush.open.is_some() { 0 } else { frame::HEADER_BYTES };
            let segment_room = (segment_bytes - chunk.end()) as usize;
            if !stream.next.is_ready() {
                self.prepare_next(kind, reserve, (segment_room, need))?;
            }
            if segment_room < need {
                self.switch_segment(kind, reserve)?;
            } else if chunk_room(self.streams[kind].window.active()) < need {
                self.next_chunk(kind, len + frame::HEADER_BYTES)?;
            } else {
                break;
            }
        }
        self.streams[kind].open_frame();
        Ok(())
    }

    /// Continues in a new chunk of the same segment.
    fn next_chunk(&mut self, kind: StreamKind, need: usize) -> Result<(), EngineError> {
        let page = PAGE_BYTES as u32;
        let bytes = (need + PAGE_BYTES).next_multiple_of(PAGE_BYTES).max(self.options.chunk_bytes());
        self.reserve_window(kind, bytes)?;
        self.close_frame(kind, true);
        self.start_writes(kind);
        let Stream { window, flush, .. } = &mut self.streams[kind];
        let Some(last) = window.active() else { return Err(EngineError::Overloaded) };
        let (slot, sequence, end) = (last.slot, last.sequence, last.end());
        let base = end - end % page;
        // The page in which the last frame ends is rewritten with the next frame, so it is copied whole, with that
        // frame's header, which is encoded when the frame is submitted.
        if !end.is_multiple_of(page) && flush.started < flush.frames.len() {
            return Err(EngineError::Overloaded);
        }
        let mut buf = self.pool.take(bytes);
        let carried = (end - base) as usize;
        buf[..carried].copy_from_slice(&last.buf[(base - last.base) as usize..last.len]);
        window.push(Chunk { slot, sequence, base, len: carried, buf: buf.into() });
        Ok(())
    }

    /// Reserves `bytes` of the window's budget, after dropping the chunks that are written.
    pub(crate) fn reserve_window(&mut self, kind: StreamKind, bytes: usize) -> Result<(), EngineError> {
        self.drop_written_chunks(kind);
        let bytes_min = self.options.write_buffer_bytes_max();
        let Stream { window, flush, .. } = &mut self.streams[kind];
        // The active chunk is dropped only after a next one exists. However long it is, one more must fit.
        let active = window.active().map_or(0, |chunk| chunk.buf.len());
        let bytes_max = bytes_min.max(active.max(bytes) + bytes);
        if window.capacity_bytes() + bytes <= bytes_max {
            return Ok(());
        }
        flush.wanted = true;
        Err(EngineError::Overloaded)
    }
}

/// Space kept back on a full device, by purpose. Each level may also use the space of the levels before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reserve {
    /// No space is kept back for puts.
    Puts,
    /// Deletes free space: they leave segments without live records.
    Deletes,
    /// A dead segment may be droppable only after a commit mark.
    Marks,
}

impl Reserve {
    fn of<'r>(records: impl IntoIterator<Item = &'r RecordRef<'r>>) -> Self {
        let has_put = records.into_iter().any(|record| record.kind == RecordKind::Put);
        if has_put { Self::Puts } else { Self::Deletes }
    }
}

fn chunk_room(chunk: Option<&Chunk>) -> usize {
    chunk.map_or(0, Chunk::room)
}

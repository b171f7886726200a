//! Segment lifecycle: prepared ahead of need, switched to, sealed in the manifest, dropped when dead.
use super::append::Reserve;
use super::clean::only_reserve_left;
use super::{Engine, Event, InFlight};
use crate::error::EngineError;
use crate::format::manifest::{self, ManifestEdit};
use crate::format::segment::{self, HEADER_BYTES, SegmentHeader, StreamKind};
use crate::format::{FRAMES_OFFSET, RangeNumber, SegmentUuid};
use crate::log::LogPosition;
use crate::log::segments::Segment;
use crate::log::stream::{NextSegment, Stream};
use crate::log::window::Chunk;
use crate::manifest_file::CommitNumber;
use crate::range::RangeState;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, IoClass};
use fawn_types::{KeyRange, RangeId, Version};

/// Time between two attempts to allocate space on a full device.
pub(super) const RETRY_MS: u64 = 100;
/// Time until work of an idle store that found no space in the manifest is tried again, ms.
pub(super) const IDLE_RETRY_MS: u64 = 10_000;

/// Doublings of that time at most, on a device that refuses space which it reports as free.
const RETRY_DOUBLINGS_MAX: u32 = 5;

/// Time after which a durable manifest commit gets a certifying commit of its own, if no other follows.
const CERTIFY_MS: u64 = 100;
/// Maximum size of such a commit, bytes.
const CERTIFY_BYTES: u64 = 1 << 10;

/// Numbers in a segment's facts at least, besides four times those in use, before it is sealed early.
const NUMBERS_MIN: usize = 256;
/// Numbers in the seals to come at most.
const NUMBERS_MAX: usize = 1 << 15;
const _: () = assert!(manifest::seal_bytes(NUMBERS_MAX) < manifest::COMMIT_EDIT_BYTES_MAX);

/// Maximum size of a manifest edit without its content, bytes.
const EDIT_BYTES: u64 = 256;

impl<D: Device> Engine<D> {
    fn no_segment(&mut self, kind: StreamKind, reserve: Reserve) -> EngineError {
        // While cleaning frees space, a write only has to wait, and so it does while overwritten records are being looked for. A
        // delete waits also while it gets a segment of the reserve, or the other stream does: they get theirs one by one.
        let is_prepared = !matches!(self.streams[kind].next, NextSegment::None) || self.is_listing();
        let is_ready_soon = reserve > Reserve::Puts && is_prepared && self.manifest.retry_at().is_none();
        let is_freeing =
            self.cleaner.is_freeing(self.now.mono) || (self.drops.is_freeing() && self.manifest.retry_at().is_none());
        let is_full = self.full && !is_freeing && !self.is_verifying() && !is_ready_soon;
        // Copies of cleaning have space of their own, so what is retained is given up for client writes only. A read that is slow
        // may end soon.
        let is_read_slow = self.cleaner.is_reading() || self.cleaner.reads_left() > 0;
        let may_give_up = kind == StreamKind::Foreground && !is_read_slow;
        let is_refused = is_full && !(may_give_up && self.give_up_retained());
        if is_refused { EngineError::StoreFull } else { EngineError::Overloaded }
    }

    /// Prepares a successor in time, before `need` bytes are appended. On a full device the last part of the active segment is
    /// kept for deletes, because they free space. The very last part is kept for commit marks, because segments with deleted
    /// records may wait for one. In a chain it is left behind the `need` bytes of any append, and some for deletes behind a put.
    pub(crate) fn prepare_next(
        &mut self,
        kind: StreamKind,
        reserve: Reserve,
        (segment_room, need): (usize, usize),
    ) -> Result<(), EngineError> {
        self.cleaner.note_write();
        let segment_bytes = self.options.segment_bytes as usize;
        let with_mark = match self.ranges.iter().any(RangeState::needs_marks) {
            // The rest of the page in which a frame ends is padding.
            true => need + (segment_bytes / 32).max(PAGE_BYTES),
            false => segment_bytes / 32,
        };
        let kept_back = match reserve {
            Reserve::Puts => (with_mark + segment_bytes / 32).max(segment_bytes / 8),
            Reserve::Deletes => with_mark,
            Reserve::Marks => 0,
        };
        if matches!(self.streams[kind].next, NextSegment::None) && segment_room <= kept_back.max(segment_bytes / 2) {
            self.try_prepare(kind, Reserve::Puts)?;
            if self.full && reserve > Reserve::Puts && segment_room <= kept_back.max(segment_bytes / 8) {
                // A mark takes the last segment only if it has no room.
                self.try_prepare(kind, if segment_room < need { reserve } else { Reserve::Deletes })?;
            }
        }
        if !self.full {
            return Ok(());
        }
        let is_kept_back = segment_room <= kept_back || reserve == Reserve::Puts && self.is_in_reserve();
        if is_kept_back { Err(self.no_segment(kind, reserve)) } else { Ok(()) }
    }

    /// Allocates the next segment for a write, unless the last attempt failed a moment ago.
    fn try_prepare(&mut self, kind: StreamKind, reserve: Reserve) -> Result<(), EngineError> {
        // Each delete tries again. With a search each time, all would wait for it, and none be refused.
        if self.may_prepare(reserve) && self.now.mono >= self.retry_at {
            self.cleaner.note_change();
        }
        self.prepare(kind, reserve)
    }

    /// Prepares a segment for copies of results that found no space. Cleaning asks in a poll, before a timer does that for the
    /// foreground; after the poll, when results are copied, the next attempt is never due.
    pub(super) fn prepare_for_copies(&mut self) {
        let Stream { window, next, .. } = &self.streams[StreamKind::Survivors];
        let segment_room = window.active().map_or(0, |chunk| self.options.segment_bytes - chunk.end());
        // With more room, the write buffer had no memory, which passes.
        let has_little_room = segment_room <= self.options.segment_bytes / 2;
        if self.full && has_little_room && matches!(next, NextSegment::None) {
            // A failure here has poisoned the engine and is reported as such.
            let _ = self.try_prepare(StreamKind::Survivors, Reserve::Marks);
        }
    }

    fn may_prepare(&self, reserve: Reserve) -> bool {
        // Segments are listed in the order of their sequence numbers, so one at a time is prepared.
        // Deletes ask at once, except a device that refuses what it reports as free: each attempt creates a file there.
        let is_asked_at_once = reserve != Reserve::Puts && self.space_refusals == 0;
        !self.is_listing() && (!self.full || is_asked_at_once || self.now.mono >= self.retry_at)
    }

    /// Whether a segment is being prepared.
    fn is_listing(&self) -> bool {
        self.streams.iter().any(|stream| stream.next.is_being_listed())
    }

    pub(crate) fn prepare(&mut self, kind: StreamKind, reserve: Reserve) -> Result<(), EngineError> {
        // On a full device cleaning comes first: it needs a segment before it can free any.
        // So does a mark that a dead segment waits for, which needs none then.
        let is_first = reserve == Reserve::Marks && self.ranges.iter().any(RangeState::waits_for_mark);
        let kind = if self.full && !is_first && self.needs_survivors_next() { StreamKind::Survivors } else { kind };
        if !self.may_prepare(reserve) {
            return Ok(());
        }
        match self.create_segment(kind, reserve) {
            Ok(segment) => {
                if core::mem::take(&mut self.space_refusals) > 0 || self.full {
                    // Others may have freed space.
                    self.sorted.note_freed(self.now.mono);
                }
                if kind == StreamKind::Foreground && reserve == Reserve::Puts {
                    self.space_back |= core::mem::take(&mut self.full);
                }
                let mut buf = AlignedBuf::zeroed(HEADER_BYTES);
                segment::encode(&self.header_of(&segment), &mut buf);
                let token = self.track_write(InFlight::SegmentHeader { stream: kind });
                self.device.submit_write_durable(segment.file, 0, buf, HEADER_BYTES, IoClass::Manifest, token);
                self.streams[kind].next = NextSegment::Header(segment);
                Ok(())
            }
            // The device refused before it wrote anything: the state of the disk is known.
            Err(error) if error.is_retryable() => {
                let was_full = core::mem::replace(&mut self.full, true);
                self.sorted.note_space();
                if !was_full {
                    tracing::warn!(%error, "no space for another segment: refusing writes until there is space again");
                }
                let retry_ms = self.retry_ms(&error);
                // Deletes that do not wait for this time would put off cleaning, which does.
                if !was_full || reserve == Reserve::Puts || self.space_refusals > 0 {
                    self.retry_at = self.now.mono.plus_ms(retry_ms);
                }
                Ok(())
            }
            Err(error) => Err(self.poison(&error)),
        }
    }

    /// Time until the next attempt after this refusal, ms.
    fn retry_ms(&mut self, refusal: &DeviceError) -> u64 {
        // A device with a quota may refuse what it reports as free. Only an attempt shows that, and each creates a file and
        // unlinks it.
        let is_unexpected = matches!(refusal, DeviceError::Full { .. }) && *refusal != only_reserve_left();
        let doublings = if is_unexpected { self.space_refusals.min(RETRY_DOUBLINGS_MAX) } else { 0 };
        self.space_refusals = doublings + u32::from(is_unexpected);
        RETRY_MS << doublings
    }

    /// Prepares the survivors' next segment ahead of need, once the foreground has its own.
    fn prepare_survivors_next(&mut self) {
        let has_own = self.streams[StreamKind::Foreground].next.is_ready();
        if has_own && self.needs_survivors_next() {
            // A failure here has poisoned the engine and is reported as such.
            let _ = self.try_prepare(StreamKind::Survivors, Reserve::Puts);
        }
    }

    pub(crate) fn header_of(&self, segment: &Segment) -> SegmentHeader {
        SegmentHeader {
            uuid: segment.uuid,
            store: self.store,
            slot: segment.slot,
            sequence: segment.sequence,
            segment_bytes: self.options.segment_bytes,
            stream: segment.stream,
        }
    }

    /// Whether deletes have taken space that is reserved for cleaning.
    fn is_in_reserve(&self) -> bool {
        self.taken_segments() + self.kept_segments() > self.capacity_segments()
    }

    /// Creates a segment's file with all its space; nothing is durable yet.
    ///
    /// Deletes may use the space reserved for cleaning: they free more than they take. They may use its last segment
    /// only if cleaning can continue without it. A mark that a dead segment waits for may always: it frees that one.
    pub(crate) fn create_segment(&mut self, kind: StreamKind, reserve: Reserve) -> Result<Segment, DeviceError> {
        let segment_bytes = u64::from(self.options.segment_bytes);
        self.measure_device();
        self.sorted.note_space();
        // Puts can wait for cleaning. Cleaning, and deletes that make it worthwhile, cannot wait for a checkpoint.
        let is_last_resort = kind == StreamKind::Survivors || reserve != Reserve::Puts;
        let segments_max = if is_last_resort { self.segments_max() } else { self.capacity_segments() };
        let kept_back = match (kind, reserve) {
            (StreamKind::Foreground, Reserve::Puts) => self.kept_segments(),
            (StreamKind::Foreground, Reserve::Marks) if self.ranges.iter().any(RangeState::waits_for_mark) => 0,
            (StreamKind::Foreground, _) => self.kept_from_deletes(),
            (StreamKind::Survivors, _) => 0,
        };
        if self.taken_segments() + kept_back >= segments_max {
            if is_last_resort && segments_max == self.device_segments {
                self.yield_checkpoint_space();
            }
            return Err(only_reserve_left());
        }
        // A segment that is being dropped has left its slot: the manifest gets its drop before the next listing.
        let is_prepared = |slot| self.streams.iter().any(|stream| stream.next.slot() == Some(slot));
        let slot = self.segments.free_slot(is_prepared).ok_or_else(only_reserve_left)?;
        let sequence = self.last_sequence + 1;
        let uuid = SegmentUuid::derive(&self.secret, self.store, self.generation, sequence);
        let name = segment::file_name(slot, uuid);
        // A refused attempt leaves its number unused: a name is never used twice.
        self.last_sequence = sequence;
        let file = self.device.create(&name)?;
        if let Err(error) = self.device.allocate(file, 0, segment_bytes) {
            self.yield_checkpoint_space();
            self.device.close(file);
            self.unlink(name, 0);
            return Err(error);
        }
        Ok(Segment::new((slot, sequence), uuid, kind, file, name))
    }

    /// The successor's header is durable: its name is next.
    pub(crate) fn header_written(&mut self, kind: StreamKind) {
        let token = self.track_write(InFlight::SegmentName { stream: kind });
        self.device.submit_sync_dir(IoClass::Manifest, token);
    }

    /// The successor's name is durable: lists it in the manifest.
    pub(crate) fn name_synced(&mut self, kind: StreamKind) {
        let NextSegment::Header(segment) = core::mem::replace(&mut self.streams[kind].next, NextSegment::None) else {
            unreachable!("a segment's name was synced without a next segment")
        };
        let end = self.manifest.commit(&[segment.add_edit()]);
        self.streams[kind].next = NextSegment::Listing(segment, end);
        self.start_manifest();
    }

    /// Reserves manifest space for an edit with `bytes` of content that frees no space.
    pub(crate) fn reserve_manifest(&mut self, bytes: usize) -> Result<(), EngineError> {
        self.note_open_numbers();
        let reserved = self.manifest.reserve(&mut self.device, bytes as u64 + EDIT_BYTES);
        self.refuse_if_full(reserved)
    }

    /// As [`Engine::reserve_manifest`], for an edit that frees space.
    pub(crate) fn reserve_manifest_to_free(&mut self, bytes: usize) -> Result<(), EngineError> {
        let reserved = self.manifest.reserve_to_free(&mut self.device, bytes as u64 + EDIT_BYTES);
        self.refuse_if_full(reserved)
    }

    fn refuse_if_full(&mut self, reserved: Result<(), DeviceError>) -> Result<(), EngineError> {
        match reserved {
            Ok(()) => Ok(()),
            Err(error) if error.is_retryable() => Err(EngineError::StoreFull),
            Err(error) => Err(self.poison(&error)),
        }
    }

    pub(crate) fn start_manifest(&mut self) {
        if self.poisoned.is_none() && self.manifest.is_due() {
            let token = self.track_write(InFlight::Manifest);
            match self.manifest.start(&mut self.device, token, self.now.mono) {
                Ok(true) => {}
                Ok(false) => drop(self.untrack_write(token)),
                Err(error) => {
                    self.untrack_write(token);
                    self.poison(&error);
                }
            }
        }
    }

    /// An acknowledged commit must not look like a torn append if its bytes rot later: a later commit has to record
    /// that it was synced.
    pub(crate) fn certify_when_due(&mut self) {
        if self.now.mono >= self.certify_at {
            self.certify();
        }
    }

    pub(crate) fn certify(&mut self) {
        if self.poisoned.is_some() || self.options.read_only || !self.manifest.needs_certifying() {
            return;
        }
        match self.manifest.reserve(&mut self.device, CERTIFY_BYTES) {
            Ok(()) => {
                self.manifest.certify();
                self.start_manifest();
            }
            // Edits that free space come first; until then the last commit stays uncertified.
            Err(error) if error.is_retryable() => self.certify_at = self.now.mono.plus_ms(IDLE_RETRY_MS),
            Err(error) => drop(self.poison(&error)),
        }
    }

    /// A write of the manifest is complete.
    pub(crate) fn manifest_written(&mut self) {
        if self.manifest.is_rewriting() {
            return self.name_manifest();
        }
        self.manifest.done();
        self.commits_durable();
    }

    /// The file that replaces the manifest is written: its name is next.
    fn name_manifest(&mut self) {
        match self.manifest.name_new(&mut self.device, self.now.mono) {
            Ok(true) => {
                let token = self.track_write(InFlight::ManifestName);
                self.device.submit_sync_dir(IoClass::Manifest, token);
            }
            Ok(false) => self.start_manifest(),
            Err(error) => drop(self.poison(&error)),
        }
    }

    /// The new manifest's name is durable.
    pub(crate) fn manifest_named(&mut self) {
        self.manifest.take_over(&mut self.device);
        self.commits_durable();
    }

    /// Applies durable commits of the manifest: segments become ready, transfers begin or end, dropped files are
    /// unlinked.
    fn commits_durable(&mut self) {
        for kind in StreamKind::ALL {
            let next = &mut self.streams[kind].next;
            *next = match core::mem::replace(next, NextSegment::None) {
                NextSegment::Listing(segment, end) if self.manifest.is_durable(end) => NextSegment::Ready(segment),
                next => next,
            };
        }
        self.prepare_survivors_next();
        self.certify_at = self.now.mono.plus_ms(CERTIFY_MS);
        self.copies_listed();
        self.clears_listed();
        self.unlink_dropped();
        self.unlink_checkpoints();
        self.unlink_runs();
        self.start_manifest();
    }

    /// The stream has no segment to append to: begins in the next one as soon as there is space.
    pub(crate) fn begin_in_next(&mut self, kind: StreamKind, reserve: Reserve) -> Result<(), EngineError> {
        self.cleaner.note_write();
        if matches!(self.streams[kind].next, NextSegment::None) {
            self.try_prepare(kind, Reserve::Puts)?;
            // Survivors ask the device again after a while.
            if self.full && reserve > Reserve::Puts && kind == StreamKind::Foreground {
                self.try_prepare(kind, reserve)?;
            }
        }
        self.switch_segment(kind, reserve)
    }

    /// Seals the active segment and continues in the next one.
    pub(crate) fn switch_segment(&mut self, kind: StreamKind, reserve: Reserve) -> Result<(), EngineError> {
        // Its first frame begins with a mark of every range that has marks: none of them needs an older segment's mark.
        let bytes = self.options.chunk_bytes().max(self.marks_bytes().next_multiple_of(PAGE_BYTES));
        if !self.streams[kind].next.is_ready() {
            return Err(self.no_segment(kind, reserve));
        }
        self.reserve_window(kind, bytes)?;
        self.close_frame(kind, true);
        let stream = &mut self.streams[kind];
        let NextSegment::Ready(segment) = core::mem::replace(&mut stream.next, NextSegment::None) else {
            unreachable!("checked above")
        };
        if let Some(slot) = stream.window.active().map(|chunk| chunk.slot) {
            self.segments.expect_mut(slot).sealed = true;
            self.has_unlisted = true;
        }
        self.begin_segment(segment, bytes);
        self.start_writes(kind);
        self.cleaner.note_change();
        match kind {
            StreamKind::Foreground => {
                self.bound_retained_log();
                (0..self.ranges.len()).try_for_each(|at| self.append_mark(at))
            }
            StreamKind::Survivors => Ok(()),
        }
    }

    /// Seals the active segment of a wholly written stream where it ends. The stream continues in its next one, once it has that:
    /// a full store may have space for it only because of this seal.
    pub(crate) fn seal_written(&mut self, kind: StreamKind) {
        let stream = &mut self.streams[kind];
        assert!(stream.flush.is_written(), "a frame of the segment is not written");
        let Some(slot) = stream.window.active().map(|chunk| chunk.slot) else { return };
        stream.window.clear(&mut self.pool);
        self.segments.expect_mut(slot).sealed = true;
        self.has_unlisted = true;
        self.cleaner.note_change();
    }

    pub(crate) fn begin_segment(&mut self, segment: Segment, chunk_bytes: usize) {
        let (slot, sequence, kind) = (segment.slot, segment.sequence, segment.stream);
        self.segments.insert(segment);
        let buf = self.pool.take(chunk_bytes.max(PAGE_BYTES));
        self.streams[kind].window.push(Chunk { slot, sequence, base: FRAMES_OFFSET, len: 0, buf: buf.into() });
    }

    /// Notes for the space of the manifest how many numbers the seals to come have: those of dropped ranges stay in them.
    pub(crate) fn note_open_numbers(&mut self) {
        let numbers = |segment: &Segment| segment.facts.numbers.len();
        let sealed = self.has_unlisted.then(|| self.segments.iter().filter(|segment| segment.is_to_be_listed()));
        let active = StreamKind::ALL.into_iter().filter_map(|kind| self.active_segment(kind));
        let open = active.chain(sealed.into_iter().flatten()).map(numbers).sum();
        self.manifest.note_open_numbers(open);
    }

    fn active_segment(&self, kind: StreamKind) -> Option<&Segment> {
        self.streams[kind].window.active().map(|chunk| self.segments.expect(chunk.slot))
    }

    /// Whether the stream's active segment has many more numbers than there are ranges.
    pub(super) fn has_many_numbers(&self, kind: StreamKind) -> bool {
        let numbers = self.active_segment(kind).map_or(0, |segment| segment.facts.numbers.len());
        numbers > NUMBERS_MIN && numbers > NUMBERS_MIN + 4 * self.manifest.numbers_in_use()
    }

    /// Seals active segments before ranges that come and go make their seals long: one that finds no space in the manifest holds up
    /// all drops.
    fn bound_seals(&mut self) {
        for kind in StreamKind::ALL {
            // While the store closes, nothing begins.
            if !self.cleaner.is_stopped && self.has_many_numbers(kind) {
                self.seal_early(kind);
            }
        }
    }

    /// Seals the active segment before it is full if it has a successor. Otherwise prepares one.
    pub(super) fn seal_early(&mut self, kind: StreamKind) {
        let is_nearly_full = self.taken_segments() + self.kept_segments() + 1 >= self.capacity_segments();
        // Later calls try again: a refusal passes, and any other error has poisoned the engine.
        let _ = match self.streams[kind].next {
            // A refusal would hold writes up that the segment still has room for.
            NextSegment::None if is_nearly_full => Ok(()),
            NextSegment::None => self.prepare(kind, Reserve::Puts),
            NextSegment::Ready(_) => self.switch_segment(kind, Reserve::Puts),
            NextSegment::Header(_) | NextSegment::Listing(..) => Ok(()),
        };
    }

    /// Refuses another number while the seals to come have as many as fit one commit: a full store had no segment to continue in.
    pub(crate) fn check_numbers(&mut self) -> Result<(), EngineError> {
        self.note_open_numbers();
        if self.manifest.numbers_to_seal() < NUMBERS_MAX { Ok(()) } else { Err(EngineError::StoreFull) }
    }

    /// Lists sealed segments as such once they are synced whole, and drops dead segments.
    pub(crate) fn maintain_segments(&mut self) {
        if self.poisoned.is_some() || self.options.read_only {
            return;
        }
        self.bound_seals();
        self.note_open_numbers();
        let segment_bytes = self.options.segment_bytes;
        let (mut edits, mut listed) = (Vec::new(), Vec::new());
        // Every poll calls this. The scan of all segments runs only in the few polls after one was sealed.
        if core::mem::take(&mut self.has_unlisted) {
            for segment in self.segments.iter_mut() {
                let end = LogPosition::new(segment.sequence, segment.end, segment_bytes);
                if segment.is_to_be_listed() && self.streams[segment.stream].flush.synced >= end {
                    segment.listed_sealed = true;
                    edits.push(segment.seal_edit());
                    listed.push(segment.slot);
                    self.device.end_writes(segment.file);
                }
                self.has_unlisted |= segment.is_to_be_listed();
            }
        }
        if !edits.is_empty() {
            self.manifest.commit(&edits);
            self.sorted.note_change();
        }
        for slot in listed {
            self.scrub_sealed(slot);
            self.examine_if_dead(slot);
        }
        self.drop_dead();
        self.retry_unlinks();
        self.list_clears();
        self.persist_stale_clock();
        self.start_manifest();
    }

    /// Lists a range in the manifest and blocks until that is durable; other completions are kept for the next poll.
    pub(crate) fn list_range(&mut self, range: RangeId, keys: KeyRange) -> Result<RangeNumber, EngineError> {
        self.check_numbers()?;
        self.reserve_manifest(0)?;
        let (number, begin) = self.beginning_of(range, Version::ZERO);
        let edits = [ManifestEdit::AddRange { range, keys }, begin, ManifestEdit::RangeWhole { range }];
        let end = self.manifest.commit(&edits);
        self.wait_for_manifest(end)?;
        Ok(number)
    }

    /// The edit that begins a range here, and its new number.
    pub(crate) fn beginning_of(&self, range: RangeId, base: Version) -> (RangeNumber, ManifestEdit) {
        let number = self.manifest.state().next_number();
        let since = self.appended_end().sequence(self.options.segment_bytes);
        (number, ManifestEdit::BeginRange { range, number, since, base })
    }

    /// Blocks until a manifest commit is durable; other events are reported by the next poll.
    pub(crate) fn wait_for_manifest(&mut self, end: CommitNumber) -> Result<(), EngineError> {
        self.start_manifest();
        // A wait with held events would return at once.
        let mut events = Vec::new();
        while !self.manifest.is_durable(end) && self.poisoned.is_none() {
            if self.manifest.retry_at().is_some() {
                // Its space was reserved, so this is a contradiction. A wait for others to free some could be endless.
                self.poison(&DeviceError::Full { dir: manifest::FILE_NAME.to_owned() });
                break;
            }
            self.wait(self.now, &mut events);
        }
        self.held_events.append(&mut events);
        self.check_writable()
    }

    pub(crate) fn report_space(&mut self, events: &mut Vec<Event>) {
        let foreground = StreamKind::Foreground;
        if self.full && self.now.mono >= self.retry_at && matches!(self.streams[foreground].next, NextSegment::None) {
            // A failure here has poisoned the engine and is reported as such.
            let _ = self.prepare(foreground, Reserve::Puts);
            self.cleaner.note_retry();
        }
        if core::mem::take(&mut self.space_back) {
            events.push(Event::SpaceBack);
        }
    }
}

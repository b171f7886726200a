//! The writing part of an open: cleans up after validation and continues the log in a new generation.
use super::io::Io;
use super::{OpenReport, Scanned, synced_logs};
use crate::engine::{Engine, Reserve};
use crate::error::OpenError;
use crate::format::checkpoint;
use crate::format::manifest::{ManifestEdit, SegmentEntry};
use crate::format::scan::SyncedLog;
use crate::format::segment::{self, HEADER_BYTES, StreamKind};
use crate::format::{FRAMES_OFFSET, RangeNumber, Watermark};
use crate::log::LogPosition;
use crate::log::stream::NextSegment;
use crate::log::window::Chunk;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, FileId, IoClass};
use fawn_types::{RangeId, Version};

/// Longest piece in which unsynced frames are written again, bytes.
const REWRITE_BYTES_MAX: u64 = 1 << 20;
/// Reads of bytes that a scan has verified, until the disk returns those that were verified.
const VERIFIED_READS_MAX: u32 = 3;

impl<D: Device> Engine<D> {
    /// After validation: removes the traces of unfinished steps and makes the recovered frames durable.
    pub(super) fn settle_files(
        &mut self,
        scanned: &[Scanned],
        torn: &[(u32, u32)],
        orphans: Vec<String>,
        report: &mut OpenReport,
    ) -> Result<(), OpenError> {
        let open = scanned.iter().filter(|scanned| scanned.entry.seal.is_none());
        self.manifest.note_open_numbers(open.map(|scanned| scanned.report.facts.numbers.len()).sum());
        self.manifest.settle(&mut self.device)?;
        for name in orphans {
            match self.device.unlink(&name) {
                Ok(()) => report.orphans_removed.push(name),
                // The next opening removes it.
                Err(error) if error.is_retryable() => tracing::warn!(%error, "an unlisted file stays for now"),
                Err(error) => return Err(error.into()),
            }
        }
        if !report.orphans_removed.is_empty() {
            self.device.sync_dir()?;
            // The scan counted their space as used by others.
            self.measure_device();
        }
        for &(slot, offset) in torn {
            // Truncated, not only skipped: the next open must not find the rest of the unfinished frame.
            let segment = self.segments.expect(slot);
            self.device.truncate(segment.file, u64::from(offset))?;
            report.truncated.push((segment.name.clone(), offset));
        }
        let known = synced_logs(self.manifest.state(), scanned);
        for scanned in scanned.iter().filter(|scanned| scanned.entry.seal.is_none()) {
            self.rewrite_unsynced(scanned, &known[scanned.entry.stream])?;
        }
        Ok(())
    }

    /// Writes the frames again that nothing proves to be synced; reads are about to rely on them.
    ///
    /// A killed process may leave frames in the page cache that are not on the disk. If its last sync failed, their
    /// pages are marked clean, and another sync would not cover them. The segment stays prepared for writes: the log may
    /// continue in it.
    fn rewrite_unsynced(&mut self, scanned: &Scanned, known: &SyncedLog) -> Result<(), OpenError> {
        let segment = self.segments.expect(scanned.slot);
        let (file, end) = (segment.file, u64::from(scanned.report.valid_len));
        self.device.begin_writes(file)?;
        let page = PAGE_BYTES as u64;
        let synced = u64::from(known.synced_in(scanned.entry.sequence).max(FRAMES_OFFSET).min(scanned.tail_from));
        let mut from = synced - synced % page;
        if synced < end {
            // A copied file may have holes, and a failed write would end the store. Without space, a later opening succeeds.
            self.device.allocate(file, from, end.next_multiple_of(page) - from)?;
        }
        let mut io = Io::new(&mut self.device);
        while from < end && synced < end {
            let len = (end - from).min(REWRITE_BYTES_MAX) as usize;
            let buf = read_verified(&mut io, &segment.name, scanned, (file, from, len))?;
            io.write_durable(file, from, &buf[..len], IoClass::Recovery)?;
            from += len as u64;
        }
        // The length of a truncated file.
        Ok(io.sync(file, IoClass::Recovery)?)
    }

    /// Begins a generation, and chooses or creates the segment to append to.
    pub(super) fn begin(&mut self, scanned: &[Scanned], report: &mut OpenReport) -> Result<(), OpenError> {
        self.generation += 1;
        self.manifest.note_clock(self.clock.get(), self.now.mono);
        let mut edits = vec![ManifestEdit::Generation(self.generation)];
        edits.extend(self.begin_unfinished(scanned));
        edits.extend(self.forgotten_lineage(!self.manifest.state().checkpoints.is_empty()));
        edits.extend(self.drop_refused(report));
        self.manifest.commit_and_wait(&mut self.device, &edits)?;
        self.checkpoints.retire(report.checkpoints_refused.iter().map(|(name, _)| name.clone()));
        self.unlink_checkpoints();
        for kind in StreamKind::ALL {
            self.choose_active(kind, scanned)?;
        }
        self.begin_tail(report)?;
        self.examine_all();
        self.begin_scrub();
        self.look_for_old_numbers();
        self.balance_memory();
        Ok(())
    }

    /// A checkpoint that could not be read now must not be used later: its image may point to copies that this opening takes
    /// for dead, because it found others of the same records.
    fn drop_refused(&self, report: &OpenReport) -> Vec<ManifestEdit> {
        let is_refused = |name: String| report.checkpoints_refused.iter().any(|(refused, _)| *refused == name);
        let listed = self.manifest.state().checkpoints.iter();
        let refused = listed.filter(|entry| is_refused(checkpoint::file_name(entry.uuid)));
        refused.map(|entry| ManifestEdit::DropCheckpoint { uuid: entry.uuid }).collect()
    }

    /// Ranges whose transfer did not complete begin again, empty, under their new numbers.
    fn begin_unfinished(&mut self, scanned: &[Scanned]) -> Vec<ManifestEdit> {
        let with_data = scanned.iter().rev().find(|scanned| scanned.report.frames > 0);
        let since = with_data.map_or(0, |scanned| scanned.entry.sequence);
        let begin = |(range, number)| {
            [ManifestEdit::BeginRange { range, number, since, base: Version::ZERO }, ManifestEdit::RangeWhole { range }]
        };
        self.renumber_unfinished().into_iter().flat_map(begin).collect()
    }

    /// Gives each range whose transfer did not complete a new number: all that the transfer left in the log and in runs is
    /// invalidated.
    pub(super) fn renumber_unfinished(&mut self) -> Vec<(RangeId, RangeNumber)> {
        let state = self.manifest.state();
        let mut number = state.next_number();
        let mut renumbered = Vec::new();
        for range in &mut self.ranges {
            let Some(id) = range.id else { continue };
            if state.ranges[&id].beginning.is_some_and(|beginning| beginning.is_whole) {
                continue;
            }
            range.set_number(number);
            renumbered.push((id, number));
            number.0 += 1;
        }
        renumbered
    }

    /// Appends to the stream's newest segment with data unless it is sealed. A prepared, unused segment becomes the next
    /// one.
    fn choose_active(&mut self, kind: StreamKind, scanned: &[Scanned]) -> Result<(), OpenError> {
        let scanned: Vec<_> = scanned.iter().filter(|scanned| scanned.entry.stream == kind).collect();
        let is_open = |scanned: &&&Scanned| scanned.entry.seal.is_none();
        let with_data = scanned.iter().rev().find(|scanned| scanned.report.frames > 0);
        let empty = scanned.iter().filter(is_open).rfind(|scanned| {
            scanned.report.frames == 0
                && with_data.is_none_or(|with_data| scanned.entry.sequence > with_data.entry.sequence)
        });
        let active_scan = with_data.filter(is_open).or(empty).copied();
        let active = active_scan.map(|scanned| scanned.slot);
        let next = match empty.filter(|empty| Some(empty.slot) != active) {
            Some(empty) if self.allocate_again(empty.slot)? => Some(empty.slot),
            _ => None,
        };
        self.drop_unused(&scanned, active, next)?;
        let mut edits = Vec::new();
        for &scanned in &scanned {
            let is_kept = Some(scanned.slot) == active || Some(scanned.slot) == next;
            if is_kept || self.segments.get(scanned.slot).is_none() {
                continue;
            }
            let segment = self.segments.expect_mut(scanned.slot);
            segment.sealed = true;
            segment.listed_sealed = true;
            self.device.end_writes(segment.file);
            if scanned.entry.seal.is_none() {
                edits.push(segment.seal_edit());
            }
        }
        if !edits.is_empty() {
            self.manifest.commit_and_wait(&mut self.device, &edits)?;
        }
        self.streams[kind].next = match next.and_then(|slot| self.segments.remove(slot)) {
            Some(segment) => NextSegment::Ready(segment),
            None => NextSegment::None,
        };
        self.end_of_log_is_flushed(kind);
        match (active_scan, kind) {
            (Some(scanned), _) => self.go_on_in(scanned),
            (None, StreamKind::Foreground) => self.begin_first_segment(),
            // Cleaning begins a segment when it needs one.
            (None, StreamKind::Survivors) => Ok(()),
        }
    }

    /// Drops empty segments after the active one, except the next: the log had continued in them and lost that data. If
    /// they stayed, they would suggest that the log extends further than it does.
    fn drop_unused(&mut self, scanned: &[&Scanned], active: Option<u32>, next: Option<u32>) -> Result<(), OpenError> {
        let active_sequence = active.map_or(u64::MAX, |slot| self.segments.expect(slot).sequence);
        let is_unused = |scanned: &&&Scanned| {
            scanned.entry.sequence > active_sequence && Some(scanned.slot) != next && scanned.report.frames == 0
        };
        let unused: Vec<_> = scanned.iter().filter(is_unused).collect();
        if unused.is_empty() {
            return Ok(());
        }
        let drop_edit =
            |scanned: &&&Scanned| ManifestEdit::DropSegment { slot: scanned.slot, uuid: scanned.entry.uuid };
        let edits: Vec<_> = unused.iter().map(drop_edit).collect();
        self.manifest.commit_and_wait(&mut self.device, &edits)?;
        for segment in unused.iter().filter_map(|scanned| self.segments.remove(scanned.slot)) {
            self.device.close(segment.file);
            // If the unlink does not survive a crash, the next open removes the file as an orphan.
            self.device.unlink(&segment.name)?;
        }
        Ok(())
    }

    /// Appends to a segment with data: the page in which its last frame ends is rewritten with the next frame.
    fn go_on_in(&mut self, scanned: &Scanned) -> Result<(), OpenError> {
        let slot = scanned.slot;
        if !self.allocate_again(slot)? {
            return self.give_up_rest(slot);
        }
        let segment = self.segments.expect(slot);
        let (file, sequence, end, kind) = (segment.file, segment.sequence, segment.end, segment.stream);
        let base = end - end % PAGE_BYTES as u32;
        let carried = (end - base) as usize;
        let mut buf = self.pool.take(self.options.chunk_bytes());
        if carried > 0 {
            let place = (file, u64::from(base), carried);
            let page = read_verified(&mut Io::new(&mut self.device), &segment.name, scanned, place)?;
            buf[..carried].copy_from_slice(&page[..carried]);
        }
        self.streams[kind].window.push(Chunk { slot, sequence, base, len: carried, buf: buf.into() });
        Ok(())
    }

    /// Allocates the blocks that were freed with a torn end. Returns `false` if there is no space for them now.
    fn allocate_again(&mut self, slot: u32) -> Result<bool, OpenError> {
        let file = self.segments.expect(slot).file;
        match self.device.allocate(file, 0, u64::from(self.options.segment_bytes)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_retryable() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Seals the segment at its end: its remaining space was freed with its torn end, and cannot be allocated again.
    /// Writes continue in the next segment once there is space.
    fn give_up_rest(&mut self, slot: u32) -> Result<(), OpenError> {
        let segment = self.segments.expect_mut(slot);
        segment.sealed = true;
        segment.listed_sealed = true;
        self.device.end_writes(segment.file);
        let edit = segment.seal_edit();
        self.manifest.commit_and_wait(&mut self.device, &[edit])?;
        self.full = true;
        Ok(())
    }

    /// Whether the foreground ends where the manifest says that it was synced.
    pub(super) fn is_end_recorded(&self, scanned: &[Scanned]) -> bool {
        let has_frames =
            |(entry, len): &(&SegmentEntry, u32)| entry.stream == StreamKind::Foreground && *len > FRAMES_OFFSET;
        let scanned = scanned.iter().map(|scanned| (&scanned.entry, scanned.report.valid_len));
        // Segments before the checkpoint are not scanned, and sealed.
        let Some((entry, offset)) = scanned.filter(has_frames).max_by_key(|(entry, _)| entry.sequence) else {
            return true;
        };
        let end = Watermark { sequence: entry.sequence, offset };
        entry.seal.is_some() || self.manifest.state().ends_of_log[StreamKind::Foreground] >= end
    }

    /// The recovered stream is on the disk: sets its flushed and synced watermarks to its end.
    pub(super) fn end_of_log_is_flushed(&mut self, kind: StreamKind) {
        let of_stream = self.segments.iter().filter(|segment| segment.stream == kind);
        let newest = of_stream.max_by_key(|segment| segment.sequence);
        let end = newest.map_or(LogPosition(0), |segment| {
            LogPosition::new(segment.sequence, segment.end, self.options.segment_bytes)
        });
        let flush = &mut self.streams[kind].flush;
        (flush.flushed, flush.written, flush.synced) = (end, end, end);
    }

    fn begin_first_segment(&mut self) -> Result<(), OpenError> {
        let segment = match self.create_segment(StreamKind::Foreground, Reserve::Puts) {
            Ok(segment) => segment,
            // An existing store can be read, and accepts writes again once there is space.
            Err(error) if error.is_retryable() && self.segments.len() > 0 => {
                self.full = true;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut header = vec![0; HEADER_BYTES];
        segment::encode(&self.header_of(&segment), &mut header);
        Io::new(&mut self.device).write_durable(segment.file, 0, &header, IoClass::Manifest)?;
        self.device.sync_dir()?;
        self.manifest.commit_and_wait(&mut self.device, &[segment.add_edit()])?;
        self.begin_segment(segment, self.options.chunk_bytes());
        Ok(())
    }
}

/// Reads the pages of `len` bytes of a scanned segment. They are as the scan has verified them: they will be written again,
/// or read from memory without a checksum, and a misdirected read would put other bytes in their place.
pub(super) fn read_verified<D: Device>(
    io: &mut Io<'_, D>,
    name: &str,
    scanned: &Scanned,
    (file, offset, len): (FileId, u64, usize),
) -> Result<AlignedBuf, OpenError> {
    for _ in 0..VERIFIED_READS_MAX {
        let mut buf = io.read(file, offset, len.next_multiple_of(PAGE_BYTES), IoClass::Recovery)?;
        if let Some(tail) = &scanned.tail {
            tail.lay_over(offset, &mut buf);
        }
        if scanned.pages.match_pages(offset, &buf[..len]) {
            return Ok(buf);
        }
    }
    let detail = "reads return other bytes than a moment before".to_owned();
    let to_bytes = scanned.report.valid_len;
    Err(OpenError::Corrupt { file: name.to_owned(), from_bytes: offset as u32, to_bytes, detail })
}

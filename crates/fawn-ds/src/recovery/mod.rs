//! Owns opening: manifest, segments in order, the judgement of their ends, and the engine put together from it.
mod conflicts;
mod index_build;
pub(crate) mod io;

use crate::check;
use crate::engine::{Engine, Next};
use crate::error::{EngineError, OpenError};
use crate::format::manifest::{self, Edit, Identity, ManifestState, RangeEntry, SegmentEntry};
use crate::format::scan::{ScanInput, ScanReport, Scanner, Verdict};
use crate::format::segment::{self, HEADER_BYTES};
use crate::format::{FORMAT_VERSION, FRAMES_OFFSET, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, StoreUuid, Watermark};
use crate::log::LogPosition;
use crate::log::flush::FlushState;
use crate::log::segments::Segment;
use crate::log::window::{BufferPool, Chunk, Window};
use crate::manifest_file::ManifestFile;
use crate::options::Options;
use crate::overlay::Overlay;
use crate::stats::EngineStats;
use fawn_flash::PageCache;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Cause, Device, DeviceError, FileId};
use fawn_types::{HashSecret, KeyHash, RangeId, TimeMs, Version};
use index_build::Builder;
use io::Io;
use slab::Slab;
use std::collections::VecDeque;

/// Length of one read of a scan, bytes; several are in flight.
const SCAN_READ_BYTES: usize = 1 << 20;
const SCAN_READS_IN_FLIGHT: usize = 4;

/// What one range came back with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeReport {
    /// Which.
    pub range: RangeId,
    /// Newest version committed: all of them, unless the store is chained.
    pub committed: Version,
    /// Newest version recovered; what lies between waits for a commit or a rollback.
    pub recovered: Version,
}

/// Damage found below what was synced; only a read-only opening goes on past it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The segment's file.
    pub file: String,
    /// Where the last good frame before it ends.
    pub from_bytes: u32,
    /// How far the log was synced.
    pub synced: Watermark,
    /// What is wrong.
    pub detail: String,
}

/// What opening found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenReport {
    /// There was no store; there is one now.
    pub created: bool,
    /// Segments read.
    pub segments: u64,
    /// Records read.
    pub records: u64,
    /// Bytes of frames read.
    pub bytes: u64,
    /// Unfinished ends cut off: file and where.
    pub truncated: Vec<(String, u32)>,
    /// Files of unfinished steps removed.
    pub orphans_removed: Vec<String>,
    /// Read-only openings list what is damaged here.
    pub damage: Vec<Damage>,
    /// Per range.
    pub ranges: Vec<RangeReport>,
}

/// A segment after its scan.
struct Scanned {
    entry: SegmentEntry,
    slot: u32,
    report: ScanReport,
}

impl<D: Device> Engine<D> {
    /// Opens the store in the device's directory, or creates one. Blocks on the device, and only here.
    ///
    /// # Errors
    /// [`OpenError`] says what is damaged and how to go on; a store is never replaced by an empty one.
    pub fn open(mut device: D, mut options: Options, now: TimeMs) -> Result<(Self, OpenReport), OpenError> {
        device.lock()?;
        let mut report = OpenReport::default();
        let manifest = match ManifestFile::open(&mut device)? {
            Some(manifest) => manifest,
            None => {
                report.created = true;
                create(&mut device, &options, now)?
            }
        };
        let Some(identity) = manifest.state().identity else { unreachable!("a manifest has an identity") };
        if options.secret.is_some_and(|secret| secret != identity.secret) {
            return Err(OpenError::SecretDiffers);
        }
        options.segment_bytes = identity.segment_bytes;
        let mut engine = Self::bare(device, options, identity, manifest, now);
        // Nothing is changed before all is judged: whoever is refused finds the evidence as it was.
        let orphans = engine.orphans(&mut report)?;
        let scanned = engine.scan_all(&mut report)?;
        engine.check_generation(&scanned, &mut report)?;
        let torn = engine.judge_ends(&scanned, &mut report)?;
        if !engine.options.read_only {
            engine.settle_files(&scanned, &torn, orphans, &mut report)?;
        }
        engine.missing = report.damage.first().map(|damage| EngineError::Corrupt {
            file: damage.file.clone(),
            offset_bytes: damage.from_bytes,
            detail: "the key is not in what is left of the log; it may have been in the damaged part".to_owned(),
        });
        engine.finish_ranges(&mut report);
        if engine.options.read_only {
            engine.end_of_log_is_flushed();
        } else {
            engine.begin(&scanned)?;
        }
        Ok((engine, report))
    }

    /// An engine with nothing in it but its identity.
    fn bare(device: D, options: Options, identity: Identity, manifest: ManifestFile, now: TimeMs) -> Self {
        let Identity { store, secret, segment_bytes, .. } = identity;
        let mut ident_secret = secret;
        ident_secret.0.iter_mut().for_each(|byte| *byte ^= 0xA5);
        let mut engine = Self {
            generation: manifest.state().generation,
            last_sequence: manifest.state().last_sequence,
            cache: PageCache::new((options.memory_bytes / 2) as usize),
            device,
            secret,
            ident_secret,
            store,
            manifest,
            vouch_at: TimeMs(0),
            ranges: Vec::new(),
            range_ids: Vec::new(),
            segments: crate::log::segments::SegmentTable::new(segment_bytes),
            next: Next::None,
            dropping: Vec::new(),
            may_have_dead: true,
            has_unlisted: true,
            window: Window::default(),
            pool: BufferPool::default(),
            flush: FlushState { last_flush: now, last_sync: now, ..FlushState::default() },
            flush_everything: false,
            overlay: Overlay::default(),
            verify_queue: VecDeque::new(),
            verify_in_flight: 0,
            scratch: Vec::new(),
            resume: None,
            in_flight: Slab::new(),
            stale: VecDeque::new(),
            completions: VecDeque::new(),
            missing: None,
            poisoned: None,
            poison_reported: false,
            full: false,
            space_back: false,
            retry_at: TimeMs(0),
            held_events: Vec::new(),
            polls: 0,
            progressed: false,
            now,
            stats: EngineStats::default(),
            options,
        };
        let listed: Vec<_> = engine.manifest.state().ranges.iter().map(|(&id, entry)| (id, entry.keys)).collect();
        for (id, keys) in listed {
            engine.ranges.push(crate::range::RangeState::new(id, keys, engine.options.index));
            engine.range_ids.push(id);
        }
        engine
    }

    /// Files of steps that a crash cut short: named like ours and unlisted. One that took data was listed, and synced so,
    /// before: then the manifest has lost that, and the file is promised data.
    fn orphans(&mut self, report: &mut OpenReport) -> Result<Vec<String>, OpenError> {
        let state = self.manifest.state();
        let listed: Vec<_> = state.segments.iter().map(|(&slot, entry)| segment::file_name(slot, entry.uuid)).collect();
        let mut orphans = Vec::new();
        for name in self.device.list()? {
            let is_segment = segment::is_file_name(&name);
            if listed.contains(&name) || (!is_segment && name != manifest::NEW_FILE_NAME) {
                continue;
            }
            if is_segment && check::holds_newer_data(&mut self.device, &name, self.store, state.last_sequence)? {
                let detail = "it holds data of this store and is newer than all that the manifest lists".to_owned();
                if !self.options.read_only {
                    return Err(OpenError::ManifestTailLost { file: name, detail });
                }
                let detail = format!("{detail}: the manifest lost its synced end");
                report.damage.push(Damage { file: name, from_bytes: FRAMES_OFFSET, synced: Watermark::NONE, detail });
            } else {
                orphans.push(name);
            }
        }
        Ok(orphans)
    }

    /// Reads every segment in order and builds the indexes.
    fn scan_all(&mut self, report: &mut OpenReport) -> Result<Vec<Scanned>, OpenError> {
        let mut listed: Vec<_> = self.manifest.state().segments.iter().map(|(&slot, &entry)| (slot, entry)).collect();
        listed.sort_by_key(|(_, entry)| entry.sequence);
        for (slot, entry) in &listed {
            let segment = open_segment(&mut self.device, self.store, *slot, entry)?;
            self.segments.insert(segment);
        }
        let mut builder = Builder::new(self);
        let mut scanned = Vec::new();
        for (slot, entry) in listed {
            let input = ScanInput {
                uuid: entry.uuid,
                sequence: entry.sequence,
                segment_bytes: builder.engine.options.segment_bytes,
                sealed_len: entry.sealed_len,
            };
            let scan = scan_segment(&mut builder, slot, input)?;
            report.segments += 1;
            report.records += scan.records;
            report.bytes += u64::from(scan.valid_len - FRAMES_OFFSET);
            builder.engine.segments.expect_mut(slot).end = scan.valid_len;
            scanned.push(Scanned { entry, slot, report: scan });
        }
        builder.finish()?;
        Ok(scanned)
    }

    /// A frame of a later generation than the manifest's: frames are written only once their generation is synced there.
    fn check_generation(&self, scanned: &[Scanned], report: &mut OpenReport) -> Result<(), OpenError> {
        let Some(newest) = scanned.iter().max_by_key(|scanned| scanned.report.generation) else { return Ok(()) };
        let found = newest.report.generation;
        if found <= self.generation {
            return Ok(());
        }
        let file = self.segments.expect(newest.slot).name.clone();
        let detail = format!("it has a frame of generation {found}, the manifest ends at {}", self.generation);
        if !self.options.read_only {
            return Err(OpenError::ManifestTailLost { file, detail });
        }
        report.damage.push(Damage {
            file,
            from_bytes: newest.report.valid_len,
            synced: newest.report.watermark,
            detail: format!("{detail}: the manifest lost its synced end"),
        });
        Ok(())
    }

    /// Judges each segment's end; names those to be cut. Damage below what was synced is refused, or listed when nothing
    /// is going to be written.
    fn judge_ends(&self, scanned: &[Scanned], report: &mut OpenReport) -> Result<Vec<(u32, u32)>, OpenError> {
        let known = scanned.iter().map(|scanned| scanned.report.watermark).max().unwrap_or(Watermark::NONE);
        let mut torn = Vec::new();
        for scanned in scanned {
            let file = self.segments.expect(scanned.slot).name.clone();
            let damage = scanned.report.damage;
            let detail = damage.map_or_else(|| "frames are missing".to_owned(), |error| error.to_string());
            match scanned.report.judge(known) {
                Verdict::Clean => {}
                Verdict::TornAt { offset } => torn.push((scanned.slot, offset)),
                Verdict::CorruptAt { offset, watermark } if self.options.read_only => {
                    report.damage.push(Damage { file, from_bytes: offset, synced: watermark, detail });
                }
                Verdict::CorruptAt { offset, watermark } => {
                    let here = watermark.sequence == scanned.entry.sequence;
                    let to_bytes = if here { watermark.offset } else { self.options.segment_bytes };
                    return Err(OpenError::Damaged { file, from_bytes: offset, to_bytes, detail });
                }
            }
        }
        Ok(torn)
    }

    /// All is judged and good: unfinished steps are undone, and what was read is made durable.
    fn settle_files(
        &mut self,
        scanned: &[Scanned],
        torn: &[(u32, u32)],
        orphans: Vec<String>,
        report: &mut OpenReport,
    ) -> Result<(), OpenError> {
        self.manifest.settle(&mut self.device)?;
        for name in &orphans {
            self.device.unlink(name)?;
        }
        if !orphans.is_empty() {
            self.device.sync_dir()?;
        }
        report.orphans_removed = orphans;
        for &(slot, offset) in torn {
            // Physically: what is left of the unfinished end must never be met again.
            let segment = self.segments.expect(slot);
            self.device.truncate(segment.file, u64::from(offset))?;
            report.truncated.push((segment.name.clone(), offset));
        }
        for scanned in scanned.iter().filter(|scanned| scanned.entry.sealed_len.is_none()) {
            // A killed process leaves frames that the medium does not have yet; they are about to be read.
            let file = self.segments.expect(scanned.slot).file;
            Io::new(&mut self.device).sync(file, Cause::Recovery)?;
        }
        Ok(())
    }

    /// Begins a generation and a segment to append to.
    fn begin(&mut self, scanned: &[Scanned]) -> Result<(), OpenError> {
        self.generation += 1;
        let mut edits = vec![Edit::Generation(self.generation)];
        edits.extend(self.void_copies(scanned));
        self.manifest.commit_and_wait(&mut self.device, &edits)?;
        self.choose_active(scanned)?;
        self.balance_memory();
        Ok(())
    }

    /// Copies that were cut short: their ranges are empty, and begin where the log was found to end. Where they were begun
    /// may have been cut off, and will be written to again.
    fn void_copies(&self, scanned: &[Scanned]) -> Vec<Edit> {
        let with_data = scanned.iter().rev().find(|scanned| scanned.report.frames > 0);
        let from = with_data.map_or(Watermark::NONE, |scanned| Watermark {
            sequence: scanned.entry.sequence,
            offset: scanned.report.valid_len,
        });
        let is_cut_short = |entry: &RangeEntry| entry.copy.is_some_and(|copy| !copy.is_whole);
        let listed = self.manifest.state().ranges.iter().filter(|(_, entry)| is_cut_short(entry));
        listed
            .flat_map(|(&range, _)| [Edit::BeginCopy { range, from, base: Version::ZERO }, Edit::CopyWhole { range }])
            .collect()
    }

    /// Without chains everything that was recovered is committed; everything is flushed and synced either way.
    fn finish_ranges(&mut self, report: &mut OpenReport) {
        for range in &self.ranges {
            let committed = if self.options.chained { range.progress.committed } else { range.progress.appended };
            report.ranges.push(RangeReport { range: range.id, committed, recovered: range.progress.appended });
        }
        for at in 0..self.ranges.len() {
            let progress = &mut self.ranges[at].progress;
            progress.flushed = progress.appended;
            progress.synced = progress.appended;
            let (id, appended) = (self.ranges[at].id, self.ranges[at].progress.appended);
            if !self.options.chained {
                self.commit(id, appended);
                self.ranges[at].progress.committed = appended;
            }
        }
    }

    /// Goes on in the newest segment with data unless it is sealed; a segment prepared and unused is the next one.
    fn choose_active(&mut self, scanned: &[Scanned]) -> Result<(), OpenError> {
        let is_open = |scanned: &&Scanned| scanned.entry.sealed_len.is_none();
        let with_data = scanned.iter().rev().find(|scanned| scanned.report.frames > 0);
        let empty = scanned.iter().filter(is_open).rfind(|scanned| {
            scanned.report.frames == 0
                && with_data.is_none_or(|with_data| scanned.entry.sequence > with_data.entry.sequence)
        });
        let active = with_data.filter(is_open).or(empty).map(|scanned| scanned.slot);
        let mut edits = Vec::new();
        for scanned in scanned {
            let is_next = empty.is_some_and(|empty| empty.slot == scanned.slot);
            if Some(scanned.slot) == active || is_next {
                continue;
            }
            let segment = self.segments.expect_mut(scanned.slot);
            segment.sealed = true;
            segment.listed_sealed = true;
            if scanned.entry.sealed_len.is_none() {
                edits.push(Edit::SealSegment { slot: scanned.slot, len: segment.end });
            }
        }
        if !edits.is_empty() {
            self.manifest.commit_and_wait(&mut self.device, &edits)?;
        }
        let next = empty.filter(|empty| Some(empty.slot) != active);
        self.next = match next.and_then(|next| self.segments.remove(next.slot)) {
            Some(segment) => Next::Ready(segment),
            None => Next::None,
        };
        match active {
            Some(slot) => self.go_on_in(slot),
            None => self.begin_first_segment(),
        }
    }

    /// Appends to a segment that has data: the page its last frame ends in is rewritten with the next.
    fn go_on_in(&mut self, slot: u32) -> Result<(), OpenError> {
        self.end_of_log_is_flushed();
        let segment = self.segments.expect(slot);
        let (file, sequence, end) = (segment.file, segment.sequence, segment.end);
        let segment_bytes = u64::from(self.options.segment_bytes);
        match self.device.allocate(file, 0, segment_bytes) {
            Ok(()) => {}
            Err(DeviceError::Full { .. }) => return self.give_up_rest(slot),
            Err(error) => return Err(error.into()),
        }
        let base = end - end % PAGE_BYTES as u32;
        let carried = (end - base) as usize;
        let mut buf = self.pool.take(self.options.chunk_bytes());
        if carried > 0 {
            let page = Io::new(&mut self.device).read(file, u64::from(base), PAGE_BYTES, Cause::Recovery)?;
            buf[..carried].copy_from_slice(&page[..carried]);
        }
        self.window.push(Chunk { slot, sequence, base, len: carried, buf: buf.into() });
        Ok(())
    }

    /// The segment's space was given back with its torn end, and someone took it: it ends where it is. Writes go on in
    /// the next segment, once there is space.
    fn give_up_rest(&mut self, slot: u32) -> Result<(), OpenError> {
        let segment = self.segments.expect_mut(slot);
        segment.sealed = true;
        segment.listed_sealed = true;
        let edit = Edit::SealSegment { slot, len: segment.end };
        self.manifest.commit_and_wait(&mut self.device, &[edit])?;
        self.full = true;
        self.may_have_dead = true;
        Ok(())
    }

    /// What was recovered is on the medium: reads may believe it.
    fn end_of_log_is_flushed(&mut self) {
        let newest = self.segments.iter().max_by_key(|segment| segment.sequence);
        let end = newest.map_or(LogPosition(0), |segment| {
            LogPosition::new(segment.sequence, segment.end, self.options.segment_bytes)
        });
        self.flush.flushed = end;
        self.flush.synced = end;
    }

    fn begin_first_segment(&mut self) -> Result<(), OpenError> {
        self.end_of_log_is_flushed();
        let segment = match self.create_segment() {
            Ok(segment) => segment,
            // A store that exists is read, and takes writes again once there is space.
            Err(DeviceError::Full { .. }) if self.segments.len() > 0 => {
                self.full = true;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut header = vec![0; HEADER_BYTES];
        segment::encode(&self.header_of(&segment), &mut header);
        Io::new(&mut self.device).write_durable(segment.file, 0, &header)?;
        self.device.sync_dir()?;
        let edit = Edit::AddSegment { slot: segment.slot, uuid: segment.uuid, sequence: segment.sequence };
        self.manifest.commit_and_wait(&mut self.device, &[edit])?;
        self.begin_segment(segment, self.options.chunk_bytes());
        Ok(())
    }
}

/// Writes a new store's manifest; a directory with segments but no manifest is damaged, not empty.
fn create<D: Device>(device: &mut D, options: &Options, now: TimeMs) -> Result<ManifestFile, OpenError> {
    let refuse = |detail: &str| OpenError::Manifest { file: manifest::FILE_NAME.to_owned(), detail: detail.to_owned() };
    if options.read_only {
        return Err(refuse("missing, and a read-only opening creates nothing"));
    }
    if device.list()?.iter().any(|name| segment::is_file_name(name)) {
        return Err(refuse("missing, but segments are there"));
    }
    let bytes = options.segment_bytes;
    if !bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
        let expected = "a power of two from 64 KiB to 1 GiB";
        return Err(OpenError::Option { name: "segment_bytes", found: u64::from(bytes), expected });
    }
    let secret = options.secret.or(options.secret_if_new).ok_or(OpenError::SecretMissing)?;
    let identity = Identity { store: store_uuid(&secret, now), format: FORMAT_VERSION, segment_bytes: bytes, secret };
    let state = ManifestState { identity: Some(identity), ..ManifestState::default() };
    ManifestFile::create(device, state)
}

/// Two stores of one cluster share the secret; the time of creation tells them apart.
fn store_uuid(secret: &HashSecret, now: TimeMs) -> StoreUuid {
    let mut uuid = [0; 16];
    for (half, out) in uuid.chunks_exact_mut(8).enumerate() {
        let mut input = *b"fawn-ds store ........ .";
        input[14..22].copy_from_slice(&now.0.to_le_bytes());
        input[23] = half as u8;
        out.copy_from_slice(&KeyHash::of(secret, &input).0.to_le_bytes());
    }
    StoreUuid(uuid)
}

fn open_segment<D: Device>(
    device: &mut D,
    store: StoreUuid,
    slot: u32,
    entry: &SegmentEntry,
) -> Result<Segment, OpenError> {
    let name = segment::file_name(slot, entry.uuid);
    let file = match device.open(&name) {
        Ok(file) => file,
        Err(DeviceError::NotFound { .. }) => return Err(OpenError::SegmentMissing { file: name }),
        Err(error) => return Err(error.into()),
    };
    let header = Io::new(device).read(file, 0, HEADER_BYTES, Cause::Recovery)?;
    let damaged =
        |detail: String| OpenError::Damaged { file: name.clone(), from_bytes: 0, to_bytes: FRAMES_OFFSET, detail };
    let header = segment::decode(&header).map_err(|error| damaged(error.to_string()))?;
    if header.uuid != entry.uuid || header.store != store || header.sequence != entry.sequence {
        return Err(damaged("the file is another segment than the manifest lists".to_owned()));
    }
    Ok(Segment::new(slot, entry.sequence, entry.uuid, file, name))
}

/// Streams one segment through the scanner, several reads ahead.
fn scan_segment<D: Device>(builder: &mut Builder<'_, D>, slot: u32, input: ScanInput) -> Result<ScanReport, OpenError> {
    let file: FileId = builder.engine.segments.expect(slot).file;
    let end = input.sealed_len.unwrap_or(input.segment_bytes).next_multiple_of(PAGE_BYTES as u32);
    let mut scanner = Scanner::new(input);
    let mut reads = VecDeque::new();
    let mut offset = FRAMES_OFFSET;
    loop {
        // The builder reads too, but only between pieces: what is in flight here is waited for first.
        while reads.len() < SCAN_READS_IN_FLIGHT && offset < end {
            let len = (end - offset).min(SCAN_READ_BYTES as u32);
            reads.push_back((offset, len));
            offset += len;
        }
        let batch: Vec<_> = reads.drain(..).collect();
        if batch.is_empty() {
            break;
        }
        let mut bufs = Vec::new();
        {
            let mut io = Io::new(&mut builder.engine.device);
            let tokens: Vec<_> = batch
                .iter()
                .map(|&(at, len)| io.start_read(file, u64::from(at), len as usize, Cause::Recovery))
                .collect();
            for token in tokens {
                bufs.extend(io.finish(token)?);
            }
        }
        for buf in &bufs {
            let (slot, builder) = (slot, &mut *builder);
            scanner.push(buf, &mut |offset: u32, stored: &crate::format::record::Stored<'_>| {
                builder.record(slot, offset, stored);
            });
        }
        builder.resolve_if_many()?;
    }
    Ok(scanner.finish())
}

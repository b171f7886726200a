//! Open: reads the manifest and the newest checkpoint, scans the segments behind it, validates their ends and builds the engine.
//!
//! `read` and `index_build` change nothing on disk, `validate` refuses corruption, and only then `begin` writes.
mod begin;
pub(crate) mod checkpoint;
pub(crate) mod confirm;
mod conflicts;
mod create;
mod decode;
pub(crate) mod deferred;
mod image_decode;
mod index_build;
pub(crate) mod io;
pub(crate) mod left_tail;
mod prefetching;
mod progress;
mod read;
mod report;
pub(crate) mod salvage;
pub(crate) mod sequential;
pub(crate) mod tail;
mod validate;
mod work_queue;

pub use progress::OpenProgress;
pub use report::{Damage, OpenReport, RangeReport};
pub use salvage::{SalvageReport, open_for_salvage};

use crate::engine::{ApartRetry, Checkpoints, Cleaner, Drops, Engine, Scrubber, SortedTier, VerifyReads};
use crate::error::{EngineError, OpenError};
use crate::format::RangeNumber;
use crate::format::manifest::{Identity, ManifestState, SegmentEntry};
use crate::format::page_sums::PageSums;
use crate::format::scan::{ScanReport, SyncedLog};
use crate::format::segment::{PerStream, StreamKind};
use crate::log::segments::SegmentTable;
use crate::log::stream::Stream;
use crate::log::window::AppendBufferPool;
use crate::manifest_file::ManifestFile;
use crate::options::Options;
use crate::overlay::{IdentPoint, Overlay};
use crate::range::RangeState;
use crate::record_cache::{CacheSplit, RecordCache};
use crate::stats::EngineStats;
use fawn_flash::{Device, PageCache};
use fawn_types::{ExpiryClock, MonoMs, Now};
use left_tail::{SegmentTail, TailFrames};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;

/// Drains operations that an earlier engine left in flight on the device: their completions would be taken for this
/// one's.
fn abandon_operations<D: Device>(device: &mut D) {
    let mut abandoned = VecDeque::new();
    while device.in_flight() > 0 {
        device.wait(&mut abandoned);
        abandoned.clear();
    }
}

struct Scanned {
    entry: SegmentEntry,
    slot: u32,
    report: ScanReport,
    /// Of a segment that takes more frames.
    pages: PageSums,
    tail: Option<Arc<SegmentTail>>,
    /// Offset of the first byte that only the tail file has; `u32::MAX`: the segment has all.
    tail_from: u32,
    /// Its damage does not prevent the opening: the lost records would only hide others, and none of these was read.
    is_passed: bool,
}

/// The evidence of how far each stream was synced.
fn synced_logs(state: &ManifestState, scanned: &[Scanned]) -> PerStream<SyncedLog> {
    let mut known = PerStream::from_fn(|kind| SyncedLog::new(state.ends_of_log[kind]));
    scanned.iter().for_each(|scanned| known[scanned.entry.stream].add(&scanned.report));
    known
}

impl<D: Device> Engine<D> {
    /// Opens the store in the device's directory, or creates one. Only this call blocks on the device.
    ///
    /// # Errors
    /// [`OpenError`] reports the corruption and how to proceed; a store is never replaced by an empty one.
    pub fn open(mut device: D, options: Options, now: Now) -> Result<(Self, OpenReport), OpenError> {
        device.lock()?;
        abandon_operations(&mut device);
        let mut report = OpenReport::default();
        let manifest = match ManifestFile::open(&mut device)? {
            Some(manifest) => manifest,
            None => {
                report.created = true;
                create::create(&mut device, &options, now)?
            }
        };
        let Some(identity) = manifest.state().identity else { unreachable!("a manifest has an identity") };
        if options.secret.is_some_and(|secret| secret != identity.secret) {
            return Err(OpenError::SecretDiffers);
        }
        let clock = manifest.state().clock;
        let clock = clock.map_or(ExpiryClock::first(now), |(time, mono)| ExpiryClock::resume(time, mono, now));
        let mut engine = Self::bare(device, options, identity, manifest, (now, clock));
        // Nothing on disk changes before validation, so a refused open leaves the evidence as it was.
        engine.left_tail = TailFrames::read(&mut engine.device, engine.manifest.state())?;
        let orphans = engine.orphans(&mut report)?;
        engine.open_runs()?;
        let (scanned, strays) = engine.scan_all(&mut report)?;
        engine.check_generation(&scanned, &mut report)?;
        engine.check_strays(&strays, &mut report)?;
        engine.confirm_damage(&scanned)?;
        let torn = engine.validate_ends(&scanned, &mut report)?;
        engine.confirm_ends(&scanned)?;
        if !engine.options.read_only {
            engine.settle_files(&scanned, &torn, orphans, &mut report)?;
        }
        engine.missing = report.damage.first().map(|damage| EngineError::Corrupt {
            file: damage.file.clone(),
            offset_bytes: damage.from_bytes,
            detail: "part of the log is lost: a key that is not in what is left may have been there".to_owned(),
        });
        engine.finish_ranges(&mut report);
        report.is_end_recorded = engine.is_end_recorded(&scanned);
        if engine.options.read_only {
            StreamKind::ALL.into_iter().for_each(|kind| engine.end_of_log_is_flushed(kind));
            engine.hold_left_tail(&scanned)?;
            engine.renumber_unfinished();
        } else {
            // The next opening scans the active segments and the sorted ones before the checkpoint again, whether there is
            // another checkpoint or not.
            let from = engine.checkpoints.last.from;
            let behind =
                || scanned.iter().filter(|scanned| scanned.entry.sequence >= from[scanned.entry.stream].sequence);
            let complete = behind().filter(|scanned| scanned.entry.seal.is_some());
            engine.checkpoints.last.log_bytes = complete.map(|scanned| u64::from(scanned.report.valid_len)).sum();
            engine.checkpoints.last.records = behind().map(|scanned| scanned.report.records).sum();
            engine.begin(&scanned, &mut report)?;
        }
        Ok((engine, report))
    }

    /// An engine without ranges' contents and segments.
    fn bare(
        device: D,
        options: Options,
        identity: Identity,
        manifest: ManifestFile,
        (now, clock): (Now, ExpiryClock),
    ) -> Self {
        let options = options.of_store(&identity);
        let engine = Self {
            generation: manifest.state().generation,
            last_sequence: manifest.state().last_sequence,
            cache: PageCache::new((options.memory_bytes / 2) as usize),
            records: RecordCache::new(0),
            split: CacheSplit::default(),
            device,
            secret: identity.secret,
            ident_point: IdentPoint::of(&identity.secret),
            store: identity.store,
            manifest,
            certify_at: MonoMs(0),
            edits_retry_at: MonoMs(0),
            ranges: Vec::new(),
            range_ids: Vec::new(),
            segments: SegmentTable::new(identity.segment_bytes, identity.pointers),
            drops: Drops::default(),
            has_unlisted: true,
            has_unlisted_clear: false,
            cleaner: Cleaner::default(),
            sorted: SortedTier::default(),
            scrubber: Scrubber::default(),
            checkpoints: Checkpoints::default(),
            streams: PerStream::from_fn(|_| Stream::new(now.mono)),
            tail: None,
            left_tail: TailFrames::default(),
            pool: AppendBufferPool::new(options.spare_bytes_max()),
            flush_everything: false,
            overlay: Overlay::default(),
            verify_queue: VecDeque::new(),
            verify_reads: VerifyReads::default(),
            verified_at: MonoMs(0),
            apart: ApartRetry::default(),
            failed_reads: Vec::new(),
            failed_others: None,
            pending_records: 0,
            read_bytes_in_flight: 0,
            scratch: Vec::new(),
            resume: None,
            in_flight: Slab::new(),
            writes_in_flight: VecDeque::new(),
            stale: VecDeque::new(),
            completions: VecDeque::new(),
            missing: None,
            poisoned: None,
            poison_reported: false,
            full: false,
            space_back: false,
            device_segments: u64::MAX,
            retry_at: MonoMs(0),
            space_refusals: 0,
            held_events: Vec::new(),
            polls: 0,
            completed: 0,
            progressed: false,
            now,
            clock,
            persist_clock_at: MonoMs(0),
            stats: EngineStats::default(),
            retained_max: options.retained_records_max,
            retained_share: 0,
            marks_retry_at: None,
            needed_max: 0,
            options,
        };
        engine.with_ranges()
    }

    /// Gives the manifest's ranges their places, and their shares of what is retained.
    fn with_ranges(mut self) -> Self {
        let ranges = &self.manifest.state().ranges;
        self.retained_share = self.options.retained_share(ranges.len());
        self.needed_max = self.options.needed_max(ranges.len());
        for (&id, entry) in ranges {
            let number = entry.beginning.map_or(RangeNumber::default(), |beginning| beginning.number);
            self.ranges.push(RangeState::new(Some(id), number, entry.keys, self.options.index));
            self.range_ids.push(Some(id));
        }
        self.place_ancestors();
        self
    }

    /// Everything that was recovered is flushed and synced.
    fn finish_ranges(&mut self, report: &mut OpenReport) {
        for range in &mut self.ranges {
            let progress = &mut range.progress;
            progress.flushed = progress.appended;
            progress.synced = progress.appended;
            let (committed, recovered) = (progress.committed, progress.appended);
            report.ranges.extend(range.id.map(|range| RangeReport { range, committed, recovered }));
        }
    }
}

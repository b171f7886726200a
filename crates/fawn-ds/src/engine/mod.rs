//! Owns the engine: one shard's store as a state machine over a device; its parts, its small getters, its events.
//!
//! Call order of an iteration: any number of [`Engine::append`] and [`Engine::lookup`], then [`Engine::submit`] once,
//! then [`Engine::poll`], then [`Engine::commit`] by what [`Engine::progress`] says. Time comes in as an argument.
mod append;
mod blob;
mod chained;
mod clock;
mod commit;
mod drop_rule;
mod drops;
mod end_of_log;
mod fast_path;
mod fetch;
mod flush;
mod lookup;
mod marks;
mod poll;
mod prefetch;
mod replay;
mod scan;
mod segments;
mod sole_epoch;
mod transfer;
mod transfer_scan;
mod verify;

pub use blob::BlobTicket;
pub use drop_rule::KeepReason;
pub use lookup::{Lookup, LookupPlan, View};
pub use prefetch::PREFETCH_KEYS_MAX;
pub use replay::Replay;
pub use scan::{DamagedRecord, Scan, ScanItem, ScanStep};
pub use transfer::TransferredResults;
pub use transfer_scan::{TransferScan, TransferStep};
pub(crate) use verify::ApartRetry;

use crate::error::EngineError;
use crate::format::StoreUuid;
use crate::log::LogPosition;
use crate::log::flush::FlushState;
use crate::log::segments::{Segment, SegmentTable};
use crate::log::window::{AppendBufferPool, Window};
use crate::manifest_file::ManifestFile;
use crate::options::Options;
use crate::overlay::{KeyName, Overlay};
use crate::range::{RangeProgress, RangeState};
use crate::stats::{EngineStats, LogReport, MemoryReport};
pub(crate) use drops::Drops;
use fawn_flash::PageCache;
use fawn_flash::{Completion, Device, DeviceError, Token};
use fawn_types::{ExpiryClock, HashSecret, KeyHash, KeyRange, MonoMs, Now, RangeId};
use fetch::{FetchResume, ReadSpan, Rejected};
pub(crate) use segments::NextSegment;
use slab::Slab;
use std::collections::VecDeque;

/// What a poll reports.
#[derive(Debug)]
pub enum Event {
    /// A plan's read is done: resume it.
    Lookup {
        /// The plan.
        plan: LookupPlan,
        /// What the caller named it.
        user: u64,
    },
    /// A watermark of some range moved.
    Progress,
    /// A write or sync failed: no write is taken any more, reads go on.
    Poisoned,
    /// Space came back after [`EngineError::StoreFull`].
    SpaceBack,
}

/// Three places of the append stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// End of what was appended.
    pub appended: LogPosition,
    /// End of what the device has.
    pub flushed: LogPosition,
    /// End of what survives power loss.
    pub synced: LogPosition,
}

/// What a token stands for.
#[derive(Debug)]
pub(crate) enum InFlight {
    Write { number: u64 },
    Sync,
    SegmentHeader,
    Manifest,
    Lookup { plan: Box<LookupPlan>, user: u64 },
    Verify { range: usize, name: KeyName, span: ReadSpan, rejected: Rejected },
}

impl InFlight {
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::Lookup { .. } | Self::Verify { .. })
    }
}

/// One shard's store.
pub struct Engine<D: Device> {
    pub(crate) device: D,
    pub(crate) options: Options,
    /// Records per range kept for retransmission: at most what the options say.
    pub(crate) retained_max: usize,
    /// As many as each range may keep within the budget; copied results count with them.
    pub(crate) retained_share: usize,
    pub(crate) secret: HashSecret,
    pub(crate) ident_secret: HashSecret,
    pub(crate) store: StoreUuid,
    pub(crate) generation: u32,
    pub(crate) manifest: ManifestFile,
    /// When the manifest's last commit is certified, if no other follows by then.
    pub(crate) certify_at: MonoMs,
    pub(crate) ranges: Vec<RangeState>,
    /// Ids of `ranges`, apart so that finding one touches one cache line.
    pub(crate) range_ids: Vec<RangeId>,
    pub(crate) segments: SegmentTable,
    pub(crate) next: NextSegment,
    pub(crate) drops: Drops,
    pub(crate) last_sequence: u64,
    /// A sealed segment is not yet listed as such.
    pub(crate) has_unlisted: bool,
    pub(crate) window: Window,
    pub(crate) pool: AppendBufferPool,
    pub(crate) flush: FlushState,
    /// Synced end of the log when that was last recorded in the manifest.
    pub(crate) recorded_end: LogPosition,
    /// Closing: syncs no longer wait for their time.
    pub(crate) flush_everything: bool,
    pub(crate) overlay: Overlay,
    pub(crate) verify_queue: VecDeque<(usize, KeyName)>,
    pub(crate) verify_in_flight: usize,
    pub(crate) apart: ApartRetry,
    /// Records of all ranges between append and commit.
    pub(crate) pending_records: usize,
    pub(crate) read_bytes_in_flight: usize,
    pub(crate) cache: PageCache,
    pub(crate) scratch: Vec<u8>,
    pub(crate) resume: Option<FetchResume>,
    pub(crate) in_flight: Slab<InFlight>,
    /// Writes and syncs in flight and the times of their submission, oldest first.
    pub(crate) writes_in_flight: VecDeque<(Token, MonoMs)>,
    /// Operations whose segment was dropped before they were submitted.
    pub(crate) stale: VecDeque<InFlight>,
    pub(crate) completions: VecDeque<Completion>,
    /// Part of the log is corrupt and was left out by a read-only opening: then nobody knows what is absent.
    pub(crate) missing: Option<EngineError>,
    pub(crate) poisoned: Option<String>,
    pub(crate) poison_reported: bool,
    pub(crate) full: bool,
    pub(crate) space_back: bool,
    /// When a full device is asked for space again.
    pub(crate) retry_at: MonoMs,
    /// Events that came up while a caller waited for something else.
    pub(crate) held_events: Vec<Event>,
    pub(crate) polls: u32,
    pub(crate) progressed: bool,
    pub(crate) now: Now,
    /// Expiry time: what was expired by it may be forgotten.
    pub(crate) clock: ExpiryClock,
    /// When a full device is asked again for the space of the expiry time's own commit.
    pub(crate) persist_clock_at: MonoMs,
    pub(crate) stats: EngineStats,
}

impl<D: Device> Engine<D> {
    /// The key hash's secret.
    pub fn secret(&self) -> &HashSecret {
        &self.secret
    }

    /// The opening's number, higher than that of every earlier one.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The options in force.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The device, for its statistics.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The ranges and their boundaries.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeId, KeyRange)> + '_ {
        self.ranges.iter().map(|range| (range.id, range.keys))
    }

    /// Adds a range; adding it again with the same boundaries changes nothing. Durable before the first record of it.
    ///
    /// # Errors
    /// [`EngineError::RangeExists`], [`EngineError::Poisoned`], or the device's refusal.
    pub fn add_range(&mut self, id: RangeId, keys: KeyRange) -> Result<(), EngineError> {
        if let Ok(at) = self.range_at(id) {
            let same = self.ranges[at].keys == keys;
            return if same { Ok(()) } else { Err(EngineError::RangeExists { range: id }) };
        }
        self.check_writable()?;
        self.list_range(id, keys)?;
        self.ranges.push(RangeState::new(id, keys, self.options.index));
        self.range_ids.push(id);
        self.bound_retained();
        Ok(())
    }

    /// How far a range's writes have come; all zero for one that is not here.
    pub fn progress(&self, range: RangeId) -> RangeProgress {
        self.range_at(range).map_or_else(|_| RangeProgress::default(), |at| self.ranges[at].progress)
    }

    /// The watermarks of the whole stream: what a rollback or mark needs to be known durable.
    pub fn watermarks(&self) -> Watermarks {
        let appended = self.appended_end();
        Watermarks { appended, flushed: self.flush.flushed, synced: self.flush.synced }
    }

    /// Keys of a range that are committed; expired ones not met yet included. Exact when no verification waits
    /// ([`LogReport::verifications_queued`]): those end by themselves with the polls or steps that follow. Until then a
    /// committed record whose fragment matches is taken for its key's next version, so that the count is behind by at
    /// most one for each that waits, and never ahead.
    pub fn len(&self, range: RangeId) -> u64 {
        let Ok(at) = self.range_at(range) else { return 0 };
        let deleted = self.overlay.unconfirmed(at, 0, None).filter(|written| !written.is_put).count();
        u64::from(self.ranges[at].index.len()).saturating_sub(deleted as u64)
    }

    /// Whether a range holds no key.
    pub fn is_empty(&self, range: RangeId) -> bool {
        self.len(range) == 0
    }

    /// Counters since opening.
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// What the log holds now.
    pub fn log_report(&self) -> LogReport {
        let segments_visited = self.segments.visited();
        LogReport {
            segments_visited,
            segments: self.segments.len() as u64,
            segment_bytes: self.segments.len() as u64 * u64::from(self.options.segment_bytes),
            live_bytes: self.segments.iter().map(Segment::live_bytes).sum(),
            overlay_keys: self.overlay.len() as u64,
            verifications_queued: (self.verify_queue.len() + self.verify_in_flight) as u64,
            keys_apart: self.overlay.apart() as u64,
        }
    }

    /// Where the memory is.
    pub fn memory(&self) -> MemoryReport {
        let pending: usize = self.ranges.iter().map(RangeState::queue_bytes).sum();
        let records: usize = self.ranges.iter().map(|range| range.pending.len()).sum();
        debug_assert_eq!(records, self.pending_records, "every pending record is counted once");
        MemoryReport {
            budget_bytes: self.options.memory_bytes,
            index_bytes: self.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum(),
            overlay_bytes: (self.overlay.resident_bytes() + pending) as u64,
            buffer_bytes: (self.window.capacity_bytes() + self.pool.resident_bytes() + self.read_bytes_in_flight)
                as u64,
            cache_bytes: self.cache.resident_bytes() as u64,
        }
    }

    /// The first failure that stopped writes, if any.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// Whether the last attempt to get space failed.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Reads, writes and syncs not yet reaped.
    pub fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    /// When the oldest write or sync in flight was submitted: its age shows a disk that hangs without an error.
    pub fn oldest_write(&self) -> Option<MonoMs> {
        self.writes_in_flight.front().map(|(_, submitted_at)| *submitted_at)
    }

    /// A token for a write or sync that is submitted now.
    pub(crate) fn track_write(&mut self, write: InFlight) -> Token {
        let token = Token(self.in_flight.insert(write) as u64);
        self.writes_in_flight.push_back((token, self.now.mono));
        token
    }

    /// The operation of a token that came back.
    pub(crate) fn untrack_write(&mut self, token: Token) -> InFlight {
        let in_flight = self.in_flight.remove(token.0 as usize);
        if !matches!(in_flight, InFlight::Lookup { .. } | InFlight::Verify { .. }) {
            self.writes_in_flight.retain(|(written, _)| *written != token);
        }
        in_flight
    }

    /// Gives the cache what index, overlay and buffers leave of the budget.
    pub(crate) fn balance_memory(&mut self) {
        let report = self.memory();
        let used = report.total_bytes() - report.cache_bytes;
        // A sixteenth always stays, so that lookups find the page that they have just read.
        let cache = self.options.memory_bytes.saturating_sub(used).max(self.options.memory_bytes / 16);
        self.cache.set_budget_bytes(cache as usize);
    }

    pub(crate) fn range_at(&self, range: RangeId) -> Result<usize, EngineError> {
        self.range_ids.iter().position(|&id| id == range).ok_or(EngineError::UnknownRange { range })
    }

    pub(crate) fn name_of(&self, hash: u64, key: &[u8]) -> KeyName {
        KeyName { hash, ident: KeyHash::of(&self.ident_secret, key).0 }
    }

    pub(crate) fn check_writable(&self) -> Result<(), EngineError> {
        match &self.poisoned {
            Some(first) => Err(EngineError::Poisoned { first: first.clone() }),
            None if self.options.read_only => {
                Err(EngineError::Poisoned { first: "it was opened read-only".to_owned() })
            }
            None => Ok(()),
        }
    }

    /// A failed write or sync: what reached the disk is unknown, so nothing is written any more.
    pub(crate) fn poison(&mut self, error: &DeviceError) -> EngineError {
        let first = self.poisoned.get_or_insert_with(|| error.to_string()).clone();
        EngineError::Poisoned { first }
    }

    /// End of the append stream.
    pub(crate) fn appended_end(&self) -> LogPosition {
        self.window.active().map_or(self.flush.flushed, |chunk| {
            LogPosition::new(chunk.sequence, chunk.end(), self.options.segment_bytes)
        })
    }
}

impl<D: Device> core::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device.name())
            .field("generation", &self.generation)
            .field("ranges", &self.range_ids)
            .field("segments", &self.segments.len())
            .finish_non_exhaustive()
    }
}

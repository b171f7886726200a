//! The storage engine of one shard: a state machine over a device; this file has its state, getters and events.
//!
//! An iteration calls any number of [`Engine::append`] and [`Engine::lookup`], then [`Engine::submit`] once, then
//! [`Engine::poll`], then [`Engine::commit`] as far as [`Engine::progress`] allows. The caller passes the time.
mod append;
mod blob;
mod chained;
mod checkpoint;
mod clean;
mod clears;
mod clock;
mod commit;
mod drop_rule;
mod drops;
mod dump;
mod end_of_log;
mod fast_path;
mod fetch;
mod flush;
mod lineage;
mod lookup;
mod marks;
mod poll;
mod prefetch;
mod ranges;
mod record_reads;
mod replay;
mod result_copies;
mod scan;
mod scan_position;
mod scrub;
mod segments;
mod sole_epoch;
mod sorted;
mod transfer;
mod transfer_scan;
mod upkeep;
mod verify;
mod verify_reads;

pub use blob::BlobTicket;
pub use drop_rule::KeepReason;
pub use dump::{DumpError, DumpReport, LostPart};
pub use lookup::{Lookup, LookupPlan, ReadPlace, View};
pub use prefetch::PREFETCH_KEYS_MAX;
pub use replay::Replay;
pub use result_copies::OpenResult;
pub use scan::{CorruptRecord, Scan, ScanItem, ScanStep};
pub use scan_position::TransferPlace;
pub use scrub::ScrubFinding;
pub use transfer::TransferredResults;
pub use transfer_scan::{TransferScan, TransferStep};
pub(crate) use verify::ApartRetry;
pub(crate) use verify_reads::VerifyReads;

use crate::error::EngineError;
use crate::format::StoreUuid;
use crate::format::record::RecordKind;
use crate::format::segment::{PerStream, StreamKind};
use crate::log::LogPosition;
use crate::log::segments::{Segment, SegmentTable};
use crate::log::stream::Stream;
use crate::log::tail::TailFile;
use crate::log::window::AppendBufferPool;
use crate::manifest_file::ManifestFile;
use crate::options::Options;
use crate::overlay::{IdentPoint, KeyName, Overlay};
use crate::range::{RangeProgress, RangeState};
use crate::record_cache::{CacheSplit, RecordCache};
use crate::recovery::left_tail::TailFrames;
use crate::sorted::ReadRange;
use crate::stats::{EngineStats, LogReport, MemoryReport};
pub(crate) use append::Reserve;
pub(crate) use checkpoint::Checkpoints;
pub(crate) use clean::Cleaner;
pub(crate) use drops::Drops;
use fawn_flash::PageCache;
use fawn_flash::{Completion, Device, DeviceError, Token};
use fawn_types::{ExpiryClock, HashSecret, MonoMs, Now, RangeId};
use fetch::{FetchResume, ReadSpan, Rejected};
#[cfg(test)]
pub(crate) use lineage::HEIRS_COMPARED;
pub(crate) use lineage::heir_with_key;
use scan::{FailedOthers, FailedRead};
use scrub::QueuedFile;
pub(crate) use scrub::Scrubber;
use slab::Slab;
use sorted::SortJobId;
pub(crate) use sorted::SortedTier;
use std::collections::VecDeque;

/// Event reported by [`Engine::poll`].
#[derive(Debug)]
pub enum Event {
    /// A plan's read is complete: pass the plan to [`Engine::resume`] or [`Engine::absorb`].
    Lookup {
        /// The plan.
        plan: LookupPlan,
        /// The caller's tag, from [`Engine::read`].
        user: u64,
    },
    /// A watermark of some range advanced.
    Progress,
    /// A write or sync failed: all further writes are refused, reads continue.
    Poisoned,
    /// There is space again after [`EngineError::StoreFull`].
    SpaceBack,
}

/// The log's three end positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// End of the appended records.
    pub appended: LogPosition,
    /// End of the bytes written to the device.
    pub flushed: LogPosition,
    /// End of the bytes that survive a power loss.
    pub synced: LogPosition,
}

/// The operation of an I/O token.
#[derive(Debug)]
pub(crate) enum InFlight {
    Write { stream: StreamKind, number: u64 },
    Sync { stream: StreamKind },
    SegmentHeader { stream: StreamKind },
    SegmentName { stream: StreamKind },
    Manifest,
    ManifestName,
    Lookup { plan: LookupPlan, user: u64 },
    Verify { id: u64, span: ReadSpan, rejected: Rejected },
    Clean { slot: u32, from: u32, len: usize },
    Scrub { queued: QueuedFile, len: usize },
    Checkpoint,
    CheckpointSync,
    CheckpointName,
    SortRead { job: SortJobId, run: u64, source: usize, range: ReadRange },
    SortWrite,
}

impl InFlight {
    pub(crate) const fn is_read(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. } | Self::Verify { .. } | Self::Clean { .. } | Self::Scrub { .. } | Self::SortRead { .. }
        )
    }

    /// Whether it writes or syncs the log or the manifest.
    const fn is_of_log(&self) -> bool {
        let is_of_checkpoint = matches!(self, Self::Checkpoint | Self::CheckpointSync | Self::CheckpointName);
        !self.is_read() && !is_of_checkpoint && !matches!(self, Self::SortWrite)
    }
}

/// One shard's store.
pub struct Engine<D: Device> {
    pub(crate) device: D,
    pub(crate) options: Options,
    /// Records retained per range for retransmission, within the option's bound.
    pub(crate) retained_max: usize,
    /// Each range's share of the retention budget, records.
    pub(crate) retained_share: usize,
    /// A mark found no space: time by which another attempt is due.
    pub(crate) marks_retry_at: Option<MonoMs>,
    /// Maximum number of transferred results, or of needed records, that each range keeps until they are copied.
    pub(crate) needed_max: usize,
    pub(crate) secret: HashSecret,
    pub(crate) ident_point: IdentPoint,
    pub(crate) store: StoreUuid,
    pub(crate) generation: u32,
    pub(crate) manifest: ManifestFile,
    /// Time to certify the manifest's last commit, unless another commit follows first.
    pub(crate) certify_at: MonoMs,
    /// Time before which listings of clears that found no space in the manifest are not tried again.
    pub(crate) edits_retry_at: MonoMs,
    /// By place; a vacant place has an empty range.
    pub(crate) ranges: Vec<RangeState>,
    /// Ids of `ranges`, separate so that a search touches one cache line.
    pub(crate) range_ids: Vec<Option<RangeId>>,
    pub(crate) segments: SegmentTable,
    pub(crate) drops: Drops,
    pub(crate) last_sequence: u64,
    /// A sealed segment is not yet listed as sealed.
    pub(crate) has_unlisted: bool,
    /// A committed clear of a range is not listed in the manifest yet.
    pub(crate) has_unlisted_clear: bool,
    pub(crate) cleaner: Cleaner,
    pub(crate) sorted: SortedTier,
    pub(crate) scrubber: Scrubber,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) streams: PerStream<Stream>,
    /// The tail file in use: in `everysec` durability, if the device could map one.
    pub(crate) tail: Option<TailFile>,
    /// Frames that an earlier process left in it: for scans, and for lookups of a store that is only read.
    pub(crate) left_tail: TailFrames,
    pub(crate) pool: AppendBufferPool,
    /// Syncs at once, in every durability mode: during a close, or for a chain's handshake.
    pub(crate) flush_everything: bool,
    pub(crate) overlay: Overlay,
    pub(crate) verify_queue: VecDeque<(usize, KeyName)>,
    pub(crate) verify_reads: VerifyReads,
    /// Time of the last progress: a key was settled, or was queued while no other was.
    pub(crate) verified_at: MonoMs,
    pub(crate) apart: ApartRetry,
    pub(crate) failed_reads: Vec<FailedRead>,
    pub(crate) failed_others: Option<FailedOthers>,
    /// Records of all ranges between append and commit.
    pub(crate) pending_records: usize,
    pub(crate) read_bytes_in_flight: usize,
    pub(crate) cache: PageCache,
    pub(crate) records: RecordCache,
    pub(crate) split: CacheSplit,
    pub(crate) scratch: Vec<u8>,
    pub(crate) resume: Option<FetchResume>,
    pub(crate) in_flight: Slab<InFlight>,
    /// Writes and syncs in flight with their submission times, oldest first.
    pub(crate) writes_in_flight: VecDeque<(Token, MonoMs)>,
    /// Reads whose segment was dropped before submission.
    pub(crate) stale: VecDeque<InFlight>,
    pub(crate) completions: VecDeque<Completion>,
    /// A read-only open skipped a corrupt part of the log: an absent key cannot be distinguished from a lost one.
    pub(crate) missing: Option<EngineError>,
    pub(crate) poisoned: Option<String>,
    pub(crate) poison_reported: bool,
    pub(crate) full: bool,
    pub(crate) space_back: bool,
    /// Segments that the device has space for, those of the store included.
    pub(crate) device_segments: u64,
    /// Time of the next allocation attempt on a full device.
    pub(crate) retry_at: MonoMs,
    /// Attempts in a row for which the device refused space that it reported as free.
    pub(crate) space_refusals: u32,
    /// Events of blocking calls, reported by the next poll.
    pub(crate) held_events: Vec<Event>,
    pub(crate) polls: u32,
    /// Completed reads, writes and syncs.
    pub(crate) completed: u64,
    pub(crate) progressed: bool,
    pub(crate) now: Now,
    /// Expiry clock: records expired by it may be removed.
    pub(crate) clock: ExpiryClock,
    /// Time of the next attempt to commit the expiry time on a full device.
    pub(crate) persist_clock_at: MonoMs,
    pub(crate) stats: EngineStats,
}

impl<D: Device> Engine<D> {
    /// The secret of the key hash.
    pub fn secret(&self) -> &HashSecret {
        &self.secret
    }

    /// The number of this open, higher than that of every earlier one.
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

    /// The watermarks of a range's versions; all zero for an unknown range.
    pub fn progress(&self, range: RangeId) -> RangeProgress {
        self.range_at(range).map_or_else(|_| RangeProgress::default(), |at| self.ranges[at].progress)
    }

    /// The watermarks of the foreground; rollbacks and marks have no version and are durable by position.
    pub fn watermarks(&self) -> Watermarks {
        let appended = self.appended_end();
        let flush = &self.streams[StreamKind::Foreground].flush;
        Watermarks { appended, flushed: flush.flushed, synced: flush.synced }
    }

    /// Whether something has progressed since the last poll: the next one reports it, without any completion.
    pub fn has_progress(&self) -> bool {
        self.progressed
    }

    /// Whether the next poll has something to report or to continue without any completion: events of blocking calls, and
    /// reads that were not submitted because their segment or run is gone.
    pub fn has_events(&self) -> bool {
        !self.held_events.is_empty() || !self.stale.is_empty()
    }

    /// Committed keys of a range, including expired keys not removed yet.
    ///
    /// Exact while no verification is queued ([`LogReport::verifications_queued`]); later polls and steps drain the
    /// queue. Until then a committed record with a matching fragment counts as a new version of an existing key. The
    /// count is too low by at most one per queued verification, and never too high. After a split or merge it is an
    /// estimate until [`Engine::is_len_exact`], and always in a store that has sorted.
    pub fn len(&self, range: RangeId) -> u64 {
        let Ok(at) = self.range_at(range) else { return 0 };
        let keys = u64::from(self.ranges[at].index.len()) + self.inherited_keys(at) + self.keys_in_runs(at);
        keys.saturating_sub(self.overlay.unconfirmed_deletes(at))
    }

    /// Whether a range holds no key.
    pub fn is_empty(&self, range: RangeId) -> bool {
        self.len(range) == 0
    }

    /// Counters since the open.
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Current contents of the log.
    pub fn log_report(&self) -> LogReport {
        let segments_visited = self.segments.visited();
        LogReport {
            segments_visited,
            cleaning_debt_segments: self.cleaner.debt_segments(),
            segments: self.segments.len() as u64,
            segment_bytes: self.segments.len() as u64 * u64::from(self.options.segment_bytes),
            live_bytes: self.segments.iter().map(Segment::live_bytes).sum(),
            runs: self.runs() as u64,
            run_bytes: self.sorted.file_bytes(),
            overlay_keys: (self.overlay.len() + self.overlay.deferred()) as u64,
            verifications_queued: (self.verify_queue.len() + self.verify_reads.len() + self.overlay.deferred()) as u64,
            keys_apart: self.overlay.apart() as u64,
        }
    }

    /// Overwritten keys that the opening left to be confirmed, and nothing asked for since.
    pub fn verifications_deferred(&self) -> usize {
        self.overlay.deferred()
    }

    /// Memory use by purpose.
    pub fn memory(&self) -> MemoryReport {
        let pending: usize = self.ranges.iter().map(RangeState::queue_bytes).sum();
        let records: usize = self.ranges.iter().map(|range| range.pending.len()).sum();
        let verify_bytes = self.verify_queue.capacity() * size_of::<(usize, KeyName)>();
        let window_bytes: usize = self.streams.iter().map(|stream| stream.window.capacity_bytes()).sum();
        debug_assert_eq!(records, self.pending_records, "every pending record is counted once");
        MemoryReport {
            budget_bytes: self.options.memory_bytes,
            index_bytes: self.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum::<u64>()
                + self.sorted.runs_bytes() as u64,
            overlay_bytes: (self.overlay.resident_bytes() + pending + verify_bytes) as u64,
            buffer_bytes: (window_bytes + self.pool.resident_bytes() + self.read_bytes_in_flight) as u64
                + (self.checkpoints.resident_bytes() + self.scrubber.resident_bytes() + self.sorted.buffer_bytes())
                    as u64,
            cache_bytes: self.cache.resident_bytes() as u64,
            record_cache_bytes: self.records.resident_bytes() as u64,
        }
    }

    /// The first failure that stopped writes, if any.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// Whether the last attempt to allocate space failed.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Reads, writes and syncs in flight.
    pub fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    /// Submission time of the oldest write or sync in flight; its age reveals a disk that hangs without an error.
    pub fn oldest_write(&self) -> Option<MonoMs> {
        self.writes_in_flight.front().map(|(_, submitted_at)| *submitted_at)
    }

    /// Age of that write or sync at the last poll, ms; 0 without one. A process that was paused finds its writes completed.
    pub fn oldest_write_ms(&self) -> u64 {
        self.oldest_write().map_or(0, |submitted_at| self.now.mono.ms_since(submitted_at))
    }

    /// Registers a write or sync that is submitted now.
    pub(crate) fn track_write(&mut self, write: InFlight) -> Token {
        let token = Token(self.in_flight.insert(write) as u64);
        self.writes_in_flight.push_back((token, self.now.mono));
        token
    }

    /// Removes the operation of a completed token.
    pub(crate) fn untrack_write(&mut self, token: Token) -> InFlight {
        let in_flight = self.in_flight.remove(token.0 as usize);
        if !in_flight.is_read() {
            self.writes_in_flight.retain(|(written, _)| *written != token);
        }
        in_flight
    }

    pub(crate) fn range_at(&self, range: RangeId) -> Result<usize, EngineError> {
        self.range_ids.iter().position(|&id| id == Some(range)).ok_or(EngineError::UnknownRange { range })
    }

    /// Whether the newest committed record of a key has an index entry if it is of this kind. A delete has one if a run may
    /// have an older record of its key.
    pub(crate) fn is_indexed(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Put || (kind == RecordKind::Tombstone && self.sorted.is_active())
    }

    pub(crate) fn name_of(&self, hash: u64, key: &[u8]) -> KeyName {
        KeyName { hash, ident: self.ident_point.ident_of(key) }
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<(), EngineError> {
        match &self.poisoned {
            Some(first) => Err(EngineError::Poisoned { first: first.clone() }),
            None if self.options.read_only => {
                Err(EngineError::Poisoned { first: "it was opened read-only".to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Stops all writes after a failed write or sync: the state of the disk is unknown.
    pub(crate) fn poison(&mut self, error: &DeviceError) -> EngineError {
        let first = self.poisoned.get_or_insert_with(|| error.to_string()).clone();
        EngineError::Poisoned { first }
    }

    /// End of the foreground's records: the time of death of a record that dies now. Unlike
    /// [`Engine::appended_end`], it is synced even if nothing is appended later.
    pub(crate) fn foreground_end(&self) -> LogPosition {
        self.streams[StreamKind::Foreground].records_end(self.options.segment_bytes)
    }

    /// Position of the foreground's next record.
    pub(crate) fn appended_end(&self) -> LogPosition {
        self.streams[StreamKind::Foreground].appended_end(self.options.segment_bytes)
    }
}

impl<D: Device> core::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device.name())
            .field("generation", &self.generation)
            .field("ranges", &self.range_ids)
            .field("segments", &self.segments.len())
            .field("kept", &self.segments_kept())
            .field("drops", &self.drops)
            .field("cleaner", &self.cleaner)
            .field("flush", &PerStream::from_fn(|kind| &self.streams[kind].flush))
            .field("next", &PerStream::from_fn(|kind| self.streams[kind].next.slot()))
            .field("full", &self.full)
            .finish_non_exhaustive()
    }
}

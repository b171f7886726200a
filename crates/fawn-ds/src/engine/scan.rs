//! Scans: iteration over whole cells of the index in hash order, with keys read from their records.
use super::fetch::{Expected, Hit, Probe};
use super::scan_position::ScanPosition;
use super::sorted::RunStretch;
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::format::record::RecordKind;
use crate::index::Pointer;
use crate::overlay::Written;
use crate::record_cache::CachedRecord;
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, RangeId, TimeMs, Version};
use smallvec::SmallVec;

/// A record counts as lost once its reads have failed for this long, ms. A shorter failure may be one of the whole
/// device, after which the record is still there.
const LOST_AFTER_MS: u64 = 10_000;
/// Bytes of keys after which a step ends: their reader matches each with a pattern, all at once.
const STEP_KEY_BYTES: usize = 64 << 10;
/// Cells of the index after which a step ends, whether they have entries or not: an index keeps its size when its keys are deleted. That of
/// an empty store has fewer.
const STEP_CELLS: usize = 128 << 10;
/// Maximum places whose failed reads are remembered, each with its time. All others have one time.
const FAILED_READS_MAX: usize = 1024;
/// Time without a failed read of the others after which their next one is the first again, ms. Successful reads do not count: a run none of
/// whose pages can be read is lost, although other runs can be read.
const OTHERS_GAP_MS: u64 = 60_000;

/// A key that a scan met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanItem {
    /// The key.
    pub key: Vec<u8>,
    /// Its version when the scan read it.
    pub version: Version,
    /// Length of its value, bytes.
    pub value_bytes: u32,
    /// Expiry time, ms since the Unix epoch. 0: it does not expire.
    pub expires_at_ms: u64,
    /// Its value, if the scan's limit covers the value's length.
    pub value: Option<Vec<u8>>,
}

/// A record, or a page of records, that a scan could not read, and passed: some key's current record, or an old version that the
/// store could not yet rule out to be one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorruptRecord {
    /// The file of the segment or run.
    pub file: String,
    /// Where in it.
    pub offset_bytes: u32,
    /// The failed check of the bytes, or the failed read.
    pub detail: String,
    /// Whether the record is lost: its bytes fail their check, or its reads have failed for 10 s. A later
    /// scan may still read any other.
    pub is_lost: bool,
}

/// A place that a scan reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScanPlace {
    /// A record of the log, in the segment with this sequence number.
    Log { pointer: Pointer, sequence: u64 },
    /// A page of the run with this id.
    Run { id: u64, page: u32 },
}

/// A place whose read failed in a scan, and has not succeeded in one since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedRead {
    place: ScanPlace,
    since: MonoMs,
}

/// Failed reads of the places that are not remembered, none of them long after the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedOthers {
    /// The first one. A scan that is repeated after a longer time meets it first again.
    place: ScanPlace,
    since: MonoMs,
    last: MonoMs,
}

/// Result of a scan's step.
#[derive(Debug)]
pub enum ScanStep {
    /// At least `count` records were met, which may be no items, or 64 KiB of keys, or many empty cells, or the end: see [`Scan::cursor`].
    Done,
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb_scan`], then step again.
    Read(LookupPlan),
}

/// Part of a range that a scan visits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScanExtent {
    /// Both parts.
    Whole {
        /// Whether the cursor was one of this store with its runs.
        is_known: bool,
    },
    /// The log.
    Log,
    /// The runs, after a scan of the log that met what was written up to this version.
    Runs(Version),
}

/// Lengths of a scan's lists.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanLens {
    pub(super) items: usize,
    pub(super) kept: usize,
    pub(super) corrupt: usize,
}

/// One step of a scan: from a cursor over at least `count` records.
#[derive(Debug)]
pub struct Scan {
    pub(super) range: RangeId,
    pub(super) count: usize,
    /// Records of whole cells that were met, expired ones included: most of them cost a read.
    pub(super) met: usize,
    cells: usize,
    /// Bytes of the keys that were found.
    key_bytes: usize,
    /// Maximum length of a value that is returned with its key.
    pub(super) value_bytes_max: Option<u32>,
    /// Start of the next step; 0 after the last one. It never becomes invalid.
    pub cursor: u64,
    pub(super) extent: ScanExtent,
    /// `None` before the first call.
    pub(super) position: Option<ScanPosition>,
    /// Keys that were found, of whole cells.
    pub items: Vec<ScanItem>,
    /// Expired keys of the same cells whose newest record is pending and a put: it may be one that keeps the key.
    pub kept: Vec<Vec<u8>>,
    /// Whether an expired key of the same cells has a pending record: `kept` holds only once that is committed.
    pub is_unsettled: bool,
    /// Records of the same cells that could not be read. With any, the items are incomplete: a copy or a comparison
    /// must not take them for all.
    pub corrupt: Vec<CorruptRecord>,
    /// The current cell: pointers not yet read, with their segments' sequence numbers, and all met so far. A pointer alone names
    /// another record once its slot is reused.
    todo: Vec<(Pointer, u64)>,
    seen: Vec<(Pointer, u64)>,
    cell_items: usize,
    cell_kept: usize,
    cell_damaged: usize,
    cell: Option<Option<u64>>,
    pub(super) stretch: RunStretch,
    /// Its lists before the stretch.
    pub(super) before_stretch: ScanLens,
    /// Places, by file and offset, that a read of the stretch found corrupt once.
    pub(super) suspects: Vec<(String, u32)>,
}

impl Scan {
    /// Of all of a range, from `cursor` on, 0 being the start. A key that was written after it was sorted may be met twice.
    #[must_use]
    pub fn new(range: RangeId, cursor: u64, count: usize) -> Self {
        Self {
            range,
            count,
            met: 0,
            cells: 0,
            key_bytes: 0,
            value_bytes_max: None,
            cursor,
            extent: ScanExtent::Whole { is_known: false },
            position: None,
            items: Vec::new(),
            kept: Vec::new(),
            is_unsettled: false,
            corrupt: Vec::new(),
            todo: Vec::new(),
            seen: Vec::new(),
            cell_items: 0,
            cell_kept: 0,
            cell_damaged: 0,
            cell: None,
            stretch: RunStretch::default(),
            before_stretch: ScanLens::default(),
            suspects: Vec::new(),
        }
    }

    /// The part of a scan in the log. Its cursors are key hashes.
    #[must_use]
    pub fn of_log(range: RangeId, cursor: u64, count: usize) -> Self {
        Self { extent: ScanExtent::Log, ..Self::new(range, cursor, count) }
    }

    /// The part of a scan in runs, after that in the log, which met what was written up to `since`. It has cursors of its own;
    /// 0 is the start. A key that is sorted or overwritten meanwhile may be met in both parts.
    #[must_use]
    pub fn of_runs(range: RangeId, cursor: u64, count: usize, since: Version) -> Self {
        Self { extent: ScanExtent::Runs(since), ..Self::new(range, cursor, count) }
    }

    /// The hash that the current cell begins with.
    const fn hash(&self) -> u64 {
        match self.position {
            Some(ScanPosition::Log(hash)) => hash,
            _ => 0,
        }
    }

    /// A key is there, with this version and expiry time, ms.
    pub(super) fn add(&mut self, key: &[u8], (version, expires_at_ms): (Version, u64), value: &[u8]) {
        let value_bytes = value.len() as u32;
        let is_wanted = self.value_bytes_max.is_some_and(|bytes_max| value_bytes <= bytes_max);
        let value = is_wanted.then(|| value.to_vec());
        self.key_bytes += key.len();
        self.items.push(ScanItem { key: key.to_vec(), version, value_bytes, expires_at_ms, value });
    }

    /// A key has expired. Its pending record may be one that keeps it.
    pub(super) fn note_expired(&mut self, key: &[u8], pending: Option<Written>, kept_before: usize) {
        if let Some(pending) = pending {
            self.is_unsettled = true;
            let is_met = self.kept[kept_before..].iter().any(|kept| kept == key);
            self.kept.extend((pending.is_put && !is_met).then(|| key.to_vec()));
        }
    }

    /// Whether the step has met its share of records.
    pub(super) const fn is_step_over(&self) -> bool {
        self.met >= self.count || self.key_bytes >= STEP_KEY_BYTES || self.cells >= STEP_CELLS
    }

    /// Whether it is in runs now.
    pub(super) const fn is_in_runs(&self) -> bool {
        matches!(self.position, Some(ScanPosition::Runs(_)))
    }

    /// Returns values of up to `bytes_max` bytes with their keys.
    #[must_use]
    pub fn with_values(mut self, bytes_max: u32) -> Self {
        self.value_bytes_max = Some(bytes_max);
        self
    }
}

impl<D: Device> Engine<D> {
    /// Continues a scan. Every key that is there throughout the scan is met at least once, and none that was deleted
    /// before it began. A corrupt record ends nothing: it is noted in [`Scan::corrupt`].
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`].
    pub fn scan_step(&mut self, scan: &mut Scan, now: TimeMs) -> Result<ScanStep, EngineError> {
        let at = self.range_at(scan.range)?;
        let position = match scan.position {
            Some(position) => position,
            None => self.begin_scan(at, scan),
        };
        if let ScanPosition::Log(from) = position {
            match self.scan_log(at, scan, from, now) {
                ScanStep::Done if scan.position == Some(ScanPosition::START) => {}
                step => return Ok(step),
            }
            // The log was passed.
            let has_runs = matches!(scan.extent, ScanExtent::Whole { .. }) && self.runs() > 0;
            scan.position = has_runs.then_some(ScanPosition::Runs(0));
            scan.before_stretch.corrupt = scan.corrupt.len();
            if !has_runs || scan.is_step_over() {
                self.end_scan_step(at, scan);
                return Ok(ScanStep::Done);
            }
        }
        self.scan_runs(at, scan, now)
    }

    /// The position of a scan's cursor.
    fn begin_scan(&self, at: usize, scan: &mut Scan) -> ScanPosition {
        let position = match &mut scan.extent {
            ScanExtent::Whole { is_known } => {
                let (position, has_content_id) = ScanPosition::of_cursor(scan.cursor, self.content_id(at));
                *is_known = has_content_id;
                position
            }
            ScanExtent::Log => ScanPosition::Log(scan.cursor),
            ScanExtent::Runs(_) => ScanPosition::Runs(scan.cursor),
        };
        *scan.position.insert(position)
    }

    /// Sets the cursor to the scan's position; none: the end.
    pub(super) fn end_scan_step(&self, at: usize, scan: &mut Scan) {
        scan.cursor = match (scan.extent, scan.position) {
            (_, None) => 0,
            (ScanExtent::Whole { is_known }, Some(position)) => {
                let content_id = (is_known || self.runs() > 0).then(|| self.content_id(at));
                position.to_cursor(content_id)
            }
            (_, Some(ScanPosition::Log(position) | ScanPosition::Runs(position))) => position,
        };
    }

    /// Visits cells of the log from this hash on. At the log's end the scan's position is the start.
    fn scan_log(&mut self, at: usize, scan: &mut Scan, mut from: u64, now: TimeMs) -> ScanStep {
        loop {
            if scan.cell.is_none() {
                self.begin_cell(at, scan);
                self.meet_cached(at, scan, now);
            }
            if let Some(read) = self.read_cell(at, scan, now) {
                return read;
            }
            // A cell that was begun again may have split since, and then ends earlier.
            let next = scan.cell.take().flatten();
            scan.met += scan.seen.len();
            scan.cells += 1;
            assert!(next.is_none_or(|next| next > from), "a scan continues in hash order");
            from = next.unwrap_or(0);
            scan.position = Some(ScanPosition::Log(from));
            if next.is_none() {
                return ScanStep::Done;
            }
            if scan.is_step_over() {
                self.end_scan_step(at, scan);
                return ScanStep::Done;
            }
        }
    }

    /// Notes what the index has there, and what is committed but waits for its verification to get there.
    fn begin_cell(&self, at: usize, scan: &mut Scan) {
        scan.todo.clear();
        scan.seen.clear();
        scan.cell_items = scan.items.len();
        scan.cell_kept = scan.kept.len();
        scan.cell_damaged = scan.corrupt.len();
        self.list_cell_records(at, scan);
    }

    fn list_cell_records(&self, at: usize, scan: &mut Scan) {
        let (pointers, next) = self.cells(at, scan.hash());
        pointers.into_iter().for_each(|pointer| self.visit_later(scan, pointer));
        let waiting = self.overlay.unconfirmed(at, scan.hash(), next).filter(|written| written.is_put);
        waiting.for_each(|written| self.visit_later(scan, written.pointer));
        scan.cell = Some(next);
    }

    fn visit_later(&self, scan: &mut Scan, pointer: Pointer) {
        let place = (pointer, self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence);
        if !scan.seen.contains(&place) {
            scan.todo.push(place);
            scan.seen.push(place);
        }
    }

    /// Takes in what a scan's read brought, for its next step. A record that could not be read is noted as corrupt.
    ///
    /// # Errors
    /// A failure that may pass, as a lack of descriptors: the scan has not advanced.
    pub fn absorb_scan(&mut self, scan: &mut Scan, plan: LookupPlan) -> Result<(), EngineError> {
        let (is_of_runs, span) = (scan.is_in_runs(), plan.0.span);
        match self.absorb(plan) {
            Ok(()) if is_of_runs => {
                self.take_stretch_page(&mut scan.stretch);
                Ok(())
            }
            Err(EngineError::Device(error)) if !error.is_retryable() && is_of_runs => {
                self.pass_unread(scan, &span, &error);
                Ok(())
            }
            Err(EngineError::Device(error)) if !error.is_retryable() => {
                let Ok(at) = self.range_at(scan.range) else { return Ok(()) };
                if let Some(&(pointer, sequence)) = scan.todo.last() {
                    let (slot, offset) = self.segments.slot_and_offset(pointer);
                    let is_there = self.segments.get(slot).is_some_and(|segment| segment.sequence == sequence);
                    // If its segment is gone, the cell begins again with the next step.
                    if is_there {
                        let is_lost = self.note_failed_read(ScanPlace::Log { pointer, sequence });
                        let error = self.corrupt(slot, offset, &error.to_string());
                        self.pass_damaged(at, scan, pointer, error, is_lost);
                    }
                }
                Ok(())
            }
            absorbed => absorbed,
        }
    }

    /// Remembers that the place's read failed. Returns whether its reads have failed for so long that it is lost.
    pub(super) fn note_failed_read(&mut self, place: ScanPlace) -> bool {
        let now = self.now.mono;
        let since = match self.failed_reads.iter().find(|failed| failed.place == place) {
            Some(failed) => failed.since,
            None => {
                let segments = &self.segments;
                let is_there = |failed: &FailedRead| match failed.place {
                    ScanPlace::Log { pointer, sequence } => segments
                        .get(segments.slot_and_offset(pointer).0)
                        .is_some_and(|segment| segment.sequence == sequence),
                    // A run's places are forgotten when it goes from the list.
                    ScanPlace::Run { .. } => true,
                };
                self.failed_reads.retain(is_there);
                if self.failed_reads.len() < FAILED_READS_MAX {
                    self.failed_reads.push(FailedRead { place, since: now });
                    now
                } else {
                    // The remembered places may be pages of a run that have been unreadable for months: their time is not that
                    // of the others.
                    let is_next =
                        |others: &FailedOthers| others.place == place || now.ms_since(others.last) < OTHERS_GAP_MS;
                    let first = FailedOthers { place, since: now, last: now };
                    let others = self.failed_others.filter(is_next).unwrap_or(first);
                    self.failed_others = Some(FailedOthers { last: now, ..others });
                    others.since
                }
            }
        };
        now.ms_since(since) >= LOST_AFTER_MS
    }

    /// The place of a record of the log.
    pub(super) fn place_in_log(&self, pointer: Pointer) -> ScanPlace {
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        ScanPlace::Log { pointer, sequence }
    }

    pub(super) fn forget_failed_read(&mut self, place: ScanPlace) {
        if !self.failed_reads.is_empty() {
            self.failed_reads.retain(|failed| failed.place != place);
        }
    }

    /// Forgets failed reads of runs that are listed no more: no scan reads these.
    pub(super) fn forget_failed_runs(&mut self, ids: &[u64]) {
        self.failed_reads.retain(|failed| !matches!(failed.place, ScanPlace::Run { id, .. } if ids.contains(&id)));
    }

    /// Notes the corrupt record that the cell is at and passes it, if it still counts; else the cell begins again, for
    /// what took the record's place is found only there.
    fn pass_damaged(&mut self, at: usize, scan: &mut Scan, pointer: Pointer, error: EngineError, is_lost: bool) {
        let EngineError::Corrupt { file, offset_bytes, detail } = error else {
            unreachable!("a record that was looked at is there or corrupt: {error}")
        };
        let next = scan.cell.flatten();
        let is_indexed = self.cells(at, scan.hash()).0.contains(&pointer);
        let is_counted =
            is_indexed || self.overlay.unconfirmed(at, scan.hash(), next).any(|written| written.pointer == pointer);
        if !is_counted {
            return self.begin_cell_again(at, scan);
        }
        scan.todo.pop();
        self.stats.corrupt_passed += u64::from(is_lost);
        scan.corrupt.push(CorruptRecord { file, offset_bytes, detail, is_lost });
    }

    /// Lists the cell again, since a record of it is not where it was.
    fn begin_cell_again(&self, at: usize, scan: &mut Scan) {
        // Records that were read stay read: otherwise the reads of a large cell would start over with each segment that is dropped.
        let unread = core::mem::take(&mut scan.todo);
        scan.seen.retain(|place| !unread.contains(place));
        let end = scan.cell;
        self.list_cell_records(at, scan);
        if scan.cell == end && scan.corrupt.len() == scan.cell_damaged {
            return;
        }
        // Keys behind a new end are met in the next cell. A corrupt record may have been replaced.
        scan.items.truncate(scan.cell_items);
        scan.kept.truncate(scan.cell_kept);
        scan.corrupt.truncate(scan.cell_damaged);
        self.begin_cell(at, scan);
    }

    fn read_cell(&mut self, at: usize, scan: &mut Scan, now: TimeMs) -> Option<ScanStep> {
        while let Some(&(pointer, sequence)) = scan.todo.last() {
            let (slot, _) = self.segments.slot_and_offset(pointer);
            if self.segments.get(slot).is_none_or(|segment| segment.sequence != sequence) {
                // The segment was dropped during a read, so the cell is read again from its start.
                self.begin_cell_again(at, scan);
                continue;
            }
            match self.probe(at, pointer, Expected::Any) {
                Ok(Probe::Match(hit)) => {
                    scan.todo.pop();
                    self.forget_failed_read(ScanPlace::Log { pointer, sequence });
                    self.meet(at, scan, &hit, now);
                }
                Ok(Probe::Missing(span)) => return Some(ScanStep::Read(LookupPlan::of_span(scan.range, span))),
                Ok(Probe::Other) => unreachable!("any record was wanted"),
                Err(error) => self.pass_damaged(at, scan, pointer, error, true),
            }
        }
        None
    }

    /// Returns the keys of the cell whose records are in the record cache. These records need no read.
    fn meet_cached(&self, at: usize, scan: &mut Scan, now: TimeMs) {
        // In a store that sorts, a cached record may be of a run, and what the index has with its fragment another key's.
        if scan.todo.is_empty() || self.records.is_empty() || self.sorted.is_active() {
            return;
        }
        let last = scan.cell.flatten().map_or(u64::MAX, |next| next - 1);
        let hashes = (KeyHash(scan.hash()), KeyHash(last));
        // A cell of few keys may lie in two buckets. Where other ranges have most of the cache, it has many.
        for cached in self.records.between(at, hashes, scan.todo.len() + 1) {
            let is_expired = cached.expires_at_ms != 0 && now.0 >= cached.expires_at_ms;
            let CachedRecord { key, hash, .. } = cached;
            // Expired records, and keys that the overlay has, are left to the reads of their records.
            if is_expired || self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident).is_some() {
                continue;
            }
            // The index has the key's committed record. A second candidate may be another key's.
            let mut candidates = self.candidates(at, hash);
            let (Some(pointer), None) = (candidates.next(), candidates.next()) else { continue };
            if let Some(nth) = scan.todo.iter().position(|(todo, _)| *todo == pointer) {
                scan.todo.swap_remove(nth);
                scan.add(key, (cached.version, cached.expires_at_ms), cached.value);
            }
        }
    }

    /// Returns a record's key if the record is still current; otherwise visits the record that replaced it.
    fn meet(&self, at: usize, scan: &mut Scan, hit: &Hit, now: TimeMs) {
        let key = &self.bytes_at(hit.location)[hit.value.start - hit.key_bytes..hit.value.start];
        if hit.kind != RecordKind::Put || !self.has_key(at, key) {
            return;
        }
        let hash = KeyHash::of(&self.secret, key);
        if hash.0 < scan.hash() || scan.cell.flatten().is_some_and(|next| hash.0 >= next) {
            // Of another cell: an entry may lack the bits that tell.
            return;
        }
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident);
        if let Some(committed) = entry.and_then(|entry| entry.committed) {
            if committed.pointer != hit.pointer {
                if committed.is_put {
                    self.visit_later(scan, committed.pointer);
                }
                return;
            }
        } else if !self.candidates(at, hash).any(|pointer| pointer == hit.pointer) {
            // The record moved since the cell was begun. Only a read shows which candidate has this key.
            let candidates: SmallVec<[Pointer; 4]> = self.candidates(at, hash).collect();
            candidates.into_iter().for_each(|pointer| self.visit_later(scan, pointer));
            return;
        }
        // Written again after it was met, and come across by the trace of another key, or in its cell that began again.
        if scan.items[scan.cell_items..].iter().any(|item| item.key == key) {
            return;
        }
        if hit.expires_at_ms != 0 && now.0 >= hit.expires_at_ms {
            let pending = entry.and_then(|entry| entry.newest_pending().copied());
            return scan.note_expired(key, pending, scan.cell_kept);
        }
        // The update that may have kept it was committed before the cell began again.
        if let Some(nth) = scan.kept[scan.cell_kept..].iter().position(|kept| kept == key) {
            scan.kept.swap_remove(scan.cell_kept + nth);
        }
        scan.add(key, (hit.version, hit.expires_at_ms), &self.bytes_at(hit.location)[hit.value.clone()]);
    }
}

#[cfg(test)]
mod tests;

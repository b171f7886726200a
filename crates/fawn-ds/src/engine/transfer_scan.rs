//! Sending a state transfer: a range's committed records up to a base, one chunk at a time: those of the log in hash
//! order, then those of runs.
//!
//! A chunk may need several device reads. It is handed over in one call, and every record in it is then still its key's
//! newest. Newer versions are in the history after the base, which the receiver gets separately.
use super::fetch::{Expected, Hit, Probe, Rejected};
use super::scan_position::{ScanPosition, TransferPlace};
use super::sorted::RunsTransfer;
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::format::record::{self, RecordKind, RecordRef};
use crate::index::Pointer;
use fawn_flash::Device;
use fawn_types::{ClientTag, KeyHash, RangeId, Version};
use smallvec::SmallVec;

/// Result of a transfer step.
#[derive(Debug)]
pub enum TransferStep {
    /// A chunk was visited.
    Chunk {
        /// The place of the next chunk; `None` after the last.
        next: Option<TransferPlace>,
        /// Number of records; 0 if nothing of what was read is sent.
        count: usize,
    },
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb`], then step again.
    Read(LookupPlan),
}

/// A record of the current index cell.
#[derive(Clone, Copy, Debug)]
struct ListedRecord {
    pointer: Pointer,
    /// The segment's sequence number: the slot may hold another segment by now.
    sequence: u64,
    /// Known once the record was read.
    hash: u64,
}

impl ListedRecord {
    /// A pointer alone names another record once its slot is reused.
    const fn place(&self) -> (Pointer, u64) {
        (self.pointer, self.sequence)
    }
}

/// A record of the current chunk, with its bytes.
#[derive(Debug)]
struct HeldRecord {
    listed: ListedRecord,
    version: Version,
    flags: u32,
    expires_at_ms: u64,
    tag: ClientTag,
    key: Vec<u8>,
    value: Vec<u8>,
    result: Vec<u8>,
    /// Records of other keys, and newer ones of this key, where it was looked for.
    rejected: Rejected,
}

/// The index cell being sent.
#[derive(Debug)]
struct CellWork {
    /// Not read yet.
    unknown: Vec<ListedRecord>,
    /// Read and to be sent; in descending hash order once `unknown` is empty.
    known: Vec<ListedRecord>,
    is_sorted: bool,
    next: Option<u64>,
}

/// An outgoing transfer: from a place to the end of the range, chunk by chunk.
#[derive(Debug)]
pub struct TransferScan {
    range: RangeId,
    /// Its start, until the first step.
    start: Option<TransferPlace>,
    pass: u64,
    has_content_id: bool,
    /// The hash from which it continues in the log.
    cursor: Option<u64>,
    /// The part in runs, once that is reached.
    runs: Option<Box<RunsTransfer>>,
    base: Version,
    bytes_max: usize,
    cell: Option<CellWork>,
    held: Vec<HeldRecord>,
    held_bytes: usize,
    /// The chunk has all its records; those that were moved meanwhile are being found.
    is_gathered: bool,
}

impl TransferScan {
    /// Starts at a place, with keys committed up to `base`. A chunk takes about `bytes_max` bytes, or one longer record.
    #[must_use]
    pub fn new(range: RangeId, start: TransferPlace, base: Version, bytes_max: usize) -> Self {
        Self {
            range,
            start: Some(start),
            pass: 0,
            has_content_id: false,
            cursor: None,
            runs: None,
            base,
            bytes_max,
            cell: None,
            held: Vec::new(),
            held_bytes: 0,
            is_gathered: false,
        }
    }

    pub(super) const fn range(&self) -> RangeId {
        self.range
    }

    pub(super) const fn base(&self) -> Version {
        self.base
    }

    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A place of its pass.
    pub(super) const fn place_of(&self, position: ScanPosition, content_id: Option<u64>) -> TransferPlace {
        TransferPlace::new(self.pass, position, content_id)
    }
}

impl<D: Device> Engine<D> {
    /// Continues the current chunk: reads its records, then visits all of them at once.
    ///
    /// A key is in some chunk if its newest committed record stays at a version up to the base. Records committed after
    /// the base are in none; expired records are included until a lookup removes them. All records of a chunk are
    /// current as of [`Engine::progress`] right after the step.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] at a corrupt record: unlike a scan, a copy never passes one. A receiver that missed it
    /// would hold for whole what is not; it needs another sender. [`EngineError::UnknownRange`].
    pub fn transfer_step(
        &mut self,
        scan: &mut TransferScan,
        mut visit: impl FnMut(&RecordRef<'_>),
    ) -> Result<TransferStep, EngineError> {
        let at = self.range_at(scan.range)?;
        if let Some(start) = scan.start.take() {
            self.begin_transfer_scan(at, scan, start);
        }
        if let Some(mut runs) = scan.runs.take() {
            let step = self.transfer_runs(at, scan, &mut runs, &mut visit);
            scan.runs = Some(runs);
            return step;
        }
        while let Some(cursor) = scan.cursor.filter(|_| !scan.is_gathered) {
            let mut cell = scan.cell.take().unwrap_or_else(|| self.list_cell(at, cursor));
            if let Some(plan) = self.learn_cell(at, scan, &mut cell)? {
                scan.cell = Some(cell);
                return Ok(TransferStep::Read(plan));
            }
            let is_full = match self.gather(at, scan, &mut cell)? {
                CellGather::Read(plan) => {
                    scan.cell = Some(cell);
                    return Ok(TransferStep::Read(plan));
                }
                CellGather::Full => true,
                CellGather::Cell => false,
            };
            if is_full {
                scan.cell = Some(cell);
                break;
            }
            assert!(cell.next.is_none_or(|next| next > cursor), "a transfer continues in hash order");
            scan.cursor = cell.next;
        }
        scan.is_gathered = true;
        if let Some(plan) = self.find_moved(at, scan)? {
            return Ok(TransferStep::Read(plan));
        }
        scan.is_gathered = false;
        let count = self.hand_over(at, scan, &mut visit);
        let has_runs = self.runs() > 0;
        let next = match scan.cursor {
            Some(hash) => Some(ScanPosition::Log(hash)),
            None if has_runs => {
                scan.runs = Some(Box::new(RunsTransfer::new(0)));
                Some(ScanPosition::Runs(0))
            }
            None => None,
        };
        let content_id = (has_runs || scan.has_content_id).then(|| self.content_id(at));
        Ok(TransferStep::Chunk { next: next.map(|position| scan.place_of(position, content_id)), count })
    }

    fn begin_transfer_scan(&self, at: usize, scan: &mut TransferScan, start: TransferPlace) {
        let (pass, position) = start.resume_at(self.content_id(at));
        (scan.pass, scan.has_content_id) = (pass, start.pass == pass && start.has_content_id());
        match position {
            ScanPosition::Log(hash) => scan.cursor = Some(hash),
            ScanPosition::Runs(position) => scan.runs = Some(Box::new(RunsTransfer::new(position))),
        }
    }

    /// Lists the pointers of the index cell, and committed records that wait for verification to enter it.
    fn list_cell(&self, at: usize, cursor: u64) -> CellWork {
        let (pointers, next) = self.cells(at, cursor);
        let waiting = self.overlay.unconfirmed(at, cursor, next).filter(|written| written.is_put);
        let pointers = pointers.into_iter().chain(waiting.map(|written| written.pointer));
        let unknown = pointers.map(|pointer| self.list_record(pointer, 0)).collect();
        CellWork { unknown, known: Vec::new(), is_sorted: false, next }
    }

    fn list_record(&self, pointer: Pointer, hash: u64) -> ListedRecord {
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        ListedRecord { pointer, sequence, hash }
    }

    /// Lists a cell again. Its known records stay: otherwise the reads of a large cell would start over with each segment
    /// that is dropped.
    fn list_again(&self, at: usize, cursor: u64, cell: &mut CellWork) {
        let CellWork { mut unknown, next, .. } = self.list_cell(at, cursor);
        cell.known.retain(|listed| next.is_none_or(|next| listed.hash < next));
        unknown.retain(|listed| !cell.known.iter().any(|known| known.place() == listed.place()));
        (cell.unknown, cell.next, cell.is_sorted) = (unknown, next, false);
    }

    fn is_there(&self, listed: &ListedRecord) -> bool {
        let (slot, _) = self.segments.slot_and_offset(listed.pointer);
        self.segments.get(slot).is_some_and(|segment| segment.sequence == listed.sequence)
    }

    /// Reads the hashes of a cell's records. They are sent in hash order, so that a large cell has cursors within.
    fn learn_cell(
        &mut self,
        at: usize,
        scan: &TransferScan,
        cell: &mut CellWork,
    ) -> Result<Option<LookupPlan>, EngineError> {
        while let Some(&listed) = cell.unknown.last() {
            if !self.is_there(&listed) {
                // Its segment was dropped since: the record was replaced, deleted, or moved by cleaning.
                let Some(cursor) = scan.cursor else { return Ok(None) };
                self.list_again(at, cursor, cell);
                continue;
            }
            let hit = match self.probe(at, listed.pointer, Expected::Any)? {
                Probe::Match(hit) => hit,
                Probe::Missing(span) => return Ok(Some(LookupPlan::of_span(scan.range, span))),
                Probe::Other => unreachable!("any record was wanted"),
            };
            cell.unknown.pop();
            let hash = KeyHash::of(&self.secret, self.key_of(&hit)).0;
            // In a store with runs, deletes have entries too.
            let is_own = !self.is_delete(&hit) && self.has_key(at, self.key_of(&hit));
            let is_in_cell =
                scan.cursor.is_some_and(|cursor| hash >= cursor) && cell.next.is_none_or(|next| hash < next);
            if is_own && is_in_cell && hit.version <= scan.base {
                cell.known.push(ListedRecord { hash, ..listed });
            }
        }
        if !core::mem::replace(&mut cell.is_sorted, true) {
            cell.known.sort_unstable_by_key(|listed| (core::cmp::Reverse(listed.hash), listed.pointer));
        }
        Ok(None)
    }

    /// Whether an index entry of a store with runs is of a delete.
    fn is_delete(&self, hit: &Hit) -> bool {
        hit.kind == RecordKind::Tombstone && self.is_indexed(hit.kind)
    }

    fn key_of(&self, hit: &Hit) -> &[u8] {
        &self.bytes_at(hit.location)[hit.value.start - hit.key_bytes..hit.value.start]
    }

    /// Takes records of the cell into the chunk as long as they fit.
    fn gather(&mut self, at: usize, scan: &mut TransferScan, cell: &mut CellWork) -> Result<CellGather, EngineError> {
        while let Some(&listed) = cell.known.last() {
            if !self.is_current(at, &listed) {
                cell.known.pop();
                self.list_moved(at, scan, cell, listed.hash);
                continue;
            }
            let hit = match self.probe(at, listed.pointer, Expected::Any)? {
                Probe::Match(hit) => hit,
                Probe::Missing(span) => return Ok(CellGather::Read(LookupPlan::of_span(scan.range, span))),
                Probe::Other => unreachable!("any record was wanted"),
            };
            let hash = KeyHash::of(&self.secret, self.key_of(&hit)).0;
            if hash != listed.hash || hit.version > scan.base || self.is_delete(&hit) {
                // Listed as what another record may have moved to.
                cell.known.pop();
                continue;
            }
            // Two keys with the same hash bits in a place stay in one chunk: it cannot separate them.
            let in_place = |hash: u64| hash >> TransferPlace::HASH_SHIFT;
            let is_twin = scan.held.last().is_some_and(|last| in_place(last.listed.hash) == in_place(listed.hash));
            let len = hit.len_bytes as usize;
            if !scan.held.is_empty() && !is_twin && scan.held_bytes + len > scan.bytes_max {
                scan.cursor = Some(in_place(listed.hash) << TransferPlace::HASH_SHIFT);
                return Ok(CellGather::Full);
            }
            let held = self.hold(listed, &hit)?;
            scan.held.push(held);
            scan.held_bytes += len;
            cell.known.pop();
        }
        Ok(CellGather::Cell)
    }

    /// Lists the records that a record of this hash may have moved to, since it is not where it was.
    fn list_moved(&self, at: usize, scan: &TransferScan, cell: &mut CellWork, hash: u64) {
        for pointer in self.candidates(at, KeyHash(hash)) {
            let moved = self.list_record(pointer, hash);
            let is_listed = cell.known.iter().any(|listed| listed.place() == moved.place())
                || scan.held.iter().any(|held| held.listed.place() == moved.place());
            if !is_listed {
                cell.known.push(moved);
            }
        }
    }

    /// Finds the records of the chunk that cleaning has moved while the chunk was gathered; returns the device read that
    /// this needs.
    fn find_moved(&mut self, at: usize, scan: &mut TransferScan) -> Result<Option<LookupPlan>, EngineError> {
        for held in &mut scan.held {
            if self.is_current(at, &held.listed) {
                continue;
            }
            let candidates: SmallVec<[Pointer; 4]> = self.candidates(at, KeyHash(held.listed.hash)).collect();
            for pointer in candidates {
                let found = self.list_record(pointer, held.listed.hash);
                match self.probe_once(at, pointer, Expected::Key(&held.key), &mut held.rejected)? {
                    Probe::Match(hit) if hit.version == held.version => held.listed = found,
                    // It is not read again: the reads of two such records that no cache holds would displace each other for
                    // ever.
                    Probe::Match(_) => held.rejected.push((pointer, found.sequence, None)),
                    Probe::Other => {}
                    Probe::Missing(span) => return Ok(Some(LookupPlan::of_span(scan.range, span))),
                }
            }
        }
        Ok(None)
    }

    fn hold(&self, listed: ListedRecord, hit: &Hit) -> Result<HeldRecord, EngineError> {
        let (slot, offset) = self.segments.slot_and_offset(hit.pointer);
        let stored = record::decode_verified(self.bytes_at(hit.location), offset)
            .map_err(|error| self.corrupt(slot, offset, &error.to_string()))?;
        let RecordRef { kind, version, key, value, flags, expires_at_ms, tag, result } = stored.record;
        if kind != RecordKind::Put {
            return Err(self.corrupt(slot, offset, "the index points to a record that is no put"));
        }
        let (key, value, result) = (key.to_vec(), value.to_vec(), result.to_vec());
        let rejected = Rejected::new();
        Ok(HeldRecord { listed, version, flags, expires_at_ms, tag, key, value, result, rejected })
    }

    /// Whether a record is still the newest committed one of its key, without I/O.
    fn is_current(&self, at: usize, listed: &ListedRecord) -> bool {
        if !self.is_there(listed) {
            return false;
        }
        let waits = |written: &crate::overlay::Written| written.pointer == listed.pointer && written.is_put;
        let next = listed.hash.checked_add(1);
        if self.overlay.unconfirmed(at, listed.hash, next).any(waits) {
            return true;
        }
        self.candidates(at, KeyHash(listed.hash)).any(|pointer| pointer == listed.pointer)
    }

    /// Visits the chunk's records, except those replaced or deleted while it was gathered.
    fn hand_over(&self, at: usize, scan: &mut TransferScan, visit: &mut impl FnMut(&RecordRef<'_>)) -> usize {
        let mut count = 0;
        for held in scan.held.drain(..) {
            let name = self.name_of(held.listed.hash, &held.key);
            let newer = self.overlay.find(at, name.hash, || name.ident).and_then(|entry| entry.committed);
            let is_replaced = newer.is_some_and(|newer| newer.pointer != held.listed.pointer);
            if is_replaced || !self.is_current(at, &held.listed) {
                continue;
            }
            let mut record = RecordRef::put(held.version, &held.key, &held.value);
            record.flags = held.flags;
            record.expires_at_ms = held.expires_at_ms;
            record.tag = held.tag;
            record.result = &held.result;
            visit(&record);
            count += 1;
        }
        scan.held_bytes = 0;
        count
    }
}

enum CellGather {
    /// The cell is complete.
    Cell,
    /// The chunk is full.
    Full,
    Read(LookupPlan),
}

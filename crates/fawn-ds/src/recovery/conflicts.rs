//! Index conflicts of recovery: records whose fragment matches an entry are compared with it in batched reads.
use super::deferred::DeferredRecords;
use super::io::Io;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::format::record::{self, PEEK_BYTES, RecordKind, RecordPlace};
use crate::index::Pointer;
use crate::log::segments::SegmentTable;
use crate::overlay::{CopyRank, DeferredRecord, KeyName, OverlayBase, ReplacedRecord, Written};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, IoClass};
use fawn_types::{KeyHash, Version};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Conflicts that make a batch of reads worthwhile.
const BATCH: usize = 1 << 16;
/// Candidates closer together than this are read in one operation, bytes.
const GAP_BYTES_MAX: u32 = 64 << 10;
const READ_BYTES_MAX: u32 = 1 << 20;
const READS_IN_FLIGHT: usize = 16;
/// Unreadable pages of a segment after which no other one of it is tried for a record that can do without.
const FAILED_READS_MAX: u32 = 16;

/// A record that may replace one of its candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) range: usize,
    pub(super) name: KeyName,
    pub(super) version: Version,
    pub(super) pointer: Pointer,
    pub(super) len_bytes: u32,
    pub(super) is_put: bool,
    pub(super) rank: CopyRank,
    /// The index has nothing newer: it may be deferred.
    pub(super) is_newest: bool,
    /// A survivors' removal, which has an index entry only until the foreground is read.
    pub(super) is_kept_removal: bool,
}

impl Conflict {
    const fn written(&self) -> Written {
        let &Self { version, pointer, len_bytes, is_put, .. } = self;
        Written { version, pointer, len_bytes, is_put }
    }

    /// Whether the index can have nothing newer of the key in this segment.
    fn is_newer_than_all<D: Device>(&self, engine: &Engine<D>, slot: u32) -> bool {
        let inherited = engine.ranges[self.range].inherited();
        let shares = &engine.segments.expect(slot).shares;
        let mut of_family = shares.iter().filter(|share| share.range == self.range || inherited.contains(&share.range));
        self.is_newest || of_family.all(|share| share.newest < self.version)
    }

    const fn to_deferred(self) -> DeferredRecord {
        let written = Written { is_put: self.is_put && !self.is_kept_removal, ..self.written() };
        DeferredRecord::new(self.range, self.name, written, self.rank)
    }
}

/// A decoded record of the index.
#[derive(Clone, Copy, Debug)]
struct IndexedRecord {
    name: KeyName,
    version: Version,
    rank: CopyRank,
    len_bytes: u32,
}

/// The conflicts of a batch, in log order.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    list: Vec<Conflict>,
    known: HashMap<Pointer, IndexedRecord, FxBuildHasher>,
    failed: FailedReads,
    /// In a salvage: slots of candidates that cannot be read, and are lost.
    lost: Option<BTreeSet<u32>>,
}

/// Pages that an opening could not read. Each attempt may take a device seconds.
#[derive(Debug, Default)]
struct FailedReads {
    pages: HashSet<(u32, u32), FxBuildHasher>,
    /// By slot.
    counts: HashMap<u32, u32, FxBuildHasher>,
}

impl FailedReads {
    /// Whether a record there is taken for unreadable, without another attempt.
    fn has(&self, (slot, offset): (u32, u32)) -> bool {
        let is_many = self.counts.get(&slot).is_some_and(|&count| count >= FAILED_READS_MAX);
        is_many || self.pages.contains(&(slot, offset / PAGE_BYTES as u32))
    }

    fn note(&mut self, (slot, offset): (u32, u32)) {
        if self.pages.insert((slot, offset / PAGE_BYTES as u32)) {
            *self.counts.entry(slot).or_default() += 1;
        }
    }
}

impl Conflicts {
    pub(super) fn push(&mut self, conflict: Conflict) {
        self.list.push(conflict);
    }

    /// Takes candidates that cannot be read for lost from now on.
    pub(super) fn lose_unreadable(&mut self) {
        self.lost = Some(BTreeSet::new());
    }

    /// Slots of the candidates that were lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = u32> {
        self.lost.iter().flatten().copied()
    }

    pub(super) fn is_large(&self) -> bool {
        self.list.len() >= BATCH
    }

    pub(super) fn forget_range(&mut self, range: usize) {
        self.list.retain(|conflict| conflict.range != range);
    }

    /// Settles all conflicts: of two records with the same key the higher version stays.
    pub(super) fn resolve<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        deferred: &mut DeferredRecords,
    ) -> Result<(), EngineError> {
        self.read_candidates(engine)?;
        for conflict in core::mem::take(&mut self.list) {
            // A newer one may have been deferred since.
            if deferred.replace(engine, (conflict.range, conflict.name), || conflict.to_deferred()) {
                continue;
            }
            if self.settle(engine, &conflict)? == Settled::Unreadable {
                // The engine keeps what it cannot compare, until it can.
                deferred.insert(engine, conflict.to_deferred());
            }
        }
        self.known.clear();
        Ok(())
    }

    fn read_candidates<D: Device>(&mut self, engine: &mut Engine<D>) -> Result<(), EngineError> {
        let candidates = |conflict: &Conflict| -> SmallVec<[Pointer; 4]> {
            engine.candidates(conflict.range, KeyHash(conflict.name.hash)).collect()
        };
        let mut wanted: Vec<Pointer> = self.list.iter().flat_map(candidates).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let runs = runs_of(engine, &wanted);
        for batch in runs.chunks(READS_IN_FLIGHT) {
            let mut bufs = Vec::new();
            {
                let mut io = Io::new(&mut engine.device);
                let mut tokens = Vec::new();
                for run in batch {
                    let file = engine.segments.expect(run.slot).file;
                    let len = (run.to - run.from) as usize;
                    tokens.push(io.start_read(file, u64::from(run.from), len, IoClass::Recovery));
                }
                for (token, run) in tokens.into_iter().zip(batch) {
                    match io.finish(token) {
                        // Pages that cannot be read may lie between the candidates.
                        Err(_) if engine.options.read_only => {
                            bufs.push(Some(run.read_pages(&mut io, &engine.segments)?));
                        }
                        read => bufs.push(read.ok().flatten()),
                    }
                }
            }
            for (run, buf) in batch.iter().zip(&mut bufs) {
                let Some(buf) = buf else { continue };
                run.lay_tail_over(engine, buf);
                for &pointer in &wanted[run.first..run.last] {
                    // Candidates that are missing are read again, one by one.
                    let _ = self.learn(engine, pointer, run, buf);
                }
            }
        }
        Ok(())
    }

    /// Decodes a candidate from a run's bytes. A record longer than expected gets a read of its own.
    fn learn<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        pointer: Pointer,
        run: &RecordRun,
        buf: &[u8],
    ) -> Result<IndexedRecord, EngineError> {
        let (slot, offset) = engine.segments.slot_and_offset(pointer);
        let bytes = &buf[(offset - run.from) as usize..];
        let segment_id = engine.segments.expect(slot).id;
        match record::decode(bytes, RecordPlace { segment_id, offset }) {
            Ok(stored) => {
                let hash = KeyHash::of(&engine.secret, stored.record.key).0;
                let name = engine.name_of(hash, stored.record.key);
                let (version, len_bytes) = (stored.record.version, stored.encoded_len as u32);
                let rank = if stored.record.kind == RecordKind::Put { CopyRank::Put } else { CopyRank::Removal };
                let known = IndexedRecord { name, version, rank, len_bytes };
                self.known.insert(pointer, known);
                Ok(known)
            }
            Err(error) if error.is_truncated() => {
                let len = record::peek_len(bytes).unwrap_or(PEEK_BYTES) as u32;
                let longer = RecordRun::of(slot, offset, len, engine.options.segment_bytes);
                if longer.to <= run.to && longer.from >= run.from {
                    return Err(engine.corrupt(slot, offset, &error.to_string()));
                }
                let buf = longer.read(engine)?;
                self.learn(engine, pointer, &longer, &buf)
            }
            Err(error) => Err(engine.corrupt(slot, offset, &error.to_string())),
        }
    }

    fn settle<D: Device>(&mut self, engine: &mut Engine<D>, conflict: &Conflict) -> Result<Settled, EngineError> {
        let &Conflict { range, name, version, pointer, len_bytes, is_put, rank, .. } = conflict;
        let mut base = OverlayBase::Absent;
        let mut is_readable = true;
        let candidates: SmallVec<[Pointer; 4]> = engine.candidates(range, KeyHash(name.hash)).collect();
        for candidate in candidates {
            let place = engine.segments.slot_and_offset(candidate);
            let may_be_unreadable = !engine.options.read_only && conflict.is_newer_than_all(engine, place.0);
            if may_be_unreadable && !self.known.contains_key(&candidate) && self.failed.has(place) {
                is_readable = false;
                continue;
            }
            let known = match (self.known_record(engine, candidate), &mut self.lost) {
                (Err(_), _) if may_be_unreadable => {
                    self.failed.note(place);
                    is_readable = false;
                    continue;
                }
                // Not lost: the salvage ends, and can be repeated.
                (Err(EngineError::Device(error)), Some(_)) if error.is_retryable() => return Err(error.into()),
                (Err(_), Some(lost)) => {
                    lost.insert(place.0);
                    // If it can be read again, a dump would visit two records of the key.
                    let part = engine.indexed_at(range, KeyHash(name.hash), candidate);
                    engine.ranges[part].index.remove(KeyHash(name.hash), candidate);
                    continue;
                }
                (known, _) => known?,
            };
            if known.name == name {
                if (known.version, known.rank) > (version, rank) {
                    return Ok(Settled::Compared);
                }
                base = OverlayBase::At(ReplacedRecord { pointer: candidate, len_bytes: known.len_bytes });
            }
        }
        if !is_readable && base == OverlayBase::Absent {
            return Ok(Settled::Unreadable);
        }
        if is_put {
            let (slot, _) = engine.segments.slot_and_offset(pointer);
            engine.segments.expect_mut(slot).add_live(range, len_bytes);
            self.known.insert(pointer, IndexedRecord { name, version, rank, len_bytes });
        }
        engine.move_index(range, name, base, conflict.written());
        Ok(Settled::Compared)
    }

    /// The record that a candidate points to.
    fn known_record<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        candidate: Pointer,
    ) -> Result<IndexedRecord, EngineError> {
        if let Some(&known) = self.known.get(&candidate) {
            return Ok(known);
        }
        // An earlier conflict of this batch inserted it after the reads, or it could not be read with others.
        let (slot, offset) = engine.segments.slot_and_offset(candidate);
        let run = RecordRun::of(slot, offset, PAGE_BYTES as u32, engine.options.segment_bytes);
        let buf = run.read(engine)?;
        self.learn(engine, candidate, &run, &buf)
    }
}

/// Result of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settled {
    Compared,
    /// A candidate that may be the key's own cannot be read, and is older.
    Unreadable,
}

/// Pages of one segment that hold the candidates `first..last` of the sorted list.
#[derive(Clone, Copy, Debug)]
struct RecordRun {
    slot: u32,
    from: u32,
    to: u32,
    first: usize,
    last: usize,
}

impl RecordRun {
    fn of(slot: u32, offset: u32, len: u32, segment_bytes: u32) -> Self {
        let page = PAGE_BYTES as u32;
        let to = (offset + len).next_multiple_of(page).min(segment_bytes);
        Self { slot, from: offset - offset % page, to, first: 0, last: 0 }
    }

    fn read<D: Device>(&self, engine: &mut Engine<D>) -> Result<AlignedBuf, DeviceError> {
        let file = engine.segments.expect(self.slot).file;
        let mut io = Io::new(&mut engine.device);
        let mut buf = match io.read(file, u64::from(self.from), (self.to - self.from) as usize, IoClass::Recovery) {
            Err(_) if engine.options.read_only => self.read_pages(&mut io, &engine.segments)?,
            read => read?,
        };
        self.lay_tail_over(engine, &mut buf);
        Ok(buf)
    }

    /// The segment's end may be in the tail file alone.
    fn lay_tail_over<D: Device>(&self, engine: &Engine<D>, bytes: &mut [u8]) {
        if let Some(tail) = engine.left_tail.of(engine.segments.expect(self.slot).uuid) {
            tail.lay_over(u64::from(self.from), bytes);
        }
    }

    fn read_pages<D: Device>(&self, io: &mut Io<'_, D>, segments: &SegmentTable) -> Result<AlignedBuf, DeviceError> {
        let file = segments.expect(self.slot).file;
        io.read_pages(file, u64::from(self.from), (self.to - self.from) as usize, IoClass::Recovery)
    }
}

fn runs_of<D: Device>(engine: &Engine<D>, wanted: &[Pointer]) -> Vec<RecordRun> {
    let mut runs: Vec<RecordRun> = Vec::new();
    for (i, &pointer) in wanted.iter().enumerate() {
        let (slot, offset) = engine.segments.slot_and_offset(pointer);
        let segment = engine.segments.expect(slot);
        let (from, to) = segment.first_read(offset, engine.options.segment_bytes);
        match runs.last_mut() {
            Some(run) if run.slot == slot && from <= run.to + GAP_BYTES_MAX && to - run.from <= READ_BYTES_MAX => {
                run.to = run.to.max(to);
                run.last = i + 1;
            }
            _ => runs.push(RecordRun { slot, from, to, first: i, last: i + 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broken region has as many old versions as a segment has records: reads of all would take days.
    #[test]
    fn a_page_is_tried_once_and_a_segment_a_few_times() {
        let page = PAGE_BYTES as u32;
        let mut failed = FailedReads::default();
        failed.note((1, page + 5));
        assert!(failed.has((1, page + 9)) && !failed.has((1, 2 * page)) && !failed.has((2, page)));
        (0..FAILED_READS_MAX).for_each(|_| failed.note((1, page)));
        assert!(!failed.has((1, 2 * page)), "one page counts once");
        (2..=FAILED_READS_MAX).for_each(|at| failed.note((1, at * page)));
        assert!(failed.has((1, 100 * page)) && !failed.has((2, page)));
    }
}

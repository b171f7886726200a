//! Index rebuild: applies records in log order with marks, rollbacks and clears, and defers conflicts.
use super::conflicts::{Conflict, Conflicts};
use super::decode::{DecodedBatch, DecodedRecord, KeyNames, LogDecoder};
use super::deferred::DeferredRecords;
use crate::engine::{Engine, heir_with_key};
use crate::error::OpenError;
use crate::format::manifest::{Ancestor, ManifestRange, RangeBeginning, SegmentEntry, SoleEpochs};
use crate::format::record::{RecordKind, Stored};
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{RangeNumber, Watermark};
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::log::segments::RangeShare;
use crate::overlay::{CopyRank, DeferredRecord, KeyName, OverlayBase, ReplacedRecord, Written};
use crate::range::{PendingKind, PendingRecord, RangeState, ResultCopy, Retained};
use fawn_flash::{AlignedBuf, Device};
use fawn_types::{KeyHash, KeyRange, RingKey, Version};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// A record that is not known to be committed yet.
#[derive(Clone, Copy, Debug)]
struct ScannedEntry {
    version: Version,
    pointer: Pointer,
    len_bytes: u32,
    kind: RecordKind,
    name: KeyName,
    /// Place of the range that it belongs to.
    owner: usize,
    rank: CopyRank,
    /// A survivors' removal that has one only until the foreground is read.
    is_kept_removal: bool,
    /// It came with a transfer of its own range, in any order of versions.
    is_copied: bool,
}

impl ScannedEntry {
    /// The record, for the range at this place.
    fn to_deferred(self, at: usize) -> DeferredRecord {
        let Self { version, pointer, len_bytes, kind, name, rank, .. } = self;
        let written = Written { version, pointer, len_bytes, is_put: kind == RecordKind::Put };
        DeferredRecord::new(at, name, written, rank)
    }
}

/// Per range: records that wait for a mark.
#[derive(Debug, Default)]
pub(super) struct Tentative {
    /// A mark was met: records that no sole epoch covers count from their mark on. In each segment a mark precedes
    /// them.
    has_marks: bool,
    /// Epochs without marks.
    sole: Option<SoleEpochs>,
    records: VecDeque<ScannedEntry>,
    /// Committed at least up to here, by a checkpoint.
    pub(super) committed: Version,
    /// Records up to here are invalidated, whichever order they are read in.
    pub(super) cleared: Version,
    beginning: Option<RangeBeginning>,
    /// No survivor in the checkpoint is newer.
    survivors_highest: Version,
    /// The segments right before this one are missing, and no later record of the range was read yet.
    gap_before: Option<u64>,
    /// Lowest version of the keys' records that the checkpoint does not have.
    lowest_behind: Option<Version>,
}

impl Tentative {
    fn new(listed: Option<&ManifestRange>) -> Self {
        let Some(&ManifestRange { cleared, beginning, sole, .. }) = listed else { return Self::default() };
        Self { sole, cleared, beginning, ..Self::default() }
    }

    /// Of a range that was split or merged. Its history is applied as any other, to the ranges that have its keys now.
    fn of_ancestor(&Ancestor { number, since, base, cleared, sole, .. }: &Ancestor) -> Self {
        let beginning = Some(RangeBeginning { number, since, base, is_whole: true });
        Self { sole, cleared, beginning, ..Self::default() }
    }

    /// Whether its transfer is complete, so that its records count.
    pub(super) fn is_whole(&self) -> bool {
        self.beginning.is_some_and(|beginning| beginning.is_whole)
    }

    /// Whether a valid record came with the transfer.
    fn is_copied(&self, version: Version) -> bool {
        self.beginning.is_some_and(|beginning| version <= beginning.base)
    }
}

/// Records under a local number that no listed range has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stray {
    pub(super) number: RangeNumber,
    /// Slot and offset of the first such record.
    pub(super) slot: u32,
    pub(super) offset: u32,
    pub(super) records: u64,
}

/// A tombstone of the survivors' stream, in the index until the foreground is read.
#[derive(Clone, Copy, Debug)]
struct KeptTombstone {
    range: usize,
    hash: KeyHash,
    pointer: Pointer,
    len_bytes: u32,
}

pub(super) struct IndexBuilder<'e, D: Device> {
    pub(super) engine: &'e mut Engine<D>,
    pub(super) tentative: Vec<Tentative>,
    pub(super) numbers: HashMap<RangeNumber, usize, FxBuildHasher>,
    pub(super) deferred: DeferredRecords,
    pub(super) conflicts: Conflicts,
    tombstones: Vec<KeptTombstone>,
    strays: BTreeMap<RangeNumber, Stray>,
    /// By place: the retired ranges whose histories end before the next record of this one.
    elders: Vec<SmallVec<[usize; 2]>>,
    /// By place of a retired range: the ranges that took these keys over.
    heirs: Vec<SmallVec<[(KeyRange, usize); 1]>>,
    /// The checkpoint that was loaded has the records before these positions.
    pub(super) from: PerStream<Watermark>,
    /// For reads of the log.
    pub(super) buffers: Vec<AlignedBuf>,
    pub(super) batches: Vec<DecodedBatch>,
}

impl<'e, D: Device> IndexBuilder<'e, D> {
    pub(super) fn new(engine: &'e mut Engine<D>) -> Self {
        let mut tentative = Vec::new();
        let mut ancestors = BTreeMap::new();
        for &ancestor in engine.manifest.state().ancestors() {
            ancestors.entry(ancestor.number).or_insert(ancestor);
        }
        for at in 0..engine.ranges.len() {
            let listed = engine.range_ids[at].and_then(|id| engine.manifest.state().ranges.get(&id));
            let ancestor = ancestors.get(&engine.ranges[at].number);
            if let Some(ancestor) = ancestor.filter(|_| listed.is_none()) {
                let range = Tentative::of_ancestor(ancestor);
                engine.recover_clears(at, range.cleared, range.cleared);
                engine.ranges[at].retain_floor = Some(Version::ZERO);
                tentative.push(range);
                continue;
            }
            let range = Tentative::new(listed);
            if let Some(RangeBeginning { number, base, is_whole: true, .. }) = range.beginning {
                engine.ranges[at].begin_again(number, base);
            }
            engine.ranges[at].sole = range.sole;
            engine.recover_clears(at, range.cleared, range.cleared);
            if range.sole.is_none_or(|sole| sole.is_over) {
                // Kept for retransmission and retries until the chain says how far that is needed.
                engine.ranges[at].retain_floor = Some(Version::ZERO);
                engine.ranges[at].needed_from = Some(Version::ZERO);
            }
            tentative.push(range);
        }
        engine.inherit();
        let numbers = engine.ranges.iter().enumerate().map(|(at, range)| (range.number, at)).collect();
        let deferred = DeferredRecords::new(&engine.options);
        let (elders, heirs) = (engine.elders(), engine.heirs_by_place());
        Self {
            engine,
            elders,
            heirs,
            tentative,
            numbers,
            deferred,
            conflicts: Conflicts::default(),
            tombstones: Vec::new(),
            strays: BTreeMap::new(),
            from: PerStream::from_fn(|_| Watermark::NONE),
            buffers: Vec::new(),
            batches: Vec::new(),
        }
    }

    /// Segments before this sequence number were dropped, with records that a replay must not skip silently. A range
    /// that began later is not affected: it had none there.
    pub(super) fn gap(&mut self, sequence: u64) {
        for range in &mut self.tentative {
            if range.beginning.is_some_and(|beginning| beginning.since < sequence) {
                range.gap_before = Some(sequence);
            }
        }
    }

    /// At the next record of a range's history: if records are missing before it, the retained ones restart here.
    fn close_gap(&mut self, at: usize, sequence: u64, version: Version, last: Version) {
        if self.tentative[at].gap_before.is_none_or(|gap| sequence < gap) {
            return;
        }
        self.tentative[at].gap_before = None;
        let before = Version::from_u64(version.as_u64().saturating_sub(1));
        if last < before {
            let range = &mut self.engine.ranges[at];
            range.retained.clear();
            range.complete_above = before;
        }
    }

    /// Counts the record in its segment. Returns the segment's stream, whether it is sorted, its sequence number, and the
    /// kind as which the record is applied.
    fn count_stored(&mut self, slot: u32, record: &DecodedRecord) -> (StreamKind, bool, u64, RecordKind) {
        let &DecodedRecord { kind: found, len_bytes, expires_at_ms, .. } = record;
        let has_index = self.engine.is_indexed(found);
        let now = self.engine.clock.get();
        let segment = self.engine.segments.expect_mut(slot);
        // Counted as at the append: of every local number, and without the records that no lookup reads.
        if !matches!(found, RecordKind::CommitMark | RecordKind::Rollback) {
            segment.lengths.add(len_bytes as usize);
        }
        if expires_at_ms != 0 {
            segment.expiries.add(len_bytes, expires_at_ms, now);
        }
        let kind = match found {
            // The run contains the records that counted: all of these only hide older records of the log.
            RecordKind::Put | RecordKind::Tombstone if segment.is_sorted => RecordKind::Tombstone,
            _ if has_index => RecordKind::Put,
            kind => kind,
        };
        if found == RecordKind::Tombstone && !segment.is_sorted {
            segment.tombstone_bytes += u64::from(len_bytes);
        }
        (segment.stream, segment.is_sorted, segment.sequence, kind)
    }

    fn names(&self) -> KeyNames {
        KeyNames { secret: self.engine.secret, ident_point: self.engine.ident_point }
    }

    /// The decoder of the log's records.
    pub(super) fn decoder(&self) -> LogDecoder {
        let retired = self.engine.ranges.iter().filter(|range| range.id.is_none()).map(|range| range.number);
        LogDecoder::new(self.names(), retired.collect())
    }

    /// Applies the next record of the log, on its own.
    pub(super) fn single_record(&mut self, slot: u32, offset: u32, stored: &Stored<'_>) {
        self.record(slot, &self.names().decoded(offset, stored), stored.record.key);
    }

    /// Applies the next record of the log.
    pub(super) fn record(&mut self, slot: u32, record: &DecodedRecord, key: &[u8]) {
        let &DecodedRecord { offset, number, version, len_bytes, name, .. } = record;
        let pointer = self.engine.segments.pointer(slot, offset);
        let (stream, is_sorted, sequence, kind) = self.count_stored(slot, record);
        let Some(&at) = self.numbers.get(&number) else {
            self.strays.entry(number).or_insert(Stray { number, slot, offset, records: 0 }).records += 1;
            return;
        };
        if !self.tentative[at].is_whole() {
            return;
        }
        let is_in_image = is_sorted && sequence < self.from[stream].sequence;
        if is_in_image && !record.kind.is_of_key() {
            return;
        }
        let is_retired = self.engine.ranges[at].id.is_none();
        if stream == StreamKind::Foreground && !self.elders[at].is_empty() && !is_in_image {
            self.end_histories(at);
        }
        if stream == StreamKind::Survivors && kind == RecordKind::Result {
            return self.result_copy(at, record, slot);
        }
        let owner = match kind {
            RecordKind::CommitMark => return self.mark(at, version, slot),
            RecordKind::Rollback => return self.roll_back(at, version, (slot, offset)),
            // Before a split or merge it was listed.
            RecordKind::Clear if is_retired => return,
            _ if is_retired => self.heir_of(at, key),
            _ => Some(at),
        };
        let Some(owner) = owner else {
            // The range that took over its key was dropped, or has begun again.
            self.strays.entry(number).or_insert(Stray { number, slot, offset, records: 0 }).records += 1;
            return;
        };
        self.engine.enter_segment(owner, slot, version, kind);
        let is_trace = is_sorted && kind == RecordKind::Tombstone;
        // A delete may have an index entry.
        let rank = match record.kind {
            _ if is_trace => CopyRank::Trace,
            RecordKind::Put => CopyRank::Put,
            _ => CopyRank::Removal,
        };
        let (is_kept_removal, is_copied) = (false, self.tentative[at].is_copied(version));
        let entry = ScannedEntry { version, pointer, len_bytes, kind, name, owner, rank, is_kept_removal, is_copied };
        if is_in_image && stream == StreamKind::Foreground {
            return self.hide(at, number, &entry);
        }
        let is_survivor = stream == StreamKind::Survivors;
        if is_survivor && (Watermark { sequence, offset }) < self.from[stream] && !is_trace {
            return self.note_survivors(owner, version);
        }
        if record.kind.is_of_key() && !is_trace {
            self.note_behind(owner, version);
        }
        if is_survivor {
            if is_retired && version <= self.tentative[at].cleared {
                return;
            }
            return self.survivor(owner, &entry);
        }
        if is_copied {
            if is_retired && version <= self.tentative[at].cleared && kind != RecordKind::Result {
                return;
            }
            return self.copied(owner, &entry, sequence);
        }
        self.historic(at, entry);
    }

    /// Notes a record of a key that the checkpoint does not have.
    fn note_behind(&mut self, at: usize, version: Version) {
        let lowest = &mut self.tentative[at].lowest_behind;
        *lowest = Some(lowest.map_or(version, |lowest| lowest.min(version)));
    }

    /// Records of a sorted segment before the checkpoint cannot be read. Until it is dropped, it counts as hiding all that its
    /// newest record could hide.
    pub(super) fn lose_traces(&mut self, slot: u32, entry: &SegmentEntry) {
        for (at, highest) in self.highest_by_owner(entry) {
            self.engine.enter_segment(at, slot, highest, RecordKind::Tombstone);
        }
    }

    /// Whether a record behind the checkpoint may be older than one of this sorted segment: also a tombstone, which would hide
    /// the record's copy in a run.
    pub(super) fn may_lack_traces(&self, entry: &SegmentEntry) -> bool {
        let is_behind = |&(at, highest): &(usize, Version)| {
            self.tentative[at].lowest_behind.is_some_and(|lowest: Version| lowest <= highest)
        };
        self.highest_by_owner(entry).iter().any(is_behind)
    }

    /// The ranges that have keys of a sealed segment, and the highest version under each of their numbers there.
    fn highest_by_owner(&self, entry: &SegmentEntry) -> Vec<(usize, Version)> {
        let mut owners = Vec::new();
        for facts in entry.seal.iter().flat_map(|seal| &seal.facts.numbers) {
            let Some(&at) = self.numbers.get(&facts.number) else { continue };
            match self.engine.ranges[at].id {
                Some(_) => owners.push((at, facts.highest)),
                None => owners.extend(self.heirs[at].iter().map(|&(_, heir)| (heir, facts.highest))),
            }
        }
        owners
    }

    /// The range that took a retired range's key over.
    fn heir_of(&self, at: usize, key: &[u8]) -> Option<usize> {
        let ring_key = RingKey::of(&self.engine.secret, key);
        heir_with_key(&self.heirs[at], &ring_key)
    }

    /// Applies a record of the range's history, now or once it proves to be committed.
    fn historic(&mut self, at: usize, entry: ScannedEntry) {
        let version = entry.version;
        let progress = &mut self.engine.ranges[at].progress;
        progress.appended = progress.appended.max(version);
        if self.tentative[at].sole.is_some_and(|sole| sole.covers(version)) {
            // The sole epoch began with all of the log committed that came before.
            self.apply_through(at, version);
            self.apply(at, &entry);
        } else if self.tentative[at].has_marks {
            self.tentative[at].records.push_back(entry);
        } else {
            self.apply(at, &entry);
        }
    }

    /// Removes older records of the key from the index. The checkpoint has the history of the range at this place up to here.
    fn hide(&mut self, at: usize, number: RangeNumber, entry: &ScannedEntry) {
        // Its rollback lies before the checkpoint's position, too: only the checkpoint still has it.
        if self.engine.is_invalidated(self.engine.segments.slot_and_offset(entry.pointer), number, entry.version) {
            return;
        }
        if entry.version > self.tentative[at].cleared && entry.version > self.tentative[entry.owner].cleared {
            self.index_write(entry.owner, entry);
        }
    }

    /// A range's first record is read: the histories that it continues have ended, with all of them committed.
    fn end_histories(&mut self, at: usize) {
        for elder in core::mem::take(&mut self.elders[at]) {
            self.apply_through(elder, Version::from_u64(u64::MAX));
        }
    }

    /// Applies a transferred record. It is committed from the start, and not part of the range's history.
    fn copied(&mut self, at: usize, entry: &ScannedEntry, sequence: u64) {
        let &ScannedEntry { version, pointer, len_bytes, kind, .. } = entry;
        match kind {
            RecordKind::Result => {
                let kept = Retained { version, pointer, len_bytes, sequence };
                if self.engine.ranges[at].keep_copied_result(kept, self.engine.needed_max) {
                    self.engine.warn_of_dropped_results(at);
                }
            }
            // A listed clear emptied the range also of what had come with the transfer.
            _ if version > self.tentative[at].cleared => self.index(at, entry),
            _ => {}
        }
    }

    /// A survivor of this version was durably committed when it was copied.
    fn note_survivor(&mut self, at: usize, version: Version) {
        if !self.tentative[at].is_copied(version) {
            let progress = &mut self.engine.ranges[at].progress;
            progress.committed = progress.committed.max(version);
            progress.appended = progress.appended.max(version);
        }
    }

    /// Keeps a copied result, which a clear does not concern. It has no key: a retired range gives its results to all heirs,
    /// whether one of them has the first keys or not.
    fn result_copy(&mut self, at: usize, record: &DecodedRecord, slot: u32) {
        let &DecodedRecord { offset, version, len_bytes, tag, .. } = record;
        let sequence = self.engine.segments.expect(slot).sequence;
        let is_retired = self.engine.ranges[at].id.is_none();
        if !is_retired {
            // The heirs of a retired range have parts of their own in the segments of what they keep.
            self.engine.enter_segment(at, slot, version, RecordKind::Result);
        }
        if (Watermark { sequence, offset }) < self.from[StreamKind::Survivors] {
            return self.note_survivors(at, version);
        }
        self.note_survivor(at, version);
        let record = Retained { version, pointer: self.engine.segments.pointer(slot, offset), len_bytes, sequence };
        let range = &mut self.engine.ranges[at];
        // In a sole epoch no operation has a tag.
        if range.retain_floor.is_some() {
            range.result_copies.kept.push_back(ResultCopy { record, tag });
        }
    }

    /// Applies a survivor, which is not part of the range's history. All survivors come before the foreground's records, which
    /// then replace those with lower versions.
    fn survivor(&mut self, at: usize, entry: &ScannedEntry) {
        let &ScannedEntry { version, pointer, len_bytes, kind, name, .. } = entry;
        self.note_survivor(at, version);
        if version <= self.tentative[at].cleared {
            return;
        }
        if self.deferred.replace(self.engine, (at, name), || entry.to_deferred(at)) {
            return;
        }
        let may_be_older = self.deferred.may_have_newer_survivor(name.hash, version);
        self.deferred.add_survivor(name.hash, version);
        if kind == RecordKind::Put {
            // The checkpoint has nothing newer: a survivor behind it was current when that began, or has been since. But an
            // older survivor may follow a newer one: its index entry stays until the newer one is confirmed.
            // A delete is copied for what it hides, whether it is current or not.
            let is_compared = may_be_older || entry.rank != CopyRank::Put || self.has_replaced_survivors();
            return if is_compared { self.index_compared(at, entry, false) } else { self.index_newest(at, entry) };
        }
        // A tombstone is indexed until the foreground is read, so that it keeps out the older puts that it hides. It may be
        // copied later than a newer put.
        self.tombstones.push(KeptTombstone { range: at, hash: KeyHash(name.hash), pointer, len_bytes });
        let kept = ScannedEntry { kind: RecordKind::Put, is_kept_removal: true, ..*entry };
        self.index_compared(at, &kept, false);
    }

    /// Whether survivors behind the checkpoint may have been replaced before it: a position at the start of a segment was
    /// lowered to that, because the segment hides puts.
    fn has_replaced_survivors(&self) -> bool {
        let Watermark { sequence, offset } = self.from[StreamKind::Survivors];
        sequence > 0 && offset == 0
    }

    /// The checkpoint may have survivors of the range up to this version.
    pub(super) fn note_survivors(&mut self, at: usize, highest: Version) {
        let tentative = &mut self.tentative[at];
        tentative.survivors_highest = tentative.survivors_highest.max(highest);
    }

    fn mark(&mut self, at: usize, version: Version, slot: u32) {
        self.tentative[at].has_marks = true;
        self.engine.ranges[at].marks.appended = version;
        // Recovery syncs all that it read before anything is dropped.
        self.engine.mark_is_durable(at, version, slot);
        self.apply_through(at, version);
        // The record of that version may be gone with its segment, but it was committed.
        let progress = &mut self.engine.ranges[at].progress;
        progress.committed = progress.committed.max(version);
        progress.appended = progress.appended.max(version);
    }

    fn apply_through(&mut self, at: usize, version: Version) {
        while let Some(entry) = self.tentative[at].records.front().copied() {
            if entry.version > version {
                return;
            }
            self.tentative[at].records.pop_front();
            self.apply(at, &entry);
        }
    }

    fn roll_back(&mut self, at: usize, after: Version, (slot, offset): (u32, u32)) {
        let records = &mut self.tentative[at].records;
        while records.back().is_some_and(|entry| entry.version > after) {
            records.pop_back();
        }
        let progress = &mut self.engine.ranges[at].progress;
        // Records still wait for a mark because they are above all that is committed.
        let last = records.back().map_or(progress.committed, |entry| entry.version);
        progress.appended = last;
        let sequence = self.engine.segments.expect(slot).sequence;
        let position = LogPosition::new(sequence, offset, self.engine.options.segment_bytes);
        self.engine.roll_back_segments(at, (last, after), position);
        if self.engine.ranges[at].id.is_none() {
            return self.engine.invalidate_for_heirs(at, after, (slot, position));
        }
        self.engine.enter_segment(at, slot, Version::ZERO, RecordKind::Rollback);
    }

    /// Applies a committed record.
    fn apply(&mut self, at: usize, entry: &ScannedEntry) {
        let &ScannedEntry { version, pointer, len_bytes, .. } = entry;
        let (slot, _) = self.engine.segments.slot_and_offset(pointer);
        let sequence = self.engine.segments.expect(slot).sequence;
        let needed_max = self.engine.needed_max;
        let range = &self.engine.ranges[at];
        let last = range.retained.back().map_or(range.complete_above, |kept| kept.version);
        self.close_gap(at, sequence, version, last);
        let range = &mut self.engine.ranges[at];
        range.progress.committed = range.progress.committed.max(version);
        match range.retain_floor {
            // A checkpoint knows that these are not needed: their segments may be dropped.
            Some(_) if version <= range.complete_above => {}
            Some(floor) => {
                range.retain(Retained { version, pointer, len_bytes, sequence }, floor, needed_max, needed_max);
            }
            None => range.complete_above = version,
        }
        let owner = entry.owner;
        if version > self.tentative[at].cleared && version > self.tentative[owner].cleared {
            self.index(owner, entry);
        }
    }

    /// Enters the record in the index, now or when the conflicts are settled.
    fn index(&mut self, at: usize, entry: &ScannedEntry) {
        match entry.kind {
            RecordKind::Clear => self.clear(at, entry.version),
            RecordKind::Put | RecordKind::Tombstone => self.index_write(at, entry),
            RecordKind::Result | RecordKind::CommitMark | RecordKind::Rollback => {}
        }
    }

    fn index_write(&mut self, at: usize, entry: &ScannedEntry) {
        let &ScannedEntry { version, name, .. } = entry;
        if self.deferred.replace(self.engine, (at, name), || entry.to_deferred(at)) {
            return;
        }
        // The foreground's own records have ascending versions, over splits and merges too. A survivor or a transferred record
        // may be newer.
        let may_be_older = entry.is_copied
            || version <= self.tentative[at].survivors_highest
            || self.deferred.may_have_newer_survivor(name.hash, version);
        let is_compared = may_be_older || entry.rank == CopyRank::Trace;
        if is_compared { self.index_compared(at, entry, false) } else { self.index_newest(at, entry) }
    }

    /// Enters the newest record that its key has so far. Its old version may be confirmed later.
    fn index_newest(&mut self, at: usize, entry: &ScannedEntry) {
        if self.deferred.has_room() && self.engine.has_candidates(at, KeyHash(entry.name.hash)) {
            return self.deferred.insert(self.engine, entry.to_deferred(at));
        }
        self.index_compared(at, entry, true);
    }

    /// Enters a record once its version is compared with that of its key's indexed record.
    fn index_compared(&mut self, at: usize, entry: &ScannedEntry, is_newest: bool) {
        let &ScannedEntry { version, pointer, len_bytes, kind, name, rank, is_kept_removal, .. } = entry;
        let is_put = kind == RecordKind::Put;
        if self.engine.has_candidates(at, KeyHash(name.hash)) {
            self.conflicts.push(Conflict {
                range: at,
                name,
                version,
                pointer,
                len_bytes,
                is_put,
                rank,
                is_newest,
                is_kept_removal,
            });
        } else if is_put {
            self.insert(at, name, pointer, len_bytes);
        }
    }

    fn insert(&mut self, at: usize, name: KeyName, pointer: Pointer, len_bytes: u32) {
        let written = Written { version: Version::ZERO, pointer, len_bytes, is_put: true };
        let (slot, _) = self.engine.segments.slot_and_offset(pointer);
        self.engine.segments.expect_mut(slot).add_live(at, len_bytes);
        self.engine.move_index(at, name, OverlayBase::Absent, written);
    }

    /// Invalidates all records of the range so far, including those in conflict.
    fn clear(&mut self, at: usize, version: Version) {
        self.conflicts.forget_range(at);
        self.deferred.forget_range(at);
        let listed = self.engine.ranges[at].cleared.listed;
        self.engine.recover_clears(at, listed, version);
        let Engine { ranges, segments, .. } = &mut *self.engine;
        ranges[at].index.clear();
        for &slot in ranges[at].segments.values() {
            segments.expect_mut(slot).clear_range(at, version, LogPosition(0));
        }
    }

    /// Whether a batch of reads for the conflicts is worthwhile.
    pub(super) fn must_resolve(&self) -> bool {
        self.conflicts.is_large()
    }

    /// Settles the conflicts. Nothing else may be in flight.
    pub(super) fn resolve(&mut self) -> Result<(), OpenError> {
        Ok(self.conflicts.resolve(self.engine, &mut self.deferred)?)
    }

    /// The log is read: what still waits for a mark stays pending.
    pub(super) fn finish(&mut self) -> Result<Vec<Stray>, OpenError> {
        for at in 0..self.engine.ranges.len() {
            // Only now: a rollback in the log may have invalidated records of lower versions.
            // A range that was split or merged had nothing pending.
            let is_retired = self.engine.ranges[at].id.is_none();
            let committed = if is_retired { Version::from_u64(u64::MAX) } else { self.tentative[at].committed };
            self.apply_through(at, committed);
            self.apply_sole(at);
        }
        let elders = self.engine.elders();
        (0..self.engine.ranges.len()).for_each(|at| self.engine.hand_over_results(at, &elders));
        self.engine.ranges.iter_mut().filter(|range| range.is_retired()).for_each(RangeState::retire);
        self.resolve()?;
        self.remove_tombstones();
        self.deferred.hand_over(self.engine);
        for at in 0..self.engine.ranges.len() {
            let records = core::mem::take(&mut self.tentative[at].records);
            for entry in records {
                self.pend(at, &entry);
            }
            self.engine.ranges[at].result_copies.drop_older_copies();
            let is_behind_gap = self.tentative[at].gap_before.is_some();
            let range = &mut self.engine.ranges[at];
            let last = range.retained.back().map_or(range.complete_above, |kept| kept.version);
            if is_behind_gap && last < range.progress.committed {
                // Only marks remain of the records after the gap.
                range.retained.clear();
                range.complete_above = range.progress.committed;
            }
        }
        let shares = self.engine.segments.iter_mut().flat_map(|segment| &mut segment.shares);
        shares.for_each(RangeShare::end_recovery);
        (0..self.engine.ranges.len()).for_each(|at| self.engine.note_all_dead_puts(at));
        Ok(core::mem::take(&mut self.strays).into_values().collect())
    }

    /// Removes the survivors' tombstones from the index, now that all older puts were read.
    fn remove_tombstones(&mut self) {
        for KeptTombstone { range, hash, pointer, len_bytes } in core::mem::take(&mut self.tombstones) {
            if self.engine.ranges[range].index.remove(hash, pointer) {
                self.engine.release_old(range, ReplacedRecord { pointer, len_bytes }, Version::ZERO);
            }
        }
    }

    /// Commits what the manifest says is committed by sole epochs, whether one of their records follows or not.
    fn apply_sole(&mut self, at: usize) {
        let Some(sole) = self.tentative[at].sole else { return };
        while let Some(entry) = self.tentative[at].records.front().copied().filter(|entry| sole.includes(entry.version))
        {
            self.tentative[at].records.pop_front();
            self.apply(at, &entry);
        }
        // The record of the base may be gone with its segment: it was committed all the same.
        let range = &mut self.engine.ranges[at];
        range.progress.committed = range.progress.committed.max(sole.base);
        range.progress.appended = range.progress.appended.max(sole.base);
        if range.needs_marks() {
            let marks = &mut range.marks;
            (marks.appended, marks.durable) = (marks.appended.max(sole.base), marks.durable.max(sole.base));
        }
    }

    /// Enters a pending record, as its append did.
    fn pend(&mut self, at: usize, entry: &ScannedEntry) {
        let &ScannedEntry { version, pointer, len_bytes, kind, name, .. } = entry;
        let range = &self.engine.ranges[at];
        let kept = range.retained.back().map_or(range.complete_above, |kept| kept.version);
        let last = range.pending.back().map_or(kept, |pending| pending.version);
        let sequence = self.engine.segments.expect(self.engine.segments.slot_and_offset(pointer).0).sequence;
        self.close_gap(at, sequence, version, last);
        let is_put = kind == RecordKind::Put;
        let kind = match kind {
            RecordKind::Put | RecordKind::Tombstone => {
                let written = Written { version, pointer, len_bytes, is_put };
                if is_put {
                    let (slot, _) = self.engine.segments.slot_and_offset(pointer);
                    self.engine.segments.expect_mut(slot).add_live(at, len_bytes);
                }
                self.engine.pend_recovered(at, name, written);
                PendingKind::OfKey { name, is_put }
            }
            RecordKind::Clear => {
                self.engine.ranges[at].pending_clear = Some(version);
                PendingKind::Clear
            }
            _ => PendingKind::Result,
        };
        self.engine.ranges[at].pending.push_back(PendingRecord { version, pointer, len_bytes, kind });
        self.engine.pending_records += 1;
    }
}

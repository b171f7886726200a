//! Exhaustive test of the drop rule: compares recovery after every crash with and without each dropped segment.
//!
//! Runs every history of a few steps over a model of the log. Each segment that the rule lets go must not change what
//! recovery finds after any later crash, and neither must cleaning: its copies are flushed or not, synced or not.
mod histories;

use super::{KeepReason, RangeFacts, SegmentFacts, keep_reason};
use crate::format::segment::{PerStream, StreamKind};
use crate::log::LogPosition;
use fawn_types::Version;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Committed version, appended version, index and pending records of a range.
type SeenRange = (u64, u64, [Option<u64>; KEYS], Vec<(Kind, u64)>);

fn positions(foreground: u64, survivors: u64) -> PerStream<LogPosition> {
    PerStream::from_fn(|kind| match kind {
        StreamKind::Foreground => LogPosition(foreground),
        StreamKind::Survivors => LogPosition(survivors),
    })
}

/// Sequence number of the first segment of survivors.
const SURVIVORS_FROM: u64 = 1000;

const RANGES: usize = 2;
const KEYS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Put(usize),
    Delete(usize),
    Clear,
    Mark,
    Rollback,
}

/// `at` is its position in the log; `is_invalidated`: it was rolled back, first by the record at `invalidated_by`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ModelRecord {
    range: usize,
    kind: Kind,
    version: u64,
    at: u64,
    is_invalidated: bool,
    invalidated_by: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct ModelSegment {
    sequence: u64,
    records: Vec<ModelRecord>,
    died_at: u64,
    died_by: [u64; RANGES],
    /// End of the survivors when its last copy was made.
    copied_at: u64,
    /// Its tombstones are with the survivors.
    is_cleaned: bool,
}

impl ModelSegment {
    fn is_survivors(&self) -> bool {
        self.sequence >= SURVIVORS_FROM
    }
}

/// Sole epochs as the manifest lists them: those of the versions above `after`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Sole {
    after: u64,
    base: u64,
    is_over: bool,
}

impl Sole {
    /// Whether a record is committed wherever it is found, once those before it that were not rolled back are.
    fn includes(&self, version: u64) -> bool {
        !self.is_over || version <= self.base
    }
}

/// A range in memory: committed version, index, pending records, newest version appended and synced, marks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct ModelRange {
    committed: u64,
    index: [Option<u64>; KEYS],
    /// Segments of the index's records.
    places: [u64; KEYS],
    /// Tombstones of survivors, while a recovery reads the foreground.
    tombstones: [u64; KEYS],
    /// Newest committed clear, and the one that the manifest lists.
    clear: u64,
    listed_clear: u64,
    pending: Vec<(Kind, u64)>,
    appended: u64,
    synced: u64,
    has_marks: bool,
    /// Marks before this place of the log were of an epoch before the last sole one.
    marks_from: u64,
    sole: Option<Sole>,
    /// By key: its newest committed record, while it is not known whether the index's record is of this key.
    unverified: [Option<Unverified>; KEYS],
}

/// A committed record that the index does not have yet, and the segment that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Unverified {
    kind: Kind,
    version: u64,
    place: u64,
}

/// How the store handles records whose old version is to be verified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Verification {
    /// Each is verified by its commit.
    AtOnce,
    /// By a step of its own.
    Later,
    /// The same, with a fault: a delete that waits for its verification hides no live put.
    LaterDeletesHideNothing,
    /// With another fault: what replaces such a delete need not be durable before the delete is dropped.
    LaterDeletesReplacedAtOnce,
}

impl ModelRange {
    fn is_sole(&self) -> bool {
        self.sole.is_some_and(|sole| !sole.is_over)
    }

    fn has_unverified_delete(&self) -> bool {
        self.unverified.iter().flatten().any(|unverified| matches!(unverified.kind, Kind::Delete(_)))
    }

    /// Version of the put that a lookup of the key finds.
    fn newest_put(&self, key: usize) -> Option<u64> {
        match self.unverified[key] {
            Some(Unverified { kind: Kind::Put(_), version, .. }) => Some(version),
            Some(_) => None,
            None => self.index[key],
        }
    }

    /// Enters a committed put that is in this segment, unless a newer record of the key is known.
    fn enter(&mut self, key: usize, version: u64, place: u64) {
        if version > self.tombstones[key] && self.index[key].is_none_or(|found| found <= version) {
            (self.index[key], self.places[key]) = (Some(version), place);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct DropRuleStore {
    segments: Vec<ModelSegment>,
    survivors: Vec<ModelSegment>,
    survivors_end: u64,
    survivors_synced: u64,
    ranges: [ModelRange; RANGES],
    /// Highest version assigned, including rolled-back ones.
    given: [u64; RANGES],
    end: u64,
    synced: u64,
    verification: Verification,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Write(usize, Kind),
    Commit(usize),
    /// Verifies the first of the range's records that wait for that.
    Verify(usize),
    Rollback(usize),
    Mark(usize),
    BeginSole(usize),
    EndSole(usize),
    Sync,
    Switch,
    Drop,
    /// Cleans the first segment that the rule allows.
    Clean,
    SyncSurvivors,
    /// Lists the range's committed clear in the manifest.
    ListClear(usize),
    Crash,
}

impl DropRuleStore {
    fn new(is_sole: [bool; RANGES], verification: Verification) -> Self {
        let segments = vec![ModelSegment { sequence: 1, ..ModelSegment::default() }];
        let range = |is_sole: bool| ModelRange { sole: is_sole.then(Sole::default), ..ModelRange::default() };
        let (ranges, survivors) = (is_sole.map(range), Vec::new());
        let (given, end, synced, survivors_end, survivors_synced) = ([0; RANGES], 0, 0, 0, 0);
        let mut store =
            Self { segments, survivors, survivors_end, survivors_synced, ranges, given, end, synced, verification };
        store.mark_all();
        store
    }

    fn append(&mut self, range: usize, kind: Kind, version: u64) {
        let record = ModelRecord { range, kind, version, at: self.end, is_invalidated: false, invalidated_by: 0 };
        self.segments.last_mut().unwrap().records.push(record);
        self.end += 1;
    }

    fn mark_all(&mut self) {
        for range in 0..RANGES {
            self.step(Step::Mark(range));
        }
    }

    /// Takes a step if it is possible; returns whether it was.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Write(at, kind) => {
                let range = &self.ranges[at];
                let is_mark = |record: &ModelRecord| {
                    record.range == at && record.kind == Kind::Mark && record.at >= range.marks_from
                };
                if !range.is_sole() && !self.segments.last().unwrap().records.iter().any(is_mark) {
                    self.append(at, Kind::Mark, self.ranges[at].committed);
                }
                self.given[at] += 1;
                let version = self.given[at];
                self.append(at, kind, version);
                self.ranges[at].pending.push((kind, version));
                self.ranges[at].appended = version;
            }
            Step::Commit(at) => {
                let Some(&(kind, version)) = self.ranges[at].pending.first() else { return false };
                self.ranges[at].pending.remove(0);
                self.apply(at, kind, version);
            }
            Step::Verify(at) => return self.verify(at),
            Step::Rollback(at) if !self.ranges[at].is_sole() && !self.ranges[at].pending.is_empty() => {
                let committed = self.ranges[at].committed;
                self.append(at, Kind::Rollback, committed);
                self.roll_back(at, committed, self.end - 1);
            }
            Step::Mark(at) if !self.ranges[at].is_sole() => self.append(at, Kind::Mark, self.ranges[at].committed),
            Step::BeginSole(at) if !self.ranges[at].is_sole() && self.ranges[at].pending.is_empty() => {
                self.sync();
                let base = self.ranges[at].appended;
                self.change_sole(at, Sole { after: self.given[at], base, is_over: false });
            }
            Step::EndSole(at) if self.ranges[at].is_sole() && self.ranges[at].pending.is_empty() => {
                self.sync();
                let ModelRange { sole, committed: base, .. } = self.ranges[at];
                self.change_sole(at, Sole { base, is_over: true, ..sole.unwrap() });
            }
            Step::Sync if self.synced < self.end => self.sync(),
            Step::Switch if self.segments.last().unwrap().records.iter().any(|record| record.kind != Kind::Mark) => {
                let sequence = self.segments.last().unwrap().sequence + 1;
                self.segments.push(ModelSegment { sequence, ..ModelSegment::default() });
                self.mark_all();
            }
            Step::Clean => return self.clean(),
            Step::SyncSurvivors if self.survivors_synced < self.survivors_end => {
                self.survivors_synced = self.survivors_end;
            }
            Step::ListClear(at) => {
                let durable = self.durably_committed(at);
                let range = &mut self.ranges[at];
                if range.clear <= range.listed_clear || range.clear > durable {
                    return false;
                }
                range.listed_clear = range.clear;
            }
            Step::Crash if self.synced < self.end => *self = self.recovered(self.synced, self.survivors_synced),
            _ => return false,
        }
        true
    }

    fn sync(&mut self) {
        self.synced = self.end;
        self.ranges.iter_mut().for_each(|range| range.synced = range.appended);
    }

    /// The manifest lists it before anything else happens.
    fn change_sole(&mut self, at: usize, sole: Sole) {
        let range = &mut self.ranges[at];
        (range.sole, range.marks_from) = (Some(sole), self.end);
    }

    /// Commits a record: the records that it replaces or removes die.
    fn apply(&mut self, at: usize, kind: Kind, version: u64) {
        let range = &mut self.ranges[at];
        if version <= range.listed_clear {
            // The manifest invalidates it.
            range.committed = range.committed.max(version);
            return;
        }
        if let Kind::Put(key) | Kind::Delete(key) = kind
            && self.is_left_unverified(at, key, Unverified { kind, version, place: self.place_of(at, kind, version) })
        {
            self.ranges[at].committed = self.ranges[at].committed.max(version);
            return;
        }
        let keys = match kind {
            Kind::Put(key) | Kind::Delete(key) => key..key + 1,
            Kind::Clear => 0..KEYS,
            Kind::Mark | Kind::Rollback => unreachable!("not committed"),
        };
        for key in keys {
            if let Some(old) = self.ranges[at].index[key].filter(|old| *old <= version) {
                // A crash may have cut off this put, but then it also cut off the record that replaced it.
                self.note_death(at, self.ranges[at].places[key], version);
                if old < version || !matches!(kind, Kind::Put(_)) {
                    self.ranges[at].index[key] = None;
                }
            }
            if kind == Kind::Clear
                && let Some(old) = self.ranges[at].unverified[key].take()
            {
                self.note_death(at, old.place, version);
            }
        }
        let place = self.place_of(at, kind, version);
        let range = &mut self.ranges[at];
        match kind {
            Kind::Put(key) => range.enter(key, version, place),
            Kind::Clear => range.clear = version,
            _ => {}
        }
        range.committed = range.committed.max(version);
    }

    /// The foreground's segment of a record.
    fn place_of(&self, at: usize, kind: Kind, version: u64) -> u64 {
        let holds = |segment: &&ModelSegment| {
            segment.records.iter().any(|record| record.range == at && record.version == version && record.kind == kind)
        };
        self.segments.iter().find(holds).map_or(0, |segment| segment.sequence)
    }

    /// A record in this segment was replaced or removed by the commit of `by`. The segment of a delete may be gone.
    fn note_death(&mut self, at: usize, place: u64, by: u64) {
        let end = self.end;
        if let Some(segment) = self.all_mut().find(|segment| segment.sequence == place) {
            segment.died_at = end;
            segment.died_by[at] = segment.died_by[at].max(by);
        }
    }

    /// Leaves a committed record out of the index, if the index has an older one that may be of its key. Returns whether the
    /// record is entered there later, or not at all.
    fn is_left_unverified(&mut self, at: usize, key: usize, written: Unverified) -> bool {
        let range = &self.ranges[at];
        let waiting = range.unverified[key];
        if waiting.is_some_and(|waiting| waiting.version >= written.version) {
            return true;
        }
        let is_newest =
            range.index[key].is_some_and(|old| old < written.version) && written.version > range.tombstones[key];
        if self.verification == Verification::AtOnce || !(is_newest || waiting.is_some()) {
            return false;
        }
        self.ranges[at].unverified[key] = Some(written);
        let is_forgotten = |old: &Unverified| {
            self.verification == Verification::LaterDeletesReplacedAtOnce && matches!(old.kind, Kind::Delete(_))
        };
        if let Some(old) = waiting.filter(|old| !is_forgotten(old)) {
            self.note_death(at, old.place, written.version);
        }
        true
    }

    fn verify(&mut self, at: usize) -> bool {
        let Some(key) = (0..KEYS).find(|&key| self.ranges[at].unverified[key].is_some()) else { return false };
        let Unverified { kind, version, place } = self.ranges[at].unverified[key].take().unwrap();
        if self.ranges[at].index[key].take().is_some() {
            self.note_death(at, self.ranges[at].places[key], version);
        }
        if kind == Kind::Put(key) {
            self.ranges[at].enter(key, version, place);
        }
        true
    }

    fn all(&self) -> impl Iterator<Item = &ModelSegment> {
        self.survivors.iter().chain(&self.segments)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut ModelSegment> {
        self.survivors.iter_mut().chain(&mut self.segments)
    }

    /// Whether a record of the segment with this sequence number is current for its key, or pending.
    fn is_live(&self, record: &ModelRecord, sequence: u64) -> bool {
        let range = &self.ranges[record.range];
        let is_pending = !record.is_invalidated && record.version > range.committed;
        let is_unverified = |key: usize| {
            let is_it =
                |found: Unverified| (found.kind, found.version, found.place) == (record.kind, record.version, sequence);
            range.unverified[key].is_some_and(is_it)
        };
        let is_current = |key: usize| {
            (range.index[key] == Some(record.version) && range.places[key] == sequence) || is_unverified(key)
        };
        matches!(record.kind, Kind::Put(key) if is_current(key) || is_pending)
    }

    /// Whether a tombstone may have to hide the record.
    fn may_be_hidden(&self, record: &ModelRecord, sequence: u64) -> bool {
        let hides_live = self.verification != Verification::LaterDeletesHideNothing
            && self.ranges[record.range].has_unverified_delete();
        matches!(record.kind, Kind::Put(_)) && (hides_live || !self.is_live(record, sequence))
    }

    /// Copies the needed records of the first segment that nothing but them keeps.
    fn clean(&mut self) -> bool {
        let can_clean = |segment: &&ModelSegment| {
            let (facts, ranges) = self.facts(segment);
            let has_unlisted = |at: usize| self.ranges[at].clear > self.ranges[at].listed_clear;
            let blind = |(at, facts): &(usize, RangeFacts)| {
                (*at, RangeFacts { live_records: 0, hides_puts: false, died_by: Version::ZERO, ..*facts })
            };
            let facts = SegmentFacts { died_at: PerStream::default(), ..facts };
            let is_kept = ranges.iter().any(|(_, range)| range.live_records > 0 || range.hides_puts);
            // They stay where their verification looks for them, and their segment with them.
            let mut unverified = self.ranges.iter().flat_map(|range| range.unverified.iter().flatten());
            is_kept
                && !unverified.any(|found| found.place == segment.sequence)
                && !segment.is_cleaned
                && !ranges.iter().any(|(at, _)| has_unlisted(*at))
                && keep_reason(&facts, ranges.iter().map(blind)).is_none()
        };
        let Some(victim) = self.all().find(can_clean).cloned() else { return false };
        let sequence = SURVIVORS_FROM + self.survivors_end;
        let mut copies = ModelSegment { sequence, ..ModelSegment::default() };
        for record in victim.records.iter().filter(|record| !record.is_invalidated) {
            let range = &self.ranges[record.range];
            let is_needed = record.version > range.listed_clear
                && match record.kind {
                    Kind::Put(key) => range.index[key] == Some(record.version) && range.places[key] == victim.sequence,
                    Kind::Delete(_) => self.all().any(|other| {
                        let is_hidden = |found: &ModelRecord| {
                            found.range == record.range
                                && self.may_be_hidden(found, other.sequence)
                                && found.version <= record.version
                        };
                        other.sequence != victim.sequence && other.records.iter().any(is_hidden)
                    }),
                    Kind::Clear | Kind::Mark | Kind::Rollback => false,
                };
            if is_needed {
                copies.records.push(ModelRecord { at: self.survivors_end, ..*record });
                self.survivors_end += 1;
            }
        }
        for record in &copies.records {
            if let Kind::Put(key) = record.kind {
                self.ranges[record.range].places[key] = sequence;
            }
        }
        if !copies.records.is_empty() {
            self.survivors.push(copies);
        }
        let end = self.survivors_end;
        let cleaned = self.all_mut().find(|segment| segment.sequence == victim.sequence).unwrap();
        (cleaned.is_cleaned, cleaned.copied_at) = (true, end);
        true
    }

    /// Invalidates the range's records above `last` that lie before log position `before`.
    fn roll_back(&mut self, at: usize, last: u64, before: u64) {
        let range = &mut self.ranges[at];
        range.pending.retain(|&(_, version)| version <= last);
        range.appended = range.pending.last().map_or(range.committed, |&(_, version)| version);
        range.synced = range.synced.min(range.appended);
        for segment in &mut self.segments {
            for record in segment.records.iter_mut().filter(|record| record.range == at && record.version > last) {
                if !record.is_invalidated && record.at < before {
                    (record.is_invalidated, record.invalidated_by) = (true, before);
                    segment.died_at = self.end;
                }
            }
        }
    }

    /// The state that recovery builds from the foreground up to `cut`, and from the survivors up to `survivors_cut`.
    fn recovered(&self, cut: u64, survivors_cut: u64) -> Self {
        let manifest = |at: usize| {
            let ModelRange { sole, listed_clear, .. } = self.ranges[at];
            ModelRange { sole, listed_clear, clear: listed_clear, ..ModelRange::default() }
        };
        let ranges = std::array::from_fn(manifest);
        let mut store = Self { ranges, end: 0, synced: cut, ..self.clone() };
        (store.survivors_end, store.survivors_synced) = (survivors_cut, survivors_cut);
        store.recover_survivors(survivors_cut);
        let records: Vec<ModelRecord> = self.segments.iter().flat_map(|segment| &segment.records).copied().collect();
        for segment in &mut store.segments {
            segment.records.retain(|record| record.at < cut);
            segment.records.iter_mut().for_each(|record| (record.is_invalidated, record.invalidated_by) = (false, 0));
            (segment.died_at, segment.died_by) = (0, [0; RANGES]);
            (segment.copied_at, segment.is_cleaned) = (0, false);
        }
        let last = store.segments.pop().unwrap();
        store.segments.retain(|segment| !segment.records.is_empty());
        if store.segments.is_empty() || !last.records.is_empty() {
            store.segments.push(last);
        }
        for record in records.into_iter().filter(|record| record.at < cut) {
            store.recover(&record);
        }
        (0..RANGES).for_each(|at| store.recover_sole(at));
        store.ranges.iter_mut().for_each(|range| range.tombstones = [0; KEYS]);
        store.all_mut().for_each(|segment| segment.died_at = 0);
        store.end = cut;
        store
    }

    fn recover_survivors(&mut self, cut: u64) {
        for segment in &mut self.survivors {
            segment.records.retain(|record| record.at < cut);
            (segment.died_at, segment.died_by) = (0, [0; RANGES]);
            (segment.copied_at, segment.is_cleaned) = (0, false);
        }
        self.survivors.retain(|segment| !segment.records.is_empty());
        for segment in &self.survivors {
            for record in &segment.records {
                let range = &mut self.ranges[record.range];
                range.committed = range.committed.max(record.version);
                range.appended = range.appended.max(record.version);
                match record.kind {
                    _ if record.version <= range.listed_clear => {}
                    Kind::Put(key) => range.enter(key, record.version, segment.sequence),
                    Kind::Delete(key) => {
                        range.tombstones[key] = range.tombstones[key].max(record.version);
                        range.index[key] = range.index[key].filter(|found| *found > record.version);
                    }
                    Kind::Clear | Kind::Mark | Kind::Rollback => unreachable!("never copied"),
                }
            }
        }
    }

    fn recover(&mut self, record: &ModelRecord) {
        let &ModelRecord { range: at, kind, version, at: place, .. } = record;
        match kind {
            Kind::Mark => {
                self.ranges[at].has_marks = true;
                while self.ranges[at].pending.first().is_some_and(|&(_, first)| first <= version) {
                    self.step(Step::Commit(at));
                }
                let range = &mut self.ranges[at];
                range.committed = range.committed.max(version);
                range.appended = range.appended.max(version);
            }
            Kind::Rollback => self.roll_back(at, version, place),
            _ => {
                let range = &mut self.ranges[at];
                range.appended = range.appended.max(version);
                range.pending.push((kind, version));
                if range.sole.is_some_and(|sole| version > sole.after && sole.includes(version)) {
                    while self.step(Step::Commit(at)) {}
                } else if !self.ranges[at].has_marks {
                    self.step(Step::Commit(at));
                }
            }
        }
    }

    /// Adds the manifest's facts to those of the log.
    fn recover_sole(&mut self, at: usize) {
        if let Some(sole) = self.ranges[at].sole {
            while self.ranges[at].pending.first().is_some_and(|&(_, first)| sole.includes(first)) {
                self.step(Step::Commit(at));
            }
            let range = &mut self.ranges[at];
            range.committed = range.committed.max(sole.base);
            range.appended = range.appended.max(sole.base);
        }
        self.ranges[at].synced = self.ranges[at].appended;
    }

    /// The state that callers can observe after an open.
    fn seen(&self) -> Vec<SeenRange> {
        let index = |range: &ModelRange| core::array::from_fn(|key| range.newest_put(key));
        let of_range = |range: &ModelRange| (range.committed, range.appended, index(range), range.pending.clone());
        self.ranges.iter().map(of_range).collect()
    }

    fn newest_durable_mark(&self, at: usize) -> Option<(u64, u64)> {
        if self.ranges[at].is_sole() {
            return None;
        }
        let (from, synced) = (self.ranges[at].marks_from, self.synced);
        let mut marks =
            self.segments.iter().flat_map(|segment| segment.records.iter().map(move |record| (segment, record)));
        marks
            .rfind(|(_, record)| record.range == at && record.kind == Kind::Mark && (from..synced).contains(&record.at))
            .map(|(segment, record)| (segment.sequence, record.version))
    }

    fn facts(&self, segment: &ModelSegment) -> (SegmentFacts, Vec<(usize, RangeFacts)>) {
        let last = self.segments.last().unwrap().sequence;
        let synced = if segment.is_survivors() { self.survivors_synced } else { self.synced };
        let is_synced = segment.records.iter().all(|record| record.at < synced);
        let has_mark = |at: &usize| self.newest_durable_mark(*at).is_some_and(|(found, _)| found == segment.sequence);
        let facts = SegmentFacts {
            is_sealed: segment.sequence != last && is_synced,
            pins: 0,
            newest_marks: (0..RANGES).filter(has_mark).count() as u32,
            died_at: positions(segment.died_at, segment.copied_at),
            synced: positions(self.synced, self.survivors_synced),
        };
        (facts, (0..RANGES).filter_map(|at| Some((at, self.range_facts(segment, at)?))).collect())
    }

    fn range_facts(&self, segment: &ModelSegment, at: usize) -> Option<RangeFacts> {
        let of_range = |segment: &ModelSegment| -> Vec<ModelRecord> {
            let is_history = |record: &&ModelRecord| record.range == at && record.kind != Kind::Mark;
            segment.records.iter().filter(is_history).copied().collect()
        };
        let (records, range) = (of_range(segment), &self.ranges[at]);
        if records.is_empty() {
            return None;
        }
        let is_live = |record: &&ModelRecord| self.is_live(record, segment.sequence);
        let newest = records.iter().filter(|record| !record.is_invalidated && record.kind != Kind::Rollback);
        let newest = newest.map(|record| record.version).max().unwrap_or(0);
        let (base, durable) = (range.sole.map_or(0, |sole| sole.base), self.durably_committed(at));
        let others = || self.all().filter(|other| other.sequence != segment.sequence);
        let is_hidden = |record: &ModelRecord, sequence: u64| {
            let hides = |other: &ModelRecord| {
                let hides = match other.kind {
                    Kind::Delete(_) => !segment.is_cleaned,
                    Kind::Clear => other.version > range.listed_clear,
                    Kind::Put(_) | Kind::Mark | Kind::Rollback => false,
                };
                hides && other.version >= record.version
            };
            self.may_be_hidden(record, sequence) && records.iter().any(hides)
        };
        let rolls_back = |record: &ModelRecord| {
            let by = record.invalidated_by;
            record.is_invalidated && records.iter().any(|own| own.kind == Kind::Rollback && own.at == by)
        };
        let mut earlier = others().filter(|other| other.sequence < segment.sequence && !segment.is_survivors());
        let facts = RangeFacts {
            live_records: records.iter().filter(is_live).count() as u64,
            newest: Version::from_u64(newest),
            died_by: Version::from_u64(segment.died_by[at]),
            hides_puts: others().any(|other| of_range(other).iter().any(|record| is_hidden(record, other.sequence))),
            hides_rolled_back: earlier.any(|other| of_range(other).iter().any(rolls_back)),
            keeps_results: false,
            committed: Version::from_u64(range.committed),
            retained_above: Version::from_u64(range.committed),
            proves_commit: range.is_sole() && newest > base && newest >= range.synced,
            durably_committed: Version::from_u64(durable),
        };
        Some(match segment.is_survivors() {
            true => RangeFacts { newest: Version::ZERO, proves_commit: false, ..facts },
            false => facts,
        })
    }

    fn durably_committed(&self, at: usize) -> u64 {
        let range = &self.ranges[at];
        let by_mark = self.newest_durable_mark(at).map_or(0, |(_, version)| version);
        range.sole.map_or(0, |sole| sole.base).max(if range.is_sole() { range.synced } else { by_mark })
    }

    fn without(&self, sequence: u64) -> Self {
        let mut store = self.clone();
        store.segments.retain(|segment| segment.sequence != sequence);
        store.survivors.retain(|segment| segment.sequence != sequence);
        store
    }
}

//! Manifest state: the result of all edits; edits that contradict it are corruption and refused.
use super::{Ancestor, ManifestEdit, RunEntry, SegmentSeal};
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{
    FORMAT_OLDEST, FORMAT_VERSION, FRAMES_OFFSET, RangeNumber, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SegmentUuid,
    StoreUuid, Watermark,
};
use crate::index::PointerWidth;
use fawn_types::{Epoch, HashSecret, KeyRange, MonoMs, RangeId, TimeMs, Version};
use std::collections::BTreeMap;

/// A key range of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestRange {
    /// Boundaries of its keys.
    pub keys: KeyRange,
    /// Its records up to this version are invalidated.
    pub cleared: Version,
    /// How its records began; without it there are none.
    pub beginning: Option<RangeBeginning>,
    /// Its last sole epochs, if it had any since its records began.
    pub sole: Option<SoleEpochs>,
    /// The split and merged ranges whose records it has too, and whose numbers a segment may have.
    pub lineage: Vec<Ancestor>,
}

/// Successive epochs in which the store was a range's only serving member. Commit marks say nothing about their
/// records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoleEpochs {
    /// The first of them. No other epoch of the range is between it and the last.
    pub first: Epoch,
    /// The last of them.
    pub epoch: Epoch,
    /// Newest version that is known to be committed: the end of the log when the last of them began, or what was
    /// committed when it ended.
    pub base: Version,
    /// The last of them has ended.
    pub is_over: bool,
}

impl SoleEpochs {
    /// Whether a record of this version is committed wherever it is found.
    #[must_use]
    pub fn covers(&self, version: Version) -> bool {
        (self.first..=self.epoch).contains(&version.epoch()) && self.includes(version)
    }

    /// Whether all records up to this version that were not rolled back are committed.
    #[must_use]
    pub fn includes(&self, version: Version) -> bool {
        if self.is_over { version <= self.base } else { version.epoch() <= self.epoch }
    }

    /// The edits that lead here.
    fn snapshot(&self, range: RangeId) -> impl Iterator<Item = ManifestEdit> {
        let Self { first, epoch, base, is_over } = *self;
        let begin = |epoch, base| ManifestEdit::BeginSoleEpoch { range, epoch, base };
        // A base is below the epoch that begins with it, and may be above the first one.
        let earlier = (first < epoch || is_over).then(|| begin(first, Version::ZERO));
        let last = match (is_over, first < epoch) {
            (false, _) => Some(begin(epoch, base)),
            (true, true) => Some(begin(epoch, Version::ZERO)),
            (true, false) => None,
        };
        let end = is_over.then_some(ManifestEdit::EndSoleEpoch { range, base });
        earlier.into_iter().chain(last).chain(end)
    }
}

/// How the records of a range began: empty, or with a state transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeBeginning {
    /// The records' local number.
    pub number: RangeNumber,
    /// Sequence number of a segment: earlier ones have no record under this number.
    pub since: u64,
    /// Records up to this version are transferred; the range's own history continues after it.
    pub base: Version,
    /// All transferred records are in the log; otherwise all of the range is invalidated.
    pub is_whole: bool,
}

/// A segment listed in the manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentEntry {
    /// Its UUID.
    pub uuid: SegmentUuid,
    /// Its position among all segments of the store.
    pub sequence: u64,
    /// The stream that it belongs to.
    pub stream: StreamKind,
    /// Its end and contents, once it is complete and synced.
    pub seal: Option<SegmentSeal>,
    /// Its records that counted are in a run, or were copied: all only hide older ones.
    pub is_sorted: bool,
}

impl SegmentEntry {
    /// End of its last frame, bytes, once it is sealed.
    #[must_use]
    pub fn sealed_len(&self) -> Option<u32> {
        self.seal.as_ref().map(|seal| seal.len)
    }
}

/// A checkpoint of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointEntry {
    /// UUID of the checkpoint.
    pub uuid: SegmentUuid,
    /// Length of its file up to the end of its last piece, bytes.
    pub len_bytes: u64,
}

/// An edit that contradicts the edits before it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("manifest edit {edit:?}: {why}; the manifest is corrupt: restore it from a copy")]
pub struct ApplyError {
    /// The refused edit.
    pub edit: ManifestEdit,
    /// The violated rule.
    pub why: &'static str,
}

/// State of a store, by its manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManifestState {
    /// UUID, format, segment length, secret; `None` before the first edit.
    pub identity: Option<Identity>,
    /// Number of opens for writing.
    pub generation: u32,
    /// Key ranges by id.
    pub ranges: BTreeMap<RangeId, ManifestRange>,
    /// The highest local number ever assigned. The log may have invalidated records under numbers that no listed range
    /// has; above this one it has none.
    pub last_number: RangeNumber,
    /// Segments by slot.
    pub segments: BTreeMap<u32, SegmentEntry>,
    /// The highest segment sequence number ever assigned.
    pub last_sequence: u64,
    /// Last recorded end of each stream, synced.
    pub ends_of_log: PerStream<Watermark>,
    /// Blobs of higher layers.
    pub blobs: BTreeMap<u32, Vec<u8>>,
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointEntry>,
    /// Deletes have index entries, because there may be runs.
    pub indexes_deletes: bool,
    /// Runs, by age, then in the order of their listing.
    pub runs: Vec<RunEntry>,
    /// Last persisted expiry time, and the monotonic clock at that time.
    pub clock: Option<(TimeMs, MonoMs)>,
}

/// Permanent properties of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// UUID of the store.
    pub store: StoreUuid,
    /// Format number of its segments.
    pub format: u32,
    /// Length of each segment, bytes.
    pub segment_bytes: u32,
    /// Secret of the key hashes.
    pub secret: HashSecret,
    /// Length of the pointers into its log.
    pub pointers: PointerWidth,
}

impl ManifestState {
    /// The number of the next range to begin.
    pub(crate) fn next_number(&self) -> RangeNumber {
        RangeNumber(self.last_number.0 + 1)
    }

    /// Applies `edit`. If it contradicts the state, nothing has changed.
    ///
    /// # Errors
    /// The rule that the edit violates.
    pub fn apply(&mut self, edit: &ManifestEdit) -> Result<(), ApplyError> {
        let verdict = match edit {
            ManifestEdit::Identity { .. } => self.identify(edit),
            _ if self.identity.is_none() => Err("the first edit must be the identity"),
            ManifestEdit::Generation(generation) => self.begin_generation(*generation),
            ManifestEdit::AddRange { .. } | ManifestEdit::DropRange { .. } | ManifestEdit::ClearRange { .. } => {
                self.change_range(edit)
            }
            ManifestEdit::BeginRange { .. } | ManifestEdit::RangeWhole { .. } => self.begin_range(edit),
            ManifestEdit::SplitRange { parent, left, left_number, right, right_number, since, base, boundary } => {
                self.split_range(*parent, *boundary, [(*left, *left_number), (*right, *right_number)], (*since, *base))
            }
            ManifestEdit::MergeRanges { left, right, into, number, since, base } => {
                self.merge_ranges([*left, *right], [(*into, *number)], (*since, *base))
            }
            ManifestEdit::Lineage { range, ancestors } => self.set_lineage(*range, ancestors),
            ManifestEdit::LastNumber(number) => assign_number(&mut self.last_number, *number),
            ManifestEdit::BeginSoleEpoch { range, epoch, base } => self.begin_sole_epoch(*range, *epoch, *base),
            ManifestEdit::EndSoleEpoch { range, base } => self.end_sole_epoch(*range, *base),
            ManifestEdit::AddSegment { slot, uuid, sequence, stream } => self.add_segment(
                *slot,
                SegmentEntry { uuid: *uuid, sequence: *sequence, stream: *stream, seal: None, is_sorted: false },
            ),
            ManifestEdit::SealSegment { slot, seal } => self.seal_segment(*slot, seal),
            ManifestEdit::DropSegment { slot, uuid } => self.drop_segment(*slot, *uuid),
            ManifestEdit::Pad { .. } => Ok(()),
            ManifestEdit::AddCheckpoint { uuid, len_bytes } => self.add_checkpoint(*uuid, *len_bytes),
            ManifestEdit::DropCheckpoint { uuid } => self.drop_checkpoint(*uuid),
            ManifestEdit::IndexDeletes => {
                self.indexes_deletes = true;
                Ok(())
            }
            ManifestEdit::AddRun(entry) => self.add_run(*entry),
            ManifestEdit::DropRun { uuid } => self.drop_run(*uuid),
            ManifestEdit::SortSegment { slot, uuid } => self.sort_segment(*slot, *uuid),
            ManifestEdit::EndOfLog { stream, end } => self.end_log(*stream, *end),
            ManifestEdit::Clock { time, mono } => self.set_clock(*time, *mono),
            ManifestEdit::Blob { key, bytes } => {
                if bytes.is_empty() {
                    self.blobs.remove(key);
                } else {
                    self.blobs.insert(*key, bytes.clone());
                }
                Ok(())
            }
        };
        verdict.map_err(|why| ApplyError { edit: edit.clone(), why })
    }

    fn identify(&mut self, edit: &ManifestEdit) -> Result<(), &'static str> {
        let ManifestEdit::Identity { store, format, segment_bytes, secret, pointers } = *edit else {
            return Err("an identity");
        };
        if self.identity.is_some() {
            return Err("a store has one identity");
        }
        if !(FORMAT_OLDEST..=FORMAT_VERSION).contains(&format) {
            return Err("the segments' format is not one that this fawn reads");
        }
        if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            return Err("the segments' length must be a power of two within the limits");
        }
        self.identity = Some(Identity { store, format, segment_bytes, secret, pointers });
        Ok(())
    }

    fn set_clock(&mut self, time: TimeMs, mono: MonoMs) -> Result<(), &'static str> {
        if self.clock.is_some_and(|(last, _)| last > time) {
            return Err("expiry time never falls");
        }
        self.clock = Some((time, mono));
        Ok(())
    }

    fn begin_generation(&mut self, generation: u32) -> Result<(), &'static str> {
        if generation <= self.generation {
            return Err("generations only grow");
        }
        self.generation = generation;
        Ok(())
    }

    fn change_range(&mut self, edit: &ManifestEdit) -> Result<(), &'static str> {
        match *edit {
            ManifestEdit::AddRange { range, keys } => {
                let is_piece =
                    keys.start.is_boundary() && keys.end.is_none_or(|end| end.is_boundary() && end > keys.start);
                if !is_piece {
                    return Err("a range goes from one boundary to a higher one");
                }
                if self.ranges.contains_key(&range) {
                    return Err("this range is listed already");
                }
                let entry =
                    ManifestRange { keys, cleared: Version::ZERO, beginning: None, sole: None, lineage: Vec::new() };
                self.ranges.insert(range, entry);
            }
            ManifestEdit::DropRange { range } => {
                self.ranges.remove(&range).ok_or("this range is not listed")?;
            }
            ManifestEdit::ClearRange { range, version } => {
                let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
                // A repeated clear with an older version is harmless and changes nothing.
                entry.cleared = entry.cleared.max(version);
            }
            _ => return Err("an edit of a range"),
        }
        Ok(())
    }

    fn begin_range(&mut self, edit: &ManifestEdit) -> Result<(), &'static str> {
        match *edit {
            ManifestEdit::BeginRange { range, number, since, base } => {
                let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
                assign_number(&mut self.last_number, number)?;
                entry.beginning = Some(RangeBeginning { number, since, base, is_whole: false });
                // An earlier clear and sole epochs concerned records that are invalidated now.
                entry.cleared = Version::ZERO;
                entry.sole = None;
                entry.lineage.clear();
            }
            ManifestEdit::RangeWhole { range } => {
                let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
                let beginning = entry.beginning.as_mut().filter(|beginning| !beginning.is_whole);
                beginning.ok_or("this range has not begun, or is whole already")?.is_whole = true;
            }
            _ => return Err("an edit that begins a range"),
        }
        Ok(())
    }

    fn begin_sole_epoch(&mut self, range: RangeId, epoch: Epoch, base: Version) -> Result<(), &'static str> {
        let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
        if base.epoch() >= epoch && base > Version::ZERO {
            return Err("an epoch begins above the range's log");
        }
        if entry.beginning.is_none_or(|beginning| !beginning.is_whole) {
            return Err("a range that is not whole serves no epoch");
        }
        let last = entry.sole;
        if last.is_some_and(|last| last.epoch >= epoch || last.base > base) {
            return Err("sole epochs and their bases only grow");
        }
        let first = last.filter(|last| !last.is_over).map_or(epoch, |last| last.first);
        entry.sole = Some(SoleEpochs { first, epoch, base, is_over: false });
        Ok(())
    }

    fn end_sole_epoch(&mut self, range: RangeId, base: Version) -> Result<(), &'static str> {
        let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
        let sole = entry.sole.as_mut().filter(|sole| !sole.is_over).ok_or("no sole epoch of this range has begun")?;
        if base < sole.base || base.epoch() > sole.epoch {
            return Err("a sole epoch ends between its base and the next epoch");
        }
        (sole.base, sole.is_over) = (base, true);
        Ok(())
    }

    fn add_segment(&mut self, slot: u32, entry: SegmentEntry) -> Result<(), &'static str> {
        if self.segments.contains_key(&slot) {
            return Err("this slot is taken");
        }
        if entry.sequence <= self.last_sequence {
            return Err("segment sequence numbers only grow");
        }
        let slots = self.identity.map_or(0, |identity| slots_max(identity.segment_bytes, identity.pointers));
        if slot >= slots {
            return Err("this slot is past what a pointer can name");
        }
        self.last_sequence = entry.sequence;
        self.segments.insert(slot, entry);
        Ok(())
    }

    fn seal_segment(&mut self, slot: u32, seal: &SegmentSeal) -> Result<(), &'static str> {
        let segment_bytes = self.identity.map_or(0, |identity| identity.segment_bytes);
        let entry = self.segments.get_mut(&slot).ok_or("this slot is not taken")?;
        if entry.seal.is_some() {
            return Err("this segment is sealed already");
        }
        if seal.len < FRAMES_OFFSET || seal.len > segment_bytes {
            return Err("a sealed length lies between the header's end and the segment's");
        }
        if seal.facts.numbers.iter().any(|facts| facts.number > self.last_number || facts.lowest > facts.highest) {
            return Err("a sealed segment has records under assigned numbers, with a lowest and a highest version");
        }
        entry.seal = Some(seal.clone());
        Ok(())
    }

    fn drop_segment(&mut self, slot: u32, uuid: SegmentUuid) -> Result<(), &'static str> {
        match self.segments.get(&slot) {
            Some(entry) if entry.uuid == uuid => {
                self.segments.remove(&slot);
                Ok(())
            }
            Some(_) => Err("another segment is in this slot"),
            None => Err("this slot is not taken"),
        }
    }

    fn add_checkpoint(&mut self, uuid: SegmentUuid, len_bytes: u64) -> Result<(), &'static str> {
        if self.checkpoints.iter().any(|checkpoint| checkpoint.uuid == uuid) {
            return Err("this checkpoint is listed already");
        }
        self.checkpoints.push(CheckpointEntry { uuid, len_bytes });
        Ok(())
    }

    fn drop_checkpoint(&mut self, uuid: SegmentUuid) -> Result<(), &'static str> {
        let at = self.checkpoints.iter().position(|checkpoint| checkpoint.uuid == uuid);
        self.checkpoints.remove(at.ok_or("this checkpoint is not listed")?);
        Ok(())
    }

    fn end_log(&mut self, stream: StreamKind, end: Watermark) -> Result<(), &'static str> {
        let segment_bytes = self.identity.map_or(0, |identity| identity.segment_bytes);
        if end < self.ends_of_log[stream] {
            return Err("the synced end of the log only grows");
        }
        if end.sequence > self.last_sequence {
            return Err("the log ends in a segment that was listed");
        }
        if end.offset < FRAMES_OFFSET || end.offset > segment_bytes {
            return Err("the log ends between a segment's header and its end");
        }
        self.ends_of_log[stream] = end;
        Ok(())
    }

    /// The edits that rebuild this state, identity first; empty before there is one.
    #[must_use]
    pub fn snapshot(&self) -> Vec<ManifestEdit> {
        let Some(identity) = self.identity else { return Vec::new() };
        let Identity { store, format, segment_bytes, secret, pointers } = identity;
        let mut edits = vec![ManifestEdit::Identity { store, format, segment_bytes, secret, pointers }];
        if self.generation > 0 {
            edits.push(ManifestEdit::Generation(self.generation));
        }
        edits.extend(self.clock.map(|(time, mono)| ManifestEdit::Clock { time, mono }));
        edits.extend(self.snapshot_ranges());
        edits.extend(self.snapshot_segments());
        for stream in StreamKind::ALL {
            let end = self.ends_of_log[stream];
            edits.extend((end > Watermark::NONE).then_some(ManifestEdit::EndOfLog { stream, end }));
        }
        let checkpoints = self.checkpoints.iter();
        edits.extend(
            checkpoints.map(|&CheckpointEntry { uuid, len_bytes }| ManifestEdit::AddCheckpoint { uuid, len_bytes }),
        );
        edits.extend(self.indexes_deletes.then_some(ManifestEdit::IndexDeletes));
        edits.extend(self.runs.iter().map(|&entry| ManifestEdit::AddRun(entry)));
        edits.extend(self.blobs.iter().map(|(&key, bytes)| ManifestEdit::Blob { key, bytes: bytes.clone() }));
        edits
    }

    /// Ordered by local number, because an edit must not assign a lower one than the edit before.
    fn snapshot_ranges(&self) -> Vec<ManifestEdit> {
        let number_of = |entry: &ManifestRange| entry.beginning.map_or(RangeNumber(0), |beginning| beginning.number);
        let mut ranges: Vec<_> = self.ranges.iter().collect();
        ranges.sort_by_key(|(_, entry)| number_of(entry));
        let last = ranges.last().map_or(RangeNumber(0), |(_, entry)| number_of(entry));
        let mut edits = Vec::new();
        for (&range, entry) in ranges {
            edits.push(ManifestEdit::AddRange { range, keys: entry.keys });
            if let Some(RangeBeginning { number, since, base, is_whole }) = entry.beginning {
                edits.push(ManifestEdit::BeginRange { range, number, since, base });
                edits.extend(is_whole.then_some(ManifestEdit::RangeWhole { range }));
            }
            if !entry.lineage.is_empty() {
                edits.push(ManifestEdit::Lineage { range, ancestors: entry.lineage.clone() });
            }
            if entry.cleared > Version::ZERO {
                edits.push(ManifestEdit::ClearRange { range, version: entry.cleared });
            }
            edits.extend(entry.sole.iter().flat_map(|sole| sole.snapshot(range)));
        }
        edits.extend((last < self.last_number).then_some(ManifestEdit::LastNumber(self.last_number)));
        edits
    }

    /// Ordered by sequence number, because an edit must not add a lower one than the edit before.
    fn snapshot_segments(&self) -> Vec<ManifestEdit> {
        let mut segments: Vec<_> = self.segments.iter().collect();
        segments.sort_by_key(|(_, entry)| entry.sequence);
        let mut edits = Vec::new();
        let mut last = 0;
        for (&slot, SegmentEntry { uuid, sequence, stream, seal, is_sorted }) in segments {
            let (uuid, sequence, stream) = (*uuid, *sequence, *stream);
            edits.push(ManifestEdit::AddSegment { slot, uuid, sequence, stream });
            edits.extend(seal.clone().map(|seal| ManifestEdit::SealSegment { slot, seal }));
            edits.extend(is_sorted.then_some(ManifestEdit::SortSegment { slot, uuid }));
            last = sequence;
        }
        if let Some(slot) = (0..).find(|slot| !self.segments.contains_key(slot)).filter(|_| last < self.last_sequence) {
            // The highest number belonged to a dropped segment: it is listed and dropped again, so that it is not
            // reused.
            let (uuid, stream) = (SegmentUuid::default(), StreamKind::default());
            edits.push(ManifestEdit::AddSegment { slot, uuid, sequence: self.last_sequence, stream });
            edits.push(ManifestEdit::DropSegment { slot, uuid });
        }
        edits
    }
}

fn assign_number(last: &mut RangeNumber, number: RangeNumber) -> Result<(), &'static str> {
    if number <= *last {
        return Err("local numbers of ranges only grow");
    }
    *last = number;
    Ok(())
}

/// Most segments of any store: a table of them stays within memory, whatever a manifest says.
const SEGMENTS_MAX: u32 = 1 << 20;

/// Number of segments of `segment_bytes` that a store with these pointers may have.
#[must_use]
pub const fn slots_max(segment_bytes: u32, pointers: PointerWidth) -> u32 {
    let named = pointers.log_bytes_max() / segment_bytes as u64;
    if named < SEGMENTS_MAX as u64 { named as u32 } else { SEGMENTS_MAX }
}

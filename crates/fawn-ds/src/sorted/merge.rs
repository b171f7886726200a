//! Merge of sorted sources: the newest record of each key, and of tombstones and expired records only those that hide.
use super::source::{RunSource, SortBuffer, SourceHead};
use super::{Pushed, RunError, RunWriteError, RunWriter};
use crate::format::RangeNumber;
use crate::format::record::RecordKind;
use crate::format::run::record::RECORD_BYTES_MAX;
use crate::format::run::{RunRecord, Space};
use fawn_types::{RingKey, TimeMs};

/// Properties of a key's newest record that decide its fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WinnerFacts {
    /// It is a tombstone.
    pub is_tombstone: bool,
    /// It is a put whose expiry time has come.
    pub is_expired: bool,
    /// A record of the key may be outside of the merge that needs this one: see [`MergeRules::may_hide`].
    pub may_hide: bool,
}

/// The fate of a key's newest record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is written as it is.
    Keep,
    /// A tombstone of its version is written.
    KeepAsTombstone,
    /// Nothing is written: the key is absent without it.
    Drop,
}

/// The rule: a dead record stays, as a tombstone, exactly while it may hide an older one, or lead scans to a newer one.
#[must_use]
pub const fn fate(facts: WinnerFacts) -> Fate {
    match facts {
        WinnerFacts { is_tombstone: false, is_expired: false, .. } => Fate::Keep,
        WinnerFacts { may_hide: false, .. } => Fate::Drop,
        WinnerFacts { is_tombstone: true, .. } => Fate::Keep,
        WinnerFacts { is_tombstone: false, .. } => Fate::KeepAsTombstone,
    }
}

/// Facts about the store outside of the merge.
pub struct MergeRules<'r> {
    /// The time by which records expire.
    pub now: TimeMs,
    /// Whether a record does not count: of a dropped number, cleared, rolled back, or out of its range's bounds. Such a
    /// record hides nothing, whatever its version.
    pub is_invalidated: &'r dyn Fn(&RunRecord<'_>, &RingKey) -> bool,
    /// The local number under which a record that counts is written: that of the range that has its key now.
    pub number: &'r dyn Fn(&RunRecord<'_>, &RingKey) -> RangeNumber,
    /// Whether an older record of the key may be in a segment or run outside of the merge, or a newer one in the log: a scan that
    /// has passed the log before that was written meets the key in runs only.
    pub may_hide: &'r dyn Fn(&RunRecord<'_>, &RingKey) -> bool,
    /// Whether an expired record stays as it is: a write that found it in time is not committed yet.
    pub is_kept: &'r dyn Fn(&RunRecord<'_>, &RingKey) -> bool,
}

/// Error of a merge. Its sources are unharmed; the output is abandoned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MergeError {
    /// A source is corrupt or cannot be read.
    #[error(transparent)]
    Source(#[from] RunError),
    /// The writer refused a record.
    #[error(transparent)]
    Write(#[from] RunWriteError),
    /// Two keys of a space have one ring key, which happens once in 2^160 pairs: runs hold one record per ring key.
    #[error("two keys have the ring key {ring_key:?}: their records stay where they are")]
    SharedRingKey {
        /// Their ring key.
        ring_key: RingKey,
    },
}

/// A source of a merge.
#[derive(Debug)]
pub enum MergeSource {
    /// An older run.
    Run(RunSource),
    /// Records of the log.
    Memory(SortBuffer),
}

impl MergeSource {
    fn head(&mut self) -> Result<SourceHead<'_>, RunError> {
        match self {
            Self::Run(run) => run.head(),
            Self::Memory(buffer) => Ok(buffer.head()),
        }
    }

    fn advance(&mut self) -> Result<(), RunError> {
        match self {
            Self::Run(run) => run.advance(),
            Self::Memory(buffer) => {
                buffer.advance();
                Ok(())
            }
        }
    }
}

/// Result of a step of a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merged {
    /// The step's records were passed; call again.
    More,
    /// The source with this index waits for bytes.
    Source(usize),
    /// The writer waits for the device.
    Writer,
    /// The run has its maximum length: finish it, and continue with the next one.
    RunFull,
    /// All records were passed.
    Done,
}

/// Counts of a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCounts {
    /// Records read.
    pub read: u64,
    /// Records written.
    pub written: u64,
    /// Records that do not count.
    pub invalidated: u64,
    /// Records older than another one of their key.
    pub older: u64,
    /// Tombstones and expired records that hide nothing.
    pub dropped: u64,
}

/// Merges sources into runs, in steps.
#[derive(Debug)]
pub struct RunMerge {
    sources: Vec<MergeSource>,
    /// Place of each source's head; `None`: unknown.
    heads: Vec<Option<HeadPlace>>,
    /// The newest record so far of the key at `place`, encoded.
    winner: Vec<u8>,
    place: Option<(Space, RingKey)>,
    counts: MergeCounts,
}

/// Where a source's head belongs. The end is above every key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HeadPlace {
    Key(Space, RingKey),
    End,
}

impl RunMerge {
    /// A merge of these sources.
    #[must_use]
    pub fn new(sources: Vec<MergeSource>) -> Self {
        let heads = vec![None; sources.len()];
        Self {
            sources,
            heads,
            winner: Vec::with_capacity(RECORD_BYTES_MAX),
            place: None,
            counts: MergeCounts::default(),
        }
    }

    /// The run with this index among the sources, to be fed.
    pub fn run(&mut self, index: usize) -> Option<&mut RunSource> {
        match self.sources.get_mut(index) {
            Some(MergeSource::Run(run)) => Some(run),
            _ => None,
        }
    }

    /// Sources whose next read should begin now.
    pub fn sources_to_read(&self) -> impl Iterator<Item = usize> + '_ {
        let wants_read = |source: &MergeSource| matches!(source, MergeSource::Run(run) if run.wants_read());
        self.sources.iter().enumerate().filter(move |(_, source)| wants_read(source)).map(|(index, _)| index)
    }

    /// Memory of the sources' records, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let of_source = |source: &MergeSource| match source {
            MergeSource::Run(run) => run.resident_bytes(),
            MergeSource::Memory(buffer) => buffer.resident_bytes(),
        };
        self.sources.iter().map(of_source).sum()
    }

    /// Counts so far.
    #[must_use]
    pub const fn counts(&self) -> MergeCounts {
        self.counts
    }

    /// Passes at most `records_max` records of the sources to the writer.
    ///
    /// # Errors
    /// See [`MergeError`]; the merge cannot continue.
    pub fn step(
        &mut self,
        writer: &mut RunWriter,
        rules: &MergeRules<'_>,
        records_max: usize,
    ) -> Result<Merged, MergeError> {
        // The rules may ask with much work, and for one record again and again: not before the writer can take it.
        if writer.is_full() {
            return Ok(Merged::Writer);
        }
        for _ in 0..records_max.max(1) {
            if let Some(index) = self.find_heads()? {
                return Ok(Merged::Source(index));
            }
            let next = self.heads.iter().flatten().enumerate().min_by_key(|&(_, place)| *place);
            let (at, place) = next.map_or((0, HeadPlace::End), |(at, place)| (at, *place));
            let HeadPlace::Key(space, ring_key) = place else {
                return Ok(self.emit(writer, rules)?.unwrap_or(Merged::Done));
            };
            if self.place.is_some_and(|current| current != (space, ring_key))
                && let Some(stalled) = self.emit(writer, rules)?
            {
                return Ok(stalled);
            }
            self.take(at, rules)?;
        }
        Ok(Merged::More)
    }

    /// Finds the unknown heads; `Some`: the source that waits for bytes.
    fn find_heads(&mut self) -> Result<Option<usize>, MergeError> {
        for (index, (source, place)) in self.sources.iter_mut().zip(&mut self.heads).enumerate() {
            if place.is_some() {
                continue;
            }
            *place = Some(match source.head()? {
                SourceHead::Record(ring_key, record) => HeadPlace::Key(record.space(), ring_key),
                SourceHead::End => HeadPlace::End,
                SourceHead::Wait => return Ok(Some(index)),
            });
        }
        Ok(None)
    }

    /// Takes the head of a source: the newest of its key so far, or an older one.
    fn take(&mut self, at: usize, rules: &MergeRules<'_>) -> Result<(), MergeError> {
        let source = &mut self.sources[at];
        if let SourceHead::Record(ring_key, record) = source.head()? {
            self.counts.read += 1;
            let place = (record.space(), ring_key);
            let best = RunRecord::decode(&self.winner).map(|(best, _)| (best.key == record.key, best.version));
            if (rules.is_invalidated)(&record, &ring_key) {
                self.counts.invalidated += 1;
            } else if self.place == Some(place)
                && let Some((is_same_key, version)) = best
            {
                if !is_same_key {
                    return Err(MergeError::SharedRingKey { ring_key });
                }
                self.counts.older += 1;
                if record.version > version {
                    let number = (rules.number)(&record, &ring_key);
                    put_winner(&mut self.winner, &RunRecord { number, ..record });
                }
            } else {
                let number = (rules.number)(&record, &ring_key);
                put_winner(&mut self.winner, &RunRecord { number, ..record });
                self.place = Some(place);
            }
        }
        source.advance()?;
        self.heads[at] = None;
        Ok(())
    }

    /// Passes the current key's newest record to the writer; `Some`: the writer did not take it.
    fn emit(&mut self, writer: &mut RunWriter, rules: &MergeRules<'_>) -> Result<Option<Merged>, MergeError> {
        let (Some((_, ring_key)), Some((record, _))) = (self.place, RunRecord::decode(&self.winner)) else {
            return Ok(None);
        };
        let is_tombstone = record.kind == RecordKind::Tombstone;
        let is_expired = !is_tombstone && record.entry().is_expired(rules.now) && !(rules.is_kept)(&record, &ring_key);
        let may_hide = (is_tombstone || is_expired) && (rules.may_hide)(&record, &ring_key);
        let pushed = match fate(WinnerFacts { is_tombstone, is_expired, may_hide }) {
            Fate::Keep => writer.push(&record)?,
            Fate::KeepAsTombstone => writer.push(&record.to_tombstone())?,
            Fate::Drop => {
                self.counts.dropped += 1;
                self.place = None;
                self.winner.clear();
                return Ok(None);
            }
        };
        match pushed {
            Pushed::Wait => return Ok(Some(Merged::Writer)),
            Pushed::Full => return Ok(Some(Merged::RunFull)),
            Pushed::Taken => {}
        }
        self.counts.written += 1;
        self.winner.clear();
        self.place = None;
        Ok(None)
    }
}

fn put_winner(winner: &mut Vec<u8>, record: &RunRecord<'_>) {
    winner.clear();
    winner.resize(record.encoded_len(), 0);
    record.encode(winner);
}

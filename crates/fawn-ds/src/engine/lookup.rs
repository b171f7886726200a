//! Lookups: answered from overlay, index and memory at once, otherwise by a plan that needs one device read.
use super::fast_path::MemoryHit;
use super::fetch::{Expected, FetchResume, Hit, Location, Probe, ReadSpan, Rejected};
use super::sorted::{RunHit, RunsPassed};
use super::{Engine, InFlight};
use crate::error::EngineError;
use crate::format::record::RecordKind;
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::log::flush::FlushState;
use crate::log::segments::Death;
use crate::overlay::{OverlayBase, ReplacedRecord};
use fawn_flash::{AlignedBuf, Device, DeviceError, IoClass, Token};
use fawn_types::{EntryRef, KeyHash, RangeId, TimeMs, Version};

/// Selects the committed or the pending version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum View {
    /// The newest committed record: the view of clients.
    #[default]
    Committed,
    /// The newest appended record: the input of read-modify-writes.
    Latest,
}

/// Result of a lookup.
#[derive(Debug)]
pub enum Lookup<'e> {
    /// The key's entry; borrowed until the engine is used again.
    Found(EntryRef<'e>),
    /// No such key, or it has expired.
    Absent,
    /// The committed entry has expired, but a pending record of the key may be one that keeps it. Only of
    /// [`View::Committed`].
    Unsettled,
    /// Pass it to [`Engine::read`]; it returns in an event for [`Engine::resume`].
    Read(LookupPlan),
}

/// A lookup that waits for a device read: the parameters to repeat it, and afterwards the bytes read.
///
/// One pointer: results of lookups in memory stay short, and nothing copies the parameters on their way to the device.
#[derive(Debug)]
pub struct LookupPlan(pub(crate) Box<LookupParams>);

#[derive(Debug)]
pub(crate) struct LookupParams {
    pub(crate) range: RangeId,
    pub(crate) hash: KeyHash,
    pub(crate) key: Box<[u8]>,
    pub(crate) view: View,
    pub(crate) span: ReadSpan,
    /// The index's candidate whose record the span has; none if it has another one's, or a run's page.
    pub(crate) candidate: Option<Pointer>,
    pub(crate) rejected: Rejected,
    pub(crate) runs: RunsPassed,
    pub(crate) result: Option<Result<AlignedBuf, DeviceError>>,
}

/// Pages of a lookup's read.
#[derive(Clone, Copy, Debug)]
pub struct ReadPlace(ReadSpan);

impl ReadPlace {
    /// Whether it has all pages of the other one: a read of it takes as long, and fails as well.
    #[must_use]
    pub const fn contains(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl LookupPlan {
    /// A read of one known record, for replays and scans.
    pub(crate) fn of_span(range: RangeId, span: ReadSpan) -> Self {
        let (hash, key, view) = (KeyHash(0), Box::default(), View::Latest);
        let (rejected, runs) = (Rejected::new(), RunsPassed::default());
        Self(Box::new(LookupParams { range, hash, key, view, span, candidate: None, rejected, runs, result: None }))
    }

    /// Size of its device read, bytes.
    #[must_use]
    pub fn read_bytes(&self) -> usize {
        self.0.span.len()
    }

    /// The failure of its device read.
    #[must_use]
    pub fn failure(&self) -> Option<&DeviceError> {
        self.0.result.as_ref()?.as_ref().err()
    }

    /// Ends its device read, which was not submitted, with the failure of another one.
    pub fn fail(&mut self, failure: DeviceError) {
        self.0.result = Some(Err(failure));
    }

    /// The pages of its device read.
    #[must_use]
    pub const fn place(&self) -> ReadPlace {
        ReadPlace(self.0.span)
    }

    /// The version of the key that it reads.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.view
    }

    /// The key of the lookup.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }

    /// The range of the lookup.
    #[must_use]
    pub fn range(&self) -> RangeId {
        self.0.range
    }

    /// The hash of the key.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        self.0.hash
    }
}

/// Result of a lookup step, without borrowing from the engine.
enum LookupStep {
    Hit(Hit),
    Absent,
    /// The log has no record of the key.
    NotInLog,
    Expired,
    /// With the index's candidate that it is for.
    Read(ReadSpan, Option<Pointer>),
}

/// Result of the fast path.
pub(super) enum FastFind {
    Hit(MemoryHit),
    /// Neither an index nor a run has an entry that may be the key's.
    Absent,
    /// The slow path decides.
    Unknown,
}

/// Where the overlay says that a key's record is.
pub(super) enum OverlayHit {
    Index,
    Absent,
    /// The log has no record of the key.
    NotInLog,
    Record(Pointer),
}

impl<D: Device> Engine<D> {
    /// Looks up `key`; `hash` is its [`KeyHash::of`] under [`Engine::secret`].
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when bytes are corrupt that may be the key's record: an absent key gets it too if the page of a
    /// sorted run that would have the key is corrupt; [`EngineError::UnknownRange`].
    pub fn lookup(
        &mut self,
        range: RangeId,
        hash: KeyHash,
        key: &[u8],
        view: View,
        now: TimeMs,
    ) -> Result<Lookup<'_>, EngineError> {
        self.stats.lookups += 1;
        let at = self.range_at(range)?;
        if self.records.is_on() {
            return self.lookup_cached(at, hash, key, (view, now));
        }
        match self.find_fast(at, hash, key, (view, now)) {
            FastFind::Hit(hit) => {
                self.stats.hits += 1;
                let MemoryHit { flags, expires_at_ms, version, .. } = hit;
                Ok(Lookup::Found(EntryRef { value: self.value_of(&hit), flags, expires_at_ms, version }))
            }
            FastFind::Absent => self.absent(),
            FastFind::Unknown => self.find_at(at, hash, key, (view, now), (Rejected::new(), RunsPassed::default())),
        }
    }

    /// The result for a key without a record. After an opening that passed over damage, the key may have had one.
    #[inline]
    pub(super) fn absent(&self) -> Result<Lookup<'_>, EngineError> {
        match &self.missing {
            None => Ok(Lookup::Absent),
            Some(error) => Err(error.clone()),
        }
    }

    /// The usual cases: a plain put in memory, at the pointer of the overlay or the index's first candidate, or a key without
    /// candidates.
    // Inlined in both callers: a call would pass the hit through memory.
    #[inline(always)]
    pub(super) fn find_fast(&mut self, at: usize, hash: KeyHash, key: &[u8], (view, now): (View, TimeMs)) -> FastFind {
        let pointer = match self.find_in_overlay(at, hash, key, view) {
            OverlayHit::Absent | OverlayHit::NotInLog => return FastFind::Unknown,
            OverlayHit::Record(pointer) => pointer,
            OverlayHit::Index => match self.ranges[at].index.candidates(hash).next() {
                Some(pointer) => pointer,
                None if self.ranges[at].inherited.is_empty() => {
                    return if self.runs() == 0 { FastFind::Absent } else { FastFind::Unknown };
                }
                None => match self.candidates(at, hash).next() {
                    Some(pointer) => pointer,
                    None => return FastFind::Unknown,
                },
            },
        };
        match self.find_in_memory(pointer, key, true) {
            Some(hit) if hit.expires_at_ms == 0 || now.0 < hit.expires_at_ms => FastFind::Hit(hit),
            _ => FastFind::Unknown,
        }
    }

    pub(super) fn find_at(
        &mut self,
        at: usize,
        hash: KeyHash,
        key: &[u8],
        (view, now): (View, TimeMs),
        (mut rejected, mut runs): (Rejected, RunsPassed),
    ) -> Result<Lookup<'_>, EngineError> {
        let mut step = match self.find_in_overlay(at, hash, key, view) {
            OverlayHit::Absent => LookupStep::Absent,
            OverlayHit::NotInLog => LookupStep::NotInLog,
            OverlayHit::Record(pointer) => self.probe_record(at, pointer, key, now)?,
            OverlayHit::Index => self.probe_index(at, hash, key, now, &mut rejected)?,
        };
        if matches!(step, LookupStep::NotInLog) {
            step = self.probe_runs(at, key, now, &mut runs)?;
        }
        match step {
            LookupStep::Expired if view == View::Committed && self.has_pending(at, hash, key) => Ok(Lookup::Unsettled),
            LookupStep::Absent | LookupStep::NotInLog | LookupStep::Expired => self.absent(),
            LookupStep::Hit(hit) => {
                self.stats.hits += 1;
                if self.records.is_on() {
                    self.offer_hit(at, (hash, key), view, &hit);
                }
                let value = &self.bytes_at(hit.location)[hit.value.clone()];
                let (flags, expires_at_ms, version) = (hit.flags, hit.expires_at_ms, hit.version);
                Ok(Lookup::Found(EntryRef { value, flags, expires_at_ms, version }))
            }
            LookupStep::Read(span, candidate) => {
                let Some(range) = self.range_ids[at] else { unreachable!("a lookup found the range by its id") };
                let key = key.into();
                let params = LookupParams { range, hash, key, view, span, candidate, rejected, runs, result: None };
                Ok(Lookup::Read(LookupPlan(Box::new(params))))
            }
        }
    }

    /// Whether a record of the key is not committed yet.
    fn has_pending(&self, at: usize, hash: KeyHash, key: &[u8]) -> bool {
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident);
        entry.is_some_and(|entry| entry.newest_pending().is_some())
    }

    pub(super) fn find_in_overlay(&self, at: usize, hash: KeyHash, key: &[u8], view: View) -> OverlayHit {
        let cleared = self.ranges[at].pending_clear.filter(|_| view == View::Latest);
        if self.overlay.is_empty() {
            return if cleared.is_some() { OverlayHit::Absent } else { OverlayHit::Index };
        }
        let Some(entry) = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident) else {
            return if cleared.is_some() { OverlayHit::Absent } else { OverlayHit::Index };
        };
        let newest = match view {
            View::Latest => entry.newest_pending().or(entry.committed.as_ref()),
            View::Committed => entry.committed.as_ref(),
        };
        if let Some(clear) = cleared
            && newest.is_none_or(|written| written.version < clear)
        {
            return OverlayHit::Absent;
        }
        match newest {
            Some(written) if written.is_put => OverlayHit::Record(written.pointer),
            // The trace of a sorted record. While there are runs, a delete has an entry.
            Some(_) if self.sorted.is_active() => OverlayHit::NotInLog,
            Some(_) => OverlayHit::Absent,
            None => match entry.base {
                OverlayBase::Unknown => OverlayHit::Index,
                OverlayBase::Absent => OverlayHit::NotInLog,
                OverlayBase::At(old) => OverlayHit::Record(old.pointer),
            },
        }
    }

    /// The record at the overlay's pointer; any other key's record there is corruption.
    fn probe_record(
        &mut self,
        at: usize,
        pointer: Pointer,
        key: &[u8],
        now: TimeMs,
    ) -> Result<LookupStep, EngineError> {
        match self.probe(at, pointer, Expected::Key(key))? {
            Probe::Match(hit) if hit.kind == RecordKind::Tombstone => Ok(LookupStep::Absent),
            Probe::Match(hit) if is_expired(&hit, now) => Ok(LookupStep::Expired),
            Probe::Match(hit) => Ok(LookupStep::Hit(hit)),
            Probe::Missing(span) => Ok(LookupStep::Read(span, None)),
            Probe::Other => {
                let (slot, offset) = self.segments.slot_and_offset(pointer);
                Err(self.corrupt(slot, offset, "another key's record where this key's was written"))
            }
        }
    }

    /// Probes each candidate; corruption, or a read that failed, is an error only if no candidate is the key's.
    fn probe_index(
        &mut self,
        at: usize,
        hash: KeyHash,
        key: &[u8],
        now: TimeMs,
        rejected: &mut Rejected,
    ) -> Result<LookupStep, EngineError> {
        let (mut damage, mut nth) = (None, 0);
        // Each turn searches again from the first candidate. That one nearly always matches, so a list would slow every
        // lookup.
        loop {
            let candidate = self.candidates(at, hash).nth(nth);
            let Some(pointer) = candidate else { break };
            nth += 1;
            match self.probe_once(at, pointer, Expected::Key(key), rejected) {
                Ok(Probe::Match(hit)) if hit.kind == RecordKind::Tombstone && self.sorted.is_active() => {
                    return Ok(LookupStep::Absent);
                }
                Ok(Probe::Match(hit)) if hit.kind != RecordKind::Put => {
                    let (slot, offset) = self.segments.slot_and_offset(pointer);
                    damage = Some(self.corrupt(slot, offset, "the index points to a record that is no put"));
                }
                Ok(Probe::Match(hit)) if is_expired(&hit, now) => {
                    self.expire(at, hash, &hit, key);
                    return Ok(LookupStep::Expired);
                }
                Ok(Probe::Match(hit)) => return Ok(LookupStep::Hit(hit)),
                Ok(Probe::Missing(span)) => return Ok(LookupStep::Read(span, Some(pointer))),
                Ok(Probe::Other) => {}
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        damage.map_or(Ok(LookupStep::NotInLog), Err)
    }

    /// The key's newest record in the runs, if the log has none.
    fn probe_runs(
        &mut self,
        at: usize,
        key: &[u8],
        now: TimeMs,
        runs: &mut RunsPassed,
    ) -> Result<LookupStep, EngineError> {
        Ok(match self.find_in_runs(at, key, runs)? {
            RunHit::Absent => LookupStep::Absent,
            RunHit::Read(span) => LookupStep::Read(span, None),
            RunHit::Put { expires_at_ms, .. } if expires_at_ms != 0 && now.0 >= expires_at_ms => LookupStep::Expired,
            RunHit::Put { value, flags, expires_at_ms, version } => LookupStep::Hit(Hit {
                location: Location::Scratch,
                // A record of a run has no pointer; nothing follows that of a hit.
                pointer: Pointer::new(0),
                len_bytes: 0,
                value,
                key_bytes: key.len(),
                flags,
                expires_at_ms,
                version,
                kind: RecordKind::Put,
            }),
        })
    }

    /// A record that is dead to all members of its chain acts as a tombstone: it leaves the index, and its segment hides
    /// older records of the key.
    fn expire(&mut self, at: usize, hash: KeyHash, hit: &Hit, key: &[u8]) {
        // The caller's clock may be wrong. It decides only the caller's reply; a removal from the index affects all
        // clients.
        // In a store with runs it stays indexed until it is sorted, because a run may have an older record of the key.
        if self.sorted.is_active()
            || !is_expired(hit, self.expired_by(at))
            || self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident).is_some()
        {
            return;
        }
        // The log does not say that the record was removed. A checkpoint without the entry would not hide older copies of
        // the key behind its position.
        if self.will_copy(self.indexed_at(at, hash, hit.pointer), hash, hit.pointer) {
            return;
        }
        // Its copy may be in flight as that of a live record, and would not hide them.
        if self.cleaner.is_victim(self.segments.slot_and_offset(hit.pointer).0) {
            return;
        }
        self.remove_expired(at, hash, ReplacedRecord { pointer: hit.pointer, len_bytes: hit.len_bytes }, hit.version);
    }

    pub(super) fn remove_expired(&mut self, at: usize, hash: KeyHash, expired: ReplacedRecord, version: Version) {
        let part = self.indexed_at(at, hash, expired.pointer);
        let removed = self.ranges[part].index.remove(hash, expired.pointer);
        assert!(removed, "the record was just found through this entry");
        self.note_unindexed(part, hash, expired);
        let (slot, _) = self.segments.slot_and_offset(expired.pointer);
        self.enter_segment(part, slot, version, RecordKind::Tombstone);
        // No commit replaced the record, and the record itself hides older copies of the key. The key has no record that is not in
        // the index yet.
        let replaced_from = self.ranges[part].progress.committed;
        self.release(part, expired, Death { by: Version::ZERO, replaced_from });
        self.records.remove(at, hash);
        self.stats.expired += 1;
    }

    /// Starts the plan's device read; [`super::Event::Lookup`] returns the plan with `user`.
    pub fn read(&mut self, mut plan: LookupPlan, user: u64) {
        if plan.0.span.run().is_none() {
            plan.0.span.cacheable_to = self.cacheable_to(plan.0.span.slot);
        }
        self.stats.reads += 1;
        self.stats.second_reads += u64::from(plan.0.span.is_second);
        let span = plan.0.span;
        let in_flight = InFlight::Lookup { plan, user };
        self.submit_span(&span, IoClass::Foreground, in_flight);
    }

    /// Submits a span's read and pins its segment.
    pub(crate) fn submit_span(&mut self, span: &ReadSpan, class: IoClass, in_flight: InFlight) {
        if let Some(run) = span.run() {
            return self.submit_run_span(run, span, class, in_flight);
        }
        let Some(segment) = self.segments.get_mut(span.slot).filter(|segment| segment.sequence == span.sequence) else {
            // The segment was dropped since the plan was made: the lookup starts over and finds the newer record.
            self.stale.push_back(in_flight);
            return;
        };
        segment.pins += 1;
        let file = segment.file;
        self.read_bytes_in_flight += span.len();
        let token = Token(self.in_flight.insert(in_flight) as u64);
        let buf = self.pool.take_exact(span.len());
        self.device.submit_read(file, u64::from(span.from), buf, class, token);
    }

    fn submit_run_span(&mut self, run: u64, span: &ReadSpan, class: IoClass, in_flight: InFlight) {
        let Some(file) = self.pin_run(run) else {
            // The run was merged since the plan was made: the lookup continues in the others.
            self.stale.push_back(in_flight);
            return;
        };
        self.read_bytes_in_flight += span.len();
        let token = Token(self.in_flight.insert(in_flight) as u64);
        let buf = self.pool.take_exact(span.len());
        self.device.submit_read(file, u64::from(span.from), buf, class, token);
    }

    /// Continues a plan whose read is complete.
    ///
    /// # Errors
    /// As [`Engine::lookup`], or the read's own failure, unless another record is the key's.
    pub fn resume(&mut self, plan: LookupPlan, now: TimeMs) -> Result<Lookup<'_>, EngineError> {
        let LookupParams { range, hash, key, view, span, candidate, mut rejected, runs, result } = *plan.0;
        let resume = match (result, candidate) {
            (Some(Ok(buf)), _) => Some(FetchResume { span, buf }),
            // It may be another key's record.
            (Some(Err(error)), Some(pointer)) if !error.is_retryable() => {
                rejected.push((pointer, span.sequence, Some(Box::new(error.into()))));
                None
            }
            (Some(Err(error)), _) => return Err(error.into()),
            (None, _) => None,
        };
        self.set_resume(resume);
        let at = self.range_at(range)?;
        self.find_at(at, hash, &key, (view, now), (rejected, runs))
    }

    pub(crate) fn set_resume(&mut self, resume: Option<FetchResume>) {
        if let Some(old) = core::mem::replace(&mut self.resume, resume) {
            self.pool.give(old.buf);
        }
    }

    /// End of the segment's bytes that are final when a read is submitted now.
    pub(crate) fn cacheable_to(&self, slot: u32) -> u32 {
        self.end_before(slot, |flush| flush.written)
    }

    /// End of the last frame that can be read from the segment's file.
    pub(crate) fn written_frames_end(&self, slot: u32) -> u32 {
        self.end_before(slot, FlushState::written_frames_end)
    }

    /// End of the segment's part before a position of its stream.
    fn end_before(&self, slot: u32, position: impl Fn(&FlushState) -> LogPosition) -> u32 {
        let Some(segment) = self.segments.get(slot) else { return 0 };
        let segment_bytes = self.options.segment_bytes;
        let position = position(&self.streams[segment.stream].flush);
        match position.sequence(segment_bytes).cmp(&segment.sequence) {
            core::cmp::Ordering::Greater => u32::MAX,
            core::cmp::Ordering::Equal => position.offset(segment_bytes),
            core::cmp::Ordering::Less => 0,
        }
    }
}

fn is_expired(hit: &Hit, now: TimeMs) -> bool {
    hit.expires_at_ms != 0 && now.0 >= hit.expires_at_ms
}

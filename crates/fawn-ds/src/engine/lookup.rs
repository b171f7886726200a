//! Owns lookups: from the overlay, the index and memory at once, else by a plan that one device read lets go on.
use super::fetch::{Hit, Look, Resume, RuledOut, Span, Wanted};
use super::plain::PlainHit;
use super::{Engine, InFlight};
use crate::error::EngineError;
use crate::format::record::RecordKind;
use crate::index::Pointer;
use crate::overlay::{Base, Old};
use fawn_flash::{AlignedBuf, Cause, Device, DeviceError, Token};
use fawn_types::{EntryRef, KeyHash, RangeId, TimeMs, Version};

/// Which of a key's records a lookup wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum View {
    /// The newest committed one: what clients may see.
    #[default]
    Committed,
    /// The newest appended one: what read-modify-writes start from.
    Latest,
}

/// The answer to a lookup.
#[derive(Debug)]
pub enum Lookup<'e> {
    /// The key's entry; borrowed until the engine is used again.
    Found(EntryRef<'e>),
    /// No such key, or it has expired.
    Absent,
    /// Pass it to [`Engine::read`]; it comes back as an event and goes on with [`Engine::resume`].
    Read(LookupPlan),
}

/// A lookup that waits for a device read. It names what to do again, and brings the bytes along.
#[derive(Debug)]
pub struct LookupPlan {
    pub(crate) range: RangeId,
    pub(crate) hash: KeyHash,
    pub(crate) key: Box<[u8]>,
    pub(crate) view: View,
    pub(crate) span: Span,
    pub(crate) ruled_out: RuledOut,
    pub(crate) result: Option<Result<AlignedBuf, DeviceError>>,
}

impl LookupPlan {
    /// A read of one known record, for replays and scans.
    pub(crate) fn of_span(range: RangeId, span: Span) -> Self {
        let (hash, key, view) = (KeyHash(0), Box::default(), View::Latest);
        Self { range, hash, key, view, span, ruled_out: RuledOut::new(), result: None }
    }

    /// How much its device read brings, bytes.
    #[must_use]
    pub fn read_bytes(&self) -> usize {
        self.span.len()
    }

    /// The key looked up.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Its range.
    #[must_use]
    pub fn range(&self) -> RangeId {
        self.range
    }

    /// Its key's hash.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        self.hash
    }
}

/// What a lookup came to, without borrowing.
enum Step {
    Hit(Hit),
    Absent,
    Read(Span),
}

/// Where the overlay sends a lookup.
enum Aim {
    Index,
    Absent,
    Record(Pointer),
}

impl<D: Device> Engine<D> {
    /// Looks `key` up; `hash` is [`KeyHash::of`] it under [`Engine::secret`].
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when stored bytes are damaged, never for an absent key; [`EngineError::UnknownRange`].
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
        if let Some(hit) = self.find_plain(at, hash, key, (view, now)) {
            self.stats.hits += 1;
            let PlainHit { flags, expires_at_ms, version, .. } = hit;
            return Ok(Lookup::Found(EntryRef { value: self.value_of(&hit), flags, expires_at_ms, version }));
        }
        self.find(range, hash, key, (view, now), RuledOut::new())
    }

    /// The usual outcome at once: a plain put in memory, where the overlay or the index's first candidate points.
    #[inline]
    fn find_plain(&mut self, at: usize, hash: KeyHash, key: &[u8], (view, now): (View, TimeMs)) -> Option<PlainHit> {
        let pointer = match self.aim(at, hash, key, view) {
            Aim::Absent => return None,
            Aim::Record(pointer) => pointer,
            Aim::Index => self.ranges[at].index.candidates(hash).next()?,
        };
        let hit = self.plain_at(pointer, key, true)?;
        (hit.expires_at_ms == 0 || now.0 < hit.expires_at_ms).then_some(hit)
    }

    fn find(
        &mut self,
        range: RangeId,
        hash: KeyHash,
        key: &[u8],
        (view, now): (View, TimeMs),
        mut ruled_out: RuledOut,
    ) -> Result<Lookup<'_>, EngineError> {
        let at = self.range_at(range)?;
        let step = match self.aim(at, hash, key, view) {
            Aim::Absent => Step::Absent,
            Aim::Record(pointer) => self.look_at_record(at, pointer, key, now)?,
            Aim::Index => self.look_through_index(at, hash, key, now, &mut ruled_out)?,
        };
        match step {
            Step::Absent => self.missing.clone().map_or(Ok(Lookup::Absent), Err),
            Step::Hit(hit) => {
                self.stats.hits += 1;
                let value = &self.bytes_at(hit.spot)[hit.value.clone()];
                let (flags, expires_at_ms, version) = (hit.flags, hit.expires_at_ms, hit.version);
                Ok(Lookup::Found(EntryRef { value, flags, expires_at_ms, version }))
            }
            Step::Read(span) => {
                let key = key.into();
                Ok(Lookup::Read(LookupPlan { range, hash, key, view, span, ruled_out, result: None }))
            }
        }
    }

    /// What the overlay says about the key.
    fn aim(&self, at: usize, hash: KeyHash, key: &[u8], view: View) -> Aim {
        let cleared = self.ranges[at].pending_clear.filter(|_| view == View::Latest);
        if self.overlay.is_empty() {
            return if cleared.is_some() { Aim::Absent } else { Aim::Index };
        }
        let Some(entry) = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident) else {
            return if cleared.is_some() { Aim::Absent } else { Aim::Index };
        };
        let newest = match view {
            View::Latest => entry.newest_pending().or(entry.committed.as_ref()),
            View::Committed => entry.committed.as_ref(),
        };
        if let Some(clear) = cleared
            && newest.is_none_or(|written| written.version < clear)
        {
            return Aim::Absent;
        }
        match newest {
            Some(written) if written.is_put => Aim::Record(written.pointer),
            Some(_) => Aim::Absent,
            None => match entry.base {
                Base::Unknown => Aim::Index,
                Base::Absent => Aim::Absent,
                Base::At(old) => Aim::Record(old.pointer),
            },
        }
    }

    /// The record that the overlay names: it must be the key's.
    fn look_at_record(&mut self, at: usize, pointer: Pointer, key: &[u8], now: TimeMs) -> Result<Step, EngineError> {
        match self.look(at, pointer, Wanted::Key(key))? {
            Look::Match(hit) if is_expired(&hit, now) => Ok(Step::Absent),
            Look::Match(hit) => Ok(Step::Hit(hit)),
            Look::Missing(span) => Ok(Step::Read(span)),
            Look::Other => {
                let (slot, offset) = self.segments.place(pointer);
                Err(self.corrupt(slot, offset, "another key's record where this key's was written"))
            }
        }
    }

    /// Each candidate in turn; damage counts only if none of them is the key's.
    fn look_through_index(
        &mut self,
        at: usize,
        hash: KeyHash,
        key: &[u8],
        now: TimeMs,
        ruled_out: &mut RuledOut,
    ) -> Result<Step, EngineError> {
        let (mut damage, mut nth) = (None, 0);
        // Asked anew for each: nearly always the first is the key's, and a list of them would cost every lookup.
        while let Some(pointer) = self.ranges[at].index.candidates(hash).nth(nth) {
            nth += 1;
            match self.look_once(at, pointer, Wanted::Key(key), ruled_out) {
                Ok(Look::Match(hit)) if hit.kind != RecordKind::Put => {
                    let (slot, offset) = self.segments.place(pointer);
                    damage = Some(self.corrupt(slot, offset, "the index points to a record that is no put"));
                }
                Ok(Look::Match(hit)) if is_expired(&hit, now) => {
                    self.expire(at, hash, &hit, key);
                    return Ok(Step::Absent);
                }
                Ok(Look::Match(hit)) => return Ok(Step::Hit(hit)),
                Ok(Look::Missing(span)) => return Ok(Step::Read(span)),
                Ok(Look::Other) => {}
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        damage.map_or(Ok(Step::Absent), Err)
    }

    /// A record that is expired by the store's own clock is a tombstone: it leaves the index, and its segment hides what may
    /// lie beneath.
    fn expire(&mut self, at: usize, hash: KeyHash, hit: &Hit, key: &[u8]) {
        // The reader's clock may be wrong; the answer is the reader's alone, but what leaves the index is gone for all.
        if !is_expired(hit, self.clock.get())
            || self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident).is_some()
        {
            return;
        }
        let removed = self.ranges[at].index.remove(hash, hit.pointer);
        assert!(removed, "the record was just found through this entry");
        let (slot, _) = self.segments.place(hit.pointer);
        self.enter_segment(at, slot, hit.version, true);
        // Its own time made it void; what hides older copies of the key is this very record.
        self.bury(at, Old { pointer: hit.pointer, len_bytes: hit.len_bytes }, Version::ZERO);
        self.stats.expired += 1;
    }

    /// Starts the plan's device read; [`super::Event::Lookup`] brings it back with `user`.
    pub fn read(&mut self, mut plan: LookupPlan, user: u64) {
        plan.span.cacheable_to = self.cacheable_to(plan.span.slot);
        self.stats.reads += 1;
        self.stats.second_reads += u64::from(plan.span.is_second);
        let span = plan.span;
        let in_flight = InFlight::Lookup { plan: Box::new(plan), user };
        self.submit_span(&span, Cause::Foreground, in_flight);
    }

    /// Submits a span's read and pins its segment.
    pub(crate) fn submit_span(&mut self, span: &Span, cause: Cause, in_flight: InFlight) {
        let Some(segment) = self.segments.get_mut(span.slot).filter(|segment| segment.sequence == span.sequence) else {
            // Dropped since the plan was made: the lookup starts over and finds what took its place.
            self.stale.push_back(in_flight);
            return;
        };
        segment.pins += 1;
        let file = segment.file;
        self.read_bytes_in_flight += span.len();
        let token = Token(self.in_flight.insert(in_flight) as u64);
        let buf = self.pool.take_exact(span.len());
        self.device.submit_read(file, u64::from(span.from), buf, cause, token);
    }

    /// Goes on with a plan whose read is done.
    ///
    /// # Errors
    /// As [`Engine::lookup`], or the read's own failure.
    pub fn resume(&mut self, mut plan: LookupPlan, now: TimeMs) -> Result<Lookup<'_>, EngineError> {
        match plan.result.take() {
            Some(Ok(buf)) => self.set_resume(Some(Resume { span: plan.span, buf })),
            Some(Err(error)) => return Err(error.into()),
            None => self.set_resume(None),
        }
        self.find(plan.range, plan.hash, &plan.key, (plan.view, now), plan.ruled_out)
    }

    pub(crate) fn set_resume(&mut self, resume: Option<Resume>) {
        if let Some(old) = core::mem::replace(&mut self.resume, resume) {
            self.pool.give(old.buf);
        }
    }

    /// Up to where a segment's bytes were as they stay, when a read is submitted.
    pub(crate) fn cacheable_to(&self, slot: u32) -> u32 {
        let Some(segment) = self.segments.get(slot) else { return 0 };
        let segment_bytes = self.options.segment_bytes;
        let flushed = self.flush.flushed;
        match flushed.sequence(segment_bytes).cmp(&segment.sequence) {
            core::cmp::Ordering::Greater => u32::MAX,
            core::cmp::Ordering::Equal => flushed.offset(segment_bytes),
            core::cmp::Ordering::Less => 0,
        }
    }
}

fn is_expired(hit: &Hit, now: TimeMs) -> bool {
    hit.expires_at_ms != 0 && now.0 >= hit.expires_at_ms
}

//! Owns what the leader does: starts operations on the engine, goes on with those that wait, commits, answers.
use super::{BatchWrite, RANGE};
use crate::engine::{Engine, Event, Lookup, LookupPlan, Scan, ScanStep, View, WARM_KEYS_MAX};
use crate::error::EngineError;
use crate::format::record::{RecordKind, RecordRef};
use fawn_flash::Device;
use fawn_types::{ClientTag, Condition, Entry, EntryRef, Epoch, KeyHash, Now, StoreError, TimeMs, Version};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// What a caller asks for.
#[derive(Debug)]
pub(super) enum Op {
    Get { key: Vec<u8>, now: TimeMs },
    PutIf { key: Vec<u8>, value: Vec<u8>, flags: u32, expires_at_ms: u64, condition: Condition, now: TimeMs },
    Delete { key: Vec<u8>, now: TimeMs },
    Batch(Vec<BatchWrite>),
    Scan { cursor: u64, count: usize, now: TimeMs },
    Tick,
}

/// What it hears.
#[derive(Debug)]
pub(super) enum Response {
    Entry(Option<Entry>),
    /// The version assigned; `None`: the condition did not hold.
    Written(Option<Version>),
    Scanned(u64, Vec<Vec<u8>>),
    Failed(StoreError),
}

impl Response {
    pub(super) fn into_result(self) -> Result<Self, StoreError> {
        match self {
            Self::Failed(error) => Err(error),
            response => Ok(response),
        }
    }

    pub(super) fn unexpected(self) -> StoreError {
        StoreError::Device(format!("the engine answered another question: {self:?}"))
    }
}

/// An operation that waits for a device read.
#[derive(Debug)]
enum Waiting {
    Op(Op),
    Scan(Box<Scan>, TimeMs),
}

/// Device reads in flight at most; further lookups are queued, whatever callers ask for at once.
const READS_IN_FLIGHT_MAX: usize = 256;

/// A reply that is sent once everything through `after` is as durable as the mode promises.
#[derive(Debug)]
struct Unacked {
    after: Version,
    id: u64,
    written: Option<Version>,
}

/// The engine and the operations in flight on it.
pub(super) struct Driver<D: Device> {
    engine: Option<Engine<D>>,
    epoch: Epoch,
    seq: u64,
    /// Operations whose device read is in flight: at most [`READS_IN_FLIGHT_MAX`].
    waiting: HashMap<u64, Waiting, FxBuildHasher>,
    /// Operations that need a device read when one of those has ended, oldest first.
    queued: VecDeque<(u64, Waiting)>,
    /// Refused for now by back-pressure, oldest first.
    deferred: VecDeque<(u64, Op)>,
    /// Oldest first.
    unacked: VecDeque<Unacked>,
    done: Vec<(u64, Response)>,
}

/// How an operation went on.
enum Progress {
    Done(Response),
    /// The reply waits for the commit of `after`.
    Decided {
        after: Version,
        written: Option<Version>,
    },
    Read(LookupPlan, Waiting),
    Deferred(Op),
}

impl<D: Device> Driver<D> {
    pub(super) fn new(engine: Engine<D>) -> Self {
        // Each opening has an epoch of its own: sequence numbers start again without ever repeating a version.
        let epoch = engine.sole_epoch(RANGE).unwrap_or(Epoch::MAX);
        Self {
            engine: Some(engine),
            epoch,
            seq: 0,
            waiting: HashMap::default(),
            queued: VecDeque::new(),
            deferred: VecDeque::new(),
            unacked: VecDeque::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn engine(&self) -> &Engine<D> {
        match &self.engine {
            Some(engine) => engine,
            None => unreachable!("the engine leaves only with the store"),
        }
    }

    pub(super) fn take_engine(&mut self) -> Option<Engine<D>> {
        self.engine.take()
    }

    pub(super) fn take_done(&mut self) -> Vec<(u64, Response)> {
        core::mem::take(&mut self.done)
    }

    /// Touches what the first lookups and writes of these will; of one alone it would only wait a moment earlier.
    pub(super) fn warm<'o>(&self, ops: impl ExactSizeIterator<Item = &'o Op>) {
        let (Some(engine), true) = (&self.engine, ops.len() > 1) else { return };
        let (mut hashes, mut count) = ([KeyHash(0); WARM_KEYS_MAX], 0);
        for op in ops.take(WARM_KEYS_MAX) {
            if let Op::Get { key, .. } | Op::PutIf { key, .. } | Op::Delete { key, .. } = op {
                hashes[count] = KeyHash::of(engine.secret(), key);
                count += 1;
            }
        }
        engine.warm(RANGE, &hashes[..count]);
    }

    pub(super) fn start(&mut self, id: u64, op: Op, now: Now) {
        let progress = self.execute(op, None, now);
        self.note(id, progress);
    }

    /// Submits once, reaps what is there, acknowledges.
    pub(super) fn turn(&mut self, now: Now) {
        let Some(engine) = &mut self.engine else { return };
        engine.submit(now);
        let mut events = Vec::new();
        engine.poll(now, &mut events);
        self.follow(events, now);
    }

    /// As [`Driver::turn`] but waits for something to happen.
    pub(super) fn wait(&mut self, now: Now) {
        let Some(engine) = &mut self.engine else { return };
        let mut events = Vec::new();
        engine.wait(now, &mut events);
        self.follow(events, now);
    }

    fn follow(&mut self, events: Vec<Event>, now: Now) {
        for event in events {
            if let Event::Lookup { plan, user } = event
                && let Some(waiting) = self.waiting.remove(&user)
            {
                let progress = self.resume(waiting, plan, now);
                self.note(user, progress);
            }
        }
        self.start_queued_reads(now);
        for (id, op) in core::mem::take(&mut self.deferred) {
            let progress = self.execute(op, None, now);
            self.note(id, progress);
        }
        self.acknowledge();
    }

    fn start_queued_reads(&mut self, now: Now) {
        while self.waiting.len() < READS_IN_FLIGHT_MAX
            && let Some((id, waiting)) = self.queued.pop_front()
        {
            // Looked up again: an earlier read may have brought the page into the cache.
            let progress = match waiting {
                Waiting::Op(op) => self.execute(op, None, now),
                Waiting::Scan(scan, at) => self.scan(scan, at),
            };
            self.note(id, progress);
        }
    }

    fn acknowledge(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        let progress = engine.progress(RANGE);
        let through = progress.kept_under(engine.options().durability);
        engine.commit(RANGE, through);
        let failed = engine.poisoned().map(|first| EngineError::Poisoned { first: first.to_owned() });
        while let Some(&Unacked { after, id, written }) = self.unacked.front() {
            let response = match &failed {
                _ if after <= through => Response::Written(written),
                // It may or may not have become durable: the caller must not believe either.
                Some(error) => Response::Failed(error.clone().into()),
                None => return,
            };
            self.unacked.pop_front();
            self.done.push((id, response));
        }
    }

    fn note(&mut self, id: u64, progress: Result<Progress, EngineError>) {
        match progress {
            Ok(Progress::Done(response)) => self.done.push((id, response)),
            Ok(Progress::Decided { after, written }) => self.unacked.push_back(Unacked { after, id, written }),
            Ok(Progress::Read(_, waiting)) if self.waiting.len() >= READS_IN_FLIGHT_MAX => {
                self.queued.push_back((id, waiting));
            }
            Ok(Progress::Read(plan, waiting)) => {
                self.waiting.insert(id, waiting);
                if let Some(engine) = &mut self.engine {
                    engine.read(plan, id);
                }
            }
            Ok(Progress::Deferred(op)) => self.deferred.push_back((id, op)),
            Err(error) => self.done.push((id, Response::Failed(error.into()))),
        }
    }

    fn resume(&mut self, waiting: Waiting, plan: LookupPlan, now: Now) -> Result<Progress, EngineError> {
        match waiting {
            Waiting::Op(op) => self.execute(op, Some(plan), now),
            Waiting::Scan(scan, at) => {
                if let Some(engine) = &mut self.engine {
                    engine.absorb(plan)?;
                }
                self.scan(scan, at)
            }
        }
    }

    fn execute(&mut self, op: Op, plan: Option<LookupPlan>, clock: Now) -> Result<Progress, EngineError> {
        let Some(engine) = &mut self.engine else {
            return Err(EngineError::Poisoned { first: "it was closed".to_owned() });
        };
        // Writes without a question need no lookup.
        let (key, view, now) = match &op {
            Op::Get { key, now } => (key, View::Committed, *now),
            Op::Delete { key, now } => (key, View::Latest, *now),
            Op::PutIf { key, now, condition, .. } if *condition != Condition::Always => (key, View::Latest, *now),
            Op::PutIf { .. } => return self.write(op),
            Op::Batch(_) => return self.write_batch(op),
            Op::Scan { cursor, count, now } => {
                let scan = Box::new(Scan::new(RANGE, *cursor, *count));
                return self.scan(scan, *now);
            }
            Op::Tick => {
                engine.submit(clock);
                return Ok(Progress::Done(Response::Written(None)));
            }
        };
        let hash = KeyHash::of(engine.secret(), key);
        let found = match plan {
            Some(plan) => engine.resume(plan, now)?,
            None => engine.lookup(RANGE, hash, key, view, now)?,
        };
        let current = match found {
            Lookup::Found(entry) => Some(entry),
            Lookup::Absent => None,
            Lookup::Read(plan) => return Ok(Progress::Read(plan, Waiting::Op(op))),
        };
        let seen = current.map(|entry| entry.version);
        let holds = match &op {
            Op::Get { .. } => {
                return Ok(Progress::Done(Response::Entry(current.map(|entry| EntryRef::to_owned(&entry)))));
            }
            Op::PutIf { condition: Condition::Absent, .. } => current.is_none(),
            Op::PutIf { condition: Condition::VersionIs(version), .. } => {
                current.is_some_and(|entry| entry.version == *version)
            }
            _ => current.is_some(),
        };
        if holds { self.write(op) } else { Ok(self.refuse(seen)) }
    }

    /// A condition that did not hold of a version not yet committed: the caller may not learn of a write that a crash
    /// can still undo. An absence has no version but may be due to any pending delete, so it waits for the newest.
    fn refuse(&self, seen: Option<Version>) -> Progress {
        let after = seen.unwrap_or_else(|| self.engine().progress(RANGE).appended);
        Progress::Decided { after, written: None }
    }

    fn next_version(&self, ahead: u64) -> Result<Version, EngineError> {
        let seq = self.seq + ahead;
        Version::new(self.epoch, seq).ok_or_else(versions_used_up)
    }

    fn write(&mut self, op: Op) -> Result<Progress, EngineError> {
        let version = self.next_version(1)?;
        let Some(engine) = &mut self.engine else { return Ok(Progress::Deferred(op)) };
        let (key, value, flags, expires_at_ms) = match &op {
            Op::PutIf { key, value, flags, expires_at_ms, .. } => (key, Some(&value[..]), *flags, *expires_at_ms),
            Op::Get { key, .. } | Op::Delete { key, .. } => (key, None, 0, 0),
            Op::Batch(_) | Op::Scan { .. } | Op::Tick => unreachable!("not a write of one key"),
        };
        let record = record_of(key, value, flags, expires_at_ms, version);
        match engine.append(RANGE, KeyHash::of(engine.secret(), key), &record) {
            Ok(()) => {
                self.seq += 1;
                Ok(Progress::Decided { after: version, written: Some(version) })
            }
            Err(EngineError::Overloaded) => Ok(Progress::Deferred(op)),
            Err(error) => Err(error),
        }
    }

    fn write_batch(&mut self, op: Op) -> Result<Progress, EngineError> {
        let Op::Batch(writes) = &op else { unreachable!("a batch") };
        let last = self.next_version(writes.len() as u64)?;
        let mut records = Vec::with_capacity(writes.len());
        for (i, write) in writes.iter().enumerate() {
            let version = self.next_version(i as u64 + 1)?;
            let hash = KeyHash::of(self.engine().secret(), &write.key);
            records.push((hash, record_of(&write.key, write.value.as_deref(), 0, write.expires_at_ms, version)));
        }
        let Some(engine) = &mut self.engine else { unreachable!("checked by the caller") };
        match engine.append_batch(RANGE, &records) {
            Ok(()) => {
                self.seq += writes.len() as u64;
                Ok(Progress::Decided { after: last, written: Some(last) })
            }
            Err(EngineError::Overloaded) => Ok(Progress::Deferred(op)),
            Err(error) => Err(error),
        }
    }

    fn scan(&mut self, mut scan: Box<Scan>, now: TimeMs) -> Result<Progress, EngineError> {
        let Some(engine) = &mut self.engine else { unreachable!("checked by the caller") };
        match engine.scan_step(&mut scan, now)? {
            ScanStep::Done => {
                let keys = scan.items.into_iter().map(|item| item.key).collect();
                Ok(Progress::Done(Response::Scanned(scan.cursor, keys)))
            }
            ScanStep::Read(plan) => Ok(Progress::Read(plan, Waiting::Scan(scan, now))),
        }
    }
}

pub(super) fn versions_used_up() -> EngineError {
    EngineError::Poisoned { first: "all versions of this store are used up".to_owned() }
}

fn record_of<'a>(
    key: &'a [u8],
    value: Option<&'a [u8]>,
    flags: u32,
    expires_at_ms: u64,
    version: Version,
) -> RecordRef<'a> {
    let kind = if value.is_some() { RecordKind::Put } else { RecordKind::Tombstone };
    let value = value.unwrap_or_default();
    let (tag, result) = (ClientTag::NONE, &[][..]);
    RecordRef { kind, version, key, value, flags, expires_at_ms, tag, result }
}

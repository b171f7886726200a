//! Execution of operations on the engine: lookups that wait for device reads, writes that wait for their durability.
#[cfg(test)]
mod tests;

use super::op::{KeyWrite, Op, Response, Stretch, TickReport};
use super::{BoxedDevice, Error, RANGE, Result, Stats, Value};
use crate::engine::{Engine, Event, Lookup, LookupPlan, PREFETCH_KEYS_MAX, Scan, ScanStep, View};
use crate::error::EngineError;
use crate::format::record::{RecordKind, RecordRef};
use fawn_types::{ClientTag, Condition, Durability, EntryRef, Epoch, KeyHash, Now, TimeJump, Version};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Device reads in flight at most; further lookups are queued, however many callers ask for at once.
pub(super) const READS_IN_FLIGHT_MAX: usize = 256;
/// Longest wait for the device at a time. Other callers' operations begin after that, so one that needs no device is not held by a
/// slow or hanging read, write or sync.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// Records that one step of a scan meets, if there are as many.
const SCAN_KEYS: usize = 16;
/// Longest time for a checkpoint at a close.
const CHECKPOINT_AT_CLOSE_MAX: Duration = Duration::from_secs(10);

/// An operation that waits for a device read.
#[derive(Debug)]
enum Waiting {
    Op(Op),
    Scan(Box<ScanInProgress>),
}

/// A step of a scan.
#[derive(Debug)]
struct ScanInProgress {
    scan: Scan,
    stretch: Stretch,
    /// Newest committed write when the step began: the step may have passed the keys of later ones.
    seen: Version,
}

/// A response that is sent once everything through `after` is as durable as the mode promises.
#[derive(Debug)]
struct Unacked {
    after: Version,
    id: u64,
    written: Option<Version>,
}

/// The next state of an operation.
enum Progress {
    Done(Response),
    /// The response waits for the commit of `after`.
    Decided {
        after: Version,
        written: Option<Version>,
    },
    Read(LookupPlan, Waiting),
    /// Refused for now by back-pressure.
    Deferred(Op),
    /// The response waits until everything through this version is synced.
    Syncing(Version),
}

/// The engine and the operations in flight on it.
pub(super) struct OpExecutor {
    engine: Engine<BoxedDevice>,
    /// The time of the operations: its wall clock is the expiry time.
    now: Now,
    /// The jump of that time to expect.
    jump: TimeJump,
    epoch: Epoch,
    seq: u64,
    /// Operations whose device read is in flight: at most [`READS_IN_FLIGHT_MAX`].
    waiting: HashMap<u64, Waiting, FxBuildHasher>,
    /// Operations that need a device read when one of those has ended, oldest first.
    queued: VecDeque<(u64, Waiting)>,
    deferred: VecDeque<(u64, Op)>,
    unacked: VecDeque<Unacked>,
    /// Syncs that were asked for, each with the version that must be synced.
    syncs: Vec<(u64, Version)>,
    done: Vec<(u64, Response)>,
}

impl OpExecutor {
    pub(super) fn new(engine: Engine<BoxedDevice>) -> Self {
        // Each opening has an epoch of its own: sequence numbers start again without ever repeating a version.
        let epoch = engine.sole_epoch(RANGE).unwrap_or(Epoch::MAX);
        Self {
            engine,
            now: Now::default(),
            jump: TimeJump::default(),
            epoch,
            seq: 0,
            waiting: HashMap::default(),
            queued: VecDeque::new(),
            deferred: VecDeque::new(),
            unacked: VecDeque::new(),
            syncs: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn take_done(&mut self, out: &mut Vec<(u64, Response)>) {
        out.append(&mut self.done);
    }

    pub(super) fn warm<'o>(&self, ops: impl Iterator<Item = &'o Op>) {
        let (mut hashes, mut count) = ([KeyHash(0); PREFETCH_KEYS_MAX], 0);
        for op in ops.take(PREFETCH_KEYS_MAX) {
            if let Some(key) = op.key() {
                hashes[count] = KeyHash::of(self.engine.secret(), key);
                count += 1;
            }
        }
        self.engine.prefetch(RANGE, &hashes[..count]);
    }

    /// The time of everything until the next call. Values expire by the engine's expiry time, which follows the wall
    /// clock but no wrong one at once.
    pub(super) fn set_time(&mut self, now: Now) {
        self.now = Now { mono: now.mono, wall: self.engine.advance_clock(now) };
        self.jump = self.engine.next_jump(now);
    }

    pub(super) fn start(&mut self, id: u64, op: Op) {
        let progress = self.execute(op, None);
        self.note(id, progress);
    }

    pub(super) fn turn(&mut self) {
        self.engine.set_eager_sync(!self.syncs.is_empty());
        self.engine.submit(self.now);
        let mut events = Vec::new();
        self.engine.poll(self.now, &mut events);
        self.follow(events);
    }

    pub(super) fn wait(&mut self) {
        let mut events = Vec::new();
        self.engine.wait_at_most(self.now, Some(WAIT_MAX), &mut events);
        self.follow(events);
    }

    /// Fails the operations that wait for a device read or for memory: nothing is waited for that a close does not need.
    pub(super) fn end_lookups(&mut self) {
        let waiting = self.waiting.drain().map(|(id, _)| id).chain(self.queued.drain(..).map(|(id, _)| id));
        let deferred = self.deferred.drain(..).map(|(id, _)| id);
        self.done.extend(waiting.chain(deferred).map(|id| (id, Response::Failed(Error::Closed))));
    }

    /// Whether operations wait for their durability, or have a response that was not taken yet.
    pub(super) fn has_operations(&self) -> bool {
        !(self.unacked.is_empty() && self.syncs.is_empty() && self.done.is_empty())
    }

    /// Writes and syncs everything. Operations that still wait for anything else fail.
    pub(super) fn close(mut self, done: &mut Vec<(u64, Response)>) -> Result<()> {
        self.end_lookups();
        // A failure poisons the engine: `acknowledge` and the engine's own closing report it.
        let _ = self.engine.sync_all();
        self.acknowledge();
        let unacked = self.unacked.drain(..).map(|unacked| unacked.id);
        let failed = unacked.chain(self.syncs.drain(..).map(|(id, _)| id));
        self.done.extend(failed.map(|id| (id, Response::Failed(Error::Closed))));
        done.append(&mut self.done);
        let begun = Instant::now();
        let is_past_deadline = &mut || begun.elapsed() > CHECKPOINT_AT_CLOSE_MAX;
        self.engine.close_with_deadline(is_past_deadline).map(drop).map_err(Error::from)
    }

    fn follow(&mut self, events: Vec<Event>) {
        for event in events {
            if let Event::Lookup { plan, user } = event
                && let Some(waiting) = self.waiting.remove(&user)
            {
                let progress = self.resume(waiting, plan);
                self.note(user, progress);
            }
        }
        self.start_queued_reads();
        for (id, op) in core::mem::take(&mut self.deferred) {
            let progress = self.execute(op, None);
            self.note(id, progress);
        }
        self.acknowledge();
    }

    fn start_queued_reads(&mut self) {
        while self.waiting.len() < READS_IN_FLIGHT_MAX
            && let Some((id, waiting)) = self.queued.pop_front()
        {
            // Looked up again: an earlier read may have brought the page into the cache.
            let progress = match waiting {
                Waiting::Op(op) => self.execute(op, None),
                Waiting::Scan(scan) => self.scan(scan),
            };
            self.note(id, progress);
        }
    }

    fn acknowledge(&mut self) {
        let progress = self.engine.progress(RANGE);
        let through = progress.watermark_for(self.engine.options().durability);
        self.engine.commit(RANGE, through);
        let failed = self.engine.poisoned().map(|first| Error::Poisoned { first: first.to_owned() });
        while let Some(&Unacked { after, id, written }) = self.unacked.front() {
            let response = match &failed {
                _ if after <= through => Response::Written(written),
                // It may or may not have become durable: the caller must not believe either.
                Some(error) => Response::Failed(error.clone()),
                None => break,
            };
            self.unacked.pop_front();
            self.done.push((id, response));
        }
        for (id, _) in self.syncs.extract_if(.., |(_, after)| *after <= progress.synced || failed.is_some()) {
            let response = failed.clone().map_or(Response::Written(None), Response::Failed);
            self.done.push((id, response));
        }
    }

    fn note(&mut self, id: u64, progress: Result<Progress>) {
        match progress {
            Ok(Progress::Done(response)) => self.done.push((id, response)),
            Ok(Progress::Decided { after, written }) => self.unacked.push_back(Unacked { after, id, written }),
            Ok(Progress::Read(_, waiting)) if self.waiting.len() >= READS_IN_FLIGHT_MAX => {
                self.queued.push_back((id, waiting));
            }
            Ok(Progress::Read(plan, waiting)) => {
                self.waiting.insert(id, waiting);
                self.engine.read(plan, id);
            }
            Ok(Progress::Deferred(op)) => self.deferred.push_back((id, op)),
            Ok(Progress::Syncing(after)) => self.syncs.push((id, after)),
            Err(error) => self.done.push((id, Response::Failed(error))),
        }
    }

    fn resume(&mut self, waiting: Waiting, plan: LookupPlan) -> Result<Progress> {
        match waiting {
            Waiting::Op(op) => self.execute(op, Some(plan)),
            Waiting::Scan(mut waiting) => {
                self.engine.absorb_scan(&mut waiting.scan, plan)?;
                self.scan(waiting)
            }
        }
    }

    fn execute(&mut self, op: Op, plan: Option<LookupPlan>) -> Result<Progress> {
        if op.is_write() && self.engine.options().read_only {
            return Err(Error::ReadOnly);
        }
        match op {
            // Writes without a condition need no lookup.
            Op::Put { options, .. } if options.condition == Condition::Always => self.write(op),
            Op::DeleteLost { .. } => self.delete_lost(op),
            Op::Get { .. } | Op::Contains { .. } | Op::Put { .. } | Op::Delete { .. } => self.look_up(op, plan),
            Op::Batch(writes) => self.write_batch(writes),
            Op::Clear => {
                let version = self.next_version(1)?;
                let appended = self.engine.clear(RANGE, version);
                self.written(op, appended, version)
            }
            Op::Scan(stretch) => {
                let scan = match stretch.since {
                    Some(since) => Scan::of_runs(RANGE, stretch.from, SCAN_KEYS, since),
                    None => Scan::of_log(RANGE, stretch.from, SCAN_KEYS),
                };
                let scan = match stretch.value_bytes_max {
                    Some(bytes_max) => scan.with_values(bytes_max),
                    None => scan,
                };
                let seen = self.engine.progress(RANGE).committed;
                self.scan(Box::new(ScanInProgress { scan, stretch, seen }))
            }
            Op::Stats => Ok(Progress::Done(Response::Stats(Box::new(Stats::of(&self.engine))))),
            Op::Sync => Ok(Progress::Syncing(self.engine.progress(RANGE).appended)),
            Op::Tick => Ok(Progress::Done(Response::Ticked(TickReport {
                is_busy: self.is_busy(),
                is_confirming: self.engine.is_confirming(),
                upkeep_in_ms: self.engine.upkeep_at().map(|at| at.ms_since(self.now.mono)),
                log_due_in_ms: self.engine.log_due_at().map(|at| at.ms_since(self.now.mono)),
                has_upkeep: self.engine.has_upkeep(),
                completed: self.engine.completed(),
            }))),
            Op::Close => unreachable!("the driver closes"),
        }
    }

    /// Whether work continues without any caller.
    fn is_busy(&self) -> bool {
        let progress = self.engine.progress(RANGE);
        let settled = match self.engine.options().durability {
            Durability::Sync | Durability::EverySecond => progress.synced,
            // Nothing syncs the last writes before the close.
            Durability::Memory => progress.flushed,
        };
        // A failed store writes no more.
        settled < progress.appended && self.engine.poisoned().is_none()
            || self.engine.in_flight() > 0
            || self.engine.log_report().verifications_queued > 0
            || self.engine.has_upkeep()
    }

    fn look_up(&mut self, op: Op, plan: Option<LookupPlan>) -> Result<Progress> {
        let Some(key) = op.key() else { unreachable!("only operations on a key look it up") };
        let view = if op.is_write() { View::Latest } else { View::Committed };
        let hash = KeyHash::of(self.engine.secret(), key);
        let has_failed = self.engine.poisoned().is_some();
        let found = match plan {
            Some(plan) => self.engine.resume(plan, self.now.wall),
            None => self.engine.lookup(RANGE, hash, key, view, self.now.wall),
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                return match op {
                    // A put without a condition needs no lookup, so a delete takes place without its result.
                    Op::Delete { key, condition: Condition::Always } if error.is_of_lost_record() => {
                        self.write(Op::DeleteLost { key, error })
                    }
                    _ => Err(error.into()),
                };
            }
        };
        let current = match found {
            Lookup::Found(entry) => Some(entry),
            // The pending record may keep the key; on a failed store none is committed any more.
            Lookup::Unsettled if !has_failed => return Ok(Progress::Deferred(op)),
            Lookup::Absent | Lookup::Unsettled => None,
            Lookup::Read(plan) => return Ok(Progress::Read(plan, Waiting::Op(op))),
        };
        let condition = match &op {
            Op::Get { .. } => return Ok(Progress::Done(Response::Value(current.as_ref().map(Value::of)))),
            Op::Contains { .. } => return Ok(Progress::Done(Response::Found(current.is_some()))),
            Op::Put { options, .. } => options.condition,
            // A delete of an absent key writes nothing.
            Op::Delete { condition: Condition::Always, .. } => Condition::Exists,
            Op::Delete { condition, .. } => *condition,
            _ => unreachable!("only these look a key up"),
        };
        let seen = current.map(|entry| entry.version);
        if holds(condition, current.as_ref()) { self.write(op) } else { Ok(self.refuse(seen)) }
    }

    /// Continues a delete whose key's record cannot be read. Another one may have been appended since it was put off: then
    /// nothing is left to delete.
    fn delete_lost(&mut self, op: Op) -> Result<Progress> {
        let Op::DeleteLost { key, .. } = &op else { unreachable!("only these are put off so") };
        let hash = KeyHash::of(self.engine.secret(), key);
        match self.engine.lookup(RANGE, hash, key, View::Latest, self.now.wall) {
            Ok(Lookup::Absent) => Ok(self.refuse(None)),
            Err(error) if !error.is_of_lost_record() => Err(error.into()),
            _ => self.write(op),
        }
    }

    /// A condition that did not hold of a version not yet committed: the caller may not learn of a write that a crash
    /// can still undo. An absence has no version but may be due to any pending delete, so it waits for the newest.
    fn refuse(&self, seen: Option<Version>) -> Progress {
        let after = seen.unwrap_or_else(|| self.engine.progress(RANGE).appended);
        Progress::Decided { after, written: None }
    }

    fn next_version(&mut self, ahead: u64) -> Result<Version> {
        if let Some(version) = Version::new(self.epoch, self.seq + ahead) {
            return Ok(version);
        }
        // Once in 2^36 writes. An epoch begins when all of the last one is committed.
        self.engine.sync_all()?;
        self.acknowledge();
        let epoch = self.engine.next_sole_epoch(RANGE).ok_or_else(versions_used_up)?;
        self.engine.begin_sole_epoch(RANGE, epoch, None)?;
        (self.epoch, self.seq) = (epoch, 0);
        Version::new(epoch, ahead).ok_or_else(versions_used_up)
    }

    fn write(&mut self, op: Op) -> Result<Progress> {
        let version = self.next_version(1)?;
        let record = match &op {
            Op::Put { key, value, options } => {
                record_of(key, Some(value), options.expiry.at_ms(self.now.wall, self.jump), version)
            }
            Op::Delete { key, .. } | Op::DeleteLost { key, .. } => record_of(key, None, 0, version),
            _ => unreachable!("not a write of one key"),
        };
        let hash = KeyHash::of(self.engine.secret(), record.key);
        let appended = self.engine.append(RANGE, hash, &record);
        self.written(op, appended, version)
    }

    fn write_batch(&mut self, writes: Vec<KeyWrite>) -> Result<Progress> {
        let last = self.next_version(writes.len() as u64)?;
        let mut records = Vec::with_capacity(writes.len());
        for (i, KeyWrite { key, value, expiry }) in writes.iter().enumerate() {
            let version = self.next_version(i as u64 + 1)?;
            let record = record_of(key, value.as_deref(), expiry.at_ms(self.now.wall, self.jump), version);
            records.push((KeyHash::of(self.engine.secret(), key), record));
        }
        let appended = self.engine.check_batch(records.len()).and_then(|()| self.engine.append_batch(RANGE, &records));
        self.written(Op::Batch(writes), appended, last)
    }

    /// The engine took a write that ends with `version`, or refused it.
    fn written(&mut self, op: Op, appended: Result<(), EngineError>, version: Version) -> Result<Progress> {
        match appended {
            Ok(()) => {
                if let Op::DeleteLost { error, .. } = &op {
                    tracing::warn!(%error, "a key is deleted whose old value is lost");
                }
                self.seq = version.seq();
                Ok(Progress::Decided { after: version, written: Some(version) })
            }
            Err(EngineError::Overloaded) => Ok(Progress::Deferred(op)),
            Err(error) => Err(error.into()),
        }
    }

    fn scan(&mut self, mut step: Box<ScanInProgress>) -> Result<Progress> {
        Ok(match self.engine.scan_step(&mut step.scan, self.now.wall)? {
            ScanStep::Done => Progress::Done(self.scanned(*step)),
            ScanStep::Read(plan) => Progress::Read(plan, Waiting::Scan(step)),
        })
    }

    fn scanned(&self, ScanInProgress { scan, stretch, seen }: ScanInProgress) -> Response {
        let is_before_end = |hash: u64| stretch.to.is_none_or(|to| hash < to);
        // The engine scans whole cells; a stretch may begin or end within one.
        let is_inside = |key: &[u8]| {
            let KeyHash(hash) = KeyHash::of(self.engine.secret(), key);
            hash >= stretch.from && is_before_end(hash)
        };
        let Scan { cursor, items, corrupt, .. } = scan;
        let is_of_runs = stretch.since.is_some();
        let items = items.into_iter().filter(|item| is_of_runs || is_inside(&item.key)).collect();
        let next = (cursor != 0 && is_before_end(cursor)).then_some(cursor);
        let missing = self.engine.missing.clone();
        Response::Scanned { items, next, corrupt, seen, missing }
    }
}

fn holds(condition: Condition, current: Option<&EntryRef<'_>>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => current.is_none(),
        Condition::Exists => current.is_some(),
        Condition::VersionIs(version) => current.is_some_and(|entry| entry.version == version),
    }
}

fn record_of<'a>(key: &'a [u8], value: Option<&'a [u8]>, expires_at_ms: u64, version: Version) -> RecordRef<'a> {
    let kind = if value.is_some() { RecordKind::Put } else { RecordKind::Tombstone };
    let value = value.unwrap_or_default();
    let (flags, tag, result) = (0, ClientTag::NONE, &[][..]);
    RecordRef { kind, version, key, value, flags, expires_at_ms, tag, result }
}

pub(super) fn versions_used_up() -> Error {
    Error::Poisoned { first: "all versions of this store are used up".to_owned() }
}

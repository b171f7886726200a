//! Updates of one key at the head: evaluated at once if the value is in memory or not needed, else parked until it is
//! read [replication.md §3].
//!
//! A tagged update leaves a record even without an effect, with its result. Its reply is therefore sent only after the
//! values it depends on are committed, and a retry gets the same reply. An untagged one replies by `emit`.
use super::read::wait_for_commit;
use super::{Emit, ExecContext, operation_error};
use crate::replica::{put_acknowledged, split_acknowledged};
use crate::request::{Execution, Parking, RequestMessage, Tag};
use fawn_chain::{Admission, Rejection};
use fawn_dli::StringOperation;
use fawn_ds::internals::{Engine, EngineError, Lookup, LookupPlan, RecordKind, RecordRef, View};
use fawn_flash::Device;
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{ClientTag, Condition, KeyHash, OperationError, RangeId, Reply, TimeMs, Update, Version};
use fawn_wire::internal::{put_result, read_result};
use std::ops::ControlFlow;

/// An update that is first of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateJob<'a> {
    pub(super) hash: KeyHash,
    pub(super) key: &'a [u8],
    /// [`ClientTag::NONE`] without a tag.
    pub(super) tag: ClientTag,
    pub(super) update: &'a Update<'a>,
    /// Longest value to evaluate.
    pub(super) grant_bytes: usize,
}

/// A record without its version and key.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordDraft<'a> {
    pub(super) kind: RecordKind,
    pub(super) value: &'a [u8],
    pub(super) flags: u32,
    pub(super) expires_at_ms: u64,
}

impl<'a> RecordDraft<'a> {
    /// A record without a value.
    pub(super) const fn bare(kind: RecordKind) -> Self {
        Self { kind, value: &[], flags: 0, expires_at_ms: 0 }
    }

    /// The record of an effect, if it has one.
    #[inline]
    fn of(effect: &'a Effect<'_>) -> Option<Self> {
        match effect {
            Effect::Put { value, flags, expires_at_ms } => {
                let (value, flags, expires_at_ms) = (value.as_slice(), *flags, *expires_at_ms);
                Some(Self { kind: RecordKind::Put, value, flags, expires_at_ms })
            }
            Effect::Delete => Some(Self::bare(RecordKind::Tombstone)),
            Effect::None => None,
        }
    }
}

/// Why a record was not appended.
#[derive(Debug)]
pub(super) enum NotAppended {
    Blocked,
    Refused(Rejection),
    Failed(OperationError),
}

impl NotAppended {
    /// Only a failure has a reply.
    pub(super) fn conclude(self, emit: impl Emit) -> Execution {
        match self {
            Self::Blocked => Execution::Blocked,
            Self::Refused(rejection) => Execution::Refused(rejection),
            Self::Failed(error) => {
                emit(&Reply::Error(error), None);
                Execution::Replied
            }
        }
    }

    #[cold]
    pub(super) fn of_engine(error: &EngineError) -> Self {
        match error {
            EngineError::Overloaded => Self::Blocked,
            error => Self::Failed(operation_error(error)),
        }
    }
}

impl<D: Device> ExecContext<'_, D> {
    /// Evaluates an update, unless earlier ones on its key wait for their value, or its value must be read.
    #[inline]
    pub(super) fn update(
        &mut self,
        message: &RequestMessage<'_>,
        (key, update): (&[u8], &Update<'_>),
        emit: impl Emit,
    ) -> Execution {
        let RequestMessage { slot, hash, tag, grant_bytes, .. } = *message;
        let emit = match self.admit(tag, emit) {
            ControlFlow::Continue(emit) => emit,
            ControlFlow::Break(execution) => return execution,
        };
        if self.exec.wait_queue.has_queue(slot, hash) {
            return Execution::Park(Parking::Queue);
        }
        let tag = tag.map_or(ClientTag::NONE, |tag| tag.client);
        self.run(&UpdateJob { hash, key, tag, update, grant_bytes }, None, emit)
    }

    /// Returns `emit` if the update is new. A retry is answered from its completion, or dropped while pending.
    #[inline]
    pub(super) fn admit<E: Emit>(&mut self, tag: Option<Tag>, emit: E) -> ControlFlow<Execution, E> {
        let Some(Tag { client, first_incomplete }) = tag else { return ControlFlow::Continue(emit) };
        if !self.member.replica.acknowledges() {
            // Retries too: a record that such a chain commits may be on a single disk.
            return ControlFlow::Break(Execution::Refused(Rejection::TooFewCopies));
        }
        match self.member.completions.admit(client, first_incomplete) {
            Admission::New if !self.exec.wait_queue.holds_tag(client) => ControlFlow::Continue(emit),
            Admission::New | Admission::Pending(_) | Admission::Answered => ControlFlow::Break(Execution::Replied),
            Admission::Done(done) => {
                self.exec.counters.retries_answered += 1;
                emit(&read_result(&done.result, done.version).unwrap_or(Reply::Error(OperationError::Corrupt)), None);
                ControlFlow::Break(Execution::Replied)
            }
            Admission::Larger(bytes) => ControlFlow::Break(Execution::Larger { bytes }),
            Admission::Overloaded => ControlFlow::Break(Execution::Blocked),
        }
    }

    /// Evaluates an update that is first of its key, with the plan that its device read filled.
    #[inline]
    pub(super) fn run(&mut self, job: &UpdateJob<'_>, plan: Option<LookupPlan>, emit: impl Emit) -> Execution {
        let time = self.member.replica.advance_time(self.now);
        if job.update.needs_current() { self.evaluate(job, plan, time, emit) } else { self.run_blind(job, time, emit) }
    }

    /// A write that does not depend on the current value: the value goes from the input to the log without a copy.
    // As in `append_as`: the arguments stay in registers.
    #[inline(always)]
    fn run_blind(&mut self, job: &UpdateJob<'_>, time: TimeMs, emit: impl Emit) -> Execution {
        let operation = StringOperation::new(*job.update, self.exec.value_bytes_max).before(self.exec.jump);
        let Outcome { effect, reply } = operation.apply(None, time);
        let draft = RecordDraft::of(&effect);
        let reply_at = |version| match reply {
            Reply::Stored { value_bytes, .. } => Reply::Stored { version, value_bytes },
            reply => reply,
        };
        self.conclude(job, draft, None, reply_at, emit)
    }

    /// Evaluates on the newest value, pending or not.
    fn evaluate(&mut self, job: &UpdateJob<'_>, plan: Option<LookupPlan>, time: TimeMs, emit: impl Emit) -> Execution {
        let lookup = match plan {
            Some(plan) => self.engine.resume(plan, time),
            None => self.engine.lookup(self.member.id, job.hash, job.key, View::Latest, time),
        };
        let entry = match lookup {
            Ok(Lookup::Found(entry)) if entry.value.len() > job.grant_bytes => {
                return Execution::Larger { bytes: entry.value.len() };
            }
            Ok(Lookup::Found(entry)) => Some(entry),
            Ok(Lookup::Absent | Lookup::Unsettled) => None,
            Ok(Lookup::Read(plan)) => return Execution::Park(Parking::Read(plan)),
            Err(error) => {
                let is_plain_delete =
                    matches!(job.update, Update::Delete { condition: Condition::Always, return_previous: false });
                if is_plain_delete && error.is_of_lost_record() {
                    return self.delete_lost(job, &error, emit);
                }
                return NotAppended::Failed(operation_error(&error)).conclude(emit);
            }
        };
        let wait = wait_for_commit(&self.member.replica, entry.map(|entry| entry.version));
        let limit_bytes = self.exec.value_bytes_max;
        let Outcome { effect, reply } =
            StringOperation::new(*job.update, limit_bytes).before(self.exec.jump).apply(entry, time);
        // The entry is borrowed from the engine, which an append changes: borrowed parts of the outcome are copied.
        let mut scratch = std::mem::take(&mut self.exec.scratch);
        scratch.reply.clear();
        put_result(&mut scratch.reply, &reply);
        scratch.value.clear();
        let draft = RecordDraft::of(&effect).map(|RecordDraft { kind, value, flags, expires_at_ms }| {
            scratch.value.extend_from_slice(value);
            (kind, flags, expires_at_ms)
        });
        let value = scratch.value.as_slice();
        let draft = draft.map(|(kind, flags, expires_at_ms)| RecordDraft { kind, value, flags, expires_at_ms });
        let reply_at = |version| {
            let Ok(reply) = read_result(&scratch.reply, version) else { unreachable!("it was just encoded") };
            reply
        };
        let execution = self.conclude(job, draft, wait, reply_at, emit);
        self.exec.scratch = scratch;
        execution
    }

    /// A plain put needs no lookup, so a plain delete takes place without the result of one.
    #[cold]
    fn delete_lost(&mut self, job: &UpdateJob<'_>, error: &EngineError, emit: impl Emit) -> Execution {
        let tombstone = RecordDraft::bare(RecordKind::Tombstone);
        match self.append(job.hash, job.key, job.tag, tombstone, &Reply::Deleted) {
            Ok(version) => {
                // Not before: a delete that is blocked comes here again.
                tracing::warn!(%error, "a key is deleted whose old value is lost");
                self.exec.counters.writes += 1;
                reply_at_commit(job.tag, &Reply::Deleted, version, emit)
            }
            Err(not) => not.conclude(emit),
        }
    }

    /// Appends the draft, and replies unless the update is tagged. Without a draft the reply waits for `wait`.
    #[inline]
    fn conclude<'r>(
        &mut self,
        job: &UpdateJob<'_>,
        draft: Option<RecordDraft<'_>>,
        wait: Option<Version>,
        reply_at: impl Fn(Version) -> Reply<'r>,
        emit: impl Emit,
    ) -> Execution {
        let draft = match draft {
            Some(draft) => draft,
            None if job.tag.is_some() => RecordDraft::bare(RecordKind::Result),
            None => {
                emit(&reply_at(Version::ZERO), wait);
                return Execution::Replied;
            }
        };
        match self.append(job.hash, job.key, job.tag, draft, &reply_at(Version::ZERO)) {
            Ok(version) => {
                self.exec.counters.writes += 1;
                reply_at_commit(job.tag, &reply_at(version), version, emit)
            }
            Err(not) => not.conclude(emit),
        }
    }

    /// Appends one record as the range's next version; the record of a tagged update has the reply as its result.
    #[inline]
    pub(super) fn append(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        tag: ClientTag,
        draft: RecordDraft<'_>,
        reply: &Reply<'_>,
    ) -> Result<Version, NotAppended> {
        let RecordDraft { kind, value, flags, expires_at_ms } = draft;
        let key = if matches!(kind, RecordKind::Result) { &[] } else { key };
        self.append_as(1, tag, reply, |engine, range, version, result| {
            engine.append(range, hash, &RecordRef { kind, version, key, value, flags, expires_at_ms, tag, result })
        })
    }

    /// Assigns the next `count` versions, appends their records by `append` with the first of them, and records the
    /// completion of a tagged update. Returns the last version.
    // Every update appends: without the call, its arguments and the record stay in registers.
    #[inline(always)]
    pub(super) fn append_as(
        &mut self,
        count: u64,
        tag: ClientTag,
        reply: &Reply<'_>,
        append: impl FnOnce(&mut Engine<D>, RangeId, Version, &[u8]) -> Result<(), EngineError>,
    ) -> Result<Version, NotAppended> {
        self.exec.result.clear();
        let first_incomplete = if tag.is_some() { self.encode_result(tag, reply)? } else { 0 };
        let before = self.member.replica.last();
        let assigned = match count {
            1 => self.member.replica.assign(self.now),
            count => self.member.replica.assign_batch(self.now, count),
        };
        let first = assigned.map_err(|rejection| self.not_assigned(rejection))?;
        let last = self.member.replica.last();
        if let Err(error) = append(self.engine, self.member.id, first, &self.exec.result) {
            self.member.replica.retract(before);
            return Err(NotAppended::of_engine(&error));
        }
        if tag.is_some() {
            let (result, _) = split_acknowledged(tag, &self.exec.result);
            self.member.completions.record(tag, first_incomplete, last, result);
        }
        Ok(last)
    }

    /// The outcome without a version. A poisoned store commits nothing more and begins no epoch, so waiting would never
    /// end.
    #[cold]
    fn not_assigned(&self, rejection: Rejection) -> NotAppended {
        match rejection {
            Rejection::Overloaded | Rejection::EpochFull if self.engine.poisoned().is_some() => {
                NotAppended::Failed(OperationError::Poisoned)
            }
            // A new epoch begins once all records of this one are committed.
            Rejection::Overloaded | Rejection::EpochFull => NotAppended::Blocked,
            rejection => NotAppended::Refused(rejection),
        }
    }

    /// Encodes the result for the record of a tagged update; returns the client's first incomplete operation.
    fn encode_result(&mut self, tag: ClientTag, reply: &Reply<'_>) -> Result<u64, NotAppended> {
        if !self.member.completions.has_room(tag.session) {
            return Err(NotAppended::Blocked);
        }
        let first_incomplete = self.member.completions.first_incomplete(tag.session);
        put_result(&mut self.exec.result, reply);
        if !self.member.completions.has_room_for(tag.session, self.exec.result.len()) {
            return Err(NotAppended::Blocked);
        }
        put_acknowledged(&mut self.exec.result, tag, first_incomplete);
        Ok(first_incomplete)
    }
}

/// Replies to an update whose record has this version, unless it is tagged: its commit replies then.
#[inline]
pub(super) fn reply_at_commit(tag: ClientTag, reply: &Reply<'_>, version: Version, emit: impl Emit) -> Execution {
    if !tag.is_some() {
        emit(reply, Some(version));
    }
    Execution::Replied
}

//! Operations at the head: admission, evaluation on the newest pending value, append [replication.md §3].
//!
//! Operations on a key whose value must be read from the device queue behind that read. A sequence number is assigned
//! after the evaluation, and N pipelined operations on one key cost one read.
use super::backend::BackEnd;
use super::config::node_of;
use super::payload::{decode_request, is_keyspace, put_acknowledged, put_reply, put_result, put_result_as_reply};
use super::peer_links::PeerLinks;
use super::wait_queue::{Origin, WaitingRequest};
use crate::execute::{UpdateDecision, Write, evaluate, operation_error};
use fawn_chain::message::RefusedReason;
use fawn_chain::replica::Rejection;
use fawn_chain::{Admission, Header, Role};
use fawn_dli::StringOperation;
use fawn_ds::internals::{EngineError, Lookup, LookupPlan, RecordKind, RecordRef, View};
use fawn_flash::Device;
use fawn_types::operation::{DataOperation, Effect};
use fawn_types::{ClientTag, KeyHash, OperationError, Reply, Request, RingKey, TimeMs, Update, Version};

/// An update at a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateJob<'a> {
    pub(super) at: usize,
    pub(super) origin: Origin,
    pub(super) tag: ClientTag,
    pub(super) hash: KeyHash,
    pub(super) key: &'a [u8],
    pub(super) update: Update<'a>,
}

/// A record without its version.
pub(super) struct RecordDraft<'a> {
    pub(super) kind: RecordKind,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) flags: u32,
    pub(super) expires_at_ms: u64,
}

/// Outcome of a lookup for an update.
enum HeadDecision {
    Decision(UpdateDecision),
    Read(LookupPlan),
    Error(OperationError),
}

/// The key hash of the index: the low 64 bits of the ring key, so one pass over the key computes both.
pub(super) fn key_hash_of(ring_key: &RingKey) -> KeyHash {
    let mut low = [0; 8];
    low.copy_from_slice(&ring_key.0[12..]);
    KeyHash(u64::from_be_bytes(low))
}

impl<D: Device> BackEnd<D> {
    /// Handles a front-end's request: checks epoch, range and role, then reads or updates.
    pub(super) fn handle_request(
        &mut self,
        header: Header,
        (op, tag, first_incomplete): (u64, ClientTag, u64),
        payload: &[u8],
        links: &mut PeerLinks,
    ) {
        if is_keyspace(payload) {
            return self.handle_keyspace_op(header, (op, tag, first_incomplete), payload, links);
        }
        let Ok((session, request)) = decode_request(payload) else { return self.counters.malformed += 1 };
        let origin = Origin { node: header.from, op, session };
        let Some(at) = self.member_at(header.range) else {
            return self.refuse(header.range, origin, RefusedReason::WrongRange, links);
        };
        let ring_key = RingKey::of(self.engine.secret(), request.key());
        let replica = &self.members[at].replica;
        if replica.admit_epoch(header.epoch).is_err() {
            return self.refuse_stale(at, header, origin, links);
        }
        if !replica.covers(&ring_key) {
            return self.refuse(header.range, origin, RefusedReason::WrongRange, links);
        }
        let hash = key_hash_of(&ring_key);
        match request {
            Request::Get { key } => self.handle_read(at, header, origin, (hash, key), payload, links),
            Request::Update { key, update } => {
                // The tail derives the receiver of the reply from the tag alone, so the tag must be the sender's.
                if tag != (ClientTag { session, seq: op }) || node_of(session) != header.from {
                    return self.counters.malformed += 1;
                }
                if !matches!(replica.role(), Some(Role::Head | Role::Single)) {
                    return self.refuse_stale(at, header, origin, links);
                }
                let job = UpdateJob { at, origin, tag, hash, key, update };
                if self.admit(job, first_incomplete, links) {
                    self.begin_update(job, payload, links);
                }
            }
        }
    }

    /// Returns whether the operation is new. A retry is answered from its completion, or dropped while pending.
    pub(super) fn admit(&mut self, job: UpdateJob<'_>, first_incomplete: u64, links: &mut PeerLinks) -> bool {
        let UpdateJob { at, origin, tag, .. } = job;
        let member = &mut self.members[at];
        if !member.replica.acknowledges() {
            // Retries too: a record that such a chain commits may be on a single disk.
            let range = member.id;
            self.refuse(range, origin, RefusedReason::TooFewCopies, links);
            return false;
        }
        match member.completions.admit(tag, first_incomplete) {
            Admission::New => !self.parked.holds_tag(tag),
            Admission::Pending(_) | Admission::Answered => false,
            Admission::Done(done) => {
                self.counters.retries_answered += 1;
                self.encoded.clear();
                put_result_as_reply(&mut self.encoded, origin.session, done.version, &done.result);
                let header = links.header(member.id, member.replica.epoch());
                links.send_reply(origin.node, header, origin.op, &self.encoded);
                false
            }
            Admission::Overloaded => {
                let range = member.id;
                self.refuse(range, origin, RefusedReason::Overloaded, links);
                false
            }
        }
    }

    fn begin_update(&mut self, job: UpdateJob<'_>, payload: &[u8], links: &mut PeerLinks) {
        let range = self.members[job.at].id;
        let queues = self.parked.has_queue(range, job.hash);
        let plan = if queues { None } else { self.run(job, links) };
        if !queues && plan.is_none() {
            return;
        }
        if self.parked.is_full() {
            return self.refuse(range, job.origin, RefusedReason::Overloaded, links);
        }
        let purpose = self.parked.park_update((job.origin, range, job.hash), job.tag, payload);
        assert_eq!(purpose.is_some(), plan.is_some(), "the first of a key loads it, the others wait");
        if let (Some(purpose), Some(plan)) = (purpose, plan) {
            self.counters.cold += 1;
            self.parked.read(&mut self.engine, plan, purpose);
        }
    }

    /// Advances the chain time, which decides expiry at the head.
    fn head_time(&mut self, at: usize) -> TimeMs {
        self.members[at].replica.advance_time(self.now)
    }

    /// Evaluates and appends; returns a plan if a device read must come first.
    fn run(&mut self, job: UpdateJob<'_>, links: &mut PeerLinks) -> Option<LookupPlan> {
        if !job.update.needs_current() {
            self.run_blind(job, links);
            return None;
        }
        let time = self.head_time(job.at);
        let lookup = self.engine.lookup(self.members[job.at].id, job.hash, job.key, View::Latest, time);
        let decided = decide(lookup, &mut self.scratch, self.config.limits.value_bytes_max, job.update, time);
        self.apply(job, decided, links)
    }

    /// Resumes an update after its device read, then its key's queue.
    pub(super) fn update_read(&mut self, parked: WaitingRequest, plan: LookupPlan, links: &mut PeerLinks) {
        let (range, hash) = (parked.range, parked.hash);
        let Some(at) = self.member_at(range) else { return };
        let time = self.head_time(at);
        let value_bytes_max = self.config.limits.value_bytes_max;
        let Ok((_, Request::Update { key, update })) = decode_request(&parked.payload) else { return };
        let job = UpdateJob { at, origin: parked.origin, tag: parked.tag, hash, key, update };
        let decided = decide(self.engine.resume(plan, time), &mut self.scratch, value_bytes_max, update, time);
        if let Some(plan) = self.apply(job, decided, links) {
            let purpose = self.parked.put_back(parked);
            return self.parked.read(&mut self.engine, plan, purpose);
        }
        self.run_queue(at, hash, links);
    }

    /// Runs a key's queue up to the first operation that needs a device read.
    fn run_queue(&mut self, at: usize, hash: KeyHash, links: &mut PeerLinks) {
        let range = self.members[at].id;
        while let Some(front) = self.parked.front(range, hash) {
            let parked = self.parked.take(front);
            let Ok((_, Request::Update { key, update })) = decode_request(&parked.payload) else { continue };
            let job = UpdateJob { at, origin: parked.origin, tag: parked.tag, hash, key, update };
            if let Some(plan) = self.run(job, links) {
                let purpose = self.parked.put_back(parked);
                return self.parked.read(&mut self.engine, plan, purpose);
            }
        }
    }

    /// Runs a write that does not depend on the current value: it is appended from the frame without an extra copy.
    fn run_blind(&mut self, job: UpdateJob<'_>, links: &mut PeerLinks) {
        let time = self.head_time(job.at);
        let outcome = StringOperation::new(job.update, self.config.limits.value_bytes_max).apply(None, time);
        let bare = RecordDraft { kind: RecordKind::Result, key: &[], value: &[], flags: 0, expires_at_ms: 0 };
        let draft = match &outcome.effect {
            Effect::Put { value, flags, expires_at_ms } => RecordDraft {
                kind: RecordKind::Put,
                key: job.key,
                value: value.as_slice(),
                flags: *flags,
                expires_at_ms: *expires_at_ms,
            },
            Effect::Delete => RecordDraft { kind: RecordKind::Tombstone, key: job.key, ..bare },
            Effect::None => bare,
        };
        self.encoded.clear();
        put_result(&mut self.encoded, &outcome.reply);
        self.append(job, &draft, links);
    }

    /// Appends the outcome of an evaluation.
    ///
    /// An outcome without a write becomes a result-only record. Its reply is therefore sent only after the values it
    /// depends on are committed, and a retry gets the same reply.
    fn apply(&mut self, job: UpdateJob<'_>, decided: HeadDecision, links: &mut PeerLinks) -> Option<LookupPlan> {
        let UpdateDecision { write, answer } = match decided {
            HeadDecision::Decision(decision) => decision,
            HeadDecision::Read(plan) => return Some(plan),
            HeadDecision::Error(error) => {
                self.answer(job.at, job.origin, &Reply::Error(error), links);
                return None;
            }
        };
        self.encoded.clear();
        put_result(&mut self.encoded, &answer.reply(&self.scratch, Version::ZERO));
        let value = std::mem::take(&mut self.scratch.value);
        let bare = RecordDraft { kind: RecordKind::Result, key: &[], value: &[], flags: 0, expires_at_ms: 0 };
        let draft = match write {
            Write::None => bare,
            Write::Delete => RecordDraft { kind: RecordKind::Tombstone, key: job.key, ..bare },
            Write::Put { flags, expires_at_ms } => {
                RecordDraft { kind: RecordKind::Put, key: job.key, value: &value, flags, expires_at_ms }
            }
        };
        self.append(job, &draft, links);
        self.scratch.value = value;
        None
    }

    /// Appends the draft with the result in `encoded` as the range's next version.
    pub(super) fn append(&mut self, job: UpdateJob<'_>, draft: &RecordDraft<'_>, links: &mut PeerLinks) {
        let member = &mut self.members[job.at];
        let (range, before) = (member.id, member.replica.last());
        if !member.completions.has_room(job.tag.session) {
            return self.refuse(range, job.origin, RefusedReason::Overloaded, links);
        }
        let version = match member.replica.assign(self.now) {
            Ok(version) => version,
            Err(Rejection::Overloaded | Rejection::EpochFull) => {
                return self.refuse(range, job.origin, RefusedReason::Overloaded, links);
            }
            Err(Rejection::TooFewCopies) => return self.refuse(range, job.origin, RefusedReason::TooFewCopies, links),
            Err(_) => return self.refuse(range, job.origin, RefusedReason::StaleEpoch, links),
        };
        let RecordDraft { kind, key, value, flags, expires_at_ms } = *draft;
        let first_incomplete = member.completions.first_incomplete(job.tag.session);
        let result_bytes = self.encoded.len();
        put_acknowledged(&mut self.encoded, job.tag, first_incomplete);
        let result = self.encoded.as_slice();
        let record = RecordRef { kind, version, key, value, flags, expires_at_ms, tag: job.tag, result };
        match self.engine.append(range, job.hash, &record) {
            Ok(()) => {
                member.completions.record(job.tag, first_incomplete, version, &self.encoded[..result_bytes]);
                self.counters.writes += 1;
            }
            Err(error) => {
                member.replica.retract(before);
                self.append_failed(job, &error, links);
            }
        }
    }

    pub(super) fn append_failed(&mut self, job: UpdateJob<'_>, error: &EngineError, links: &mut PeerLinks) {
        let range = self.members[job.at].id;
        match error {
            EngineError::Overloaded => self.refuse(range, job.origin, RefusedReason::Overloaded, links),
            error => self.answer(job.at, job.origin, &Reply::Error(operation_error(error)), links),
        }
    }

    /// Sends a reply without a record.
    pub(super) fn answer(&mut self, at: usize, origin: Origin, reply: &Reply<'_>, links: &mut PeerLinks) {
        self.encoded.clear();
        put_reply(&mut self.encoded, origin.session, reply);
        let header = links.header(self.members[at].id, self.members[at].replica.epoch());
        links.send_reply(origin.node, header, origin.op, &self.encoded);
    }
}

fn decide(
    lookup: Result<Lookup<'_>, EngineError>,
    scratch: &mut crate::execute::EvaluationScratch,
    value_bytes_max: u32,
    update: Update<'_>,
    time: TimeMs,
) -> HeadDecision {
    let entry = match lookup {
        Ok(Lookup::Found(entry)) => Some(entry),
        Ok(Lookup::Absent) => None,
        Ok(Lookup::Read(plan)) => return HeadDecision::Read(plan),
        Err(error) => return HeadDecision::Error(operation_error(&error)),
    };
    HeadDecision::Decision(evaluate(scratch, update, value_bytes_max, entry, time))
}

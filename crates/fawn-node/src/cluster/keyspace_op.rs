//! Requests on a whole range at a back-end: counts and scans at the tail, clears and atomic batches at the head.
use super::backend::BackEnd;
use super::config::node_of;
use super::head::{RecordDraft, UpdateJob, key_hash_of};
use super::payload::{KeyValuePairs, KeyspaceRequest, decode_keyspace, put_acknowledged, put_result, put_scan_page};
use super::peer_links::PeerLinks;
use super::wait_queue::{Origin, ReadPurpose};
use crate::execute::{check_whole, operation_error};
use fawn_chain::message::{FRAME_BYTES_MAX, RefusedReason};
use fawn_chain::{Header, Role};
use fawn_ds::internals::format::record::encoded_len;
use fawn_ds::internals::{LookupPlan, RecordKind, RecordRef, Scan, ScanStep};
use fawn_flash::Device;
use fawn_types::{ClientTag, Condition, EntryRef, KeyHash, OperationError, RangeId, Reply, RingKey, Update, Version};

/// Maximum keys requested per page. A page may exceed this by one index cell, and even then keys of maximum length fit
/// one frame.
const SCAN_KEYS_MAX: u32 = 64;
/// Maximum bytes of one batch's records, so that one frame carries all of them.
const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;
/// Maximum scans that wait for a device read.
const SCANS_MAX: usize = 1024;

/// A scan that waits for a device read.
#[derive(Debug)]
pub(super) struct ScanJob {
    range: RangeId,
    header: Header,
    origin: Origin,
    scan: Scan,
}

impl<D: Device> BackEnd<D> {
    /// Handles a front-end's request on a range: checks epoch and role, then executes it.
    pub(super) fn handle_keyspace_op(
        &mut self,
        header: Header,
        (op, tag, first_incomplete): (u64, ClientTag, u64),
        payload: &[u8],
        links: &mut PeerLinks,
    ) {
        let Ok((session, request)) = decode_keyspace(payload) else { return self.counters.malformed += 1 };
        let origin = Origin { node: header.from, op, session };
        let Some(at) = self.member_at(header.range) else {
            return self.refuse(header.range, origin, RefusedReason::WrongRange, links);
        };
        if self.members[at].replica.admit_epoch(header.epoch).is_err() {
            return self.refuse_stale(at, header, origin, links);
        }
        let is_write = matches!(request, KeyspaceRequest::Clear | KeyspaceRequest::SetAll(_));
        if is_write && (tag != (ClientTag { session, seq: op }) || node_of(session) != header.from) {
            return self.counters.malformed += 1;
        }
        let replica = &mut self.members[at].replica;
        let is_its_part = match is_write {
            true => matches!(replica.role(), Some(Role::Head | Role::Single)),
            false => replica.admit_read(self.now).is_ok(),
        };
        if !is_its_part {
            return self.refuse_stale(at, header, origin, links);
        }
        match request {
            KeyspaceRequest::Count => {
                let keys = self.engine.len(self.members[at].id);
                self.answer(at, origin, &Reply::Unsigned(keys), links);
            }
            KeyspaceRequest::Scan { cursor, count } => {
                let range = self.members[at].id;
                let scan = Scan::new(range, cursor, count.clamp(1, SCAN_KEYS_MAX) as usize);
                self.scan(at, ScanJob { range, header, origin, scan }, links);
            }
            KeyspaceRequest::Clear => {
                self.write_keyspace_op(keyspace_job(at, origin, tag), first_incomplete, None, links)
            }
            KeyspaceRequest::SetAll(pairs) => {
                self.write_keyspace_op(keyspace_job(at, origin, tag), first_incomplete, Some(pairs), links);
            }
        }
    }

    fn write_keyspace_op(
        &mut self,
        job: UpdateJob<'_>,
        first_incomplete: u64,
        pairs: Option<KeyValuePairs<'_>>,
        links: &mut PeerLinks,
    ) {
        if !self.admit(job, first_incomplete, links) {
            return;
        }
        self.encoded.clear();
        match pairs {
            None => {
                put_result(&mut self.encoded, &Reply::Deleted);
                let draft = RecordDraft { kind: RecordKind::Clear, key: &[], value: &[], flags: 0, expires_at_ms: 0 };
                self.append(job, &draft, links);
            }
            Some(pairs) => {
                put_result(&mut self.encoded, &Reply::Stored { version: Version::ZERO, value_bytes: 0 });
                self.set_all(job, pairs, links);
            }
        }
    }

    /// Appends all pairs as one batch of the log. Only its last record has the tag and the result. This marks the end
    /// of the batch on links too, where only whole batches are sent and appended (`forward.rs`).
    fn set_all(&mut self, job: UpdateJob<'_>, pairs: KeyValuePairs<'_>, links: &mut PeerLinks) {
        let range = self.members[job.at].id;
        let mut hashes = Vec::new();
        for (key, _) in pairs.iter() {
            let ring_key = RingKey::of(self.engine.secret(), key);
            if !self.members[job.at].replica.covers(&ring_key) {
                return self.refuse(range, job.origin, RefusedReason::WrongRange, links);
            }
            let hash = key_hash_of(&ring_key);
            // Earlier updates of this key wait for a device read; the front-end retries the batch later.
            if self.parked.has_queue(range, hash) {
                return self.refuse(range, job.origin, RefusedReason::Overloaded, links);
            }
            hashes.push(hash);
        }
        let too_long = Reply::Error(OperationError::ValueTooLong { limit_bytes: BATCH_BYTES_MAX as u32 });
        if hashes.len() as u64 > self.config.limits.replica.pending_max {
            return self.answer(job.at, job.origin, &too_long, links);
        }
        let member = &mut self.members[job.at];
        let before = member.replica.last();
        let mut records = Vec::with_capacity(hashes.len());
        for ((key, value), hash) in pairs.iter().zip(&hashes) {
            let Ok(version) = member.replica.assign(self.now) else {
                if !records.is_empty() {
                    member.replica.retract(before);
                }
                return self.refuse(range, job.origin, RefusedReason::Overloaded, links);
            };
            records.push((*hash, RecordRef::put(version, key, value)));
        }
        let first_incomplete = member.completions.first_incomplete(job.tag.session);
        let result_bytes = self.encoded.len();
        put_acknowledged(&mut self.encoded, job.tag, first_incomplete);
        let Some((_, last)) = records.last_mut() else { return self.counters.malformed += 1 };
        (last.tag, last.result) = (job.tag, self.encoded.as_slice());
        let version = last.version;
        let bytes: usize = records.iter().map(|(_, record)| encoded_len(record)).sum();
        if bytes > BATCH_BYTES_MAX {
            member.replica.retract(before);
            return self.answer(job.at, job.origin, &too_long, links);
        }
        match self.engine.append_batch(range, &records) {
            Ok(()) => {
                member.completions.record(job.tag, first_incomplete, version, &self.encoded[..result_bytes]);
                self.counters.writes += hashes.len() as u64;
            }
            Err(error) => {
                member.replica.retract(before);
                self.append_failed(job, &error, links);
            }
        }
    }

    fn scan(&mut self, at: usize, mut job: ScanJob, links: &mut PeerLinks) {
        let time = self.members[at].replica.time();
        match self.engine.scan_step(&mut job.scan, time) {
            Ok(ScanStep::Read(_)) if self.scans.len() >= SCANS_MAX => {
                self.refuse(job.range, job.origin, RefusedReason::Overloaded, links);
            }
            Ok(ScanStep::Read(plan)) => {
                let purpose = ReadPurpose::Scan { at: self.scans.insert(job) };
                self.parked.read(&mut self.engine, plan, purpose);
            }
            Ok(ScanStep::Done) => {
                if let Err(error) = check_whole(&job.scan) {
                    return self.answer(at, job.origin, &Reply::Error(error), links);
                }
                let mut page = Vec::new();
                put_scan_page(&mut page, job.scan.cursor, job.scan.items.iter().map(|item| item.key.as_slice()));
                let entry = EntryRef { value: &page, flags: 0, expires_at_ms: 0, version: Version::ZERO };
                self.answer(at, job.origin, &Reply::Value(entry), links);
            }
            Err(error) => self.answer(at, job.origin, &Reply::Error(operation_error(&error)), links),
        }
    }

    /// Resumes a scan after its device read.
    pub(super) fn scan_read(&mut self, at: usize, plan: LookupPlan, links: &mut PeerLinks) {
        let mut job = self.scans.remove(at);
        let absorbed = self.engine.absorb_scan(&mut job.scan, plan);
        let Some(at) = self.member_at(job.range) else { return };
        if let Err(error) = absorbed {
            return self.answer(at, job.origin, &Reply::Error(operation_error(&error)), links);
        }
        // The chain may have changed during the read, and only its tail may answer.
        if self.members[at].replica.admit_read(self.now).is_err() {
            return self.refuse_stale(at, job.header, job.origin, links);
        }
        self.scan(at, job, links);
    }
}

/// A job without a key.
fn keyspace_job(at: usize, origin: Origin, tag: ClientTag) -> UpdateJob<'static> {
    let update = Update::Delete { condition: Condition::Always, return_previous: false };
    UpdateJob { at, origin, tag, hash: KeyHash(0), key: &[], update }
}

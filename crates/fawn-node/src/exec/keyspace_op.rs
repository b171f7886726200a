//! Requests on a member's whole range: counts and scan steps at the tail, clears and atomic batches at the head.
use super::read::wait_for_commit;
use super::update::{RecordDraft, reply_at_commit};
use super::{Emit, ExecContext, operation_error};
use crate::replica::RangeSlot;
use crate::request::{Execution, Parking, RequestMessage};
use fawn_chain::ReadTime;
use fawn_chain::message::FRAME_BYTES_MAX;
use fawn_ds::internals::format::record::encoded_len;
use fawn_ds::internals::{CorruptRecord, Engine, EngineError, RecordKind, RecordRef, Scan, ScanItem, ScanStep};
use fawn_flash::Device;
use fawn_types::{ClientTag, EntryRef, KeyHash, OperationError, Reply, Version};
use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, put_scan_page};
use std::ops::ControlFlow;

/// Maximum bytes of a tagged batch's records, so that one frame carries all of them.
const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// A key with its hash, and its value.
pub(crate) type HashedPair<'a> = (KeyHash, &'a [u8], &'a [u8]);

impl<D: Device> ExecContext<'_, D> {
    /// Executes a request on a whole range.
    pub(super) fn keyspace_op(
        &mut self,
        message: &RequestMessage<'_>,
        request: &KeyspaceRequest<'_>,
        emit: impl Emit,
    ) -> Execution {
        let emit = match self.admit(message.tag, emit) {
            ControlFlow::Continue(emit) => emit,
            ControlFlow::Break(execution) => return execution,
        };
        let client = message.tag.map_or(ClientTag::NONE, |tag| tag.client);
        match *request {
            KeyspaceRequest::Count => {
                if let Err(rejection) = self.member.replica.admit_read(self.now) {
                    return Execution::Refused(rejection);
                }
                emit(&Reply::Unsigned(self.engine.len(self.member.id)), None);
                Execution::Replied
            }
            KeyspaceRequest::Scan { cursor, count } => {
                let scan = Box::new(Scan::new(self.member.id, cursor, count as usize));
                self.scan_step(scan, emit)
            }
            KeyspaceRequest::Clear => self.clear(client, emit),
            KeyspaceRequest::SetAll(pairs) => {
                let pairs = hash_pairs(self.engine, pairs);
                self.set_all(message.slot, client, &pairs, emit)
            }
        }
    }

    /// Executes an update of the range that waited, and that is first of all of its keys.
    pub(super) fn run_range_update(
        &mut self,
        client: ClientTag,
        request: &KeyspaceRequest<'_>,
        emit: impl Emit,
    ) -> Execution {
        match *request {
            KeyspaceRequest::Clear => self.clear(client, emit),
            KeyspaceRequest::SetAll(pairs) => {
                let pairs = hash_pairs(self.engine, pairs);
                self.append_pairs(client, &pairs, emit)
            }
            KeyspaceRequest::Count | KeyspaceRequest::Scan { .. } => unreachable!("only updates wait in queues"),
        }
    }

    /// Continues a scan over whole index cells; the reply is a page of keys.
    pub(super) fn scan_step(&mut self, mut scan: Box<Scan>, emit: impl Emit) -> Execution {
        let time = match self.member.replica.admit_read(self.now) {
            Ok(time) => time,
            Err(rejection) => return Execution::Refused(rejection),
        };
        match self.engine.scan_step(&mut scan, time.settled) {
            Ok(ScanStep::Read(plan)) => return Execution::Park(Parking::Scan(plan, scan)),
            Ok(ScanStep::Done) => match check_whole(&scan) {
                // An update that has not arrived yet may keep a key. A key that has expired since an earlier read of the step was
                // there when that began.
                Ok(()) if scan.items.iter().any(|item| expires_between(item, time)) => return Execution::Blocked,
                Ok(()) => {
                    let mut page = Vec::new();
                    let found = scan.items.iter().map(|item| item.key.as_slice());
                    put_scan_page(&mut page, scan.cursor, found.chain(scan.kept.iter().map(Vec::as_slice)));
                    let entry = EntryRef { value: &page, flags: 0, expires_at_ms: 0, version: Version::ZERO };
                    let wait = if scan.is_unsettled { wait_for_commit(&self.member.replica, None) } else { None };
                    emit(&Reply::Value(entry), wait);
                }
                Err(error) => emit(&Reply::Error(error), None),
            },
            Err(error) => emit(&Reply::Error(operation_error(&error)), None),
        }
        Execution::Replied
    }

    /// Empties the range with one record. Updates that wait for their value find the key absent.
    fn clear(&mut self, client: ClientTag, emit: impl Emit) -> Execution {
        let draft = RecordDraft::bare(RecordKind::Clear);
        match self.append(KeyHash(0), &[], client, draft, &Reply::Deleted) {
            Ok(version) => {
                self.exec.counters.flushes += 1;
                reply_at_commit(client, &Reply::Deleted, version, emit)
            }
            Err(not) => not.conclude(emit),
        }
    }

    /// Appends all pairs as one batch of the log, complete or absent after a crash. Only its last record has the tag
    /// and the result. This marks the end of the batch on links too, where only whole batches are sent and appended.
    pub(crate) fn set_all(
        &mut self,
        slot: RangeSlot,
        client: ClientTag,
        pairs: &[HashedPair<'_>],
        emit: impl Emit,
    ) -> Execution {
        // Updates that wait for their value precede the batch.
        if self.exec.wait_queue.has_queues()
            && pairs.iter().any(|(hash, ..)| self.exec.wait_queue.has_queue(slot, *hash))
        {
            return Execution::Park(Parking::Queue);
        }
        self.append_pairs(client, pairs, emit)
    }

    fn append_pairs(&mut self, client: ClientTag, pairs: &[HashedPair<'_>], emit: impl Emit) -> Execution {
        let reply_at = |version| Reply::Stored { version, value_bytes: 0 };
        if pairs.is_empty() {
            return self.append_nothing(client, &reply_at(Version::ZERO), emit);
        }
        let count = pairs.len() as u64;
        let append = |engine: &mut Engine<D>, range, first, result: &[u8]| {
            let records = batch(pairs, first, client, result);
            let found_bytes = records.iter().map(|(_, record)| encoded_len(record)).sum();
            if client.is_some() && found_bytes > BATCH_BYTES_MAX {
                return Err(EngineError::TooLarge { found_bytes, limit_bytes: BATCH_BYTES_MAX });
            }
            engine.check_batch(records.len())?;
            engine.append_batch(range, &records)
        };
        let appended = self.append_as(count, client, &reply_at(Version::ZERO), append);
        match appended {
            Ok(version) => {
                self.exec.counters.writes += count;
                reply_at_commit(client, &reply_at(version), version, emit)
            }
            Err(not) => not.conclude(emit),
        }
    }

    /// A batch without pairs. If it is tagged, its record acknowledges the replies that the front-end has.
    fn append_nothing(&mut self, client: ClientTag, reply: &Reply<'_>, emit: impl Emit) -> Execution {
        if !client.is_some() {
            emit(reply, None);
            return Execution::Replied;
        }
        match self.append(KeyHash(0), &[], client, RecordDraft::bare(RecordKind::Result), reply) {
            Ok(version) => reply_at_commit(client, reply, version, emit),
            Err(not) => not.conclude(emit),
        }
    }
}

pub(super) fn hash_pairs<'a, D: Device>(engine: &Engine<D>, pairs: KeyValuePairs<'a>) -> Vec<HashedPair<'a>> {
    pairs.iter().map(|(key, value)| (KeyHash::of(engine.secret(), key), key, value)).collect()
}

/// The records of a batch from version `first` on.
fn batch<'a>(
    pairs: &[HashedPair<'a>],
    first: Version,
    tag: ClientTag,
    result: &'a [u8],
) -> Vec<(KeyHash, RecordRef<'a>)> {
    let versions = std::iter::successors(Some(first), |version| version.next());
    let record = |((hash, key, value), version): (&HashedPair<'a>, _)| (*hash, RecordRef::put(version, key, value));
    let mut records: Vec<_> = pairs.iter().zip(versions).map(record).collect();
    if let Some((_, last)) = records.last_mut() {
        (last.tag, last.result) = (tag, result);
    }
    records
}

/// Whether the key has expired by the member's time, and not yet by the time that its log has settled.
const fn expires_between(item: &ScanItem, time: ReadTime) -> bool {
    item.expires_at_ms > time.settled.0 && item.expires_at_ms <= time.now.0
}

/// Checks that a step has all keys but those of lost records. A step over records whose reads failed fails as a whole:
/// a client that repeats it with its cursor misses no key.
///
/// The protocol has no place for a lost key, and an error in place of the page would end every scan there. So the page
/// goes without it; the log says where its record is, and a metric counts it.
fn check_whole(scan: &Scan) -> Result<(), OperationError> {
    let mut checked = Ok(());
    for CorruptRecord { file, offset_bytes, detail, is_lost } in &scan.corrupt {
        match is_lost {
            true => tracing::error!(file, offset_bytes, detail, "a scan left out a lost record"),
            false => {
                tracing::warn!(file, offset_bytes, detail, "a scan fails at a record that cannot be read now");
                checked = Err(OperationError::Unavailable);
            }
        }
    }
    checked
}

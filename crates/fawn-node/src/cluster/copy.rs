//! Owns copies of ranges on their way: parts looked up at the tail, and taken into the log of a member that starts anew.
//!
//! Results of operations go first, as result-only records, so that whoever is head later knows the retries of operations
//! that the copy's base has behind it. Then go whole records of keys, by their hashes.
use super::backend::BackEnd;
use super::payload::{put_acknowledged, put_record, records_of, split_acknowledged};
use super::peer_links::PeerLinks;
use super::wait_queue::ReadPurpose;
use fawn_chain::{Body, Completions, Frame, TransferCursor};
use fawn_ds::internals::{LookupPlan, RecordKind, RecordRef, TransferScan, TransferStep};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, NodeId, RangeId, Version};

/// How often a store that has not emptied a range yet is asked again.
const BEGIN_PAUSE_MS: u64 = 10;

/// The store is being emptied for a copy: until then the member hears nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    base: Version,
    /// The store has agreed, and is writing it down.
    is_started: bool,
    pub(super) look_at: MonoMs,
}

/// A part that waits for a device read.
#[derive(Debug)]
pub(super) struct TransferJob {
    range: RangeId,
    to: NodeId,
    base: Version,
    cursor: TransferCursor,
    scan: TransferScan,
    /// Another part was asked for meanwhile.
    is_void: bool,
}

/// What a member's own copy is doing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferProgress {
    pub(super) begin: Option<Begin>,
    /// All of the copy on this base is in the log, and is becoming durable.
    finishing: Option<Version>,
    /// Keys so far.
    pub(super) keys: u64,
    /// About so many there are.
    pub(super) keys_estimated: u64,
}

impl<D: Device> BackEnd<D> {
    /// Discards a member's copy: a new one on `base` begins.
    pub(super) fn begin_transfer(&mut self, at: usize, base: Version) {
        let begin = Begin { base, is_started: false, look_at: self.now.mono };
        self.members[at].copy = TransferProgress { begin: Some(begin), ..TransferProgress::default() };
        self.tend_begin(at);
    }

    /// Has the store emptied. Returns whether the member may go on.
    pub(super) fn tend_begin(&mut self, at: usize) -> bool {
        let member = &mut self.members[at];
        let Some(begin) = &mut member.copy.begin else { return true };
        if !begin.is_started && begin.look_at <= self.now.mono {
            match self.engine.start_transfer(member.id, begin.base) {
                Ok(()) => begin.is_started = true,
                Err(error) => tracing::warn!(range = ?member.id, %error, "a copy cannot begin yet"),
            }
        }
        if !begin.is_started || !self.engine.transfer_begun(member.id) {
            begin.look_at = self.now.mono.plus_ms(BEGIN_PAUSE_MS);
            return false;
        }
        let base = begin.base;
        tracing::info!(range = ?member.id, ?base, "no log reaches back to where this copy was: it is made anew");
        member.copy.begin = None;
        member.completions = Completions::new(self.config.limits.completions);
        member.completions.commit(base, |_, _| {});
        self.counters.copies += 1;
        true
    }

    /// Takes a part that the member wants; what the log does not take now is asked for again.
    pub(super) fn take_transfer(
        &mut self,
        at: usize,
        next: TransferCursor,
        (base, keys): (Version, u64),
        records: &[u8],
    ) {
        let member = &mut self.members[at];
        for record in records_of(records, member.id) {
            let is_copied = matches!(record.kind, RecordKind::Put | RecordKind::Result) && record.version <= base;
            if !is_copied {
                self.counters.malformed += 1;
                return;
            }
            let hash = KeyHash::of(self.engine.secret(), record.key);
            match self.engine.append_copied(member.id, hash, &record) {
                Ok(is_new) if record.kind == RecordKind::Put => member.copy.keys += u64::from(is_new),
                Ok(_) => {
                    let (result, first_incomplete) = split_acknowledged(record.tag, record.result);
                    member.completions.restore(record.tag, first_incomplete, record.version, result);
                }
                Err(error) => {
                    tracing::debug!(range = ?member.id, %error, "the log takes no more of the copy for now");
                    return;
                }
            }
        }
        member.copy.keys_estimated = keys;
        member.replica.handle_transferred(self.now, next);
    }

    /// All parts are in the log: the store makes them one durable whole.
    pub(super) fn finish_transfer(&mut self, at: usize, base: Version) {
        let member = &mut self.members[at];
        match self.engine.finish_transfer(member.id) {
            Ok(()) => member.copy.finishing = Some(base),
            Err(error) => tracing::warn!(range = ?member.id, %error, "a copy cannot be finished yet"),
        }
    }

    /// Tells a member whose copy has become durable.
    pub(super) fn reap_transfer(&mut self, at: usize) {
        let member = &mut self.members[at];
        if let Some(base) = member.copy.finishing
            && self.engine.copying(member.id).is_none()
        {
            member.copy.finishing = None;
            tracing::info!(range = ?member.id, ?base, keys = member.copy.keys, "the copy is whole");
            member.replica.handle_transfer_finished(self.now, base);
        }
    }

    /// A syncing member is due a part.
    pub(super) fn send_transfer(
        &mut self,
        at: usize,
        (to, base): (NodeId, Version),
        cursor: TransferCursor,
        links: &mut PeerLinks,
    ) {
        let range = self.members[at].id;
        let hash = match cursor {
            TransferCursor::Results { session, seq } => {
                return self.send_results(at, (to, base), (session, seq), links);
            }
            TransferCursor::Keys { hash } => hash,
            TransferCursor::End => return,
        };
        let mut is_under_way = false;
        for (_, job) in self.copies.iter_mut().filter(|(_, job)| job.range == range && job.to == to && !job.is_void) {
            is_under_way = job.base == base && job.cursor == cursor;
            job.is_void = !is_under_way;
        }
        if !is_under_way {
            let scan = TransferScan::new(range, hash, base, self.config.limits.transfer_chunk_bytes_max);
            self.go_on_with_transfer(TransferJob { range, to, base, cursor, scan, is_void: false }, links);
        }
    }

    fn go_on_with_transfer(&mut self, mut job: TransferJob, links: &mut PeerLinks) {
        let (records, range) = (&mut self.records, job.range);
        records.clear();
        let next = match self.engine.transfer_step(&mut job.scan, |record| put_record(records, range, record)) {
            Ok(TransferStep::Chunk { next, .. }) => next,
            Ok(TransferStep::Read(plan)) => {
                let purpose = ReadPurpose::Copy { at: self.copies.insert(job) };
                return self.parked.read(&mut self.engine, plan, purpose);
            }
            Err(error) => return tracing::error!(?job, %error, "a range could not be copied"),
        };
        let next = next.map_or(TransferCursor::End, |hash| TransferCursor::Keys { hash });
        self.send_part((range, job.to, job.base), (job.cursor, next), links);
    }

    /// The read that a part waited for has ended.
    pub(super) fn transfer_read(&mut self, at: usize, plan: LookupPlan, links: &mut PeerLinks) {
        let job = self.copies.remove(at);
        if let Err(error) = self.engine.absorb(plan) {
            return tracing::error!(?job, %error, "a range could not be copied");
        }
        if !job.is_void {
            self.go_on_with_transfer(job, links);
        }
    }

    fn send_results(&mut self, at: usize, (to, base): (NodeId, Version), from: (u64, u64), links: &mut PeerLinks) {
        let (records, member) = (&mut self.records, &self.members[at]);
        records.clear();
        let mut next = TransferCursor::Keys { hash: 0 };
        for (tag, done) in member.completions.from(from).filter(|(_, done)| done.version <= base) {
            if records.len() >= self.config.limits.transfer_chunk_bytes_max {
                next = TransferCursor::Results { session: tag.session, seq: tag.seq };
                break;
            }
            let bare = RecordRef::bare(RecordKind::Result, done.version, &[]);
            self.encoded.clear();
            self.encoded.extend_from_slice(&done.result);
            put_acknowledged(&mut self.encoded, tag, member.completions.first_incomplete(tag.session));
            put_record(records, member.id, &RecordRef { tag, result: &self.encoded, ..bare });
        }
        let cursor = TransferCursor::Results { session: from.0, seq: from.1 };
        self.send_part((member.id, to, base), (cursor, next), links);
    }

    /// Sends what is in `records`, looked up in this very moment.
    fn send_part(
        &mut self,
        (range, to, base): (RangeId, NodeId, Version),
        (cursor, next): (TransferCursor, TransferCursor),
        links: &mut PeerLinks,
    ) {
        let read_version = self.engine.progress(range).committed;
        let header = self.member_at(range).and_then(|at| self.members[at].replica.transfer_header(to));
        let Some(header) = header.filter(|_| base <= read_version) else { return };
        let keys = self.engine.len(range);
        let body = Body::Transfer { base, cursor, next, read_version, keys, records: &self.records };
        links.send_records(to, &Frame { header, body });
        self.counters.records_sent_bytes += self.records.len() as u64;
    }
}

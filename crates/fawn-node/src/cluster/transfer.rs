//! Transfer of ranges for full resyncs: chunks read at the tail, and appended to the receiving member's log.
//!
//! Results of operations are sent first, as result-only records: a later head then recognizes retries of operations
//! before the base. The records of all keys follow, in the order of the sender's store.
use super::member_host::MemberHost;
use super::payload::{put_record, records_of};
use super::peer_links::PeerLinks;
use crate::exec::ReadWaiter;
use crate::replica::{RangeSlot, TransferBegin, TransferProgress, put_acknowledged, split_acknowledged};
use fawn_chain::{Body, Completions, Frame, TransferCursor};
use fawn_ds::internals::{LookupPlan, RecordKind, RecordRef, TransferPlace, TransferScan, TransferStep};
use fawn_flash::Device;
use fawn_types::{KeyHash, MemberId, RangeId, Version};

/// Interval between checks whether the store has emptied the range.
const BEGIN_PAUSE_MS: u64 = 10;

/// A chunk that waits for a device read.
#[derive(Debug)]
pub(super) struct TransferJob {
    range: RangeId,
    to: MemberId,
    base: Version,
    cursor: TransferCursor,
    scan: TransferScan,
    /// The receiver has requested another chunk since.
    is_cancelled: bool,
}

impl<D: Device> MemberHost<D> {
    /// Discards a member's copy and begins a transfer as of `base`.
    pub(super) fn begin_transfer(&mut self, at: RangeSlot, base: Version) {
        let range = self.members[at].id;
        // Chunks that wait for a read have places of the old content: in the new one, they would leave out keys.
        self.transfers.iter_mut().filter(|(_, job)| job.range == range).for_each(|(_, job)| job.is_cancelled = true);
        let begin = TransferBegin { base, is_started: false, was_refused: false, look_at: self.now.mono };
        self.members[at].transfer = TransferProgress { begin: Some(begin), ..TransferProgress::default() };
        self.advance_begin(at);
    }

    /// Advances the emptying of the range in the store, which a transfer begins with. Returns whether the member may
    /// continue.
    pub(super) fn advance_begin(&mut self, at: RangeSlot) -> bool {
        let member = &mut self.members[at];
        let Some(begin) = &mut member.transfer.begin else { return true };
        if !begin.is_started && begin.look_at <= self.now.mono {
            match self.engine.start_transfer(member.id, begin.base) {
                Ok(()) => begin.is_started = true,
                Err(error) => {
                    // Not at each call: calls may follow each other faster than attempts.
                    begin.look_at = self.now.mono.plus_ms(BEGIN_PAUSE_MS);
                    if !core::mem::replace(&mut begin.was_refused, true) {
                        tracing::warn!(range = ?member.id, %error, "a full resync cannot begin yet");
                    }
                }
            }
        }
        if !begin.is_started {
            return false;
        }
        if !self.engine.transfer_begun(member.id) {
            begin.look_at = self.now.mono.plus_ms(BEGIN_PAUSE_MS);
            return false;
        }
        let base = begin.base;
        tracing::info!(range = ?member.id, ?base, "full resync begins: no log reaches back far enough");
        member.transfer.begin = None;
        member.completions = Completions::new(self.config.limits.completions);
        member.completions.commit(base, |_, _| {});
        self.counters.resyncs += 1;
        true
    }

    /// Appends a chunk that the member requested. If the log does not accept all of it, the chunk is requested again.
    pub(super) fn take_transfer(
        &mut self,
        at: RangeSlot,
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
            let tag = (record.tag.session, record.tag.seq);
            if record.kind == RecordKind::Result && member.transfer.last_result >= Some(tag) {
                // The log took the first part of this chunk at an earlier attempt. The puts there change nothing.
                continue;
            }
            let hash = KeyHash::of(self.engine.secret(), record.key);
            match self.engine.append_copied(member.id, hash, &record) {
                Ok(is_new) if record.kind == RecordKind::Put => member.transfer.keys += u64::from(is_new),
                Ok(_) => {
                    member.transfer.last_result = Some(tag);
                    let (result, first_incomplete) = split_acknowledged(record.tag, record.result);
                    member.completions.restore(record.tag, first_incomplete, record.version, result);
                }
                Err(error) => {
                    tracing::debug!(range = ?member.id, %error, "the log accepts no more of the chunk for now");
                    return;
                }
            }
        }
        member.transfer.keys_estimated = keys;
        member.replica.handle_transferred(self.now, next);
    }

    /// Ends the transfer after its last chunk: the store makes the whole copy durable.
    pub(super) fn finish_transfer(&mut self, at: RangeSlot, base: Version) {
        let member = &mut self.members[at];
        match self.engine.finish_transfer(member.id) {
            Ok(()) => member.transfer.finishing = Some(base),
            Err(error) => tracing::warn!(range = ?member.id, %error, "a full resync cannot be finished yet"),
        }
    }

    /// Notifies a member once its new copy is durable.
    pub(super) fn reap_transfer(&mut self, at: RangeSlot) {
        let member = &mut self.members[at];
        if let Some(base) = member.transfer.finishing
            && self.engine.copying(member.id).is_none()
        {
            member.transfer.finishing = None;
            tracing::info!(range = ?member.id, ?base, keys = member.transfer.keys, "full resync finished");
            member.replica.handle_transfer_finished(self.now, base);
        }
    }

    /// Sends the chunk at `cursor` to a syncing member. Pending chunks at other cursors are dropped.
    pub(super) fn send_transfer(
        &mut self,
        at: RangeSlot,
        (to, base): (MemberId, Version),
        cursor: TransferCursor,
        links: &mut PeerLinks,
    ) {
        let range = self.members[at].id;
        let start = match cursor {
            TransferCursor::Results { session, seq } => {
                return self.send_results(at, (to, base), (session, seq), links);
            }
            TransferCursor::Keys { pass, place } => TransferPlace { pass, position: place },
            TransferCursor::End => return,
        };
        let mut is_in_flight = false;
        for (_, job) in
            self.transfers.iter_mut().filter(|(_, job)| job.range == range && job.to == to && !job.is_cancelled)
        {
            is_in_flight = job.base == base && job.cursor == cursor;
            job.is_cancelled = !is_in_flight;
        }
        if !is_in_flight {
            let scan = TransferScan::new(range, start, base, self.config.limits.transfer_chunk_bytes_max);
            self.resume_transfer(TransferJob { range, to, base, cursor, scan, is_cancelled: false }, links);
        }
    }

    fn resume_transfer(&mut self, mut job: TransferJob, links: &mut PeerLinks) {
        let (records, range) = (&mut self.records, job.range);
        records.clear();
        let next = match self.engine.transfer_step(&mut job.scan, |record| put_record(records, range, record)) {
            Ok(TransferStep::Chunk { next, .. }) => next,
            Ok(TransferStep::Read(plan)) => {
                let waiter = ReadWaiter::Transfer { at: self.transfers.insert(job) };
                return self.exec.reads.start(&mut self.engine, plan, waiter);
            }
            Err(error) => return tracing::error!(?job, %error, "a transfer could not read the range"),
        };
        let next = next.map_or(TransferCursor::End, |TransferPlace { pass, position }| TransferCursor::Keys {
            pass,
            place: position,
        });
        self.send_chunk((range, job.to, job.base), (job.cursor, next), links);
    }

    /// Resumes a chunk after its device read.
    pub(crate) fn transfer_read(&mut self, at: usize, plan: LookupPlan, links: &mut PeerLinks) {
        let job = self.transfers.remove(at);
        if let Err(error) = self.engine.absorb(plan) {
            return tracing::error!(?job, %error, "a transfer could not read the range");
        }
        if !job.is_cancelled {
            self.resume_transfer(job, links);
        }
    }

    fn send_results(
        &mut self,
        at: RangeSlot,
        (to, base): (MemberId, Version),
        from: (u64, u64),
        links: &mut PeerLinks,
    ) {
        let (records, member) = (&mut self.records, &self.members[at]);
        records.clear();
        let mut next = TransferCursor::Keys { pass: 0, place: 0 };
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
        self.send_chunk((member.id, to, base), (cursor, next), links);
    }

    /// Sends the chunk in `records`, which must have been read in this iteration.
    fn send_chunk(
        &mut self,
        (range, to, base): (RangeId, MemberId, Version),
        (cursor, next): (TransferCursor, TransferCursor),
        links: &mut PeerLinks,
    ) {
        // Correct only if nothing was committed since the records were read.
        let read_version = self.engine.progress(range).committed;
        let Some(at) = self.members.find(range).filter(|_| base <= read_version) else { return };
        let replica = &mut self.members[at].replica;
        let Some(header) = replica.handle_transfer_read(self.now, to, base, cursor) else { return };
        let keys = self.engine.len(range);
        let body = Body::Transfer { base, cursor, next, read_version, keys, records: &self.records };
        links.send(to, &Frame { header, body });
        self.counters.records_sent_bytes += self.records.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{HostConfig, NodeLimits};
    use super::*;
    use fawn_ds::internals::{Engine, Options};
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{BootId, Durability, Epoch, HashSecret, KeyRange, NodeId, Now, ShardId};

    const RANGE: RangeId = RangeId(1);
    const SECRET: HashSecret = HashSecret([7; 16]);
    /// A range that no member has.
    const OTHER: RangeId = RangeId(2);

    fn base() -> Version {
        Version::new(Epoch::new(9).unwrap(), 9).unwrap()
    }

    /// A member whose manifest takes no more edits that free nothing, because its disk is full. Its range was begun again, and
    /// has nothing to free.
    fn full_member(disk: &SimDisk, now: Now) -> (MemberHost<SimDevice>, RangeSlot) {
        let options = Options {
            segment_bytes: 64 << 10,
            memory_bytes: 1 << 20,
            durability: Durability::Sync,
            secret: Some(SECRET),
            ..Options::default()
        };
        let (engine, _) = Engine::open(SimDevice::attach(disk), options, now).unwrap();
        let (id, durability, limits) = (MemberId::new(NodeId(1), ShardId(0)), Durability::Sync, NodeLimits::default());
        let config = HostConfig { id, boot: BootId::new(1, 7), durability, limits };
        let mut host = MemberHost::new(config, engine);
        host.try_add_member(RANGE, KeyRange::ALL).unwrap();
        disk.set_full(true);
        let is_refused = (0..10_000).any(|_| host.engine.start_transfer(RANGE, base()).is_err());
        assert!(is_refused, "the manifest finds space");
        host.now = now;
        let at = host.members.find(RANGE).unwrap();
        (host, at)
    }

    /// Calls may follow each other faster than attempts, and must neither put the next attempt off nor make one each.
    #[test]
    fn a_full_resync_that_the_store_refuses_is_tried_again_after_a_pause() {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut now = Now::at(1_000);
        let (mut host, at) = full_member(&disk, now);
        host.begin_transfer(at, base());
        for attempt in 0..3 {
            let due = now.mono.plus_ms(BEGIN_PAUSE_MS);
            while now.mono < due {
                let begin = host.members[at].transfer.begin.unwrap();
                assert!(begin.was_refused && !begin.is_started, "attempt {attempt}: {begin:?}");
                assert_eq!(host.members[at].next_timeout(), Some(due), "attempt {attempt}, at {now:?}");
                now = now.plus_ms(1);
                host.now = now;
                disk.set_full(attempt < 2 || now.mono < due);
                assert!(!host.advance_begin(at));
            }
        }
        assert!(host.members[at].transfer.begin.is_some_and(|begin| begin.is_started), "there is space again");
        for _ in 0..100 {
            host.engine.wait(now, &mut Vec::new());
            now = now.plus_ms(1);
            host.now = now;
            if host.advance_begin(at) {
                break;
            }
        }
        assert_eq!((host.counters.resyncs, host.members[at].is_receiving()), (1, true));
    }

    /// A chunk that waits for a read has places of the former content. Completed later, it would lack keys of the new one.
    #[test]
    fn a_chunk_in_progress_ends_when_its_range_begins_again() {
        let disk = SimDisk::new(SimOptions::instant(1));
        let (mut host, at) = full_member(&disk, Now::at(1_000));
        let cursor = TransferCursor::Keys { pass: 0, place: 0 };
        for range in [RANGE, OTHER] {
            let scan = TransferScan::new(range, TransferPlace { pass: 0, position: 0 }, base(), 1 << 10);
            let to = MemberId::new(NodeId(2), ShardId(0));
            host.transfers.insert(TransferJob { range, to, base: base(), cursor, scan, is_cancelled: false });
        }
        host.begin_transfer(at, base());
        let cancelled: Vec<bool> = host.transfers.iter().map(|(_, job)| job.is_cancelled).collect();
        assert_eq!(cancelled, [true, false]);
    }
}

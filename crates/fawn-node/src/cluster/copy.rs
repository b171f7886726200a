//! Owns copies of ranges on their way: parts looked up at the tail, and taken into the log of a member that starts anew.
//!
//! Results of operations go first, as result-only records, so that whoever is head later knows the retries of operations
//! that the copy's base has behind it. Then go whole records of keys, by their hashes.
use super::backend::BackEnd;
use super::mail::Mail;
use super::parked::Purpose;
use super::payload::{put_acknowledged, put_record, records_of, split_acknowledged};
use fawn_chain::{Body, Completions, CopyCursor, Frame};
use fawn_ds::internals::{CopyScan, CopyStep, LookupPlan, RecordKind, RecordRef};
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
pub(super) struct CopyJob {
    range: RangeId,
    to: NodeId,
    base: Version,
    cursor: CopyCursor,
    scan: CopyScan,
    /// Another part was asked for meanwhile.
    is_void: bool,
}

/// What a member's own copy is doing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyProgress {
    pub(super) begin: Option<Begin>,
    /// All of the copy on this base is in the log, and is becoming durable.
    finishing: Option<Version>,
    /// Keys so far.
    pub(super) keys: u64,
    /// About so many there are.
    pub(super) keys_about: u64,
}

impl<D: Device> BackEnd<D> {
    /// Discards a member's copy: a new one on `base` begins.
    pub(super) fn begin_copy(&mut self, at: usize, base: Version) {
        let begin = Begin { base, is_started: false, look_at: self.now.mono };
        self.members[at].copy = CopyProgress { begin: Some(begin), ..CopyProgress::default() };
        self.tend_begin(at);
    }

    /// Has the store emptied. Returns whether the member may go on.
    pub(super) fn tend_begin(&mut self, at: usize) -> bool {
        let member = &mut self.members[at];
        let Some(begin) = &mut member.copy.begin else { return true };
        if !begin.is_started && begin.look_at <= self.now.mono {
            match self.engine.start_copy(member.id, begin.base) {
                Ok(()) => begin.is_started = true,
                Err(error) => tracing::warn!(range = ?member.id, %error, "a copy cannot begin yet"),
            }
        }
        if !begin.is_started || !self.engine.copy_begun(member.id) {
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
    pub(super) fn take_copy(&mut self, at: usize, next: CopyCursor, (base, keys): (Version, u64), records: &[u8]) {
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
        member.copy.keys_about = keys;
        member.replica.handle_copied(self.now, next);
    }

    /// All parts are in the log: the store makes them one durable whole.
    pub(super) fn finish_copy(&mut self, at: usize, base: Version) {
        let member = &mut self.members[at];
        match self.engine.finish_copy(member.id) {
            Ok(()) => member.copy.finishing = Some(base),
            Err(error) => tracing::warn!(range = ?member.id, %error, "a copy cannot be finished yet"),
        }
    }

    /// Tells a member whose copy has become durable.
    pub(super) fn reap_copy(&mut self, at: usize) {
        let member = &mut self.members[at];
        if let Some(base) = member.copy.finishing
            && self.engine.copying(member.id).is_none()
        {
            member.copy.finishing = None;
            tracing::info!(range = ?member.id, ?base, keys = member.copy.keys, "the copy is whole");
            member.replica.handle_copy_finished(self.now, base);
        }
    }

    /// A syncing member is due a part.
    pub(super) fn send_copy(&mut self, at: usize, (to, base): (NodeId, Version), cursor: CopyCursor, mail: &mut Mail) {
        let range = self.members[at].id;
        let hash = match cursor {
            CopyCursor::Results { session, seq } => return self.send_results(at, (to, base), (session, seq), mail),
            CopyCursor::Keys { hash } => hash,
            CopyCursor::End => return,
        };
        let mut is_under_way = false;
        for (_, job) in self.copies.iter_mut().filter(|(_, job)| job.range == range && job.to == to && !job.is_void) {
            is_under_way = job.base == base && job.cursor == cursor;
            job.is_void = !is_under_way;
        }
        if !is_under_way {
            let scan = CopyScan::new(range, hash, base, self.config.limits.copy_part_bytes_max);
            self.go_on_with_copy(CopyJob { range, to, base, cursor, scan, is_void: false }, mail);
        }
    }

    fn go_on_with_copy(&mut self, mut job: CopyJob, mail: &mut Mail) {
        let (records, range) = (&mut self.records, job.range);
        records.clear();
        let next = match self.engine.copy_step(&mut job.scan, |record| put_record(records, range, record)) {
            Ok(CopyStep::Chunk { next, .. }) => next,
            Ok(CopyStep::Read(plan)) => {
                let purpose = Purpose::Copy { at: self.copies.insert(job) };
                return self.parked.read(&mut self.engine, plan, purpose);
            }
            Err(error) => return tracing::error!(?job, %error, "a range could not be copied"),
        };
        let next = next.map_or(CopyCursor::End, |hash| CopyCursor::Keys { hash });
        self.send_part((range, job.to, job.base), (job.cursor, next), mail);
    }

    /// The read that a part waited for has ended.
    pub(super) fn copy_read(&mut self, at: usize, plan: LookupPlan, mail: &mut Mail) {
        let job = self.copies.remove(at);
        if let Err(error) = self.engine.absorb(plan) {
            return tracing::error!(?job, %error, "a range could not be copied");
        }
        if !job.is_void {
            self.go_on_with_copy(job, mail);
        }
    }

    fn send_results(&mut self, at: usize, (to, base): (NodeId, Version), from: (u64, u64), mail: &mut Mail) {
        let (records, member) = (&mut self.records, &self.members[at]);
        records.clear();
        let mut next = CopyCursor::Keys { hash: 0 };
        for (tag, done) in member.completions.from(from).filter(|(_, done)| done.version <= base) {
            if records.len() >= self.config.limits.copy_part_bytes_max {
                next = CopyCursor::Results { session: tag.session, seq: tag.seq };
                break;
            }
            let bare = RecordRef::bare(RecordKind::Result, done.version, &[]);
            self.encoded.clear();
            self.encoded.extend_from_slice(&done.result);
            put_acknowledged(&mut self.encoded, tag, member.completions.first_incomplete(tag.session));
            put_record(records, member.id, &RecordRef { tag, result: &self.encoded, ..bare });
        }
        let cursor = CopyCursor::Results { session: from.0, seq: from.1 };
        self.send_part((member.id, to, base), (cursor, next), mail);
    }

    /// Sends what is in `records`, looked up in this very moment.
    fn send_part(
        &mut self,
        (range, to, base): (RangeId, NodeId, Version),
        (cursor, next): (CopyCursor, CopyCursor),
        mail: &mut Mail,
    ) {
        let as_of = self.engine.progress(range).committed;
        let header = self.member_at(range).and_then(|at| self.members[at].replica.copy_header(to));
        let Some(header) = header.filter(|_| base <= as_of) else { return };
        let keys = self.engine.len(range);
        let body = Body::Copy { base, cursor, next, as_of, keys, records: &self.records };
        mail.send_records(to, &Frame { header, body });
        self.counters.records_sent_bytes += self.records.len() as u64;
    }
}

//! Forwarding of records down the chain: replay from the log into frames, and append from frames to the log.
use super::member_host::{MemberHost, ReplayJob, SPACE_PAUSE_MS};
use super::payload::{put_record, records_of};
use super::peer_links::PeerLinks;
use crate::exec::ReadWaiter;
use crate::replica::{RangeSlot, RejectedRecords, split_acknowledged};
use fawn_chain::invariants;
use fawn_chain::replica::Replayed;
use fawn_chain::{Body, Frame};
use fawn_ds::internals::{LookupPlan, RecordRef, Replay};
use fawn_flash::Device;
use fawn_types::{KeyHash, Version};
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// Whether `record` is the last one of its batch: the only one with a tag. A single operation is a batch of one.
///
/// Links carry whole batches and members append whole batches, so neither a crash nor a log cut leaves half a batch.
fn ends_batch(record: &RecordRef<'_>) -> bool {
    record.tag.is_some()
}

impl<D: Device> MemberHost<D> {
    /// Sends records to a peer: at once if they are in memory, else after a device read.
    pub(super) fn send_records(&mut self, job: ReplayJob, links: &mut PeerLinks) {
        let Some(at) = self.members.find(job.range) else { return };
        // A peer repeats its request, as long as the disk hangs. The read in flight replies to all of them: it would
        // otherwise be repeated until no other read of this shard could start.
        let of_job = |job: &ReplayJob| (job.range, job.to, job.after);
        if self.replays.iter().any(|(_, reading)| of_job(reading) == of_job(&job)) {
            return;
        }
        let replayed = match self.take_records(&job) {
            ControlFlow::Break(plan) => {
                let waiter = ReadWaiter::Replay { at: self.replays.insert(job) };
                return self.exec.reads.start(&mut self.engine, plan, waiter);
            }
            ControlFlow::Continue(replayed) => replayed,
        };
        let frame = self.members[at].replica.handle_replayed(self.now, job.to, job.after, replayed);
        let Some(Frame { header, body: Body::Append { after, last, upstream, time, assigned, .. } }) = frame else {
            return;
        };
        let body = Body::Append { after, last, upstream, time, assigned, records: &self.records };
        links.send(job.to, &Frame { header, body });
        self.counters.records_sent_bytes += self.records.len() as u64;
    }

    /// Resumes a replay after its device read.
    pub(crate) fn replay_read(&mut self, at: usize, plan: LookupPlan, links: &mut PeerLinks) {
        let job = self.replays.remove(at);
        if let Err(error) = self.engine.absorb(plan) {
            // No immediate retry: a failing device would be read in a tight loop.
            tracing::error!(?job, %error, "the log could not be replayed");
            let Some(at) = self.members.find(job.range) else { return };
            let replica = &mut self.members[at].replica;
            let frame = replica.handle_replayed(self.now, job.to, job.after, Replayed::Gone);
            assert!(frame.is_none(), "no records, no frame");
            return;
        }
        self.send_records(job, links);
    }

    /// Fills `records` from the log: a gapless sequence after `job.after`, at most through `job.through`. `Break`: a
    /// device read is needed.
    fn take_records(&mut self, job: &ReplayJob) -> ControlFlow<LookupPlan, Replayed> {
        let (records, mut last, mut gap) = (&mut self.records, job.after, false);
        // The end of the last whole batch: its version, and its byte position in `records`.
        let mut whole = (job.after, 0);
        records.clear();
        loop {
            let before = last;
            let replay = self.engine.replay(job.range, last, job.bytes_max as usize, |record| {
                // A log whose oldest records are gone must not be mistaken for one that begins later.
                gap |= last != Version::ZERO && !invariants::follows(last, record.version);
                if record.version <= job.through && !gap {
                    put_record(records, job.range, record);
                    last = record.version;
                    if ends_batch(record) {
                        whole = (last, records.len());
                    }
                }
            });
            match replay {
                // The batch is longer than `bytes_max` or partly on the device: replay until it is whole.
                Ok(Replay::Records { .. }) if last > before && whole.0 == job.after && !gap => {}
                Ok(Replay::Records { .. }) if whole.0 > job.after => {
                    records.truncate(whole.1);
                    return ControlFlow::Continue(Replayed::Records { last: whole.0, bytes: whole.1 as u32 });
                }
                Ok(Replay::Read(plan)) => return ControlFlow::Break(plan),
                Ok(Replay::Records { .. } | Replay::Gone | Replay::UpToDate) => {
                    return ControlFlow::Continue(Replayed::Gone);
                }
                Err(error) => {
                    tracing::error!(?job, %error, "the log could not be replayed");
                    return ControlFlow::Continue(Replayed::Gone);
                }
            }
        }
    }

    /// Appends a peer's records above `after`, at most through `through`. Records that the log does not accept count as
    /// never received: the peer sends them again once the log may have space.
    pub(super) fn append_from_peer(&mut self, at: RangeSlot, (after, through): (Version, Version), records: &[u8]) {
        let member = &mut self.members[at];
        // `last` was appended, `read` was decoded: a batch is appended once it is whole.
        let (mut last, mut read) = (after, after);
        let mut batch: SmallVec<[(KeyHash, RecordRef<'_>); 1]> = SmallVec::new();
        for record in records_of(records, member.id).skip_while(|record| record.version <= after) {
            let fits =
                record.version <= through && (read == Version::ZERO || invariants::follows(read, record.version));
            if !fits {
                break;
            }
            let hash = KeyHash::of(self.engine.secret(), record.key);
            read = record.version;
            batch.push((hash, record));
            if !ends_batch(&record) {
                continue;
            }
            let appended = match batch.as_slice() {
                [(hash, record)] => self.engine.append(member.id, *hash, record),
                records => self.engine.append_batch(member.id, records),
            };
            if let Err(error) = appended {
                tracing::debug!(range = ?member.id, %error, "the log accepts no more records for now");
                break;
            }
            let (result, first_incomplete) = split_acknowledged(record.tag, record.result);
            member.completions.record(record.tag, first_incomplete, record.version, result);
            last = record.version;
            self.counters.records_received += batch.len() as u64;
            batch.clear();
        }
        if last < through {
            self.counters.frames_cut += 1;
            member.replica.retract(last);
            let flushed = self.engine.watermarks().flushed;
            // While the disk hangs, each request would fetch a whole window again in vain.
            let hangs_ms = self.engine.oldest_write().map_or(0, |submitted_at| self.now.mono.ms_since(submitted_at));
            let look_at = self.now.mono.plus_ms(hangs_ms.max(SPACE_PAUSE_MS));
            member.rejected = Some(RejectedRecords { flushed, look_at });
        }
    }
}

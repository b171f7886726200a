//! Owns records on their way down the chain: replayed from the log into frames, and from frames into the log.
use super::backend::{BackEnd, ReplayJob};
use super::mail::Mail;
use super::parked::Purpose;
use super::payload::{put_record, records_of};
use fawn_chain::invariants;
use fawn_chain::replica::Replayed;
use fawn_chain::{Body, Frame};
use fawn_ds::{LookupPlan, Replay};
use fawn_flash::Device;
use fawn_types::{KeyHash, Version};

/// What the log gave for a link.
enum Taken {
    Records { last: Version },
    Read(LookupPlan),
    Gone,
}

impl<D: Device> BackEnd<D> {
    /// A link is due records: from memory at once, else after a device read.
    pub(super) fn send_records(&mut self, job: ReplayJob, mail: &mut Mail) {
        let Some(at) = self.member_at(job.range) else { return };
        let replayed = match self.take_records(&job) {
            Taken::Read(plan) => {
                let purpose = Purpose::Replay { at: self.replays.insert(job) };
                return self.parked.read(&mut self.engine, plan, purpose);
            }
            Taken::Records { last } => Replayed::Records { last, bytes: self.records.len() as u32 },
            Taken::Gone => Replayed::Gone,
        };
        let frame = self.members[at].replica.handle_replayed(self.now, job.to, job.after, replayed);
        let Some(Frame { header, body: Body::Append { after, last, upstream, time, .. } }) = frame else { return };
        let body = Body::Append { after, last, upstream, time, records: &self.records };
        mail.send_records(job.to, &Frame { header, body });
        self.counters.records_sent_bytes += self.records.len() as u64;
    }

    /// The read that a replay waited for has ended.
    pub(super) fn replay_read(&mut self, at: usize, plan: LookupPlan, mail: &mut Mail) {
        let job = self.replays.remove(at);
        if let Err(error) = self.engine.absorb(plan) {
            tracing::error!(?job, %error, "the log could not be replayed");
        }
        self.send_records(job, mail);
    }

    /// Fills `records` from the log: a gapless run after `job.after`, not beyond `job.through`.
    fn take_records(&mut self, job: &ReplayJob) -> Taken {
        let (records, mut last, mut gap) = (&mut self.records, job.after, false);
        records.clear();
        let replay = self.engine.replay(job.range, job.after, job.bytes_max as usize, |record| {
            // A log that lost its beginning must not pass for one that begins later.
            gap |= last != Version::ZERO && !invariants::follows(last, record.version);
            if record.version <= job.through && !gap {
                put_record(records, job.range, record);
                last = record.version;
            }
        });
        match replay {
            Ok(Replay::Records { .. }) if last > job.after => Taken::Records { last },
            Ok(Replay::Read(plan)) => Taken::Read(plan),
            Ok(Replay::Records { .. } | Replay::Gone | Replay::UpToDate) => Taken::Gone,
            Err(error) => {
                tracing::error!(?job, %error, "the log could not be replayed");
                Taken::Gone
            }
        }
    }

    /// Appends a peer's records above `after`, all the way to `through`. What the log does not take is as if it had
    /// never come: the peer sends it again.
    pub(super) fn append_from_peer(&mut self, at: usize, (after, through): (Version, Version), records: &[u8]) {
        let member = &mut self.members[at];
        let mut last = after;
        for record in records_of(records, member.id).skip_while(|record| record.version <= after) {
            let fits =
                record.version <= through && (last == Version::ZERO || invariants::follows(last, record.version));
            if !fits {
                break;
            }
            let hash = KeyHash::of(self.engine.secret(), record.key);
            if let Err(error) = self.engine.append(member.id, hash, &record) {
                tracing::debug!(range = ?member.id, %error, "the log takes no more records for now");
                break;
            }
            member.completions.record(record.tag, record.version, record.result);
            last = record.version;
            self.counters.records_received += 1;
        }
        if last < through {
            self.counters.frames_cut += 1;
            member.replica.retract(last);
        }
    }
}

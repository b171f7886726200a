//! Owns the head's part: dense sequence numbers and chain time [replication.md §3].
use super::{Phase, Refusal, Replica, Role};
use crate::message::Body;
use fawn_types::{Now, Version};

impl Replica {
    /// The version of the next write. The node appends it to its log in the same breath, or retracts it.
    ///
    /// # Errors
    /// When this is no serving head, or too much is under way.
    pub fn assign(&mut self, now: Now) -> Result<Version, Refusal> {
        let Some(version) = self.next else { return Err(self.refusal(true)) };
        let records_max = self.config.options.epoch_records_max;
        if version.seq() > records_max - records_max / 16 {
            self.now = now;
            self.ask_for_epoch();
        }
        if version.seq() > records_max {
            return Err(Refusal::EpochFull);
        }
        if version.seq() - self.committed_seq() > self.config.options.pending_max {
            return Err(Refusal::Overloaded);
        }
        // Every replica judges expiry by this time, so it must not fall when the head's clock does.
        self.time = self.time.max(now.wall);
        self.last = version;
        self.next = version.next();
        Ok(version)
    }

    /// Sequence numbers run out; asked again with each write, but not more often than frames get lost.
    fn ask_for_epoch(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        if self.epoch_asked_at.is_none_or(|at| self.now.mono.ms_since(at) >= pause_ms) {
            self.epoch_asked_at = Some(self.now.mono);
            self.send_manager(Body::EpochWanted);
        }
    }

    /// The log did not take what is above `after` (it is full, say): as if it was never assigned or received. Only
    /// before outputs are polled again, so that nobody has heard of it.
    pub fn retract(&mut self, after: Version) {
        assert!(after <= self.last && after >= self.own.appended, "{after:?} of {:?}", self.last);
        self.last = after;
        if self.next.is_some() {
            self.next = self.first_after(after);
        }
    }

    /// The first version this epoch's head assigns after `last`.
    pub(super) fn first_after(&self, last: Version) -> Option<Version> {
        if last.epoch() == self.promised { last.next() } else { Version::new(self.promised, 1) }
    }

    /// Committed writes of this epoch.
    fn committed_seq(&self) -> u64 {
        if self.committed.epoch() == self.promised { self.committed.seq() } else { 0 }
    }

    /// Why this member does not do it.
    pub(super) fn refusal(&self, write: bool) -> Refusal {
        if let Some(refusal) = self.refusal_if_failed() {
            return refusal;
        }
        let entry = self.entry.as_ref();
        let right = entry.and_then(|entry| if write { entry.head() } else { entry.tail() });
        match self.phase {
            Phase::Serving { .. } => Refusal::WrongMember { right },
            _ => Refusal::NotServing,
        }
    }

    /// An idle head tells chain time from time to time, so that keys expire at the tail.
    pub(super) fn beat(&mut self) {
        assert!(matches!(self.phase, Phase::Serving { role: Role::Head }));
        self.time = self.time.max(self.now.wall);
        self.wake_at = Some(self.now.mono.plus_ms(self.config.options.beat_ms));
    }
}

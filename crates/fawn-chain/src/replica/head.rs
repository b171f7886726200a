//! The head's role: dense sequence numbers and chain time [replication.md §3].
use super::{Rejection, Replica, ReplicaOptions, ReplicaPhase, Role};
use crate::message::Body;
use fawn_types::{Now, TimeMs, Version};

/// Pause before a member requests records again that its log rejected, unless the log has space earlier; in
/// retransmission intervals, as many as the longest pause of the sender.
const REJECTED_PAUSES: u64 = 16;

impl Replica {
    /// Assigns the version of the next write. The host appends it to its log at once, or retracts it.
    ///
    /// # Errors
    /// If this member is not the serving head, or too many writes are in flight.
    #[inline]
    pub fn assign(&mut self, now: Now) -> Result<Version, Rejection> {
        match self.next {
            Some(version) if version <= self.assign_max => {
                self.advance_time(now);
                self.last = version;
                self.next = version.next();
                Ok(version)
            }
            _ => self.assign_checked(now),
        }
    }

    /// Assigns the versions of `count` writes that are appended together; returns the first one.
    ///
    /// # Errors
    /// As [`Replica::assign`]: none is assigned then.
    pub fn assign_batch(&mut self, now: Now, count: u64) -> Result<Version, Rejection> {
        assert!(count > 0, "a batch has a write");
        let before = self.last;
        let first = self.assign(now)?;
        let last = first.seq().checked_add(count - 1).filter(|seq| *seq <= self.config.options.epoch_records_max);
        let Some(last) = last.and_then(|seq| Version::new(first.epoch(), seq)) else {
            (self.last, self.next) = (before, Some(first));
            // A batch may not fit although single writes are still far from the limit.
            self.now = now;
            self.ask_for_epoch();
            return Err(Rejection::EpochFull);
        };
        self.last = last;
        self.next = last.next();
        Ok(first)
    }

    #[cold]
    fn assign_checked(&mut self, now: Now) -> Result<Version, Rejection> {
        let Some(version) = self.next else { return Err(self.refusal(true)) };
        if self.is_short {
            return Err(Rejection::TooFewCopies);
        }
        let records_max = self.config.options.epoch_records_max;
        if version.seq() > records_max - records_max / 16 {
            self.now = now;
            self.ask_for_epoch();
        }
        if version.seq() > records_max {
            return Err(Rejection::EpochFull);
        }
        if version.seq() - self.committed_seq() > self.config.options.pending_max {
            return Err(Rejection::Overloaded);
        }
        self.advance_time(now);
        self.last = version;
        self.next = version.next();
        Ok(version)
    }

    /// Advances chain time at the head and returns it. Every replica evaluates expiry by it, so it never decreases, not
    /// even when another member becomes the head. `now.wall` is the expiry time of the head's store.
    #[inline]
    pub fn advance_time(&mut self, now: Now) -> TimeMs {
        // All requests of an iteration have one time.
        if !self.time.is_advanced_to(now)
            && matches!(self.phase, ReplicaPhase::Serving { role: Role::Head | Role::Single })
        {
            self.time.advance(now);
        }
        self.time()
    }

    /// Works out how far versions are assigned without further checks: until too many are not committed, until the
    /// epoch is nearly used up, and not at all in a chain that is too short.
    pub(super) fn bound_assign(&mut self) {
        let ReplicaOptions { pending_max, epoch_records_max, .. } = self.config.options;
        let unasked_max = epoch_records_max - epoch_records_max / 16;
        let seq = unasked_max.min(self.committed_seq().saturating_add(pending_max)).min(Version::SEQ_MAX);
        let seq = if self.is_short { 0 } else { seq };
        self.assign_max = Version::new(self.promised, seq).unwrap_or_default();
    }

    /// Requests a new epoch when sequence numbers run out. Repeated on later writes, but at a limited rate.
    fn ask_for_epoch(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        if self.epoch_asked_at.is_none_or(|at| self.now.mono.ms_since(at) >= pause_ms) {
            self.epoch_asked_at = Some(self.now.mono);
            self.send_manager(Body::EpochWanted);
        }
    }

    /// Whether it has requested a new epoch, which has not begun. A host without a manager begins it itself, by
    /// [`Replica::serve_alone`].
    #[must_use]
    pub const fn wants_epoch(&self) -> bool {
        self.epoch_asked_at.is_some()
    }

    /// The log rejected the records above `after` (it is full, for example): they count as never assigned or received.
    /// Only valid before outputs are polled again, so that no peer knows of the records.
    pub fn retract(&mut self, after: Version) {
        assert!(after <= self.last && after >= self.own.appended, "{after:?} of {:?}", self.last);
        self.last = after;
        if self.next.is_some() {
            self.next = self.first_after(after);
        }
        // A request for what the log has just rejected would be repeated as fast as the link carries it.
        let pause_ms = self.config.options.retransmit_ms.saturating_mul(REJECTED_PAUSES);
        self.gap_asked = Some((after, self.now.mono.plus_ms(pause_ms)));
    }

    /// The first version that this epoch's head assigns after `last`.
    pub(super) fn first_after(&self, last: Version) -> Option<Version> {
        if last.epoch() == self.promised { last.next() } else { Version::new(self.promised, 1) }
    }

    /// Number of writes assigned and not committed.
    #[inline]
    #[must_use]
    pub fn uncommitted(&self) -> u64 {
        if self.last.epoch() == self.promised { self.last.seq() - self.committed_seq() } else { 0 }
    }

    /// Number of committed writes in this epoch.
    #[inline]
    fn committed_seq(&self) -> u64 {
        if self.committed.epoch() == self.promised { self.committed.seq() } else { 0 }
    }

    /// The reason why this member rejects a request.
    #[cold]
    pub(super) fn refusal(&self, write: bool) -> Rejection {
        if let Some(refusal) = self.refusal_if_failed() {
            return refusal;
        }
        let entry = self.entry.as_ref();
        let right = entry.and_then(|entry| if write { entry.head() } else { entry.tail() });
        match self.phase {
            ReplicaPhase::Serving { .. } => Rejection::WrongMember { right },
            _ => Rejection::NotServing,
        }
    }

    /// An idle head sends chain time at intervals, so that keys expire at the tail.
    pub(super) fn beat(&mut self) {
        assert!(matches!(self.phase, ReplicaPhase::Serving { role: Role::Head }));
        self.advance_time(self.now);
        self.wake_at = Some(self.now.mono.plus_ms(self.config.options.heartbeat_ms));
    }
}

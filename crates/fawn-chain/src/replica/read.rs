//! Admission of reads, and of requests in general. Lease checks belong here: a member without a lease must reject.
use super::{ReadTime, Rejection, Replica, ReplicaPhase, Role};
use fawn_types::{Epoch, Now, RingKey};

impl Replica {
    /// Checks that this member may reply to a committed read. Returns the times by which expiry is judged.
    ///
    /// # Errors
    /// If this member is not the serving tail.
    #[inline]
    pub fn admit_read(&mut self, now: Now) -> Result<ReadTime, Rejection> {
        match self.phase {
            ReplicaPhase::Serving { role: Role::Single } => {
                let time = self.advance_time(now);
                Ok(ReadTime { now: time, settled: time })
            }
            ReplicaPhase::Serving { role: Role::Tail } => Ok(self.time.for_read(self.last)),
            _ => Err(self.refusal(false)),
        }
    }

    /// Checks the epoch in a request.
    ///
    /// # Errors
    /// If the request has another epoch; reply with the newest entry.
    pub fn admit_epoch(&self, epoch: Epoch) -> Result<(), Rejection> {
        if epoch == self.promised {
            Ok(())
        } else {
            Err(Rejection::StaleEpoch { asked: epoch, current: self.promised })
        }
    }

    /// Whether the key is in this range. Back-ends check, because a front-end's map may be outdated.
    #[must_use]
    pub fn covers(&self, key: &RingKey) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.keys.contains(key))
    }
}

//! Owns the admission of reads and of requests in general. Leases join here: a member without a live one refuses.
use super::{Phase, Refusal, Replica, Role};
use fawn_types::{Epoch, Now, RingKey, TimeMs};

impl Replica {
    /// Whether a committed read may be answered here, and the time that expiry is judged by.
    ///
    /// # Errors
    /// When this member is not the serving tail.
    pub fn admit_read(&mut self, now: Now) -> Result<TimeMs, Refusal> {
        match self.phase {
            Phase::Serving { role: Role::Single } => {
                self.time = self.time.max(now.wall);
                Ok(self.time)
            }
            Phase::Serving { role: Role::Tail } => Ok(self.time),
            _ => Err(self.refusal(false)),
        }
    }

    /// Whether a request that names `epoch` may be looked at.
    ///
    /// # Errors
    /// When it names another; send the newest entry back.
    pub fn admit_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch == self.promised { Ok(()) } else { Err(Refusal::StaleEpoch { asked: epoch, current: self.promised }) }
    }

    /// Whether the key lies in this range; back-ends check, because a front-end's map may be of any age.
    #[must_use]
    pub fn covers(&self, key: &RingKey) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.keys.contains(key))
    }
}

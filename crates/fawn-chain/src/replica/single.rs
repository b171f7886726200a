//! Activation of a chain of one by its only member, for a host without a manager.
use super::{Replica, ReplicaConfig, ReplicaPhase};
use crate::map::{Activation, ChainMember, ChainState, LastActive, MemberRole, RangeEntry};
use alloc::vec;
use fawn_types::{Epoch, KeyRange, Now};

impl Replica {
    /// Starts serving as the range's only member: its log, all of it synced, is the base of `epoch`. No other copy can
    /// hold a record that this log lacks, so no report is awaited. The entry in [`super::ReplicaOutput::Persist`]
    /// equals the one that a manager would have committed: a chain that the range joins later continues from it.
    ///
    /// A member that serves alone already begins its next epoch. Its waiting requests stay valid, although `Stopped` is
    /// output: it has the only copy, so nothing was decided elsewhere.
    ///
    /// # Panics
    /// When the epoch is not above all that this member promised and logged, or the log is not synced.
    pub fn serve_alone(&mut self, now: Now, epoch: Epoch, keys: KeyRange) {
        assert!(epoch > self.promised && epoch > self.last.epoch(), "{epoch:?} was used: {:?}", self.last);
        assert!(self.own.synced == self.last, "a base is synced: {:?} of {:?}", self.own, self.last);
        let ReplicaConfig { id, boot, range, durability, .. } = self.config;
        self.now = now;
        let members = vec![ChainMember { id, boot, role: MemberRole::Serving }];
        let mut entry = RangeEntry {
            epoch,
            state: ChainState::Active,
            durability,
            base: self.last,
            time: self.time(),
            history: self.entry.take().map(|entry| entry.history).unwrap_or_default(),
            last_active: Some(LastActive { epoch, durability, members: members.clone() }),
            members,
            ..RangeEntry::new(range, keys, &[])
        };
        // Without a sync, an earlier epoch's end may be lost.
        entry.history.retain(|activation| activation.base <= self.last);
        entry.remember(Activation { epoch, base: self.last });
        self.promised = epoch;
        self.phase = ReplicaPhase::Equal { base: self.last };
        self.serve(&entry);
    }
}

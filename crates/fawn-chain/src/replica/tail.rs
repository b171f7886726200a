//! The commit rule: only the tail commits, up to the least watermark of all members [replication.md §3].
use super::{Replica, ReplicaOutput, ReplicaPhase, Role};
use crate::invariants;
use crate::message::Body;
use fawn_types::Version;

impl Replica {
    /// The running minimum: the version that this member and all above it have reached, by the durability mode.
    pub(super) fn running_minimum(&self) -> Version {
        match self.phase {
            ReplicaPhase::Serving { role: Role::Head | Role::Single } => self.own_mark(),
            _ => self.own_mark().min(self.upstream),
        }
    }

    /// Commits versions that every member has reached. A syncing member applies the commits that the tail sent it.
    pub(super) fn try_commit(&mut self) {
        let through = self.running_minimum();
        if through <= self.committed {
            return;
        }
        assert!(invariants::committed_is_kept(through, self.own_mark()) && through <= self.last);
        self.commit(through);
        self.ack_due = self.predecessor.is_some();
    }

    pub(super) fn commit(&mut self, through: Version) {
        assert!(through > self.committed, "commits only grow: {through:?} after {:?}", self.committed);
        self.committed = through;
        self.commit_due = true;
        self.bound_assign();
    }

    /// Wakes a complete syncing member for its report, once that is due. Each epoch starts the timer again, and peers
    /// announce epochs that are only being prepared, so in short epochs the timer alone would never end.
    pub(super) fn wake_to_report(&mut self) {
        if self.transfer.is_none() && self.last >= self.upstream {
            let due_at = self.report_at.max(self.now.mono);
            self.wake_at = Some(self.wake_at.map_or(due_at, |at| at.min(due_at)));
        }
    }

    /// A complete syncing member that has all versions the tail had committed reports so, repeatedly, until the manager
    /// acts. Under load its disk is always slightly behind, so this does not wait for a sync: the handshake does, and
    /// finds little left to sync.
    pub(super) fn try_caught_up(&mut self) {
        debug_assert!(self.last >= self.upstream, "the timer has checked it");
        if self.transfer.is_none() {
            if self.own.synced < self.last {
                self.outputs.push_back(ReplicaOutput::Sync);
            }
            self.send_manager(Body::CaughtUp { last: self.last });
            self.report_at = self.now.mono.plus_ms(self.config.options.retransmit_ms);
            self.wake_at = Some(self.report_at);
        }
    }
}

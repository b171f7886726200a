//! Owns the commit rule: the tail alone commits, when the least watermark of all members reaches it [replication.md §3].
use super::{Output, Phase, Replica, Role};
use crate::invariants;
use crate::message::Body;
use fawn_types::Version;

impl Replica {
    /// The running minimum: what this member and all above it have kept, by the durability mode.
    pub(super) fn running_minimum(&self) -> Version {
        match self.phase {
            Phase::Serving { role: Role::Head | Role::Single } => self.own_mark(),
            _ => self.own_mark().min(self.upstream),
        }
    }

    /// Commits what every member has kept. A syncing member does the same with what the tail told it is committed.
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
    }

    /// A syncing member that is a whole copy and has all the tail had committed says so, and again until the manager acts. Under load its
    /// medium is always a little behind, so that is not awaited: the handshake awaits it, and finds little left to sync.
    pub(super) fn try_caught_up(&mut self) {
        if self.copy.is_none() && self.last >= self.upstream && self.wake_at.is_none() {
            if self.own.synced < self.last {
                self.outputs.push_back(Output::Sync);
            }
            self.send_manager(Body::CaughtUp { last: self.last });
            self.wake_at = Some(self.now.mono.plus_ms(self.config.options.retransmit_ms));
        }
    }
}

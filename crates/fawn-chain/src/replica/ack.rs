//! Acknowledgements up the chain: cumulative; `received` frees windows, `committed` advances every member's index.
use super::{Alarm, Replica, ReplicaOutput, ReplicaPhase, Role};
use crate::invariants;
use crate::message::Body;
use fawn_types::{MemberId, Version};

impl Replica {
    /// The ack that is due, with the current versions: one for all frames of an iteration.
    pub(super) fn ack(&mut self) -> Option<ReplicaOutput> {
        let to = self.predecessor?;
        let frame = self.frame(Body::Ack { received: self.last, committed: self.committed });
        Some(ReplicaOutput::Send { to, frame })
    }

    pub(super) fn handle_ack(&mut self, from: MemberId, received: Version, committed: Version) {
        let (last, now) = (self.last, self.now.mono);
        let Some(link) = self.links.iter_mut().find(|link| link.to == from) else { return };
        if !invariants::prefix_of_predecessor(last, received) {
            self.outputs.push_back(ReplicaOutput::Alarm(Alarm::AckBeyondLog { from, claimed: received, last }));
            return;
        }
        link.note_received(received, now);
        let awaited = matches!(self.phase, ReplicaPhase::Serving { role: Role::Head | Role::Middle });
        if !awaited || committed <= self.committed {
            return;
        }
        // The tail's commit includes this member's own watermark, so a commit beyond it cannot be from this epoch's
        // tail.
        if !invariants::committed_is_kept(committed, self.running_minimum()) {
            self.outputs.push_back(ReplicaOutput::Alarm(Alarm::AckBeyondLog { from, claimed: committed, last }));
            return;
        }
        self.commit(committed);
        self.ack_due = self.predecessor.is_some();
    }
}

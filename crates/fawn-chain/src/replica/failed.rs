//! Failed members: a member that can no longer store anything reports that until it is replaced.
//!
//! A disk that failed once is not trusted before a restart has checked it. Such a member neither acknowledges nor
//! commits. A tail continues to reply to reads of committed data until the manager requests another epoch. It promises
//! that epoch only in memory: a restart is another boot, which begins without a role.
use super::{Rejection, Replica, ReplicaOutput, ReplicaPhase};
use crate::map::{ChainState, RangeEntry};
use crate::message::{Body, Frame};
use fawn_types::Now;

/// Interval of its reports.
const SAY_MS: u64 = 200;

impl Replica {
    /// The host can no longer store the records that this member appends, in this boot. Idempotent.
    pub fn fail(&mut self, now: Now) {
        self.now = now;
        if self.has_failed {
            return;
        }
        self.has_failed = true;
        self.next = None;
        self.links.clear();
        self.ack_due = false;
        // No pending action or claim may be sent any more.
        self.outputs.retain(|output| matches!(output, ReplicaOutput::Stopped | ReplicaOutput::Alarm(_)));
        if !matches!(self.phase, ReplicaPhase::Serving { .. }) {
            self.phase = ReplicaPhase::Idle;
        }
        self.say_failed();
    }

    /// Whether it has failed.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn handle_frame_failed(&mut self, frame: &Frame<'_>) {
        match &frame.body {
            Body::Entry(entry) | Body::Align { entry, .. } => self.let_go(entry),
            Body::EntryWanted => self.send_entry(frame.header.from),
            _ => {}
        }
    }

    /// Ends the old epoch when another one was requested, or began without this member.
    fn let_go(&mut self, entry: &RangeEntry) {
        if entry.epoch > self.promised {
            self.stop();
            self.promised = entry.epoch;
            self.entry = Some(entry.clone());
        }
        if entry.epoch == self.promised && entry.state == ChainState::Preparing {
            self.say_failed();
        }
    }

    pub(super) fn say_failed(&mut self) {
        self.send_manager(Body::Failed);
        self.wake_in(SAY_MS);
    }

    /// A failed head rejects requests so that clients retry: a chain without this member is being formed.
    pub(super) const fn refusal_if_failed(&self) -> Option<Rejection> {
        if self.has_failed { Some(Rejection::NotServing) } else { None }
    }
}

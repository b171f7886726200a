//! Receipt of records and watermarks from the predecessor, in all roles (middle, tail, syncing, aligning).
use super::{FrameVerdict, Replica, ReplicaPhase, Role};
use crate::message::Body;
use fawn_types::{MemberId, Now, TimeMs, Version};

/// The least watermark of the members above, chain time, and the last version that the head had assigned then.
pub(super) type Announcement = (Version, TimeMs, Version);

impl Replica {
    /// Handles records of the predecessor's log. `after` is the version before the first one.
    pub(super) fn handle_append(
        &mut self,
        from: MemberId,
        after: Version,
        last: Version,
        announced: Announcement,
    ) -> FrameVerdict {
        if !self.receives_from(from) {
            return FrameVerdict::Nothing;
        }
        if let ReplicaPhase::Aligning { base, .. } = self.phase
            && last > base
        {
            return FrameVerdict::Nothing;
        }
        self.ack_due = true;
        let verdict = if after > self.last {
            // A gap: an earlier frame was lost. These records are not buffered; the predecessor resends them from its
            // log.
            self.ask_replay();
            FrameVerdict::Nothing
        } else if last <= self.last {
            FrameVerdict::Nothing // A duplicate counts as a success and is acknowledged again (3FS #345).
        } else {
            let held = core::mem::replace(&mut self.last, last);
            self.gap_asked = None;
            FrameVerdict::Append { after: held, through: last }
        };
        self.take_announced(announced);
        verdict
    }

    /// Handles the watermarks of the members above, without records.
    pub(super) fn handle_watermark(&mut self, from: MemberId, sent: Version, announced: Announcement) {
        if !self.receives_from(from) {
            return;
        }
        self.ack_due = true;
        if sent > self.last {
            self.ask_replay();
        }
        self.take_announced(announced);
    }

    /// Only this epoch's predecessor is accepted.
    fn receives_from(&self, from: MemberId) -> bool {
        let receives = match self.phase {
            ReplicaPhase::Serving { role } => matches!(role, Role::Middle | Role::Tail),
            ReplicaPhase::Syncing => self.transfer.is_none_or(|transfer| transfer.takes_records()),
            ReplicaPhase::Aligning { donor, .. } => donor != self.config.id,
            _ => false,
        };
        receives && self.predecessor == Some(from)
    }

    fn take_announced(&mut self, (upstream, time, assigned): Announcement) {
        self.upstream = self.upstream.max(upstream);
        self.upstream_at = Some(self.now.mono);
        self.time.raise((time, assigned), self.now.mono);
        match self.phase {
            ReplicaPhase::Serving { role: Role::Tail } => self.try_commit(),
            ReplicaPhase::Syncing => {
                self.try_commit();
                self.wake_to_report();
            }
            _ => {}
        }
    }

    /// The log accepts records again after it rejected some, which [`Replica::retract`] counted as never received.
    pub fn handle_log_space(&mut self, now: Now) {
        self.now = now;
        if self.predecessor.is_some_and(|predecessor| self.receives_from(predecessor)) {
            self.gap_asked = None;
            self.ask_replay();
        }
    }

    /// Requests the missing records, once per gap; the timer repeats the request.
    pub(super) fn ask_replay(&mut self) {
        let asked = self.gap_asked.is_some_and(|(end, again_at)| end == self.last && self.now.mono < again_at);
        let welcome = self.transfer.is_none_or(|transfer| transfer.takes_records());
        let Some(to) = self.predecessor.filter(|_| !asked && welcome) else { return };
        self.gap_asked = Some((self.last, self.now.mono.plus_ms(self.config.options.retransmit_ms)));
        self.send(to, Body::ReplayWanted { after: self.last });
    }
}

//! Forwarding and repair on one path: a replay of the log from the peer's last received version.
use super::link::{LinkKind, ReplicaLink};
use super::middle::Announcement;
use super::{Alarm, Replayed, Replica, ReplicaOutput, ReplicaPhase, Role};
use crate::message::{Body, Frame};
use fawn_types::{MemberId, MonoMs, Now, Version};

impl Replica {
    /// The next batch or watermark to send on any link.
    pub(super) fn poll_links(&mut self) -> Option<ReplicaOutput> {
        (0..self.links.len()).find_map(|index| self.poll_link(index))
    }

    fn poll_link(&mut self, index: usize) -> Option<ReplicaOutput> {
        let options = self.config.options;
        let (limit, announced) = (self.link_limit(&self.links[index]), self.to_announce(&self.links[index]));
        let link = &mut self.links[index];
        if link.replaying || link.is_stuck {
            return None;
        }
        let window = link.window_left(options.window_bytes_max);
        if link.sent < limit {
            if window == 0 {
                return None;
            }
            if !link.has_in_flight() {
                link.moved_at = self.now.mono;
            }
            link.replaying = true;
            let bytes_max = window.min(options.frame_bytes_max);
            return Some(ReplicaOutput::SendRecords { to: link.to, after: link.sent, through: limit, bytes_max });
        }
        // Chain time alone is sent only once per heartbeat interval. Records carry it too, and a frame in every
        // iteration would be wasteful.
        let news = announced.0 > link.announced.0 || announced.1.ms_since(link.announced.1) >= options.heartbeat_ms;
        (news && link.kind != LinkKind::Aligning).then(|| self.watermark(index))
    }

    fn watermark(&mut self, index: usize) -> ReplicaOutput {
        let announced = self.to_announce(&self.links[index]);
        let link = &mut self.links[index];
        let (upstream, time, assigned) = announced;
        link.announced = (upstream, time);
        let (to, sent) = (link.to, link.sent);
        ReplicaOutput::Send { to, frame: self.frame(Body::Watermark { sent, upstream, time, assigned }) }
    }

    /// The last version to send on a link. A syncing member receives committed records only, so its copy is never cut.
    fn link_limit(&self, link: &ReplicaLink) -> Version {
        match (link.kind, self.phase) {
            (LinkKind::Successor, _) => self.own.appended,
            (LinkKind::Syncing, _) => self.committed,
            (LinkKind::Aligning, ReplicaPhase::Aligning { base, .. } | ReplicaPhase::Equal { base }) => base,
            (LinkKind::Aligning, _) => link.sent,
        }
    }

    fn to_announce(&self, link: &ReplicaLink) -> Announcement {
        let upstream = match link.kind {
            LinkKind::Syncing => self.committed,
            LinkKind::Successor | LinkKind::Aligning => self.running_minimum(),
        };
        let (time, assigned) = match self.phase {
            ReplicaPhase::Serving { role: Role::Head } => (self.time(), self.last),
            _ => self.time.announcement(),
        };
        (upstream, time, assigned)
    }

    /// Handles the outcome of a `SendRecords`. Returns the frame to encode the records into, or `None` if the link no
    /// longer needs them.
    #[must_use]
    pub fn handle_replayed(
        &mut self,
        now: Now,
        to: MemberId,
        after: Version,
        replayed: Replayed,
    ) -> Option<Frame<'static>> {
        self.now = now;
        let index = self.links.iter().position(|link| link.to == to && link.replaying && link.sent == after)?;
        self.links[index].replaying = false;
        let Replayed::Records { last, bytes } = replayed else {
            self.give_up_replay(index, after);
            return None;
        };
        let limit = self.link_limit(&self.links[index]);
        assert!(last > after && last <= limit, "replayed ({after:?}, {last:?}], asked through {limit:?}");
        let (upstream, time, assigned) = self.to_announce(&self.links[index]);
        self.links[index].note_sent(last, bytes, now.mono);
        self.links[index].announced = (upstream, time);
        Some(self.frame(Body::Append { after, last, upstream, time, assigned, records: &[] }))
    }

    /// Handles that the log no longer holds the records that a link needs, or cannot read them.
    fn give_up_replay(&mut self, index: usize, after: Version) {
        let link = &mut self.links[index];
        let to = link.to;
        if link.kind == LinkKind::Successor {
            // Every commit waits for a serving member, so its link stays. The successor holds every committed record,
            // so the manager can continue the chain without this member.
            link.is_stuck = true;
            link.moved_at = self.now.mono;
            return self.send_manager(Body::CannotSend { to });
        }
        if link.kind == LinkKind::Syncing && link.received > after {
            // A late request: the peer has acknowledged newer records since, and might not ask for more. A peer that
            // did begin again there requests a copy.
            link.rewind(link.received, self.now.mono);
        } else {
            self.links.remove(index);
        }
        self.send(to, Body::Gone { after });
    }

    /// The member after this one in the chain.
    fn successor(&self) -> Option<MemberId> {
        let mut chain = self.entry.as_ref()?.serving().map(|member| member.id);
        chain.find(|id| *id == self.config.id)?;
        chain.next()
    }

    /// Handles a peer's request for the records above `after`.
    pub(super) fn handle_replay_wanted(&mut self, from: MemberId, after: Version) {
        if after > self.last || !self.member_node(from) {
            self.outputs.push_back(ReplicaOutput::Alarm(Alarm::AckBeyondLog { from, claimed: after, last: self.last }));
            return;
        }
        let place = self.links.iter().position(|link| link.to == from);
        let index = match place {
            Some(index) => {
                let link = &mut self.links[index];
                // A late request must not rewind a serving link to records that the log need not hold any more. A
                // syncing peer may have restarted its copy from an earlier base; for it, a missing record is not fatal.
                let after = if link.kind == LinkKind::Syncing { after } else { after.max(link.received) };
                link.rewind(after, self.now.mono);
                index
            }
            None => {
                let kind = match self.phase {
                    ReplicaPhase::Aligning { donor, .. } if donor == self.config.id => LinkKind::Aligning,
                    ReplicaPhase::Equal { .. } => LinkKind::Aligning,
                    ReplicaPhase::Serving { .. } if self.successor() == Some(from) => LinkKind::Successor,
                    // Any serving member holds all committed records.
                    ReplicaPhase::Serving { .. } => LinkKind::Syncing,
                    _ => return,
                };
                self.links.push(ReplicaLink::new(from, kind, after, self.now.mono));
                self.links.len() - 1
            }
        };
        // A syncing member that lacks nothing (its range may be empty) must receive a watermark, or it never catches
        // up.
        let link = &self.links[index];
        if link.kind == LinkKind::Syncing && self.link_limit(link) <= after {
            let watermark = self.watermark(index);
            self.outputs.push_back(watermark);
        }
    }

    /// The link's retransmission deadline; `None` while nothing awaits a reply.
    pub(super) fn link_deadline(&self, link: &ReplicaLink) -> Option<MonoMs> {
        let uncommitted = link.kind == LinkKind::Successor && self.committed < self.last;
        let waits = link.has_in_flight() || uncommitted || link.is_stuck;
        let interval_ms = self.config.options.retransmit_ms << link.silent.min(4);
        waits.then(|| link.moved_at.plus_ms(interval_ms))
    }

    /// When a successor becomes suspect. Separate from the link's deadline, which a peer can postpone forever by
    /// requesting records that it then rejects.
    pub(super) fn suspicion_at(&self, link: &ReplicaLink) -> Option<MonoMs> {
        let owes_since = link.owes_since.filter(|_| link.kind == LinkKind::Successor)?;
        Some(owes_since.plus_ms(self.config.options.suspect_ms))
    }

    /// Reports a successor that has owed an ack for too long, and repeats the report at the same interval.
    pub(super) fn suspect(&mut self) {
        for index in 0..self.links.len() {
            if self.suspicion_at(&self.links[index]).is_some_and(|at| at <= self.now.mono) {
                self.links[index].owes_since = Some(self.now.mono);
                let id = self.links[index].to;
                self.send_manager(Body::Suspect { member: id });
            }
        }
    }

    /// Resends records that were not acknowledged in time. If all were received but not committed, sends a watermark,
    /// which the peer must ack.
    pub(super) fn retransmit(&mut self) {
        for index in 0..self.links.len() {
            if self.link_deadline(&self.links[index]).is_none_or(|at| at > self.now.mono) {
                continue;
            }
            let now = self.now.mono;
            let link = &mut self.links[index];
            link.silent += 1;
            link.moved_at = now;
            if link.is_stuck {
                link.is_stuck = false; // Nothing was sent, so the successor owes no ack.
                continue;
            }
            link.note_asked(now);
            if link.has_in_flight() {
                link.rewind(link.received, now);
            } else if !link.replaying {
                let watermark = self.watermark(index);
                self.outputs.push_back(watermark);
            }
        }
    }
}

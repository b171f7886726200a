//! Link to a downstream peer: sent and received versions, and the byte window. The log holds the records.
use alloc::collections::VecDeque;
use fawn_types::{MemberId, MonoMs, TimeMs, Version};

/// Maximum frames in flight on a link, regardless of their size.
const FRAMES_MAX: usize = 256;

/// Purpose of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkKind {
    /// To the next serving member, which receives all records and whose acks count.
    Successor,
    /// To a syncing member, which receives committed records only; no commit waits for it.
    Syncing,
    /// To a member that is being made equal to this donor.
    Aligning,
}

/// The sender's side of a link.
#[derive(Clone, Debug)]
pub(super) struct ReplicaLink {
    pub(super) to: MemberId,
    pub(super) kind: LinkKind,
    /// Last version in flight or received.
    pub(super) sent: Version,
    /// Last version that the peer acknowledged.
    pub(super) received: Version,
    in_flight: VecDeque<(Version, u32)>,
    in_flight_bytes: u32,
    /// The log could not be read for this link; tried again after a while.
    pub(super) is_stuck: bool,
    /// A `SendRecords` was output and its outcome is pending.
    pub(super) replaying: bool,
    /// The last watermark and time sent.
    pub(super) announced: (Version, TimeMs),
    /// Time of the peer's last progress, or of the last retransmission.
    pub(super) moved_at: MonoMs,
    /// Consecutive silent intervals: each doubles the next one, up to a bound.
    pub(super) silent: u32,
    /// The greatest version ever sent: a rewind lowers `sent`, but not the version that the peer must acknowledge.
    furthest: Version,
    /// Time since which an acknowledgement is due.
    pub(super) owes_since: Option<MonoMs>,
}

impl ReplicaLink {
    pub(super) fn new(to: MemberId, kind: LinkKind, after: Version, now: MonoMs) -> Self {
        Self {
            to,
            kind,
            sent: after,
            received: after,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            is_stuck: false,
            replaying: false,
            announced: (Version::ZERO, TimeMs(0)),
            moved_at: now,
            silent: 0,
            furthest: after,
            owes_since: None,
        }
    }

    /// Bytes that may be sent now; 0 means wait for acks.
    pub(super) fn window_left(&self, window_bytes_max: u32) -> u32 {
        if self.in_flight.len() >= FRAMES_MAX { 0 } else { window_bytes_max.saturating_sub(self.in_flight_bytes) }
    }

    pub(super) fn note_sent(&mut self, last: Version, bytes: u32, now: MonoMs) {
        assert!(last > self.sent, "a batch moves the link forward: {last:?} after {:?}", self.sent);
        self.sent = last;
        self.furthest = self.furthest.max(last);
        self.owes_since.get_or_insert(now);
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes);
        self.in_flight.push_back((last, bytes));
        assert!(self.in_flight.len() <= FRAMES_MAX);
    }

    /// Records that a frame was sent which every live peer answers at once.
    pub(super) fn note_asked(&mut self, now: MonoMs) {
        self.owes_since.get_or_insert(now);
    }

    /// The peer holds everything through `received`; older acks change nothing.
    pub(super) fn note_received(&mut self, received: Version, now: MonoMs) {
        // An ack without progress while records are due does not count: a peer that stores nothing may still send acks.
        if received >= self.furthest {
            self.owes_since = None;
        } else if received > self.received {
            self.owes_since = Some(now);
        }
        if received <= self.received {
            return;
        }
        self.received = received;
        self.sent = self.sent.max(received);
        self.moved_at = now;
        self.silent = 0;
        while let Some(&(last, bytes)) = self.in_flight.front()
            && last <= received
        {
            self.in_flight.pop_front();
            self.in_flight_bytes -= bytes;
        }
    }

    /// Sends again from `after`; the result of a replay in flight is ignored.
    pub(super) fn rewind(&mut self, after: Version, now: MonoMs) {
        self.sent = after;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        self.replaying = false;
        self.is_stuck = false;
        self.moved_at = now;
    }

    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::{Epoch, NodeId, ShardId};

    fn version(seq: u64) -> Version {
        Epoch::new(1).and_then(|epoch| Version::new(epoch, seq)).unwrap_or_default()
    }

    fn link() -> ReplicaLink {
        let to = MemberId::new(NodeId(2), ShardId(0));
        ReplicaLink::new(to, LinkKind::Successor, version(0), MonoMs(0))
    }

    /// A successor that stores one record at a time is slow, but not suspect.
    #[test]
    fn each_step_of_a_peer_renews_the_time_that_it_has_for_the_next() {
        let mut link = link();
        link.note_sent(version(3), 10, MonoMs(1));
        assert_eq!(link.owes_since, Some(MonoMs(1)));
        link.note_received(version(1), MonoMs(5));
        assert_eq!(link.owes_since, Some(MonoMs(5)));
        link.note_received(version(1), MonoMs(7));
        assert_eq!(link.owes_since, Some(MonoMs(5)), "an ack without progress does not count");
        link.note_received(version(3), MonoMs(9));
        assert_eq!(link.owes_since, None);
    }

    #[test]
    fn a_peer_owes_all_that_was_ever_sent_also_after_a_rewind() {
        let mut link = link();
        link.note_sent(version(3), 10, MonoMs(1));
        link.rewind(version(0), MonoMs(2));
        link.note_sent(version(1), 10, MonoMs(2));
        link.note_received(version(1), MonoMs(3));
        assert_eq!(link.owes_since, Some(MonoMs(3)));
    }

    #[test]
    fn progress_ends_the_growth_of_the_retransmission_interval() {
        let mut link = link();
        link.note_sent(version(1), 10, MonoMs(1));
        link.silent = 3;
        link.note_received(version(1), MonoMs(5));
        assert_eq!(link.silent, 0);
    }
}

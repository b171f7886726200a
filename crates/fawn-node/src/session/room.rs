//! Owns the room that the replies of all sessions share: what is there, what reads under way will bring, who waits.
//!
//! Every session is charged with the bytes of its replies and with an estimate for each reply it does not know yet. A
//! request that returns values is begun only while there is room: over its session's bound the session waits for its
//! own client, over the shard's bound all wait in line, first come, first served. So one slow reader or two thousand
//! cost the same, and nobody is cut off for what others hold.
use super::{Phase, Session, SessionId};
use crate::execute::Stall;
use crate::output::Output;
use crate::status::RepliesStatus;
use std::collections::VecDeque;

/// What is added to the room for sessions whose replies are known to be short, as a part of it.
const SHORT_PART: usize = 8;

/// What a session is charged with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charge {
    /// Replies that are there, bytes.
    pub(crate) held_bytes: usize,
    /// Of these, what waits behind a reply that is not there.
    pub(crate) behind_bytes: usize,
    /// Replies that reads under way will bring, bytes as estimated.
    pub(crate) expected_bytes: usize,
    /// Parts that are there of these.
    pub(crate) part_bytes: usize,
}

impl Charge {
    pub(crate) const fn sum(self) -> usize {
        self.held_bytes + self.expected_bytes
    }
}

/// The room of a shard.
#[derive(Debug)]
pub(crate) struct Room {
    bytes_max: usize,
    /// The sum of what all sessions are charged with.
    charged: Charge,
    /// Of this, what sessions with short replies are charged with.
    short_bytes: usize,
    held_bytes_peak: usize,
    /// Sessions that wait for room and hold none themselves.
    waiting: VecDeque<SessionId>,
}

impl Room {
    pub(super) fn new(bytes_max: usize) -> Self {
        assert!(bytes_max > 0, "without room nothing is ever answered");
        Self { bytes_max, charged: Charge::default(), short_bytes: 0, held_bytes_peak: 0, waiting: VecDeque::new() }
    }

    pub(crate) fn status(&self) -> RepliesStatus {
        let Charge { held_bytes, expected_bytes, .. } = self.charged;
        let (held_bytes_peak, waiting) = (self.held_bytes_peak, self.waiting.len());
        RepliesStatus { held_bytes, held_bytes_peak, expected_bytes, waiting }
    }

    /// Notes what the other sessions leave to this one. Call before it consumes input.
    #[inline]
    pub(super) fn look(&self, session: &mut Session) {
        session.room_bytes = self.left_bytes(session);
    }

    /// What the other sessions leave to this one, bytes.
    #[inline]
    fn left_bytes(&self, session: &Session) -> usize {
        let others_bytes = self.charged.sum() - session.charged.sum();
        let left_bytes = self.bytes_max.saturating_sub(others_bytes);
        if !session.replies.are_short() {
            return left_bytes;
        }
        // Long replies, of which one may exceed the room, do not reach into this part.
        let others_bytes = self.short_bytes - session.charged_short_bytes;
        left_bytes.max((self.bytes_max / SHORT_PART).saturating_sub(others_bytes))
    }

    /// Whether there is room for a reply of this session, which waits.
    pub(super) fn has_for(&self, session: &Session) -> bool {
        self.left_bytes(session) > 0
    }

    /// Whether a reply that has just come for the session's slot may stay; else it is asked for again. An estimate may
    /// be wrong, and with many under way by far; here the bytes are known.
    ///
    /// What waits behind other replies may fill half of the room only, and what is ready leaves with the clients or
    /// their time-outs. So the next reply in some session's order always finds room some day. `promised_bytes`: what
    /// other replies on their way will take.
    pub(crate) fn takes(&self, session: &Session, slot: u64, bytes: usize, promised_bytes: usize) -> bool {
        let (held_bytes, behind_bytes) = (self.charged.held_bytes + promised_bytes, self.charged.behind_bytes);
        if session.replies.is_first(slot) {
            return held_bytes == behind_bytes || held_bytes + bytes <= self.bytes_max;
        }
        let behind_bytes = behind_bytes + promised_bytes;
        let own_bytes = session.replies.charge().behind_bytes;
        let is_own_bound = own_bytes > 0 && own_bytes + bytes > session.output_bytes_max;
        !is_own_bound && behind_bytes + bytes <= self.bytes_max / 2 && held_bytes + bytes <= self.bytes_max
    }

    /// Whether a part of a reply may stay that cannot be asked for again by itself.
    pub(crate) fn takes_part(&self, bytes: usize) -> bool {
        // What is there, not what is expected: a guess must refuse nothing.
        self.charged.held_bytes + self.charged.part_bytes + bytes <= 2 * self.bytes_max
    }

    /// Takes in what has become of a session's replies.
    #[inline]
    pub(crate) fn note(&mut self, session: &mut Session) {
        self.charge(session, session.replies.charge());
    }

    #[inline]
    fn charge(&mut self, session: &mut Session, charge: Charge) {
        let before = std::mem::replace(&mut session.charged, charge);
        self.charged.held_bytes = self.charged.held_bytes + charge.held_bytes - before.held_bytes;
        self.charged.behind_bytes = self.charged.behind_bytes + charge.behind_bytes - before.behind_bytes;
        self.charged.part_bytes = self.charged.part_bytes + charge.part_bytes - before.part_bytes;
        self.charged.expected_bytes = self.charged.expected_bytes + charge.expected_bytes - before.expected_bytes;
        let short_bytes = if session.replies.are_short() { charge.sum() } else { 0 };
        self.short_bytes += short_bytes;
        self.short_bytes -= std::mem::replace(&mut session.charged_short_bytes, short_bytes);
        self.held_bytes_peak = self.held_bytes_peak.max(self.charged.held_bytes);
    }

    /// The session is gone.
    pub(super) fn leave(&mut self, session: &mut Session) {
        self.charge(session, Charge::default());
    }

    /// Lets a session that has nothing under way wait in line.
    pub(super) fn queue(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.waits_for_room, true) {
            self.waiting.push_back(session.id);
        }
    }

    /// The first in line.
    pub(super) fn first(&self) -> Option<SessionId> {
        self.waiting.front().copied()
    }

    /// Whether the first in line, `None` if it is gone, may go on; then it has left the line.
    pub(super) fn admit(&mut self, session: Option<&mut Session>, outputs: &mut VecDeque<Output>) -> bool {
        let Some(session) = session else {
            self.waiting.pop_front();
            return true;
        };
        assert_eq!(self.first(), Some(session.id), "nobody passes the first in line");
        if !self.has_for(session) {
            return false;
        }
        self.waiting.pop_front();
        session.waits_for_room = false;
        session.stalled = session.stalled.filter(|stall| *stall != Stall::Replies);
        if session.phase == Phase::Open {
            // Its place until its input comes: those behind it must not be promised the same room.
            let charge = session.replies.charge();
            let expected_bytes = charge.expected_bytes + session.replies.estimate_bytes();
            self.charge(session, Charge { expected_bytes, ..charge });
            outputs.push_back(Output::Resume(session.id));
        }
        true
    }
}

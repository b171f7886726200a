//! Reply budget shared by all sessions: usage, expected usage of reads in flight, queue of waiting sessions.
//!
//! A session's usage is the bytes of its replies and an estimate for each unknown reply. A request that returns values
//! starts only within the budget. Beyond its session's bound the session waits for its
//! own client; beyond the shard's bound sessions are queued in order of arrival. One slow reader or two thousand
//! thus cost the same, and no connection is closed for the usage of others.
use super::{Phase, Session, SessionId};
use crate::execute::Stall;
use crate::output::Output;
use crate::status::RepliesStatus;
use std::collections::VecDeque;

/// Fraction of the budget that is added for sessions with short replies.
const SHORT_PART: usize = 8;

/// Usage of the budget by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charge {
    /// Replies in memory, bytes.
    pub(crate) held_bytes: usize,
    /// Of these, replies behind one that is not known yet.
    pub(crate) behind_bytes: usize,
    /// Expected replies of reads in flight, bytes, estimated.
    pub(crate) expected_bytes: usize,
    /// Of these, parts that have arrived.
    pub(crate) part_bytes: usize,
}

impl Charge {
    pub(crate) const fn sum(self) -> usize {
        self.held_bytes + self.expected_bytes
    }
}

/// The reply budget of a shard.
#[derive(Debug)]
pub(crate) struct Room {
    bytes_max: usize,
    /// Usage of all sessions.
    charged: Charge,
    /// Of this, the usage of sessions with short replies.
    short_bytes: usize,
    held_bytes_peak: usize,
    /// Queued sessions, which hold no replies.
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

    /// Stores the budget that the other sessions leave to this one. Call before the session consumes input.
    #[inline]
    pub(super) fn look(&self, session: &mut Session) {
        session.room_bytes = self.left_bytes(session);
    }

    /// The budget that the other sessions leave to this one, bytes.
    #[inline]
    fn left_bytes(&self, session: &Session) -> usize {
        let others_bytes = self.charged.sum() - session.charged.sum();
        let left_bytes = self.bytes_max.saturating_sub(others_bytes);
        if !session.replies.are_short() {
            return left_bytes;
        }
        // Long replies, of which one may exceed the budget, do not use this part.
        let others_bytes = self.short_bytes - session.charged_short_bytes;
        left_bytes.max((self.bytes_max / SHORT_PART).saturating_sub(others_bytes))
    }

    /// Whether the budget admits a reply of this waiting session.
    pub(super) fn has_for(&self, session: &Session) -> bool {
        self.left_bytes(session) > 0
    }

    /// Whether a reply that has arrived for the slot may stay; if not, it is requested again. Estimates may
    /// be wrong, and with many reads in flight by far; here the length is known.
    ///
    /// Replies that wait behind others may fill half of the budget only, and ready ones leave with the clients or
    /// their time-outs. Hence some session's next in-order reply always eventually fits: no deadlock. `promised_bytes`:
    /// reserved for other replies on their way.
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

    /// Whether an arrived part of a reply may stay. It cannot be requested again alone.
    pub(crate) fn takes_part(&self, bytes: usize) -> bool {
        // Only replies in memory count: an estimate must refuse nothing.
        self.charged.held_bytes + self.charged.part_bytes + bytes <= 2 * self.bytes_max
    }

    /// Updates the usage of a session.
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

    /// Releases the usage of an ended session.
    pub(super) fn leave(&mut self, session: &mut Session) {
        self.charge(session, Charge::default());
    }

    /// Queues a session that has no pending request.
    pub(super) fn queue(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.waits_for_room, true) {
            self.waiting.push_back(session.id);
        }
    }

    /// The first session of the queue.
    pub(super) fn first(&self) -> Option<SessionId> {
        self.waiting.front().copied()
    }

    /// Whether the first queued session (`None` if it has ended) may continue; it then has left the queue.
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
            // Its share is reserved until its input arrives: later sessions must not get the same budget.
            let charge = session.replies.charge();
            let expected_bytes = charge.expected_bytes + session.replies.estimate_bytes();
            self.charge(session, Charge { expected_bytes, ..charge });
            outputs.push_back(Output::Resume(session.id));
        }
        true
    }
}

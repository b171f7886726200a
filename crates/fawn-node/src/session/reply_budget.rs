//! Reply budget shared by all sessions: usage, expected usage of reads in flight, queue of waiting sessions.
//!
//! A session's usage is the bytes of its replies and an estimate for each unknown reply. A request that returns values
//! starts only within the budget. Beyond its session's bound the session waits for its
//! own client; beyond the shard's bound sessions are queued in order of arrival. One slow reader or two thousand
//! thus cost the same, and no connection is closed for the usage of others.
use super::{Session, SessionId, SessionPhase};
use crate::execute::Stall;
use crate::output::ShardOutput;
use crate::status::RepliesStatus;
use std::collections::VecDeque;

/// Fraction of the budget that is added for sessions with short replies.
const SHORT_PART: usize = 8;

/// Usage of the budget by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Replies in memory, bytes.
    pub(crate) ready_bytes: usize,
    /// The part of `ready_bytes` behind a reply that is not known yet.
    pub(crate) blocked_bytes: usize,
    /// Expected replies of reads in flight, bytes, estimated.
    pub(crate) reserved_bytes: usize,
    /// The part of `reserved_bytes` that has arrived.
    pub(crate) partial_bytes: usize,
}

impl Usage {
    pub(crate) const fn sum(self) -> usize {
        self.ready_bytes + self.reserved_bytes
    }
}

/// The reply budget of a shard.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    bytes_max: usize,
    /// Usage of all sessions.
    usage: Usage,
    /// The part of `usage` by sessions with short replies.
    short_bytes: usize,
    ready_bytes_peak: usize,
    /// Queued sessions, which hold no replies.
    waiting: VecDeque<SessionId>,
}

impl ReplyBudget {
    pub(super) fn new(bytes_max: usize) -> Self {
        assert!(bytes_max > 0, "a budget of 0 would admit no reply");
        Self { bytes_max, usage: Usage::default(), short_bytes: 0, ready_bytes_peak: 0, waiting: VecDeque::new() }
    }

    pub(crate) fn status(&self) -> RepliesStatus {
        let Usage { ready_bytes: held_bytes, reserved_bytes: expected_bytes, .. } = self.usage;
        let (held_bytes_peak, waiting) = (self.ready_bytes_peak, self.waiting.len());
        RepliesStatus { held_bytes, held_bytes_peak, reserved_bytes: expected_bytes, waiting }
    }

    /// Stores the budget that the other sessions leave to this one. Call before the session consumes input.
    #[inline]
    pub(super) fn share_with(&self, session: &mut Session) {
        session.budget_left_bytes = self.left_bytes(session);
    }

    /// The budget that the other sessions leave to this one, bytes.
    #[inline]
    fn left_bytes(&self, session: &Session) -> usize {
        let others_bytes = self.usage.sum() - session.usage.sum();
        let left_bytes = self.bytes_max.saturating_sub(others_bytes);
        if !session.replies.are_short() {
            return left_bytes;
        }
        // Long replies, of which one may exceed the budget, do not use this part.
        let others_bytes = self.short_bytes - session.usage_short_bytes;
        left_bytes.max((self.bytes_max / SHORT_PART).saturating_sub(others_bytes))
    }

    /// Whether the budget admits a reply of this waiting session.
    pub(super) fn has_capacity_for(&self, session: &Session) -> bool {
        self.left_bytes(session) > 0
    }

    /// Whether a reply that has arrived for the slot may stay; if not, it is requested again. Estimates may
    /// be wrong, and with many reads in flight by far; here the length is known.
    ///
    /// Replies that wait behind others may fill half of the budget only, and ready ones leave with the clients or
    /// their time-outs. Hence some session's next in-order reply always eventually fits: no deadlock. `promised_bytes`:
    /// reserved for other repeated reads.
    pub(crate) fn admits(&self, session: &Session, slot: u64, bytes: usize, promised_bytes: usize) -> bool {
        let (held_bytes, behind_bytes) = (self.usage.ready_bytes + promised_bytes, self.usage.blocked_bytes);
        if session.replies.is_first(slot) {
            return held_bytes == behind_bytes || held_bytes + bytes <= self.bytes_max;
        }
        let behind_bytes = behind_bytes + promised_bytes;
        let own_bytes = session.replies.usage().blocked_bytes;
        let is_own_bound = own_bytes > 0 && own_bytes + bytes > session.output_bytes_max;
        !is_own_bound && behind_bytes + bytes <= self.bytes_max / 2 && held_bytes + bytes <= self.bytes_max
    }

    /// Whether an arrived part of a reply may stay. It cannot be requested again alone.
    pub(crate) fn admits_partial(&self, bytes: usize) -> bool {
        // Only replies in memory count: an estimate must refuse nothing.
        self.usage.ready_bytes + self.usage.partial_bytes + bytes <= 2 * self.bytes_max
    }

    /// Updates the usage of a session.
    #[inline]
    pub(crate) fn update(&mut self, session: &mut Session) {
        self.set_usage(session, session.replies.usage());
    }

    #[inline]
    fn set_usage(&mut self, session: &mut Session, usage: Usage) {
        let before = std::mem::replace(&mut session.usage, usage);
        self.usage.ready_bytes = self.usage.ready_bytes + usage.ready_bytes - before.ready_bytes;
        self.usage.blocked_bytes = self.usage.blocked_bytes + usage.blocked_bytes - before.blocked_bytes;
        self.usage.partial_bytes = self.usage.partial_bytes + usage.partial_bytes - before.partial_bytes;
        self.usage.reserved_bytes = self.usage.reserved_bytes + usage.reserved_bytes - before.reserved_bytes;
        let short_bytes = if session.replies.are_short() { usage.sum() } else { 0 };
        self.short_bytes += short_bytes;
        self.short_bytes -= std::mem::replace(&mut session.usage_short_bytes, short_bytes);
        self.ready_bytes_peak = self.ready_bytes_peak.max(self.usage.ready_bytes);
    }

    /// Releases the usage of an ended session.
    pub(super) fn leave(&mut self, session: &mut Session) {
        self.set_usage(session, Usage::default());
    }

    /// Queues a session that has no pending request.
    pub(super) fn queue(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.waits_for_budget, true) {
            self.waiting.push_back(session.id);
        }
    }

    /// The first session of the queue.
    pub(super) fn first(&self) -> Option<SessionId> {
        self.waiting.front().copied()
    }

    /// Whether the first queued session (`None` if it has ended) may continue; it then has left the queue.
    pub(super) fn admit(&mut self, session: Option<&mut Session>, outputs: &mut VecDeque<ShardOutput>) -> bool {
        let Some(session) = session else {
            self.waiting.pop_front();
            return true;
        };
        assert_eq!(self.first(), Some(session.id), "only the first queued session is admitted");
        if !self.has_capacity_for(session) {
            return false;
        }
        self.waiting.pop_front();
        session.waits_for_budget = false;
        session.stalled = session.stalled.filter(|stall| *stall != Stall::ReplyBudget);
        if session.phase == SessionPhase::Open {
            // Its share is reserved until its input arrives: later sessions must not get the same budget.
            let usage = session.replies.usage();
            let expected_bytes = usage.reserved_bytes + session.replies.estimate_bytes();
            self.set_usage(session, Usage { reserved_bytes: expected_bytes, ..usage });
            outputs.push_back(ShardOutput::Resume(session.id));
        }
        true
    }
}

//! Reply budget of a shard: grants of known sizes, a FIFO of waiting sessions and reads, accounting.
//!
//! A reply is granted when its length is known, before it is copied or read from flash. With a limit of B bytes:
//! - Below B/2 every reply is granted.
//! - From B/2 on, only the *next* reply of a session is granted: no other reply of the session is unread.
//! - From B on, one session at a time may exceed the limit. Short replies have B/8 of their own.
//!
//! Replies behind an unfinished reply of their session thus use at most B/2. Each byte above belongs to a next reply,
//! which leaves with its client or the client's time-out. The peak is 9/8 B and one reply.
use super::Stall;
use super::{Session, SessionPhase};
use crate::output::ShardOutput;
use crate::request::SessionId;
use crate::status::RepliesStatus;
use fawn_types::KeyHash;
use slab::Slab;
use std::collections::VecDeque;

/// Fraction of the limit that is added for sessions with one short reply.
const SHORT_PART: usize = 8;
/// Maximum length of a short reply.
const SHORT_BYTES: usize = 16 << 10;

/// Usage of the budget by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Replies in memory, bytes.
    pub(crate) ready_bytes: usize,
    /// Granted replies that are not in memory yet, bytes.
    pub(crate) reserved_bytes: usize,
}

impl Usage {
    pub(crate) const fn sum(self) -> usize {
        self.ready_bytes + self.reserved_bytes
    }
}

// Grant of a read by another shard, before the length of its value is known: this fraction of what any reply may use,
// within these bounds.
const FIRST_GRANT_PART: usize = 4096;
const FIRST_GRANT_BYTES_MIN: usize = 512;
const FIRST_GRANT_BYTES_MAX: usize = 64 << 10;

/// Sizes that one visit of a session may use without asking the budget again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Allowance {
    /// All replies together.
    any_bytes: usize,
    /// The next reply.
    next_bytes: usize,
    /// The next reply if it is short.
    short_bytes: usize,
}

/// Budget state of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionGrants {
    usage: Usage,
    /// The part of `usage` that counts as short.
    short_bytes: usize,
    is_short: bool,
    allowance: Allowance,
    /// Size of the reply that was not granted.
    wanted_bytes: usize,
    /// Granted from the queue, until the session's input is offered again.
    granted_bytes: usize,
    is_queued: bool,
    /// Number of its next reply.
    next_slot: u64,
    bytes_max: usize,
}

impl SessionGrants {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }
}

impl Session {
    /// Whether a reply of this length is granted; if not, the session stalls before anything is copied or read.
    #[inline]
    pub(crate) fn grant(&mut self, bytes: usize) -> bool {
        if bytes <= self.grants.allowance.any_bytes {
            self.grants.allowance.any_bytes -= bytes;
            return true;
        }
        self.grant_next(bytes)
    }

    #[cold]
    fn grant_next(&mut self, bytes: usize) -> bool {
        self.grants.wanted_bytes = bytes;
        let Allowance { next_bytes, short_bytes, .. } = self.grants.allowance;
        if bytes > next_bytes.max(short_bytes) || !self.replies.is_clear() {
            return false;
        }
        self.grants.is_short |= bytes > next_bytes;
        self.grants.allowance = Allowance::default();
        true
    }

    /// The longest reply that is granted without [`Session::grant`].
    #[inline]
    pub(crate) const fn allowed_bytes(&self) -> usize {
        self.grants.allowance.any_bytes
    }

    /// First grant of a read at another shard.
    #[inline]
    pub(crate) fn first_grant_bytes(&self) -> usize {
        first_grant_bytes(self.grants.allowance.any_bytes)
    }

    /// A reply of this length was added.
    #[inline]
    pub(crate) const fn use_allowance(&mut self, bytes: usize) {
        self.grants.allowance.any_bytes = self.grants.allowance.any_bytes.saturating_sub(bytes);
    }

    /// Whether the reply that was not granted is granted now. Queued sessions are resumed by the queue.
    pub(crate) fn may_ask_again(&self) -> bool {
        !self.grants.is_queued && self.grants.wanted_bytes <= self.grants.allowance.any_bytes
    }

    pub(crate) const fn is_queued_for_budget(&self) -> bool {
        self.grants.is_queued
    }
}

fn first_grant_bytes(any_bytes: usize) -> usize {
    (any_bytes / FIRST_GRANT_PART).clamp(FIRST_GRANT_BYTES_MIN, FIRST_GRANT_BYTES_MAX)
}

/// A request that waits with its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UngrantedRequest {
    /// The first in its session's queue on this key.
    InQueue(KeyHash),
    /// Items of this request on several keys.
    Multi(usize),
}

/// A session whose input waits, or a request that waits with its slot.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    session: SessionId,
    slot: Option<(u64, UngrantedRequest)>,
    bytes: usize,
}

/// The reply budget of a shard.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    bytes_max: usize,
    /// Usage of all sessions.
    usage: Usage,
    /// The part of `usage` by sessions that were granted one short reply.
    short_bytes: usize,
    /// The session whose reply exceeds the limit, until that reply has left. [`SessionId::NONE`]: it has ended, and
    /// grants of ended sessions are left.
    exceeding: Option<SessionId>,
    ready_bytes_peak: usize,
    /// The part of `usage` that is granted to requests of ended sessions.
    ended_bytes: usize,
    waiting: VecDeque<Waiter>,
    /// Usage fell, or a waiter came, since the queue was last served.
    is_due: bool,
    /// Waiting requests that were granted, or whose session ended, until the shard continues them.
    pub(crate) granted: Vec<(SessionId, UngrantedRequest)>,
    /// A session ended since the queue was last served.
    has_ended: bool,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Self {
        assert!(bytes_max > 0, "a budget of 0 would admit no reply");
        Self { bytes_max, ..Self::default() }
    }

    pub(crate) fn status(&self) -> RepliesStatus {
        let Usage { ready_bytes, reserved_bytes, .. } = self.usage;
        let (held_bytes_peak, waiting) = (self.ready_bytes_peak, self.waiting.len());
        RepliesStatus { held_bytes: ready_bytes, held_bytes_peak, reserved_bytes, waiting }
    }

    /// Whether the next iteration can grant something. An ended session freed bytes also for sessions that keep replies:
    /// these are in no queue.
    pub(crate) fn has_due_work(&self) -> bool {
        self.has_ended || !self.granted.is_empty() || self.is_due && !self.waiting.is_empty()
    }

    /// Usage without the part for short replies.
    const fn long_bytes(&self) -> usize {
        self.usage.sum() - self.short_bytes
    }

    /// Stores the session's allowance. Call before the session consumes input.
    #[inline]
    pub(super) fn share_with(&self, session: &mut Session) {
        let granted_bytes = std::mem::take(&mut session.grants.granted_bytes);
        let next_bytes = match self.waiting.is_empty() {
            true if self.exceeding.is_none() => usize::MAX,
            true => self.bytes_max.saturating_sub(self.long_bytes()),
            // Queued sessions come first.
            false => 0,
        };
        session.grants.allowance = Allowance {
            any_bytes: (self.bytes_max / 2).saturating_sub(self.usage.sum() - granted_bytes),
            next_bytes: next_bytes.max(granted_bytes),
            short_bytes: self.short_left_bytes(),
        };
    }

    /// First grant of a read at another shard, without a session's allowance.
    pub(crate) fn first_grant_bytes(&self) -> usize {
        first_grant_bytes((self.bytes_max / 2).saturating_sub(self.usage.sum()))
    }

    #[inline]
    fn short_left_bytes(&self) -> usize {
        (self.bytes_max / SHORT_PART).saturating_sub(self.short_bytes).min(SHORT_BYTES)
    }

    /// Grants a slot at least `bytes`, unless the limits or the queue forbid it.
    pub(crate) fn grant(&mut self, session: &mut Session, slot: u64, bytes: usize) -> bool {
        let has_precedence = self.waiting.is_empty();
        self.grant_slot(session, slot, bytes, has_precedence)
    }

    fn grant_slot(&mut self, session: &mut Session, slot: u64, bytes: usize, has_precedence: bool) -> bool {
        let own_bytes = session.replies.reserved_bytes(slot);
        if own_bytes >= bytes {
            return true;
        }
        let more_bytes = bytes - own_bytes;
        let others_bytes = session.grants.usage.sum() - own_bytes;
        let is_within_own = others_bytes == 0 || others_bytes + bytes <= session.grants.bytes_max;
        let is_within_half = is_within_own && self.usage.sum() + more_bytes <= self.bytes_max / 2;
        let is_granted =
            is_within_half || session.replies.is_next(slot) && self.grant_next(session, more_bytes, has_precedence);
        if is_granted {
            session.replies.set_reserved(slot, bytes);
            self.update(session);
        }
        is_granted
    }

    /// Whether the session's next reply may use that many more bytes.
    fn grant_next(&self, session: &mut Session, bytes: usize, has_precedence: bool) -> bool {
        // Parts of the reply that exceeds the limit: all others wait for its end.
        if self.exceeding == Some(session.id) {
            return true;
        }
        if has_precedence && (self.exceeding.is_none() || self.long_bytes() + bytes <= self.bytes_max) {
            return true;
        }
        let is_short = session.grants.usage.sum() == 0 && bytes <= self.short_left_bytes();
        session.grants.is_short |= is_short;
        is_short
    }

    /// Queues a request that needs a larger grant and keeps what its slot has.
    pub(crate) fn queue_slot(&mut self, session: &Session, slot: u64, request: UngrantedRequest, bytes: usize) {
        self.push(Waiter { session: session.id, slot: Some((slot, request)), bytes });
    }

    /// Queues a session without replies.
    pub(super) fn queue(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.grants.is_queued, true) {
            self.push(Waiter { session: session.id, slot: None, bytes: session.grants.wanted_bytes });
        }
    }

    fn push(&mut self, waiter: Waiter) {
        self.waiting.push_back(waiter);
        self.is_due = true;
    }

    /// Updates the usage of a session.
    #[inline]
    pub(crate) fn update(&mut self, session: &mut Session) {
        let mut usage = session.replies.usage();
        usage.reserved_bytes += session.grants.granted_bytes;
        // A session's next reply may be granted more, also if the one before it freed nothing: it had no bytes.
        let next_slot = session.replies.next_slot();
        self.is_due |= std::mem::replace(&mut session.grants.next_slot, next_slot) != next_slot;
        self.set_usage(session, usage);
    }

    #[inline]
    fn set_usage(&mut self, session: &mut Session, usage: Usage) {
        let before = std::mem::replace(&mut session.grants.usage, usage);
        self.usage.ready_bytes = self.usage.ready_bytes + usage.ready_bytes - before.ready_bytes;
        self.usage.reserved_bytes = self.usage.reserved_bytes + usage.reserved_bytes - before.reserved_bytes;
        self.is_due |= usage.sum() < before.sum();
        // A short reply that was granted more is like any other: it may be the one that exceeds the limit.
        session.grants.is_short &= usage.sum() > 0 && (before.sum() == 0 || usage.sum() <= before.sum());
        let short_bytes = if session.grants.is_short { usage.sum() } else { 0 };
        self.short_bytes += short_bytes;
        self.short_bytes -= std::mem::replace(&mut session.grants.short_bytes, short_bytes);
        self.ready_bytes_peak = self.ready_bytes_peak.max(self.usage.ready_bytes);
        if self.long_bytes() <= self.bytes_max {
            self.exceeding = None;
        } else if self.exceeding.is_none_or(|id| id == session.id) {
            // A session that waits for a grant itself must not keep others from theirs.
            let is_held = usage.sum() > 0 && !session.replies.waits_for_grant();
            let exceeding = is_held.then_some(session.id);
            // It may wait behind others in the queue.
            self.is_due |= self.exceeding != exceeding;
            self.exceeding = exceeding;
        }
    }

    /// Releases the usage of an ended session, except `outstanding_bytes`: until the replies arrive, these are in the
    /// memory of other shards.
    pub(super) fn leave(&mut self, session: &mut Session, outstanding_bytes: usize) {
        let was_exceeding = self.exceeding == Some(session.id);
        self.usage.reserved_bytes += outstanding_bytes;
        self.ended_bytes += outstanding_bytes;
        self.set_usage(session, Usage::default());
        if was_exceeding && self.long_bytes() > self.bytes_max && self.ended_bytes > 0 {
            self.exceeding = Some(SessionId::NONE);
        }
        (self.is_due, self.has_ended) = (true, true);
    }

    /// A reply to an ended session has arrived.
    pub(crate) fn release(&mut self, outstanding_bytes: usize) {
        self.usage.reserved_bytes -= outstanding_bytes;
        self.ended_bytes -= outstanding_bytes;
        self.is_due = true;
        // Without replies to come, an ended session frees nothing: a running one above the limit would wait for ever.
        let is_over = self.ended_bytes == 0 && self.exceeding == Some(SessionId::NONE);
        if is_over || self.long_bytes() <= self.bytes_max {
            self.exceeding = None;
        }
    }

    /// Grants in order of arrival, as far as the limits allow.
    pub(super) fn serve(&mut self, sessions: &mut Slab<Session>, outputs: &mut VecDeque<ShardOutput>) {
        if !std::mem::replace(&mut self.is_due, false) {
            return;
        }
        if std::mem::take(&mut self.has_ended) {
            self.end_waiting(sessions);
        }
        self.serve_exceeding(sessions, outputs);
        let (mut has_precedence, mut kept) = (true, Vec::new());
        while (has_precedence || self.usage.sum() < self.bytes_max / 2)
            && let Some(waiter) = self.waiting.pop_front()
        {
            let id = waiter.session;
            let session = sessions.get_mut(id.index()).filter(|session| session.id == id);
            let Some(session) = session else { continue };
            if !self.serve_one(session, waiter, has_precedence, outputs) {
                // A next reply that waits has precedence over later ones; other replies wait for their turn anyway.
                has_precedence &= waiter.slot.is_some_and(|(slot, _)| !session.replies.is_next(slot));
                kept.push(waiter);
            }
        }
        kept.into_iter().rev().for_each(|waiter| self.waiting.push_front(waiter));
    }

    /// Removes the waiters of ended sessions: their requests continue without a grant.
    fn end_waiting(&mut self, sessions: &Slab<Session>) {
        let Self { waiting, granted, .. } = self;
        waiting.retain(|waiter| {
            let id = waiter.session;
            let is_open = sessions.get(id.index()).is_some_and(|session| session.id == id);
            granted.extend(waiter.slot.filter(|_| !is_open).map(|(_, request)| (id, request)));
            is_open
        });
    }

    /// Grants to the session that exceeds the limit, wherever it waits: all others wait for its end.
    fn serve_exceeding(&mut self, sessions: &mut Slab<Session>, outputs: &mut VecDeque<ShardOutput>) {
        let Some(id) = self.exceeding else { return };
        let Some(session) = sessions.get_mut(id.index()).filter(|session| session.id == id) else { return };
        let is_of_session = |waiter: &Waiter| waiter.session == id;
        let of_session: Vec<Waiter> = self.waiting.iter().copied().filter(is_of_session).collect();
        for waiter in of_session {
            if self.serve_one(session, waiter, false, outputs) {
                self.waiting.retain(|other| (other.session, other.slot) != (id, waiter.slot));
            }
        }
    }

    fn serve_one(
        &mut self,
        session: &mut Session,
        Waiter { slot, bytes, .. }: Waiter,
        has_precedence: bool,
        outputs: &mut VecDeque<ShardOutput>,
    ) -> bool {
        if let Some((slot, request)) = slot {
            let is_granted = self.grant_slot(session, slot, bytes, has_precedence);
            self.granted.extend(is_granted.then_some((session.id, request)));
            return is_granted;
        }
        let is_open = session.phase == SessionPhase::Open;
        if is_open && self.usage.sum() + bytes > self.bytes_max / 2 && !self.grant_next(session, bytes, has_precedence)
        {
            return false;
        }
        session.grants.is_queued = false;
        session.stalled = session.stalled.filter(|stall| *stall != Stall::ReplyBudget);
        if is_open {
            // Reserved until its input is offered again: later sessions must not get the same bytes.
            session.grants.granted_bytes = bytes;
            self.update(session);
            outputs.push_back(ShardOutput::Resume(session.id));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ShardOptions;
    use fawn_wire::Protocol;

    fn session(serial: u64) -> Session {
        Session::new(SessionId::new(serial as u32, serial), Protocol::Resp, &ShardOptions::default())
    }

    /// The reply of `INFO` is not granted, so its session may be above the limit while another one exceeds it.
    #[test]
    fn an_ended_session_without_replies_to_come_delays_no_other() {
        let mut budget = Budget::new(1_000);
        let (mut ended, mut unread, mut next) = (session(1), session(2), session(3));
        let slot = ended.replies.reserve(0);
        assert!(budget.grant(&mut ended, slot, 2_000), "one session at a time exceeds the limit");
        unread.replies.respond(|out| out.resize(1_500, b'i'));
        budget.update(&mut unread);
        budget.leave(&mut ended, 2_000);
        let slot = next.replies.reserve(0);
        assert!(!budget.grant(&mut next, slot, 800), "both replies of the ended session are to come");
        budget.release(700);
        assert!(!budget.grant(&mut next, slot, 800), "one is to come");
        budget.release(1_300);
        assert!(budget.grant(&mut next, slot, 800), "nothing is freed before the unread reply leaves");
    }

    /// Others of its requests may wait behind those of other sessions.
    #[test]
    fn a_session_that_comes_to_exceed_the_limit_makes_the_queue_due() {
        let mut budget = Budget::new(1_000);
        let (mut unread, waiting) = (session(1), session(2));
        budget.queue_slot(&waiting, 0, UngrantedRequest::Multi(0), 500);
        budget.is_due = false;
        unread.replies.respond(|out| out.resize(900, b'i'));
        budget.update(&mut unread);
        assert!(!budget.has_due_work(), "it has only taken");
        unread.replies.respond(|out| out.resize(1_500, b'i'));
        budget.update(&mut unread);
        assert!(budget.has_due_work());
    }

    /// One reply may be longer than all that a session may otherwise keep, also behind a reply that has no bytes yet.
    #[test]
    fn a_lone_reply_may_exceed_the_bound_of_its_session() {
        let bytes_max = ShardOptions::default().session_output_bytes_max;
        let (mut budget, mut lone) = (Budget::new(8 * bytes_max), session(1));
        let slots = [0, 0].map(|bytes| lone.replies.reserve(bytes));
        assert!(budget.grant(&mut lone, slots[1], bytes_max + 1));
    }

    /// A read at another shard begins with a short grant and asks for more once the length of its value is known.
    #[test]
    fn a_short_reply_that_grows_may_be_the_one_that_exceeds_the_limit() {
        let mut budget = Budget::new(8_000);
        let (mut unread, mut short, mut next) = (session(1), session(2), session(3));
        let slot = unread.replies.reserve(0);
        assert!(budget.grant(&mut unread, slot, 9_000));
        let slot = short.replies.reserve(0);
        assert!(budget.grant(&mut short, slot, 1_000), "an eighth is for short replies");
        let unread_slot = unread.replies.next_slot();
        unread.replies.set_reserved(unread_slot, 7_000);
        budget.update(&mut unread);
        assert!(budget.grant(&mut short, slot, 30_000), "no other exceeds the limit");
        let slot = next.replies.reserve(0);
        assert!(!budget.grant(&mut next, slot, 2_000), "one does");
    }

    #[test]
    fn only_short_replies_pass_those_that_wait() {
        let (mut budget, mut unread, mut next) = (Budget::new(1 << 20), session(1), session(2));
        unread.replies.respond(|out| out.resize(600 << 10, b'i'));
        budget.update(&mut unread);
        budget.queue_slot(&unread, 0, UngrantedRequest::Multi(0), 500 << 10);
        let slot = next.replies.reserve(0);
        assert!(!budget.grant(&mut next, slot, SHORT_BYTES + 1));
        assert!(budget.grant(&mut next, slot, SHORT_BYTES));
    }
}

//! Admission control for large requests: admits, queues, and drops slow senders under memory pressure.
//!
//! A large request is admitted when the budget covers all of it, or when no other is admitted: then it may exceed the
//! budget. Its memory is reserved at once, so an admitted request never runs out of budget half way. Other requests
//! wait in order, unread. A connection is closed only if it sends too slowly in the middle of a request while other
//! connections are queued.
use super::conn::ConnPhase;
use super::event_loop::EventLoop;
use super::limits::{READ_BYTES, SLOW_SENDER_BYTES_MIN, SLOW_SENDER_TIMEOUT};
use fawn_node::ClientService;
use std::collections::VecDeque;
use std::time::Instant;

/// Requests up to this length need no admission.
const SHORT_BYTES: usize = 16 << 10;

/// Queue of waiting connections, and the admitted ones.
#[derive(Debug, Default)]
pub(super) struct AdmissionControl {
    /// Slots of open connections: each leaves the queue when it ends.
    pub(super) queue: VecDeque<usize>,
    admitted: usize,
    /// Time of the next check for slow senders.
    pub(super) check_at: Option<Instant>,
}

impl AdmissionControl {
    /// Maximum bytes to read from a connection without buffered input. It is small while others wait, because the start
    /// of a large request is kept in memory until the request's turn, too.
    pub(super) fn first_read_bytes(&self) -> usize {
        if self.queue.is_empty() { READ_BYTES } else { SHORT_BYTES }
    }
}

impl<S: ClientService> EventLoop<S> {
    /// Whether a connection in the middle of a request may receive more of it; if not, it is queued.
    pub(super) fn may_receive(&mut self, slot: usize) -> bool {
        if self.conns[slot].flags.admitted {
            // The length is parsed again here: more of the request may have arrived.
            self.reserve(slot);
            return true;
        }
        if self.wanted_bytes(slot) <= SHORT_BYTES {
            return true;
        }
        if self.admission.queue.is_empty() && self.has_input_budget(slot) {
            self.admit(slot);
            return true;
        }
        let conn = &mut self.conns[slot];
        if !std::mem::replace(&mut conn.flags.awaits_admission, true) {
            self.admission.queue.push_back(slot);
            self.admission.check_at.get_or_insert(self.instant + SLOW_SENDER_TIMEOUT);
        }
        false
    }

    /// Admits waiting connections while the budget lasts.
    pub(super) fn admit_waiting(&mut self) {
        while let Some(&slot) = self.admission.queue.front() {
            // A connection whose last reply is being sent has no more requests.
            if self.conns.get(slot).is_some_and(|conn| conn.phase == ConnPhase::Open) {
                if !self.has_input_budget(slot) {
                    return;
                }
                self.conns[slot].flags.awaits_admission = false;
                self.admit(slot);
                self.schedule_read(slot);
            }
            self.admission.queue.pop_front();
        }
        self.admission.check_at = None;
    }

    /// Removes a connection that has ended.
    pub(super) fn leave_admission(&mut self, slot: usize) {
        self.end_admission(slot);
        if std::mem::take(&mut self.conns[slot].flags.awaits_admission) {
            self.admission.queue.retain(|waiting| *waiting != slot);
        }
    }

    /// Ends the admission of a connection whose request is complete or never will be.
    pub(super) fn end_admission(&mut self, slot: usize) {
        let conn = &mut self.conns[slot];
        if std::mem::replace(&mut conn.flags.admitted, false) {
            self.admission.admitted -= 1;
            if !self.admission.queue.is_empty() {
                // Release the buffer for the next request's reservation.
                conn.input_buf.shrink_to_fit();
            }
        }
    }

    /// Drops admitted connections that have sent almost nothing for a while, if others wait.
    pub(super) fn drop_slow_senders(&mut self) {
        if self.admission.check_at.is_none_or(|at| at > self.instant) {
            return;
        }
        self.admission.check_at = Some(self.instant + SLOW_SENDER_TIMEOUT);
        let mut slow_senders = Vec::new();
        for (slot, conn) in &mut self.conns {
            let received = std::mem::take(&mut conn.received_bytes);
            // The client cannot speed up input that waits for the shard, or for being read.
            let is_owed = conn.flags.admitted && !conn.flags.paused && !conn.flags.readable;
            if is_owed && received < SLOW_SENDER_BYTES_MIN {
                slow_senders.push((slot, received));
            }
        }
        for (slot, received) in slow_senders {
            let (bytes, timeout) = (self.conns[slot].input_buf.len(), SLOW_SENDER_TIMEOUT);
            tracing::warn!(
                bytes,
                received,
                ?timeout,
                "closed a slow sender: other connections wait for the memory of its request"
            );
            self.counters.dropped += 1;
            self.drop_conn(slot);
        }
        self.admit_waiting();
    }

    /// Total length of the connection's request once it can be decoded, as far as it is known.
    fn wanted_bytes(&self, slot: usize) -> usize {
        let conn = &self.conns[slot];
        self.shard.need_bytes(conn.session).max(conn.input_buf.len() + 1)
    }

    fn has_input_budget(&self, slot: usize) -> bool {
        let extra_bytes = self.wanted_bytes(slot).saturating_sub(self.conns[slot].input_buf.capacity());
        let held_bytes = self.counters.input_held_bytes;
        self.admission.admitted == 0 || held_bytes + extra_bytes as u64 <= self.limits.input_bytes_max as u64
    }

    fn admit(&mut self, slot: usize) {
        self.admission.admitted += 1;
        let conn = &mut self.conns[slot];
        conn.flags.admitted = true;
        // A newly admitted connection gets a full period.
        conn.received_bytes = SLOW_SENDER_BYTES_MIN;
        self.reserve(slot);
    }

    /// Reserves the request's memory at once: doubling would take up to twice as much.
    fn reserve(&mut self, slot: usize) {
        // The last read may include the start of the next request.
        let bytes = self.wanted_bytes(slot) + READ_BYTES;
        let input_buf = &mut self.conns[slot].input_buf;
        let before = input_buf.capacity();
        if before < bytes - READ_BYTES {
            input_buf.reserve_exact(bytes - input_buf.len());
            self.counters.input_held_bytes += (input_buf.capacity() - before) as u64;
        }
    }
}

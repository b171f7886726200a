//! Owns the room for requests that are still coming in: who receives on, who waits in line, and whom others outwait.
//!
//! A long request is admitted when the room for all of it is free, or when none is admitted: then it may exceed the
//! room by itself. Its memory is taken at once, so that what is admitted is never short of room half way. The others
//! wait in line, unread, and are called in their order; nobody is cut off for what others hold, only who dawdles in the
//! middle of a request while others wait.
use super::backing::Backing;
use super::conn::Phase;
use super::limits::{INPUT_PATIENCE, INPUT_PATIENCE_BYTES, READ_BYTES};
use super::turn::Turn;
use std::collections::VecDeque;
use std::time::Instant;

/// Requests up to this need no admission.
const SHORT_BYTES: usize = 16 << 10;

/// The line, and how many are past it.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Slots and serials of connections that wait for room.
    line: VecDeque<(usize, u64)>,
    /// Connections whose request has its room.
    admitted: usize,
    /// When those are looked through for dawdlers.
    check_at: Option<Instant>,
}

impl Intake {
    /// Connections that wait.
    pub(super) fn waiting(&self) -> usize {
        self.line.len()
    }

    pub(super) const fn next_due(&self) -> Option<Instant> {
        self.check_at
    }

    /// How much is read of a connection of which nothing is held. While others wait it is little: what turns out to be
    /// the start of a long request is kept until its turn, too.
    pub(super) fn first_read_bytes(&self) -> usize {
        if self.line.is_empty() { READ_BYTES } else { SHORT_BYTES }
    }
}

impl<B: Backing> Turn<B> {
    /// Whether a connection in the middle of a request may receive more of it; if not, it stands in line.
    pub(super) fn may_receive(&mut self, slot: usize) -> bool {
        if self.conns[slot].flags.admitted {
            // Only now may more be known of how long it is.
            self.reserve(slot);
            return true;
        }
        if self.wanted_bytes(slot) <= SHORT_BYTES {
            return true;
        }
        if self.intake.line.is_empty() && self.has_input_room(slot) {
            self.admit(slot);
            return true;
        }
        let conn = &mut self.conns[slot];
        if !std::mem::replace(&mut conn.flags.waits, true) {
            self.intake.line.push_back((slot, conn.serial));
            self.intake.check_at.get_or_insert(self.instant + INPUT_PATIENCE);
        }
        false
    }

    /// Calls those in line for whom there is room now.
    pub(super) fn call_waiting(&mut self) {
        while let Some(&(slot, serial)) = self.intake.line.front() {
            // One whose last reply is on its way asks for nothing any more.
            if self.conns.get(slot).is_some_and(|conn| conn.serial == serial && conn.phase == Phase::Open) {
                if !self.has_input_room(slot) {
                    return;
                }
                self.conns[slot].flags.waits = false;
                self.admit(slot);
                self.list(slot);
            }
            self.intake.line.pop_front();
        }
        self.intake.check_at = None;
    }

    /// The connection is over.
    pub(super) fn leave_intake(&mut self, slot: usize) {
        self.end_intake(slot);
        let conn = &mut self.conns[slot];
        if std::mem::take(&mut conn.flags.waits) {
            let serial = conn.serial;
            self.intake.line.retain(|waiting| waiting.1 != serial);
        }
    }

    /// A request of the connection is complete, or will never be: the next is admitted anew.
    pub(super) fn end_intake(&mut self, slot: usize) {
        let conn = &mut self.conns[slot];
        if std::mem::replace(&mut conn.flags.admitted, false) {
            self.intake.admitted -= 1;
            if !self.intake.line.is_empty() {
                // Its memory is somebody else's turn.
                conn.rest.shrink_to_fit();
            }
        }
    }

    /// Drops who has sent next to nothing of a long request for a while, if others wait for its room.
    pub(super) fn expire_intake(&mut self) {
        if self.intake.check_at.is_none_or(|at| at > self.instant) {
            return;
        }
        self.intake.check_at = Some(self.instant + INPUT_PATIENCE);
        let mut dawdlers = Vec::new();
        for (slot, conn) in &mut self.conns {
            let received = std::mem::take(&mut conn.received_bytes);
            // What waits for the shard, or to be read, is not for the client to hurry up.
            let is_owed = conn.flags.admitted && !conn.flags.paused && !conn.flags.readable;
            if is_owed && received < INPUT_PATIENCE_BYTES {
                dawdlers.push((slot, received));
            }
        }
        for (slot, received) in dawdlers {
            let (bytes, patience) = (self.conns[slot].rest.len(), INPUT_PATIENCE);
            tracing::warn!(
                bytes,
                received,
                ?patience,
                "a connection that dawdles in a request others wait for is closed"
            );
            self.counters.dropped += 1;
            self.drop_conn(slot);
        }
        self.call_waiting();
    }

    /// Bytes that the connection's request will have taken when it can be decoded, as far as anybody knows.
    fn wanted_bytes(&self, slot: usize) -> usize {
        let conn = &self.conns[slot];
        self.shard.need_bytes(conn.session).max(conn.rest.len() + 1)
    }

    fn has_input_room(&self, slot: usize) -> bool {
        let extra_bytes = self.wanted_bytes(slot).saturating_sub(self.conns[slot].rest.capacity());
        let held_bytes = self.counters.input_held_bytes;
        self.intake.admitted == 0 || held_bytes + extra_bytes as u64 <= self.limits.input_bytes_max as u64
    }

    fn admit(&mut self, slot: usize) {
        self.intake.admitted += 1;
        let conn = &mut self.conns[slot];
        conn.flags.admitted = true;
        // Until it has had its time it is no dawdler.
        conn.received_bytes = INPUT_PATIENCE_BYTES;
        self.reserve(slot);
    }

    /// Takes the memory for a request at once: growing by doubling would take twice as much.
    fn reserve(&mut self, slot: usize) {
        // The last read may bring what comes behind it.
        let bytes = self.wanted_bytes(slot) + READ_BYTES;
        let rest = &mut self.conns[slot].rest;
        let before = rest.capacity();
        if before < bytes - READ_BYTES {
            rest.reserve_exact(bytes - rest.len());
            self.counters.input_held_bytes += (rest.capacity() - before) as u64;
        }
    }
}

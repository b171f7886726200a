//! Owns one link down the chain: what was sent, what was received, its byte window. The log holds the records themselves.
use alloc::collections::VecDeque;
use fawn_types::{MonoMs, NodeId, TimeMs, Version};

/// Frames in flight on a link at most, whatever their size.
const FRAMES_MAX: usize = 256;

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkKind {
    /// The next serving member: gets all records, its acks count.
    Successor,
    /// Streams behind the tail: gets committed records only, is never awaited.
    Syncing,
    /// A member that is being made equal to this donor.
    Aligning,
}

/// Sender's side of a link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) to: NodeId,
    pub(super) kind: LinkKind,
    /// Records through here are in flight or received.
    pub(super) sent: Version,
    /// Received, as the peer said.
    pub(super) received: Version,
    in_flight: VecDeque<(Version, u32)>,
    in_flight_bytes: u32,
    /// A `SendRecords` is out and not answered.
    pub(super) replaying: bool,
    /// The watermark and time last told.
    pub(super) told: (Version, TimeMs),
    /// Last time the peer moved or was prodded.
    pub(super) moved_at: MonoMs,
    /// Silent intervals in a row: each doubles the next, up to a bound.
    pub(super) silent: u32,
    /// The furthest that was ever sent: a rewind takes `sent` back, not what the peer owes an answer for.
    furthest: Version,
    /// Since when the peer owes one.
    pub(super) owes_since: Option<MonoMs>,
}

impl Link {
    pub(super) fn new(to: NodeId, kind: LinkKind, after: Version, now: MonoMs) -> Self {
        Self {
            to,
            kind,
            sent: after,
            received: after,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            replaying: false,
            told: (Version::ZERO, TimeMs(0)),
            moved_at: now,
            silent: 0,
            furthest: after,
            owes_since: None,
        }
    }

    /// Bytes that may be sent now; 0: wait for acks.
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

    /// Something was sent that is answered at once by whoever lives.
    pub(super) fn note_asked(&mut self, now: MonoMs) {
        self.owes_since.get_or_insert(now);
    }

    /// The peer holds everything through `received`; old acks change nothing.
    pub(super) fn note_received(&mut self, received: Version, now: MonoMs) {
        // An ack that does not move where records are owed is no answer: a peer that keeps nothing may still speak.
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

    /// Sends again from `after`; a replay under way is disowned.
    pub(super) fn rewind(&mut self, after: Version, now: MonoMs) {
        self.sent = after;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        self.replaying = false;
        self.moved_at = now;
    }

    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }
}

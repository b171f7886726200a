//! Front-end routing: key to range to head or tail, retries, timeouts, operation IDs.
//!
//! A stale map is safe: a member of another epoch rejects the operation and sends its newer entry. The host keeps the
//! payloads, by [`OpId`], until the operation is complete.
use crate::map::{ClusterMap, RangeEntry};
use alloc::collections::{BTreeMap, VecDeque};
use fawn_types::{ClientTag, Epoch, MemberId, MonoMs, Now, RangeId, RingKey};

/// Identifies an operation of this front-end; dense from 1, and also its sequence number for exactly-once execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// The destination of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// A read: sent to the tail.
    Read,
    /// A write: sent to the head; the tail replies.
    Write,
}

/// Limits and intervals of a front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouterOptions {
    /// Maximum distance from a range's oldest unanswered operation to its newest: bounds the completions at back-ends.
    pub window_ops_max: u64,
    /// Maximum unanswered operations of all ranges. Each range may have at most as many as there are free, so any
    /// number of unresponsive ranges leaves capacity for the others.
    pub pending_ops_max: u64,
    /// Time without a reply after which an operation is sent again.
    pub retry_ms: u64,
    /// Time after which an operation fails; it may or may not have taken effect.
    pub timeout_ms: u64,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self { window_ops_max: 4096, pending_ops_max: 1 << 16, retry_ms: 200, timeout_ms: 5_000 }
    }
}

/// An effect of a front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterOutput {
    /// Send the operation's payload to `to` in a `Request` of this range and epoch.
    Send {
        /// The operation.
        op: OpId,
        /// The head or the tail.
        to: MemberId,
        /// The range that contains its key.
        range: RangeId,
        /// The epoch of the range in this front-end's map.
        epoch: Epoch,
        /// The same in every retry; none for reads.
        tag: ClientTag,
        /// All operations of this range below this one are answered.
        first_incomplete: u64,
    },
    /// The operation timed out: reply "unavailable" to the client; a write may or may not have taken effect.
    Failed {
        /// The operation.
        op: OpId,
    },
    /// The map has no active chain for the range: request the range's entry from the manager.
    RefreshMap {
        /// The range.
        range: RangeId,
    },
}

#[derive(Clone, Copy, Debug)]
struct PendingOperation {
    range: RangeId,
    key: RingKey,
    intent: Intent,
    retry_at: MonoMs,
    fails_at: MonoMs,
}

/// The operations of one range, from the oldest unanswered one on.
#[derive(Clone, Debug, Default)]
struct RangeWindow {
    /// In ascending order. The first operation is unanswered; later ones may be answered.
    ops: VecDeque<u64>,
    unanswered: u64,
}

/// The routing state of a front-end.
#[derive(Clone, Debug)]
pub struct Router {
    session: u64,
    options: RouterOptions,
    map: ClusterMap,
    next: u64,
    pending: BTreeMap<u64, PendingOperation>,
    /// One window per range, so that an unresponsive head fills only the window of its own range.
    windows: BTreeMap<RangeId, RangeWindow>,
    outputs: VecDeque<RouterOutput>,
}

impl Router {
    /// A front-end with any map of the cluster. `session` is unique in the cluster and is not reused after a restart.
    #[must_use]
    pub fn new(session: u64, options: RouterOptions, map: ClusterMap) -> Self {
        assert!(session != 0, "session 0 is no session");
        let (pending, windows, outputs) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { session, options, map, next: 1, pending, windows, outputs }
    }

    /// The current map.
    #[must_use]
    pub const fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Starts an operation. `None` if its range, or all ranges together, have too many unanswered operations: reply
    /// "overloaded".
    pub fn start(&mut self, now: Now, key: RingKey, intent: Intent) -> Option<OpId> {
        let range = self.map.range_of(&key)?.range;
        let room = self.options.pending_ops_max.saturating_sub(self.pending.len() as u64);
        let window = self.windows.entry(range).or_default();
        if window.ops.len() as u64 >= self.options.window_ops_max || window.unanswered >= room {
            return None;
        }
        let op = OpId(self.next);
        self.next += 1;
        window.ops.push_back(op.0);
        window.unanswered += 1;
        let fails_at = now.mono.plus_ms(self.options.timeout_ms);
        self.pending.insert(op.0, PendingOperation { range, key, intent, retry_at: now.mono, fails_at });
        self.send(now.mono, op);
        assert!(self.pending.len() as u64 <= self.options.pending_ops_max);
        Some(op)
    }

    /// Handles a reply. Returns whether the operation was still unanswered; otherwise the reply is a duplicate to drop.
    pub fn handle_reply(&mut self, op: OpId) -> bool {
        self.end(op.0)
    }

    /// Removes the operation from its window. Returns whether it was unanswered.
    fn end(&mut self, op: u64) -> bool {
        let Some(PendingOperation { range, .. }) = self.pending.remove(&op) else { return false };
        let Some(window) = self.windows.get_mut(&range) else { unreachable!("a pending operation is in a window") };
        window.unanswered -= 1;
        while let Some(first) = window.ops.front()
            && !self.pending.contains_key(first)
        {
            window.ops.pop_front();
        }
        true
    }

    /// Reassigns every pending operation to the range that now contains its key.
    fn rebuild_windows(&mut self) {
        self.windows.clear();
        for (op, pending) in &mut self.pending {
            if let Some(entry) = self.map.range_of(&pending.key) {
                pending.range = entry.range;
            }
            let window = self.windows.entry(pending.range).or_default();
            window.ops.push_back(*op);
            window.unanswered += 1;
        }
    }

    /// Handles a rejection, so the operation had no effect. The timer sends it again, or it is sent now if a newer
    /// entry is known.
    pub fn handle_refused(&mut self, now: Now, op: OpId) {
        if let Some(pending) = self.pending.get_mut(&op.0) {
            pending.retry_at = pending.retry_at.min(now.mono.plus_ms(self.options.retry_ms / 8));
        }
    }

    /// Handles an entry from any shard. If it is newer, operations of its range are sent again at once.
    pub fn handle_entry(&mut self, now: Now, entry: &RangeEntry) {
        let former_keys = self.map.range(entry.range).map(|held| held.keys);
        if !self.map.update(entry) {
            return;
        }
        if former_keys != Some(entry.keys) {
            self.rebuild_windows();
        }
        if !entry.is_active() {
            return;
        }
        let again: alloc::vec::Vec<OpId> = self
            .pending
            .iter()
            .filter(|(_, pending)| entry.keys.contains(&pending.key))
            .map(|(op, _)| OpId(*op))
            .collect();
        again.into_iter().for_each(|op| self.send(now.mono, op));
    }

    /// Sends unanswered operations again and fails those that timed out. O(operations in flight), which is bounded.
    pub fn handle_timeout(&mut self, now: Now) {
        let due: alloc::vec::Vec<(u64, bool)> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.retry_at.min(pending.fails_at) <= now.mono)
            .map(|(op, pending)| (*op, pending.fails_at <= now.mono))
            .collect();
        for (op, failed) in due {
            if failed {
                self.end(op);
                self.outputs.push_back(RouterOutput::Failed { op: OpId(op) });
            } else {
                self.send(now.mono, OpId(op));
            }
        }
    }

    /// The time of the next `handle_timeout`.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoMs> {
        self.pending.values().map(|pending| pending.retry_at.min(pending.fails_at)).min()
    }

    /// The next effect; poll until `None`.
    pub fn poll_output(&mut self) -> Option<RouterOutput> {
        self.outputs.pop_front()
    }

    /// The oldest unanswered operation of the range. Completions are kept per range, so operations of other ranges do
    /// not delay it.
    #[must_use]
    pub fn first_incomplete(&self, range: RangeId) -> u64 {
        let first = self.windows.get(&range).and_then(|window| window.ops.front());
        first.copied().unwrap_or(self.next)
    }

    /// Whether an update of the range is unanswered. Its record will acknowledge replies.
    #[must_use]
    pub fn has_unanswered_update(&self, range: RangeId) -> bool {
        let is_update = |op| self.pending.get(op).is_some_and(|pending| pending.intent == Intent::Write);
        self.windows.get(&range).is_some_and(|window| window.ops.iter().any(is_update))
    }

    fn send(&mut self, now: MonoMs, op: OpId) {
        let Some(pending) = self.pending.get_mut(&op.0) else { return };
        pending.retry_at = now.plus_ms(self.options.retry_ms);
        let pending = *pending;
        let first_incomplete = self.first_incomplete(pending.range);
        let Some(entry) = self.map.range_of(&pending.key) else { return };
        let to = match pending.intent {
            Intent::Read => entry.tail(),
            Intent::Write => entry.head(),
        };
        let Some(to) = to else {
            self.outputs.push_back(RouterOutput::RefreshMap { range: entry.range });
            return;
        };
        let tag = match pending.intent {
            Intent::Read => ClientTag::NONE,
            Intent::Write => ClientTag { session: self.session, seq: op.0 },
        };
        let (range, epoch) = (entry.range, entry.epoch);
        self.outputs.push_back(RouterOutput::Send { op, to, range, epoch, tag, first_incomplete });
    }
}

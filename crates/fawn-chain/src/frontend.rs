//! Owns a front-end's routing: key → range → head or tail, retries with a newer entry, timeouts, operation names.
//!
//! Safe with any stale map: a member of another epoch refuses and sends the newer entry. Payloads stay with the node,
//! which keeps them by [`OpId`] until the operation is over.
use crate::map::{ClusterMap, RangeEntry};
use alloc::collections::{BTreeMap, VecDeque};
use fawn_types::{ClientTag, Epoch, MonoMs, NodeId, Now, RangeId, RingKey};

/// Names an operation of this front-end; dense from 1, also its sequence number for exactly-once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Where an operation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// To the tail.
    Read,
    /// To the head; the tail answers.
    Write,
}

/// Limits and intervals of a front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontendOptions {
    /// Operations of one range from its oldest unanswered one to its newest, at most: bounds completions at back-ends.
    pub window_ops_max: u64,
    /// Unanswered operations of all ranges at most. A range may have no more of them than there is room left, so that
    /// any number of silent ranges leaves room for the others.
    pub pending_ops_max: u64,
    /// Silence after which an operation is sent again.
    pub retry_ms: u64,
    /// After this long an operation fails: it may or may not have happened.
    pub timeout_ms: u64,
}

impl Default for FrontendOptions {
    fn default() -> Self {
        Self { window_ops_max: 4096, pending_ops_max: 1 << 16, retry_ms: 200, timeout_ms: 5_000 }
    }
}

/// An effect of a front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontendOutput {
    /// Send the operation's payload to `to` in a `Request` of this range and epoch.
    Send {
        /// The operation.
        op: OpId,
        /// Head or tail.
        to: NodeId,
        /// The range its key lies in.
        range: RangeId,
        /// The epoch this front-end believes in.
        epoch: Epoch,
        /// The same in every retry; none for reads.
        tag: ClientTag,
        /// All operations of this range below are answered.
        first_incomplete: u64,
    },
    /// It took too long: answer the client with "unavailable", a write may or may not have happened.
    Failed {
        /// The operation.
        op: OpId,
    },
    /// The map has no active chain for it: ask the manager for the range's entry.
    RefreshMap {
        /// Which.
        range: RangeId,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    range: RangeId,
    key: RingKey,
    intent: Intent,
    retry_at: MonoMs,
    fails_at: MonoMs,
}

/// The operations of one range from its oldest unanswered one on.
#[derive(Clone, Debug, Default)]
struct Window {
    /// In order; the first one is unanswered, later ones may be answered.
    ops: VecDeque<u64>,
    unanswered: u64,
}

/// A front-end.
#[derive(Clone, Debug)]
pub struct Frontend {
    session: u64,
    options: FrontendOptions,
    map: ClusterMap,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    /// By range: a silent head fills the window of its own range only.
    windows: BTreeMap<RangeId, Window>,
    outputs: VecDeque<FrontendOutput>,
}

impl Frontend {
    /// With any map of the cluster; `session` is unique in it and never used again after a restart.
    #[must_use]
    pub fn new(session: u64, options: FrontendOptions, map: ClusterMap) -> Self {
        assert!(session != 0, "session 0 is no session");
        let (pending, windows, outputs) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { session, options, map, next: 1, pending, windows, outputs }
    }

    /// Its map.
    #[must_use]
    pub const fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Begins an operation; `None`: too many of its range, or of all ranges, are unanswered: answer "overloaded".
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
        self.pending.insert(op.0, Pending { range, key, intent, retry_at: now.mono, fails_at });
        self.send(now.mono, op);
        assert!(self.pending.len() as u64 <= self.options.pending_ops_max);
        Some(op)
    }

    /// The answer came: whether the operation still waited for it (else it is a duplicate, to be dropped).
    pub fn handle_reply(&mut self, op: OpId) -> bool {
        self.end(op.0)
    }

    /// Removes the operation from its window. Returns whether it was unanswered.
    fn end(&mut self, op: u64) -> bool {
        let Some(Pending { range, .. }) = self.pending.remove(&op) else { return false };
        let Some(window) = self.windows.get_mut(&range) else { unreachable!("a pending operation is in a window") };
        window.unanswered -= 1;
        while let Some(first) = window.ops.front()
            && !self.pending.contains_key(first)
        {
            window.ops.pop_front();
        }
        true
    }

    /// Assigns every pending operation to the range that its key lies in now.
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

    /// A member refused it: it had no effect. Sent again by the timer, at once if a newer entry is known by now.
    pub fn handle_refused(&mut self, now: Now, op: OpId) {
        if let Some(pending) = self.pending.get_mut(&op.0) {
            pending.retry_at = pending.retry_at.min(now.mono.plus_ms(self.options.retry_ms / 8));
        }
    }

    /// An entry from anybody; operations of its range go out again at once if it is news.
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

    /// Sends silent operations again, gives up the old ones. O(operations under way), which is bounded.
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
                self.outputs.push_back(FrontendOutput::Failed { op: OpId(op) });
            } else {
                self.send(now.mono, OpId(op));
            }
        }
    }

    /// When `handle_timeout` is wanted next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoMs> {
        self.pending.values().map(|pending| pending.retry_at.min(pending.fails_at)).min()
    }

    /// The next effect; poll until `None`.
    pub fn poll_output(&mut self) -> Option<FrontendOutput> {
        self.outputs.pop_front()
    }

    /// The oldest operation of the range without an answer. Completions are kept per range, so operations of other
    /// ranges do not hold it back.
    #[must_use]
    pub fn first_incomplete(&self, range: RangeId) -> u64 {
        let first = self.windows.get(&range).and_then(|window| window.ops.front());
        first.copied().unwrap_or(self.next)
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
            self.outputs.push_back(FrontendOutput::RefreshMap { range: entry.range });
            return;
        };
        let tag = match pending.intent {
            Intent::Read => ClientTag::NONE,
            Intent::Write => ClientTag { session: self.session, seq: op.0 },
        };
        let (range, epoch) = (entry.range, entry.epoch);
        self.outputs.push_back(FrontendOutput::Send { op, to, range, epoch, tag, first_incomplete });
    }
}

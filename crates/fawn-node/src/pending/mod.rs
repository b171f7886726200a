//! Waiting requests: their conditions, and the targets of their replies.
mod batch;
mod keys;
mod op;
mod reads;
mod scan;

pub(crate) use batch::{MultiReply, PendingMulti};
pub(crate) use keys::OpQueues;
pub(crate) use op::{PendingOp, ReplyPlace, ReplyTarget};
pub(crate) use reads::{ReadWaiter, Reads};
pub(crate) use scan::{ScanOp, ScanReplyFormat};

use fawn_ds::internals::LookupPlan;
use slab::Slab;
use std::collections::VecDeque;

/// A read that waits for a grant of its length.
#[derive(Debug)]
pub(crate) struct DeferredOp {
    pub(crate) op: usize,
    /// The rest of a long value, not read yet. It keeps no segment: if the segment is freed, the lookup starts over.
    pub(crate) plan: Option<LookupPlan>,
    pub(crate) bytes: usize,
}

/// All waiting requests.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    /// Requests on one key.
    pub(crate) ops: Slab<PendingOp>,
    /// Updates that wait for their key's value.
    pub(crate) keys: OpQueues,
    /// Plans whose device read is queued.
    pub(crate) reads: Reads,
    /// Reads that wait for a grant of their length.
    pub(crate) deferred: VecDeque<DeferredOp>,
    /// Requests on several keys.
    pub(crate) batches: Slab<PendingMulti>,
    pub(crate) scans: Slab<ScanOp>,
}

impl WaitQueue {
    pub(crate) fn new(reads_in_flight_max: usize) -> Self {
        Self {
            ops: Slab::new(),
            keys: OpQueues::default(),
            reads: Reads::new(reads_in_flight_max),
            deferred: VecDeque::new(),
            batches: Slab::new(),
            scans: Slab::new(),
        }
    }

    /// Lets `op` continue when `before` is done.
    pub(crate) fn follow(&mut self, before: usize, op: usize) {
        let last = self.ops[before].next.replace(op);
        assert_eq!(last, None, "only the last of a key is followed");
    }

    /// Takes an operation out while the rest is borrowed; [`WaitQueue::put_back`] it, or remove it.
    pub(crate) fn take(&mut self, op: usize) -> PendingOp {
        std::mem::replace(&mut self.ops[op], PendingOp::taken())
    }

    pub(crate) fn put_back(&mut self, at: usize, op: PendingOp) {
        debug_assert!(self.ops[at].is_taken(), "an operation is put back where it was taken");
        self.ops[at] = op;
    }

    /// Number of waiting requests; a request on several keys counts per key.
    pub(crate) fn len(&self) -> usize {
        self.ops.len() + self.scans.len()
    }
}

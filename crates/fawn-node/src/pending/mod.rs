//! Owns requests that cannot be answered at once: what they wait for, and where their replies go.
mod batch;
mod keys;
mod op;
mod reads;
mod scan;

pub(crate) use batch::{Batch, Gathered};
pub(crate) use keys::KeyQueues;
pub(crate) use op::{Asker, Op, Target};
pub(crate) use reads::{Reads, Waiter};
pub(crate) use scan::{ScanOp, ScanWording};

use slab::Slab;
use std::collections::VecDeque;

/// Everything that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Requests on one key.
    pub(crate) ops: Slab<Op>,
    /// Updates that wait for their key's value to be loaded.
    pub(crate) keys: KeyQueues,
    /// Plans whose device read waits for room.
    pub(crate) reads: Reads,
    /// Reads that found no room for their reply.
    pub(crate) late: VecDeque<usize>,
    /// Requests on several keys.
    pub(crate) batches: Slab<Batch>,
    pub(crate) scans: Slab<ScanOp>,
}

impl Pending {
    pub(crate) fn new(reads_in_flight_max: usize) -> Self {
        Self {
            ops: Slab::new(),
            keys: KeyQueues::default(),
            reads: Reads::new(reads_in_flight_max),
            late: VecDeque::new(),
            batches: Slab::new(),
            scans: Slab::new(),
        }
    }

    /// Lets `op` go on when `before` is done.
    pub(crate) fn follow(&mut self, before: usize, op: usize) {
        let last = self.ops[before].next.replace(op);
        assert_eq!(last, None, "only the last of a key is followed");
    }

    /// Takes an operation out to work with it while the rest is borrowed; [`Pending::put_back`] it, or remove it.
    pub(crate) fn take(&mut self, op: usize) -> Op {
        std::mem::replace(&mut self.ops[op], Op::taken())
    }

    pub(crate) fn put_back(&mut self, at: usize, op: Op) {
        debug_assert!(self.ops[at].is_taken(), "an operation is put back where it was taken");
        self.ops[at] = op;
    }

    /// Number of requests that wait, batches counted by their keys.
    pub(crate) fn len(&self) -> usize {
        self.ops.len() + self.scans.len()
    }
}

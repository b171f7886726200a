//! Queues of keys whose value is being loaded for an update: later requests on the key wait behind it.
//!
//! Sequence numbers follow evaluation, so N pipelined updates of one cold key cost one read [replication.md § 3].
use fawn_types::KeyHash;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Operations on one key in order of arrival; the first one's value is being loaded.
type OpQueue = VecDeque<usize>;

/// All queues, by the keyed hash of the key: clients cannot aim at one bucket, and two keys of one hash merely share
/// a queue.
#[derive(Debug, Default)]
pub(crate) struct OpQueues {
    queues: HashMap<u64, OpQueue, FxBuildHasher>,
    /// Keys whose first operation found the log's buffers full; retried in the next iteration.
    retry: Vec<KeyHash>,
}

impl OpQueues {
    #[inline]
    pub(crate) fn contains(&self, hash: KeyHash) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&hash.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Appends `op` to the key's queue; the first one is loading.
    pub(crate) fn push(&mut self, hash: KeyHash, op: usize) {
        self.queues.entry(hash.0).or_default().push_back(op);
    }

    pub(crate) fn front(&self, hash: KeyHash) -> Option<usize> {
        self.queues.get(&hash.0)?.front().copied()
    }

    /// Removes the first operation; the queue is removed with its last one.
    pub(crate) fn pop(&mut self, hash: KeyHash) {
        let Some(queue) = self.queues.get_mut(&hash.0) else { unreachable!("the queue of a running operation exists") };
        queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&hash.0);
        }
    }

    /// The first operation cannot run before the next iteration.
    pub(crate) fn retry_later(&mut self, hash: KeyHash) {
        self.retry.push(hash);
    }

    pub(crate) fn take_retries(&mut self) -> Vec<KeyHash> {
        std::mem::take(&mut self.retry)
    }

    pub(crate) fn has_retries(&self) -> bool {
        !self.retry.is_empty()
    }
}

//! A session's unfinished requests by key, which decide how its next request on a key begins.
//!
//! | earlier request on the key | next read | next update |
//! |---|---|---|
//! | update | sees it: reads the newest value, and its reply waits for that value's commit | begins: requests reach the key's member in order |
//! | request that returns a value, without its reply | waits | waits |
//!
//! A request that returns a value may be repeated with a larger grant, and a read completes with the value as of that
//! moment: a later update must not show in it, and a later read must not return an older value.
//!
//! After a session has seen another session's pending value (a failed `SETNX`), its next request must not see an older
//! one either. Other sessions read committed values only.
use crate::request::RequestKind;
use fawn_types::{KeyHash, Version};
use std::collections::VecDeque;

/// Unfinished requests and pending versions of a session, by the hash of their key. Two keys of one hash merely share
/// their order.
#[derive(Debug, Default)]
pub(crate) struct OwnKeys {
    /// Versions that the session wrote or saw before their commit, in the order of its requests.
    versions: VecDeque<(u64, Version)>,
    /// Requests without a reply and without a version. Their number per key counts, not their order.
    open: VecDeque<(u64, RequestKind)>,
    /// Keys with a queue of the session's requests.
    queues: Vec<u64>,
    /// A 64-bit filter of all these hashes: most requests are on other keys.
    mask: u64,
    /// Batches without a reply: each counts as an update of every key.
    batches: u32,
}

impl OwnKeys {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        // The filter is cleared with the last hash.
        self.mask == 0 && self.batches == 0
    }

    /// Number of pending versions.
    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether a request that returns a value has no reply.
    pub(crate) fn has_open_values(&self) -> bool {
        !self.queues.is_empty() || self.open.iter().any(|(_, kind)| *kind == RequestKind::Value)
    }

    /// Whether a new request on the key waits for earlier ones.
    #[inline]
    pub(crate) fn must_wait(&self, hash: KeyHash) -> bool {
        self.mask & bit(hash) != 0 && (self.queues.contains(&hash.0) || self.must_wait_in_queue(hash))
    }

    /// Whether the first request in the session's queue on the key waits for earlier ones.
    #[inline]
    pub(crate) fn must_wait_in_queue(&self, hash: KeyHash) -> bool {
        self.open.contains(&(hash.0, RequestKind::Value))
    }

    /// Whether a read of the key must see the newest value, pending or not.
    #[inline]
    pub(crate) fn reads_latest(&self, hash: KeyHash, committed: Version) -> bool {
        if self.mask & bit(hash) == 0 || self.batches > 0 {
            return self.batches > 0;
        }
        let newest = self.versions.iter().rev().find(|(written, _)| *written == hash.0);
        newest.is_some_and(|(_, version)| *version > committed) || self.open.iter().any(|(open, _)| *open == hash.0)
    }

    /// Records a version of the key that the session wrote or saw.
    #[inline]
    pub(crate) fn push(&mut self, hash: KeyHash, version: Version) {
        self.versions.push_back((hash.0, version));
        self.mask |= bit(hash);
    }

    /// A request begins whose reply is not known yet.
    pub(crate) fn begin(&mut self, hash: KeyHash, kind: RequestKind) {
        match kind {
            RequestKind::Batch => self.batches += 1,
            RequestKind::Range => {}
            RequestKind::Update | RequestKind::Value => {
                self.open.push_back((hash.0, kind));
                self.mask |= bit(hash);
            }
        }
    }

    /// The request has its reply. Replies come roughly in order, so the search is short.
    pub(crate) fn end(&mut self, hash: KeyHash, kind: RequestKind) {
        match kind {
            RequestKind::Batch => self.batches -= 1,
            RequestKind::Range => {}
            RequestKind::Update | RequestKind::Value => {
                let at = self.open.iter().position(|open| *open == (hash.0, kind));
                assert!(at.is_some(), "a request that ends has begun");
                at.map(|at| self.open.swap_remove_front(at));
                self.trim();
            }
        }
    }

    /// Requests on the key wait in a queue from now on.
    pub(crate) fn open_queue(&mut self, hash: KeyHash) {
        self.queues.push(hash.0);
        self.mask |= bit(hash);
    }

    /// No request on the key waits in a queue any more.
    pub(crate) fn close_queue(&mut self, hash: KeyHash) {
        self.queues.retain(|queue| *queue != hash.0);
        self.trim();
    }

    /// Removes committed versions; a version that was only seen may be behind a newer write and is removed with it.
    pub(crate) fn settle(&mut self, committed: Version) {
        while self.versions.front().is_some_and(|(_, version)| *version <= committed) {
            self.versions.pop_front();
        }
        self.trim();
    }

    /// Removes all versions: they are committed, or never will be.
    pub(crate) fn forget_versions(&mut self) {
        self.versions.clear();
        self.trim();
    }

    fn trim(&mut self) {
        let is_without_keys = self.versions.is_empty() && self.open.is_empty() && self.queues.is_empty();
        if self.mask != 0 && is_without_keys {
            self.mask = 0;
            self.versions.shrink_to(KEPT);
            self.open.shrink_to(KEPT);
            self.queues.shrink_to(KEPT);
        }
    }
}

/// Capacity that an idle session keeps.
const KEPT: usize = 32;

const fn bit(hash: KeyHash) -> u64 {
    1 << (hash.0 & 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole-keyspace command waits until the session has no unfinished request.
    #[test]
    fn a_queue_that_closes_leaves_nothing() {
        let (mut keys, hash) = (OwnKeys::default(), KeyHash(7));
        keys.open_queue(hash);
        assert!(!keys.is_empty() && keys.must_wait(hash) && keys.has_open_values());
        keys.close_queue(hash);
        assert!(keys.is_empty() && !keys.must_wait(hash) && !keys.has_open_values());
    }
}

//! Owns a session's own reads that wait for the device: what it asks of these keys later must not overtake them.
//!
//! A read goes on with what is committed when its bytes arrive. So a later write of the same connection could show in
//! an earlier read of it: the connection's input waits instead. And a later read could answer from the cache something
//! older than the earlier one: it follows the earlier one.
use fawn_types::KeyHash;
use std::collections::VecDeque;

/// Key hashes with the last operation that reads each, oldest first.
#[derive(Debug, Default)]
pub(crate) struct OwnReads {
    reads: VecDeque<(u64, usize)>,
}

impl OwnReads {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The last operation that reads the key (or one with the same hash: following it is harmless).
    #[inline]
    pub(crate) fn last(&self, hash: KeyHash) -> Option<usize> {
        if self.reads.is_empty() {
            return None;
        }
        self.reads.iter().find(|(read, _)| *read == hash.0).map(|(_, op)| *op)
    }

    /// `op` is the last one now.
    pub(crate) fn push(&mut self, hash: KeyHash, op: usize) {
        match self.reads.iter_mut().find(|(read, _)| *read == hash.0) {
            Some((_, last)) => *last = op,
            None => self.reads.push_back((hash.0, op)),
        }
    }

    /// The last read of the key has ended. Reads end about in the order they began, so this looks at few.
    pub(crate) fn ended(&mut self, hash: KeyHash, op: usize) {
        let at = self.reads.iter().position(|read| *read == (hash.0, op));
        assert!(at.is_some(), "a read that ends last was begun last");
        at.map(|at| self.reads.swap_remove_front(at));
        if self.reads.is_empty() {
            self.reads.shrink_to(KEPT);
        }
    }
}

/// Entries that an idle session keeps room for.
const KEPT: usize = 32;

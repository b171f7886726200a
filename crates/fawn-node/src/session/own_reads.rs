//! A session's reads that wait for the device: its later requests on these keys must not overtake them.
//!
//! A read completes with the value that is committed when its bytes arrive. A later write of the same connection could
//! therefore show in an earlier read, so the connection's input waits. A later read could return an older value from the
//! cache, so it follows the earlier read.
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

    /// The last operation that reads the key (or a key of the same hash, which is harmless).
    #[inline]
    pub(crate) fn last(&self, hash: KeyHash) -> Option<usize> {
        if self.reads.is_empty() {
            return None;
        }
        self.reads.iter().find(|(read, _)| *read == hash.0).map(|(_, op)| *op)
    }

    /// Records `op` as the last read of the key.
    pub(crate) fn push(&mut self, hash: KeyHash, op: usize) {
        match self.reads.iter_mut().find(|(read, _)| *read == hash.0) {
            Some((_, last)) => *last = op,
            None => self.reads.push_back((hash.0, op)),
        }
    }

    /// The last read of the key has ended. Reads end roughly in order, so the scan is short.
    pub(crate) fn ended(&mut self, hash: KeyHash, op: usize) {
        let at = self.reads.iter().position(|read| *read == (hash.0, op));
        assert!(at.is_some(), "a read that ends last was begun last");
        at.map(|at| self.reads.swap_remove_front(at));
        if self.reads.is_empty() {
            self.reads.shrink_to(KEPT);
        }
    }
}

/// Capacity that an idle session keeps.
const KEPT: usize = 32;

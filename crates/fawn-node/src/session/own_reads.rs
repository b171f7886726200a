//! Owns a session's own reads that wait for the device: its later writes of these keys must not overtake them.
//!
//! A read goes on with what is committed when its bytes arrive, so a later write of the same connection could show in
//! an earlier read of it; the connection's input waits instead.
use fawn_types::KeyHash;
use std::collections::VecDeque;

/// Key hashes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct OwnReads {
    hashes: VecDeque<u64>,
}

impl OwnReads {
    pub(crate) fn push(&mut self, hash: KeyHash) {
        self.hashes.push_back(hash.0);
    }

    /// Whether any read of the key waits.
    #[inline]
    pub(crate) fn contains(&self, hash: KeyHash) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&hash.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// One read of the key has ended. Reads end about in the order they began, so this looks at few.
    pub(crate) fn ended(&mut self, hash: KeyHash) {
        let at = self.hashes.iter().position(|read| *read == hash.0);
        assert!(at.is_some(), "a read that ends has begun");
        at.map(|at| self.hashes.swap_remove_front(at));
        if self.hashes.is_empty() {
            self.hashes.shrink_to(KEPT);
        }
    }
}

/// Entries that an idle session keeps room for.
const KEPT: usize = 32;

//! Versions that a session wrote or saw before their commit: its reads of these keys must not fall behind.
//!
//! Other sessions read committed values only. A session must read its own writes [replication.md § 3], and
//! after it has seen another session's pending value (a failed `SETNX`), its next request must not see an older one.
use fawn_types::{KeyHash, Version};
use std::collections::VecDeque;

/// Key hashes with their versions, in the order of the requests.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites {
    writes: VecDeque<(u64, Version)>,
    /// A 64-bit filter of the hashes: most reads are of other keys.
    mask: u64,
    /// A pending `FLUSHALL`: a write of every key.
    cleared: Option<Version>,
}

impl OwnWrites {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.cleared.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Records a version of the key that the session wrote or saw.
    pub(crate) fn push(&mut self, hash: KeyHash, version: Version) {
        self.writes.push_back((hash.0, version));
        self.mask |= bit(hash);
    }

    /// Records a clear of the range.
    pub(crate) fn push_clear(&mut self, version: Version) {
        self.writes.clear();
        self.mask = 0;
        self.cleared = Some(version);
    }

    /// The newest version of the key (or of a key with the same hash, which only delays a reply).
    #[inline]
    pub(crate) fn latest(&self, hash: KeyHash) -> Option<Version> {
        if self.mask & bit(hash) == 0 {
            return self.cleared;
        }
        let newest = self.writes.iter().rev().find(|(written, _)| *written == hash.0);
        newest.map(|(_, version)| *version).or(self.cleared)
    }

    /// Removes committed versions; a version that was only seen may be behind a newer write and is removed with it.
    pub(crate) fn settle(&mut self, committed: Version) {
        while self.writes.front().is_some_and(|(_, version)| *version <= committed) {
            self.writes.pop_front();
        }
        if self.writes.is_empty() && self.mask != 0 {
            self.mask = 0;
            self.writes.shrink_to(KEPT);
        }
        self.cleared = self.cleared.filter(|version| *version > committed);
    }

    /// Removes everything: it is committed, or never will be.
    pub(crate) fn forget(&mut self) {
        self.writes.clear();
        self.writes.shrink_to(KEPT);
        self.mask = 0;
        self.cleared = None;
    }
}

/// Capacity that an idle session keeps.
const KEPT: usize = 32;

const fn bit(hash: KeyHash) -> u64 {
    1 << (hash.0 & 63)
}

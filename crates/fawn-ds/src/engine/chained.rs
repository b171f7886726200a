//! Owns what only a member of a chain asks of its log: how far back it can be replayed, and a sync out of turn.
use super::Engine;
use fawn_flash::Device;
use fawn_types::{RangeId, Version};

impl<D: Device> Engine<D> {
    /// Records above this one can be replayed; those up to it may be gone from the log.
    pub fn replay_floor(&self, range: RangeId) -> Version {
        self.range_at(range).map_or(Version::ZERO, |at| self.ranges[at].complete_above)
    }

    /// From now on (or no more) everything appended is written and synced as soon as it can be, whatever the mode: a
    /// chain's handshake must not wait for a timer [replication.md §2.2]. Takes effect at the next submit.
    pub fn set_eager_sync(&mut self, eager: bool) {
        self.flush_everything = eager;
        self.flush.wanted |= eager && self.flush.open.is_some();
    }
}

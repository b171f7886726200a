//! Log functions for chain members only: the replay floor and eager syncs.
use super::Engine;
use crate::format::segment::StreamKind;
use fawn_flash::Device;
use fawn_types::{RangeId, Version};

impl<D: Device> Engine<D> {
    /// Records above this version can be replayed; older ones may be gone from the log.
    pub fn replay_floor(&self, range: RangeId) -> Version {
        self.range_at(range).map_or(Version::ZERO, |at| self.ranges[at].complete_above)
    }

    /// While set, appends are written and synced as soon as possible in every durability mode: a chain's handshake must
    /// not wait for a timer [replication.md §2.2]. Takes effect at the next submit.
    pub fn set_eager_sync(&mut self, eager: bool) {
        self.flush_everything = eager;
        let flush = &mut self.streams[StreamKind::Foreground].flush;
        flush.wanted |= eager && flush.open.is_some();
    }
}

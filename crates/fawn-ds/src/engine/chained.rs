//! Owns what only a member of a chain asks of its log: how far back it can be replayed, and a sync out of turn.
use super::Engine;
use fawn_flash::Device;
use fawn_types::{RangeId, Version};

/// Of the first segment that a store ever has.
const FIRST_SEQUENCE: u64 = 1;

impl<D: Device> Engine<D> {
    /// Records above this one can be replayed; those up to it may be gone from the log.
    pub fn replay_floor(&self, range: RangeId) -> Version {
        self.range_at(range).map_or(Version::ZERO, |at| self.ranges[at].complete_above)
    }

    /// After an opening: forgets for replay what lies before the newest gap in the segments' sequence numbers.
    ///
    /// Segments that died before the store was closed took records with them that nobody needs for lookups, but a
    /// replay across their gap would pass for gapless where an epoch began within it.
    pub fn trim_replay_to_gapless(&mut self, range: RangeId) {
        let Ok(at) = self.range_at(range) else { return };
        let mut sequences: Vec<u64> = self.segments.iter().map(|segment| segment.sequence).collect();
        sequences.sort_unstable_by(|a, b| b.cmp(a));
        let gapless = sequences.windows(2).take_while(|pair| pair[0] == pair[1] + 1).count();
        let Some(&oldest) = sequences.get(gapless) else { return };
        if oldest <= FIRST_SEQUENCE {
            return;
        }
        let range = &mut self.ranges[at];
        while range.retained.front().is_some_and(|kept| kept.sequence < oldest) {
            range.drop_oldest_retained();
        }
        // What came right before the first one left is not known.
        range.drop_oldest_retained();
        if range.retained.is_empty() {
            range.complete_above = range.complete_above.max(range.progress.committed);
        }
        assert!(range.complete_above <= range.progress.appended, "only records that were met are forgotten");
    }

    /// From now on (or no more) everything appended is written and synced as soon as it can be, whatever the mode: a
    /// chain's handshake must not wait for a timer [replication.md §2.2]. Takes effect at the next submit.
    pub fn set_eager_sync(&mut self, eager: bool) {
        self.flush_everything = eager;
        self.flush.wanted |= eager && self.flush.open.is_some();
    }
}

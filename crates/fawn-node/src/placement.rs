//! Slices of the ring of a standalone node's shards: equal, fixed when the directory is created.
use fawn_types::{KeyRange, RangeId, RingKey, ShardId};

/// A shard's index among those of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    index: u16,
    count: u16,
}

impl Placement {
    /// The only shard of its node.
    pub const ALONE: Self = Self { index: 0, count: 1 };

    /// Shard `index` of `count`; `None` if there is no such shard.
    #[must_use]
    pub const fn new(index: ShardId, count: u16) -> Option<Self> {
        if index.0 < count { Some(Self { index: index.0, count }) } else { None }
    }

    /// Its index.
    #[must_use]
    pub const fn shard(self) -> ShardId {
        ShardId(self.index)
    }

    /// Number of shards.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.count
    }

    /// Its range, as listed by its store.
    #[must_use]
    pub fn range(self) -> (RangeId, KeyRange) {
        let end = (self.index + 1 < self.count).then(|| self.start_of(self.index + 1));
        (RangeId(u32::from(self.index)), KeyRange { start: self.start_of(self.index), end })
    }

    /// Start of a shard's slice. Slices differ in the ring key's highest 32 bits, so a tag never straddles two.
    fn start_of(self, index: u16) -> RingKey {
        let start = (u64::from(index) << 32).div_ceil(u64::from(self.count));
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&(start as u32).to_be_bytes());
        RingKey(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_all_shards_cover_the_ring() {
        for count in [1, 2, 3, 5, 64, 1000] {
            let all: Vec<_> = (0..count).filter_map(|index| Placement::new(ShardId(index), count)).collect();
            assert_eq!(all.len(), usize::from(count));
            let ranges: Vec<KeyRange> = all.iter().map(|placement| placement.range().1).collect();
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (RingKey::MIN, None));
            for (before, after) in ranges.iter().zip(&ranges[1..]) {
                assert!(before.end == Some(after.start) && after.start.is_boundary());
            }
        }
        assert_eq!(Placement::new(ShardId(2), 2), None);
    }
}

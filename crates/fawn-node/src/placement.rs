//! Ownership of keys by the shards of a node: equal slices of the ring, fixed when the directory is created.
use fawn_types::{HashSecret, KeyRange, RangeId, RingKey, ShardId};

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

    /// The shard that owns a key.
    #[must_use]
    pub fn owner(self, secret: &HashSecret, key: &[u8]) -> ShardId {
        let highest = u64::from(RingKey::highest_of(secret, key));
        ShardId(((highest * u64::from(self.count)) >> 32) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_belongs_to_the_shard_whose_range_holds_it() {
        let secret = HashSecret([3; 16]);
        for count in [1, 2, 3, 5, 64, 1000] {
            let all: Vec<_> = (0..count).filter_map(|index| Placement::new(ShardId(index), count)).collect();
            assert_eq!(all.len(), usize::from(count));
            let ranges: Vec<KeyRange> = all.iter().map(|placement| placement.range().1).collect();
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (RingKey::MIN, None));
            for (before, after) in ranges.iter().zip(&ranges[1..]) {
                assert!(before.end == Some(after.start) && after.start.is_boundary());
            }
            for number in 0..2000 {
                let key = format!("key:{number}");
                let owner = all[0].owner(&secret, key.as_bytes());
                let ring_key = RingKey::of(&secret, key.as_bytes());
                for (range, placement) in ranges.iter().zip(&all) {
                    assert_eq!(range.contains(&ring_key), owner == placement.shard(), "{key} of {count}");
                }
                let tagged = format!("{{{key}}}.of");
                assert_eq!(all[0].owner(&secret, tagged.as_bytes()), owner, "a tag decides");
            }
        }
        assert_eq!(Placement::new(ShardId(2), 2), None);
    }
}

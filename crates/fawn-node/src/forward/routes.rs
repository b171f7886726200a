//! Routes: the destination of requests on a key, by the ranges of the node's map.
use crate::placement::Placement;
use crate::request::Destination;
use fawn_chain::ClusterMap;
use fawn_types::{HashSecret, RingKey, ShardId};

/// Ranges in ring order, with their destinations: chains of a cluster, or the shards of a standalone node.
#[derive(Debug)]
pub(crate) struct Routes {
    secret: HashSecret,
    /// Highest 32 bits of the ranges' starts, searched first: they cost half of a ring key, and decide for nearly all
    /// keys.
    starts: Vec<u32>,
    ranges: Vec<(RingKey, Destination)>,
}

impl Routes {
    /// The shards of a standalone node.
    pub(crate) fn of_shards(secret: HashSecret, count: u16) -> Self {
        let shards = (0..count).map(ShardId).filter_map(|shard| Placement::new(shard, count));
        Self::new(secret, shards.map(|shard| (shard.range().1.start, Destination::Shard(shard.shard()))).collect())
    }

    /// The chains of a cluster.
    pub(crate) fn of_map(map: &ClusterMap) -> Self {
        let chain = map.ranges.iter().map(|entry| (entry.keys.start, Destination::Chain(entry.range)));
        Self::new(map.secret, chain.collect())
    }

    fn new(secret: HashSecret, ranges: Vec<(RingKey, Destination)>) -> Self {
        assert!(!ranges.is_empty(), "a map has a range");
        let starts = ranges.iter().map(|(start, _)| start.highest()).collect();
        Self { secret, starts, ranges }
    }

    /// Number of ranges.
    pub(crate) const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The destination of requests on the whole range.
    pub(crate) fn of_range(&self, index: usize) -> Destination {
        self.ranges[index].1
    }

    /// The destination of requests on the key.
    #[inline]
    pub(crate) fn of_key(&self, key: &[u8]) -> Destination {
        if let [(_, only)] = self.ranges.as_slice() {
            return *only;
        }
        let highest = RingKey::highest_of(&self.secret, key);
        // Entries of a broken manager may leave a gap at the ring's start: no range accepts its keys.
        let at = self.starts.partition_point(|start| *start <= highest).saturating_sub(1);
        if self.starts[at] == highest { self.of_boundary_key(key) } else { self.ranges[at].1 }
    }

    /// The destination of a key that shares its highest bits with a range's start.
    #[cold]
    fn of_boundary_key(&self, key: &[u8]) -> Destination {
        let ring_key = RingKey::of(&self.secret, key);
        self.ranges[self.ranges.partition_point(|(start, _)| *start <= ring_key).saturating_sub(1)].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::RangeId;

    #[test]
    fn every_key_goes_to_the_shard_whose_range_holds_it() {
        let secret = HashSecret([3; 16]);
        for count in [1, 2, 3, 5, 64, 1000] {
            let routes = Routes::of_shards(secret, count);
            assert_eq!(routes.len(), usize::from(count));
            for number in 0..2000 {
                let key = format!("key:{number}");
                let ring_key = RingKey::of(&secret, key.as_bytes());
                let Destination::Shard(owner) = routes.of_key(key.as_bytes()) else { unreachable!("no chain") };
                let holds = |shard| Placement::new(shard, count).unwrap().range().1.contains(&ring_key);
                assert!(holds(owner), "{key} of {count}");
                assert_eq!((0..count).filter(|shard| holds(ShardId(*shard))).count(), 1, "ranges do not overlap");
                let tagged = format!("{{{key}}}.of");
                assert_eq!(routes.of_key(tagged.as_bytes()), Destination::Shard(owner), "a tag decides");
            }
        }
    }

    /// Ranges that begin within one value of the highest 32 bits: at, just below and just above a key.
    #[test]
    fn the_lower_bits_decide_at_a_boundary() {
        let secret = HashSecret([3; 16]);
        for number in 0..200 {
            let key = format!("key:{number}");
            let ring_key = RingKey::of(&secret, key.as_bytes());
            let (mut below, mut above) = (ring_key.boundary(), ring_key);
            below.0[11] &= !1;
            above.0[19] |= 1;
            let chain = |at| Destination::Chain(RangeId(at));
            let mut ranges = vec![(RingKey::MIN, chain(0)), (below, chain(1))];
            if above > ring_key {
                ranges.push((above, chain(2)));
            }
            let routes = Routes::new(secret, ranges);
            assert_eq!(routes.of_key(key.as_bytes()), chain(1), "{key}");
            let routes = Routes::new(secret, vec![(RingKey::MIN, chain(0)), (ring_key, chain(1))]);
            assert_eq!(routes.of_key(key.as_bytes()), chain(1), "a range holds its start");
        }
    }
}

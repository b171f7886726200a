//! Ring and map tests: chains on distinct nodes, coverage of the ring, balance, the epoch history.
use crate::member;
use fawn_chain::map::{Activation, HISTORY_MAX};
use fawn_chain::ring::{Ring, RingShard, virtual_id};
use fawn_chain::{ClusterMap, NodeEntry, RangeEntry, RingOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyRange, MemberId, NodeId, RangeId, RingKey, Version};

const SECRET: HashSecret = HashSecret([9; 16]);

fn ring(nodes: u32, domains: u32, options: RingOptions) -> Ring {
    let node = |id| RingShard { id: member(id), weight: 1, domain: if domains == 0 { 0 } else { 1 + id % domains } };
    Ring::new(&SECRET, &(1..=nodes).map(node).collect::<Vec<_>>(), options)
}

#[test]
fn chains_stand_on_different_nodes() {
    for (nodes, shards) in (1..12).flat_map(|nodes| [1, 2, 3].map(|shards| (nodes, shards))) {
        let map = map(nodes, shards, RingOptions { replication: 3, virtual_ids: 4 });
        for range in map.ring().layout() {
            let mut chain: Vec<NodeId> = range.chain.iter().map(|id| id.node()).collect();
            chain.sort();
            chain.dedup();
            assert_eq!(chain.len(), range.chain.len());
            assert_eq!(chain.len(), 3.min(nodes as usize));
        }
        let mut owners: Vec<MemberId> = map.ranges.iter().map(|entry| entry.members[0].id).collect();
        owners.sort();
        owners.dedup();
        assert_eq!(owners.len(), nodes as usize * usize::from(shards), "each shard owns some range");
        assert!(map.ranges.len() <= owners.len() * 4 + 1);
    }
}

fn map(nodes: u32, shards: u16, options: RingOptions) -> ClusterMap {
    let node = |id| NodeEntry { node: NodeId(id), shards, weight: 1, domain: 0, address: String::new() };
    ClusterMap::new(SECRET, Durability::default(), options, (1..=nodes).map(node).collect())
}

#[test]
fn the_ring_is_covered_once() {
    let layout = ring(5, 0, RingOptions { replication: 3, virtual_ids: 8 }).layout();
    assert_eq!(layout[0].keys.start, RingKey::MIN);
    assert!(layout.windows(2).all(|pair| pair[0].keys.end == Some(pair[1].keys.start)));
    assert_eq!(layout.last().unwrap().keys.end, None);
    assert!(layout.iter().all(|range| range.keys.start.is_boundary()));
    assert_eq!(layout[0].chain, layout.last().unwrap().chain, "the ring is closed");
}

#[test]
fn one_shard_has_one_range() {
    let layout = ring(1, 0, RingOptions { replication: 1, virtual_ids: 16 }).layout();
    assert_eq!(layout.len(), 1);
    assert_eq!(layout[0].keys, KeyRange::ALL);
}

#[test]
fn failure_domains_differ_while_there_are_enough() {
    let layout = ring(6, 3, RingOptions { replication: 3, virtual_ids: 4 }).layout();
    for range in layout {
        let mut domains: Vec<u32> = range.chain.iter().map(|node| node.node().0 % 3).collect();
        domains.sort_unstable();
        assert_eq!(domains, [0, 1, 2]);
    }
    assert!(ring(6, 2, RingOptions::default()).layout().iter().all(|range| range.chain.len() == 3));
}

#[test]
fn virtual_ids_depend_on_the_node_alone() {
    assert_eq!(virtual_id(&SECRET, member(4), 1), virtual_id(&SECRET, member(4), 1));
    assert_ne!(virtual_id(&SECRET, member(4), 1), virtual_id(&SECRET, member(4), 2));
    let (few, many) = (ring(4, 0, RingOptions::default()), ring(5, 0, RingOptions::default()));
    assert!(few.points().iter().all(|(id, _)| many.points().iter().any(|(other, _)| other == id)));
}

#[test]
fn every_key_has_a_range_and_a_tag_only_one() {
    let node = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 1, domain: 0, address: String::new() };
    let options = RingOptions { replication: 2, virtual_ids: 8 };
    let map = ClusterMap::new(SECRET, Durability::Sync, options, (1..=4).map(node).collect());
    let range = |key: String| map.range_of(&RingKey::of(&SECRET, key.as_bytes())).unwrap().range;
    let mut used = std::collections::BTreeSet::new();
    for index in 0..2_000 {
        used.insert(range(format!("key {index}")));
        assert_eq!(range(format!("{{tag}}{index}")), range("{tag}0".to_owned()));
    }
    assert!(used.len() * 10 >= map.ranges.len() * 8, "keys spread: {} of {} ranges", used.len(), map.ranges.len());
}

fn version(e: u32, seq: u64) -> Version {
    Version::new(Epoch::new(e).unwrap(), seq).unwrap()
}

#[test]
fn logs_agree_with_the_spine_up_to_the_next_base() {
    let mut entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1)]);
    let mut activate = |e, base| entry.remember(Activation { epoch: Epoch::new(e).unwrap(), base });
    activate(1, Version::ZERO);
    activate(3, version(1, 57));
    activate(4, version(1, 57)); // Epoch 3 has no writes, or no member kept them.
    activate(6, version(4, 9));
    assert_eq!(entry.common_point(version(1, 60)), version(1, 57), "a suffix that no member kept");
    assert_eq!(entry.common_point(version(1, 40)), version(1, 40), "a prefix");
    assert_eq!(entry.common_point(version(3, 5)), version(1, 57), "an epoch of which no member kept a record");
    assert_eq!(entry.common_point(version(4, 9)), version(4, 9));
    assert_eq!(entry.common_point(version(4, 12)), version(4, 9));
    assert_eq!(entry.common_point(version(6, 3)), version(6, 3), "the newest epoch is open");
    assert_eq!(entry.common_point(Version::ZERO), Version::ZERO);
}

#[test]
fn a_log_older_than_memory_starts_anew() {
    let mut entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1)]);
    for e in 1..=HISTORY_MAX as u32 + 5 {
        entry.remember(Activation { epoch: Epoch::new(e).unwrap(), base: version(e - 1, 9) });
    }
    assert_eq!(entry.history.len(), HISTORY_MAX);
    assert_eq!(entry.common_point(version(3, 4)), Version::ZERO);
    assert_eq!(entry.common_point(version(20, 4)), version(20, 4));
}

//! Full stores of expired records that still hide older ones: their cleaning frees hardly anything.
use crate::reclaiming::{SEGMENT_BYTES, attempt, put, turn, write};
use crate::support::{TestNode, TestWrite, scanned};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const LIVE: std::ops::Range<u64> = 1_000_000..1_000_016;
const EXPIRING: u64 = 2_500;

/// A put of a long key with a short value: a tombstone of the key is hardly shorter.
fn long_key(key: u64) -> TestWrite {
    TestWrite { key: format!("{key:0200}").into_bytes(), ..put(key, 8) }
}

/// Space that the files take.
fn used_bytes(disk: &SimDisk) -> u64 {
    let len_of = |name: String| match disk.contents(&name).map(|bytes| bytes.len() as u64) {
        Some(_) if name.starts_with("segment-") => SEGMENT_BYTES,
        len => len.unwrap_or_default().next_multiple_of(4096),
    };
    disk.names().into_iter().map(len_of).sum()
}

/// A store without debt whose survivors have a part of a segment.
fn with_survivors(disk: &SimDisk) -> TestNode {
    let options = Options { space_amplification_max_percent: 1_000_000, ..scanned(Durability::Sync) };
    let mut node = TestNode::open(disk, options, Now::at(1_000_000)).unwrap();
    for key in 0..4_000 {
        let key = if key % 250 == 0 { 3_000_000 + key } else { 4_000_000 };
        write(&mut node, &[long_key(key)]);
    }
    // The device is full for a while.
    disk.set_capacity_bytes(Some(used_bytes(disk)));
    for _ in 0..1_000 {
        if node.engine.stats().moved_records == 0 {
            attempt(&mut node, long_key(4_000_000));
        }
    }
    disk.set_capacity_bytes(None);
    assert!(node.engine.stats().moved_records > 0, "{:?}", node.engine);
    (0..500).for_each(|_| turn(&mut node));
    node
}

/// Nothing is live in the segments whose records lookups found expired, but cleaning has to copy nearly all of them. The segments of
/// the older records have a few live ones each.
#[test]
fn segments_of_expired_records_leave_the_last_space_for_copies_to_segments_that_fit() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = with_survivors(&disk);
    for key in 0..EXPIRING {
        write(&mut node, &[long_key(key)]);
        if key % (EXPIRING / 16) == 0 && key < EXPIRING / 16 * 16 {
            write(&mut node, &[long_key(LIVE.start + key / (EXPIRING / 16))]);
        }
    }
    let expires_at_ms = node.now.wall.0 + 60_000;
    (0..EXPIRING).for_each(|key| write(&mut node, &[TestWrite { expires_at_ms, ..long_key(key) }]));
    node.settle();
    node.now = node.now.plus_ms(7_200_000);
    turn(&mut node);
    let is_found = |node: &mut TestNode, key| node.get(&long_key(key).key, View::Committed).unwrap().is_some();
    assert!(!(0..EXPIRING).any(|key| is_found(&mut node, key)));
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    for key in 5_000_000..5_001_000 {
        let is_taken = (0..100).any(|_| attempt(&mut node, long_key(key)));
        assert!(is_taken, "key {key}: {:?} {:?}", node.engine.stats(), node.engine.log_report());
    }
    assert!(LIVE.clone().all(|key| is_found(&mut node, key)));
    assert!(!(0..EXPIRING).any(|key| is_found(&mut node, key)));
}

//! Space reclamation on bad days: what keeps one segment must not keep all others.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::Options;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const SEGMENT_BYTES: u64 = 64 << 10;

fn options(segments: u64) -> Options {
    Options { capacity_bytes: Some(segments * SEGMENT_BYTES), ..small(Durability::Sync) }
}

fn open(disk: &SimDisk, segments: u64, at_ms: u64) -> TestNode {
    TestNode::open(disk, options(segments), Now::at(at_ms)).unwrap()
}

fn put(key: u64, len: usize) -> TestWrite {
    TestWrite { key: format!("key-{key:012}").into_bytes(), value: Some(vec![key as u8; len]), expires_at_ms: 0 }
}

/// Appends, and fails with the state of the store if that is refused.
fn write(node: &mut TestNode, writes: &[TestWrite]) {
    if let Err(error) = node.append(writes) {
        panic!("{error}: {:?} {:?} {:?}", node.engine.log_report(), node.engine.segments_kept(), node.engine.stats());
    }
    turn(node);
}

fn turn(node: &mut TestNode) {
    node.turn();
    node.now = node.now.plus_ms(5);
}

/// The new version of a key whose old one cannot be read stays where it is. Its segment is no victim again and again.
#[test]
fn a_segment_with_a_record_that_must_stay_does_not_stop_the_cleaning_of_others() {
    const SEGMENTS: u64 = 48;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, SEGMENTS, 1_000_000);
    let keys = SEGMENTS * SEGMENT_BYTES * 6 / 10 / 304;
    (0..keys).for_each(|key| write(&mut node, &[put(key, 256)]));
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = open(&disk, SEGMENTS, 2_000_000);
    let first = disk.names().into_iter().find(|name| name.starts_with("segment-000000")).unwrap();
    disk.make_unreadable(&first, 4096..SEGMENT_BYTES);
    write(&mut node, &[put(0, 256)]);
    let mut rng = fawn_types::random::SplitMix64::new(1);
    for _ in 0..4 * SEGMENTS * SEGMENT_BYTES / 304 {
        // Keys of later segments.
        let key = 250 + rng.below(keys - 250);
        write(&mut node, &[put(key, 256)]);
    }
    assert_eq!(node.engine.log_report().keys_apart, 1);
}

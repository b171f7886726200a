//! Ranges that come and go: each leaves a number in the facts of its segment, and a seal has all of them.
use crate::manifest_full::poll_for_a_minute;
use crate::support::{SECRET, TestNode, TestWrite, scanned};
use fawn_ds::internals::format::manifest::{SegmentSeal, decode_all};
use fawn_ds::internals::{EngineError, Options, RecordRef, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, Now, RangeId, Version};

const OTHER: RangeId = RangeId(8);
const KEY: &[u8] = b"key";
/// Puts that fill two segments.
const PUTS: u32 = 900;
/// Numbers from which on a segment of few ranges is sealed, and some for the last poll before.
const NUMBERS_MAX: usize = 256 + 4 * 2 + 32;

/// Segments that take the records of thousands of ranges.
fn options() -> Options {
    Options { segment_bytes: 4 << 20, memory_bytes: 8 << 20, ..scanned(Durability::Sync) }
}

fn store() -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::default());
    let node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    (disk, node)
}

fn write(node: &mut TestNode, key: u32, value: Option<Vec<u8>>) -> Result<Version, EngineError> {
    node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value, expires_at_ms: 0 }])
}

fn fill(node: &mut TestNode) {
    for key in 0..PUTS {
        write(node, key, Some(vec![1; 10 << 10])).unwrap();
        node.turn();
    }
    node.settle();
}

/// Appends a record of the range; an opening finds it.
fn put_synced(node: &mut TestNode, seq: u64) {
    let version = Version::new(Epoch::new(node.engine.generation()).unwrap(), seq).unwrap();
    node.engine.append(OTHER, KeyHash::of(&SECRET, KEY), &RecordRef::put(version, KEY, b"value")).unwrap();
    while node.engine.progress(OTHER).synced < version {
        node.turn();
    }
}

/// Adds and drops ranges, each with a record.
fn add_and_drop(node: &mut TestNode, ranges: u32) {
    for _ in 0..ranges {
        node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
        put_synced(node, 1);
        node.engine.drop_range(OTHER).unwrap();
    }
}

/// Most numbers of a listed seal, after the active segment got one.
fn longest_seal(disk: &SimDisk, mut node: TestNode) -> usize {
    fill(&mut node);
    drop(node.engine.close().unwrap());
    let state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let numbers = |seal: &SegmentSeal| seal.facts.numbers.len();
    state.segments.values().filter_map(|entry| entry.seal.as_ref()).map(numbers).max().unwrap()
}

/// Nothing would be freed again, and the next opening fail: the drops come behind the seal.
#[test]
fn a_full_device_takes_the_seals_of_ranges_that_came_and_went() {
    let (disk, mut node) = store();
    fill(&mut node);
    add_and_drop(&mut node, 3_000);
    // The next segment is prepared, and then another program takes the rest.
    let prepared = disk.names().len() + 1;
    while disk.names().len() < prepared {
        write(&mut node, PUTS, Some(vec![1; 10 << 10])).unwrap();
        node.turn();
    }
    node.settle();
    disk.set_full(true);
    while write(&mut node, PUTS, Some(vec![1; 10 << 10])) != Err(EngineError::StoreFull) {
        node.turn();
    }
    let before = disk.names().len();
    for key in 0..=PUTS {
        write(&mut node, key, None).unwrap();
    }
    node.settle();
    poll_for_a_minute(&mut node);
    let after = disk.names().len();
    println!("{before} files, then {after}");
    assert!(after < before, "{:?}", disk.names());
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    assert_eq!(node.get(&0u32.to_be_bytes(), View::Committed), Ok(None));
}

#[test]
fn ranges_that_come_and_go_leave_short_seals() {
    let (disk, mut node) = store();
    add_and_drop(&mut node, 2_000);
    let longest = longest_seal(&disk, node);
    assert!((1..NUMBERS_MAX).contains(&longest), "{longest} numbers in a seal");
}

/// Each of them gives the range another number.
#[test]
fn full_resyncs_that_begin_again_leave_short_seals() {
    let (disk, mut node) = store();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    for _ in 0..2_000 {
        let base = Version::new(Epoch::new(node.engine.generation()).unwrap(), 9).unwrap();
        node.engine.begin_transfer(OTHER, base).unwrap();
        let record = RecordRef::put(base, KEY, b"value");
        assert!(node.engine.append_copied(OTHER, KeyHash::of(&SECRET, KEY), &record).unwrap());
        node.turn();
    }
    let longest = longest_seal(&disk, node);
    assert!((1..NUMBERS_MAX).contains(&longest), "{longest} numbers in a seal");
}

/// As in a store of an earlier version: its active segment has more numbers than one gets now.
#[test]
fn a_segment_with_more_numbers_is_opened_and_sealed() {
    let (disk, mut node) = store();
    let other = |i: u32| RangeId(100 + i);
    for i in 0..400 {
        node.engine.add_range(other(i), KeyRange::ALL).unwrap();
        let version = Version::new(Epoch::new(node.engine.generation()).unwrap(), 1).unwrap();
        node.engine.append(other(i), KeyHash::of(&SECRET, KEY), &RecordRef::put(version, KEY, b"value")).unwrap();
        node.turn();
    }
    // One number of so many is too few for another segment, until the ranges go.
    (0..400).for_each(|i| node.engine.drop_range(other(i)).unwrap());
    drop(node);
    disk.kill(1);
    let with_numbers = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    poll_for_a_minute(&mut node);
    fill(&mut node);
    assert!(!disk.names().contains(&with_numbers), "{:?}", disk.names());
}

//! Commits of the manifest: the durable name of its file, and which of them get the last space of a full device.
use crate::manifest_full::{poll_for_a_minute, used_bytes};
use crate::reclaiming::{attempt, delete, put, write};
use crate::support::{TestNode, TestWrite, manifest_commits, scanned};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::{EngineError, Options, RecordRef, View};
use fawn_flash::sim::{Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now, RangeId, Version};

/// A range without records, whose epochs fill the manifest.
pub(crate) const OTHER: RangeId = RangeId(8);
const CLEARED: RangeId = RangeId(9);
const BLOB: u32 = 5;
/// Bytes of values of which a segment has four.
const QUARTER: usize = 14_900;

fn options() -> Options {
    scanned(Durability::Sync)
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

/// Allocated bytes of the manifest's file behind its last commit.
pub(crate) fn left_bytes(disk: &SimDisk) -> usize {
    let bytes = disk.contents("manifest").unwrap();
    bytes.len() - manifest_commits(&bytes).last().unwrap().1
}

/// Blobs take what edits may use that free no space, on a device that is full.
pub(crate) fn put_blobs(node: &mut TestNode) {
    for len in [8 << 10, 1 << 10, 128, 1] {
        loop {
            match node.engine.put_blob(BLOB, &vec![1; len]) {
                Ok(ticket) => {
                    while !node.engine.is_blob_durable(ticket) {
                        node.turn();
                    }
                }
                Err(EngineError::StoreFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Epochs take what edits may use that free space, 64 bytes each, until no more than `left_max` bytes are left.
pub(crate) fn fill_to(node: &mut TestNode, disk: &SimDisk, left_max: usize) {
    while left_bytes(disk) > left_max {
        let epoch = node.engine.next_sole_epoch(OTHER).unwrap();
        node.engine.begin_sole_epoch(OTHER, epoch, None).unwrap();
    }
}

/// Deletes all records of a segment with four of them, and lets the segment go.
fn delete_segment(node: &mut TestNode, segment: u64) {
    let deletes: Vec<TestWrite> = (4 * segment..4 * segment + 4).map(delete).collect();
    write(node, &deletes);
    node.settle();
    for _ in 0..10 {
        node.turn();
    }
}

/// A process was killed before the name of its new manifest was durable. The next one relies on that file: a power
/// loss that brought the old one back would lose the generation of acknowledged records, and the store would be
/// refused.
#[test]
fn an_opening_makes_the_name_of_a_new_manifest_durable() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    write(&mut node, &[put(1, 700)]);
    node.settle();
    disk.hang(OpKind::SyncDir);
    for blobs in 0.. {
        assert!(blobs < 1_000, "the manifest is not rewritten");
        let ticket = node.engine.put_blob(BLOB, &[1; 1_000]).unwrap();
        node.turn();
        node.turn();
        if !node.engine.is_blob_durable(ticket) {
            break;
        }
    }
    assert_eq!((disk.hung(), disk.names().contains(&"manifest.new".to_owned())), (1, false));
    let killed = disk.image(Loss::Process, 1);
    let mut node = TestNode::open(&killed, options(), Now::at(1_000)).unwrap();
    write(&mut node, &[put(2, 700)]);
    node.settle();
    for seed in 0..32 {
        let crashed = TestNode::open(&killed.image(Loss::Power, seed), options(), Now::at(2_000));
        let mut crashed = crashed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for key in [1, 2] {
            let found = crashed.get(&put(key, 0).key, View::Committed).unwrap();
            assert!(found.is_some(), "seed {seed}: record {key} was acknowledged");
        }
    }
}

/// A commit that is due once the expiry time is old would carry it, too. On a full device the longer commit may not
/// fit where the drop of a segment does, and nothing else would make space.
#[test]
fn a_drop_on_a_full_device_carries_no_expiry_time() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    let spare: Vec<_> = (100..103).map(RangeId).collect();
    for &range in spare.iter().chain(&[OTHER]) {
        node.engine.add_range(range, KeyRange::ALL).unwrap();
    }
    for key in 0..25 {
        write(&mut node, &[put(key, QUARTER)]);
    }
    node.settle();
    let before = segments(&disk);
    assert_eq!(before.len(), 7, "six full ones, and the active one");
    disk.set_full(true);
    put_blobs(&mut node);
    // The drop of a range takes 48 bytes, that of a segment 64, and with the expiry time 96.
    for &range in &spare {
        if !left_bytes(&disk).is_multiple_of(64) {
            node.engine.drop_range(range).unwrap();
        }
    }
    fill_to(&mut node, &disk, 192);
    assert_eq!(left_bytes(&disk), 192);
    delete_segment(&mut node, 0);
    delete_segment(&mut node, 1);
    assert_eq!((left_bytes(&disk), segments(&disk)), (64, before[2..].to_vec()));
    // From now on the space of a dropped segment is the store's again.
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    disk.set_full(false);
    node.now = node.now.plus_ms(11_000);
    node.turn();
    assert_eq!(left_bytes(&disk), 64);
    delete_segment(&mut node, 2);
    delete_segment(&mut node, 3);
    poll_for_a_minute(&mut node);
    let left = segments(&disk);
    assert!(!left.contains(&before[2]) && !left.contains(&before[3]), "{left:?}, {} bytes", left_bytes(&disk));
}

/// A commit that certifies the one before fills the file up to the next sector. After each drop of a range on a full
/// device it would take ten times the space of the drop, and further ranges could not be dropped.
#[test]
fn certifying_commits_leave_the_last_space_to_drops() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let ranges: Vec<_> = (100..200).map(RangeId).collect();
    for &range in &ranges {
        node.engine.add_range(range, KeyRange::ALL).unwrap();
    }
    disk.set_full(true);
    put_blobs(&mut node);
    let left = left_bytes(&disk);
    assert!((8 << 10..20 << 10).contains(&left), "{left} bytes");
    for &range in &ranges {
        assert_eq!(node.engine.drop_range(range), Ok(()), "{range:?}: {} of {left} bytes are left", left_bytes(&disk));
        // Longer than a commit waits for another one that certifies it.
        for _ in 0..20 {
            node.now = node.now.plus_ms(10);
            node.turn();
        }
    }
    assert_eq!(node.engine.poisoned(), None);
}

/// A clear is committed, and a full device has no space to list it. Deletes make space all the same: the clear is
/// listed, and puts are taken within a minute.
#[test]
fn a_full_store_with_an_unlisted_clear_serves_again_after_deletes() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    for range in [OTHER, CLEARED] {
        node.engine.add_range(range, KeyRange::ALL).unwrap();
    }
    let epoch = node.engine.next_sole_epoch(CLEARED).unwrap();
    node.engine.begin_sole_epoch(CLEARED, epoch, None).unwrap();
    let version = |seq| Version::new(epoch, seq).unwrap();
    let record = RecordRef::put(version(1), b"cleared", &[1; 100]);
    node.engine.append(CLEARED, TestNode::hash(b"cleared"), &record).unwrap();
    node.turn();
    node.engine.commit(CLEARED, version(1));
    for key in 0..60 {
        write(&mut node, &[put(key, QUARTER)]);
    }
    node.settle();
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    // Puts that are so short leave the space for deletes.
    let taken = (1_000..2_000).take_while(|&key| attempt(&mut node, put(key, 300))).count();
    assert!(taken < 1_000, "the device is full");
    put_blobs(&mut node);
    fill_to(&mut node, &disk, 255);
    node.engine.clear(CLEARED, version(2)).unwrap();
    node.turn();
    node.engine.commit(CLEARED, version(2));
    for _ in 0..3 {
        node.turn();
    }
    let cleared = || decode_all(&disk.contents("manifest").unwrap()).unwrap().state.ranges[&CLEARED].cleared;
    assert!(cleared() < version(2), "{} bytes were enough", left_bytes(&disk));
    assert!(!attempt(&mut node, put(2_000, QUARTER)), "it is full");
    (0..10).for_each(|segment| delete_segment(&mut node, segment));
    let since = node.now;
    for key in 3_000..3_008 {
        while !attempt(&mut node, put(key, QUARTER)) {
            node.now = node.now.plus_ms(100);
            assert!(node.now.mono.ms_since(since.mono) < 60_000, "it stays full: {:?}", node.engine);
        }
    }
    poll_for_a_minute(&mut node);
    assert_eq!(cleared(), version(2));
    for key in [40, 59, 3_000, 3_007] {
        assert!(node.get(&put(key, 0).key, View::Committed).unwrap().is_some(), "{key}");
    }
}

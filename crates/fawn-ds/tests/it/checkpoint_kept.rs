//! Checkpoints that are given up, refused or missing: what is kept of them, and when the next one is listed.
use crate::checkpoint::{files, listed};
use crate::manifest_order::{OTHER, fill_to, left_bytes, put_blobs};
use crate::range_harness::ring_at;
use crate::reclaiming::{put, write};
use crate::splits::{file, fill, whole};
use crate::support::{TestNode, scanned, small};
use fawn_ds::internals::{Options, RecordRef, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyRange, Now, Version};

fn options() -> Options {
    small(Durability::Sync)
}

/// The device becomes full while a checkpoint is written. Its listing frees no space: with the last bytes of the
/// manifest it would take those of the drop of a range.
#[test]
fn a_checkpoint_leaves_the_last_space_of_the_manifest_to_drops() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    disk.set_full(true);
    put_blobs(&mut node);
    fill_to(&mut node, &disk, 319);
    let left = left_bytes(&disk);
    assert!((256..320).contains(&left), "{left} bytes are enough for one more edit that frees space");
    // The time stands still: no other commit is due while the device has space.
    disk.set_full(false);
    for key in 0.. {
        assert!(key < 30, "no checkpoint begins: {:?}", node.engine);
        node.append(&[put(key, 1_000)]).unwrap();
        node.turn();
        if !files(&disk).is_empty() {
            break;
        }
    }
    disk.set_full(true);
    assert_eq!((left_bytes(&disk), listed(&disk)), (left, Vec::new()));
    for _ in 0..20 {
        node.turn();
    }
    assert_eq!(node.engine.drop_range(OTHER), Ok(()), "{} bytes are left", left_bytes(&disk));
    assert_eq!((files(&disk), node.engine.poisoned()), (Vec::new(), None));
}

/// A checkpoint that was due because many keys are overwritten is given up. The keys count for the next one as well:
/// without it, an opening would find more of them than it has memory for.
#[test]
fn a_checkpoint_that_is_given_up_is_due_again_for_the_same_keys() {
    const KEYS: u64 = 12_000;
    // A log that is long enough only with many overwritten keys.
    let options = Options { segment_bytes: 1 << 20, checkpoint_log_bytes_min: 4 << 20, ..options() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    let append = |node: &mut TestNode, key: u64, len: usize| {
        node.append(&[put(key, len)]).unwrap();
        if key.is_multiple_of(16) {
            node.turn();
        }
    };
    (0..KEYS).for_each(|key| append(&mut node, key, 190));
    node.settle();
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, options, Now::at(2_000_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some_and(|entries| entries > 6_000), "{:?}", node.report);
    let known = files(&disk);
    // Each of a segment before the checkpoint's position, and once.
    for key in 0.. {
        assert!(key < 6_000, "no checkpoint begins: {:?}", node.engine.stats());
        append(&mut node, key, 240);
        if files(&disk).len() > known.len() {
            break;
        }
    }
    // Of an empty range: the drop gives up what is in progress.
    node.engine.drop_range(OTHER).unwrap();
    for _ in 0..10 {
        node.turn();
    }
    node.settle();
    assert_eq!((files(&disk), node.engine.stats().checkpoints), (known, 0));
    node.now = node.now.plus_ms(11_000);
    for _ in 0..50 {
        node.turn();
    }
    assert_eq!(node.engine.stats().checkpoints, 1);
}

/// The file of a listed checkpoint is gone. The opening takes the one before, drops the missing one from the manifest,
/// and the store takes writes: a checkpoint is only a shortcut.
#[test]
fn a_store_whose_checkpoint_is_missing_takes_writes() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    for i in 0..300 {
        write(&mut node, &[put(i % 100, 700)]);
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let names = listed(&disk);
    assert_eq!(names.len(), 2);
    let mut device = SimDevice::attach(&disk);
    device.unlink(&names[1]).unwrap();
    device.sync_dir().unwrap();
    drop(device);
    let mut node = TestNode::open(&disk, options(), Now::at(2_000_000)).unwrap();
    let refused: Vec<_> = node.report.checkpoints_refused.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!((refused, node.report.checkpoint_entries.is_some()), (vec![names[1].clone()], true));
    write(&mut node, &[put(100, 700)]);
    node.settle();
    assert_eq!(node.engine.poisoned(), None);
    for key in 0..=100 {
        assert!(node.get(&put(key, 0).key, View::Committed).unwrap().is_some(), "{key}");
    }
}

/// An opening on a full device seals the last segment where it ends, and the next opening begins a segment. A
/// checkpoint that is due then is listed without a record in it: a full or idle store may write none for long.
#[test]
fn a_checkpoint_does_not_wait_for_the_first_record_of_a_segment() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    for key in 0..20 {
        write(&mut node, &[put(key, 1_000)]);
    }
    node.settle();
    drop(node.engine.close().unwrap());
    // The manifest has its space, the rest of the segment has none.
    for nth in 3..9 {
        disk.fail_nth(OpKind::Allocate, nth, DeviceFault::Full);
    }
    let node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(2_000_000)).unwrap();
    assert!(node.engine.is_full());
    drop(node);
    disk.clear_faults();
    let mut node = TestNode::open(&disk, options(), Now::at(3_000_000)).unwrap();
    assert_eq!((node.engine.log_report().segments, node.report.checkpoint_entries), (2, None));
    for _ in 0..50 {
        node.turn();
        node.now = node.now.plus_ms(10);
    }
    assert_eq!((node.engine.stats().checkpoints, listed(&disk).len()), (1, 1), "{:?}", node.engine.watermarks());
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open(&disk, options(), Now::at(4_000_000)).unwrap();
    assert_eq!((node.report.checkpoint_entries.is_some(), node.report.checkpoints_refused.len()), (true, 0));
    assert!((0..20).all(|key| node.get(&put(key, 0).key, View::Committed).unwrap().is_some()));
}

/// Each further checkpoint began where the last one does, and spared an opening nothing.
#[test]
fn a_record_that_is_not_committed_has_no_checkpoint_repeated() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    // A refused checkpoint is not due again before ten seconds have passed.
    let put_all = |node: &mut TestNode, keys: core::ops::Range<u64>| {
        for key in keys {
            write(node, &[put(key, 1_000)]);
            if key.is_multiple_of(10) {
                node.now = node.now.plus_ms(2_000);
            }
        }
        (0..20).for_each(|_| _ = node.turn());
        node.engine.stats().checkpoints
    };
    put_all(&mut node, 0..200);
    let version = Version::new(Epoch::new(node.engine.generation()).unwrap(), 1).unwrap();
    let record = RecordRef::put(version, b"key", b"value");
    node.engine.append(OTHER, TestNode::hash(b"key"), &record).unwrap();
    let listed = put_all(&mut node, 200..500);
    assert!(listed > 2, "{listed} checkpoints");
    assert_eq!(put_all(&mut node, 500..1_000), listed, "the position is still the same");
    // An opening would find the old versions of these keys in the image.
    let overwritten = put_all(&mut node, 0..100);
    assert!(overwritten > listed);
    node.engine.commit(OTHER, version);
    assert!(put_all(&mut node, 1_000..1_100) > overwritten);
}

/// Options with which only a close writes a checkpoint of a small store.
fn only_at_close() -> Options {
    Options { segment_bytes: 1 << 20, checkpoint_log_bytes_min: 64 << 20, ..small(Durability::Sync) }
}

fn some_keys() -> Vec<Vec<u8>> {
    (0..20_000).map(|i| format!("key {i}").into_bytes()).collect()
}

/// Nothing is written after the last checkpoint, and its index may have entries of a range that is gone since.
#[test]
fn a_close_writes_another_checkpoint_after_a_merge_has_dropped_the_last_one() {
    let mut harness = whole(1, only_at_close(), true);
    fill(&mut harness, &some_keys(), 1);
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    assert_eq!(listed(&harness.disk), Vec::<String>::new());
    let mut harness = harness.close_and_open();
    assert_eq!(listed(&harness.disk).len(), 1);
    harness.merge(2, 3, 4);
    assert_eq!(listed(&harness.disk), Vec::<String>::new());
    let harness = harness.close_and_open();
    assert_eq!(listed(&harness.disk).len(), 1);
}

/// A segment is being filed for the parts of a range, and its read hangs. A close does not wait for it, and nothing moves any more.
#[test]
fn a_close_while_a_segment_is_filed_writes_a_checkpoint() {
    let mut harness = whole(1, only_at_close(), true);
    fill(&mut harness, &some_keys(), 1);
    harness.disk.hang(OpKind::Read);
    harness.split(1, ring_at(0x80), 2, 3);
    for _ in 0..20 {
        harness.now = harness.now.plus_ms(100);
        harness.engine.poll(harness.now, &mut Vec::new());
    }
    assert!(harness.disk.hung() > 0 && harness.engine.segments_to_file() > 0, "{:?}", harness.engine);
    let disk = harness.disk.clone();
    harness.engine.close().unwrap();
    assert_eq!(listed(&disk).len(), 1);
}

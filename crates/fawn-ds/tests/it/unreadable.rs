//! Unreadable old versions: they delay neither writes nor a close, and are retried with back-off until the disk is
//! readable again.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, Options, RecordRef, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// Options with a segment large enough for all records.
fn options() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 16 << 20, ..small(Durability::Sync) }
}

fn put(key: u32, len: usize) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![7; len]), expires_at_ms: 0 }
}

/// A reopened store with `keys` keys, so that none of their pages is in memory.
fn cold(keys: u32, value_len: usize) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for key in 0..keys {
        node.append(&[put(key, value_len)]).unwrap();
        if key % 50 == 0 {
            node.turn();
        }
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    (disk, node)
}

/// Makes every record of the first opening unreadable; those of the second one are in another segment.
fn break_segments(disk: &SimDisk) {
    for name in disk.names().iter().filter(|name| name.starts_with("segment-")) {
        disk.make_unreadable(name, 4096..1 << 20);
    }
}

#[test]
fn one_unreadable_old_version_is_read_with_back_off() {
    let (disk, mut node) = cold(100, 900);
    break_segments(&disk);
    let before = disk.counted(OpKind::Read);
    node.append(&[put(3, 10)]).unwrap();
    for _ in 0..1000 {
        node.turn();
    }
    assert_eq!(disk.counted(OpKind::Read) - before, 1, "no time has passed since the first attempt");
    assert_eq!(node.engine.log_report().keys_apart, 1);
    assert_eq!(node.engine.log_report().verifications_queued, 0);
    for _ in 0..6000 {
        node.now = node.now.plus_ms(100);
        node.turn();
    }
    let reads = disk.counted(OpKind::Read) - before;
    assert!((10..=25).contains(&reads), "{reads} reads in ten minutes");
    assert_eq!(node.engine.stats().verifications_failed, reads);
    // Until then, lookups of the key use the new entry, whatever is written to it.
    assert_eq!(node.get(&3_u32.to_be_bytes(), View::Committed).unwrap().unwrap().value.len(), 10);
    node.append(&[TestWrite { value: None, ..put(3, 0) }]).unwrap();
    node.turn();
    node.turn();
    assert_eq!(node.get(&3_u32.to_be_bytes(), View::Committed).unwrap(), None);
    assert!(node.get(&4_u32.to_be_bytes(), View::Committed).is_err(), "what cannot be read is no miss");
    disk.heal();
    node.now = node.now.plus_ms(60_000);
    node.settle();
    assert_eq!(node.engine.log_report().keys_apart, 0);
    assert_eq!(node.engine.len(RANGE), 99);
}

#[test]
fn closing_ends_however_many_old_versions_cannot_be_read() {
    for kind in ["fails", "hangs"] {
        let (disk, mut node) = cold(300, 900);
        if kind == "fails" {
            break_segments(&disk);
        } else {
            disk.hang(OpKind::Read);
        }
        for key in 0..300 {
            node.append(&[put(key, 10)]).unwrap();
        }
        node.turn();
        let before = disk.counted(OpKind::Read);
        drop(node.engine.close().unwrap());
        let reads = disk.counted(OpKind::Read) - before;
        assert!(reads <= 300, "{reads} reads while closing: each old version at most once; a read {kind}");
        disk.heal();
        disk.release_hung();
        let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
        for key in 0..300_u32 {
            let found = node.get(&key.to_be_bytes(), View::Committed).unwrap();
            assert_eq!(found.unwrap().value.len(), 10, "key {key}");
        }
    }
}

#[test]
fn unreadable_old_versions_do_not_stop_other_writes() {
    const KEYS: u32 = 5000;
    let (disk, mut node) = cold(KEYS, 20);
    break_segments(&disk);
    for key in 0..KEYS {
        node.append(&[put(key, 10)]).unwrap();
        if key % 50 == 0 {
            node.turn();
        }
    }
    for _ in 0..200 {
        node.turn();
    }
    // A few records are in pages that the opening has read.
    let apart = node.engine.log_report().keys_apart;
    assert!(apart > 4900, "{apart} keys apart, of which 4096 once stopped all writes");
    for key in KEYS..KEYS + 500 {
        let version = node.next_version();
        let key = key.to_be_bytes();
        node.engine.append(RANGE, TestNode::hash(&key), &RecordRef::put(version, &key, b"x")).unwrap();
        node.turn();
    }
    assert_eq!(node.engine.poisoned(), None);
    disk.heal();
    node.now = node.now.plus_ms(60_000);
    node.settle();
    assert_eq!(node.engine.len(RANGE), u64::from(KEYS) + 500);
}

/// More corrupt old versions than a former fixed bound on keys in flight: no later read resolves them.
#[test]
fn corrupt_old_versions_have_no_dead_end() {
    const KEYS: u32 = (1 << 18) + 2000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 32 << 20, memory_bytes: 256 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
    for key in 0..KEYS {
        node.append(&[put(key, 4)]).unwrap();
        if key % 2000 == 0 {
            node.turn();
        }
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, options, Now::at(2)).unwrap();
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    let len = disk.contents(&name).unwrap().len() as u64;
    // One byte of every record's checksum.
    for offset in (4096..len).step_by(32) {
        disk.flip_bits(&name, offset, 1);
    }
    for key in 0..KEYS {
        node.append(&[put(key, 4)]).unwrap();
        if key % 500 == 0 {
            node.turn();
        }
    }
    for _ in 0..5000 {
        node.turn();
    }
    let apart = node.engine.log_report().keys_apart;
    assert!(apart > 1 << 18, "{apart} keys apart");
    node.append(&[put(KEYS, 4)]).unwrap();
    node.turn();
    assert!(node.get(&KEYS.to_be_bytes(), View::Committed).unwrap().is_some());
    drop(node.engine.close().unwrap());
}

/// Without memory for more unreadable keys, only writes that might add one are rejected, with a reason.
#[test]
fn more_unreadable_old_versions_than_memory_has_room_for_are_refused() {
    let (disk, node) = cold(5000, 20);
    drop(node.engine.close().unwrap());
    let options = Options { memory_bytes: 1 << 20, ..options() };
    let mut node = TestNode::open(&disk, options, Now::at(3)).unwrap();
    break_segments(&disk);
    let mut refused = None;
    for key in 0..5000 {
        if let Err(error) = node.append(&[put(key, 10)]) {
            refused = Some((key, error));
            break;
        }
        node.turn();
    }
    let Some((key, EngineError::TooCorrupt { keys })) = refused else { panic!("{refused:?}") };
    assert!(keys <= u64::from(key) && keys > 1000, "{keys} of {key}");
    assert!(node.engine.memory().overlay_bytes <= 1 << 20, "{:?}", node.engine.memory());
    for key in (0..100).chain(5000..5500) {
        node.append(&[put(key, 30)]).unwrap();
        node.turn();
    }
    assert_eq!(node.engine.poisoned(), None);
}

#[test]
fn a_rolled_back_write_leaves_nothing_apart() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    for key in 0..50 {
        node.append(&[put(key, 900)]).unwrap();
        node.turn();
    }
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(2)).unwrap();
    // Records committed after the last mark in the log are pending again.
    let recovered = node.engine.progress(RANGE).appended;
    node.engine.commit(RANGE, recovered);
    node.settle();
    disk.fail_every(OpKind::Read, DeviceFault::Fail);
    for _ in 0..20 {
        for key in 0..50 {
            let version = node.next_version();
            let key = u32::to_be_bytes(key);
            node.engine.append(RANGE, TestNode::hash(&key), &RecordRef::put(version, &key, b"new")).unwrap();
        }
        let mut events = Vec::new();
        for _ in 0..20 {
            node.engine.submit(node.now);
            node.engine.wait(node.now, &mut events);
        }
        assert!(node.engine.log_report().keys_apart > 40);
        node.engine.rollback(RANGE, recovered).unwrap();
        assert_eq!(node.engine.log_report().keys_apart, 0);
        assert_eq!(node.engine.log_report().overlay_keys, 0);
    }
    disk.clear_faults();
    for key in 0..50_u32 {
        let found = node.get(&key.to_be_bytes(), View::Latest).unwrap();
        assert_eq!(found.unwrap().value.len(), 900, "key {key}");
    }
}

#[test]
fn no_flipped_bit_of_a_flushed_record_makes_its_lookup_read_for_ever() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 1 << 20, record_cache_bytes: Some(0), ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    for key in 0..300 {
        node.append(&[put(key, 900)]).unwrap();
        node.settle();
    }
    // Some records are in the window: the segment ends behind what is flushed.
    let reads = |node: &mut TestNode, key: u32| {
        let before = disk.counted(OpKind::Read);
        assert!(node.get(&key.to_be_bytes(), View::Committed).unwrap().is_some());
        disk.counted(OpKind::Read) > before
    };
    let last = (0..300).rev().find(|&key| reads(&mut node, key)).unwrap();
    assert!(last < 299, "the newest record is in the window");
    // No page of this one was read. Later, a lookup that finds corruption drops the pages from the cache.
    let key = last - 12;
    disk.hang(OpKind::Write);
    for later in 300..330 {
        node.append(&[put(later, 900)]).unwrap();
    }
    node.turn();
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    // The key ends where its value begins.
    let (content, record) = (disk.contents(&name).unwrap(), [&key.to_be_bytes()[..], &[7; 900]].concat());
    let at = content.windows(record.len()).position(|bytes| bytes == record).unwrap();
    let (mut corrupt, before) = (0, disk.counted(OpKind::Read));
    for bit in 0..8 * 28 {
        let (offset, mask) = ((at - 24 + bit / 8) as u64, 1 << (bit % 8));
        disk.flip_bits(&name, offset, mask);
        match node.get(&key.to_be_bytes(), View::Committed) {
            Err(EngineError::Corrupt { .. }) => corrupt += 1,
            found => panic!("bit {bit}: {:?}", found.map(|entry| entry.map(|entry| entry.value.len()))),
        }
        disk.flip_bits(&name, offset, mask);
    }
    assert_eq!(corrupt, 8 * 28);
    assert!(disk.counted(OpKind::Read) - before <= 3 * 8 * 28, "reads of one lookup are bounded");
}

/// Overwrites keys of 64 pages, whose reads do not end.
fn hang_pages(disk: &SimDisk, node: &mut TestNode) {
    disk.hang(OpKind::Read);
    let mut key = 0;
    while disk.hung() < 64 {
        node.append(&[put(key, 10)]).unwrap();
        node.turn();
        key += 20;
    }
    disk.end_faults(OpKind::Read);
}

/// Reads of a part of the device may take minutes. As many as are in flight at a time once stopped all writes.
#[test]
fn old_versions_whose_reads_hang_do_not_stop_other_writes() {
    const KEYS: u32 = 6000;
    let (disk, mut node) = cold(KEYS, 100);
    hang_pages(&disk, &mut node);
    for key in 0..KEYS {
        node.append(&[put(key, 10)]).unwrap();
        if key % 50 == 0 {
            node.turn();
        }
    }
    for _ in 0..100 {
        node.now = node.now.plus_ms(50);
        node.turn();
    }
    let report = node.engine.log_report();
    assert_eq!((disk.hung(), report.verifications_queued), (64, 0), "{report:?}");
    let apart = report.keys_apart;
    assert!((64..2_500).contains(&apart), "{apart} keys of 64 pages");
    for key in 0..KEYS {
        assert_eq!(node.get(&key.to_be_bytes(), View::Committed).unwrap().unwrap().value.len(), 10);
    }
    disk.release_hung();
    node.now = node.now.plus_ms(60_000);
    node.settle();
    assert_eq!((node.engine.log_report().keys_apart, node.engine.len(RANGE)), (0, u64::from(KEYS)));
}

/// As many pages as reads may be left and in flight once stopped all writes, whatever other pages they needed.
#[test]
fn writes_go_on_however_many_pages_hang() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 4 << 20, memory_bytes: 64 << 20, ..options() };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
    for key in 0..12_000 {
        node.append(&[put(key, 200)]).unwrap();
        if key % 50 == 0 {
            node.turn();
        }
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, options, Now::at(2)).unwrap();
    disk.hang(OpKind::Read);
    for key in (0..6_000).step_by(20) {
        node.append(&[put(key, 10)]).unwrap();
        node.turn();
        node.now = node.now.plus_ms(10);
    }
    assert_eq!(disk.hung(), 128);
    disk.end_faults(OpKind::Read);
    for key in 6_000..12_000 {
        node.append(&[put(key, 10)]).unwrap();
        node.turn();
    }
    disk.release_hung();
    for _ in 0..1_000 {
        node.now = node.now.plus_ms(60);
        node.turn();
    }
    let report = node.engine.log_report();
    assert_eq!((report.keys_apart, report.verifications_queued, node.engine.len(RANGE)), (0, 0, 12_000));
}

/// Each of them has a buffer, and pins its segment.
#[test]
fn a_device_that_answers_no_verification_gets_few_of_them() {
    let (disk, mut node) = cold(6000, 100);
    hang_pages(&disk, &mut node);
    disk.hang(OpKind::Read);
    for key in (3000..6000).step_by(10) {
        node.append(&[put(key, 10)]).unwrap();
        node.turn();
        node.now = node.now.plus_ms(100);
    }
    assert_eq!(disk.hung(), 128);
    disk.release_hung();
    disk.end_faults(OpKind::Read);
    node.now = node.now.plus_ms(60_000);
    node.settle();
    assert_eq!((node.engine.log_report().keys_apart, node.engine.len(RANGE)), (0, 6000));
}

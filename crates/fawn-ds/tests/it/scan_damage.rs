//! Tests of scans and copies over corrupt records: a scan passes them and says where they are, a copy never passes one.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{
    CorruptRecord, EngineError, LookupPlan, Options, Scan, ScanStep, TransferPlace, TransferScan, TransferStep, View,
};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};
use std::collections::BTreeSet;

const KEYS: u32 = 300;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, ..small(Durability::Sync) }
}

/// One record a page, closed: key `i` is in page `i + 1` of its segment.
fn cold() -> (SimDisk, String) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, Options { pad_frames: true, ..options() }, Now::at(1)).unwrap();
    for key in 0..KEYS {
        node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![7; 3000]), expires_at_ms: 0 }])
            .unwrap();
        node.settle();
    }
    drop(node.engine.close().unwrap());
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    (disk, name)
}

/// Runs a step of a scan to its end.
fn finish_step(node: &mut TestNode, scan: &mut Scan) {
    for _ in 0..10_000 {
        let ScanStep::Read(plan) = node.engine.scan_step(scan, node.now.wall).unwrap() else { return };
        node.engine.read(plan, 42);
        let plan = node.wait_for_plan();
        node.engine.absorb_scan(scan, plan).unwrap();
    }
    panic!("the step does not end");
}

/// Reads for a scan until `is_due`, and returns the plan of the next read, completed.
fn read_until(node: &mut TestNode, scan: &mut Scan, is_due: impl Fn(&Scan) -> bool) -> LookupPlan {
    loop {
        let ScanStep::Read(plan) = node.engine.scan_step(scan, node.now.wall).unwrap() else { panic!("it ended") };
        node.engine.read(plan, 42);
        let plan = node.wait_for_plan();
        if is_due(scan) {
            return plan;
        }
        node.engine.absorb_scan(scan, plan).unwrap();
    }
}

/// Writes keys again, and waits until nothing needs their old versions any more.
fn overwrite(node: &mut TestNode, keys: impl Iterator<Item = u32>) {
    for key in keys {
        node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![8; 10]), expires_at_ms: 0 }])
            .unwrap();
        node.turn();
    }
    for _ in 0..20 {
        node.turn();
        node.now = node.now.plus_ms(10);
    }
}

fn keys_of(scan: &Scan) -> Vec<u32> {
    scan.items.iter().map(|item| u32::from_be_bytes(item.key[..].try_into().unwrap())).collect()
}

/// All keys and all corrupt records of a scan.
fn scan(node: &mut TestNode) -> (BTreeSet<u32>, Vec<CorruptRecord>) {
    let (mut cursor, mut keys, mut corrupt) = (0, BTreeSet::new(), Vec::new());
    for _ in 0..10_000 {
        let mut scan = Scan::new(RANGE, cursor, 10);
        finish_step(node, &mut scan);
        keys.extend(keys_of(&scan));
        corrupt.append(&mut scan.corrupt);
        cursor = scan.cursor;
        if cursor == 0 {
            return (keys, corrupt);
        }
    }
    panic!("the scan does not end: at {cursor} after {} keys", keys.len());
}

#[test]
fn a_scan_passes_what_is_damaged_and_what_cannot_be_read() {
    let (disk, name) = cold();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    disk.flip_bits(&name, 4096 * 11 + 200, 1);
    disk.make_unreadable(&name, 4096 * 51 + 512..4096 * 51 + 1024);
    let lost: BTreeSet<u32> = (0..KEYS).filter(|key| node.get(&key.to_be_bytes(), View::Committed).is_err()).collect();
    assert!((2..=4).contains(&lost.len()), "{lost:?}");
    let (keys, corrupt) = scan(&mut node);
    assert_eq!(keys, (0..KEYS).filter(|key| !lost.contains(key)).collect());
    assert_eq!(corrupt.len(), lost.len(), "{corrupt:?}");
    assert!(corrupt.iter().all(|record| record.file == name), "{corrupt:?}");
    let is_at = |page: u32| corrupt.iter().any(|record| record.offset_bytes / 4096 == page);
    assert!(is_at(11) && is_at(51), "{corrupt:?}");
    // A read that fails for the first time may succeed later, so its record is not lost yet.
    let lost_at = |corrupt: &[CorruptRecord]| {
        let is_lost = |record: &&CorruptRecord| record.is_lost;
        corrupt.iter().filter(is_lost).map(|record| record.offset_bytes / 4096).collect::<BTreeSet<_>>()
    };
    let rotten = lost_at(&corrupt);
    assert!(rotten.contains(&11) && !rotten.contains(&51), "{corrupt:?}");
    assert_eq!(node.engine.stats().corrupt_passed, corrupt.iter().filter(|record| record.is_lost).count() as u64);
    node.now = node.now.plus_ms(9_999);
    node.settle();
    assert_eq!(lost_at(&scan(&mut node).1), rotten, "the reads have not failed for long");
    node.now = node.now.plus_ms(1);
    node.settle();
    assert!(lost_at(&scan(&mut node).1).contains(&51), "the reads have failed for long");
    disk.heal();
    assert_eq!(scan(&mut node).0.len() as u32, KEYS - 1, "what could only not be read is there again");
}

/// A step over a damaged store is as short as any other: the records that it passes count.
#[test]
fn corrupt_records_count_in_a_step() {
    let (disk, name) = cold();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    disk.make_unreadable(&name, 4096..4096 * u64::from(KEYS));
    let (mut cursor, mut steps, mut passed) = (0, 0, 0);
    loop {
        let mut scan = Scan::new(RANGE, cursor, 10);
        finish_step(&mut node, &mut scan);
        assert!(scan.corrupt.len() <= 10 + 64, "{} records in one step", scan.corrupt.len());
        (steps, passed) = (steps + 1, passed + scan.corrupt.len());
        cursor = scan.cursor;
        if cursor == 0 {
            break;
        }
    }
    assert!(passed > KEYS as usize / 2 && steps >= 5, "{passed} records in {steps} steps");
}

/// A lack of descriptors is no fault of the record: the step is repeated, and has every key.
#[test]
fn a_read_that_is_refused_for_now_passes_no_record() {
    let (disk, _) = cold();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    let mut scan = Scan::new(RANGE, 0, KEYS as usize);
    disk.fail_every(OpKind::Read, DeviceFault::Exhausted);
    let plan = read_until(&mut node, &mut scan, |_| true);
    let refused = node.engine.absorb_scan(&mut scan, plan);
    assert!(matches!(&refused, Err(EngineError::Device(error)) if error.is_retryable()), "{refused:?}");
    disk.clear_faults();
    finish_step(&mut node, &mut scan);
    assert_eq!((scan.corrupt.len(), scan.items.len() as u32, scan.cursor), (0, KEYS, 0));
}

/// A failed read is only one of a current record if the record still is current when the failure is known. Otherwise
/// the key is found where it was written since.
#[test]
fn a_failed_read_of_what_was_written_again_passes_no_key() {
    for (is_dropped, nth) in [(false, 1), (false, 2), (true, 1), (true, 2), (true, 3)] {
        let (disk, name) = cold();
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        let mut scan = Scan::new(RANGE, 0, KEYS as usize);
        disk.fail_nth(OpKind::Read, nth, DeviceFault::Fail);
        let plan = read_until(&mut node, &mut scan, |scan| scan.items.len() as u64 == nth - 1);
        // The scan began with the lowest hashes, so this key is not the one that was read.
        let last = (0..200).max_by_key(|key: &u32| TestNode::hash(&key.to_be_bytes()).0).unwrap();
        overwrite(&mut node, (0..KEYS).filter(|key| is_dropped || *key != last));
        assert_eq!(!disk.names().contains(&name), is_dropped, "{:?}", node.engine.segments_kept());
        node.engine.absorb_scan(&mut scan, plan).unwrap();
        finish_step(&mut node, &mut scan);
        let found: BTreeSet<_> = keys_of(&scan).into_iter().collect();
        assert_eq!((found.len() as u32, scan.corrupt.len()), (KEYS, 0), "dropped: {is_dropped}, read {nth}");
    }
}

/// A cell that is read again, because a segment was dropped meanwhile, gives its keys and its corrupt records once.
#[test]
fn a_cell_that_is_read_again_is_reported_once() {
    for is_damaged in [false, true] {
        let (disk, first) = cold();
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        let second = disk.names().into_iter().find(|name| name.starts_with("segment-") && *name != first).unwrap();
        if is_damaged {
            disk.make_unreadable(&second, 4096..1 << 20);
        }
        let mut scan = Scan::new(RANGE, 0, KEYS as usize);
        let plan = read_until(&mut node, &mut scan, |scan| match is_damaged {
            true => scan.corrupt.len() > 1,
            false => scan.items.len() > 1,
        });
        overwrite(&mut node, 0..255);
        assert!(!disk.names().contains(&first), "{:?}", node.engine.segments_kept());
        node.engine.absorb_scan(&mut scan, plan).unwrap();
        finish_step(&mut node, &mut scan);
        let (keys, corrupt) = (keys_of(&scan), scan.corrupt.iter().map(|record| record.offset_bytes));
        let (once, corrupt_once) = (keys.iter().collect::<BTreeSet<_>>(), corrupt.clone().collect::<BTreeSet<_>>());
        assert_eq!(keys.len(), once.len(), "damaged: {is_damaged}");
        assert_eq!(corrupt.count(), corrupt_once.len(), "damaged: {is_damaged}");
    }
}

/// Neither the old version of a key nor its new one can be read, so the index never learns of the new one.
#[test]
fn a_scan_ends_though_an_unconfirmed_record_cannot_be_read() {
    let (disk, _) = cold();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    let make_unreadable = || {
        for name in disk.names().iter().filter(|name| name.starts_with("segment-")) {
            disk.make_unreadable(name, 4096..1 << 20);
        }
    };
    make_unreadable();
    overwrite(&mut node, 3..4);
    assert_eq!(node.engine.log_report().keys_apart, 1);
    // Other writes take its place in memory.
    disk.heal();
    for key in KEYS..2 * KEYS {
        let write = TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![7; 3000]), expires_at_ms: 0 };
        node.append(&[write]).unwrap();
        node.turn();
    }
    make_unreadable();
    let (keys, corrupt) = scan(&mut node);
    assert!(!keys.contains(&3) && corrupt.len() as u32 > KEYS, "{} keys, {} corrupt", keys.len(), corrupt.len());
}

#[test]
fn values_up_to_the_limit_come_with_their_keys() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for len in [9, 10, 11] {
        node.append(&[TestWrite { key: vec![len], value: Some(vec![7; len.into()]), expires_at_ms: 0 }]).unwrap();
    }
    node.settle();
    let mut scan = Scan::new(RANGE, 0, 100).with_values(10);
    finish_step(&mut node, &mut scan);
    let mut found: Vec<_> = scan.items.iter().map(|item| (item.key[0], item.value.is_some())).collect();
    found.sort_unstable();
    assert_eq!(found, [(9, true), (10, true), (11, false)]);
}

#[test]
fn a_transfer_fails_at_a_damaged_record_and_names_it() {
    for is_unreadable in [false, true] {
        let (disk, name) = cold();
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        if is_unreadable {
            disk.make_unreadable(&name, 4096 * 51..4096 * 52);
        } else {
            disk.flip_bits(&name, 4096 * 51 + 200, 1);
        }
        let base = node.engine.progress(RANGE).committed;
        let mut copy = TransferScan::new(RANGE, TransferPlace::START, base, 64 << 10);
        let failed = loop {
            match node.engine.transfer_step(&mut copy, |_| ()) {
                Ok(TransferStep::Chunk { next: Some(_), .. }) => {}
                Ok(TransferStep::Chunk { next: None, .. }) => panic!("a copy without that record passes for whole"),
                Ok(TransferStep::Read(plan)) => {
                    node.engine.read(plan, 42);
                    let plan = node.wait_for_plan();
                    if let Err(error) = node.engine.absorb(plan) {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        match failed {
            EngineError::Corrupt { file, offset_bytes, .. } => {
                assert!(!is_unreadable && file == name && offset_bytes / 4096 == 51, "{file} {offset_bytes}");
            }
            EngineError::Device(_) => assert!(is_unreadable),
            other => panic!("{other}"),
        }
    }
}

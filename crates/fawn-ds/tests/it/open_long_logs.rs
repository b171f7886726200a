//! Openings of logs so long that a thread decodes them: they find the same, with as many reads of the device.
use crate::support::{TestNode, TestWrite, scanned};
use fawn_ds::internals::{OpenError, Options, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const SEGMENT_BYTES: u64 = 4 << 20;
const KEYS: u32 = 1500;
/// Versions of each key.
const ROUNDS: u32 = 3;
/// Records of a store.
const RECORDS: u32 = KEYS * ROUNDS;

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES as u32, memory_bytes: 16 << 20, ..scanned(Durability::Sync) }
}

fn put(key: u32, round: u32) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![round as u8; 2500]), expires_at_ms: 0 }
}

/// A closed store of three segments, in which the last version of every seventh key is a delete.
fn closed(keys: u32) -> SimDisk {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let rounds = RECORDS / keys;
    for round in 0..rounds {
        for key in 0..keys {
            let write = put(key, round);
            let is_deleted = round + 1 == rounds && key % 7 == 0;
            node.append(&[TestWrite { value: write.value.filter(|_| !is_deleted), ..write }]).unwrap();
            if key % 100 == 0 {
                node.settle();
            }
        }
    }
    node.settle();
    drop(node.engine.close().unwrap());
    disk
}

fn read_only(disk: &SimDisk) -> Result<TestNode, OpenError> {
    TestNode::open(disk, Options { read_only: true, ..options() }, Now::at(2))
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

fn has_all_keys(node: &mut TestNode) {
    for key in 0..KEYS {
        let found = node.get(&key.to_be_bytes(), View::Committed).unwrap().map(|entry| entry.value.to_vec());
        assert_eq!(found, put(key, ROUNDS - 1).value.filter(|_| key % 7 != 0), "key {key}");
    }
}

#[test]
fn a_long_log_opens_with_the_newest_records_and_the_same_reads_each_time() {
    let disk = closed(KEYS);
    assert!(segments(&disk).len() >= 3, "{:?}", segments(&disk));
    let mut reads = Vec::new();
    for _ in 0..3 {
        let before = disk.counted(OpKind::Read);
        let node = read_only(&disk).unwrap();
        reads.push((disk.counted(OpKind::Read) - before, node.report.clone()));
    }
    assert!(reads.iter().all(|found| *found == reads[0]), "{reads:?}");
    has_all_keys(&mut read_only(&disk).unwrap());
    has_all_keys(&mut TestNode::open(&disk, options(), Now::at(3)).unwrap());
}

#[test]
fn an_unreadable_part_of_a_long_log_is_the_error_of_its_opening() {
    let disk = closed(KEYS);
    let name = segments(&disk).remove(1);
    disk.make_unreadable(&name, SEGMENT_BYTES / 2..SEGMENT_BYTES / 2 + 1);
    for _ in 0..2 {
        let error = TestNode::open(&disk, options(), Now::at(2)).err().unwrap().to_string();
        assert!(error.contains(&name), "{error}");
    }
    disk.heal();
    has_all_keys(&mut TestNode::open(&disk, options(), Now::at(3)).unwrap());
}

#[test]
fn of_several_corrupt_segments_of_a_long_log_the_first_one_is_named() {
    let disk = closed(RECORDS);
    let names = segments(&disk);
    for name in [&names[1], &names[0]] {
        disk.flip_bits(name, SEGMENT_BYTES / 2 + 100, 1);
        match TestNode::open(&disk, options(), Now::at(2)).err() {
            Some(OpenError::Corrupt { file, from_bytes, to_bytes, .. }) => {
                assert_eq!(file, *name);
                assert!((from_bytes..to_bytes).contains(&(SEGMENT_BYTES as u32 / 2 + 100)), "{from_bytes}..{to_bytes}");
            }
            error => panic!("{error:?}"),
        }
    }
    assert_eq!(read_only(&disk).unwrap().report.damage.len(), 2);
}

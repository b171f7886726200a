//! Transfers and scans of records that cleaning moves to slots of removed segments: a pointer is then where another record was
//! before.
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use crate::transfer_reads::transfer;
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Options, Scan, ScanStep};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeSet;

/// Bits of a hash that name its cell: the index has 64 pages, which do not split.
const CELLS_BITS: u32 = 6;

const KEYS: usize = 300;

/// Keys of one cell.
fn keys() -> Vec<Vec<u8>> {
    let keys = (0..).map(|i| format!("key {i:06}").into_bytes());
    keys.filter(|key| TestNode::hash(key).0 >> (u64::BITS - CELLS_BITS) == 5).take(KEYS).collect()
}

/// Every third key keeps its record.
fn is_kept(i: usize) -> bool {
    i.is_multiple_of(3)
}

/// Records take a page each, so a slot has few places.
fn options() -> Options {
    let index = IndexOptions { entries_min: 64, page_entries: 60, ..IndexOptions::default() };
    Options { index, pad_frames: true, space_amplification_max_percent: 130, ..scanned(Durability::Sync) }
}

fn write(node: &mut TestNode, key: &[u8]) {
    let write = TestWrite { key: key.to_vec(), value: Some(vec![7; 1_000]), expires_at_ms: 0 };
    let version = node.append(&[write]).unwrap();
    while node.engine.progress(RANGE).committed < version {
        node.turn();
    }
    node.now = node.now.plus_ms(20);
}

fn loaded(seed: u64, options: Options, keys: &[Vec<u8>]) -> TestNode {
    loaded_on(&SimDisk::new(SimOptions { seed, ..SimOptions::default() }), options, keys)
}

fn loaded_on(disk: &SimDisk, options: Options, keys: &[Vec<u8>]) -> TestNode {
    let mut node = TestNode::open(disk, options, Now::at(1_000_000)).unwrap();
    keys.iter().for_each(|key| write(&mut node, key));
    node.settle();
    node
}

#[test]
fn a_copy_has_the_keys_whose_records_moved_to_where_others_were() {
    let keys = keys();
    // At the 50th read, not all records of the cell are listed yet; at the others, they are being gathered.
    for (seed, changed_at) in [50, 100, 200, 300].into_iter().flat_map(|read| [(0, read), (1, read), (2, read)]) {
        let (mut node, mut rng) = (loaded(seed, options(), &keys), Rng::new(seed));
        let base = node.engine.progress(RANGE).committed;
        let (sent, _) = transfer(&mut node, (base, 1 << 20, 2_000), |node, read| {
            let writes = if read == changed_at { 300 } else { 0 };
            for i in (0..writes).map(|_| rng.below(KEYS as u64) as usize).filter(|&i| !is_kept(i)) {
                write(node, &keys[i]);
            }
        });
        let dropped = node.engine.stats().segments_dropped;
        assert!(dropped > 40, "seed {seed}: {dropped} segments dropped");
        let missing = (0..KEYS).filter(|&i| is_kept(i) && !sent.contains_key(&keys[i])).count();
        assert_eq!(
            missing, 0,
            "seed {seed}, changed at read {changed_at}: keys that are there throughout are not sent"
        );
    }
}

/// Scans the cell; calls `at_read` before each read. Returns the keys that are met or kept, sorted.
fn scan(node: &mut TestNode, mut at_read: impl FnMut(&mut TestNode, &Scan, usize)) -> Vec<Vec<u8>> {
    let (mut scan, mut reads) = (Scan::of_log(RANGE, 0, KEYS), 0);
    while let ScanStep::Read(plan) = node.engine.scan_step(&mut scan, node.now.wall).unwrap() {
        reads += 1;
        assert!(reads < 2_000, "the scan does not end");
        at_read(node, &scan, reads);
        node.engine.read(plan, 42);
        let plan = node.wait_for_plan();
        node.engine.absorb_scan(&mut scan, plan).unwrap();
    }
    let mut met: Vec<Vec<u8>> = scan.items.into_iter().map(|item| item.key).chain(scan.kept).collect();
    met.sort();
    met
}

/// Segments are dropped once they have no live records, and not cleaned.
fn without_cleaning() -> Options {
    Options { space_amplification_max_percent: 100_000, ..options() }
}

#[test]
fn a_scan_meets_the_keys_that_are_overwritten_where_others_were() {
    let keys = keys();
    let mut node = loaded(1, without_cleaning(), &keys);
    let mut is_done = false;
    let met = scan(&mut node, |node, scan, _| {
        if is_done || scan.items.len() < KEYS / 2 {
            return;
        }
        is_done = true;
        let met: BTreeSet<&[u8]> = scan.items.iter().map(|item| &item.key[..]).collect();
        let dropped = node.engine.stats().segments_dropped;
        keys.iter().filter(|key| met.contains(&key[..])).for_each(|key| write(node, key));
        node.settle();
        assert!(node.engine.stats().segments_dropped >= dropped + 8, "the segments of the keys that were met");
        // Each segment of the other keys keeps some: if it were dropped, the cell would begin again.
        let others = keys.iter().filter(|key| !met.contains(&key[..])).enumerate();
        others.filter(|(i, _)| i % 5 > 0).for_each(|(_, key)| write(node, key));
    });
    assert!(is_done && met == keys, "{} of {KEYS} keys that are there throughout are met", met.len());
}

/// A step reads the cell within about 75 reads, four records at a time.
#[test]
fn a_scan_of_a_large_cell_ends_although_its_segments_are_dropped() {
    let keys = keys();
    let mut node = loaded(1, without_cleaning(), &keys);
    let mut batches = keys.chunks(20).cycle();
    let met = scan(&mut node, |node, _, reads| {
        if reads % 20 == 0 {
            // All records of a segment, which is dropped.
            batches.next().into_iter().flatten().for_each(|key| write(node, key));
            node.settle();
        }
    });
    let dropped = node.engine.stats().segments_dropped;
    assert!(dropped >= 3, "{dropped} segments dropped");
    assert!(met == keys, "{} of {KEYS} keys that are there throughout are met", met.len());
}

/// A step meets it as expired with a pending put, and again once that is committed.
#[test]
fn a_key_is_returned_once_although_its_cell_begins_again_behind_its_update() {
    let keys = keys();
    let (expiring, others) = keys.split_first().unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let mut node = loaded_on(&disk, without_cleaning(), others);
    let expires_at_ms = node.now.wall.0 + 1_000;
    node.append(&[TestWrite { key: expiring.clone(), value: Some(vec![7; 1_000]), expires_at_ms }]).unwrap();
    node.settle();
    node.now = node.now.plus_ms(2_000);
    disk.hang(OpKind::Write);
    node.append(&[TestWrite { key: expiring.clone(), value: Some(vec![8; 1_000]), expires_at_ms: 0 }]).unwrap();
    let mut is_done = false;
    let met = scan(&mut node, |node, scan, _| {
        if is_done || scan.kept.is_empty() {
            return;
        }
        is_done = true;
        disk.release_hung();
        let met: BTreeSet<&[u8]> = scan.items.iter().map(|item| &item.key[..]).collect();
        let dropped = node.engine.stats().segments_dropped;
        others.iter().filter(|key| !met.contains(&key[..])).for_each(|key| write(node, key));
        node.settle();
        assert!(node.engine.stats().segments_dropped > dropped, "a segment with keys to be read");
    });
    assert!(is_done && met == keys, "{} keys are returned of {KEYS}", met.len());
}

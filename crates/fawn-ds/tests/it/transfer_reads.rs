//! Reads of a transfer: their number is bounded, whatever is overwritten before or meanwhile.
use crate::sorted_files::{put, sort_out};
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, small};
use fawn_ds::internals::{Options, TransferPlace, TransferScan, TransferStep};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeMap;

/// More than a record that is assembled from cached pages: each look at such a record is a device read.
const LONG_BYTES: usize = 100 << 10;

/// A record that was sent.
pub(crate) struct SentRecord {
    pub(crate) value: Vec<u8>,
    pub(crate) version: Version,
    /// Reads of the transfer before it was sent.
    pub(crate) reads_before: usize,
}

pub(crate) type Sent = BTreeMap<Vec<u8>, SentRecord>;

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Segments that hold long records. Only the tests let runs change.
pub(crate) fn long_records(options: Options) -> Options {
    Options { segment_bytes: 512 << 10, space_amplification_max_percent: 100_000, ..options }
}

pub(crate) fn open(options: Options) -> TestNode {
    TestNode::open_in_chain(&SimDisk::new(SimOptions::instant(1)), options, Now::at(1_000)).unwrap()
}

/// Writes other records until those before are in no memory.
pub(crate) fn push_out(node: &mut TestNode) {
    for number in 0..60 {
        put(node, format!("other-{number}").as_bytes(), Some(&vec![9; LONG_BYTES]));
        node.turn();
    }
    node.settle();
}

/// Transfers the range in chunks of up to `bytes_max` bytes; passes the number of each read, from 1 on, to `at_read`. Returns
/// the number of reads, too.
///
/// # Panics
/// After `reads_max` reads.
pub(crate) fn transfer(
    node: &mut TestNode,
    bounds: (Version, usize, usize),
    at_read: impl FnMut(&mut TestNode, usize),
) -> (Sent, usize) {
    let (sent, errors) = transfer_in_spite_of_errors(node, bounds, at_read);
    assert_eq!(errors, 0);
    sent
}

/// As [`transfer`]; repeats steps that fail. Returns their number, too.
pub(crate) fn transfer_in_spite_of_errors(
    node: &mut TestNode,
    (base, bytes_max, reads_max): (Version, usize, usize),
    mut at_read: impl FnMut(&mut TestNode, usize),
) -> ((Sent, usize), u64) {
    let (mut sent, mut next, mut reads, mut errors) = (Sent::new(), Some(TransferPlace::START), 0, 0);
    while let Some(place) = next {
        let mut scan = TransferScan::new(RANGE, place, base, bytes_max);
        next = loop {
            let step = node.engine.transfer_step(&mut scan, |record| {
                let (value, version) = (record.value.to_vec(), record.version);
                sent.insert(record.key.to_vec(), SentRecord { value, version, reads_before: reads });
            });
            match step {
                Ok(TransferStep::Chunk { next, .. }) => break next,
                Ok(TransferStep::Read(plan)) => {
                    reads += 1;
                    assert!(reads <= reads_max, "the transfer does not end");
                    at_read(node, reads);
                    node.engine.read(plan, 42);
                    let plan = node.wait_for_plan();
                    node.engine.absorb(plan).unwrap();
                }
                Err(error) => {
                    errors += 1;
                    assert!(errors < 10, "{error}");
                }
            }
        };
    }
    ((sent, reads), errors)
}

/// Sorts keys with short values, then holds the list of runs.
pub(crate) fn sort_keys(node: &mut TestNode, count: u64) {
    (0..count).for_each(|number| put(node, &key(number), Some(b"short")));
    // So that their segment is sealed, and most of its bytes fit into runs.
    for number in 0..2_000 {
        put(node, format!("more-{number}").as_bytes(), Some(&[8; 300]));
        node.turn();
    }
    sort_out(node);
    assert!(node.engine.runs() > 0, "{:?}", node.engine);
    node.engine.hold_runs(true);
}

#[test]
fn sorted_keys_with_long_newer_records_do_not_take_each_others_read_away() {
    const KEYS: u64 = 12;
    let mut node = open(long_records(Options { sort_bytes: 1, ..sorted(Durability::Sync) }));
    sort_keys(&mut node, KEYS);
    (0..KEYS).for_each(|number| put(&mut node, &key(number), Some(&vec![7; LONG_BYTES])));
    push_out(&mut node);
    let base = node.engine.progress(RANGE).committed;
    let (sent, reads) = transfer(&mut node, (base, 1 << 20, 2_000), |_, _| {});
    println!("{reads} reads");
    assert!(reads < 500, "{reads} reads");
    (0..KEYS).for_each(|number| assert_eq!(sent[&key(number)].value, vec![7; LONG_BYTES]));
}

#[test]
fn the_reads_of_a_chunk_of_runs_do_not_begin_again_with_each_newer_record() {
    const KEYS: u64 = 2_000;
    // Hardly a page stays in the cache.
    let options = Options { sort_bytes: 1, memory_bytes: 1 << 20, ..sorted(Durability::Sync) };
    let mut node = open(long_records(options));
    sort_keys(&mut node, KEYS);
    for number in (0..KEYS).step_by(2) {
        put(&mut node, &key(number), Some(&[7; 500]));
        if number % 64 == 0 {
            node.turn();
        }
    }
    push_out(&mut node);
    let base = node.engine.progress(RANGE).committed;
    let (sent, reads) = transfer(&mut node, (base, 1 << 20, 50_000), |_, _| {});
    println!("{reads} reads");
    assert!(reads < 3 * KEYS as usize, "{reads} reads");
    for number in 0..KEYS {
        let expected: &[u8] = if number.is_multiple_of(2) { &[7; 500] } else { b"short" };
        assert_eq!(sent[&key(number)].value, expected, "{number}");
    }
}

/// The same of the log: the records of a chunk are found again at its end, if they are not where they were.
#[test]
fn long_records_that_replace_those_of_a_chunk_do_not_take_each_others_read_away() {
    let mut node = open(long_records(small(Durability::Sync)));
    (0..40).for_each(|number| put(&mut node, &key(number), Some(&[1; 5_000])));
    push_out(&mut node);
    let base = node.engine.progress(RANGE).committed;
    let (sent, reads) = transfer(&mut node, (base, 64 << 20, 1_000), |node, read| {
        if read == 90 {
            (0..40).for_each(|number| put(node, &key(number), Some(&vec![7; LONG_BYTES])));
            push_out(node);
        }
    });
    assert!((90..400).contains(&reads), "{reads} reads");
    // The history after the base has all that was replaced.
    assert!(sent.keys().all(|key| key.starts_with(b"other")), "{:?}", sent.keys());
}

/// Sorted keys, and how many of them have newer records in the log that take a read each.
const SORTED: u64 = 30;
const OVERWRITTEN: u64 = 12;

/// A store whose last chunk of a transfer has the sorted keys, the bounds of that transfer, and the number of its reads.
fn with_last_chunk() -> (TestNode, (Version, usize, usize), usize) {
    let prepared = || {
        let mut node = open(long_records(Options { sort_bytes: 1, ..sorted(Durability::Sync) }));
        sort_keys(&mut node, SORTED);
        (0..OVERWRITTEN).for_each(|number| put(&mut node, &key(number), Some(&vec![7; LONG_BYTES])));
        push_out(&mut node);
        let base = node.engine.progress(RANGE).committed;
        (node, (base, 1 << 20, 2_000))
    };
    let (mut node, bounds) = prepared();
    let (sent, reads) = transfer(&mut node, bounds, |_, _| {});
    let is_of_last_chunk = |number: u64| sent[&key(number)].reads_before == reads;
    assert!((OVERWRITTEN..SORTED).all(is_of_last_chunk), "the last chunk has the keys of runs");
    let (node, bounds) = prepared();
    (node, bounds, reads)
}

/// The range is emptied while the end of a chunk of runs waits for a read.
#[test]
fn a_chunk_of_runs_has_no_key_that_was_cleared_before_it_was_sent() {
    type Empty = fn(&mut TestNode);
    let clear: Empty = |node| {
        let version = node.next_version();
        node.engine.clear(RANGE, version).unwrap();
        node.settle();
        assert_eq!(node.engine.progress(RANGE).committed, version);
    };
    let begin_again: Empty = |node| {
        let base = node.engine.progress(RANGE).committed;
        node.engine.begin_transfer(RANGE, base).unwrap();
    };
    for empty in [clear, begin_again] {
        let (mut node, bounds, reads) = with_last_chunk();
        let (sent, _) = transfer(&mut node, bounds, |node, read| {
            if read == reads - 3 {
                empty(node);
            }
        });
        let after = sent.iter().find(|(_, sent)| sent.reads_before >= reads - 3);
        assert!(after.is_none(), "{:?}", after.map(|(key, _)| String::from_utf8_lossy(key)));
    }
}

/// Keys without a record in the log are deleted while the end of their chunk waits for a read of another key's record. Most of them were
/// looked up in the log before.
#[test]
fn a_chunk_of_runs_has_no_key_that_was_deleted_before_it_was_sent() {
    let (mut node, bounds, reads) = with_last_chunk();
    let deleted = OVERWRITTEN..SORTED;
    let (sent, reads_after) = transfer(&mut node, bounds, |node, read| {
        if read == reads {
            deleted.clone().for_each(|number| put(node, &key(number), None));
            node.settle();
        }
    });
    assert_eq!(reads_after, reads, "the deletes are in memory");
    let stay: Vec<u64> = deleted.filter(|number| sent.contains_key(&key(*number))).collect();
    assert_eq!(stay, [0; 0]);
}

/// The index still has the old record of a key, as long as a committed delete or put of it waits for its verification.
#[test]
fn a_transfer_leaves_out_records_that_are_replaced_once_verified() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = long_records(small(Durability::Sync));
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(1_000)).unwrap();
    for number in 0..20 {
        put(&mut node, &key(number), Some(&[1; 200]));
    }
    push_out(&mut node);
    disk.hang(OpKind::Read);
    for number in 0..20 {
        put(&mut node, &key(number), number.is_multiple_of(2).then_some(&[2; 200][..]));
    }
    for _ in 0..20 {
        node.turn();
    }
    let progress = node.engine.progress(RANGE);
    assert!(progress.committed == progress.appended && disk.hung() > 0, "{progress:?}");
    disk.end_faults(OpKind::Read);
    let (sent, _) = transfer(&mut node, (progress.committed, 64 << 10, 1_000), |_, _| {});
    for number in 0..20 {
        let value = sent.get(&key(number)).map(|record| record.value[0]);
        assert_eq!(value, number.is_multiple_of(2).then_some(2), "key {number}");
    }
}

/// Records of runs that are not sent: tombstones and what they hide, or, as here, what was written after the base.
#[test]
fn a_chunk_ends_after_many_records_of_runs_that_are_not_sent() {
    const KEYS: u64 = 8_000;
    let mut node = open(Options { sort_bytes: 1, ..sorted(Durability::Sync) });
    put(&mut node, b"first", Some(b"value"));
    node.settle();
    let base = node.engine.progress(RANGE).committed;
    for number in 0..KEYS {
        put(&mut node, &key(number), Some(&[7; 400]));
        if number % 32 == 0 {
            node.turn();
        }
    }
    sort_out(&mut node);
    node.engine.hold_runs(true);
    let (mut next, mut chunks, mut most, mut is_sent) = (Some(TransferPlace::START), 0, 0, false);
    while let Some(place) = next {
        let (mut scan, mut reads) = (TransferScan::new(RANGE, place, base, 1 << 20), 0);
        next = loop {
            match node.engine.transfer_step(&mut scan, |record| is_sent |= record.key == b"first").unwrap() {
                TransferStep::Chunk { next, .. } => break next,
                TransferStep::Read(plan) => {
                    node.engine.read(plan, 42);
                    let plan = node.wait_for_plan();
                    node.engine.absorb(plan).unwrap();
                    reads += 1;
                }
            }
        };
        assert!(next.is_none_or(|next| next > place), "{next:?} after {place:?}");
        (chunks, most) = (chunks + 1, most.max(reads));
    }
    println!("{chunks} chunks, {most} reads");
    assert!(is_sent && chunks >= 3 && most <= 300, "{chunks} chunks, {most} reads");
}

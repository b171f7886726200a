//! Deferred verifications: an opening reads no old version of an overwritten key, and the engine confirms them while it serves.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const KEYS: usize = 2000;
const ROUNDS: u8 = 4;

fn key_of(i: usize) -> Vec<u8> {
    format!("k{i:04}").into_bytes()
}

/// Value of a key after `round`; every seventh key is deleted then.
fn value_of(i: usize, round: u8) -> Option<Vec<u8>> {
    (!(i + usize::from(round)).is_multiple_of(7)).then(|| vec![round; 20 + i % 50])
}

fn open(disk: &SimDisk, memory_bytes: u64) -> TestNode {
    // Smaller segments would be dropped once all of their records are overwritten.
    let small = Options { segment_bytes: 1 << 20, ..small(Durability::Sync) };
    let options = Options { memory_bytes, checkpoint_log_bytes_min: 1 << 40, ..small };
    TestNode::open(disk, options, Now::at(1_000_000)).unwrap()
}

/// A killed store in which every key was written `ROUNDS` times, without a checkpoint.
fn killed_store(seed: u64) -> SimDisk {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = open(&disk, 1 << 20);
    for round in 0..ROUNDS {
        for i in 0..KEYS {
            let write = TestWrite { key: key_of(i), value: value_of(i, round), expires_at_ms: 0 };
            node.append(&[write]).unwrap();
            if i % 32 == 0 {
                node.turn();
            }
        }
        node.settle();
    }
    drop(node);
    disk.kill(seed);
    disk
}

fn assert_content(node: &mut TestNode) {
    for i in 0..KEYS {
        let found = node.get(&key_of(i), View::Committed).unwrap().map(|entry| entry.value);
        assert_eq!(found, value_of(i, ROUNDS - 1), "k{i:04}");
    }
}

fn live_keys() -> usize {
    (0..KEYS).filter(|&i| value_of(i, ROUNDS - 1).is_some()).count()
}

#[test]
fn an_opening_reads_no_old_version_of_an_overwritten_key() {
    let disk = killed_store(1);
    let mut node = open(&disk, 1 << 20);
    let reads = node.engine.device().stats().of(IoClass::Recovery).reads;
    assert_eq!(node.engine.log_report().segments, 1);
    assert!(reads <= 8, "{reads} reads, of headers and of pieces of the segment");
    let deferred = node.engine.verifications_deferred();
    assert!(deferred > KEYS / 3, "{deferred} of {KEYS} keys");
    // Before any of them is confirmed, scans and estimates are right, too.
    assert_eq!(node.keys().len(), live_keys());
    assert!(node.engine.len(RANGE) <= live_keys() as u64);
    assert_content(&mut node);
    while node.engine.log_report().verifications_queued > 0 {
        node.turn();
    }
    assert_eq!(node.engine.verifications_deferred(), 0);
    assert_eq!(node.engine.len(RANGE), live_keys() as u64);
    assert_content(&mut node);
}

#[test]
fn keys_for_which_memory_is_lacking_are_compared_by_the_opening() {
    let disk = killed_store(2);
    let mut node = open(&disk, 64 << 10);
    let deferred = node.engine.verifications_deferred();
    assert!((100..KEYS * 2 / 3).contains(&deferred), "{deferred} of {KEYS} keys");
    assert_content(&mut node);
    assert_eq!(node.keys().len(), live_keys());
}

#[test]
fn keys_written_deleted_and_cleared_before_they_are_confirmed_stay_so() {
    for clears in [false, true] {
        let disk = killed_store(3);
        let mut node = open(&disk, 1 << 20);
        assert!(node.engine.verifications_deferred() > 0);
        if clears {
            let version = node.next_version();
            node.engine.clear(RANGE, version).unwrap();
        }
        let write = |key: Vec<u8>, value: Option<Vec<u8>>| TestWrite { key, value, expires_at_ms: 0 };
        node.append(&[write(key_of(1), Some(b"new".to_vec())), write(key_of(2), None)]).unwrap();
        node.settle();
        while node.engine.log_report().verifications_queued > 0 {
            node.turn();
        }
        for reopened in [false, true] {
            let get = |node: &mut TestNode, i| node.get(&key_of(i), View::Committed).unwrap().map(|entry| entry.value);
            assert_eq!(get(&mut node, 1), Some(b"new".to_vec()), "cleared {clears}, reopened {reopened}");
            assert_eq!(get(&mut node, 2), None);
            assert_eq!(get(&mut node, 3), value_of(3, ROUNDS - 1).filter(|_| !clears));
            disk.kill(3);
            node = open(&disk, 1 << 20);
        }
    }
}

#[test]
fn a_store_that_is_always_busy_confirms_what_was_deferred() {
    const COLD: usize = 4000;
    let disk = SimDisk::new(SimOptions::default());
    let write = |key: Vec<u8>, byte: u8| TestWrite { key, value: Some(vec![byte; 60]), expires_at_ms: 0 };
    let cold = |i: usize| format!("cold{i}").into_bytes();
    let mut node = open(&disk, 1 << 20);
    for i in 0..COLD {
        node.append(&[write(cold(i), 0)]).unwrap();
    }
    for i in 0..2 * 1000 {
        node.append(&[write(key_of(i % 1000), 0)]).unwrap();
    }
    node.settle();
    drop(node);
    disk.kill(1);
    let mut node = open(&disk, 1 << 20);
    let before = node.engine.verifications_deferred();
    assert!(before > 500, "{before}");
    let (mut next, mut turns) = (0, 0);
    while next < COLD {
        // As many overwrites as it takes: their verifications come first.
        for _ in 0..256.min(COLD - next) {
            node.append(&[write(cold(next), 1)]).unwrap();
            next += 1;
        }
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
        node.commit();
        turns += 1;
        let log = node.engine.log_report();
        let busy = log.verifications_queued as usize - node.engine.verifications_deferred();
        assert!(busy >= 4, "turn {turns}: {busy} verifications of overwrites");
    }
    let after = node.engine.verifications_deferred();
    assert!(before - after >= 2 * turns, "{before} before {turns} turns, {after} behind them");
}

#[test]
fn a_checkpoint_is_due_when_more_keys_were_overwritten_than_an_opening_defers() {
    const MANY: usize = 8000;
    let disk = SimDisk::new(SimOptions::default());
    let write = |i: usize, byte: u8| TestWrite {
        key: format!("k{i}").into_bytes(),
        value: Some(vec![byte; 20]),
        expires_at_ms: 0,
    };
    let options = Options { memory_bytes: 256 << 10, ..small(Durability::EverySecond) };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    let overwrite = |node: &mut TestNode, round: u8, count: usize| {
        for i in 0..count {
            node.append(&[write(i, round)]).unwrap();
            if i % 64 == 0 {
                node.turn();
            }
        }
        node.settle();
    };
    overwrite(&mut node, 0, MANY);
    let (mut checkpoints, mut overwritten) = (Vec::new(), 0);
    for round in 1..=8 {
        let before = node.engine.stats().checkpoints;
        overwrite(&mut node, round, MANY / 2);
        overwritten += MANY / 2;
        checkpoints.push(node.engine.stats().checkpoints - before);
    }
    let written = checkpoints.iter().sum::<u64>();
    assert!(written >= 8, "{checkpoints:?} of {overwritten} keys");
    drop(node);
    disk.kill(1);
    let node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    let reads = node.engine.device().stats().of(IoClass::Recovery).reads;
    assert!(node.report.checkpoint_entries.is_some() && reads < 1000, "{reads} reads");
}

/// An image of 20,000 keys has 120 KB: a thousand records are less than that, and more than a sixteenth and a segment; a hundred
/// are fewer.
#[test]
fn a_close_writes_a_checkpoint_unless_little_is_behind_the_last_one() {
    const MANY: usize = 20_000;
    let disk = SimDisk::new(SimOptions::default());
    let options = Options { checkpoint_log_bytes_min: 1, ..small(Durability::EverySecond) };
    let open = |disk: &SimDisk| TestNode::open(disk, options.clone(), Now::at(1_000_000)).unwrap();
    let checkpoints = || disk.names().into_iter().filter(|name| name.starts_with("checkpoint-")).collect::<Vec<_>>();
    let mut before = Vec::new();
    for (overwritten, is_written) in [(MANY, true), (1_000, true), (100, false)] {
        let mut node = open(&disk);
        for i in 0..overwritten {
            let (key, value) = (format!("k{i}").into_bytes(), Some(vec![1; 20]));
            node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
            if i % 64 == 0 {
                node.turn();
            }
        }
        node.settle();
        while node.engine.log_report().verifications_queued > 0 {
            node.turn();
        }
        node.engine.close().unwrap();
        assert_eq!(checkpoints() != before, is_written, "{overwritten} records: {:?}", checkpoints());
        before = checkpoints();
    }
}

/// A thousand keys of an image of 120 KB are replaced in the segment in which the log behind it begins: an opening would defer
/// them, and read a page for each. Further keys in it cost the opening nothing that another image would save.
#[test]
fn a_close_writes_a_checkpoint_in_the_last_ones_segment_only_if_keys_were_overwritten() {
    const MANY: usize = 20_000;
    let disk = SimDisk::new(SimOptions::default());
    let options = Options { segment_bytes: 1 << 20, checkpoint_log_bytes_min: 1, ..small(Durability::EverySecond) };
    let checkpoints = || disk.names().into_iter().filter(|name| name.starts_with("checkpoint-")).collect::<Vec<_>>();
    let mut before = Vec::new();
    for (from, count, is_written) in [(0, MANY, true), (MANY, 1_000, false), (0, 1_000, true)] {
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        for i in from..from + count {
            let (key, value) = (format!("k{i}").into_bytes(), Some(vec![1; 20]));
            node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
            if i % 64 == 0 {
                node.turn();
            }
        }
        node.settle();
        node.engine.close().unwrap();
        assert_eq!(checkpoints() != before, is_written, "{count} records from {from}: {:?}", checkpoints());
        before = checkpoints();
    }
    let node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    assert_eq!(node.engine.verifications_deferred(), 0);
}

#[test]
fn deferred_keys_take_at_most_three_eighths_of_the_budget() {
    let disk = killed_store(4);
    let memory_bytes = 192 << 10;
    let keys_max = memory_bytes as usize * 3 / 8 / 56;
    let node = open(&disk, memory_bytes);
    let deferred = node.engine.verifications_deferred();
    assert!((100..=keys_max).contains(&deferred), "{deferred} of {keys_max} keys");
}

#[test]
fn a_read_only_opening_defers_nothing() {
    let disk = killed_store(5);
    let options = Options { read_only: true, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    assert_eq!(node.engine.verifications_deferred(), 0);
    assert_eq!(node.engine.len(RANGE), live_keys() as u64);
    assert_content(&mut node);
}

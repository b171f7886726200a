//! Bounds of what an opening defers: by the memory that the indexes leave, and while old versions cannot be read.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Engine, EngineError, Options, View};
use fawn_flash::sim::Loss;
use fawn_flash::{Device, IoClass, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now};

const MEMORY_BYTES: u64 = 1 << 20;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: MEMORY_BYTES, ..small(Durability::Sync) }
}

fn put(node: &mut TestNode, number: u64, len: usize) {
    let write =
        TestWrite { key: number.to_be_bytes().to_vec(), value: Some(vec![number as u8; len]), expires_at_ms: 0 };
    node.append(&[write]).unwrap();
    if number.is_multiple_of(64) {
        node.turn();
    }
}

/// Keys whose indexes take so many hundredths of the budget.
fn filled(options: &Options, percent: u64) -> (SimDisk, TestNode, u64) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    let mut keys = 0;
    while node.engine.memory().index_bytes < MEMORY_BYTES * percent / 100 {
        put(&mut node, keys, 4);
        keys += 1;
        assert!(keys < 400_000, "{:?}", node.engine.memory());
    }
    node.settle();
    (disk, node, keys)
}

/// Three quarters of what the indexes leave is room for fewer keys than three eighths of the budget. A checkpoint is due before
/// an opening would have to compare the others by reads.
#[test]
fn a_checkpoint_is_due_before_more_keys_are_overwritten_than_the_indexes_leave_memory_for() {
    let options = options();
    let (disk, node, keys) = filled(&options, 88);
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, options.clone(), Now::at(2_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    // 59 B each.
    let room = (MEMORY_BYTES - node.engine.memory().index_bytes) * 3 / 4 / 59;
    let overwritten = room + 1_800;
    assert!((1_800..MEMORY_BYTES / 4 / 59).contains(&overwritten), "{overwritten}");
    (0..overwritten).for_each(|number| put(&mut node, number * 31 % keys, 500));
    node.settle();
    for _ in 0..50 {
        node.now = node.now.plus_ms(20);
        node.turn();
    }
    let checkpoints = node.engine.stats().checkpoints;
    let now = node.now;
    drop(node);
    disk.kill(1);
    let node = TestNode::open_in_chain(&disk, options, now).unwrap();
    let deferred = node.engine.verifications_deferred() as u64;
    let reads = node.engine.device().stats().of(IoClass::Recovery).reads;
    assert!(checkpoints > 0, "{overwritten} keys overwritten, {deferred} deferred, {reads} reads");
}

/// Without a checkpoint the indexes grow while the log is scanned.
#[test]
fn deferred_keys_leave_memory_for_the_indexes_without_a_checkpoint() {
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let (disk, mut node, keys) = filled(&options, 80);
    (0..9_000).for_each(|number| put(&mut node, number * 31 % keys, 4));
    node.settle();
    let now = node.now;
    drop(node);
    disk.kill(1);
    let mut node = TestNode::open_in_chain(&disk, options, now).unwrap();
    assert!(node.engine.verifications_deferred() > 1_000);
    let memory = node.engine.memory();
    let used = memory.index_bytes + memory.overlay_bytes;
    assert!(used <= MEMORY_BYTES, "{memory:?}, {} deferred", node.engine.verifications_deferred());
    assert!(node.get(&0u64.to_be_bytes(), View::Committed).unwrap().is_some());
}

/// A key whose old version cannot be read takes several times the memory of a deferred one.
#[test]
fn deferred_keys_whose_old_versions_are_unreadable_stay_within_the_budget() {
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    (0..6_500).for_each(|number| put(&mut node, number, 20));
    (0..6_500).for_each(|number| put(&mut node, number, 10));
    node.settle();
    let now = node.now;
    drop(node);
    disk.kill(1);
    let mut node = TestNode::open_in_chain(&disk, options, now).unwrap();
    assert!(node.engine.verifications_deferred() > 6_000);
    let segments = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    segments.for_each(|name| disk.make_unreadable(&name, 4096..1 << 20));
    let mut most = node.engine.memory().overlay_bytes;
    for _ in 0..5_000 {
        node.turn();
        most = most.max(node.engine.memory().overlay_bytes);
        if node.engine.verifications_deferred() == 0 {
            break;
        }
    }
    let report = node.engine.log_report();
    assert!(most <= MEMORY_BYTES, "{most} B, {report:?}, {} deferred", node.engine.verifications_deferred());
    // A write would give the last one that is to be confirmed an entry, too.
    let key = (0..6_500).map(u64::to_be_bytes).min_by_key(|key| TestNode::hash(key).0).unwrap();
    let refused = node.append(&[TestWrite { key: key.to_vec(), value: Some(vec![1]), expires_at_ms: 0 }]);
    assert!(matches!(refused, Err(EngineError::TooCorrupt { .. })) && !node.engine.is_confirming(), "{refused:?}");
    assert!(node.engine.verifications_deferred() > 0);
    disk.heal();
    node.now = node.now.plus_ms(120_000);
    node.settle();
    assert_eq!(node.engine.len(RANGE), 6_500);
}

/// The same disk opens with more memory: then nothing reads the old versions before the store serves.
#[test]
fn an_unreadable_old_version_keeps_no_store_from_opening_that_cannot_defer_all_keys() {
    const KEYS: u64 = 5_000;
    let options = |memory_bytes| Options { segment_bytes: 64 << 10, memory_bytes, ..options() };
    let scanned = |memory_bytes| Options { checkpoint_log_bytes_min: u64::MAX, ..options(memory_bytes) };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(MEMORY_BYTES), Now::at(1_000)).unwrap();
    (0..KEYS).for_each(|number| put(&mut node, number, 30));
    node.settle();
    node.engine.close().unwrap();
    let segments = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    let mut names: Vec<String> = segments.collect();
    names.sort();
    let mut node = TestNode::open(&disk, scanned(MEMORY_BYTES), Now::at(2_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    // The others keep the segments.
    let overwritten = (0..KEYS).step_by(2);
    overwritten.clone().for_each(|number| put(&mut node, number, 20));
    node.settle();
    let now = node.now;
    drop(node);
    disk.kill(1);
    disk.make_unreadable(&names[4], 8_192..12_288);
    for memory_bytes in [MEMORY_BYTES, 256 << 10] {
        let mut node = match TestNode::open_in_chain(&disk, scanned(memory_bytes), now) {
            Ok(node) => node,
            Err(error) => panic!("{memory_bytes} B: {error}"),
        };
        assert!(node.report.checkpoint_entries.is_some() && node.engine.verifications_deferred() > 1_000);
        for number in overwritten.clone() {
            let found = node.get(&number.to_be_bytes(), View::Committed).unwrap();
            assert_eq!(found.map(|entry| entry.value.len()), Some(20), "{number}");
        }
        drop(node);
        disk.kill(1);
    }
}

/// An opening defers these as any other: their older records are in the log that it scans.
#[test]
fn a_checkpoint_is_due_before_more_new_keys_are_overwritten_than_an_opening_defers() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 64 << 10, ..options() };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    for number in 0..40_000 {
        (0..2).for_each(|_| put(&mut node, number, 20));
        if number % 2_000 == 1_999 {
            node.settle();
            let image = disk.image(Loss::Process, number);
            let opened = TestNode::open_in_chain(&image, options.clone(), node.now).unwrap();
            let deferred = opened.engine.verifications_deferred();
            // 59 B each.
            assert!(
                deferred < MEMORY_BYTES as usize * 3 / 8 / 59,
                "{number}: {deferred} deferred: {:?}",
                opened.report
            );
        }
    }
}

/// The records of the range before a split or merge are in the order of its history, like its heirs' own.
#[test]
fn an_opening_behind_a_split_reads_no_old_version_of_an_overwritten_key() {
    const KEYS: u64 = 1_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 64 << 10, space_amplification_max_percent: 10_000, ..options() };
    let mut harness = RangeHarness::new(disk, options, true);
    harness.add(1, KeyRange::ALL);
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| number.to_be_bytes().to_vec()).collect();
    let write = |harness: &mut RangeHarness, value: u8| {
        // Every other key is written once, and keeps its segment.
        for (number, key) in keys.iter().enumerate().step_by(usize::from(value)) {
            harness.write(key, Some(&[value; 100]));
            if number % 32 == 0 {
                harness.turn();
            }
        }
        harness.settle();
    };
    write(&mut harness, 1);
    let spare = SimDevice::attach(&SimDisk::new(SimOptions::default()));
    let spare = Engine::open(spare, harness.options.clone(), harness.now).unwrap().0;
    std::mem::replace(&mut harness.engine, spare).close().unwrap();
    harness.options.checkpoint_log_bytes_min = u64::MAX;
    harness.open_again();
    write(&mut harness, 2);
    harness.split(1, ring_at(0x80), 2, 3);
    harness.disk.kill(1);
    let image = harness.disk.image(Loss::Process, 1);
    let opened = Engine::open(SimDevice::attach(&image), harness.options.clone(), harness.now).unwrap().0;
    let deferred = opened.verifications_deferred() as u64;
    assert!(deferred > KEYS * 9 / 20, "{deferred} of {KEYS} keys");
    harness.open_again();
    harness.check(&keys, "opened");
}

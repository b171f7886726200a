//! Counts of device operations: one read per cold hit, one write per submit, no read per cached hit.
use crate::support::{RANGE, TestNode, TestWrite, scanned, small};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{EngineError, Lookup, Options, PREFETCH_KEYS_MAX, Scan, ScanStep, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, SimDisk, SimOptions};
use fawn_types::{Durability, Now, RangeId, TimeMs};

const KEYS: u64 = 4000;

fn loaded(memory_bytes: u64) -> (SimDisk, Options, TestNode) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { memory_bytes, segment_bytes: 1 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
    for i in 0..KEYS {
        let value = Some(vec![i as u8; 200 + (i % 100) as usize]);
        node.append(&[TestWrite { key: format!("{i:08}").into_bytes(), value, expires_at_ms: 0 }]).unwrap();
        if i % 100 == 0 {
            node.settle();
        }
    }
    node.settle();
    (disk, options, node)
}

#[test]
fn a_cold_hit_costs_one_read() {
    let (disk, options, node) = loaded(1 << 20);
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    // In an order in which a cache of this size does not help.
    for i in 0..KEYS {
        let key = format!("{:08}", i * 1237 % KEYS);
        assert!(node.get(key.as_bytes(), View::Committed).unwrap().is_some(), "{key}");
    }
    let stats = node.engine.stats();
    let per_hit = stats.reads as f64 / stats.hits as f64;
    println!("{per_hit:.4} reads per hit; {stats:?}");
    assert!(per_hit <= 1.003, "{per_hit} reads per hit: {stats:?}");
    for i in 0..KEYS {
        let key = format!("miss{i:08}");
        assert!(node.get(key.as_bytes(), View::Committed).unwrap().is_none(), "{key}");
    }
    let misses = node.engine.stats().reads - stats_reads(per_hit, KEYS);
    assert!(misses <= KEYS * 3 / 1000 + 3, "{misses} reads for {KEYS} misses");
}

/// Options with windows so large that no frame reaches the end of one.
fn wide() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 16 << 20, ..small(Durability::Sync) }
}

fn stats_reads(per_hit: f64, hits: u64) -> u64 {
    (per_hit * hits as f64).round() as u64
}

#[test]
fn a_cached_hit_reads_nothing() {
    let (_disk, _options, mut node) = loaded(16 << 20);
    for _ in 0..2 {
        for i in 0..KEYS {
            node.get(format!("{i:08}").as_bytes(), View::Committed).unwrap();
        }
    }
    let before = node.engine.stats().reads;
    for i in 0..KEYS {
        let key = format!("{i:08}");
        let found =
            node.engine.lookup(RANGE, TestNode::hash(key.as_bytes()), key.as_bytes(), View::Committed, TimeMs(2));
        assert!(matches!(found, Ok(Lookup::Found(_))), "{key}: {found:?}");
    }
    assert_eq!(node.engine.stats().reads, before);
}

#[test]
fn a_submit_is_one_write_however_much_was_appended() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, wide(), Now::at(1)).unwrap();
    for turn in 0..50_u64 {
        let before = node.engine.stats().writes;
        for i in 0..1 + turn % 20 {
            let key = format!("{turn}-{i}").into_bytes();
            node.append(&[TestWrite { key, value: Some(vec![1; 100]), expires_at_ms: 0 }]).unwrap();
        }
        node.engine.submit(node.now);
        assert_eq!(node.engine.stats().writes, before + 1, "turn {turn}");
        node.settle();
        assert_eq!(node.engine.stats().writes, before + 1, "turn {turn}");
    }
}

/// Zeros are written ahead of small durable writes, so only one write per 256 KiB extends the file.
#[test]
fn zeros_go_ahead_of_small_durable_writes() {
    const AHEAD_BYTES: u64 = 256 << 10;
    for durability in [Durability::Sync, Durability::EverySecond] {
        let disk = SimDisk::new(SimOptions::instant(1));
        disk.fail_every(OpKind::Map, DeviceFault::Fail);
        let mut node = TestNode::open(&disk, Options { durability, ..wide() }, Now::at(1)).unwrap();
        let (mut long_writes, mut log_bytes) = (0, 0);
        for turn in 0..400_u64 {
            let before = *node.engine.stats();
            let (key, value) = (format!("{turn}").into_bytes(), Some(vec![1; 1000]));
            node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
            node.settle();
            let written_bytes = node.engine.stats().written_bytes - before.written_bytes;
            log_bytes += node.engine.stats().record_bytes - before.record_bytes + 64;
            long_writes += u64::from(written_bytes > 2 * 4096);
            assert!(written_bytes <= AHEAD_BYTES + 4096, "iteration {turn}: {written_bytes} bytes");
        }
        let expected = if durability == Durability::Sync { log_bytes.div_ceil(AHEAD_BYTES) } else { 0 };
        assert_eq!(long_writes, expected, "{durability:?}: {log_bytes} bytes of log");
    }
}

#[test]
fn memory_stays_within_the_budget() {
    let (_disk, _options, mut node) = loaded(8 << 20);
    for i in 0..KEYS {
        node.get(format!("{i:08}").as_bytes(), View::Committed).unwrap();
    }
    let report = node.engine.memory();
    assert!(report.total_bytes() <= (8 << 20) * 11 / 10, "{report:?}");
}

/// The bound of records in flight was looked at before each record of a batch, when none of them counted yet; and what a large
/// batch took stayed taken from the caches.
#[test]
fn a_batch_is_bounded_by_its_records_and_gives_its_memory_back() {
    let (_disk, _options, mut node) = loaded(8 << 20);
    let (limit, before) = (2 << 20, node.engine.memory().overlay_bytes);
    assert!(matches!(
        node.engine.check_batch(200_000),
        Err(EngineError::TooLarge { found_bytes, limit_bytes }) if found_bytes > limit && limit_bytes == limit
    ));
    node.engine.check_batch(5_000).unwrap();
    let writes: Vec<TestWrite> = (0..5_000_u32)
        .map(|i| TestWrite { key: i.to_le_bytes().to_vec(), value: Some(Vec::new()), expires_at_ms: 0 })
        .collect();
    node.append(&writes).unwrap();
    let at_most = node.engine.memory().overlay_bytes;
    assert!(at_most > before + (512 << 10) && at_most < before + limit as u64, "{before} {at_most}");
    node.settle();
    for _ in 0..4 {
        node.now = node.now.plus_ms(1_000);
        (0..64).for_each(|_| node.settle());
    }
    let after = node.engine.memory().overlay_bytes;
    assert!(after < before + (256 << 10), "{after} bytes, {before} before");
}

#[test]
fn reads_of_many_lengths_stay_within_the_budget() {
    const BUDGET: u64 = 4 << 20;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { memory_bytes: BUDGET, segment_bytes: 4 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    for pages in 1..=120_usize {
        let value = Some(vec![pages as u8; pages * 4096]);
        node.append(&[TestWrite { key: pages.to_be_bytes().to_vec(), value, expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    for pages in 1..=120_usize {
        // Two reads, the second of which has this record's length.
        node.get(&pages.to_be_bytes(), View::Committed).unwrap().unwrap();
        let report = node.engine.memory();
        assert!(report.total_bytes() <= BUDGET * 11 / 10, "after {pages} pages: {report:?}");
    }
}

#[test]
fn overwrites_of_loaded_keys_verify_for_nothing() {
    let (_disk, _options, mut node) = loaded(16 << 20);
    for i in 0..500 {
        let key = format!("{i:08}").into_bytes();
        node.get(&key, View::Latest).unwrap();
        let reads = node.engine.stats().verification_reads;
        node.append(&[TestWrite { key, value: Some(vec![9; 50]), expires_at_ms: 0 }]).unwrap();
        assert_eq!(node.engine.stats().verification_reads, reads, "key {i} was in memory");
    }
    node.settle();
    assert_eq!(node.engine.len(RANGE), KEYS);
}

#[test]
fn warming_reads_nothing_and_changes_nothing() {
    let (_disk, _options, mut node) = loaded(16 << 20);
    let keys: Vec<_> = (0..40).map(|i| format!("{:08}", i * 97 % KEYS).into_bytes()).collect();
    let hashes: Vec<_> = keys.iter().map(|key| TestNode::hash(key)).collect();
    let (stats, device) = (*node.engine.stats(), node.engine.device().stats().clone());
    for count in [0, 1, PREFETCH_KEYS_MAX, PREFETCH_KEYS_MAX + 1, hashes.len()] {
        node.engine.prefetch(RANGE, &hashes[..count]);
    }
    node.engine.prefetch(RangeId(77), &hashes);
    node.engine.prefetch(RANGE, &[TestNode::hash(b"absent")]);
    assert_eq!(*node.engine.stats(), stats);
    assert_eq!(node.engine.device().stats(), &device);
    for key in &keys {
        assert!(node.get(key, View::Committed).unwrap().is_some());
    }
}

/// The cost of an iteration, writing or idle, does not depend on the number of segments.
#[test]
fn a_turn_looks_at_no_segment() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let disk = SimDisk::new(SimOptions::instant(1));
        // A store in debt is searched for victims once a second.
        let options = Options { memory_bytes: 16 << 20, space_amplification_max_percent: 300, ..scanned(durability) };
        let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
        let put = |node: &mut TestNode, i: u32, len: usize| {
            let (key, value) = (i.to_be_bytes().to_vec(), Some(vec![7; len]));
            node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
            node.now = node.now.plus_ms(60);
            node.turn();
        };
        for i in 0..1600 {
            put(&mut node, i, 15_000);
        }
        // Continue to the start of another segment, so that no segment ends during the measurement.
        let mut segments = node.engine.log_report().segments;
        for i in 1600.. {
            put(&mut node, i, 15_000);
            if core::mem::replace(&mut segments, node.engine.log_report().segments) < node.engine.log_report().segments
            {
                break;
            }
        }
        node.now = node.now.plus_ms(2000);
        node.settle();
        assert!(segments > 390, "{segments} segments");
        let (before, frames) = (node.engine.log_report().segments_visited, node.engine.stats().frames);
        for i in 10_000..10_020 {
            put(&mut node, i, 100);
        }
        for _ in 0..100 {
            node.turn();
        }
        assert!(node.engine.stats().frames >= frames + 20, "{durability:?}: each iteration flushed");
        assert_eq!(node.engine.log_report().segments, segments, "{durability:?}: within one segment");
        // The report itself visits all segments, twice here.
        let visited = node.engine.log_report().segments_visited - before - 2 * segments;
        assert_eq!(visited, 0, "{durability:?}: segments visited by 120 iterations");
    }
}

/// Steps of a scan from its start to its end: the device reads of each, and all keys.
pub(crate) fn scan_reads(node: &mut TestNode, count: usize) -> (Vec<u64>, Vec<Vec<u8>>) {
    let (mut cursor, mut reads, mut keys) = (0, Vec::new(), Vec::new());
    loop {
        let (mut scan, mut step_reads) = (Scan::new(RANGE, cursor, count), 0);
        while let ScanStep::Read(plan) = node.engine.scan_step(&mut scan, node.now.wall).unwrap() {
            step_reads += 1;
            node.engine.read(plan, 42);
            let plan = node.wait_for_plan();
            node.engine.absorb_scan(&mut scan, plan).unwrap();
        }
        reads.push(step_reads);
        keys.extend(scan.items.into_iter().map(|item| item.key));
        cursor = scan.cursor;
        if cursor == 0 {
            return (reads, keys);
        }
    }
}

/// A page of keys is matched with a pattern at once.
#[test]
fn a_scan_step_over_long_keys_is_bounded() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 4 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    for number in 0..150 {
        let key = format!("{number:040000}").into_bytes();
        node.append(&[TestWrite { key, value: Some(vec![1; 10]), expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    let (reads, keys) = scan_reads(&mut node, 10_000);
    assert_eq!(keys.len(), 150);
    assert!(reads.len() >= 4, "6 MB of keys in {} steps", reads.len());
}

#[test]
fn a_scan_step_over_expired_keys_is_bounded() {
    const EXPIRED: u64 = 10_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 4 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    for number in 0..EXPIRED {
        let expires_at_ms = if number % 1000 == 0 { 0 } else { 2_000 };
        node.append(&[TestWrite {
            key: format!("{number:08}").into_bytes(),
            value: Some(vec![1; 100]),
            expires_at_ms,
        }])
        .unwrap();
        if number % 100 == 0 {
            node.turn();
        }
    }
    node.settle();
    node.now = node.now.plus_ms(60_000);
    node.engine.advance_clock(node.now);
    let (reads, keys) = scan_reads(&mut node, 10);
    assert_eq!(keys.len(), 10, "the keys that do not expire");
    assert!(reads.iter().sum::<u64>() > EXPIRED / 2, "{} reads: too few to test", reads.iter().sum::<u64>());
    let reads_max = reads.iter().max().unwrap();
    assert!(*reads_max <= 40, "one step of ten keys took {reads_max} reads");
}

/// An index keeps its size when its keys are deleted.
#[test]
fn a_scan_step_over_empty_cells_is_bounded() {
    let small = small(Durability::Sync);
    let options =
        Options { index: IndexOptions { entries_min: 1 << 22, ..small.index }, memory_bytes: 16 << 20, ..small };
    let mut node = TestNode::open(&SimDisk::new(SimOptions::instant(1)), options, Now::at(1_000)).unwrap();
    let (steps, keys) = scan_reads(&mut node, 10);
    assert_eq!((steps.iter().sum::<u64>(), keys.len()), (0, 0));
    // 524,288 cells.
    assert_eq!(steps.len(), 4);
}

//! The engine's two clocks: a step of the wall clock stops no timer, and no reader's clock removes a record.
use crate::support::{RANGE, TestNode, TestWrite, manifest_commits, small};
use fawn_ds::internals::{EngineError, Lookup, Options, Scan, ScanStep, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, MonoMs, Now, TimeMs};

const HOUR_MS: u64 = 3_600_000;
const START: Now = Now { mono: MonoMs(50_000), wall: TimeMs(1_700_000_000_000) };

fn step_back(node: &mut TestNode) {
    node.now.wall = TimeMs(node.now.wall.0 - HOUR_MS);
}

fn write(key: &[u8], expires_at_ms: u64) -> TestWrite {
    TestWrite { key: key.to_vec(), value: Some(vec![7; 900]), expires_at_ms }
}

/// Runs iterations for `ms`, one every 10 ms.
fn run(node: &mut TestNode, ms: u64) {
    for _ in 0..ms / 10 {
        node.now = node.now.plus_ms(10);
        node.turn();
    }
}

fn open(disk: &SimDisk, durability: Durability) -> TestNode {
    TestNode::open(disk, small(durability), START).unwrap()
}

#[test]
fn everysec_syncs_within_a_second_of_a_step_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::EverySecond);
    node.append(&[write(b"a", 0)]).unwrap();
    run(&mut node, 2_000);
    step_back(&mut node);
    for key in [b"b", b"c"] {
        let version = node.append(&[write(key, 0)]).unwrap();
        run(&mut node, 1_100);
        assert_eq!(node.engine.progress(RANGE).synced, version, "synced within a second");
    }
}

#[test]
fn memory_mode_flushes_within_its_time_of_a_step_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::Memory);
    node.append(&[write(b"before", 0)]).unwrap();
    run(&mut node, 1_000);
    step_back(&mut node);
    let version = node.append(&[write(b"a", 0)]).unwrap();
    run(&mut node, 200);
    assert_eq!(node.engine.progress(RANGE).flushed, version);
}

/// A record that is not committed may keep a key that has expired, so neither a lookup nor a scan misses the key.
#[test]
fn an_expired_key_with_a_pending_record_is_unsettled() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::Sync);
    let expires_at_ms = START.wall.0 + 1_000;
    node.append(&[write(b"kept", expires_at_ms), write(b"deleted", expires_at_ms), write(b"other", expires_at_ms)])
        .unwrap();
    node.settle();
    node.now = START.plus_ms(60_000);
    node.engine.advance_clock(node.now);
    let delete = TestWrite { value: None, ..write(b"deleted", 0) };
    node.append(&[write(b"kept", 0), delete]).unwrap();
    let is_unsettled = |node: &mut TestNode, key: &[u8]| {
        let lookup = node.engine.lookup(RANGE, TestNode::hash(key), key, View::Committed, node.now.wall).unwrap();
        matches!(lookup, Lookup::Unsettled)
    };
    let mut scan = Scan::new(RANGE, 0, 100);
    assert!(matches!(node.engine.scan_step(&mut scan, node.now.wall), Ok(ScanStep::Done)));
    assert_eq!((scan.items.len(), scan.kept.as_slice(), scan.is_unsettled), (0, &[b"kept".to_vec()][..], true));
    let found = [&b"kept"[..], b"deleted", b"other"].map(|key| is_unsettled(&mut node, key));
    assert_eq!(found, [true, true, false]);
    node.settle();
    let found = [&b"kept"[..], b"deleted"].map(|key| node.get(key, View::Committed).unwrap().is_some());
    assert_eq!(found, [true, false]);
}

#[test]
fn a_full_store_takes_writes_again_after_a_step_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::Sync);
    disk.set_capacity_bytes(Some(4 * (64 << 10)));
    let mut key = 0_u32;
    while node.append(&[write(&key.to_be_bytes(), 0)]) != Err(EngineError::StoreFull) {
        node.turn();
        key += 1;
    }
    step_back(&mut node);
    disk.set_capacity_bytes(None);
    run(&mut node, 500);
    node.append(&[write(b"again", 0)]).unwrap();
    node.settle();
}

#[test]
fn a_promise_is_certified_after_a_step_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::Sync);
    run(&mut node, 1_000);
    let ticket = node.engine.put_blob(3, b"never to vote twice").unwrap();
    while !node.engine.is_blob_durable(ticket) {
        node.turn();
    }
    step_back(&mut node);
    let before = disk.contents("manifest").unwrap();
    run(&mut node, 300);
    assert_ne!(disk.contents("manifest").unwrap(), before, "certifying commits follow the promise");
}

/// Every lookup of `keys` finds nothing at `wall`.
fn all_absent_at(node: &mut TestNode, keys: u32, wall: TimeMs) {
    let right = std::mem::replace(&mut node.now.wall, wall);
    for key in 0..keys {
        assert_eq!(node.get(&key.to_be_bytes(), View::Committed).unwrap(), None);
        assert_eq!(node.get(&key.to_be_bytes(), View::Latest).unwrap(), None);
    }
    node.now.wall = right;
}

fn all_there(node: &mut TestNode, keys: u32) {
    for key in 0..keys {
        assert!(node.get(&key.to_be_bytes(), View::Committed).unwrap().is_some(), "key {key} has not expired");
    }
}

/// Sixty keys that expire in an hour, in sealed segments.
fn expiring(disk: &SimDisk) -> TestNode {
    let mut node = open(disk, Durability::Sync);
    let in_an_hour = START.wall.0 + HOUR_MS;
    for key in 0..200_u32 {
        let expires_at_ms = if key < 60 { in_an_hour } else { 0 };
        node.append(&[write(&key.to_be_bytes(), expires_at_ms)]).unwrap();
    }
    node.settle();
    node
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

#[test]
fn a_reader_with_a_wrong_clock_removes_nothing() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    let (len, segments, expired) = (node.engine.len(RANGE), segments(&disk), node.engine.stats().expired);
    all_absent_at(&mut node, 60, TimeMs(START.wall.0 + 2 * HOUR_MS));
    run(&mut node, 1_000);
    all_there(&mut node, 60);
    assert_eq!((node.engine.len(RANGE), node.engine.stats().expired), (len, expired));
    assert_eq!(self::segments(&disk), segments, "no segment is dropped");
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, small(Durability::Sync), START.plus_ms(10_000)).unwrap();
    all_there(&mut node, 60);
}

#[test]
fn the_machines_clock_ahead_for_a_moment_removes_nothing() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    let expired = node.engine.stats().expired;
    node.now.wall = node.now.wall.plus_ms(2 * HOUR_MS);
    run(&mut node, 30_000);
    let ahead = node.now.wall;
    all_absent_at(&mut node, 60, ahead);
    node.now.wall = TimeMs(node.now.wall.0 - 2 * HOUR_MS);
    run(&mut node, 1_000);
    all_there(&mut node, 60);
    assert_eq!(node.engine.stats().expired, expired);
}

#[test]
fn what_has_expired_by_the_stores_clock_is_removed() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    node.now = node.now.plus_ms(HOUR_MS);
    node.turn();
    let late = node.now.wall;
    all_absent_at(&mut node, 60, late);
    assert_eq!(node.engine.stats().expired, 60);
    assert_eq!(node.engine.len(RANGE), 140);
    // The expired keys were in the oldest segments, and segments with no other record were dropped.
    let files = disk.names().len();
    run(&mut node, 1_000);
    assert!(disk.names().len() <= files);
}

/// A board without a clock chip starts in 1970 each time, and its monotonic clock restarts too.
const BOARD_STARTS: Now = Now::at(3_000);

#[test]
fn a_closed_store_goes_on_where_its_expiry_time_was() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    run(&mut node, 30_000);
    let at_close = node.engine.expiry_time();
    assert_eq!(at_close, node.now.wall);
    node.engine.close().unwrap();
    let node = TestNode::open(&disk, small(Durability::Sync), BOARD_STARTS).unwrap();
    assert_eq!(node.engine.expiry_time(), at_close);
}

#[test]
fn a_killed_process_goes_on_by_the_machines_monotonic_clock() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    run(&mut node, 30_000);
    disk.kill(1);
    // The persisted time is old. The wall clock is ahead of the elapsed time, so it is not trusted yet.
    let later = node.now.plus_ms(5_000);
    let ahead = Now { wall: later.wall.plus_ms(HOUR_MS), ..later };
    let node = TestNode::open(&disk, small(Durability::Sync), ahead).unwrap();
    assert_eq!(node.engine.expiry_time(), later.wall);
}

#[test]
fn a_loss_of_power_costs_no_more_than_a_minute_of_expiry_time() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = expiring(&disk);
    for seed in 0..10 {
        // The store only reads, so only the time itself is written.
        run(&mut node, 100_000 + 7_000 * seed);
        let before = node.engine.expiry_time();
        disk.crash(seed);
        node = TestNode::open(&disk, small(Durability::Sync), BOARD_STARTS).unwrap();
        let after = node.engine.expiry_time();
        assert!(after <= before && before.ms_since(after) <= 60_000, "seed {seed}: {before:?}, then {after:?}");
    }
    let commits = manifest_commits(&disk.contents("manifest").unwrap()).len();
    assert!(commits < 80, "{commits} commits in 20 minutes");
}

#[test]
fn a_full_device_needs_no_clock() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, small(Durability::Sync), START).unwrap();
    let used: u64 = disk.names().iter().map(|name| disk.contents(name).unwrap().len() as u64).sum();
    disk.set_capacity_bytes(Some(used));
    run(&mut node, 300_000);
    assert_eq!(node.engine.poisoned(), None);
    disk.set_capacity_bytes(None);
    run(&mut node, 61_000);
    node.append(&[write(b"a", 0)]).unwrap();
    node.settle();
}

/// A cached record that was removed as expired is gone for readers with an earlier clock too.
#[test]
fn a_removed_record_is_in_no_cache() {
    let disk = SimDisk::new(SimOptions::default());
    drop(expiring(&disk).engine.close().unwrap());
    let options = Options { record_cache_bytes: Some(400 << 10), memory_bytes: 4 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, START.plus_ms(10_000)).unwrap();
    (0..4).for_each(|_| all_there(&mut node, 60));
    assert!(node.engine.record_cache_stats().hits > 0);
    let early = node.now.wall;
    node.now = node.now.plus_ms(HOUR_MS);
    node.turn();
    let late = node.now.wall;
    all_absent_at(&mut node, 60, late);
    assert_eq!(node.engine.stats().expired, 60);
    all_absent_at(&mut node, 60, early);
}

/// Within ten seconds of the last commit of the manifest, only the close itself records the expiry time.
#[test]
fn a_close_keeps_the_expiry_time() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(&disk, Durability::Sync);
    node.append(&[write(b"a", 0)]).unwrap();
    run(&mut node, 5_000);
    let time = node.engine.expiry_time();
    assert!(time.0 >= START.wall.0 + 5_000, "{time:?}");
    drop(node.engine.close().unwrap());
    // The wall clock is set back, and the machine has restarted.
    let node = open(&disk, Durability::Sync);
    assert!(node.engine.expiry_time() >= time, "{:?} after {time:?}", node.engine.expiry_time());
}

//! Deletes that a power loss undoes after cleaning met the deleted puts: puts with an expiry time are current again.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};

const DELETED: u64 = 20;
/// Filler records of one segment of 64 KiB.
const FILLERS: u64 = 56;
const POLLS_MAX: u32 = 80;

fn filler(group: &str, nth: u64) -> TestWrite {
    TestWrite { key: format!("{group}-{nth:03}").into_bytes(), value: Some(vec![nth as u8; 1000]), expires_at_ms: 0 }
}

fn expiring(nth: u64, expires_at_ms: u64) -> TestWrite {
    TestWrite { key: format!("expiring-{nth:03}").into_bytes(), value: Some(vec![nth as u8; 40]), expires_at_ms }
}

fn delete_of(write: &TestWrite) -> TestWrite {
    TestWrite { value: None, expires_at_ms: 0, ..write.clone() }
}

fn append(node: &mut TestNode, write: TestWrite) {
    node.append(&[write]).unwrap();
    node.turn();
}

fn open(is_chain: bool, disk: &SimDisk, now: Now) -> TestNode {
    // A checkpoint has the entries of the puts: a tombstone behind it removes them.
    let options = Options {
        space_amplification_max_percent: 100,
        checkpoint_log_bytes_min: 128 << 10,
        ..small(Durability::Memory)
    };
    let open = if is_chain { TestNode::open_in_chain } else { TestNode::open };
    open(disk, options, now).unwrap()
}

/// A store whose first segment has a put that a newer one hides. The second one has that, then the puts with an expiry time, and a
/// later one that was found expired, among dead records.
fn fill(is_chain: bool, disk: &SimDisk) -> TestNode {
    let mut node = open(is_chain, disk, Now::at(1_000_000));
    node.engine.set_retain_floor(RANGE, Version::from_u64(u64::MAX));
    let wall = node.now.wall.0;
    append(&mut node, filler("old", 0));
    (0..FILLERS).for_each(|nth| append(&mut node, filler("kept", nth)));
    append(&mut node, filler("old", 0));
    (0..FILLERS / 2).for_each(|nth| append(&mut node, filler("dead", nth)));
    (0..DELETED).for_each(|nth| append(&mut node, expiring(nth, wall + 10_000_000)));
    append(&mut node, expiring(DELETED, wall + 1));
    node.now = node.now.plus_ms(1_000);
    node.settle();
    assert!(node.get(&expiring(DELETED, 0).key, View::Committed).unwrap().is_none());
    assert_eq!(node.engine.stats().expired, 1);
    node
}

/// The next record in segments that are mostly dead soon.
fn wear(node: &mut TestNode, nth: u64) {
    let group = if nth.is_multiple_of(6) { "live" } else { "dead" };
    let nth = if group == "live" { nth } else { nth % FILLERS };
    node.append(&[filler(group, nth)]).unwrap();
}

/// The number of records after which cleaning begins.
fn records_until_cleaning(is_chain: bool, seed: u64) -> u64 {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = fill(is_chain, &disk);
    for nth in 0..10_000 {
        wear(&mut node, nth);
        node.turn();
        if node.engine.log_report().cleaning_debt_segments > 0 {
            return nth;
        }
    }
    panic!("nothing is cleaned: {:?}", node.engine.log_report());
}

/// Deletes the puts right before cleaning begins. Returns the versions of the deletes.
fn delete_before_cleaning(node: &mut TestNode, records: u64) -> Vec<Version> {
    for nth in 0..records {
        wear(node, nth);
        node.turn();
    }
    wear(node, records);
    let versions = (0..DELETED).map(|nth| node.append(&[delete_of(&expiring(nth, 0))]).unwrap()).collect();
    node.commit();
    let stats = node.engine.stats();
    assert!(stats.cleaning_read_bytes == 0 && stats.checkpoints > 0, "{stats:?}");
    versions
}

#[derive(Default, Debug)]
struct Outcomes {
    lost: u32,
    kept: u32,
    /// Lost, or not committed for sure, after the segment of the puts was cleaned.
    lost_after_walk: u32,
    tombstones: u64,
}

fn lose_power_after((polls, records): (u32, u64), seed: u64, is_chain: bool, outcomes: &mut Outcomes) {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = fill(is_chain, &disk);
    let deletes = delete_before_cleaning(&mut node, records);
    for poll in 0..polls {
        // Without a submit, no write of the foreground is due.
        if is_chain && poll % 4 == 3 {
            node.engine.submit(node.now);
        }
        node.engine.wait(node.now, &mut Vec::new());
    }
    let stats = *node.engine.stats();
    outcomes.tombstones += stats.moved_tombstones;
    disk.crash(seed);
    let mut node = open(is_chain, &disk, node.now);
    let committed = node.engine.progress(RANGE).committed;
    if is_chain {
        node.engine.rollback(RANGE, committed).unwrap();
    }
    for (nth, delete) in deletes.into_iter().enumerate() {
        let is_deleted = delete <= committed;
        let found = node.get(&expiring(nth as u64, 0).key, View::Committed).unwrap();
        assert_eq!(found.is_none(), is_deleted, "key {nth} after {polls} polls, seed {seed}, {stats:?}");
        outcomes.kept += u32::from(is_deleted);
        outcomes.lost += u32::from(!is_deleted);
        outcomes.lost_after_walk += u32::from(!is_deleted && stats.cleaning_read_bytes > 0);
    }
}

fn lose_power(is_chain: bool) {
    let mut outcomes = Outcomes::default();
    for seed in 0..3 {
        let records = records_until_cleaning(is_chain, seed);
        (0..POLLS_MAX).for_each(|polls| lose_power_after((polls, records), seed, is_chain, &mut outcomes));
    }
    println!("{outcomes:?}");
    let Outcomes { lost, kept, lost_after_walk, tombstones } = outcomes;
    assert!(lost > 0 && kept > 0 && lost_after_walk > 0 && tombstones > 0, "{outcomes:?}");
}

#[test]
fn puts_whose_delete_was_lost_are_back_after_their_segment_was_cleaned() {
    lose_power(false);
}

#[test]
fn puts_whose_delete_was_rolled_back_are_back_after_their_segment_was_cleaned() {
    lose_power(true);
}

/// Cleaning that waits for syncs keeps up with a store of deletes: it reads no segment twice and needs few syncs more.
#[test]
fn a_store_of_deleted_keys_with_expiry_times_does_not_grow() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = open(false, &disk, Now::at(1_000_000));
    (0..4 * FILLERS).for_each(|nth| append(&mut node, filler("kept", nth)));
    let mut segments_max = 0;
    for round in 0..300 {
        let wall = node.now.wall.0;
        append(&mut node, filler("kept", round % FILLERS));
        append(&mut node, expiring(round, wall + 1));
        (0..DELETED).for_each(|nth| append(&mut node, expiring(1_000 + nth, wall + 10_000_000)));
        append(&mut node, expiring(2_000 + round, wall + 1));
        node.now = node.now.plus_ms(2);
        node.turn();
        assert!(node.get(&expiring(2_000 + round, 0).key, View::Committed).unwrap().is_none());
        (0..DELETED).for_each(|nth| node.append(&[delete_of(&expiring(1_000 + nth, 0))]).map(drop).unwrap());
        node.commit();
        segments_max = segments_max.max(node.engine.log_report().segments);
    }
    let (stats, kept) = (*node.engine.stats(), node.engine.segments_kept());
    println!("{segments_max} {stats:?} {kept:?}");
    assert!(segments_max <= 12, "{segments_max} segments: {kept:?}, {stats:?}");
    assert!(stats.segments_cleaned > 20 && stats.moved_tombstones > 100, "{stats:?}");
    assert!(stats.cleaning_read_bytes < 2 * stats.written_bytes, "{stats:?}");
    assert!(stats.syncs < 6 * stats.segments_cleaned, "{stats:?}");
}

//! Space of expired records that no request reads.
use crate::reclaiming::{SEGMENT_BYTES, attempt, open, put, repeat, turn, write};
use crate::sorted_files::sort_out;
use crate::sorted_rest::serve_nothing;
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::Options;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// Fills a store with keys that expire in an hour, until cleaning has copied all of them.
fn fill_with_expiring(node: &mut TestNode, segments: u64) -> u64 {
    let expires_at_ms = node.now.wall.0 + 3_600_000;
    let mut keys = 0;
    while attempt(node, TestWrite { expires_at_ms, ..put(keys, 100) }) {
        keys += 1;
    }
    (0..2000).for_each(|_| turn(node));
    assert!(node.engine.log_report().segments > segments / 2);
    keys
}

/// No request reads the keys: only cleaning finds them expired.
#[test]
fn a_full_store_of_expired_records_takes_writes() {
    for reopens in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, 16, 1_000_000);
        let keys = fill_with_expiring(&mut node, 16);
        if reopens {
            drop(node.engine.close().unwrap());
            node = open(&disk, 16, 2_000_000);
        }
        node.now = node.now.plus_ms(7_200_000);
        let written: Vec<u64> = (keys..keys + 2000).collect();
        repeat(&mut node, &written, "expired", |key| put(key, 100));
    }
}

/// Without any request for two hours, the timers alone find records that expire after one.
#[test]
fn the_space_of_expired_records_comes_back_without_any_request() {
    for reopens in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, 64, 1_000_000);
        let expires_at_ms = node.now.wall.0 + 3_600_000;
        for key in 0..64 * SEGMENT_BYTES / 2 / 140 {
            write(&mut node, &[TestWrite { expires_at_ms, ..put(key, 100) }]);
        }
        node.settle();
        if reopens {
            drop(node.engine.close().unwrap());
            node = open(&disk, 64, 2_000_000);
        }
        assert!(node.engine.log_report().segments > 20);
        let mut polls = 0;
        while node.now.mono.0 < 8_000_000 {
            let next_ms = node.engine.upkeep_at().map_or(60_000, |at| at.ms_since(node.now.mono).clamp(1, 60_000));
            node.now = node.now.plus_ms(next_ms);
            node.turn();
            polls += 1;
        }
        let segments = node.engine.log_report().segments;
        assert!(segments < 8 && polls < 20_000, "{segments} segments after {polls} polls: {:?}", node.engine);
    }
}

/// Most keys live on. One in a hundred beside them has expired: that is not worth a copy of the others.
#[test]
fn a_few_expired_records_are_no_reason_to_copy_the_others() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 64, 1_000_000);
    let expires_at_ms = node.now.wall.0 + 3_600_000;
    for first in (0..64 * SEGMENT_BYTES / 2 / 140).step_by(32) {
        let expiry_of = |key: u64| if key.is_multiple_of(100) { expires_at_ms } else { 0 };
        let puts: Vec<_> =
            (first..first + 32).map(|key| TestWrite { expires_at_ms: expiry_of(key), ..put(key, 100) }).collect();
        write(&mut node, &puts);
    }
    node.settle();
    node.now = node.now.plus_ms(7_200_000);
    (0..5000).for_each(|_| turn(&mut node));
    assert_eq!(node.engine.stats().moved_records, 0, "{:?}", node.engine.stats());
}

fn open_sorted(disk: &SimDisk, segments: u64, at_ms: u64) -> TestNode {
    let options = Options { capacity_bytes: Some(segments * SEGMENT_BYTES), ..sorted(Durability::Sync) };
    TestNode::open(disk, options, Now::at(at_ms)).unwrap()
}

/// A sorted store of keys that expire in an hour, one in so many of them; the others live on.
fn sorted_with_expiring(disk: &SimDisk, one_in: u64) -> TestNode {
    let mut node = open_sorted(disk, 128, 1_000_000);
    let expires_at_ms = node.now.wall.0 + 3_600_000;
    for key in 0..128 * SEGMENT_BYTES / 2 / 140 {
        let expires_at_ms = if key.is_multiple_of(one_in) { expires_at_ms } else { 0 };
        write(&mut node, &[TestWrite { expires_at_ms, ..put(key, 100) }]);
    }
    sort_out(&mut node);
    assert!(node.engine.log_report().run_bytes > 30 * SEGMENT_BYTES, "{:?}", node.engine.log_report());
    node
}

/// Records in runs go with merges. Without any write, only the end of a step of expiries starts one.
#[test]
fn the_space_of_expired_records_in_runs_comes_back_without_any_request() {
    for reopens in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = sorted_with_expiring(&disk, 1);
        if reopens {
            drop(node.engine.close().unwrap());
            node = open_sorted(&disk, 128, 2_000_000);
        }
        let polls = serve_nothing(&mut node, 8_000_000);
        let run_bytes = node.engine.log_report().run_bytes;
        assert!(run_bytes < SEGMENT_BYTES && polls < 5_000, "{run_bytes} B, {polls} polls: {:?}", node.engine.stats());
    }
}

/// One record in twenty has expired: that is not worth a merge of all.
#[test]
fn a_few_expired_records_are_no_reason_to_merge_the_others() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = sorted_with_expiring(&disk, 20);
    let until_ms = node.now.mono.0 + 60_000;
    serve_nothing(&mut node, until_ms);
    let (sort_bytes, searches) = (node.engine.stats().sort_bytes, node.engine.stats().sort_searches);
    serve_nothing(&mut node, 8_000_000);
    assert_eq!(node.engine.stats().sort_bytes, sort_bytes);
    assert!(node.engine.stats().sort_searches < searches + 20, "{:?}", node.engine.stats());
}

/// No request reads the keys, and without space nothing is sorted: only merges find them expired.
#[test]
fn a_full_store_of_expired_records_in_runs_takes_writes() {
    for reopens in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open_sorted(&disk, 48, 1_000_000);
        let expires_at_ms = node.now.wall.0 + 3_600_000;
        let mut keys = 0;
        while attempt(&mut node, TestWrite { expires_at_ms, ..put(keys, 100) }) {
            keys += 1;
        }
        (0..2_000).for_each(|_| turn(&mut node));
        if reopens {
            drop(node.engine.close().unwrap());
            node = open_sorted(&disk, 48, 2_000_000);
        }
        node.now = node.now.plus_ms(7_200_000);
        let written: Vec<u64> = (keys..keys + 4_000).collect();
        repeat(&mut node, &written, "expired", |key| put(key, 100));
    }
}

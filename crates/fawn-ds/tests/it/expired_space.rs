//! Space of expired records that no request reads.
use crate::reclaiming::{SEGMENT_BYTES, attempt, open, put, repeat, turn, write};
use crate::support::{TestNode, TestWrite};
use fawn_flash::{SimDisk, SimOptions};

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

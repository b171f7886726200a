//! Segments that are cleaned more than once because a part of them cannot be read.
use crate::reclaiming::{delete, holders, put, turn, write};
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};
use std::collections::BTreeSet;

const SEGMENT_BYTES: u64 = 2 << 20;
const DELETED: u64 = 3_000;
const OTHER: u64 = 1_000_000;

fn open(disk: &SimDisk, at: Now) -> TestNode {
    let options = Options {
        segment_bytes: SEGMENT_BYTES as u32,
        memory_bytes: 32 << 20,
        space_amplification_max_percent: 100,
        checkpoint_log_bytes_min: u64::MAX,
        ..small(Durability::Sync)
    };
    TestNode::open(disk, options, at).unwrap()
}

/// Deletes in a segment whose end cannot be read, of which the older records are in segments that cannot be read either: the deletes
/// are needed for as long.
#[test]
fn deletes_of_a_segment_that_is_cleaned_in_part_are_copied_once() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, Now::at(1_000_000));
    for key in 0..DELETED {
        node.append(&[put(key, 2_700)]).unwrap();
        if key % 50 == 0 {
            write(&mut node, &[put(OTHER + key, 100)]);
        }
    }
    node.settle();
    let older: BTreeSet<String> = (0..DELETED).step_by(50).flat_map(|key| holders(&disk, key)).collect();
    // A segment that has no older records.
    let mut filler = 0;
    while holders(&disk, 9_000_000 + filler).iter().all(|name| older.contains(name)) {
        filler += 1;
        write(&mut node, &[put(9_000_000 + filler, 2_000)]);
    }
    for first in (0..DELETED).step_by(50) {
        write(&mut node, &(first..first + 50).map(delete).collect::<Vec<_>>());
    }
    node.settle();
    let [victim] =
        &holders(&disk, DELETED - 1).into_iter().filter(|name| !older.contains(name)).collect::<Vec<_>>()[..]
    else {
        panic!("the deletes are in one segment")
    };
    for name in &older {
        disk.make_unreadable(name, 4096..8192);
    }
    disk.make_unreadable(victim, 3 * SEGMENT_BYTES / 4..3 * SEGMENT_BYTES / 4 + 4096);
    // The fillers and these are replaced.
    (0..6 * SEGMENT_BYTES / 10_000).for_each(|_| write(&mut node, &[put(8_000_000, 10_000)]));
    (0..=filler).for_each(|i| write(&mut node, &[delete(9_000_000 + i)]));
    // A day.
    for _ in 0..288 {
        node.now = node.now.plus_ms(300_000);
        (0..40).for_each(|_| turn(&mut node));
    }
    let stats = node.engine.stats();
    assert!(stats.cleaning_failed > 60, "{stats:?}");
    assert!(
        (DELETED / 2..2 * DELETED).contains(&stats.moved_tombstones),
        "{} of {DELETED}: {stats:?}",
        stats.moved_tombstones
    );
    // The rest of the segment is cleaned once it can be read, and the copies of the deletes count.
    disk.heal();
    for _ in 0..24 {
        node.now = node.now.plus_ms(300_000);
        (0..40).for_each(|_| turn(&mut node));
    }
    assert!(!disk.names().contains(victim), "{:?}", node.engine);
    let now = node.now;
    disk.kill(1);
    let mut node = open(&disk, now);
    let is_found = |node: &mut TestNode, one: TestWrite| node.get(&one.key, View::Committed).unwrap().is_some();
    assert!(!(0..DELETED).any(|key| is_found(&mut node, delete(key))));
    assert!((0..DELETED).step_by(50).all(|key| is_found(&mut node, put(OTHER + key, 0))));
}

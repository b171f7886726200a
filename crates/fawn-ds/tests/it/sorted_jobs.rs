//! Jobs of the sorted tier: when they begin, and what they do about runs that cannot be read.
use crate::sorted_files::{put, runs, sort_out};
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::{EngineError, Options, View};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// A run for every sealed segment.
fn small_runs(durability: Durability) -> Options {
    Options { sort_bytes: 1, ..sorted(durability) }
}

fn open(options: Options) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    (disk, node)
}

/// Writes these keys, 300 B each; 200 of them fill a segment.
fn fill(node: &mut TestNode, numbers: core::ops::Range<u64>) {
    for number in numbers {
        put(node, format!("key-{number:06}").as_bytes(), Some(&[number as u8; 260]));
        if number % 32 == 0 {
            node.turn();
        }
    }
    sort_out(node);
}

fn has(node: &mut TestNode, number: u64) -> bool {
    node.get(format!("key-{number:06}").as_bytes(), View::Committed).unwrap().is_some()
}

/// Reads of merges so far.
fn merge_reads(node: &TestNode) -> u64 {
    node.engine.device().stats().of(IoClass::Sort).reads
}

#[test]
fn polls_search_nothing_to_sort_or_merge_until_something_changes() {
    let (_disk, mut node) = open(Options { sort_bytes: 256 << 10, ..sorted(Durability::Sync) });
    fill(&mut node, 0..6_000);
    assert!(node.engine.runs() > 0 && node.engine.stats().sort_searches > 2);
    let segments = node.engine.log_report().segments;
    let (searches, visited) = (node.engine.stats().sort_searches, node.engine.log_report().segments_visited);
    for number in 0..30u64 {
        put(&mut node, b"one more", Some(&number.to_be_bytes()));
        node.turn();
        node.now = node.now.plus_ms(100);
    }
    assert_eq!(node.engine.stats().sort_searches, searches, "writes do not search");
    for _ in 0..100 {
        node.turn();
        node.now = node.now.plus_ms(100);
    }
    assert_eq!(
        node.engine.stats().sort_searches,
        searches + 2,
        "of idle polls only the first one of the rest searches"
    );
    // The report itself and the search for segments visit all of them.
    assert_eq!(node.engine.log_report().segments_visited, visited + 2 * segments);
    fill(&mut node, 6_000..6_250);
    assert!(node.engine.stats().sort_searches > searches, "a sealed segment is a change");
}

#[test]
fn segments_that_are_not_movable_yet_are_searched_once_a_second() {
    let (_disk, mut node) = open(small_runs(Durability::Sync));
    let progress = node.engine.progress(crate::support::RANGE);
    node.engine.set_retain_floor(crate::support::RANGE, progress.committed);
    node.engine.end_sole_epoch(crate::support::RANGE).unwrap();
    fill(&mut node, 0..1_000);
    assert_eq!(node.engine.runs(), 0, "all is kept for a resend");
    for _ in 0..20 {
        node.turn();
        node.now = node.now.plus_ms(100);
    }
    let before = node.engine.stats().sort_searches;
    for _ in 0..100 {
        node.turn();
        node.now = node.now.plus_ms(100);
    }
    let searches = node.engine.stats().sort_searches - before;
    assert!((8..=11).contains(&searches), "{searches} searches in 10 s");
    let committed = node.engine.progress(crate::support::RANGE).committed;
    node.engine.set_retain_floor(crate::support::RANGE, committed);
    node.now = node.now.plus_ms(1_000);
    sort_out(&mut node);
    assert!(node.engine.runs() > 0, "{:?}", node.engine);
}

#[test]
fn a_corrupt_run_is_read_by_two_merges_and_those_around_it_all_the_time() {
    let (disk, mut node) = open(small_runs(Durability::Sync));
    let mut number = 0;
    while node.engine.runs() < 3 {
        fill(&mut node, number..number + 50);
        number += 50;
    }
    // In a page of the middle run; all are of one length.
    let before = number;
    let corrupt = runs(&disk).into_iter().max_by_key(|name| disk.contents(name).map(|bytes| bytes.len())).unwrap();
    disk.flip_bits(&corrupt, 4096 + 99, 1);
    for _ in 0..60 {
        fill(&mut node, number..number + 200);
        number += 200;
        node.now = node.now.plus_ms(20_000);
    }
    assert_eq!(node.engine.poisoned(), None);
    assert!(runs(&disk).contains(&corrupt));
    assert!(node.engine.stats().runs_listed > 60, "sorts continue: {:?}", node.engine.stats());
    // Sixteen ages at most on its later side, of which merged ones have several runs.
    assert!(node.engine.runs() <= 30, "{} runs: later ones are merged", node.engine.runs());
    assert_eq!(node.engine.stats().merges_failed, 2);
    assert!((before..number).all(|number| has(&mut node, number)));
    // Nothing is tried again while nothing changes.
    let (searches, reads) = (node.engine.stats().sort_searches, merge_reads(&node));
    for _ in 0..500 {
        node.turn();
        node.now = node.now.plus_ms(20_000);
    }
    assert_eq!((node.engine.stats().sort_searches, merge_reads(&node)), (searches, reads));
}

#[test]
fn an_unreadable_run_is_read_again_after_growing_delays() {
    let (disk, mut node) = open(small_runs(Durability::Sync));
    let mut number = 0;
    while node.engine.runs() < 3 {
        fill(&mut node, number..number + 50);
        number += 50;
    }
    let bad = runs(&disk)[0].clone();
    disk.make_unreadable(&bad, 4096..8192);
    for _ in 0..300 {
        fill(&mut node, number..number + 200);
        number += 200;
        node.now = node.now.plus_ms(60_000);
    }
    let attempts = node.engine.stats().merges_failed;
    assert!((5..=13).contains(&attempts), "{attempts} attempts in 5 hours");
    assert!(runs(&disk).contains(&bad));
    // A merge of later runs makes up to eight.
    assert!(node.engine.runs() <= 60, "{} runs: others are merged", node.engine.runs());
    disk.heal();
    node.now = node.now.plus_ms(3_600_000);
    fill(&mut node, number..number + 1_000);
    assert!(!runs(&disk).contains(&bad), "merged once it can be read");
    assert!((0..number + 1_000).all(|number| has(&mut node, number)));
}

/// Nothing else changes: only the time says that the run may be read again.
#[test]
fn an_unreadable_run_is_read_again_in_an_idle_store() {
    let (disk, mut node) = open(small_runs(Durability::Sync));
    fill(&mut node, 0..200);
    let bad = runs(&disk)[0].clone();
    disk.make_unreadable(&bad, 4096..8192);
    let mut number = 200;
    while node.engine.stats().merges_failed == 0 {
        fill(&mut node, number..number + 200);
        number += 200;
        assert!(number < 10_000, "no merge reads it: {:?}", node.engine);
    }
    let wait = |node: &mut TestNode, seconds: u64| {
        for _ in 0..10 * seconds {
            node.now = node.now.plus_ms(100);
            node.turn();
        }
    };
    // No job begins within 10 s of a failed one, and the next delay of the run is longer.
    wait(&mut node, 15);
    assert!(node.engine.stats().merges_failed == 2 && runs(&disk).contains(&bad), "{:?}", node.engine);
    disk.heal();
    wait(&mut node, 30);
    assert!(!runs(&disk).contains(&bad), "{:?}", node.engine);
    assert!((0..number).all(|number| has(&mut node, number)));
}

fn number_key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Without the mark, a power loss makes the newer record pending again, and the older one is needed that the run has not.
#[test]
fn a_job_in_a_chain_asks_for_the_marks_of_what_it_leaves_out_and_waits_for_them() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { sort_bytes: 100 << 10, ..sorted(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(1_000)).unwrap();
    // Time stands still: no mark is due by it.
    let mut number = 0;
    while node.engine.log_report().segments < 2 {
        put(&mut node, &number_key(number), Some(b"before".repeat(40).as_slice()));
        node.turn();
        number += 1;
    }
    disk.hang(OpKind::Read);
    while !node.engine.is_sorting() || disk.hung() == 0 {
        put(&mut node, &number_key(number), Some(b"before".repeat(40).as_slice()));
        poll(&mut node);
        number += 1;
    }
    // Of the first segment, which is being read.
    put(&mut node, &number_key(1), Some(b"after"));
    (0..10).for_each(|_| poll(&mut node));
    disk.release_hung();
    disk.clear_faults();
    // After each operation of the device, until the run is listed and a little longer.
    disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 1 });
    let (mut turns, mut after) = (0, 0);
    while after < 3 {
        node.turn();
        turns += 1;
        assert!(turns < 200, "no mark is asked for: {:?}", node.engine);
        after += u32::from(node.engine.stats().runs_listed > 0);
    }
    let mut pending = 0;
    for image in disk.take_images() {
        let mut opened = TestNode::open_in_chain(&image.disk, options.clone(), Now::at(1_000)).unwrap();
        let found = opened.get(&number_key(1), View::Committed).unwrap().map(|entry| entry.value);
        pending += u32::from(found.as_deref() == Some(b"before".repeat(40).as_slice()));
        assert!(found.is_some(), "operation {}: the record before is lost", image.op);
    }
    assert!(pending > 0, "a power loss makes the newer record pending");
}

/// A turn that does not wait for reads that hang.
pub(crate) fn poll(node: &mut TestNode) {
    node.engine.submit(node.now);
    node.engine.poll(node.now, &mut Vec::new());
    node.commit();
}

#[test]
fn records_that_are_too_long_for_a_run_are_copied_once() {
    let (_disk, mut node) = open(Options { space_amplification_max_percent: 10_000, ..small_runs(Durability::Sync) });
    let mut long = 0;
    for number in 0..1_500u64 {
        // The shortest of them are hardly too long.
        let len = if number % 3 == 0 { 1_010 + number } else { 200 };
        long += u64::from(len > 1_000);
        put(&mut node, &number_key(number), Some(&vec![7; len as usize]));
        node.turn();
    }
    sort_out(&mut node);
    for _ in 0..100 {
        node.now = node.now.plus_ms(60_000);
        node.turn();
    }
    let moved = node.engine.stats().moved_records;
    assert!(moved > long * 8 / 10 && moved <= long, "{moved} copies of {long} records");
    assert!((0..1_500).all(|number| has(&mut node, number)));
}

#[test]
fn a_run_is_read_again_after_a_misdirected_read() {
    let (disk, mut node) = open(small_runs(Durability::Sync));
    fill(&mut node, 0..2_000);
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, small_runs(Durability::Sync), Now::at(2_000)).unwrap();
    let mut failed = 0;
    for number in 0..200 {
        disk.fail_nth(OpKind::Read, 1, DeviceFault::Misdirect { name: None, offset: 0 });
        let found = node.get(format!("key-{number:06}").as_bytes(), View::Committed);
        failed += u32::from(matches!(found, Err(EngineError::Corrupt { .. })));
        disk.clear_faults();
        assert!(has(&mut node, number), "{found:?}");
    }
    assert!(failed > 50, "{failed} lookups met a misdirected read");
}

/// A full store has no room to copy records that are too long for runs. Sorts of their segments would list runs without
/// end, and sort nothing.
#[test]
fn a_full_store_lists_no_runs_that_make_no_space() {
    // Of 120 seeds, in these the last segments that can be sorted have such records.
    for seed in [55, 86] {
        let options = Options {
            capacity_bytes: Some((14 + seed % 30) << 16),
            sort_bytes: 1 << (12 + seed % 8),
            ..small_runs(Durability::Sync)
        };
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
        let (mut key, mut refused) = (0, 0);
        while refused < 1_000 {
            let len = if key % (2 + seed % 23) == 0 { 3_000 } else { 280 };
            let write = TestWrite { key: number_key(key), value: Some(vec![7; len]), expires_at_ms: 0 };
            match node.append(&[write]) {
                Ok(_) => (key, refused) = (key + 1, 0),
                Err(_) => refused += 1,
            }
            node.turn();
            node.now = node.now.plus_ms(1);
        }
        let listed = node.engine.stats().runs_listed;
        for _ in 0..2_000 {
            node.turn();
            node.now = node.now.plus_ms(10);
        }
        let later = node.engine.stats().runs_listed - listed;
        assert!(listed > 5 && later < 20, "seed {seed}: {listed} jobs, then {later} in an idle store");
    }
}

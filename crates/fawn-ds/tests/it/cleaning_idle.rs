//! Cleaning of stores without clients: how often one that has nothing to clean is searched, and how soon it cleans again.
use crate::range_harness::ring_at;
use crate::sorted_rest::serve_nothing;
use crate::splits::{fill as fill_ranges, keys, whole};
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, Options, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};

/// A store of so many segments at most, or one that should have no more than its live records take. Verifications read from memory.
fn open(disk: &SimDisk, capacity_segments: Option<u64>) -> TestNode {
    let capacity_bytes = capacity_segments.map(|segments| segments << 16);
    let options = Options { capacity_bytes, memory_bytes: 64 << 20, ..small(Durability::Sync) };
    let options = Options { space_amplification_max_percent: 100, ..options };
    TestNode::open(disk, options, Now::at(1_000)).unwrap()
}

fn write(number: u64, value: Option<Vec<u8>>) -> TestWrite {
    TestWrite { key: number.to_be_bytes().to_vec(), value, expires_at_ms: 0 }
}

/// Writes new keys, in frames so large that hardly anything is dead, until the store stays full, or has 150 segments. Returns
/// their number.
fn fill(node: &mut TestNode) -> u64 {
    let mut number = 0;
    while node.engine.log_report().segments < 150 {
        match node.append(&[write(number, Some(vec![7; 1_000]))]) {
            Ok(_) => number += 1,
            Err(error) => {
                assert_eq!(error, EngineError::StoreFull);
                node.settle();
                // A little is dead at the end of each segment.
                rest(node, 60_000);
                if node.engine.is_full() && node.engine.log_report().cleaning_debt_segments > 0 {
                    break;
                }
            }
        }
    }
    node.settle();
    number
}

/// Lets so much time pass without a client. Returns the polls.
fn rest(node: &mut TestNode, ms: u64) -> u64 {
    let until_ms = node.now.mono.0 + ms;
    let polls = serve_nothing(node, until_ms);
    node.now = node.now.plus_ms(until_ms - node.now.mono.0);
    polls
}

/// A search visits all segments. A store in debt, full or not, once did so one to ten times a second for good.
#[test]
fn a_store_that_has_nothing_to_clean_is_searched_less_and_less() {
    for capacity in [None, Some(40)] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, capacity);
        fill(&mut node);
        assert_eq!(node.engine.is_full(), capacity.is_some(), "{capacity:?}");
        assert!(node.engine.log_report().cleaning_debt_segments > 0, "{:?}", node.engine.log_report());
        rest(&mut node, 60_000);
        let cleaned = node.engine.stats().segments_cleaned;
        let polls = rest(&mut node, 600_000);
        // The clock is listed every minute.
        assert!((59..=72).contains(&polls), "{capacity:?}: {polls} polls in ten minutes");
        assert_eq!(node.engine.stats().segments_cleaned, cleaned);
    }
}

/// Deletes leave segments mostly dead. Their cleaning begins as soon as in a store that was never at rest.
#[test]
fn a_store_that_rested_cleans_as_soon_as_there_is_something_to_clean() {
    for capacity in [None, Some(40)] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, capacity);
        let written = fill(&mut node);
        rest(&mut node, 600_000);
        let deleted = (0..written).filter(|number| number % 16 > 0).take(300);
        let deleted = deleted.take_while(|number| node.append(&[write(*number, None)]).is_ok()).count();
        assert!(deleted > 100, "{deleted}");
        let (since, cleaned) = (node.now.mono, node.engine.stats().segments_cleaned);
        while node.engine.stats().segments_cleaned == cleaned {
            node.turn();
            if node.engine.in_flight() == 0 {
                let at = node.engine.upkeep_at().unwrap();
                node.now = node.now.plus_ms(at.ms_since(node.now.mono));
            }
            let passed_ms = node.now.mono.ms_since(since);
            assert!(passed_ms < 2_000, "{capacity:?}: {passed_ms} ms, {:?}", node.engine);
        }
    }
}

/// A segment whose read has failed is left alone for 10 s.
#[test]
fn a_segment_that_is_barred_is_cleaned_soon_afterwards() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, None);
    let written = fill(&mut node);
    let deleted = (0..written / 4).filter(|number| number % 16 > 0);
    // The deletes find what they remove in memory. So only cleaning reads.
    for number in deleted.clone() {
        assert!(node.get(&write(number, None).key, View::Committed).unwrap().is_some());
    }
    disk.fail_every(OpKind::Read, DeviceFault::Fail);
    deleted.for_each(|number| assert!(node.append(&[write(number, None)]).is_ok()));
    rest(&mut node, 5_000);
    disk.clear_faults();
    assert!(
        node.engine.stats().cleaning_failed > 0 && node.engine.stats().segments_cleaned == 0,
        "{:?}",
        node.engine.stats()
    );
    rest(&mut node, 16_000);
    assert!(node.engine.stats().segments_cleaned > 0, "{:?}", node.engine.stats());
}

/// While reads failed for ten minutes, all victims were barred for longer and longer. Writes wait for the space, so they are tried
/// within half a minute.
#[test]
fn a_full_store_takes_puts_again_within_a_minute_of_a_long_read_fault() {
    for fault in [DeviceFault::Fail, DeviceFault::Exhausted] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, Some(40));
        let written = fill(&mut node);
        let deleted = (0..written / 4).filter(|number| number % 16 > 0);
        for number in deleted.clone() {
            assert!(node.get(&write(number, None).key, View::Committed).unwrap().is_some());
        }
        disk.fail_every(OpKind::Read, fault.clone());
        deleted.for_each(|number| assert!(node.append(&[write(number, None)]).is_ok()));
        let put = |node: &mut TestNode, seconds: u64| {
            (0..seconds).any(|_| {
                rest(node, 1_000);
                node.append(&[write(u64::MAX, Some(vec![7; 1_000]))]).is_ok()
            })
        };
        assert!(!put(&mut node, 700), "{fault:?}: {:?}", node.engine.stats());
        assert!(node.engine.is_full() && node.engine.stats().cleaning_failed > 10, "{:?}", node.engine.stats());
        disk.clear_faults();
        assert!(put(&mut node, 60), "{fault:?}: {:?}", node.engine.stats());
    }
}

/// The device refuses segments for copies, and has space for them a moment later. No event says so.
#[test]
fn a_victim_without_room_for_its_copies_is_tried_again() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, None);
    let written = fill(&mut node);
    (0..written).step_by(3).for_each(|number| assert!(node.append(&[write(number, None)]).is_ok()));
    disk.fail_every(OpKind::Allocate, DeviceFault::Full);
    // No time passes: what waits for none is done.
    (0..400).for_each(|_| assert!(node.turn() > Version::ZERO));
    assert!(node.engine.is_full() && node.engine.has_upkeep() && node.engine.in_flight() == 0, "{:?}", node.engine);
    let cleaned = node.engine.stats().segments_cleaned;
    let polls = rest(&mut node, 60_000);
    assert!((6..=20).contains(&polls), "{polls} polls in a minute");
    assert_eq!(node.engine.stats().segments_cleaned, cleaned);
    disk.clear_faults();
    rest(&mut node, 600_000);
    // A third of the records were deleted.
    assert!(!node.engine.has_upkeep() && node.engine.log_report().segments < 105, "{:?}", node.engine);
}

/// A segment that was filed has brought about no write.
#[test]
fn a_store_without_clients_files_what_was_split() {
    let mut harness = whole(1, small(Durability::Sync), true);
    fill_ranges(&mut harness, &keys(2_000), 1);
    harness.split(1, ring_at(0x60), 2, 3);
    assert!(harness.engine.segments_to_file() > 4, "{}", harness.engine.segments_to_file());
    for _ in 0..10_000 {
        if harness.engine.in_flight() == 0 {
            let Some(at) = harness.engine.upkeep_at() else { break };
            harness.now = harness.now.plus_ms(at.ms_since(harness.now.mono));
        }
        harness.engine.submit(harness.now);
        harness.engine.wait(harness.now, &mut Vec::new());
        harness.commit();
    }
    assert_eq!(harness.engine.segments_to_file(), 0);
}

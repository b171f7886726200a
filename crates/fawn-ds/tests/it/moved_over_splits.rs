//! Records that move or are hidden around splits and merges: copies in flight, expired records, cleared keys.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{cached, scanned};
use fawn_ds::internals::Options;
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyRange, RangeId, TimeMs};

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("key {i}").into_bytes()).collect()
}

fn whole(options: Options, is_sole: bool) -> RangeHarness {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, is_sole);
    harness.add(1, KeyRange::ALL);
    harness
}

/// Polls until all segments are filed.
fn file(harness: &mut RangeHarness) {
    while harness.engine.segments_to_file() > 0 {
        harness.now = harness.now.plus_ms(10);
        harness.turn();
    }
}

/// A copy is in flight, the range is split, and an heir overwrites the key before its entry moves: the heir's record must
/// replace the copy.
#[test]
fn an_heirs_record_replaces_a_copy_that_was_in_flight_at_the_split() {
    let options =
        Options { checkpoint_log_bytes_min: u64::MAX, space_amplification_max_percent: 0, ..cached(Durability::Sync) };
    let mut harness = whole(options, false);
    let keys = keys(600);
    for key in &keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    // The pages are cached: no verification reads.
    harness.check(&keys, "filled");
    harness.check(&keys, "cached");
    let mut rng = Rng::new(1);
    let mut overwrite = |harness: &mut RangeHarness| {
        harness.write(&keys[300 + rng.below(300) as usize], Some(&[2; 300]));
        harness.turn();
        assert!(harness.engine.stats().appended_records < 10_000, "nothing is cleaned: {:?}", harness.engine);
    };
    // Until survivors have a segment to be copied to.
    while harness.engine.stats().segments_cleaned == 0 {
        overwrite(&mut harness);
    }
    let cleaning_reads =
        |harness: &RangeHarness| harness.disk.counted(OpKind::Read) - harness.engine.stats().verification_reads;
    let reads = cleaning_reads(&harness);
    while cleaning_reads(&harness) == reads {
        overwrite(&mut harness);
    }
    harness.disk.hang(OpKind::Write);
    // Long enough for the pace of cleaning: all of the victim is copied.
    (0..40).for_each(|_| harness.turn());
    harness.disk.end_faults(OpKind::Write);
    let moved = harness.engine.stats().moved_records;
    assert!(harness.disk.hung() > 0, "copies are being written");
    harness.split(1, ring_at(0x80), 2, 3);
    for key in &keys {
        harness.write(key, Some(&[3; 20]));
    }
    assert_eq!(harness.engine.stats().moved_records, moved, "the copies are still being written");
    harness.disk.release_hung();
    // No commit: the heirs' records are pending while the entries move.
    for _ in 0..4 {
        harness.engine.wait(harness.now, &mut Vec::new());
    }
    assert!(harness.engine.stats().moved_records > moved, "{:?}", harness.engine.stats());
    harness.settle();
    harness.check(&keys, "committed");
    harness.reopen(1, true);
    harness.check(&keys, "opened again");
}

/// A record that a lookup found expired hides an older value of its key in another segment, whichever part of its segment
/// knows of that. `is_filed`: the segment is filed for the heir before it is cleaned; otherwise its filing has
/// failed, and only the parent's part knows.
fn hide_by_an_expired_record(is_filed: bool) {
    let options = Options { capacity_bytes: Some(24 * (64 << 10)), ..scanned(Durability::Sync) };
    let mut harness = whole(options, true);
    let keys = keys(1_600);
    // The old value lies among records that stay, the expiring one among those that are overwritten.
    for key in &keys[..240] {
        harness.write(key, Some(&[1; 256]));
    }
    harness.settle();
    let segments = |harness: &RangeHarness| -> Vec<String> {
        harness.disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
    };
    let (key, old) = (&keys[0], segments(&harness)[0].clone());
    let expires_at_ms = harness.now.wall.0 + 1_000;
    harness.write_expiring(key, &[0xE5; 256], expires_at_ms);
    harness.settle();
    let holds = |harness: &RangeHarness, name: &String| {
        harness.disk.contents(name).unwrap().windows(256).any(|found| found == [0xE5; 256])
    };
    let expiring = segments(&harness).into_iter().find(|name| holds(&harness, name)).unwrap();
    assert_ne!(expiring, old);
    harness.now = harness.now.plus_ms(100_000);
    harness.engine.advance_clock(harness.now);
    harness.engine.set_chain_time(RangeId(1), TimeMs(expires_at_ms + 60_000));
    assert_eq!(harness.get(RangeId(1), key), Ok(None));
    harness.models.get_mut(&RangeId(1)).unwrap().content.remove(key);
    harness.check_len("a lookup has removed the expired record");
    // The chain's head has failed: its time falls, and cleaning does not take the record for expired.
    harness.engine.set_chain_time(RangeId(1), TimeMs(expires_at_ms + 30_000));
    if is_filed {
        harness.split(1, ring_at(0x80), 2, 3);
        file(&mut harness);
    } else {
        // So that the segment is complete, and another one is written to.
        for key in &keys[1_000..1_250] {
            harness.write(key, Some(&[1; 256]));
        }
        harness.settle();
        harness.disk.make_unreadable(&expiring, 4096..8192);
        harness.split(1, ring_at(0x80), 2, 3);
        (0..200).for_each(|_| harness.turn());
        assert_eq!(harness.engine.segments_to_file(), 1, "the unreadable one");
        harness.disk.heal();
    }
    let mut rng = Rng::new(1);
    while segments(&harness).contains(&expiring) {
        let key = &keys[220 + rng.below(400) as usize];
        harness.write(key, Some(&[4; 256]));
        harness.turn();
        assert!(harness.engine.stats().appended_records < 50_000, "it is not cleaned: {:?}", harness.engine);
    }
    assert_eq!(harness.engine.segments_to_file(), 0);
    assert!(segments(&harness).contains(&old), "the old value is still there");
    harness.settle();
    harness.reopen(1, false);
    harness.check(&keys, "opened again");
}

#[test]
fn a_filed_segment_hides_what_an_expired_record_of_it_hid() {
    hide_by_an_expired_record(true);
}

#[test]
fn a_segment_that_is_cleaned_for_an_heir_hides_what_an_expired_record_of_it_hid() {
    hide_by_an_expired_record(false);
}

/// An inherited index has entries of the part that was cleared. A merge before they are filed would bring them back.
#[test]
fn a_merge_waits_until_the_entries_of_a_cleared_part_are_filed() {
    let mut harness = whole(scanned(Durability::Sync), true);
    let keys = keys(900);
    for key in &keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    harness.disk.hang(OpKind::Read);
    harness.split(1, ring_at(0x80), 2, 3);
    harness.clear(2);
    for _ in 0..50 {
        harness.turn();
    }
    assert!(harness.engine.segments_to_file() > 0, "filing waits for its read");
    assert!(!harness.try_merge(2, 3, 4), "the merge is put off");
    harness.disk.clear_faults();
    harness.disk.release_hung();
    harness.merge(2, 3, 4);
    harness.check(&keys, "merged");
    harness.reopen(1, true);
    harness.check(&keys, "opened again");
}

/// Of two chains with different times the earlier one judges the merged range's records: one of them may still be served by
/// another member.
#[test]
fn a_merged_range_takes_the_earlier_of_its_chains_times() {
    for earlier in [2, 3] {
        let mut harness = whole(scanned(Durability::Sync), true);
        harness.split(1, ring_at(0x80), 2, 3);
        let keys = keys(40);
        let expires_at_ms = harness.now.wall.0 + 1_000;
        for key in &keys {
            harness.write_expiring(key, &[1; 30], expires_at_ms);
        }
        harness.settle();
        file(&mut harness);
        harness.now = harness.now.plus_ms(500_000);
        harness.engine.advance_clock(harness.now);
        harness.engine.set_chain_time(RangeId(earlier), TimeMs(expires_at_ms));
        harness.engine.set_chain_time(RangeId(5 - earlier), TimeMs(expires_at_ms + 300_000));
        harness.merge(2, 3, 4);
        for key in &keys {
            assert_eq!(harness.get(RangeId(4), key), Ok(None), "a lookup says what the caller's time says");
        }
        harness.check_len("by the earlier time no record is removed");
        harness.engine.set_chain_time(RangeId(4), TimeMs(expires_at_ms + 300_000));
        keys.iter().for_each(|key| assert_eq!(harness.get(RangeId(4), key), Ok(None)));
        assert_eq!(harness.engine.len(RangeId(4)), 0);
    }
}

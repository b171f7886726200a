//! Records that move or are hidden around splits and merges: copies in flight, expired records, cleared keys.
use crate::checkpoint_in_progress::split_unfiled;
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, cached, scanned, small};
use fawn_ds::internals::{Engine, KeepReason, Options, RecordKind, RecordRef};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, RangeId, TimeMs, Version};

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("key {i}").into_bytes()).collect()
}

fn whole(options: Options, is_sole: bool) -> RangeHarness {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, is_sole);
    harness.add(1, KeyRange::ALL);
    harness
}

/// A store with these keys in one range of a chain, which cleans as soon as anything is dead.
fn filled_to_clean(disk: SimDisk, keys: &[Vec<u8>]) -> RangeHarness {
    let options =
        Options { checkpoint_log_bytes_min: u64::MAX, space_amplification_max_percent: 0, ..cached(Durability::Sync) };
    let mut harness = RangeHarness::new(disk, options, false);
    harness.add(1, KeyRange::ALL);
    for key in keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    // The pages are cached: no verification reads.
    harness.check(keys, "filled");
    harness.check(keys, "cached");
    harness
}

/// Device reads of a store whose verifications are all that reads besides cleaning.
fn cleaning_reads(harness: &RangeHarness) -> u64 {
    harness.disk.counted(OpKind::Read) - harness.engine.stats().verification_reads
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
    let keys = keys(600);
    let mut harness = filled_to_clean(SimDisk::new(SimOptions::instant(1)), &keys);
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

/// Cleaning copies records under the numbers of a split's heirs while the split still waits for the manifest. A power loss
/// that takes the manifest's commit must take these copies, too: an opening refuses numbers that were never assigned.
#[test]
fn copies_under_an_heirs_number_wait_for_the_manifest() {
    let mut images = 0;
    for seed in 0..24 {
        let disk = SimDisk::new(SimOptions { latency_ticks: 0..=8, ..SimOptions { seed, ..SimOptions::default() } });
        let keys = keys(600);
        let mut harness = filled_to_clean(disk, &keys);
        let mut rng = Rng::new(seed);
        // A read of a victim is in flight, and nothing else.
        let is_split = (0..10_000).any(|_| {
            harness.write(&keys[300 + rng.below(300) as usize], Some(&[2; 300]));
            let reads = cleaning_reads(&harness);
            harness.settle();
            let begun = cleaning_reads(&harness) > reads;
            harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
            let is_split =
                begun && harness.engine.stats().segments_cleaned > 0 && harness.try_split(1, ring_at(0x80), 2, 3);
            harness.disk.capture(Capture::Never);
            is_split
        });
        assert!(is_split, "seed {seed}: nothing was cleaned");
        for image in harness.disk.take_images() {
            let opened = Engine::open(SimDevice::attach(&image.disk), harness.options.clone(), harness.now);
            let (engine, _) = opened.unwrap_or_else(|error| panic!("seed {seed}, operation {}: {error}", image.op));
            assert!([1, 2].contains(&engine.ranges().count()));
            images += 1;
        }
    }
    assert!(images > 100, "only {images} images");
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

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

/// Segments that have these bytes.
fn holders(disk: &SimDisk, bytes: &[u8]) -> Vec<String> {
    let holds = |name: &String| disk.contents(name).unwrap().windows(bytes.len()).any(|found| found == bytes);
    segments(disk).into_iter().filter(holds).collect()
}

/// A segment is being filed for an heir that goes, or begins again, before its end. Its counts must not go to
/// the range that has the heir's place then: the records would seem to wait for a commit for ever.
fn file_for_an_heir_that_goes(go: impl Fn(&mut RangeHarness)) {
    let mut harness = whole(scanned(Durability::Sync), true);
    for key in keys(1_800) {
        harness.write(&key, Some(&[1; 1_000]));
    }
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    // No time passes: filing stops when the credit that was saved up is used, within a segment.
    (0..200).for_each(|_| harness.engine.wait(harness.now, &mut Vec::new()));
    assert!(harness.engine.segments_to_file() > 0);
    go(&mut harness);
    file(&mut harness);
    harness.clear(3);
    for _ in 0..100 {
        harness.write(b"another key", Some(&[2; 1_000]));
        harness.turn();
    }
    assert_eq!(harness.engine.segments_kept().get(&KeepReason::Pending), None, "{:?}", harness.engine);
}

#[test]
fn counts_of_an_heir_that_is_dropped_go_with_it() {
    file_for_an_heir_that_goes(|harness| {
        let keys = harness.models[&RangeId(2)].keys;
        harness.drop_range(2);
        harness.add(4, keys);
    });
}

#[test]
fn counts_of_an_heir_that_begins_again_go_with_its_records() {
    file_for_an_heir_that_goes(|harness| {
        let base = Version::new(Epoch::new(1).unwrap(), 1).unwrap();
        harness.models.remove(&RangeId(2));
        harness.engine.begin_transfer(RangeId(2), base).unwrap();
    });
}

/// A delete is kept for a dead put of its parent. Filed, that is a put of the other heir.
#[test]
fn filing_frees_a_segment_that_hid_a_record_of_the_other_heir() {
    let options = Options { space_amplification_max_percent: 10_000, ..scanned(Durability::Sync) };
    let mut harness = whole(options, true);
    let is_high = |harness: &RangeHarness, key: &[u8]| harness.range_of(key) == Some(RangeId(3));
    for key in keys(260) {
        harness.write(&key, Some(&[1; 300]));
    }
    harness.settle();
    let (low, _): (Vec<_>, Vec<_>) =
        keys(260).into_iter().partition(|key| fawn_types::RingKey::of(&SECRET, key) < ring_at(0x80));
    harness.write(&low[0], Some(&[2; 300]));
    harness.settle();
    harness.disk.hang(OpKind::Read);
    harness.split(1, ring_at(0x80), 2, 3);
    harness.turn();
    harness.disk.end_faults(OpKind::Read);
    assert_eq!(harness.disk.hung(), 1, "filing waits for its read");
    let begun = harness.engine.log_report().segments;
    let mut high = (0..).map(|i: u32| format!("high {i}").into_bytes());
    let mut next_high = |harness: &RangeHarness| high.find(|key| is_high(harness, key)).unwrap();
    let mut last = Vec::new();
    while harness.engine.log_report().segments == begun {
        last = next_high(&harness);
        harness.write(&last, Some(&[3; 300]));
        harness.turn();
    }
    let (deleted, overwritten) = (next_high(&harness), next_high(&harness));
    harness.write(&deleted, None);
    harness.turn();
    let of_delete = holders(&harness.disk, &deleted).pop().unwrap();
    for _ in 0..100 {
        harness.write(&overwritten, Some(&[4; 1_000]));
        harness.turn();
    }
    harness.write(&last, Some(&[3; 300]));
    harness.settle();
    harness.turn();
    assert_eq!(harness.engine.segments_kept().get(&KeepReason::Hides), Some(&1), "{:?}", harness.engine);
    harness.disk.release_hung();
    file(&mut harness);
    (0..20).for_each(|_| harness.turn());
    assert!(!segments(&harness.disk).contains(&of_delete), "{:?}", harness.engine.segments_kept());
}

/// A delete was rolled back before a split. After an opening, cleaning must not copy it for the heir of its key.
#[test]
fn a_rolled_back_delete_of_the_parent_is_no_survivor_after_an_opening() {
    let options = Options { space_amplification_max_percent: 0, ..scanned(Durability::Sync) };
    let mut harness = whole(options, false);
    let (key, id) = (b"the key", RangeId(1));
    harness.write(key, Some(&[1; 300]));
    let keys = keys(400);
    for key in &keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    let first = holders(&harness.disk, key).pop().unwrap();
    // A dead put that the delete would hide.
    harness.write(&keys[0], Some(&[2; 300]));
    for key in &keys[200..] {
        harness.write(key, Some(&[2; 300]));
    }
    harness.settle();
    let last = harness.engine.progress(id).committed;
    let segments_before = harness.engine.log_report().segments;
    for version in last.as_u64() + 1.. {
        let version = Version::from_u64(version);
        let record = match version.as_u64() - last.as_u64() {
            1 => RecordRef::bare(RecordKind::Tombstone, version, key),
            _ => RecordRef::put(version, b"ghost", &[7; 1_000]),
        };
        while harness.engine.append(id, KeyHash::of(&SECRET, record.key), &record).is_err() {
            harness.engine.submit(harness.now);
            harness.engine.wait(harness.now, &mut Vec::new());
        }
        if harness.engine.log_report().segments > segments_before + 1 {
            break;
        }
    }
    harness.engine.submit(harness.now);
    harness.engine.wait(harness.now, &mut Vec::new());
    let of_delete = holders(&harness.disk, key).into_iter().find(|name| *name != first).unwrap();
    harness.engine.rollback(id, last).unwrap();
    harness.write(&keys[1], Some(&[3; 300]));
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    harness.reopen(1, false);
    let mut rng = Rng::new(1);
    while segments(&harness.disk).contains(&of_delete) {
        harness.write(&keys[200 + rng.below(200) as usize], Some(&[4; 300]));
        harness.turn();
        // No result of the parent is open.
        [2, 3].into_iter().for_each(|id| harness.engine.copy_results(RangeId(id), &[], |_, _| {}));
        assert!(harness.engine.stats().appended_records < 20_000, "{:?}", harness.engine.segments_kept());
    }
    assert!(segments(&harness.disk).contains(&first));
    harness.settle();
    harness.reopen(1, false);
    harness.check(&[key.to_vec()], "opened again");
}

/// A process is killed between the copy of an expiring put and the drop of its segment. The segment hides older records, so
/// it is cleaned again, after a split: the entry of the copy is still in the parent's index, and no tombstone of the same
/// version may hide the copy.
#[test]
fn a_put_whose_copy_is_in_the_parents_index_becomes_no_tombstone() {
    let options = Options { capacity_bytes: Some(24 * (64 << 10)), ..scanned(Durability::Sync) };
    let mut harness = whole(options, true);
    let keys = keys(1_600);
    for key in &keys[..240] {
        harness.write(key, Some(&[1; 256]));
    }
    let mut rng = Rng::new(1);
    let mut overwrite = |harness: &mut RangeHarness| {
        harness.write(&keys[220 + rng.below(400) as usize], Some(&[4; 256]));
        harness.turn();
        assert!(harness.engine.stats().appended_records < 50_000, "it is not cleaned: {:?}", harness.engine);
    };
    // The copy of a delete comes before that of the put. So the put's copy waits for its verification at an opening, and
    // has its entry in the end. Without the delete, the original has it again.
    harness.write(&keys[0], None);
    while harness.engine.stats().moved_tombstones == 0 {
        overwrite(&mut harness);
    }
    let expires_at_ms = harness.now.wall.0 + 1_000_000_000;
    harness.write_expiring(&keys[0], &[0xE5; 256], expires_at_ms);
    // A newer delete alongside: for all that is known, any record of the segment may hide an older one.
    harness.write(&keys[1], None);
    harness.settle();
    let copies = |harness: &RangeHarness| holders(&harness.disk, &[0xE5; 256]);
    let original = copies(&harness).pop().unwrap();
    while copies(&harness).len() < 2 {
        overwrite(&mut harness);
    }
    harness.reopen(1, false);
    let copied_to = copies(&harness).into_iter().find(|name| *name != original).unwrap();
    harness.split(1, ring_at(0x80), 2, 3);
    // It cannot be filed yet.
    harness.disk.make_unreadable(&copied_to, 4096..8192);
    while segments(&harness.disk).contains(&original) {
        overwrite(&mut harness);
    }
    assert!(harness.engine.segments_to_file() > 0);
    harness.disk.heal();
    harness.settle();
    // Nothing waits for its verification in an opening for reading: of equal versions, the one that is read later counts.
    let options = Options { read_only: true, ..harness.options.clone() };
    harness.disk.kill(1);
    let opened = Engine::open(SimDevice::attach(&harness.disk), options, harness.now);
    harness.engine = opened.unwrap().0;
    harness.check(&keys, "opened again");
}

/// A pending record holds the position of checkpoints before a put that is filed for no heir. An heir has deleted the key, and that
/// delete is with the survivors: an opening that comes by the put must come by the delete.
#[test]
fn a_checkpoint_begins_before_a_survivors_delete_that_hides_an_unfiled_put() {
    let options = Options { space_amplification_max_percent: 0, ..small(Durability::Sync) };
    let (mut harness, keys) = (whole(options, true), keys(1_200));
    let pending = RangeId(9);
    harness.add(pending.0, KeyRange::ALL);
    let record = RecordRef::put(harness.next_version(pending), b"pending", b"value");
    harness.append(pending, KeyHash::of(&SECRET, b"pending"), &record);
    let mut model = harness.models.remove(&pending).unwrap();
    // In few frames: nothing of their segments is worth cleaning.
    for keys in keys.chunks(40) {
        keys.iter().for_each(|key| harness.write(key, Some(&[1; 256])));
        harness.turn();
    }
    split_unfiled(&mut harness);
    let deleted = &keys[0];
    let holders = |harness: &RangeHarness| -> Vec<String> {
        let has_key = |name: &String| harness.disk.contents(name).unwrap().windows(5).any(|found| found == deleted);
        harness.disk.names().into_iter().filter(|name| name.starts_with("segment-")).filter(has_key).collect()
    };
    let of_put = holders(&harness);
    harness.write(deleted, None);
    (0..20).for_each(|_| harness.turn());
    let of_delete = holders(&harness).into_iter().find(|name| !of_put.contains(name)).unwrap();
    // The segment of the put is never filed.
    harness.disk.make_unreadable(&of_put[0], 4096..64 << 10);
    let overwrite = |harness: &mut RangeHarness| {
        // Segments that could not be read are tried again after a while.
        harness.now = harness.now.plus_ms(100);
        for i in 0..8 {
            // Both heirs have some of these keys. Otherwise the delete could be the newest record of its heir, which stays.
            harness.write(format!("overwritten {i}").as_bytes(), Some(&[2; 1_000]));
        }
        harness.turn();
        assert!(harness.engine.stats().appended_records < 4_000, "{:?}", harness.engine);
    };
    while harness.disk.names().contains(&of_delete) {
        overwrite(&mut harness);
    }
    let checkpoints = harness.engine.stats().checkpoints;
    (0..200).for_each(|_| overwrite(&mut harness));
    assert!(harness.engine.stats().checkpoints > checkpoints, "{:?}", harness.engine);
    assert!(harness.engine.segments_to_file() > 0);
    harness.disk.heal();
    model.content.insert(b"pending".to_vec(), b"value".to_vec());
    harness.models.insert(pending, model);
    harness.reopen(1, false);
    harness.check(&keys, "opened again");
}

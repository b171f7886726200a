//! Splits, merges and sorts beside what is not settled yet: deletes, clears and rollbacks of which a part is only in memory.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, frames, scanned};
use crate::unlisted_clears::{CLEARED, fill_manifest, segments};
use fawn_ds::internals::{Engine, Options, RecordKind, RecordLayout, RecordRef};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{ClientTag, Durability, KeyHash, KeyRange, RangeId, Version};

const PARENT: RangeId = RangeId(1);
const LOW: RangeId = RangeId(2);
const HIGH: RangeId = RangeId(3);

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("key {i}").into_bytes()).collect()
}

fn whole(options: Options, is_sole: bool) -> RangeHarness {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, is_sole);
    harness.add(PARENT.0, KeyRange::ALL);
    harness
}

fn holders(disk: &SimDisk, bytes: &[u8]) -> Vec<String> {
    let holds = |name: &String| disk.contents(name).unwrap().windows(bytes.len()).any(|found| found == bytes);
    segments(disk).into_iter().filter(holds).collect()
}

fn append(harness: &mut RangeHarness, id: RangeId, record: &RecordRef<'_>) {
    harness.append(id, KeyHash::of(&SECRET, record.key), record);
}

/// Appends results, which have no key and are never live, until the log goes on in the next segment. Returns the last seq.
fn fill_segment(harness: &mut RangeHarness, id: RangeId, mut seq: u64) -> u64 {
    let epoch = harness.engine.sole_epoch(id).unwrap();
    let state =
        |harness: &RangeHarness| (harness.engine.log_report().segments, harness.engine.stats().segments_dropped);
    let before = state(harness);
    while state(harness) == before {
        seq += 1;
        let version = Version::new(epoch, seq).unwrap();
        let tag = ClientTag { session: 1, seq };
        append(
            harness,
            id,
            &RecordRef { tag, result: &[9; 1_500], ..RecordRef::bare(RecordKind::Result, version, b"") },
        );
        harness.turn();
    }
    seq
}

/// An heir deletes a key whose put the retired parent's index has, and the read that confirms it hangs. The segment of the
/// delete has nothing else that counts: it must stay until the delete is confirmed and the put is dead.
#[test]
fn the_segment_of_an_unconfirmed_delete_stays_while_the_parent_has_the_put() {
    let mut harness = whole(scanned(Durability::Sync), true);
    let keys = keys(400);
    for key in &keys {
        harness.write(key, Some(&[1; 600]));
    }
    harness.settle();
    // Nothing is in memory any more.
    harness.reopen(1, false);
    harness.settle();
    // The delete is to be in a segment without a put of the parent.
    fill_segment(&mut harness, PARENT, 10_000);
    (0..10).for_each(|_| harness.turn());
    harness.disk.hang(OpKind::Read);
    harness.split(PARENT.0, ring_at(0x80), LOW.0, HIGH.0);
    let deleted = keys.iter().find(|key| harness.range_of(key) == Some(LOW)).unwrap().clone();
    let epoch = harness.engine.sole_epoch(LOW).unwrap();
    let version = Version::new(epoch, 1).unwrap();
    append(&mut harness, LOW, &RecordRef::bare(RecordKind::Tombstone, version, &deleted));
    (0..5).for_each(|_| harness.turn());
    assert_eq!(harness.engine.progress(LOW).committed, version, "acknowledged");
    assert!(harness.engine.log_report().verifications_queued > 0, "not confirmed");
    harness.models.get_mut(&LOW).unwrap().content.remove(&deleted);
    let dropped = harness.engine.stats().segments_dropped;
    let seq = fill_segment(&mut harness, LOW, 1);
    let version = Version::new(epoch, seq + 1).unwrap();
    append(&mut harness, LOW, &RecordRef::bare(RecordKind::Result, version, b""));
    (0..50).for_each(|_| harness.turn());
    assert!(harness.engine.segments_to_file() > 0, "filing waits for its read");
    let kept = harness.engine.segments_kept();
    let has_dropped = harness.engine.stats().segments_dropped > dropped;
    harness.disk.clear_faults();
    harness.reopen(2, true);
    harness.check(&[deleted], &format!("opened again; segments were dropped: {has_dropped}; kept before: {kept:?}"));
    assert!(!has_dropped);
}

/// Records are synced, then rolled back; the rollback is only in memory when the range is split. The manifest says durably that
/// all of the parent is committed: without the rollback, an opening would find the rolled-back records committed.
#[test]
fn a_rollback_is_synced_before_a_split_or_merge_relies_on_it() {
    for merges in [false, true] {
        let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), scanned(Durability::Sync), false);
        let half = ring_at(0x80);
        if merges {
            harness.add(LOW.0, KeyRange { end: Some(half), ..KeyRange::ALL });
            harness.add(HIGH.0, KeyRange { start: half, end: None });
        } else {
            harness.add(PARENT.0, KeyRange::ALL);
        }
        let kept = keys(60);
        for key in &kept {
            harness.write(key, Some(&[1; 200]));
        }
        harness.settle();
        let ghosts: Vec<Vec<u8>> = (0..20).map(|i| format!("ghost {i}").into_bytes()).collect();
        let id = if merges { LOW } else { PARENT };
        let ghosts: Vec<_> = ghosts.into_iter().filter(|key| harness.range_of(key) == Some(id)).collect();
        let last = harness.engine.progress(id).committed;
        for (ghost, version) in ghosts.iter().zip(last.as_u64() + 1..) {
            let record = RecordRef::put(Version::from_u64(version), ghost, &[7; 200]);
            harness.engine.append(id, KeyHash::of(&SECRET, ghost), &record).unwrap();
        }
        // Written and synced, but not committed: the chain's tail has not got them.
        for _ in 0..10 {
            harness.engine.submit(harness.now);
            harness.engine.wait(harness.now, &mut Vec::new());
        }
        let progress = harness.engine.progress(id);
        assert!(progress.synced == progress.appended && progress.committed == last, "{progress:?}");
        harness.engine.rollback(id, last).unwrap();
        let is_done = if merges { harness.try_merge(2, 3, 4) } else { harness.try_split(1, half, 2, 3) };
        assert!(is_done);
        harness.reopen(20, true);
        harness.check(&kept, "opened again");
        harness.check(&ghosts, "rolled back before");
    }
}

/// An heir is cleared; all that it had is in the retired parent's index, and live there. The device is full, so the clear is not
/// listed: its record alone says what it removed.
#[test]
fn the_segment_of_an_heirs_clear_stays_until_that_is_listed() {
    let mut harness = whole(scanned(Durability::Sync), true);
    harness.add(CLEARED.0, KeyRange::ALL);
    harness.models.remove(&CLEARED);
    let keys = keys(400);
    for key in &keys {
        harness.write(key, Some(&[1; 600]));
    }
    harness.settle();
    fill_segment(&mut harness, PARENT, 10_000);
    (0..10).for_each(|_| harness.turn());
    harness.disk.hang(OpKind::Read);
    harness.split(PARENT.0, ring_at(0x80), LOW.0, HIGH.0);
    // Its commits are the test's.
    let low = harness.models.remove(&LOW).unwrap().content;
    let epoch = harness.engine.sole_epoch(LOW).unwrap();
    append(&mut harness, LOW, &RecordRef::bare(RecordKind::Clear, Version::new(epoch, 1).unwrap(), &[]));
    harness.turn();
    let is_begun = |name: &String| !frames(&harness.disk.contents(name).unwrap()).is_empty();
    let before = segments(&harness.disk);
    // Slots are given out in order, and nothing was dropped so far.
    let of_clear = before.iter().rfind(|name| is_begun(name)).unwrap().clone();
    fill_segment(&mut harness, HIGH, 0);
    // The newest record of a range keeps its segment.
    append(&mut harness, LOW, &RecordRef::bare(RecordKind::Result, Version::new(epoch, 2).unwrap(), b""));
    (0..10).for_each(|_| harness.turn());
    fill_manifest(&mut harness);
    let end = harness.engine.progress(LOW).synced;
    harness.engine.commit(LOW, end);
    for _ in 0..100 {
        harness.now = harness.now.plus_ms(10);
        harness.turn();
    }
    assert!(harness.engine.segments_to_file() > 0, "filing waits for its read");
    let is_there = segments(&harness.disk).contains(&of_clear);
    harness.disk.clear_faults();
    harness.disk.crash(1);
    harness.disk.set_full(false);
    harness.engine = Engine::open(SimDevice::attach(&harness.disk), harness.options.clone(), harness.now).unwrap().0;
    for key in low.keys() {
        assert_eq!(harness.get(LOW, key), Ok(None), "the clear's segment was there: {is_there}");
    }
    assert!(is_there);
}

/// A store begins to sort once what was pending then is committed. The records of this range are rolled back instead, and it gets
/// no others: that must not keep the other ranges from being sorted.
#[test]
fn a_rollback_ends_the_wait_for_the_records_that_it_takes_back() {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), scanned(Durability::Sync), false);
    let half = ring_at(0x80);
    harness.add(LOW.0, KeyRange { end: Some(half), ..KeyRange::ALL });
    harness.add(HIGH.0, KeyRange { start: half, end: None });
    let keys = keys(600);
    for key in &keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    let last = harness.engine.progress(LOW).committed;
    let pending = RecordRef::put(Version::from_u64(last.as_u64() + 1), b"pending", &[7; 200]);
    harness.engine.append(LOW, KeyHash::of(&SECRET, b"pending"), &pending).unwrap();
    for _ in 0..5 {
        harness.engine.submit(harness.now);
        harness.engine.wait(harness.now, &mut Vec::new());
    }
    harness.disk.kill(1);
    harness.options = Options { layout: RecordLayout::Sorted, sort_bytes: 64 << 10, ..harness.options.clone() };
    harness.engine = Engine::open(SimDevice::attach(&harness.disk), harness.options.clone(), harness.now).unwrap().0;
    harness.models.remove(&LOW);
    [LOW, HIGH].into_iter().for_each(|id| harness.engine.set_retain_floor(id, Version::from_u64(u64::MAX)));
    // The first poll asks which deletes have no index entry.
    (0..5).for_each(|_| harness.turn());
    let committed = harness.engine.progress(LOW).committed;
    harness.engine.rollback(LOW, committed).unwrap();
    for byte in 2..6 {
        for key in &keys {
            harness.write(key, Some(&[byte; 300]));
            harness.turn();
        }
    }
    for _ in 0..500 {
        harness.now = harness.now.plus_ms(100);
        harness.turn();
    }
    assert!(harness.engine.runs() > 0, "nothing was sorted");
}

/// The records that it takes back begin in an older segment, which others keep. Their versions are given to other records later:
/// without the rollback, an opening would find them committed.
#[test]
fn the_segment_of_a_rollback_stays_as_long_as_the_records_that_it_takes_back() {
    let options = Options { space_amplification_max_percent: 1_000_000, ..scanned(Durability::Sync) };
    let mut harness = whole(options, false);
    let kept = keys(60);
    for key in &kept {
        harness.write(key, Some(&[1; 200]));
    }
    harness.settle();
    let last = harness.engine.progress(PARENT).committed;
    let ghosts: Vec<Vec<u8>> = (0..50).map(|i| format!("ghost {i}").into_bytes()).collect();
    for (ghost, version) in ghosts.iter().zip(last.as_u64() + 1..) {
        append(&mut harness, PARENT, &RecordRef::put(Version::from_u64(version), ghost, &[7; 2_000]));
        harness.engine.submit(harness.now);
        harness.engine.wait(harness.now, &mut Vec::new());
    }
    assert_eq!(harness.engine.progress(PARENT).committed, last);
    harness.engine.rollback(PARENT, last).unwrap();
    let dropped = harness.engine.stats().segments_dropped;
    for _ in 0..300 {
        harness.write(b"one key", Some(&[3; 1_000]));
        harness.turn();
    }
    harness.now = harness.now.plus_ms(2_000);
    harness.settle();
    assert!(harness.engine.stats().segments_dropped > dropped, "{:?}", harness.engine.segments_kept());
    harness.reopen(3, true);
    harness.check(&kept, "opened again");
    harness.check(&ghosts, "rolled back before");
}

/// The records that it takes back are counted for the heirs already. Its own segment is not, because a read of it fails.
#[test]
fn the_segment_of_a_rollback_stays_as_long_as_heirs_have_the_records_that_it_takes_back() {
    let options = Options { space_amplification_max_percent: 1_000_000, ..scanned(Durability::Sync) };
    let mut harness = whole(options, false);
    let kept = keys(60);
    for key in &kept {
        harness.write(key, Some(&[1; 200]));
    }
    harness.settle();
    let last = harness.engine.progress(PARENT).committed;
    let ghosts: Vec<Vec<u8>> = (0..50).map(|i| format!("ghost {i}").into_bytes()).collect();
    for (ghost, version) in ghosts.iter().zip(last.as_u64() + 1..) {
        append(&mut harness, PARENT, &RecordRef::put(Version::from_u64(version), ghost, &[7; 2_000]));
        harness.engine.submit(harness.now);
        harness.engine.wait(harness.now, &mut Vec::new());
    }
    harness.engine.rollback(PARENT, last).unwrap();
    harness.settle();
    let of_rollback = holders(&harness.disk, &ghosts[49]).pop().unwrap();
    assert!(!holders(&harness.disk, &ghosts[0]).contains(&of_rollback));
    harness.disk.make_unreadable(&of_rollback, 4_096..8_192);
    harness.split(PARENT.0, ring_at(0x80), LOW.0, HIGH.0);
    let dropped = harness.engine.stats().segments_dropped;
    for _ in 0..300 {
        harness.write(b"one key", Some(&[3; 1_000]));
        harness.turn();
    }
    harness.now = harness.now.plus_ms(2_000);
    harness.settle();
    let stats = harness.engine.stats();
    assert!(stats.segments_dropped > dropped && stats.segments_filed > 0 && stats.filing_failed > 0);
    harness.disk.heal();
    harness.reopen(3, true);
    harness.check(&kept, "opened again");
    harness.check(&ghosts, "rolled back before");
}

/// Records that are never written again name the first range's number. If the numbers of all later splits and merges stayed in the
/// lineage with it, each of these would take longer, and in the end a commit would not hold the lineage.
#[test]
fn splits_and_merges_over_cold_records_leave_no_lineage_behind() {
    let mut harness = whole(scanned(Durability::Sync), true);
    let keys = keys(300);
    for key in &keys {
        harness.write(key, Some(&[1; 300]));
    }
    harness.settle();
    let mut id = 1;
    for _ in 0..200 {
        harness.split(id, ring_at(0x80), id + 1, id + 2);
        harness.settle();
        harness.merge(id + 1, id + 2, id + 3);
        harness.settle();
        id += 3;
    }
    assert!(harness.engine.lineage_len() < 40, "{} ancestors", harness.engine.lineage_len());
}

/// A checkpoint that is written while a retired range is not filed has its index under its number. No segment names that: it has
/// what was filed from the range before.
#[test]
fn a_checkpoint_with_the_index_of_a_range_that_no_segment_names_is_loaded() {
    let options = Options { checkpoint_log_bytes_min: 1 << 20, ..scanned(Durability::Sync) };
    let mut harness = whole(options, true);
    let keys = keys(400);
    for key in &keys {
        harness.write(key, Some(&[1; 600]));
    }
    harness.settle();
    // Nothing is in memory any more, and there is no checkpoint.
    harness.reopen(1, true);
    harness.split(PARENT.0, ring_at(0x80), LOW.0, HIGH.0);
    for _ in 0..1_000 {
        harness.turn();
    }
    assert_eq!(harness.engine.segments_to_file(), 0);
    for name in holders(&harness.disk, &keys[0]) {
        harness.disk.make_unreadable(&name, 4096..64 << 10);
    }
    harness.split(LOW.0, ring_at(0x40), 4, 5);
    harness.split(HIGH.0, ring_at(0xc0), 6, 7);
    let high: Vec<_> = keys.iter().filter(|key| harness.range_of(key) == Some(RangeId(6))).cloned().collect();
    let mut rounds = 0;
    while harness.engine.stats().checkpoints == 0 {
        rounds += 1;
        high.iter().for_each(|key| harness.write(key, Some(&[2; 1_000])));
        (0..20).for_each(|_| harness.turn());
        assert!(rounds < 100, "{:?}", harness.engine);
    }
    assert!(harness.engine.segments_to_file() > 0, "filing waits for the unreadable segment");
    harness.disk.heal();
    harness.reopen(2, true);
    harness.check(&keys, "opened from the checkpoint");
}

/// In the mode `memory` nothing else syncs the clear before its segment is full, and its edit follows the sync.
#[test]
fn a_split_asks_for_the_sync_of_the_clear_that_it_waits_for() {
    let mut harness = whole(scanned(Durability::Memory), true);
    for key in &keys(20) {
        harness.write(key, Some(&[1; 200]));
    }
    harness.clear(PARENT.0);
    let is_split = (0..100).any(|_| {
        harness.now = harness.now.plus_ms(10);
        harness.turn();
        harness.try_split(PARENT.0, ring_at(0x80), LOW.0, HIGH.0)
    });
    assert!(is_split, "{:?}", harness.engine);
}

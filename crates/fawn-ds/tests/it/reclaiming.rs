//! Space reclamation on bad days: what keeps one segment must not keep all others.
use crate::support::{RANGE, TestNode, TestWrite, frames, scanned, small};
use fawn_ds::internals::{EngineError, Options, RecordKind, RecordRef, View};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, Now, Version};

pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;

fn options(segments: u64) -> Options {
    Options { capacity_bytes: Some(segments * SEGMENT_BYTES), ..small(Durability::Sync) }
}

pub(crate) fn open(disk: &SimDisk, segments: u64, at_ms: u64) -> TestNode {
    TestNode::open(disk, options(segments), Now::at(at_ms)).unwrap()
}

pub(crate) fn put(key: u64, len: usize) -> TestWrite {
    TestWrite { key: format!("key-{key:012}").into_bytes(), value: Some(vec![key as u8; len]), expires_at_ms: 0 }
}

pub(crate) fn delete(key: u64) -> TestWrite {
    TestWrite { value: None, ..put(key, 0) }
}

/// Appends, and fails with the state of the store if that is refused.
pub(crate) fn write(node: &mut TestNode, writes: &[TestWrite]) {
    if let Err(error) = node.append(writes) {
        panic!("{error}: {:?} {:?} {:?}", node.engine.log_report(), node.engine.segments_kept(), node.engine.stats());
    }
    turn(node);
}

pub(crate) fn turn(node: &mut TestNode) {
    node.turn();
    node.now = node.now.plus_ms(5);
}

/// The new version of a key whose old one cannot be read stays where it is. Its segment is no victim again and again.
#[test]
fn a_segment_with_a_record_that_must_stay_does_not_stop_the_cleaning_of_others() {
    const SEGMENTS: u64 = 48;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, SEGMENTS, 1_000_000);
    let keys = SEGMENTS * SEGMENT_BYTES * 6 / 10 / 304;
    (0..keys).for_each(|key| write(&mut node, &[put(key, 256)]));
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = open(&disk, SEGMENTS, 2_000_000);
    let first = disk.names().into_iter().find(|name| name.starts_with("segment-000000")).unwrap();
    disk.make_unreadable(&first, 4096..SEGMENT_BYTES);
    write(&mut node, &[put(0, 256)]);
    let mut rng = fawn_types::random::SplitMix64::new(1);
    for _ in 0..4 * SEGMENTS * SEGMENT_BYTES / 304 {
        // Keys of later segments.
        let key = 250 + rng.below(keys - 250);
        write(&mut node, &[put(key, 256)]);
    }
    assert_eq!(node.engine.log_report().keys_apart, 1);
    // Once the old version can be read again, the record is moved like any other.
    let key = put(0, 0).key;
    let holders = || {
        let holds = |name: &String| disk.contents(name).unwrap().windows(key.len()).any(|found| found == key);
        disk.names().into_iter().filter(|name| name.starts_with("segment-") && *name != first).filter(holds)
    };
    let stays_in: Vec<_> = holders().collect();
    disk.heal();
    node.now = node.now.plus_ms(60_000);
    node.settle();
    for _ in 0..SEGMENTS * SEGMENT_BYTES / 304 {
        let key = 250 + rng.below(keys - 250);
        write(&mut node, &[put(key, 256)]);
    }
    assert!(!holders().any(|name| stays_in.contains(&name)), "{:?}", node.engine);
}

fn large(key: u64, round: u8) -> TestWrite {
    TestWrite { value: Some(vec![round; 14_900]), ..put(key, 0) }
}

fn slot_0(disk: &SimDisk) -> Option<String> {
    disk.names().into_iter().find(|name| name.starts_with("segment-000000"))
}

/// A store that has just begun to read a victim, in slot 0: key 0, which is live, and three dead records, the first of them
/// corrupt.
fn with_corrupt_victim(disk: &SimDisk) -> TestNode {
    let mut node = TestNode::open(disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    let reads = disk.counted(OpKind::Read);
    // In each segment a record that stays, then three that die; at first only live ones, until cleaning has its own space.
    for count in 0..256 {
        let key = if count % 4 == 0 || (4..40).contains(&count) { count } else { 1000 };
        write(&mut node, &[large(key, 1)]);
        if count == 4 {
            disk.flip_bits(&slot_0(disk).unwrap(), 4096 + 20_000, 1);
        }
        if disk.counted(OpKind::Read) - reads > node.engine.stats().verification_reads {
            return node;
        }
    }
    panic!("nothing is cleaned: {:?}", node.engine);
}

/// The segment dies with the move of its last live record: a crash must find the copy once the segment is gone.
#[test]
fn a_victim_that_is_given_up_goes_only_after_its_copies_are_synced() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = with_corrupt_victim(&disk);
    disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 1 });
    (0..40).for_each(|_| turn(&mut node));
    assert_eq!(node.engine.stats().cleaning_failed, 1);
    let mut opened = 0;
    for image in disk.take_images() {
        // Before the drop the opening finds the corrupt record.
        let Ok(mut node) = TestNode::open(&image.disk, small(Durability::Sync), Now::at(2_000_000)) else { continue };
        let found = node.get(&put(0, 0).key, View::Committed).unwrap();
        assert!(found.is_some(), "lost after operation {}", image.op);
        opened += 1;
    }
    assert!(opened > 0, "the segment stays: {:?}", node.engine);
}

/// Cleaning copies a record and then finds a corrupt one. While the write of the copy hangs, the segment dies, its slot is
/// used again, and a newer version of the record lies where the old one was: the late copy must not replace that.
#[test]
fn a_late_copy_replaces_nothing_in_a_segment_that_has_its_originals_slot() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = with_corrupt_victim(&disk);
    let old = slot_0(&disk);
    // The write after the header of a next segment: that of the copy.
    disk.fail_nth(OpKind::Write, 2, DeviceFault::Hang);
    (0..4).for_each(|_| turn(&mut node));
    disk.end_faults(OpKind::Write);
    let stats = node.engine.stats();
    assert_eq!((disk.hung(), stats.cleaning_failed, stats.moved_records), (1, 1, 0), "the copy is being written");
    for round in 2..100 {
        write(&mut node, &[large(0, round)]);
        let is_there = slot_0(&disk).filter(|_| slot_0(&disk) != old).and_then(|name| disk.contents(&name));
        if is_there.is_some_and(|bytes| frames(&bytes).len() == 1) {
            disk.release_hung();
            (0..4).for_each(|_| turn(&mut node));
            let found = node.get(&put(0, 0).key, View::Committed).unwrap();
            assert_eq!(found.unwrap().value[0], round);
            return;
        }
    }
    // The segment keeps its slot meanwhile.
    disk.release_hung();
    (0..8).for_each(|_| turn(&mut node));
    assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap().unwrap().value[0], 99);
    assert_ne!(slot_0(&disk), old, "and is dropped then");
}

/// Appends, commits and marks one record in a chain.
fn commit_in_chain(node: &mut TestNode, record: &RecordRef<'_>) {
    for _ in 0..1000 {
        match node.engine.append(RANGE, TestNode::hash(record.key), record) {
            Err(EngineError::Overloaded) => turn(node),
            result => {
                result.unwrap();
                break;
            }
        }
    }
    for _ in 0..3 {
        turn(node);
    }
    node.now = node.now.plus_ms(1000);
}

/// A deleted key, a rollback of that, and survivors with higher versions than the rollback: the opening that reads them
/// first must still know the delete as invalidated, or cleaning copies it.
#[test]
fn a_rolled_back_delete_is_invalidated_for_cleaning_after_an_opening_too() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let open = || TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
    let version = |epoch, seq| Version::new(Epoch::new(epoch).unwrap(), seq).unwrap();
    let mut node = open();
    // The key's record, and three others, fill the first segment; records that stay, and the delete, the second one.
    for seq in 1..=7 {
        commit_in_chain(&mut node, &RecordRef::put(version(1, seq), &put(seq, 0).key, &[1; 14_900]));
    }
    let delete = RecordRef::bare(RecordKind::Tombstone, version(1, 8), b"key-000000000001");
    node.engine.append(RANGE, TestNode::hash(delete.key), &delete).unwrap();
    node.engine.submit(node.now);
    node.engine.wait(node.now, &mut Vec::new());
    node.engine.rollback(RANGE, version(1, 7)).unwrap();
    let mut seq = 0;
    let mut overwrite = |node: &mut TestNode, epoch: u32, key: u64| {
        seq += 1;
        commit_in_chain(node, &RecordRef::put(version(epoch, seq), &put(key, 0).key, &[2; 14_900]));
    };
    for count in 0..200 {
        overwrite(&mut node, 2, if count % 4 == 0 { 100 + count } else { 99 });
        if node.engine.stats().moved_records > 4 {
            break;
        }
    }
    assert!(node.engine.stats().moved_records > 4, "{:?}", node.engine);
    drop(node.engine.close().unwrap());
    let second = disk.names().into_iter().find(|name| name.starts_with("segment-000001")).unwrap();
    let mut node = open();
    let committed = node.engine.progress(RANGE).committed;
    node.engine.set_retain_floor(RANGE, committed);
    for key in (2..=6).chain((0..200).map(|count| if count % 4 == 0 { 300 + count } else { 99 })) {
        overwrite(&mut node, 3, key);
        let committed = node.engine.progress(RANGE).committed;
        node.engine.set_retain_floor(RANGE, committed);
        if !disk.names().contains(&second) {
            break;
        }
    }
    assert!(!disk.names().contains(&second), "it was not cleaned: {:?}", node.engine);
    for _ in 0..2 {
        let found = node.get(b"key-000000000001", View::Committed).unwrap();
        assert_eq!(found.map(|entry| entry.version), Some(version(1, 1)));
        drop(node.engine.close().unwrap());
        node = open();
    }
}

/// A segment with retained records would stay after its cleaning: both copies would take space.
#[test]
fn segments_that_are_kept_for_retransmission_are_not_cleaned() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    for seq in 1..=80 {
        let key = if seq % 4 == 1 { seq } else { 0 };
        commit_in_chain(&mut node, &RecordRef::put(version(seq), &put(key, 0).key, &[1; 14_900]));
    }
    assert_eq!(node.engine.stats().cleaning_read_bytes, 0);
    node.engine.set_retain_floor(RANGE, version(80));
    (0..20).for_each(|_| turn(&mut node));
    assert!(node.engine.stats().segments_cleaned > 0, "{:?}", node.engine);
}

/// A copy in the survivors' stream counts as committed after any crash: cleaning waits for the mark.
#[test]
fn segments_whose_commit_is_not_durable_are_not_cleaned() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    let append = |node: &mut TestNode, seq: u64| {
        let key = if seq % 4 == 1 { seq } else { 0 };
        let key = put(key, 0).key;
        let record = RecordRef::put(version(seq), &key, &[1; 14_900]);
        while let Err(error) = node.engine.append(RANGE, TestNode::hash(&key), &record) {
            assert!(matches!(error, EngineError::Overloaded), "{error}");
            submit(node);
        }
        submit(node);
    };
    // The last one begins a segment: later records need no new one, whose mark would tell of the commit.
    (1..=61).for_each(|seq| append(&mut node, seq));
    node.engine.commit(RANGE, version(61));
    (62..=63).for_each(|seq| append(&mut node, seq));
    (0..20).for_each(|_| submit(&mut node));
    assert_eq!(node.engine.stats().cleaning_read_bytes, 0);
    for _ in 0..20 {
        turn(&mut node);
        node.now = node.now.plus_ms(1000);
    }
    assert!(node.engine.stats().segments_cleaned > 0, "{:?}", node.engine);
}

/// An iteration without a commit; no time passes.
fn submit(node: &mut TestNode) {
    node.engine.submit(node.now);
    node.engine.wait(node.now, &mut Vec::new());
}

/// Fills a store with values of this length; returns the number of keys.
pub(crate) fn fill(node: &mut TestNode, len: usize) -> u64 {
    let mut keys = 0;
    while attempt(node, put(keys, len)) {
        keys += 1;
    }
    keys
}

/// Whether the store takes the write. A write that waits for ever fails.
pub(crate) fn attempt(node: &mut TestNode, one: TestWrite) -> bool {
    let appended = node.append(&[one]);
    turn(node);
    match appended {
        Ok(_) => true,
        Err(EngineError::StoreFull) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Cleaning may find no space for its copies, or nothing worth cleaning: writes are refused then. None waits for ever.
#[test]
fn a_full_store_of_any_size_refuses_what_it_has_no_space_for() {
    for (segments, len) in (4..=26).flat_map(|segments| [(segments, 100), (segments, 2000), (segments, 14_000)]) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, segments, 1_000_000);
        let keys = fill(&mut node, len);
        let mut deleted = 0;
        for _ in 0..2 * keys {
            deleted += u64::from(2 * deleted < keys && attempt(&mut node, delete(2 * deleted)));
            attempt(&mut node, put(u64::MAX, len));
        }
    }
}

#[test]
fn deletes_that_are_tried_again_do_not_put_off_cleaning() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 8, 1_000_000);
    fill(&mut node, 2000);
    let mut next = 0;
    for _ in 0..400 {
        next += 2 * u64::from(attempt(&mut node, delete(next)));
    }
    assert!(node.engine.stats().moved_records > 0, "{:?}", node.engine);
}

/// All records of a full store are live: the padding of frames is no reason to copy them again and again.
#[test]
fn the_cleaning_of_a_full_store_ends() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 16, 1_000_000);
    let keys = fill(&mut node, 100);
    let mut moved = [0; 2];
    for moved in &mut moved {
        for _ in 0..2000 {
            turn(&mut node);
        }
        *moved = node.engine.stats().moved_bytes;
    }
    assert_eq!(moved[0], moved[1], "{:?}", node.engine.stats());
    assert!(!attempt(&mut node, put(keys, 100)));
}

/// All records of the survivors are overwritten at once, in a commit that no mark covers: a crash undoes it, so the old
/// versions must still be there.
#[test]
fn survivors_stay_until_the_commit_that_they_died_by_is_durable() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    let (mut seq, mut keys) = (0, Vec::new());
    while node.engine.stats().moved_records < 10 {
        seq += 1;
        let key = put(if seq % 4 == 1 { seq } else { 0 }, 0).key;
        commit_in_chain(&mut node, &RecordRef::put(version(seq), &key, &[1; 14_900]));
        keys.extend((seq % 4 == 1).then_some(key));
        assert!(seq < 400, "{:?}", node.engine);
    }
    for key in &keys {
        seq += 1;
        let record = RecordRef::put(version(seq), key, b"short");
        node.engine.append(RANGE, TestNode::hash(key), &record).unwrap();
    }
    (0..4).for_each(|_| submit(&mut node));
    disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 1 });
    let dropped = node.engine.stats().segments_dropped;
    node.engine.commit(RANGE, version(seq));
    (0..20).for_each(|_| submit(&mut node));
    assert!(node.engine.stats().segments_dropped > dropped + 1, "{:?}", node.engine);
    for image in disk.take_images() {
        let mut node = TestNode::open_in_chain(&image.disk, small(Durability::Sync), Now::at(2_000_000)).unwrap();
        for key in &keys {
            let found = node.get(key, View::Committed).unwrap();
            assert!(found.is_some(), "{} is lost after operation {}", String::from_utf8_lossy(key), image.op);
        }
    }
}

/// The store's clock may be ahead of the clock of the chain's head. A record that has expired by it is still there for
/// clients, and cleaning keeps it.
#[test]
fn cleaning_judges_the_expiry_of_a_chains_records_by_the_chains_time() {
    const SEGMENTS: u64 = 24;
    let survivors_after = |chain_is_behind_ms: u64| {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, SEGMENTS, 1_000_000);
        let expires_at_ms = node.now.wall.0 + 1_000;
        let keys = SEGMENTS * SEGMENT_BYTES / 3 / 304;
        let is_short_lived = |key: u64| key.is_multiple_of(8);
        let expiring =
            |key| TestWrite { expires_at_ms: if is_short_lived(key) { expires_at_ms } else { 0 }, ..put(key, 256) };
        (0..keys).for_each(|key| write(&mut node, &[expiring(key)]));
        node.now = Now { wall: fawn_types::TimeMs(expires_at_ms + 5_000), ..node.now.plus_ms(120_000) };
        node.engine.advance_clock(node.now);
        node.engine.set_chain_time(RANGE, fawn_types::TimeMs(expires_at_ms + 60_000 - chain_is_behind_ms));
        let mut rng = fawn_types::random::SplitMix64::new(2);
        for _ in 0..4 * SEGMENTS * SEGMENT_BYTES / 304 {
            let key = rng.below(keys);
            if !is_short_lived(key) {
                write(&mut node, &[put(key, 256)]);
            }
        }
        assert!(node.engine.stats().moved_records > 0, "{:?}", node.engine.stats());
        (node.engine.len(RANGE), keys)
    };
    let (len, keys) = survivors_after(1);
    assert_eq!(len, keys, "no record was taken for expired");
    let (len, keys) = survivors_after(0);
    assert!(len < keys, "{len} of {keys}: a minute later, cleaning drops them");
}

/// A queue next to a key that is never written again: each entry is put, and deleted later.
#[test]
fn an_old_record_does_not_keep_the_tombstones_of_all_keys_deleted_since() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 32, 1_000_000);
    write(&mut node, &[put(u64::MAX, 100)]);
    for first in (0..100_000).step_by(32) {
        let puts: Vec<_> = (first..first + 32).map(|key| put(key, 100)).collect();
        write(&mut node, &puts);
        let deletes: Vec<_> = (first..first + 32).map(delete).collect();
        write(&mut node, &deletes);
    }
    node.settle();
    assert_eq!(node.engine.len(RANGE), 1);
    assert!(node.get(&put(u64::MAX, 0).key, View::Committed).unwrap().is_some());
}

/// The time after which a full store must have taken a delete, or a write into the space of deleted keys, ms.
const SPACE_BACK_MS: u64 = 30_000;

/// Deletes or writes these keys. Returns an error if the store does not take them in [`SPACE_BACK_MS`].
pub(crate) fn write_all(
    node: &mut TestNode,
    keys: &[u64],
    what: &str,
    write: impl Fn(u64) -> TestWrite,
) -> Result<(), String> {
    let since = node.now;
    for key in keys {
        while !attempt(node, write(*key)) {
            if node.now.mono.ms_since(since.mono) >= SPACE_BACK_MS {
                return Err(format!("{what}: it stays full: {:?}", node.engine));
            }
        }
    }
    Ok(())
}

pub(crate) fn repeat(node: &mut TestNode, keys: &[u64], context: &str, write: impl Fn(u64) -> TestWrite) {
    write_all(node, keys, context, write).unwrap();
}

/// Fills a store, deletes and writes three times.
fn fill_and_delete(node: &mut TestNode, len: usize, context: &str) {
    let mut count = fill(node, len);
    let mut left: Vec<u64> = (0..count).collect();
    for round in 0..3 {
        let context = format!("{context}, values of {len} bytes, round {round}");
        // The newest first: the oldest segments stay live for long.
        let doomed: Vec<u64> = left.iter().copied().step_by(2).collect();
        repeat(node, &doomed.into_iter().rev().collect::<Vec<_>>(), &context, delete);
        left = left.into_iter().skip(1).step_by(2).collect();
        let added: Vec<u64> = (count..count + left.len() as u64 / 2).collect();
        repeat(node, &added, &context, |key| put(key, len));
        count += added.len() as u64;
        left.extend(added);
    }
    node.settle();
    for key in left {
        assert!(node.get(&put(key, 0).key, View::Committed).unwrap().is_some(), "{context}, {len}: key {key}");
    }
}

const LENS: [usize; 4] = [300, 2000, 5000, 14_000];

/// Cleaning of a nearly live segment may need as much space as it frees. It must not take the last space that segments
/// with more dead records need.
#[test]
fn a_full_store_of_any_size_has_space_again_after_deletes() {
    for (segments, len) in (6..=40).flat_map(|segments| LENS.map(|len| (segments, len))) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, segments, 1_000_000);
        fill_and_delete(&mut node, len, &format!("{segments} segments"));
    }
}

/// A store without a capacity keeps its reserve on the device. Its manifest and its checkpoints take space as well.
#[test]
fn a_full_device_of_any_size_has_space_again_after_deletes() {
    for (segments, len) in (6..=40).flat_map(|segments| LENS.map(|len| (segments, len))) {
        let disk = SimDisk::new(SimOptions::instant(1));
        // The manifest, and two checkpoints of two allocations each.
        disk.set_capacity_bytes(Some(segments * SEGMENT_BYTES + (100 << 10) + 4 * (64 << 10)));
        let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
        fill_and_delete(&mut node, len, &format!("a device for {segments} segments"));
    }
}

#[test]
fn a_store_opens_on_a_full_device_and_has_space_again_after_deletes() {
    for (segments, len) in (8..=40).step_by(4).flat_map(|segments| LENS.map(|len| (segments, len))) {
        let disk = SimDisk::new(SimOptions::instant(1));
        disk.set_capacity_bytes(Some(segments * SEGMENT_BYTES + (100 << 10) + 4 * (64 << 10)));
        let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1_000_000)).unwrap();
        let count = fill(&mut node, len);
        let context = format!("a device for {segments} segments, values of {len} bytes");
        // As often as a supervisor starts it again, with a few deletes each time.
        let mut keys = (0..count).rev();
        for opening in 0..12 {
            disk.kill(opening);
            node = TestNode::open(&disk, small(Durability::Sync), Now::at(2_000_000 + opening * 10_000))
                .unwrap_or_else(|error| panic!("{context}, opening {opening}: {error}"));
            let doomed: Vec<u64> = keys.by_ref().take(count as usize / 20 + 1).collect();
            repeat(&mut node, &doomed, &format!("{context}, opening {opening}"), delete);
        }
        let left: Vec<u64> = keys.rev().collect();
        repeat(&mut node, &(count..count + left.len() as u64 / 4).collect::<Vec<_>>(), &context, |key| put(key, len));
        for key in left {
            assert!(node.get(&put(key, 0).key, View::Committed).unwrap().is_some(), "{context}: key {key}");
        }
    }
}

/// A store that is nearly full takes overwrites for ever: each replaced record is space for another. In a smaller store
/// the active segments are too large a part of the space.
#[test]
fn a_nearly_full_store_takes_overwrites() {
    for (segments, len) in (16..=40).step_by(8).flat_map(|segments| LENS.map(|len| (segments, len))) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, segments, 1_000_000);
        let count = fill(&mut node, len);
        let context = format!("{segments} segments, values of {len} bytes");
        let doomed: Vec<u64> = (0..count).step_by(10).collect();
        repeat(&mut node, &doomed, &context, delete);
        let mut rng = fawn_types::random::SplitMix64::new(segments);
        for key in (0..3 * count).map(|_| rng.below(count)).filter(|key| key % 10 > 0) {
            repeat(&mut node, &[key], &context, |key| put(key, len));
        }
    }
}

/// Lookups and cleaning notice expiry, each at another time. An opening finds the same in any case: a record that expired
/// still hides the older ones of its key.
#[test]
fn an_expired_record_hides_older_ones_until_they_are_gone() {
    for seed in 0..24 {
        // On a slow disk copies are in flight for long, and what a lookup finds may not be committed yet.
        let is_instant = seed % 2 == 0;
        let instant = SimOptions::instant(seed);
        let disk = SimDisk::new(if is_instant { instant } else { SimOptions { seed, ..SimOptions::default() } });
        let mut rng = fawn_types::random::SplitMix64::new(seed);
        let options = || Options { expiry_margin_ms: 500, ..scanned(Durability::Sync) };
        let limited = || Options { capacity_bytes: Some(16 * SEGMENT_BYTES), ..options() };
        let mut model: std::collections::BTreeMap<u64, (u8, u64)> = std::collections::BTreeMap::new();
        let mut now = Now::at(1_000_000);
        let mut cleaned = 0;
        for opening in 0..6 {
            let mut node = TestNode::open(&disk, limited(), now).unwrap();
            for key in 0..400 {
                let found = node.get(&put(key, 0).key, View::Committed).unwrap();
                let expected = model.get(&key).filter(|(_, expires)| *expires == 0 || *expires > node.now.wall.0);
                let found = found.map(|entry| entry.value[0]);
                assert_eq!(found, expected.map(|(byte, _)| *byte), "seed {seed}, opening {opening}, key {key}");
            }
            for _ in 0..3_000 {
                let key = rng.below(20) * rng.below(20);
                match rng.below(8) {
                    0 => {
                        node.append(&[delete(key)]).unwrap();
                        model.remove(&key);
                    }
                    1..=3 => {
                        let found = node.get(&put(key, 0).key, View::Committed).unwrap().map(|entry| entry.value[0]);
                        let is_live = |entry: &&(u8, u64)| entry.1 == 0 || entry.1 > node.now.wall.0;
                        let expected = model.get(&key).filter(is_live).map(|(byte, _)| *byte);
                        assert!(!is_instant || found == expected, "seed {seed}, key {key}: {found:?}, {expected:?}");
                    }
                    _ => {
                        let lives_ms = [1 + rng.below(2_000), 100_000_000][rng.below(2) as usize];
                        let expires_at_ms = [0, node.now.wall.0 + lives_ms][rng.below(2) as usize];
                        let byte = rng.below(256) as u8;
                        let value = Some(vec![byte; 100 + rng.below(1_200) as usize]);
                        node.append(&[TestWrite { value, expires_at_ms, ..put(key, 0) }]).unwrap();
                        model.insert(key, (byte, expires_at_ms));
                    }
                }
                turn(&mut node);
                if rng.below(4) == 0 {
                    let lag_ms = rng.below(400);
                    node.engine.set_chain_time(RANGE, fawn_types::TimeMs(node.now.wall.0.saturating_sub(lag_ms)));
                }
            }
            node.settle();
            cleaned += node.engine.stats().segments_cleaned;
            now = node.now.plus_ms(1);
            disk.kill(seed);
        }
        assert!(cleaned > 20, "seed {seed}: {cleaned} segments were cleaned");
    }
}

/// A chain's time may fall when its head fails: a lookup has removed the record by a time that cleaning does not have.
#[test]
fn a_record_that_a_lookup_removed_hides_older_ones_although_the_chains_time_falls() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { capacity_bytes: Some(24 * SEGMENT_BYTES), ..scanned(Durability::Sync) };
    let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    // The old value lies among records that stay, the expiring one among those that are overwritten.
    (0..160).for_each(|key| write(&mut node, &[put(key, 256)]));
    let old = slot_0(&disk).unwrap();
    (1_000..1_040).for_each(|key| write(&mut node, &[put(key, 256)]));
    let expires_at_ms = node.now.wall.0 + 1_000;
    write(&mut node, &[TestWrite { expires_at_ms, ..put(0, 256) }]);
    let segments =
        |disk: &SimDisk| disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect::<Vec<_>>();
    let expiring = segments(&disk).pop().unwrap();
    assert_ne!(expiring, old);
    node.now = node.now.plus_ms(100_000);
    node.engine.advance_clock(node.now);
    node.engine.set_chain_time(RANGE, fawn_types::TimeMs(expires_at_ms + 60_000));
    assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None);
    assert_eq!(node.engine.len(RANGE), 199, "the lookup has removed it");
    node.engine.set_chain_time(RANGE, fawn_types::TimeMs(expires_at_ms + 30_000));
    let mut rng = fawn_types::random::SplitMix64::new(1);
    while segments(&disk).contains(&expiring) {
        write(&mut node, &[put(1_000 + rng.below(400), 256)]);
        assert!(node.engine.stats().appended_records < 100_000, "{:?}", node.engine);
    }
    assert!(segments(&disk).contains(&old), "the old value is still there");
    node.settle();
    let now = node.now;
    disk.kill(1);
    let mut node = TestNode::open(&disk, options(), now).unwrap();
    assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None);
}

/// Names of the segments with bytes of this key.
pub(crate) fn holders(disk: &SimDisk, key: u64) -> Vec<String> {
    let key = put(key, 0).key;
    let holds = |name: &String| disk.contents(name).unwrap().windows(key.len()).any(|found| found == key);
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).filter(holds).collect()
}

/// A kill between the copies of a survivors' segment and its drop: the segment is cleaned again, and has records whose
/// copies live. They have no tombstone, whatever else the segment hides.
#[test]
fn a_segment_that_is_cleaned_twice_does_not_hide_its_copies() {
    const LATE: u64 = 500;
    let options = || Options { capacity_bytes: Some(24 * SEGMENT_BYTES), ..scanned(Durability::Sync) };
    let mut cleaned_twice = 0;
    for killed_after_turns in 0..4 {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
        // The deleted value lies among records that stay. Its tombstone has a higher version than the late record.
        (0..160).for_each(|key| write(&mut node, &[put(key, 256)]));
        (1_000..1_040).for_each(|key| write(&mut node, &[put(key, 256)]));
        write(&mut node, &[TestWrite { expires_at_ms: 100_000_000_000, ..put(LATE, 256) }]);
        write(&mut node, &[delete(0)]);
        let first = holders(&disk, LATE).pop().unwrap();
        let mut rng = fawn_types::random::SplitMix64::new(1);
        let mut overwrite = |node: &mut TestNode| {
            write(node, &[put(1_000 + rng.below(400), 256)]);
            assert!(node.engine.stats().appended_records < 100_000, "{:?}", node.engine);
        };
        while disk.names().contains(&first) {
            overwrite(&mut node);
        }
        let survivors = holders(&disk, LATE).pop().unwrap();
        let mut moved = 0;
        while moved == node.engine.stats().moved_records || holders(&disk, LATE).len() < 2 {
            moved = node.engine.stats().moved_records;
            overwrite(&mut node);
        }
        (0..killed_after_turns).for_each(|_| turn(&mut node));
        let now = node.now;
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), now).unwrap();
        if holders(&disk, LATE).len() == 2 {
            cleaned_twice += 1;
            while disk.names().contains(&survivors) {
                overwrite(&mut node);
            }
        }
        node.settle();
        let now = node.now;
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), now).unwrap();
        assert!(node.get(&put(LATE, 0).key, View::Committed).unwrap().is_some(), "killed after {killed_after_turns}");
        assert!(node.get(&put(0, 0).key, View::Committed).unwrap().is_none(), "killed after {killed_after_turns}");
    }
    assert!(cleaned_twice > 0);
}

/// The segment prepared as the next one loses blocks with its torn first frame. Without space for them it must be given
/// up: a write into it would fail, and stop the store for good.
#[test]
fn a_prepared_segment_that_was_torn_is_given_up_on_a_full_device() {
    let mut torn = 0;
    for seed in 0..240 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, small(Durability::Memory), Now::at(1_000_000)).unwrap();
        let (mut key, turns) = (0, seed % 12);
        while node.engine.log_report().segments < 3 {
            write(&mut node, &[put(key, 900)]);
            key += 1;
        }
        for _ in 0..turns {
            node.append(&[put(key, 900)]).unwrap();
            turn(&mut node);
            key += 1;
        }
        disk.crash(seed);
        disk.set_full(true);
        let Ok(mut node) = TestNode::open(&disk, small(Durability::Memory), node.now.plus_ms(1_000)) else { continue };
        torn += u32::from(node.report.truncated.iter().any(|(_, len)| *len == 4096));
        for key in 0..200 {
            if node.append(&[put(key, 900)]).is_err() {
                break;
            }
            turn(&mut node);
        }
        assert!(node.engine.poisoned().is_none(), "seed {seed}: {:?}", node.engine.poisoned());
    }
    assert!(torn > 5, "{torn} openings found a torn first frame");
}

/// Cold keys between hot ones, and a queue: each entry is put, and deleted later.
#[test]
fn cold_records_among_hot_ones_do_not_keep_the_tombstones_of_a_queue() {
    const SEGMENTS: u64 = 64;
    const BATCH: u64 = 32;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, SEGMENTS, 1_000_000);
    let keys = SEGMENTS * SEGMENT_BYTES * 4 / 10 / 150 / BATCH * BATCH;
    for first in (0..keys).step_by(BATCH as usize) {
        write(&mut node, &(first..first + BATCH).map(|key| put(key, 100)).collect::<Vec<_>>());
    }
    let mut rng = fawn_types::random::SplitMix64::new(1);
    let queue = |n: u64| 1_000_000 + n;
    let (entries, mut segments_max) = (200_000, 0);
    for first in (0..entries).step_by(BATCH as usize) {
        let hot: Vec<_> = (0..BATCH).map(|_| put(rng.below(keys / 2) * 2, 100)).collect();
        let added: Vec<_> = (first..first + BATCH).map(|n| put(queue(n), 100)).collect();
        let taken: Vec<_> = (first..first + BATCH).filter(|n| *n >= 512).map(|n| delete(queue(n - 512))).collect();
        for writes in [hot, added, taken].iter().filter(|writes| !writes.is_empty()) {
            write(&mut node, writes);
        }
        segments_max = segments_max.max(node.engine.log_report().segments);
    }
    let stats = node.engine.stats();
    // The rule by the puts' own versions copied each tombstone 38 times, and wrote 24 times as much.
    assert!(stats.moved_tombstones < 2 * entries && stats.written_bytes < 8 * stats.record_bytes, "{stats:?}");
    assert!(segments_max < 50, "{segments_max} segments: {stats:?}");
}

//! Unit tests of victims: what cleaning copies of one, and when it gives one up.
use super::*;
use crate::error::EngineError;
use crate::log::segments::Segment;
use crate::options::Options;
use crate::overlay::ReplacedRecord;
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyRange, Now, RangeId, Version};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");

/// A store whose segments are cleaned only if a test says so.
fn open(disk: &SimDisk) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 64 << 10,
        memory_bytes: 4 << 20,
        durability: Durability::Sync,
        secret: Some(SECRET),
        scrub_period_ms: 0,
        ..Options::default()
    };
    let (mut engine, _) = Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap();
    engine.add_range(RANGE, KeyRange::ALL).unwrap();
    let epoch = engine.next_sole_epoch(RANGE).unwrap();
    engine.begin_sole_epoch(RANGE, epoch, None).unwrap();
    engine.cleaner.stop();
    engine
}

fn wait_while(engine: &mut Engine<SimDevice>, mut is_waiting: impl FnMut(&mut Engine<SimDevice>) -> bool) {
    while is_waiting(engine) {
        engine.submit(Now::at(1));
        engine.wait(Now::at(1), &mut Vec::new());
    }
}

fn put(engine: &mut Engine<SimDevice>, seq: u64, key: &[u8], value_bytes: usize, expires_at_ms: u64) {
    let value = vec![1; value_bytes];
    let record = RecordRef { expires_at_ms, ..RecordRef::put(version_of(engine, seq), key, &value) };
    write(engine, &record);
}

fn delete(engine: &mut Engine<SimDevice>, seq: u64, key: &[u8]) {
    write(engine, &RecordRef::bare(RecordKind::Tombstone, version_of(engine, seq), key));
}

/// Appends and commits a record.
fn write(engine: &mut Engine<SimDevice>, record: &RecordRef<'_>) {
    wait_while(engine, |engine| engine.append(RANGE, KeyHash::of(&SECRET, record.key), record).is_err());
    wait_while(engine, |engine| engine.progress(RANGE).synced < record.version);
    engine.commit(RANGE, record.version);
}

/// Fills the store. The survivors have a last segment with so much room at most.
fn fill_survivors(engine: &mut Engine<SimDevice>, room_bytes: u64) {
    let (version, number) = (engine.progress(RANGE).committed, engine.ranges[0].number);
    let long = [1; 4_000];
    let copy = RecordRef::bare(RecordKind::Tombstone, version, &long);
    let append = |engine: &mut Engine<SimDevice>| {
        wait_while(engine, |engine| engine.append_survivor(0, number, &copy, RecordKind::Tombstone).is_err());
    };
    append(engine);
    wait_while(engine, |engine| engine.has_writes_in_flight());
    engine.options.capacity_bytes = Some(engine.taken_segments() * u64::from(engine.options.segment_bytes));
    while engine.survivors_room().segments > 0 || engine.survivors_room().active_bytes > room_bytes {
        append(engine);
    }
    assert!(engine.has_no_room_for_copies(), "{engine:?}");
}

/// Begins to clean the segment of this slot and end, whose read completes.
fn begin_cleaning(engine: &mut Engine<SimDevice>, (slot, end): (u32, u32)) {
    engine.segments.expect_mut(slot).pins += 1;
    engine.cleaner.begin(Victim::new(slot, end, VictimPurpose::Clean), engine.now.mono);
    engine.earn_credit();
    engine.clean_victim();
    wait_while(engine, |engine| engine.cleaner.is_reading());
}

/// A full store that cleans a segment which begins with an expired record of this key, too long for the last space for copies.
/// Another segment has an older record of the key. Returns the segment's slot.
fn clean_expired(engine: &mut Engine<SimDevice>, key: &[u8]) -> u32 {
    put(engine, 1, key, 14_000 - key.len(), 0);
    (2..5).for_each(|seq| put(engine, seq, &seq.to_be_bytes(), 14_000, 0));
    put(engine, 5, key, 14_000 - key.len(), 1_000);
    (6..11).for_each(|seq| put(engine, seq, &seq.to_be_bytes(), 14_000, 0));
    let expiring = engine.progress(RANGE).committed.as_u64() - 5;
    let is_victim = |segment: &&Segment| segment.shares.iter().any(|share| share.lowest_put.as_u64() == expiring);
    let (slot, end) = engine.segments.iter().find(is_victim).map(|segment| (segment.slot, segment.end)).unwrap();
    assert!(engine.segments.expect(slot).sealed);
    fill_survivors(engine, 8_000);
    assert!(engine.has_no_room_for_copy(14_000), "{engine:?}");
    engine.advance_clock(Now::at(1 << 40));
    begin_cleaning(engine, (slot, end));
    slot
}

/// A victim whose copies have no room is left, and its copies so far are in vain. A copy that the write buffer refuses has room in a
/// moment.
#[test]
fn a_victim_waits_for_memory_if_the_tombstone_of_an_expired_record_has_space_and_the_record_has_none() {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    clean_expired(&mut engine, b"a short key");
    // Any refusal of the append will do.
    engine.poisoned = Some("nothing is appended".to_owned());
    engine.clean_victim();
    let victim = engine.cleaner.victim.as_ref();
    assert!(victim.is_some_and(|victim| victim.room_at.is_some()), "{:?}", engine.cleaner);
}

/// Chosen again at once, it would be the only victim for as long as the store is full.
#[test]
fn a_victim_that_is_left_because_its_copies_have_no_room_is_none_for_a_while() {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    let slot = clean_expired(&mut engine, &[7; 10_000]);
    engine.clean_victim();
    assert!(engine.cleaner.victim.is_none(), "{:?}", engine.cleaner);
    let again_at = engine.segments.expect(slot).refused_copies.map(|refused| refused.again_at);
    assert_eq!(again_at, Some(engine.now.mono.plus_ms(SEARCH_MS_MAX)));
}

fn version_of(engine: &Engine<SimDevice>, seq: u64) -> Version {
    Version::new(Epoch::new(engine.generation()).unwrap(), seq).unwrap()
}

/// A key so long that no further copy of it may have room.
fn long_key(seq: u64, len: usize) -> Vec<u8> {
    let mut key = vec![7; len];
    key[..8].copy_from_slice(&seq.to_be_bytes());
    key
}

/// Removes the expired put of this version, as a lookup does.
fn find_expired(engine: &mut Engine<SimDevice>, seq: u64, key: &[u8], value_bytes: usize) {
    let (version, hash, value) = (version_of(engine, seq), KeyHash::of(&SECRET, key), vec![1; value_bytes]);
    let record = RecordRef { expires_at_ms: 1_000, ..RecordRef::put(version, key, &value) };
    let found: Vec<_> = engine.ranges[0].index.candidates(hash).collect();
    assert_eq!(found.len(), 1, "record {seq}");
    let expired = ReplacedRecord { pointer: found[0], len_bytes: record::encoded_len(&record) as u32 };
    engine.remove_expired(0, hash, expired, version);
}

/// Two segments of live records, and an old one that was replaced: newer tombstones may hide it.
fn put_old(engine: &mut Engine<SimDevice>) {
    put(engine, 1, b"old", 14_000, 0);
    (2..5).for_each(|seq| put(engine, seq, &seq.to_be_bytes(), 14_000, 0));
    put(engine, 5, b"old", 14_000, 0);
    (6..9).for_each(|seq| put(engine, seq, &seq.to_be_bytes(), 14_000, 0));
}

/// The segment that begins with the record of this version, and its end.
fn segment_from(engine: &Engine<SimDevice>, first: Version) -> (u32, u32) {
    let is_it = |segment: &&Segment| segment.shares.iter().any(|share| share.lowest_put == first);
    engine.segments.iter().find(is_it).map(|segment| (segment.slot, segment.end)).unwrap()
}

/// Fills so many segments with records of long keys that were found expired. Each hides an old record in another segment.
fn put_expired(engine: &mut Engine<SimDevice>, segments: u64) {
    put_old(engine);
    let expiring = 9..12 + 4 * segments;
    expiring.clone().for_each(|seq| put(engine, seq, &long_key(seq, 10_000), 4_000, 1_000));
    (expiring.end..expiring.end + 4).for_each(|seq| put(engine, seq, &seq.to_be_bytes(), 14_000, 0));
    engine.advance_clock(Now::at(1 << 40));
    expiring.for_each(|seq| find_expired(engine, seq, &long_key(seq, 10_000), 4_000));
}

/// Lets the time pass in so many steps, with four attempts of a write in each. Returns the number of attempts that were refused.
fn pass(engine: &mut Engine<SimDevice>, steps: u64, step_ms: u64) -> u64 {
    let (mut refused, value) = (0, [1; 14_000]);
    for attempt in 0..4 * steps {
        // The first one makes a search for a victim due, which keeps a distance to the last one. The others follow it.
        let now = engine.now.plus_ms(if attempt % 4 == 0 { step_ms } else { 20 });
        let seq = engine.progress(RANGE).appended.seq() + 1;
        let key = seq.to_be_bytes();
        let record = RecordRef::put(version_of(engine, seq), &key, &value);
        match engine.append(RANGE, KeyHash::of(&SECRET, &key), &record) {
            Err(EngineError::StoreFull) => refused += 1,
            taken => assert!(matches!(taken, Ok(()) | Err(EngineError::Overloaded)), "{taken:?}"),
        }
        engine.submit(now);
        engine.wait(now, &mut Vec::new());
        engine.commit(RANGE, engine.progress(RANGE).synced);
    }
    refused
}

/// They were tried again every ten seconds, and writes waited for each read.
#[test]
fn segments_whose_copies_have_no_room_are_read_once_until_there_is_more() {
    const SEGMENTS: u64 = 40;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    put_expired(&mut engine, SEGMENTS);
    fill_survivors(&mut engine, 8_000);
    engine.cleaner.is_stopped = false;
    let reads = disk.counted(OpKind::Read);
    let refused = pass(&mut engine, 3_600, 1_000);
    let reads = disk.counted(OpKind::Read) - reads;
    assert!((SEGMENTS / 2..=2 * SEGMENTS).contains(&reads) && refused > 6_000, "{reads} reads, {refused} refused");
    engine.options.capacity_bytes = engine.options.capacity_bytes.map(|bytes| bytes + (128 << 10));
    pass(&mut engine, 30, 100);
    assert!(engine.stats.moved_tombstones > 0, "{:?}", engine.cleaner);
}

/// The estimate of its copies still counts all of its puts that expire.
#[test]
fn a_segment_is_tried_again_when_the_record_whose_copy_had_no_room_is_deleted() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    put_old(&mut engine);
    put(&mut engine, 9, &long_key(9, 10_000), 4_000, 1_000);
    (10..13).for_each(|seq| put(&mut engine, seq, &[seq as u8], 14_000, 1 << 50));
    // The last two are replaced, and another segment begins.
    (13..15).for_each(|seq| put(&mut engine, seq, &[seq as u8 - 2], 14_000, 0));
    (15..18).for_each(|seq| put(&mut engine, seq, &[seq as u8], 14_000, 0));
    engine.advance_clock(Now::at(1 << 40));
    find_expired(&mut engine, 9, &long_key(9, 10_000), 4_000);
    let victim = segment_from(&engine, version_of(&engine, 9));
    fill_survivors(&mut engine, 20_000);
    begin_cleaning(&mut engine, victim);
    engine.clean_victim();
    assert!(engine.cleaner.victim.is_none(), "{:?}", engine.cleaner);
    assert!(engine.segments.expect(victim.0).refused_copies.is_some());
    delete(&mut engine, 18, &[10]);
    engine.cleaner.is_stopped = false;
    pass(&mut engine, 60, 1_000);
    assert!(engine.stats.segments_dropped > 0, "{:?}", engine.cleaner);
}

/// Only a read shows that nothing of it has to be copied.
#[test]
fn a_segment_of_replaced_records_is_cleaned_although_copies_of_others_have_no_room() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    put_expired(&mut engine, 4);
    for (seq, expires_at_ms) in (100..108).map(|seq| (seq, 1_000)).chain((108..116).map(|seq| (seq, 0))) {
        put(&mut engine, seq, &[seq as u8 % 8], 14_000, expires_at_ms);
    }
    (116..120).for_each(|seq| put(&mut engine, seq, &seq.to_be_bytes(), 14_000, 0));
    fill_survivors(&mut engine, 8_000);
    engine.cleaner.is_stopped = false;
    pass(&mut engine, 9, 1_000);
    assert!(engine.stats.segments_dropped > 0, "{:?}", engine.cleaner);
}

/// The first cleaning ended without room. With room for the rest, the segment is a victim again.
#[test]
fn an_estimate_of_copies_leaves_out_those_of_an_earlier_cleaning() {
    const LEN: usize = 9_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    put_old(&mut engine);
    // Deletes and records that expire, in turn.
    for seq in (9..15).step_by(2) {
        delete(&mut engine, seq, &long_key(seq, LEN));
        put(&mut engine, seq + 1, &long_key(seq + 1, LEN), 100, 1_000);
    }
    (15..19).for_each(|seq| put(&mut engine, seq, &seq.to_be_bytes(), 14_000, 0));
    engine.advance_clock(Now::at(1 << 40));
    (10..15).step_by(2).for_each(|seq| find_expired(&mut engine, seq, &long_key(seq, LEN), 100));
    let (slot, end) = segment_from(&engine, version_of(&engine, 10));
    let copied_bytes = |engine: &Engine<SimDevice>| {
        let segment = engine.segments.expect(slot);
        [engine.kept_tombstone_bytes(segment), engine.expired_tombstone_bytes_max(segment)]
    };
    let [deletes, expired] = copied_bytes(&engine);
    assert!(deletes > 3 * LEN as u64 && expired > 3 * LEN as u64, "{deletes} and {expired} B");
    // For two copies.
    fill_survivors(&mut engine, 22_500);
    begin_cleaning(&mut engine, (slot, end));
    engine.clean_victim();
    assert!(engine.cleaner.victim.is_none(), "{:?}", engine.cleaner);
    assert_eq!(engine.stats.moved_tombstones, 2);
    assert_eq!(copied_bytes(&engine), [deletes / 3 * 2, expired / 3 * 2]);
}

/// Cleaning cannot tell records that were deleted days before they expire from one that a lookup has found expired, and copies all.
#[test]
fn deleted_records_count_as_copies_before_they_expire_if_another_one_was_found_expired() {
    const LEN: usize = 6_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    put_old(&mut engine);
    (9..14).for_each(|seq| put(&mut engine, seq, &long_key(seq, LEN), 100, 1 << 50));
    put(&mut engine, 14, &long_key(14, LEN), 100, 1_000);
    (15..19).for_each(|seq| put(&mut engine, seq, &seq.to_be_bytes(), 14_000, 0));
    (9..14).for_each(|seq| delete(&mut engine, 10 + seq, &long_key(seq, LEN)));
    engine.advance_clock(Now::at(1 << 20));
    find_expired(&mut engine, 14, &long_key(14, LEN), 100);
    let (slot, end) = segment_from(&engine, version_of(&engine, 9));
    let estimate = engine.expired_tombstone_bytes_max(engine.segments.expect(slot));
    begin_cleaning(&mut engine, (slot, end));
    for _ in 0..100 {
        engine.earn_credit();
        engine.clean_victim();
        engine.submit(Now::at(1));
        engine.wait(Now::at(1), &mut Vec::new());
    }
    assert!(engine.cleaner.victim.is_none(), "{:?}", engine.cleaner);
    assert_eq!(engine.stats.moved_tombstones, 6);
    assert!(estimate >= 6 * LEN as u64, "an estimate of {estimate} B");
}

/// A segment of four records, the last of them corrupt, that was cleaned as far as possible, and the versions at that time: the
/// earliest tombstone that has to stay for its dead puts, a tombstone's that was there before, and the newest one.
fn clean_corrupt(expires_at_ms: u64) -> [Version; 3] {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    (1..5).for_each(|seq| put(&mut engine, seq, &seq.to_be_bytes(), 14_000, expires_at_ms));
    delete(&mut engine, 5, b"absent");
    (6..14).for_each(|seq| put(&mut engine, seq, &seq.to_be_bytes(), 14_000, 0));
    let (slot, end) = segment_from(&engine, version_of(&engine, 1));
    let Segment { name, sequence, .. } = engine.segments.expect(slot).clone();
    disk.flip_bits(&name, u64::from(end) - 8_000, 1);
    let hidden_from = |engine: &Engine<SimDevice>| engine.ranges[0].dead_puts_hidden_from.of(sequence);
    assert_eq!(hidden_from(&engine), Version::from_u64(u64::MAX), "all are live");
    let committed = engine.progress(RANGE).committed;
    begin_cleaning(&mut engine, (slot, end));
    wait_while(&mut engine, |engine| {
        engine.clean_victim();
        engine.cleaner.victim.is_some()
    });
    let stats = engine.stats();
    assert_eq!((stats.cleaning_failed, stats.moved_records), (1, 3), "{engine:?}");
    [hidden_from(&engine), version_of(&engine, 5), committed]
}

/// Only a newer delete can be of a key that was copied. By the versions of the copied puts, one corrupt record would keep all
/// tombstones since then.
#[test]
fn a_segment_that_is_cleaned_in_part_keeps_no_tombstones_from_before() {
    let [hidden_from, deleted, committed] = clean_corrupt(0);
    assert!(deleted < hidden_from && hidden_from <= committed, "{hidden_from:?}");
}

/// Their copies hide them as tombstones once they have expired.
#[test]
fn a_segment_that_is_cleaned_in_part_keeps_what_its_expiring_records_become() {
    let [hidden_from, deleted, _] = clean_corrupt(1 << 50);
    assert!(hidden_from < deleted, "{hidden_from:?}");
}

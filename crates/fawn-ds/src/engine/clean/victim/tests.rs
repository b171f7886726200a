//! Unit tests of victims: what cleaning copies of one, and when it gives one up.
use super::*;
use crate::format::record::{RecordKind, RecordRef};
use crate::log::segments::Segment;
use crate::options::Options;
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

/// Appends and commits a put.
fn put(engine: &mut Engine<SimDevice>, seq: u64, key: &[u8], value_bytes: usize, expires_at_ms: u64) {
    let version = Version::new(Epoch::new(engine.generation()).unwrap(), seq).unwrap();
    let value = vec![1; value_bytes];
    let record = RecordRef { expires_at_ms, ..RecordRef::put(version, key, &value) };
    wait_while(engine, |engine| engine.append(RANGE, KeyHash::of(&SECRET, key), &record).is_err());
    wait_while(engine, |engine| engine.progress(RANGE).synced < version);
    engine.commit(RANGE, version);
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
    // The survivors have a last segment with little room.
    let (version, number) = (engine.progress(RANGE).committed, engine.ranges[0].number);
    let long = [1; 4_000];
    let copy = RecordRef::bare(RecordKind::Tombstone, version, &long);
    let append = |engine: &mut Engine<SimDevice>| {
        wait_while(engine, |engine| engine.append_survivor(0, number, &copy, RecordKind::Tombstone).is_err());
    };
    append(engine);
    engine.options.capacity_bytes = Some(engine.taken_segments() * u64::from(engine.options.segment_bytes));
    while engine.survivors_room().active_bytes > 8_000 {
        append(engine);
    }
    assert!(engine.has_no_room_for_copies() && engine.has_no_room_for_copy(14_000), "{engine:?}");
    engine.advance_clock(Now::at(1 << 40));
    engine.segments.expect_mut(slot).pins += 1;
    engine.cleaner.begin(Victim::new(slot, end, VictimPurpose::Clean), engine.now.mono);
    engine.earn_credit();
    engine.clean_victim();
    wait_while(engine, |engine| engine.cleaner.is_reading());
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
    assert_eq!(engine.segments.expect(slot).clean_again_at, engine.now.mono.plus_ms(SEARCH_MS_MAX));
}

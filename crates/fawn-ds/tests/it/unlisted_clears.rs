//! Clears that a full device keeps out of the manifest: until they are listed, only their records say what they removed.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, frames, scanned};
use fawn_ds::internals::format::manifest;
use fawn_ds::internals::{Engine, EngineError, Options, RecordKind, RecordRef};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, RangeId, RingKey, Version};

const LOW: RangeId = RangeId(1);
/// A range without keys, whose clears fill the manifest.
pub(crate) const CLEARED: RangeId = RangeId(9);

/// A store with a range whose commits are the test's, and another one that the harness commits.
fn two_ranges(options: Options) -> (RangeHarness, Epoch) {
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, true);
    harness.add(LOW.0, KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL });
    harness.add(2, KeyRange { start: ring_at(0x80), end: None });
    harness.add(CLEARED.0, KeyRange::ALL);
    let epoch = harness.engine.sole_epoch(LOW).unwrap();
    harness.models.remove(&LOW);
    harness.models.remove(&CLEARED);
    (harness, epoch)
}

fn is_low(key: &[u8]) -> bool {
    RingKey::of(&SECRET, key) < ring_at(0x80)
}

fn keys(is_wanted: impl Fn(&[u8]) -> bool) -> impl Iterator<Item = Vec<u8>> {
    (0..).map(|i: u32| format!("key {i}").into_bytes()).filter(move |key| is_wanted(key))
}

fn append(harness: &mut RangeHarness, record: &RecordRef<'_>) {
    for _ in 0..1_000 {
        match harness.engine.append(LOW, KeyHash::of(&SECRET, record.key), record) {
            Err(EngineError::Overloaded) => harness.turn(),
            appended => return appended.unwrap(),
        }
    }
    panic!("the engine stays overloaded: {:?}", harness.engine);
}

pub(crate) fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

/// The device is full, and the manifest has space for a few drops, but none that can be reserved for an edit: blobs take
/// what edits may use that free no space, and listed clears the rest.
pub(crate) fn fill_manifest(harness: &mut RangeHarness) {
    harness.disk.set_full(true);
    for len in [8 << 10, 1 << 10, 128, 1] {
        loop {
            match harness.engine.put_blob(5, &vec![1; len]) {
                Ok(ticket) => {
                    while !harness.engine.is_blob_durable(ticket) {
                        harness.turn();
                    }
                }
                Err(EngineError::StoreFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let epoch = harness.engine.sole_epoch(CLEARED).unwrap();
    let mut seq = 0;
    loop {
        seq += 1;
        let version = Version::new(epoch, seq).unwrap();
        let clear = RecordRef::bare(RecordKind::Clear, version, &[]);
        harness.engine.append(CLEARED, KeyHash::of(&SECRET, b""), &clear).unwrap();
        harness.turn();
        harness.engine.commit(CLEARED, version);
        (0..3).for_each(|_| harness.turn());
        let manifest = manifest::decode_all(&harness.disk.contents("manifest").unwrap()).unwrap();
        if manifest.state.ranges[&CLEARED].cleared < version {
            break;
        }
    }
    assert!(seq > 10, "some fit that free space, after all others were refused");
}

/// Commits what the range has, and lets a second pass.
fn commit_and_wait(harness: &mut RangeHarness) {
    let end = harness.engine.progress(LOW).synced;
    assert_eq!(harness.engine.progress(LOW).appended, end);
    harness.engine.commit(LOW, end);
    for _ in 0..100 {
        harness.now = harness.now.plus_ms(10);
        harness.turn();
    }
}

fn open_again(harness: &mut RangeHarness) {
    harness.disk.crash(1);
    harness.disk.set_full(false);
    harness.engine = Engine::open(SimDevice::attach(&harness.disk), harness.options.clone(), harness.now).unwrap().0;
}

/// The clear is the last record of the range in its segment, and older ones lie in a segment that another range keeps.
#[test]
fn the_segment_of_a_clear_stays_until_that_is_listed() {
    let (mut harness, epoch) = two_ranges(scanned(Durability::Sync));
    let low: Vec<_> = keys(is_low).take(300).collect();
    let high: Vec<_> = keys(|key| !is_low(key)).take(80).collect();
    let version = |seq: usize| Version::new(epoch, seq as u64).unwrap();
    for (i, key) in low.iter().enumerate() {
        append(&mut harness, &RecordRef::put(version(i + 1), key, &[1; 200]));
        if let Some(key) = high.get(i) {
            harness.write(key, Some(&[2; 400]));
        }
        harness.turn();
        let end = harness.engine.progress(LOW).synced;
        harness.engine.commit(LOW, end);
    }
    append(&mut harness, &RecordRef::bare(RecordKind::Clear, version(low.len() + 1), &[]));
    harness.turn();
    let is_begun = |name: &String| !frames(&harness.disk.contents(name).unwrap()).is_empty();
    let of_clear = segments(&harness.disk).into_iter().rfind(is_begun).unwrap();
    // The rest of the segment is dead as well.
    for _ in 0..80 {
        harness.write(&high[0], Some(&[3; 1_000]));
        harness.turn();
    }
    // The newest record of a range keeps its segment.
    append(&mut harness, &RecordRef::put(version(low.len() + 2), &low[0], &[4; 200]));
    (0..10).for_each(|_| harness.turn());
    fill_manifest(&mut harness);
    commit_and_wait(&mut harness);
    assert!(segments(&harness.disk).contains(&of_clear), "{:?}", harness.engine.segments_kept());
    assert!(harness.engine.poisoned().is_none());
    open_again(&mut harness);
    assert_eq!(harness.get(LOW, &low[0]), Ok(Some(vec![4; 200])));
    low[1..].iter().for_each(|key| assert_eq!(harness.get(LOW, key), Ok(None)));
    harness.check(&high, "opened again");
    (0..100).for_each(|_| harness.turn());
    assert!(!segments(&harness.disk).contains(&of_clear), "{:?}", harness.engine.segments_kept());
}

/// Survivors are read before all other records. A copy of a record behind the clear would be cleared by an opening.
#[test]
fn records_behind_a_clear_are_copied_only_once_that_is_listed() {
    let options = Options { space_amplification_max_percent: 0, ..scanned(Durability::Sync) };
    let (mut harness, epoch) = two_ranges(options);
    let low: Vec<_> = keys(is_low).take(160).collect();
    let mut seq = 0;
    let mut version = || {
        seq += 1;
        Version::new(epoch, seq).unwrap()
    };
    append(&mut harness, &RecordRef::put(version(), &low[0], &[1; 200]));
    append(&mut harness, &RecordRef::bare(RecordKind::Clear, version(), &[]));
    // The second segment has records that the third one replaces.
    for key in low.iter().take(30).chain(&low[20..]) {
        append(&mut harness, &RecordRef::put(version(), key, &[2; 4_000]));
        harness.turn();
    }
    (0..10).for_each(|_| harness.turn());
    fill_manifest(&mut harness);
    let before = segments(&harness.disk);
    commit_and_wait(&mut harness);
    let after = segments(&harness.disk);
    open_again(&mut harness);
    for key in &low {
        assert_eq!(harness.get(LOW, key), Ok(Some(vec![2; 4_000])));
    }
    assert_eq!(after, before, "nothing was cleaned");
}

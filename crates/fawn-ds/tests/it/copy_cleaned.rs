//! Cleaning and sorting while a range is copied to the store.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_tier::sorted;
use crate::support::{SECRET, small};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::{Engine, EngineError, Options, RecordRef, open_for_salvage};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, RangeId, RingKey, Version};
use std::collections::{BTreeMap, BTreeSet};

const OTHER: RangeId = RangeId(2);

fn version(epoch: u32, seq: u64) -> Version {
    Version::new(Epoch::new(epoch).unwrap(), seq).unwrap()
}

fn hash(key: &[u8]) -> KeyHash {
    KeyHash::of(&SECRET, key)
}

/// Records of the copy lie among those of another range, which overwrites the same ten keys: their segments have to be cleaned while
/// the copy goes on, or the store is full in the end.
#[test]
fn a_store_is_cleaned_while_a_range_is_copied_to_it() {
    let options = Options { capacity_bytes: Some(16 * (64 << 10)), ..small(Durability::Sync) };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, false);
    harness.add(1, KeyRange { start: ring_at(0), end: Some(ring_at(0x80)) });
    let base = version(1, 1_000);
    let copied = KeyRange { start: ring_at(0x80), end: None };
    harness.engine.add_range(OTHER, copied).unwrap();
    harness.engine.begin_transfer(OTHER, base).unwrap();
    let own: Vec<Vec<u8>> =
        (0..40u64).map(|i| format!("own {i}").into_bytes()).filter(|key| harness.range_of(key).is_some()).collect();
    let keys = |i: u64| format!("copied {i}").into_bytes();
    let mut sent = BTreeMap::new();
    for i in 0..1_000 {
        let key = keys(i);
        if !copied.contains(&RingKey::of(&SECRET, &key)) {
            continue;
        }
        let record = RecordRef::put(version(1, i + 1), &key, &[7; 100]);
        assert_eq!(harness.engine.append_copied(OTHER, hash(&key), &record), Ok(true), "{i}: {:?}", harness.engine);
        for own in own.iter().take(10) {
            harness.write(own, Some(&[i as u8; 1_000]));
        }
        (0..4).for_each(|_| harness.turn());
        sent.insert(key, vec![7; 100]);
    }
    harness.engine.finish_transfer(OTHER).unwrap();
    while harness.engine.copying(OTHER).is_some() {
        harness.turn();
    }
    assert!(harness.engine.stats().segments_dropped > 50);
    harness.enter(OTHER, copied, sent);
    let all: Vec<Vec<u8>> = (0..1_000).map(keys).chain(own).collect();
    harness.check(&all, "whole");
    harness.reopen(1, true);
    harness.check(&all, "opened again");
}

/// Copies 3,000 short records while another range is written to. Returns what was copied.
fn copy_sorted(harness: &mut RangeHarness, own: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let copied = KeyRange { start: ring_at(0x80), end: None };
    harness.engine.add_range(OTHER, copied).unwrap();
    harness.engine.begin_transfer(OTHER, version(1, 10_000)).unwrap();
    let mut sent = BTreeMap::new();
    for i in 0..3_000 {
        let key = format!("copied {i}").into_bytes();
        if copied.contains(&RingKey::of(&SECRET, &key)) {
            let record = RecordRef::put(version(1, i + 1), &key, &[7; 100]);
            while harness.engine.append_copied(OTHER, hash(&key), &record) == Err(EngineError::Overloaded) {
                harness.turn();
            }
            sent.insert(key, vec![7; 100]);
        }
        harness.write(&own[i as usize % own.len()], Some(&[i as u8; 50]));
        (0..3).for_each(|_| harness.turn());
    }
    sent
}

/// An opening for reading, or for a dump, of an intact store and of one with a damaged segment.
fn check_for_reading(harness: &mut RangeHarness, own: &[Vec<u8>], copied: &[Vec<u8>]) {
    let options = Options { read_only: true, ..harness.options.clone() };
    harness.disk.kill(1);
    harness.engine = Engine::open(SimDevice::attach(&harness.disk), options.clone(), harness.now).unwrap().0;
    assert!(harness.engine.runs() > 0);
    harness.check(copied, "opened for reading");
    let segment = harness.disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    for is_damaged in [false, true] {
        if is_damaged {
            harness.disk.flip_bits(&segment, 5_000, 1);
        }
        harness.disk.kill(1);
        let opened = open_for_salvage(|| Ok(SimDevice::attach(&harness.disk)), &options, harness.now);
        harness.engine = opened.unwrap().0;
        let mut dumped = BTreeSet::new();
        let report = harness.engine.dump(|_, record| -> Result<(), ()> {
            dumped.insert(record.key.to_vec());
            Ok(())
        });
        report.unwrap();
        assert!(!copied.iter().any(|key| dumped.contains(key)), "damaged: {is_damaged}");
        assert!(own.iter().filter(|key| dumped.contains(*key)).count() * 2 > own.len(), "damaged: {is_damaged}");
    }
    harness.disk.flip_bits(&segment, 5_000, 1);
}

/// The end of the manifest is corrupt, zero or gone, from before the commit that says that the copies of two ranges are complete. All
/// records of them are taken: of numbers that the manifest lists, and of later ones.
#[test]
fn a_salvage_takes_copies_of_which_it_is_lost_whether_they_are_complete() {
    for (is_repeated, end) in [(false, "corrupt"), (true, "corrupt"), (false, "zero"), (false, "gone")] {
        let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), sorted(Durability::Sync), false);
        harness.add(1, KeyRange { start: ring_at(0), end: Some(ring_at(0x80)) });
        let own: Vec<Vec<u8>> = (0..600u64).map(|i| format!("own {i}").into_bytes()).collect();
        let own: Vec<Vec<u8>> = own.into_iter().filter(|key| harness.range_of(key).is_some()).collect();
        let mut expected: BTreeSet<Vec<u8>> = copy_sorted(&mut harness, &own).into_keys().collect();
        assert!(harness.engine.runs() > 0, "{:?}", harness.engine);
        let listed_bytes = decode_all(&harness.disk.contents("manifest").unwrap()).unwrap().valid_len;
        if is_repeated {
            expected.clear();
            for range in [OTHER, RangeId(1)] {
                harness.engine.begin_transfer(range, version(1, 20_000)).unwrap();
                let copied = (0..200u64).map(|i| format!("again {i}").into_bytes());
                for (seq, key) in (10_001..)
                    .zip(copied.filter(|key| (RingKey::of(&SECRET, key) < ring_at(0x80)) == (range == RangeId(1))))
                {
                    let record = RecordRef::put(version(1, seq), &key, &[8; 100]);
                    assert_eq!(harness.engine.append_copied(range, hash(&key), &record), Ok(true));
                    expected.insert(key);
                }
                harness.engine.finish_transfer(range).unwrap();
            }
        } else {
            harness.engine.finish_transfer(OTHER).unwrap();
        }
        while harness.engine.copying(OTHER).is_some() || harness.engine.copying(RangeId(1)).is_some() {
            harness.turn();
        }
        // Until a later commit certifies that those of the copies were synced.
        (0..300).for_each(|_| harness.turn());
        harness.disk.kill(1);
        if end == "corrupt" {
            harness.disk.flip_bits("manifest", listed_bytes + 20, 1);
        } else {
            // The log has a later generation than the rest of the manifest.
            harness.enter(OTHER, KeyRange { start: ring_at(0x80), end: None }, BTreeMap::new());
            harness.open_again();
            harness.write(&own[0], Some(b"later"));
            harness.settle();
            harness.disk.kill(1);
            let mut manifest = harness.disk.contents("manifest").unwrap();
            manifest[listed_bytes as usize..].fill(0);
            let kept = if end == "gone" { listed_bytes as usize } else { manifest.len() };
            harness.disk.put("manifest", &manifest[..kept]);
        }
        let options = Options { read_only: true, ..harness.options.clone() };
        let opened = open_for_salvage(|| Ok(SimDevice::attach(&harness.disk)), &options, harness.now);
        let (mut engine, salvaged) = opened.unwrap();
        assert!(salvaged.findings.iter().any(|finding| finding.detail.contains("was complete")), "{salvaged:?}");
        let mut dumped = BTreeSet::new();
        let report = engine.dump(|_, record| -> Result<(), ()> {
            dumped.insert(record.key.to_vec());
            Ok(())
        });
        report.unwrap();
        let missing: Vec<_> = expected.difference(&dumped).map(|key| String::from_utf8_lossy(key)).collect();
        let of = format!("repeated: {is_repeated}, end {end}: {} of {}", missing.len(), expected.len());
        assert!(missing.is_empty(), "{of}: {missing:?}");
    }
}

/// A store whose index is bounded by runs keeps to the bound while a range is copied to it. After a crash nothing of a copy that is not
/// complete is there, in runs as in the log.
#[test]
fn records_are_sorted_while_their_range_is_copied() {
    for is_finished in [true, false] {
        let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), sorted(Durability::Sync), false);
        harness.add(1, KeyRange { start: ring_at(0), end: Some(ring_at(0x80)) });
        let own = (0..600u64).map(|i| format!("own {i}").into_bytes());
        let own: Vec<Vec<u8>> = own.filter(|key| harness.range_of(key).is_some()).collect();
        let sent = copy_sorted(&mut harness, &own);
        assert!(harness.engine.runs() > 0, "{:?}", harness.engine);
        let copied: Vec<Vec<u8>> = sent.keys().cloned().collect();
        if is_finished {
            harness.engine.finish_transfer(OTHER).unwrap();
            while harness.engine.copying(OTHER).is_some() {
                harness.turn();
            }
        }
        let keys = KeyRange { start: ring_at(0x80), end: None };
        harness.enter(OTHER, keys, if is_finished { sent } else { BTreeMap::new() });
        if is_finished {
            harness.check(&copied, "whole");
        }
        harness.check(&own, "during the copy");
        if !is_finished {
            check_for_reading(&mut harness, &own, &copied);
        }
        harness.reopen(1, true);
        harness.check(&[own, copied].concat(), "opened again");
        assert!(is_finished || harness.engine.len(OTHER) == 0);
    }
}

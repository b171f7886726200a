//! Dumps of stores whose manifest has lost splits, merges or later beginnings of ranges: older and deleted values stay away.
use crate::range_harness::{RangeHarness, ring_at};
use crate::salvage::{Content, Dumped, dump};
use crate::sorted_splits::{few, sorted_range};
use crate::sorted_tier::sorted;
use crate::support::{cached, manifest_commits};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::{Engine, Options, open_for_salvage};
use fawn_flash::{Device, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyRange, Now, Version};

fn keys() -> Vec<Vec<u8>> {
    (0..600).map(|i| format!("key {i}").into_bytes()).collect()
}

/// A range with survivors under its number, some of them of keys that have no other record.
fn cleaned(is_sole: bool) -> RangeHarness {
    let options =
        Options { checkpoint_log_bytes_min: u64::MAX, space_amplification_max_percent: 0, ..cached(Durability::Sync) };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, is_sole);
    harness.add(1, KeyRange::ALL);
    let (keys, mut rng) = (keys(), Rng::new(1));
    keys.iter().for_each(|key| harness.write(key, Some(&[1; 300])));
    while harness.engine.stats().moved_records < 300 {
        harness.write(&keys[300 + rng.below(300) as usize], Some(&[2; 300]));
        harness.turn();
        assert!(harness.engine.stats().appended_records < 20_000, "hardly anything is cleaned: {:?}", harness.engine);
    }
    harness.settle();
    harness
}

/// Overwrites a third of the keys, and deletes another one.
fn change(harness: &mut RangeHarness, value: u8) {
    for (i, key) in keys().iter().enumerate() {
        match (i + usize::from(value)) % 3 {
            0 => harness.write(key, Some(&[value; 20])),
            1 => harness.write(key, None),
            _ => {}
        }
    }
    harness.settle();
}

fn close(harness: RangeHarness) -> (SimDisk, Content) {
    let RangeHarness { disk, engine, models, .. } = harness;
    drop(engine.close().unwrap());
    (disk, models.into_values().flat_map(|model| model.content).collect())
}

#[track_caller]
fn assert_same(dumped: &Dumped, content: &Content, context: &str) {
    let returned = dumped.content.keys().filter(|key| !content.contains_key(*key)).count();
    let lost = content.keys().filter(|key| !dumped.content.contains_key(*key)).count();
    let other = content.iter().filter(|(key, value)| dumped.content.get(*key).is_some_and(|found| found != *value));
    let other = other.count();
    assert_eq!((returned, lost, other), (0, 0, 0), "{context}: keys returned, lost, of another value");
}

/// Dumps the store with the manifest cut at every commit, and without it. Returns the numbers of ranges that the cut ones list.
fn dump_without_ends_of_the_manifest(disk: &SimDisk, content: &Content) -> Vec<u32> {
    assert_same(&dump(disk), content, "a sound store");
    let (manifest, mut last_numbers) = (disk.contents("manifest").unwrap(), Vec::new());
    for (at, _) in manifest_commits(&manifest) {
        let mut older = manifest.clone();
        older[at..].fill(0);
        disk.put("manifest", &older);
        let last = decode_all(&older).map_or(0, |decoded| decoded.state.last_number.0);
        assert_same(&dump(disk), content, &format!("cut at {at}, numbers up to {last}"));
        last_numbers.push(last);
    }
    SimDevice::attach(disk).unlink("manifest").unwrap();
    let dumped = dump(disk);
    assert!(dumped.is_damaged);
    assert_same(&dumped, content, "no manifest");
    last_numbers.dedup();
    last_numbers
}

fn newest_version(engine: &Engine<SimDevice>) -> Option<Version> {
    engine.ranges().map(|(id, _)| engine.progress(id).appended).max()
}

#[test]
fn a_split_that_the_manifest_lost_brings_nothing_back() {
    for is_sole in [true, false] {
        let mut harness = cleaned(is_sole);
        harness.split(1, ring_at(0x80), 2, 3);
        change(&mut harness, 3);
        let newest = newest_version(&harness.engine);
        let (disk, content) = close(harness);
        assert_eq!(dump_without_ends_of_the_manifest(&disk, &content), [0, 1, 3]);
        let device = || Ok(SimDevice::attach(&disk));
        let (engine, _) = open_for_salvage(device, &cached(Durability::Sync), Now::at(1_000)).unwrap();
        assert_eq!(newest_version(&engine), newest, "a repaired copy begins above it");
    }
}

#[test]
fn splits_and_merges_that_the_manifest_lost_bring_nothing_back() {
    for is_sole in [true, false] {
        let mut harness = cleaned(is_sole);
        harness.split(1, ring_at(0x80), 2, 3);
        change(&mut harness, 3);
        harness.split(3, ring_at(0xC0), 4, 5);
        change(&mut harness, 4);
        harness.merge(2, 4, 6);
        change(&mut harness, 5);
        let (disk, content) = close(harness);
        assert_eq!(dump_without_ends_of_the_manifest(&disk, &content), [0, 1, 3, 5, 6]);
    }
}

/// The details of findings about clears whose keys are unknown.
fn findings_of_clears(disk: &SimDisk) -> Vec<String> {
    let device = || Ok(SimDevice::attach(disk));
    let (_, report) = open_for_salvage(device, &cached(Durability::Sync), Now::at(1_000)).unwrap();
    let details = report.findings.into_iter().map(|finding| finding.detail);
    details.filter(|detail| detail.contains("clear")).collect()
}

/// Only the manifest knew which of the parent's records it invalidates.
#[test]
fn a_clear_of_a_number_that_the_manifest_lost_concerns_no_other_and_is_reported() {
    let mut harness = cleaned(true);
    harness.split(1, ring_at(0x80), 2, 3);
    change(&mut harness, 3);
    harness.clear(3);
    for key in keys().iter().step_by(5) {
        harness.write(key, Some(&[4; 20]));
    }
    harness.settle();
    let (disk, content) = close(harness);
    SimDevice::attach(&disk).unlink("manifest").unwrap();
    let dumped = dump(&disk).content;
    let lost = content.iter().filter(|(key, value)| dumped.get(*key) != Some(*value)).count();
    assert_eq!(lost, 0, "the other heir's records and newer ones stay");
    let returned = dumped.iter().filter(|(key, _)| !content.contains_key(*key));
    let own = returned.filter(|(_, value)| value.len() < 300).count();
    assert_eq!(own, 0, "its own records from before it stay away");
    let findings = findings_of_clears(&disk);
    assert!(findings.len() == 1 && findings[0].contains("may be back"), "{findings:?}");
}

#[test]
fn a_clear_of_the_only_number_is_no_finding() {
    let mut harness = cleaned(true);
    harness.clear(1);
    harness.write(b"key 1", Some(&[4; 20]));
    harness.settle();
    let (disk, content) = close(harness);
    SimDevice::attach(&disk).unlink("manifest").unwrap();
    assert_same(&dump(&disk), &content, "no manifest");
    assert_eq!(findings_of_clears(&disk), [""; 0]);
}

/// The parent's records are in runs that the manifest still lists.
#[test]
fn a_split_that_the_manifest_lost_brings_nothing_back_from_a_run() {
    for is_sole in [true, false] {
        let keys = keys();
        let mut harness = sorted_range(1, few(sorted(Durability::Sync)), is_sole, &keys);
        harness.split(1, ring_at(0x80), 2, 3);
        for keys in keys.chunks(40) {
            harness.write(&keys[1], None);
            harness.write(&keys[2], Some(b"overwritten"));
        }
        let (disk, content) = close(harness);
        let manifest = disk.contents("manifest").unwrap();
        let mut older = manifest.clone();
        let last_number = |bytes: &[u8]| decode_all(bytes).map_or(0, |decoded| decoded.state.last_number.0);
        for &(at, _) in manifest_commits(&manifest).iter().rev() {
            if last_number(&older) < 3 {
                break;
            }
            older[at..].fill(0);
        }
        let runs = |bytes: &[u8]| decode_all(bytes).unwrap().state.runs;
        assert!(last_number(&older) == 1 && !runs(&older).is_empty() && runs(&older) == runs(&manifest));
        disk.put("manifest", &older);
        assert_same(&dump(&disk), &content, "cut at the split");
    }
}

//! Corruption of any bit of a store: it is detected, located, and never reported as a missing key.
use crate::support::{TestNode, TestWrite, frames, manifest_commits, scanned};
use fawn_ds::internals::{EngineError, OpenError, Options, View};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::checksum::checksum64;
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

const KEYS: u32 = 320;

fn value(i: u32) -> Vec<u8> {
    vec![(i % 251) as u8 + 1; 300 + (i % 50) as usize]
}

/// Several segments, the last one with many frames, after a clean shutdown or a power loss.
fn store(is_clean: bool, seed: u64) -> SimDisk {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    for i in 0..KEYS {
        node.append(&[TestWrite { key: i.to_be_bytes().to_vec(), value: Some(value(i)), expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    if is_clean {
        drop(node.engine.close().unwrap());
    } else {
        disk.crash(seed);
    }
    disk
}

fn open(disk: &SimDisk) -> Result<TestNode, OpenError> {
    TestNode::open(disk, scanned(Durability::Sync), Now::at(2))
}

fn read_only(disk: &SimDisk) -> Result<TestNode, OpenError> {
    TestNode::open(disk, Options { read_only: true, ..scanned(Durability::Sync) }, Now::at(2))
}

fn contents(disk: &SimDisk) -> Vec<(String, Option<Vec<u8>>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name))).collect()
}

/// A name and an offset for each region of a segment with data, except the last frame, which no later frame certifies.
fn regions(bytes: &[u8], rng: &mut Rng) -> Vec<(&'static str, usize)> {
    let mut regions = vec![("segment header", rng.below(64) as usize), ("its checksum", 504 + rng.below(8) as usize)];
    let frames = frames(bytes);
    let Some((_, certified)) = frames.split_last() else { return Vec::new() };
    for _ in 0..6 {
        let Some(&(at, _)) = certified.get(rng.below(certified.len().max(1) as u64) as usize) else { return regions };
        regions.extend([
            ("frame header", at + rng.below(64) as usize),
            ("record header", at + 64 + rng.below(24) as usize),
            ("key", at + 64 + 24 + rng.below(4) as usize),
            ("value", at + 64 + 28 + rng.below(300) as usize),
        ]);
    }
    regions
}

#[test]
fn a_flipped_bit_anywhere_below_the_watermark_is_refused_and_named() {
    let mut flipped = 0;
    for seed in 0..4 {
        let disk = store(seed % 2 == 0, seed);
        let mut rng = Rng::new(seed);
        for (name, bytes) in contents(&disk) {
            if !name.starts_with("segment-") {
                continue;
            }
            for (region, offset) in regions(&bytes.unwrap_or_default(), &mut rng) {
                let disk = disk.image(Loss::Process, 0);
                disk.flip_bits(&name, offset as u64, 1 << rng.below(8));
                let context = format!("seed {seed}, {region}, {name} at {offset} (… --test it damage::)");
                refused_and_named(&disk, &name, offset, &context);
                flipped += 1;
            }
        }
    }
    assert!(flipped > 100, "only {flipped} places");
}

fn refused_and_named(disk: &SimDisk, name: &str, offset: usize, context: &str) {
    let before = contents(disk);
    match open(disk).err() {
        Some(OpenError::Corrupt { file, from_bytes, to_bytes, .. }) => {
            assert_eq!(file, name, "{context}");
            let around = from_bytes as usize <= offset && offset < to_bytes as usize;
            assert!(around || offset < 4096, "{context}: {from_bytes}..{to_bytes}");
        }
        error => panic!("{context}: {error:?}"),
    }
    let text = open(disk).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("read-only") && text.contains("fawn check"), "{context}: {text}");
    assert_eq!(contents(disk), before, "{context}: a failed opening changes nothing");
    let mut node = match read_only(disk) {
        Ok(node) => node,
        // Without its header, no byte of a segment is trusted.
        Err(OpenError::Corrupt { .. }) if offset < 4096 => return,
        Err(error) => panic!("{context}: {error}"),
    };
    assert_eq!(node.report.damage.len(), 1, "{context}: {:?}", node.report.damage);
    assert_eq!(node.report.damage[0].file, name, "{context}");
    let mut lost = 0;
    for i in 0..KEYS {
        match node.get(&i.to_be_bytes(), View::Committed) {
            Ok(Some(entry)) => assert_eq!(entry.value, value(i), "{context}: key {i}"),
            Ok(None) => panic!("{context}: key {i} is reported as absent"),
            Err(EngineError::Corrupt { .. }) => lost += 1,
            Err(error) => panic!("{context}: {error}"),
        }
    }
    assert!(lost > 0 && lost < KEYS, "{context}: {lost} of {KEYS} keys lost");
    drop(node);
    assert_eq!(contents(disk), before, "{context}: reading changes nothing");
}

#[test]
fn a_flipped_bit_in_the_manifest_is_refused_and_named() {
    let disk = store(true, 7);
    let manifest = disk.contents("manifest").unwrap();
    let commits = manifest_commits(&manifest);
    let (last, _) = *commits.last().unwrap();
    let mut rng = Rng::new(7);
    for i in 0..200 {
        // No later commit certifies the last one: see tail_lost.
        let offset = if i % 4 == 0 { rng.below(512) } else { 512 + rng.below(last as u64 - 512) };
        let disk = disk.image(Loss::Process, 0);
        disk.flip_bits("manifest", offset, 1 << rng.below(8));
        let before = contents(&disk);
        for error in [open(&disk).err(), read_only(&disk).err()] {
            let Some(OpenError::Manifest { file, detail }) = &error else { panic!("byte {offset}: {error:?}") };
            assert_eq!(file, "manifest");
            assert!(detail.contains("byte") || detail.contains("manifest header"), "byte {offset}: {detail}");
            assert!(error.is_some_and(|error| error.to_string().contains("restore")));
        }
        assert_eq!(contents(&disk), before, "byte {offset}: a failed opening changes nothing");
    }
}

/// A store with an empty cache.
fn cold() -> (SimDisk, TestNode) {
    let disk = store(true, 9);
    let node = open(&disk).unwrap();
    (disk, node)
}

fn place_of(disk: &SimDisk, i: u32) -> (String, u64) {
    let needle = [&i.to_be_bytes()[..], &value(i)].concat();
    for (name, bytes) in contents(disk) {
        let bytes = bytes.unwrap_or_default();
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            return (name, at as u64);
        }
    }
    panic!("key {i} was not found")
}

#[test]
fn a_damaged_record_is_an_error_and_never_a_miss() {
    let (disk, mut node) = cold();
    for i in (0..KEYS).step_by(7) {
        // The reopened store has no page near the record in memory.
        drop(node);
        node = open(&disk).unwrap();
        let (name, key_at) = place_of(&disk, i);
        // Offsets in the record's lengths, version, key and value.
        let at = key_at - 20 + [0, 4, 8, 20, 24, 100][i as usize % 6];
        disk.flip_bits(&name, at, 4);
        match node.get(&i.to_be_bytes(), View::Committed) {
            Err(EngineError::Corrupt { file, offset_bytes, .. }) => {
                assert_eq!(file, name);
                assert_eq!(u64::from(offset_bytes), key_at - 24, "key {i}: where its record starts");
            }
            other => panic!("key {i}: {other:?}"),
        }
        disk.flip_bits(&name, at, 4);
        let entry = node.get(&i.to_be_bytes(), View::Committed).unwrap();
        assert_eq!(entry.map(|entry| entry.value), Some(value(i)), "key {i}: the corruption is not remembered");
    }
    assert!(node.engine.poisoned().is_none(), "reads and writes continue");
}

#[test]
fn a_misdirected_or_failed_read_is_an_error_and_does_not_poison() {
    let (disk, mut node) = cold();
    let mut corrupt = 0;
    let others: Vec<String> = disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect();
    for i in (0..KEYS).step_by(40) {
        drop(node);
        node = open(&disk).unwrap();
        let (home, key_at) = place_of(&disk, i);
        let elsewhere = others.iter().find(|name| **name != home).cloned();
        let offset = key_at / 4096 * 4096;
        let faults = [
            DeviceFault::Fail,
            DeviceFault::Misdirect { name: None, offset: if offset == 4096 { 8192 } else { 4096 } },
            DeviceFault::Misdirect { name: elsewhere, offset },
        ];
        let fault = faults[(i / 40) as usize % 3].clone();
        let is_failed = fault == DeviceFault::Fail;
        disk.fail_nth(OpKind::Read, 1, fault);
        match node.get(&i.to_be_bytes(), View::Committed) {
            Err(EngineError::Device(_)) if is_failed => {}
            Err(EngineError::Corrupt { .. }) if !is_failed => corrupt += 1,
            // The misread bytes looked like the start of a longer record, so the record was read again.
            Ok(Some(entry)) if !is_failed && entry.value == value(i) => {}
            other => panic!("key {i}: {other:?}"),
        }
        let entry = node.get(&i.to_be_bytes(), View::Committed).unwrap();
        assert_eq!(entry.map(|entry| entry.value), Some(value(i)), "key {i}: only one read was wrong");
    }
    assert!(corrupt > 0, "no misdirected read was found");
    assert!(node.engine.poisoned().is_none());
    node.append(&[TestWrite { key: b"new".to_vec(), value: Some(vec![]), expires_at_ms: 0 }]).unwrap();
    node.settle();
}

#[test]
fn a_newer_format_asks_for_an_upgrade_and_an_older_one_for_a_new_store() {
    let disk = store(true, 11);
    for name in disk.names().into_iter().filter(|name| name != "manifest.spare") {
        for (format, expected) in [(3, "newer fawn"), (1, "create a new store")] {
            let mut bytes = disk.contents(&name).unwrap();
            let disk = disk.image(Loss::Process, 0);
            bytes[8] = format;
            let checksum = checksum64(&bytes[..504]);
            bytes[504..512].copy_from_slice(&checksum.to_le_bytes());
            disk.put(&name, &bytes);
            let text = open(&disk).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(expected) && text.contains(&name), "{name}: {text}");
        }
    }
}

#[test]
fn a_directory_in_use_is_refused() {
    let (disk, node) = cold();
    let text = open(&disk).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("in use") || text.contains("lock"), "{text}");
    drop(node);
    assert!(open(&disk).is_ok());
}

#[test]
fn segments_without_a_manifest_never_become_an_empty_store() {
    let whole = store(true, 13);
    let manifest = whole.contents("manifest").unwrap();
    for broken in [None, Some(&[][..]), Some(&[0; 4096][..]), Some(&manifest[..300]), Some(&manifest[..512])] {
        let disk = SimDisk::new(SimOptions::default());
        for name in whole.names().into_iter().filter(|name| name.starts_with("segment-")) {
            disk.put(&name, &whole.contents(&name).unwrap());
        }
        if let Some(bytes) = broken {
            disk.put("manifest", bytes);
        }
        let before = contents(&disk);
        for error in [open(&disk).err(), read_only(&disk).err()] {
            assert!(matches!(&error, Some(OpenError::Manifest { .. })), "{broken:?}: {error:?}");
        }
        assert_eq!(contents(&disk), before, "{broken:?}");
    }
}

#[test]
fn a_missing_segment_is_refused_by_name() {
    let whole = store(true, 15);
    for gone in whole.names().into_iter().filter(|name| name.starts_with("segment-")) {
        let disk = SimDisk::new(SimOptions::default());
        for name in whole.names().into_iter().filter(|name| *name != gone) {
            disk.put(&name, &whole.contents(&name).unwrap());
        }
        let error = open(&disk).err();
        assert!(matches!(&error, Some(OpenError::FileMissing { file }) if *file == gone), "{error:?}");
    }
}

//! Dumps of damaged stores with clears and rollbacks: what these removed stays away, and nothing else.
use crate::salvage::{Content, dump, put, records, segments};
use crate::support::{RANGE, TestNode, TestWrite, frames, manifest_commits, scanned, small};
use fawn_ds::internals::Options;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::record::{RecordKind, Stored};
use fawn_ds::internals::format::segment::{self, StreamKind};
use fawn_ds::internals::format::walk::{RecordWalk, WalkInput};
use fawn_flash::{Device, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeSet;

const KEYS: u32 = 400;

/// The version up to which the manifest lists the range as cleared; `None`: nothing is left of the manifest.
fn listed_clear(manifest: &[u8]) -> Option<Version> {
    decode_all(manifest).ok()?.state.ranges.get(&RANGE).map(|range| range.cleared)
}

/// Keys with puts in this stream above the version, and whether the stream has the record of that clear.
fn keys_behind(disk: &SimDisk, clear: Version, stream: StreamKind) -> (BTreeSet<Vec<u8>>, bool) {
    let (mut keys, mut has_clear) = (BTreeSet::new(), false);
    for file in segments(disk) {
        let bytes = disk.contents(&file).unwrap();
        let Some(header) = segment::decode(&bytes).ok().filter(|header| header.stream == stream) else { continue };
        let mut visit = |_: u32, stored: &Stored<'_>| {
            let record = &stored.record;
            has_clear |= record.kind == RecordKind::Clear && record.version == clear;
            if record.kind == RecordKind::Put && record.version > clear {
                keys.insert(record.key.to_vec());
            }
        };
        let mut walk = RecordWalk::new(WalkInput { uuid: header.uuid, end: bytes.len() as u32, written: 4096 });
        walk.push(&bytes[4096..], &mut visit);
        walk.finish(&mut visit);
    }
    (keys, has_clear)
}

/// A store with a listed clear, whose record is still there, and with keys behind it that only survivors have. Returns its
/// content and the clear's version.
fn cleared_and_cleaned() -> (SimDisk, Content, Version) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { space_amplification_max_percent: 130, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    let is_begun = |file: &String| !frames(&disk.contents(file).unwrap()).is_empty();
    let begun = || segments(&disk).iter().filter(|file| is_begun(file)).count();
    // Cleaning leaves the segment of the clear alone: hardly anything in it is from before.
    let mut before = 0;
    while before < 2 || begun() == before {
        before = begun();
        node.append(&[put(0, &[1; 900])]).unwrap();
        node.settle();
    }
    let clear = node.next_version();
    node.engine.clear(RANGE, clear).unwrap();
    node.settle();
    while listed_clear(&disk.contents("manifest").unwrap()) != Some(clear) {
        node.turn();
    }
    let mut content = Content::new();
    let mut write = |node: &mut TestNode, key: u32, value: u32| {
        let write = put(key, &value.to_be_bytes().repeat(225));
        node.append(core::slice::from_ref(&write)).unwrap();
        node.turn();
        node.now = node.now.plus_ms(5);
        content.insert(write.key, write.value.unwrap());
    };
    (0..KEYS).for_each(|key| write(&mut node, key, key));
    for round in 1..100 {
        (KEYS / 4..KEYS).step_by(2).for_each(|key| write(&mut node, key, round * KEYS + key));
        let (foreground, has_clear) = keys_behind(&disk, clear, StreamKind::Foreground);
        assert!(has_clear, "round {round}: {:?}", node.engine);
        if foreground.len() < KEYS as usize {
            node.settle();
            drop(node.engine.close().unwrap());
            return (disk, content, clear);
        }
    }
    panic!("no key is in survivors alone: {:?}", node.engine);
}

/// Survivors are read before the clear, and have no order of versions.
#[test]
fn a_clear_that_the_manifest_lost_removes_no_survivor_behind_it() {
    let (disk, content, clear) = cleared_and_cleaned();
    let (foreground, has_clear) = keys_behind(&disk, clear, StreamKind::Foreground);
    assert!(has_clear && foreground.len() < content.len() && content.len() == KEYS as usize);
    assert!(dump(&disk).content == content, "a sound store");
    let manifest = disk.contents("manifest").unwrap();
    let mut unlisted = 0;
    for (at, _) in manifest_commits(&manifest) {
        let mut older = manifest.clone();
        older[at..].fill(0);
        unlisted += u32::from(listed_clear(&older).is_some_and(|listed| listed < clear));
        disk.put("manifest", &older);
        let dumped = dump(&disk).content;
        assert!(dumped == content, "cut at {at}: {} of {} keys", dumped.len(), content.len());
    }
    assert!(unlisted > 2, "{unlisted} manifests do not list the clear");
    SimDevice::attach(&disk).unlink("manifest").unwrap();
    let dumped = dump(&disk).content;
    assert!(dumped == content, "no manifest: {} of {} keys", dumped.len(), content.len());
}

/// A member of a chain that has rolled back deletes of five keys, or a clear. Returns the content.
fn rolled_back(is_clear: bool) -> (SimDisk, Content) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    let mut content = Content::new();
    for key in 0..20 {
        node.append(&[put(key, b"first")]).unwrap();
        content.insert(key.to_be_bytes().to_vec(), b"first".to_vec());
    }
    node.settle();
    let committed = node.engine.progress(RANGE).committed;
    let removed = node.next_version();
    match is_clear {
        true => node.engine.clear(RANGE, removed).unwrap(),
        false => {
            let delete = |key| TestWrite { value: None, ..put(key, b"") };
            node.put_once(&delete(0), removed).unwrap();
            for key in 1..5 {
                node.append(&[delete(key)]).unwrap();
            }
        }
    }
    while node.engine.progress(RANGE).synced < node.engine.progress(RANGE).appended {
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
    }
    node.engine.rollback(RANGE, committed).unwrap();
    // The rest of the chain may have another record of that version.
    node.put_once(&put(9, b"again"), removed).unwrap();
    content.insert(9u32.to_be_bytes().to_vec(), b"again".to_vec());
    for key in 20..40 {
        node.append(&[put(key, b"second")]).unwrap();
        content.insert(key.to_be_bytes().to_vec(), b"second".to_vec());
    }
    node.settle();
    drop(node.engine.close().unwrap());
    (disk, content)
}

#[test]
fn what_was_rolled_back_removes_nothing_from_a_damaged_store() {
    for is_clear in [false, true] {
        let (disk, content) = rolled_back(is_clear);
        assert!(dump(&disk).content == content, "a sound store");
        let hit = records(&disk).into_iter().find(|record| record.key == 30u32.to_be_bytes()).unwrap();
        disk.flip_bits(&hit.file, hit.bytes.end - 1, 1);
        let dumped = dump(&disk);
        let mut expected = content.clone();
        expected.remove(&hit.key);
        assert!(dumped.content == expected, "clear {is_clear}: {} of {} keys", dumped.content.len(), expected.len());
        let lost: Option<u64> = dumped.report.lost.iter().map(|part| part.records).sum();
        assert_eq!(lost, Some(1), "{:?}", dumped.report);
        disk.flip_bits(&hit.file, hit.bytes.end - 1, 1);
        SimDevice::attach(&disk).unlink("manifest").unwrap();
        let left = dump(&disk).content;
        assert!(left == content, "clear {is_clear}, no manifest: {} of {} keys", left.len(), content.len());
    }
}

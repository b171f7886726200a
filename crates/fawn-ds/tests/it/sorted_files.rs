//! Files of the sorted tier: checks, dumps, damage, and what is counted of a store with runs.
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::check::{Severity, check};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::{checkpoint, run};
use fawn_ds::internals::{EngineError, Options, RecordLayout, View, open_for_salvage};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeMap;

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn put(node: &mut TestNode, key: &[u8], value: Option<&[u8]>) {
    let write = TestWrite { key: key.to_vec(), value: value.map(<[u8]>::to_vec), expires_at_ms: 0 };
    node.append(&[write]).unwrap();
}

/// Lets sorts and merges go on until there are none.
pub(crate) fn sort_out(node: &mut TestNode) {
    let (mut last, mut calm) = ((u64::MAX, 0), 0);
    for _ in 0..4_000 {
        node.engine.step(64);
        node.settle();
        let stats = node.engine.stats();
        let now = (stats.runs_listed, stats.sort_bytes);
        // Searches are repeated within a second, as long as something holds up what they find.
        calm = if now == last && !node.engine.is_sorting() { calm + 1 } else { 0 };
        if calm > 55 {
            return;
        }
        last = now;
        node.now = node.now.plus_ms(20);
    }
    panic!("sorting does not end: {:?}", node.engine);
}

/// A closed store with runs, part of its keys overwritten or deleted since they were sorted.
pub(crate) fn store(seed: u64) -> (SimDisk, Content) {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(1_000)).unwrap();
    let (mut rng, mut content) = (Rng::new(seed), Content::new());
    for i in 0..4_000u64 {
        let key = format!("key-{:05}", rng.below(1_500)).into_bytes();
        let len = if rng.below(30) == 0 { 2_000 } else { 100 + rng.below(200) };
        let value = (rng.below(6) > 0).then(|| (0..len).map(|at| (i + at) as u8).collect::<Vec<u8>>());
        put(&mut node, &key, value.as_deref());
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
        if i % 64 == 0 {
            node.settle();
        }
    }
    node.settle();
    assert!(node.engine.runs() >= 1, "{:?}", node.engine);
    node.engine.close().unwrap();
    (disk, content)
}

pub(crate) fn runs(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| run::is_file_name(name)).collect()
}

#[test]
fn a_store_with_runs_is_sound_and_dumps_every_key_once() {
    for seed in 0..4 {
        let (disk, content) = store(seed);
        let report = check(&mut SimDevice::attach(&disk)).unwrap();
        assert_eq!(report.findings, [], "seed {seed}");
        let options = Options { secret: None, ..sorted(Durability::Sync) };
        let (mut engine, found) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &options, Now::at(9_000)).unwrap();
        assert!(!found.is_damaged());
        let mut dumped = Content::new();
        let report = engine.dump(|_, record| {
            let before = dumped.insert(record.key.to_vec(), record.value.to_vec());
            assert_eq!(before, None, "seed {seed}: each key is visited once");
            Ok::<_, ()>(())
        });
        assert_eq!(report.unwrap().lost, []);
        assert!(dumped == content, "seed {seed}: {} of {} keys", dumped.len(), content.len());
    }
}

#[test]
fn a_flipped_bit_in_a_run_is_found_and_never_read_as_an_absence() {
    let (disk, content) = store(7);
    let mut refused = 0;
    for name in runs(&disk) {
        let len = disk.contents(&name).unwrap().len() as u64;
        for page in (1..len / 4096 - 1).step_by(3) {
            disk.flip_bits(&name, page * 4096 + 99, 1);
            let report = check(&mut SimDevice::attach(&disk)).unwrap();
            let damage = report.findings.iter().find(|finding| finding.severity == Severity::Damage).unwrap();
            assert_eq!(damage.file, name, "{report:?}");
            let image = disk.image(fawn_flash::sim::Loss::Process, page);
            // The tail is read at an opening, which refuses it.
            if let Ok(mut node) = TestNode::open(&image, sorted(Durability::Sync), Now::at(9_000)) {
                for (key, value) in &content {
                    match node.get(key, View::Committed) {
                        Ok(found) => assert_eq!(found.map(|entry| entry.value).as_ref(), Some(value)),
                        Err(EngineError::Corrupt { file, .. }) => {
                            assert_eq!(file, name);
                            refused += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            disk.flip_bits(&name, page * 4096 + 99, 1);
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn a_missing_or_foreign_run_is_refused_and_an_unlisted_one_removed() {
    let (disk, content) = store(8);
    let orphan = run::file_name(fawn_ds::internals::format::SegmentUuid([9; 16]));
    disk.put(&orphan, &disk.contents(&runs(&disk)[0]).unwrap());
    let findings = check(&mut SimDevice::attach(&disk)).unwrap().findings;
    assert!(findings.len() == 1 && findings[0].severity == Severity::Note, "{findings:?}");
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(9_000)).unwrap();
    assert_eq!(node.report.orphans_removed, [orphan]);
    let (key, value) = content.iter().next().unwrap();
    assert_eq!(node.get(key, View::Committed).unwrap().map(|entry| entry.value).as_ref(), Some(value));
    node.engine.close().unwrap();
    // The file of a run that the close cut short may be there, too.
    let listed = decode_all(&disk.contents("manifest").unwrap()).unwrap().state.runs;
    assert!(!listed.is_empty());
    for name in listed.iter().map(|entry| run::file_name(entry.uuid)) {
        let image = disk.image(fawn_flash::sim::Loss::Process, 1);
        let other = runs(&disk).into_iter().find(|other| *other != name);
        image.put(&name, &other.map_or(Vec::new(), |other| disk.contents(&other).unwrap()));
        assert!(TestNode::open(&image, sorted(Durability::Sync), Now::at(9_000)).is_err(), "{name}");
        assert!(!check(&mut SimDevice::attach(&image)).unwrap().is_sound());
    }
}

#[test]
fn a_read_that_fails_ends_a_merge_and_no_write_is_lost() {
    let (disk, content) = store(9);
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(9_000)).unwrap();
    disk.fail_every(OpKind::Read, fawn_flash::sim::DeviceFault::Fail);
    for i in 0..1_500u64 {
        put(&mut node, format!("new-{i:05}").as_bytes(), Some(&[1; 250]));
        node.turn();
        node.now = node.now.plus_ms(10);
    }
    disk.end_faults(OpKind::Read);
    assert_eq!(node.engine.poisoned(), None);
    node.now = node.now.plus_ms(60_000);
    sort_out(&mut node);
    for (key, value) in &content {
        assert_eq!(node.get(key, View::Committed).unwrap().map(|entry| entry.value).as_ref(), Some(value));
    }
    for i in 0..1_500u64 {
        assert!(node.get(format!("new-{i:05}").as_bytes(), View::Committed).unwrap().is_some());
    }
}

/// 290 B records, as in the arithmetic of the design.
const COUNTED_KEYS: u64 = 40_000;

#[test]
fn a_sorted_store_takes_little_memory_and_one_read_a_hit() {
    let disk = SimDisk::new(SimOptions::default());
    let options = Options { segment_bytes: 256 << 10, sort_bytes: 512 << 10, ..sorted(Durability::Memory) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let key = |i: u64| format!("{:016x}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
    for i in 0..COUNTED_KEYS {
        put(&mut node, &key(i), Some(&[i as u8; 256]));
        if i % 32 == 0 {
            node.turn();
        }
    }
    sort_out(&mut node);
    let index_bytes = node.engine.memory().index_bytes as f64 / COUNTED_KEYS as f64;
    let mut rng = Rng::new(1);
    let mut reads_of = |node: &mut TestNode, prefix: &str| {
        let before = node.engine.stats().reads;
        for _ in 0..4_000 {
            let mut key = key(rng.below(COUNTED_KEYS));
            key.splice(0..0, prefix.bytes());
            assert_eq!(node.get(&key, View::Committed).unwrap().is_some(), prefix.is_empty());
        }
        (node.engine.stats().reads - before) as f64 / 4_000.0
    };
    let (hit, miss) = (reads_of(&mut node, ""), reads_of(&mut node, "absent"));
    let stats = node.engine.device().stats();
    let written: u64 = IoClass::ALL.iter().map(|&class| stats.of(class).written_bytes).sum();
    let amplification = written as f64 / node.engine.stats().user_bytes as f64;
    println!(
        "{index_bytes:.2} B a key, {hit:.3} reads a hit, {miss:.3} a miss, {amplification:.2} written, {} runs",
        node.engine.runs()
    );
    // At this size the unsorted end of the log weighs more than the runs: 1.2 B of 8-bit filters and fences a key.
    assert!(index_bytes < 3.2 && hit < 1.02 && miss < 0.15, "{index_bytes} {hit} {miss}");
}

#[test]
fn sorting_begins_over_half_of_the_budget_and_ends_below_two_fifths() {
    let disk = SimDisk::new(SimOptions::default());
    let options = Options {
        layout: RecordLayout::Auto,
        memory_bytes: 1 << 20,
        sort_bytes: 192 << 10,
        ..sorted(Durability::Memory)
    };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let mut began_at = None;
    for i in 0..120_000u64 {
        put(&mut node, format!("key-{i:06}").as_bytes(), Some(&[7; 20]));
        if i % 64 == 0 {
            node.turn();
            let memory = node.engine.memory();
            if began_at.is_none() && node.engine.is_sorting() {
                began_at = Some(memory.index_bytes);
            }
            assert!(memory.index_bytes < (1 << 20) * 9 / 10, "{i}: {memory:?}");
        }
    }
    let began_at = began_at.unwrap();
    assert!(began_at >= 1 << 19, "sorting began at {began_at} B");
    for i in (0..120_000u64).step_by(997) {
        assert!(node.get(format!("key-{i:06}").as_bytes(), View::Committed).unwrap().is_some(), "{i}");
    }
}

/// As segments: otherwise each merge whose unlinks are refused would leave its runs until the next opening.
#[test]
fn runs_and_checkpoints_whose_unlinks_were_refused_are_unlinked_later() {
    let disk = SimDisk::new(SimOptions { seed: 31, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(1_000)).unwrap();
    disk.fail_every(OpKind::Unlink, DeviceFault::Exhausted);
    for i in 0..6_000u64 {
        put(&mut node, format!("key-{:05}", i * 7 % 1_500).as_bytes(), Some(&[i as u8; 200]));
        if i % 64 == 0 {
            node.settle();
        }
    }
    sort_out(&mut node);
    let checkpoints = || disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).count();
    let cleaned = node.engine.stats().segments_cleaned;
    assert!(runs(&disk).len() > node.engine.runs() + 2 && checkpoints() > 3, "{:?}", disk.names());
    disk.end_faults(OpKind::Unlink);
    for _ in 0..40 {
        node.now = node.now.plus_ms(10);
        node.turn();
    }
    assert_eq!(runs(&disk).len(), node.engine.runs());
    assert!(checkpoints() <= 3, "{:?}", disk.names());
    assert_eq!(node.engine.stats().segments_cleaned, cleaned, "nothing is cleaned for what waits for its unlink");
}

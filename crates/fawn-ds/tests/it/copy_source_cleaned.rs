//! Cleaning of a store that sends a copy of its range: of overwritten, deleted and expired records, and over losses of power.
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use fawn_ds::internals::{Options, TransferPlace, TransferScan, TransferStep, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeMap;

const KEYS: u64 = 1_200;
/// Reads of the copy between two losses of power.
const READS: usize = 120;

fn key(i: u64) -> Vec<u8> {
    format!("key {i:04}").into_bytes()
}

/// The change of a key while the copy is sent.
fn is_overwritten(i: u64) -> bool {
    i.is_multiple_of(8)
}

fn is_deleted(i: u64) -> bool {
    i % 8 == 2
}

/// The key has an older record that does not expire.
fn is_expiring(i: u64) -> bool {
    i % 8 == 3
}

/// A store, and the version of each key's newest record that is no delete.
struct Source {
    disk: SimDisk,
    node: TestNode,
    newest: BTreeMap<Vec<u8>, Version>,
    moved: u64,
    cleaned: u64,
    crashes: u64,
}

/// Openings scan all of the log: what nothing hides any more would be back.
fn options() -> Options {
    Options { space_amplification_max_percent: 130, ..scanned(Durability::Sync) }
}

impl Source {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
        Self { disk, node, newest: BTreeMap::new(), moved: 0, cleaned: 0, crashes: 0 }
    }

    /// Writes, or deletes without a length, and waits until that is committed.
    fn write(&mut self, key: Vec<u8>, value_bytes: Option<usize>, expires_at_ms: u64) {
        let value = value_bytes.map(|len| vec![key[7]; len]);
        let version = self.node.append(&[TestWrite { key: key.clone(), value, expires_at_ms }]).unwrap();
        match value_bytes {
            Some(_) => self.newest.insert(key, version),
            None => self.newest.remove(&key),
        };
        while self.node.engine.progress(RANGE).committed < version {
            self.node.turn();
        }
        self.node.now = self.node.now.plus_ms(20);
    }

    fn note_stats(&mut self) {
        let stats = self.node.engine.stats();
        (self.moved, self.cleaned) = (self.moved + stats.moved_records, self.cleaned + stats.segments_cleaned);
    }

    fn lose_power(&mut self) {
        self.note_stats();
        self.crashes += 1;
        self.disk.crash(self.crashes);
        self.node = TestNode::open(&self.disk, options(), self.node.now).unwrap();
    }

    /// Compares what lookups find with the keys that are left.
    fn check(&mut self, context: &str) {
        for i in 0..KEYS {
            let found = self.node.get(&key(i), View::Committed).unwrap().map(|entry| entry.version);
            let expected = self.newest.get(&key(i)).copied().filter(|_| !is_expiring(i));
            assert_eq!(found, expected, "{context}: key {i}");
        }
    }
}

/// Sends a copy as of `base`, while the source changes with each read. Returns what was sent.
fn copy(source: &mut Source, base: Version, rng: &mut Rng) -> BTreeMap<Vec<u8>, Version> {
    let (mut next, mut reads, mut sent) = (Some(TransferPlace::START), 0, BTreeMap::new());
    while let Some(place) = next {
        let mut scan = TransferScan::new(RANGE, place, base, 4 << 10);
        loop {
            let step = source.node.engine.transfer_step(&mut scan, |record| {
                let newest = source.newest.get(record.key).copied();
                let name = String::from_utf8_lossy(record.key);
                assert_eq!(newest, Some(record.version), "{name}: another record is the newest");
                sent.insert(record.key.to_vec(), record.version);
            });
            let plan = match step.unwrap() {
                TransferStep::Chunk { next: of_next, .. } => {
                    next = of_next;
                    break;
                }
                TransferStep::Read(plan) => plan,
            };
            reads += 1;
            if reads % READS == 0 {
                drop(plan);
                source.lose_power();
                break;
            }
            let i = rng.below(KEYS);
            if is_overwritten(i) {
                source.write(key(i), Some(300), 0);
            } else if is_deleted(i) {
                source.write(key(i), None, 0);
            } else {
                source.write(format!("another key {}", i % 64).into_bytes(), Some(300), 0);
            }
            source.node.engine.read(plan, 42);
            let plan = source.node.wait_for_plan();
            source.node.engine.absorb(plan).unwrap();
        }
    }
    sent
}

/// A chunk has the newest records at the time that it is sent: an older one, or one of a deleted key, would stay at the receiver.
#[test]
fn a_copy_of_a_source_that_is_cleaned_and_loses_power_has_the_newest_records_only() {
    for seed in 0..3 {
        let mut source = Source::new(seed);
        (0..KEYS).for_each(|i| source.write(key(i), Some(300), 0));
        let expires_at_ms = source.node.now.wall.0 + 10_000;
        (0..KEYS).filter(|i| is_expiring(*i)).for_each(|i| source.write(key(i), Some(300), expires_at_ms));
        source.node.settle();
        let (base, before) = (source.node.engine.progress(RANGE).committed, source.newest.clone());
        let sent = copy(&mut source, base, &mut Rng::new(seed));
        source.note_stats();
        let Source { moved, cleaned, crashes, .. } = source;
        println!("{moved} records moved, {cleaned} segments cleaned, {crashes} crashes");
        assert!(moved > 300 && cleaned > 10 && crashes > 2, "{moved} moved, {cleaned} cleaned, {crashes} crashes");
        assert!(source.node.now.wall.0 > expires_at_ms, "records have expired");
        let deleted = before.keys().filter(|key| !source.newest.contains_key(*key)).count();
        assert!(deleted > 20, "{deleted} keys were deleted");
        for i in (0..KEYS).filter(|i| !is_expiring(*i)) {
            let unchanged = before.get(&key(i)).filter(|version| source.newest.get(&key(i)) == Some(*version));
            assert!(unchanged.is_none() || sent.get(&key(i)) == unchanged, "seed {seed}: key {i} is missing");
        }
        source.check("after the copy");
        source.lose_power();
        source.check("opened again");
    }
}

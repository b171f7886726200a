//! Key count: exact when no verification waits, else off by at most the number that wait.
use crate::sorted_files::{put, sort_out};
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, RecordLayout};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeSet;

const KEYS: u64 = 6000;

struct Counted {
    node: TestNode,
    keys: BTreeSet<u64>,
    waiting: Vec<(Version, u64, bool)>,
    /// Number of checks at which the count was too low.
    off: u64,
}

impl Counted {
    fn write(&mut self, rng: &mut Rng) {
        let (key, is_put) = (rng.below(KEYS), rng.below(4) > 0);
        let value = is_put.then(|| vec![key as u8; 100 + rng.below(400) as usize]);
        let write = TestWrite { key: format!("key {key}").into_bytes(), value, expires_at_ms: 0 };
        let version = self.node.append(&[write]).unwrap();
        self.waiting.push((version, key, is_put));
        self.check();
    }

    /// Committed records count. Each waiting verification may later add one key to the engine's count.
    fn check(&mut self) {
        let through = self.node.engine.progress(RANGE).committed;
        while self.waiting.first().is_some_and(|(version, ..)| *version <= through) {
            let (_, key, is_put) = self.waiting.remove(0);
            if is_put {
                self.keys.insert(key)
            } else {
                self.keys.remove(&key)
            };
        }
        let (found, exact) = (self.node.engine.len(RANGE), self.keys.len() as u64);
        let queued = self.node.engine.log_report().verifications_queued;
        assert!(
            found <= exact && exact <= found + queued,
            "{found} counted, {exact} present, {queued} verifications wait"
        );
        self.off += u64::from(found != exact);
    }

    /// Without further writes, a finite amount of work makes the count exact.
    fn rest(&mut self) {
        for _ in 0..KEYS {
            self.node.engine.step(16);
            self.node.turn();
            self.check();
            if self.waiting.is_empty() && self.node.engine.log_report().verifications_queued == 0 {
                let (found, exact) = (self.node.engine.len(RANGE), self.keys.len() as u64);
                assert_eq!(found, exact, "at rest");
                return;
            }
            self.node.now = self.node.now.plus_ms(100);
        }
        panic!("verifications do not end: {:?}", self.node.engine.log_report());
    }
}

#[test]
fn keys_are_counted_exactly_whenever_nothing_is_under_way() {
    let (mut off, mut reads) = (0, 0);
    // A new key is rarely taken for another key's version: several seeds, so that it happens in some.
    for seed in 1..=8 {
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][seed as usize % 3];
        println!("seed {seed}: cargo test -p fawn-ds --test it len::");
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let options = Options { capacity_bytes: None, ..small(durability) };
        let node = TestNode::open(&disk, options, Now::at(1)).unwrap();
        let mut counted = Counted { node, keys: BTreeSet::new(), waiting: Vec::new(), off: 0 };
        for _ in 0..60 {
            for _ in 0..1 + rng.below(300) {
                counted.write(&mut rng);
                if rng.below(20) == 0 {
                    counted.node.turn();
                    counted.check();
                }
            }
            counted.rest();
        }
        off += counted.off;
        reads += counted.node.engine.stats().verification_reads;
    }
    println!("{off} times behind, {reads} verification reads");
    assert!(off > 3 && reads > 100, "{off} times behind, {reads} verification reads: the bound was not tested");
}

/// A sorted key that is deleted counts until its run is merged with that of its delete, but not twice.
#[test]
fn deletes_in_a_run_do_not_count() {
    const SORTED_KEYS: u64 = 8_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let write_all = |layout, value: Option<&[u8]>| {
        let options = Options { layout, sort_bytes: 1, ..sorted(Durability::Sync) };
        let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
        for number in 0..SORTED_KEYS {
            put(&mut node, format!("key-{number}").as_bytes(), value);
        }
        node
    };
    let mut node = write_all(RecordLayout::Sorted, Some(&[1; 400]));
    sort_out(&mut node);
    let runs = node.engine.runs();
    node.engine.close().unwrap();
    // Segments with many deletes are sorted also in a store that sorts nothing else.
    let mut node = write_all(RecordLayout::Log, None);
    // No time passes: a rest would merge them.
    for _ in 0..5_000 {
        node.turn();
    }
    let stats = node.engine.stats();
    assert!(node.engine.runs() > runs && stats.sweep_parts == 0, "{runs}, now {}: {stats:?}", node.engine.runs());
    let len = node.engine.len(RANGE);
    // The deletes of the active segment are still in the log, where they do.
    assert!((SORTED_KEYS..SORTED_KEYS + 2_000).contains(&len), "{len} keys");
}

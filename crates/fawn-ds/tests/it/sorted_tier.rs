//! The sorted tier in the engine: random writes, sorts, merges, openings and crashes against a model.
use crate::crash::{CrashImageCounts, cold_keys_in, run_workload, workload};
use crate::model;
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, Options, RecordLayout, View};
use fawn_flash::sim::{Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeMap;

const KEYS: u64 = 600;

pub(crate) fn sorted(durability: Durability) -> Options {
    Options { layout: RecordLayout::Sorted, sort_bytes: 40 << 10, memory_bytes: 2 << 20, ..small(durability) }
}

/// [`sorted`] with runs so short that a merge with the oldest ones takes several parts.
pub(crate) fn swept(durability: Durability) -> Options {
    Options { run_bytes_max: 16 << 10, ..sorted(durability) }
}

struct Pair {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    model: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    jobs: u64,
    parts: u64,
}

impl Pair {
    fn new(seed: u64, options: Options) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        Self { disk, options, node, model: BTreeMap::new(), jobs: 0, parts: 0 }
    }

    fn write(&mut self, rng: &mut Rng) {
        let key = format!("key-{:04}", rng.below(KEYS)).into_bytes();
        let len = match rng.below(20) {
            0 => 1500 + rng.below(3000),
            _ => rng.below(400),
        };
        let value =
            (rng.below(5) > 0).then(|| (0..len).map(|i| (i * 7 + len + rng.below(9)) as u8).collect::<Vec<u8>>());
        self.node.append(&[TestWrite { key: key.clone(), value: value.clone(), expires_at_ms: 0 }]).unwrap();
        self.model.insert(key, value);
    }

    fn check(&mut self, number: u64) {
        let key = format!("key-{number:04}").into_bytes();
        let found = self.node.get(&key, View::Latest).unwrap().map(|entry| entry.value.to_vec());
        let expected = self.model.get(&key).cloned().flatten();
        let short = |value: &Option<Vec<u8>>| {
            value.as_ref().map(|value| (value.len(), value.iter().take(8).copied().collect::<Vec<u8>>()))
        };
        assert!(found == expected, "{number}: found {:?}, expected {:?}", short(&found), short(&expected));
    }

    fn reopen(&mut self, crash: Option<u64>) {
        self.node.settle();
        self.jobs += self.node.engine.stats().runs_listed;
        self.parts += self.node.engine.stats().sweep_parts;
        if let Some(seed) = crash {
            self.disk.kill(seed);
        } else {
            let disk = SimDisk::new(SimOptions::default());
            let spare = TestNode::open(&disk, self.options.clone(), self.node.now).unwrap();
            let node = std::mem::replace(&mut self.node, spare);
            node.engine.close().unwrap();
        }
        self.node = TestNode::open(&self.disk, self.options.clone(), self.node.now).unwrap();
    }
}

/// Returns the jobs, and parts of merges with the oldest runs.
fn run(seed: u64, options: Options, steps: u64) -> (u64, u64) {
    println!("seed {seed}: cargo test -p fawn-ds --test it sorted_tier:: -- --nocapture");
    let mut rng = Rng::new(seed);
    let mut pair = Pair::new(seed, options);
    for _ in 0..steps {
        match rng.below(100) {
            0..=59 => pair.write(&mut rng),
            60..=79 => {
                pair.node.turn();
            }
            80..=98 => pair.check(rng.below(KEYS)),
            _ if rng.below(4) == 0 => {
                let crash = (rng.below(2) == 0).then(|| rng.below(1 << 30));
                pair.reopen(crash);
            }
            _ => pair.node.settle(),
        }
    }
    pair.node.settle();
    (0..KEYS).for_each(|number| pair.check(number));
    pair.reopen(None);
    (0..KEYS).for_each(|number| pair.check(number));
    (pair.jobs, pair.parts)
}

#[test]
fn lookups_find_what_was_sorted() {
    let jobs: u64 = (0..20).map(|seed| run(seed, sorted(Durability::Sync), 4000).0).sum();
    assert!(jobs > 100, "{jobs} jobs");
}

#[test]
fn lookups_find_what_was_merged_in_parts() {
    let parts: u64 = (20..40).map(|seed| run(seed, swept(Durability::Sync), 4000).1).sum();
    assert!(parts > 100, "{parts} parts");
}

#[test]
fn every_image_around_parts_of_a_merge_has_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 300..303 {
        let options = Options { sort_bytes: 1, ..swept(Durability::Sync) };
        let mut run = cold_keys_in(seed, options);
        (run.stride, run.toggles_sorting) = (149, false);
        classes.add(run_workload(run, seed, Loss::Power, 9_000, (true, false)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 1000 && classes.sweep_parts >= 12, "{classes:?}");
}

/// Dead records in runs may take all of the space: merges must go on while nothing else can be written.
#[test]
fn a_store_with_runs_at_three_fifths_of_its_capacity_never_stays_full() {
    for seed in 0..4 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(
            &disk,
            Options { capacity_bytes: Some(2 << 20), ..sorted(Durability::Sync) },
            Now::at(1_000),
        )
        .unwrap();
        let mut rng = Rng::new(seed);
        let keys = (2 << 20) * 6 / 10 / 310;
        for step in 0..keys * 6 {
            let skewed = 1 + if seed % 2 == 0 { keys - 1 } else { rng.below(keys) };
            let key = if step < keys { step } else { rng.below(skewed) };
            let write = TestWrite { key: key_of(key), value: Some(vec![step as u8; 280]), expires_at_ms: 0 };
            for attempt in 0.. {
                match node.append(std::slice::from_ref(&write)) {
                    Ok(_) => break,
                    Err(EngineError::StoreFull) => {
                        assert!(attempt < 2000, "seed {seed}, write {step} of {}: {:?}", keys * 6, node.engine)
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                node.turn();
                node.now = node.now.plus_ms(10);
            }
            if step % 8 == 0 {
                node.turn();
            }
        }
        node.settle();
        assert!(node.engine.stats().sweep_parts > 100, "{:?}", node.engine.stats());
        for key in 0..keys {
            assert!(node.get(&key_of(key), View::Committed).unwrap().is_some(), "seed {seed}, key {key}");
        }
    }
}

#[test]
fn a_clear_gives_the_space_of_runs_back_although_the_store_is_full() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node =
        TestNode::open(&disk, Options { capacity_bytes: Some(2 << 20), ..sorted(Durability::Sync) }, Now::at(1_000))
            .unwrap();
    let (mut key, mut refused) = (0, 0);
    while refused < 1000 {
        let write = TestWrite { key: key_of(key), value: Some(vec![7; 280]), expires_at_ms: 0 };
        match node.append(&[write]) {
            Ok(_) => (key, refused) = (key + 1, 0),
            Err(_) => refused += 1,
        }
        node.turn();
        node.now = node.now.plus_ms(1);
    }
    assert!(node.engine.runs() > 0, "{:?}", node.engine);
    let version = node.next_version();
    node.engine.clear(RANGE, version).unwrap();
    node.settle();
    let reads = disk.counted(OpKind::Read);
    for _ in 0..2000 {
        node.turn();
        node.now = node.now.plus_ms(10);
    }
    assert_eq!(node.engine.runs(), 0, "{:?}", node.engine);
    assert_eq!(disk.counted(OpKind::Read), reads, "no run is read for that");
    for key in 0..1000 {
        node.append(&[TestWrite { key: key_of(key), value: Some(vec![8; 280]), expires_at_ms: 0 }]).unwrap();
        node.turn();
    }
}

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

#[test]
fn every_image_around_sorts_and_merges_has_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 0..4 {
        // Half of them without checkpoints.
        let checkpoint_log_bytes_min = if seed % 2 == 0 { u64::MAX } else { 16 << 10 };
        let options = Options { checkpoint_log_bytes_min, sort_bytes: 1, ..sorted(Durability::Sync) };
        classes.add(workload(seed, options.clone(), Loss::Power, 200, (true, false)));
        let run = cold_keys_in(seed, options);
        classes.add(run_workload(run, seed, Loss::Power, 200, (true, false)));
    }
    for seed in 10..18 {
        let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
        let mut run = cold_keys_in(seed, options);
        (run.stride, run.toggles_sorting) = (11, seed % 2 == 0);
        classes.add(run_workload(run, seed, Loss::Power, 1200, (true, false)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 4000 && classes.sorted >= 60, "{classes:?}");
}

#[test]
fn every_image_of_a_kill_keeps_what_was_flushed_or_sorted() {
    let mut classes = CrashImageCounts::default();
    for seed in 100..106 {
        let options = Options { sort_bytes: 1, ..sorted(Durability::EverySecond) };
        classes.add(run_workload(cold_keys_in(seed, options), seed, Loss::Process, 160, (true, false)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 500 && classes.sorted >= 10, "{classes:?}");
}

#[test]
fn power_loss_without_syncs_leaves_a_prefix_of_what_was_sorted() {
    for seed in 200..206 {
        for durability in [Durability::EverySecond, Durability::Memory] {
            let options = Options { sort_bytes: 1, ..sorted(durability) };
            run_workload(cold_keys_in(seed, options), seed, Loss::Power, 160, (false, false));
        }
    }
}

#[test]
fn every_image_around_a_full_device_with_runs_opens_with_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 64..68 {
        let loss = if seed % 2 == 0 { Loss::Power } else { Loss::Process };
        let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
        classes.add(run_workload(cold_keys_in(seed, options), seed, loss, 800, (true, true)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 1000 && classes.full >= 20 && classes.sorted > 0, "{classes:?}");
}

#[test]
fn behaves_like_the_model_with_runs() {
    for seed in 500..560 {
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][seed as usize % 3];
        let record_cache_bytes = (seed % 2 == 0).then_some(256 << 10);
        let layout = if seed % 4 < 2 { RecordLayout::Sorted } else { RecordLayout::Log };
        model::run(seed, Options { layout, sort_bytes: 1, record_cache_bytes, ..sorted(durability) }, 1500);
    }
}

#[test]
fn a_store_that_sorts_and_merges_for_long_keeps_every_key() {
    for seed in 0..6 {
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][seed as usize % 3];
        let mut run = cold_keys_in(seed, Options { sort_bytes: 1, ..sorted(durability) });
        run.keeps_history = false;
        let mut rng = Rng::new(seed);
        for step in 0..20_000u64 {
            run.step(&mut rng).unwrap();
            if step % 700 == 699 {
                run.reopen(step);
            }
            if step % 700 == 699 || step % 1_000 == 999 {
                run.check_live(&format!("seed {seed}, step {step}"));
            }
        }
        assert!(run.node.engine.runs() > 0, "{:?}", run.node.engine);
    }
}

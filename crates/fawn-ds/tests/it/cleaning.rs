//! Cleaning: write amplification in the steady state, a store that stays nearly full, and copies of what is moved.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, EngineStats, Options, TransferPlace, TransferScan, TransferStep, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeMap;

const SEGMENT_BYTES: u32 = 256 << 10;
const SEGMENTS: u64 = 256;
const CAPACITY_BYTES: u64 = SEGMENTS * SEGMENT_BYTES as u64;
const VALUE_BYTES: usize = 256;
/// A record of such a value in the log: header, key and padding.
const RECORD_BYTES: u64 = 304;

fn options() -> Options {
    let capacity_bytes = Some(CAPACITY_BYTES);
    Options { segment_bytes: SEGMENT_BYTES, memory_bytes: 64 << 20, capacity_bytes, ..small(Durability::EverySecond) }
}

fn open(disk: &SimDisk, options: Options) -> TestNode {
    TestNode::open(disk, options, Now::at(1_000_000)).unwrap()
}

fn write_of(key: u64, round: u64) -> TestWrite {
    let mut value = vec![(key ^ round) as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&round.to_le_bytes());
    TestWrite { key: format!("key-{key:012}").into_bytes(), value: Some(value), expires_at_ms: 0 }
}

/// Draws keys from a Zipf distribution by its inverse, approximated in steps of powers of two.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Self { cumulative }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let last = self.cumulative[self.cumulative.len() - 1];
        let at = (rng.next() >> 11) as f64 / (1u64 << 53) as f64 * last;
        let rank = self.cumulative.partition_point(|&sum| sum < at) as u64;
        // Neighbouring ranks lie in different segments. The factor is prime, so each key has one rank.
        rank * 2_147_483_647 % self.cumulative.len() as u64
    }
}

struct Steady {
    node: TestNode,
    rounds: Vec<u64>,
    puts: u64,
}

impl Steady {
    /// A store with this share of its capacity live.
    fn load(disk: &SimDisk, live_percent: u64) -> Self {
        let keys = CAPACITY_BYTES * live_percent / 100 / RECORD_BYTES;
        let mut steady = Self { node: open(disk, options()), rounds: vec![0; keys as usize], puts: 0 };
        (0..keys).for_each(|key| steady.put(key, 0));
        steady.node.settle();
        steady
    }

    fn put(&mut self, key: u64, round: u64) {
        if let Err(error) = self.node.append(&[write_of(key, round)]) {
            let engine = &self.node.engine;
            panic!("{error}: {:?} {:?} {:?}", engine.log_report(), engine.segments_kept(), engine.stats());
        }
        self.rounds[key as usize] = round;
        self.puts += 1;
        if self.puts.is_multiple_of(512) {
            self.node.turn();
            self.node.now = self.node.now.plus_ms(1);
        }
    }

    /// Overwrites keys until this many times the capacity was written; returns the counters of that time.
    fn overwrite(&mut self, seed: u64, capacities: u64, mut draw: impl FnMut(&mut Rng) -> u64) -> EngineStats {
        let mut rng = Rng::new(seed);
        let before = *self.node.engine.stats();
        for round in 1..=capacities * CAPACITY_BYTES / RECORD_BYTES {
            let key = draw(&mut rng);
            self.put(key, round);
        }
        let mut after = *self.node.engine.stats();
        after.written_bytes -= before.written_bytes;
        after.record_bytes -= before.record_bytes;
        after.moved_bytes -= before.moved_bytes;
        after.checkpoint_bytes -= before.checkpoint_bytes;
        after
    }

    fn check(&mut self) {
        for key in 0..self.rounds.len() as u64 {
            let write = write_of(key, self.rounds[key as usize]);
            let found = self.node.get(&write.key, View::Committed).unwrap();
            let round = found.as_ref().map(|entry| u64::from_le_bytes(entry.value[..8].try_into().unwrap()));
            assert_eq!(round, Some(self.rounds[key as usize]), "key {key}");
            assert_eq!(found.map(|entry| entry.value), write.value, "key {key}");
        }
    }
}

fn amplification(stats: &EngineStats) -> f64 {
    (stats.written_bytes + stats.checkpoint_bytes) as f64 / stats.record_bytes as f64
}

/// Write amplification of all causes at 70 % of the capacity live, after six times the capacity was written.
fn steady_amplification(exponent: f64) -> f64 {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut steady = Steady::load(&disk, 70);
    let zipf = Zipf::new(steady.rounds.len() as u64, exponent);
    steady.overwrite(1, 3, |rng| zipf.draw(rng));
    let stats = steady.overwrite(2, 3, |rng| zipf.draw(rng));
    let report = steady.node.engine.log_report();
    println!("{exponent}: {:.3}, {} segments, {stats:?}", amplification(&stats), report.segments);
    assert!(report.segment_bytes <= CAPACITY_BYTES, "{report:?}");
    steady.node.settle();
    steady.check();
    assert_eq!(steady.node.engine.len(RANGE), steady.rounds.len() as u64);
    disk.kill(1);
    steady.node = open(&disk, options());
    println!("{:?}", steady.node.report);
    assert!(steady.node.report.checkpoint_entries.is_some(), "{:?}", steady.node.report);
    steady.check();
    amplification(&stats)
}

// The design allows 2.1 for uniform keys and 2.0 for Zipf 0.99. Copies alone make 2.1 of uniform writes with 97 % of the capacity in
// use (`victim_choice`), and checkpoints add a tenth of all.

#[test]
fn uniform_overwrites_are_written_less_than_two_and_a_half_times() {
    let found = steady_amplification(0.0);
    assert!(found <= 2.45, "{found:.3}");
}

#[test]
fn overwrites_of_hot_keys_are_written_about_twice() {
    let found = steady_amplification(0.99);
    assert!(found <= 2.15, "{found:.3}");
}

/// Overwrites `keys` keys in turn, in a store of so many segments.
fn overwrite_in_turn(segments: u64, keys: u64) -> EngineStats {
    let options = Options { capacity_bytes: Some(segments * (64 << 10)), ..small(Durability::EverySecond) };
    let disk = SimDisk::new(SimOptions { seed: 5, latency_ticks: 0..=3, ..SimOptions::default() });
    let mut node = open(&disk, options);
    for round in 0..20_000 {
        node.append(&[write_of(round % keys, round)]).unwrap();
        if round % 8 == 0 {
            node.turn();
        }
    }
    *node.engine.stats()
}

/// Segments that have died wholly, and only wait for a sync, make hardly any other segment be copied.
#[test]
fn hardly_anything_is_copied_for_segments_that_a_sync_frees() {
    let stats = overwrite_in_turn(16, 1600);
    assert!(stats.segments_dropped > 80 && stats.moved_records < 100, "{stats:?}");
}

/// Puts that find no space wait for segments that are being dropped. None is refused.
#[test]
fn puts_wait_for_segments_that_are_being_dropped() {
    let stats = overwrite_in_turn(12, 1100);
    assert!(stats.segments_dropped > 150, "{stats:?}");
}

/// The delete of a put that is in the same segment hides nothing once that is cleaned. Other puts before it are copied at
/// that time, and look like hidden ones until the index entries have moved.
#[test]
fn a_delete_is_not_copied_for_puts_that_move() {
    let options = Options { space_amplification_max_percent: 100, ..small(Durability::Sync) };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, options);
    for segment in 0..10 {
        for key in 0..40 {
            node.append(&[write_of(segment * 40 + key, 0)]).unwrap();
        }
        for round in 0..40 {
            node.append(&[write_of(1000, round)]).unwrap();
            node.append(&[TestWrite { value: None, ..write_of(1000, 0) }]).unwrap();
        }
        for round in 0..120 {
            node.append(&[write_of(2000, round)]).unwrap();
        }
        node.settle();
    }
    let stats = node.engine.stats();
    assert!(stats.moved_records >= 40, "{stats:?}");
    assert_eq!(stats.moved_tombstones, 0, "{stats:?}");
    assert!(node.get(&write_of(1000, 0).key, View::Committed).unwrap().is_none());
}

/// A store that is full again and again: deletes make room, and writes resume without a restart.
#[test]
fn a_full_store_takes_deletes_and_then_writes_for_ever() {
    let capacity_bytes = 48 * (64 << 10);
    let options = Options { capacity_bytes: Some(capacity_bytes), ..small(Durability::Sync) };
    let disk = SimDisk::new(SimOptions { seed: 3, ..SimOptions::default() });
    let mut node = open(&disk, options.clone());
    let (mut rng, mut next, mut refused) = (Rng::new(3), 0, 0);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let put = |node: &mut TestNode, key, round| {
        let written = node.append(&[write_of(key, round)]);
        node.turn();
        node.now = node.now.plus_ms(5);
        written
    };
    for round in 0..30_000 {
        let is_new = rng.below(3) == 0 || live.is_empty();
        let key = if is_new { next } else { *live.keys().nth(rng.below(live.len() as u64) as usize).unwrap() };
        match put(&mut node, key, round) {
            Ok(_) => {
                live.insert(key, round);
                next += u64::from(is_new);
            }
            Err(EngineError::StoreFull) => {
                refused += 1;
                let doomed: Vec<u64> = live.keys().copied().filter(|_| rng.below(40) == 0).collect();
                for key in doomed {
                    let delete = TestWrite { value: None, ..write_of(key, 0) };
                    let deleted = node.append(&[delete]);
                    node.turn();
                    node.now = node.now.plus_ms(5);
                    // The last space for deletes may be used up: those so far make room.
                    if deleted.is_err() {
                        break;
                    }
                    live.remove(&key);
                }
                let begun = node.now;
                while let Err(error) = put(&mut node, u64::MAX, round) {
                    assert!(matches!(error, EngineError::StoreFull), "{error}");
                    assert!(node.now.mono.ms_since(begun.mono) < 5000, "writes do not resume: {:?}", node.engine);
                }
                live.insert(u64::MAX, round);
            }
            Err(error) => panic!("{error}"),
        }
    }
    let report = node.engine.log_report();
    let filling = report.live_bytes * 100 / capacity_bytes;
    println!("refused {refused} times, {filling} % live: {report:?}, {:?}", node.engine.stats());
    // Fewer tombstones make it full less often than they did.
    assert!(refused >= 5 && filling >= 60, "refused {refused} times, {filling} % live: {report:?}");
    node.settle();
    disk.crash(3);
    let mut node = open(&disk, options);
    for (&key, &round) in &live {
        let write = write_of(key, round);
        let found = node.get(&write.key, View::Committed).unwrap();
        assert_eq!(found.map(|entry| entry.value), write.value, "key {key}");
    }
    assert_eq!(node.engine.len(RANGE), live.len() as u64, "no deleted key is back");
}

/// Takes all chunks of a copy as of `base`. `disturb` runs whenever the copy waits for a read.
fn copied(node: &mut TestNode, base: Version, mut disturb: impl FnMut(&mut TestNode)) -> BTreeMap<Vec<u8>, Version> {
    let (mut cursor, mut found) = (Some(TransferPlace::START), BTreeMap::new());
    while let Some(from) = cursor {
        let mut scan = TransferScan::new(RANGE, from, base, 8 << 10);
        loop {
            let step = node.engine.transfer_step(&mut scan, |record| {
                found.insert(record.key.to_vec(), record.version);
            });
            match step.unwrap() {
                TransferStep::Chunk { next, .. } => {
                    cursor = next;
                    break;
                }
                TransferStep::Read(plan) => {
                    disturb(node);
                    node.engine.read(plan, 42);
                    let plan = node.wait_for_plan();
                    node.engine.absorb(plan).unwrap();
                }
            }
        }
    }
    found
}

#[test]
fn a_copy_has_every_record_that_is_moved_meanwhile() {
    for seed in 0..6 {
        let options = Options { space_amplification_max_percent: 110, ..small(Durability::Sync) };
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = open(&disk, options);
        let (mut rng, mut versions) = (Rng::new(seed), BTreeMap::new());
        for key in 0..1200 {
            let write = write_of(key, 0);
            let version = node.append(std::slice::from_ref(&write)).unwrap();
            versions.insert(write.key, version);
            node.turn();
        }
        node.settle();
        let base = node.engine.progress(RANGE).committed;
        let before = node.engine.stats().moved_records;
        let found = copied(&mut node, base, |node| {
            let write = write_of(rng.below(1200) / 4 * 4, 1);
            versions.remove(&write.key);
            node.append(&[write]).unwrap();
            node.turn();
        });
        let moved = node.engine.stats().moved_records - before;
        assert!(moved > 300 && versions.len() > 600, "seed {seed}: {moved} moved, {} unchanged", versions.len());
        for (key, version) in &versions {
            assert_eq!(found.get(key), Some(version), "seed {seed}: {}", String::from_utf8_lossy(key));
        }
    }
}

/// Segments above the target give credit for each byte that clients write, so that debt falls although no time passes.
#[test]
fn cleaning_is_the_faster_the_more_segments_are_above_the_target() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = |percent| Options {
        space_amplification_max_percent: percent,
        checkpoint_log_bytes_min: u64::MAX,
        ..small(Durability::Sync)
    };
    let put = |key: u64| TestWrite { value: Some(vec![key as u8; 1_000]), ..write_of(key, 0) };
    let mut node = open(&disk, options(10_000));
    for key in (0..6_000).chain((0..6_000).step_by(2)) {
        node.append(&[put(key)]).unwrap();
        if key % 16 == 0 {
            node.turn();
        }
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = open(&disk, options(0));
    node.settle();
    // Until the credit that was saved up is used.
    let idle = |node: &mut TestNode| {
        (0..1_000).for_each(|_| _ = node.turn());
        node.engine.stats().segments_cleaned
    };
    let before = idle(&mut node);
    assert!(node.engine.log_report().cleaning_debt_segments > 20, "{:?}", node.engine.log_report());
    assert_eq!(idle(&mut node), before, "nothing is cleaned without credit");
    for key in 10_000..10_240 {
        node.append(&[put(key)]).unwrap();
        node.turn();
    }
    let cleaned = idle(&mut node) - before;
    assert!(cleaned >= 40, "{cleaned} segments are cleaned for four that are written: {:?}", node.engine.log_report());
}

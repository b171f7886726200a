//! Stores with long histories, written to a directory for a reader that shares no code with the engine.
//!
//! `cargo xtask test` gives the directory in `FAWN_WRITTEN_STORES`, and reads it with `tests/clients/written_stores.py`.
//! Without that variable, only lookups are compared with the models.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_tier::{sorted, swept};
use crate::support::small;
use fawn_ds::internals::EngineStats;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{ClientTag, Durability, KeyRange, RangeId};
use std::collections::BTreeMap;
use std::path::Path;

/// The first ones reach all that the format page has. Each of the others once found an error: records of sorted segments
/// counted twice (19), a key dumped twice (126), values that were lost before they expired (293, 299, 388), a key hidden by a
/// trace of a rolled-back put (2000) and one by the trace of its original (2005).
const SEEDS: [u64; 13] = [0, 1, 2, 3, 4, 5, 19, 126, 293, 299, 388, 2000, 2005];
/// Seeds that are run from the one in `FAWN_SEED` on.
const MORE_SEEDS: u64 = 6;
const KEYS: u64 = 900;
/// In a store with runs of many pages.
const MANY_KEYS: u64 = 6_000;
/// The directory of all stores.
const DIRECTORY: &str = "FAWN_WRITTEN_STORES";
/// A file besides a store's: a line for each key, the key and its value, in hexadecimal digits.
const EXPECTED: &str = "expected";
/// Beyond the time of any dump.
const LATE_MS: u64 = 4_000_000_000_000;
/// Values of some keys expire within this time, all before the history ends.
const EXPIRY_MS_MAX: u64 = 20_000;

const STEP_MS: u64 = 500;

/// A store, the model of its content, and what its history had.
struct WrittenStore {
    rng: Rng,
    keys: u64,
    harness: RangeHarness,
    /// When the values of keys expire that do so before the history ends.
    expiries: BTreeMap<Vec<u8>, u64>,
    next_id: u32,
    tagged: u64,
    splits: u64,
    merges: u64,
    clears: u64,
    runs_listed: u64,
    sweep_parts: u64,
    segments_cleaned: u64,
    checkpoints: u64,
}

/// Plain keys, and keys of one `{tag}`, which have the highest bits of the ring in common.
fn key_of(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("{{tag}}{number}").into_bytes(),
        1 => [b"\xff\x00key-".as_slice(), &number.to_be_bytes()].concat(),
        _ => format!("key-{number:05}").into_bytes(),
    }
}

impl WrittenStore {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let is_sole = rng.coin();
        // The pointers of the other mode are longer.
        let durability = if seed % 10 == 4 { Durability::EverySecond } else { Durability::Sync };
        let options = small(durability);
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut harness = RangeHarness::new(disk, options, is_sole);
        harness.add(1, KeyRange::ALL);
        Self {
            rng,
            keys: if seed % 10 == 5 { MANY_KEYS } else { KEYS },
            harness,
            expiries: BTreeMap::new(),
            next_id: 2,
            tagged: 0,
            splits: 0,
            merges: 0,
            clears: 0,
            runs_listed: 0,
            sweep_parts: 0,
            segments_cleaned: 0,
            checkpoints: 0,
        }
    }

    fn write(&mut self) {
        let keys = if self.rng.coin() { self.keys } else { self.keys / 6 };
        let number = self.rng.below(keys);
        let key = key_of(number);
        let length = if self.rng.below(12) == 0 { 900 + self.rng.below(4000) } else { self.rng.below(500) };
        let value: Vec<u8> = (0..length).map(|_| self.rng.next() as u8).collect();
        self.expiries.remove(&key);
        match self.rng.below(16) {
            0..=2 => self.harness.write(&key, None),
            3 => self.harness.write_expiring(&key, &value, LATE_MS + number),
            4 => {
                let expires_at_ms = self.harness.now.wall.0 + 1 + self.rng.below(EXPIRY_MS_MAX);
                self.harness.write_expiring(&key, &value, expires_at_ms);
                self.expiries.insert(key, expires_at_ms);
            }
            5 => {
                self.tagged += 1;
                let tag = ClientTag { session: 1, seq: self.tagged };
                self.harness.write_tagged(&key, Some(&value), tag, b"+OK");
            }
            6 => self.harness.write_flagged(&key, &value, self.rng.next() as u32 | 1),
            _ => self.harness.write(&key, Some(&value)),
        }
    }

    fn steps(&mut self, steps: u64, has_changes: bool) {
        for _ in 0..steps {
            match self.rng.below(1000) {
                0..=699 => self.write(),
                700..=989 => self.turn(),
                990 if self.keys == KEYS => self.clear(),
                991..=992 => self.roll_back(),
                993..=995 if has_changes => self.change_ranges(),
                996..=997 => self.reopen(),
                _ => self.harness.settle(),
            }
        }
        self.harness.settle();
    }

    fn turn(&mut self) {
        if !self.harness.is_sole {
            // The other members of the chain have all that is committed.
            for &id in self.harness.models.keys() {
                let committed = self.harness.engine.progress(id).committed;
                self.harness.engine.set_retain_floor(id, committed);
            }
        }
        self.harness.turn();
    }

    fn clear(&mut self) {
        let id = self.random_range();
        self.harness.clear(id.0);
        self.clears += 1;
    }

    fn roll_back(&mut self) {
        self.harness.settle();
        if !self.harness.is_sole {
            let (id, keys) = (self.random_range(), [1, 2, 3].map(|_| key_of(self.rng.below(self.keys))));
            self.harness.roll_back(id, &keys);
        }
    }

    fn random_range(&mut self) -> RangeId {
        let ids: Vec<RangeId> = self.harness.models.keys().copied().collect();
        ids[self.rng.below(ids.len() as u64) as usize]
    }

    fn change_ranges(&mut self) {
        self.harness.settle();
        let id = self.random_range();
        let keys = self.harness.models[&id].keys;
        let next = self.harness.models.iter().find(|(_, model)| keys.end == Some(model.keys.start));
        if let Some((&next, _)) = next.filter(|_| self.harness.models.len() > 2) {
            if self.harness.try_merge(id.0, next.0, self.next_id) {
                (self.next_id, self.merges) = (self.next_id + 1, self.merges + 1);
            }
            return;
        }
        let at = ring_at(self.rng.below(256) as u8);
        if at > keys.start && keys.contains(&at) && self.harness.try_split(id.0, at, self.next_id, self.next_id + 1) {
            (self.next_id, self.splits) = (self.next_id + 2, self.splits + 1);
        }
    }

    /// Counts what the engine has done, which ends.
    fn count(&mut self) {
        let &EngineStats { runs_listed, sweep_parts, segments_cleaned, checkpoints, .. } = self.harness.engine.stats();
        self.runs_listed += runs_listed;
        self.sweep_parts += sweep_parts;
        self.segments_cleaned += segments_cleaned;
        self.checkpoints += checkpoints;
    }

    fn reopen(&mut self) {
        self.harness.settle();
        self.count();
        let (seed, loses) = (self.rng.next(), self.rng.coin());
        self.harness.reopen(seed, loses);
    }

    fn check(&mut self, context: &str) {
        let now_ms = self.harness.now.wall.0;
        for (key, _) in self.expiries.iter().filter(|(_, at_ms)| **at_ms <= now_ms) {
            if let Some(id) = self.harness.range_of(key) {
                self.harness.models.get_mut(&id).unwrap().content.remove(key);
            }
        }
        let keys: Vec<_> = (0..self.keys).map(key_of).collect();
        self.harness.check(&keys, context);
    }

    /// Ends with a close, or as a killed process leaves the disk; copies the files to `to`.
    fn write_to(mut self, to: &Path) {
        self.count();
        let Self { splits, merges, clears, runs_listed, sweep_parts, segments_cleaned, checkpoints, .. } = self;
        println!("{}: {splits} splits, {merges} merges, {clears} clears, {runs_listed} runs", to.display());
        println!("{sweep_parts} parts of merges, {segments_cleaned} segments cleaned, {checkpoints} checkpoints");
        let RangeHarness { disk, engine, models, .. } = self.harness;
        if self.rng.coin() {
            engine.close().unwrap();
        } else {
            disk.kill(self.rng.next());
        }
        std::fs::create_dir_all(to).unwrap();
        for name in disk.names() {
            std::fs::write(to.join(&name), disk.contents(&name).unwrap()).unwrap();
        }
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let content = models.values().flat_map(|model| &model.content);
        let lines: String = content.map(|(key, value)| format!("{} {}\n", hex(key), hex(value))).collect();
        std::fs::write(to.join(EXPECTED), lines).unwrap();
    }
}

/// A history with splits, merges and clears, then one with a sorted tier over the ranges that are there.
fn written(seed: u64) -> WrittenStore {
    let mut store = WrittenStore::new(seed);
    let scale = store.keys / KEYS;
    let steps = scale * (2_000 + store.rng.below(2_000));
    store.steps(steps, true);
    store.check("before runs");
    let durability = store.harness.options.durability;
    let is_swept = seed % 2 == 1 && store.keys == KEYS;
    store.harness.options = if is_swept { swept(durability) } else { sorted(durability) };
    if store.keys > KEYS {
        (store.harness.options.sort_bytes, store.harness.options.memory_bytes) = (256 << 10, 8 << 20);
    }
    store.reopen();
    let steps = scale * (1_000 << store.rng.below(3));
    store.steps(steps, false);
    store.check("with runs");
    // A dump goes by the manifest's clock: all that expires early has expired by it, too.
    for _ in 0..EXPIRY_MS_MAX.div_ceil(STEP_MS) + 90_000 / STEP_MS {
        store.harness.now = store.harness.now.plus_ms(STEP_MS);
        store.turn();
    }
    store.check("with all expired");
    store
}

#[test]
fn stores_for_the_independent_reader() {
    let directory = std::env::var_os(DIRECTORY);
    let spare = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = directory.as_deref().map_or(spare.path(), Path::new);
    let first: Option<u64> = std::env::var("FAWN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(SEEDS.to_vec(), |first| (first..first + MORE_SEEDS).collect());
    for seed in seeds {
        let store = written(seed);
        store.write_to(&directory.join(format!("store-{seed}")));
    }
}

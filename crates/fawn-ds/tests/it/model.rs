//! Model test: seeded operations on the engine and on the model store, compared at every step.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::model::ModelStore;
use fawn_types::operation::ValueCow;
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Effect, Now, Version};

const KEYS: u64 = 120;

struct Pair {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    /// Content including appended records.
    latest: ModelStore,
    /// Content that was acknowledged; later records wait with their versions.
    committed: ModelStore,
    waiting: Vec<(Version, TestWrite)>,
}

fn apply(model: &mut ModelStore, write: &TestWrite, version: Version) {
    let effect = match &write.value {
        Some(value) => Effect::Put { value: ValueCow::Borrowed(value), flags: 0, expires_at_ms: write.expires_at_ms },
        None => Effect::Delete,
    };
    model.apply(&write.key, &effect, version);
}

impl Pair {
    fn new(seed: u64, options: Options) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        let (latest, committed) = (ModelStore::new(), ModelStore::new());
        Self { disk, options, node, latest, committed, waiting: Vec::new() }
    }

    fn key(rng: &mut Rng) -> Vec<u8> {
        format!("key-{:04}", rng.below(KEYS)).into_bytes()
    }

    fn write(&self, rng: &mut Rng) -> TestWrite {
        let len = match rng.below(20) {
            0 => rng.below(12_000),
            1..=4 => rng.below(3000),
            _ => rng.below(200),
        };
        let value = (rng.below(4) > 0).then(|| (0..len).map(|i| (i * 7 + len) as u8).collect());
        let expires_at_ms = if rng.below(8) == 0 { self.node.now.wall.0 + 1 + rng.below(2000) } else { 0 };
        let expires_at_ms = if value.is_some() { expires_at_ms } else { 0 };
        TestWrite { key: Self::key(rng), value, expires_at_ms }
    }

    fn append(&mut self, writes: &[TestWrite]) {
        let last = self.node.append(writes).unwrap();
        let first = last.as_u64() - writes.len() as u64 + 1;
        for (i, write) in writes.iter().enumerate() {
            let version = Version::from_u64(first + i as u64);
            apply(&mut self.latest, write, version);
            self.waiting.push((version, write.clone()));
        }
        self.follow();
    }

    /// Commits in the model the versions that the engine has committed.
    fn follow(&mut self) {
        let through = self.node.engine.progress(RANGE).committed;
        while self.waiting.first().is_some_and(|(version, _)| *version <= through) {
            let (version, write) = self.waiting.remove(0);
            apply(&mut self.committed, &write, version);
        }
    }

    fn check(&mut self, key: &[u8]) {
        let now = self.node.now.wall;
        let committed = self.node.get(key, View::Committed).unwrap();
        self.follow();
        assert_eq!(
            committed.as_ref().map(fawn_types::Entry::as_ref),
            self.committed.get(key, now),
            "committed {key:?}"
        );
        let latest = self.node.get(key, View::Latest).unwrap();
        assert_eq!(latest.as_ref().map(fawn_types::Entry::as_ref), self.latest.get(key, now), "latest {key:?}");
    }

    fn check_all(&mut self) {
        for i in 0..KEYS {
            self.check(format!("key-{i:04}").as_bytes());
        }
        let keys: Vec<_> = self.committed.iter(self.node.now.wall).map(|(key, _)| key.to_vec()).collect();
        let found = self.node.keys();
        let missing: Vec<_> = keys.iter().filter(|key| !found.contains(key)).collect();
        let extra: Vec<_> = found.iter().filter(|key| !keys.contains(key)).collect();
        assert!(found == keys, "a scan returns exactly the keys: {missing:?} missing, {extra:?} extra");
    }

    fn reopen(&mut self, crash: Option<u64>) {
        self.node.settle();
        self.follow();
        if let Some(seed) = crash {
            self.disk.kill(seed);
        } else {
            let disk = SimDisk::new(SimOptions::default());
            let spare = TestNode::open(&disk, self.options.clone(), self.node.now).unwrap();
            let node = std::mem::replace(&mut self.node, spare);
            node.engine.close().unwrap();
        }
        if self.options.sort_bytes > 0 {
            // Part of the time nothing is sorted, or only part of what there is.
            self.options.layout = [RecordLayout::Log, RecordLayout::Sorted][self.disk.ops() as usize % 2];
        }
        self.node = TestNode::open(&self.disk, self.options.clone(), self.node.now).unwrap();
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(1000) {
            0..=399 => {
                let write = self.write(rng);
                self.append(&[write]);
            }
            400..=449 => {
                let writes: Vec<_> = (0..2 + rng.below(6)).map(|_| self.write(rng)).collect();
                self.append(&writes);
            }
            450..=649 => {
                self.node.turn();
                self.follow();
            }
            650..=979 => {
                let key = Self::key(rng);
                self.check(&key);
            }
            980..=993 => self.node.now = self.node.now.plus_ms(rng.below(500)),
            994..=995 => self.clear(),
            _ => {
                let crash =
                    (rng.below(2) == 0 && self.options.durability != Durability::Memory).then(|| rng.below(1 << 30));
                self.reopen(crash);
            }
        }
    }

    fn clear(&mut self) {
        self.node.settle();
        self.follow();
        let version = self.node.next_version();
        self.node.engine.clear(RANGE, version).unwrap();
        assert_eq!(self.node.get(b"key-0001", View::Latest).unwrap(), None);
        self.node.settle();
        self.latest.clear();
        self.committed.clear();
    }
}

/// Returns the lookups that the record cache answered, since the last open.
pub(crate) fn run(seed: u64, options: Options, steps: usize) -> u64 {
    println!("seed {seed}: cargo test -p fawn-ds --test it model:: -- --nocapture");
    let mut rng = Rng::new(seed);
    let mut pair = Pair::new(seed, options);
    for _ in 0..steps {
        pair.step(&mut rng);
    }
    pair.node.settle();
    pair.follow();
    pair.check_all();
    pair.reopen(None);
    pair.check_all();
    let stats = *pair.node.engine.stats();
    println!("{stats:?}");
    pair.check_all();
    pair.node.engine.record_cache_stats().hits
}

#[test]
fn behaves_like_the_model_when_synced() {
    for seed in 0..60 {
        run(seed, small(Durability::Sync), 1500);
    }
}

#[test]
fn behaves_like_the_model_every_second() {
    for seed in 100..140 {
        run(seed, small(Durability::EverySecond), 1500);
    }
}

#[test]
fn behaves_like_the_model_in_memory() {
    for seed in 200..240 {
        run(seed, small(Durability::Memory), 1500);
    }
}

#[test]
fn behaves_like_the_model_with_padded_frames() {
    for seed in 300..330 {
        run(seed, Options { pad_frames: true, ..small(Durability::Sync) }, 1000);
    }
}

#[test]
fn behaves_like_the_model_with_a_record_cache() {
    for seed in 400..460 {
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][seed as usize % 3];
        // Once with room for all records, once for a few.
        let record_cache_bytes = Some(if seed % 2 == 0 { 400 << 10 } else { 256 << 10 });
        let hits = run(seed, Options { record_cache_bytes, ..small(durability) }, 1500);
        assert!(hits > 0, "seed {seed}: the record cache answered nothing");
    }
}

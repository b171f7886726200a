//! Model test of deferred verifications: random operations right behind openings, with kills while keys are confirmed.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View, check::check};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: u64 = 700;

/// Keys with their values and expiry times.
type Content = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

struct DeferredPair {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    latest: Content,
    committed: Content,
    waiting: Vec<(u64, TestWrite)>,
    rng: Rng,
    deferred: usize,
    interrupted: usize,
    /// Checkpoints with a flipped bit.
    spoiled: BTreeSet<String>,
}

fn key_of(i: u64) -> Vec<u8> {
    format!("k{i:04}").into_bytes()
}

fn apply(content: &mut Content, write: &TestWrite) {
    match &write.value {
        Some(value) => content.insert(write.key.clone(), (value.clone(), write.expires_at_ms)),
        None => content.remove(&write.key),
    };
}

fn found_in(content: &Content, key: &[u8], now: u64) -> Option<Vec<u8>> {
    let (value, expires) = content.get(key)?;
    (*expires == 0 || now < *expires).then(|| value.clone())
}

impl DeferredPair {
    fn new(seed: u64, options: Options) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        let (latest, committed) = (Content::new(), Content::new());
        let rng = Rng::new(seed);
        Self {
            disk,
            options,
            node,
            latest,
            committed,
            waiting: Vec::new(),
            rng,
            deferred: 0,
            interrupted: 0,
            spoiled: BTreeSet::new(),
        }
    }

    fn follow(&mut self) {
        let through = self.node.engine.progress(RANGE).committed.as_u64();
        while self.waiting.first().is_some_and(|(version, _)| *version <= through) {
            let (_, write) = self.waiting.remove(0);
            apply(&mut self.committed, &write);
        }
    }

    fn write(&mut self) -> TestWrite {
        let rng = &mut self.rng;
        let i = if rng.below(3) == 0 { rng.below(KEYS / 10) } else { rng.below(KEYS) };
        let len = match rng.below(30) {
            0 => rng.below(6000),
            _ => rng.below(300),
        };
        let stamp = rng.next();
        let value = (rng.below(4) > 0).then(|| (0..len).map(|i| (stamp >> (i % 57)) as u8).collect::<Vec<u8>>());
        let is_brief = value.is_some() && rng.below(12) == 0;
        let expires_at_ms = if is_brief { self.node.now.wall.0 + 1 + rng.below(3000) } else { 0 };
        TestWrite { key: key_of(i), value, expires_at_ms }
    }

    fn append(&mut self, count: u64) {
        let writes: Vec<_> = (0..count).map(|_| self.write()).collect();
        let last = self.node.append(&writes).unwrap().as_u64();
        for (i, write) in writes.into_iter().enumerate() {
            apply(&mut self.latest, &write);
            self.waiting.push((last + 1 + i as u64 - count, write));
        }
        self.follow();
    }

    fn check_key(&mut self, key: &[u8], context: &str) {
        let now = self.node.now.wall.0;
        let found = self.node.get(key, View::Committed).unwrap().map(|entry| entry.value);
        self.follow();
        let name = String::from_utf8_lossy(key).into_owned();
        let short = |value: &Option<Vec<u8>>| {
            value.as_ref().map(|value| (value.len(), value.iter().take(4).copied().collect::<Vec<_>>()))
        };
        let expected = found_in(&self.committed, key, now);
        assert!(
            found == expected,
            "{context} committed {name}: {:?}, not {:?}, {:?}",
            short(&found),
            short(&expected),
            self.node.report
        );
        let found = self.node.get(key, View::Latest).unwrap().map(|entry| entry.value);
        let expected = found_in(&self.latest, key, now);
        assert!(
            found == expected,
            "{context} latest {name}: {:?}, not {:?}, {:?}",
            short(&found),
            short(&expected),
            self.node.report
        );
    }

    fn check_all(&mut self, context: &str) {
        for i in 0..KEYS {
            self.check_key(&key_of(i), context);
        }
        self.check_scan(context);
    }

    fn check_scan(&mut self, context: &str) {
        let now = self.node.now.wall.0;
        let found = self.node.keys();
        self.follow();
        let alive = self.committed.iter().filter(|(_, (_, expires))| *expires == 0 || now < *expires);
        let expected: Vec<_> = alive.map(|(key, _)| key.clone()).collect();
        let name = |key: &&Vec<u8>| String::from_utf8_lossy(key).into_owned();
        let missing: Vec<_> = expected.iter().filter(|key| !found.contains(key)).map(|key| name(&key)).collect();
        let extra: Vec<_> = found.iter().filter(|key| !expected.contains(key)).map(|key| name(&key)).collect();
        let len = (found.len(), expected.len());
        assert!(
            found == expected,
            "{context}: a scan lacks {missing:?} and has {extra:?}, {len:?} keys, deferred {}",
            self.node.engine.verifications_deferred()
        );
    }

    fn acknowledge(&mut self) {
        for _ in 0..10_000 {
            let through = self.node.turn();
            self.follow();
            if through == self.node.engine.progress(RANGE).appended {
                return;
            }
            self.node.now = self.node.now.plus_ms(1);
        }
        panic!("not acknowledged");
    }

    fn reopen(&mut self, context: &str) {
        self.acknowledge();
        self.interrupted += usize::from(self.node.engine.verifications_deferred() > 0);
        let seed = self.rng.next();
        match self.rng.below(4) {
            0 => {
                let spare = SimDisk::new(SimOptions::default());
                let spare = TestNode::open(&spare, self.options.clone(), self.node.now).unwrap();
                let node = std::mem::replace(&mut self.node, spare);
                node.engine.close().unwrap();
                self.disk.kill(seed);
                let report = check(&mut SimDevice::attach(&self.disk)).unwrap();
                let is_sound = report.findings.iter().all(|finding| format!("{finding:?}").contains("checkpoint-"));
                assert!(is_sound, "{context}: {:?}", report.findings);
                self.disk.kill(seed);
            }
            1 => self.disk.crash(seed),
            _ => self.disk.kill(seed),
        }
        if self.rng.below(3) == 0 {
            let names = self.disk.names();
            for name in names.iter().filter(|name| name.starts_with("checkpoint-")) {
                if self.spoiled.insert(name.clone()) {
                    self.disk.flip_bits(name, 100, 1);
                }
            }
        }
        self.node = TestNode::open(&self.disk, self.options.clone(), self.node.now).unwrap();
        let refused = &self.node.report.checkpoints_refused;
        assert!(refused.iter().all(|(_, why)| why.contains("header")), "{context}: {refused:?}");
        self.deferred += self.node.engine.verifications_deferred();
    }

    fn clear(&mut self) {
        self.acknowledge();
        let version = self.node.next_version();
        self.node.engine.clear(RANGE, version).unwrap();
        self.latest.clear();
        self.acknowledge();
        self.committed.clear();
    }

    fn step(&mut self, step: usize) {
        let context = format!("step {step}");
        match self.rng.below(1000) {
            0..=549 => self.append(1),
            550..=599 => {
                let count = 2 + self.rng.below(6);
                self.append(count);
            }
            600..=799 => {
                self.node.turn();
                self.follow();
            }
            800..=959 => {
                let key = key_of(self.rng.below(KEYS));
                self.check_key(&key, &context);
            }
            960..=974 => self.node.now = self.node.now.plus_ms(self.rng.below(500)),
            975..=978 => self.check_scan(&context),
            979 if self.rng.below(6) == 0 => self.clear(),
            980..=984 => self.check_all(&context),
            985..=986 => self.node.settle(),
            987..=995 => {
                self.reopen(&context);
                if self.rng.below(3) == 0 {
                    self.check_all(&format!("{context} reopened"));
                }
            }
            _ => {}
        }
    }
}

fn run(seed: u64, options: Options, steps: usize) -> (usize, usize) {
    println!("seed {seed}");
    let mut pair = DeferredPair::new(seed, options);
    for _ in 0..1500 {
        pair.append(1);
        if pair.rng.below(8) == 0 {
            pair.node.turn();
        }
    }
    for step in 0..steps {
        pair.step(step);
    }
    pair.acknowledge();
    pair.check_all("end");
    pair.node.settle();
    pair.check_all("settled");
    pair.reopen("end");
    pair.check_all("reopened");
    (pair.deferred, pair.interrupted)
}

#[test]
fn random_operations_behind_openings_behave_like_the_model() {
    let mut total = (0, 0);
    for seed in 0..36 {
        let memory_bytes = [256 << 10, 1 << 20, 4 << 20][seed as usize % 3];
        let checkpoint_log_bytes_min = [16 << 10, 256 << 10, u64::MAX][seed as usize / 3 % 3];
        let capacity_bytes = [None, Some(32 * 65536)][seed as usize / 9 % 2];
        let space_amplification_max_percent = [140, 110, 300][seed as usize / 2 % 3];
        let options = Options {
            memory_bytes,
            checkpoint_log_bytes_min,
            capacity_bytes,
            space_amplification_max_percent,
            ..small(Durability::Sync)
        };
        let (deferred, interrupted) = run(seed, options, 3000);
        total = (total.0 + deferred, total.1 + interrupted);
    }
    assert!(total.0 > 50_000 && total.1 > 100, "{total:?} keys deferred, openings ended before all were confirmed");
}

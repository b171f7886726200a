//! Crash test: opens and checks every disk image that a loss after each device operation may leave.
//!
//! For each image the store must open and contain every acknowledged (and so every observed) write. Its content must be
//! a prefix of the appended writes, without a gap, and batches must be atomic.
use crate::support::{RANGE, TestNode, TestWrite, pointers_of, small};
use fawn_ds::internals::{EngineError, Options, RecordLayout, View};
use fawn_flash::sim::{Capture, DeviceFault, Image, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeMap;

pub(crate) const KEYS: u64 = 40;
pub(crate) type CrashContent = BTreeMap<Vec<u8>, Vec<u8>>;

/// The history of a workload, by number of device operations.
#[derive(Default)]
struct CrashHistory {
    /// Content after each version that a crash may leave as the newest one: none within a batch.
    prefixes: BTreeMap<Version, CrashContent>,
    /// (operations so far, newest version acknowledged then).
    acked: Vec<(u64, Version)>,
    /// (operations so far, newest version appended before them).
    appended: Vec<(u64, Version)>,
}

impl CrashHistory {
    fn acked_at(&self, op: u64) -> Version {
        self.acked.iter().rev().find(|(at, _)| *at <= op).map_or(Version::ZERO, |(_, version)| *version)
    }

    fn appended_at(&self, op: u64) -> Version {
        // An append is in memory before the next operation is issued.
        self.appended.iter().rev().find(|(at, _)| *at < op).map_or(Version::ZERO, |(_, version)| *version)
    }
}

/// Keys of the workloads with cleaning: the first [`KEYS`] are hot, and the others keep segments from dying whole.
const COLD_KEYS: u64 = 400;

fn write(rng: &mut Rng, keys: u64) -> TestWrite {
    let len = if rng.below(10) == 0 { rng.below(9000) } else { rng.below(600) };
    let key = if rng.below(4) > 0 { rng.below(KEYS) } else { rng.below(keys) };
    let stamp = rng.next();
    let value = (rng.below(5) > 0).then(|| (0..len).map(|i| (stamp >> (i % 57)) as u8).collect());
    TestWrite { key: format!("k{key:03}").into_bytes(), value, expires_at_ms: 0 }
}

pub(crate) struct CrashRun {
    pub(crate) disk: SimDisk,
    options: Options,
    pub(crate) node: TestNode,
    content: CrashContent,
    history: CrashHistory,
    keys: u64,
    /// An image is taken after every so many operations.
    pub(crate) stride: u64,
    /// Whether images can be checked.
    pub(crate) keeps_history: bool,
    /// Every other opening sorts nothing.
    pub(crate) toggles_sorting: bool,
}

impl CrashRun {
    pub(crate) fn new(seed: u64, options: Options, keys: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let options = Options { pointers_if_new: Some(pointers_of(seed)), ..options };
        let node = TestNode::open(&disk, options.clone(), Now::at(5000)).unwrap();
        let mut history = CrashHistory::default();
        history.prefixes.insert(Version::ZERO, CrashContent::new());
        Self {
            disk,
            options,
            node,
            content: CrashContent::new(),
            history,
            keys,
            stride: 1,
            keeps_history: true,
            toggles_sorting: false,
        }
    }

    /// The newest version acknowledged so far.
    pub(crate) fn acked(&self) -> Version {
        self.history.acked_at(self.disk.ops())
    }

    fn note_acks(&mut self, acked: Version) {
        self.history.acked.push((self.disk.ops(), acked));
    }

    fn append(&mut self, rng: &mut Rng) -> Result<(), EngineError> {
        let count = if rng.below(6) == 0 { 2 + rng.below(5) } else { 1 };
        let writes: Vec<_> = (0..count).map(|_| write(rng, self.keys)).collect();
        // Back-pressure may run iterations of the engine, so the append counts from before them.
        let before = self.disk.ops();
        let last = self.node.append(&writes)?;
        for write in writes {
            match write.value {
                Some(value) => self.content.insert(write.key, value),
                None => self.content.remove(&write.key),
            };
        }
        if self.keeps_history {
            self.history.prefixes.insert(last, self.content.clone());
            self.history.appended.push((before, last));
        }
        let acked = self.node.engine.progress(RANGE).committed;
        self.note_acks(acked);
        Ok(())
    }

    pub(crate) fn step(&mut self, rng: &mut Rng) -> Result<(), EngineError> {
        if rng.below(3) > 0 {
            return self.append(rng);
        }
        self.rest(rng);
        Ok(())
    }

    /// A step without a write.
    pub(crate) fn rest(&mut self, rng: &mut Rng) {
        let acked = self.node.turn();
        self.node.now = self.node.now.plus_ms(rng.below(400));
        self.note_acks(acked);
    }

    pub(crate) fn reopen(&mut self, seed: u64) {
        self.node.settle();
        let acked = self.node.engine.progress(RANGE).committed;
        self.note_acks(acked);
        let now = self.node.now;
        let elsewhere = TestNode::open(&SimDisk::new(SimOptions::default()), small(Durability::Sync), now).unwrap();
        end(std::mem::replace(&mut self.node, elsewhere), &self.disk, seed);
        if self.toggles_sorting {
            self.options.layout = [RecordLayout::Log, RecordLayout::Sorted][seed as usize % 2];
        }
        self.node = TestNode::open(&self.disk, self.options.clone(), now).unwrap();
        self.node.settle();
    }
}

/// Ends by power loss if everything settled is synced, else by a regular close.
fn end(node: TestNode, disk: &SimDisk, seed: u64) {
    if node.engine.options().durability == Durability::Sync {
        disk.crash(seed);
    } else {
        node.engine.close().unwrap();
    }
}

fn content_of(node: &mut TestNode, keys: u64) -> CrashContent {
    let mut content = CrashContent::new();
    for i in 0..keys {
        let key = format!("k{i:03}").into_bytes();
        if let Some(entry) = node.get(&key, View::Committed).unwrap() {
            content.insert(key, entry.value);
        }
    }
    content
}

/// Number of images of each kind. A kind that does not occur is not tested.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CrashImageCounts {
    pub(crate) images: usize,
    /// The end of the log was cut.
    torn: usize,
    /// The tail file had frames that the log lacked.
    tailed: usize,
    /// A file name is missing, or a removed one is back.
    names_lost: usize,
    /// A file of an unfinished step was removed.
    orphans: usize,
    /// The image was taken while the device was full.
    pub(crate) full: usize,
    /// The store was opened from a checkpoint.
    pub(crate) checkpoints: usize,
    /// Segments cleaned by the workload, and tombstones copied.
    cleaned: usize,
    tombstones: usize,
    /// Jobs of the sorted tier that were listed by the workload.
    pub(crate) sorted: usize,
    /// Parts of merges with the oldest runs.
    pub(crate) sweep_parts: u64,
}

fn check_image(run: &CrashRun, image: &Image, promised: bool, context: &str) -> CrashImageCounts {
    let op = image.op;
    let acked = if promised { run.history.acked_at(op) } else { Version::ZERO };
    run.check_disk(image, acked, context)
}

impl CrashRun {
    /// Checks the store itself, once all that was appended is acknowledged.
    pub(crate) fn check_live(&mut self, context: &str) {
        self.node.settle();
        let found = content_of(&mut self.node, self.keys);
        let differs = |key: &&Vec<u8>| found.get(*key) != self.content.get(*key);
        if let Some(key) = found.keys().chain(self.content.keys()).find(differs) {
            let [found, expected] = [&found, &self.content].map(|content| content.get(key).map(Vec::len));
            panic!("{context}: {} is {found:?}, expected {expected:?}", String::from_utf8_lossy(key));
        }
    }

    /// Checks that the image opens with at least what was acknowledged as `acked`, and at most what was appended before.
    pub(crate) fn check_disk(&self, image: &Image, acked: Version, context: &str) -> CrashImageCounts {
        let (op, Self { history, options, keys, .. }) = (image.op, self);
        let mut node = match TestNode::open(&image.disk, options.clone(), Now::at(9000)) {
            Ok(node) => node,
            Err(error) => panic!("{context}: after operation {op} the store does not open: {error}"),
        };
        assert_eq!(node.report.checkpoints_refused, [], "{context}: operation {op}");
        let recovered = node.engine.progress(RANGE).committed;
        let appended = history.appended_at(op);
        assert!(recovered >= acked, "{context}: operation {op}: acked {acked:?}, recovered {recovered:?}");
        assert!(recovered <= appended, "{context}: operation {op}: recovered {recovered:?} of {appended:?}");
        let Some(expected) = history.prefixes.get(&recovered) else {
            panic!("{context}: operation {op}: {recovered:?} is within a batch")
        };
        let found = content_of(&mut node, *keys);
        let differs = |key: &&Vec<u8>| found.get(*key) != expected.get(*key);
        if let Some(key) = found.keys().chain(expected.keys()).find(differs) {
            let [found, expected] = [&found, expected]
                .map(|content| content.get(key).map(|value| (value.len(), &value[..value.len().min(8)])));
            let key = String::from_utf8_lossy(key);
            panic!(
                "{context}: operation {op}: {key} as of {recovered:?} is {found:?}, expected {expected:?}, {:?}",
                node.report
            );
        }
        let classes = CrashImageCounts {
            images: 1,
            torn: usize::from(!node.report.truncated.is_empty()),
            tailed: usize::from(node.report.tail_bytes > 0),
            orphans: usize::from(!node.report.orphans_removed.is_empty()),
            checkpoints: usize::from(node.report.checkpoint_entries.is_some()),
            ..CrashImageCounts::default()
        };
        if op.is_multiple_of(8) {
            // Once there is space, the store accepts writes and keeps them. It may be cleaning a segment first.
            image.disk.set_capacity_bytes(None);
            let write = TestWrite { key: b"k000".to_vec(), value: Some(b"after".to_vec()), expires_at_ms: 0 };
            let is_accepted = (0..16).any(|_| {
                node.now = node.now.plus_ms(200);
                node.turn();
                node.append(core::slice::from_ref(&write)).is_ok()
            });
            assert!(is_accepted, "{context}: operation {op}: {:?}", node.engine);
            node.settle();
            end(node, &image.disk, op);
            let mut node = TestNode::open(&image.disk, options.clone(), Now::at(9000)).unwrap();
            let entry = node.get(b"k000", View::Committed).unwrap();
            assert_eq!(entry.map(|entry| entry.value), Some(b"after".to_vec()), "{context}: operation {op}: reopened");
        }
        classes
    }
}

impl CrashImageCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.images += other.images;
        self.torn += other.torn;
        self.tailed += other.tailed;
        self.names_lost += other.names_lost;
        self.orphans += other.orphans;
        self.full += other.full;
        self.checkpoints += other.checkpoints;
        self.cleaned += other.cleaned;
        self.tombstones += other.tombstones;
        self.sorted += other.sorted;
        self.sweep_parts += other.sweep_parts;
    }
}

/// Whether an image's file names differ from those of the disk before and after the image.
fn lost_names(image: &Image, before: &[String], after: &[String]) -> bool {
    let found = image.disk.names();
    let is_missing = before.iter().any(|name| after.contains(name) && !found.contains(name));
    is_missing || found.iter().any(|name| !before.contains(name) && !after.contains(name))
}

/// Runs a workload with an image after every operation; returns the images checked. `is_tight`: the device is full most
/// of the time.
pub(crate) fn workload(
    seed: u64,
    options: Options,
    loss: Loss,
    steps: usize,
    (promised, is_tight): (bool, bool),
) -> CrashImageCounts {
    let run = CrashRun::new(seed, options, KEYS);
    run_workload(run, seed, loss, steps, (promised, is_tight))
}

pub(crate) fn run_workload(
    mut run: CrashRun,
    seed: u64,
    loss: Loss,
    steps: usize,
    (promised, is_tight): (bool, bool),
) -> CrashImageCounts {
    let context = format!("seed {seed} (cargo test -p fawn-ds --test it crash::)");
    let mut rng = Rng::new(seed);
    run.disk.capture(Capture::Every { stride: run.stride, loss, seed });
    let mut classes = CrashImageCounts::default();
    for step in 0..steps {
        let before = run.disk.names();
        if is_tight && step % 200 == 20 {
            let used: usize = before.iter().map(|name| run.disk.contents(name).unwrap().len()).sum();
            run.disk.set_capacity_bytes(Some(used as u64 + (4 << 10)));
        }
        if step % 200 == 190 {
            run.disk.set_capacity_bytes(None);
            run.node.now = run.node.now.plus_ms(1000);
        }
        match run.step(&mut rng) {
            Err(EngineError::StoreFull) if is_tight => classes.full += 1,
            result => result.unwrap(),
        }
        if step % 40 == 39 {
            classes.cleaned += run.node.engine.stats().segments_cleaned as usize;
            classes.tombstones += run.node.engine.stats().moved_tombstones as usize;
            classes.sorted += run.node.engine.stats().runs_listed as usize;
            classes.sweep_parts += run.node.engine.stats().sweep_parts;
            run.reopen(seed + step as u64);
        }
        let after = run.disk.names();
        for image in run.disk.take_images() {
            let names_lost = usize::from(lost_names(&image, &before, &after));
            let class = check_image(&run, &image, promised, &context);
            classes.add(CrashImageCounts { names_lost, ..class });
        }
    }
    if is_tight {
        assert!(classes.full > 0, "{context}: the device did not become full");
        run.disk.set_capacity_bytes(None);
        run.node.now = run.node.now.plus_ms(1000);
        run.node.turn();
        run.append(&mut rng).unwrap_or_else(|error| panic!("{context}: write after space was freed: {error}"));
    }
    classes
}

#[test]
fn every_image_of_power_loss_opens_with_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 0..8 {
        // Half of them without checkpoints.
        let checkpoint_log_bytes_min = if seed % 2 == 0 { u64::MAX } else { 16 << 10 };
        let options = Options { checkpoint_log_bytes_min, ..small(Durability::Sync) };
        classes.add(workload(seed, options, Loss::Power, 160, (true, false)));
    }
    let padded = Options { pad_frames: true, ..small(Durability::Sync) };
    classes.add(workload(50, padded, Loss::Power, 160, (true, false)));
    println!("{classes:?}");
    assert!(classes.images >= 2000, "{classes:?}");
    assert!(classes.torn > 50 && classes.names_lost > 5 && classes.orphans > 5, "{classes:?}");
}

/// A store with keys that are seldom written, before the workload.
fn with_cold_keys(seed: u64, durability: Durability) -> CrashRun {
    // Dead records are cleaned at once.
    cold_keys_in(seed, Options { space_amplification_max_percent: 0, ..small(durability) })
}

pub(crate) fn cold_keys_in(seed: u64, options: Options) -> CrashRun {
    let mut run = CrashRun::new(seed, options, COLD_KEYS);
    let mut rng = Rng::new(!seed);
    for key in 0..COLD_KEYS {
        let write = TestWrite { key: format!("k{key:03}").into_bytes(), ..write(&mut rng, 1) };
        let version = run.node.append(std::slice::from_ref(&write)).unwrap();
        run.content.extend(write.value.map(|value| (write.key, value)));
        run.history.prefixes.insert(version, run.content.clone());
        if key % 16 == 0 {
            run.node.settle();
        }
    }
    run.node.settle();
    run.history.appended.push((0, run.node.engine.progress(RANGE).appended));
    let acked = run.node.engine.progress(RANGE).committed;
    run.note_acks(acked);
    run
}

#[test]
fn every_image_of_a_store_that_is_cleaned_has_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 20..23 {
        let run = with_cold_keys(seed, Durability::Sync);
        classes.add(run_workload(run, seed, Loss::Power, 200, (true, false)));
    }
    let run = with_cold_keys(30, Durability::EverySecond);
    classes.add(run_workload(run, 30, Loss::Process, 200, (true, false)));
    let run = with_cold_keys(31, Durability::EverySecond);
    classes.add(run_workload(run, 31, Loss::Power, 200, (false, false)));
    println!("{classes:?}");
    assert!(classes.images >= 2000 && classes.torn > 50, "{classes:?}");
    assert!(classes.cleaned >= 8 && classes.tombstones >= 100 && classes.checkpoints >= 1000, "{classes:?}");
}

#[test]
fn every_image_around_a_full_device_opens_with_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 60..63 {
        let loss = if seed % 2 == 0 { Loss::Power } else { Loss::Process };
        classes.add(workload(seed, small(Durability::Sync), loss, 400, (true, true)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 1000 && classes.full >= 20 && classes.torn > 0, "{classes:?}");
}

#[test]
fn every_image_of_a_kill_keeps_what_was_flushed() {
    let mut classes = CrashImageCounts::default();
    for seed in 100..104 {
        classes.add(workload(seed, small(Durability::EverySecond), Loss::Process, 160, (true, false)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 500 && classes.tailed >= 200, "{classes:?}");
}

#[test]
fn power_loss_without_syncs_leaves_a_prefix() {
    for seed in 200..203 {
        workload(seed, small(Durability::EverySecond), Loss::Power, 160, (false, false));
        workload(seed, small(Durability::Memory), Loss::Power, 160, (false, false));
    }
}

#[test]
fn a_failed_write_or_sync_poisons_and_loses_nothing_acked() {
    let (mut failed_writes, mut failed_syncs) = (0, 0);
    for seed in 300..340 {
        let mut rng = Rng::new(seed);
        let durability = if seed % 2 == 0 { Durability::Sync } else { Durability::EverySecond };
        let mut run = CrashRun::new(seed, small(durability), KEYS);
        let kind = if rng.below(2) == 0 || durability == Durability::Sync { OpKind::Write } else { OpKind::Sync };
        // A full device at a write, where the file system kept no promise of space, is a failed write: some sectors of
        // it may be there, in a block that holds acked records too.
        let fault = if kind == OpKind::Write && seed % 3 == 0 { DeviceFault::Full } else { DeviceFault::Fail };
        run.disk.fail_nth(kind, 1 + rng.below(12), fault);
        let mut refused = false;
        for _ in 0..400 {
            if let Err(error) = run.step(&mut rng) {
                assert!(matches!(error, EngineError::Poisoned { .. }), "seed {seed}: {error}");
                refused = true;
                break;
            }
        }
        assert!(refused, "seed {seed}: the fault did not occur");
        *(if kind == OpKind::Sync { &mut failed_syncs } else { &mut failed_writes }) += 1;
        let again = run.append(&mut rng);
        assert!(matches!(again, Err(EngineError::Poisoned { .. })), "seed {seed}: the engine stays poisoned");
        let image = Image { op: run.disk.ops(), disk: run.disk.image(Loss::Process, seed) };
        check_image(&run, &image, true, &format!("seed {seed}, failed {kind:?}"));
        if durability == Durability::Sync {
            let image = Image { op: run.disk.ops(), disk: run.disk.image(Loss::Power, seed) };
            check_image(&run, &image, true, &format!("seed {seed}, failed {kind:?}"));
        }
    }
    assert!(failed_writes >= 20 && failed_syncs >= 5, "{failed_writes} writes and {failed_syncs} syncs failed");
}

#[test]
fn a_full_device_refuses_puts_takes_deletes_and_recovers_by_itself() {
    for seed in 400..410 {
        let mut rng = Rng::new(seed);
        let mut run = CrashRun::new(seed, small(Durability::Sync), KEYS);
        run.disk.set_capacity_bytes(Some(6 * (64 << 10)));
        let mut version = 0;
        let put = |run: &mut CrashRun, i: u64| {
            let write = TestWrite { key: format!("f{i:05}").into_bytes(), value: Some(vec![7; 900]), expires_at_ms: 0 };
            let result = run.node.append(&[write]);
            run.node.turn();
            run.node.now = run.node.now.plus_ms(20);
            result
        };
        let error = loop {
            match put(&mut run, version) {
                Ok(_) => version += 1,
                Err(error) => break error,
            }
            assert!(version < 10_000, "seed {seed}: the device does not become full");
        };
        assert_eq!(error, EngineError::StoreFull, "seed {seed}");
        run.node.settle();
        // Reads continue.
        assert!(run.node.get(b"f00000", View::Committed).unwrap().is_some());
        // Deletes continue, and free space.
        for i in 0..version {
            let delete = TestWrite { key: format!("f{i:05}").into_bytes(), value: None, expires_at_ms: 0 };
            match run.node.append(&[delete]) {
                Ok(_) => {}
                Err(EngineError::StoreFull) if i > 64 => break,
                Err(error) => panic!("seed {seed}: delete {i}: {error}"),
            }
            if rng.below(8) == 0 {
                run.node.settle();
                run.node.now = run.node.now.plus_ms(120);
            }
        }
        run.node.settle();
        run.node.now = run.node.now.plus_ms(1000);
        run.node.settle();
        run.node.now = run.node.now.plus_ms(1000);
        put(&mut run, 99_999).unwrap();
        run.node.settle();
        run.disk.crash(seed);
        let mut node = TestNode::open(&run.disk, run.options.clone(), run.node.now).unwrap();
        assert!(node.get(b"f99999", View::Committed).unwrap().is_some(), "seed {seed}");
        assert!(node.get(b"f00000", View::Committed).unwrap().is_none(), "seed {seed}: a delete came back");
    }
}

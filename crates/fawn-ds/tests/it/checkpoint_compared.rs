//! Openings from a checkpoint compared with openings of the same disk that scan the whole log.
//!
//! A checkpoint only repeats what the log says. An opening that cannot use it must therefore find the same content, the
//! same progress, the same live bytes, and the same records to retransmit.
use crate::support::{RANGE, SECRET, TestNode, pointers_of, small};
use fawn_ds::internals::format::checkpoint;
use fawn_ds::internals::{EngineError, Options, RecordKind, RecordRef, Replay, TransferredResults, View};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{ClientTag, Durability, Epoch, KeyHash, KeyRange, Now, RangeId, Version};
use std::collections::BTreeSet;

/// A record of a replay: its version, key and value.
type Replayed = (Version, Vec<u8>, Vec<u8>);

/// Differences that a comparison must allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counts {
    /// Live bytes and the number of keys are the same.
    Exact,
    /// A scan of the log counts records again that were found expired.
    WithExpired,
}

/// Makes all checkpoints of the disk unusable.
pub(crate) fn spoil_checkpoints(disk: &SimDisk) {
    for name in disk.names().iter().filter(|name| checkpoint::is_file_name(name)) {
        disk.put(name, &[]);
    }
}

fn replayed(node: &mut TestNode, range: RangeId, after: Version) -> Option<Vec<Replayed>> {
    let (mut after, mut records) = (after, Vec::new());
    loop {
        let visit = |record: &RecordRef<'_>| records.push((record.version, record.key.to_vec(), record.value.to_vec()));
        match node.engine.replay(range, after, 4000, visit).unwrap() {
            Replay::Records { through, .. } => after = through,
            Replay::UpToDate => return Some(records),
            Replay::Gone => return None,
            Replay::Read(plan) => {
                node.engine.read(plan, 42);
                let plan = node.wait_for_plan();
                node.engine.absorb(plan).unwrap();
            }
        }
    }
}

fn results(node: &mut TestNode, range: RangeId) -> Vec<Version> {
    let (mut from, mut results) = (0, Vec::new());
    loop {
        match node.engine.copied_results(range, from, 500, |record| results.push(record.version)).unwrap() {
            TransferredResults::Records { next } => from = next,
            TransferredResults::Done => return results,
            TransferredResults::Read(plan) => {
                node.engine.read(plan, 42);
                let plan = node.wait_for_plan();
                node.engine.absorb(plan).unwrap();
            }
        }
    }
}

/// Opens copies of the disk with its checkpoints and without them, and compares what they find. Returns whether there
/// was a checkpoint.
pub(crate) fn assert_scan_finds_the_same(
    disk: &SimDisk,
    options: &Options,
    keys: &[(RangeId, Vec<u8>)],
    counts: Counts,
    now: Now,
    context: &str,
) -> bool {
    let (whole, scanned) = (disk.image(Loss::Process, 1), disk.image(Loss::Process, 1));
    spoil_checkpoints(&scanned);
    let [mut from_image, mut from_log] = [&whole, &scanned].map(|disk| {
        TestNode::open_in_chain(disk, options.clone(), now).unwrap_or_else(|error| panic!("{context}: {error}"))
    });
    // Only spoiled ones are refused: the live counts of all others are those of their entries.
    let refused = &from_image.report.checkpoints_refused;
    assert!(refused.iter().all(|(_, why)| why.starts_with("checkpoint header")), "{context}: {refused:?}");
    if from_image.report.checkpoint_entries.is_none() {
        return false;
    }
    assert_eq!(from_log.report.checkpoint_entries, None);
    let ranges: Vec<RangeId> = from_log.engine.ranges().map(|(range, _)| range).collect();
    let mut is_committed_same = true;
    for &range in &ranges {
        let context = format!("{context} {range:?}");
        let [image, log] = [&from_image, &from_log].map(|node| node.engine.progress(range));
        assert_eq!(image.appended, log.appended, "{context}");
        // A mark may lag behind the commits that a checkpoint knows.
        assert!(image.committed >= log.committed, "{context}: {image:?}, scanned {log:?}");
        is_committed_same &= image.committed == log.committed;
        let floors = [&from_image, &from_log].map(|node| node.engine.replay_floor(range));
        let floor = floors[0].max(floors[1]);
        let [image, log] = [&mut from_image, &mut from_log].map(|node| replayed(node, range, floor));
        let versions = |records: &Option<Vec<Replayed>>| {
            records.as_ref().map(|records| records.iter().map(|record| record.0).collect::<Vec<_>>())
        };
        assert_eq!(versions(&image), versions(&log), "{context}: replay after {floors:?}");
        assert_eq!(image, log, "{context}");
        let [image, log] = [&mut from_image, &mut from_log].map(|node| results(node, range));
        assert!(log.ends_with(&image), "{context}: results {image:?}, scanned {log:?}");
    }
    for (range, key) in keys.iter().filter(|(range, _)| ranges.contains(range)) {
        for view in [View::Latest, View::Committed] {
            if view == View::Committed && from_image.engine.progress(*range) != from_log.engine.progress(*range) {
                continue;
            }
            let [image, log] = [&mut from_image, &mut from_log].map(|node| get(node, *range, key, view));
            let name = String::from_utf8_lossy(key);
            assert_eq!(image.map(|found| found.0), log.map(|found| found.0), "{context} {range:?} {name} {view:?}");
        }
    }
    if is_committed_same && counts == Counts::Exact {
        for node in [&mut from_image, &mut from_log] {
            // Deferred verifications make counts too low, and live bytes too high.
            while node.engine.log_report().verifications_queued > 0 {
                run(node, 1);
            }
        }
        for &range in &ranges {
            assert_eq!(from_image.engine.len(range), from_log.engine.len(range), "{context} {range:?}");
        }
        let [image, log] = [&from_image, &from_log].map(|node| node.engine.log_report().live_bytes);
        assert_eq!(image, log, "{context}: live bytes");
    }
    true
}

fn get(node: &mut TestNode, range: RangeId, key: &[u8], view: View) -> Option<(Version, Vec<u8>)> {
    use fawn_ds::internals::Lookup;
    let now = node.now.wall;
    let lookup = node.engine.lookup(range, KeyHash::of(&SECRET, key), key, view, now).unwrap();
    let mut plan = match lookup {
        Lookup::Found(entry) => return Some((entry.version, entry.value.to_vec())),
        Lookup::Absent | Lookup::Unsettled => return None,
        Lookup::Read(plan) => plan,
    };
    loop {
        node.engine.read(plan, 42);
        let read = node.wait_for_plan();
        plan = match node.engine.resume(read, now).unwrap() {
            Lookup::Found(entry) => return Some((entry.version, entry.value.to_vec())),
            Lookup::Absent | Lookup::Unsettled => return None,
            Lookup::Read(plan) => plan,
        };
    }
}

/// A range of the workload.
struct ComparedRange {
    id: RangeId,
    epoch: u32,
    seq: u64,
    last: Version,
    committed: Version,
    /// Appended and neither committed nor rolled back.
    pending: Vec<Version>,
    keys: u64,
    value_max: u64,
    /// Base of a transfer that takes records.
    base: Option<Version>,
}

struct ComparedRun {
    seed: u64,
    rng: Rng,
    disk: SimDisk,
    options: Options,
    node: TestNode,
    ranges: Vec<ComparedRange>,
    counts: Counts,
    compared: usize,
}

const PLAIN: RangeId = RANGE;
const CHAINED: RangeId = RangeId(8);
const TRANSFERRED: RangeId = RangeId(9);

fn key_of(key: u64) -> Vec<u8> {
    format!("k{key:05}").into_bytes()
}

impl ComparedRun {
    fn new(seed: u64, keys: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let durability = if seed.is_multiple_of(4) { Durability::EverySecond } else { Durability::Sync };
        let amplification = if seed.is_multiple_of(3) { 140 } else { 0 };
        let pointers_if_new = Some(pointers_of(seed));
        let options = Options { space_amplification_max_percent: amplification, pointers_if_new, ..small(durability) };
        let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(5000)).unwrap();
        node.engine.add_range(CHAINED, KeyRange::ALL).unwrap();
        node.engine.add_range(TRANSFERRED, KeyRange::ALL).unwrap();
        let range = |id, keys, value_max| ComparedRange {
            id,
            epoch: 1,
            seq: 0,
            last: Version::ZERO,
            committed: Version::ZERO,
            pending: Vec::new(),
            keys,
            value_max,
            base: None,
        };
        let ranges = vec![range(PLAIN, keys, 400), range(CHAINED, 8, 3000), range(TRANSFERRED, 40, 600)];
        let counts = if seed.is_multiple_of(2) { Counts::Exact } else { Counts::WithExpired };
        Self { seed, rng: Rng::new(seed), disk, options, node, ranges, counts, compared: 0 }
    }

    fn keys(&self) -> Vec<(RangeId, Vec<u8>)> {
        let step = |range: &ComparedRange| 1.max(range.keys / 300) as usize;
        let of_range = |range: &ComparedRange| {
            let id = range.id;
            (0..range.keys).step_by(step(range)).map(move |key| (id, key_of(key))).collect::<Vec<_>>()
        };
        self.ranges.iter().flat_map(of_range).collect()
    }

    fn next(&self, at: usize) -> Version {
        let range = &self.ranges[at];
        Version::new(Epoch::new(range.epoch).unwrap(), range.seq + 1).unwrap()
    }

    fn write(&mut self, at: usize, key: u64) {
        let (version, id) = (self.next(at), self.ranges[at].id);
        let name = key_of(key);
        let kind = self.rng.below(100);
        let value = vec![self.rng.next() as u8; self.rng.below(self.ranges[at].value_max) as usize];
        let does_expire = self.counts == Counts::WithExpired && self.rng.below(5) == 0;
        let expires_at_ms = if does_expire { self.node.now.wall.0 + 1 + self.rng.below(20_000) } else { 0 };
        let result = if kind == 0 && self.ranges[at].keys < 1000 && self.rng.below(3) == 0 {
            self.node.engine.clear(id, version)
        } else {
            let record = match kind < 25 {
                true => RecordRef::bare(RecordKind::Tombstone, version, &name),
                false => RecordRef { expires_at_ms, ..RecordRef::put(version, &name, &value) },
            };
            self.node.engine.append(id, KeyHash::of(&SECRET, &name), &record)
        };
        match result {
            Ok(()) => {
                let range = &mut self.ranges[at];
                (range.seq, range.last) = (range.seq + 1, version);
                range.pending.push(version);
            }
            Err(EngineError::Overloaded) => self.turn(),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn turn(&mut self) {
        self.node.engine.advance_clock(self.node.now);
        self.node.engine.submit(self.node.now);
        let mut events = Vec::new();
        self.node.engine.wait(self.node.now, &mut events);
        self.node.now = self.node.now.plus_ms(self.rng.below(300));
        for at in 0..self.ranges.len() {
            if self.node.engine.sole_epoch(self.ranges[at].id).is_some() {
                self.commit(at, true);
            }
        }
    }

    fn commit(&mut self, at: usize, is_whole: bool) {
        let range = &mut self.ranges[at];
        let safe = self.node.engine.progress(range.id).watermark_for(self.options.durability);
        let can = range.pending.partition_point(|version| *version <= safe);
        let count = if is_whole { can } else { self.rng.below(can as u64 + 1) as usize };
        if let Some(&last) = range.pending[..count].last() {
            range.committed = last;
            self.node.engine.commit(range.id, last);
            range.pending.drain(..count);
        }
    }

    fn roll_back(&mut self, at: usize) {
        let range = &mut self.ranges[at];
        if self.node.engine.sole_epoch(range.id).is_some() || range.pending.is_empty() {
            return;
        }
        let kept = self.rng.below(range.pending.len() as u64 + 1) as usize;
        let after = range.pending[..kept].last().copied().unwrap_or(range.committed);
        if self.node.engine.rollback(range.id, after).is_ok() {
            range.pending.truncate(kept);
            (range.epoch, range.seq, range.last) = (range.epoch + 1, 0, after);
        }
    }

    fn set_floor(&mut self, at: usize) {
        let range = &self.ranges[at];
        let seq = self.rng.below(range.committed.seq() + 1);
        let floor = Version::new(range.committed.epoch(), seq).unwrap_or(range.committed);
        self.node.engine.set_retain_floor(range.id, floor.min(range.committed));
    }

    fn change_epoch(&mut self, at: usize) {
        if self.ranges[at].base.is_some() || self.node.engine.copying(self.ranges[at].id).is_some() {
            return;
        }
        self.node.engine.sync_all().unwrap();
        self.commit(at, true);
        let range = &mut self.ranges[at];
        if !range.pending.is_empty() || range.committed != self.node.engine.progress(range.id).appended {
            return;
        }
        (range.epoch, range.seq) = (range.epoch + 1, 0);
        if self.node.engine.sole_epoch(range.id).is_some() {
            self.node.engine.end_sole_epoch(range.id).unwrap();
        } else {
            let epoch = self.node.engine.next_sole_epoch(range.id).unwrap();
            range.epoch = range.epoch.max(epoch.get());
            self.node.engine.begin_sole_epoch(range.id, Epoch::new(range.epoch).unwrap(), None).unwrap();
        }
    }

    fn transfer(&mut self, at: usize) {
        let id = self.ranges[at].id;
        let Some(base) = self.ranges[at].base else {
            let range = &mut self.ranges[at];
            if self.node.engine.copying(id).is_some() {
                return;
            }
            range.epoch += 1;
            let base = Version::new(Epoch::new(range.epoch).unwrap(), 500).unwrap();
            self.node.engine.begin_transfer(id, base).unwrap();
            (range.base, range.seq, range.last, range.committed) = (Some(base), 500, base, base);
            range.pending.clear();
            return;
        };
        if self.rng.below(12) == 0 {
            self.node.engine.finish_transfer(id).unwrap();
            self.ranges[at].base = None;
            return;
        }
        for _ in 0..8 {
            let version = Version::new(base.epoch(), 1 + self.rng.below(500)).unwrap();
            let name = key_of(self.rng.below(self.ranges[at].keys));
            let value = vec![self.rng.next() as u8; self.rng.below(600) as usize];
            let is_result = self.rng.below(4) == 0;
            let (tag, result) = (ClientTag { session: 5, seq: version.seq() }, &b"+OK"[..]);
            let record = match is_result {
                true => RecordRef { tag, result, ..RecordRef::bare(RecordKind::Result, version, &name) },
                false => RecordRef::put(version, &name, &value),
            };
            match self.node.engine.append_copied(id, KeyHash::of(&SECRET, &name), &record) {
                Ok(_) => {}
                Err(EngineError::Overloaded) => self.turn(),
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
    }

    fn reopen(&mut self, step: u64) {
        let elsewhere =
            TestNode::open_in_chain(&SimDisk::new(SimOptions::default()), small(Durability::Sync), self.node.now);
        let TestNode { engine, now, .. } = std::mem::replace(&mut self.node, elsewhere.unwrap());
        if self.rng.below(3) == 0 {
            let closed = engine.close();
            drop(closed.unwrap());
        } else {
            drop(engine);
            self.disk.crash(step);
        }
        self.compare(step);
        if self.rng.below(3) == 0 {
            spoil_checkpoints(&self.disk);
        }
        self.node = TestNode::open_in_chain(&self.disk, self.options.clone(), now).unwrap();
        for range in &mut self.ranges {
            let progress = self.node.engine.progress(range.id);
            (range.committed, range.last, range.base) = (progress.committed, progress.appended, None);
            range.epoch = range.epoch.max(progress.appended.epoch().get()) + 1;
            range.seq = 0;
            range.pending = if progress.appended > progress.committed { vec![progress.appended] } else { Vec::new() };
        }
        // An opening's epoch is another one.
        for at in 0..self.ranges.len() {
            if self.node.engine.sole_epoch(self.ranges[at].id).is_some() {
                self.change_epoch(at);
            }
        }
    }

    /// Compares what a loss at this moment leaves.
    fn compare(&mut self, step: u64) {
        let loss = if step.is_multiple_of(2) { Loss::Power } else { Loss::Process };
        let image = self.disk.image(loss, self.seed ^ step);
        let context = format!("seed {} step {step}", self.seed);
        let (keys, now) = (self.keys(), self.node.now.plus_ms(1));
        let had = assert_scan_finds_the_same(&image, &self.options, &keys, self.counts, now, &context);
        self.compared += usize::from(had);
    }

    fn step(&mut self, step: u64) {
        let at = self.rng.below(3) as usize;
        match self.rng.below(200) {
            0..=99 => {
                let key = self.rng.below(self.ranges[at].keys);
                self.write(at, key);
            }
            100..=139 => self.turn(),
            140..=169 => self.commit(at, false),
            170..=172 => self.roll_back(at),
            173..=176 => self.set_floor(at),
            177..=179 => self.change_epoch(at),
            180..=184 => self.transfer(2),
            185..=194 => {
                let key = key_of(self.rng.below(self.ranges[at].keys));
                let _ = get(&mut self.node, self.ranges[at].id, &key, View::Committed);
            }
            195..=197 => self.node.now = self.node.now.plus_ms(2000),
            198 => self.reopen(step),
            _ => self.node.engine.step(3),
        }
        if self.ranges[2].base.is_some() && self.rng.below(3) == 0 {
            self.transfer(2);
        }
    }
}

#[test]
fn random_histories_open_alike_from_a_checkpoint_and_from_the_log() {
    let (mut compared, mut checkpoints) = (0, 0);
    for seed in 0..14 {
        let mut run = ComparedRun::new(seed, 60);
        for step in 0..2400 {
            run.step(step);
            if step % 16 == 15 {
                run.compare(step);
            }
        }
        compared += run.compared;
        checkpoints += run.node.engine.stats().checkpoints;
    }
    assert!(compared > 900, "{compared} images with a checkpoint, {checkpoints} checkpoints");
}

/// Keys whose entries take several pieces: each piece is copied in another iteration.
const MANY: u64 = 26_000;

#[test]
fn a_checkpoint_of_many_pieces_opens_like_the_log() {
    for seed in 2..3 {
        let mut run = ComparedRun::new(seed, MANY);
        run.ranges[0].value_max = 8;
        for key in 0..MANY {
            run.write(0, key);
            if key % 64 == 0 {
                run.turn();
                run.commit(0, true);
            }
        }
        let mut listed = BTreeSet::new();
        for step in 0..15_000 {
            run.step(step);
            let files: BTreeSet<_> =
                run.disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).collect();
            if files != listed {
                listed = files;
                run.compare(step);
            }
        }
        assert!(run.compared > 3, "seed {seed}: {}", run.compared);
    }
}

/// Runs some iterations, and commits nothing.
fn run(node: &mut TestNode, iterations: usize) {
    for _ in 0..iterations {
        node.engine.advance_clock(node.now);
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(100);
    }
}

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

fn put(node: &mut TestNode, range: RangeId, seq: u64, key: &[u8], value: &[u8]) {
    loop {
        let record = RecordRef::put(version(seq), key, value);
        match node.engine.append(range, KeyHash::of(&SECRET, key), &record) {
            Ok(()) => return,
            Err(error) => assert_eq!(error, EngineError::Overloaded),
        }
        run(node, 1);
    }
}

#[test]
fn a_replay_after_a_checkpoint_begins_where_its_segments_still_are() {
    let disk = SimDisk::new(SimOptions::default());
    // The checkpoint is due after most writes.
    let due = Options { checkpoint_log_bytes_min: 200 << 10, ..small(Durability::Sync) };
    let options = Options { space_amplification_max_percent: 10_000, ..due };
    let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(5000)).unwrap();
    node.engine.add_range(CHAINED, KeyRange::ALL).unwrap();
    // Its commit is late, so the checkpoint begins at the first segment.
    put(&mut node, CHAINED, 1, b"late", b"value");
    for seq in 1..=150_u64 {
        // A key in 20 keeps its segment.
        let key = if seq.is_multiple_of(20) { key_of(seq) } else { b"key".to_vec() };
        put(&mut node, PLAIN, seq, &key, &[seq as u8; 1500]);
        run(&mut node, 2);
        node.engine.commit(PLAIN, version(seq));
        node.engine.set_retain_floor(PLAIN, version(seq));
    }
    run(&mut node, 20);
    assert!(node.engine.stats().checkpoints > 0);
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(50_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    node.engine.commit(PLAIN, node.engine.progress(PLAIN).appended);
    node.engine.commit(CHAINED, version(1));
    node.engine.clear(CHAINED, version(2)).unwrap();
    node.engine.clear(PLAIN, version(151)).unwrap();
    run(&mut node, 20);
    node.engine.commit(CHAINED, version(2));
    node.engine.set_retain_floor(CHAINED, version(2));
    node.engine.commit(PLAIN, version(151));
    let segments = node.engine.log_report().segments;
    run(&mut node, 50);
    assert!(node.engine.log_report().segments < segments, "the first segments are dropped");
    let floor = node.engine.replay_floor(PLAIN);
    node.engine.set_retain_floor(PLAIN, version(5));
    assert!(node.engine.replay_floor(PLAIN) >= floor, "dropped records are not offered: {floor:?}");
    assert_eq!(replayed(&mut node, PLAIN, version(5)), None);
    assert_eq!(replayed(&mut node, PLAIN, version(150)).map(|records| records.len()), Some(1));
}

/// A checkpoint has retained records whose segments are dropped before the opening.
#[test]
fn records_before_a_dropped_segment_are_not_replayed_after_an_opening() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: 256 << 10, ..small(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(5000)).unwrap();
    node.engine.set_retain_floor(PLAIN, Version::ZERO);
    let mut seq = 0;
    while node.engine.stats().checkpoints == 0 {
        seq += 1;
        put(&mut node, PLAIN, seq, b"key", &[seq as u8; 1500]);
        run(&mut node, 2);
        node.engine.commit(PLAIN, version(seq));
    }
    let segments = node.engine.log_report().segments;
    node.engine.set_retain_floor(PLAIN, version(seq / 2));
    run(&mut node, 40);
    assert!(node.engine.log_report().segments < segments, "{:?}", node.engine.segments_kept());
    assert_eq!(node.engine.stats().checkpoints, 1);
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(50_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    let (floor, last) = (node.engine.replay_floor(PLAIN), node.engine.progress(PLAIN).appended);
    assert_eq!(last, version(seq));
    assert!(floor > Version::ZERO && floor <= version(seq / 2), "{floor:?}");
    assert_eq!(replayed(&mut node, PLAIN, version(1)), None);
    let left = replayed(&mut node, PLAIN, floor).unwrap();
    assert!(left.iter().map(|record| record.0.seq()).eq(floor.seq() + 1..=seq), "{floor:?}");
}

/// Keys whose entries fill several pieces, in a store where the fast keys of the test are alone in their segments.
#[test]
fn a_key_that_expires_while_a_checkpoint_is_written_does_not_show_its_older_value() {
    let disk = SimDisk::new(SimOptions::default());
    let options =
        Options { space_amplification_max_percent: 0, checkpoint_log_bytes_min: 4 << 20, ..small(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(5000)).unwrap();
    node.engine.add_range(CHAINED, KeyRange::ALL).unwrap();
    let last = (0..10_000).map(key_of).max_by_key(|key| KeyHash::of(&SECRET, key).0).unwrap();
    let mut seq = 0;
    let mut write = |node: &mut TestNode, key: &[u8], value: &[u8], expires_at_ms: u64| {
        seq += 1;
        let record = RecordRef { expires_at_ms, ..RecordRef::put(version(seq), key, value) };
        while let Err(error) = node.engine.append(PLAIN, KeyHash::of(&SECRET, key), &record) {
            assert_eq!(error, EngineError::Overloaded);
            run(node, 1);
        }
        if seq.is_multiple_of(32) {
            run(node, 2);
            let synced = node.engine.progress(PLAIN).synced;
            node.engine.commit(PLAIN, synced);
        }
    };
    // The older value is in the first segment, which a record that is not committed keeps before every checkpoint.
    write(&mut node, &last, b"older", 0);
    put(&mut node, CHAINED, 1, b"late", b"value");
    for _ in 0..40 {
        write(&mut node, b"filler", &[1; 2000], 0);
    }
    let expires_at_ms = 100_000_000;
    write(&mut node, &last, b"newer", expires_at_ms);
    for _ in 0..400 {
        write(&mut node, b"filler", &[2; 2000], 0);
    }
    // Now the newer value moves to the survivors.
    for key in 0..30_000 {
        if key_of(key) != last {
            write(&mut node, &key_of(key), b"", 0);
        }
    }
    run(&mut node, 50);
    assert!(node.engine.stats().moved_records > 0);
    let files = || disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).count();
    while files() == 0 {
        write(&mut node, b"filler", &[3; 2000], 0);
        run(&mut node, 1);
    }
    // The first pieces are written.
    node.now = node.now.plus_ms(expires_at_ms);
    node.engine.advance_clock(node.now);
    assert_eq!(get(&mut node, PLAIN, &last, View::Committed), None);
    assert_eq!(node.engine.stats().checkpoints, 0, "it is still being written");
    run(&mut node, 100);
    let synced = node.engine.progress(PLAIN).synced;
    node.engine.commit(PLAIN, synced);
    run(&mut node, 100);
    assert_eq!(node.engine.stats().checkpoints, 1);
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(5000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    node.now = node.now.plus_ms(2 * expires_at_ms);
    assert_eq!(get(&mut node, PLAIN, &last, View::Committed), None);
}

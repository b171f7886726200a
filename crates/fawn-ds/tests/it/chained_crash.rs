//! Crash test of chained stores: opens every disk image that a loss after each device operation may leave.
//!
//! Several ranges with puts, deletes, clears, expiry, rollbacks, commits that lag behind, reads that are in flight
//! while segments are dropped, sole epochs that begin and end, and openings in between. Each image must come back with
//! the newest view as of what was recovered, the committed view as of what it says was committed, and the same after
//! rolling back to that.
use crate::support::{SECRET, cached, small};
use fawn_ds::internals::{
    Engine, EngineError, Event, Lookup, LookupPlan, OpenReport, Options, RecordKind, RecordRef, View,
};
use fawn_flash::sim::{Capture, Image, Loss};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{ClientTag, Durability, Entry, Epoch, KeyHash, KeyRange, Now, RangeId, TimeMs, Version};
use std::collections::BTreeMap;

const KEYS: u64 = 5;
const RANGES_MAX: u32 = 3;

/// A value: one byte, its repetitions, and the expiry time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    byte: u8,
    len: usize,
    expires_at_ms: u64,
}

type ChainedContent = BTreeMap<u64, Value>;

fn alive(content: &ChainedContent, now: TimeMs) -> ChainedContent {
    content
        .iter()
        .filter(|(_, value)| value.expires_at_ms == 0 || now.0 < value.expires_at_ms)
        .map(|(k, v)| (*k, *v))
        .collect()
}

fn key_of(key: u64) -> Vec<u8> {
    format!("k{key:02}").into_bytes()
}

/// The expected state of one range.
struct Range {
    id: RangeId,
    /// Content after each version ever appended, including rolled-back ones.
    prefixes: BTreeMap<Version, ChainedContent>,
    /// The version after which each version was appended.
    parents: BTreeMap<Version, Version>,
    /// Versions appended and not rolled back.
    branch: Vec<Version>,
    epoch: u32,
    seq: u64,
    committed: Version,
    promised: Vec<Promised>,
    /// Newest version that is committed by the manifest: the base of the newest sole epoch that began or ended.
    sole_base: Version,
}

/// Expectations of a crash after some device operation.
#[derive(Clone, Copy, Debug)]
struct Promised {
    /// Operations so far.
    ops: u64,
    /// Recovered at least.
    kept: Version,
    /// Recovered as committed at least.
    committed: Version,
    /// Recovered as committed at most.
    may_be_committed: Version,
    /// In a sole epoch all that is recovered is committed.
    is_sole: bool,
}

impl Range {
    fn new(i: u32) -> Self {
        let prefixes = BTreeMap::from([(Version::ZERO, ChainedContent::new())]);
        let (id, parents, promised) = (RangeId(i + 1), BTreeMap::new(), Vec::new());
        let (committed, sole_base) = (Version::ZERO, Version::ZERO);
        Self { id, prefixes, parents, branch: Vec::new(), epoch: 1, seq: 0, committed, promised, sole_base }
    }

    fn last(&self) -> Version {
        self.branch.last().copied().unwrap_or(self.committed)
    }

    fn next(&self) -> Version {
        Version::new(Epoch::new(self.epoch).unwrap(), self.seq + 1).unwrap()
    }

    fn appended(&mut self, version: Version, content: ChainedContent) {
        self.seq += 1;
        self.parents.insert(version, self.last());
        self.branch.push(version);
        self.prefixes.insert(version, content);
    }

    fn cut(&mut self, last: Version) {
        self.branch.retain(|version| *version <= last);
        self.epoch += 1;
        self.seq = 0;
    }

    /// Adopts the versions that an opening found. A rollback that was lost in the crash did not happen.
    fn reopened(&mut self, committed: Version, recovered: Version) {
        let parent = |version: &Version| self.parents.get(version).copied();
        let lineage = std::iter::successors(Some(recovered), parent).take_while(|version| *version > committed);
        self.branch = lineage.collect();
        self.branch.reverse();
        self.committed = committed;
        self.cut(recovered);
    }
}

/// Reads until the lookup has a result.
fn finish(engine: &mut Engine<SimDevice>, mut plan: LookupPlan, now: Now) -> Option<Entry> {
    loop {
        engine.read(plan, 1);
        let mut events = Vec::new();
        plan = 'wait: loop {
            engine.wait(now, &mut events);
            for event in events.drain(..) {
                if let Event::Lookup { plan, user: 1 } = event {
                    break 'wait plan;
                }
            }
        };
        plan = match engine.resume(plan, now.wall).unwrap() {
            Lookup::Found(entry) => return Some(entry.to_owned()),
            Lookup::Absent | Lookup::Unsettled => return None,
            Lookup::Read(plan) => plan,
        };
    }
}

fn value_of(entry: &Entry) -> Value {
    let byte = entry.value.first().copied().unwrap_or_default();
    assert!(entry.value.iter().all(|found| *found == byte), "a value of one byte");
    Value { byte, len: entry.value.len(), expires_at_ms: entry.expires_at_ms }
}

fn content_of(engine: &mut Engine<SimDevice>, range: RangeId, view: View, now: Now) -> ChainedContent {
    let mut content = ChainedContent::new();
    for i in 0..KEYS {
        let (key, found) = (key_of(i), None);
        let found = match engine.lookup(range, KeyHash::of(&SECRET, &key), &key, view, now.wall).unwrap() {
            Lookup::Found(entry) => Some(entry.to_owned()),
            Lookup::Absent | Lookup::Unsettled => found,
            Lookup::Read(plan) => finish(engine, plan, now),
        };
        content.extend(found.map(|entry| (i, value_of(&entry))));
    }
    content
}

/// Counts of images, and of images whose opening cut off, dropped or did not commit something.
#[derive(Default, Debug)]
struct Tally {
    images: usize,
    torn: usize,
    behind: usize,
    dropped: u64,
    stale_reads: usize,
    /// Ranges of images in a sole epoch, and in the first operations after one.
    sole: usize,
    changes: usize,
}

struct ChainedCrashRun {
    seed: u64,
    disk: SimDisk,
    loss: Loss,
    options: Options,
    engine: Engine<SimDevice>,
    ranges: Vec<Range>,
    now: Now,
    /// Lookups in flight: the range's index and the key.
    reads: BTreeMap<u64, (usize, u64)>,
    tally: Tally,
    /// Whether ranges go into sole epochs and back.
    has_sole_epochs: bool,
}

impl ChainedCrashRun {
    fn new(seed: u64, options: Options, loss: Loss, has_sole_epochs: bool) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let now = Now::at(5000);
        let (mut engine, _) = Engine::open(SimDevice::attach(&disk), options.clone(), now).unwrap();
        let ranges: Vec<_> = (0..RANGES_MAX).map(Range::new).collect();
        for range in &ranges {
            engine.add_range(range.id, KeyRange::ALL).unwrap();
        }
        let (reads, tally) = (BTreeMap::new(), Tally::default());
        Self { seed, disk, loss, options, engine, ranges, now, reads, tally, has_sole_epochs }
    }

    fn is_sole(&self, at: usize) -> bool {
        self.engine.sole_epoch(self.ranges[at].id).is_some()
    }

    /// An activation: all of the log is synced and committed, and the next epoch is a sole one or a chain's.
    fn activate(&mut self, at: usize, is_sole: bool) {
        self.engine.sync_all().unwrap();
        let range = &mut self.ranges[at];
        range.committed = range.last();
        self.engine.commit(range.id, range.committed);
        range.branch.clear();
        range.cut(range.committed);
        if is_sole {
            self.engine.begin_sole_epoch(range.id, Epoch::new(range.epoch).unwrap(), None).unwrap();
        } else {
            self.engine.end_sole_epoch(range.id).unwrap();
        }
        range.sole_base = range.committed;
        self.tally.changes += 1;
        self.promise(at);
    }

    fn promise(&mut self, at: usize) {
        let is_sole = self.is_sole(at);
        let range = &mut self.ranges[at];
        let progress = self.engine.progress(range.id);
        let kept = if self.loss == Loss::Power { progress.synced } else { progress.flushed };
        let committed = if is_sole { kept } else { range.sole_base };
        let may_be_committed = if is_sole { progress.appended } else { progress.committed };
        range.promised.push(Promised { ops: self.disk.ops(), kept, committed, may_be_committed, is_sole });
    }

    fn write(&mut self, rng: &mut Rng, at: usize) {
        let range = &mut self.ranges[at];
        let (version, mut content) = (range.next(), range.prefixes[&range.last()].clone());
        let (kind, key) = (rng.below(60), rng.below(KEYS));
        let len = if rng.below(2) == 0 { 6000 + rng.below(9000) } else { rng.below(300) } as usize;
        let expires_at_ms = if rng.below(6) == 0 { self.now.wall.0 + 1 + rng.below(4000) } else { 0 };
        let name = key_of(key);
        let result = if kind == 0 {
            content.clear();
            self.engine.clear(range.id, version)
        } else if kind < 14 {
            content.remove(&key);
            let record = RecordRef::bare(RecordKind::Tombstone, version, &name);
            self.engine.append(range.id, KeyHash::of(&SECRET, &name), &record)
        } else {
            let byte = if len == 0 { 0 } else { rng.next() as u8 };
            content.insert(key, Value { byte, len, expires_at_ms });
            let value = vec![byte; len];
            let record = RecordRef { expires_at_ms, tag: ClientTag::NONE, ..RecordRef::put(version, &name, &value) };
            self.engine.append(range.id, KeyHash::of(&SECRET, &name), &record)
        };
        match result {
            Ok(()) => range.appended(version, content),
            Err(EngineError::Overloaded) => self.turn(rng),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn turn(&mut self, rng: &mut Rng) {
        let mut events = Vec::new();
        self.engine.submit(self.now);
        self.engine.wait(self.now, &mut events);
        for event in events {
            if let Event::Lookup { plan, user } = event {
                self.resume(plan, user);
            }
        }
        self.now = self.now.plus_ms(rng.below(600));
    }

    /// Completes a read: its result is the current committed view, even if segments were dropped since it began.
    fn resume(&mut self, plan: LookupPlan, user: u64) {
        let Some((at, key)) = self.reads.remove(&user) else { return };
        let found = match self.engine.resume(plan, self.now.wall).unwrap() {
            Lookup::Found(entry) => Some(entry.to_owned()),
            Lookup::Absent | Lookup::Unsettled => None,
            Lookup::Read(plan) => {
                self.tally.stale_reads += 1;
                self.engine.read(plan, user);
                self.reads.insert(user, (at, key));
                return;
            }
        };
        let range = &self.ranges[at];
        let expected = alive(&range.prefixes[&range.committed], self.now.wall).get(&key).copied();
        assert_eq!(found.as_ref().map(value_of), expected, "seed {}: {:?} key {key}", self.seed, range.id);
    }

    fn start_read(&mut self, rng: &mut Rng, at: usize) {
        let (key, user) = (rng.below(KEYS), 1000 + rng.next() % (1 << 40));
        let (id, name, now) = (self.ranges[at].id, key_of(key), self.now.wall);
        let lookup = self.engine.lookup(id, KeyHash::of(&SECRET, &name), &name, View::Committed, now).unwrap();
        if let Lookup::Read(plan) = lookup {
            self.engine.read(plan, user);
            self.reads.insert(user, (at, key));
        }
    }

    /// Commits some of the records that are as safe as the durability mode requires.
    fn commit(&mut self, rng: &mut Rng, at: usize) {
        let range = &mut self.ranges[at];
        let safe = self.engine.progress(range.id).watermark_for(self.options.durability);
        let can: Vec<_> = range.branch.iter().copied().filter(|v| *v <= safe && *v > range.committed).collect();
        if can.is_empty() {
            return;
        }
        let upto = if rng.below(2) == 0 { can.len() } else { 1 + rng.below(can.len() as u64) as usize };
        range.committed = can[upto - 1];
        self.engine.commit(range.id, range.committed);
        if rng.below(3) > 0 {
            self.engine.set_retain_floor(range.id, range.committed);
        }
    }

    fn roll_back(&mut self, rng: &mut Rng, at: usize) {
        if self.is_sole(at) {
            return;
        }
        let range = &mut self.ranges[at];
        let above = range.branch.iter().copied().filter(|version| *version > range.committed);
        let can: Vec<_> = std::iter::once(range.committed).chain(above).collect();
        let after = can[rng.below(can.len() as u64) as usize];
        match self.engine.rollback(range.id, after) {
            Ok(()) => range.cut(after),
            Err(EngineError::Overloaded) => {}
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    /// Crashes the store, or closes it where a crash would lose promised records; then opens it.
    fn reopen(&mut self, seed: u64) {
        self.tally.dropped += self.engine.stats().segments_dropped;
        let elsewhere = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let (spare, _) = Engine::open(elsewhere, small(Durability::Sync), self.now).unwrap();
        let ended = std::mem::replace(&mut self.engine, spare);
        let is_crash = self.options.durability == Durability::Sync && seed.is_multiple_of(2);
        if is_crash {
            drop(ended);
            self.disk.crash(seed);
        } else {
            drop(ended.close().unwrap());
        }
        self.reads.clear();
        let (engine, report) = Engine::open(SimDevice::attach(&self.disk), self.options.clone(), self.now).unwrap();
        self.engine = engine;
        for range in &mut self.ranges {
            let found = report.ranges.iter().find(|found| found.range == range.id).unwrap();
            let is_sole = self.engine.sole_epoch(range.id).is_some();
            let expected = if is_sole { range.last() } else { range.committed };
            assert!(
                is_crash || found.committed == expected,
                "closing marks what is committed: {expected:?}, found {found:?}, sole: {is_sole}"
            );
            range.reopened(found.committed, found.recovered);
        }
        // An opening's epoch is another one, of one kind or the other.
        for at in 0..self.ranges.len() {
            if self.is_sole(at) {
                self.activate(at, !seed.is_multiple_of(3));
            }
        }
    }

    fn step(&mut self, rng: &mut Rng, step: u64) {
        // Half of the writes are to the last range.
        let at = (rng.below(2 * u64::from(RANGES_MAX)) as usize).min(RANGES_MAX as usize - 1);
        match rng.below(200) {
            0..=99 => self.write(rng, at),
            100..=139 => self.turn(rng),
            140..=181 => self.commit(rng, at),
            182..=184 => self.roll_back(rng, at),
            185..=188 if self.has_sole_epochs => self.activate(at, !self.is_sole(at)),
            185..=198 => self.start_read(rng, at),
            _ => self.reopen(self.seed + step),
        }
        for at in 0..self.ranges.len() {
            self.promise(at);
        }
        if step % 8 == 7 {
            self.check_images();
        }
    }

    fn check_images(&mut self) {
        for image in self.disk.take_images() {
            let context =
                format!("seed {} operation {} (cargo test -p fawn-ds --test it chained_crash::)", self.seed, image.op);
            let now = self.now.plus_ms(1);
            let (mut engine, report) = Engine::open(SimDevice::attach(&image.disk), self.options.clone(), now)
                .unwrap_or_else(|error| panic!("{context}: does not open: {error}"));
            self.tally.images += 1;
            self.tally.torn += usize::from(!report.truncated.is_empty());
            for range in &self.ranges {
                self.tally.sole += usize::from(engine.sole_epoch(range.id).is_some());
                self.tally.behind += usize::from(check_range(range, &mut engine, &report, &image, now, &context));
            }
        }
    }
}

/// Checks one range of an image; returns whether it recovered uncommitted records.
fn check_range(
    range: &Range,
    engine: &mut Engine<SimDevice>,
    report: &OpenReport,
    image: &Image,
    now: Now,
    context: &str,
) -> bool {
    let context = format!("{context} {:?}", range.id);
    let Some(found) = report.ranges.iter().find(|found| found.range == range.id) else { panic!("{context}: is gone") };
    let next = range.promised.partition_point(|promised| promised.ops <= image.op);
    if let Some(before) = next.checked_sub(1).map(|before| range.promised[before]) {
        assert!(found.recovered >= before.kept, "{context}: {before:?}, recovered {:?}", found.recovered);
        assert!(found.committed >= before.committed, "{context}: {before:?}, committed {:?}", found.committed);
        // Between two promises an opening may begin another epoch.
        let around = &range.promised[next - 1..range.promised.len().min(next + 1)];
        let most = around.iter().map(|promised| promised.may_be_committed).max();
        assert!(most >= Some(found.committed), "{context}: {around:?}, committed {:?}", found.committed);
        if around.iter().all(|promised| promised.is_sole) {
            assert_eq!(found.committed, found.recovered, "{context}: {around:?}");
        }
    }
    let as_of = |version: Version| {
        let prefix =
            range.prefixes.get(&version).unwrap_or_else(|| panic!("{context}: {version:?} was never appended"));
        alive(prefix, now.wall)
    };
    let latest = content_of(engine, range.id, View::Latest, now);
    assert_eq!(latest, as_of(found.recovered), "{context}: latest as of {:?} ({:?})", found.recovered, found.committed);
    let committed = content_of(engine, range.id, View::Committed, now);
    assert_eq!(committed, as_of(found.committed), "{context}: committed as of {:?}", found.committed);
    engine.end_sole_epoch(range.id).unwrap();
    while let Err(error) = engine.rollback(range.id, found.committed) {
        assert_eq!(error, EngineError::Overloaded, "{context}");
        engine.submit(now);
        engine.wait(now, &mut Vec::new());
    }
    let latest = content_of(engine, range.id, View::Latest, now);
    assert_eq!(latest, committed, "{context}: rolled back to {:?}", found.committed);
    found.committed < found.recovered
}

fn run(seed: u64, options: Options, loss: Loss, steps: u64, has_sole_epochs: bool) -> Tally {
    let mut rng = Rng::new(seed);
    let retained_records_max = if seed.is_multiple_of(3) { 8 } else { 1 << 16 };
    let mut run = ChainedCrashRun::new(seed, Options { retained_records_max, ..options }, loss, has_sole_epochs);
    for step in 0..2 * steps {
        if step == steps {
            // By now, segments become dead as fast as they are written.
            run.disk.capture(Capture::Every { stride: 1, loss, seed });
        }
        run.step(&mut rng, step);
    }
    run.check_images();
    run.tally.dropped += run.engine.stats().segments_dropped;
    run.tally
}

fn run_all(has_sole_epochs: bool) -> Tally {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        for (options, durability, loss) in [
            (small as fn(Durability) -> Options, Durability::Sync, Loss::Power),
            (cached, Durability::EverySecond, Loss::Process),
            (cached, Durability::Sync, Loss::Power),
            (small, Durability::EverySecond, Loss::Power),
        ] {
            let tally = run(seed, options(durability), loss, 250, has_sole_epochs);
            sum.images += tally.images;
            sum.torn += tally.torn;
            sum.behind += tally.behind;
            sum.dropped += tally.dropped;
            sum.stale_reads += tally.stale_reads;
            sum.sole += tally.sole;
            sum.changes += tally.changes;
        }
    }
    sum
}

#[test]
fn every_image_of_a_chained_store_has_both_views_whole() {
    let sum = run_all(false);
    assert!(sum.images > 1500 && sum.torn > 20 && sum.behind > 1000, "{sum:?}");
    assert!(sum.dropped > 60 && sum.stale_reads > 0, "{sum:?}");
}

#[test]
fn every_image_over_sole_epochs_loses_no_commit_and_invents_none() {
    let sum = run_all(true);
    assert!(sum.images > 1500 && sum.torn > 20 && sum.behind > 300, "{sum:?}");
    assert!(sum.dropped > 60 && sum.sole > 1000 && sum.changes > 100, "{sum:?}");
}

/// Number of seeds for each kind of history.
const SEEDS: u64 = 3;

//! Copies of a range: between two engines during writes, and after any crash.
//!
//! The tail is a model that knows every version. The receiver is an engine that lags behind, as a chain member does. It
//! accepts chunks by the protocol's rule: none that was read at a version before the end of its own log.
use crate::support::{RANGE, SECRET, TestNode, scanned, small};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::record::Stored;
use fawn_ds::internals::format::{FRAMES_OFFSET, frame, segment};
use fawn_ds::internals::{
    EngineError, Options, RangeProgress, RecordKind, RecordRef, Replay, TransferPlace, TransferScan, TransferStep,
    TransferredResults, View,
};
use fawn_flash::sim::{Capture, Image, Loss};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{ClientTag, Durability, Epoch, KeyHash, KeyRange, Now, RangeId, Version};
use std::collections::BTreeMap;

const KEYS: u64 = 40;
const OTHER: RangeId = RangeId(8);

fn chained(durability: Durability) -> Options {
    small(durability)
}

fn version(epoch: u32, seq: u64) -> Version {
    Version::new(Epoch::new(epoch).unwrap(), seq).unwrap()
}

fn hash(key: &[u8]) -> KeyHash {
    KeyHash::of(&SECRET, key)
}

/// An owned record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owned {
    kind: RecordKind,
    version: Version,
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    expires_at_ms: u64,
    tag: ClientTag,
    result: Vec<u8>,
}

impl Owned {
    fn of(record: &RecordRef<'_>) -> Self {
        let RecordRef { kind, version, key, value, flags, expires_at_ms, tag, result } = *record;
        let (key, value, result) = (key.to_vec(), value.to_vec(), result.to_vec());
        Self { kind, version, key, value, flags, expires_at_ms, tag, result }
    }

    fn as_ref(&self) -> RecordRef<'_> {
        let Self { kind, version, flags, expires_at_ms, tag, .. } = *self;
        RecordRef { kind, version, key: &self.key, value: &self.value, flags, expires_at_ms, tag, result: &self.result }
    }

    fn random(rng: &mut Rng, version: Version) -> Self {
        let len = if rng.below(12) == 0 { rng.below(9000) } else { rng.below(900) };
        let stamp = rng.next();
        let is_put = rng.below(4) > 0;
        let kind = if is_put { RecordKind::Put } else { RecordKind::Tombstone };
        let is_tagged = rng.below(3) == 0;
        let tag = if is_tagged { ClientTag { session: stamp, seq: 1 + rng.below(9) } } else { ClientTag::NONE };
        Self {
            kind,
            version,
            key: format!("k{:03}", rng.below(KEYS)).into_bytes(),
            value: if is_put { (0..len).map(|i| (stamp >> (i % 57)) as u8).collect() } else { Vec::new() },
            flags: if is_put { (stamp & 3) as u32 } else { 0 },
            expires_at_ms: if is_put && rng.below(9) == 0 { 1 << 50 } else { 0 },
            tag,
            result: if is_tagged { b"+OK".to_vec() } else { Vec::new() },
        }
    }
}

/// The range on the other members: its complete history over all epochs.
#[derive(Default)]
struct Tail {
    history: Vec<Owned>,
}

impl Tail {
    fn end(&self) -> Version {
        self.history.last().map_or(Version::ZERO, |record| record.version)
    }

    fn write(&mut self, rng: &mut Rng, epoch: u32) {
        let record = Owned::random(rng, version(epoch, self.history.len() as u64 + 1));
        self.history.push(record);
    }

    /// The newest record of each key at a version, including deletes.
    fn newest(&self, through: Version) -> BTreeMap<&[u8], &Owned> {
        let known = self.history.iter().filter(|record| record.version <= through);
        known.map(|record| (&record.key[..], record)).collect()
    }

    fn content(&self, through: Version) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let newest = self.newest(through).into_iter().filter(|(_, record)| record.kind == RecordKind::Put);
        newest.map(|(key, record)| (key.to_vec(), record.value.clone())).collect()
    }

    fn next_after(&self, after: Version) -> Option<&Owned> {
        self.history.iter().find(|record| record.version > after)
    }

    /// Results of tagged operations up to the base, as a copy contains them.
    fn results(&self, base: Version) -> Vec<Owned> {
        let tagged = self.history.iter().filter(|record| record.version <= base && record.tag != ClientTag::NONE);
        let result_of = |record: &Owned| Owned {
            kind: RecordKind::Result,
            value: Vec::new(),
            flags: 0,
            expires_at_ms: 0,
            ..record.clone()
        };
        tagged.map(result_of).collect()
    }
}

/// A copy in progress at the receiver.
struct Copying {
    base: Version,
    /// Results still to copy; after them, keys in order.
    results: Vec<Owned>,
    cursor: Option<Vec<u8>>,
    /// Chunks already accepted, which the network may deliver again.
    old: Vec<(Version, Vec<Owned>)>,
    /// The newest version at which a chunk was read.
    as_of: Version,
    is_finishing: bool,
    /// The version promised until the range is durably emptied.
    before: Option<Version>,
}

/// States that a crash after an operation may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AllowedState {
    /// The range may be empty, at version zero.
    invalidated: bool,
    /// The range may have its old or its new content, at least through this version.
    whole: Option<Version>,
    /// The base of its last complete copy. Keys up to the base that changed until `as_of` may be missing until the
    /// stream catches up.
    base: Version,
    as_of: Version,
}

struct CopyRun {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    tail: Tail,
    copying: Option<Copying>,
    epoch: u32,
    /// Number of writes to another range in the same log.
    others: u64,
    /// Allowed states by number of operations.
    allowed: Vec<(u64, AllowedState)>,
    base: Version,
    as_of: Version,
    copies: u64,
}

impl CopyRun {
    fn new(seed: u64, options: Options) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open_in_chain(&disk, options.clone(), Now::at(5000)).unwrap();
        let (tail, copying, allowed) = (Tail::default(), None, Vec::new());
        let (base, as_of) = (Version::ZERO, Version::ZERO);
        let mut run = Self { disk, options, node, tail, copying, epoch: 1, others: 0, allowed, base, as_of, copies: 0 };
        run.note(true, Some(Version::ZERO));
        run
    }

    fn note(&mut self, invalidated: bool, whole: Option<Version>) {
        let allowed = AllowedState { invalidated, whole, base: self.base, as_of: self.as_of };
        self.allowed.push((self.disk.ops(), allowed));
    }

    /// Promises the records that the receiver has synced, except those of an incomplete copy.
    fn note_synced(&mut self) {
        let synced = self.node.engine.progress(RANGE).synced;
        match &self.copying {
            None => self.note(synced == Version::ZERO, Some(synced)),
            Some(copying) if !copying.is_finishing && !self.node.engine.transfer_begun(RANGE) => {
                self.note(true, copying.before);
            }
            Some(copying) if copying.is_finishing => {
                (self.base, self.as_of) = (copying.base, self.as_of.max(copying.as_of));
                self.note(true, Some(copying.base));
            }
            Some(_) => self.note(true, None),
        }
    }

    fn turn(&mut self) {
        self.node.engine.submit(self.node.now);
        self.node.engine.wait(self.node.now, &mut Vec::new());
        self.node.now = self.node.now.plus_ms(50);
        let progress = self.node.engine.progress(RANGE);
        self.node.engine.commit(RANGE, progress.appended);
        if self.copying.as_ref().is_some_and(|copying| copying.is_finishing)
            && self.node.engine.copying(RANGE).is_none()
        {
            let copying = self.copying.take().unwrap();
            (self.base, self.as_of) = (copying.base, copying.as_of);
            self.copies += 1;
        }
        self.note_synced();
    }

    fn retry(&mut self, mut append: impl FnMut(&mut TestNode) -> Result<bool, EngineError>) -> bool {
        for _ in 0..1000 {
            match append(&mut self.node) {
                Err(EngineError::Overloaded) => self.turn(),
                result => return result.unwrap(),
            }
        }
        panic!("the engine stays overloaded: {:?}", self.node.engine);
    }

    /// Appends the next record of the history at the receiver.
    fn stream(&mut self) {
        let end = self.node.engine.progress(RANGE).appended;
        let Some(record) = self.tail.next_after(end).cloned() else { return };
        self.retry(|node| node.engine.append(RANGE, hash(&record.key), &record.as_ref()).map(|()| true));
    }

    fn begin(&mut self) {
        let base = self.tail.end();
        // From the first operation on the old content may be gone; after the last one it is.
        let before = match &self.copying {
            None => Some(self.node.engine.progress(RANGE).synced),
            Some(copying) if copying.is_finishing => Some(copying.base),
            Some(copying) => copying.before.filter(|_| !self.node.engine.transfer_begun(RANGE)),
        };
        match &self.copying {
            None => self.note(true, before),
            Some(_) => self.note_synced(),
        }
        let is_waiting = self.disk.ops().is_multiple_of(2);
        if is_waiting {
            self.node.engine.begin_transfer(RANGE, base).unwrap();
            assert!(self.node.engine.transfer_begun(RANGE), "the transfer has begun after the wait");
        } else {
            self.node.engine.start_transfer(RANGE, base).unwrap();
        }
        assert_eq!(self.node.engine.copying(RANGE), Some(base));
        let progress = RangeProgress { appended: base, flushed: base, synced: base, committed: base };
        assert_eq!(self.node.engine.progress(RANGE), progress);
        assert_eq!(self.node.engine.len(RANGE), 0, "a copy starts empty");
        let results = self.tail.results(base);
        let cursor = Some(Vec::new());
        self.copying =
            Some(Copying { base, results, cursor, old: Vec::new(), as_of: base, is_finishing: false, before });
        self.copying.as_mut().unwrap().before = before.filter(|_| !is_waiting);
        self.note_synced();
    }

    /// Fills segments with records of another range; each segment begins with commit marks.
    fn write_other(&mut self) {
        self.others += 1;
        let (version, value) = (version(1, self.others), vec![3; 12_000]);
        self.retry(|node| {
            let _ = node.engine.add_range(OTHER, KeyRange::ALL);
            node.engine.append(OTHER, hash(b"other"), &RecordRef::put(version, b"other", &value)).map(|()| true)
        });
        self.node.engine.commit(OTHER, version);
    }

    /// Delivers the next chunk, or an earlier one again.
    fn chunk(&mut self, rng: &mut Rng) {
        let end = self.node.engine.progress(RANGE).appended;
        if !self.node.engine.transfer_begun(RANGE) {
            return;
        }
        let Some(copying) = self.copying.as_mut().filter(|copying| !copying.is_finishing) else { return };
        if rng.below(4) == 0 {
            let again = copying.old.iter().rev().find(|(as_of, _)| end <= *as_of).cloned();
            if let Some((_, records)) = again {
                self.take(&records);
            }
            return;
        }
        if !copying.results.is_empty() {
            let records: Vec<_> = copying.results.drain(..copying.results.len().min(25)).collect();
            self.take(&records);
            return;
        }
        let Some(cursor) = copying.cursor.clone() else {
            copying.is_finishing = true;
            self.note_synced();
            self.node.engine.finish_transfer(RANGE).unwrap();
            return;
        };
        let (base, as_of) = (copying.base, self.tail.end());
        let newest = self.tail.newest(as_of);
        let after = newest.range(&cursor[..]..).filter(|(key, _)| cursor.is_empty() || ***key != cursor[..]);
        let part: Vec<_> = after.take(1 + rng.below(6) as usize).collect();
        copying.cursor = part.last().map(|(key, _)| key.to_vec());
        let is_wanted = |record: &&Owned| record.kind == RecordKind::Put && record.version <= base;
        let records: Vec<_> = part.into_iter().map(|(_, record)| *record).filter(is_wanted).cloned().collect();
        copying.as_of = as_of;
        copying.old.push((as_of, records.clone()));
        self.take(&records);
    }

    fn take(&mut self, records: &[Owned]) {
        for record in records {
            self.retry(|node| node.engine.append_copied(RANGE, hash(&record.key), &record.as_ref()));
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(300) {
            0..=89 => self.tail.write(rng, self.epoch),
            90..=179 => self.stream(),
            180..=239 => self.chunk(rng),
            240..=289 => self.turn(),
            290..=296 => self.write_other(),
            297..=298 if self.copying.is_none() || rng.below(3) == 0 => self.begin(),
            _ if rng.below(2) == 0 => self.reopen(rng.next()),
            _ => {}
        }
    }

    /// Power loss at the receiver: a copy in progress leaves nothing.
    fn reopen(&mut self, seed: u64) {
        let is_open = |copying: &Copying| !copying.is_finishing && copying.before.is_none();
        let finished = self.copying.as_ref().is_none_or(|copying| !is_open(copying));
        self.disk.crash(seed);
        self.node = TestNode::open_in_chain(&self.disk, self.options.clone(), self.node.now).unwrap();
        let recovered = self.node.engine.progress(RANGE).appended;
        assert!(finished || recovered == Version::ZERO, "an incomplete copy was recovered through {recovered:?}");
        let copying = self.copying.take();
        if recovered == Version::ZERO {
            (self.base, self.as_of) = (Version::ZERO, Version::ZERO);
        } else if let Some(copying) = copying.filter(|copying| copying.is_finishing) {
            (self.base, self.as_of) = (copying.base, copying.as_of);
        }
        self.node.engine.commit(RANGE, recovered);
        self.note_synced();
    }
}

fn content_of(node: &mut TestNode) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut content = BTreeMap::new();
    for i in 0..KEYS {
        let key = format!("k{i:03}").into_bytes();
        if let Some(entry) = node.get(&key, View::Committed).unwrap() {
            content.insert(key, entry.value);
        }
    }
    content
}

fn results_of(node: &mut TestNode) -> Vec<Owned> {
    let (mut from, mut results) = (0, Vec::new());
    loop {
        let visit = |record: &RecordRef<'_>| results.push(Owned::of(record));
        match node.engine.copied_results(RANGE, from, 500, visit).unwrap() {
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

#[derive(Clone, Copy, Default, Debug)]
struct CopyImageCounts {
    images: usize,
    invalidated: usize,
    copied: usize,
    /// Complete copies of which some keys are still to arrive by the stream.
    behind: usize,
}

fn check_image(run: &CopyRun, image: &Image, context: &str, classes: &mut CopyImageCounts) {
    let op = image.op;
    let context = format!("{context}: operation {op}");
    let mut node = TestNode::open_in_chain(&image.disk, run.options.clone(), Now::at(9000))
        .unwrap_or_else(|error| panic!("{context}: does not open: {error}"));
    assert_eq!(node.engine.copying(RANGE), None, "{context}: an interrupted copy must not survive");
    let appended = node.engine.progress(RANGE).appended;
    node.engine.commit(RANGE, appended);
    let other = node.engine.progress(OTHER).appended;
    node.engine.commit(OTHER, other);
    // The states noted between the last operation before the image and the first one after it.
    let at = run.allowed.partition_point(|(noted, _)| *noted < op);
    let mut allowed: Vec<_> =
        run.allowed[at.saturating_sub(1)..].iter().take_while(|(noted, _)| *noted <= op).collect();
    allowed.extend(run.allowed[at..].iter().find(|(noted, _)| *noted > op));
    classes.images += 1;
    let content = content_of(&mut node);
    if appended == Version::ZERO {
        assert!(allowed.iter().any(|(_, allowed)| allowed.invalidated), "{context}: empty where {allowed:?}");
        assert!(content.is_empty(), "{context}: invalidated, but {} keys are left", content.len());
        assert!(results_of(&mut node).is_empty(), "{context}: invalidated, but results are left");
        classes.invalidated += 1;
        return;
    }
    let whole = allowed.iter().find(|(_, allowed)| allowed.whole.is_some_and(|promised| appended >= promised));
    let Some((_, AllowedState { base, as_of, .. })) = whole.copied() else {
        panic!("{context}: found {appended:?} where {allowed:?}")
    };
    let (newest, now) = (run.tail.newest(appended), run.tail.newest(*as_of));
    for (key, record) in newest {
        let expected = (record.kind == RecordKind::Put).then_some(&record.value);
        // The chunk was read after the key had been replaced: the new record arrives by the stream.
        let is_replaced = record.version <= *base && now.get(key).is_some_and(|now| now.version > *base);
        let found = content.get(key);
        assert!(found == expected || (is_replaced && found.is_none()), "{context}: {key:?} as of {appended:?}");
        classes.behind += usize::from(found != expected);
    }
    assert_eq!(results_of(&mut node), unique(&run.tail.results(*base), &results_of(&mut node)), "{context}");
    classes.copied += usize::from(*base > Version::ZERO);
    catch_up(run, node, &context, &image.disk);
}

/// The expected results, each of which must be found at least once. Returns `found` if both are the same set.
fn unique(expected: &[Owned], found: &[Owned]) -> Vec<Owned> {
    let are_all_known = found.iter().all(|result| expected.contains(result));
    let are_all_there = expected.iter().all(|result| found.contains(result));
    if are_all_known && are_all_there { found.to_vec() } else { expected.to_vec() }
}

/// Streams the missing records. Then everything must be present, also after another opening.
fn catch_up(run: &CopyRun, mut node: TestNode, context: &str, disk: &SimDisk) {
    let mut end = node.engine.progress(RANGE).appended;
    while let Some(record) = run.tail.next_after(end) {
        match node.engine.append(RANGE, hash(&record.key), &record.as_ref()) {
            Ok(()) => end = record.version,
            Err(EngineError::Overloaded) => drop(node.turn()),
            Err(error) => panic!("{context}: {error}"),
        }
        node.engine.commit(RANGE, end);
    }
    let expected = run.tail.content(end);
    assert_eq!(content_of(&mut node), expected, "{context}: caught up");
    node.settle();
    assert_eq!(node.engine.len(RANGE), expected.len() as u64, "{context}: number of keys");
    node.engine.close().unwrap();
    let mut node = TestNode::open_in_chain(disk, run.options.clone(), Now::at(9000)).unwrap();
    node.engine.commit(RANGE, end);
    assert_eq!(content_of(&mut node), expected, "{context}: opened again");
}

fn workload(seed: u64, options: Options, loss: Loss, steps: usize, classes: &mut CopyImageCounts) -> CopyRun {
    let context = format!("seed {seed} (cargo test -p fawn-ds --test it copy::)");
    let mut rng = Rng::new(seed);
    let mut run = CopyRun::new(seed, options);
    run.disk.capture(Capture::Every { stride: 1, loss, seed });
    for _ in 0..steps {
        run.step(&mut rng);
        for image in run.disk.take_images() {
            check_image(&run, &image, &context, classes);
        }
    }
    run
}

#[test]
fn every_image_of_a_transfer_is_invalidated_or_whole() {
    let (mut classes, mut copies, mut dropped) = (CopyImageCounts::default(), 0, 0);
    for seed in 0..10 {
        let durability = if seed % 3 == 2 { Durability::EverySecond } else { Durability::Sync };
        let run = workload(seed, chained(durability), Loss::Power, 1300, &mut classes);
        copies += run.copies;
        dropped += run.node.engine.stats().segments_dropped;
    }
    println!("{classes:?}, {copies} copies, {dropped} segments dropped");
    assert!(classes.images >= 1500 && classes.invalidated > 200 && classes.copied > 200, "{classes:?}");
    assert!(copies >= 10 && dropped > 2, "{copies} copies, {dropped} segments dropped");
}

/// Copies the range from one engine to another, with device reads at the donor. Returns the number of chunks.
fn transfer_between(donor: &mut TestNode, receiver: &mut TestNode, base: Version, bytes_max: usize) -> usize {
    receiver.engine.begin_transfer(RANGE, base).unwrap();
    let (mut cursor, mut chunks, mut is_begun) = (Some(TransferPlace::START), 0, false);
    let mut scan = TransferScan::new(RANGE, TransferPlace::START, base, bytes_max);
    while let Some(at) = cursor {
        // Half of the chunks begin a new scan, as at a donor that keeps no state.
        if chunks % 2 == 0 && !is_begun {
            scan = TransferScan::new(RANGE, at, base, bytes_max);
        }
        is_begun = true;
        let (mut records, mut bytes) = (Vec::new(), 0);
        let step = donor.engine.transfer_step(&mut scan, |record| {
            bytes += fawn_ds::internals::format::record::encoded_len(record);
            records.push(Owned::of(record));
        });
        match step.unwrap() {
            TransferStep::Read(plan) => {
                assert!(records.is_empty(), "a chunk is visited only once it is complete");
                donor.engine.read(plan, 42);
                let plan = donor.wait_for_plan();
                donor.engine.absorb(plan).unwrap();
                continue;
            }
            TransferStep::Chunk { next, count } => {
                assert_eq!(count, records.len());
                assert!(bytes <= bytes_max || count == 1, "{count} records of {bytes} B");
                assert!(next.is_none() || count > 0, "only the last chunk is empty");
                cursor = next;
            }
        }
        (chunks, is_begun) = (chunks + 1, false);
        for record in &records {
            assert!(record.version <= base);
            loop {
                match receiver.engine.append_copied(RANGE, hash(&record.key), &record.as_ref()) {
                    Err(EngineError::Overloaded) => drop(receiver.turn()),
                    is_new => break assert!(is_new.unwrap(), "{:?} is copied twice", record.key),
                }
            }
        }
    }
    receiver.engine.finish_transfer(RANGE).unwrap();
    for _ in 0..1000 {
        if receiver.engine.copying(RANGE).is_none() {
            return chunks;
        }
        receiver.turn();
    }
    panic!("the copy does not finish");
}

#[test]
fn a_transfer_between_engines_is_equal_record_for_record() {
    for (seed, durability) in [(1, Durability::Sync), (2, Durability::EverySecond), (3, Durability::Memory)] {
        let mut rng = Rng::new(seed);
        let (here, there) = (SimDisk::new(SimOptions::default()), SimDisk::new(SimOptions::default()));
        let options = || small(durability);
        let mut donor = TestNode::open_in_chain(&here, options(), Now::at(1)).unwrap();
        let mut receiver = TestNode::open_in_chain(&there, options(), Now::at(1)).unwrap();
        let mut written = BTreeMap::new();
        for seq in 1..=1500 {
            let mut record = Owned::random(&mut rng, version(1, seq));
            record.key = format!("key {}", rng.below(400)).into_bytes();
            loop {
                match donor.engine.append(RANGE, hash(&record.key), &record.as_ref()) {
                    Err(EngineError::Overloaded) => drop(donor.turn()),
                    result => break result.unwrap(),
                }
            }
            match record.kind {
                RecordKind::Put => written.insert(record.key.clone(), record),
                _ => written.remove(&record.key),
            };
        }
        donor.settle();
        // The receiver's old content is discarded.
        receiver
            .append(&[crate::support::TestWrite { key: b"old".to_vec(), value: Some(b"x".to_vec()), expires_at_ms: 0 }])
            .unwrap();
        receiver.settle();
        let base = version(1, 1500);
        let chunks = transfer_between(&mut donor, &mut receiver, base, 4000);
        assert!(chunks > 50, "seed {seed}: {chunks} chunks");
        receiver.settle();
        assert_eq!(receiver.engine.len(RANGE), written.len() as u64);
        for opened in [false, true] {
            if opened {
                receiver.engine.close().unwrap();
                receiver = TestNode::open_in_chain(&there, options(), Now::at(1)).unwrap();
            }
            assert_eq!(receiver.engine.progress(RANGE).appended, base);
            assert_eq!(receiver.keys(), written.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
            for (key, record) in &written {
                let entry = receiver.get(key, View::Committed).unwrap().unwrap();
                assert_eq!((&entry.value, entry.flags), (&record.value, record.flags), "seed {seed}");
                assert_eq!((entry.version, entry.expires_at_ms), (record.version, record.expires_at_ms));
            }
            let gone = receiver.engine.replay(RANGE, version(1, 1499), 1000, |_| {}).unwrap();
            assert!(matches!(gone, Replay::Gone), "{gone:?}");
        }
    }
}

/// Gathers a chunk of 200 records, of which some change after so many reads. Returns the number of reads.
fn gather_over_changes(change_after_reads: usize) -> usize {
    let disk = SimDisk::new(SimOptions::default());
    let mut donor = TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for i in 0..200_u64 {
        let key = format!("key {i}").into_bytes();
        let value = vec![i as u8; 2000];
        loop {
            match donor.engine.append(RANGE, hash(&key), &RecordRef::put(version(1, i + 1), &key, &value)) {
                Err(EngineError::Overloaded) => drop(donor.turn()),
                result => break result.unwrap(),
            }
        }
    }
    donor.settle();
    let base = version(1, 200);
    let mut scan = TransferScan::new(RANGE, TransferPlace::START, base, 1 << 30);
    let TransferStep::Read(plan) = donor.engine.transfer_step(&mut scan, |_| {}).unwrap() else {
        panic!("some of the records are not in memory")
    };
    let (mut keys, mut plan, mut reads) = (Vec::new(), Some(plan), 0);
    while let Some(read) = plan.take() {
        if reads == change_after_reads {
            // One key is deleted, one replaced, and one added.
            let mut seq = 200;
            for (key, value) in [(&b"key 7"[..], None), (b"key 8", Some(&b"new"[..])), (b"key new", Some(b"new"))] {
                seq += 1;
                let record = match value {
                    Some(value) => RecordRef::put(version(1, seq), key, value),
                    None => RecordRef::bare(RecordKind::Tombstone, version(1, seq), key),
                };
                donor.engine.append(RANGE, hash(key), &record).unwrap();
            }
            donor.settle();
        }
        reads += 1;
        donor.engine.read(read, 42);
        let read = donor.wait_for_plan();
        donor.engine.absorb(read).unwrap();
        match donor.engine.transfer_step(&mut scan, |record| keys.push(record.key.to_vec())).unwrap() {
            TransferStep::Read(read) => plan = Some(read),
            TransferStep::Chunk { next, .. } => assert_eq!(next, None),
        }
    }
    assert_eq!(keys.len(), 198, "after {change_after_reads} of {reads} reads");
    assert!(![&b"key 7"[..], b"key 8", b"key new"].iter().any(|key| keys.iter().any(|found| found == key)));
    reads
}

/// Whether the records that change are known, held or still to be read.
#[test]
fn a_transfer_leaves_out_what_changes_while_its_chunk_is_gathered() {
    let reads = gather_over_changes(0);
    assert!(reads > 100, "{reads} reads");
    for change_after_reads in (0..reads - 1).step_by(reads / 12) {
        gather_over_changes(change_after_reads);
    }
}

#[test]
fn copies_merge_by_version_beneath_what_the_stream_brought() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    let base = version(2, 10);
    node.engine.begin_transfer(RANGE, base).unwrap();
    let copy = |node: &mut TestNode, key: &[u8], seq, value: &[u8]| {
        node.engine.append_copied(RANGE, hash(key), &RecordRef::put(version(2, seq), key, value)).unwrap()
    };
    assert!(copy(&mut node, b"a", 3, b"a3"));
    assert!(!copy(&mut node, b"a", 3, b"a3"), "a duplicate changes nothing");
    assert!(!copy(&mut node, b"a", 2, b"a2"), "an older record changes nothing");
    // A pending record: the copied one is below it, and is what a rollback restores.
    node.engine.append(RANGE, hash(b"b"), &RecordRef::put(version(2, 11), b"b", b"b11")).unwrap();
    assert!(copy(&mut node, b"b", 4, b"b4"));
    let value = |node: &mut TestNode, key: &[u8], view| node.get(key, view).unwrap().map(|entry| entry.value);
    assert_eq!(value(&mut node, b"b", View::Latest), Some(b"b11".to_vec()));
    assert_eq!(value(&mut node, b"b", View::Committed), Some(b"b4".to_vec()));
    node.engine.rollback(RANGE, base).unwrap();
    assert_eq!(value(&mut node, b"b", View::Latest), Some(b"b4".to_vec()));
    node.engine.append(RANGE, hash(b"c"), &RecordRef::put(version(3, 11), b"c", b"c11")).unwrap();
    node.engine.commit(RANGE, version(3, 11));
    assert!(!copy(&mut node, b"c", 5, b"c5"), "a record committed above the base is newer");
    node.engine.finish_transfer(RANGE).unwrap();
    for _ in 0..20 {
        node.turn();
    }
    assert_eq!(node.engine.copying(RANGE), None);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].recovered, version(3, 11));
    node.engine.commit(RANGE, version(3, 11));
    for (key, expected) in [(b"a", "a3"), (b"b", "b4"), (b"c", "c11")] {
        assert_eq!(value(&mut node, key, View::Committed), Some(expected.as_bytes().to_vec()));
    }
    assert_eq!(node.engine.len(RANGE), 3);
}

/// A clear that is listed in the manifest counts for transferred records like for all others.
#[test]
fn a_clear_after_a_transfer_empties_the_range_for_good() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    node.engine.begin_transfer(RANGE, version(2, 10)).unwrap();
    let record = RecordRef::put(version(2, 3), b"before", b"one");
    assert!(node.engine.append_copied(RANGE, hash(b"before"), &record).unwrap());
    node.engine.finish_transfer(RANGE).unwrap();
    for _ in 0..20 {
        node.turn();
    }
    node.engine.clear(RANGE, version(2, 11)).unwrap();
    node.engine.append(RANGE, hash(b"after"), &RecordRef::put(version(2, 12), b"after", b"two")).unwrap();
    for _ in 0..20 {
        // The mark that makes the commit durable, and the manifest's edit after it.
        node.turn();
        node.now = node.now.plus_ms(500);
    }
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].committed, version(2, 12));
    assert_eq!(node.keys(), [b"after"]);
}

/// Runs iterations until all appended records are synced.
fn sync_all(node: &mut TestNode) {
    for _ in 0..200 {
        node.turn();
        let marks = node.engine.watermarks();
        if marks.synced == marks.appended {
            return;
        }
    }
    panic!("not synced: {:?}", node.engine.watermarks());
}

/// Commit marks of the range in all segments.
fn marks_of(disk: &SimDisk, range: RangeId) -> Vec<Version> {
    let manifest = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let number = manifest.ranges[&range].beginning.unwrap().number;
    let mut marks = Vec::new();
    for name in disk.names().iter().filter(|name| name.starts_with("segment-")) {
        let bytes = disk.contents(name).unwrap();
        let Ok(header) = segment::decode(&bytes) else { continue };
        let mut at = FRAMES_OFFSET as usize;
        while let Ok(frame) = frame::decode_header(&bytes[at..], header.uuid, at as u32, header.segment_bytes) {
            let is_mark =
                |stored: &Stored<'_>| stored.record.kind == RecordKind::CommitMark && stored.envelope.number == number;
            let records = frame::records(&frame, &bytes[at..]);
            marks.extend(records.filter(|(_, stored)| is_mark(stored)).map(|(_, stored)| stored.record.version));
            at += frame.frame_bytes as usize;
        }
    }
    marks
}

#[test]
fn no_mark_at_the_base_stands_beside_records_that_still_count() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    let base = version(1, 1000);
    let write = |node: &mut TestNode, seq| {
        let value = [seq as u8; 3000];
        node.engine.append(OTHER, hash(b"other"), &RecordRef::put(version(1, seq), b"other", &value)).unwrap();
    };
    for seq in 1..=14 {
        write(&mut node, seq);
        sync_all(&mut node);
    }
    let segment = |node: &TestNode| node.engine.watermarks().appended.0 >> 16;
    let before = segment(&node);
    node.engine.start_transfer(RANGE, base).unwrap();
    let mut seq = 15;
    while segment(&node) == before {
        write(&mut node, seq);
        seq += 1;
        assert!(!node.engine.transfer_begun(RANGE) && seq < 40, "the transfer must not begin without a wait");
    }
    let early = node.engine.append(RANGE, hash(b"key"), &RecordRef::put(version(1, 1001), b"key", b"value"));
    assert_eq!(early, Err(EngineError::Overloaded), "nor a record");
    assert_eq!(node.engine.rollback(RANGE, base), Err(EngineError::Overloaded), "a rollback is rejected too");
    sync_all(&mut node);
    assert!(node.engine.transfer_begun(RANGE));
    assert!(
        marks_of(&disk, OTHER).len() > marks_of(&disk, RANGE).len(),
        "the segment begins with the other range's mark"
    );
    assert!(!marks_of(&disk, RANGE).contains(&base), "{:?}", marks_of(&disk, RANGE));
}

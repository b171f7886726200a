//! Open results: they are kept for retries, and not the log behind them.

use crate::support::{RANGE, TestNode, small};
use fawn_ds::internals::{
    EngineError, KeepReason, OpenResult, Options, RecordKind, RecordLayout, RecordRef, Replay, TransferredResults,
};
use fawn_flash::sim::{Loss, OpKind};
use fawn_flash::{Device, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{ClientTag, Durability, Epoch, KeyRange, Now, RangeId, Version};
use std::collections::BTreeMap;

const SESSION: u64 = 9;

/// A member of a chain, and the operations whose sessions have not acknowledged their results.
pub(crate) struct Member {
    pub(crate) node: TestNode,
    pub(crate) open: BTreeMap<Version, (ClientTag, Vec<u8>)>,
    /// Copies that were asked for, and the most that were in one call.
    pub(crate) copies: usize,
    copies_at_once: usize,
}

pub(crate) fn of_capacity(segments: u64, durability: Durability) -> Options {
    Options { capacity_bytes: Some(segments * (64 << 10)), ..small(durability) }
}

impl Member {
    pub(crate) fn open(disk: &SimDisk, options: Options, now: Now) -> Self {
        let mut node = TestNode::open_in_chain(disk, options, now).unwrap();
        node.engine.set_retain_floor(RANGE, Version::ZERO);
        Self { node, open: BTreeMap::new(), copies: 0, copies_at_once: 0 }
    }

    /// As after a crash or a close: the host learns from the store which results there are.
    pub(crate) fn open_again(self, disk: &SimDisk, options: Options) -> Self {
        let now = self.node.now.plus_ms(1);
        drop(self.node);
        let mut member = Self::open(disk, options, now);
        let mut found = BTreeMap::new();
        let mut from = 0;
        loop {
            let visit =
                |record: &RecordRef<'_>| drop(found.insert(record.version, (record.tag, record.result.to_vec())));
            match member.node.engine.copied_results(RANGE, from, 500, visit).unwrap() {
                TransferredResults::Records { next } => from = next,
                TransferredResults::Done => break,
                TransferredResults::Read(plan) => member.read(plan),
            }
        }
        let mut after = member.node.engine.replay_floor(RANGE);
        loop {
            let visit =
                |record: &RecordRef<'_>| drop(found.insert(record.version, (record.tag, record.result.to_vec())));
            match member.node.engine.replay(RANGE, after, 10_000, visit).unwrap() {
                Replay::Records { through, .. } => after = through,
                Replay::Read(plan) => member.read(plan),
                Replay::UpToDate => break,
                Replay::Gone => panic!("the log is complete above its floor"),
            }
        }
        let appended = member.node.engine.progress(RANGE).appended;
        for (version, expected) in self.open.into_iter().filter(|(version, _)| *version <= appended) {
            assert_eq!(found.get(&version), Some(&expected), "{version:?} of {appended:?}");
            member.open.insert(version, expected);
        }
        member.node.engine.set_needed_from(RANGE, member.open.keys().next().copied());
        member
    }

    fn read(&mut self, plan: fawn_ds::internals::LookupPlan) {
        self.node.engine.read(plan, 42);
        let plan = self.node.wait_for_plan();
        self.node.engine.absorb(plan).unwrap();
    }

    fn next_version(&self) -> Version {
        let epoch = Epoch::new(self.node.engine.generation()).unwrap();
        let last = self.node.engine.progress(RANGE).appended;
        Version::new(epoch, if last.epoch() == epoch { last.seq() + 1 } else { 1 }).unwrap()
    }

    /// Appends and commits a put, with a result that stays open if it is not empty. A store that stays full fails the test.
    pub(crate) fn write(&mut self, key: u64, value: &[u8], result: &[u8]) -> Version {
        let version = self.append(key, value, result, Self::turn);
        self.turn();
        version
    }

    /// As [`Member::write`], without a commit, or with those of `wait` while the store refuses the put.
    fn append(&mut self, key: u64, value: &[u8], result: &[u8], wait: fn(&mut Self)) -> Version {
        let version = self.next_version();
        let key = key.to_be_bytes();
        let mut record = RecordRef::put(version, &key, value);
        if !result.is_empty() {
            (record.tag, record.result) = (ClientTag { session: SESSION, seq: version.as_u64() }, result);
            self.open.insert(version, (record.tag, result.to_vec()));
        }
        let since = self.node.now;
        loop {
            match self.node.engine.append(RANGE, TestNode::hash(&key), &record) {
                Ok(()) => return version,
                Err(EngineError::Overloaded | EngineError::StoreFull) => wait(self),
                Err(error) => panic!("{error} at {version:?}"),
            }
            let stats = self.node.engine.segments_kept();
            assert!(self.node.now.mono.ms_since(since.mono) < 5_000, "{version:?}: {stats:?}");
        }
    }

    /// Appends and commits puts of 100 bytes and deletes. A store that stays full fails the test.
    fn write_all(&mut self, writes: &[(u64, bool)]) {
        let (first, value) = (self.next_version(), [7; 100]);
        let keys: Vec<_> = writes.iter().map(|(key, _)| key.to_be_bytes()).collect();
        let mut records = Vec::new();
        for (i, (key, (_, is_put))) in keys.iter().zip(writes).enumerate() {
            let version = Version::new(first.epoch(), first.seq() + i as u64).unwrap();
            let record = match is_put {
                true => RecordRef::put(version, key, &value),
                false => RecordRef::bare(RecordKind::Tombstone, version, key),
            };
            records.push((TestNode::hash(key), record));
        }
        let since = self.node.now;
        while let Err(error) = self.node.engine.append_batch(RANGE, &records) {
            assert!(matches!(error, EngineError::Overloaded | EngineError::StoreFull), "{error} at {first:?}");
            self.turn();
            let kept = self.node.engine.segments_kept();
            assert!(self.node.now.mono.ms_since(since.mono) < 5_000, "{first:?}: {kept:?}");
        }
        self.turn();
    }

    /// Writes and syncs what is appended.
    pub(crate) fn sync(&mut self) {
        self.node.engine.submit(self.node.now);
        self.node.engine.wait(self.node.now, &mut Vec::new());
        self.node.now = self.node.now.plus_ms(5);
    }

    /// As an iteration of a node.
    pub(crate) fn turn(&mut self) {
        self.node.engine.set_needed_from(RANGE, self.open.keys().next().copied());
        self.node.turn();
        self.node.now = self.node.now.plus_ms(5);
        self.copy();
    }

    pub(crate) fn copy(&mut self) {
        if self.node.engine.must_copy_results(RANGE) {
            let former = self.copies;
            let Self { node, open, copies, .. } = self;
            let results: Vec<OpenResult> = open.iter().map(|(&at, (tag, _))| OpenResult::new(at, *tag)).collect();
            node.engine.copy_results(RANGE, &results, |tag, result| {
                *copies += 1;
                let (_, bytes) = open.values().find(|(found, _)| *found == tag).unwrap();
                result.extend_from_slice(bytes);
            });
            self.copies_at_once = self.copies_at_once.max(self.copies - former);
        }
    }

    fn retained(&self) -> u64 {
        let progress = self.node.engine.progress(RANGE);
        progress.committed.seq() - self.node.engine.replay_floor(RANGE).seq()
    }
}

/// Sessions that stay silent keep their results, through crashes and checkpoints. Without copies of these the store would be full
/// of what it retains.
#[test]
fn open_results_do_not_keep_the_log() {
    for (round, durability) in [Durability::Sync, Durability::EverySecond, Durability::Memory].into_iter().enumerate() {
        let disk = SimDisk::new(SimOptions::instant(round as u64));
        let options = || of_capacity(16, durability);
        let mut member = Member::open(&disk, options(), Now::at(1));
        member.write(0, &[7; 100], b"the first result");
        member.write(1, &[7; 100], &[5; 3_000]);
        for i in 0..1_500 {
            member.write(i % 5, &[7; 1_500], b"");
        }
        assert!((36..=120).contains(&member.retained()), "{} records are retained", member.retained());
        assert!((2..=100).contains(&member.copies), "{} copies", member.copies);
        disk.crash(round as u64);
        let mut member = member.open_again(&disk, options());
        assert_eq!(member.open.len(), 2);
        for i in 0..300 {
            member.write(i % 5, &[7; 1_500], b"");
        }
        member.node.engine.close().unwrap();
        let node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
        let member = Member { node, open: member.open, copies: 0, copies_at_once: 0 }.open_again(&disk, options());
        assert_eq!(member.open.len(), 2);
    }
}

/// The copy of a result lies among cold records, few of which ever die. A queue deletes each of its entries later.
#[test]
fn an_open_result_among_cold_records_does_not_keep_the_tombstones_of_a_queue() {
    const SEGMENTS: u64 = 64;
    const BATCH: u64 = 32;
    for has_result in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut member = Member::open(&disk, of_capacity(SEGMENTS, Durability::Sync), Now::at(1));
        let keys = SEGMENTS * (64 << 10) * 4 / 10 / 150;
        let overwrite = |member: &mut Member, first: u64, step: usize| {
            let chosen: Vec<_> = (first..keys).step_by(step).map(|key| (key, true)).collect();
            chosen.chunks(BATCH as usize).for_each(|writes| member.write_all(writes));
        };
        overwrite(&mut member, 0, 1);
        if has_result {
            member.write(keys, &[7; 100], b"a result");
        }
        // Every other record is cleaned into segments of cold ones, one with the result, and then one in 400 dies.
        (0..4).for_each(|_| overwrite(&mut member, 0, 2));
        assert_eq!(member.copies, usize::from(has_result));
        overwrite(&mut member, 1, 400);
        let queue = |n: u64| 1_000_000 + n;
        let (entries, mut segments_max) = (100_000, 0);
        let before = member.node.engine.stats().moved_tombstones;
        for first in (0..entries).step_by(BATCH as usize) {
            let batch = first..first + BATCH;
            member.write_all(&batch.clone().map(|n| (queue(n), true)).collect::<Vec<_>>());
            member.write_all(&batch.map(|n| (queue(n.saturating_sub(512)), false)).collect::<Vec<_>>());
            segments_max = segments_max.max(member.node.engine.log_report().segments);
        }
        let moved = member.node.engine.stats().moved_tombstones - before;
        assert!(moved < 2 * entries && segments_max < 50, "{has_result}: {segments_max} segments, {moved} copies");
        assert!(member.copies <= 5, "{} copies", member.copies);
    }
}

/// The copy lies among cold records, in a store that sorts from now on. Their segment cannot be sorted before the copy is made again, and
/// would keep all sorted segments.
#[test]
fn an_open_result_among_cold_records_does_not_keep_sorted_segments() {
    const SEGMENTS: u64 = 64;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = of_capacity(SEGMENTS, Durability::Sync);
    let mut member = Member::open(&disk, options.clone(), Now::at(1));
    let keys = SEGMENTS * (64 << 10) * 3 / 10 / 150;
    let overwrite = |member: &mut Member, first: u64, step: usize| {
        let chosen: Vec<_> = (first..keys).step_by(step).map(|key| (key, true)).collect();
        chosen.chunks(32).for_each(|writes| member.write_all(writes));
    };
    overwrite(&mut member, 0, 1);
    member.write(keys, &[7; 100], b"a result");
    (0..4).for_each(|_| overwrite(&mut member, 0, 2));
    assert_eq!(member.copies, 1);
    let options = Options { layout: RecordLayout::Sorted, sort_bytes: 64 << 10, ..options };
    let mut member = member.open_again(&disk, options);
    overwrite(&mut member, 1, 40);
    let mut segments_max = 0;
    for _ in 0..20 {
        overwrite(&mut member, 0, 2);
        segments_max = segments_max.max(member.node.engine.log_report().segments);
    }
    let kept = member.node.engine.segments_kept();
    assert!(segments_max < 24 && member.copies > 0, "{segments_max} segments, {} copies, {kept:?}", member.copies);
}

/// A member that was away commits all that it missed at once, before any copy can be made.
#[test]
fn a_commit_of_many_records_gives_up_no_open_result() {
    for crashes_before_copies in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = || Options { retained_records_max: 50, ..of_capacity(40, Durability::Sync) };
        let mut member = Member::open(&disk, options(), Now::at(1));
        member.append(0, &[7; 100], b"the first result", Member::sync);
        for i in 0..200 {
            member.append(i % 5, &[7; 100], b"", Member::sync);
        }
        (0..5).for_each(|_| member.sync());
        member.node.engine.set_needed_from(RANGE, member.open.keys().next().copied());
        let last = member.node.commit();
        assert_eq!(last.seq(), 201, "one commit");
        if crashes_before_copies {
            (0..5).for_each(|_| member.sync());
            member.node.engine.sync_all().unwrap();
        } else {
            (0..50).for_each(|_| member.turn());
            member.write(0, &[7; 100], b"");
            assert!(member.copies >= 1 && member.retained() <= 50, "{} records are retained", member.retained());
        }
        disk.crash(1);
        let member = member.open_again(&disk, options());
        assert_eq!(member.open.len(), 1, "crash before the copies: {crashes_before_copies}");
    }
}

/// Each range that is added takes memory of those that keep results until they are copied.
#[test]
fn ranges_that_are_added_give_up_no_open_result() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { retained_records_max: 50, ..of_capacity(40, Durability::Sync) };
    let mut member = Member::open(&disk, options(), Now::at(1));
    member.append(0, &[7; 100], b"the first result", Member::sync);
    for i in 0..200 {
        member.append(i % 5, &[7; 100], b"", Member::sync);
    }
    (0..5).for_each(|_| member.sync());
    member.node.engine.set_needed_from(RANGE, member.open.keys().next().copied());
    member.node.commit();
    let mut refusals = 0;
    // Each of sixteen may keep 128.
    for id in 100..115 {
        while let Err(error) = member.node.engine.add_range(RangeId(id), KeyRange::ALL) {
            assert_eq!(error, EngineError::Overloaded);
            refusals += 1;
            assert!(refusals < 100, "{:?}", member.node.engine);
            member.turn();
        }
    }
    // Until the records are known to be committed, an opening keeps all of them.
    for i in 0..100 {
        member.write(i % 5, &[7; 100], b"");
    }
    disk.crash(1);
    let copies = member.copies;
    assert_eq!(member.open_again(&disk, options()).open.len(), 1);
    assert!(refusals > 0 && copies > 0, "{copies} copies while {refusals} ranges were refused");
}

/// Results that were acknowledged are not copied again, and their copies keep no segment.
#[test]
fn copies_go_with_the_acknowledgement() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, of_capacity(16, Durability::Sync), Now::at(1));
    for i in 0..20 {
        member.write(i, &[7; 100], &[i as u8; 9_000]);
    }
    for i in 0..300 {
        member.write(i % 5, &[7; 1_500], b"");
    }
    let kept = |member: &Member| member.node.engine.segments_kept().get(&KeepReason::CopiedResult).copied();
    assert!(kept(&member) > Some(0), "{:?}", member.node.engine.segments_kept());
    member.open.clear();
    let copies = member.copies;
    for i in 0..300 {
        member.write(i % 5, &[7; 1_500], b"");
    }
    assert_eq!((kept(&member), member.copies), (None, copies), "{:?}", member.node.engine.segments_kept());
}

/// A bound on the number of retained records gives up the log long before a bound on its bytes does.
#[test]
fn open_results_are_copied_before_too_many_records_are_retained() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = || Options { retained_records_max: 300, ..of_capacity(40, durability) };
        let mut member = Member::open(&disk, options(), Now::at(1));
        member.write(0, &[7; 100], b"the first result");
        for i in 0..900 {
            member.write(i % 5, &[7; 100], b"");
            assert!(member.retained() <= 600, "{} records are retained", member.retained());
        }
        assert!((1..=10).contains(&member.copies), "{durability:?}: {} copies", member.copies);
        assert!(member.retained() >= 200, "only needed records go: {} are retained", member.retained());
        disk.crash(1);
        let member = member.open_again(&disk, options());
        assert_eq!(member.open.len(), 1, "{durability:?}");
    }
}

/// An opening finds copies of results that were acknowledged since, newer than those of sessions that stay silent.
#[test]
fn copies_of_results_outlive_many_newer_ones() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options {
        retained_records_max: 40,
        checkpoint_log_bytes_min: u64::MAX,
        ..of_capacity(40, Durability::Sync)
    };
    let mut member = Member::open(&disk, options(), Now::at(1));
    let silent = member.write(0, &[7; 100], b"the first result");
    for i in 0..60 {
        let closed = member.write(1_000 + i, &[7; 1_500], b"acknowledged");
        let copies = member.copies;
        for i in 0..400 {
            member.write(i % 5, &[7; 100], b"");
            if member.copies > copies {
                break;
            }
        }
        assert!(member.copies > copies, "no copy of {i}");
        for i in 0..10 {
            member.write(2_000 + i, &[7; 1_500], b"");
        }
        member.open.remove(&closed);
    }
    disk.crash(1);
    let member = member.open_again(&disk, options());
    assert!(member.open.contains_key(&silent));
}

/// In this mode only sealed segments are synced, and a full store seals none. Nothing but what one open result retains is dead.
#[test]
fn an_open_result_before_the_active_segment_does_not_fill_a_store_in_memory_mode() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, of_capacity(8, Durability::Memory), Now::at(1));
    for i in 0..180 {
        member.write(100 + i, &[7; 1_500], b"");
    }
    member.write(0, &[7; 1_500], b"a result");
    for i in 0..40 {
        member.write(i % 5, &[7; 1_500], b"");
    }
    for i in 0..20 {
        member.write(10_000 + i, &[7; 1_500], b"");
    }
    assert_eq!(member.copies, 1);
}

/// An iteration of a node takes no longer for them than for other work.
#[test]
fn many_open_results_of_one_segment_are_copied_in_parts() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options {
        memory_bytes: 256 << 20,
        segment_bytes: 4 << 20,
        retained_records_max: 400,
        ..small(Durability::Sync)
    };
    let mut member = Member::open(&disk, options(), Now::at(1));
    for i in 0..300 {
        member.write(i, &[7; 10], &[i as u8; 9_000]);
    }
    for i in 0..600 {
        member.write(i, &[7; 10], b"");
    }
    // Some are asked for again, once the write buffer has room.
    assert!((300..=350).contains(&member.copies), "{} copies", member.copies);
    assert!((1..=117).contains(&member.copies_at_once), "{} copies at once", member.copies_at_once);
    disk.crash(1);
    let member = member.open_again(&disk, options());
    assert_eq!(member.open.len(), 300);
}

/// Copies lie among records that cleaning has moved. Once those are dead, the copies are copied again, and stay until the new ones
/// are synced.
#[test]
fn copies_of_results_stay_until_they_are_copied_again() {
    let mut images = 0;
    for writes in (300..=600).step_by(25) {
        let disk = SimDisk::new(SimOptions::instant(writes));
        let options = || Options { space_amplification_max_percent: 0, ..of_capacity(40, Durability::Sync) };
        let mut member = Member::open(&disk, options(), Now::at(1));
        for i in 0..6 {
            member.write(i, &[7; 100], &[i as u8; 500]);
        }
        // One of four records is of a key that is seldom overwritten.
        for i in 0..writes {
            member.write(if i % 4 == 0 { 100 + i % 120 } else { i % 3 }, &[1; 1_500], b"");
        }
        for key in (3..6).chain((100..220).step_by(4)) {
            member.write(key, &[2; 1_500], b"");
        }
        // In this mode only the survivors wait for syncs.
        disk.hang(OpKind::Sync);
        let copies = member.copies;
        for i in 0..200 {
            member.write(i % 3, &[3; 1_500], b"");
            if copies >= member.open.len() && member.copies > copies && i % 5 == 0 {
                let image = disk.image(Loss::Power, i);
                let node = TestNode::open_in_chain(&image, options(), member.node.now).unwrap();
                let open = member.open.clone();
                Member { node, open, copies: 0, copies_at_once: 0 }.open_again(&image, options());
                images += 1;
            }
        }
    }
    assert!(images > 20, "{images} images");
}

/// The segment of the original is dead but for the result. It stays until the copy is synced.
#[test]
fn the_original_of_a_copied_result_stays_until_the_copy_is_synced() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { retained_records_max: 40, ..of_capacity(40, Durability::Sync) };
    let mut member = Member::open(&disk, options(), Now::at(1));
    member.write(0, &[7; 1_500], b"a result");
    // In this mode only the survivors wait for syncs.
    disk.hang(OpKind::Sync);
    let mut images = 0;
    for i in 0..200 {
        member.write(i % 5, &[7; 1_500], b"");
        if member.copies > 0 && i % 5 == 0 {
            let image = disk.image(Loss::Power, i);
            let node = TestNode::open_in_chain(&image, options(), member.node.now).unwrap();
            let open = member.open.clone();
            let copied = Member { node, open, copies: 0, copies_at_once: 0 }.open_again(&image, options());
            assert_eq!(copied.open.len(), 1);
            images += 1;
        }
    }
    assert!(images > 20, "{images} images");
}

/// A floor says that older results are needed no more, too.
#[test]
fn copies_go_with_the_retain_floor() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk, of_capacity(16, Durability::Sync), Now::at(1));
    let mut newest = Version::ZERO;
    for i in 0..20 {
        newest = member.write(i, &[7; 100], &[i as u8; 9_000]);
    }
    for i in 0..300 {
        member.write(i % 5, &[7; 1_500], b"");
    }
    let kept = |member: &Member| member.node.engine.segments_kept().get(&KeepReason::CopiedResult).copied();
    assert!(kept(&member) > Some(0), "{:?}", member.node.engine.segments_kept());
    member.node.engine.set_retain_floor(RANGE, newest);
    assert_eq!(kept(&member), None, "{:?}", member.node.engine.segments_kept());
}

/// The originals stay until the copies are synced, whatever a crash leaves of these.
#[test]
fn open_results_survive_crashes_at_any_time() {
    let mut copies = 0;
    for seed in 0..60 {
        let mut rng = SplitMix64::new(seed);
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][rng.below(3) as usize];
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let options = || of_capacity(12, durability);
        let mut member = Member::open(&disk, options(), Now::at(1));
        for _ in 0..4 {
            for _ in 0..100 + rng.below(200) {
                let result =
                    if rng.below(15) == 0 && member.open.len() < 8 { 1 + rng.below(2_000) as usize } else { 0 };
                let value = vec![7; 200 + rng.below(2_000) as usize];
                let version = member.write(rng.below(6), &value, &vec![rng.below(250) as u8; result]);
                if rng.below(30) == 0
                    && let Some(&closed) = member.open.keys().nth(rng.below(8) as usize)
                    && closed < version
                {
                    member.open.remove(&closed);
                }
            }
            copies += std::mem::take(&mut member.copies);
            if rng.below(4) == 0 {
                let open = member.open;
                member.node.engine.close().unwrap();
                let node = TestNode::open_in_chain(&disk, options(), member.node.now).unwrap();
                member = Member { node, open, copies: 0, copies_at_once: 0 }.open_again(&disk, options());
                continue;
            }
            let synced = member.node.engine.progress(RANGE).synced;
            member.open.retain(|version, _| *version <= synced);
            disk.crash(rng.next());
            member = member.open_again(&disk, options());
        }
    }
    assert!(copies > 200, "{copies} copies");
}

/// A store that could not continue in its active segment after a crash, which tore that: others took the space. An open result, and
/// three records that are not committed. Space for one segment is left to cleaning.
fn without_active_segment() -> (SimDisk, Member) {
    let disk = SimDisk::new(SimOptions::instant(9));
    // Besides the segments, the manifest and its spare file take 64 KiB.
    let capacity = 12 * (64 << 10) + (32 << 10);
    disk.set_capacity_bytes(Some(capacity));
    let mut member = Member::open(&disk, small(Durability::Sync), Now::at(1));
    for i in 0..100 {
        member.write(100 + i, &[7; 1_500], b"");
    }
    for i in 0..163 {
        if i == 120 {
            member.write(0, &[7; 1_500], b"a result");
        }
        member.write(i % 5, &[7; 1_500], b"");
    }
    assert_eq!(member.copies, 0);
    for i in 0..3 {
        member.append(i % 5, &[7; 1_500], b"", Member::sync);
        member.sync();
    }
    member.append(3, &[7; 1_500], b"", Member::sync);
    member.node.engine.submit(member.node.now);
    disk.crash(9);
    let used = capacity - SimDevice::attach(&disk).free_bytes().unwrap();
    disk.set_capacity_bytes(Some(used - (48 << 10)));
    let member = member.open_again(&disk, small(Durability::Sync));
    assert!(member.node.engine.is_full(), "the active segment was sealed at its torn end");
    assert_eq!(member.open.len(), 1);
    disk.set_capacity_bytes(Some(used + (96 << 10)));
    (disk, member)
}

/// Without a segment to write to, there is no mark of what was committed since. But results before it can be copied.
#[test]
fn results_are_copied_although_no_mark_can_be_written() {
    let (disk, mut member) = without_active_segment();
    member.node.commit();
    for i in 0..30 {
        member.write(i % 5, &[7; 1_500], b"");
    }
    assert!(member.copies > 0);
    disk.crash(10);
    assert_eq!(member.open_again(&disk, small(Durability::Sync)).open.len(), 1);
}

/// Copies that were cut short, or refused, are continued although nothing else happens.
#[test]
fn an_idle_store_asks_for_the_rest_of_its_copies() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options {
        memory_bytes: 256 << 20,
        segment_bytes: 4 << 20,
        retained_records_max: 400,
        ..small(Durability::Sync)
    };
    let mut member = Member::open(&disk, options(), Now::at(1));
    for i in 0..300 {
        member.write(i, &[7; 10], &[i as u8; 9_000]);
    }
    for i in 0..350 {
        member.append(i, &[7; 10], b"", Member::sync);
    }
    (0..5).for_each(|_| member.sync());
    member.node.commit();
    loop {
        member.turn();
        let idle = member.node.engine.in_flight() == 0;
        match member.node.engine.upkeep_at() {
            _ if !idle => {}
            Some(at) if at.ms_since(member.node.now.mono) < 10_000 => {
                member.node.now = member.node.now.plus_ms(at.ms_since(member.node.now.mono));
            }
            _ => break,
        }
    }
    assert!(!member.node.engine.must_copy_results(RANGE), "{} copies", member.copies);
    assert!((200..=350).contains(&member.copies), "{} copies", member.copies);
}

/// The survivors' segment has no space for the result, and only copies ask for another one. A store of few segments keeps none ready.
#[test]
fn copies_get_a_segment_of_a_small_full_store() {
    for segments in 5..=8 {
        for result_len in [10, 9_000] {
            let disk = SimDisk::new(SimOptions::instant(1));
            let mut member = Member::open(&disk, of_capacity(segments, Durability::Memory), Now::at(1));
            for i in 0..40 * (segments - 4) {
                member.write(100 + i, &[7; 1_500], b"");
            }
            member.write(0, &[7; 1_500], &vec![7; result_len]);
            for i in 0..200 {
                member.write(i % 5, &[7; 1_500], b"");
            }
            assert!((1..=4).contains(&member.copies), "{segments} segments: {} copies", member.copies);
        }
    }
}

/// Nothing is appended before a cut, so only copies make the space that it waits for.
#[test]
fn a_rollback_that_finds_no_space_gets_it_by_copies_of_results() {
    let (disk, mut member) = without_active_segment();
    let progress = member.node.engine.progress(RANGE);
    assert_eq!(progress.appended.seq() - progress.committed.seq(), 3);
    let mut refusals = 0;
    while let Err(error) = member.node.engine.rollback(RANGE, progress.committed) {
        assert!(matches!(error, EngineError::Overloaded | EngineError::StoreFull), "{error}");
        assert!(refusals < 1_000, "{:?}", member.node.engine);
        refusals += 1;
        member.sync();
        member.copy();
    }
    assert!(refusals > 0 && member.copies > 0, "{refusals} refusals, {} copies", member.copies);
    assert_eq!(member.node.engine.progress(RANGE).appended, progress.committed);
    member.node.engine.sync_all().unwrap();
    disk.crash(10);
    assert_eq!(member.open_again(&disk, small(Durability::Sync)).open.len(), 1);
}

/// Appends and commits a record, unless the store stays full.
fn try_write(member: &mut Member, record: &RecordRef<'_>) -> bool {
    for _ in 0..400 {
        let appended = member.node.engine.append(RANGE, TestNode::hash(record.key), record);
        if appended.is_ok() && record.tag.is_some() {
            member.open.insert(record.version, (record.tag, record.result.to_vec()));
        }
        member.turn();
        if appended.is_ok() {
            return true;
        }
    }
    false
}

/// The results of live records free no space when they are copied. A store that was full of such copies had no segment left into
/// which it could be cleaned, and refused deletes for ever.
#[test]
fn copies_of_results_leave_a_full_store_space_to_clean() {
    for (segments, result_len) in (6..=10).flat_map(|segments| [(segments, 1_000), (segments, 3_000)]) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut member = Member::open(&disk, of_capacity(segments, Durability::Sync), Now::at(1));
        let plain = 24 * (segments - 3);
        (0..plain).for_each(|i| _ = member.write(i, &[7; 1_500], b""));
        let (mut tagged, result) = (0, vec![5; result_len]);
        loop {
            let (version, key) = (member.next_version(), (plain + tagged).to_be_bytes());
            let tag = ClientTag { session: SESSION, seq: version.as_u64() };
            if !try_write(&mut member, &RecordRef { tag, result: &result, ..RecordRef::put(version, &key, b"value") }) {
                break;
            }
            tagged += 1;
        }
        assert!(tagged > 30 && member.copies > 10, "{segments} segments: {tagged} results, {} copies", member.copies);
        for i in 0..plain {
            let (version, key) = (member.next_version(), (i * 37 % plain).to_be_bytes());
            let is_deleted = try_write(&mut member, &RecordRef::bare(RecordKind::Tombstone, version, &key));
            assert!(is_deleted, "{segments} segments, {result_len} B: {i} of {plain}, {:?}", member.node.engine);
        }
        let open = member.open.len();
        disk.crash(1);
        let mut member = member.open_again(&disk, of_capacity(segments, Durability::Sync));
        assert_eq!(member.open.len(), open, "{segments} segments, {result_len} B");
        member.open.clear();
        (0..20).for_each(|i| _ = member.write(1_000 + i, &[7; 1_500], b""));
    }
}

//! Copies of a store that is in use: between any two accesses of the copy to the source, the store goes on.
use crate::crash::{CrashImageCounts, CrashRun, KEYS, cold_keys_in};
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite, frames, manifest_commits, small};
use fawn_ds::internals::backup::{CopyError, CopyOptions, CopyReport, Linked, copy_store};
use fawn_ds::internals::format::manifest::{ManifestState, SegmentEntry, decode_all};
use fawn_ds::internals::format::segment::StreamKind;
use fawn_ds::internals::format::tail;
use fawn_ds::internals::{Options, RecordLayout, check};
use fawn_flash::sim::Image;
use fawn_flash::{
    AlignedBuf, Completion, Device, DeviceError, FileId, IoClass, IoRequest, IoStats, SimDevice, SimDisk,
};
use fawn_flash::{SimOptions, Token};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Epoch, Now, Version};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Steps that fill several segments.
const BURST_STEPS: u64 = 1000;

/// The source of a copy: lets the store run for a while before each access.
struct BusySource<'r> {
    device: SimDevice,
    run: &'r mut CrashRun,
    rng: Rng,
    /// Most steps of the store between two accesses, save for bursts.
    steps_max: u64,
    /// One in so many accesses follows a burst, in which segments are filled and cleaned; 0: none.
    burst_every: u64,
    /// The access, counted from 0, before which the store fills the stream's active segment and writes the next one's first frames.
    switch_before: Option<(u64, StreamKind)>,
    /// Before the tail file is opened, the store adds segments until one of them is cleaned and dropped.
    drops_before_tail: bool,
    /// Whether that came about.
    has_dropped: bool,
    accesses: u64,
    /// One in so many accesses follows a restart of the store; 0: none.
    restart_every: u64,
    /// Every other file has no descriptor between accesses: once it is dropped, it cannot be read any more.
    has_few_descriptors: bool,
    /// The segments of which a read has failed, if the first read of each one fails.
    forgotten: Option<BTreeSet<String>>,
    /// Names of the open files.
    opened: Vec<(FileId, String)>,
    /// Reads of dropped files.
    lost: VecDeque<Completion>,
}

impl<'r> BusySource<'r> {
    /// A source whose store is idle.
    fn new(run: &'r mut CrashRun, seed: u64) -> Self {
        Self {
            device: SimDevice::attach(&run.disk),
            run,
            rng: Rng::new(seed),
            steps_max: 0,
            burst_every: 0,
            switch_before: None,
            drops_before_tail: false,
            has_dropped: false,
            accesses: 0,
            restart_every: 0,
            has_few_descriptors: false,
            forgotten: None,
            opened: Vec::new(),
            lost: VecDeque::new(),
        }
    }

    fn device(&mut self) -> &mut SimDevice {
        let is_due = |rng: &mut Rng, every: u64| every > 0 && rng.below(every) == 0;
        let steps_max = if is_due(&mut self.rng, self.burst_every) { BURST_STEPS } else { self.steps_max };
        for _ in 0..self.rng.below(steps_max + 1) {
            self.run.step(&mut self.rng).unwrap();
        }
        if let Some((access, stream)) = self.switch_before
            && access == self.accesses
        {
            let (name, _) = active(&self.run.disk, stream);
            while active(&self.run.disk, stream).0 == name {
                self.run.step(&mut self.rng).unwrap();
            }
        }
        self.accesses += 1;
        if is_due(&mut self.rng, self.restart_every) {
            self.run.reopen(0);
        }
        &mut self.device
    }

    /// Returns whether a segment is added, cleaned and dropped now.
    fn drop_added(&mut self) -> bool {
        let before = state(&self.run.disk).last_sequence;
        (0..BURST_STEPS).any(|_| {
            // Further writes would add another segment before this one is cleaned.
            if has_sealed_successor(&self.run.disk, before) {
                self.run.rest(&mut self.rng);
            } else {
                self.run.step(&mut self.rng).unwrap();
            }
            has_dropped_successor(&self.run.disk, before)
        })
    }

    /// The error of an access to a file that was dropped.
    fn dropped(&mut self, file: FileId) -> Option<DeviceError> {
        let (_, name) = self.opened.iter().find(|(opened, _)| *opened == file)?;
        let has_descriptor = !self.has_few_descriptors || file.0.is_multiple_of(2);
        let is_there = has_descriptor || self.run.disk.names().contains(name);
        let forgotten = self.forgotten.as_mut().filter(|_| name.starts_with("segment-"));
        let is_forgotten = forgotten.is_some_and(|forgotten| forgotten.insert(name.clone()));
        (!is_there || is_forgotten).then(|| DeviceError::NotFound { name: name.clone(), dir: "busy".to_owned() })
    }
}

impl Device for BusySource<'_> {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        self.device().list()
    }
    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        if name == tail::FILE_NAME && core::mem::take(&mut self.drops_before_tail) {
            self.has_dropped = self.drop_added();
        }
        let file = self.device().open(name)?;
        self.opened.push((file, name.to_owned()));
        Ok(file)
    }
    fn close(&mut self, file: FileId) {
        self.opened.retain(|(opened, _)| *opened != file);
        self.device.close(file);
    }
    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        self.device();
        self.dropped(file).map_or_else(|| self.device.len(file), Err)
    }
    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError> {
        self.device.map(file, len_bytes)
    }
    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        self.device.store(file, offset, bytes);
    }
    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.device.free_bytes()
    }
    fn submit(&mut self, request: IoRequest) {
        self.device.submit(request);
    }
    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, class: IoClass, token: Token) {
        match self.dropped(file) {
            Some(error) => self.lost.push_back(Completion { token, result: Err(error), buf: Some(buf) }),
            None => self.device.submit_read(file, offset, buf, class, token),
        }
    }
    fn kick(&mut self) {
        self.device.kick();
    }
    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        self.device.reap(out);
    }
    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        out.append(&mut self.lost);
        self.device().wait_at_most(limit, out);
    }
    fn in_flight(&self) -> usize {
        self.device.in_flight() + self.lost.len()
    }
    fn stats(&self) -> &IoStats {
        self.device.stats()
    }
    fn poisoned(&self) -> Option<&DeviceError> {
        self.device.poisoned()
    }
    fn name(&self) -> &'static str {
        "busy"
    }
    fn lock(&mut self) -> Result<(), DeviceError> {
        panic!("a copy does not lock its source")
    }
    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        panic!("a copy creates {name} in its source")
    }
    fn begin_writes(&mut self, _: FileId) -> Result<(), DeviceError> {
        panic!("a copy writes to its source")
    }
    fn end_writes(&mut self, _: FileId) {
        panic!("a copy writes to its source")
    }
    fn rename(&mut self, from: &str, _: &str) -> Result<(), DeviceError> {
        panic!("a copy renames {from} in its source")
    }
    fn exchange(&mut self, one: &str, _: &str) -> Result<bool, DeviceError> {
        panic!("a copy exchanges {one} in its source")
    }
    fn link(&mut self, from: &str, _: &str) -> Result<(), DeviceError> {
        panic!("a copy links {from} in its source")
    }
    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        panic!("a copy unlinks {name} in its source")
    }
    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        panic!("a copy syncs its source")
    }
    fn truncate(&mut self, _: FileId, _: u64) -> Result<(), DeviceError> {
        panic!("a copy truncates a file of its source")
    }
    fn allocate(&mut self, _: FileId, _: u64, _: u64) -> Result<(), DeviceError> {
        panic!("a copy allocates in its source")
    }
    fn punch(&mut self, _: FileId, _: u64, _: u64) -> Result<(), DeviceError> {
        panic!("a copy punches a file of its source")
    }
}

fn copy<S: Device>(source: &mut S, target: &SimDisk, skip_generations: u32) -> Result<CopyReport, CopyError> {
    let mut target = SimDevice::attach(target);
    let (link, progress) = (&mut |_: &str| Linked::Refused, &mut |_, _| {});
    copy_store(source, &mut target, &mut CopyOptions { link, progress, piece_bytes: 4 << 10, skip_generations })
}

/// Takes copies of a store that is in use, and checks that each is sound and opens with all that was acknowledged when it
/// was begun. Returns the number of attempts.
fn copies((seed, space_amplification_max_percent): (u64, u64), count: usize, pace: (u64, u64, u64)) -> u32 {
    copies_with(seed, options(Durability::EverySecond, space_amplification_max_percent), count, pace, false)
}

fn copies_with(
    seed: u64,
    options: Options,
    count: usize,
    (steps_max, burst_every, restart_every): (u64, u64, u64),
    has_few_descriptors: bool,
) -> u32 {
    let context = format!("seed {seed} (cargo test -p fawn-ds --test it backup::)");
    let is_sorting = options.layout != RecordLayout::Log;
    let mut run = cold_keys_in(seed, options);
    let mut rng = Rng::new(seed);
    let (mut classes, mut attempts) = (CrashImageCounts::default(), 0);
    for i in 0..count {
        let acked = run.acked();
        let target = SimDisk::new(SimOptions { seed: rng.next(), ..SimOptions::default() });
        let idle = BusySource::new(&mut run, rng.next());
        let mut source = BusySource { steps_max, burst_every, restart_every, has_few_descriptors, ..idle };
        match copy(&mut source, &target, if i % 2 == 0 { 0 } else { 1000 }) {
            Ok(report) => attempts += report.attempts,
            Err(error) => panic!("{context}, copy {i}: {error}"),
        }
        drop(source);
        classes.add(check_copy(&run, target, acked, &mut rng, &format!("{context}, copy {i}")));
    }
    assert!(classes.images == count && classes.checkpoints > count / 2, "{context}: {classes:?}");
    assert!(!is_sorting || run.node.engine.runs() > 0, "{context}: {:?}", run.node.engine);
    attempts
}

/// Checks that a copy is sound, and opens with at least what was acknowledged as `acked`.
fn check_copy(run: &CrashRun, target: SimDisk, acked: Version, rng: &mut Rng, context: &str) -> CrashImageCounts {
    // All of the copy is durable.
    target.crash(rng.next());
    let found = check::check(&mut SimDevice::attach(&target)).unwrap();
    assert_eq!(found.findings, [], "{context}");
    target.crash(rng.next());
    let image = Image { op: run.disk.ops() + 1, disk: target };
    run.check_disk(&image, acked, context)
}

#[test]
fn a_copy_of_a_store_in_use_has_all_that_was_acked() {
    let attempts: u32 = (0..12).map(|seed| copies((seed, 0), 12, ([1, 3, 8][seed as usize % 3], 0, 0))).sum();
    assert!(attempts > 12 * 12, "no attempt met a change");
}

#[test]
fn a_copy_of_a_store_that_fills_and_cleans_segments_meanwhile_has_all_that_was_acked() {
    let attempts: u32 = (200..216).map(|seed| copies((seed, 140), 5, (2, 40, 0))).sum();
    assert!(attempts > 16 * 5, "no attempt met a change");
}

fn state(disk: &SimDisk) -> ManifestState {
    decode_all(&disk.contents("manifest").unwrap()).unwrap().state
}

/// Whether the foreground has a complete segment behind sequence `before`.
fn has_sealed_successor(disk: &SimDisk, before: u64) -> bool {
    let is_it = |entry: &SegmentEntry| {
        entry.sequence > before && entry.stream == StreamKind::Foreground && entry.seal.is_some()
    };
    state(disk).segments.values().any(is_it)
}

/// Whether a segment behind sequence `before` was dropped, and the manifest lists at most one of the foreground's there.
fn has_dropped_successor(disk: &SimDisk, before: u64) -> bool {
    let state = state(disk);
    let listed = || state.segments.values().filter(|entry| entry.sequence > before);
    let foreground = listed().filter(|entry| entry.stream == StreamKind::Foreground).count();
    foreground <= 1 && (listed().count() as u64) < state.last_sequence - before
}

/// The stream's segments without a seal that the manifest lists.
fn unsealed(disk: &SimDisk, stream: StreamKind) -> usize {
    let state = state(disk);
    let is_unsealed = |entry: &&SegmentEntry| entry.stream == stream && entry.seal.is_none();
    state.segments.values().filter(is_unsealed).count()
}

/// Checks one copy for each access of a copy to its source: before that access, the store switches to the stream's next segment.
/// `seed_of`: the seed of the store's history, by access.
fn check_switches(stream: StreamKind, keys: u64, seed_of: impl Fn(u64) -> u64) {
    let mut copied_at_once = 0;
    for access in 0.. {
        let context = format!("a switch of {stream:?} before access {access}");
        let (seed, options) = (seed_of(access), options(Durability::EverySecond, 0));
        let (mut rng, mut run) = (Rng::new(seed), CrashRun::new(seed, options, keys));
        // The next segment is listed, while the active one has space left.
        while unsealed(&run.disk, stream) < 2 {
            run.step(&mut rng).unwrap();
        }
        let acked = run.acked();
        let target = SimDisk::new(SimOptions::default());
        let idle = BusySource::new(&mut run, rng.next());
        let mut source = BusySource { switch_before: Some((access, stream)), ..idle };
        let report = copy(&mut source, &target, 0).unwrap_or_else(|error| panic!("{context}: {error}"));
        if source.accesses <= access {
            // The copy has fewer accesses: each one was preceded by a switch once. Two segments alone have 32 pieces. An attempt
            // that is repeated after the switch copies a store that is idle, which is no test of the order.
            assert!(access > 32 && copied_at_once > 32, "{context}: {copied_at_once}");
            return;
        }
        copied_at_once += u32::from(report.attempts == 1);
        drop(source);
        check_copy(&run, target, acked, &mut rng, &context);
    }
}

/// The first frame of a segment proves where the one before it ended: an older copy of that one would look damaged.
#[test]
fn a_copy_is_sound_at_whichever_access_the_store_switches_to_the_next_segment() {
    check_switches(StreamKind::Foreground, KEYS, |access| access);
}

/// Survivors' segments are copied in an order of their own.
#[test]
fn a_copy_is_sound_at_whichever_access_cleaning_switches_to_the_next_segment() {
    // With this history, cleaning fills a segment before the foreground has two new ones, which would repeat the attempt.
    check_switches(StreamKind::Survivors, 4 * KEYS, |_| 0);
}

/// A survivor of such a segment would be in a copy that lacks the writes before it: they are in no file that the copy holds.
#[test]
fn a_copy_has_no_survivors_of_a_segment_that_was_added_and_dropped_meanwhile() {
    let mut dropped = 0;
    for seed in 0..24 {
        let context = format!("seed {seed}");
        let (mut rng, mut run) = (Rng::new(seed), CrashRun::new(seed, options(Durability::EverySecond, 0), 10 * KEYS));
        // The copies of cleaning fit into segments that are listed.
        while unsealed(&run.disk, StreamKind::Survivors) < 2 {
            run.step(&mut rng).unwrap();
        }
        let acked = run.acked();
        let target = SimDisk::new(SimOptions::default());
        let idle = BusySource::new(&mut run, rng.next());
        // The manifest was read, and the first of the survivors' frames were not.
        let mut source = BusySource { drops_before_tail: true, ..idle };
        let report = copy(&mut source, &target, 0).unwrap_or_else(|error| panic!("{context}: {error}"));
        if source.has_dropped {
            dropped += 1;
            assert_eq!(report.attempts, 2, "{context}");
            drop(source);
            check_copy(&run, target, acked, &mut rng, &context);
        }
    }
    assert!(dropped >= 8, "{dropped}");
}

#[test]
fn a_copy_of_a_store_that_sorts_and_merges_meanwhile_has_all_that_was_acked() {
    let of_seed = |seed| {
        let options = Options { sort_bytes: 1, ..sorted(Durability::EverySecond) };
        copies_with(seed, options, 8, ([3, 8][seed as usize % 2], 0, 0), false)
    };
    let attempts: u32 = (300..304).map(of_seed).sum();
    assert!(attempts > 4 * 8, "no attempt met a change");
}

/// With fewer descriptors than files, a file may be dropped before it is copied.
#[test]
fn a_copy_without_descriptors_of_all_files_has_all_that_was_acked() {
    let of_seed = |seed| copies_with(seed, options(Durability::EverySecond, 140), 5, (1, 300, 0), true);
    let attempts: u32 = (400..412).map(of_seed).sum();
    assert!(attempts > 12 * 5, "no attempt lost a file");
}

/// Each attempt copies what the one before has lost, and loses the next file.
#[test]
fn a_copy_may_take_any_number_of_attempts_that_make_progress() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(Durability::Memory, 0), Now::at(1)).unwrap();
    for key in 0..600_u32 {
        let value = Some(vec![7; 10_000]);
        node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value, expires_at_ms: 0 }]).unwrap();
        node.turn();
    }
    drop(node.engine.close().unwrap());
    let mut run = CrashRun::new(1, options(Durability::Sync, 0), KEYS);
    let (device, forgotten) = (SimDevice::attach(&disk), Some(BTreeSet::new()));
    let mut source = BusySource { device, forgotten, ..BusySource::new(&mut run, 1) };
    let target = SimDisk::new(SimOptions::default());
    let report = copy(&mut source, &target, 0).unwrap();
    assert!(report.segments > 90 && u64::from(report.attempts) > report.segments, "{report:?}");
    assert_eq!(check::check(&mut SimDevice::attach(&target)).unwrap().findings, []);
}

/// A source that is written faster than it is copied.
#[test]
fn a_copy_ends_after_attempts_without_progress() {
    let mut run = CrashRun::new(501, options(Durability::EverySecond, 140), KEYS);
    let target = SimDisk::new(SimOptions::default());
    let mut source = BusySource { restart_every: 4, ..BusySource::new(&mut run, 501) };
    match copy(&mut source, &target, 0) {
        Err(CopyError::Unsettled { attempts }) => assert!((64..200).contains(&attempts), "{attempts}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_survives_restarts_of_the_store() {
    let attempts: u32 = (100..106).map(|seed| copies((seed, 0), 8, (2, 0, 100))).sum();
    assert!(attempts > 6 * 8, "no attempt met a restart");
}

fn options(durability: Durability, space_amplification_max_percent: u64) -> Options {
    Options { space_amplification_max_percent, ..small(durability) }
}

pub(crate) fn copy_of(disk: &SimDisk, skip_generations: u32) -> Result<SimDisk, CopyError> {
    let target = SimDisk::new(SimOptions::default());
    copy(&mut SimDevice::attach(disk), &target, skip_generations).map(|_| target)
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

#[test]
fn a_copy_and_its_source_share_no_names_of_later_segments() {
    let mut run = cold_keys_in(1, options(Durability::EverySecond, 0));
    let target = copy_of(&run.disk, 1000).unwrap();
    let common = segments(&target);
    let mut rng = Rng::new(1);
    (0..1500).for_each(|_| run.step(&mut rng).unwrap());
    let mut node = TestNode::open(&target, small(Durability::EverySecond), Now::at(9000)).unwrap();
    assert!(node.engine.generation() > 1000);
    for i in 0..1500 {
        let write = TestWrite { key: format!("n{i}").into_bytes(), value: Some(vec![1; 300]), expires_at_ms: 0 };
        node.append(&[write]).unwrap();
        node.turn();
    }
    let (ours, others) = (segments(&target), segments(&run.disk));
    let shared: Vec<_> = ours.iter().filter(|name| others.contains(name) && !common.contains(name)).collect();
    assert!(ours.len() > common.len() && shared.is_empty(), "{shared:?}");
}

/// The name of the stream's segment that is written to, and its last frame's bounds.
fn active(disk: &SimDisk, stream: StreamKind) -> (String, (usize, usize)) {
    let with_frames = segments(disk).into_iter().filter_map(|name| {
        let bytes = disk.contents(&name).unwrap();
        let sequence = u64::from_le_bytes(bytes[48..56].try_into().unwrap());
        let is_of_stream = bytes[60..64] == (stream as u32).to_le_bytes();
        Some((sequence, name, *frames(&bytes).last()?)).filter(|_| is_of_stream)
    });
    let (_, name, frame) = with_frames.max().unwrap();
    (name, frame)
}

#[test]
fn damage_in_the_segment_that_is_written_to_is_refused_not_cut_off() {
    let mut run = cold_keys_in(2, options(Durability::Sync, 0));
    let mut rng = Rng::new(2);
    // The first frame is damaged, and a later one proves that it was synced.
    let name = loop {
        run.step(&mut rng).unwrap();
        let (name, (last, _)) = active(&run.disk, StreamKind::Foreground);
        if last > 4096 + 8192 {
            break name;
        }
    };
    run.disk.flip_bits(&name, 4096 + 200, 1);
    match copy_of(&run.disk, 0).map(drop) {
        Err(CopyError::Damaged { file, .. }) => assert_eq!(file, name),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_to_the_last_frame_of_a_copy_is_damage_not_a_torn_end() {
    let run = cold_keys_in(3, options(Durability::EverySecond, 0));
    let target = copy_of(&run.disk, 0).unwrap();
    let (name, (from, _)) = active(&target, StreamKind::Foreground);
    target.flip_bits(&name, from as u64 + 100, 1);
    let found = check::check(&mut SimDevice::attach(&target)).unwrap();
    assert!(!found.is_sound(), "{:?}", found.findings);
}

/// The manifest loses its end between two attempts, of which the first has copied the newest sealed segment.
#[test]
fn a_segment_whose_seal_was_lost_after_its_copy_is_damage() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(Durability::Sync, 0), Now::at(1)).unwrap();
    for key in 0..20_u32 {
        let value = Some(vec![7; 10_000]);
        node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value, expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    drop(node);
    disk.kill(1);
    let manifest = disk.contents("manifest").unwrap();
    let mut seals = manifest_commits(&manifest).into_iter().filter(|&(at, _)| manifest[at + 32] == 6);
    let (last_seal, _) = seals.next_back().unwrap();
    let target = SimDisk::new(SimOptions::default());
    let mut run = CrashRun::new(1, options(Durability::Sync, 0), KEYS);
    // The first attempt meets a file that it cannot read.
    let (device, forgotten) = (SimDevice::attach(&disk), Some(BTreeSet::new()));
    let mut source = BusySource { device, forgotten, ..BusySource::new(&mut run, 1) };
    let link = &mut |name: &str| {
        target.put(name, &disk.contents(name).unwrap());
        let mut older = manifest.clone();
        older[last_seal..].fill(0);
        disk.put("manifest", &older);
        Linked::Done
    };
    let mut options = CopyOptions { link, progress: &mut |_, _| {}, piece_bytes: 4 << 10, skip_generations: 0 };
    match copy_store(&mut source, &mut SimDevice::attach(&target), &mut options) {
        Err(CopyError::Damaged { file, detail }) => assert!(file == "manifest" && detail.contains("seal"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_segment_is_reported_by_name() {
    let run = cold_keys_in(4, options(Durability::EverySecond, 0));
    let name = segments(&run.disk).remove(0);
    SimDevice::attach(&run.disk).unlink(&name).unwrap();
    match copy_of(&run.disk, 0).map(drop) {
        Err(CopyError::Damaged { file, detail }) => assert!(file == name && detail.contains("missing"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_target_is_an_error_and_holds_no_store() {
    let run = cold_keys_in(5, options(Durability::EverySecond, 0));
    let whole = copy_of(&run.disk, 0).unwrap();
    let bytes_of = |name: &String| whole.contents(name).unwrap().len().next_multiple_of(4096) as u64;
    let manifest = "manifest".to_owned();
    let others: u64 = whole.names().iter().filter(|name| **name != manifest).map(bytes_of).sum();
    // Once in a segment, once at the manifest.
    for capacity_bytes in [100 << 10, others + 4096] {
        let target = SimDisk::new(SimOptions::default());
        target.set_capacity_bytes(Some(capacity_bytes));
        let error = copy(&mut SimDevice::attach(&run.disk), &target, 0).unwrap_err();
        assert!(matches!(error, CopyError::Device(_)), "{capacity_bytes}: {error}");
        assert!(!target.names().contains(&manifest));
    }
}

/// The restoration of a backup is a copy of it, and skips generations again.
#[test]
fn a_copy_without_generations_for_another_one_says_so() {
    const SKIPPED_MAX: u32 = (1 << 17) - 1;
    let run = cold_keys_in(1, options(Durability::EverySecond, 0));
    let state = state(&run.disk);
    let epochs = state.ranges.values().filter_map(|range| Some(range.sole?.epoch.get()));
    let newest = epochs.fold(state.generation, u32::max);
    for left in [SKIPPED_MAX, SKIPPED_MAX - 1] {
        let target = SimDisk::new(SimOptions::default());
        let skipped = Epoch::MAX.get() - newest - left;
        let report = copy(&mut SimDevice::attach(&run.disk), &target, skipped).unwrap();
        assert_eq!(report.generations_left, left);
        assert_eq!(report.can_be_copied(), copy_of(&target, SKIPPED_MAX).is_ok(), "{left} generations left");
    }
}

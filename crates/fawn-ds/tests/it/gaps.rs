//! Replays after an opening that found segments missing: without gaps, or rejected.
use crate::support::{RANGE, TestNode, small};
use fawn_ds::internals::{EngineError, Options, RecordKind, RecordRef, Replay};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Epoch, KeyRange, Now, RangeId, Version};

fn options() -> Options {
    small(Durability::Sync)
}

/// A history whose middle segments mostly die: some keys are written once, a few continuously.
struct GapHistory {
    disk: SimDisk,
    node: TestNode,
    versions: Vec<Version>,
    epoch: u32,
}

impl GapHistory {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
        Self { disk, node, versions: Vec::new(), epoch: 1 }
    }

    fn write(&mut self, rng: &mut Rng) {
        // A new epoch may begin its sequence numbers anywhere.
        let last = self.versions.last().map_or(0, |version| version.seq());
        let seq = if rng.below(60) == 0 {
            self.epoch += 1;
            1 + rng.below(3)
        } else {
            last + 1
        };
        let version = Version::new(Epoch::new(self.epoch).unwrap(), seq).unwrap();
        let key = if rng.below(50) == 0 { rng.below(1000) + 10 } else { rng.below(5) }.to_be_bytes();
        let value = vec![1; 300 + rng.below(3000) as usize];
        let record = match rng.below(8) {
            0 => RecordRef::bare(RecordKind::Tombstone, version, &key),
            _ => RecordRef::put(version, &key, &value),
        };
        loop {
            match self.node.engine.append(RANGE, TestNode::hash(&key), &record) {
                Err(EngineError::Overloaded) => drop(self.node.turn()),
                result => break result.unwrap(),
            }
        }
        self.versions.push(version);
        if rng.below(3) == 0 {
            self.node.turn();
        }
    }

    fn replay(&mut self, mut after: Version) -> Option<Vec<Version>> {
        let mut seen = Vec::new();
        loop {
            match self.node.engine.replay(RANGE, after, 1 << 20, |record| seen.push(record.version)).unwrap() {
                Replay::Records { through, .. } => after = through,
                Replay::UpToDate => return Some(seen),
                Replay::Gone => return None,
                Replay::Read(plan) => {
                    self.node.engine.read(plan, 42);
                    let plan = self.node.wait_for_plan();
                    self.node.engine.absorb(plan).unwrap();
                }
            }
        }
    }

    /// Replays after every `step`-th version: gapless, and refused only up to some version. Returns how many were
    /// refused, and how many gave records.
    fn check_replays(&mut self, step: usize, context: &str) -> (usize, usize) {
        let (mut refused, mut answered, mut is_answered) = (0, 0, false);
        for after in [Version::ZERO].into_iter().chain(self.versions.clone()).step_by(step) {
            let found = self.replay(after);
            assert!(found.is_some() || !is_answered, "{context}: refused after {after:?}, but not after earlier ones");
            is_answered |= found.is_some();
            let Some(found) = found else {
                refused += 1;
                continue;
            };
            let expected: Vec<_> = self.versions.iter().copied().filter(|version| *version > after).collect();
            assert_eq!(found, expected, "{context}: after {after:?}");
            answered += usize::from(!expected.is_empty());
        }
        (refused, answered)
    }
}

#[test]
fn a_replay_after_an_opening_is_gapless_or_refused() {
    let (mut refused, mut answered, mut holes) = (0, 0, 0);
    for seed in 0..20 {
        println!("seed {seed}: cargo test -p fawn-ds --test it gaps::");
        let mut rng = Rng::new(seed);
        let mut history = GapHistory::new(seed);
        for _ in 0..200 + rng.below(300) {
            history.write(&mut rng);
        }
        history.node.settle();
        holes += history.node.engine.stats().segments_dropped;
        history.disk.crash(seed);
        history.node = TestNode::open_in_chain(&history.disk, options(), Now::at(9)).unwrap();
        let end = *history.versions.last().unwrap();
        assert_eq!(history.node.engine.progress(RANGE).appended, end);
        let (newly_refused, newly_answered) = history.check_replays(1, &format!("seed {seed}"));
        (refused, answered) = (refused + newly_refused, answered + newly_answered);
        assert!(history.node.engine.replay_floor(RANGE) < end, "seed {seed}: the newest segment is complete");
        // A higher floor takes the oldest records away; it must not bring a gap back into reach.
        for floor in [history.versions[0], history.versions[50]] {
            history.node.engine.set_retain_floor(RANGE, floor);
            history.check_replays(7, &format!("seed {seed}: nothing retained through {floor:?}"));
        }
    }
    println!("{refused} refused, {answered} answered, {holes} segments dropped");
    assert!(refused > 500 && answered > 300 && holes > 15, "{refused} refused, {answered} answered, {holes} dropped");
}

#[test]
fn one_missing_segment_is_a_gap() {
    let mut history = GapHistory::new(1);
    // Four records fill a segment; those of the second one are replaced.
    for (seq, key) in [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9].into_iter().enumerate() {
        let version = Version::new(Epoch::new(1).unwrap(), seq as u64 + 1).unwrap();
        append(&mut history.node, RANGE, &RecordRef::put(version, &[key], &[1; 14_900]));
        history.versions.push(version);
        history.node.settle();
        history.node.now = history.node.now.plus_ms(1000);
    }
    for _ in 0..20 {
        history.node.turn();
    }
    assert_eq!(history.node.engine.stats().segments_dropped, 1);
    history.disk.crash(1);
    // A checkpoint has only what was retained; a scan finds all that is left.
    let names = history.disk.names();
    names.iter().filter(|name| name.starts_with("checkpoint-")).for_each(|name| history.disk.flip_bits(name, 4100, 8));
    history.node = TestNode::open_in_chain(&history.disk, options(), Now::at(9)).unwrap();
    assert_eq!(history.node.report.checkpoint_entries, None);
    let (refused, answered) = history.check_replays(1, "one segment is missing");
    assert!(refused > 4 && answered > 2, "{refused} refused, {answered} answered");
}

fn append(node: &mut TestNode, range: RangeId, record: &RecordRef<'_>) {
    for _ in 0..1000 {
        match node.engine.append(range, TestNode::hash(record.key), record) {
            Err(EngineError::Overloaded) => {
                let progress = node.engine.progress(range);
                node.engine.commit(range, progress.synced);
                node.turn();
            }
            result => return result.unwrap(),
        }
    }
    panic!("the engine stays overloaded");
}

/// A mark certifies a commit even if the segment with the committed record is gone.
#[test]
fn what_a_mark_says_was_committed_stays_so() {
    const OTHER: RangeId = RangeId(8);
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    append(&mut node, RANGE, &RecordRef::put(version(1), b"key", &[1; 9000]));
    append(&mut node, RANGE, &RecordRef::bare(RecordKind::Tombstone, version(2), b"key"));
    node.settle();
    for seq in 1..=60 {
        append(&mut node, OTHER, &RecordRef::put(version(seq), b"key", &[2; 9000]));
        node.turn();
        node.engine.commit(OTHER, version(seq));
    }
    node.settle();
    node.turn();
    assert!(node.engine.stats().segments_dropped > 0, "{:?}", node.engine.log_report());
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(9)).unwrap();
    let progress = node.engine.progress(RANGE);
    assert_eq!((progress.committed, progress.appended), (version(2), version(2)));
    assert!(matches!(node.engine.replay(RANGE, version(1), 1000, |_| {}).unwrap(), Replay::Gone));
    assert!(matches!(node.engine.replay(RANGE, version(2), 1000, |_| {}).unwrap(), Replay::UpToDate));
}

/// Segments that went before a transfer began are no gap in what follows it: a member that has the base can go on.
#[test]
fn a_gap_before_a_transfer_is_none_after_it() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    let version = |epoch, seq| Version::new(Epoch::new(epoch).unwrap(), seq).unwrap();
    for seq in 1..=60 {
        append(&mut node, RANGE, &RecordRef::put(version(1, seq), b"key", &[2; 9000]));
        node.turn();
    }
    node.settle();
    assert!(node.engine.stats().segments_dropped > 0, "{:?}", node.engine.log_report());
    let base = version(1, 60);
    node.engine.begin_transfer(RANGE, base).unwrap();
    node.engine.finish_transfer(RANGE).unwrap();
    while node.engine.copying(RANGE).is_some() {
        node.turn();
    }
    append(&mut node, RANGE, &RecordRef::put(version(2, 1), b"key", b"later"));
    node.settle();
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(9)).unwrap();
    assert_eq!(node.engine.progress(RANGE).appended, version(2, 1));
    let mut seen = Vec::new();
    let after_base = node.engine.replay(RANGE, base, 1000, |record| seen.push(record.version)).unwrap();
    assert!(matches!(after_base, Replay::Records { .. } | Replay::Read(_)), "{after_base:?}");
    assert_eq!(node.engine.replay_floor(RANGE), base);
}

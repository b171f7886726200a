//! Stores that begin to sort late: deletes without index entries, checkpoints of a time without runs, commits in flight.
use crate::sorted_files::{put, sort_out};
use crate::sorted_jobs::poll;
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, TestWrite};
use fawn_ds::internals::format::{checkpoint, segment};
use fawn_ds::internals::{Lookup, Options, RecordLayout, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeMap;

const KEYS: u64 = 150;

struct LateStore {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    content: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl LateStore {
    fn write(&mut self, rng: &mut Rng, keys: u64) {
        let key = format!("key-{:04}", rng.below(keys)).into_bytes();
        let len = if rng.below(8) == 0 { 1_500 + rng.below(3_000) } else { 100 + rng.below(700) };
        let stamp = rng.next();
        let value = (rng.below(5) > 1).then(|| (0..len).map(|i| (stamp >> (i % 57)) as u8).collect::<Vec<u8>>());
        self.node.append(&[TestWrite { key: key.clone(), value: value.clone(), expires_at_ms: 0 }]).unwrap();
        self.content.insert(key, value);
    }

    /// Lookups and scans confirm what an opening has deferred, so each of them is the first one now and then.
    fn check(&mut self, place: &str, is_scan_first: bool) {
        for is_scan in [is_scan_first, !is_scan_first] {
            if is_scan {
                let keys = self.content.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key.clone());
                assert!(self.node.keys() == keys.collect::<Vec<_>>(), "{place}: a scan returns other keys");
                continue;
            }
            for (key, expected) in &self.content {
                let found = self.node.get(key, View::Latest).unwrap().map(|entry| entry.value);
                assert!(found == *expected, "{place}: {}", String::from_utf8_lossy(key));
            }
        }
    }

    /// An opening that reads the whole log must find the same.
    fn lose_checkpoints(&self) {
        let names = self.disk.names();
        names.iter().filter(|name| checkpoint::is_file_name(name)).for_each(|name| self.disk.flip_bits(name, 5_000, 8));
    }

    fn reopen(&mut self, rng: &mut Rng, place: &str) {
        let crash = (rng.below(2) == 0).then(|| rng.next());
        self.node.settle();
        let spare = TestNode::open(&SimDisk::new(SimOptions::default()), self.options.clone(), self.node.now).unwrap();
        let node = std::mem::replace(&mut self.node, spare);
        match crash {
            // A power loss keeps synced records, and a kill flushed ones.
            Some(seed) if self.options.durability == Durability::Sync => self.disk.crash(seed),
            Some(seed) => self.disk.kill(seed),
            None => drop(node.engine.close().unwrap()),
        }
        if rng.below(3) == 0 {
            self.lose_checkpoints();
        }
        self.node = TestNode::open(&self.disk, self.options.clone(), self.node.now).unwrap();
        self.check(place, rng.below(3) == 0);
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let checkpoint_log_bytes_min = if rng.below(2) == 0 { u64::MAX } else { 32 << 10 };
    let amplification = [0, 10_000];
    let [first_amplification, space_amplification_max_percent] = [0; 2].map(|_| amplification[rng.below(2) as usize]);
    let later = Options {
        sort_bytes: [1, 40 << 10, 1 << 30][rng.below(3) as usize],
        space_amplification_max_percent,
        checkpoint_log_bytes_min,
        ..sorted([Durability::Sync, Durability::EverySecond][rng.below(2) as usize])
    };
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let space_amplification_max_percent = first_amplification;
    let options = Options { layout: RecordLayout::Log, space_amplification_max_percent, ..later.clone() };
    let node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    let mut store = LateStore { disk, options, node, content: BTreeMap::new() };
    let first = 200 + rng.below(400);
    for step in 0..first + 400 {
        store.write(&mut rng, if step % 3 == 0 { KEYS } else { KEYS / 4 });
        if rng.below(3) == 0 {
            store.node.turn();
            store.node.now = store.node.now.plus_ms(rng.below(100));
        }
        if step == first {
            store.options = later.clone();
        }
        if step == first || (step > first && rng.below(40) == 0) {
            store.reopen(&mut rng, &format!("seed {seed}, step {step}"));
        }
    }
    sort_out(&mut store.node);
    store.check(&format!("seed {seed}, sorted"), false);
    store.reopen(&mut rng, &format!("seed {seed}, at the end"));
}

#[test]
fn a_store_that_begins_to_sort_late_keeps_every_key() {
    let (from, to) = std::env::var("SEEDS").map_or((0, 60), |seeds| {
        let (from, to) = seeds.split_once("..").unwrap();
        (from.parse().unwrap(), to.parse().unwrap())
    });
    (from..to).for_each(run);
}

fn late_put(node: &mut TestNode, key: &str, value: &str) {
    put(node, key.as_bytes(), Some(value.repeat(300 / value.len()).as_bytes()));
}

/// Writes keys of this name, a little more than a segment takes.
fn fill_segment(node: &mut TestNode, name: &str) {
    for number in 0..200 {
        late_put(node, &format!("{name}-{number}"), name);
        node.turn();
    }
}

/// The segment with these bytes.
pub(crate) fn segments_with(disk: &SimDisk, bytes: &str) -> Vec<String> {
    let has = |name: &String| {
        let content = disk.contents(name).unwrap();
        content.windows(bytes.len()).any(|window| window == bytes.as_bytes())
    };
    disk.names().into_iter().filter(|name| segment::is_file_name(name) && has(name)).collect()
}

fn segment_with(disk: &SimDisk, bytes: &str) -> String {
    segments_with(disk, bytes).into_iter().next().unwrap()
}

/// A tombstone from a time without runs is an index entry at later openings. So the segment with the put that came after it
/// stays as long as the tombstone does, although the put itself is in a run.
#[test]
fn a_tombstone_from_a_time_without_runs_stays_hidden_by_a_put_that_was_sorted() {
    for (has_checkpoint, is_whole) in [(false, true), (true, true), (true, false)] {
        let later = Options { sort_bytes: 1, ..scanned_and_sorted() };
        let checkpoint_log_bytes_min = if has_checkpoint { 16 << 10 } else { u64::MAX };
        let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min, ..later.clone() };
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
        late_put(&mut node, "deleted", "first");
        fill_segment(&mut node, "older");
        put(&mut node, b"deleted", None);
        match is_whole {
            true => fill_segment(&mut node, "with the delete"),
            // The checkpoint has a part of the segment.
            false => (0..50).for_each(|number| late_put(&mut node, &format!("with the delete-{number}"), "few")),
        }
        node.settle();
        if has_checkpoint {
            node.engine.close().unwrap();
            // Deletes have index entries from now on, and the checkpoint has none of them.
            let node = TestNode::open(&disk, Options { sort_bytes: 1 << 30, ..later.clone() }, Now::at(2_000));
            node.unwrap().settle();
        } else {
            drop(node);
        }
        disk.crash(1);
        let mut node = TestNode::open(&disk, later.clone(), Now::at(3_000)).unwrap();
        assert_eq!(node.report.checkpoint_entries.is_some(), has_checkpoint);
        // So that the tombstone stays, while older and newer segments are sorted.
        disk.make_unreadable(&segment_with(&disk, "with the delete-0"), 4096..12_288);
        if !is_whole {
            fill_segment(&mut node, "in the same segment");
        }
        late_put(&mut node, "deleted", "second");
        fill_segment(&mut node, "newer");
        fill_segment(&mut node, "newest");
        sort_out(&mut node);
        assert!(node.engine.stats().cleaning_failed == 1 && node.engine.runs() > 1, "{:?}", node.engine);
        let (delete, hiding) = (segment_with(&disk, "with the delete-0"), segment_with(&disk, "secondsecond"));
        assert!(delete != hiding, "both stay");
        drop(node);
        disk.heal();
        disk.crash(1);
        let checkpoints = disk.names().into_iter().filter(|name| checkpoint::is_file_name(name));
        checkpoints.for_each(|name| disk.flip_bits(&name, 5_000, 8));
        let mut node = TestNode::open(&disk, later, Now::at(4_000)).unwrap();
        assert_eq!(node.report.checkpoint_entries, None);
        let found = node.get(b"deleted", View::Committed).unwrap();
        assert!(
            found.is_some_and(|entry| entry.value.starts_with(b"second")),
            "checkpoint: {has_checkpoint}, of all {is_whole}"
        );
        assert!(node.get(b"with the delete-1", View::Committed).unwrap().is_some());
    }
}

/// Without automatic checkpoints.
fn scanned_and_sorted() -> Options {
    Options { checkpoint_log_bytes_min: u64::MAX, ..sorted(Durability::Sync) }
}

/// A checkpoint counts live records of a segment that was sorted since. They would keep the segment for ever.
#[test]
fn a_segment_that_was_sorted_after_the_checkpoint_is_dropped_after_an_opening() {
    let later = Options { sort_bytes: 1, ..scanned_and_sorted() };
    let first = Options { layout: RecordLayout::Log, ..sorted(Durability::Sync) };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    (0..4).for_each(|number| fill_segment(&mut node, &format!("name {number}")));
    node.settle();
    node.engine.close().unwrap();
    let mut node = TestNode::open(&disk, later.clone(), Now::at(2_000)).unwrap();
    // Reads in flight keep the segments, although they are sorted.
    disk.hang(OpKind::Read);
    for number in 0..4 {
        let key = format!("name {number}-7").into_bytes();
        match node.engine.lookup(RANGE, TestNode::hash(&key), &key, View::Committed, node.now.wall) {
            Ok(Lookup::Read(plan)) => node.engine.read(plan, 42),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(disk.hung(), 4);
    disk.clear_faults();
    while node.engine.stats().runs_listed < 4 || node.engine.is_sorting() {
        poll(&mut node);
    }
    let segments = node.engine.log_report().segments;
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open(&disk, later, Now::at(3_000)).unwrap();
    assert!(node.report.checkpoint_entries.is_some() && segments >= 5, "{segments} segments");
    sort_out(&mut node);
    let report = node.engine.log_report();
    assert!(report.segments <= 2, "{report:?} {:?}", node.engine.segments_kept());
    for number in 0..4 {
        let key = format!("name {number}-7");
        assert!(node.get(key.as_bytes(), View::Committed).unwrap().is_some(), "{key}");
    }
}

/// A delete that was appended without an index entry gets none when it is committed: it would not hide a record in a run.
#[test]
fn nothing_is_sorted_before_deletes_without_entries_are_committed() {
    let later = Options { sort_bytes: 1, ..scanned_and_sorted() };
    let first = Options { layout: RecordLayout::Log, ..later.clone() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, first, Now::at(1_000)).unwrap();
    fill_segment(&mut node, "name");
    fill_segment(&mut node, "later");
    node.settle();
    node.engine.close().unwrap();
    let mut node = TestNode::open_in_chain(&disk, later, Now::at(2_000)).unwrap();
    let committed = node.commit();
    node.engine.set_retain_floor(RANGE, committed);
    put(&mut node, b"name-7", None);
    for _ in 0..300 {
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(50);
    }
    assert_eq!(node.engine.runs(), 0, "a delete is pending");
    sort_out(&mut node);
    assert!(node.engine.runs() > 0);
    assert!(node.get(b"name-7", View::Committed).unwrap().is_none());
    assert!(node.get(b"name-8", View::Committed).unwrap().is_some());
}

/// Cleaning copies a tombstone from a time without runs, because it hides a put in an older segment. A checkpoint may have
/// a newer record of the key than such a copy behind it.
#[test]
fn a_tombstone_without_an_entry_is_copied_and_hides_only_older_records() {
    for is_written_again in [false, true] {
        let lazy = Options { sort_bytes: 1 << 30, space_amplification_max_percent: 10_000, ..scanned_and_sorted() };
        let disk = SimDisk::new(SimOptions::instant(1));
        let first = Options { layout: RecordLayout::Log, ..lazy.clone() };
        let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
        late_put(&mut node, "deleted", "first");
        fill_segment(&mut node, "older");
        put(&mut node, b"deleted", None);
        // Overwritten, so that the segment with the tombstone is the one to clean.
        (0..2).for_each(|_| fill_segment(&mut node, "dying"));
        (0..4).for_each(|number| fill_segment(&mut node, &format!("newer {number}")));
        node.settle();
        node.engine.close().unwrap();
        let cleaned = Options { space_amplification_max_percent: 0, ..lazy.clone() };
        if is_written_again {
            let options = Options { checkpoint_log_bytes_min: 16 << 10, ..lazy };
            let mut node = TestNode::open(&disk, options, Now::at(2_000)).unwrap();
            node.settle();
            late_put(&mut node, "deleted", "second");
            fill_segment(&mut node, "newest");
            node.settle();
            node.engine.close().unwrap();
        }
        let mut node = TestNode::open(&disk, cleaned.clone(), Now::at(3_000)).unwrap();
        // A search for a segment to clean follows a seal. Other segments are not cleaned.
        for number in 0..10_000 {
            late_put(&mut node, &format!("last-{number}"), "last");
            node.turn();
            if node.engine.stats().moved_tombstones > 0 {
                break;
            }
        }
        assert!(node.engine.stats().moved_tombstones == 1 && node.engine.runs() == 0, "{:?}", node.engine.stats());
        // Without another checkpoint.
        node.engine.close_with_deadline(&mut || true).unwrap();
        let mut node = TestNode::open(&disk, cleaned, Now::at(4_000)).unwrap();
        assert_eq!(node.report.checkpoint_entries.is_some(), is_written_again);
        let found = node.get(b"deleted", View::Committed).unwrap().map(|entry| entry.value);
        let expected = is_written_again.then(|| "second".repeat(50).into_bytes());
        assert!(found == expected, "written again: {is_written_again}");
        assert!(node.get(b"older-1", View::Committed).unwrap().is_some());
    }
}

/// A process is killed between the copy of an expiring put and the drop of its segment, before the store begins to sort. The
/// segment hides older records, so it is cleaned again, and no tombstone of the same version may hide the copy.
#[test]
fn an_expiring_put_that_was_copied_becomes_no_tombstone() {
    let options = Options { sort_bytes: 1, capacity_bytes: Some(24 * (64 << 10)), ..scanned_and_sorted() };
    let first = Options { layout: RecordLayout::Log, ..options.clone() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    let mut rng = Rng::new(1);
    let mut write_until = |node: &mut TestNode, is_reached: &dyn Fn() -> bool| {
        for _ in 0..20_000 {
            if is_reached() {
                return;
            }
            late_put(node, &format!("last-{}", rng.below(400)), "last");
            node.turn();
        }
        panic!("{:?}", node.engine.segments_kept());
    };
    late_put(&mut node, "expiring", "first");
    late_put(&mut node, "deleted", "first");
    fill_segment(&mut node, "older");
    // The copy of a delete comes before that of the put. So the put's copy waits for its verification at an opening, and
    // has its entry in the end. Without the delete, the original has it again.
    put(&mut node, b"expiring", None);
    late_put(&mut node, "in the segment of the delete", "mark");
    node.settle();
    let of_delete = segment_with(&disk, "in the segment of the delete");
    write_until(&mut node, &|| !disk.names().contains(&of_delete));
    let value = "original".repeat(40).into_bytes();
    let expires_at_ms = node.now.wall.0 + 1_000_000_000;
    node.append(&[TestWrite { key: b"expiring".to_vec(), value: Some(value.clone()), expires_at_ms }]).unwrap();
    // A newer delete alongside: for all that is known, any record of the segment may hide an older one.
    put(&mut node, b"deleted", None);
    node.settle();
    let original = segment_with(&disk, "originaloriginal");
    write_until(&mut node, &|| segments_with(&disk, "originaloriginal").len() == 2);
    drop(node);
    disk.kill(1);
    let mut node = TestNode::open(&disk, options.clone(), Now::at(2_000)).unwrap();
    assert!(disk.names().contains(&original), "it is not dropped yet");
    write_until(&mut node, &|| !disk.names().contains(&original));
    node.settle();
    drop(node);
    disk.kill(1);
    // Nothing waits for its verification in an opening for reading: of equal versions, the one that is read later counts.
    let mut node = TestNode::open(&disk, Options { read_only: true, ..options }, Now::at(3_000)).unwrap();
    assert!(node.get(b"expiring", View::Committed).unwrap().is_some_and(|entry| entry.value == value));
    assert!(node.get(b"deleted", View::Committed).unwrap().is_none());
}

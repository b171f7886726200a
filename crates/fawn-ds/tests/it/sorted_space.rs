//! Space of stores with sorted segments: records that these hide are cleaned in time, and deletes that hide nothing go.
use crate::sorted_files::{put, sort_out};
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

/// Writes, and waits for space as a client does. Panics if there is none for 20 s.
fn write_when_possible(node: &mut TestNode, key: &str, value: Option<Vec<u8>>) {
    let write = TestWrite { key: key.as_bytes().to_vec(), value, expires_at_ms: 0 };
    let since = node.now;
    while let Err(error) = node.append(std::slice::from_ref(&write)) {
        node.turn();
        node.now = node.now.plus_ms(10);
        let (engine, waited_ms) = (&node.engine, node.now.mono.ms_since(since.mono));
        assert!(
            waited_ms < 20_000,
            "{key}: {error}: {:?} {:?} {} runs",
            engine.log_report(),
            engine.segments_kept(),
            engine.runs()
        );
    }
}

/// Segments that the store takes, its runs included, also those that are being written.
pub(crate) fn segments_taken(node: &TestNode, disk: &SimDisk) -> u64 {
    let runs = disk.names().into_iter().filter(|name| name.starts_with("run-"));
    let run_bytes: u64 = runs.map(|name| disk.contents(&name).unwrap().len() as u64).sum();
    node.engine.log_report().segments + run_bytes.div_ceil(u64::from(node.engine.options().segment_bytes))
}

/// Writes segments of long records. Each has one short record besides, or two, which are overwritten later. In large frames, so
/// that nothing else is dead.
fn fill_long(node: &mut TestNode) {
    for number in 0..100 {
        put(node, format!("long-{number}").as_bytes(), Some(&[1; 3_000]));
        if number % 10 == 0 {
            put(node, format!("short-{number}").as_bytes(), Some(&[1; 100]));
        }
    }
    node.settle();
    for number in (0..100).step_by(10) {
        put(node, format!("short-{number}").as_bytes(), Some(&[2; 100]));
    }
}

/// A segment of long records is not sorted, and too few of them are dead to clean it. But sorted segments hide the dead ones,
/// and stay as long as these: without room for more of them, they must be cleaned.
#[test]
fn a_few_dead_records_do_not_fill_a_store_with_the_sorted_segments_that_hide_them() {
    let options = Options { capacity_bytes: Some(40 << 16), sort_bytes: 1, ..sorted(Durability::Sync) };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    fill_long(&mut node);
    // Some of them for the fourth time: 10 times what the store holds.
    for number in 0..80_000 {
        let key = format!("key-{}", number % 1_000).into_bytes();
        let write = TestWrite { key, value: Some(vec![3; 300]), expires_at_ms: 0 };
        if let Err(error) = node.append(&[write]) {
            panic!("write {number}: {error}: {:?} {:?}", node.engine.segments_kept(), node.engine.log_report());
        }
        node.turn();
        node.now = node.now.plus_ms(1);
    }
    assert!(node.engine.runs() > 0 && node.engine.stats().segments_dropped > 200);
    for number in 0..100 {
        assert!(node.get(format!("long-{number}").as_bytes(), View::Committed).unwrap().is_some());
    }
}

/// A delete without an index entry is decided on once the entries of its segment have moved to their copies. Until then
/// these count as puts that the delete hides: it would be copied again and again.
#[test]
fn a_delete_is_not_copied_because_of_the_copies_of_its_own_segment() {
    let lazy = Options {
        sort_bytes: 1 << 30,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..sorted(Durability::Sync)
    };
    let disk = SimDisk::new(SimOptions::instant(1));
    let first = Options { layout: RecordLayout::Log, checkpoint_log_bytes_min: 16 << 10, ..lazy.clone() };
    let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
    (0..60).for_each(|number| put(&mut node, format!("live-{number}").as_bytes(), Some(&[1; 300])));
    put(&mut node, b"absent", None);
    for _ in 0..2 {
        // Overwritten, so that the segment with the delete is the one to clean.
        for number in 0..150 {
            put(&mut node, format!("dying-{number}").as_bytes(), Some(&[1; 300]));
            node.turn();
        }
    }
    for number in 0..1_000 {
        put(&mut node, format!("newer-{number}").as_bytes(), Some(&[1; 300]));
        node.turn();
    }
    node.settle();
    node.engine.close().unwrap();
    // A sort would need more records than fit the store, so its segments are not left to sorts.
    let cleaned = Options { space_amplification_max_percent: 0, capacity_bytes: Some(16 << 20), ..lazy };
    let mut node = TestNode::open(&disk, cleaned, Now::at(2_000)).unwrap();
    // Without a checkpoint, an opening enters every delete into the index.
    assert!(node.report.checkpoint_entries.is_some());
    let mut number = 0;
    // A search for a segment to clean follows a seal.
    while node.engine.stats().segments_cleaned == 0 {
        put(&mut node, format!("last-{number}").as_bytes(), Some(&[1; 300]));
        node.turn();
        number += 1;
        assert!(number < 10_000, "nothing is cleaned: {:?}", node.engine);
    }
    let stats = node.engine.stats();
    assert!(stats.moved_records >= 60 && node.engine.runs() == 0, "{stats:?}");
    assert_eq!(stats.moved_tombstones, 0, "there is no put of its key");
}

/// A store without runs for long, which begins to sort when 30 of 40 segments are taken and half of the capacity is live. Old
/// records have been copied to the survivors' segments by then, and sorted segments stay as long as these.
#[test]
fn a_store_that_begins_to_sort_late_does_not_stay_full() {
    for seed in 0..2 {
        println!("seed {seed}");
        let options = Options { capacity_bytes: Some(40 << 16), ..sorted(Durability::Sync) };
        let first = Options { layout: RecordLayout::Log, ..options.clone() };
        let disk = SimDisk::new(SimOptions::instant(seed));
        let mut node = TestNode::open(&disk, first, Now::at(1_000)).unwrap();
        let mut rng = Rng::new(seed);
        let keys = (40 << 16) * 65 / 100 / 320;
        let mut taken_max = 0;
        for number in 0..30_000u64 {
            if number == 12_000 {
                node.settle();
                node.engine.close().unwrap();
                node = TestNode::open(&disk, options.clone(), Now::at(100_000_000)).unwrap();
            }
            let key = if number < keys { number } else { rng.below(keys) };
            let value = (rng.below(4) > 0).then(|| vec![3; 300]);
            write_when_possible(&mut node, &format!("key-{key}"), value);
            node.turn();
            node.now = node.now.plus_ms(1);
            taken_max = taken_max.max(segments_taken(&node, &disk));
        }
        assert!(node.engine.runs() > 0 && node.engine.stats().sweep_parts > 0);
        // In a store so small, a part of a merge may exceed the capacity: four runs, and what later ones have of their keys.
        assert!(taken_max <= 43, "{taken_max} of 40 segments");
    }
}

/// A queue in a store that has had runs, and sorts nothing any more. Deletes have index entries there, and go once nothing is
/// left that they hide. Deletes of long keys do not fit a run.
#[test]
fn a_queue_fits_a_store_that_sorts_nothing_any_more() {
    for (layout, keys, key_bytes) in
        [(RecordLayout::Log, 1_000, 15), (RecordLayout::Auto, 1_000, 15), (RecordLayout::Log, 100, 1_200)]
    {
        let disk = SimDisk::new(SimOptions::instant(1));
        let capacity_bytes = Some(40 << 16);
        let options = Options { capacity_bytes, sort_bytes: 1, ..sorted(Durability::Sync) };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
        for number in 0..300 {
            put(&mut node, format!("first-{number}").as_bytes(), Some(&[1; 300]));
            node.turn();
        }
        sort_out(&mut node);
        assert!(node.engine.runs() > 0);
        node.settle();
        node.engine.close().unwrap();
        let options = Options { layout, memory_bytes: 64 << 20, ..options };
        let mut node = TestNode::open(&disk, options, Now::at(2_000)).unwrap();
        let (mut segments_max, mut index_bytes_max) = (0, 0);
        let key = |number: u64| format!("queued-{number:08}{:1$}", "", key_bytes - 15);
        for number in 0..100 * keys {
            write_when_possible(&mut node, &key(number), Some(vec![1; 20]));
            if number >= keys {
                write_when_possible(&mut node, &key(number - keys), None);
            }
            if number % 4 == 0 {
                node.turn();
                node.now = node.now.plus_ms(1);
            }
            if number > 20 * keys {
                segments_max = segments_max.max(node.engine.log_report().segments);
                index_bytes_max = index_bytes_max.max(node.engine.memory().index_bytes);
            }
        }
        // The queue is one or two segments long.
        assert!(segments_max <= 14, "{layout:?}, keys of {key_bytes} B: {segments_max}");
        assert!(index_bytes_max < 512 << 10, "{layout:?}: {index_bytes_max} B of indexes");
        for number in 0..300 {
            assert!(node.get(format!("first-{number}").as_bytes(), View::Committed).unwrap().is_some());
        }
    }
}

/// Sorts make more later runs than are left unmerged, while the oldest ones are merged part by part. With no
/// space for the former, the latter must continue: they alone give space back.
#[test]
fn merges_of_later_runs_do_not_hold_up_those_that_make_space() {
    let capacity_bytes = 104 << 20;
    let options = Options {
        capacity_bytes: Some(capacity_bytes),
        segment_bytes: 256 << 10,
        sort_bytes: 0,
        run_bytes_max: 7 << 17,
        memory_bytes: 16 << 20,
        ..sorted(Durability::EverySecond)
    };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let keys = capacity_bytes * 70 / 100 / 304;
    let mut rng = Rng::new(1);
    for number in 0..4 * keys {
        let key = if number < keys { number } else { rng.below(keys) };
        write_when_possible(&mut node, &format!("key-{key:012}"), Some(vec![3; 256]));
        if number % 64 == 0 {
            node.turn();
            node.now = node.now.plus_ms(1);
        }
    }
    assert!(node.engine.stats().sweep_parts > 20, "{:?}", node.engine.stats());
}

/// Writes within 20 s.
fn writes_in_time(node: &mut TestNode, key: Vec<u8>, value: Option<Vec<u8>>) -> bool {
    let write = TestWrite { key, value, expires_at_ms: 0 };
    let since = node.now.mono;
    while node.now.mono.ms_since(since) < 20_000 {
        let version = node.next_version();
        if node.put_once(&write, version).is_ok() {
            return true;
        }
        node.turn();
        node.now = node.now.plus_ms(1);
    }
    false
}

/// Fills a store with short values under such keys. Returns their number.
fn fill_with_short_records(node: &mut TestNode, key_of: impl Fn(u64) -> Vec<u8>) -> u64 {
    let mut keys = 0;
    while writes_in_time(node, key_of(keys), Some(vec![1; 15])) {
        keys += 1;
        if keys % 64 == 0 {
            node.turn();
        }
    }
    keys
}

/// Deletes the first half of the keys, and then puts one more.
fn delete_half(node: &mut TestNode, keys: u64, key_of: impl Fn(u64) -> Vec<u8>) {
    for number in 0..keys / 2 {
        let is_deleted = writes_in_time(node, key_of(number), None);
        assert!(is_deleted, "delete {number} of {keys} keys: {:?} {:?}", node.engine.log_report(), node.engine.stats());
        if number % 64 == 0 {
            node.turn();
        }
    }
    assert!(writes_in_time(node, key_of(keys), Some(vec![1; 15])), "{:?}", node.engine.log_report());
}

/// All that is left of the capacity are two segments with deletes: they once had no room for a run of them, and without one
/// nothing was merged with what they hide.
#[test]
fn a_full_store_of_short_records_takes_deletes() {
    let options = Options { capacity_bytes: Some(96 << 16), sort_bytes: 0, ..sorted(Durability::Sync) };
    let mut node = TestNode::open(&SimDisk::new(SimOptions::instant(3)), options, Now::at(1_000)).unwrap();
    let key_of = |number| format!("key-{number:08}").into_bytes();
    let keys = fill_with_short_records(&mut node, key_of);
    delete_half(&mut node, keys, key_of);
}

/// As long as those of a server with its usual sizes, of which the space for one sort is a small part.
fn long_segments() -> Options {
    Options {
        segment_bytes: 4 << 20,
        capacity_bytes: Some(64 << 20),
        run_bytes_max: 4 << 20,
        memory_bytes: 16 << 20,
        sort_bytes: 0,
        ..sorted(Durability::EverySecond)
    }
}

fn long_key(number: u64) -> Vec<u8> {
    format!("key-{number:0120}").into_bytes()
}

#[test]
fn a_full_store_of_long_segments_takes_deletes() {
    let mut node = TestNode::open(&SimDisk::new(SimOptions::instant(4)), long_segments(), Now::at(1_000)).unwrap();
    let keys = fill_with_short_records(&mut node, long_key);
    delete_half(&mut node, keys, long_key);
}

/// Closes and opens.
fn reopen(disk: &SimDisk, mut node: TestNode, options: Options) -> TestNode {
    node.settle();
    node.engine.close().unwrap();
    TestNode::open(disk, options, node.now).unwrap()
}

/// Deletes all keys of this range of numbers.
fn delete_all(node: &mut TestNode, numbers: core::ops::Range<u64>, key_of: impl Fn(u64) -> Vec<u8>) {
    for number in numbers {
        let is_deleted = writes_in_time(node, key_of(number), None);
        assert!(is_deleted, "delete {number}: {:?} {:?}", node.engine.log_report(), node.engine.stats());
        if number % 64 == 0 {
            node.turn();
        }
    }
}

/// A run has five pages for four of a segment with records slightly longer than a fifth of one: their sorts once took what the sort of
/// deletes needs.
#[test]
fn a_full_store_whose_records_take_more_in_runs_takes_deletes() {
    for value_bytes in [640, 660, 900] {
        let mut node = TestNode::open(&SimDisk::new(SimOptions::instant(5)), long_segments(), Now::at(1_000)).unwrap();
        let mut keys = 0;
        while writes_in_time(&mut node, long_key(keys), Some(vec![1; value_bytes])) {
            keys += 1;
            if keys % 16 == 0 {
                node.turn();
            }
        }
        delete_half(&mut node, keys, long_key);
    }
}

/// Runs are as long as four segments here, and the device ends where the store does: nothing may exceed it.
#[test]
fn a_full_device_has_space_for_a_sweep_behind_the_sort_of_deletes() {
    let options = Options { capacity_bytes: None, run_bytes_max: 12 << 20, ..long_segments() };
    let disk = SimDisk::new(SimOptions::instant(6));
    disk.set_capacity_bytes(Some(160 << 20));
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let keys = fill_with_short_records(&mut node, long_key);
    delete_half(&mut node, keys, long_key);
}

#[test]
fn deletes_that_are_a_small_part_of_a_full_log_are_sorted() {
    let options = Options { capacity_bytes: Some(256 << 20), ..long_segments() };
    let disk = SimDisk::new(SimOptions::instant(7));
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    let in_runs = 120_000;
    for number in 0..in_runs {
        assert!(writes_in_time(&mut node, long_key(number), Some(vec![1; 15])));
        if number % 64 == 0 {
            node.turn();
        }
    }
    let options = Options { layout: RecordLayout::Log, ..options };
    let mut node = reopen(&disk, node, options);
    let mut number = 0;
    while writes_in_time(&mut node, format!("log-{number}").into_bytes(), Some(vec![2; 60_000])) {
        number += 1;
        node.turn();
    }
    delete_all(&mut node, 0..in_runs, long_key);
}

#[test]
fn a_sorted_store_whose_capacity_was_lowered_takes_deletes() {
    let disk = SimDisk::new(SimOptions::instant(8));
    let mut node = TestNode::open(&disk, long_segments(), Now::at(1_000)).unwrap();
    let keys = fill_with_short_records(&mut node, long_key);
    let options = Options { capacity_bytes: Some(40 << 20), ..long_segments() };
    let mut node = reopen(&disk, node, options);
    delete_all(&mut node, 0..keys / 8 * 7, long_key);
    assert!(writes_in_time(&mut node, long_key(keys), Some(vec![1; 15])), "{:?}", node.engine.log_report());
}

/// In stores so small, overwrites give space back only once they are in runs, whatever that leaves to deletes.
#[test]
fn small_stores_of_long_segments_take_overwrites() {
    for (capacity_mib, percent) in [(32, 42), (44, 42), (48, 46), (60, 55), (64, 60)] {
        let options = Options { capacity_bytes: Some(capacity_mib << 20), run_bytes_max: 0, ..long_segments() };
        let mut node = TestNode::open(&SimDisk::new(SimOptions::instant(9)), options, Now::at(1_000)).unwrap();
        let keys = (capacity_mib << 20) * percent / 100 / 1_100;
        for number in 0..4 * keys {
            let is_written = writes_in_time(&mut node, long_key(number % keys), Some(vec![1; 940]));
            let state = (node.engine.log_report(), node.engine.stats());
            assert!(is_written, "{capacity_mib} MiB, {percent} %, put {number} of {keys} keys: {state:?}");
            if number % 16 == 0 {
                node.turn();
            }
        }
    }
}

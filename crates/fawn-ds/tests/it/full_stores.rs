//! Full stores on disks of any pace: they take deletes, which make space.
use crate::reclaiming::{SEGMENT_BYTES, attempt, delete, fill, open, put, write, write_all};
use crate::sorted_jobs::poll;
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, KeepReason, Options, RecordRef, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, Now};

/// Order of the deletes.
#[derive(Clone, Copy, Debug)]
enum Order {
    NewestFirst,
    OldestFirst,
    Random,
}

/// Fills a store, and deletes one record in `share`, four times, with puts in between. Then deletes the others.
fn delete_in_rounds(node: &mut TestNode, len: usize, (order, share): (Order, u64), seed: u64) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let mut count = fill(node, len);
    let mut left: Vec<u64> = (0..count).collect();
    for round in 0..4 {
        let (mut doomed, kept): (Vec<u64>, Vec<u64>) = left.iter().partition(|_| rng.below(share) == 0);
        left = kept;
        match order {
            Order::NewestFirst => doomed.reverse(),
            Order::OldestFirst => {}
            Order::Random => doomed.sort_by_cached_key(|_| rng.below(u64::MAX)),
        }
        write_all(node, &doomed, &format!("deletes of round {round}"), delete)?;
        let added = count..count + doomed.len() as u64 / 2;
        count = added.end;
        // In such small segments a few deleted records are less than the padding of frames.
        let is_promised = share == 2;
        if is_promised {
            write_all(node, &added.clone().collect::<Vec<_>>(), &format!("puts of round {round}"), |key| {
                put(key, len)
            })?;
            left.extend(added);
        } else {
            left.extend(added.filter(|key| attempt(node, put(*key, len))));
        }
    }
    node.settle();
    let lost = left.iter().find(|key| node.get(&put(**key, 0).key, View::Committed).unwrap().is_none());
    assert_eq!(lost, None);
    write_all(node, &left, "deletes of all", delete)?;
    write_all(node, &(count..count + count / 4).collect::<Vec<_>>(), "puts after all", |key| put(key, len))
}

/// On a slow disk the two streams get their segments in any order, and the write buffer is full at times. Full stores take
/// deletes all the same.
#[test]
fn a_full_store_on_a_slow_disk_takes_deletes_in_any_order() {
    let orders =
        [(Order::NewestFirst, 2), (Order::OldestFirst, 2), (Order::Random, 2), (Order::Random, 4), (Order::Random, 10)];
    let variants = (6..=10).flat_map(|segments| [100, 300, 2000, 5000, 14_000].map(|len| (segments, len)));
    let mut seed = 0;
    for ((segments, len), order) in variants.flat_map(|variant| orders.map(|order| (variant, order))) {
        for latency_max in [0, 1, 3, 10] {
            seed += 1;
            let disk = SimDisk::new(SimOptions { seed, latency_ticks: 0..=latency_max, ..SimOptions::default() });
            let mut node = open(&disk, segments, 1_000_000);
            if let Err(stuck) = delete_in_rounds(&mut node, len, order, seed) {
                panic!(
                    "seed {seed}, {segments} segments, values of {len} bytes, {order:?}, {latency_max} ticks: {stuck}"
                );
            }
        }
    }
}

/// An operator lowers the capacity to less than the store takes. Its survivors had no space then, so that nothing was cleaned, and
/// deletes were refused once the active segment was full.
#[test]
fn a_store_above_its_capacity_takes_the_deletes_that_make_it_fit() {
    let lowered = [(9, 6), (12, 6), (12, 8), (26, 20), (26, 8), (60, 20)];
    for ((segments, capacity), len) in lowered.into_iter().flat_map(|lowered| [(lowered, 100), (lowered, 2_000)]) {
        let disk = SimDisk::new(SimOptions::instant(segments));
        let mut node = open(&disk, segments, 1_000_000);
        let count = fill(&mut node, len);
        node.settle();
        drop(node.engine.close().unwrap());
        let mut node = open(&disk, capacity, 2_000_000);
        let context = format!("from {segments} to {capacity} segments, values of {len} bytes");
        let taken = node.engine.log_report().segments;
        assert!(taken >= capacity, "{context}: {taken} segments");
        assert!(!(0..1_000).all(|i| attempt(&mut node, put(count + i, len))), "{context}: puts are taken");
        let mut rng = SplitMix64::new(segments);
        let mut keys: Vec<u64> = (0..count).collect();
        keys.sort_by_cached_key(|_| rng.below(u64::MAX));
        for keys in keys.chunks(count as usize / 20) {
            write_all(&mut node, keys, &context, delete).unwrap();
            let now_taken = node.engine.log_report().segments;
            assert!(now_taken <= taken + 3, "{context}: {taken} segments at first, {now_taken} now");
        }
        let added: Vec<u64> = (count..count + count * capacity / segments / 4).collect();
        write_all(&mut node, &added, &context, |key| put(key, len)).unwrap();
        node.settle();
        let now_taken = node.engine.log_report().segments;
        assert!(now_taken <= capacity, "{context}: {now_taken} segments");
    }
}

/// Cleaning goes on whenever it has a step. On a full store it copied segment after segment, and each copy was one more write to
/// wait for.
#[test]
fn a_sync_of_everything_waits_for_no_cleaning() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 60, 1_000_000);
    let count = fill(&mut node, 300);
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = open(&disk, 30, 2_000_000);
    // Half of each segment is dead, all at once.
    let deleted = (0..count).step_by(2).take_while(|key| node.append(&[delete(*key)]).is_ok()).count();
    assert!(deleted > 300 && !attempt(&mut node, put(count, 300)), "{deleted} deletes");
    let moved = node.engine.stats().moved_bytes;
    node.engine.sync_all().unwrap();
    let moved = node.engine.stats().moved_bytes - moved;
    assert!(moved <= SEGMENT_BYTES, "{moved} bytes were copied");
    node.settle();
    assert!(node.engine.stats().moved_bytes > 4 * SEGMENT_BYTES, "cleaning goes on: {:?}", node.engine.stats());
}

/// A put waits while the record that a delete removes is being looked for, but not for a disk that hangs.
#[test]
fn a_full_store_refuses_puts_while_reads_hang() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 8, 1_000_000);
    let count = fill(&mut node, 300);
    node.settle();
    disk.hang(OpKind::Read);
    assert!(attempt(&mut node, delete(0)));
    assert_eq!(node.engine.log_report().verifications_queued, 1);
    // The first ones may find what cleaning has left.
    assert!((0..1000).any(|_| !attempt(&mut node, put(count, 300))));
    disk.release_hung();
    node.settle();
    assert!(node.get(&put(0, 0).key, View::Committed).unwrap().is_none());
}

/// A put waits while cleaning makes space, but not for a read of it that hangs.
#[test]
fn a_full_store_refuses_puts_while_a_read_for_cleaning_hangs() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 16, 1_000_000);
    disk.hang(OpKind::Read);
    let mut count = 0;
    // The one that is overwritten is always in memory: hardly anything but cleaning reads.
    while attempt(&mut node, put(count, 300)) && attempt(&mut node, put(u64::MAX, 300)) {
        count += 1;
        assert!(count < 10_000, "the store does not become full");
    }
    let report = node.engine.log_report();
    let cleaning = disk.hung() as u64 - report.verifications_queued - report.keys_apart;
    assert!((1..=5).contains(&cleaning), "{cleaning} reads of cleaning: {:?}", node.engine);
    disk.release_hung();
    write_all(&mut node, &(count..count + 200).collect::<Vec<_>>(), "puts after the hang", |key| put(key, 300))
        .unwrap();
    node.settle();
    assert!((0..count + 200).all(|key| node.get(&put(key, 0).key, View::Committed).unwrap().is_some()));
}

const SEGMENTS: u64 = 48;
const KEYS: u64 = SEGMENTS * SEGMENT_BYTES * 6 / 10 / 304;

/// A store whose cleaning keeps up with keys that are overwritten in random order, and what overwrites them.
fn overwritten(disk: &SimDisk) -> (TestNode, impl FnMut() -> TestWrite) {
    overwritten_with(disk, small(Durability::Sync))
}

fn overwritten_with(disk: &SimDisk, options: Options) -> (TestNode, impl FnMut() -> TestWrite) {
    let options = Options { capacity_bytes: Some(SEGMENTS * SEGMENT_BYTES), ..options };
    let mut node = TestNode::open(disk, options, Now::at(1_000_000)).unwrap();
    let mut rng = SplitMix64::new(1);
    let mut next = move || put(rng.below(KEYS), 256);
    (0..KEYS).for_each(|key| write(&mut node, &[put(key, 256)]));
    (0..2 * KEYS).for_each(|_| write(&mut node, &[next()]));
    assert!(node.engine.stats().segments_cleaned > 0, "{:?}", node.engine.stats());
    (node, next)
}

/// A turn of 5 ms that does not wait for a read that hangs.
fn poll_on(node: &mut TestNode) {
    poll(node);
    node.now = node.now.plus_ms(5);
}

/// Writes a record if the store takes it now.
fn overwrite(node: &mut TestNode, one: &TestWrite) {
    let version = node.next_version();
    let taken = node.put_once(one, version);
    assert!(matches!(taken, Ok(()) | Err(EngineError::StoreFull | EngineError::Overloaded)), "{taken:?}");
    poll_on(node);
}

/// Reads for cleaning do not end, until so many hang. All other reads do.
fn hang_cleaning(disk: &SimDisk, node: &mut TestNode, reads: usize) {
    node.settle();
    disk.hang(OpKind::Read);
    while disk.hung() < reads {
        // The record is always in memory.
        overwrite(node, &put(u64::MAX, 256));
    }
    disk.end_faults(OpKind::Read);
}

/// A part of the device may be tried again for minutes, within the device, while all others can be read.
#[test]
fn a_read_for_cleaning_that_hangs_stops_neither_cleaning_nor_writes() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let (mut node, mut next) = overwritten(&disk);
    hang_cleaning(&disk, &mut node, 1);
    let cleaned = node.engine.stats().segments_cleaned;
    // Of so many writes, each segment is cleaned several times. None is refused.
    for _ in 0..10_000 {
        node.append(&[next()]).unwrap();
        poll_on(&mut node);
    }
    assert_eq!((disk.hung(), node.engine.stats().cleaning_failed), (1, 1));
    assert!(node.engine.stats().segments_cleaned > cleaned + 40, "{:?}", node.engine.stats());
    (0..KEYS).for_each(|key| write(&mut node, &[put(key, 256)]));
    let pinned = |node: &TestNode| node.engine.segments_kept().get(&KeepReason::Pinned).copied();
    assert_eq!(pinned(&node), Some(1), "nothing is live any more, but the file is being read");
    disk.release_hung();
    node.settle();
    assert_eq!(pinned(&node), None, "{:?}", node.engine.segments_kept());
}

/// Each of these reads has a buffer, and keeps its segment.
#[test]
fn a_device_that_answers_no_read_for_cleaning_gets_few_of_them() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let (mut node, _) = overwritten(&disk);
    hang_cleaning(&disk, &mut node, 5);
    disk.hang(OpKind::Read);
    let mut refused = 0;
    for _ in 0..2_000 {
        let before = node.now.mono;
        refused += u32::from(!attempt(&mut node, put(u64::MAX, 256)));
        let waited_ms = node.now.mono.ms_since(before);
        assert!(waited_ms < 1_050, "a write waits for {waited_ms} ms");
    }
    assert!(refused > 0 && disk.hung() == 5, "{refused} writes refused, {} reads hang", disk.hung());
    let cleaned = node.engine.stats().segments_cleaned;
    disk.release_hung();
    write_all(&mut node, &(0..KEYS / 2).collect::<Vec<_>>(), "puts after the hang", |key| put(key, 256)).unwrap();
    assert!(node.engine.stats().segments_cleaned > cleaned + 10, "{:?}", node.engine.stats());
}

/// Each of these reads takes a thread of a device that has few of them for all its reads and writes.
#[test]
fn a_device_that_answers_no_read_gets_few_of_cleaning_and_the_scrub_together() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { scrub_period_ms: 3_600_000, ..small(Durability::Sync) };
    let (mut node, _) = overwritten_with(&disk, options);
    node.settle();
    let reads = |node: &TestNode, class| node.engine.device().stats().of(class).reads;
    let (cleaned, scrubbed) = (reads(&node, IoClass::Cleaning), reads(&node, IoClass::Scrub));
    disk.hang(OpKind::Read);
    for _ in 0..3_000 {
        overwrite(&mut node, &put(u64::MAX, 256));
        node.now = node.now.plus_ms(95);
    }
    let (cleaned, scrubbed) = (reads(&node, IoClass::Cleaning) - cleaned, reads(&node, IoClass::Scrub) - scrubbed);
    assert!(cleaned > 0 && scrubbed > 0, "{cleaned} of cleaning, {scrubbed} of the scrub");
    assert_eq!(disk.hung(), 4 + 2, "four were left, and each waits for one: {cleaned} and {scrubbed}");
    disk.release_hung();
    disk.clear_faults();
    write_all(&mut node, &(0..KEYS / 2).collect::<Vec<_>>(), "puts after the hang", |key| put(key, 256)).unwrap();
}

/// All reads take longer than one for cleaning is waited for at first.
#[test]
fn a_slow_device_is_cleaned() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let (mut node, mut next) = overwritten(&disk);
    node.settle();
    let cleaned = node.engine.stats().segments_cleaned;
    // Three seconds, in turns of 5 ms.
    disk.fail_every(OpKind::Read, DeviceFault::Delay { ticks: 600 });
    for _ in 0..40_000 {
        overwrite(&mut node, &next());
    }
    let cleaned = node.engine.stats().segments_cleaned - cleaned;
    assert!(cleaned > 10, "{cleaned} segments in 200 s: {:?}", node.engine.stats());
}

/// While the names of new segments are not synced, writes wait at the end of the active one. Reads do not wait.
#[test]
fn a_store_whose_directory_hangs_serves_again_once_it_does_not() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, 16, 1_000_000);
    disk.hang(OpKind::SyncDir);
    let mut written = 0;
    loop {
        let (key, version) = (put(written, 0).key, node.next_version());
        let record = RecordRef::put(version, &key, &[1; 2000]);
        if node.engine.append(RANGE, TestNode::hash(&key), &record).is_err() {
            break;
        }
        node.turn();
        written += 1;
    }
    assert!((20..40).contains(&written), "{written}");
    assert!(node.get(&put(3, 0).key, View::Committed).unwrap().is_some());
    disk.release_hung();
    disk.end_faults(OpKind::SyncDir);
    for key in written..2 * written {
        assert!(attempt(&mut node, put(key, 2000)));
    }
    node.settle();
    disk.crash(1);
    let mut node = open(&disk, 16, 2_000_000);
    assert!((0..2 * written).all(|key| node.get(&put(key, 0).key, View::Committed).unwrap().is_some()));
}

/// A full store has space for deletes in reserve, also if its log is at the very end of a segment, and after a kill.
#[test]
fn a_full_store_takes_the_first_delete() {
    let mut seed = 0;
    for (segments, len) in (6..=40).flat_map(|segments| [100, 300, 1000, 2000, 5000, 14_000].map(|len| (segments, len)))
    {
        seed += 1;
        let context = format!("seed {seed}, {segments} segments, values of {len} bytes");
        let disk = SimDisk::new(SimOptions { seed, latency_ticks: 0..=seed % 8, ..SimOptions::default() });
        let mut node = open(&disk, segments, 1_000_000);
        let count = fill(&mut node, len);
        node.settle();
        node.append(&[delete(0)]).unwrap_or_else(|error| panic!("{context}: {error}"));
        node.settle();
        disk.kill(seed);
        let mut node = open(&disk, segments, 2_000_000);
        node.append(&[delete(1)]).unwrap_or_else(|error| panic!("{context}, opened: {error}"));
        node.settle();
        let found = |node: &mut TestNode, key| node.get(&put(key, 0).key, View::Committed).unwrap().is_some();
        assert!(!found(&mut node, 0) && !found(&mut node, 1) && found(&mut node, count - 1), "{context}");
    }
}

/// Each delete is short, so that no segment fills with them. Nothing else made a search due, though another store on the same device
/// may wait for the space.
#[test]
fn deletes_of_long_records_alone_give_space_back() {
    let mut node = open(&SimDisk::new(SimOptions::instant(1)), 200, 1_000);
    for key in 0..120 {
        write(&mut node, &[put(key, 15_000)]);
    }
    node.rest(20_000);
    let segments = node.engine.log_report().segments;
    for key in (0..120).filter(|key| key % 3 != 0) {
        write(&mut node, &[delete(key)]);
    }
    node.rest(20_000);
    let left = node.engine.log_report().segments;
    assert!(segments >= 30 && left <= segments * 6 / 10, "{left} of {segments} segments");
}

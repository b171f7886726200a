//! Unit tests of the sorted tier's jobs: what they wait for before they begin or list anything, and for how long.
use super::space::SmallStore;
use super::*;
use crate::format::segment::StreamKind;
use fawn_flash::sim::Loss;

/// A store of new keys, opened again, so that none of their pages is in memory. Three of its segments are sealed. Nothing is
/// sorted before the layout says so.
fn cold_store(durability: Durability) -> (SimDisk, SmallStore) {
    let mut store = SmallStore::open(RecordLayout::Log, durability, 1);
    while store.engine.log_report().segments < 4 {
        (0..16).for_each(|_| store.put(store.writes));
        store.turn();
    }
    let (disk, options) = (store.engine.device.disk().clone(), store.engine.options.clone());
    drop(store.engine.close().unwrap());
    let engine = open_with(&disk, options);
    (disk, SmallStore { engine, now: Now::at(1), writes: 0 })
}

/// A transfer gives a range another number. The job's records are invalidated then, and versions of the former history never become
/// durable under the new number: the job, and all after it, would wait for ever.
#[test]
fn a_sort_waits_for_deaths_only_while_their_range_has_its_number() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    let is_gathered = |store: &SmallStore| {
        let job = store.engine.sorted.job.as_ref();
        job.is_some_and(|job| job.step == SortStep::Write && !job.slots.is_empty())
    };
    while !is_gathered(&store) {
        store.put(store.writes);
        store.turn();
        assert!(store.writes < 5_000, "no sort: {:?}", store.engine);
    }
    let number = store.engine.ranges[0].number;
    // As if a record had replaced one of them that is not durable yet.
    let job = store.engine.sorted.job.as_mut().unwrap();
    job.slots[0].died_by.push((0, number, Version::from_u64(u64::MAX)));
    (0..50).for_each(|_| store.turn());
    let disk = store.engine.device.disk().clone();
    let created = disk.counted(OpKind::Create);
    (0..50).for_each(|_| store.turn());
    assert!(store.engine.is_sorting() && store.engine.stats().runs_listed == 0, "a crash may undo the death");
    assert_eq!(disk.counted(OpKind::Create), created, "a job that waits begins no other run");
    let base = Version::new(Epoch::new(9).unwrap(), 1_000).unwrap();
    store.engine.begin_transfer(RANGE, base).unwrap();
    assert_ne!(store.engine.ranges[0].number, number);
    (0..50).for_each(|_| store.turn());
    assert!(store.engine.stats().runs_listed > 0, "{:?}", store.engine);
}

/// A delete that was appended before deletes got index entries: until its verification has ended, the index still has the put
/// that it hides. A sort would leave this put out of its run, although a power loss may undo the delete.
#[test]
fn no_sort_begins_while_an_earlier_delete_waits_for_its_verification() {
    const DELETED: u64 = 10;
    let (disk, mut store) = cold_store(Durability::Memory);
    let version = Version::new(Epoch::new(store.engine.generation()).unwrap(), 1).unwrap();
    let deleted = key(DELETED);
    let record = RecordRef::bare(RecordKind::Tombstone, version, &deleted);
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    store.engine.append(RANGE, KeyHash::of(&SECRET, &deleted), &record).unwrap();
    store.turn();
    assert_eq!((disk.hung(), store.engine.overlay.unconfirmed_deletes(0)), (1, 1));
    store.engine.options.layout = RecordLayout::Sorted;
    (0..100).for_each(|_| store.turn());
    let mut undone = 0;
    for seed in 0..16 {
        let mut crashed = open_with(&disk.image(Loss::Power, seed), store.engine.options.clone());
        if crashed.progress(RANGE).appended < version {
            undone += 1;
            assert!(has(&mut crashed, DELETED), "seed {seed}: the put is lost with its delete");
        }
    }
    assert!(undone > 0, "no power loss undoes the delete");
    disk.release_hung();
    (0..300).for_each(|_| store.turn());
    assert!(store.engine.runs() > 0, "{:?}", store.engine);
    assert!(!has(&mut store.engine, DELETED) && has(&mut store.engine, DELETED + 1));
}

/// The delete, which has no index entry, is durable, but what replaced it before its verification is not. A sort takes the old put as the
/// newest one: if it were listed at once, a power loss would bring that back.
#[test]
fn a_sort_waits_for_what_replaced_a_delete_without_an_entry() {
    const DELETED: u64 = 10;
    let (disk, mut store) = cold_store(Durability::Memory);
    let version_of =
        |store: &SmallStore| Version::new(Epoch::new(store.engine.generation()).unwrap(), store.writes).unwrap();
    let deleted = key(DELETED);
    store.writes = 1;
    let version = version_of(&store);
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    let record = RecordRef::bare(RecordKind::Tombstone, version, &deleted);
    store.engine.append(RANGE, KeyHash::of(&SECRET, &deleted), &record).unwrap();
    store.turn();
    assert_eq!((disk.hung(), store.engine.overlay.unconfirmed_deletes(0)), (1, 1));
    // The last segment that is synced proves commits: that of the delete is to be before it.
    let segments = store.engine.log_report().segments;
    while store.engine.log_report().segments < segments + 2 || store.engine.ranges[0].durably_committed() < version {
        (0..16).for_each(|_| store.put(100_000 + store.writes));
        store.turn();
        assert!(store.writes < 5_000, "{:?}", store.engine);
    }
    store.put(DELETED);
    store.turn();
    let put = version_of(&store);
    assert_eq!(store.engine.overlay.unconfirmed_deletes(0), 0);
    store.engine.options.layout = RecordLayout::Sorted;
    let mut undone = 0;
    for turn in 0..1_000 {
        let mut crashed = open_with(&disk.image(Loss::Power, turn), store.engine.options.clone());
        if crashed.progress(RANGE).appended < put {
            undone += 1;
            assert!(!has(&mut crashed, DELETED), "turn {turn}: a delete is undone");
        }
        store.now = store.now.plus_ms(200);
        store.turn();
    }
    assert!(undone > 0, "no power loss undoes the put");
    assert!(store.engine.runs() > 0 && has(&mut store.engine, DELETED), "{:?}", store.engine);
}

/// Its records cannot go to a run while one of them has to stay. Otherwise it would be read for a sort each second, as long as
/// the old version of that record cannot be read.
#[test]
fn a_segment_with_an_unconfirmed_record_is_read_for_one_sort() {
    let (disk, mut store) = cold_store(Durability::Sync);
    let active = |store: &SmallStore| {
        let chunk = store.engine.streams[StreamKind::Foreground].window.active();
        chunk.map(|chunk| chunk.slot)
    };
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    store.put(0);
    let slot = active(&store).unwrap();
    (0..3).for_each(|_| store.turn());
    assert_eq!((disk.hung(), store.engine.log_report().verifications_queued), (1, 1));
    // New keys fill the segment, and a part of the next one.
    let mut puts = 0;
    while active(&store) == Some(slot) || puts % 64 != 0 {
        (0..16).for_each(|_| store.put(100_000 + store.writes));
        store.turn();
        puts += 16;
        assert!(puts < 1_000, "{:?}", store.engine);
    }
    (0..16).for_each(|_| store.put(100_000 + store.writes));
    store.engine.options.layout = RecordLayout::Sorted;
    // Once the old version is in a run, its key is confirmed.
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    let reads_in_minutes = |store: &mut SmallStore, minutes: u64| {
        let before = disk.counted(OpKind::Read);
        for _ in 0..600 * minutes {
            store.now = store.now.plus_ms(100);
            store.turn();
        }
        disk.counted(OpKind::Read) - before
    };
    assert!(reads_in_minutes(&mut store, 5) > 0);
    assert!(store.engine.runs() > 0 && store.engine.segments.expect(slot).had_unconfirmed, "{:?}", store.engine);
    assert_eq!(reads_in_minutes(&mut store, 1), 0, "{:?}", store.engine.stats());
}

/// Cleaning has copied the old put since the new one replaced the delete: the copy's segment is not the one that was noted to wait.
#[test]
fn a_sort_of_a_copy_waits_for_what_replaced_a_delete_of_its_key() {
    const DELETED: u64 = 10;
    let (disk, mut store) = cold_store(Durability::Memory);
    store.engine.options.space_amplification_max_percent = 10_000;
    let version_of =
        |store: &SmallStore| Version::new(Epoch::new(store.engine.generation()).unwrap(), store.writes).unwrap();
    let (deleted, hash) = (key(DELETED), KeyHash::of(&SECRET, &key(DELETED)));
    let slot = |store: &SmallStore| {
        let pointer = store.engine.ranges[0].index.candidates(hash).next().unwrap();
        store.engine.segments.slot_and_offset(pointer).0
    };
    for number in DELETED + 20..DELETED + 120 {
        store.put(number);
        store.turn();
    }
    (0..50).for_each(|_| store.turn());
    let original = slot(&store);
    store.writes += 1;
    let version = version_of(&store);
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    store.engine.append(RANGE, hash, &RecordRef::bare(RecordKind::Tombstone, version, &deleted)).unwrap();
    store.turn();
    assert_eq!((disk.hung(), store.engine.overlay.unconfirmed_deletes(0)), (1, 1));
    let segments = store.engine.log_report().segments;
    while store.engine.log_report().segments < segments + 8 || store.engine.ranges[0].durably_committed() < version {
        (0..16).for_each(|_| store.put(100_000 + store.writes));
        store.turn();
        assert!(store.writes < 5_000, "{:?}", store.engine);
    }
    store.put(DELETED);
    store.turn();
    let put = version_of(&store);
    assert_eq!(store.engine.overlay.unconfirmed_deletes(0), 0);
    store.engine.options.space_amplification_max_percent = 0;
    store.engine.cleaner.note_change();
    while slot(&store) == original {
        store.now = store.now.plus_ms(20);
        store.turn();
        assert!(store.now.mono.0 < 1_000_000, "{:?}", store.engine);
    }
    let copied_to = slot(&store);
    while !store.engine.streams[StreamKind::Survivors].flush.is_written() {
        store.turn();
    }
    store.engine.seal_written(StreamKind::Survivors);
    assert!(store.engine.ranges[0].durably_committed() < put, "a loss may undo the put");
    store.engine.options.layout = RecordLayout::Sorted;
    while store.engine.segments.get(copied_to).is_some_and(|segment| !segment.is_sorted) {
        store.now = store.now.plus_ms(20);
        store.turn();
        assert!(store.now.mono.0 < 2_000_000, "{:?}", store.engine);
    }
    assert!(store.engine.ranges[0].durably_committed() >= put, "{:?}", store.engine);
}

/// A device that lacks memory for the change of a length refuses a run at its end. The run was written again every ten seconds.
#[test]
fn a_job_that_is_refused_after_its_writes_waits_longer_each_time() {
    let (disk, mut store) = cold_store(Durability::Sync);
    disk.fail_every(OpKind::Truncate, DeviceFault::Exhausted);
    store.engine.options.layout = RecordLayout::Sorted;
    for _ in 0..36_000 {
        store.now = store.now.plus_ms(100);
        store.turn_at_once();
    }
    let refused = disk.counted(OpKind::Truncate);
    assert!((5..60).contains(&refused) && store.engine.runs() == 0, "refused {refused} times in an hour");
    disk.end_faults(OpKind::Truncate);
    for _ in 0..7_000 {
        store.now = store.now.plus_ms(100);
        store.turn();
    }
    assert!(store.engine.runs() > 0, "{:?}", store.engine);
}

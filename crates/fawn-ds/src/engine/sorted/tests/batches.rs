//! Unit tests of sorts in batches: what a later batch does to earlier ones, and to other work meanwhile.
use super::space::SmallStore;
use super::*;
use crate::engine::sorted::gather::SortSize;
use crate::format::RangeNumber;
use crate::format::run::RunRecord;

fn record(number: RangeNumber, counter: u64, kind: RecordKind, key: &[u8]) -> RunRecord<'_> {
    let version = Version::new(Epoch::new(1).unwrap(), counter).unwrap();
    RunRecord { kind, type_byte: 0, number, version, expires_at_ms: 0, flags: 0, key, value: b"" }
}

/// Puts a batch of one record into a run of its own.
fn write_batch(store: &mut SmallStore, record: &RunRecord<'_>) {
    let job = store.engine.sorted.job.as_mut().unwrap();
    assert!(job.take_record(record));
    job.end_full_batch();
    assert_eq!(job.step, SortStep::WriteBatch);
    for _ in 0..50 {
        store.turn();
    }
}

/// Writes until a segment is read to be sorted in five batches.
fn begin_batches(store: &mut SmallStore) {
    store.engine.options.sort_batch_bytes = 14 << 10;
    while !store.engine.sorted.is_gathering() {
        store.put(store.writes);
        store.turn();
        assert!(store.writes < 5_000, "no sort: {:?}", store.engine);
    }
}

/// A put is in a batch, and the newer one of its key expires before the next batch: what becomes of it hides the first one.
#[test]
fn a_tombstone_hides_a_put_in_an_earlier_batch() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.put(1);
    store.turn();
    let number = store.engine.ranges[0].number;
    let id = store.engine.sorted.next_job();
    store.engine.sorted.is_active = true;
    // Each record is more than a batch of none.
    store.engine.sorted.job = Some(Box::new(SortJob::of_segments(id, Vec::new(), 1, SECRET, (2, 0))));
    // A job without segments would be given up.
    store.engine.cleaner.stop();
    write_batch(&mut store, &record(number, 5, RecordKind::Put, b"key"));
    assert_eq!(store.engine.sorted.job.as_ref().map(|job| (job.step, job.age)), Some((SortStep::Gather, 2)));
    let job = store.engine.sorted.job.as_mut().unwrap();
    assert!(job.take_record(&record(number, 6, RecordKind::Tombstone, b"key")));
    job.end_gathering();
    for _ in 0..50 {
        store.turn();
    }
    assert!(!store.engine.is_sorting());
    let ages: Vec<u64> = store.engine.sorted.runs.iter().map(|listed| listed.age).collect();
    assert_eq!(ages, [2, 1], "the tombstone is newer");
    assert!(store.engine.sorted.runs[0].run.facts().tombstones == 1);
}

/// A scan of both parts of a store holds the runs as they are. Batches are written meanwhile: the segment that is read would
/// keep cleaning waiting otherwise.
#[test]
fn a_held_list_of_runs_does_not_hold_batches() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    begin_batches(&mut store);
    store.engine.hold_runs(true);
    let mut next_steps = 0;
    for _ in 0..2_000 {
        let job = store.engine.sorted.job.as_ref().unwrap();
        let is_next = store.engine.sorted.has_next_step && job.step != SortStep::Write;
        assert!(!is_next || store.engine.sort_at().is_some(), "a host without clients polls for it");
        next_steps += u32::from(is_next);
        store.turn();
    }
    let job = store.engine.sorted.job.as_ref().unwrap();
    assert!(job.step == SortStep::Write && job.done.len() >= 4 && job.slots.len() == 1, "{job:?}");
    assert!(next_steps >= 4, "{next_steps}");
    let fences_bytes: usize = job.done.iter().map(|done| done.run.memory_bytes()).sum();
    let records_bytes = job.merge.as_ref().map_or(0, |merge| merge.resident_bytes());
    assert_eq!((fences_bytes > 0, job.resident_bytes()), (true, fences_bytes + records_bytes));
    // The space is taken before anything is written.
    assert!(job.file_bytes() > 4 * (12 << 10) && job.file_bytes() <= job.space_bytes, "{job:?}");
    assert!(!store.engine.cleaner.has_work() && store.engine.runs() == 0);
    store.engine.hold_runs(false);
    for _ in 0..50 {
        store.turn();
    }
    assert!(store.engine.stats().runs_listed > 0 && !store.engine.sorted.is_held, "{:?}", store.engine);
    assert!((0..store.writes).all(|number| has(&mut store.engine, number)));
}

/// A device without space ends a job with its batches: their files go, and all segments stay as they are.
#[test]
fn a_batch_without_space_ends_the_job_with_all_of_its_runs() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    begin_batches(&mut store);
    let disk = store.engine.device.disk().clone();
    while store.engine.sorted.job.as_ref().is_none_or(|job| job.done.len() < 2) {
        store.turn();
        assert!(store.engine.is_sorting(), "{:?}", store.engine);
    }
    let files = |disk: &SimDisk| disk.names().iter().filter(|name| name.starts_with("run-")).count();
    assert!(files(&disk) >= 2, "{:?}", disk.names());
    disk.fail_nth(OpKind::Create, 1, DeviceFault::Full);
    for _ in 0..2_000 {
        store.turn();
    }
    assert_eq!((files(&disk), store.engine.runs(), store.engine.is_sorting()), (0, 0, false));
    assert!(store.engine.segments.iter().all(|segment| !segment.is_gathered && !segment.is_sorted));
    assert!((0..store.writes).all(|number| has(&mut store.engine, number)));
}

/// A full store with a short log sorts one segment although that exceeds the capacity, also in batches, which have more ends of
/// pages and more footers.
#[test]
fn a_full_store_has_room_for_the_batches_of_a_segment() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    store.engine.options.sort_batch_bytes = 4 << 10;
    store.engine.options.capacity_bytes = Some(store.engine.taken_segments() * super::space::SEGMENT_BYTES);
    store.engine.full = true;
    assert_eq!((store.engine.runs(), store.engine.room_for_runs(0)), (1, 0));
    let bytes = super::space::SEGMENT_BYTES;
    let needed = store.engine.space_of_sort(SortSize { bytes, count: bytes / 400 });
    assert!(
        store.engine.room_for_sort() >= needed && needed > store.engine.space_of_records(super::space::SEGMENT_BYTES)
    );
}

/// The order of short records takes more memory than they do. It was outside the bound, and doubled as it grew.
#[test]
fn a_batch_of_short_records_is_full_once_their_order_takes_its_memory() {
    const BATCH_BYTES: u64 = 1 << 20;
    let mut job = SortJob::of_segments(SortJobId::default(), Vec::new(), 1, SECRET, (2, BATCH_BYTES));
    let mut taken = 0;
    while job.step == SortStep::Gather {
        let key = key(taken);
        assert!(job.take_record(&record(RangeNumber(1), taken + 1, RecordKind::Put, &key)));
        job.end_full_batch();
        taken += 1;
    }
    let resident_bytes = job.resident_bytes() as u64;
    assert!(resident_bytes < BATCH_BYTES / 4 * 5, "{resident_bytes} B for {taken} records of {BATCH_BYTES} B");
    assert!(
        resident_bytes > BATCH_BYTES / 4 * 3 && taken * 26 > BATCH_BYTES / 3,
        "{resident_bytes} B, {taken} records"
    );
}

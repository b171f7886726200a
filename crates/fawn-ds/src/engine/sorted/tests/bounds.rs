//! Unit tests of the sorted tier's jobs: the space and memory that they count, the runs that they bar, the files that go.
use super::space::{SEGMENT_BYTES, SmallStore};
use super::write::READS_MAX;
use super::*;
use crate::engine::fetch::ReadSpan;
use crate::format::run::{PAGES_MAX, page_offset};
use crate::sorted::{MergeSource, RunSource, SortBuffer};
use fawn_flash::buffer::PAGE_BYTES;

/// A merge of these runs.
fn merge_of(store: &mut SmallStore, merged: Vec<u64>, sources: Vec<MergeSource>) -> SortJob {
    let inputs = RunInputs { replaced: merged.clone(), sources: merged, part: None };
    SortJob::of_runs(store.engine.sorted.next_job(), inputs, sources, 9, 4)
}

/// The ids of all runs, newest first, and sources that read them whole.
fn all_runs(store: &SmallStore) -> (Vec<u64>, Vec<MergeSource>) {
    let runs = &store.engine.sorted.runs;
    let sources = runs.iter().map(|listed| MergeSource::Run(RunSource::all(&listed.run)));
    (runs.iter().map(|listed| listed.id).collect(), sources.collect())
}

/// Does the job. Returns the most memory that it takes, bytes.
fn most_memory_of(store: &mut SmallStore, job: SortJob) -> u64 {
    store.engine.sorted.job = Some(Box::new(job));
    let turns = (0..200).map(|_| {
        store.turn();
        store.engine.sorted.buffer_bytes() as u64
    });
    turns.max().unwrap_or(0)
}

/// Lets the job fail. Returns for each run, newest first, whether merges leave it alone so many ms later.
fn barred_after(store: &mut SmallStore, job: SortJob, delay_ms: u64) -> Vec<bool> {
    let failed = store.engine.stats().merges_failed;
    store.engine.sorted.job = Some(Box::new(job));
    (0..20).for_each(|_| store.turn());
    assert!(
        !store.engine.is_sorting() && store.engine.stats().merges_failed == failed + 1,
        "{:?}",
        store.engine.stats()
    );
    let now = store.engine.now.mono.plus_ms(delay_ms);
    store.engine.sorted.runs.iter().map(|listed| listed.failures.is_barred(now, false)).collect()
}

/// A merge of all runs that gets zeros for this page of one of them.
fn merge_with_wrong_page(store: &mut SmallStore, wrong: usize, page: usize) -> SortJob {
    let (ids, sources) = all_runs(store);
    let name = run::file_name(store.engine.sorted.runs[wrong].run.header().uuid);
    let bytes = store.engine.device.disk().contents(&name).unwrap();
    let mut job = merge_of(store, ids, sources);
    let source = job.merge.as_mut().unwrap().run(wrong).unwrap();
    for at in 0..=page {
        let range = source.next_read(PAGE_BYTES).unwrap();
        // Missing bytes are zeros, which no page has.
        let from = range.offset as usize;
        source.feed(range, if at < page { bytes[from..from + PAGE_BYTES].to_vec() } else { Vec::new() });
    }
    job
}

/// Two keys with one ring key, or records out of order, are no fault of a single run. Without a bar the same merge would begin
/// again every ten seconds, and fail.
#[test]
fn a_merge_that_fails_for_no_single_run_bars_the_newest_of_its_own() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    // In the order of another secret: the writer refuses them.
    let mut buffer = SortBuffer::new(HashSecret([9; 16]), 64 << 10);
    let (number, version) = (store.engine.ranges[0].number, Version::from_u64(u64::MAX));
    for at in 0..100 {
        assert!(buffer.push(&RunRecord::put(number, version, &key(at), b"value")));
    }
    buffer.sort();
    let (ids, _) = all_runs(&store);
    let job = merge_of(&mut store, ids[1..].to_vec(), vec![MergeSource::Memory(buffer)]);
    assert_eq!(barred_after(&mut store, job, 1 << 40), [false, true, false]);
}

/// Otherwise the others would stay apart as well, and the merge of the corrupt one would be tried again. But one read may have been
/// wrong.
#[test]
fn a_run_that_two_merges_find_corrupt_at_one_place_is_left_alone_and_no_other() {
    for corrupt in 0..3 {
        let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
        store.make_runs(3);
        let job = merge_with_wrong_page(&mut store, corrupt, 0);
        let only_it: Vec<bool> = (0..3).map(|at| at == corrupt).collect();
        assert_eq!(barred_after(&mut store, job, 9_000), only_it, "run {corrupt}, for ten seconds");
        assert!(!store.engine.sorted.runs[corrupt].failures.is_barred(store.now.mono.plus_ms(10_000), false));
        let job = merge_with_wrong_page(&mut store, corrupt, 0);
        assert_eq!(barred_after(&mut store, job, 1 << 40), only_it, "run {corrupt}, for good");
    }
}

#[test]
fn reads_that_are_wrong_at_several_places_are_repeated() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    for page in [0, 1, 0, 1] {
        let job = merge_with_wrong_page(&mut store, 2, page);
        assert_eq!(barred_after(&mut store, job, 1 << 40), [false; 3]);
    }
}

/// A device may bring wrong bytes now and then. A good read of the page in between, by a merge or by the scrub, shows that it is not corrupt.
#[test]
fn a_good_read_between_two_wrong_ones_keeps_a_run_from_being_barred() {
    let barred = [false, true].map(|is_scrubbed| {
        let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
        store.make_runs(3);
        let job = merge_with_wrong_page(&mut store, 2, 0);
        barred_after(&mut store, job, 0);
        if is_scrubbed {
            // No merge begins meanwhile.
            store.engine.sorted.retry_at = MonoMs(u64::MAX);
            store.engine.options.scrub_period_ms = 1_000;
            store.engine.begin_scrub();
            for _ in 0..1_000 {
                store.now = store.now.plus_ms(100);
                store.turn();
            }
            assert!(store.engine.stats().scrub_segments > 50, "{:?}", store.engine.stats());
        } else {
            let disk = store.engine.device.disk().clone();
            let (ids, sources) = all_runs(&store);
            let job = merge_of(&mut store, ids, sources);
            store.engine.sorted.job = Some(Box::new(job));
            disk.hang(OpKind::Write);
            (0..10).for_each(|_| store.turn());
            disk.release_hung();
            store.engine.give_up_sort();
            (0..20).for_each(|_| store.turn());
            assert!(!store.engine.is_sorting() && store.engine.runs() == 3);
        }
        let job = merge_with_wrong_page(&mut store, 2, 0);
        barred_after(&mut store, job, 1 << 40)
    });
    assert_eq!(barred, [[false; 3]; 2], "merged, scrubbed");
}

/// Nothing was merged with the oldest runs any more. The log and the later runs grew until the store was full.
#[test]
fn an_oldest_run_whose_read_was_wrong_once_is_merged_later() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    store.engine.options.capacity_bytes = Some(40 * SEGMENT_BYTES);
    let disk = store.engine.device.disk().clone();
    let flip = |name: &String| disk.flip_bits(name, PAGE_BYTES as u64 + 99, 1);
    let (mut wrong, mut is_wrong, mut parts) = (None, false, 0);
    for number in 0..30_000 {
        store.put(number % 2_000);
        store.now = store.now.plus_ms(9);
        store.turn();
        let oldest = store.engine.sorted.runs.last().filter(|_| wrong.is_none() && !store.engine.is_sorting());
        if let Some(oldest) = oldest {
            let name = run::file_name(oldest.run.header().uuid);
            flip(&name);
            (wrong, is_wrong) = (Some(name), true);
        }
        if let Some(name) = wrong.as_ref().filter(|_| is_wrong && store.engine.stats().merges_failed > 0) {
            flip(name);
            (is_wrong, parts) = (false, store.engine.stats().sweep_parts);
        }
    }
    let stats = store.engine.stats();
    assert!(!is_wrong && stats.merges_failed == 1 && stats.sweep_parts > parts + 10, "{stats:?}");
}

/// A victim may lack nothing but room for its copies. The next search would come up to ten seconds later, and meanwhile a full
/// store would refuse writes that only have to wait.
#[test]
fn the_unlink_of_a_run_makes_a_search_for_a_victim_due() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    (0..50).for_each(|_| store.turn());
    let is_due = |store: &SmallStore| store.engine.upkeep_at() == Some(store.engine.now.mono);
    assert!(!is_due(&store) && !store.engine.cleaner.is_freeing(store.engine.now.mono), "{:?}", store.engine);
    let id = store.engine.sorted.runs[0].id;
    assert!(store.engine.pin_run(id).is_some());
    store.engine.retire_runs(&[id]);
    store.engine.unlink_runs();
    assert!(!store.engine.cleaner.is_freeing(store.engine.now.mono), "a read keeps the file");
    store.engine.unpin_run(id);
    let now = store.engine.now.mono;
    (store.engine.retry_at, store.engine.sorted.retry_at) = (now.plus_ms(3_200), now.plus_ms(640_000));
    store.engine.unlink_runs();
    assert!(store.engine.retry_at <= now && store.engine.sorted.retry_at <= now.plus_ms(10_000), "space came back");
    assert!(is_due(&store) && store.engine.cleaner.is_freeing(store.engine.now.mono), "{:?}", store.engine);
}

/// Puts a new key with a value of this length.
fn put_value(store: &mut SmallStore, len: usize) {
    store.writes += 1;
    let version = Version::new(Epoch::new(store.engine.generation()).unwrap(), store.writes).unwrap();
    let (key, value) = (key(store.writes), vec![7_u8; len]);
    let hash = KeyHash::of(&SECRET, &key);
    // The next segment may not be there yet.
    while let Err(error) = store.engine.append(RANGE, hash, &RecordRef::put(version, &key, &value)) {
        assert_eq!(error, EngineError::Overloaded);
        store.turn();
        assert!(store.now.mono.0 < 1_000_000, "{:?}", store.engine);
    }
}

/// The space is taken before anything is written. With records so long that a fifth of each page is unused, a run would
/// otherwise be longer than that, and leave less to others than they count on.
#[test]
fn the_runs_of_a_sort_fit_into_the_space_that_it_takes() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 10 * SEGMENT_BYTES);
    store.engine.options.run_bytes_max = 8 << 20;
    let (file_bytes, space_bytes) = loop {
        // Such a record takes 818 B in a run: a page has four.
        put_value(&mut store, 792);
        store.turn();
        assert!(store.writes < 5_000, "no sort: {:?}", store.engine);
        let job = store.engine.sorted.job.as_ref().filter(|job| matches!(job.step, SortStep::Listing(_)));
        if let Some(job) = job {
            break (job.file_bytes(), job.space_bytes);
        }
    };
    // The space for headers and footers is little beside that.
    assert!(file_bytes > 10 * SEGMENT_BYTES, "{file_bytes} B");
    assert!(file_bytes <= space_bytes, "{file_bytes} B in space of {space_bytes} B");
    // A page ends before a record of at most a quarter of it.
    let filled = |record_bytes| store.engine.space_of_records(record_bytes);
    let pages = |pages| store.engine.space_of_pages(pages);
    assert_eq!((filled(3 << 10), filled((3 << 10) + 1)), (pages(1), pages(2)));
}

/// Offsets of reads have 32 bits.
#[test]
fn the_longest_run_can_be_read_to_its_end() {
    let offset = page_offset(PAGES_MAX - 1);
    let span = ReadSpan::of_run(1, offset, false);
    assert_eq!((u64::from(span.from), span.len()), (offset, PAGE_BYTES));
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 10 * SEGMENT_BYTES);
    for (run_bytes_max, pages_max) in [(1, 1), (4 << 30, PAGES_MAX), (u64::MAX, PAGES_MAX)] {
        store.engine.options.run_bytes_max = run_bytes_max;
        assert_eq!(store.engine.run_bytes_max(), u64::from(pages_max) * PAGE_BYTES as u64, "{run_bytes_max}");
    }
}

/// The caches get the rest of the budget. Without this count, records and pages of jobs would come on top of it.
#[test]
fn records_and_pages_of_jobs_count_as_memory() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    while !store.engine.sorted.is_gathering() {
        store.put(store.writes);
        store.turn();
        assert!(store.writes < 5_000, "no sort: {:?}", store.engine);
    }
    let gathered = store.engine.segments.iter().filter(|segment| segment.is_gathered);
    let live_bytes: u64 = gathered.map(|segment| segment.live_bytes()).sum();
    let buffer_bytes = store.engine.sorted.buffer_bytes() as u64;
    assert!(live_bytes > 2 * SEGMENT_BYTES && buffer_bytes >= live_bytes, "{buffer_bytes} B for {live_bytes} B");
    assert!(store.engine.memory().buffer_bytes >= buffer_bytes);

    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(2);
    let pages_bytes: u64 = store.engine.sorted.runs.iter().map(ListedRun::pages_bytes).sum();
    let (ids, sources) = all_runs(&store);
    let job = merge_of(&mut store, ids, sources);
    // While the last run is read, all pages of the others are there.
    let most = most_memory_of(&mut store, job);
    assert!(!store.engine.is_sorting() && store.engine.sorted.buffer_bytes() == 0, "{:?}", store.engine);
    assert!(most >= pages_bytes, "{most} B for {pages_bytes} B of pages");
}

/// A merge reads many runs at a time: the more of them, the less of each, so that all together are no more than a sort has.
#[test]
fn a_merge_of_many_runs_reads_less_of_each() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    let (ids, sources) = all_runs(&store);
    let (runs, pages_bytes) =
        (ids.len() as u64, store.engine.sorted.runs.iter().map(ListedRun::pages_bytes).sum::<u64>());
    store.engine.options.memory_bytes = 16 * 2 * (8 << 10) * runs;
    let job = merge_of(&mut store, ids, sources);
    let most = most_memory_of(&mut store, job);
    assert!(!store.engine.is_sorting() && store.engine.stats().merges_failed == 0, "{:?}", store.engine.stats());
    // Fences and filters of the new run come with its pages.
    assert!(most >= 16 << 10 && most <= (16 << 10) * runs + 2048, "{most} B of {runs} runs");
    assert!(pages_bytes >= 2 * (16 << 10) * runs, "{pages_bytes} B of {runs} runs");
}

/// A read that was ahead of need may be behind all records that count. Its end would meet another job, or none.
#[test]
fn a_job_ends_only_once_its_reads_have_ended() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(2);
    let (ids, sources) = all_runs(&store);
    let mut job = merge_of(&mut store, ids, sources);
    (job.merge, job.is_read) = (None, true);
    job.is_waiting.push(SourceRead { source: 0, len_bytes: 0, leave_at: MonoMs(u64::MAX) });
    store.engine.sorted.job = Some(Box::new(job));
    (0..50).for_each(|_| store.turn());
    let job = store.engine.sorted.job.as_mut().unwrap();
    assert_eq!((job.step, store.engine.stats.runs_listed), (SortStep::Write, 2));
    job.is_waiting.clear();
    (0..50).for_each(|_| store.turn());
    assert_eq!((store.engine.is_sorting(), store.engine.stats.runs_listed), (false, 3));
}

/// Reads of one run after the other would take the time of each: a merge begins those of all at once, and the next one of each while
/// it passes the last one's records.
#[test]
fn a_merge_reads_its_runs_ahead() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    let (ids, sources) = all_runs(&store);
    let runs = ids.len();
    store.engine.options.memory_bytes = 16 * 2 * (8 << 10) * runs as u64;
    let disk = store.engine.device.disk().clone();
    let job = merge_of(&mut store, ids, sources);
    store.engine.sorted.job = Some(Box::new(job));
    disk.hang(OpKind::Read);
    (0..10).for_each(|_| store.turn());
    assert_eq!(disk.hung(), runs);
    disk.release_hung();
    disk.hang(OpKind::Read);
    // The merge has a part of each run, and the next reads are in flight.
    (0..10).for_each(|_| store.turn());
    assert_eq!(disk.hung(), runs);
    disk.release_hung();
    (0..200).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting() && store.engine.stats().merges_failed == 0, "{:?}", store.engine.stats());
}

#[test]
fn reads_of_a_merge_are_bounded() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    let run = &store.engine.sorted.runs[0];
    let sources = (0..20).map(|_| MergeSource::Run(RunSource::all(&run.run))).collect();
    let ids = vec![run.id; 20];
    let disk = store.engine.device.disk().clone();
    let job = merge_of(&mut store, ids, sources);
    store.engine.sorted.job = Some(Box::new(job));
    disk.hang(OpKind::Read);
    (0..10).for_each(|_| store.turn());
    assert_eq!(disk.hung(), READS_MAX);
    // All of them fail: one merge has failed, and a run whose file cannot be opened for now is not to blame.
    disk.release_hung();
    disk.fail_every(OpKind::Read, DeviceFault::Exhausted);
    (0..50).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting() && store.engine.stats().merges_failed == 1, "{:?}", store.engine.stats());
    assert!(!store.engine.sorted.runs[0].failures.is_barred(store.engine.now.mono, false));
}

/// A part of the device may be tried again for minutes, within the device, while all others can be read.
#[test]
fn a_merge_of_which_a_read_hangs_gives_way_to_other_jobs() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(3);
    let (ids, sources) = all_runs(&store);
    let disk = store.engine.device.disk().clone();
    let job = merge_of(&mut store, ids, sources);
    store.engine.sorted.job = Some(Box::new(job));
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    (0..100).for_each(|_| store.turn());
    assert!(store.engine.is_sorting() && disk.hung() == 1, "it may be slow");
    let pass = |store: &mut SmallStore, ms: u64| {
        for _ in 0..ms / 100 {
            store.now = store.now.plus_ms(100);
            store.turn_at_once();
        }
    };
    pass(&mut store, 20_000);
    assert_eq!((disk.hung(), store.engine.stats().merges_failed), (1, 1));
    let barred = |store: &SmallStore| {
        let now = store.engine.now.mono;
        store.engine.sorted.runs.iter().filter(|listed| listed.failures.is_barred(now, false)).count()
    };
    assert_eq!(barred(&store), 1, "others are merged");
    let listed = store.engine.stats().runs_listed;
    (0..1_000).for_each(|number| store.put(number));
    pass(&mut store, 20_000);
    assert!(store.engine.stats().runs_listed > listed, "{:?}", store.engine.stats());
    disk.release_hung();
    pass(&mut store, 20_000);
    assert_eq!((barred(&store), store.engine.read_bytes_in_flight, store.engine.stats().merges_failed), (0, 0, 1));
    assert!(store.engine.sorted.runs.iter().all(|listed| listed.pins == 0));
}

/// As before, with all reads that a merge may have in flight: more than jobs leave of their own accord.
#[test]
fn a_merge_whose_reads_all_hang_gives_way_to_other_jobs() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    let run = &store.engine.sorted.runs[0];
    let sources = (0..20).map(|_| MergeSource::Run(RunSource::all(&run.run))).collect();
    let ids = vec![run.id; 20];
    let disk = store.engine.device.disk().clone();
    let job = merge_of(&mut store, ids, sources);
    store.engine.sorted.job = Some(Box::new(job));
    disk.hang(OpKind::Read);
    (0..10).for_each(|_| store.turn());
    disk.end_faults(OpKind::Read);
    assert_eq!(disk.hung(), READS_MAX);
    let listed = store.engine.stats().runs_listed;
    let pass = |store: &mut SmallStore| {
        for _ in 0..300 {
            store.now = store.now.plus_ms(100);
            store.turn_at_once();
        }
    };
    pass(&mut store);
    (0..1_000).for_each(|number| store.put(number));
    pass(&mut store);
    assert!(disk.hung() == READS_MAX && store.engine.stats().runs_listed > listed, "{:?}", store.engine.stats());
    disk.release_hung();
    pass(&mut store);
    let stats = store.engine.stats();
    assert_eq!((store.engine.read_bytes_in_flight, stats.merges_failed), (0, 1));
    assert!(store.engine.sorted.runs.iter().all(|listed| listed.pins == 0));
}

//! Unit tests of the sorted tier's rest: when it begins, and what its jobs pay.
use super::space::{SEGMENT_BYTES, SmallStore, enter_later};
use super::*;

#[test]
fn puts_that_wait_are_no_rest() {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    (0..10).for_each(|_| store.put(store.writes));
    (0..10).for_each(|_| store.turn());
    store.engine.now = store.now.plus_ms(5_000);
    store.engine.sorted.hold.is_on = true;
    store.engine.watch_rest();
    assert_eq!(store.engine.sorted.rest.bytes_max(), 0);
    store.engine.sorted.hold.is_on = false;
    store.engine.watch_rest();
    assert!(store.engine.sorted.rest.bytes_max() > 4_000);
}

/// The end of a victim without copies, and the unlink of a run, have no I/O in flight.
#[test]
fn a_change_for_the_cleaner_makes_a_poll_due() {
    let mut store = SmallStore::open(RecordLayout::Log, Durability::Sync, 1);
    // The commits of the opening are certified meanwhile.
    for _ in 0..10 {
        store.now = store.now.plus_ms(100);
        store.turn();
    }
    assert_eq!((store.engine.in_flight(), store.engine.upkeep_at()), (0, None));
    store.engine.cleaner.note_change();
    assert_eq!(store.engine.upkeep_at(), Some(store.engine.now.mono));
    store.turn();
    assert_eq!(store.engine.upkeep_at(), None);
}

/// A store whose rest has begun a sort, and the credit by then.
fn store_that_sorts_at_rest() -> (SmallStore, u64) {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1 << 30);
    while store.engine.log_report().segments < 6 {
        store.put(store.writes);
        store.turn();
    }
    (0..10).for_each(|_| store.turn());
    store.engine.sorted.rest.credit(1 << 20);
    let credit_bytes = store.engine.stats.record_bytes + (1 << 20);
    store.now = store.now.plus_ms(1_000);
    // Deletes get index entries before.
    (0..20).for_each(|_| {
        if !store.engine.is_sorting() {
            store.turn()
        }
    });
    assert!(store.engine.sorted.is_gathering(), "{:?}", store.engine);
    assert!(store.engine.sorted.rest.bytes_max() < credit_bytes, "the sort is paid");
    (store, credit_bytes)
}

/// Otherwise a device that refuses a few reads would end the rest's work for good.
#[test]
fn a_sort_that_fails_gives_back_what_it_has_not_written() {
    let (mut store, credit_bytes) = store_that_sorts_at_rest();
    store.engine.give_up_sort();
    (0..20).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting());
    assert_eq!(store.engine.sorted.rest.bytes_max(), credit_bytes, "it has written nothing");

    let (mut store, credit_bytes) = store_that_sorts_at_rest();
    while store.engine.sorted.job_file_bytes() < SEGMENT_BYTES {
        store.turn();
    }
    let written_bytes = store.engine.sorted.job_file_bytes();
    store.engine.give_up_sort();
    (0..20).for_each(|_| store.turn());
    assert!(!store.engine.is_sorting());
    assert_eq!(store.engine.sorted.rest.bytes_max(), credit_bytes - written_bytes);
}

/// A store whose rest has begun a merge, and the credit by then: of all runs, or if the oldest one is corrupt, of the later ones.
fn store_that_merges_at_rest(is_sweep: bool) -> (SmallStore, u64) {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
    store.make_runs(1);
    (0..10).for_each(|_| store.turn());
    enter_later(&mut store.engine.sorted, 2);
    if !is_sweep {
        store.engine.sorted.runs[2].failures.note_corrupt();
    }
    // No search before the rest.
    store.engine.sorted.run_search.begin();
    store.engine.sorted.segment_search.begin();
    store.engine.sorted.rest.credit(1 << 20);
    store.now = store.now.plus_ms(1_000);
    store.turn();
    let job = store.engine.sorted.job.as_ref().unwrap();
    assert_eq!((job.is_part(), job.inputs.sources.len()), (is_sweep, if is_sweep { 3 } else { 2 }));
    let paid_bytes = job.inputs.sources.len() as u64 * store.engine.sorted.runs[0].file_bytes;
    let credit_bytes = store.engine.sorted.rest.bytes_max() + paid_bytes;
    assert!(credit_bytes > 1 << 20);
    (store, credit_bytes)
}

#[test]
fn a_merge_that_fails_gives_back_what_it_has_not_written() {
    for is_sweep in [false, true] {
        for has_written in [false, true] {
            let (mut store, credit_bytes) = store_that_merges_at_rest(is_sweep);
            while has_written && store.engine.sorted.job_file_bytes() < 16 << 10 {
                store.turn();
                assert!(store.engine.is_sorting());
            }
            let written_bytes = store.engine.sorted.job_file_bytes();
            // As a failed read does. Otherwise a merge of the others begins.
            let now = store.now.mono;
            store.engine.sorted.runs.iter_mut().take(2).for_each(|listed| listed.failures.note_unreadable(now));
            store.engine.give_up_sort();
            (0..20).for_each(|_| store.turn());
            // The next search finds that the sweep cannot go on.
            store.engine.sorted.retry_at = now;
            store.turn();
            assert!(store.engine.sorted.sweep.is_none() && !store.engine.is_sorting());
            let left_bytes = store.engine.sorted.rest.bytes_max();
            assert_eq!(left_bytes, credit_bytes - written_bytes, "{is_sweep} {has_written}");
        }
    }
}

/// A part of a sweep that fails is tried again, and what has been written of it is paid twice.
#[test]
fn a_sweep_that_ends_early_gives_back_what_its_parts_have_not_written() {
    let mut sweep = sweep_of(MergePace { written_bytes: 300, ..MergePace::default() });
    (sweep.paid_bytes, sweep.failed_bytes) = (1_000, 50);
    assert_eq!(sweep.unused_bytes(), 650);
    sweep.failed_bytes = 900;
    assert_eq!(sweep.unused_bytes(), 0);
}

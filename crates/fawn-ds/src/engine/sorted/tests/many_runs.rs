//! Unit tests of stores with many runs: what is done to all of them at once.
use super::space::{SEGMENT_BYTES, SmallStore};
use super::*;
use crate::engine::{DumpError, DumpReport};
use fawn_flash::IoClass;

fn store_of_many_runs() -> SmallStore {
    let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 4 * SEGMENT_BYTES);
    store.engine.options.run_bytes_max = SEGMENT_BYTES;
    (0..3_000).for_each(|number| store.put(number));
    (0..2_000).for_each(|_| store.turn());
    store
}

/// A commit of the manifest has a limit, which the runs of the largest store exceed.
#[test]
fn any_number_of_invalidated_runs_is_dropped_without_being_read() {
    let mut store = store_of_many_runs();
    let (runs, sort_bytes) = (store.engine.sorted.runs.len(), store.engine.stats().sort_bytes);
    assert!(runs > 7, "{runs} runs");
    store.writes += 1;
    let version = Version::new(Epoch::new(store.engine.generation()).unwrap(), store.writes).unwrap();
    store.engine.clear(RANGE, version).unwrap();
    let mut turns = 0;
    while !store.engine.sorted.runs.is_empty() {
        store.turn();
        turns += 1;
        assert!(turns < 1_000, "{} runs are left", store.engine.sorted.runs.len());
    }
    assert_eq!(store.engine.stats().sort_bytes, sort_bytes, "nothing was written");
}

/// A dump of a large store took 256 KiB for each of its runs at once.
#[test]
fn a_dump_reads_runs_that_have_no_key_in_common_one_after_the_other() {
    let mut store = store_of_many_runs();
    let at_lowest = |store: &SmallStore| {
        let runs = &store.engine.sorted.runs;
        let lowest = runs.iter().map(|listed| listed.bounds().lowest).min().unwrap();
        runs.covering(&lowest).count()
    };
    let reads = |store: &SmallStore| store.engine.device.stats().of(IoClass::Foreground).reads;
    let (runs, before) = (store.engine.sorted.runs.len(), reads(&store));
    let mut visited = 0;
    let stopped = store.engine.dump_runs(&mut DumpReport::default(), &mut |_, _| {
        visited += 1;
        Err(())
    });
    assert_eq!((stopped, visited), (Err(DumpError::Visitor(())), 1));
    let begun = reads(&store) - before;
    assert!(runs > 20 && begun <= at_lowest(&store) as u64 + 1, "{begun} reads, {runs} runs");
}

/// A terabyte has some thousand runs. Entered one by one, each would be compared with all that were entered before.
#[test]
fn an_opening_enters_all_runs_at_once() {
    let store = store_of_many_runs();
    let (options, disk) = (store.engine.options.clone(), store.engine.device.disk().clone());
    let order = |engine: &Engine<SimDevice>| {
        let runs = engine.sorted.runs.iter();
        runs.map(|run| (run.age, run.bounds().lowest, run.run.header().uuid)).collect::<Vec<_>>()
    };
    let entered = order(&store.engine);
    store.engine.close().unwrap();
    let (engine, _) = Engine::open(SimDevice::attach(&disk), options, Now::at(2)).unwrap();
    assert_eq!(order(&engine), entered, "in the same order as runs that were written later");
    assert!(entered.len() > 20 && engine.sorted.runs.ends_taken() == entered.len(), "{entered:?}");
}

/// The drop of runs of which nothing counts needs no space. A clear without any shortens no wait.
#[test]
fn invalidated_runs_are_dropped_soon_after_refused_jobs() {
    for has_runs in [false, true] {
        let mut store = SmallStore::open(RecordLayout::Sorted, Durability::Sync, 1);
        if has_runs {
            store.make_runs(2);
        }
        (0..7).for_each(|_| store.engine.give_up_refused());
        let refused_until = store.engine.sorted.retry_at;
        store.engine.ranges[0].cleared.listed = store.engine.ranges[0].progress.appended;
        store.engine.note_invalidated_runs();
        let soon = store.engine.now.mono.plus_ms(10_000);
        assert_eq!(store.engine.sorted.retry_at, if has_runs { soon } else { refused_until });
    }
}

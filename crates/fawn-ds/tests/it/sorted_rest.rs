//! Rest of the sorted tier: what it does while nothing is written, and how much that writes.
use crate::sorted_files::put;
use crate::sorted_tier::sorted;
use crate::support::{TestNode, small};
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

const KEYS: u64 = 8_000;
/// Keys of a load after which there are later runs, too few for a merge with the oldest ones.
const LOADED_KEYS: u64 = 36_000;

fn options() -> Options {
    Options { segment_bytes: 128 << 10, sort_bytes: 256 << 10, ..sorted(Durability::Memory) }
}

fn open(disk: &SimDisk, options: Options) -> TestNode {
    TestNode::open(disk, options, Now::at(1_000)).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

fn write(node: &mut TestNode, number: u64, at: u64) {
    put(node, &key(number), Some(&[at as u8; 256]));
    if at.is_multiple_of(32) {
        node.turn();
    }
}

/// Jobs end at once on this device: no job outlasts a few turns.
fn finish_jobs(node: &mut TestNode) {
    for _ in 0..2_000 {
        node.turn();
        if !node.engine.is_sorting() && !node.engine.has_progress() {
            return;
        }
    }
    panic!("{:?}", node.engine);
}

/// Does what is due without a rest: timers of less than a second.
fn finish_due_jobs(node: &mut TestNode) {
    for _ in 0..9 {
        node.now = node.now.plus_ms(100);
        finish_jobs(node);
    }
}

/// Nothing is written for so long.
fn pause(node: &mut TestNode, ms: u64) {
    node.settle();
    node.now = node.now.plus_ms(ms);
    finish_jobs(node);
}

/// Reads for each lookup of an absent key.
fn reads_per_miss(node: &mut TestNode) -> f64 {
    let before = node.engine.stats().reads;
    for number in 0..4_000u64 {
        assert!(node.get(format!("absent {number}").as_bytes(), View::Committed).unwrap().is_none());
    }
    (node.engine.stats().reads - before) as f64 / 4_000.0
}

#[test]
fn a_store_that_rests_has_few_runs_and_little_memory() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, options());
    (0..LOADED_KEYS).for_each(|number| write(&mut node, number, number));
    finish_due_jobs(&mut node);
    let bytes_per_key = |node: &TestNode| node.engine.memory().index_bytes as f64 / LOADED_KEYS as f64;
    let (runs, before) = (node.engine.runs(), bytes_per_key(&node));
    pause(&mut node, 1_100);
    let after = bytes_per_key(&node);
    assert!(node.engine.runs() < runs, "{} runs, {runs} before", node.engine.runs());
    // In the mode `memory` the last sealed segment may be left: its synced records say how far the range is committed.
    assert!(after < before * 9.0 / 10.0, "{after} B a key, {before} before");
    let misses = reads_per_miss(&mut node);
    assert!(misses < 0.15, "{misses}");
    for number in 0..LOADED_KEYS {
        let found = node.get(&key(number), View::Committed).unwrap().unwrap();
        assert_eq!(found.value[0], number as u8);
    }
    let listed = node.engine.stats().runs_listed;
    (0..100).for_each(|_| pause(&mut node, 10_000));
    assert_eq!(node.engine.stats().runs_listed, listed, "it does nothing more");
}

/// Bytes of runs that are written for each byte of puts, by overwrites of which so many follow each other without a pause.
fn sorted_per_byte(puts_between_pauses: u64) -> (f64, u64) {
    const PUTS: u64 = 40_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, options());
    let mut rng = Rng::new(7);
    (0..KEYS).for_each(|number| write(&mut node, number, number));
    pause(&mut node, 5_000);
    let before = *node.engine.stats();
    for at in 0..PUTS {
        write(&mut node, rng.below(KEYS), at);
        if at % puts_between_pauses == puts_between_pauses - 1 {
            pause(&mut node, 5_000);
        }
    }
    let stats = node.engine.stats();
    let written_bytes = stats.sort_bytes - before.sort_bytes;
    (written_bytes as f64 / (stats.record_bytes - before.record_bytes) as f64, stats.runs_listed - before.runs_listed)
}

/// Without the limit, pauses would have all that the store has written again and again: ten bytes for each that is put.
#[test]
fn pauses_add_little_to_what_is_written() {
    let (steady, _) = sorted_per_byte(40_000);
    for puts_between_pauses in [100, 500, 2_000, 10_000] {
        let (paused, jobs) = sorted_per_byte(puts_between_pauses);
        println!("{puts_between_pauses} puts between pauses: {paused:.2} B for each, {steady:.2} without; {jobs} jobs");
        assert!(paused < steady + 1.3, "{puts_between_pauses}: {paused}, {steady} without pauses");
    }
}

/// A load is often closed before the store is served.
#[test]
fn a_store_that_is_opened_rests_without_a_write_before() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, options());
    (0..LOADED_KEYS).for_each(|number| write(&mut node, number, number));
    node.engine.close().unwrap();
    let mut node = open(&disk, options());
    finish_due_jobs(&mut node);
    let runs = node.engine.runs();
    pause(&mut node, 1_100);
    assert!(node.engine.runs() < runs, "{} runs, {runs} before", node.engine.runs());
}

/// Neither does the log's tier sort anything at rest.
#[test]
fn a_store_that_sorts_nothing_rests_without_work() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let layout = RecordLayout::Auto;
    let mut node = open(&disk, Options { layout, memory_bytes: 8 << 20, ..small(Durability::Memory) });
    (0..2_000).for_each(|number| write(&mut node, number, number));
    (0..10).for_each(|_| pause(&mut node, 10_000));
    assert_eq!((node.engine.runs(), node.engine.stats().sort_bytes), (0, 0));
}

/// A host that polls only when I/O completes or a timer is due, and commits what may be. Returns its polls.
pub(crate) fn serve_nothing(node: &mut TestNode, until_ms: u64) -> u64 {
    let mut polls = 0;
    loop {
        let due = node.engine.upkeep_at().filter(|at| at.0 <= until_ms);
        if node.engine.in_flight() == 0 {
            let Some(at) = due else { return polls };
            node.now = node.now.plus_ms(at.ms_since(node.now.mono));
        }
        node.turn();
        polls += 1;
        assert!(polls < 200_000, "it does not come to rest: {:?} {:?}", node.engine.upkeep_at(), node.engine);
    }
}

#[test]
fn a_host_without_clients_needs_no_more_than_the_timers() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, Options { durability: Durability::Sync, scrub_period_ms: 0, ..options() });
    (0..LOADED_KEYS).for_each(|number| write(&mut node, number, number));
    node.turn();
    let now_ms = node.now.mono.0;
    serve_nothing(&mut node, now_ms + 10_000);
    let rested = (node.engine.runs(), node.engine.memory().index_bytes);
    pause(&mut node, 5_000);
    assert_eq!((node.engine.runs(), node.engine.memory().index_bytes), rested, "polls find nothing more to do");
    assert_eq!(serve_nothing(&mut node, u64::MAX), 0, "no timer is left");
}

/// The credit of cleaning grows with time, without any completion.
#[test]
fn a_host_without_clients_cleans() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { scrub_period_ms: 0, memory_bytes: 8 << 20, ..small(Durability::Sync) };
    let options = Options { segment_bytes: 128 << 10, space_amplification_max_percent: 130, ..options };
    let mut node = open(&disk, options);
    let mut rng = Rng::new(3);
    for at in 0..40_000 {
        // As in a store whose limit was lowered: nothing is cleaned meanwhile.
        put(&mut node, &key(rng.below(KEYS)), Some(&[at as u8; 256]));
        if at % 256 == 0 {
            node.turn();
        }
    }
    let before = node.engine.log_report().segments;
    let now_ms = node.now.mono.0;
    let polls = serve_nothing(&mut node, now_ms + 60_000);
    let after = node.engine.log_report().segments;
    println!("{before} segments, {after} after {polls} polls, {:?}", node.engine.stats().segments_cleaned);
    assert!(after < before, "{after} segments, {before} before");
    let segments_of_live = KEYS * 300 * 13 / 10 / (128 << 10);
    assert!(after <= segments_of_live + 6, "{after} segments, {segments_of_live} are allowed");
}

/// Hosts poll at once if a timer has passed: they would spin until a read ends, or for ever.
#[test]
fn a_job_whose_read_hangs_has_no_timer_that_has_passed() {
    let mut merges = 0;
    for nth in 1..12 {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = open(&disk, Options { durability: Durability::Sync, scrub_period_ms: 0, ..options() });
        (0..LOADED_KEYS / 2).for_each(|number| write(&mut node, number, number));
        finish_due_jobs(&mut node);
        disk.fail_nth(OpKind::Read, nth, DeviceFault::Hang);
        node.now = node.now.plus_ms(5_000);
        let mut checks = 0;
        let sort_reads = |node: &TestNode| node.engine.device().stats().of(IoClass::Sort).reads;
        let before = sort_reads(&node);
        for _ in 0..400 {
            node.engine.submit(node.now);
            node.engine.poll(node.now, &mut Vec::new());
            // All that does not wait for the read is done within some polls.
            checks += u64::from(disk.hung() > 0);
            let due = node.engine.upkeep_at().filter(|_| checks > 200);
            assert!(
                due.is_none_or(|at| at > node.now.mono),
                "read {nth}: {due:?} at {:?}: {:?}",
                node.now,
                node.engine
            );
        }
        assert!(node.engine.is_sorting() && checks > 300, "read {nth}: {checks} checks");
        merges += u64::from(sort_reads(&node) > before);
        disk.release_hung();
        let now_ms = node.now.mono.0;
        serve_nothing(&mut node, now_ms + 60_000);
        assert!(!node.engine.is_sorting());
    }
    assert!(merges > 2, "{merges} merges");
}

#[test]
fn a_rest_tries_again_after_a_failed_read() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, Options { durability: Durability::Sync, scrub_period_ms: 0, ..options() });
    (0..LOADED_KEYS).for_each(|number| write(&mut node, number, number));
    finish_due_jobs(&mut node);
    let runs = node.engine.runs();
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Fail);
    let now_ms = node.now.mono.0;
    serve_nothing(&mut node, now_ms + 60_000);
    assert!(node.engine.stats().merges_failed + node.engine.stats().cleaning_failed > 0, "{:?}", node.engine.stats());
    assert!(node.engine.runs() < runs, "{} runs, {runs} before", node.engine.runs());
}

/// The job ends within a poll, without any I/O: only a timer removes it, and no other begins before.
#[test]
fn a_rest_tries_again_after_a_refused_file() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, Options { durability: Durability::Sync, scrub_period_ms: 0, ..options() });
    (0..LOADED_KEYS).for_each(|number| write(&mut node, number, number));
    finish_due_jobs(&mut node);
    let runs = node.engine.runs();
    disk.fail_nth(OpKind::Create, 1, DeviceFault::Exhausted);
    let now_ms = node.now.mono.0;
    serve_nothing(&mut node, now_ms + 60_000);
    assert!(!node.engine.is_sorting(), "{:?}", node.engine);
    assert!(node.engine.runs() < runs, "{} runs, {runs} before", node.engine.runs());
}

/// A step of short records fills no buffer, so no write of it is in flight.
#[test]
fn a_host_without_clients_sorts_short_records() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk, Options { durability: Durability::Sync, scrub_period_ms: 0, ..options() });
    node.engine.hold_runs(true);
    for number in 0..18_000 {
        put(&mut node, &key(number), Some(&[1]));
        if number % 256 == 0 {
            node.turn();
        }
    }
    node.settle();
    assert!(node.engine.runs() == 0 && node.engine.is_sorting());
    node.engine.hold_runs(false);
    let now_ms = node.now.mono.0;
    serve_nothing(&mut node, now_ms + 60_000);
    assert!(node.engine.runs() > 0 && !node.engine.is_sorting(), "{:?}", node.engine);
}

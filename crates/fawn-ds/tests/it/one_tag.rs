//! Keys under one `{tag}` next to as many others: counted, they cost the same everywhere.
//!
//! Two stores receive the same operations in the same order. One has keys under a tag and others in equal shares, its twin no
//! tagged keys at all. The costs of tagged keys are compared with those of the other half, and with those of the twin.
//!
//! 40,000 keys in CI, two million with `FAWN_TAG_KEYS=1000000 cargo test --release -p fawn-ds --test it one_tag -- --nocapture`, which
//! also prints rates on the simulated device. Nothing is asserted about time.
use crate::checkpoint::confirm_deferred;
use crate::sorted_rest::serve_nothing;
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use core::ops::Range;
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{EngineStats, Options, Scan, ScanStep, View};
use fawn_flash::{Device, SimDisk, SimOptions};
use fawn_types::{Durability, Now};
use std::time::{Duration, Instant};

/// Writes of one kind before those of the other kind.
const WRITES_IN_TURN: u64 = 256;
/// Longer by a fifth, they make records longer by more than a tenth.
const VALUE_BYTES: usize = 200;

type KeyOf = fn(u64) -> Vec<u8>;

/// Keys under the tag, and as many others.
fn keys() -> u64 {
    std::env::var("FAWN_TAG_KEYS").map_or(20_000, |count| count.parse().unwrap())
}

// All of the same length, so that records are.

fn tagged(i: u64) -> Vec<u8> {
    format!("{{tag}}:{i:08}").into_bytes()
}

fn plain(i: u64) -> Vec<u8> {
    format!("plain:{i:08}").into_bytes()
}

fn other(i: u64) -> Vec<u8> {
    format!("other:{i:08}").into_bytes()
}

fn write(key: Vec<u8>, value: Option<u8>) -> TestWrite {
    TestWrite { key, value: value.map(|byte| vec![byte; VALUE_BYTES]), expires_at_ms: 0 }
}

/// An order that takes neighbours far from one another in the log, so that no page serves two of them.
fn spread(i: u64) -> u64 {
    i * 7919 % keys()
}

/// Counts by name.
type Counts = Vec<(&'static str, f64)>;

/// Costs of a store.
struct Costs {
    /// Of each kind of keys, per operation.
    kinds: [Counts; 2],
    /// Of the whole store, in total.
    store: Counts,
}

/// Nothing is cleaned, and no checkpoint is written: each would be charged to the kind that happens to be written then.
fn counted() -> Options {
    Options {
        segment_bytes: (4 * keys() as u32).next_power_of_two(),
        // Indexes, and hardly a cache.
        memory_bytes: (16 * keys()).max(1 << 20),
        record_cache_bytes: Some(0),
        index: IndexOptions { entries_min: 64, ..IndexOptions::default() },
        space_amplification_max_percent: 10_000,
        ..scanned(Durability::Memory)
    }
}

/// Options for opening the same store again: an opening defers the old versions of all overwritten keys.
fn reopened() -> Options {
    Options { memory_bytes: 256 * keys(), ..counted() }
}

/// Adds the difference of the counters to the sum.
fn add(sum: &mut EngineStats, before: &EngineStats, after: &EngineStats) {
    sum.reads += after.reads - before.reads;
    sum.false_matches += after.false_matches - before.false_matches;
    sum.verification_reads += after.verification_reads - before.verification_reads;
    sum.written_bytes += after.written_bytes - before.written_bytes;
}

/// Prints the rates of both kinds.
fn print_rates(what: &str, count: u64, times: [Duration; 2]) {
    let rates = times.map(|time| (count as f64 / time.as_secs_f64()) as u64);
    println!("{what} per second: {rates:?}");
}

/// Writes to keys of both kinds in turns. Each turn ends with everything verified and written, so that its costs are its own.
fn write_in_turns(
    node: &mut TestNode,
    kinds: [KeyOf; 2],
    what: &str,
    range: Range<u64>,
    write: impl Fn(KeyOf, u64) -> TestWrite,
) -> [EngineStats; 2] {
    let (mut sums, mut times) = ([EngineStats::default(); 2], [Duration::ZERO; 2]);
    for begin in range.clone().step_by(WRITES_IN_TURN as usize) {
        for (kind, key_of) in kinds.into_iter().enumerate() {
            let writes: Vec<_> = (begin..range.end.min(begin + WRITES_IN_TURN)).map(|i| write(key_of, i)).collect();
            let (before, begun) = (*node.engine.stats(), Instant::now());
            for batch in writes.chunks(16) {
                batch.iter().for_each(|write| assert!(node.append(core::slice::from_ref(write)).is_ok()));
                node.turn();
            }
            node.settle();
            node.engine.sync_all().unwrap();
            times[kind] += begun.elapsed();
            add(&mut sums[kind], &before, node.engine.stats());
        }
    }
    print_rates(what, range.end - range.start, times);
    sums
}

/// Gets of both kinds, before any of them is overwritten.
fn get_all(
    node: &mut TestNode,
    kinds: [KeyOf; 2],
    what: &str,
    keys: impl Fn(KeyOf, u64) -> Vec<u8>,
    count: u64,
) -> [EngineStats; 2] {
    let (mut sums, mut times) = ([EngineStats::default(); 2], [Duration::ZERO; 2]);
    for (kind, key_of) in kinds.into_iter().enumerate() {
        let names: Vec<_> = (0..count).map(|i| keys(key_of, i)).collect();
        let (before, begun) = (*node.engine.stats(), Instant::now());
        let found = names.iter().filter(|key| node.get(key, View::Committed).unwrap().is_some()).count();
        times[kind] = begun.elapsed();
        assert!(found == if what == "hits" { names.len() } else { 0 }, "{what}: {found} of {count}");
        add(&mut sums[kind], &before, node.engine.stats());
    }
    print_rates(what, count, times);
    sums
}

/// Steps and device reads of a scan of all keys.
fn scan(node: &mut TestNode, costs: &mut Counts) {
    let reads = node.engine.stats().reads;
    let (mut cursor, mut steps, mut found) = (0, 0, 0);
    loop {
        let mut scan = Scan::new(RANGE, cursor, 100);
        while let ScanStep::Read(plan) = node.engine.scan_step(&mut scan, node.now.wall).unwrap() {
            node.engine.read(plan, 42);
            let plan = node.wait_for_plan();
            node.engine.absorb_scan(&mut scan, plan).unwrap();
        }
        (cursor, steps, found) = (scan.cursor, steps + 1, found + scan.items.len() as u64);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found, 2 * keys());
    costs.push(("scan steps", f64::from(steps)));
    costs.push(("reads of a scan", (node.engine.stats().reads - reads) as f64));
}

/// Writes, gets and deletes of both kinds, up to the first close.
fn operate(node: &mut TestNode, kinds: [KeyOf; 2], costs: &mut Costs) {
    let mut charge = |what: &'static str, stats: [EngineStats; 2], count: u64, of: fn(&EngineStats) -> u64| {
        for (counts, stats) in costs.kinds.iter_mut().zip(&stats) {
            counts.push((what, of(stats) as f64 / count as f64));
        }
    };
    let (all, some) = (keys(), keys() / 4);
    let inserts = write_in_turns(node, kinds, "puts", 0..all, |key_of, i| write(key_of(i), Some(7)));
    charge("verification reads of a first insert", inserts, all, |stats| stats.verification_reads);
    charge("bytes written for a first insert", inserts, all, |stats| stats.written_bytes);
    assert_eq!(node.engine.len(RANGE), 2 * all);
    costs.store.push(("index bytes", node.engine.memory().index_bytes as f64));
    scan(node, &mut costs.store);
    let hits = get_all(node, kinds, "hits", |key_of, i| key_of(spread(i)), some);
    charge("reads of a hit", hits, some, |stats| stats.reads);
    charge("false matches of a hit", hits, some, |stats| stats.false_matches);
    let misses = get_all(node, kinds, "misses", |key_of, i| key_of(keys() + i), all);
    charge("reads of a miss", misses, all, |stats| stats.reads);
    charge("false matches of a miss", misses, all, |stats| stats.false_matches);
    assert!(hits.iter().all(|stats| stats.reads > some / 2), "the cache does not hide the reads: {hits:?}");
    let overwrites = write_in_turns(node, kinds, "overwrites", 0..some, |key_of, i| write(key_of(spread(i)), Some(8)));
    charge("verification reads of an overwrite", overwrites, some, |stats| stats.verification_reads);
    charge("bytes written for an overwrite", overwrites, some, |stats| stats.written_bytes);
    let deletes =
        write_in_turns(node, kinds, "deletes", some..some + all / 8, |key_of, i| write(key_of(spread(i)), None));
    charge("verification reads of a delete", deletes, all / 8, |stats| stats.verification_reads);
    charge("bytes written for a delete", deletes, all / 8, |stats| stats.written_bytes);
}

/// Opens the store again, and confirms what the opening deferred.
fn open_again(disk: &SimDisk, options: Options, now: Now, what: [&'static str; 3], costs: &mut Counts) -> TestNode {
    let mut node = TestNode::open(disk, options, now).unwrap();
    costs.push((what[0], node.engine.device().stats().total().read_bytes as f64));
    costs.push((what[1], node.engine.verifications_deferred() as f64));
    let reads = node.engine.stats().verification_reads;
    confirm_deferred(&mut node);
    costs.push((what[2], (node.engine.stats().verification_reads - reads) as f64));
    node
}

/// Openings of the log and from a checkpoint, then cleaning.
fn open_and_clean(disk: &SimDisk, kinds: [KeyOf; 2], now: Now, costs: &mut Counts) {
    let live = 2 * (keys() - keys() / 8);
    // The close writes a checkpoint.
    let options = Options { checkpoint_log_bytes_min: 1, ..reopened() };
    let of_log = ["bytes read by an opening", "records it defers", "reads that confirm them"];
    let node = open_again(disk, options, now, of_log, costs);
    assert_eq!((node.report.checkpoint_entries, node.engine.len(RANGE)), (None, live));
    let now = node.now;
    node.engine.close().unwrap();
    let mut node = TestNode::open(disk, reopened(), now).unwrap();
    // Not those that were overwritten before: segments of these are gone by now.
    let write = |key_of: KeyOf, i| write(key_of(spread(i)), Some(9));
    write_in_turns(&mut node, kinds, "overwrites behind a checkpoint", keys() / 2..keys() / 8 * 5, write);
    let now = node.now;
    node.engine.close().unwrap();
    let options = Options { space_amplification_max_percent: 110, ..reopened() };
    let of_checkpoint = [
        "bytes read by an opening from a checkpoint",
        "records deferred by an opening from a checkpoint",
        "reads that confirm them after an opening from a checkpoint",
    ];
    let mut node = open_again(disk, options, now, of_checkpoint, costs);
    assert!(node.report.checkpoint_entries.is_some() && node.engine.len(RANGE) == live, "{:?}", node.report);
    let until_ms = node.now.mono.0 + 600_000;
    serve_nothing(&mut node, until_ms);
    let (stats, report) = (*node.engine.stats(), node.engine.log_report());
    assert_eq!((node.engine.len(RANGE), report.cleaning_debt_segments), (live, 0), "{report:?}");
    costs.push(("segments cleaned", stats.segments_cleaned as f64));
    costs.push(("bytes moved by cleaning", stats.moved_bytes as f64));
    costs.push(("bytes read by cleaning", stats.cleaning_read_bytes as f64));
    costs.push(("segments left", report.segments as f64));
}

fn costs(kinds: [KeyOf; 2]) -> Costs {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, counted(), Now::at(1)).unwrap();
    let mut costs = Costs { kinds: [Counts::new(), Counts::new()], store: Counts::new() };
    operate(&mut node, kinds, &mut costs);
    let now = node.now;
    node.engine.close().unwrap();
    open_and_clean(&disk, kinds, now, &mut costs.store);
    costs
}

/// At most a tenth more. False matches are rare, so their scatter is allowed for: it falls with the square root of the keys.
fn assert_no_more(of: &str, counts: &Counts, compared: &Counts) {
    let slack = 0.2 / (keys() as f64).sqrt();
    assert_eq!(counts.len(), compared.len());
    let more: Vec<_> = counts
        .iter()
        .zip(compared)
        .inspect(|((what, cost), (_, least))| println!("{of}: {what}: {cost:.5}, {least:.5}"))
        .filter(|((_, cost), (_, compared))| *cost > compared * 1.1 + slack)
        .collect();
    assert!(more.is_empty(), "{of} cost more: {more:?}");
}

#[test]
fn keys_under_one_tag_cost_what_others_do() {
    let (mixed, twin) = (costs([tagged, plain]), costs([other, plain]));
    assert_no_more("tagged keys against others in their store", &mixed.kinds[0], &mixed.kinds[1]);
    assert_no_more("tagged keys against those of a store without tags", &mixed.kinds[0], &twin.kinds[0]);
    assert_no_more("others against those of a store without tags", &mixed.kinds[1], &twin.kinds[1]);
    assert_no_more("a store with tags against one without", &mixed.store, &twin.store);
}

//! Keys under one `{tag}` next to as many others: counted, they cost the same everywhere.
//!
//! 40,000 keys in CI, two million with `FAWN_TAG_KEYS=1000000 cargo test --release -p fawn-ds --test it one_tag -- --nocapture`. The
//! counts are ratios per key: their scatter falls with the number of keys, so the small test is the stricter one.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Options, Scan, ScanStep, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// Keys under the tag, and as many others.
fn keys() -> u64 {
    std::env::var("FAWN_TAG_KEYS").map_or(20_000, |count| count.parse().unwrap())
}

fn tagged(i: u64) -> Vec<u8> {
    format!("{{tag}}:{i:08}").into_bytes()
}

fn plain(i: u64) -> Vec<u8> {
    format!("plain:{i:08}").into_bytes()
}

/// Costs of one kind of keys.
#[derive(Debug)]
struct Costs {
    reads_per_hit: f64,
    reads_per_miss: f64,
    false_matches_per_get: f64,
    overwrite_reads: f64,
}

fn filled(names: [fn(u64) -> Vec<u8>; 2]) -> TestNode {
    let disk = SimDisk::new(SimOptions::instant(1));
    // Indexes, and hardly a cache.
    let memory_bytes = (16 * keys()).max(1 << 20);
    let index = IndexOptions { entries_min: 64, ..IndexOptions::default() };
    let options = Options {
        segment_bytes: 4 << 20,
        memory_bytes,
        record_cache_bytes: Some(0),
        index,
        ..small(Durability::Memory)
    };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    for i in 0..keys() {
        let put = |name: fn(u64) -> Vec<u8>| TestWrite { key: name(i), value: Some(vec![7; 100]), expires_at_ms: 0 };
        node.append(&names.map(put)).unwrap();
        if i % 16 == 0 {
            node.turn();
        }
    }
    node.settle();
    node
}

fn costs(node: &mut TestNode, name: fn(u64) -> Vec<u8>) -> Costs {
    let count = keys() / 4;
    let begun = *node.engine.stats();
    // Far from one another in the log, so that no page serves two of them.
    let spread = |i: u64| (i * 7919) % keys();
    for i in 0..count {
        assert!(node.get(&name(spread(i)), View::Committed).unwrap().is_some());
    }
    let hits = *node.engine.stats();
    for i in 0..count {
        assert_eq!(node.get(&name(keys() + i), View::Committed).unwrap(), None);
    }
    let misses = *node.engine.stats();
    for i in 0..count {
        let write = TestWrite { key: name(spread(i)), value: Some(vec![8; 100]), expires_at_ms: 0 };
        node.append(&[write]).unwrap();
        if i % 16 == 0 {
            node.turn();
        }
    }
    node.settle();
    let written = *node.engine.stats();
    let per_key = |reads: u64| reads as f64 / count as f64;
    Costs {
        reads_per_hit: per_key(hits.reads - begun.reads),
        reads_per_miss: per_key(misses.reads - hits.reads),
        false_matches_per_get: per_key(misses.false_matches - begun.false_matches) / 2.0,
        overwrite_reads: per_key(written.verification_reads - misses.verification_reads),
    }
}

/// Steps and device reads of a scan of all keys.
fn scan(node: &mut TestNode) -> (u64, u64, u64) {
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
            return (steps, node.engine.stats().reads - reads, found);
        }
    }
}

/// At most a tenth more, and a difference of fewer than two in a thousand keys is none.
fn costs_no_more(what: &str, tagged: f64, other: f64) {
    assert!(tagged <= other * 1.1 + 0.002, "{what}: {tagged} with a tag, {other} without");
}

#[test]
fn keys_under_one_tag_cost_what_others_do() {
    let mut mixed = filled([tagged, plain]);
    let mut others = filled([|i| plain(i + (1 << 32)), plain]);
    let bytes = [&mixed, &others].map(|node| node.engine.memory().index_bytes as f64 / (2 * keys()) as f64);
    println!("index bytes per key: {bytes:?}");
    costs_no_more("index memory", bytes[0], bytes[1]);
    assert_eq!(mixed.engine.len(RANGE), 2 * keys());
    let scans = [scan(&mut mixed), scan(&mut others)];
    println!("scan steps, reads, keys: {scans:?}");
    assert_eq!((scans[0].2, scans[1].2), (2 * keys(), 2 * keys()));
    costs_no_more("scan steps", scans[0].0 as f64, scans[1].0 as f64);
    costs_no_more("reads of a scan", scans[0].1 as f64, scans[1].1 as f64);
    let [with, without] = [tagged, plain].map(|name| costs(&mut mixed, name));
    println!("{with:?}\n{without:?}");
    assert!(without.reads_per_hit > 0.5, "the cache does not hide the reads: {without:?}");
    costs_no_more("reads per hit", with.reads_per_hit, without.reads_per_hit);
    costs_no_more("reads per miss", with.reads_per_miss, without.reads_per_miss);
    costs_no_more("false matches", with.false_matches_per_get, without.false_matches_per_get);
    costs_no_more("reads per overwrite", with.overwrite_reads, without.overwrite_reads);
}

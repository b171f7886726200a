//! Owns the measurement behind `docs/decisions/2026-11-21-index-pages.md`: the index at every size up to 50 M keys.
//!
//! ```sh
//! cargo run --release -p fawn-ds --example index_spike              # 1 M to 50 M keys, and the alternatives
//! cargo run --release -p fawn-ds --example index_spike -- 5000000 14   # up to 5 M keys, pages of 14
//! ```
use fawn_ds::internals::index::{Index, IndexOptions, Pointer};
use fawn_types::KeyHash;
use fawn_types::random::SplitMix64;
use std::hint::black_box;
use std::time::{Duration, Instant};

const MISSES: u32 = 1_000_000;
const HITS: u32 = 1_000_000;
/// Inserts timed together; the slowest batch shows a pause if there is one.
const BATCH: u32 = 64;

/// The hash of key `number`, which can be had again without keeping it.
fn hash_of(number: u64) -> KeyHash {
    KeyHash(SplitMix64::mix(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

/// A key that is never inserted.
fn absent(number: u32) -> KeyHash {
    hash_of(1 << 40 | u64::from(number))
}

/// A line of `/proc/self/status` in bytes: `VmRSS` is resident now, `VmHWM` the most there ever was.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

fn nanos_each(elapsed: Duration, operations: u32) -> f64 {
    elapsed.as_nanos() as f64 / f64::from(operations.max(1))
}

/// Inserts up to `keys` keys; mean nanoseconds, and microseconds of the slowest batch.
fn grow(index: &mut Index, keys: u32) -> (f64, f64) {
    let (start, from) = (Instant::now(), index.len());
    let mut slowest = Duration::ZERO;
    while index.len() < keys {
        let batch = Instant::now();
        for _ in 0..BATCH.min(keys - index.len()) {
            let number = index.len();
            if let Err(error) = index.insert(hash_of(u64::from(number)), Pointer(number)) {
                panic!("key {number}: {error}");
            }
        }
        slowest = slowest.max(batch.elapsed());
    }
    (nanos_each(start.elapsed(), keys - from), slowest.as_secs_f64() * 1e6)
}

/// False candidates per lookup of an absent key, and nanoseconds per lookup.
fn miss(index: &Index) -> (f64, f64) {
    let start = Instant::now();
    let found: usize = (0..MISSES).map(|number| index.candidates(absent(number)).count()).sum();
    (found as f64 / f64::from(MISSES), nanos_each(start.elapsed(), MISSES))
}

/// Nanoseconds per lookup of a present key, one after another.
fn hit(index: &Index) -> f64 {
    let start = Instant::now();
    let mut chain = 0u64;
    for number in 0..HITS {
        // Each key depends on the answer before, so the processor cannot overlap lookups.
        let key = (hash_of(u64::from(number) ^ 7 << 33).0 ^ chain) % u64::from(index.len());
        let found = index.candidates(hash_of(key)).next();
        chain = u64::from(found.map_or(1 << 20, |pointer| pointer.0));
    }
    black_box(chain);
    nanos_each(start.elapsed(), HITS)
}

/// Nanoseconds per lookup of a present key in turns of sixteen, warmed together.
fn hit_warmed(index: &Index) -> f64 {
    const TURN: u32 = 16;
    let (start, mut found) = (Instant::now(), 0);
    for turn in 0..HITS / TURN {
        let key = |at: u32| hash_of(hash_of(u64::from(turn * TURN + at) ^ 7 << 33).0 % u64::from(index.len()));
        let hashes: [KeyHash; TURN as usize] = std::array::from_fn(|at| key(at as u32));
        index.warm(&hashes);
        found += hashes.iter().filter(|&&hash| index.candidates(hash).next().is_some()).count();
    }
    assert_eq!(found, HITS as usize, "a key of the index has no candidate");
    nanos_each(start.elapsed(), HITS)
}

fn measure(keys_max: u32, page_entries: u32) {
    println!("pages of {page_entries} entries on average, entries_min = 2^20");
    println!("     keys  B/key  by VmRSS  by VmHWM  false/miss  insert ns  slowest 64 us  hit ns  warmed  miss ns");
    let before = status_bytes("VmRSS");
    let mut index = Index::new(IndexOptions { page_entries, ..IndexOptions::default() });
    let (mut bytes_worst, mut false_worst, mut keys) = (0f64, 0f64, 1e6);
    loop {
        let at = (keys as u32).min(keys_max);
        let (insert_ns, slowest_us) = grow(&mut index, at);
        let bytes = index.resident_bytes() as f64 / f64::from(at);
        let resident = (status_bytes("VmRSS") - before) as f64 / f64::from(at);
        let peak = (status_bytes("VmHWM") - before) as f64 / f64::from(at);
        let (false_rate, miss_ns) = miss(&index);
        let (hit_ns, warmed_ns) = (hit(&index), hit_warmed(&index));
        println!(
            "{at:>9}  {bytes:.3}  {resident:>8.3}  {peak:>8.3}  {false_rate:.6}  {insert_ns:>11.0}  {slowest_us:>13.0}  \
             {hit_ns:>6.0}  {warmed_ns:>6.0}  {miss_ns:>7.0}"
        );
        (bytes_worst, false_worst) = (bytes_worst.max(bytes), false_worst.max(false_rate));
        if at == keys_max {
            break;
        }
        keys *= 1.06;
    }
    println!("worst: {bytes_worst:.3} B/key (bound 7.0), {false_worst:.6} false candidates per miss (bound 0.003)");
}

/// The paper's table: six-byte buckets, eight probes, a miss ends at the first empty bucket.
fn fixed_table() {
    const BUCKETS: usize = 1 << 22;
    const PROBES: u64 = 8;
    let probe = |hash: u64, turn: u64| (hash >> 15).wrapping_mul(2 * turn + 1) as usize % BUCKETS;
    let (mut table, mut keys, mut refused) = (vec![0u16; BUCKETS], 0u64, 0u64);
    println!("\nfixed table of six-byte buckets, 8 probes (the paper's)");
    println!("  load  B/key  false/miss  refused inserts");
    for percent in [25usize, 46, 60, 75, 93] {
        while (keys - refused) as usize * 100 < BUCKETS * percent {
            let hash = hash_of(keys).0;
            keys += 1;
            match (0..PROBES).map(|turn| probe(hash, turn)).find(|&bucket| table[bucket] == 0) {
                Some(bucket) => table[bucket] = hash as u16 | 1 << 15,
                None => refused += 1,
            }
        }
        let found: usize = (0..MISSES)
            .map(|number| {
                let hash = absent(number).0;
                let chain = (0..PROBES).map(|turn| table[probe(hash, turn)]).take_while(|&bucket| bucket != 0);
                chain.filter(|&bucket| bucket == hash as u16 | 1 << 15).count()
            })
            .sum();
        let bytes = BUCKETS as f64 * 6.0 / (keys - refused) as f64;
        println!("  {percent:>3}%  {bytes:>5.2}  {:.6}    {refused}", found as f64 / f64::from(MISSES));
    }
}

/// Page sizes of linear hashing, counted without pages: what free lists by size would keep, were slots never moved.
fn free_lists(keys_max: u64, page_entries: u64) {
    let (mut pages, mut level) = (vec![0u16; 1 << 16], 16u32);
    let (mut live, mut peak) = ([0i64; 256], [0i64; 256]);
    let class = |entries: u16| usize::from(entries.div_ceil(2)).min(255);
    let mut random = 1u64 << 50;
    println!("\nsize classes with free lists, slots never moved (6 B entries in steps of two, 4 B handle)");
    println!("     keys  B/key live  B/key kept");
    for keys in 1..=keys_max {
        let backwards = hash_of(keys).0.reverse_bits() as usize;
        let low = backwards & ((1 << level) - 1);
        let page = if low < pages.len() - (1 << level) { backwards & ((1 << (level + 1)) - 1) } else { low };
        live[class(pages[page])] -= 1;
        pages[page] += 1;
        live[class(pages[page])] += 1;
        if keys > pages.len() as u64 * page_entries {
            let page = pages.len() - (1 << level);
            // A binomial half: one random bit per entry.
            let right = (0..pages[page])
                .filter(|_| {
                    random += 1;
                    hash_of(random).0 >> 63 == 1
                })
                .count() as u16;
            live[class(pages[page])] -= 1;
            pages[page] -= right;
            pages.push(right);
            live[class(pages[page])] += 1;
            live[class(right)] += 1;
            level += u32::from(pages.len() == 1 << (level + 1));
        }
        for size in [class(pages[page]), class(pages[page]).saturating_sub(1)] {
            peak[size] = peak[size].max(live[size]);
        }
        if keys.is_multiple_of(keys_max / 8) {
            let bytes = |slots: &[i64]| slots.iter().zip(0..).map(|(&count, class)| count * class * 12).sum::<i64>();
            let table = pages.len() as i64 * 4;
            let per_key = |slots: &[i64]| (bytes(slots) + table) as f64 / keys as f64;
            println!("{keys:>9}  {:>10.3}  {:>10.3}", per_key(&live), per_key(&peak));
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<u32>().ok());
    let keys_max = arguments.next().unwrap_or(50_000_000).max(1_000_000);
    let page_entries = arguments.next().unwrap_or(16);
    measure(keys_max, page_entries);
    fixed_table();
    free_lists(u64::from(keys_max.min(16_000_000)), u64::from(page_entries));
}

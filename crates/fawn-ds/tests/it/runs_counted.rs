//! Sizes and reads of runs, counted: bits per key, reads per hit and miss, fill of pages.
use crate::rng::Rng;
use crate::runs::{Owned, RunHarness, SECRET, options};
use fawn_ds::internals::format::run::Space;
use fawn_ds::internals::sorted::{Run, RunListing, RunLookup, filter};
use fawn_flash::FileId;
use fawn_types::RingKey;

struct Counted {
    keys: f64,
    fence_bits: f64,
    filter_bits: f64,
    fill: f64,
    hit_reads: f64,
    miss_reads: f64,
}

fn count(keys: impl Iterator<Item = String>, record_bytes: usize, filter_bits: u8, test: &str) -> Counted {
    let mut records: Vec<_> =
        keys.map(|key| Owned::put(1, key.clone(), vec![1; record_bytes - 18 - key.len()])).collect();
    let mut harness = RunHarness::new(1);
    let listing = harness.write(options(1, filter_bits), &mut records);
    let (run, file) = harness.open(&listing).unwrap();
    let keys = records.len() as f64;
    let hit_reads = sample_hits(&mut harness, (&run, file), &records, test);
    assert!(hit_reads < 1.02, "{hit_reads} reads per hit");
    let (mut miss_reads, mut misses) = (0, 0.0);
    for (i, record) in records.iter().enumerate().step_by(5) {
        // Under the same tags, and elsewhere.
        let absent = if i % 2 == 0 { [&record.key[..], b"-"].concat() } else { format!("absent{i}").into_bytes() };
        let (found, reads) = harness.get(&run, file, Space::KEYS, &absent);
        assert_eq!(found, None);
        miss_reads += reads;
        misses += 1.0;
    }
    let counted = Counted {
        keys,
        fence_bits: run.fences_bytes() as f64 * 8.0 / keys,
        filter_bits: run.filters_bytes() as f64 * 8.0 / keys,
        fill: keys * record_bytes as f64 / (f64::from(run.footer().pages) * 4096.0),
        hit_reads,
        miss_reads: f64::from(miss_reads) / misses,
    };
    report(test, &counted, &listing);
    counted
}

fn report(test: &str, counted: &Counted, listing: &RunListing) {
    let Counted { keys, fence_bits, filter_bits, fill, hit_reads, miss_reads } = counted;
    println!(
        "{test}: {keys} keys, fences {fence_bits:.2} + filters {filter_bits:.2} bits a key, pages {fill:.3} full, \
         {hit_reads:.4} reads a hit, {miss_reads:.4} reads a miss, file {} B",
        listing.file_bytes
    );
}

/// Reads per hit of every fifth key, by lookups.
fn sample_hits(harness: &mut RunHarness, (run, file): (&Run, FileId), records: &[Owned], test: &str) -> f64 {
    let (mut reads, mut hits) = (0, 0);
    for record in records.iter().step_by(5) {
        let (found, read) = harness.get(run, file, Space::KEYS, &record.key);
        assert_eq!(found.as_ref(), Some(record), "{test}");
        reads += read;
        hits += 1;
    }
    f64::from(reads) / f64::from(hits)
}

const KEYS: usize = 100_000;

#[test]
fn random_keys_cost_five_bits() {
    let counted = count((0..KEYS).map(|i| format!("user:{i:011}")), 290, 4, "256 B values");
    assert!(counted.fence_bits < 0.78, "{} bits of fences", counted.fence_bits);
    assert!(counted.filter_bits < 4.4, "{} bits of filters", counted.filter_bits);
    assert!(counted.fill > 0.98 && counted.hit_reads < 1.01, "{} full, {}", counted.fill, counted.hit_reads);
    assert!(counted.miss_reads < 0.08, "{} reads per miss", counted.miss_reads);
}

#[test]
fn records_of_a_kilobyte_cost_little_more() {
    let counted = count((0..KEYS / 4).map(|i| format!("user:{i:011}")), 1022, 4, "records of 1,022 B");
    assert!(counted.fence_bits < 2.7 && counted.filter_bits < 4.4, "{} {}", counted.fence_bits, counted.filter_bits);
    assert!(counted.fill > 0.99 && counted.miss_reads < 0.08, "{} {}", counted.fill, counted.miss_reads);
}

#[test]
fn keys_under_one_tag_cost_what_others_cost() {
    let one_tag = count((0..KEYS).map(|i| format!("{{tag}}{i:011}")), 290, 8, "one tag");
    assert!(one_tag.fence_bits < 0.83, "{} bits of fences", one_tag.fence_bits);
    assert!(one_tag.hit_reads < 1.01 && one_tag.miss_reads < 0.006, "{} {}", one_tag.hit_reads, one_tag.miss_reads);
    // Beside as many others.
    let half = (0..KEYS).map(|i| if i % 2 == 0 { format!("{{tag}}{i:011}") } else { format!("user:{i:011}") });
    let mixed = count(half, 290, 8, "a tag beside others");
    assert!(mixed.fence_bits < 0.83 && mixed.hit_reads < 1.01, "{} {}", mixed.fence_bits, mixed.hit_reads);
}

/// Containers: each tag has a few pages. A group costs 12 B, its keys one read.
#[test]
fn many_small_tags_cost_one_read() {
    let counted = count((0..KEYS).map(|i| format!("{{tag{}}}{i:07}", i / 30)), 290, 4, "tags of 30 keys");
    assert!(counted.fence_bits < 4.5 && counted.hit_reads < 1.02, "{} {}", counted.fence_bits, counted.hit_reads);
    let counted = count((0..KEYS).map(|i| format!("{{tag{}}}{i:07}", i / 1000)), 290, 4, "tags of 1,000 keys");
    assert!(counted.fence_bits < 0.95 && counted.hit_reads < 1.01, "{} {}", counted.fence_bits, counted.hit_reads);
}

/// A store that hosts small parts of the ring: the fences follow the gaps.
#[test]
fn keys_of_scattered_ranges_cost_one_read() {
    let is_hosted = |key: &String| RingKey::of(&SECRET, key.as_bytes()).highest() % (1 << 27) < 1 << 20;
    let keys = (0..).map(|i: u64| format!("user:{i:011}")).filter(is_hosted).take(KEYS / 10);
    let counted = count(keys, 290, 4, "32 ranges of 1/4096 of the ring each");
    assert!(counted.hit_reads < 1.02 && counted.fence_bits < 1.7, "{} {}", counted.hit_reads, counted.fence_bits);
}

#[test]
fn tiny_runs_are_small() {
    let counted = count((0..10).map(|i| format!("k{i}")), 100, 4, "ten keys");
    assert!((counted.fence_bits + counted.filter_bits) * counted.keys < 8.0 * 1000.0);
}

/// Never a false negative; false positives and size as the arithmetic says; equal keys make equal bytes.
#[test]
fn filters_are_exact_for_their_keys() {
    let mut rng = Rng::new("filters_are_exact_for_their_keys");
    for keys in [0, 1, 2, 100, 127, 128, 129, 1000, 8192, 65_536] {
        let hashes: Vec<_> = (0..keys).map(|_| rng.next()).collect();
        for bits in [1, 4, 8, 16] {
            let built = filter::build(&hashes, bits, 0);
            assert!(hashes.iter().all(|&hash| built.may_contain(hash)), "{keys} keys, {bits} bits");
            let positives = (0..20_000).filter(|_| built.may_contain(rng.next())).count();
            let expected = 20_000.0 / f64::from(1 << bits);
            assert!((positives as f64) < 1.1 * expected + 20.0 || keys == 0, "{positives} of {keys}, {bits}");
            if keys >= 8192 {
                let per_key = built.memory_bytes() as f64 * 8.0 / keys as f64;
                assert!(per_key < 1.09 * f64::from(bits) + 0.1, "{per_key} bits per key of {keys}, {bits}");
            }
            assert_eq!(built, filter::build(&hashes, bits, 0));
        }
    }
}

/// Equal hashes are one key.
#[test]
fn a_filter_takes_equal_hashes() {
    let built = filter::build(&[7; 1000], 8, 0);
    assert!(built.may_contain(7) && built.slots < 4096, "{} slots", built.slots);
    let mut harness = RunHarness::new(1);
    let listing = harness.write(options(1, 4), &mut [Owned::put(1, "key", "value")]);
    let (run, _) = harness.open(&listing).unwrap();
    assert!(matches!(run.lookup(Space::KEYS, RingKey::of(&SECRET, b"key"), b"key"), RunLookup::Read(_)));
}

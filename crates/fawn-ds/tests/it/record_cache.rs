//! Tests of the record cache: against a map, with changing budgets, for the order of eviction, under a scan.
use fawn_ds::internals::RecordCache;
use fawn_types::random::SplitMix64;
use fawn_types::{EntryRef, KeyHash, Version};
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;

#[derive(Clone, PartialEq, Debug)]
struct CacheModelEntry {
    value: Vec<u8>,
    flags: u32,
    expires_at_ms: u64,
    version: u64,
}

impl CacheModelEntry {
    fn random(rng: &mut SplitMix64, version: u64) -> Self {
        let len = if rng.chance(1, 8) { rng.below(1300) } else { rng.below(300) };
        Self {
            value: (0..len).map(|at| (at * 7 + version) as u8).collect(),
            flags: if rng.chance(1, 4) { rng.next() as u32 } else { 0 },
            expires_at_ms: if rng.chance(1, 4) { rng.next() } else { 0 },
            version,
        }
    }

    fn as_ref(&self) -> EntryRef<'_> {
        let Self { value, flags, expires_at_ms, version } = self;
        let version = Version::from_u64(*version);
        EntryRef { value, flags: *flags, expires_at_ms: *expires_at_ms, version }
    }
}

/// A key and its hash. Some keys share a hash, and all share parts of it.
fn key(number: u64) -> (KeyHash, Vec<u8>) {
    let length = (number % 40) as usize;
    let bytes = [&number.to_be_bytes()[..], &vec![number as u8; length]].concat();
    (KeyHash(SplitMix64::mix(number / 2 * 2 + u64::from(number % 32 != 1)) & 0xFC03_0FFF_FFFF_FFFF), bytes)
}

fn numbered(number: u64) -> (KeyHash, [u8; 8]) {
    (KeyHash(SplitMix64::mix(number)), number.to_be_bytes())
}

fn offer(cache: &mut RecordCache, number: u64, len: usize) {
    let (hash, key) = numbered(number);
    let value = vec![number as u8; len];
    let entry = EntryRef { value: &value, flags: 0, expires_at_ms: 0, version: Version::from_u64(number + 1) };
    cache.offer(0, hash, &key, entry);
}

fn get(cache: &mut RecordCache, number: u64) -> bool {
    let (hash, key) = numbered(number);
    cache.get(0, hash, &key).is_some()
}

fn has(cache: &RecordCache, number: u64) -> bool {
    cache.has(0, numbered(number).0)
}

/// The cached entry of a key is always the committed one, however records are replaced, removed and evicted, ranges are
/// cleared and the budget changes.
#[test]
fn never_shows_what_a_map_would_not() {
    for seed in 0..8 {
        let mut rng = SplitMix64::new(seed);
        let mut cache = RecordCache::new(MIB);
        let mut committed: BTreeMap<(usize, Vec<u8>), CacheModelEntry> = BTreeMap::new();
        let keys = if seed % 2 == 0 { 500 } else { 4000 };
        for step in 1..=60_000_u64 {
            let (range, (hash, key)) = (rng.below(2) as usize, key(rng.below(keys)));
            let place = (range, key.clone());
            match rng.below(10_000) {
                0..6000 => {
                    let expected = committed.get(&place).map(CacheModelEntry::as_ref);
                    let found = cache.get(range, hash, &key);
                    assert!(found.is_none() || found == expected, "seed {seed} step {step}: {found:?} {expected:?}");
                    if found.is_none()
                        && let Some(entry) = expected
                    {
                        cache.offer(range, hash, &key, entry);
                    }
                }
                6000..9000 => {
                    let entry = CacheModelEntry::random(&mut rng, step);
                    cache.replace(range, hash, &key, entry.as_ref());
                    committed.insert(place, entry);
                }
                9000..9970 => {
                    cache.remove(range, hash);
                    committed.remove(&place);
                }
                9970..9975 => {
                    cache.clear_range(range);
                    committed.retain(|(of, _), _| *of != range);
                }
                _ => {
                    let budget = rng.below(2 * MIB as u64) as usize;
                    cache.set_budget_bytes(budget);
                    assert!(
                        cache.resident_bytes() <= budget.max(8192),
                        "seed {seed} step {step}: {cache:?} in {budget}"
                    );
                }
            }
        }
        assert!(cache.stats().hits > 300 && cache.stats().evictions > 500, "seed {seed}: {cache:?}");
    }
}

/// Behind the first 64 MiB the slabs' memory grows by whole regions of 2 MiB.
#[test]
fn memory_of_a_large_cache_stays_within_the_budget() {
    for budget in (0..8).map(|quarter| 70 * MIB + quarter * MIB / 4) {
        let mut cache = RecordCache::new(budget);
        for number in 0..80_000 {
            offer(&mut cache, number, 1000);
            assert!(cache.resident_bytes() <= budget, "record {number}, {budget} B: {cache:?}");
        }
        assert!(cache.stats().evictions > 1000, "{budget} B: {cache:?}");
    }
}

/// All memory is counted and stays within the budget, whatever the lengths of records; most of it holds records.
#[test]
fn memory_stays_within_the_budget() {
    for (len, share_min) in [(8, 22), (64, 55), (256, 80), (1000, 85)] {
        let mut cache = RecordCache::new(4 * MIB);
        for number in 0..400_000 / (len as u64 / 16 + 1) {
            offer(&mut cache, number, len);
            assert!(cache.resident_bytes() <= 4 * MIB, "{len} B: {cache:?}");
        }
        assert!(cache.stats().evictions > 1000, "{len} B: {cache:?}");
        cache.set_budget_bytes(4 * MIB);
        for number in 400_000..800_000 / (len as u64 / 16 + 1) + 400_000 {
            offer(&mut cache, number, len);
        }
        let share = cache.records() * (len + 8) * 100 / (4 * MIB);
        assert!(share >= share_min, "{len} B: {share} % of the budget are keys and values: {cache:?}");
        cache.set_budget_bytes(MIB);
        assert!(cache.resident_bytes() <= MIB && cache.records() > 0, "{len} B: {cache:?}");
        cache.set_budget_bytes(0);
        assert!(cache.resident_bytes() <= 8192 && cache.is_empty() && !cache.is_on(), "{len} B: {cache:?}");
    }
}

#[test]
fn long_records_are_not_taken() {
    let mut cache = RecordCache::new(4 * MIB);
    offer(&mut cache, 1, 1024);
    offer(&mut cache, 2, 1200);
    assert!(has(&cache, 1) && !has(&cache, 2));
}

/// Records that are not used leave in the order in which they came; a used one moves to the main queue; one that returns
/// soon stays.
#[test]
fn unused_records_leave_first_and_in_order() {
    let mut cache = RecordCache::new(MIB);
    offer(&mut cache, 0, 256);
    let mut next = 1;
    while cache.stats().evictions == 0 {
        offer(&mut cache, next, 256);
        assert!(get(&mut cache, 0));
        next += 1;
    }
    for _ in 0..20 {
        offer(&mut cache, next, 256);
        next += 1;
        let held: Vec<_> = (1..next).filter(|&number| has(&cache, number)).collect();
        let first = held[0];
        assert!(first > 1, "the oldest unused record was evicted");
        // A full bucket of the table takes no record that was read once, so a few are missing between.
        assert!(held.len() as u64 * 100 >= (next - first) * 90, "{} of {}", held.len(), next - first);
    }
    assert!(has(&cache, 0), "a used record stays");
    let first = (1..next).find(|&number| has(&cache, number)).unwrap();
    let returned = (1..first).rev().find(|&number| !has(&cache, number)).unwrap();
    offer(&mut cache, returned, 256);
    (next..next + 5000).for_each(|number| offer(&mut cache, number, 256));
    assert!(has(&cache, returned), "record {returned} had returned soon after its eviction: {cache:?}");
    assert!(!has(&cache, next), "others did not: {cache:?}");
}

#[test]
fn a_scan_evicts_no_used_record() {
    let mut cache = RecordCache::new(MIB);
    for _ in 0..4 {
        (0..500).for_each(|number| {
            if !get(&mut cache, number) {
                offer(&mut cache, number, 256);
            }
        });
    }
    (10_000..60_000).for_each(|number| offer(&mut cache, number, 256));
    let kept = (0..500).filter(|&number| has(&cache, number)).count();
    assert!(kept >= 480, "{kept} of 500 used records are left");
}

/// One insert examines a bounded number of records, even if all were used.
#[test]
fn an_insert_is_bounded_work_and_progress_is_made() {
    let mut cache = RecordCache::new(4 * MIB);
    let mut number = 0;
    while cache.stats().evictions == 0 {
        offer(&mut cache, number, 64);
        (0..4).for_each(|_| assert!(get(&mut cache, number) || number > 0));
        number += 1;
    }
    let mut refused = 0;
    for new in 1_000_000..1_002_000 {
        offer(&mut cache, new, 64);
        refused += u64::from(!has(&cache, new));
    }
    assert!(refused < 400, "{refused} of 2000 were refused");
    assert!(cache.stats().evictions > 1000, "{cache:?}");
}

/// A budget that is set again and again, with mean lengths about a size at which the ghosts would double, keeps them.
#[test]
fn a_repeated_budget_keeps_the_ghosts() {
    let mut cache = RecordCache::new(MIB);
    cache.set_marginal_bytes(MIB);
    let mut rng = SplitMix64::new(1);
    // Lengths whose mean wanders: 1 MiB then has 4,096 records, sometimes more, sometimes fewer.
    for number in 0..60_000 {
        let long = number / 2000 % 2;
        offer(&mut cache, rng.below(9000), 190 + 40 * long as usize);
        if number % 50 == 0 {
            cache.set_budget_bytes(MIB);
        }
    }
    assert!(cache.stats().marginal_hits > 10_000, "{cache:?}");
}

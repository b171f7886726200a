//! Scans and transfers of ranges whose records are in the log and in runs: they give the content that lookups give.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_tier::{sorted, swept};
use crate::support::{SECRET, small};
use fawn_ds::internals::{Options, Scan, ScanStep, TransferPlace, TransferScan, TransferStep};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyRange, RangeId, RingKey, Version};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: u64 = 700;
/// The second one is narrow.
const RANGES: u32 = 3;

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Some of them under one hash tag.
pub(crate) fn key(number: u64) -> Vec<u8> {
    match number % 7 {
        0 => format!("{{tag}}-{number:04}").into_bytes(),
        _ => format!("key-{number:04}").into_bytes(),
    }
}

fn parts() -> [KeyRange; RANGES as usize] {
    let (low, high) = (ring_at(0x40), ring_at(0x42));
    [
        KeyRange { end: Some(low), ..KeyRange::ALL },
        KeyRange { start: low, end: Some(high) },
        KeyRange { start: high, ..KeyRange::ALL },
    ]
}

pub(crate) fn write(harness: &mut RangeHarness, rng: &mut Rng, number: u64) {
    let len = if rng.below(25) == 0 { 1500 + rng.below(1000) } else { 20 + rng.below(300) };
    let value = (rng.below(6) > 0).then(|| (0..len).map(|at| (at + rng.below(7)) as u8).collect::<Vec<u8>>());
    harness.write(&key(number), value.as_deref());
}

fn harness(seed: u64, options: Options) -> RangeHarness {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let options = Options { number_if_new: seed as u32, ..options };
    let mut harness = RangeHarness::new(disk, options, true);
    (1..).zip(parts()).for_each(|(id, keys)| harness.add(id, keys));
    harness
}

/// A store with most keys in runs, and some in the log.
fn filled(seed: u64, options: Options, rng: &mut Rng) -> RangeHarness {
    let mut harness = harness(seed, options);
    for step in 0..2500 {
        let number = rng.below(KEYS);
        write(&mut harness, rng, number);
        if step % 8 == 0 {
            harness.turn();
        }
    }
    settle(&mut harness);
    assert!(harness.engine.runs() >= 1, "seed {seed}: {:?}", harness.engine);
    harness
}

/// A store with most keys in runs, and one with the same content, nearly all in the log; or all of it.
fn two_stores(seed: u64, rng: &mut Rng) -> [RangeHarness; 2] {
    let first = filled(seed, sorted(Durability::Sync), rng);
    let options = if seed.is_multiple_of(2) {
        Options { sort_bytes: 150 << 10, ..sorted(Durability::Sync) }
    } else {
        small(Durability::Sync)
    };
    let mut second = harness(seed + 100, options);
    let content = first.models.values().flat_map(|model| &model.content);
    content.for_each(|(key, value)| second.write(key, Some(value)));
    settle(&mut second);
    [first, second]
}

/// Lets sorts and merges go on for a while.
pub(crate) fn settle(harness: &mut RangeHarness) {
    harness.settle();
    for _ in 0..40 {
        harness.engine.step(64);
        harness.turn();
    }
    harness.settle();
}

/// Keys that were written during a scan or transfer, and whether they were deleted.
type Touched = BTreeMap<Vec<u8>, bool>;

/// Changes of a store while a scan or transfer waits. They may include a key that is being scanned.
fn disturb(harness: &mut RangeHarness, rng: &mut Rng, touched: &mut Touched) {
    for _ in 0..rng.below(40) {
        let number = rng.below(KEYS);
        write(harness, rng, number);
        let id = harness.range_of(&key(number)).unwrap();
        let is_deleted = !harness.models[&id].content.contains_key(&key(number));
        *touched.entry(key(number)).or_default() |= is_deleted;
    }
    match rng.below(4) {
        0 => settle(harness),
        1 => harness.settle(),
        _ => harness.turn(),
    }
}

/// One step of a scan.
pub(crate) fn scan_step(
    harness: &mut RangeHarness,
    mut scan: Scan,
    mut at_read: impl FnMut(&mut RangeHarness),
) -> Scan {
    while let ScanStep::Read(plan) = harness.engine.scan_step(&mut scan, harness.now.wall).unwrap() {
        at_read(harness);
        harness.engine.read(plan, 0);
        let plan = harness.wait_for_plan();
        harness.engine.absorb_scan(&mut scan, plan).unwrap();
    }
    scan
}

/// A whole scan of a range without a change meanwhile, with each key as often as it was met.
pub(crate) fn scanned(harness: &mut RangeHarness, id: RangeId, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut cursor, mut found) = (0, Vec::new());
    loop {
        let scan = scan_step(harness, Scan::new(id, cursor, count).with_values(4096), |_| {});
        found.extend(scan.items.into_iter().map(|item| (item.key, item.value.unwrap())));
        cursor = scan.cursor;
        if cursor == 0 {
            return found;
        }
    }
}

/// Compares whole scans of all ranges with the models.
pub(crate) fn check_scans(harness: &mut RangeHarness, context: &str) {
    let models: Vec<(RangeId, Content)> =
        harness.models.iter().map(|(&id, model)| (id, model.content.clone())).collect();
    for (id, content) in models {
        let found: Content = scanned(harness, id, 20).into_iter().collect();
        assert!(found == content, "{context}: {id:?} has {} keys, expected {}", found.len(), content.len());
    }
}

#[test]
fn a_scan_of_a_range_gives_what_lookups_give() {
    for seed in 0..6 {
        let rng = &mut Rng::new(seed);
        let mut harness =
            filled(seed, if seed % 2 == 0 { sorted(Durability::Sync) } else { swept(Durability::Sync) }, rng);
        check_scans(&mut harness, "a store at rest");
        harness.reopen(seed, true);
        harness.settle();
        check_scans(&mut harness, "after a crash");
        // Some are about to be sorted.
        for step in 0..300 {
            let number = rng.below(KEYS);
            write(&mut harness, rng, number);
            if step % 8 == 0 {
                harness.turn();
            }
        }
        harness.settle();
        // The two parts, with nothing sorted between them: each key once.
        for id in (1..=RANGES).map(RangeId) {
            let (since, mut found) = (harness.engine.progress(id).committed, Vec::new());
            harness.engine.hold_runs(true);
            for is_in_runs in [false, true] {
                let mut cursor = 0;
                loop {
                    let scan = match is_in_runs {
                        false => Scan::of_log(id, cursor, 10),
                        true => Scan::of_runs(id, cursor, 10, since),
                    };
                    let scan = scan_step(&mut harness, scan, |harness| {
                        harness.engine.step(16);
                        harness.turn();
                    });
                    found.extend(scan.items.into_iter().map(|item| item.key));
                    cursor = scan.cursor;
                    if cursor == 0 {
                        break;
                    }
                }
            }
            harness.engine.hold_runs(false);
            let expected: Vec<Vec<u8>> = harness.models[&id].content.keys().cloned().collect();
            found.sort();
            assert!(found == expected, "seed {seed}, {id:?}: {} keys, expected {}", found.len(), expected.len());
        }
    }
}

/// Every key that is there throughout is met, none that was deleted before, and only values that it has had.
#[test]
fn a_scan_passes_no_key_while_records_are_written_sorted_and_merged() {
    let (mut sorts, mut opened) = (0, 0);
    for seed in 10..30 {
        let rng = &mut Rng::new(seed);
        let mut harness =
            filled(seed, if seed % 2 == 0 { sorted(Durability::Sync) } else { swept(Durability::Sync) }, rng);
        for id in (1..=RANGES).map(RangeId) {
            // Lookups and scans return what is committed.
            harness.settle();
            let before = harness.models[&id].content.clone();
            let listed = harness.engine.stats().runs_listed;
            let (mut touched, mut cursor, mut met) = (Touched::new(), 0, BTreeMap::<Vec<u8>, Vec<u8>>::new());
            let mut gone = before.clone();
            loop {
                let count = 1 + rng.below(30) as usize;
                let scan = Scan::new(id, cursor, count).with_values(4096);
                let scan = scan_step(&mut harness, scan, |harness| {
                    if rng.below(3) == 0 {
                        disturb(harness, rng, &mut touched);
                    }
                });
                met.extend(scan.items.into_iter().map(|item| (item.key, item.value.unwrap())));
                cursor = scan.cursor;
                if cursor == 0 {
                    break;
                }
                if rng.below(20) == 0 {
                    sorts += harness.engine.stats().runs_listed.saturating_sub(listed);
                    harness.settle();
                    harness.reopen(rng.below(1 << 30), true);
                    opened += 1;
                } else {
                    disturb(&mut harness, rng, &mut touched);
                }
            }
            sorts += harness.engine.stats().runs_listed.saturating_sub(listed);
            gone.retain(|key, _| !touched.contains_key(key));
            for (key, value) in &gone {
                let found = met.get(key).map(Vec::len);
                assert!(
                    met.get(key) == Some(value),
                    "seed {seed}, {id:?}: {found:?} bytes of {:?}",
                    String::from_utf8_lossy(key)
                );
            }
            for key in before.keys().filter(|key| touched.get(*key) == Some(&false)) {
                let context = format!("seed {seed}, {id:?}: overwritten {:?}", String::from_utf8_lossy(key));
                assert!(met.contains_key(key), "{context}");
            }
            let strange = met.keys().find(|key| !before.contains_key(*key) && !touched.contains_key(*key));
            assert_eq!(strange, None, "seed {seed}, {id:?}");
        }
    }
    assert!(sorts > 30 && opened > 20, "{sorts} jobs, {opened} openings");
}

/// A member of a chain that takes over has other records in runs: its clients' cursors come from the member before it.
#[test]
fn a_scan_that_continues_at_another_store_passes_no_key() {
    for seed in 30..36 {
        let rng = &mut Rng::new(seed);
        let [mut first, mut second] = two_stores(seed, rng);
        for id in (1..=RANGES).map(RangeId) {
            for (from, to) in [(0, 1), (1, 0)] {
                for switch_after in 1..30 {
                    let (mut stores, mut met, mut cursor, mut steps) =
                        ([&mut first, &mut second], BTreeSet::new(), 0, 0);
                    loop {
                        let store = &mut stores[if steps < switch_after { from } else { to }];
                        let scan = scan_step(store, Scan::new(id, cursor, 10), |_| {});
                        met.extend(scan.items.into_iter().map(|item| item.key));
                        (cursor, steps) = (scan.cursor, steps + 1);
                        if cursor == 0 {
                            break;
                        }
                    }
                    assert_eq!(met.len(), first.models[&id].content.len(), "seed {seed}, {id:?}, {switch_after} steps");
                }
            }
        }
    }
}

/// Two hash tags whose keys are in one cell of the whole ring: their ring keys have the same 27 bits.
fn tags_of_one_cell() -> [String; 2] {
    let mut tags: BTreeMap<u32, String> = BTreeMap::new();
    for number in 0.. {
        let tag = format!("{{tag {number}}}");
        let cell = RingKey::of(&SECRET, tag.as_bytes()).highest() >> 5;
        if let Some(other) = tags.insert(cell, tag.clone()) {
            return [other, tag];
        }
    }
    unreachable!("cells are found before numbers end")
}

/// Keys of one hash tag lie together in runs, however many there are: a step still has a few of them.
#[test]
fn a_step_is_short_although_many_keys_share_a_tag() {
    let options = Options { memory_bytes: 8 << 20, sort_bytes: 200 << 10, ..sorted(Durability::Sync) };
    let mut harness = crate::splits::whole(50, options, true);
    let tags = tags_of_one_cell();
    for number in 0..6_000 {
        harness.write(format!("{}-{number:06}", tags[number % 2]).as_bytes(), Some(&[7; 200]));
        if number % 32 == 0 {
            harness.turn();
        }
    }
    settle(&mut harness);
    let (mut cursor, mut found, mut steps, mut longest) = (0, BTreeSet::new(), 0, 0);
    loop {
        let scan = scan_step(&mut harness, Scan::new(RangeId(1), cursor, 10), |_| {});
        (steps, longest) = (steps + 1, longest.max(scan.items.len()));
        found.extend(scan.items.into_iter().map(|item| item.key));
        cursor = scan.cursor;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found.len(), 6_000);
    assert!(longest < 1_500 && steps > 8 && harness.engine.runs() > 1, "{longest} keys in one of {steps} steps");
}

/// Copies a range as of `base`, from these donors in turns. Returns the newest version met of each key.
fn transferred(
    donors: &mut [&mut RangeHarness],
    (id, base): (RangeId, Version),
    mut next_donor: impl FnMut(usize) -> usize,
    mut at_read: impl FnMut(&mut RangeHarness),
) -> BTreeMap<Vec<u8>, (Version, Vec<u8>)> {
    let (mut found, mut place, mut donor) = (BTreeMap::new(), TransferPlace::START, 0);
    for chunk in 0.. {
        assert!(chunk < 5_000, "the transfer does not end");
        let store = &mut *donors[donor];
        let mut scan = TransferScan::new(id, place, base, 4 << 10);
        let next = loop {
            let step = store.engine.transfer_step(&mut scan, |record| {
                assert!(record.version <= base);
                let newer = (record.version, record.value.to_vec());
                let known = found.entry(record.key.to_vec()).or_insert_with(|| newer.clone());
                *known = newer.max(known.clone());
            });
            match step.unwrap() {
                TransferStep::Chunk { next, .. } => break next,
                TransferStep::Read(plan) => {
                    at_read(store);
                    store.engine.read(plan, 0);
                    let plan = store.wait_for_plan();
                    store.engine.absorb(plan).unwrap();
                }
            }
        };
        let Some(next) = next else { break };
        assert!(next > place, "a transfer moves on: {next:?} after {place:?}");
        place = next;
        donor = next_donor(chunk);
    }
    found
}

#[test]
fn a_transfer_sends_what_lookups_give_while_records_are_written_sorted_and_merged() {
    let mut sorts = 0;
    for seed in 100..130 {
        let rng = &mut Rng::new(seed);
        let mut harness =
            filled(seed, if seed % 2 == 0 { sorted(Durability::Sync) } else { swept(Durability::Sync) }, rng);
        for id in (1..=RANGES).map(RangeId) {
            harness.settle();
            let base = harness.engine.progress(id).committed;
            let before = harness.models[&id].content.clone();
            let (mut touched, listed) = (Touched::new(), harness.engine.stats().runs_listed);
            let found = transferred(
                &mut [&mut harness],
                (id, base),
                |_| 0,
                |harness| {
                    if rng.below(3) == 0 {
                        disturb(harness, rng, &mut touched);
                    }
                },
            );
            sorts += harness.engine.stats().runs_listed - listed;
            for (key, value) in &before {
                let sent = found.get(key).map(|(_, value)| value);
                let is_right = sent == Some(value) || (sent.is_none() && touched.contains_key(key));
                assert!(is_right, "seed {seed}, {id:?}: {:?}", String::from_utf8_lossy(key));
            }
            let strange = found.keys().find(|key| !before.contains_key(*key));
            assert_eq!(strange, None, "seed {seed}, {id:?}: deleted before");
        }
    }
    assert!(sorts > 20, "{sorts} jobs");
}

#[test]
fn a_transfer_that_continues_at_another_store_sends_every_key() {
    for seed in 80..86 {
        let rng = &mut Rng::new(seed);
        let [mut first, mut second] = two_stores(seed, rng);
        for id in (1..=RANGES).map(RangeId) {
            let base = [&first, &second].map(|store| store.engine.progress(id).committed).into_iter().max().unwrap();
            let switches: BTreeSet<usize> = (0..3).map(|_| rng.below(40) as usize).collect();
            let next = |chunk| switches.iter().filter(|&&at| at <= chunk).count() % 2;
            let found = transferred(&mut [&mut first, &mut second], (id, base), next, |_| {});
            let found: Content = found.into_iter().map(|(key, (_, value))| (key, value)).collect();
            assert!(found == first.models[&id].content, "seed {seed}, {id:?}: {} keys sent", found.len());
        }
    }
}

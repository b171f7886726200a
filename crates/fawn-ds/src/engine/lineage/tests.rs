//! Unit tests of lineages: the work of an opening, and that of a poll.
use super::results::newest_of_lines;
use super::*;
use crate::engine::drop_rule::KeepReason;
use crate::format::manifest::ANCESTORS_VISITED;
use crate::format::record::RecordRef;
use crate::options::Options;
use crate::range::Retained;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, HashSecret, Now};

const SECRET: HashSecret = HashSecret(*b"a secret of test");

fn open(disk: &SimDisk) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 1 << 20,
        memory_bytes: 64 << 20,
        durability: Durability::Sync,
        secret: Some(SECRET),
        scrub_period_ms: 0,
        ..Options::default()
    };
    Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap().0
}

/// Logs records of the range: its number stays in lineages as long as their segment.
fn put(engine: &mut Engine<SimDevice>, range: RangeId) {
    let epoch = engine.next_sole_epoch(range).unwrap();
    engine.begin_sole_epoch(range, epoch, None).unwrap();
    for seq in 1..=20_u64 {
        let key = seq.to_be_bytes();
        let record = RecordRef::put(Version::new(epoch, seq).unwrap(), &key, b"value");
        engine.append(range, KeyHash::of(&SECRET, &key), &record).unwrap();
    }
    while !(engine.ranges[engine.range_at(range).unwrap()].pending.is_empty() && engine.overlay.is_empty()) {
        engine.submit(Now::at(1));
        engine.wait(Now::at(1), &mut Vec::new());
        engine.commit(range, engine.progress(range).synced);
    }
}

/// Splits the last part of the ring again and again: each part has all parts before in its lineage. Returns the number of
/// ancestors.
fn split_often(disk: &SimDisk, parts: u8) -> usize {
    let mut engine = open(disk);
    split_parts(&mut engine, parts);
    engine.lineage_len()
}

fn split_parts(engine: &mut Engine<SimDevice>, parts: u8) {
    engine.add_range(RangeId(1), KeyRange::ALL).unwrap();
    for part in 1..=parts {
        let mut boundary = RingKey([0; 20]);
        boundary.0[0] = part;
        let last = RangeId(2 * u32::from(part) - 1);
        put(engine, last);
        engine.split_range(last, boundary, RangeId(last.0 + 1), RangeId(last.0 + 2)).unwrap();
    }
}

/// A store in which nothing of the retired ranges is filed.
fn split_unfiled(parts: u8) -> Engine<SimDevice> {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    engine.cleaner.stop();
    split_parts(&mut engine, parts);
    engine
}

/// Histories of so many records each, by the place of their range. Returns how many of each are kept.
fn kept_of_lines<const N: usize>(lengths: [usize; N], records_max: usize, elders: &[&[usize]]) -> [usize; N] {
    let record = |at: usize, sequence: usize| Retained {
        version: Version::ZERO,
        pointer: Pointer::new(at as u64),
        len_bytes: 0,
        sequence: sequence as u64,
    };
    let history = |(at, &len): (usize, &usize)| (at, (0..len).map(|sequence| record(at, sequence)).collect());
    let histories: Vec<(usize, Vec<Retained>)> = lengths.iter().enumerate().map(history).collect();
    let newest = newest_of_lines(histories.clone(), records_max, |elder, of| elders[of].contains(&elder));
    let kept =
        core::array::from_fn(|at| newest.iter().filter(|record| record.pointer == histories[at].1[0].pointer).count());
    for (at, (len, kept)) in lengths.iter().zip(&kept).enumerate() {
        let is_newest = |record: &Retained| record.sequence >= (len - kept) as u64;
        let mut of_range = newest.iter().filter(|record| record.pointer == histories[at].1[0].pointer);
        assert!(of_range.all(is_newest), "the newest of range {at}");
    }
    kept
}

#[test]
fn each_line_of_ranges_has_an_equal_share_of_the_records_kept_for_retries() {
    // A range that was split and its part.
    assert_eq!(kept_of_lines([700, 500], 682, &[&[], &[0]]), [182, 500]);
    // The parents of a merge.
    assert_eq!(kept_of_lines([50, 900], 600, &[&[], &[]]), [50, 550]);
    assert_eq!(kept_of_lines([800, 900], 600, &[&[], &[]]), [300, 300]);
    // A range and its part, which was merged with another one.
    assert_eq!(kept_of_lines([50, 1, 900], 600, &[&[], &[0], &[]]), [50, 1, 549]);
    // The merged range was split, and its part again.
    let elders: [&[usize]; 4] = [&[], &[], &[0, 1], &[0, 1, 2]];
    assert_eq!(kept_of_lines([50, 900, 10, 20], 600, &elders), [50, 520, 10, 20]);
    assert_eq!(kept_of_lines([50, 900, 10, 700], 600, &elders), [0, 0, 0, 600]);
    // Both parts of a range were merged again.
    assert_eq!(kept_of_lines([900, 300, 200], 600, &[&[], &[0], &[0]]), [100, 300, 200]);
    assert_eq!(kept_of_lines([900, 500, 10], 600, &[&[], &[0], &[0]]), [90, 500, 10]);
}

#[test]
fn an_opening_lists_all_ancestors_a_few_times_however_many_there_are() {
    for parts in [10_u8, 30] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let ancestors = split_often(&disk, parts);
        assert!(ancestors > usize::from(parts).pow(2) / 2, "{ancestors} ancestors");
        ANCESTORS_VISITED.set(0);
        let engine = open(&disk);
        let visited = ANCESTORS_VISITED.get();
        assert_eq!(engine.lineage_len(), ancestors);
        assert!((ancestors..=10 * ancestors).contains(&visited), "{visited} visits of {ancestors} ancestors");
    }
}

#[test]
fn an_opening_compares_each_key_with_few_of_the_ranges_that_took_keys_over() {
    for parts in [10_u8, 30] {
        let disk = SimDisk::new(SimOptions::instant(1));
        split_often(&disk, parts);
        HEIRS_COMPARED.set(0);
        drop(open(&disk));
        let (compared, records) = (HEIRS_COMPARED.get(), 20 * usize::from(parts));
        let most = records * (parts.ilog2() as usize + 2);
        assert!((records..=most).contains(&compared), "{compared} comparisons for {records} records");
    }
}

/// Each poll looks for retired ranges that can go.
#[test]
fn a_poll_visits_each_inherited_place_once() {
    for parts in [10_u8, 30] {
        let mut engine = split_unfiled(parts);
        let inherited: usize = engine.ranges.iter().map(|range| range.inherited.len()).sum();
        PLACES_VISITED.set(0);
        engine.forget_retired();
        let visited = PLACES_VISITED.get();
        assert_eq!(engine.ranges.iter().filter(|range| range.is_retired()).count(), usize::from(parts));
        assert!(visited <= inherited, "{visited} visits of {inherited} inherited places");
    }
}

/// Cleaning asks for each delete of a range whether an inherited one has puts that it hides.
#[test]
fn a_delete_visits_each_inherited_place_of_its_range_once() {
    for parts in [10_u8, 30] {
        let engine = split_unfiled(parts);
        let last = engine.range_at(RangeId(2 * u32::from(parts) + 1)).unwrap();
        PLACES_VISITED.set(0);
        assert!(!engine.hides_elsewhere(last, 0, Version::ZERO));
        let visited = PLACES_VISITED.get();
        assert!(visited <= usize::from(parts), "{visited} visits of {parts} inherited places");
    }
}

/// Each statistics request asks for all segments.
#[test]
fn the_reason_that_keeps_an_open_segment_is_found_without_a_look_at_families() {
    let mut engine = split_unfiled(10);
    let last = RangeId(21);
    let epoch = engine.next_sole_epoch(last).unwrap();
    engine.begin_sole_epoch(last, epoch, None).unwrap();
    let tombstone = RecordRef::bare(RecordKind::Tombstone, Version::new(epoch, 1).unwrap(), b"key");
    engine.append(last, KeyHash::of(&SECRET, b"key"), &tombstone).unwrap();
    PLACES_VISITED.set(0);
    assert_eq!(engine.segments_kept().into_keys().collect::<Vec<_>>(), [KeepReason::Open]);
    assert_eq!(PLACES_VISITED.get(), 0);
}

/// Each search for a victim asks several times for each segment.
#[test]
fn a_segment_without_deletes_has_its_tombstones_counted_without_a_look_at_families() {
    let engine = split_unfiled(10);
    PLACES_VISITED.set(0);
    for segment in engine.segments.iter() {
        assert!(segment.shares.len() >= 10);
        assert_eq!(engine.kept_tombstone_bytes(segment), 0);
    }
    assert_eq!(PLACES_VISITED.get(), 0);
}

#[test]
fn a_family_has_each_range_once() {
    let engine = split_unfiled(3);
    let place = |id: u32| engine.range_at(RangeId(id)).unwrap();
    let retired: Vec<usize> = engine.ranges[place(7)].inherited.to_vec();
    let is_family = |at: usize, others: &[usize]| {
        let (mut family, mut expected) = (engine.family(at).to_vec(), [&[at], others].concat());
        family.sort_unstable();
        expected.sort_unstable();
        family == expected
    };
    assert_eq!(retired.len(), 3);
    assert!(is_family(place(7), &retired));
    assert!(is_family(place(2), &engine.ranges[place(2)].inherited));
    // The first one was taken over by all others.
    let others: Vec<usize> = [2, 4, 6, 7].map(place).into_iter().chain(retired.iter().copied()).collect();
    let first = retired.iter().copied().min_by_key(|&at| engine.ranges[at].number).unwrap();
    let others: Vec<usize> = others.into_iter().filter(|&at| at != first).collect();
    assert!(is_family(first, &others));
}

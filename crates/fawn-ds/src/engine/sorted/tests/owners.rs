//! Unit tests of jobs over records of ranges that were split: the work for each record.
use super::*;
use crate::engine::HEIRS_COMPARED;
use crate::format::RangeNumber;
use crate::format::manifest::ANCESTORS_VISITED;
use crate::sorted::{MergeSource, RunSource};

const RECORDS: u64 = 1_000;

/// Logs records of the range: its number stays in lineages as long as their segment.
fn put(engine: &mut Engine<SimDevice>, range: RangeId) {
    let epoch = engine.next_sole_epoch(range).unwrap();
    engine.begin_sole_epoch(range, epoch, None).unwrap();
    for number in 1..=20 {
        let version = Version::new(epoch, number).unwrap();
        let hash = KeyHash::of(&SECRET, &key(number));
        engine.append(range, hash, &RecordRef::put(version, &key(number), b"value")).unwrap();
    }
    while !(engine.ranges[engine.range_at(range).unwrap()].pending.is_empty() && engine.overlay.is_empty()) {
        engine.submit(Now::at(1));
        engine.wait(Now::at(1), &mut Vec::new());
        engine.commit(range, engine.progress(range).synced);
    }
}

/// Splits the last part of the ring again and again. Returns the numbers that are in lineages.
fn split_often(engine: &mut Engine<SimDevice>, parts: u8) -> Vec<RangeNumber> {
    for part in 1..=parts {
        let mut boundary = RingKey::MIN;
        boundary.0[0] = 4 * part;
        let last = RangeId(2 * u32::from(part) - 1);
        put(engine, last);
        engine.split_range(last, boundary, RangeId(last.0 + 1), RangeId(last.0 + 2)).unwrap();
    }
    let mut numbers: Vec<RangeNumber> = engine.manifest.state().ancestors().map(|ancestor| ancestor.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn poll_often(engine: &mut Engine<SimDevice>) {
    for _ in 0..50 {
        engine.submit(Now::at(1));
        engine.wait(Now::at(1), &mut Vec::new());
    }
}

#[test]
fn a_job_finds_the_owners_of_its_records_without_a_search_of_all_lineages_for_each() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut engine = open(&disk);
    let numbers = split_often(&mut engine, 30);
    assert_eq!(numbers.len(), 30);
    engine.cleaner.stop();
    let id = engine.sorted.next_job();
    engine.sorted.is_active = true;
    let mut job = SortJob::of_segments(id, Vec::new(), 1, SECRET, (1, 1 << 20));
    let mut owned = 0;
    for nth in 1..=RECORDS {
        let (number, key) = (numbers[nth as usize % numbers.len()], key(nth));
        let version = Version::new(Epoch::new(engine.generation()).unwrap(), nth).unwrap();
        let (kind, value) = (RecordKind::Put, &b"value"[..]);
        let record = RunRecord { kind, type_byte: 0, number, version, expires_at_ms: 0, flags: 0, key: &key, value };
        assert!(job.take_record(&record));
        owned += u64::from(engine.owner_of(number, &key).is_some());
    }
    job.end_gathering();
    engine.sorted.job = Some(Box::new(job));
    let ancestors = engine.lineage_len();
    ANCESTORS_VISITED.set(0);
    HEIRS_COMPARED.set(0);
    poll_often(&mut engine);
    let (visited, compared) = (ANCESTORS_VISITED.get(), HEIRS_COMPARED.get());
    let written: u64 = engine.sorted.runs.iter().map(|listed| listed.run.footer().records).sum();
    assert!(!engine.is_sorting() && owned < RECORDS, "{:?}", engine.sorted.job);
    assert_eq!(written, owned, "the others belong to parts of the ring in which no range has had the number");
    assert!(visited <= 100 * ancestors, "{visited} visits of {ancestors} ancestors for {RECORDS} records");
    assert!(compared <= RECORDS as usize * 2 * 7, "{compared} comparisons for {RECORDS} records");
    // A merge of the new run, whose reads hang.
    let merged = vec![engine.sorted.runs[0].id];
    let sources = vec![MergeSource::Run(RunSource::all(&engine.sorted.runs[0].run))];
    let inputs = RunInputs { sources: merged.clone(), replaced: merged, part: None };
    engine.sorted.job = Some(Box::new(SortJob::of_runs(engine.sorted.next_job(), inputs, sources, 2, 4)));
    disk.hang(OpKind::Read);
    ANCESTORS_VISITED.set(0);
    poll_often(&mut engine);
    assert_eq!((disk.hung(), ANCESTORS_VISITED.get()), (1, 0), "no record asks for an owner");
}

#[test]
fn the_owners_of_all_records_are_those_that_a_search_for_one_finds() {
    let mut engine = open(&SimDisk::new(SimOptions::instant(1)));
    let mut numbers = split_often(&mut engine, 5);
    numbers.extend(engine.ranges.iter().map(|range| range.number));
    numbers.push(RangeNumber(u32::MAX));
    let (owners, mut found) = (engine.record_owners(), 0);
    for number in numbers {
        for key in (0..200).map(key) {
            let owner = engine.owner_of(number, &key);
            assert_eq!(owners.of(number, &RingKey::of(&SECRET, &key)), owner, "{number:?}");
            found += u32::from(owner.is_some());
        }
    }
    assert!(found > 1_000, "{found}");
}

//! Unit tests of lineages: the work of an opening.
use super::*;
use crate::format::manifest::ANCESTORS_VISITED;
use crate::format::record::RecordRef;
use crate::options::Options;
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
    engine.add_range(RangeId(1), KeyRange::ALL).unwrap();
    for part in 1..=parts {
        let mut boundary = RingKey([0; 20]);
        boundary.0[0] = part;
        let last = RangeId(2 * u32::from(part) - 1);
        put(&mut engine, last);
        engine.split_range(last, boundary, RangeId(last.0 + 1), RangeId(last.0 + 2)).unwrap();
    }
    engine.lineage_len()
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

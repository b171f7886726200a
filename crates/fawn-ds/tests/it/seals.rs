//! Seals: the manifest lists facts of a complete segment's records, and a scan that finds others refuses the store.
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use fawn_ds::internals::check::{Severity, check};
use fawn_ds::internals::format::RangeNumber;
use fawn_ds::internals::format::manifest::{SegmentSeal, decode_all, encode_snapshot};
use fawn_ds::internals::{OpenError, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};

const EXPIRY_MS: u64 = 1_700_000_000_000;

/// A closed store with sealed segments, tombstones and a key that expires.
fn store() -> SimDisk {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    for i in 0..500_u32 {
        // Every fifth record deletes the key before.
        let (key, value) = if i % 5 == 0 { (i.wrapping_sub(1), None) } else { (i, Some(vec![i as u8; 400])) };
        let expires_at_ms = if i == 7 { EXPIRY_MS } else { 0 };
        node.append(&[TestWrite { key: key.to_be_bytes().to_vec(), value, expires_at_ms }]).unwrap();
        node.settle();
    }
    drop(node.engine.close().unwrap());
    disk
}

fn seals(disk: &SimDisk) -> Vec<(u64, SegmentSeal)> {
    let state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let mut seals: Vec<_> =
        state.segments.into_values().filter_map(|entry| Some((entry.sequence, entry.seal?))).collect();
    seals.sort_by_key(|(sequence, _)| *sequence);
    seals
}

#[test]
fn a_seal_lists_the_facts_of_its_segments_records() {
    let disk = store();
    let seals = seals(&disk);
    let [(_, first), .., (_, last)] = &seals[..] else { panic!("{seals:?}") };
    assert_eq!(first.facts.latest_expiry_ms, EXPIRY_MS);
    assert_eq!(last.facts.latest_expiry_ms, 0);
    let mut next = first.facts.numbers[0].lowest;
    for (sequence, seal) in &seals {
        let [facts] = &seal.facts.numbers[..] else { panic!("{seal:?}") };
        assert_eq!((facts.number, facts.lowest), (RangeNumber(1), next), "segment {sequence}");
        let count = facts.highest.as_u64() - facts.lowest.as_u64() + 1;
        assert_eq!(u64::from(facts.records), count, "segment {sequence}");
        assert!(seal.facts.tombstones.abs_diff(facts.records / 5) <= 1, "segment {sequence}: {seal:?}");
        next = Version::from_u64(facts.highest.as_u64() + 1);
    }
}

#[test]
fn a_seal_that_disagrees_with_its_segment_is_damage() {
    let changes: [fn(&mut SegmentSeal); 5] = [
        |seal| seal.facts.tombstones += 1,
        |seal| seal.facts.latest_expiry_ms += 1,
        |seal| seal.facts.numbers[0].records -= 1,
        |seal| seal.facts.numbers[0].lowest = Version::ZERO,
        |seal| seal.facts.numbers.clear(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let disk = store();
        let decoded = decode_all(&disk.contents("manifest").unwrap()).unwrap();
        let mut state = decoded.state;
        let Some(seal) = state.segments.values_mut().find_map(|entry| entry.seal.as_mut()) else { panic!("no seal") };
        change(seal);
        let manifest = encode_snapshot(&state, decoded.header.rewrite);
        disk.put("manifest", &manifest);
        let error = TestNode::open(&disk, scanned(Durability::Sync), Now::at(2)).err();
        let Some(OpenError::Corrupt { file, .. }) = &error else { panic!("change {at}: {error:?}") };
        let report = check(&mut SimDevice::attach(&disk)).unwrap();
        let found = report.findings.iter().find(|finding| finding.severity == Severity::Damage);
        assert!(found.is_some_and(|found| found.file == *file), "change {at}: {report:?}");
        assert_eq!(disk.contents("manifest").unwrap(), manifest, "a refused opening changes nothing");
        let read_only = Options { read_only: true, ..scanned(Durability::Sync) };
        let node = TestNode::open(&disk, read_only, Now::at(2)).unwrap();
        assert_eq!((node.report.damage.len(), node.engine.len(RANGE)), (1, 301), "change {at}");
    }
}

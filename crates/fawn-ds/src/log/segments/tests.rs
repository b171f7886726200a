//! Unit tests of segments: versions from which tombstones hide dead puts, and rolled-back records.
use super::*;
use crate::format::SegmentUuid;

fn segment() -> Segment {
    let uuid = SegmentUuid([1; 16]);
    Segment::new((3, 7), uuid, StreamKind::Survivors, FileId(1), "segment".to_owned())
}

fn put(version: u64) -> AppendedRecord {
    let version = Version::from_u64(version);
    AppendedRecord { version, len_bytes: 64, kind: RecordKind::Put, is_tombstone: false }
}

fn hidden_from(segment: &Segment) -> u64 {
    segment.share(0).map_or(u64::MAX, |share| share.hidden_from().as_u64())
}

#[test]
fn dead_puts_are_hidden_by_what_is_as_new_as_their_replacement() {
    let mut segment = segment();
    for version in [10, 11, 12] {
        segment.enter_appended(0, &put(version));
    }
    assert_eq!(hidden_from(&segment), u64::MAX, "all are live");
    let death = |version| Death { by: Version::from_u64(version), replaced_from: Version::from_u64(version) };
    assert!(segment.remove_live(0, 64, death(50), LogPosition(1)));
    assert_eq!(hidden_from(&segment), 50);
    assert!(!segment.remove_live(0, 64, death(60), LogPosition(2)), "nothing changed");
    assert!(segment.remove_live(0, 64, Death::UNKNOWN, LogPosition(3)));
    assert_eq!(hidden_from(&segment), 10, "any tombstone since the first put");
}

/// A change that is not reported is never entered among the range's dead puts, and a tombstone goes before its put.
#[test]
fn each_copy_reports_what_may_have_to_be_hidden() {
    let mut segment = segment();
    segment.enter_appended(0, &put(10));
    // As after a split: deaths before are not known, and all puts are live.
    segment.add_share(&RangeShare { has_unknown_deaths: true, ..RangeShare::none(0) });
    segment.share_mut(0).has_unknown_deaths = true;
    let copied = |segment: &mut Segment, version| {
        segment.enter(0, Version::from_u64(version), RecordKind::Put);
        segment.begin_copy(0, Version::from_u64(version + 5))
    };
    assert!(copied(&mut segment, 15));
    assert_eq!(hidden_from(&segment), 10);
    assert!(segment.end_copy(0, Some(64), Version::from_u64(20)));
    assert_eq!(hidden_from(&segment), u64::MAX, "it is live");
    segment.share_mut(0).has_unknown_deaths = false;
    assert!(copied(&mut segment, 30));
    assert_eq!(hidden_from(&segment), 35, "while its entry has not moved");
    assert!(!copied(&mut segment, 40), "the lowest is the same");
    assert!(!segment.end_copy(0, None, Version::from_u64(35)), "it died before");
    assert!(!segment.end_copy(0, Some(64), Version::from_u64(45)));
    assert_eq!(hidden_from(&segment), 35);
}

/// An heir's put replaces a record of a segment that is not filed yet: all of it is counted for the retired range.
#[test]
fn a_replaced_record_may_be_counted_for_another_range() {
    let mut segment = segment();
    segment.enter_appended(0, &put(10));
    segment.note_replaced(1, Version::from_u64(20), LogPosition(5));
    assert_eq!(segment.share(1).map(|share| share.died_by.as_u64()), Some(20));
    assert_eq!(segment.died_at[StreamKind::Foreground], LogPosition(5));
}

const SEGMENT_BYTES: u32 = 1 << 20;

/// Invalidates the records above each version that lie before the position, in offsets from the segment's start.
fn rolled_back(rollbacks: &[(u64, u64)]) -> Segment {
    let mut segment = segment();
    let start = segment.sequence * u64::from(SEGMENT_BYTES);
    for &(before, above) in rollbacks {
        let before = LogPosition(start + before);
        segment.invalidate(RangeNumber(1), Version::from_u64(above), before, SEGMENT_BYTES);
    }
    segment
}

fn is_invalidated_by(rollbacks: &[(u64, u64)], (offset, version): (u64, u64)) -> bool {
    rollbacks.iter().any(|&(before, above)| offset < before && version > above)
}

#[test]
fn rollbacks_that_invalidate_nothing_more_of_a_segment_take_no_memory() {
    let later = u64::from(SEGMENT_BYTES) + 100;
    let next = 2 * u64::from(SEGMENT_BYTES) + 100;
    for (rollbacks, expected) in [
        // Nothing is committed between them.
        (&[(200, 5), (300, 5), (400, 4)][..], 1),
        (&[(200, 5), (300, 7), (400, 6)], 2),
        // Of a retired range, which has no records behind the segment.
        (&[(later, 5), (later + 100, 6), (next, 7)], 1),
        // The first one may be dropped before the sync of the second.
        (&[(later, 5), (next, 5)], 1),
        (&[(later, 5), (next, 4)], 2),
        (&[(200, 5), (later, 5)], 2),
    ] {
        let segment = rolled_back(rollbacks);
        assert_eq!(segment.invalidated().iter().count(), expected, "{rollbacks:?}");
        let start = segment.sequence * u64::from(SEGMENT_BYTES);
        for (offset, version) in [100, 250, 350, 500].into_iter().flat_map(|offset| (1..10).map(move |v| (offset, v))) {
            let place = (LogPosition(start + offset), Version::from_u64(version));
            let found = segment.invalidated().contains(RangeNumber(1), place.0, place.1);
            assert_eq!(found, is_invalidated_by(rollbacks, (offset, version)), "{rollbacks:?}: {version} at {offset}");
        }
        assert!(
            !segment.invalidated().contains(RangeNumber(2), LogPosition(start), Version::from_u64(9)),
            "another range's"
        );
        assert!(segment.invalidated().are_rolled_back_in(segment.sequence, SEGMENT_BYTES) == (rollbacks[0].0 == 200));
    }
}

//! Versions from which tombstones hide a segment's dead puts.
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

//! Unit tests of scans: the time for which reads of a place fail before it is lost.
use super::*;
use crate::options::Options;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{HashSecret, Now};

/// Pages of runs that cannot be read stay: a merge that would replace the run cannot read them either.
#[test]
fn no_place_is_lost_at_once_because_many_others_have_been_for_long() {
    const REMEMBERED: u32 = FAILED_READS_MAX as u32;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { secret: Some(HashSecret(*b"a secret of test")), ..Options::default() };
    let (mut engine, _) = Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap();
    // Pages that are lost after so much time.
    let mut lost = |after_ms: u64, pages: core::ops::Range<u32>| {
        engine.now = engine.now.plus_ms(after_ms);
        pages.filter(|&page| engine.note_failed_read(ScanPlace::Run { id: 1, page })).count()
    };
    assert_eq!(lost(0, 0..REMEMBERED), 0);
    assert_eq!(lost(LOST_AFTER_MS, 0..REMEMBERED), REMEMBERED as usize);
    let pages = 2_000..3_000;
    assert_eq!(lost(1_000_000, pages.clone()), 0, "their reads fail for the first time");
    assert_eq!(lost(LOST_AFTER_MS - 1, pages.clone()), 0);
    assert_eq!(lost(1, pages.clone()), pages.len(), "those of a run, for example");
    assert_eq!(lost(OTHERS_GAP_MS - 1, pages.clone()), pages.len(), "it is read now and then");
    assert_eq!(lost(OTHERS_GAP_MS, 1_500..1_501), 0, "another one, once");
    assert_eq!(lost(3_600_000, 2_000..2_001), 0, "the first one of a scan");
    assert_eq!(lost(3_600_000, pages.clone()), pages.len(), "the same scan an hour later");
    assert_eq!(lost(0, 0..REMEMBERED), REMEMBERED as usize);
}

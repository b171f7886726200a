//! The background scrub of runs.
use crate::range_harness::RangeHarness;
use crate::sorted_files::{put, runs, sort_out, store};
use crate::sorted_invalidated::{each_segment, fill_runs};
use crate::sorted_tier::sorted;
use crate::splits::{keys, whole};
use crate::support::TestNode;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::run::{self, FOOTER_BYTES};
use fawn_ds::internals::{Options, ScrubFinding};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDisk};
use fawn_types::{Durability, Now};

const PERIOD_MS: u64 = 3_600_000;
const FIRST_MS: u64 = 60_000;
const PAGE: u64 = 4096;

/// A reopened store with runs, and their names. Everything is sorted and merged, so that its files stay.
fn scrubbed(seed: u64, scrub_period_ms: u64) -> (SimDisk, TestNode, Vec<String>) {
    let (disk, _) = store(seed);
    let options = Options { scrub_period_ms, ..sorted(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(2_000)).unwrap();
    sort_out(&mut node);
    let names = runs(&disk);
    assert_eq!(names.len(), node.engine.runs());
    (disk, node, names)
}

/// Passes time in steps, with a poll in each.
fn pass_by(node: &mut TestNode, span_ms: u64, step_ms: u64) {
    for _ in 0..span_ms / step_ms {
        node.now = node.now.plus_ms(step_ms);
        node.turn();
    }
}

/// As [`pass_by`], in steps of half a second.
fn pass(node: &mut TestNode, span_ms: u64) {
    pass_by(node, span_ms, 500);
}

/// Files whose bytes do not change any more: runs, and segments that are listed as sealed.
fn complete_files(disk: &SimDisk) -> u64 {
    let state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let sealed = state.segments.values().filter(|entry| entry.seal.is_some()).count();
    (state.runs.len() + sealed) as u64
}

fn findings(node: &TestNode) -> Vec<ScrubFinding> {
    node.engine.scrub_findings().cloned().collect()
}

#[test]
fn a_sound_store_with_runs_is_read_exactly_once_a_period() {
    let (disk, mut node, names) = scrubbed(1, PERIOD_MS);
    let run_bytes: u64 = names.iter().map(|name| disk.contents(name).unwrap().len() as u64).sum();
    pass(&mut node, FIRST_MS - 20_000);
    assert_eq!(node.engine.stats().scrub_bytes, 0, "clients come first after an opening");
    pass(&mut node, PERIOD_MS);
    let first = *node.engine.stats();
    let files = complete_files(&disk);
    assert_eq!(first.scrub_segments, files);
    let log_bytes_max = (files - names.len() as u64) * (64 << 10);
    assert!((run_bytes..=run_bytes + log_bytes_max).contains(&first.scrub_bytes), "{first:?}, {run_bytes}");
    for period in 2..=3 {
        pass(&mut node, PERIOD_MS);
        let stats = *node.engine.stats();
        let expected = (period * first.scrub_segments, period * first.scrub_bytes, 0, 0);
        let found = (stats.scrub_segments, stats.scrub_bytes, stats.scrub_corrupt_records, stats.scrub_reads_failed);
        assert_eq!(found, expected);
    }
    assert_eq!(node.engine.device().stats().of(IoClass::Scrub).read_bytes, 3 * first.scrub_bytes);
}

/// A run takes as much of a period as it is long: even a short period is kept.
#[test]
fn a_period_in_which_a_run_takes_long_is_kept() {
    const SHORT_MS: u64 = 400;
    let (disk, mut node, names) = scrubbed(2, SHORT_MS);
    let longest = names.iter().map(|name| disk.contents(name).unwrap().len()).max().unwrap();
    assert!(longest > 3 * (64 << 10), "a run of {longest} bytes");
    pass_by(&mut node, FIRST_MS + SHORT_MS, 1);
    let files = complete_files(&disk);
    let before = node.engine.stats().scrub_segments;
    pass_by(&mut node, 20 * SHORT_MS, 1);
    let read = node.engine.stats().scrub_segments - before;
    assert!((19 * files..=21 * files).contains(&read), "{read} readings of {files} files in 20 periods");
}

#[test]
fn a_flipped_bit_anywhere_in_a_run_is_found_with_its_place() {
    let (disk, _, names) = scrubbed(3, PERIOD_MS);
    let longest = names.iter().max_by_key(|name| disk.contents(name).unwrap().len()).unwrap();
    let bytes = disk.contents(longest).unwrap();
    let file_bytes = bytes.len() as u64;
    let footer = run::decode_footer(&bytes[bytes.len() - FOOTER_BYTES..]).unwrap();
    let (tail, page) = (footer.tail_offset(), 2 * PAGE..3 * PAGE);
    assert!(footer.pages > 3 && footer.tail_bytes > 0, "{footer:?}");
    for (offset, place) in [
        (20, 0..file_bytes),
        (2 * PAGE + 70, page.clone()),
        (2 * PAGE + 3, page),
        (tail + 40, tail..file_bytes),
        (file_bytes - FOOTER_BYTES as u64 + 50, 0..file_bytes),
    ] {
        let (disk, mut node, _) = scrubbed(3, PERIOD_MS);
        disk.flip_bits(longest, offset, 4);
        pass(&mut node, PERIOD_MS + FIRST_MS);
        let found = findings(&node);
        let [finding] = &found[..] else { panic!("byte {offset}: {found:?}") };
        assert_eq!((&finding.file, finding.bytes.clone(), finding.records), (longest, place, 1), "byte {offset}");
        assert_eq!(node.engine.stats().scrub_corrupt_records, 1);
        // It stays corrupt, and is not reported again.
        pass(&mut node, 2 * PERIOD_MS);
        assert_eq!((findings(&node).len(), node.engine.stats().scrub_corrupt_records), (1, 1));
        // Another page is.
        disk.flip_bits(longest, 3 * PAGE + 100, 1);
        pass(&mut node, PERIOD_MS + FIRST_MS);
        assert_eq!(node.engine.stats().scrub_corrupt_records, 2);
        assert!(findings(&node).iter().any(|finding| finding.bytes == (3 * PAGE..4 * PAGE)));
    }
}

#[test]
fn an_unreadable_page_of_a_run_is_read_again_and_in_the_end_reported() {
    let (disk, mut node, names) = scrubbed(4, PERIOD_MS);
    disk.make_unreadable(&names[0], 2 * PAGE..3 * PAGE);
    for _ in 0..2 * PERIOD_MS / 1000 {
        if findings(&node).is_empty() {
            pass(&mut node, 1000);
        }
    }
    let found = findings(&node);
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&finding.file, finding.bytes.clone()), (&names[0], 2 * PAGE..3 * PAGE));
    assert!(!finding.detail.contains("checksum"), "the read failed: {finding:?}");
    // One read each of four attempts, of the last pass, and of the page alone.
    assert_eq!(node.engine.stats().scrub_reads_failed, 6);
    disk.heal();
    pass(&mut node, PERIOD_MS);
    assert_eq!(node.engine.stats().scrub_corrupt_records, 1);
    // The run was sound since: later damage is no part of what was reported.
    disk.flip_bits(&names[0], PAGE + 100, 1);
    pass(&mut node, PERIOD_MS);
    assert_eq!(node.engine.stats().scrub_corrupt_records, 2);
    assert_eq!(findings(&node).last().map(|finding| finding.bytes.clone()), Some(PAGE..2 * PAGE));
}

#[test]
fn one_misdirected_read_is_no_damage_to_a_run() {
    let (disk, mut node, _) = scrubbed(7, PERIOD_MS);
    let reads = |node: &TestNode| node.engine.device().stats().of(IoClass::Scrub).reads;
    pass(&mut node, PERIOD_MS + FIRST_MS);
    let before = reads(&node);
    pass(&mut node, PERIOD_MS);
    let in_a_period = reads(&node) - before;
    let mut repeated = 0;
    for nth in 1..=in_a_period {
        let before = reads(&node);
        disk.fail_nth(OpKind::Read, nth, DeviceFault::Misdirect { name: None, offset: 5 * PAGE });
        // The second reading may come in the next period.
        pass(&mut node, 2 * PERIOD_MS);
        assert_eq!((node.engine.stats().scrub_corrupt_records, findings(&node)), (0, Vec::new()), "read {nth}");
        repeated += u64::from(reads(&node) > before + 2 * in_a_period);
    }
    assert_eq!(repeated, in_a_period, "readings that were repeated");
}

#[test]
fn an_error_that_ends_is_no_damage_to_a_run() {
    let (disk, mut node, names) = scrubbed(5, PERIOD_MS);
    names.iter().for_each(|name| disk.make_unreadable(name, 0..PAGE));
    for _ in 0..2 * PERIOD_MS / 1000 {
        if node.engine.stats().scrub_reads_failed == 0 {
            pass(&mut node, 1000);
        }
    }
    disk.heal();
    pass(&mut node, PERIOD_MS);
    let stats = node.engine.stats();
    assert_eq!((stats.scrub_reads_failed, stats.scrub_corrupt_records), (1, 0));
    assert!(stats.scrub_segments >= complete_files(&disk), "{stats:?}");
}

/// Sorts and merges add and drop runs while the scrub goes on. A file that is added waits for at most a period.
#[test]
fn runs_that_are_added_and_dropped_meanwhile_are_no_obstacle() {
    let (disk, _) = store(6);
    let options = Options { scrub_period_ms: PERIOD_MS, ..sorted(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(2_000)).unwrap();
    for round in 0..40u32 {
        for key in 0..300u32 {
            let value = (round ^ key).to_be_bytes().repeat(40);
            put(&mut node, format!("key-{key:05}").as_bytes(), Some(&value));
            node.now = node.now.plus_ms(3_000);
            node.turn();
        }
    }
    sort_out(&mut node);
    let stats = *node.engine.stats();
    assert!(stats.runs_listed > 10, "{stats:?}");
    let (before, files) = (stats.scrub_segments, complete_files(&disk));
    assert!(before > 10, "{stats:?}");
    pass(&mut node, PERIOD_MS + FIRST_MS);
    let stats = *node.engine.stats();
    assert!(stats.scrub_segments - before >= files, "{} of {files} files", stats.scrub_segments - before);
    // A turn takes in what ends next, and nothing else: some reads wait for so many turns of 3 s that they seem to hang.
    assert_eq!((stats.scrub_corrupt_records, findings(&node)), (0, Vec::new()));
}

/// Polls without waiting: a read hangs.
fn poll(harness: &mut RangeHarness, ms: u64) {
    harness.now = harness.now.plus_ms(ms);
    harness.engine.submit(harness.now);
    harness.engine.poll(harness.now, &mut Vec::new());
    harness.commit();
}

/// Polls every millisecond until the condition holds.
fn poll_until(harness: &mut RangeHarness, holds: impl Fn(&RangeHarness) -> bool) {
    for _ in 0..100_000 {
        if holds(harness) {
            return;
        }
        poll(harness, 1);
    }
    panic!("the condition never held: {:?}", harness.engine);
}

/// A run that is dropped while a read of the scrub is in flight keeps its file until that has ended.
#[test]
fn a_dropped_run_is_unlinked_after_the_read_that_hangs() {
    let mut kept = 0;
    for reads_before in 0..12 {
        let options = Options { scrub_period_ms: 1000, ..each_segment(Durability::Sync) };
        let mut harness = whole(1, options, true);
        fill_runs(&mut harness, &keys(400));
        // Until nothing is left to be merged: a read of a merge would hang.
        (0..2_000).for_each(|_| poll(&mut harness, 1));
        let reads = |harness: &RangeHarness| harness.engine.device().stats().of(IoClass::Scrub).reads;
        let until = reads(&harness) + reads_before;
        poll_until(&mut harness, |harness| reads(harness) >= until);
        harness.disk.hang(OpKind::Read);
        poll_until(&mut harness, |harness| harness.disk.hung() > 0);
        harness.disk.end_faults(OpKind::Read);
        harness.clear(1);
        (0..200).for_each(|_| poll(&mut harness, 10));
        assert_eq!(harness.engine.runs(), 0, "{:?}", harness.engine);
        let files = runs(&harness.disk).len();
        assert!(files <= 1, "{files} files, of which one may be read");
        kept += files;
        harness.disk.release_hung();
        (0..200).for_each(|_| poll(&mut harness, 10));
        assert_eq!(runs(&harness.disk), Vec::<String>::new());
    }
    assert!(kept > 0, "no read of a run hung");
}

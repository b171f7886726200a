//! The background scrub: what it reads in a period, what it finds, and what does not stop it.
use crate::support::{TestNode, TestWrite, frames, small};
use fawn_ds::internals::format::manifest::{decode_all, encode_snapshot};
use fawn_ds::internals::{Options, ScrubFinding, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const PERIOD_MS: u64 = 3_600_000;
const FIRST_MS: u64 = 60_000;

fn options() -> Options {
    Options { scrub_period_ms: PERIOD_MS, ..small(Durability::Sync) }
}

fn put(key: u32) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![key as u8; 900]), expires_at_ms: 0 }
}

fn fill(node: &mut TestNode, keys: core::ops::Range<u32>) {
    for key in keys {
        node.append(&[put(key)]).unwrap();
        node.turn();
    }
    node.settle();
}

/// A reopened store of some segments without a dead record, and the names of the sealed ones in their order.
fn filled(seed: u64, options: Options) -> (SimDisk, TestNode, Vec<String>) {
    let disk = SimDisk::new(SimOptions::instant(seed));
    let mut node = TestNode::open(&disk, Options { scrub_period_ms: 0, ..options.clone() }, Now::at(1)).unwrap();
    fill(&mut node, 0..600);
    drop(node.engine.close().unwrap());
    let node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    let mut names: Vec<_> = disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect();
    names.retain(|name| !frames(&disk.contents(name).unwrap()).is_empty());
    names.sort();
    // The last one is active, those without frames are prepared.
    names.pop();
    assert!(names.len() >= 8, "{names:?}");
    (disk, node, names)
}

/// Passes time in steps, with a poll in each.
fn pass(node: &mut TestNode, span_ms: u64, step_ms: u64) {
    for _ in 0..span_ms / step_ms {
        node.now = node.now.plus_ms(step_ms);
        node.turn();
    }
}

fn scrub_reads(node: &TestNode) -> u64 {
    node.engine.device().stats().of(IoClass::Scrub).reads
}

fn findings(node: &TestNode) -> Vec<ScrubFinding> {
    node.engine.scrub_findings().cloned().collect()
}

#[test]
fn a_sound_store_is_read_exactly_once_a_period() {
    let (_disk, mut node, names) = filled(1, options());
    let sealed = names.len() as u64;
    pass(&mut node, FIRST_MS - 100, 100);
    assert_eq!(scrub_reads(&node), 0, "clients come first after an opening");
    for period in 1..=3 {
        pass(&mut node, PERIOD_MS, 500);
        let stats = *node.engine.stats();
        assert_eq!((stats.scrub_segments, scrub_reads(&node)), (period * sealed, period * sealed), "one read each");
        let device_bytes = node.engine.device().stats().of(IoClass::Scrub).read_bytes;
        assert_eq!(stats.scrub_bytes, device_bytes);
        assert!(device_bytes > period * sealed * (60 << 10), "all of their bytes: {device_bytes}");
        assert_eq!((stats.scrub_corrupt_records, stats.scrub_reads_failed), (0, 0));
    }
}

#[test]
fn nothing_is_read_when_it_is_off_or_the_store_is_read_only() {
    for (scrub_period_ms, read_only) in [(0, false), (PERIOD_MS, true)] {
        let (disk, node, _) = filled(2, options());
        drop(node.engine.close().unwrap());
        let options = Options { scrub_period_ms, read_only, ..options() };
        let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
        pass(&mut node, 2 * PERIOD_MS, 1000);
        assert_eq!((scrub_reads(&node), node.engine.scrub_at()), (0, None));
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_within_a_period_with_its_place() {
    let (_, _, names) = filled(3, options());
    for (at, name) in names.iter().enumerate() {
        let (disk, mut node, _) = filled(3, options());
        // Past the first segments of the round: those before wait for the next round.
        pass(&mut node, PERIOD_MS / 2, 1000);
        let (from, to) = frames(&disk.contents(name).unwrap())[at];
        // Within the value of the frame's record.
        disk.flip_bits(name, from as u64 + 200, 4);
        pass(&mut node, PERIOD_MS, 1000);
        let found = findings(&node);
        let [finding] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!((&finding.file, finding.records), (name, 1), "{finding:?}");
        let record = from as u64 + 64;
        assert_eq!(finding.bytes, record..to as u64, "the record in the frame at {from}");
        assert!(finding.detail.contains(&format!("record at byte {record}")), "{finding:?}");
        assert_eq!(node.engine.stats().scrub_corrupt_records, 1);
        // It stays corrupt, and is not reported again.
        pass(&mut node, 2 * PERIOD_MS, 1000);
        assert_eq!((findings(&node).len(), node.engine.stats().scrub_corrupt_records), (1, 1));
        // Another record of the segment is.
        let other = frames(&disk.contents(name).unwrap())[at + 3].0 as u64;
        disk.flip_bits(name, other + 200, 1);
        pass(&mut node, PERIOD_MS, 1000);
        assert_eq!(node.engine.stats().scrub_corrupt_records, 2);
        assert!(findings(&node).iter().any(|finding| finding.bytes.start == other + 64));
    }
}

#[test]
fn damage_outside_of_records_is_found() {
    let (_, _, names) = filled(4, options());
    for (what, offset) in [("segment header", 20), ("frame header", 4096 + 30)] {
        let (disk, mut node, _) = filled(4, options());
        disk.flip_bits(&names[2], offset, 1);
        pass(&mut node, PERIOD_MS + FIRST_MS, 1000);
        let found = findings(&node);
        assert!(!found.is_empty() && found[0].file == names[2], "{what}: {found:?}");
        assert_eq!(found[0].bytes.start, if offset < 4096 { 0 } else { 4096 }, "{what}");
        assert_eq!(node.engine.stats().scrub_corrupt_records, 1, "{what}");
    }
}

#[test]
fn facts_in_the_manifest_that_differ_from_the_records_are_found() {
    let (disk, mut node, names) = filled(5, options());
    // A whole segment of the same name with fewer records: its last frame is zeros, which only the seal contradicts.
    let bytes = disk.contents(&names[1]).unwrap();
    let (from, to) = *frames(&bytes).last().unwrap();
    (from..to).for_each(|at| disk.flip_bits(&names[1], at as u64, bytes[at]));
    pass(&mut node, PERIOD_MS + FIRST_MS, 1000);
    let found = findings(&node);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].file, found[0].bytes.clone()), (&names[1], from as u64..to as u64));
}

#[test]
fn an_unreadable_page_is_read_again_and_in_the_end_reported_and_the_rest_is_read() {
    let (disk, mut node, names) = filled(6, options());
    let page = 4 * 4096..5 * 4096;
    disk.make_unreadable(&names[3], page.clone());
    let sealed = names.len() as u64;
    pass(&mut node, PERIOD_MS + FIRST_MS, 500);
    let stats = *node.engine.stats();
    assert!(stats.scrub_segments >= sealed, "the others were read: {stats:?}");
    let found = findings(&node);
    let lost = stats.scrub_corrupt_records;
    assert!((1..=6).contains(&lost), "at least one, of those of about 1 KiB in a page: {lost}");
    let (first, last) = (&found[0].bytes, &found[found.len() - 1].bytes);
    assert!(first.start <= page.start && last.end >= page.end, "all of it: {found:?}");
    assert_eq!(found.iter().map(|finding| finding.records).sum::<u64>(), lost);
    for finding in &found {
        assert_eq!(finding.file, names[3]);
        assert!(finding.bytes.start < page.end && finding.bytes.end > page.start, "{finding:?}");
    }
    // One read each of four attempts, of the walk, and of the page alone.
    assert_eq!(stats.scrub_reads_failed, 6);
    disk.heal();
    pass(&mut node, PERIOD_MS, 500);
    assert_eq!(node.engine.stats().scrub_corrupt_records, lost);
    // The segment was sound since: later damage is no part of what was reported.
    let (from, _) = frames(&disk.contents(&names[3]).unwrap())[20];
    disk.flip_bits(&names[3], from as u64 + 200, 1);
    pass(&mut node, PERIOD_MS, 500);
    assert_eq!(node.engine.stats().scrub_corrupt_records, lost + 1);
    assert_eq!(findings(&node).last().map(|finding| finding.bytes.start), Some(from as u64 + 64));
}

/// Part of what was reported can be read again. As much damage elsewhere, later, is new.
#[test]
fn damage_after_a_part_was_healed_is_found() {
    let (disk, mut node, names) = filled(14, options());
    let places: Vec<u64> = frames(&disk.contents(&names[2]).unwrap()).iter().map(|(from, _)| *from as u64).collect();
    let flip = |at: usize| disk.flip_bits(&names[2], places[at] + 200, 1);
    flip(3);
    flip(9);
    pass(&mut node, PERIOD_MS + FIRST_MS, 500);
    assert_eq!(node.engine.stats().scrub_corrupt_records, 2);
    flip(3);
    pass(&mut node, PERIOD_MS, 500);
    assert_eq!(node.engine.stats().scrub_corrupt_records, 2);
    flip(30);
    pass(&mut node, PERIOD_MS, 500);
    assert_eq!(node.engine.stats().scrub_corrupt_records, 3);
    assert!(findings(&node).iter().any(|finding| finding.bytes.start == places[30] + 64));
}

#[test]
fn one_misdirected_read_is_no_damage() {
    let (disk, mut node, names) = filled(15, options());
    let sealed = names.len() as u64;
    for nth in 1..=sealed {
        let before = scrub_reads(&node);
        disk.fail_nth(OpKind::Read, nth, DeviceFault::Misdirect { name: None, offset: 8192 });
        pass(&mut node, PERIOD_MS, 500);
        assert_eq!((node.engine.stats().scrub_corrupt_records, findings(&node)), (0, Vec::new()), "read {nth}");
        assert!(scrub_reads(&node) > before + sealed, "read {nth} was not repeated");
    }
}

#[test]
fn an_error_that_ends_is_no_damage() {
    let (disk, mut node, names) = filled(7, options());
    for name in &names {
        disk.make_unreadable(name, 0..64 << 10);
    }
    pass(&mut node, FIRST_MS + 1000, 500);
    assert_eq!(node.engine.stats().scrub_reads_failed, 1);
    disk.heal();
    pass(&mut node, PERIOD_MS - FIRST_MS - 2000, 500);
    let stats = node.engine.stats();
    assert_eq!((stats.scrub_reads_failed, stats.scrub_corrupt_records), (1, 0));
    assert_eq!(stats.scrub_segments, names.len() as u64);
    // The failed read keeps no segment.
    fill(&mut node, 0..600);
    pass(&mut node, 1_000, 10);
    let left: Vec<_> = names.iter().filter(|name| disk.names().contains(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn segments_that_are_dropped_and_added_meanwhile_are_no_obstacle() {
    let (disk, mut node, _) = filled(8, options());
    let mut round = 0;
    // Overwrites drop every segment several times, some of them while their bytes are being read.
    while node.engine.stats().segments_dropped < 60 {
        round += 1;
        for key in 0..600 {
            node.append(&[put(key)]).unwrap();
            node.now = node.now.plus_ms(5 * 1000);
            node.turn();
        }
        assert!(round < 100, "{:?}", node.engine.stats());
    }
    node.settle();
    let stats = *node.engine.stats();
    assert!(stats.scrub_segments >= 20, "{stats:?}");
    assert_eq!((stats.scrub_corrupt_records, findings(&node)), (0, Vec::new()));
    assert_eq!(node.get(&5_u32.to_be_bytes(), View::Committed).unwrap().unwrap().value.len(), 900);
    drop(node.engine.close().unwrap());
    drop(disk);
}

#[test]
fn segments_sealed_at_once_are_read_within_a_period_of_it() {
    let disk = SimDisk::new(SimOptions::instant(9));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    fill(&mut node, 0..600);
    let sealed = node.engine.log_report().segments - 1;
    pass(&mut node, PERIOD_MS + 1000, 500);
    assert_eq!(node.engine.stats().scrub_segments, sealed);
}

#[test]
fn a_device_that_hangs_and_a_clock_that_leaps_cause_no_burst() {
    let (disk, mut node, names) = filled(10, options());
    disk.hang(OpKind::Read);
    // Without a completion there is nothing to wait for: `turn` would wait for the read.
    let mut events = Vec::new();
    for _ in 0..100 {
        node.now = node.now.plus_ms(PERIOD_MS);
        node.engine.submit(node.now);
        node.engine.poll(node.now, &mut events);
    }
    assert_eq!((scrub_reads(&node), disk.hung()), (3, 3), "two were left in flight, and no more");
    disk.release_hung();
    disk.clear_faults();
    let before = scrub_reads(&node);
    pass(&mut node, 60_000, 10);
    // A minute of lateness is made up for, not a hundred periods.
    // Files whose reads were left are read again besides.
    assert!(scrub_reads(&node) - before <= 3 + 4, "{} reads", scrub_reads(&node) - before);
    pass(&mut node, PERIOD_MS, 1000);
    assert!(node.engine.stats().scrub_segments >= names.len() as u64);
}

/// Passes time in steps, with a poll in each that does not wait for reads that hang.
fn pass_polling(node: &mut TestNode, span_ms: u64, step_ms: u64) {
    for _ in 0..span_ms / step_ms {
        node.now = node.now.plus_ms(step_ms);
        node.engine.submit(node.now);
        node.engine.poll(node.now, &mut Vec::new());
    }
}

/// A part of the device may be tried again for minutes, within the device, while all others can be read.
#[test]
fn a_read_that_hangs_stops_the_scrub_of_its_segment_alone() {
    let (disk, mut node, names) = filled(12, options());
    let sealed = names.len() as u64;
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    pass_polling(&mut node, FIRST_MS, 100);
    assert_eq!((disk.hung(), node.engine.stats().scrub_segments), (1, 0));
    assert!(node.engine.scrub_at().is_some_and(|at| at > node.now.mono), "no completion follows");
    pass_polling(&mut node, 2 * PERIOD_MS, 100);
    let stats = *node.engine.stats();
    assert!(stats.scrub_segments >= 2 * (sealed - 1), "{} of {sealed} segments", stats.scrub_segments);
    assert_eq!((disk.hung(), stats.scrub_reads_failed), (1, 1));
    disk.release_hung();
    pass_polling(&mut node, PERIOD_MS, 100);
    let read = node.engine.stats().scrub_segments - stats.scrub_segments;
    assert!(read >= sealed, "{read} of {sealed} segments, after the hang");
    assert_eq!((node.engine.stats().scrub_reads_failed, findings(&node)), (1, Vec::new()));
}

/// The device tries again for long, and fails in the end.
#[test]
fn a_read_that_fails_after_it_was_left_counts_as_one_of_the_failed_readings() {
    let (disk, mut node, names) = filled(13, options());
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    pass_polling(&mut node, FIRST_MS + 11_000, 100);
    assert_eq!((disk.hung(), node.engine.stats().scrub_reads_failed), (1, 1));
    names.iter().for_each(|name| disk.make_unreadable(name, 0..4096));
    disk.release_hung();
    let others = node.engine.stats().scrub_reads_failed;
    // It is read again after 10 s, and then after a minute, as after the second failure in a row. No other file is due by then.
    pass_polling(&mut node, 40_000, 100);
    assert_eq!(node.engine.stats().scrub_reads_failed - others, 1);
}

#[test]
fn polls_that_are_not_due_visit_no_segment() {
    let (_disk, mut node, _) = filled(11, options());
    pass(&mut node, PERIOD_MS, 1000);
    let (visited, reads) = (node.engine.log_report().segments_visited, scrub_reads(&node));
    // The report walks over them itself.
    let of_report = node.engine.log_report().segments_visited - visited;
    assert!(node.engine.scrub_at().is_some_and(|at| at > node.now.mono));
    for _ in 0..1000 {
        node.turn();
    }
    assert_eq!((node.engine.log_report().segments_visited, scrub_reads(&node)), (visited + 2 * of_report, reads));
}

/// An opening from a checkpoint takes what the manifest says of a sealed segment. The scrub compares it with the records.
#[test]
fn a_segment_with_other_records_than_its_seal_lists_is_found() {
    let (disk, node, _) = filled(5, options());
    drop(node.engine.close().unwrap());
    let decoded = decode_all(&disk.contents("manifest").unwrap()).unwrap();
    let mut state = decoded.state;
    let seal = state.segments.values_mut().find_map(|entry| entry.seal.as_mut()).unwrap();
    seal.facts.tombstones += 1;
    disk.put("manifest", &encode_snapshot(&state, decoded.header.rewrite));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    assert!(node.report.checkpoint_entries.is_some());
    pass(&mut node, 2 * PERIOD_MS, 1000);
    let found = findings(&node);
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert!(finding.detail.contains("other facts of its records"), "{finding:?}");
}

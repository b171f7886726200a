//! Scans of stores with runs: each key once, and its newest record, while others are sorted meanwhile.
use crate::counted::scan_reads;
use crate::sorted_files::{put, runs, sort_out};
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, TestWrite};
use crate::transfer_reads::{transfer, transfer_in_spite_of_errors};
use fawn_ds::internals::format::run;
use fawn_ds::internals::{CorruptRecord, Options, Scan, ScanStep, View};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now, Version};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const KEYS: u64 = 500;

/// Keys and values, in the order of a scan.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// A store of a chain whose keys are all in runs.
fn sorted_store() -> TestNode {
    sorted_store_on(&SimDisk::new(SimOptions::instant(1)))
}

pub(crate) fn sorted_store_on(disk: &SimDisk) -> TestNode {
    let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
    let mut node = TestNode::open_in_chain(disk, options, Now::at(1_000)).unwrap();
    for number in 0..KEYS {
        put(&mut node, &key(number), Some(b"before".repeat(50).as_slice()));
        node.turn();
    }
    // So that the last one of them is in a sealed segment.
    for number in 0..200 {
        put(&mut node, b"another", Some(&[number; 300]));
        node.turn();
    }
    sort_out(&mut node);
    assert!(node.engine.runs() >= 1);
    node
}

/// Overwrites these keys; their records stay in the log.
pub(crate) fn overwrite(node: &mut TestNode, numbers: impl Iterator<Item = u64>) {
    let committed = node.engine.progress(RANGE).committed;
    node.engine.set_retain_floor(RANGE, committed);
    for number in numbers {
        put(node, &key(number), Some(b"after".repeat(60).as_slice()));
        node.turn();
    }
    node.settle();
}

/// Scans the log or the runs to the end, and passes each read to `meanwhile`.
fn scan(node: &mut TestNode, is_in_runs: bool, meanwhile: impl FnMut(&mut TestNode)) -> Pairs {
    let since = node.engine.progress(RANGE).committed;
    let (found, corrupt) = scan_damaged(node, is_in_runs.then_some(since), meanwhile);
    assert_eq!(corrupt, []);
    found
}

/// As [`scan`], of the runs after a scan of the log that met what was written up to `since`, if given. Returns what is corrupt,
/// too.
fn scan_damaged(
    node: &mut TestNode,
    since: Option<Version>,
    mut meanwhile: impl FnMut(&mut TestNode),
) -> (Pairs, Vec<CorruptRecord>) {
    let (mut cursor, mut found, mut corrupt) = (0, Vec::new(), Vec::new());
    loop {
        let scan = match since {
            Some(since) => Scan::of_runs(RANGE, cursor, 40, since),
            None => Scan::of_log(RANGE, cursor, 40),
        };
        let mut scan = scan.with_values(4096);
        while let ScanStep::Read(plan) = node.engine.scan_step(&mut scan, node.now.wall).unwrap() {
            meanwhile(node);
            node.engine.read(plan, 42);
            let plan = node.wait_for_plan();
            node.engine.absorb_scan(&mut scan, plan).unwrap();
        }
        corrupt.append(&mut scan.corrupt);
        found.extend(scan.items.into_iter().map(|item| (item.key, item.value.unwrap())));
        cursor = scan.cursor;
        if cursor == 0 {
            return (found, corrupt);
        }
    }
}

#[test]
fn a_scan_of_the_log_and_of_the_runs_returns_each_key_once() {
    let mut node = sorted_store();
    overwrite(&mut node, (0..KEYS).step_by(7));
    let mut found = scan(&mut node, false, |_| {});
    assert!(found.len() >= KEYS as usize / 7, "{} keys of the log", found.len());
    found.extend(scan(&mut node, true, |_| {}));
    let expected = |number: u64| if number.is_multiple_of(7) { b"after".repeat(60) } else { b"before".repeat(50) };
    let content: BTreeMap<_, _> = (0..KEYS).map(|number| (key(number), expected(number))).collect();
    found.retain(|(key, _)| key != b"another");
    assert_eq!(found.len(), content.len(), "no key twice");
    assert!(found.into_iter().collect::<BTreeMap<_, _>>() == content);
}

#[test]
fn a_scan_step_over_expired_keys_of_runs_is_bounded() {
    let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&SimDisk::new(SimOptions::instant(1)), options, Now::at(1_000)).unwrap();
    for number in 0..4 * KEYS {
        let (value, expires_at_ms) = (Some(vec![1; 300]), if number % 1000 == 0 { 0 } else { 600_000 });
        node.append(&[TestWrite { key: key(number), value, expires_at_ms }]).unwrap();
        node.turn();
    }
    sort_out(&mut node);
    let (reads_before, keys) = scan_reads(&mut node, 10);
    assert!(node.engine.runs() >= 1 && node.now.wall.0 < 600_000);
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>().len() as u64, 4 * KEYS);
    node.now = node.now.plus_ms(600_000);
    node.engine.advance_clock(node.now);
    let (reads, keys) = scan_reads(&mut node, 10);
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>().len(), 2, "the keys that do not expire");
    assert!(reads.len() >= 20 && reads.len() == reads_before.len(), "{reads:?}, before {reads_before:?}");
}

/// A stretch of the runs is in memory while a record of the log is read. If that is sorted meanwhile, the key's record in
/// the stretch is an older one.
#[test]
fn a_scan_of_runs_returns_no_record_that_was_replaced_before_it() {
    for at in (0..60).step_by(3) {
        let mut node = sorted_store();
        overwrite(&mut node, 0..KEYS);
        // No change of the runs but this one.
        let (runs, mut reads) = (node.engine.stats().runs_listed, 0);
        let found = scan(&mut node, true, |node| {
            if reads == at {
                let committed = node.engine.progress(RANGE).committed;
                node.engine.set_retain_floor(RANGE, committed);
                sort_out(node);
            }
            reads += 1;
        });
        assert!(at >= reads || node.engine.stats().runs_listed > runs, "read {at}: nothing was sorted");
        let replaced = found.iter().find(|(_, value)| value.starts_with(b"before"));
        assert!(replaced.is_none(), "read {at} of {reads}: {replaced:?}");
    }
}

/// A stretch begins again when the runs change, and what it has returned before is returned once.
#[test]
fn a_scan_of_runs_that_change_returns_each_key_once() {
    let mut changed = 0;
    for at in 0..40 {
        let mut node = sorted_store();
        overwrite(&mut node, (0..KEYS).step_by(7));
        let (runs, mut reads) = (node.engine.stats().runs_listed, 0);
        let found = scan(&mut node, true, |node| {
            if reads == at {
                let committed = node.engine.progress(RANGE).committed;
                node.engine.set_retain_floor(RANGE, committed);
                sort_out(node);
            }
            reads += 1;
        });
        changed += u64::from(node.engine.stats().runs_listed > runs);
        let mut counts = BTreeMap::<Vec<u8>, u64>::new();
        found.into_iter().for_each(|(key, _)| *counts.entry(key).or_default() += 1);
        for number in (0..KEYS).filter(|number| !number.is_multiple_of(7)) {
            assert_eq!(counts.get(&key(number)), Some(&1), "{number}, read {at} of {reads}");
        }
    }
    assert!(changed > 10, "the runs changed in {changed} scans");
}

/// Merges drop what has expired. A key that was put again in time, behind the scan of the log, was in no run any more when the scan
/// of the runs came to its place.
#[test]
fn a_scan_of_runs_returns_keys_put_again_whose_older_records_have_expired_meanwhile() {
    const HOUR_MS: u64 = 3_600_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(1_000)).unwrap();
    let fill = |node: &mut TestNode| {
        for number in 0..200 {
            put(node, b"another", Some(&[number; 300]));
            node.turn();
        }
        node.settle();
        let committed = node.engine.progress(RANGE).committed;
        node.engine.set_retain_floor(RANGE, committed);
        sort_out(node);
    };
    for number in 0..KEYS {
        // One half of the keys after the other.
        let expires_at_ms = node.now.wall.0 + if number < KEYS / 2 { HOUR_MS } else { 3 * HOUR_MS };
        node.append(&[TestWrite { key: key(number), value: Some(vec![7; 300]), expires_at_ms }]).unwrap();
        node.turn();
    }
    fill(&mut node);
    let (since, put_again) = (node.engine.progress(RANGE).committed, (0..KEYS / 2).step_by(7));
    overwrite(&mut node, put_again.clone());
    // A scan may take longer than several merges.
    for _ in 0..2 {
        let parts = node.engine.stats().sweep_parts;
        node.now = node.now.plus_ms(2 * HOUR_MS);
        sort_out(&mut node);
        assert!(node.engine.stats().sweep_parts > parts, "{:?}", node.engine.stats());
        let (found, _) = scan_damaged(&mut node, Some(since), |_| {});
        let found: BTreeMap<_, _> = found.into_iter().collect();
        let missing: Vec<u64> = put_again.clone().filter(|&number| !found.contains_key(&key(number))).collect();
        assert_eq!(missing, [0; 0]);
    }
    // Nothing is left of them once they are deleted.
    put_again.for_each(|number| put(&mut node, &key(number), None));
    fill(&mut node);
    let has_key = |name: &String| disk.contents(name).unwrap().windows(5).any(|window| window == b"key-0");
    for _ in 0..3 {
        node.now = node.now.plus_ms(2_000);
        sort_out(&mut node);
    }
    assert!(!runs(&disk).iter().any(has_key), "{:?}", node.engine);
}

/// The base of a transfer is the version of the last record that it sends.
#[test]
fn a_transfer_of_runs_sends_the_record_of_its_base() {
    let mut node = sorted_store();
    let committed = node.engine.progress(RANGE).committed;
    let (all, _) = transfer(&mut node, (committed, 4 << 10, 5_000), |_, _| {});
    for number in (0..KEYS).step_by(50) {
        let base = all[&key(number)].version;
        let (sent, _) = transfer(&mut node, (base, 4 << 10, 5_000), |_, _| {});
        assert!(sent.contains_key(&key(number)), "{number}");
        assert!(sent.values().all(|sent| sent.version <= base), "{number}");
    }
}

/// An opening defers the comparison of a long record with an older copy, and then reads that a newer one was sorted. Until
/// that is confirmed the index has the oldest of the three.
#[test]
fn a_scan_finds_keys_whose_sorted_record_is_newer_than_deferred_copies() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options {
        sort_bytes: 1,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..sorted(Durability::Sync)
    };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    let fill = |node: &mut TestNode, name: &str| {
        for number in 0..200 {
            put(node, &[name.as_bytes(), &key(number)].concat(), Some(&[7; 300]));
            node.turn();
        }
        sort_out(node);
    };
    // Longer records than a run may have, among others that keep their segments.
    for round in 0..2u8 {
        for number in 0..60 {
            put(&mut node, &key(number), Some(&[round; 2_000]));
            put(&mut node, &[b"other", &[round][..], &key(number)].concat(), Some(&[9; 2_000]));
        }
        fill(&mut node, "some");
    }
    (0..60).for_each(|number| put(&mut node, &key(number), Some(&[3; 100])));
    fill(&mut node, "last");
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(2_000)).unwrap();
    assert!(node.engine.verifications_deferred() > 20, "{:?}", node.engine.log_report());
    let found: BTreeMap<_, _> = scan(&mut node, true, |_| {}).into_iter().collect();
    (0..60).for_each(|number| assert_eq!(found.get(&key(number)), Some(&vec![3; 100]), "{number}"));
}

/// A stretch of the runs is in memory while a record of the log is read, and all is cleared meanwhile.
#[test]
fn a_scan_of_runs_returns_no_record_that_was_replaced_before_a_clear() {
    for at in (0..60).step_by(3) {
        let mut node = sorted_store();
        overwrite(&mut node, 0..KEYS);
        node.engine.hold_runs(true);
        let mut reads = 0;
        let found = scan(&mut node, true, |node| {
            if reads == at {
                let version = node.next_version();
                node.engine.clear(RANGE, version).unwrap();
                node.settle();
            }
            reads += 1;
        });
        let replaced = found.iter().find(|(_, value)| value.starts_with(b"before"));
        assert!(replaced.is_none(), "read {at} of {reads}: {replaced:?}");
    }
}

/// Keys of the log with pending writes, whose segments are sorted: their index entries go before the overlay forgets them.
#[test]
fn no_key_is_passed_while_the_entries_of_sorted_segments_are_removed() {
    let mut states = 0;
    for steps in 0..6 {
        let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
        let mut node = TestNode::open_in_chain(&SimDisk::new(SimOptions::instant(1)), options, Now::at(1_000)).unwrap();
        node.engine.hold_runs(true);
        for number in 0..KEYS {
            put(&mut node, &key(number), Some(b"before".repeat(50).as_slice()));
            node.turn();
        }
        node.settle();
        let base = node.engine.progress(RANGE).committed;
        (0..KEYS).step_by(3).for_each(|number| put(&mut node, &key(number), Some(b"pending")));
        node.engine.hold_runs(false);
        let next = |node: &mut TestNode| {
            node.engine.submit(node.now);
            node.engine.wait(node.now, &mut Vec::new());
            node.now = node.now.plus_ms(1);
        };
        let mut waited = 0;
        while node.engine.runs() == 0 {
            next(&mut node);
            waited += 1;
            assert!(waited < 10_000, "nothing is sorted: {:?}", node.engine);
        }
        assert_eq!(node.engine.progress(RANGE).committed, base, "the writes are pending");
        (0..steps).for_each(|_| next(&mut node));
        states += u64::from(node.engine.is_sorting());
        node.engine.hold_runs(true);
        let mut found: BTreeMap<_, _> = scan(&mut node, false, |_| {}).into_iter().collect();
        found.extend(scan(&mut node, true, |_| {}));
        let (sent, _) = transfer(&mut node, (base, 4 << 10, 5_000), |_, _| {});
        for number in 0..KEYS {
            let expected = b"before".repeat(50);
            assert_eq!(found.get(&key(number)), Some(&expected), "{steps} steps: {number} is not met");
            let sent = sent.get(&key(number)).map(|sent| &sent.value);
            assert_eq!(sent, Some(&expected), "{steps} steps: {number} is not sent");
        }
    }
    assert!(states > 1, "{states} states between a sort and its end");
}

/// Opens a store of a chain, commits all that it has, and holds its runs.
fn open_held(disk: &SimDisk, options: &Options, now: Now) -> TestNode {
    let mut node = TestNode::open_in_chain(disk, options.clone(), now).unwrap();
    node.engine.hold_runs(true);
    let last = node.engine.progress(RANGE).appended;
    node.engine.commit(RANGE, last);
    node.settle();
    node
}

#[test]
fn a_misdirected_read_of_a_run_fails_no_scan_and_one_step_of_a_transfer() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = sorted_store_on(&disk);
    overwrite(&mut node, (0..KEYS).step_by(7));
    let now = node.now;
    // A page cache that holds everything.
    let options = Options { sort_bytes: 1, memory_bytes: 8 << 20, ..sorted(Durability::Sync) };
    let mut failed_transfers = 0;
    for nth in 1..60 {
        let open = || {
            let image = disk.image(Loss::Process, nth);
            let node = open_held(&image, &options, now);
            let elsewhere = DeviceFault::Misdirect { name: None, offset: 4096 * (1 + nth % 5) };
            image.fail_nth(OpKind::Read, nth, elsewhere);
            node
        };
        // As if all records of the log had been written during the scan.
        let (found, corrupt) = scan_damaged(&mut open(), Some(Version::ZERO), |_| {});
        assert_eq!(corrupt, [], "read {nth}");
        let found: BTreeMap<_, _> = found.into_iter().collect();
        assert!((0..KEYS).all(|number| found.contains_key(&key(number))), "read {nth}");
        let mut node = open();
        let base = node.engine.progress(RANGE).committed;
        let (sent, errors) = transfer_in_spite_of_errors(&mut node, (base, 4 << 10, 5_000), |_, _| {});
        assert!(errors <= 1, "read {nth}: {errors} errors");
        failed_transfers += errors;
        assert!((0..KEYS).all(|number| sent.0.contains_key(&key(number))), "read {nth}");
    }
    assert!(failed_transfers > 10, "{failed_transfers} transfers");
}

/// A store with all keys in runs, and newer records of some in the log, behind which there are others: no window has their segment.
fn overwritten_store_on(disk: &SimDisk) -> TestNode {
    let mut node = sorted_store_on(disk);
    overwrite(&mut node, (0..KEYS).step_by(7));
    for number in 0..250 {
        put(&mut node, b"another", Some(&[number; 600]));
        node.turn();
    }
    node.settle();
    node
}

/// A scan passes a corrupt page of a run, a corrupt record of the log beside a run, and reads that fail, and finds all other keys.
#[test]
fn a_scan_of_runs_passes_what_is_corrupt() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let now = overwritten_store_on(&disk).now;
    let options = Options { sort_bytes: 1, ..sorted(Durability::Sync) };
    let open = |disk: &SimDisk| open_held(disk, &options, now);
    let missing = |found: Pairs| {
        let found: BTreeMap<_, _> = found.into_iter().collect();
        (0..KEYS).filter(|number| !found.contains_key(&key(*number))).collect::<Vec<_>>()
    };
    let files: Vec<_> = disk.names().into_iter().filter(|name| name.starts_with("run-")).collect();
    for (nth, file) in files.iter().enumerate() {
        let image = disk.image(Loss::Process, 1);
        image.flip_bits(file, 4096 + 100, 1);
        let (found, corrupt) = scan_damaged(&mut open(&image), Some(Version::ZERO), |_| {});
        let missing = missing(found);
        assert!(missing.len() < 16, "run {nth}: {missing:?}");
        assert!(!corrupt.is_empty() && corrupt.iter().all(|lost| lost.is_lost), "run {nth}: {corrupt:?}");
        assert!(corrupt.iter().all(|lost| lost.file == *file && lost.offset_bytes == 4096), "run {nth}: {corrupt:?}");
    }
    for nth in 1..40 {
        let image = disk.image(Loss::Process, 1);
        let mut node = open(&image);
        image.fail_nth(OpKind::Read, nth, DeviceFault::Fail);
        let (found, corrupt) = scan_damaged(&mut node, Some(Version::ZERO), |_| {});
        let missing = missing(found);
        assert!(
            missing.len() < 16 && corrupt.len() == 1 && !corrupt[0].is_lost,
            "read {nth}: {missing:?}, {corrupt:?}"
        );
    }
    // The newest record of a key, in the log, after the opening has read it.
    let image = disk.image(Loss::Process, 1);
    let mut node = open(&image);
    for file in image.names().into_iter().filter(|name| name.starts_with("segment-")) {
        let bytes = image.contents(&file).unwrap();
        if let Some(at) = bytes.windows(10).rposition(|window| window == key(14)) {
            image.flip_bits(&file, at as u64 + 60, 1);
        }
    }
    let (found, corrupt) = scan_damaged(&mut node, Some(Version::ZERO), |_| {});
    assert_eq!((missing(found), corrupt.len()), (vec![14], 1), "{corrupt:?}");
    assert!(corrupt[0].is_lost && corrupt[0].file.starts_with("segment-"), "{corrupt:?}");
}

/// Clients repeat a step that fails with its cursor. It would fail for ever if what cannot be read were never lost.
#[test]
fn what_a_scan_of_runs_cannot_read_for_long_is_lost() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let now = overwritten_store_on(&disk).now;
    let options = Options { sort_bytes: 1, memory_bytes: 1 << 20, ..sorted(Durability::Sync) };
    let mut node = open_held(&disk, &options, now);
    let make_unreadable = || {
        disk.make_unreadable(&runs(&disk)[0], 4096..8192);
        for file in disk.names().into_iter().filter(|name| name.starts_with("segment-")) {
            let bytes = disk.contents(&file).unwrap();
            if let Some(at) = bytes.windows(10).rposition(|window| window == key(14)) {
                disk.make_unreadable(&file, at as u64 / 4096 * 4096..at as u64 + 60);
            }
        }
    };
    // Files and whether the part is lost.
    let scan = |node: &mut TestNode, after_ms: u64| {
        node.now = node.now.plus_ms(after_ms);
        node.turn();
        let (_, corrupt) = scan_damaged(node, Some(Version::ZERO), |_| {});
        let of_runs = corrupt.iter().filter(|lost| lost.file.starts_with("run-")).count();
        assert!(corrupt.is_empty() || (of_runs > 0 && of_runs < corrupt.len()), "{corrupt:?}");
        (corrupt.len(), corrupt.iter().filter(|lost| lost.is_lost).count())
    };
    make_unreadable();
    let (all, lost) = scan(&mut node, 0);
    assert_eq!((lost, scan(&mut node, 9_999)), (0, (all, 0)), "the reads have not failed for long");
    assert_eq!(node.engine.stats().corrupt_passed, 0);
    assert_eq!(scan(&mut node, 1), (all, all), "the reads have failed for long");
    assert_eq!(node.engine.stats().corrupt_passed, all as u64);
    disk.heal();
    assert_eq!(scan(&mut node, 0), (0, 0), "all is there again");
    make_unreadable();
    assert_eq!(scan(&mut node, 20_000), (all, 0), "reads have succeeded in between");
}

/// The newest record of a key may be on a lost page, while an older run has its old value, or the value before its delete.
#[test]
fn a_scan_that_passes_a_lost_page_returns_no_older_records_of_its_keys() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = sorted_store_on(&disk);
    let listed = node.engine.stats().runs_listed;
    let mut content: BTreeMap<_, _> = (0..KEYS).map(|number| (key(number), b"before".repeat(50))).collect();
    let (replaced, deleted) = (content.keys().step_by(8).cloned(), content.keys().skip(4).step_by(8).cloned());
    let (replaced, deleted): (BTreeSet<_>, BTreeSet<_>) = (replaced.collect(), deleted.collect());
    for (replaced, deleted) in replaced.iter().zip(&deleted) {
        put(&mut node, replaced, Some(b"after".repeat(60).as_slice()));
        put(&mut node, deleted, None);
        content.insert(replaced.clone(), b"after".repeat(60));
        content.remove(deleted);
    }
    let mut fillers = 0;
    while node.engine.stats().runs_listed == listed {
        put(&mut node, b"another", Some(&[7; 300]));
        node.turn();
        node.now = node.now.plus_ms(1);
        let committed = node.engine.progress(RANGE).committed;
        node.engine.set_retain_floor(RANGE, committed);
        fillers += 1;
        assert!(fillers < 2_000, "nothing is sorted: {:?}", node.engine);
    }
    // The new run and the older ones are not merged.
    node.engine.hold_runs(true);
    let (now, options) = (node.now, Options { sort_bytes: 1, ..sorted(Durability::Sync) });
    let mut hidden = 0;
    for file in runs(&disk) {
        let bytes = disk.contents(&file).unwrap();
        let tail_offset = run::decode_footer(&bytes[bytes.len() - 4096..]).unwrap().tail_offset();
        for offset in (4096..tail_offset).step_by(4096) {
            let image = disk.image(Loss::Process, 1);
            image.flip_bits(&file, offset + 100, 1);
            let mut node = open_held(&image, &options, now);
            let mut found: BTreeMap<_, _> = scan(&mut node, false, |_| {}).into_iter().collect();
            let since = node.engine.progress(RANGE).committed;
            found.extend(scan_damaged(&mut node, Some(since), |_| {}).0);
            found.remove(&b"another"[..]);
            let wrong = found.iter().find(|(key, value)| content.get(*key) != Some(value));
            assert!(wrong.is_none(), "{file} at {offset}: {:?}", String::from_utf8_lossy(wrong.unwrap().0));
            for key in content.keys().filter(|key| !found.contains_key(*key)) {
                assert!(node.get(key, View::Committed).is_err(), "{file} at {offset}: {key:?} is not met");
                hidden += u64::from(replaced.contains(key));
            }
        }
    }
    assert!(hidden > 10, "{hidden} replaced keys are not met");
}

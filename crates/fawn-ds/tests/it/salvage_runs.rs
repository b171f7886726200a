//! Dumps of damaged stores with runs: deletes hold, intact pages are read, and every run that cannot be read is reported as lost.
use crate::salvage::{PlacedRecord, records, records_of, segments};
use crate::sorted_files::{Content, put, runs, store};
use crate::sorted_scans::{KEYS, key, overwrite, sorted_store_on};
use crate::sorted_tier::sorted;
use crate::support::{RANGE, TestNode, manifest_commits};
use fawn_ds::internals::check::{Severity, check};
use fawn_ds::internals::format::manifest::{self, ManifestState, ManifestVerdict, RunEntry};
use fawn_ds::internals::format::run::page::RunPage;
use fawn_ds::internals::format::run::{RunFooter, page_offset};
use fawn_ds::internals::format::{run, segment};
use fawn_ds::internals::{
    DumpError, EngineError, LostPart, OpenError, Options, RecordKind, SalvageReport, open_for_salvage,
};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{Device, DeviceError, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::{BTreeMap, BTreeSet};

/// The keys that a dump visits, and the damage that its opening found.
fn salvaged(disk: &SimDisk) -> (Content, SalvageReport) {
    salvaged_with(disk, || {})
}

/// As [`salvaged`]; `damage` is called between the opening and the dump.
fn salvaged_with(disk: &SimDisk, damage: impl FnOnce()) -> (Content, SalvageReport) {
    let (dumped, found, _) = salvaged_parts(disk, damage);
    (dumped, found)
}

/// As [`salvaged_with`], with the lost parts that the dump met.
fn salvaged_parts(disk: &SimDisk, damage: impl FnOnce()) -> (Content, SalvageReport, Vec<LostPart>) {
    let options = Options { secret: None, ..sorted(Durability::Sync) };
    let (mut engine, found) = open_for_salvage(|| Ok(SimDevice::attach(disk)), &options, Now::at(90_000)).unwrap();
    damage();
    let mut dumped = Content::new();
    let report = engine.dump(|_, record| {
        let before = dumped.insert(record.key.to_vec(), record.value.to_vec());
        assert_eq!(before, None, "each key is visited once");
        Ok::<_, ()>(())
    });
    let report = report.unwrap();
    assert_eq!(report.records, dumped.len() as u64);
    (dumped, found, report.lost)
}

fn unlink(disk: &SimDisk, name: &str) {
    SimDevice::attach(disk).unlink(name).unwrap();
}

/// Adds new keys to a store with runs and deletes keys of the runs, in turn. Returns the deleted keys.
fn delete_sorted(disk: &SimDisk, content: &mut Content) -> BTreeSet<Vec<u8>> {
    // Without a checkpoint behind the new records, each opening reads them.
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..sorted(Durability::Sync) };
    let mut node = TestNode::open(disk, options, Now::at(9_000)).unwrap();
    let deleted: BTreeSet<Vec<u8>> = content.keys().step_by(20).cloned().collect();
    for (i, key) in deleted.iter().enumerate() {
        let (new, value) = (format!("new-{i:04}").into_bytes(), vec![i as u8; 200]);
        put(&mut node, &new, Some(&value[..]));
        put(&mut node, key, None);
        content.insert(new, value);
        content.remove(key);
        node.settle();
    }
    node.engine.close().unwrap();
    deleted
}

#[test]
fn damage_of_one_record_brings_no_deleted_key_back_from_a_run() {
    let (disk, mut content) = store(21);
    let deleted = delete_sorted(&disk, &mut content);
    let placed = records(&disk);
    let deletes = placed.iter().filter(|record| record.value.is_none() && deleted.contains(&record.key)).count();
    assert!(deletes >= 10, "{deletes} of {} deletes are in the log", deleted.len());
    let other_puts = placed.iter().filter(|record| record.value.is_some() && !deleted.contains(&record.key));
    let mut found_damaged = 0;
    for hit in other_puts.step_by(7) {
        let at = hit.bytes.start.midpoint(hit.bytes.end);
        disk.flip_bits(&hit.file, at, 1);
        let (mut dumped, found) = salvaged(&disk);
        disk.flip_bits(&hit.file, at, 1);
        // An opening reads only what the checkpoint does not have; the dump finds the rest.
        found_damaged += u32::from(found.is_damaged());
        let mut expected = content.clone();
        // An older version of the hit key may be left, or nothing.
        dumped.remove(&hit.key);
        expected.remove(&hit.key);
        let back: Vec<_> = dumped.keys().filter(|key| !expected.contains_key(*key)).collect();
        assert!(back.is_empty(), "{} at {at}: {} keys are back, {} deleted", hit.file, back.len(), deleted.len());
        assert!(dumped == expected, "{} at {at}: {} of {} keys", hit.file, dumped.len(), expected.len());
    }
    assert!(found_damaged >= 3, "{found_damaged} openings found the damage");
}

/// A page of the log cannot be read any more once the store is open, so that the index has records which the dump does not meet: it
/// visits the older ones of the same keys.
#[test]
fn a_dump_visits_the_older_records_in_runs_of_keys_whose_newest_ones_become_unreadable() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = sorted_store_on(&disk);
    overwrite(&mut node, (0..KEYS).step_by(7));
    drop(node);
    disk.kill(1);
    let (whole, _) = salvaged(&disk);
    let overwritten = |records: &Content| records.values().filter(|value| value.starts_with(b"after")).count();
    let hit = records(&disk).into_iter().rfind(|record| record.key == key(14)).unwrap();
    let (dumped, found) = salvaged_with(&disk, || disk.make_unreadable(&hit.file, hit.bytes.start..hit.bytes.end));
    assert!(!found.is_damaged(), "the opening reads all");
    assert!(whole[&key(14)].starts_with(b"after") && dumped[&key(14)].starts_with(b"before"));
    assert!((0..KEYS).all(|number| dumped.contains_key(&key(number))), "{} of {} keys", dumped.len(), whole.len());
    assert!(overwritten(&dumped) < overwritten(&whole));
}

/// Records that a killed process has acknowledged may be in the tail file alone, while runs have older versions.
#[test]
fn a_salvage_takes_the_tail_files_records_for_newer_than_those_of_runs() {
    let (disk, mut content) = store(22);
    let placed = records(&disk);
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..sorted(Durability::EverySecond) };
    let mut node = TestNode::open(&disk, options, Now::at(9_000)).unwrap();
    let keys: Vec<Vec<u8>> = content.keys().step_by(20).take(20).cloned().collect();
    for (i, key) in keys.iter().enumerate() {
        let value = i.is_multiple_of(2).then(|| vec![i as u8; 50]);
        put(&mut node, key, value.as_deref());
        node.turn();
        content.remove(key);
        content.extend(value.map(|value| (key.clone(), value)));
    }
    let (progress, stats) = (node.engine.progress(RANGE), *node.engine.stats());
    assert_eq!(progress.committed, progress.appended);
    assert!(stats.tail_frames >= 20, "{stats:?}");
    drop(node);
    disk.kill(1);
    let is_there = |record: &&PlacedRecord| record.value.is_some() && disk.names().contains(&record.file);
    let hit = placed.iter().find(is_there).unwrap();
    disk.flip_bits(&hit.file, hit.bytes.start.midpoint(hit.bytes.end), 1);
    let (mut dumped, _) = salvaged(&disk);
    dumped.remove(&hit.key);
    content.remove(&hit.key);
    assert!(dumped == content, "{} of {} keys", dumped.len(), content.len());
}

#[test]
fn a_run_that_cannot_be_opened_for_lack_of_descriptors_is_not_lost() {
    let (disk, _) = store(22);
    refuse_descriptors(&disk);
    // These are opened again, to read their pages.
    runs(&disk).iter().for_each(|name| disk.flip_bits(name, 20, 1));
    refuse_descriptors(&disk);
}

/// Salvages a store whose runs have all of their records, and refuses each open of a file in turn.
fn refuse_descriptors(disk: &SimDisk) {
    let options = Options { secret: None, ..sorted(Durability::Sync) };
    let mut refused = 0;
    for nth in 1..40 {
        let mut attempts = 0;
        let device = || {
            attempts += 1;
            disk.clear_faults();
            match attempts {
                1 => disk.fail_nth(OpKind::Read, 1, DeviceFault::Fail),
                _ => disk.fail_nth(OpKind::Open, nth, DeviceFault::Exhausted),
            }
            Ok(SimDevice::attach(disk))
        };
        match open_for_salvage(device, &options, Now::at(90_000)) {
            Err(OpenError::Device(error)) if error.is_retryable() => refused += 1,
            opened => assert_eq!(opened.unwrap().1.missing, [], "open {nth}"),
        }
    }
    disk.clear_faults();
    assert!(refused > runs(disk).len(), "{refused}");
}

/// The salvage and the dump of a store with runs, the reads from the `nth` to before the `end`th of both without a descriptor.
fn salvaged_without_descriptors(
    disk: &SimDisk,
    (nth, end): (u64, u64),
) -> Result<(Content, SalvageReport), DeviceError> {
    let mut attempts = 0;
    let device = || {
        attempts += 1;
        match attempts {
            1 => disk.fail_nth(OpKind::Read, 1, DeviceFault::Fail),
            _ => (nth..end).for_each(|nth| disk.fail_nth(OpKind::Read, nth, DeviceFault::Exhausted)),
        }
        Ok(SimDevice::attach(disk))
    };
    let options = Options { secret: None, ..sorted(Durability::Sync) };
    let (mut engine, found) = match open_for_salvage(device, &options, Now::at(90_000)) {
        Err(OpenError::Device(error) | OpenError::Engine(EngineError::Device(error))) => return Err(error),
        opened => opened.unwrap(),
    };
    let mut dumped = Content::new();
    let report = engine.dump(|_, record| {
        dumped.insert(record.key.to_vec(), record.value.to_vec());
        Ok::<_, ()>(())
    });
    match report {
        Err(DumpError::Device(error)) => return Err(error),
        report => assert_eq!(report.unwrap().lost, [], "reads {nth} to {end}"),
    }
    Ok((dumped, found))
}

#[test]
fn runs_that_cannot_be_read_for_lack_of_descriptors_are_not_lost() {
    let (disk, content) = store(22);
    let before = disk.counted(OpKind::Read);
    assert!(salvaged_without_descriptors(&disk, (0, 0)).unwrap().0 == content);
    let (reads, mut refused) = (disk.counted(OpKind::Read) - before, 0);
    for (nth, count) in (1..reads).flat_map(|nth| [(nth, 1), (nth, 2), (nth, 40)]) {
        match salvaged_without_descriptors(&disk, (nth, nth + count)) {
            Err(error) => {
                assert!(error.is_retryable(), "{count} reads from {nth}: {error}");
                refused += 1;
            }
            Ok((dumped, found)) => {
                let context = format!("{count} reads from {nth} of {reads}, {found:?}");
                assert!(dumped == content && !found.is_damaged(), "{context}: {} keys", dumped.len());
            }
        }
        disk.clear_faults();
        (nth..nth + count).for_each(|nth| disk.fail_nth(OpKind::Read, nth, DeviceFault::Exhausted));
        match check(&mut SimDevice::attach(&disk)) {
            Err(error) => assert!(error.is_retryable(), "{count} reads from {nth}: {error}"),
            Ok(report) => assert!(report.is_sound(), "{count} reads from {nth}: {:?}", report.findings),
        }
        disk.clear_faults();
    }
    assert!(refused > runs(&disk).len(), "{refused}");
}

/// The runs in the directory that the manifest does not list, or all if it cannot be read.
fn unlisted_runs(disk: &SimDisk) -> Vec<String> {
    let state = disk.contents("manifest").and_then(|bytes| manifest::decode_all(&bytes).ok());
    let listed = state.map(|decoded| decoded.state.runs).unwrap_or_default();
    let listed: Vec<String> = listed.iter().map(|entry| run::file_name(entry.uuid)).collect();
    runs(disk).into_iter().filter(|name| !listed.contains(name)).collect()
}

/// The check calls each unlisted run damaged, and a salvage reports it as lost. Returns their number.
fn expect_unlisted_runs_lost(disk: &SimDisk, context: &str) -> usize {
    let unlisted = unlisted_runs(disk);
    let report = check(&mut SimDevice::attach(disk)).unwrap();
    let (_, found) = salvaged(disk);
    assert!(!report.is_sound() && found.is_damaged(), "{context}: {report:?}");
    for name in &unlisted {
        let finding = report.findings.iter().find(|finding| finding.file == *name);
        assert!(finding.is_some_and(|finding| finding.severity == Severity::Damage), "{context}, {name}: {report:?}");
        let parts = found.missing.iter().filter(|part| part.file == *name && part.records.is_none()).count();
        assert_eq!(parts, 1, "{context}, {name}: {:?}", found.missing);
    }
    unlisted.len()
}

#[test]
fn runs_of_a_store_without_a_manifest_are_reported_as_lost() {
    let (disk, _) = store(22);
    let all = runs(&disk).len();
    unlink(&disk, "manifest");
    assert_eq!(expect_unlisted_runs_lost(&disk, "no manifest"), all);
    assert!(all >= 1);
}

#[test]
fn runs_that_a_corrupt_manifest_lost_are_reported_as_lost() {
    let (disk, _) = store(23);
    let bytes = disk.contents("manifest").unwrap();
    let mut lost = 0;
    for (at, end) in manifest_commits(&bytes) {
        let at = (at + 32).min(end - 1) as u64;
        disk.flip_bits("manifest", at, 2);
        let decoded = manifest::decode_all(&disk.contents("manifest").unwrap());
        // The last commit may be torn: no later one says that it was synced.
        if decoded.is_err() || decoded.is_ok_and(|found| matches!(found.verdict, ManifestVerdict::CorruptAt { .. })) {
            lost += expect_unlisted_runs_lost(&disk, &format!("manifest flipped at {at}"));
        }
        disk.flip_bits("manifest", at, 2);
    }
    assert!(lost >= 1, "a flip in the first commit loses all of it");
}

#[test]
fn an_unreadable_page_of_the_manifest_loses_no_more_than_a_corrupt_one() {
    let (disk, _) = store(25);
    let manifest_end = || manifest_commits(&disk.contents("manifest").unwrap()).last().unwrap().1;
    for opening in 0.. {
        if manifest_end() > 2 * 4096 {
            break;
        }
        assert!(opening < 400, "the manifest has {} bytes", manifest_end());
        TestNode::open(&disk, sorted(Durability::Sync), Now::at(10_000 + opening)).unwrap().engine.close().unwrap();
    }
    let [corrupt, unreadable] = [0, 1].map(|seed| disk.image(Loss::Process, seed));
    let mut bytes = disk.contents("manifest").unwrap();
    bytes[4096..8192].fill(0);
    corrupt.put("manifest", &bytes);
    unreadable.make_unreadable("manifest", 4096..8192);
    let report = check(&mut SimDevice::attach(&unreadable)).unwrap();
    assert!(!report.is_sound() && report.findings.iter().any(|finding| finding.file == "manifest"), "{report:?}");
    let (expected, lost) = salvaged(&corrupt);
    let (found, salvage) = salvaged(&unreadable);
    assert!(salvage.is_damaged() && !expected.is_empty());
    assert!(found == expected, "{} of {} keys", found.len(), expected.len());
    assert_eq!(salvage.missing, lost.missing);
    assert!(!manifest::decode_all(&bytes).unwrap().state.runs.is_empty());
    // Without its first page nothing is known of the runs.
    unreadable.make_unreadable("manifest", 0..4096);
    let (without, salvage) = salvaged(&unreadable);
    assert_ne!(salvage.missing, lost.missing, "{} of {} keys", without.len(), expected.len());
}

#[test]
fn an_unlisted_run_of_a_store_with_other_damage_is_no_loss() {
    let (disk, mut content) = store(24);
    delete_sorted(&disk, &mut content);
    let orphan = run::file_name(fawn_ds::internals::format::SegmentUuid([9; 16]));
    disk.put(&orphan, &disk.contents(&runs(&disk)[0]).unwrap());
    let placed = records(&disk);
    let hit = placed.iter().find(|record| record.key.starts_with(b"new-")).unwrap();
    disk.flip_bits(&hit.file, hit.bytes.start.midpoint(hit.bytes.end), 1);
    let report = check(&mut SimDevice::attach(&disk)).unwrap();
    let finding = report.findings.iter().find(|finding| finding.file == orphan).unwrap();
    assert!(!report.is_sound() && finding.severity == Severity::Note, "the manifest is whole: {report:?}");
    assert_eq!(salvaged(&disk).1.missing, []);
}

fn sorted_segments(state: &ManifestState) -> Vec<String> {
    let sorted = state.segments.iter().filter(|(_, entry)| entry.is_sorted);
    sorted.map(|(&slot, entry)| segment::file_name(slot, entry.uuid)).collect()
}

/// A store that was killed right after segments were sorted, and before they were dropped; the names of these segments.
fn killed_after_a_sort(seed: u64) -> (SimDisk, Vec<String>) {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(1_000)).unwrap();
    let mut rng = Rng::new(seed);
    for i in 0..8_000u64 {
        let key = format!("key-{:05}", rng.below(1_500)).into_bytes();
        let value = (rng.below(6) > 0).then(|| vec![i as u8; 100 + rng.below(200) as usize]);
        put(&mut node, &key, value.as_deref());
        node.turn();
        if node.engine.runs() == 0 {
            continue;
        }
        let image = disk.image(Loss::Process, i);
        let state = manifest::decode_all(&image.contents("manifest").unwrap()).unwrap().state;
        let sorted = sorted_segments(&state);
        if !sorted.is_empty() && !state.runs.is_empty() {
            return (image, sorted);
        }
    }
    panic!("no manifest lists a sorted segment: {:?}", node.engine);
}

#[test]
fn records_of_sorted_segments_are_dumped_once_all_runs_are_lost() {
    let (disk, sorted) = killed_after_a_sort(25);
    runs(&disk).iter().for_each(|name| unlink(&disk, name));
    let (dumped, found) = salvaged(&disk);
    assert!(found.is_damaged() && !found.missing.is_empty());
    let mut elsewhere = BTreeSet::new();
    let mut newest: BTreeMap<Vec<u8>, PlacedRecord> = BTreeMap::new();
    let intact = |file: &String| segment::decode(&disk.contents(file).unwrap()).is_ok();
    for file in segments(&disk).into_iter().filter(intact) {
        for record in records_of(&disk, &file).0 {
            if !sorted.contains(&file) {
                elsewhere.insert(record.key);
            } else if newest.get(&record.key).is_none_or(|other| record.version > other.version) {
                newest.insert(record.key.clone(), record);
            }
        }
    }
    newest.retain(|key, _| !elsewhere.contains(key));
    assert!(newest.len() > 10, "{} keys are in {sorted:?} alone", newest.len());
    for (key, record) in newest {
        assert!(dumped.get(&key) == record.value.as_ref(), "{key:?} of {}", record.file);
    }
}

/// The oldest run and the newest sorted segments are lost. The runs that are left may have newer records than the sorted segments
/// that are left: these only hide records of the log.
#[test]
fn records_of_sorted_segments_do_not_come_back_while_a_newer_run_is_left() {
    let disk = SimDisk::new(SimOptions::instant(26));
    let mut node = TestNode::open(&disk, sorted(Durability::Sync), Now::at(1_000)).unwrap();
    let (mut rng, mut content, mut images, mut listed) = (Rng::new(26), Content::new(), 0, 0);
    // The dead record of a segment whose others are too long for runs: it keeps every sorted segment.
    put(&mut node, b"dead", Some(&[1; 200]));
    for i in 0..28 {
        let key = format!("long-{i}").into_bytes();
        put(&mut node, &key, Some(&[2; 2_000]));
        content.insert(key, vec![2; 2_000]);
        node.turn();
    }
    put(&mut node, b"dead", None);
    for i in 0..4_000u64 {
        let key = format!("key-{:05}", rng.below(1_500)).into_bytes();
        let value =
            (rng.below(6) > 0).then(|| [&i.to_le_bytes()[..], &vec![7; 100 + rng.below(200) as usize]].concat());
        put(&mut node, &key, value.as_deref());
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
        node.turn();
        if node.engine.stats().runs_listed == listed
            || node.engine.runs() < 2
            || node.engine.progress(RANGE).committed < node.engine.progress(RANGE).appended
        {
            continue;
        }
        let image = disk.image(Loss::Process, i);
        let state = manifest::decode_all(&image.contents("manifest").unwrap()).unwrap().state;
        let oldest = state.runs.iter().map(|entry| entry.age).min().unwrap();
        let (lost, left): (Vec<&RunEntry>, Vec<&RunEntry>) = state.runs.iter().partition(|entry| entry.age == oldest);
        let sorted = state.segments.iter().filter(|(_, entry)| entry.is_sorted);
        let sorted: BTreeMap<_, _> = sorted.map(|(&slot, entry)| (entry.sequence, (slot, entry.uuid))).collect();
        if sorted.len() < 4 || left.is_empty() {
            continue;
        }
        lost.into_iter().for_each(|entry| unlink(&image, &run::file_name(entry.uuid)));
        for &(slot, uuid) in sorted.values().skip(sorted.len() / 2) {
            unlink(&image, &segment::file_name(slot, uuid));
        }
        let (dumped, found) = salvaged(&image);
        assert!(found.is_damaged());
        // A lost segment may have had the newest record of a key that unsorted ones have, too.
        let names = sorted_segments(&state);
        let intact = |file: &String| segment::decode(&image.contents(file).unwrap()).is_ok();
        let unsorted = segments(&image).into_iter().filter(|file| !names.contains(file) && intact(file));
        let elsewhere: BTreeSet<Vec<u8>> =
            unsorted.flat_map(|file| records_of(&image, &file).0).map(|record| record.key).collect();
        let in_runs = dumped.iter().filter(|(key, _)| !elsewhere.contains(*key));
        let back = in_runs.filter(|(key, value)| content.get(*key) != Some(*value)).count();
        assert_eq!(back, 0, "of {} keys after {i} writes", dumped.len());
        (images, listed) = (images + 1, node.engine.stats().runs_listed);
        if images == 8 {
            return;
        }
    }
    panic!("{images} images");
}

/// A run's file.
struct RunFile {
    name: String,
    bytes: Vec<u8>,
    footer: RunFooter,
}

impl RunFile {
    fn of(disk: &SimDisk, name: String) -> Self {
        let bytes = disk.contents(&name).unwrap();
        let footer = run::decode_footer(&bytes[bytes.len() - run::FOOTER_BYTES..]).unwrap();
        Self { name, bytes, footer }
    }

    fn footer_at(&self) -> usize {
        self.bytes.len() - run::FOOTER_BYTES
    }

    fn tail_at(&self) -> usize {
        self.footer.tail_offset() as usize
    }

    /// Keys and values of a page; `None`: a tombstone.
    fn page(&self, page: u32) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let page = RunPage::decode(&self.bytes[page_offset(page) as usize..], self.footer.header.uuid, page).unwrap();
        let value = |record: &run::RunRecord<'_>| (record.kind == RecordKind::Put).then(|| record.value.to_vec());
        page.records().map(|record| (record.key.to_vec(), value(&record))).collect()
    }

    fn records(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        (0..self.footer.pages).flat_map(|page| self.page(page)).collect()
    }

    fn flipped(&self, at: impl IntoIterator<Item = usize>) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        at.into_iter().for_each(|at| bytes[at] ^= 1);
        bytes
    }

    /// The file with damage outside of its pages, in several ways.
    fn damaged_outside_pages(&self) -> Vec<(String, Vec<u8>)> {
        let (tail, footer) = (self.tail_at(), self.footer_at());
        // Behind the content of the piece are zeros that nothing reads.
        let content = u32::from_le_bytes(self.bytes[tail + 8..tail + 12].try_into().unwrap()) as usize;
        let in_tail = [0, 8, 16, 16 + content / 2, 15 + content].map(|at| tail + at);
        let in_footer = [0, 13, 100, 508, 2_000].map(|at| footer + at);
        let flips = [0, 20, 508, 2_000].into_iter().chain(in_tail).chain(in_footer);
        let flipped = flips.map(|at| (format!("flip at {at}"), self.flipped([at])));
        let longer = [1, 70_000].map(|by| (format!("{by} more"), [&self.bytes[..], &vec![7; by]].concat()));
        let cut = [1, run::FOOTER_BYTES, run::FOOTER_BYTES + 100];
        let cut = cut.map(|by| (format!("{by} cut off"), self.bytes[..self.bytes.len() - by].to_vec()));
        flipped.chain(longer).chain(cut).collect()
    }
}

/// The salvage reports that the pages of this run gave so many records.
fn expect_reported(found: &SalvageReport, name: &str, records: u64, context: &str) {
    let words = format!("intact records in its pages: {records}");
    let mut findings = found.findings.iter().filter(|finding| finding.file == name);
    assert!(findings.any(|finding| finding.detail.ends_with(&words)), "{context}: {:?}", found.findings);
    assert!(found.is_damaged());
}

#[test]
fn a_run_damaged_outside_of_its_pages_loses_no_record() {
    let (disk, content) = store(27);
    for name in runs(&disk) {
        let file = RunFile::of(&disk, name);
        for (damage, bytes) in file.damaged_outside_pages() {
            disk.put(&file.name, &bytes);
            let context = format!("{}, {damage}", file.name);
            let (dumped, found, lost) = salvaged_parts(&disk, || {});
            assert!(dumped == content, "{context}: {} of {} keys", dumped.len(), content.len());
            assert!(found.missing.is_empty() && lost.is_empty(), "{context}: {:?}, {lost:?}", found.missing);
            expect_reported(&found, &file.name, file.footer.records, &context);
            let options = sorted(Durability::Sync);
            assert!(TestNode::open(&disk.image(Loss::Process, 1), options, Now::at(90_000)).is_err(), "{context}");
        }
        disk.put(&file.name, &file.bytes);
    }
}

#[test]
fn older_values_do_not_come_back_behind_a_damaged_run() {
    let (disk, content) = store(29);
    let state = manifest::decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let newest = state.runs.iter().max_by_key(|entry| entry.age).unwrap();
    let older = state.runs.iter().filter(|entry| entry.age < newest.age);
    let records = |entry: &RunEntry| RunFile::of(&disk, run::file_name(entry.uuid)).records();
    let older: BTreeSet<_> = older.flat_map(records).filter_map(|(key, value)| value.map(|_| key)).collect();
    let hidden = |(key, _): &(Vec<u8>, Option<Vec<u8>>)| older.contains(key);
    let (puts, deletes): (Vec<_>, Vec<_>) =
        records(newest).into_iter().filter(hidden).partition(|(_, value)| value.is_some());
    assert!(puts.len() > 5 && !deletes.is_empty(), "{} puts and {} deletes hide others", puts.len(), deletes.len());
    let file = RunFile::of(&disk, run::file_name(newest.uuid));
    for (damage, bytes) in file.damaged_outside_pages() {
        disk.put(&file.name, &bytes);
        let (dumped, _) = salvaged(&disk);
        for (key, value) in &content {
            assert!(dumped.get(key) == Some(value), "{damage}: {}", String::from_utf8_lossy(key));
        }
        let back = deletes.iter().filter(|(key, _)| !content.contains_key(key) && dumped.contains_key(key)).count();
        assert_eq!(back, 0, "{damage}");
    }
}

#[test]
fn a_damaged_run_loses_the_records_of_pages_that_are_gone() {
    let (disk, content) = store(28);
    let mut tried = 0;
    for name in runs(&disk) {
        let file = RunFile::of(&disk, name);
        let (tail, footer, last) = (file.tail_at(), file.footer_at(), file.footer.pages as usize - 1);
        let at = |page: usize| page_offset(page as u32) as usize + 99;
        let count = |page: usize| Some(file.page(page as u32).len() as u64);
        let cases = [
            ("last page cut", last, file.bytes[..page_offset(last as u32) as usize + 100].to_vec(), None),
            ("last page, header", last, file.flipped([at(last), 20]), count(last)),
            ("last page, tail", last, file.flipped([at(last), tail]), count(last)),
            ("last page, footer", last, file.flipped([at(last), footer]), None),
            ("a page, tail", last / 2, file.flipped([at(last / 2), tail + 50]), count(last / 2)),
            ("first page, footer", 0, file.flipped([at(0), footer + 13]), count(0)),
            ("first page, tail, footer", 0, file.flipped([at(0), tail, footer]), None),
        ];
        for (damage, gone, bytes, records) in cases.into_iter().filter(|_| last >= 2) {
            disk.put(&file.name, &bytes);
            let context = format!("{}, {damage}", file.name);
            let (mut dumped, found, lost) = salvaged_parts(&disk, || {});
            let mut expected = content.clone();
            for (key, _) in file.page(gone as u32) {
                // Nothing of it is left, or an older version in another run, or a newer one of the log.
                dumped.remove(&key);
                expected.remove(&key);
            }
            assert!(dumped == expected, "{context}: {} of {} keys", dumped.len(), expected.len());
            let from_bytes = page_offset(gone as u32) as u32;
            let [part] = &found.missing[..] else { panic!("{context}: {:?}", found.missing) };
            assert_eq!((&part.file, part.records), (&file.name, records), "{context}");
            assert!((part.from_bytes..part.to_bytes).contains(&from_bytes), "{context}: {part:?}");
            // A dump reads up to the last intact page.
            let pages: Vec<u32> = lost.iter().map(|part| part.from_bytes).collect();
            assert_eq!(pages, if gone < last { vec![from_bytes] } else { Vec::new() }, "{context}");
            let left = file.footer.records - file.page(gone as u32).len() as u64;
            expect_reported(&found, &file.name, left, &context);
            tried += 1;
        }
        disk.put(&file.name, &file.bytes);
    }
    assert!(tried >= 7, "{tried} damages");
}

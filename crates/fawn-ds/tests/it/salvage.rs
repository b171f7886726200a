//! Dumps of sound and damaged stores: every intact record is visited, every loss is reported, nothing is changed.
use crate::support::{RANGE, TestNode, TestWrite, frames, manifest_commits, small};
use fawn_ds::internals::check::check;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::record::{RecordKind, Stored};
use fawn_ds::internals::format::segment;
use fawn_ds::internals::format::walk::{RecordWalk, WalkInput, WalkReport};
use fawn_ds::internals::{DumpError, DumpReport, EngineError, LostPart, OpenError, Options, open_for_salvage};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{IoClass, SimDevice, SimDisk, SimOptions};
use fawn_types::checksum::checksum64;
use fawn_types::{Durability, Now, Version};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A record of a segment.
pub(crate) struct PlacedRecord {
    pub(crate) file: String,
    pub(crate) bytes: Range<u64>,
    pub(crate) version: Version,
    pub(crate) key: Vec<u8>,
    /// `None`: a tombstone.
    pub(crate) value: Option<Vec<u8>>,
}

/// Result of a dump: content, what it reports, whether damage was found.
pub(crate) struct Dumped {
    pub(crate) content: Content,
    pub(crate) report: DumpReport,
    pub(crate) is_damaged: bool,
    pub(crate) missing: Vec<LostPart>,
}

pub(crate) fn put(key: u32, value: &[u8]) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(value.to_vec()), expires_at_ms: 0 }
}

/// Several segments with several records a frame, overwrites and deletes among them, after a clean shutdown.
fn store() -> SimDisk {
    let (disk, node) = running(Durability::Sync);
    drop(node.engine.close().unwrap());
    disk
}

fn running(durability: Durability) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(durability), Now::at(1)).unwrap();
    for round in 0..90u32 {
        for i in 0..5 {
            let key = round * 3 + i;
            node.append(&[put(key, &[round as u8; 300])]).unwrap();
        }
        node.append(&[put(1_000_000 + round, b""), put(2_000_000 + round, b"batch")]).unwrap();
        if round % 10 == 9 {
            node.append(&[TestWrite { value: None, ..put(round * 3 - 9, b"") }]).unwrap();
        }
        node.settle();
    }
    (disk, node)
}

fn contents(disk: &SimDisk) -> Vec<(String, Option<Vec<u8>>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name))).collect()
}

pub(crate) fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

/// All puts and tombstones of a sound store.
pub(crate) fn records(disk: &SimDisk) -> Vec<PlacedRecord> {
    let mut found = Vec::new();
    for file in segments(disk) {
        let (records, report) = records_of(disk, &file);
        assert_eq!(report.gaps, [], "{file}");
        found.extend(records);
    }
    found
}

/// All puts and tombstones of a segment with an intact header.
pub(crate) fn records_of(disk: &SimDisk, file: &str) -> (Vec<PlacedRecord>, WalkReport) {
    let mut found = Vec::new();
    let bytes = disk.contents(file).unwrap();
    let header = segment::decode(&bytes).unwrap();
    let input = WalkInput { uuid: header.uuid, end: bytes.len() as u32, written: 4096 };
    let mut walk = RecordWalk::new(input);
    let mut visit = |offset: u32, stored: &Stored<'_>| {
        let record = &stored.record;
        if matches!(record.kind, RecordKind::Put | RecordKind::Tombstone) {
            found.push(PlacedRecord {
                file: file.to_owned(),
                bytes: u64::from(offset)..u64::from(offset) + stored.encoded_len as u64,
                version: record.version,
                key: record.key.to_vec(),
                value: (record.kind == RecordKind::Put).then(|| record.value.to_vec()),
            });
        }
    };
    walk.push(&bytes[4096..], &mut visit);
    let report = walk.finish(&mut visit);
    (found, report)
}

/// The newest of these records for each key.
fn newest<'r>(records: impl Iterator<Item = &'r PlacedRecord>) -> Content {
    let mut newest = BTreeMap::new();
    for record in records {
        let entry: &mut &PlacedRecord = newest.entry(record.key.clone()).or_insert(record);
        if record.version > entry.version {
            *entry = record;
        }
    }
    newest.into_iter().filter_map(|(key, record)| Some((key, record.value.clone()?))).collect()
}

fn open(disk: &SimDisk, now: Now) -> Result<Dumped, OpenError> {
    open_each(now, || SimDevice::attach(disk))
}

fn open_each(now: Now, mut device: impl FnMut() -> SimDevice) -> Result<Dumped, OpenError> {
    let options = Options { secret: None, ..small(Durability::Sync) };
    let (mut engine, found) = open_for_salvage(|| Ok(device()), &options, now)?;
    let mut content = Content::new();
    let report = engine.dump(|_, record| {
        let before = content.insert(record.key.to_vec(), record.value.to_vec());
        assert_eq!(before, None, "each key is visited once");
        Ok::<_, ()>(())
    });
    let report = match report {
        Err(DumpError::Device(error)) => return Err(error.into()),
        report => report.unwrap(),
    };
    Ok(Dumped { content, report, is_damaged: found.is_damaged(), missing: found.missing })
}

/// A dump, which must change nothing.
pub(crate) fn dump(disk: &SimDisk) -> Dumped {
    let before = contents(disk);
    let dumped = open(disk, Now::at(1_000)).unwrap();
    assert_eq!(contents(disk), before, "a dump changes nothing");
    dumped
}

/// Damages the bytes; the dump must have all other records, and report a loss exactly if there is one.
fn damaged(disk: &SimDisk, records: &[PlacedRecord], (file, bytes): (&str, Range<u64>), damage: impl FnOnce()) {
    let before = disk.contents(file).unwrap();
    damage();
    let after = disk.contents(file).unwrap();
    // Zeros written over zeros change nothing; unreadable bytes are all hit.
    let is_changed = |at: u64| after == before || after.get(at as usize).unwrap_or(&0) != &before[at as usize];
    let is_hit = |record: &&PlacedRecord| {
        let mut both = record.bytes.start.max(bytes.start)..record.bytes.end.min(bytes.end);
        record.file == file && both.any(is_changed)
    };
    let hit = records.iter().filter(is_hit).count();
    let dumped = dump(disk);
    let expected = newest(records.iter().filter(|record| !is_hit(record)));
    let place = format!("{file} {bytes:?}, {hit} records hit: {:?}", dumped.report);
    assert!(dumped.content == expected, "{place}");
    assert_eq!(!dumped.report.lost.is_empty(), hit > 0, "{place}");
    let known: Option<u64> = dumped.report.lost.iter().map(|lost| lost.records).sum();
    assert!(known.is_none_or(|known| known == hit as u64), "{place}");
    for lost in &dumped.report.lost {
        assert!(lost.file == file && u64::from(lost.from_bytes) < bytes.end, "{place}");
    }
}

#[test]
fn a_sound_store_is_dumped_key_by_key_in_log_order() {
    let disk = store();
    let records = records(&disk);
    assert!(segments(&disk).len() >= 3 && records.len() == 90 * 7 + 9, "{}", records.len());
    let dumped = dump(&disk);
    assert!(dumped.content == newest(records.iter()) && !dumped.is_damaged);
    let DumpReport { lost, unread, expired, records } = dumped.report;
    assert_eq!((lost, unread, expired, records), (vec![], 0, 0, dumped.content.len() as u64));
}

#[test]
fn a_dump_reads_the_log_once_whatever_the_number_of_records() {
    let disk = store();
    let options = small(Durability::Sync);
    let (mut engine, _) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &options, Now::at(2)).unwrap();
    let keys = engine.dump(|_, _| Ok::<_, ()>(())).unwrap().records;
    let reads = fawn_flash::Device::stats(engine.device()).of(IoClass::Foreground).reads;
    assert!(keys > 400 && reads <= segments(&disk).len() as u64, "{reads} reads for {keys} keys");
}

#[test]
fn expired_keys_are_left_out_and_counted() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for key in 0..10 {
        node.append(&[TestWrite { expires_at_ms: if key < 4 { 5_000 } else { 50_000 }, ..put(key, b"v") }]).unwrap();
    }
    node.settle();
    drop(node.engine.close().unwrap());
    // The expiry clock follows the wall clock once that has stood for a minute.
    let dumped = open(&disk, Now::at(20_000)).unwrap();
    assert_eq!((dumped.content.len(), dumped.report.expired, dumped.report.lost.len()), (6, 4, 0));
}

#[test]
fn records_that_wait_for_a_chains_commit_are_dumped() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for round in 0..3u8 {
        for key in 0..20 {
            node.append(&[put(key, &[round; 40])]).unwrap();
        }
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
        if round == 0 {
            node.settle();
        }
    }
    while node.engine.progress(RANGE).synced < node.engine.progress(RANGE).appended {
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
    }
    disk.kill(3);
    let dumped = dump(&disk);
    assert!(dumped.content.len() == 20 && dumped.content.values().all(|value| value == &[2; 40]), "the newest ones");
    assert!(!dumped.is_damaged && dumped.report.lost.is_empty() && dumped.report.unread == 0, "{:?}", dumped.report);
}

#[test]
fn a_torn_end_is_no_loss() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for key in 0..20 {
        node.append(&[put(key, &[7; 300])]).unwrap();
        node.settle();
    }
    disk.kill(3);
    let name = segments(&disk).into_iter().find(|name| disk.contents(name).unwrap()[4096..4100] == *b"FwnF").unwrap();
    let (at, end) = *frames(&disk.contents(&name).unwrap()).last().unwrap();
    disk.flip_bits(&name, at as u64 + 100, 1);
    let dumped = dump(&disk);
    assert!(end > at && dumped.content.len() == 19, "{}", dumped.content.len());
    assert!(!dumped.is_damaged && dumped.report.lost.is_empty(), "it was never certified: {:?}", dumped.report);
}

#[test]
fn a_torn_end_is_none_of_the_rest_of_a_damaged_store() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for round in 0..400 {
        node.append(&[put(round * 2, &[7; 100]), put(round * 2 + 1, &[7; 100])]).unwrap();
        node.settle();
    }
    disk.kill(3);
    let files = segments(&disk);
    let with_frames: Vec<_> =
        files.iter().filter(|file| disk.contents(file).unwrap()[4096..4100] == *b"FwnF").collect();
    assert!(with_frames.len() >= 2);
    disk.flip_bits(with_frames[0], 4096 + 100, 1);
    let newest = with_frames.iter().max_by_key(|file| segment::decode(&disk.contents(file).unwrap()).unwrap().sequence);
    let (at, _) = *frames(&disk.contents(newest.unwrap()).unwrap()).last().unwrap();
    disk.flip_bits(newest.unwrap(), at as u64 + 70, 1);
    let dumped = dump(&disk);
    let lost: Vec<u32> = (0..800).filter(|key: &u32| !dumped.content.contains_key(&key.to_be_bytes()[..])).collect();
    assert!(dumped.is_damaged && lost == [0, 798, 799], "of the torn batch nothing counts: {lost:?}");
}

#[test]
fn a_flipped_bit_anywhere_in_a_segment_loses_the_record_there_and_no_other() {
    let disk = store();
    let records = records(&disk);
    for file in segments(&disk) {
        let bytes = disk.contents(&file).unwrap();
        let Some(&(last, end)) = frames(&bytes).last() else { continue };
        // Every byte of the first and last frame's start, and one of each kind of place elsewhere.
        let starts = (4096..4096 + 400).step_by(3).chain((last..last + 120).step_by(5));
        let places = (4096..end).step_by(577).chain(starts).chain([0, 40, 300, 505, end - 1]);
        for at in places.filter(|at| !(512..4096).contains(at)).map(|at| at as u64) {
            let bit = 1 << (at % 8);
            damaged(&disk, &records, (&file, at..at + 1), || disk.flip_bits(&file, at, bit));
            disk.flip_bits(&file, at, bit);
        }
    }
}

#[test]
fn zeroed_and_unreadable_pages_lose_their_records_and_no_other() {
    let disk = store();
    let records = records(&disk);
    for file in segments(&disk) {
        let intact = disk.contents(&file).unwrap();
        let Some(&(_, end)) = frames(&intact).last() else { continue };
        for page in 1..end.div_ceil(4096) {
            let (from, to) = (page * 4096, ((page + 1) * 4096).min(end));
            let mut zeroed = intact.clone();
            zeroed[from..to].fill(0);
            let hit = (&file[..], from as u64..to as u64);
            damaged(&disk, &records, hit.clone(), || disk.put(&file, &zeroed));
            disk.put(&file, &intact);
            if page % 4 == 1 {
                let bytes = from as u64..(page as u64 + 1) * 4096;
                damaged(&disk, &records, hit, || disk.make_unreadable(&file, bytes));
                disk.heal();
            }
        }
    }
}

#[test]
fn a_missing_segment_loses_its_records_and_no_other() {
    let disk = store();
    let records = records(&disk);
    let mut known = 0;
    for file in segments(&disk) {
        let intact = disk.contents(&file).unwrap();
        let mut device = SimDevice::attach(&disk);
        fawn_flash::Device::unlink(&mut device, &file).unwrap();
        drop(device);
        let dumped = dump(&disk);
        let expected = newest(records.iter().filter(|record| record.file != file));
        assert!(dumped.content == expected && dumped.is_damaged, "{file}");
        // Only a seal says how many records there were.
        let count = records.iter().filter(|record| record.file == file).count() as u64;
        assert!(dumped.missing.len() == 1 && dumped.missing[0].file == file, "{:?}", dumped.missing);
        assert!(dumped.missing[0].records.is_none_or(|records| records == count), "{:?}", dumped.missing);
        known += u64::from(dumped.missing[0].records.is_some());
        disk.put(&file, &intact);
    }
    assert!(known >= 2, "of the sealed ones the number of records is known");
}

#[test]
fn a_place_that_becomes_unreadable_after_the_open_is_a_loss() {
    let disk = store();
    let options = small(Durability::Sync);
    let (mut engine, found) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &options, Now::at(2)).unwrap();
    disk.make_unreadable(&segments(&disk)[0], 8192..8704);
    let report = engine.dump(|_, _| Ok::<_, ()>(())).unwrap();
    assert!(!found.is_damaged() && report.unread > 0 && !report.lost.is_empty(), "{report:?}");
    let lost: Option<u64> = report.lost.iter().map(|lost| lost.records).sum();
    assert!(lost.is_some_and(|lost| lost >= report.unread), "old versions of keys are among them: {report:?}");
}

/// A sound store whose first opening failed for a moment, with these faults of the salvage's reads.
fn salvage_with(disk: &SimDisk, faults: &[(u64, DeviceFault)]) -> Result<Dumped, OpenError> {
    let mut attempts = 0;
    let dumped = open_each(Now::at(1_000), || {
        attempts += 1;
        disk.clear_faults();
        match attempts {
            1 => disk.fail_nth(OpKind::Read, 1, DeviceFault::Fail),
            _ => faults.iter().for_each(|(nth, fault)| disk.fail_nth(OpKind::Read, *nth, fault.clone())),
        }
        SimDevice::attach(disk)
    });
    disk.clear_faults();
    assert_eq!(attempts, 2);
    dumped
}

#[test]
fn reads_of_a_salvage_that_fail_once_hide_no_record_unreported() {
    for (durability, is_closed) in
        [(Durability::Sync, true), (Durability::Sync, false), (Durability::EverySecond, false)]
    {
        let (disk, node) = running(durability);
        match is_closed {
            true => drop(node.engine.close().unwrap()),
            false => drop(node),
        }
        disk.kill(1);
        let before = disk.counted(OpKind::Read);
        let whole = salvage_with(&disk, &[]).unwrap();
        let reads = disk.counted(OpKind::Read) - before;
        assert!(!whole.is_damaged && whole.report.lost.is_empty() && whole.content.len() > 400);
        let misdirected = |page: u64| DeviceFault::Misdirect { name: None, offset: page * 4096 };
        let faults = (1..reads).flat_map(|nth| {
            let failed = vec![(nth, DeviceFault::Fail), (nth + 1, DeviceFault::Fail)];
            let lasting = (nth..nth + 60).map(|nth| (nth, DeviceFault::Fail)).collect();
            [vec![(nth, misdirected(0))], vec![(nth, misdirected(3))], failed, lasting]
        });
        let (mut complete, mut reported) = (0, 0);
        for faults in faults {
            let context = format!("{durability:?}, closed {is_closed}, {faults:?} of {reads} reads");
            let Dumped { content, report, is_damaged, .. } = match salvage_with(&disk, &faults) {
                Ok(dumped) => dumped,
                Err(OpenError::Engine(error)) => panic!("a record that cannot be compared ends it: {error}, {context}"),
                Err(_) => continue,
            };
            let is_reported = is_damaged || !report.lost.is_empty() || report.unread > 0;
            assert!(is_reported || content == whole.content, "{context}: {} keys", content.len());
            complete += u32::from(!is_reported);
            reported += u32::from(is_reported);
        }
        assert!(complete > 0 && reported > 0, "{complete} complete, {reported} reported");
    }
}

/// Without a free descriptor, nothing is known about the bytes that cannot be read.
#[test]
fn reads_without_a_descriptor_lose_no_record_of_a_salvage_or_a_check() {
    for (durability, is_closed) in
        [(Durability::Sync, true), (Durability::Sync, false), (Durability::EverySecond, false)]
    {
        let (disk, node) = running(durability);
        match is_closed {
            true => drop(node.engine.close().unwrap()),
            false => drop(node),
        }
        disk.kill(1);
        let before = disk.counted(OpKind::Read);
        let whole = salvage_with(&disk, &[]).unwrap();
        let reads = disk.counted(OpKind::Read) - before;
        let (mut complete, mut refused) = (0, 0);
        // A large read that fails is repeated page by page, so that two of them must fail.
        for (count, nth) in [1, 2, 60].into_iter().flat_map(|count| (1..reads).map(move |nth| (count, nth))) {
            let context = format!("{durability:?}, closed {is_closed}, {count} reads from {nth} of {reads}");
            let faults: Vec<_> = (nth..nth + count).map(|nth| (nth, DeviceFault::Exhausted)).collect();
            match salvage_with(&disk, &faults) {
                Err(OpenError::Device(error) | OpenError::Engine(EngineError::Device(error))) => {
                    assert!(error.is_retryable(), "{context}: {error}");
                    refused += 1;
                }
                Err(error) => panic!("{context}: {error}"),
                Ok(Dumped { content, report, is_damaged, missing }) => {
                    assert!(!is_damaged && missing.is_empty(), "{context}: {missing:?}");
                    assert!(report.lost.is_empty() && report.unread == 0, "{context}: {report:?}");
                    assert!(content == whole.content, "{context}: {} keys", content.len());
                    complete += 1;
                }
            }
            faults.iter().for_each(|(nth, fault)| disk.fail_nth(OpKind::Read, *nth, fault.clone()));
            match check(&mut SimDevice::attach(&disk)) {
                Err(error) => assert!(error.is_retryable(), "{context}: {error}"),
                Ok(report) => assert!(report.is_sound(), "{context}: {:?}", report.findings),
            }
            disk.clear_faults();
        }
        assert!(complete > 0 && refused > 0, "{complete} complete, {refused} refused");
    }
}

/// Without a free descriptor, nothing is known about the files that cannot be opened.
#[test]
fn a_file_that_cannot_be_opened_for_lack_of_descriptors_is_not_taken_for_a_missing_one() {
    let disk = store();
    let expected = newest(records(&disk).iter());
    let salvage = |nth| {
        let mut attempts = 0;
        let dumped = open_each(Now::at(1_000), || {
            attempts += 1;
            disk.clear_faults();
            match attempts {
                1 => disk.fail_nth(OpKind::Read, 1, DeviceFault::Fail),
                _ => disk.fail_nth(OpKind::Open, nth, DeviceFault::Exhausted),
            }
            SimDevice::attach(&disk)
        });
        disk.clear_faults();
        dumped
    };
    for has_manifest in [true, false] {
        if !has_manifest {
            fawn_flash::Device::unlink(&mut SimDevice::attach(&disk), "manifest").unwrap();
        }
        let before = disk.counted(OpKind::Open);
        assert!(salvage(1 << 40).unwrap().content == expected);
        let (opens, mut refused) = (disk.counted(OpKind::Open) - before, 0);
        for nth in 1..=opens {
            match salvage(nth) {
                Err(OpenError::Device(error)) if error.is_retryable() => refused += 1,
                Err(error) => panic!("manifest {has_manifest}, open {nth}: {error}"),
                Ok(Dumped { content, missing, .. }) => {
                    let context = format!("manifest {has_manifest}, open {nth} of {opens}, {missing:?}");
                    assert!(content == expected && missing.is_empty(), "{context}: {} keys", content.len());
                }
            }
        }
        assert!(refused >= segments(&disk).len(), "manifest {has_manifest}: {refused}");
    }
}

#[test]
fn a_truncated_segment_loses_its_end_and_no_more() {
    let disk = store();
    let records = records(&disk);
    let file = segments(&disk).remove(0);
    let intact = disk.contents(&file).unwrap();
    for len in [4096, 5000, 20_480, 40_000] {
        let end = frames(&intact).last().unwrap().1 as u64;
        damaged(&disk, &records, (&file, len as u64..end), || disk.put(&file, &intact[..len]));
        disk.put(&file, &intact);
    }
}

#[test]
fn damage_in_a_segment_of_a_store_without_a_manifest_loses_the_record_there_and_no_other() {
    let disk = store();
    let records = records(&disk);
    fawn_flash::Device::unlink(&mut SimDevice::attach(&disk), "manifest").unwrap();
    for file in segments(&disk) {
        let in_file: Vec<_> = records.iter().filter(|record| record.file == file && record.value.is_some()).collect();
        let Some(hit) = in_file.get(in_file.len() / 3) else { continue };
        disk.flip_bits(&file, hit.bytes.start + 50, 1);
        let dumped = dump(&disk);
        let left = records.iter().filter(|record| record.file != file || record.bytes != hit.bytes);
        assert!(dumped.content == newest(left), "{file} {:?}: {} keys", hit.bytes, dumped.content.len());
        assert!(dumped.is_damaged && !dumped.report.lost.is_empty());
        disk.flip_bits(&file, hit.bytes.start + 50, 1);
    }
}

#[test]
fn a_segment_that_nothing_names_any_more_is_reported_as_lost() {
    let disk = store();
    let records = records(&disk);
    fawn_flash::Device::unlink(&mut SimDevice::attach(&disk), "manifest").unwrap();
    for file in segments(&disk) {
        disk.flip_bits(&file, 40, 1);
        let dumped = dump(&disk);
        assert!(dumped.content == newest(records.iter().filter(|record| record.file != file)), "{file}");
        assert!(dumped.missing.iter().any(|lost| lost.file == file), "{file}: {:?}", dumped.missing);
        disk.flip_bits(&file, 40, 1);
    }
}

#[test]
fn a_segment_that_only_the_lost_end_of_the_manifest_named_is_reported_as_lost() {
    let disk = store();
    let records = records(&disk);
    let manifest = disk.contents("manifest").unwrap();
    let mut lost = 0;
    for (at, _) in manifest_commits(&manifest) {
        let mut older = manifest.clone();
        older[at..].fill(0);
        let Ok(decoded) = decode_all(&older) else { continue };
        disk.put("manifest", &older);
        let listed = decoded.state.segments.iter();
        let listed: Vec<String> = listed.map(|(&slot, entry)| segment::file_name(slot, entry.uuid)).collect();
        let has_records = |file: &String| records.iter().any(|record| record.file == *file);
        let unlisted: Vec<_> = segments(&disk).into_iter().filter(|file| !listed.contains(file)).collect();
        // Another one shows that the manifest has lost its end.
        if unlisted.iter().filter(|file| has_records(file)).count() < 2 {
            continue;
        }
        for file in unlisted {
            disk.flip_bits(&file, 40, 1);
            let dumped = dump(&disk);
            let is_named = dumped.missing.iter().any(|lost| lost.file == file);
            assert_eq!(is_named, has_records(&file), "cut at {at}, {file}: {:?}", dumped.missing);
            lost += usize::from(is_named);
            // Whether it has a frame is unknown then.
            disk.make_unreadable(&file, 4096..8192);
            let dumped = dump(&disk);
            let is_named = dumped.missing.iter().any(|lost| lost.file == file);
            assert!(is_named, "cut at {at}, {file} is unreadable: {:?}", dumped.missing);
            disk.heal();
            disk.flip_bits(&file, 40, 1);
        }
    }
    assert!(lost > 5, "{lost} segments");
}

#[test]
fn a_manifest_that_lost_anything_loses_no_record() {
    let disk = store();
    let expected = newest(records(&disk).iter());
    let manifest = disk.contents("manifest").unwrap();
    let commits = manifest_commits(&manifest);
    assert!(commits.len() > 5, "{commits:?}");
    for &(at, end) in &commits {
        // One flipped bit, and everything from there on.
        let mut older = manifest.clone();
        older[at..].fill(0);
        disk.put("manifest", &older);
        let cut = dump(&disk);
        assert!(cut.content == expected, "cut at {at}: {} keys of {}", cut.content.len(), expected.len());
        disk.put("manifest", &manifest);
        disk.flip_bits("manifest", (at + 32).min(end - 1) as u64, 2);
        let flipped = dump(&disk);
        assert!(flipped.content == expected, "flipped at {at}: {} keys", flipped.content.len());
        disk.put("manifest", &manifest);
    }
    disk.flip_bits("manifest", 3, 1);
    let dumped = dump(&disk);
    assert!(dumped.content == expected && dumped.is_damaged, "its header");
    fawn_flash::Device::unlink(&mut SimDevice::attach(&disk), "manifest").unwrap();
    let dumped = dump(&disk);
    assert!(dumped.content == expected && dumped.is_damaged, "all of it");
}

/// Later segments have the slots of dropped ones, so that names are in another order than the log.
#[test]
fn a_store_without_a_manifest_has_its_segments_in_any_order() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { space_amplification_max_percent: 110, ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    for i in 0..3000u32 {
        node.append(&[put(i * 7 % 400, &[i as u8; 900])]).unwrap();
        node.turn();
        node.now = node.now.plus_ms(5);
    }
    node.settle();
    drop(node.engine.close().unwrap());
    let sequence_of = |name: &String| u64::from_le_bytes(disk.contents(name).unwrap()[48..56].try_into().unwrap());
    let sequences: Vec<u64> = segments(&disk).iter().map(sequence_of).collect();
    assert!(!sequences.is_sorted(), "{sequences:?}");
    let expected = newest(records(&disk).iter());
    fawn_flash::Device::unlink(&mut SimDevice::attach(&disk), "manifest").unwrap();
    let dumped = dump(&disk);
    assert!(expected.len() == 400 && dumped.content == expected, "{} of {}", dumped.content.len(), expected.len());
}

/// No other fawn reads more of such a store.
#[test]
fn a_segment_of_an_older_format_keeps_no_other_from_being_read() {
    let disk = store();
    let expected = newest(records(&disk).iter());
    for file in segments(&disk) {
        let intact = disk.contents(&file).unwrap();
        let mut older = intact.clone();
        older[8] = 1;
        let checksum = checksum64(&older[..504]);
        older[504..512].copy_from_slice(&checksum.to_le_bytes());
        disk.put(&file, &older);
        let dumped = dump(&disk);
        assert!(dumped.is_damaged && dumped.content == expected, "its records tell which segment they are of");
        disk.put(&file, &intact);
    }
}

#[test]
fn an_empty_directory_and_one_in_use_are_refused() {
    let disk = SimDisk::new(SimOptions::instant(1));
    assert!(matches!(open(&disk, Now::at(1)).err(), Some(OpenError::NothingLeft)));
    assert_eq!(disk.names(), Vec::<String>::new());
    let disk = store();
    let node = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
    assert!(matches!(open(&disk, Now::at(3)).err(), Some(OpenError::Device(_))));
    drop(node);
}

/// Files that cannot be opened or read for now may have all records.
#[test]
fn a_store_that_cannot_be_read_for_now_is_not_said_to_have_nothing_left() {
    let disk = store();
    let expected = newest(records(&disk).iter());
    let refused = |words: &str| {
        match check(&mut SimDevice::attach(&disk)) {
            Ok(report) => assert!(!report.is_sound() && !report.has_nothing_left, "{words}: {report:?}"),
            Err(error) => assert!(error.is_retryable(), "{words}: {error}"),
        }
        let error = open(&disk, Now::at(1_000)).err();
        assert!(matches!(error, Some(OpenError::Device(_))), "{words}: {error:?}");
    };
    let manifest = disk.contents("manifest").unwrap();
    disk.put("manifest", b"");
    segments(&disk).iter().for_each(|file| disk.make_unreadable(file, 0..512));
    refused("unreadable headers");
    disk.heal();
    for fault in [DeviceFault::Fail, DeviceFault::Exhausted] {
        let words = format!("{fault:?} of every open");
        disk.fail_every(OpKind::Open, fault);
        refused(&words);
        disk.clear_faults();
    }
    assert!(dump(&disk).content == expected);

    disk.put("manifest", &manifest);
    disk.make_unreadable("manifest", 0..512);
    let files: Vec<_> = segments(&disk).into_iter().map(|file| (disk.contents(&file).unwrap(), file)).collect();
    files.iter().for_each(|(_, file)| disk.put(file, b""));
    refused("an unreadable manifest");
    disk.heal();
    disk.put("manifest", b"");
    assert!(matches!(open(&disk, Now::at(1_000)).err(), Some(OpenError::NothingLeft)));
    assert!(check(&mut SimDevice::attach(&disk)).unwrap().has_nothing_left);
}

/// A value full of bytes that look like records costs bounded time: each would be hashed to its end.
#[test]
fn a_value_that_looks_like_records_does_not_slow_the_walk() {
    let mut unit = [0u8; 16];
    unit[4..8].copy_from_slice(&[0, 0, 0x0F, 1]);
    let bytes = unit.repeat((4 << 20) / 16);
    let input = WalkInput { uuid: Default::default(), end: bytes.len() as u32 + 4096, written: 4096 };
    let mut walk = RecordWalk::new(input);
    bytes.chunks(1 << 20).for_each(|chunk| walk.push(chunk, &mut |_, _| panic!("no record")));
    let WalkReport { gaps, .. } = walk.finish(&mut |_, _| panic!("no record"));
    assert_eq!(gaps.len(), 1, "{gaps:?}");
}

#[test]
fn the_size_of_the_pieces_does_not_matter() {
    let disk = store();
    let file = segments(&disk).remove(0);
    disk.flip_bits(&file, 9_000, 1);
    disk.flip_bits(&file, 30_000, 1);
    let bytes = disk.contents(&file).unwrap();
    let uuid = segment::decode(&bytes).unwrap().uuid;
    let walk = |len: usize| {
        let mut walk = RecordWalk::new(WalkInput { uuid, end: bytes.len() as u32, written: 4096 });
        let mut offsets = Vec::new();
        bytes[4096..].chunks(len).for_each(|chunk| walk.push(chunk, &mut |offset, _| offsets.push(offset)));
        let report = walk.finish(&mut |offset, _| offsets.push(offset));
        (offsets, report)
    };
    let whole = walk(bytes.len());
    assert!(whole.0.len() > 100 && whole.1.gaps.len() == 2, "{:?}", whole.1.gaps);
    for len in [16, 33, 511, 4096, 10_000] {
        assert_eq!(walk(len), whole, "pieces of {len}");
    }
}

#[test]
fn a_walk_over_any_bytes_ends_and_is_the_same_in_pieces() {
    let disk = store();
    let file = segments(&disk).remove(0);
    let intact = disk.contents(&file).unwrap();
    let uuid = segment::decode(&intact).unwrap().uuid;
    let mut random = fawn_types::random::SplitMix64::new(7);
    for round in 0..200 {
        let mut bytes = intact.clone();
        for _ in 0..random.below(20) {
            let from = 4096 + random.below(bytes.len() as u64 - 4096) as usize;
            let to = (from + random.below(300) as usize).min(bytes.len());
            bytes[from..to].iter_mut().for_each(|byte| *byte = random.next() as u8);
        }
        let written = 4096 + random.below(62_000) as u32;
        let input = WalkInput { uuid, end: bytes.len() as u32, written };
        let walk = |len: usize| {
            let (mut walk, mut offsets) = (RecordWalk::new(input), Vec::new());
            bytes[4096..].chunks(len).for_each(|chunk| walk.push(chunk, &mut |offset, _| offsets.push(offset)));
            let report = walk.finish(&mut |offset, _| offsets.push(offset));
            assert!(report.gaps.iter().all(|gap| gap.from < gap.to || gap.records.is_some()), "{report:?}");
            (offsets, report)
        };
        let pieces = 1 + random.below(5_000) as usize;
        assert_eq!(walk(pieces), walk(bytes.len()), "round {round}, pieces of {pieces}");
    }
}

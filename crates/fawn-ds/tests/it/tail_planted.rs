//! Faults that were once planted in the code of the tail file, and that the other tests did not find.
use crate::backup::copy_of;
use crate::support::{RANGE, TestNode, TestWrite, frames, manifest_commits, small};
use fawn_ds::internals::backup::CopyError;
use fawn_ds::internals::check::check;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::{segment, tail};
use fawn_ds::internals::{OpenError, Options, RecordRef, View, open_for_salvage};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn options() -> Options {
    small(Durability::EverySecond)
}

fn put_of(key: u32, bytes: usize) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![key as u8; bytes]), expires_at_ms: 0 }
}

fn put(node: &mut TestNode, keys: std::ops::Range<u32>) {
    for key in keys {
        node.append(&[put_of(key, 100)]).unwrap();
        node.settle();
    }
}

fn missing(node: &mut TestNode, keys: std::ops::Range<u32>) -> Vec<u32> {
    let mut has = |key: u32| {
        let found = node.get(&key.to_be_bytes(), View::Committed);
        found.is_ok_and(|found| found.is_some_and(|entry| entry.value == put_of(key, 100).value.unwrap()))
    };
    keys.filter(|&key| !has(key)).collect()
}

/// Past the middle of a segment the next one is listed. The tail file's frames are still those of the one before.
#[test]
fn a_store_that_is_only_read_has_them_with_the_next_segment_prepared() {
    for puts in [100, 200, 280, 290, 300, 310, 320, 400] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        put(&mut node, 0..puts);
        drop(node);
        disk.kill(1);
        let read_only = Options { read_only: true, ..options() };
        let mut node = TestNode::open_in_chain(&disk, read_only, Now::at(2)).unwrap();
        assert_eq!(missing(&mut node, 0..puts), [], "{puts} records");
    }
}

/// While a sync waits for its writes, the log grows on: the sync must not wait for that too.
#[test]
fn syncs_keep_up_with_a_log_that_always_grows() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 4 << 20, memory_bytes: 16 << 20, ..options() };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    for key in 0..5000 {
        node.append(&[put_of(key, 100)]).unwrap();
        // A write lasts until after the next append.
        disk.hang(OpKind::Write);
        node.turn();
        disk.release_hung();
        node.now = node.now.plus_ms(1);
        let progress = node.engine.progress(RANGE);
        let behind = progress.appended.seq() - progress.synced.seq();
        assert!(behind < 1100, "{behind} records are not synced after {key}");
    }
}

/// Whole pages are written beyond the frame that a sync waits for. The watermark is the end of a frame all the same: one
/// within a frame that a power loss tears would make it corrupt.
#[test]
fn a_frame_written_in_part_before_a_sync_is_torn_at_most() {
    let (mut opened, mut torn) = (0, 0);
    for seed in 0..4 {
        let disk = SimDisk::new(SimOptions::instant(seed));
        let options = Options { segment_bytes: 1 << 20, memory_bytes: 8 << 20, ..options() };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        for step in 0..150_u32 {
            node.append(&[put_of(step, 500 + (step as usize * 2711 + seed as usize * 977) % 9000)]).unwrap();
            disk.hang(OpKind::Write);
            node.turn();
            if step % 3 == 0 {
                disk.release_hung();
            }
            node.now = node.now.plus_ms(150);
            let synced = node.engine.progress(RANGE).synced;
            let image = disk.image(Loss::Power, seed * 1000 + u64::from(step));
            let found = TestNode::open(&image, options.clone(), Now::at(90_000));
            let found = found.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
            assert!(found.report.ranges[0].recovered >= synced, "seed {seed}, step {step}");
            (opened, torn) = (opened + 1, torn + usize::from(!found.report.truncated.is_empty()));
        }
        disk.release_hung();
    }
    assert!(torn * 20 > opened, "{torn} of {opened}");
}

/// An opening that is itself interrupted: its frames of the tail file count until the segment has them.
#[test]
fn an_interrupted_opening_keeps_the_tails_frames() {
    let mut interrupted = 0;
    for seed in 0..3 {
        let disk = SimDisk::new(SimOptions::instant(seed));
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        put(&mut node, 0..150);
        drop(node);
        disk.kill(seed);
        disk.capture(Capture::Every { stride: 1, loss: Loss::Process, seed });
        drop(TestNode::open(&disk, options(), Now::at(2)).unwrap());
        disk.capture(Capture::Never);
        for (at, image) in disk.take_images().into_iter().enumerate() {
            let mut node = TestNode::open(&image.disk, options(), Now::at(3)).unwrap();
            interrupted += usize::from(node.report.tail_bytes > 0);
            assert_eq!(missing(&mut node, 0..150), [], "seed {seed}, operation {at}");
            // The frames may be in the page cache only, of a process whose sync failed: an opening writes them durably.
            drop(node);
            image.disk.crash(seed);
            let mut node = TestNode::open(&image.disk, options(), Now::at(4)).unwrap();
            assert_eq!(missing(&mut node, 0..150), [], "seed {seed}, operation {at}, after a power loss");
        }
    }
    assert!(interrupted > 3, "{interrupted}");
}

/// An opening, a check and a dump read 1 MiB at a time. A frame of the tail file may be in two of these reads.
#[test]
fn a_frame_over_the_border_of_two_reads_is_found_whole() {
    let mut straddling = 0;
    for bytes in [10_000, 20_000, 30_000, 40_000, 50_000, 60_000] {
        let options = Options { segment_bytes: 4 << 20, memory_bytes: 16 << 20, ..options() };
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        let (border, mut key) = ((1 << 20) + 4096, 0);
        while key * bytes < border + (100 << 10) {
            node.append(&[put_of(key, bytes as usize)]).unwrap();
            node.settle();
            key += 1;
            if key * bytes < border - (100 << 10) {
                continue;
            }
            let image = disk.image(Loss::Process, 1);
            let appended = node.engine.progress(RANGE).appended;
            let report = check(&mut SimDevice::attach(&image)).unwrap();
            assert!(report.is_sound() && report.records >= u64::from(key), "{bytes} bytes, {key} records: {report:?}");
            let read_only = Options { read_only: true, ..options.clone() };
            let mut read = TestNode::open_in_chain(&image, read_only, Now::at(2)).unwrap();
            let mut dumped = 0;
            let mut count = |_, _: &RecordRef<'_>| {
                dumped += 1;
                Ok::<_, ()>(())
            };
            read.engine.dump(&mut count).unwrap();
            assert_eq!(dumped, key, "{bytes} bytes");
            drop(read);
            let open = TestNode::open(&image, options.clone(), Now::at(2)).unwrap();
            assert_eq!(open.report.ranges[0].recovered, appended, "{bytes} bytes, {key} records");
            straddling += usize::from(open.report.tail_bytes > 0);
            drop(open);
            image.crash(1);
            let open = TestNode::open(&image, options.clone(), Now::at(3)).unwrap();
            assert_eq!(open.report.ranges[0].recovered, appended, "{bytes} bytes, {key} records, after a power loss");
        }
    }
    assert!(straddling > 5, "{straddling}");
}

/// The tail file still has frames that were synced and that the disk lost since. An opening writes them again: the file is
/// invalidated afterwards.
#[test]
fn a_synced_frame_that_the_disk_lost_is_written_again() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for key in 0..220 {
        node.append(&[put_of(key, 100)]).unwrap();
        // The log is never at rest: its end is not recorded.
        disk.hang(OpKind::Sync);
        node.turn();
        disk.release_hung();
        node.now = node.now.plus_ms(10);
    }
    let progress = node.engine.progress(RANGE);
    assert!(progress.synced.seq() > 150 && progress.synced < progress.appended, "{progress:?}");
    drop(node);
    disk.kill(1);
    let segments = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    let is_used = |name: &String| !frames(&disk.contents(name).unwrap()).is_empty();
    let name = segments.into_iter().find(is_used).unwrap();
    let (at, _) = frames(&disk.contents(&name).unwrap())[progress.synced.seq() as usize - 40];
    disk.flip_bits(&name, at as u64 + 100, 1);
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    assert_eq!(missing(&mut node, 0..220), []);
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
    assert_eq!(missing(&mut node, 0..220), [], "what the opening found has been lost");
}

/// After a power loss the tail file may have pages of an earlier generation, whose frames were cut off. The log has others
/// at their offsets, and its recorded end is before both.
#[test]
fn frames_of_an_earlier_generation_are_not_laid_over_newer_ones() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..40);
    drop(node);
    let old_tail = disk.contents("tail").unwrap();
    disk.kill(1);
    disk.put("tail", &vec![0; old_tail.len()]);
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    for key in 0..40 {
        node.append(&[put_of(key, 150)]).unwrap();
        node.settle();
    }
    node.engine.sync_all().unwrap();
    let appended = node.engine.progress(RANGE).appended;
    drop(node);
    disk.kill(1);
    disk.put("tail", &old_tail);
    let node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
    assert_eq!((node.report.ranges[0].recovered, node.report.tail_bytes), (appended, 0));
}

/// A manifest that lost its end knows an older generation. Only the tail file has frames of the last one: without them the
/// opening would not see that anything is missing.
#[test]
fn a_generation_that_only_the_tail_file_has_refuses_the_opening() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..40);
    drop(node);
    disk.kill(1);
    let manifest = disk.contents("manifest").unwrap();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    put(&mut node, 40..45);
    drop(node);
    disk.kill(1);
    disk.put("manifest", &manifest);
    let opened = TestNode::open(&disk, options(), Now::at(3));
    assert!(opened.is_err(), "{:?}", opened.map(|node| node.report));
}

/// A manifest that has lost its end from the listing on of a segment whose frames only the tail file has. `None`: there is no such
/// segment. Returns the segment's name, too.
fn without_listing(disk: &SimDisk) -> Option<(String, Vec<u8>)> {
    let mut manifest = disk.contents("manifest").unwrap();
    let state = decode_all(&manifest).unwrap().state;
    let mut tailed = Vec::new();
    let segment_bytes = options().segment_bytes;
    tail::frames(&disk.contents("tail").unwrap(), state.generation, segment_bytes, |frame, _| tailed.push(frame.uuid));
    let listed = state.segments.iter().filter(|(_, entry)| tailed.contains(&entry.uuid));
    let mut listed = listed.map(|(&slot, entry)| (segment::file_name(slot, entry.uuid), entry.uuid));
    let (name, uuid) = listed.find(|(name, _)| frames(&disk.contents(name).unwrap()).is_empty())?;
    let commits = manifest_commits(&manifest);
    let lists = |&&(at, end): &&(usize, usize)| manifest[at..end].windows(16).any(|bytes| bytes == uuid.0);
    let &(from, _) = commits.iter().find(lists).unwrap();
    manifest[from..].fill(0);
    Some((name, manifest))
}

/// A segment is listed before its first frame, wherever that is: without the listing it is no orphan.
#[test]
fn an_unlisted_segment_whose_frames_only_the_tail_file_has_refuses_the_opening() {
    // The manifest would lose the end of a checkpoint as well, whose file is missing then.
    let options = || Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let mut refused = 0;
    for key in 0..1200 {
        put(&mut node, key..key + 1);
        let image = disk.image(Loss::Process, 1);
        let Some((name, older)) = without_listing(&image) else { continue };
        let manifest = image.contents("manifest").unwrap();
        image.put("manifest", &older);
        let report = check(&mut SimDevice::attach(&image)).unwrap();
        assert!(!report.is_sound(), "{key} records: {report:?}");
        match copy_of(&image, 1000).map(drop) {
            Err(CopyError::Damaged { file, .. }) => assert_eq!(file, name, "{key} records"),
            other => panic!("{key} records: {other:?}"),
        }
        match TestNode::open(&image, options(), Now::at(2)).map(|node| node.report) {
            Err(OpenError::ManifestTailLost { file, .. }) => assert_eq!(file, name, "{key} records"),
            other => panic!("{key} records: {other:?}"),
        }
        let read_only = Options { read_only: true, ..options() };
        let (mut engine, found) = open_for_salvage(|| Ok(SimDevice::attach(&image)), &read_only, Now::at(2)).unwrap();
        assert!(found.is_damaged(), "{key} records: {found:?}");
        let mut salvaged = 0;
        let mut count = |_, _: &RecordRef<'_>| {
            salvaged += 1;
            Ok::<_, ()>(())
        };
        engine.dump(&mut count).unwrap();
        assert_eq!(salvaged, key + 1);
        drop(engine);
        image.put("manifest", &manifest);
        let mut node = TestNode::open(&image, options(), Now::at(2)).unwrap();
        assert_eq!(missing(&mut node, 0..key + 1), []);
        refused += 1;
    }
    assert!(refused > 5, "{refused}");
}

/// A salvage takes the active segment's frames of the tail file, also if the damage is in another segment.
#[test]
fn a_salvage_has_the_tails_frames_of_an_undamaged_segment() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..450);
    drop(node);
    disk.kill(1);
    let report = check(&mut SimDevice::attach(&disk)).unwrap();
    assert!(report.findings.iter().any(|found| found.detail.contains("tail file")), "{report:?}");
    let mut names = disk.names().into_iter().filter(|name| name.starts_with("segment-000000-"));
    let first = names.next().unwrap();
    let (at, _) = frames(&disk.contents(&first).unwrap())[5];
    disk.flip_bits(&first, at as u64 + 64 + 100, 1);
    let read_only = Options { read_only: true, ..options() };
    let (mut engine, report) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &read_only, Now::at(2)).unwrap();
    assert!(report.is_damaged(), "{report:?}");
    let mut keys = Vec::new();
    let mut take = |_, record: &RecordRef<'_>| {
        keys.push(record.key.to_vec());
        Ok::<_, ()>(())
    };
    engine.dump(&mut take).unwrap();
    let is_lost = |key: &u32| !keys.contains(&key.to_be_bytes().to_vec());
    let lost: Vec<_> = (0..450).filter(is_lost).collect();
    assert!(lost.len() <= 1, "{lost:?}");
}

//! The tail file of `everysec`: writes that survive a kill without a write of the device, and openings that find them.
use crate::manifest_full::used_bytes;
use crate::support::{RANGE, TestNode, TestWrite, frames, small};
use fawn_ds::internals::check::{Severity, check};
use fawn_ds::internals::{Engine, EngineError, OpenError, Options, View, open_for_salvage};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{Device, IoClass, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const TAIL: &str = "tail";
const TAIL_BYTES: usize = 256 << 10;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 8 << 20, ..small(Durability::EverySecond) }
}

fn put_of(key: u32, bytes: usize) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![key as u8; bytes]), expires_at_ms: 0 }
}

fn disk() -> SimDisk {
    SimDisk::new(SimOptions::instant(1))
}

/// Puts one record per iteration, in no time.
fn put(node: &mut TestNode, keys: std::ops::Range<u32>) {
    for key in keys {
        node.append(&[put_of(key, 100)]).unwrap();
        node.settle();
    }
}

/// Until the log is synced and its end recorded.
fn rest(node: &mut TestNode) {
    for _ in 0..8 {
        node.now = node.now.plus_ms(500);
        node.turn();
    }
}

fn dumped(engine: &mut Engine<SimDevice>) -> usize {
    let mut records = 0;
    let dumped = engine.dump(|_, _| -> Result<(), ()> {
        records += 1;
        Ok(())
    });
    dumped.unwrap();
    records
}

fn missing(node: &mut TestNode, keys: std::ops::Range<u32>) -> Vec<u32> {
    let has = |node: &mut TestNode, key: u32| {
        let found = node.get(&key.to_be_bytes(), View::Committed).unwrap();
        found.is_some_and(|entry| entry.value == put_of(key, 100).value.unwrap())
    };
    keys.filter(|&key| !has(node, key)).collect()
}

/// The active segment: its name, and the end of its last frame.
fn active(disk: &SimDisk) -> (String, usize) {
    let names = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    let ends = names.map(|name| {
        let end = frames(&disk.contents(&name).unwrap()).last().map_or(4096, |&(_, end)| end);
        (name, end)
    });
    ends.max().unwrap()
}

#[test]
fn small_flushes_write_whole_pages_once() {
    let disk = disk();
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    let before = *node.engine.stats();
    let flushed = |node: &TestNode| node.engine.device().stats().of(IoClass::Flush).written_bytes;
    let flushed_before = flushed(&node);
    for key in 0..4000 {
        node.append(&[put_of(key, 100)]).unwrap();
        node.turn();
        assert_eq!(node.engine.progress(RANGE).committed, node.engine.progress(RANGE).appended, "acknowledged at once");
        node.now = node.now.plus_ms(1);
    }
    let after = *node.engine.stats();
    let log_bytes = after.record_bytes - before.record_bytes + 64 * (after.frames - before.frames);
    assert_eq!(after.tail_frames - before.tail_frames, 4000);
    // A page for each sync, and one for what the last write leaves.
    let syncs = after.syncs - before.syncs;
    assert!((3..=6).contains(&syncs), "{syncs} syncs in four seconds");
    let written_bytes = flushed(&node) - flushed_before;
    assert!(written_bytes <= log_bytes + (syncs + 1) * 8192, "{written_bytes} bytes written of {log_bytes}");
    let writes = after.writes - before.writes;
    assert!(writes <= log_bytes / (64 << 10) + 3 * syncs, "{writes} writes of {log_bytes} bytes");
}

#[test]
fn a_kill_after_each_store_keeps_what_was_acknowledged() {
    let mut tailed = 0;
    for seed in 0..3 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        for key in 0..400 {
            node.append(&[put_of(key, 100 + key as usize * 5)]).unwrap();
            disk.capture(Capture::Every { stride: 1, loss: Loss::Process, seed });
            node.turn();
            disk.capture(Capture::Never);
            node.now = node.now.plus_ms(17);
            let acked = node.engine.progress(RANGE).committed;
            let images = disk.take_images();
            let last = images.len().saturating_sub(1);
            for (i, image) in images.into_iter().enumerate() {
                let node = TestNode::open(&image.disk, options(), Now::at(9000)).unwrap();
                tailed += usize::from(node.report.tail_bytes > 0);
                let found = node.report.ranges[0].recovered;
                assert!(
                    found >= acked || i < last && found.seq() + 1 == acked.seq(),
                    "seed {seed}, key {key}: {found:?}"
                );
                assert!(node.report.truncated.is_empty() || i < last, "seed {seed}, key {key}: {:?}", node.report);
            }
        }
    }
    assert!(tailed > 1000, "{tailed}");
}

#[test]
fn frames_of_an_earlier_generation_never_come_back() {
    for seed in 0..20 {
        let disk = disk();
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        put(&mut node, 0..20);
        let old_tail = disk.contents(TAIL).unwrap();
        disk.kill(seed);
        // Their segment's end is lost too: a power loss, after which the log continues at the same offsets.
        let (name, _) = active(&disk);
        let zeroed = vec![0; TAIL_BYTES];
        disk.put(TAIL, &zeroed);
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        assert_eq!(missing(&mut node, 0..20).len(), 20, "seed {seed}");
        put(&mut node, 100..103);
        rest(&mut node);
        disk.kill(seed);
        assert!(!frames(&disk.contents(&name).unwrap()).is_empty());
        // The pages of the tail file were never synced: any earlier content may be on the disk.
        let newer = disk.contents(TAIL).unwrap();
        let mixed: Vec<u8> = (0..TAIL_BYTES)
            .map(|at| if seed == 0 || (at / 4096 + seed as usize).is_multiple_of(3) { old_tail[at] } else { newer[at] })
            .collect();
        disk.put(TAIL, &mixed);
        let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
        assert_eq!(missing(&mut node, 100..103), [], "seed {seed}");
        assert_eq!(missing(&mut node, 0..20).len(), 20, "seed {seed}: an old frame is back");
    }
}

#[test]
fn any_content_of_the_tail_file_leaves_the_log_as_it_is() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..50);
    rest(&mut node);
    disk.kill(1);
    let tail = disk.contents(TAIL).unwrap();
    let mut cases = vec![Vec::new(), vec![0; 100], vec![0xFF; TAIL_BYTES], tail[..TAIL_BYTES / 2].to_vec()];
    cases.push(tail.iter().copied().cycle().skip(64).take(2 * TAIL_BYTES).collect());
    for bit in 0..400 {
        let mut flipped = tail.clone();
        flipped[bit * 41 % 8000] ^= 1 << (bit % 8);
        cases.push(flipped);
    }
    for (case, content) in cases.iter().enumerate() {
        let disk = disk.image(Loss::Process, 0);
        disk.put(TAIL, content);
        assert!(check(&mut SimDevice::attach(&disk)).unwrap().is_sound(), "case {case}");
        let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
        assert_eq!(missing(&mut node, 0..50), [], "case {case}");
        put(&mut node, 50..60);
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), Now::at(4)).unwrap();
        assert_eq!(missing(&mut node, 0..60), [], "case {case}");
    }
}

#[test]
fn a_store_that_is_only_read_has_the_tails_frames() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..300);
    rest(&mut node);
    put(&mut node, 300..340);
    drop(node);
    disk.kill(1);
    let before = disk.contents(&active(&disk).0).unwrap();
    let report = check(&mut SimDevice::attach(&disk)).unwrap();
    assert!(report.is_sound() && report.records >= 340, "{report:?}");
    let notes = report.findings.iter().filter(|finding| finding.severity == Severity::Note);
    assert!(notes.filter(|note| note.detail.contains("tail file")).count() == 1, "{report:?}");
    let read_only = Options { read_only: true, ..options() };
    let mut node = TestNode::open_in_chain(&disk, read_only.clone(), Now::at(2)).unwrap();
    assert_eq!(missing(&mut node, 0..340), []);
    assert!(node.report.tail_bytes > 0);
    assert_eq!(dumped(&mut node.engine), 340);
    drop(node);
    assert_eq!(disk.contents(&active(&disk).0).unwrap(), before, "nothing was written");
    // With other damage, a salvage has them too.
    let (name, _) = active(&disk);
    let (at, _) = frames(&disk.contents(&name).unwrap())[5];
    disk.flip_bits(&name, at as u64 + 64 + 100, 1);
    let (mut engine, report) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &read_only, Now::at(2)).unwrap();
    assert!(report.is_damaged());
    let salvaged = dumped(&mut engine);
    assert!((335..340).contains(&salvaged), "{salvaged}");
}

/// Openings that compare keys at once, because the memory for deferring that is used up, read records of the tail's frames.
#[test]
fn keys_are_compared_with_the_tails_frames() {
    let small_memory = Options { memory_bytes: 256 << 10, checkpoint_log_bytes_min: u64::MAX, ..options() };
    for read_only in [true, false] {
        let disk = disk();
        let mut node = TestNode::open(&disk, small_memory.clone(), Now::at(1)).unwrap();
        for round in 0..4 {
            put(&mut node, 0..40 + round);
        }
        drop(node);
        disk.kill(1);
        let options = Options { read_only, ..small_memory.clone() };
        let mut node = TestNode::open_in_chain(&disk, options, Now::at(2)).unwrap();
        assert!(node.report.tail_bytes > 4096, "{:?}", node.report);
        if !read_only {
            let last = node.engine.progress(RANGE).appended;
            node.engine.commit(RANGE, last);
        }
        assert_eq!(missing(&mut node, 0..43), [], "read only: {read_only}");
    }
}

#[test]
fn an_unreadable_tail_file_refuses_the_opening() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..300);
    rest(&mut node);
    // The first write after a rest is synced at once.
    put(&mut node, 300..302);
    drop(node);
    disk.kill(1);
    disk.make_unreadable(TAIL, 0..4096);
    let refused = TestNode::open(&disk, options(), Now::at(2));
    assert!(matches!(refused, Err(OpenError::Device(_))), "{:?}", refused.err());
    let report = check(&mut SimDevice::attach(&disk)).unwrap();
    assert!(report.findings.iter().any(|found| found.severity == Severity::Damage && found.file == TAIL), "{report:?}");
    let read_only = Options { read_only: true, ..options() };
    let (mut engine, report) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &read_only, Now::at(2)).unwrap();
    assert!(report.is_damaged());
    let salvaged = dumped(&mut engine);
    assert_eq!(salvaged, 301, "all but the record that is in the tail file alone");
    drop(engine);
    disk.heal();
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    assert_eq!(missing(&mut node, 0..302), []);
    drop(node.engine.close().unwrap());
    assert!(!disk.names().contains(&TAIL.to_owned()), "a closed store does not depend on it");
}

/// The number of records that a salvage without the manifest has, and the files of which it reports a loss.
fn salvaged_without_manifest(disk: &SimDisk) -> (usize, Vec<String>) {
    SimDevice::attach(disk).unlink("manifest").unwrap();
    let (mut engine, found) = open_for_salvage(|| Ok(SimDevice::attach(disk)), &options(), Now::at(4)).unwrap();
    (dumped(&mut engine), found.missing.into_iter().map(|lost| lost.file).collect())
}

#[test]
fn a_salvage_without_a_manifest_has_the_tails_frames() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..300);
    rest(&mut node);
    put(&mut node, 300..340);
    drop(node);
    disk.kill(1);
    let unreadable = disk.image(Loss::Process, 1);
    assert_eq!(salvaged_without_manifest(&disk), (340, vec![]));
    unreadable.make_unreadable(TAIL, 0..TAIL_BYTES as u64);
    let (records, lost) = salvaged_without_manifest(&unreadable);
    assert!((300..340).contains(&records) && lost == [TAIL], "{records} {lost:?}");
}

/// As in `frames_of_an_earlier_generation_never_come_back`, and no manifest has the generation.
#[test]
fn a_salvage_without_a_manifest_takes_no_frames_of_an_earlier_generation() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..20);
    let old_tail = disk.contents(TAIL).unwrap();
    disk.kill(1);
    disk.put(TAIL, &vec![0; TAIL_BYTES]);
    let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
    put(&mut node, 100..103);
    rest(&mut node);
    disk.kill(1);
    disk.put(TAIL, &old_tail);
    assert_eq!(salvaged_without_manifest(&disk), (3, vec![]));
}

#[test]
fn the_next_opening_may_be_of_another_durability() {
    for durability in [Durability::Sync, Durability::Memory] {
        let disk = disk();
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        put(&mut node, 0..100);
        drop(node);
        disk.kill(1);
        let mut node = TestNode::open(&disk, Options { durability, ..options() }, Now::at(2)).unwrap();
        assert!(node.report.tail_bytes > 0);
        assert_eq!(missing(&mut node, 0..100), []);
        assert!(!disk.names().contains(&TAIL.to_owned()), "{durability:?}");
        drop(node);
        // An opening syncs the frames that it found.
        disk.crash(1);
        let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
        assert_eq!(missing(&mut node, 0..100), []);
    }
}

#[test]
fn without_a_tail_file_every_flush_is_a_write() {
    for kind in [OpKind::Map, OpKind::Create, OpKind::Allocate] {
        let disk = disk();
        let node = TestNode::open(&disk, Options { durability: Durability::Sync, ..options() }, Now::at(1)).unwrap();
        drop(node.engine.close().unwrap());
        match kind {
            OpKind::Map => disk.fail_every(kind, DeviceFault::Fail),
            OpKind::Create => disk.fail_every(kind, DeviceFault::Full),
            _ => disk.set_capacity_bytes(Some(used_bytes(&disk))),
        }
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        disk.clear_faults();
        disk.set_capacity_bytes(None);
        assert!(node.report.tail_refused.is_some(), "{kind:?}");
        let writes = node.engine.stats().writes;
        put(&mut node, 0..10);
        assert_eq!((node.engine.stats().tail_frames, node.engine.stats().writes - writes), (0, 10), "{kind:?}");
        drop(node);
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
        assert_eq!(missing(&mut node, 0..10), [], "{kind:?}");
        put(&mut node, 10..20);
        assert_eq!(node.engine.stats().tail_frames, 10, "{kind:?}: the next opening has one");
    }
}

#[test]
fn a_hung_device_is_noticed_once_the_tail_file_is_full() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    disk.hang(OpKind::Write);
    let mut acked = 0;
    for key in 0..3000 {
        if node.engine.progress(RANGE).committed < node.engine.progress(RANGE).appended {
            break;
        }
        node.append(&[put_of(key, 100)]).unwrap();
        node.turn();
        acked = key;
    }
    assert!((500..2999).contains(&acked), "{acked} acknowledged by the tail file");
    let image = disk.image(Loss::Process, 1);
    let mut killed = TestNode::open(&image, options(), Now::at(2)).unwrap();
    assert_eq!(missing(&mut killed, 0..acked), []);
    disk.release_hung();
    node.settle();
    put(&mut node, 5000..5010);
    assert_eq!(missing(&mut node, 5000..5010), []);
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
    assert_eq!((missing(&mut node, 0..acked), node.report.tail_bytes), (vec![], 0));
}

#[test]
fn a_failed_write_of_the_log_poisons_and_an_opening_has_the_frames() {
    for kind in [OpKind::Write, OpKind::Sync] {
        let disk = disk();
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        put(&mut node, 0..30);
        disk.fail_every(kind, DeviceFault::Fail);
        rest(&mut node);
        disk.clear_faults();
        assert!(node.engine.poisoned().is_some(), "{kind:?}");
        assert!(matches!(node.append(&[put_of(99, 100)]), Err(EngineError::Poisoned { .. })), "{kind:?}");
        drop(node);
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        assert_eq!(missing(&mut node, 0..30), [], "{kind:?}");
    }
}

/// A mix of small and large frames, with the tail file full now and then, in a few segments: kills at random times.
#[test]
fn frames_beyond_the_tail_file_keep_their_order() {
    let (mut direct, mut tailed) = (0, 0);
    for seed in 0..40 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        let mut key = 0;
        for step in 0..120 {
            let (count, len) = match (step * 7 + seed) % 5 {
                0 => (1, 100_000),
                1 => (40, 2000),
                2 => (300, 200),
                _ => (1, 100),
            };
            let batch: Vec<_> = (key..key + count).map(|key| put_of(key, len)).collect();
            key += count;
            for write in &batch {
                node.append(std::slice::from_ref(write)).unwrap();
            }
            node.turn();
            node.now = node.now.plus_ms(40);
            if step % 30 == 29 {
                let acked = node.engine.progress(RANGE).flushed;
                let image = disk.image(Loss::Process, seed);
                let found = TestNode::open(&image, options(), Now::at(9000)).unwrap();
                tailed += usize::from(found.report.tail_bytes > 0);
                assert!(found.report.ranges[0].recovered >= acked, "seed {seed}, step {step}");
            }
        }
        let stats = node.engine.stats();
        direct += stats.frames - stats.tail_frames;
        node.settle();
        let appended = node.engine.progress(RANGE).appended;
        drop(node.engine.close().unwrap());
        disk.crash(seed);
        let node = TestNode::open(&disk, options(), Now::at(9000)).unwrap();
        assert_eq!(node.report.ranges[0].recovered, appended, "seed {seed}");
    }
    assert!(direct > 500 && tailed > 50, "{direct} {tailed}");
}

/// Without reserved space, a store into a hole of the mapped file ends the process on a full disk.
#[test]
fn a_tail_file_of_full_length_is_written_whole() {
    for loss in [Loss::Process, Loss::Power] {
        let (mut whole, mut unfinished) = (0, 0);
        for seed in 0..10 {
            let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
            let sync = Options { durability: Durability::Sync, ..options() };
            TestNode::open(&disk, sync, Now::at(1)).unwrap().engine.close().unwrap();
            // Not zeros, which holes would read as.
            disk.put(TAIL, &[1; TAIL_BYTES - 4096]);
            disk.capture(Capture::Every { stride: 1, loss, seed });
            TestNode::open(&disk, options(), Now::at(2)).unwrap();
            disk.capture(Capture::Never);
            for image in disk.take_images() {
                let tail = image.disk.contents(TAIL).unwrap();
                match tail.len() {
                    TAIL_BYTES => {
                        assert!(tail.iter().all(|byte| *byte == 0), "{loss:?}, seed {seed}, operation {}", image.op);
                        whole += 1;
                    }
                    _ => unfinished += 1,
                }
                TestNode::open(&image.disk, options(), Now::at(3)).unwrap();
                assert!(image.disk.contents(TAIL).unwrap() == [0; TAIL_BYTES]);
            }
        }
        assert!(whole > 20 && unfinished > 20, "{loss:?}: {whole} whole, {unfinished} unfinished");
    }
}

/// A frame that is not in the tail file is behind one that is, in the same page.
#[test]
fn a_read_only_opening_holds_parts_that_end_in_a_page() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    disk.capture(Capture::Every { stride: 1, loss: Loss::Process, seed: 1 });
    let long_key = |key: u32| (key + 1_000).to_be_bytes().to_vec();
    for key in 0..3 {
        put(&mut node, key..key + 1);
        node.append(&[TestWrite { key: long_key(key), value: Some(vec![7; 70_000]), expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    disk.capture(Capture::Never);
    drop(node);
    disk.kill(1);
    let read_only = Options { read_only: true, ..options() };
    let mut node = TestNode::open_in_chain(&disk, read_only.clone(), Now::at(2)).unwrap();
    assert_eq!(missing(&mut node, 0..3), Vec::<u32>::new());
    for key in 0..3 {
        assert!(node.get(&long_key(key), View::Committed).unwrap().is_some());
    }
    for image in disk.take_images() {
        let opened = TestNode::open_in_chain(&image.disk, read_only.clone(), Now::at(2));
        opened.unwrap_or_else(|error| panic!("operation {}: {error}", image.op));
    }
}

/// The tail file still has the first frame of the segment, and the last ones.
#[test]
fn a_read_only_opening_holds_only_what_the_segment_lacks() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0..1);
    for key in 1..40 {
        node.append(&[TestWrite { value: Some(vec![key as u8; 20_000]), ..put_of(key, 0) }]).unwrap();
        node.settle();
    }
    put(&mut node, 40..43);
    drop(node);
    disk.kill(1);
    let read_only = Options { read_only: true, ..options() };
    let mut node = TestNode::open_in_chain(&disk, read_only, Now::at(2)).unwrap();
    let buffer_bytes = node.engine.memory().buffer_bytes;
    assert!((1..=64 << 10).contains(&buffer_bytes), "{buffer_bytes} bytes of buffers");
    assert_eq!((missing(&mut node, 0..1), missing(&mut node, 40..43)), (vec![], vec![]));
}

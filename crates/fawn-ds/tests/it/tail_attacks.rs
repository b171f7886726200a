//! Faults that a review of the tail file proved, and its attacks that did not succeed.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{RANGE, TestNode, TestWrite, frames, small};
use fawn_ds::internals::{Engine, Options, View, open_for_salvage};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now, RangeId};

fn options() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 8 << 20, ..small(Durability::EverySecond) }
}

fn read_only() -> Options {
    Options { read_only: true, ..options() }
}

fn put_of(key: u32, fill: u8, bytes: usize) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![fill; bytes]), expires_at_ms: 0 }
}

fn disk() -> SimDisk {
    SimDisk::new(SimOptions::instant(1))
}

fn put(node: &mut TestNode, key: u32, fill: u8) {
    node.append(&[put_of(key, fill, 100)]).unwrap();
    node.settle();
}

/// Until the log is synced and its end recorded.
fn rest(node: &mut TestNode) {
    for _ in 0..8 {
        node.now = node.now.plus_ms(500);
        node.turn();
    }
}

/// A store whose key 1 was acknowledged twice since the last write of the log; the process was killed.
fn overwritten_in_the_tail() -> SimDisk {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    put(&mut node, 0, 0);
    rest(&mut node);
    put(&mut node, 0, 1); // The first write after a rest is synced at once.
    put(&mut node, 1, 2);
    put(&mut node, 1, 3);
    drop(node);
    disk.kill(1);
    disk
}

/// Once lost: the whole store for readers. The opening compares the second record with the first one, which it reads from the
/// segment alone, where it is not.
#[test]
fn a_store_with_a_key_overwritten_in_the_tail_is_read() {
    let disk = overwritten_in_the_tail();
    let node = TestNode::open_in_chain(&disk, read_only(), Now::at(2));
    let mut node = node.unwrap_or_else(|error| panic!("refused: {error}"));
    assert_eq!(node.get(&1u32.to_be_bytes(), View::Committed).unwrap().unwrap().value, vec![3; 100]);
}

/// Once lost: everything that a salvage of a damaged store would have found.
#[test]
fn a_store_with_a_key_overwritten_in_the_tail_is_salvaged() {
    let disk = overwritten_in_the_tail();
    let names = disk.names();
    let name = names.iter().find(|name| !frames(&disk.contents(name).unwrap()).is_empty()).unwrap();
    let (at, _) = frames(&disk.contents(name).unwrap())[0];
    disk.flip_bits(name, at as u64 + 64 + 100, 1);
    let (mut engine, report) = open_for_salvage(|| Ok(SimDevice::attach(&disk)), &read_only(), Now::at(2))
        .unwrap_or_else(|error| panic!("no salvage: {error}"));
    assert!(report.is_damaged());
    let mut salvaged = 0;
    let dumped = engine.dump(|_, _| {
        salvaged += 1;
        Ok::<_, ()>(())
    });
    dumped.unwrap();
    assert_eq!(salvaged, 2);
}

/// Once lost: lookups of what only the tail file has, once the next segment is prepared: the newest segment is not the last one
/// with frames.
#[test]
fn a_store_with_a_prepared_segment_is_read() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let segments = |disk: &SimDisk| disk.names().iter().filter(|name| name.starts_with("segment-")).count();
    let mut last = 0;
    while segments(&disk) < 2 {
        last += 1;
        node.append(&[put_of(last, 5, 1000)]).unwrap();
        node.settle();
    }
    rest(&mut node);
    for _ in 0..10 {
        last += 1;
        node.append(&[put_of(last, 5, 1000)]).unwrap();
        node.settle();
    }
    drop(node);
    disk.kill(1);
    let mut node = TestNode::open_in_chain(&disk, read_only(), Now::at(2)).unwrap();
    assert!(node.report.tail_bytes > 0);
    let found = node.get(&last.to_be_bytes(), View::Committed);
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.unwrap().value, vec![5; 1000]);
}

/// Once lost after a power loss: what was acknowledged up to two seconds before, instead of one. A sync that was wanted at once
/// waits for a write, then is not wanted any more. The next regular one covers only what that would have.
#[test]
fn a_sync_covers_what_was_flushed_when_it_starts() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    rest(&mut node);
    put(&mut node, 0, 1);
    rest(&mut node);
    put(&mut node, 1, 1); // Synced at once.
    node.turn();
    put(&mut node, 2, 1);
    disk.hang(OpKind::Write);
    node.engine.set_eager_sync(true);
    node.engine.submit(node.now);
    assert!(disk.hung() > 0);
    node.engine.set_eager_sync(false);
    disk.release_hung();
    node.turn();
    node.now = node.now.plus_ms(100);
    put(&mut node, 3, 1);
    let acked = node.engine.progress(RANGE).committed;
    // More than a second later, and every operation has ended.
    for _ in 0..11 {
        node.now = node.now.plus_ms(100);
        node.turn();
    }
    let image = disk.image(Loss::Power, 1);
    let found = TestNode::open(&image, options(), Now::at(90_000)).unwrap().report.ranges[0].recovered;
    assert!(node.engine.progress(RANGE).synced >= acked && found >= acked, "{found:?} of {acked:?}");
}

/// Once lost: the filing of the active segment after a split, for ten seconds and under a warning of corruption. It ends where the
/// log is written, which may be within a frame now.
#[test]
fn the_active_segment_is_filed_while_it_takes_writes() {
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..options() };
    let mut failed = Vec::new();
    for count in [9500, 9520, 9540, 9560, 9580] {
        let mut harness = RangeHarness::new(disk(), options.clone(), true);
        harness.add(1, KeyRange::ALL);
        for key in 0..count {
            harness.write(&u32::to_be_bytes(key), Some(&[1; 1000]));
            if key % 16 == 0 {
                harness.turn();
            }
        }
        harness.settle();
        harness.split(1, ring_at(0x60), 2, 3);
        // Until all segments are filed, which takes less than a second.
        for key in 0..1000u32 {
            harness.write(&key.to_be_bytes(), Some(&[2; 1000]));
            harness.now = harness.now.plus_ms(1);
            harness.turn();
        }
        failed.push((harness.engine.stats().filing_failed, harness.engine.segments_to_file()));
    }
    assert_eq!(failed, [(0, 0); 5], "segments that could not be filed, and those that are not");
}

/// An attack that did not succeed: kills and power losses at every operation of the opening that applies the tail, with frames
/// behind an unfinished large one.
#[test]
fn an_interrupted_opening_leaves_the_tail_for_the_next() {
    let mut tailed = 0;
    for seed in 0..6 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        for key in 0..60 {
            let bytes = if (key + seed as u32) % 23 == 22 { 70_000 } else { 700 };
            node.append(&[put_of(key, key as u8, bytes)]).unwrap();
            node.turn();
            node.now = node.now.plus_ms(1);
        }
        let acked = node.engine.progress(RANGE).committed;
        drop(node);
        disk.kill(seed);
        for loss in [Loss::Process, Loss::Power] {
            let disk = disk.image(Loss::Process, seed);
            disk.capture(Capture::Every { stride: 1, loss, seed });
            let node = TestNode::open(&disk, options(), Now::at(90_000)).unwrap();
            tailed += usize::from(node.report.tail_bytes > 0);
            disk.capture(Capture::Never);
            drop(node);
            let images = disk.take_images();
            let mut highest = None;
            for (i, image) in images.into_iter().enumerate() {
                let node = TestNode::open(&image.disk, options(), Now::at(90_001))
                    .unwrap_or_else(|error| panic!("seed {seed}, {loss:?}, image {i}: {error}"));
                let found = node.report.ranges[0].recovered;
                assert!(loss == Loss::Power || found >= acked, "seed {seed}, image {i}: {found:?} of {acked:?}");
                highest = Some(found);
                // Everything that an opening has found stays, also for those after a power loss.
                drop(node);
                image.disk.crash(seed + i as u64);
                let node = TestNode::open(&image.disk, options(), Now::at(90_002))
                    .unwrap_or_else(|error| panic!("seed {seed}, {loss:?}, image {i}, again: {error}"));
                assert!(node.report.ranges[0].recovered >= found, "seed {seed}, {loss:?}, image {i}");
            }
            assert!(highest >= Some(acked), "seed {seed}, {loss:?}: a complete opening");
        }
    }
    assert!(tailed > 0);
}

/// An attack that did not succeed: power losses at every operation of writes, syncs and stores, in a chain; no opening refuses,
/// and what is synced stays.
#[test]
fn power_losses_never_look_like_corruption() {
    for seed in 0..4 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let options = Options { segment_bytes: 128 << 10, ..options() };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        for key in 0..600u32 {
            let bytes = if key % 37 == 36 { 20_000 } else { 500 };
            node.append(&[put_of(key % 50, key as u8, bytes)]).unwrap();
            disk.capture(Capture::Every { stride: 3, loss: Loss::Power, seed: seed + u64::from(key) });
            let synced = node.engine.progress(RANGE).synced;
            node.turn();
            disk.capture(Capture::Never);
            node.now = node.now.plus_ms(13);
            for (i, image) in disk.take_images().into_iter().enumerate() {
                let context = format!("seed {seed}, key {key}, image {i}");
                let found = TestNode::open(&image.disk, options.clone(), Now::at(90_000));
                let mut found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
                let recovered = found.report.ranges[0].recovered;
                assert!(recovered >= synced, "{context}: {recovered:?} of {synced:?}");
                // The log continues at the same offsets, and the tail file has older pages again.
                put(&mut found, 7, 77);
                drop(found);
                image.disk.crash(seed + 1);
                let found = TestNode::open(&image.disk, options.clone(), Now::at(91_000));
                let found = found.unwrap_or_else(|error| panic!("{context}, again: {error}"));
                assert!(found.report.ranges[0].recovered >= recovered, "{context}, again");
            }
        }
    }
}

/// Once lost: time. A write that the tail file has flushed is reported only when an unrelated sync completes, however long that
/// takes: hosts that submit and wait, as the closed loops of fawn-bench do, acknowledge it that late.
#[test]
fn a_wait_reports_progress_before_a_completion() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let mut waited = Vec::new();
    for key in 0..2000 {
        node.append(&[put_of(key, 1, 100)]).unwrap();
        node.engine.submit(node.now);
        let before = disk.tick();
        if node.engine.has_progress() && node.engine.in_flight() > 0 {
            node.engine.wait(node.now, &mut Vec::new());
            waited.push(disk.tick() - before);
        } else {
            node.engine.poll(node.now, &mut Vec::new());
        }
        node.commit();
        node.now = node.now.plus_ms(3);
    }
    assert!(waited.len() > 5);
    // A reap without a wait takes one.
    assert!(waited.iter().all(|&ticks| ticks <= 1), "{waited:?}");
}

/// An attack that did not succeed: no read of the opening that applies the tail may fail or go astray in a way that cuts off
/// what was acknowledged.
#[test]
fn failed_operations_of_an_opening_lose_nothing() {
    let disk = disk();
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for key in 0..400 {
        node.append(&[put_of(key, key as u8, 500)]).unwrap();
        node.settle();
    }
    let acked = node.engine.progress(RANGE).committed;
    drop(node);
    disk.kill(1);
    let (mut refused, mut opened) = (0, 0);
    for kind in OpKind::ALL {
        for nth in 1..=12 {
            let disk = disk.image(Loss::Process, 1);
            disk.fail_nth(kind, nth, DeviceFault::Fail);
            match TestNode::open(&disk, options(), Now::at(2)) {
                Ok(node) => {
                    opened += 1;
                    assert!(node.report.ranges[0].recovered >= acked, "{kind:?} {nth}");
                }
                Err(_) => refused += 1,
            }
            disk.clear_faults();
            disk.crash(nth);
            // The tail file of before, if the refused opening has not made its content durable.
            let node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
            assert!(node.report.ranges[0].recovered <= acked, "{kind:?} {nth}");
        }
        for nth in 1..=12 {
            let disk = disk.image(Loss::Process, 1);
            disk.fail_nth(kind, nth, DeviceFault::Fail);
            drop(TestNode::open(&disk, options(), Now::at(2)));
            disk.clear_faults();
            disk.kill(nth);
            let node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
            assert!(node.report.ranges[0].recovered >= acked, "{kind:?} {nth}: the next opening");
        }
    }
    assert!(refused > 10 && opened > 10, "{refused} {opened}");
}

/// Once lost: the store, for every opening, until someone removes the tail file. Another range has survivors of a higher epoch, so the
/// opening compares some records at once, and reads the older ones from the segment alone.
#[test]
fn a_store_of_two_ranges_with_keys_overwritten_in_the_tail_is_opened() {
    let disk = disk();
    let options = Options {
        segment_bytes: 128 << 10,
        memory_bytes: 1 << 20,
        checkpoint_log_bytes_min: u64::MAX,
        space_amplification_max_percent: 110,
        ..options()
    };
    let mut harness = RangeHarness::new(disk.clone(), options, true);
    let (low, high) = (KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL }, ring_at(0x80));
    harness.add(1, low);
    harness.add(2, KeyRange { start: high, ..KeyRange::ALL });
    for _ in 0..3 {
        let content = harness.models[&RangeId(1)].content.clone();
        harness.enter(RangeId(1), low, content);
    }
    let keys = (0..8000u32).map(u32::to_be_bytes);
    let (of_first, of_second): (Vec<[u8; 4]>, Vec<[u8; 4]>) =
        keys.partition(|key| harness.range_of(&key[..]) == Some(RangeId(1)));
    for i in 0..40_000usize {
        // One in eight stays for long, so that segments do not die as a whole.
        let key = if i % 8 == 0 { i / 8 } else { i * i };
        harness.write(&of_first[key % of_first.len()], Some(&[1; 60]));
        if i % 16 == 0 {
            harness.turn();
        }
    }
    harness.settle();
    let moved = harness.engine.stats().moved_records;
    assert!(moved > 1000, "{moved}");
    for round in 0..2 {
        for key in &of_second[..200] {
            harness.write(&key[..], Some(&[round; 10]));
        }
    }
    harness.turn();
    assert_eq!(harness.engine.progress(RangeId(2)).flushed, harness.engine.progress(RangeId(2)).appended);
    disk.kill(1);
    let opened = Engine::open(SimDevice::attach(&disk), harness.options.clone(), harness.now);
    let (_, report) = opened.unwrap_or_else(|error| panic!("refused: {error}"));
    assert!(report.tail_bytes > 0);
}

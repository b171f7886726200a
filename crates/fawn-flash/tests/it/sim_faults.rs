//! Tests of the simulated device's faults: each occurs, and occurs only where it may.
use crate::support::{BLOCK, drain, pattern, read, sync, write, write_durable};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{Device, DeviceError, IoClass, SimDevice, SimDisk, SimOptions, Token};
use std::collections::BTreeSet;

fn disk() -> SimDisk {
    SimDisk::new(SimOptions::instant(11))
}

/// A durable file of `blocks` blocks with tag 1.
fn durable_file(device: &mut SimDevice, name: &str, blocks: usize) -> fawn_flash::FileId {
    let file = device.create(name).unwrap();
    write(device, file, 0, pattern(1, blocks * BLOCK)).unwrap();
    sync(device, file).unwrap();
    device.sync_dir().unwrap();
    file
}

#[test]
fn synced_data_survives_every_crash_and_unsynced_sectors_survive_each_on_its_own() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 2);
    write(&mut device, file, BLOCK as u64, pattern(2, BLOCK)).unwrap();
    let (old, new) = (pattern(1, 2 * BLOCK), pattern(2, BLOCK));
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let found = disk.image(Loss::Power, seed).contents("f").unwrap();
        assert_eq!(found[..BLOCK], old[..BLOCK], "seed {seed}");
        let survived: Vec<bool> = (0..8)
            .map(|sector| {
                let range = sector * 512..(sector + 1) * 512;
                let bytes = &found[BLOCK..][range.clone()];
                let is_new = bytes == &new[range.clone()];
                assert!(
                    is_new || bytes == &old[BLOCK..][range],
                    "seed {seed}: a sector is entirely old or entirely new"
                );
                is_new
            })
            .collect();
        outcomes.insert(survived);
    }
    assert!(outcomes.len() > 50, "torn in many ways: {}", outcomes.len());
    assert!(outcomes.contains(&vec![true; 8]) && outcomes.contains(&vec![false; 8]));
}

#[test]
fn names_survive_only_by_a_directory_sync() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    durable_file(&mut device, "old", 1);
    let file = device.create("tmp").unwrap();
    write(&mut device, file, 0, pattern(7, BLOCK)).unwrap();
    sync(&mut device, file).unwrap();
    device.rename("tmp", "old").unwrap();
    let found: BTreeSet<Vec<String>> = (0..100).map(|seed| disk.image(Loss::Power, seed).names()).collect();
    let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(found, BTreeSet::from([names(&["old"]), names(&["old", "tmp"])]));
    device.sync_dir().unwrap();
    for seed in 0..50 {
        let image = disk.image(Loss::Power, seed);
        assert_eq!(image.names(), names(&["old"]));
        assert_eq!(image.contents("old").unwrap(), pattern(7, BLOCK).to_vec());
    }
    device.unlink("old").unwrap();
    let left: BTreeSet<usize> = (0..50).map(|seed| disk.image(Loss::Power, seed).names().len()).collect();
    assert_eq!(left, BTreeSet::from([0, 1]), "an unlink may be undone");
}

#[test]
fn a_durable_write_survives_alone() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 2);
    write(&mut device, file, 0, pattern(2, BLOCK)).unwrap();
    write_durable(&mut device, file, BLOCK as u64, pattern(3, BLOCK)).unwrap();
    write_durable(&mut device, file, 8 * BLOCK as u64, pattern(4, BLOCK)).unwrap();
    let mut first_block_lost = false;
    for seed in 0..50 {
        let found = disk.image(Loss::Power, seed).contents("f").unwrap();
        assert_eq!(found[BLOCK..2 * BLOCK], pattern(3, BLOCK)[..]);
        assert_eq!(found[8 * BLOCK..], pattern(4, BLOCK)[..], "a durable write also makes the length durable");
        first_block_lost |= found[..BLOCK] == pattern(1, BLOCK)[..];
    }
    assert!(first_block_lost, "a durable write covers only its own bytes");
}

#[test]
fn a_failed_sync_poisons_and_its_pages_are_clean() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 1);
    write(&mut device, file, 0, pattern(2, BLOCK)).unwrap();
    disk.fail_nth(OpKind::Sync, 1, DeviceFault::Fail);
    assert!(matches!(sync(&mut device, file), Err(DeviceError::Io { .. })));
    assert!(device.poisoned().is_some());
    assert!(matches!(sync(&mut device, file), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(write(&mut device, file, 0, pattern(3, BLOCK)), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(device.create("g"), Err(DeviceError::Poisoned { .. })));
    assert_eq!(
        read(&mut device, file, 0, BLOCK).unwrap(),
        pattern(2, BLOCK).to_vec(),
        "reads continue and return the new bytes"
    );
    drop(device);
    let mut device = SimDevice::attach(&disk);
    let file = device.open("f").unwrap();
    device.begin_writes(file).unwrap();
    sync(&mut device, file).unwrap();
    let lost = (0..50).any(|seed| disk.image(Loss::Power, seed).contents("f").unwrap() == pattern(1, BLOCK).to_vec());
    assert!(lost, "a later sync does not cover pages that a failed one marked clean");
}

#[test]
fn every_kind_fails_on_order() {
    for kind in OpKind::ALL {
        let disk = disk();
        let mut device = SimDevice::attach(&disk);
        let file = durable_file(&mut device, "f", 1);
        disk.fail_nth(kind, 1, DeviceFault::Fail);
        let failed = match kind {
            OpKind::Read => read(&mut device, file, 0, BLOCK).map(drop),
            OpKind::Write => write(&mut device, file, 0, pattern(2, BLOCK)).map(drop),
            OpKind::Sync => sync(&mut device, file).map(drop),
            OpKind::SyncDir => device.sync_dir(),
            OpKind::Create => device.create("g").map(drop),
            OpKind::Open => device.open("f").map(drop),
            OpKind::Rename => device.rename("f", "g"),
            OpKind::Link => device.link("f", "g"),
            OpKind::Unlink => device.unlink("f"),
            OpKind::Truncate => device.truncate(file, 0),
            OpKind::Allocate => device.allocate(file, 0, 1 << 20),
            OpKind::Punch => device.punch(file, 0, BLOCK as u64),
            OpKind::Map => device.map(file, BLOCK),
            OpKind::Inspect => device.list().map(drop),
            kind => panic!("{kind:?} is not covered"),
        };
        assert!(matches!(failed, Err(DeviceError::Io { .. })), "{kind:?}: {failed:?}");
        let poisons = matches!(kind, OpKind::Write | OpKind::Sync | OpKind::SyncDir | OpKind::Truncate);
        assert_eq!(device.poisoned().is_some(), poisons, "{kind:?}");
        assert_eq!(disk.names(), ["f"], "{kind:?} changed nothing");
    }
}

#[test]
fn a_refused_change_of_a_length_poisons_nothing() {
    for fault in [DeviceFault::Full, DeviceFault::Exhausted] {
        let disk = disk();
        let mut device = SimDevice::attach(&disk);
        let file = durable_file(&mut device, "f", 1);
        disk.fail_nth(OpKind::Truncate, 1, fault);
        assert!(device.truncate(file, 0).is_err_and(|error| error.is_retryable()));
        assert!(device.poisoned().is_none() && device.len(file) == Ok(BLOCK as u64));
        assert_eq!(device.truncate(file, 0), Ok(()));
    }
}

#[test]
fn space_runs_out_and_comes_back() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    disk.set_capacity_bytes(Some(8 * BLOCK as u64));
    let file = device.create("f").unwrap();
    device.allocate(file, 0, 6 * BLOCK as u64).unwrap();
    assert_eq!(device.free_bytes(), Ok(2 * BLOCK as u64));
    let other = device.create("g").unwrap();
    assert!(matches!(device.allocate(other, 0, 3 * BLOCK as u64), Err(DeviceError::Full { .. })));
    assert_eq!(device.len(other), Ok(0), "a failed allocation changes nothing");
    assert_eq!(device.poisoned(), None);
    write(&mut device, file, 0, pattern(1, 6 * BLOCK)).unwrap();
    device.unlink("f").unwrap();
    assert!(device.allocate(other, 0, 3 * BLOCK as u64).is_err(), "an open file keeps its space");
    device.close(file);
    device.allocate(other, 0, 3 * BLOCK as u64).unwrap();
    let result = write(&mut device, other, 3 * BLOCK as u64, pattern(1, 6 * BLOCK));
    assert!(matches!(result, Err(DeviceError::Full { .. })));
    assert!(device.poisoned().is_some(), "a write that failed for lack of space may be partial");
}

#[test]
fn medium_lies() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 4);
    durable_file(&mut device, "g", 1);
    disk.flip_bits("f", 5, 0x10);
    let bytes = read(&mut device, file, 0, BLOCK).unwrap();
    assert_eq!(bytes[5] ^ pattern(1, BLOCK)[5], 0x10);
    assert_eq!(disk.image(Loss::Power, 3).contents("f").unwrap()[5], bytes[5]);
    disk.fail_nth(OpKind::Read, 2, DeviceFault::Misdirect { name: Some("g".to_owned()), offset: 0 });
    let whole = pattern(1, 4 * BLOCK);
    assert_eq!(read(&mut device, file, BLOCK as u64, BLOCK).unwrap(), whole[BLOCK..2 * BLOCK]);
    assert_eq!(read(&mut device, file, BLOCK as u64, BLOCK).unwrap(), whole[..BLOCK], "misdirected");
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Lose);
    write(&mut device, file, BLOCK as u64, pattern(9, BLOCK)).unwrap();
    assert_eq!(read(&mut device, file, BLOCK as u64, BLOCK).unwrap(), whole[BLOCK..2 * BLOCK], "lost");
}

#[test]
fn a_sync_covers_what_was_reaped_before_it_was_submitted() {
    let disk = SimDisk::new(SimOptions::instant(3));
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 2);
    device.submit_write(file, 0, pattern(2, BLOCK), BLOCK, IoClass::Flush, Token(1));
    device.submit_sync(file, IoClass::Flush, Token(2));
    assert_eq!(drain(&mut device).len(), 2);
    assert_eq!(disk.durable_contents("f").unwrap()[..BLOCK], pattern(1, BLOCK)[..], "the write was not reaped before");
    sync(&mut device, file).unwrap();
    assert_eq!(disk.durable_contents("f").unwrap()[..BLOCK], pattern(2, BLOCK)[..]);
}

#[test]
fn an_image_after_every_operation() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 5 });
    let file = durable_file(&mut device, "f", 1);
    write(&mut device, file, 0, pattern(2, BLOCK)).unwrap();
    device.close(file);
    let images = disk.take_images();
    // Operations: create, write twice, sync twice, sync_dir, write twice.
    assert_eq!(images.iter().map(|image| image.op).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    assert_eq!(images[5].disk.contents("f").unwrap(), pattern(1, BLOCK).to_vec());
    let mut found = SimDevice::attach(&images[7].disk);
    assert_eq!(found.list().unwrap(), ["f"]);
}

#[test]
fn a_crash_kills_the_device_and_a_kill_keeps_what_completed() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = device.create("f").unwrap();
    write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
    disk.kill(1);
    assert!(device.list().is_err() && device.sync_dir().is_err());
    assert!(write(&mut device, file, 0, pattern(2, BLOCK)).is_err());
    drop(device);
    let mut device = SimDevice::attach(&disk);
    let file = device.open("f").unwrap();
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(1, BLOCK).to_vec());
    assert!((0..40).any(|seed| disk.image(Loss::Power, seed).names().is_empty()), "the name was never durable");
}

#[test]
fn one_seed_tells_one_story() {
    let story = |seed: u64| {
        let mut device = SimDevice::new(seed, SimOptions { latency_ticks: 0..=9, ..SimOptions::default() });
        let file = device.create("f").unwrap();
        for block in 0..50 {
            device.submit_write(file, block * BLOCK as u64, pattern(block, BLOCK), BLOCK, IoClass::Flush, Token(block));
        }
        let order: Vec<u64> = drain(&mut device).iter().map(|done| done.token.0).collect();
        (order, device.disk().image(Loss::Power, seed).contents("f"))
    };
    assert_eq!(story(1), story(1));
    assert_ne!(story(1).0, story(2).0);
    assert_ne!(story(1).0, (0..50).collect::<Vec<_>>(), "completions come in any order");
}

#[test]
fn latency_follows_the_tests_clock() {
    let options = SimOptions { latency_ticks: 10..=10, ticks_per_reap: 0, ..SimOptions::default() };
    let mut device = SimDevice::new(1, options);
    let file = device.create("f").unwrap();
    device.submit_sync(file, IoClass::Flush, Token(1));
    let mut out = std::collections::VecDeque::new();
    device.reap(&mut out);
    assert_eq!(device.disk().next_due(), None, "not kicked yet");
    device.kick();
    device.disk().advance_to(9);
    device.reap(&mut out);
    assert!(out.is_empty());
    assert_eq!(device.disk().next_due(), Some(10));
    device.disk().advance_to(10);
    device.reap(&mut out);
    assert_eq!(out.len(), 1);
}

#[test]
#[should_panic(expected = "two writes in flight")]
fn two_writes_to_a_block_are_a_bug() {
    let mut device = SimDevice::attach(&disk());
    let file = device.create("f").unwrap();
    for token in 0..2 {
        device.submit_write(file, token * 512, pattern(1, 512), 512, IoClass::Flush, Token(token));
    }
}

#[test]
fn an_unreadable_place_fails_every_read_that_touches_it_until_it_is_healed() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 4);
    durable_file(&mut device, "g", 4);
    disk.make_unreadable("f", BLOCK as u64 + 512..BLOCK as u64 + 1024);
    let whole = pattern(1, 4 * BLOCK);
    for _ in 0..50 {
        let failed = read(&mut device, file, BLOCK as u64, BLOCK);
        assert!(matches!(failed, Err(DeviceError::Io { .. })), "{failed:?}");
    }
    assert!(read(&mut device, file, 0, 4 * BLOCK).is_err(), "one unreadable sector fails a longer read");
    assert_eq!(read(&mut device, file, BLOCK as u64, 512).unwrap(), whole[BLOCK..BLOCK + 512], "the sector before");
    assert_eq!(read(&mut device, file, BLOCK as u64 + 1024, 512).unwrap(), whole[BLOCK + 1024..BLOCK + 1536]);
    let other = device.open("g").unwrap();
    assert!(read(&mut device, other, BLOCK as u64, BLOCK).is_ok(), "unreadable places are per file");
    write(&mut device, file, BLOCK as u64, pattern(2, BLOCK)).unwrap();
    sync(&mut device, file).unwrap();
    assert!(read(&mut device, file, BLOCK as u64, BLOCK).is_err(), "a write does not heal the place");
    device.rename("f", "h").unwrap();
    assert!(device.poisoned().is_none(), "a failed read poisons nothing");

    let image = disk.image(Loss::Process, 1);
    disk.kill(1);
    let mut device = SimDevice::attach(&disk);
    let file = device.open("h").unwrap();
    assert!(read(&mut device, file, BLOCK as u64, BLOCK).is_err(), "the place survives a crash");
    disk.heal();
    assert_eq!(read(&mut device, file, BLOCK as u64, BLOCK).unwrap(), pattern(2, BLOCK).to_vec());
    let mut device = SimDevice::attach(&image);
    let file = device.open("h").unwrap();
    assert!(read(&mut device, file, BLOCK as u64, BLOCK).is_err(), "healing the disk does not heal an image");
}

#[test]
fn hanging_operations_stay_in_flight_until_they_are_released() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 2);
    disk.hang(OpKind::Write);
    disk.fail_nth(OpKind::Read, 2, DeviceFault::Hang);
    device.submit_write(file, 0, pattern(2, BLOCK), BLOCK, IoClass::Flush, Token(1));
    assert!(read_block(&mut device, file, 2).is_some(), "the first read is not affected");
    assert!(read_block(&mut device, file, 3).is_none());
    disk.advance_to(1_000_000);
    let mut out = std::collections::VecDeque::new();
    device.wait(&mut out);
    device.reap(&mut out);
    assert!(out.is_empty(), "hanging operations never complete");
    assert_eq!((device.in_flight(), disk.hung(), disk.next_due()), (2, 2, None));
    assert!(read_block(&mut device, file, 4).is_some(), "other operations overtake the hanging ones");
    disk.release_hung();
    let ended = drain(&mut device);
    assert_eq!(ended.iter().map(|done| done.token.0).collect::<BTreeSet<_>>(), BTreeSet::from([1, 3]));
    assert!(ended.iter().all(|done| done.result.is_ok()));
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(2, BLOCK).to_vec());
    write(&mut device, file, 0, pattern(3, BLOCK)).unwrap();
    assert_eq!(disk.hung(), 0, "nothing hangs after the release");
}

/// Reads the first block. Returns `None` if the read is still in flight after a wait.
fn read_block(device: &mut SimDevice, file: fawn_flash::FileId, token: u64) -> Option<Vec<u8>> {
    device.submit_read(file, 0, fawn_flash::AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(token));
    let mut out = std::collections::VecDeque::new();
    device.wait(&mut out);
    out.pop_front().map(|done| done.buf.unwrap().to_vec())
}

#[test]
fn a_hanging_write_may_be_found_in_part_after_a_crash() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 1);
    disk.hang(OpKind::Write);
    device.submit_write(file, 0, pattern(2, BLOCK), BLOCK, IoClass::Flush, Token(1));
    device.kick();
    let found: BTreeSet<Vec<u8>> = (0..60).map(|seed| disk.image(Loss::Power, seed).contents("f").unwrap()).collect();
    assert!(found.contains(&pattern(1, BLOCK).to_vec()) && found.len() > 5, "{} states", found.len());
}

#[test]
fn a_delayed_operation_comes_after_so_many_polls_or_milliseconds() {
    for (ticks_per_reap, by_clock) in [(1, false), (0, true)] {
        let disk = SimDisk::new(SimOptions { ticks_per_reap, ..SimOptions::instant(1) });
        let mut device = SimDevice::attach(&disk);
        let file = durable_file(&mut device, "f", 1);
        disk.fail_nth(OpKind::Sync, 1, DeviceFault::Delay { ticks: 30 });
        device.submit_sync(file, IoClass::Flush, Token(1));
        device.kick();
        let start = disk.tick();
        let mut out = std::collections::VecDeque::new();
        let mut passed = 0;
        while out.is_empty() {
            if by_clock {
                disk.advance_to(start + passed + 1);
            }
            device.reap(&mut out);
            passed += 1;
        }
        assert_eq!(passed, 30, "by the clock: {by_clock}");
    }
}

#[test]
fn a_disk_stays_full_until_told_otherwise() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 4);
    durable_file(&mut device, "g", 4);
    disk.set_full(true);
    for round in 0..20 {
        assert!(matches!(device.create("h"), Err(DeviceError::Full { .. })), "round {round}");
        assert!(matches!(device.allocate(file, 0, 1 << 20), Err(DeviceError::Full { .. })), "round {round}");
    }
    write(&mut device, file, 0, pattern(3, 4 * BLOCK)).unwrap();
    device.unlink("g").unwrap();
    device.sync_dir().unwrap();
    assert!(
        matches!(device.create("h"), Err(DeviceError::Full { .. })),
        "space freed by an unlink is taken by another program"
    );
    assert_eq!(device.free_bytes(), Ok(0));
    let mut found = SimDevice::attach(&disk.image(Loss::Power, 1));
    assert!(matches!(found.create("h"), Err(DeviceError::Full { .. })), "the disk is also full after a power loss");
    assert_eq!(device.poisoned(), None);
    disk.set_full(false);
    let created = device.create("h").unwrap();
    device.allocate(created, 0, 1 << 20).unwrap();
}

#[test]
fn faults_of_a_kind_stand_until_they_are_ended() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 1);
    disk.fail_every(OpKind::Create, DeviceFault::Exhausted);
    disk.fail_every(OpKind::Read, DeviceFault::Fail);
    disk.fail_nth(OpKind::Read, 3, DeviceFault::Misdirect { name: None, offset: 0 });
    let failures: Vec<bool> = (0..4).map(|_| read(&mut device, file, 0, BLOCK).is_err()).collect();
    assert_eq!(failures, [true, true, false, true], "a fault for one operation precedes one for its kind");
    for _ in 0..10 {
        let error = device.create("g").unwrap_err();
        assert!(matches!(error, DeviceError::Exhausted { .. }) && error.is_retryable(), "{error}");
    }
    assert_eq!((device.poisoned(), disk.names()), (None, vec!["f".to_owned()]));
    disk.end_faults(OpKind::Create);
    device.create("g").unwrap();
    assert!(read(&mut device, file, 0, BLOCK).is_err(), "the fault for the other kind remains");
    disk.clear_faults();
    assert!(read(&mut device, file, 0, BLOCK).is_ok());
}

#[test]
#[should_panic(expected = "cannot be in flight")]
fn metadata_operations_cannot_hang() {
    disk().hang(OpKind::Create);
}

#[test]
fn stores_survive_a_kill_whole_or_in_part_and_a_power_loss_by_sectors() {
    let disk = disk();
    let mut device = SimDevice::attach(&disk);
    let file = durable_file(&mut device, "f", 2);
    device.map(file, 2 * BLOCK).unwrap();
    disk.capture(Capture::Every { stride: 1, loss: Loss::Process, seed: 1 });
    device.store(file, 100, &[0xAB; 600]);
    let images = disk.take_images();
    disk.capture(Capture::Never);
    let stored = |contents: &[u8]| contents[100..700].iter().filter(|&&byte| byte == 0xAB).count();
    let kept: Vec<_> = images.iter().map(|image| stored(&image.disk.contents("f").unwrap())).collect();
    assert_eq!(kept, [300, 600], "a kill in the middle keeps what was copied, a later one everything");
    let losses: BTreeSet<_> =
        (0..200).map(|seed| stored(&disk.image(Loss::Power, seed).contents("f").unwrap())).collect();
    assert!(losses.contains(&0) && losses.contains(&600) && losses.len() > 3, "by sectors: {losses:?}");
    sync(&mut device, file).unwrap();
    assert!((0..50).all(|seed| stored(&disk.image(Loss::Power, seed).contents("f").unwrap()) == 600), "synced");
}

/// A queued sync of the directory covers the names before it, once it is reaped.
#[test]
fn names_survive_a_crash_once_their_queued_sync_is_reaped() {
    let found_after = |reap: bool, power: u64| {
        let disk = SimDisk::new(SimOptions::default());
        let mut device = SimDevice::attach(&disk);
        device.create("kept").unwrap();
        device.submit_sync_dir(IoClass::Manifest, Token(1));
        device.create("later").unwrap();
        if reap {
            drain(&mut device);
        }
        disk.crash(power);
        disk.names()
    };
    let seeds = 0..64;
    let has = |names: &[String], name: &str| names.iter().any(|found| found == name);
    assert!(seeds.clone().all(|power| has(&found_after(true, power), "kept")));
    assert!(seeds.clone().any(|power| !has(&found_after(true, power), "later")), "it came after the sync");
    assert!(seeds.clone().any(|power| !has(&found_after(false, power), "kept")), "the sync had not completed");
    assert!(seeds.clone().any(|power| has(&found_after(false, power), "kept")));
}

#[test]
fn a_failed_queued_sync_of_names_poisons() {
    let disk = SimDisk::new(SimOptions::default());
    let mut device = SimDevice::attach(&disk);
    device.create("a").unwrap();
    disk.fail_nth(OpKind::SyncDir, 1, DeviceFault::Fail);
    device.submit_sync_dir(IoClass::Manifest, Token(1));
    let ends = drain(&mut device);
    assert!(ends.iter().all(|end| matches!(end.result, Err(DeviceError::Io { .. }))), "{ends:?}");
    assert!(device.poisoned().is_some() && device.create("b").is_err());
}

/// A real device may have no descriptor for the file, and a write that fails poisons.
#[test]
#[should_panic(expected = "not prepared for writes")]
fn a_write_of_a_file_that_may_have_no_descriptor_is_caught() {
    let mut device = SimDevice::attach(&disk());
    let file = durable_file(&mut device, "f", 1);
    device.end_writes(file);
    device.submit_sync(file, IoClass::Flush, Token(1));
}

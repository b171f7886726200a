//! Tests of real devices only: device choice and its errors, system calls, a full disk, the wake-up descriptor.
#[cfg(target_os = "linux")]
use crate::support::uring;
use crate::support::{BLOCK, drain, pattern, test_dir, write};
use fawn_flash::{
    AlignedBuf, Device, DeviceError, DeviceKind, DeviceOptions, FileDevice, IoClass, PortableDevice, Token,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::time::Duration;

fn options(kind: DeviceKind) -> DeviceOptions {
    DeviceOptions { kind, ..DeviceOptions::default() }
}

fn assert_send<T: Send>() {}

#[test]
fn devices_can_move_to_their_shards_thread() {
    assert_send::<FileDevice>();
    assert_send::<fawn_flash::SimDevice>();
    assert_send::<fawn_flash::PageCache>();
}

#[test]
fn a_missing_directory_is_made_and_a_file_in_its_place_is_refused() {
    let dir = test_dir();
    let deep = dir.path().join("a/b");
    FileDevice::open(&deep, &DeviceOptions::default()).unwrap().create("x").unwrap();
    assert!(deep.join("x").is_file());
    let refused = FileDevice::open(&deep.join("x"), &DeviceOptions::default()).err().unwrap();
    assert!(refused.to_string().contains("/a/b/x"), "{refused}");
}

#[test]
fn the_lock_names_its_holder() {
    let dir = test_dir();
    let mut holder = FileDevice::open(dir.path(), &options(DeviceKind::Auto)).unwrap();
    holder.lock().unwrap();
    let mut late = PortableDevice::open(dir.path(), &DeviceOptions::default()).unwrap();
    let refused = late.lock().unwrap_err().to_string();
    assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
}

#[test]
fn a_loop_is_woken() {
    for kind in [DeviceKind::Auto, DeviceKind::Portable] {
        let dir = test_dir();
        let mut device = FileDevice::open(dir.path(), &options(kind)).unwrap();
        let file = device.create("f").unwrap();
        write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
        for round in 0..50 {
            device.submit_read(file, 0, AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(round));
            device.kick();
            let mut out = VecDeque::new();
            while device.in_flight() > 0 {
                // SAFETY: (1) the device is open as long as the borrow.
                let wake = unsafe { BorrowedFd::borrow_raw(device.wake_fd().unwrap()) };
                let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
                match poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&patience)) {
                    Ok(ready) => assert_eq!(ready, 1, "{kind:?}: the completion wakes the loop"),
                    // The ring's own work may interrupt a wait, as a signal does.
                    Err(errno) => assert_eq!(errno, rustix::io::Errno::INTR),
                }
                device.reap(&mut out);
            }
            assert_eq!(out.len(), 1);
        }
    }
}

/// Waits that end too early take in no completion twice, and lose none.
#[test]
fn a_wait_ends_at_its_limit() {
    for kind in [DeviceKind::Auto, DeviceKind::Portable] {
        let dir = test_dir();
        let mut device = FileDevice::open(dir.path(), &options(kind)).unwrap();
        let file = device.create("f").unwrap();
        write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
        let (mut out, mut ended_without, mut round) = (VecDeque::new(), 0, 0);
        // On a busy machine most reads end while the wait begins.
        while round < 50 || (ended_without == 0 && round < 20_000) {
            device.submit_read(file, 0, AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(round));
            while device.in_flight() > 0 {
                let before = out.len();
                device.wait_at_most(Some(Duration::from_nanos(1)), &mut out);
                ended_without += usize::from(out.len() == before);
            }
            round += 1;
        }
        assert_eq!(out.iter().map(|read| read.token).collect::<Vec<_>>(), (0..round).map(Token).collect::<Vec<_>>());
        assert!(ended_without > 0, "{kind:?}: no wait ended before its read, so nothing was tested");
    }
}

/// A small batch takes one system call. Of a large batch, the first half is submitted while the second is collected.
#[cfg(target_os = "linux")]
#[test]
fn a_turn_is_submitted_in_few_system_calls_and_not_only_at_its_end() {
    let dir = test_dir();
    let mut device = uring(&dir, 256);
    if device.name() != "io_uring" {
        return;
    }
    let file = device.create("f").unwrap();
    write(&mut device, file, 0, pattern(1, 64 * BLOCK)).unwrap();
    for (reads, calls_ahead, calls) in [(1, 0, 1), (3, 0, 1), (6, 1, 2), (64, 5, 5)] {
        let before = device.stats().system_calls;
        for block in 0..reads {
            device.submit_read(
                file,
                block * BLOCK as u64,
                AlignedBuf::zeroed(BLOCK),
                IoClass::Foreground,
                Token(block),
            );
        }
        assert_eq!(device.stats().system_calls - before, calls_ahead, "{reads} reads, not kicked");
        device.kick();
        assert_eq!(device.stats().system_calls - before, calls, "{reads} reads, kicked");
        assert_eq!(drain(&mut device).len() as u64, reads);
    }
}

/// Every write to `/dev/full` fails with ENOSPC, even as root, so a link to it simulates a full disk. It does not
/// support `O_DIRECT`; the ring's part of this test is in the ring's own tests.
#[cfg(target_os = "linux")]
#[test]
fn a_write_without_space_says_so_and_poisons() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let dir = test_dir();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("f")).unwrap();
    let options = DeviceOptions { direct: false, ..DeviceOptions::default() };
    let mut device = PortableDevice::open(dir.path(), &options).unwrap();
    let file = Device::open(&mut device, "f").unwrap();
    let result = write(&mut device, file, 0, pattern(1, BLOCK));
    assert!(matches!(result, Err(DeviceError::Full { .. })), "{result:?}");
    assert!(matches!(device.poisoned(), Some(DeviceError::Full { .. })));
    assert!(matches!(device.create("g"), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(write(&mut device, file, 0, pattern(1, BLOCK)), Err(DeviceError::Poisoned { .. })));
}

/// The space of an unlinked file counts as free at once, although a thread frees it a little later.
#[test]
fn space_of_unlinked_files_is_free_at_once() {
    const FILE_BYTES: u64 = 256 << 20;
    let dir = test_dir();
    let mut device = PortableDevice::open(dir.path(), &options(DeviceKind::Portable)).unwrap();
    let mut freed = || {
        let file = device.create("f").unwrap();
        device.allocate(file, 0, FILE_BYTES).unwrap();
        let before = device.free_bytes().unwrap();
        device.close(file);
        device.unlink("f").unwrap();
        device.free_bytes().unwrap().saturating_sub(before)
    };
    // Other processes use the file system as well.
    assert!((0..10).any(|_| freed() > FILE_BYTES / 4 * 3));
    device.create("linked").unwrap();
    device.link("linked", "kept").unwrap();
    device.unlink("linked").unwrap();
    assert_eq!(device.list().unwrap(), ["kept"]);
}

/// Dropping a device with operations in flight waits until the kernel no longer uses the buffers.
#[test]
fn dropping_with_operations_in_flight_is_safe() {
    for kind in [DeviceKind::Auto, DeviceKind::Portable] {
        for kicked in [false, true] {
            let dir = test_dir();
            let mut device = FileDevice::open(dir.path(), &options(kind)).unwrap();
            let file = device.create("f").unwrap();
            for block in 0..500 {
                let (offset, token) = (block * BLOCK as u64, Token(block));
                device.submit_write(file, offset, pattern(block, BLOCK), BLOCK, IoClass::Flush, token);
            }
            if kicked {
                device.kick();
            }
        }
    }
}

//! Ring tests that need private access: failures that no file system produces on demand, and partial operations.
use super::ring::FIXED_FILES;
use super::slots::{NextStep, UringSlot};
use super::*;
use crate::{AlignedBuf, Device, IoClass, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, FromRawFd};

fn slot(work: Work) -> UringSlot {
    let read = IoRequest::read(FileId(0), 0, AlignedBuf::zeroed(4096), IoClass::Flush, Token(1));
    UringSlot { request: IoRequest { work, ..read }, done_bytes: 0 }
}

#[test]
fn partial_operations_go_on_and_failed_writes_do_not() {
    let write = Work::Write { durable: false };
    let mut partial = slot(write);
    assert!(matches!(partial.advance(512), NextStep::Short));
    assert!(matches!(partial.advance(3584), NextStep::Done));
    assert!(matches!(slot(write).advance(0), NextStep::Done), "a write without progress fails instead of looping");
    assert!(matches!(slot(Work::Read).advance(0), NextStep::Short), "perhaps the end of the file");
    for interrupted in [-libc::EINTR, -libc::EAGAIN] {
        assert!(matches!(slot(Work::Read).advance(interrupted), NextStep::Retry));
        assert!(matches!(slot(Work::Sync).advance(interrupted), NextStep::Done));
    }
    for durable in [false, true] {
        let write = Work::Write { durable };
        assert!(matches!(slot(write).advance(-libc::EINTR), NextStep::Retry), "nothing was written");
        assert!(matches!(slot(write).advance(-libc::EAGAIN), NextStep::Done), "a failed write is never retried");
    }
    assert!(matches!(slot(Work::Read).advance(-libc::EIO), NextStep::Done));
}

/// Every write to `/dev/full` fails with ENOSPC. A write that succeeded in the same batch is then reported as failed
/// too.
#[test]
fn a_full_medium_poisons_and_later_successes_are_not_believed() {
    let Ok(dir) = tempfile::tempdir() else { panic!("no directory for the test") };
    let (mut device, full) = match (
        UringDevice::open(dir.path(), &DeviceOptions::default()),
        std::fs::OpenOptions::new().write(true).open("/dev/full"),
    ) {
        (Ok(device), Ok(full)) => (device, full),
        (device, full) => {
            let promised = std::env::var("FAWN_TEST_DEVICE").is_ok_and(|promised| promised == "io_uring");
            assert!(!promised, "FAWN_TEST_DEVICE=io_uring, but: {:?}, {:?}", device.err(), full.err());
            return;
        }
    };
    let (Ok(file), Ok(other)) = (device.create("f"), device.create("g")) else { panic!("an empty directory") };
    device.queue.ring.unregister(file);
    device.data_dir.replace_fd(file, full.into());
    let mut out = VecDeque::new();
    device.submit_write(file, 0, AlignedBuf::zeroed(4096), 4096, IoClass::Flush, Token(1));
    while device.in_flight() > 0 {
        device.wait(&mut out);
    }
    assert!(matches!(out[0].result, Err(DeviceError::Full { .. })), "{:?}", out[0].result);
    assert_eq!(out[0].buf.as_ref().map(|buf| buf.len()), Some(4096), "the completion returns the buffer");
    assert!(matches!(device.poisoned(), Some(DeviceError::Full { .. })));
    assert!(matches!(device.sync_dir(), Err(DeviceError::Poisoned { .. })));
    device.data_dir.poison = None;
    device.submit_write(other, 0, AlignedBuf::zeroed(4096), 4096, IoClass::Flush, Token(2));
    device.kick();
    device.data_dir.poison = Some(DeviceError::Full { dir: String::new() });
    while device.in_flight() > 0 {
        device.wait(&mut out);
    }
    assert!(matches!(out[1].result, Err(DeviceError::Poisoned { .. })), "{:?}", out[1].result);
}

/// A sandbox may allow setting a ring up and refuse to enter it. A descriptor that is no ring's is refused likewise.
#[test]
fn a_ring_that_cannot_be_entered_is_refused_and_not_waited_for() {
    let (Ok(mut ring), Ok(dir)) = (UringRing::new(8), tempfile::tempdir()) else { return };
    let Ok(file) = std::fs::File::create_new(dir.path().join("f")) else { panic!("an empty directory") };
    let (fd, Ok(no_ring)) = (ring.fd(), std::fs::File::open("/dev/null")) else { panic!("no /dev/null") };
    // SAFETY: (1) both descriptors are open; (2) the ring's own is closed by this, and its number stays the ring's.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&no_ring), fd) }, fd);
    let refused = ring.try_read(&file.into());
    assert!(refused.as_ref().is_err_and(|reason| reason.contains("io_uring_enter")), "{refused:?}");
}

/// Runs this while the ring's descriptor is another file's, so that the kernel refuses all calls of the ring.
fn while_refused(ring: RawFd, call: impl FnOnce()) {
    let Ok(no_ring) = std::fs::File::open("/dev/null") else { panic!("no /dev/null") };
    // SAFETY: (1) the ring's descriptor is open as long as the ring; (2) `dup` returns one that nothing else owns.
    let kept = unsafe { OwnedFd::from_raw_fd(libc::dup(ring)) };
    // SAFETY: (1) both descriptors are open; (2) the ring's number stays the ring's, and is restored below.
    assert_eq!(unsafe { libc::dup2(no_ring.as_raw_fd(), ring) }, ring);
    call();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(kept.as_raw_fd(), ring) }, ring);
}

/// No completion wakes a loop that waits for operations that the kernel did not accept.
#[test]
fn operations_that_the_kernel_refuses_are_overdue_until_it_accepts_them() {
    let Ok(dir) = tempfile::tempdir() else { panic!("no directory for the test") };
    let Ok(mut device) = UringDevice::open(dir.path(), &DeviceOptions::default()) else { return };
    let Ok(file) = device.create("f") else { panic!("an empty directory") };
    let mut out = VecDeque::new();
    while_refused(device.queue.ring.fd(), || {
        device.submit_read(file, 0, AlignedBuf::zeroed(4096), IoClass::Foreground, Token(1));
        assert!(!device.has_unsignalled(), "not kicked yet");
        device.kick();
        device.reap(&mut out);
        assert!(device.has_unsignalled() && out.is_empty());
    });
    device.reap(&mut out);
    assert!(!device.has_unsignalled());
    while device.in_flight() > 0 {
        device.wait(&mut out);
    }
    assert_eq!(out.len(), 1);
}

/// A pipe's reader sees whether the kernel still has the writer open.
#[test]
fn a_closed_file_that_could_not_be_unregistered_is_with_the_next_one() {
    let Ok(mut ring) = UringRing::new(8) else { return };
    let (Ok((reader, writer)), Ok((_, other))) = (std::io::pipe(), std::io::pipe()) else { panic!("no pipes") };
    let (writer, other) = (OwnedFd::from(writer), OwnedFd::from(other));
    ring.register(FileId(1), &writer);
    if ring.fixed.get(FileId(1)).is_none() {
        return;
    }
    let is_closed = |limit: &Timespec| {
        let mut reader = [PollFd::new(&reader, PollFlags::IN)];
        poll(&mut reader, Some(limit)).is_ok() && reader[0].revents().contains(PollFlags::HUP)
    };
    while_refused(ring.fd(), || ring.unregister(FileId(1)));
    drop(writer);
    assert!(!is_closed(&Timespec { tv_sec: 0, tv_nsec: 0 }), "the ring has it");
    while_refused(ring.fd(), || ring.register(FileId(2), &other));
    assert!(ring.fixed.get(FileId(2)).is_none(), "used by its descriptor");
    ring.register(FileId(3), &other);
    assert!(is_closed(&Timespec { tv_sec: 5, tv_nsec: 0 }));
    ring.unregister(FileId(3));
    assert_eq!(ring.free_numbers(), FIXED_FILES as usize, "none is lost");
}

//! `DirLock`: an exclusive directory lock that the system releases when its process dies.
use crate::DeviceError;
use crate::IoOperation;
use crate::data_dir::classify;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Name of the lock file; `Device::list` omits it.
pub(crate) const LOCK: &str = "LOCK";

/// An exclusive lock on a directory, held until dropped. A device locks its own directory by `Device::lock`; this type
/// is for a directory that contains several devices' directories.
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "held open, never read: closing it releases the lock")] OwnedFd);

impl DirLock {
    /// Locks an existing directory.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if another process holds the lock; any failure to create the lock file.
    pub fn take(dir: &Path) -> Result<Self, DeviceError> {
        let shown = dir.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |errno| classify(errno, &shown, IoOperation::Metadata("open the directory"), &shown, 0);
        let dir = fs::open(dir, flags, Mode::empty()).map_err(failed)?;
        Self::take_in(dir.as_fd(), &shown)
    }

    /// As [`DirLock::take`], for an open directory that messages call `shown`.
    pub(crate) fn take_in(dir: BorrowedFd<'_>, shown: &str) -> Result<Self, DeviceError> {
        let failed = |errno| classify(errno, shown, IoOperation::Metadata("lock"), LOCK, 0);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let (lock, can_sign) = match fs::openat(dir, LOCK, flags, Mode::from_raw_mode(0o640)) {
            // A corrupt file system is mounted read-only and then checked. The lock itself needs no write.
            Err(Errno::ROFS) => {
                let existing = fs::openat(dir, LOCK, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                (existing.map_err(|errno| if errno == Errno::NOENT { Errno::ROFS } else { errno }), false)
            }
            lock => (lock, true),
        };
        let lock = lock.map_err(failed)?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(Errno::WOULDBLOCK) => {
                return Err(DeviceError::Locked { dir: shown.to_owned(), holder: holder_of(lock.as_fd()) });
            }
            Err(errno) => return Err(failed(errno)),
        }
        // The process ID is only a hint in the other process's error message, so a failure to write it is not a failure
        // to lock.
        if !can_sign {
            return Ok(Self(lock));
        }
        let pid = format!("{}\n", std::process::id());
        if fs::ftruncate(&lock, 0).and_then(|()| rustix::io::pwrite(&lock, pid.as_bytes(), 0)).is_err() {
            tracing::warn!(dir = shown, "the lock is held, but its file lacks the holder's process ID");
        }
        Ok(Self(lock))
    }
}

fn holder_of(lock: BorrowedFd<'_>) -> String {
    let mut bytes = [0; 32];
    let len = rustix::io::pread(lock, &mut bytes, 0).unwrap_or(0);
    let pid = std::str::from_utf8(&bytes[..len]).ok().and_then(|text| text.trim().parse::<u32>().ok());
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

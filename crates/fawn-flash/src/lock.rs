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
        let open = |flags| fs::openat(dir, LOCK, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o640));
        let (lock, can_sign) = open_lock(open).map_err(failed)?;
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

/// Opens the lock file with the flags that the file system allows. Returns whether it can be written.
fn open_lock(open: impl Fn(OFlags) -> Result<OwnedFd, Errno>) -> Result<(OwnedFd, bool), Errno> {
    match open(OFlags::RDWR | OFlags::CREATE) {
        // A corrupt file system is mounted read-only and then checked. The lock itself needs no write.
        Err(Errno::ROFS) => match open(OFlags::RDONLY) {
            // The reason is that it cannot be created.
            Err(Errno::NOENT) => Err(Errno::ROFS),
            lock => Ok((lock?, false)),
        },
        lock => Ok((lock?, true)),
    }
}

fn holder_of(lock: BorrowedFd<'_>) -> String {
    let mut bytes = [0; 32];
    let len = rustix::io::pread(lock, &mut bytes, 0).unwrap_or(0);
    let pid = std::str::from_utf8(&bytes[..len]).ok().and_then(|text| text.trim().parse::<u32>().ok());
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of a read-only file system: a test cannot mount one.
    fn open_read_only(dir: &Path) -> Result<(OwnedFd, bool), Errno> {
        open_lock(|flags| {
            if flags.intersects(OFlags::RDWR | OFlags::CREATE) {
                return Err(Errno::ROFS);
            }
            fs::open(dir.join(LOCK), flags | OFlags::CLOEXEC, Mode::empty())
        })
    }

    #[test]
    fn the_lock_file_of_a_read_only_file_system_is_locked_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open_read_only(dir.path()).err(), Some(Errno::ROFS), "none can be created");
        std::fs::write(dir.path().join(LOCK), "1234\n").unwrap();
        let (lock, can_sign) = open_read_only(dir.path()).unwrap();
        assert!(!can_sign);
        fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(
            matches!(DirLock::take(dir.path()), Err(DeviceError::Locked { holder, .. }) if holder == " (pid 1234)")
        );
        drop(lock);
        let opened = open_lock(|flags| fs::open(dir.path().join(LOCK), flags, Mode::empty()));
        assert!(matches!(opened, Ok((_, true))), "a writable one can be signed");
    }
}

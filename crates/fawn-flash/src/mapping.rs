//! `FileMapping`: a file's content mapped into memory that the process shares with the system.
//!
//! A store into it is kept by the system when the process ends, however it ends, and needs no call. The system writes
//! changed pages to the disk when it likes: after a power loss each page is as it was at some earlier time.
use crate::buffer::PAGE_BYTES;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Writable memory of one file. Nothing reads through it.
#[derive(Debug)]
pub(crate) struct FileMapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: (1) the mapping is exclusively owned, and valid in every thread; (2) only `&mut self` writes to it.
unsafe impl Send for FileMapping {}

impl FileMapping {
    /// Maps the first `len_bytes` of a file, which must be at least that long as long as the mapping exists.
    pub(crate) fn new(fd: impl AsFd, len_bytes: usize) -> Result<Self, Errno> {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(PAGE_BYTES), "whole pages are mapped");
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: (1) the system chooses an unused address; (2) no Rust reference to the memory is ever made, so changes
        // of the file by others are no data race with one.
        let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, access, flags, fd, 0) }?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else { return Err(Errno::NOMEM) };
        // Locked pages are never read back from the disk, which could fail with a signal. Without the right to lock
        // memory, the pages in use stay in memory all the same, because they are dirty most of the time.
        // SAFETY: (1) mapped above.
        let _ = unsafe { mlock(start.as_ptr().cast(), len_bytes) };
        Ok(Self { start, len_bytes })
    }

    /// Copies bytes to an offset of the file.
    ///
    /// # Panics
    /// If they do not lie within the mapping.
    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len_bytes), "a store outside of the mapping");
        // SAFETY: (1) in bounds, asserted above; (2) mapped and writable; (3) `bytes` is a Rust reference, and none to
        // the mapping exists, so they do not overlap.
        unsafe { self.start.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // The process may end at any time: no store may be moved behind what the caller does next.
        fence(Ordering::SeqCst);
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: (1) mapped in `new`, and never unmapped elsewhere; (2) no reference to it exists.
        // A failure leaves the memory mapped, which harms nothing.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

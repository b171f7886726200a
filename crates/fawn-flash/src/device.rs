//! The `Device` trait: files of 4 KiB-aligned blocks in one directory, with asynchronous reads, writes and syncs.
//!
//! One device serves one shard (one ring per core), so every method takes `&mut self` and there are no locks. Data
//! operations are queued by `submit_*` and submitted to the system by [`Device::kick`] at the end of an event-loop
//! iteration; some are submitted earlier if the system has few left. They complete in any order, through
//! [`Device::reap`] or [`Device::wait`], as [`Completion`]s. The device owns a buffer from its submission to its
//! completion. Metadata operations are rare and block.
use crate::{AlignedBuf, IoRequest};
use std::collections::VecDeque;
use std::time::Duration;

/// An open file of one device; the ID is never reused while the device exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// Identifies an operation: chosen by the caller, returned in the completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// The component for which bytes are moved, so that amplification is measured, not estimated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum IoClass {
    /// A client's lookup.
    Foreground,
    /// Appends of the log.
    Flush,
    /// Reads that confirm the old version of an overwritten key.
    Verification,
    /// Opening a store.
    Recovery,
    /// The manifest.
    Manifest,
    /// Moving live records out of segments that are cleaned.
    Cleaning,
    /// Building sorted runs.
    Sort,
    /// Copying a range to a new member.
    PreCopy,
    /// Saving the index.
    Checkpoint,
    /// Reading sealed segments and runs again, to find rot.
    Scrub,
}

impl IoClass {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Foreground,
        Self::Flush,
        Self::Verification,
        Self::Recovery,
        Self::Manifest,
        Self::Cleaning,
        Self::Sort,
        Self::PreCopy,
        Self::Checkpoint,
        Self::Scrub,
    ];

    /// The cause's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Flush => "flush",
            Self::Verification => "verification",
            Self::Recovery => "recovery",
            Self::Manifest => "manifest",
            Self::Cleaning => "cleaning",
            Self::Sort => "sort",
            Self::PreCopy => "pre_copy",
            Self::Checkpoint => "checkpoint",
            Self::Scrub => "scrub",
        }
    }
}

/// The kind of operation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoOperation {
    /// List, create, open, rename, exchange, link, unlink, truncate, allocate, punch, lock.
    Metadata(&'static str),
    /// A positioned read.
    Read,
    /// A positioned write.
    Write,
    /// A sync of a file or of the directory.
    Sync,
}

/// The offset is omitted for operations on the directory or on a whole file.
fn what_failed(operation: &IoOperation, name: &str, offset: u64, detail: &str) -> String {
    match operation {
        IoOperation::Metadata(what) => format!("{name}: could not {what}: {detail}"),
        _ => format!("{operation:?} failed on {name} at byte {offset}: {detail}"),
    }
}

/// An error of a device: the reason, the place, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The name does not exist.
    #[error("{name}: no such file in {dir}")]
    NotFound {
        /// The file's name.
        name: String,
        /// The device's directory.
        dir: String,
    },
    /// The name already exists.
    #[error("{name}: already exists in {dir}")]
    Exists {
        /// The file's name.
        name: String,
        /// The device's directory.
        dir: String,
    },
    /// Another process holds the lock.
    #[error("{dir} is in use by another process{holder}; stop it first or choose another directory")]
    Locked {
        /// The device's directory.
        dir: String,
        /// ` (pid N)` if known.
        holder: String,
    },
    /// No space left. Nothing was written; retry once there is space.
    #[error("no space left on the device of {dir}; free space or delete keys")]
    Full {
        /// The device's directory.
        dir: String,
    },
    /// The system is out of descriptors or memory, or was interrupted. Nothing was changed; retry later.
    #[error("{dir}: the system is out of a resource ({detail}); raise its limit or wait")]
    Exhausted {
        /// The device's directory.
        dir: String,
        /// The system's error text.
        detail: String,
    },
    /// The system denied access.
    #[error("{path}: permission denied; check the owner and mode of the data directory")]
    Permission {
        /// The path that was denied.
        path: String,
    },
    /// The file system is read-only; reads work.
    #[error("{dir}: the file system is mounted read-only; mount it writable, or find the reason in the kernel's log")]
    ReadOnly {
        /// The device's directory.
        dir: String,
    },
    /// The operation failed. A failed write or sync has poisoned the device.
    #[error("{}", what_failed(operation, name, *offset, detail))]
    Io {
        /// The operation that failed.
        operation: IoOperation,
        /// The file's name.
        name: String,
        /// Offset in the file, bytes.
        offset: u64,
        /// The system's error text.
        detail: String,
    },
    /// A write or sync failed earlier, so the content of the disk is unknown and all further writes fail.
    #[error("device poisoned by an earlier failure ({first}); restart and run `fawn check`")]
    Poisoned {
        /// The first failure.
        first: String,
    },
}

impl DeviceError {
    /// Whether a metadata operation with this error changed nothing and may succeed later: no space, no descriptors, no
    /// memory. Does not apply to writes and syncs, because a failed one is never retried.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Exhausted { .. })
    }
}

/// The completion of a data operation.
#[derive(Debug)]
pub struct Completion {
    /// The token passed at submission.
    pub token: Token,
    /// Bytes moved (0 for a sync), or the failure. A read past the end of a file fills the buffer with zeros there and
    /// counts its whole length.
    pub result: Result<usize, DeviceError>,
    /// The buffer of a read or write.
    pub buf: Option<AlignedBuf>,
}

/// Files of 4 KiB-aligned blocks in one directory.
pub trait Device {
    /// Names in the directory, sorted.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn list(&mut self) -> Result<Vec<String>, DeviceError>;

    /// Locks the directory for this process until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if another process holds the lock.
    fn lock(&mut self) -> Result<(), DeviceError>;

    /// Creates an empty file, to be written until [`Device::end_writes`]. Its name is durable only after
    /// [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::Exists`], [`DeviceError::Full`], [`DeviceError::Exhausted`].
    fn create(&mut self, name: &str) -> Result<FileId, DeviceError>;

    /// Opens a file for reading. Before a write, [`Device::begin_writes`] must be called.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn open(&mut self, name: &str) -> Result<FileId, DeviceError>;

    /// Prepares an open file for writes and syncs. It keeps its descriptor until [`Device::end_writes`], because a write that
    /// fails for lack of a descriptor is a failed write.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`]: nothing changed.
    fn begin_writes(&mut self, file: FileId) -> Result<(), DeviceError>;

    /// No more writes and syncs of the file follow. It may lose its descriptor while it is not in use, unless it has
    /// unsynced writes.
    fn end_writes(&mut self, file: FileId);

    /// Closes a file; none of its operations may be in flight.
    fn close(&mut self, file: FileId);

    /// Renames, replacing the target. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Exchanges the files of two names, atomically. Durable after [`Device::sync_dir`]. Returns false where the file system cannot.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`]; after any other that is not retryable, the names may be exchanged.
    fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError>;

    /// Adds a second name for the same file. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`], [`DeviceError::Exists`].
    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Removes a name. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn unlink(&mut self, name: &str) -> Result<(), DeviceError>;

    /// Makes creations, renames, links and unlinks durable. A failure poisons the device.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn sync_dir(&mut self) -> Result<(), DeviceError>;

    /// Length of a file, bytes.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn len(&mut self, file: FileId) -> Result<u64, DeviceError>;

    /// Sets the length of a file; new bytes are zeros. Durable after a sync of the file.
    ///
    /// # Errors
    /// [`DeviceError::Full`], [`DeviceError::Exhausted`]: the bytes before both ends are unchanged, the length may be any between
    /// the old and the new one. [`DeviceError::Io`] poisons the device.
    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError>;

    /// Reserves space, so that later writes within it do not fail for lack of space; extends the length to cover it.
    /// Some file systems cannot promise that (copy-on-write ones, network ones): there a write may still find no space,
    /// and poisons as any failed write does.
    ///
    /// # Errors
    /// [`DeviceError::Full`], [`DeviceError::Exhausted`]: nothing changed.
    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError>;

    /// Deallocates a range of a file; its bytes then read as zeros.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError>;

    /// Maps the first `len_bytes` of a file, whole pages, into memory that is shared with the system. The file must be that
    /// long, and allocated.
    ///
    /// # Errors
    /// [`DeviceError::Io`], [`DeviceError::Exhausted`], if the system or the file system cannot; nothing changed.
    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError>;

    /// Copies bytes into a mapped file, without a call to the system. They survive the end of the process at once. Until a
    /// sync of the file, a power loss may undo any part of them.
    ///
    /// # Panics
    /// If the file is not mapped, or the bytes exceed the mapped part.
    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]);

    /// Free bytes on the disk.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn free_bytes(&mut self) -> Result<u64, DeviceError>;

    /// Queues a data operation. The caller must keep at most one write in flight per 4 KiB block.
    fn submit(&mut self, request: IoRequest);

    /// Queues a read of `buf.len()` bytes; `offset` and length are multiples of a sector.
    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, class: IoClass, token: Token) {
        self.submit(IoRequest::read(file, offset, buf, class, token));
    }

    /// Queues a write of the first `len_bytes` of `buf` (a multiple of a sector).
    fn submit_write(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        class: IoClass,
        token: Token,
    ) {
        self.submit(IoRequest::write(file, offset, buf, len_bytes, class, token));
    }

    /// As [`Device::submit_write`], but durable when it completes; for use where that is cheaper than a separate sync.
    /// Covers only this write's own bytes (and the metadata to reach them), not earlier writes.
    fn submit_write_durable(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        class: IoClass,
        token: Token,
    ) {
        self.submit(IoRequest::write(file, offset, buf, len_bytes, class, token).durable());
    }

    /// Queues a data sync of all writes to `file` whose completions were reaped before this call.
    fn submit_sync(&mut self, file: FileId, class: IoClass, token: Token) {
        self.submit(IoRequest::sync(file, class, token));
    }

    /// As [`Device::sync_dir`], without waiting. It covers changes of names before this call.
    fn submit_sync_dir(&mut self, class: IoClass, token: Token) {
        self.submit(IoRequest::sync_dir(class, token));
    }

    /// Submits all queued operations to the system, with at most one system call.
    fn kick(&mut self);

    /// Appends the operations that have completed to `out`; never blocks.
    fn reap(&mut self, out: &mut VecDeque<Completion>);

    /// As [`Device::wait_at_most`], without a limit.
    fn wait(&mut self, out: &mut VecDeque<Completion>) {
        self.wait_at_most(None, out);
    }

    /// As [`Device::reap`], but first kicks, and waits for at least one completion if any operation is in flight. With a
    /// limit it may return without one, at the limit or earlier. With io_uring, Linux before 5.11 ignores the limit.
    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>);

    /// Data operations submitted but not reaped. The caller must bound them: real devices panic beyond 65,536.
    fn in_flight(&self) -> usize;

    /// A descriptor that becomes readable when an idle loop should reap; `None` if completions need no wake-up. Only
    /// for polling: no caller may read from it. A poll of it may end early, as after a signal.
    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Whether an idle loop must reap soon although [`Device::wake_fd`] does not become readable: a completion did not
    /// come from the system, or the system did not accept an operation.
    fn has_unsignalled(&self) -> bool {
        false
    }

    /// Requests and bytes so far, per cause.
    fn stats(&self) -> &crate::IoStats;

    /// The failure that poisoned the device, if any.
    fn poisoned(&self) -> Option<&DeviceError>;

    /// The device's name for logs: `io_uring`, `portable`, `sim`.
    fn name(&self) -> &'static str;
}

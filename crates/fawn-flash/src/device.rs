//! Owns the `Device` trait: files of 4 KiB-aligned blocks in one directory, with reads, writes and syncs in flight.
//!
//! One device serves one shard (one ring per core), so every method takes `&mut self` and nothing locks. Data
//! operations are queued by `submit_*`, handed to the system by [`Device::kick`] at the turn's end, some by themselves
//! before it where the system would run low, and come back through
//! [`Device::reap`] or [`Device::wait`] as [`Completion`]s in any order. The device owns a buffer from its submission
//! to its completion. Metadata operations are rare and block.
use crate::{AlignedBuf, Request};
use std::collections::VecDeque;

/// An open file of one device; never reused while the device lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// Chosen by the caller, returned with the completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// On whose behalf bytes move: amplification is a metric, not an estimate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Cause {
    /// A client's lookup.
    Foreground,
    /// The log's own appends.
    Flush,
    /// Confirming that an overwritten key's old version is its own.
    Verification,
    /// Opening a store.
    Recovery,
    /// The manifest.
    Manifest,
    /// Moving live records out of victims.
    Cleaning,
    /// Building sorted runs.
    Sort,
    /// Copying a range to a new member.
    PreCopy,
    /// Saving the index.
    Checkpoint,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Foreground,
        Self::Flush,
        Self::Verification,
        Self::Recovery,
        Self::Manifest,
        Self::Cleaning,
        Self::Sort,
        Self::PreCopy,
        Self::Checkpoint,
    ];

    /// Its name in metrics.
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
        }
    }
}

/// What a device was asked to do when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// List, create, open, rename, link, unlink, truncate, allocate, punch, lock.
    Metadata(&'static str),
    /// Positioned read.
    Read,
    /// Positioned write.
    Write,
    /// Sync of a file or of the directory.
    Sync,
}

/// An operation on the directory or on a whole file has no place within it.
fn what_failed(operation: &Operation, name: &str, offset: u64, detail: &str) -> String {
    match operation {
        Operation::Metadata(what) => format!("{name}: could not {what}: {detail}"),
        _ => format!("{operation:?} failed on {name} at byte {offset}: {detail}"),
    }
}

/// Why a device refused or failed, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The name is not there.
    #[error("{name}: no such file in {dir}")]
    NotFound {
        /// The file's name.
        name: String,
        /// The device's directory.
        dir: String,
    },
    /// The name is taken.
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
        /// ` (pid N)` where known.
        holder: String,
    },
    /// No space left. Nothing was written; retry once space is back.
    #[error("no space left on the device of {dir}; free space or delete keys")]
    Full {
        /// The device's directory.
        dir: String,
    },
    /// The system is out of descriptors or memory, or was interrupted. Nothing was changed; retry once that is over.
    #[error("{dir}: the system is out of a resource ({detail}); raise its limit or wait")]
    Exhausted {
        /// The device's directory.
        dir: String,
        /// The system's words.
        detail: String,
    },
    /// The system refused access.
    #[error("{path}: permission denied; check the owner and mode of the data directory")]
    Permission {
        /// What was refused.
        path: String,
    },
    /// The file system takes no writes; reads work.
    #[error(
        "{dir}: the file system is mounted read-only; mount it writable, or look into the kernel's log why it is not"
    )]
    ReadOnly {
        /// The device's directory.
        dir: String,
    },
    /// The operation failed. A failed write or sync has poisoned the device.
    #[error("{}", what_failed(operation, name, *offset, detail))]
    Io {
        /// What was tried.
        operation: Operation,
        /// The file's name.
        name: String,
        /// Where, bytes.
        offset: u64,
        /// The system's words.
        detail: String,
    },
    /// A write or sync failed earlier: what reached the medium is unknown, so nothing more is written.
    #[error("device poisoned by an earlier failure ({first}); restart and run `fawn check`")]
    Poisoned {
        /// The first failure.
        first: String,
    },
}

impl DeviceError {
    /// Whether a metadata operation that failed so has changed nothing and may succeed later: no space, no descriptors,
    /// no memory. Says nothing of a write or sync: a failed one is never tried again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Exhausted { .. })
    }
}

/// The end of a data operation.
#[derive(Debug)]
pub struct Completion {
    /// What the caller named it.
    pub token: Token,
    /// Bytes moved (0 for a sync), or the failure. A read past the end of a file yields zero bytes in the buffer there
    /// and counts the whole length.
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

    /// Takes the directory for this process until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when another holder lives.
    fn lock(&mut self) -> Result<(), DeviceError>;

    /// Creates an empty file. It is durable only after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::Exists`], [`DeviceError::Full`].
    fn create(&mut self, name: &str) -> Result<FileId, DeviceError>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn open(&mut self, name: &str) -> Result<FileId, DeviceError>;

    /// Closes it; nothing may be in flight on it.
    fn close(&mut self, file: FileId);

    /// Renames, replacing the target. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// A second name for the same file. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`], [`DeviceError::Exists`].
    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Removes a name. Durable after [`Device::sync_dir`].
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    fn unlink(&mut self, name: &str) -> Result<(), DeviceError>;

    /// Makes creations, renames, links and unlinks durable. A failure poisons.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn sync_dir(&mut self) -> Result<(), DeviceError>;

    /// Length, bytes.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn len(&mut self, file: FileId) -> Result<u64, DeviceError>;

    /// Cuts or extends with zeros. Durable after a sync of the file.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; poisons.
    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError>;

    /// Reserves space, so that later writes within it do not fail for want of it; the length grows to cover it.
    ///
    /// # Errors
    /// [`DeviceError::Full`]: nothing changed.
    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError>;

    /// Gives space back; the bytes read as zeros.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError>;

    /// Free bytes on the medium.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn free_bytes(&mut self) -> Result<u64, DeviceError>;

    /// Queues a data operation. At most one write may be in flight per 4 KiB block: the caller's duty.
    fn submit(&mut self, request: Request);

    /// Queues a read of `buf.len()` bytes; `offset` and length are multiples of a sector.
    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, cause: Cause, token: Token) {
        self.submit(Request::read(file, offset, buf, cause, token));
    }

    /// Queues a write of the first `len_bytes` of `buf` (a multiple of a sector).
    fn submit_write(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        cause: Cause,
        token: Token,
    ) {
        self.submit(Request::write(file, offset, buf, len_bytes, cause, token));
    }

    /// As [`Device::submit_write`], durable when it completes, where that is cheaper than a sync after it. Covers only
    /// this write's own bytes (and the metadata to reach them), not earlier writes.
    fn submit_write_durable(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        cause: Cause,
        token: Token,
    ) {
        self.submit(Request::write(file, offset, buf, len_bytes, cause, token).durable());
    }

    /// Queues a data sync of everything written to `file` whose completion was reaped before this call.
    fn submit_sync(&mut self, file: FileId, cause: Cause, token: Token) {
        self.submit(Request::sync(file, cause, token));
    }

    /// Hands everything still queued to the system: at most one system call.
    fn kick(&mut self);

    /// Appends what has completed to `out`; never blocks.
    fn reap(&mut self, out: &mut VecDeque<Completion>);

    /// As [`Device::reap`], after waiting for at least one completion if any operation is in flight. Kicks first.
    fn wait(&mut self, out: &mut VecDeque<Completion>);

    /// Data operations submitted and not yet reaped. The caller bounds them: real devices panic beyond 65,536.
    fn in_flight(&self) -> usize;

    /// A descriptor that becomes readable when an idle loop should reap; `None` where completions come by themselves.
    /// Only for polling: nobody but the device reads from it. A poll of it may end early, as by a signal.
    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Requests and bytes so far, by cause.
    fn stats(&self) -> &crate::IoStats;

    /// The failure that poisoned it, if any.
    fn poisoned(&self) -> Option<&DeviceError>;

    /// Its name for logs: `io_uring`, `portable`, `sim`.
    fn name(&self) -> &'static str;
}

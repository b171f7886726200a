//! `IoRequest`: one data operation, checked for alignment when it is created.
use crate::buffer::SECTOR_BYTES;
use crate::{AlignedBuf, Completion, DeviceError, FileId, FrozenBytes, IoClass, IoOperation, Token};

/// Kind of a data operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Fill the buffer.
    Read,
    /// Write from the buffer.
    Write {
        /// Complete only when the written bytes, and the metadata to reach them, survive power loss.
        durable: bool,
    },
    /// Make durable all writes to the file that were reaped before.
    Sync,
    /// Make durable the names in the directory.
    SyncDir,
}

/// In place of a file: the device's directory.
pub(crate) const DIR_FILE: FileId = FileId(u32::MAX);

impl Work {
    /// The operation's name in errors.
    pub(crate) const fn operation(self) -> IoOperation {
        match self {
            Self::Read => IoOperation::Read,
            Self::Write { .. } => IoOperation::Write,
            Self::Sync | Self::SyncDir => IoOperation::Sync,
        }
    }
}

/// Memory that an operation reads from or writes to; kept until the operation completes.
#[derive(Debug, Default)]
pub(crate) enum IoBuffer {
    /// No memory: a sync.
    #[default]
    None,
    /// A buffer that returns to the caller.
    Own(AlignedBuf),
    /// Bytes to write, which others may read at the same time.
    Shared(FrozenBytes),
}

impl IoBuffer {
    /// The bytes of a write.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Own(buf) => buf,
            Self::Shared(bytes) => bytes,
        }
    }

    /// The buffer that a read fills.
    pub(crate) fn buf_mut(&mut self) -> Option<&mut AlignedBuf> {
        if let Self::Own(buf) = self { Some(buf) } else { None }
    }

    /// The address of byte `at` for the system; only a read may write to it.
    pub(crate) fn address(&mut self, at: usize) -> *mut u8 {
        match self {
            Self::None => std::ptr::null_mut(),
            Self::Own(buf) => buf[at..].as_mut_ptr(),
            Self::Shared(bytes) => bytes[at..].as_ptr().cast_mut(),
        }
    }
}

/// A data operation; it owns its memory until it completes.
#[derive(Debug)]
pub struct IoRequest {
    pub(crate) token: Token,
    pub(crate) file: FileId,
    pub(crate) class: IoClass,
    pub(crate) work: Work,
    pub(crate) offset: u64,
    pub(crate) len_bytes: usize,
    pub(crate) memory: IoBuffer,
}

impl IoRequest {
    /// A read of all of `buf` at `offset`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of a sector: direct I/O would fail.
    #[must_use]
    pub fn read(file: FileId, offset: u64, buf: AlignedBuf, class: IoClass, token: Token) -> Self {
        let len_bytes = buf.len();
        assert_aligned(offset, len_bytes);
        Self { token, file, class, work: Work::Read, offset, len_bytes, memory: IoBuffer::Own(buf) }
    }

    /// A write of the first `len_bytes` of `buf`.
    ///
    /// # Panics
    /// If the offset or length is not a multiple of a sector, or the buffer is too short. Direct I/O would fail, and
    /// the failed write would poison the device.
    #[must_use]
    pub fn write(file: FileId, offset: u64, buf: AlignedBuf, len_bytes: usize, class: IoClass, token: Token) -> Self {
        assert_aligned(offset, len_bytes);
        assert!(len_bytes <= buf.len(), "cannot write {len_bytes} bytes of a buffer of {}", buf.len());
        Self { token, file, class, work: Work::Write { durable: false }, offset, len_bytes, memory: IoBuffer::Own(buf) }
    }

    /// A write of `bytes`, which others may still read; the completion returns no buffer.
    ///
    /// # Panics
    /// If the offset, the length or the position in the buffer is not a multiple of a sector.
    #[must_use]
    pub fn write_shared(file: FileId, offset: u64, bytes: FrozenBytes, class: IoClass, token: Token) -> Self {
        let len_bytes = bytes.len();
        assert_aligned(offset, len_bytes);
        assert!(
            bytes.as_ptr().addr().is_multiple_of(SECTOR_BYTES),
            "direct I/O needs memory that is aligned to sectors"
        );
        let work = Work::Write { durable: false };
        Self { token, file, class, work, offset, len_bytes, memory: IoBuffer::Shared(bytes) }
    }

    /// The same write, but durable when it completes.
    #[must_use]
    pub fn durable(self) -> Self {
        assert!(self.work == Work::Write { durable: false }, "only a write can be durable");
        Self { work: Work::Write { durable: true }, ..self }
    }

    /// A sync of `file`.
    #[must_use]
    pub const fn sync(file: FileId, class: IoClass, token: Token) -> Self {
        Self { token, file, class, work: Work::Sync, offset: 0, len_bytes: 0, memory: IoBuffer::None }
    }

    /// A sync of the directory: creations, renames, links and unlinks before it are durable once it completes.
    #[must_use]
    pub fn sync_dir(class: IoClass, token: Token) -> Self {
        Self { work: Work::SyncDir, ..Self::sync(DIR_FILE, class, token) }
    }

    /// The completion of the whole operation: all bytes moved, or the failure.
    pub(crate) fn completion(self, result: Result<(), DeviceError>) -> Completion {
        let buf = if let IoBuffer::Own(buf) = self.memory { Some(buf) } else { None };
        Completion { token: self.token, result: result.map(|()| self.len_bytes), buf }
    }
}

fn assert_aligned(offset: u64, len_bytes: usize) {
    assert!(offset.is_multiple_of(SECTOR_BYTES as u64), "offset {offset} is not a multiple of a sector");
    assert!(
        len_bytes > 0 && len_bytes.is_multiple_of(SECTOR_BYTES),
        "length {len_bytes} is not a multiple of a sector"
    );
}

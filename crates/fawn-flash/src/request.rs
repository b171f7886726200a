//! Owns `Request`: one data operation as every device takes it, checked against the caller's duties.
use crate::buffer::SECTOR_BYTES;
use crate::{AlignedBuf, Cause, Completion, DeviceError, FileId, FrozenBytes, Operation, Token};

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Fill the buffer.
    Read,
    /// Write from the buffer.
    Write {
        /// It completes when its own bytes, and the metadata to reach them, survive power loss.
        durable: bool,
    },
    /// Make durable what was written to the file and reaped before.
    Sync,
}

impl Work {
    /// Its name in errors.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write { .. } => Operation::Write,
            Self::Sync => Operation::Sync,
        }
    }
}

/// What an operation moves bytes to or from; kept until the device has answered.
#[derive(Debug, Default)]
pub(crate) enum Memory {
    /// Nothing: a sync.
    #[default]
    None,
    /// A buffer that goes back to the caller.
    Own(AlignedBuf),
    /// Bytes to be written that others may read meanwhile.
    Shared(FrozenBytes),
}

impl Memory {
    /// The bytes that a write takes.
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

    /// Address of byte `at` for the system; to be written to only by a read.
    pub(crate) fn address(&mut self, at: usize) -> *mut u8 {
        match self {
            Self::None => std::ptr::null_mut(),
            Self::Own(buf) => buf[at..].as_mut_ptr(),
            Self::Shared(bytes) => bytes[at..].as_ptr().cast_mut(),
        }
    }
}

/// A data operation; it owns its buffer until the device has answered.
#[derive(Debug)]
pub struct Request {
    pub(crate) token: Token,
    pub(crate) file: FileId,
    pub(crate) cause: Cause,
    pub(crate) work: Work,
    pub(crate) offset: u64,
    pub(crate) len_bytes: usize,
    pub(crate) memory: Memory,
}

impl Request {
    /// Reads all of `buf` from `offset` on.
    ///
    /// # Panics
    /// When `offset` is no multiple of a sector, which direct I/O would answer with an error.
    #[must_use]
    pub fn read(file: FileId, offset: u64, buf: AlignedBuf, cause: Cause, token: Token) -> Self {
        let len_bytes = buf.len();
        assert_aligned(offset, len_bytes);
        Self { token, file, cause, work: Work::Read, offset, len_bytes, memory: Memory::Own(buf) }
    }

    /// Writes the first `len_bytes` of `buf`.
    ///
    /// # Panics
    /// When offset or length is no multiple of a sector, which direct I/O would answer with an error that poisons, or
    /// the buffer is too short.
    #[must_use]
    pub fn write(file: FileId, offset: u64, buf: AlignedBuf, len_bytes: usize, cause: Cause, token: Token) -> Self {
        assert_aligned(offset, len_bytes);
        assert!(len_bytes <= buf.len(), "{len_bytes} bytes are to be written of a buffer of {}", buf.len());
        Self { token, file, cause, work: Work::Write { durable: false }, offset, len_bytes, memory: Memory::Own(buf) }
    }

    /// Writes `bytes`, which stay readable to others; the completion brings no buffer.
    ///
    /// # Panics
    /// When offset, length or place in the buffer is no multiple of a sector.
    #[must_use]
    pub fn write_shared(file: FileId, offset: u64, bytes: FrozenBytes, cause: Cause, token: Token) -> Self {
        let len_bytes = bytes.len();
        assert_aligned(offset, len_bytes);
        assert!(bytes.as_ptr().addr().is_multiple_of(SECTOR_BYTES), "direct I/O takes memory from whole sectors");
        let work = Work::Write { durable: false };
        Self { token, file, cause, work, offset, len_bytes, memory: Memory::Shared(bytes) }
    }

    /// The same write, durable when it completes.
    #[must_use]
    pub fn durable(self) -> Self {
        assert!(self.work == Work::Write { durable: false }, "only a write becomes durable");
        Self { work: Work::Write { durable: true }, ..self }
    }

    /// Syncs `file`.
    #[must_use]
    pub const fn sync(file: FileId, cause: Cause, token: Token) -> Self {
        Self { token, file, cause, work: Work::Sync, offset: 0, len_bytes: 0, memory: Memory::None }
    }

    /// Its end: all of it moved, or the failure.
    pub(crate) fn completion(self, result: Result<(), DeviceError>) -> Completion {
        let buf = if let Memory::Own(buf) = self.memory { Some(buf) } else { None };
        Completion { token: self.token, result: result.map(|()| self.len_bytes), buf }
    }
}

fn assert_aligned(offset: u64, len_bytes: usize) {
    assert!(offset.is_multiple_of(SECTOR_BYTES as u64), "offset {offset} is no multiple of a sector");
    assert!(len_bytes > 0 && len_bytes.is_multiple_of(SECTOR_BYTES), "length {len_bytes} is no multiple of a sector");
}

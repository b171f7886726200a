//! Owns `Request`: one data operation as every device takes it, checked against the caller's duties.
use crate::buffer::SECTOR_BYTES;
use crate::{AlignedBuf, Cause, Completion, DeviceError, FileId, Operation, Token};

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

/// A data operation; it owns its buffer until the device has answered.
#[derive(Debug)]
pub struct Request {
    pub(crate) token: Token,
    pub(crate) file: FileId,
    pub(crate) cause: Cause,
    pub(crate) work: Work,
    pub(crate) offset: u64,
    pub(crate) len_bytes: usize,
    pub(crate) buf: Option<AlignedBuf>,
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
        Self { token, file, cause, work: Work::Read, offset, len_bytes, buf: Some(buf) }
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
        Self { token, file, cause, work: Work::Write { durable: false }, offset, len_bytes, buf: Some(buf) }
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
        Self { token, file, cause, work: Work::Sync, offset: 0, len_bytes: 0, buf: None }
    }

    /// Its end: all of it moved, or the failure.
    pub(crate) fn completion(self, result: Result<(), DeviceError>) -> Completion {
        Completion { token: self.token, result: result.map(|()| self.len_bytes), buf: self.buf }
    }
}

fn assert_aligned(offset: u64, len_bytes: usize) {
    assert!(offset.is_multiple_of(SECTOR_BYTES as u64), "offset {offset} is no multiple of a sector");
    assert!(len_bytes > 0 && len_bytes.is_multiple_of(SECTOR_BYTES), "length {len_bytes} is no multiple of a sector");
}

//! Blocking device access for recovery: several operations in flight, awaited by token in any order.
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, FileId, IoClass, Token};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::ops::Range;

/// Content of unreadable pages: no record, no frame, and not the zeros of an unwritten end.
const UNREADABLE: u8 = 0xFF;
/// Largest single read or write, bytes.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Exclusive, blocking use of a device.
pub(crate) struct Io<'d, D: Device> {
    pub(crate) device: &'d mut D,
    done: HashMap<u64, Completion, FxBuildHasher>,
    reaped: VecDeque<Completion>,
    next: u64,
}

impl<'d, D: Device> Io<'d, D> {
    pub(crate) fn new(device: &'d mut D) -> Self {
        Self { device, done: HashMap::default(), reaped: VecDeque::new(), next: 0 }
    }

    pub(crate) fn token(&mut self) -> Token {
        self.next += 1;
        Token(self.next)
    }

    /// Starts a read of whole pages.
    pub(crate) fn start_read(&mut self, file: FileId, offset: u64, len_bytes: usize, class: IoClass) -> Token {
        let token = self.token();
        self.device.submit_read(file, offset, AlignedBuf::zeroed(len_bytes), class, token);
        token
    }

    pub(crate) fn finish(&mut self, token: Token) -> Result<Option<AlignedBuf>, DeviceError> {
        loop {
            if let Some(completion) = self.done.remove(&token.0) {
                return completion.result.map(|_| completion.buf);
            }
            assert!(self.device.in_flight() > 0, "waiting for an operation that was never started");
            self.device.wait(&mut self.reaped);
            for completion in self.reaped.drain(..) {
                self.done.insert(completion.token.0, completion);
            }
        }
    }

    pub(crate) fn read(
        &mut self,
        file: FileId,
        offset: u64,
        len: usize,
        class: IoClass,
    ) -> Result<AlignedBuf, DeviceError> {
        let token = self.start_read(file, offset, len, class);
        match self.finish(token)? {
            Some(buf) => Ok(buf),
            None => unreachable!("a read brings its buffer back"),
        }
    }

    /// Reads page by page what could not be read at once; an unreadable page becomes bytes that no record has.
    ///
    /// # Errors
    /// If the system cannot read for now: such a page is not lost.
    pub(crate) fn read_pages(
        &mut self,
        file: FileId,
        offset: u64,
        len: usize,
        class: IoClass,
    ) -> Result<AlignedBuf, DeviceError> {
        let mut buf = AlignedBuf::zeroed(len);
        for (i, page) in buf.chunks_mut(PAGE_BYTES).enumerate() {
            match self.read(file, offset + (i * PAGE_BYTES) as u64, PAGE_BYTES, class) {
                Ok(read) => page.copy_from_slice(&read[..PAGE_BYTES]),
                Err(error) if error.is_retryable() => return Err(error),
                Err(_) => page.fill(UNREADABLE),
            }
        }
        Ok(buf)
    }

    /// Reads these bytes, which begin on a page.
    pub(crate) fn read_all(&mut self, file: FileId, part: Range<u64>, class: IoClass) -> Result<Vec<u8>, DeviceError> {
        let (mut bytes, mut at) = (Vec::new(), part.start);
        while at < part.end {
            let len = (part.end - at).min(PIECE_BYTES_MAX as u64) as usize;
            let buf = self.read(file, at, len.next_multiple_of(PAGE_BYTES), class)?;
            bytes.extend_from_slice(&buf[..len]);
            at += len as u64;
        }
        Ok(bytes)
    }

    pub(crate) fn write_durable(
        &mut self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        class: IoClass,
    ) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(PAGE_BYTES as u64), "writes begin on a page");
        for (i, piece) in bytes.chunks(PIECE_BYTES_MAX).enumerate() {
            let len = piece.len().next_multiple_of(PAGE_BYTES);
            let mut buf = AlignedBuf::zeroed(len);
            buf[..piece.len()].copy_from_slice(piece);
            let token = self.token();
            let at = offset + (i * PIECE_BYTES_MAX) as u64;
            self.device.submit_write_durable(file, at, buf, len, class, token);
            self.finish(token)?;
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self, file: FileId, class: IoClass) -> Result<(), DeviceError> {
        let token = self.token();
        self.device.submit_sync(file, class, token);
        self.finish(token).map(drop)
    }
}

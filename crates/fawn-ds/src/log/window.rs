//! The append window: the newest bytes of the log in memory, in chunks, until they are flushed.
//!
//! Records are encoded here once, contiguously. Reads use this copy until the chunk is flushed and dropped.
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, AppendBuf, FrozenBytes};
use std::collections::VecDeque;

/// Bytes of buffers kept for reuse. The allocator would unmap and refault large buffers every time.
const SPARE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct AppendBufferPool {
    spare: Vec<AlignedBuf>,
    spare_bytes: usize,
}

impl AppendBufferPool {
    /// A buffer of at least `len_bytes`, content unspecified.
    pub(crate) fn take(&mut self, len_bytes: usize) -> AlignedBuf {
        let fits = |buf: &AlignedBuf| buf.len() >= len_bytes && buf.len() <= len_bytes.saturating_mul(4);
        match self.spare.iter().rposition(fits) {
            Some(at) => {
                let buf = self.spare.swap_remove(at);
                self.spare_bytes -= buf.len();
                buf
            }
            None => AlignedBuf::zeroed(len_bytes.next_multiple_of(PAGE_BYTES)),
        }
    }

    /// A buffer of exactly `len_bytes`: reads fill all of it.
    pub(crate) fn take_exact(&mut self, len_bytes: usize) -> AlignedBuf {
        match self.spare.iter().rposition(|buf| buf.len() == len_bytes) {
            Some(at) => {
                let buf = self.spare.swap_remove(at);
                self.spare_bytes -= buf.len();
                buf
            }
            None => AlignedBuf::zeroed(len_bytes),
        }
    }

    pub(crate) fn give(&mut self, buf: AlignedBuf) {
        if self.spare_bytes + buf.len() <= SPARE_BYTES_MAX {
            self.spare_bytes += buf.len();
            self.spare.push(buf);
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.spare_bytes
    }
}

/// A contiguous part of one segment, from a page boundary on.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// Offset of its first byte in the segment, a multiple of the page size.
    pub(crate) base: u32,
    pub(crate) len: usize,
    /// Bytes shared with the device are frozen.
    pub(crate) buf: AppendBuf,
}

impl Chunk {
    /// Offset in the segment of the first unused byte.
    pub(crate) fn end(&self) -> u32 {
        self.base + self.len as u32
    }

    pub(crate) fn room(&self) -> usize {
        self.buf.len() - self.len
    }

    fn holds(&self, slot: u32, offset: u32) -> bool {
        self.slot == slot && offset >= self.base && offset < self.end()
    }

    fn holds_all(&self, slot: u32, from: u32, end: u32) -> bool {
        self.slot == slot && self.base <= from && self.end() >= end
    }

    /// The unused bytes.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        self.buf.rest_mut(self.len)
    }

    /// The used bytes from `offset` of the segment on.
    pub(crate) fn from(&self, offset: u32) -> &[u8] {
        &self.buf[(offset - self.base) as usize..self.len]
    }
}

/// The chunks, oldest first; appends go to the last one.
#[derive(Debug, Default)]
pub(crate) struct Window {
    chunks: VecDeque<Chunk>,
    capacity_bytes: usize,
}

impl Window {
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    pub(crate) fn active(&self) -> Option<&Chunk> {
        self.chunks.back()
    }

    pub(crate) fn active_mut(&mut self) -> Option<&mut Chunk> {
        self.chunks.back_mut()
    }

    pub(crate) fn push(&mut self, chunk: Chunk) {
        assert!((chunk.base as usize).is_multiple_of(PAGE_BYTES), "chunks begin on a page");
        self.capacity_bytes += chunk.buf.len();
        self.chunks.push_back(chunk);
    }

    /// The bytes from a record's start to the end of its chunk.
    pub(crate) fn record(&self, slot: u32, offset: u32) -> Option<&[u8]> {
        // A record is whole in the chunk where it was encoded. A later chunk may start in the middle of the page in
        // which the record ends, with a copy of part of it.
        self.chunks.iter().find(|chunk| chunk.holds(slot, offset)).map(|chunk| chunk.from(offset))
    }

    /// Drops leading chunks that are flushed whole; the active one stays.
    pub(crate) fn drop_flushed(&mut self, flushed: impl Fn(u64, u32) -> bool, pool: &mut AppendBufferPool) {
        while self.chunks.len() > 1 {
            let front = &self.chunks[0];
            if !flushed(front.sequence, front.end()) {
                return;
            }
            if let Some(chunk) = self.chunks.pop_front() {
                self.capacity_bytes -= chunk.buf.len();
                if let Some(buf) = chunk.buf.into_inner() {
                    pool.give(buf);
                }
            }
        }
    }

    /// The bytes of a closed frame that was not submitted yet, from its header on.
    pub(crate) fn frame_mut(&mut self, slot: u32, from: u32, end: u32) -> Option<&mut [u8]> {
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.holds_all(slot, from, end))?;
        Some(chunk.buf.rest_mut((from - chunk.base) as usize))
    }

    /// The bytes of a closed frame, from the start of its first page.
    pub(crate) fn frame_bytes(&self, slot: u32, from: u32, end: u32) -> Option<&[u8]> {
        let chunk = self.chunks.iter().find(|chunk| chunk.holds_all(slot, from, end))?;
        Some(&chunk.buf[(from - chunk.base) as usize..(end - chunk.base) as usize])
    }

    /// The same bytes, shared with the device instead of copied; nothing is appended to them any more.
    pub(crate) fn share_frame(&mut self, slot: u32, from: u32, end: u32) -> Option<FrozenBytes> {
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.holds_all(slot, from, end))?;
        Some(chunk.buf.share((from - chunk.base) as usize..(end - chunk.base) as usize))
    }
}

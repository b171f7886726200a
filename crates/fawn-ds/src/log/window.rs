//! The append window: the newest bytes of the log in memory, in chunks, until they are written.
//!
//! Records are encoded here once, contiguously. Reads use this copy until the chunk is written and dropped.
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, AppendBuf, FrozenBytes};
use fawn_types::MonoMs;
use std::collections::VecDeque;

/// Time after which a buffer that was not needed is dropped, ms: the caches take its memory.
const UNUSED_MS: u64 = 1_000;

/// Buffers kept for reuse. The allocator would unmap and refault large buffers every time.
#[derive(Debug)]
pub(crate) struct AppendBufferPool {
    /// The buffer given back last is at the end.
    spare: VecDeque<AlignedBuf>,
    spare_bytes: usize,
    spare_bytes_max: usize,
    /// Fewest spare bytes since the unused ones were dropped, and the next time for that.
    unused_bytes: usize,
    drop_unused_at: MonoMs,
}

impl AppendBufferPool {
    pub(crate) const fn new(spare_bytes_max: usize) -> Self {
        Self { spare: VecDeque::new(), spare_bytes: 0, spare_bytes_max, unused_bytes: 0, drop_unused_at: MonoMs(0) }
    }

    /// A buffer of at least `len_bytes`, content unspecified.
    pub(crate) fn take(&mut self, len_bytes: usize) -> AlignedBuf {
        self.reuse(|buf| buf.len() >= len_bytes && buf.len() <= len_bytes.saturating_mul(4))
            .unwrap_or_else(|| AlignedBuf::zeroed(len_bytes.next_multiple_of(PAGE_BYTES)))
    }

    /// A buffer of exactly `len_bytes`: reads fill all of it.
    pub(crate) fn take_exact(&mut self, len_bytes: usize) -> AlignedBuf {
        self.reuse(|buf| buf.len() == len_bytes).unwrap_or_else(|| AlignedBuf::zeroed(len_bytes))
    }

    fn reuse(&mut self, fits: impl Fn(&AlignedBuf) -> bool) -> Option<AlignedBuf> {
        let at = self.spare.iter().rposition(fits)?;
        let buf = self.spare.remove(at)?;
        self.spare_bytes -= buf.len();
        self.unused_bytes = self.unused_bytes.min(self.spare_bytes);
        Some(buf)
    }

    /// Keeps a buffer and drops the oldest ones beyond the limit: a length that is no longer used would stay forever.
    pub(crate) fn give(&mut self, buf: AlignedBuf) {
        if buf.len() > self.spare_bytes_max {
            return;
        }
        self.spare_bytes += buf.len();
        self.spare.push_back(buf);
        while self.spare_bytes > self.spare_bytes_max {
            self.drop_oldest();
        }
    }

    /// Drops the oldest buffers, as many as were spare all the time since the last call that did so. Returns whether it was
    /// time for it.
    pub(crate) fn drop_unused(&mut self, now: MonoMs) -> bool {
        if now < self.drop_unused_at {
            return false;
        }
        self.drop_unused_at = now.plus_ms(UNUSED_MS);
        let kept_bytes = self.spare_bytes - self.unused_bytes;
        while self.spare.front().is_some_and(|oldest| self.spare_bytes - oldest.len() >= kept_bytes) {
            self.drop_oldest();
        }
        self.unused_bytes = self.spare_bytes;
        true
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.spare.pop_front() {
            self.spare_bytes -= oldest.len();
            self.unused_bytes = self.unused_bytes.min(self.spare_bytes);
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

    /// Drops leading chunks that are written whole; the active one stays.
    pub(crate) fn drop_written(&mut self, written: impl Fn(u64, u32) -> bool, pool: &mut AppendBufferPool) {
        while self.chunks.len() > 1 {
            let front = &self.chunks[0];
            if !written(front.sequence, front.end()) {
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

    /// Drops all chunks, which are written: the stream has no active segment then.
    pub(crate) fn clear(&mut self, pool: &mut AppendBufferPool) {
        self.capacity_bytes = 0;
        for buf in self.chunks.drain(..).filter_map(|chunk| chunk.buf.into_inner()) {
            pool.give(buf);
        }
    }

    /// End of the chunk in which this byte of a closed frame is.
    pub(crate) fn chunk_end(&self, slot: u32, offset: u32) -> u32 {
        self.chunks.iter().find(|chunk| chunk.holds(slot, offset)).map_or(offset, Chunk::end)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_buffers_stay_within_their_limit_and_the_oldest_go() {
        let mut pool = AppendBufferPool::new(8 * PAGE_BYTES);
        for pages in 1..=9 {
            pool.give(AlignedBuf::zeroed(pages * PAGE_BYTES));
            assert!(pool.resident_bytes() <= 8 * PAGE_BYTES, "{pool:?}");
        }
        assert_eq!(pool.resident_bytes(), 8 * PAGE_BYTES, "nine pages are beyond the limit: {pool:?}");
        assert_eq!(pool.take_exact(PAGE_BYTES).len(), PAGE_BYTES);
        assert_eq!(pool.resident_bytes(), 8 * PAGE_BYTES, "one page was dropped long before: {pool:?}");
        assert_eq!(pool.take(3 * PAGE_BYTES).len(), 8 * PAGE_BYTES);
        assert_eq!(pool.resident_bytes(), 0);
    }

    #[test]
    fn buffers_that_were_spare_for_a_second_go() {
        let mut pool = AppendBufferPool::new(8 * PAGE_BYTES);
        for pages in [4, 2, 1] {
            pool.give(AlignedBuf::zeroed(pages * PAGE_BYTES));
        }
        pool.drop_unused(MonoMs(10));
        assert_eq!(pool.resident_bytes(), 7 * PAGE_BYTES, "they were given back since: {pool:?}");
        let [last, middle] = [1, 2].map(|pages| pool.take_exact(pages * PAGE_BYTES));
        pool.give(middle);
        pool.give(last);
        pool.drop_unused(MonoMs(1_009));
        assert_eq!(pool.resident_bytes(), 7 * PAGE_BYTES, "a second has not passed: {pool:?}");
        pool.drop_unused(MonoMs(1_010));
        assert_eq!(pool.resident_bytes(), 3 * PAGE_BYTES, "the oldest was not needed: {pool:?}");
        pool.drop_unused(MonoMs(2_010));
        assert_eq!(pool.resident_bytes(), 0, "the others were not needed either: {pool:?}");
        pool.give(AlignedBuf::zeroed(PAGE_BYTES));
        pool.drop_unused(MonoMs(3_010));
        assert_eq!(pool.resident_bytes(), PAGE_BYTES, "it came in this second: {pool:?}");
    }
}

//! Owns what a caller may choose when opening a store, and the sizes derived from it.
use crate::format::record::RESULT_HEADER_BYTES_MAX;
use crate::index::IndexOptions;
use crate::range::Retained;
use fawn_flash::buffer::{HUGE_BUF_BYTES, PAGE_BYTES};
use fawn_types::{Durability, HashSecret, limits};

/// Segment size unless chosen otherwise, bytes.
const SEGMENT_BYTES_DEFAULT: u32 = 64 << 20;

/// What records between append and commit may take whatever the budget is, bytes.
const PENDING_BYTES_MIN: usize = 64 << 10;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a segment file, a power of two; fixed when the store is created.
    pub segment_bytes: u32,
    /// Budget for index, overlay, write buffers and page cache together; the cache is the balancing term.
    pub memory_bytes: u64,
    /// Which watermark acknowledges, and so what a flush does.
    pub durability: Durability,
    /// Longest value taken; a record is at most a quarter of a segment whatever this says, its result left out, which
    /// is at most as long as a value in a reply.
    pub value_bytes_max: u32,
    /// Most bytes of segments, if the store may not have the whole device.
    pub capacity_bytes: Option<u64>,
    /// Starts every frame on a fresh page, where rewriting a sector with unchanged content is not trusted.
    pub pad_frames: bool,
    /// The key hash's secret; needed to create a store, must match (or be absent) when it exists.
    pub secret: Option<HashSecret>,
    /// The secret that a new store gets when `secret` is none; an existing store keeps its own.
    pub secret_if_new: Option<HashSecret>,
    /// Tells a new store from others that are made with the same secret, maybe at the same time: its number among them.
    pub number_if_new: u32,
    /// Most (version, pointer) pairs kept per range for retransmission; all ranges together take at most a sixteenth of
    /// the budget, whatever this says.
    pub retained_records_max: usize,
    /// The sizes that each range's index is born with.
    pub index: IndexOptions,
    /// Never writes: for checks and exports of a corrupt store.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            memory_bytes: 256 << 20,
            durability: Durability::Sync,
            value_bytes_max: limits::VALUE_BYTES_MAX as u32,
            capacity_bytes: None,
            pad_frames: false,
            secret: None,
            secret_if_new: None,
            number_if_new: 0,
            retained_records_max: 1 << 16,
            index: IndexOptions::default(),
            read_only: false,
        }
    }
}

impl Options {
    /// Most bytes held by the append window before callers are told to wait.
    pub(crate) fn write_buffer_bytes_max(&self) -> usize {
        let share = (self.memory_bytes / 8).min(32 << 20) as usize;
        share.max(4 * self.chunk_bytes())
    }

    /// Most bytes that records between append and commit take in memory before callers are told to wait.
    pub(crate) fn pending_bytes_max(&self) -> usize {
        ((self.memory_bytes / 8) as usize).max(PENDING_BYTES_MIN)
    }

    /// Most bytes that keys take in memory whose old versions cannot be read. The cache gives them up.
    pub(crate) fn apart_bytes_max(&self) -> usize {
        ((self.memory_bytes / 2) as usize).max(PENDING_BYTES_MIN)
    }

    /// Most records that each of `ranges` ranges keeps for retransmission: together a sixteenth of the budget, with
    /// queues that are half empty at worst.
    pub(crate) fn retained_share(&self, ranges: usize) -> usize {
        let store_max = (self.memory_bytes / 16) as usize / (2 * size_of::<Retained>());
        self.retained_records_max.min(store_max / ranges.max(1))
    }

    /// Size of one piece of the append window; larger records get a piece of their own size.
    ///
    /// Where the budget allows, a buffer's huge length: a device takes it as one piece of memory. Below, small pages.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let by_segment = self.segment_bytes as usize / 4;
        let by_budget = (self.memory_bytes / 64) as usize;
        if by_budget.min(by_segment) >= HUGE_BUF_BYTES {
            return HUGE_BUF_BYTES;
        }
        by_budget.clamp(16 * PAGE_BYTES, 1 << 20).min(by_segment).next_multiple_of(PAGE_BYTES)
    }

    /// Longest result: the longest value as a reply, bytes.
    pub(crate) fn result_bytes_max(&self) -> usize {
        (self.value_bytes_max as usize).min(self.record_bytes_max()) + RESULT_HEADER_BYTES_MAX
    }

    /// Longest record without its result, padding included, bytes.
    pub(crate) fn record_bytes_max(&self) -> usize {
        self.segment_bytes as usize / limits::RECORD_SEGMENT_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(memory_bytes: u64, segment_bytes: u32) -> (usize, usize) {
        let options = Options { memory_bytes, segment_bytes, ..Options::default() };
        (options.chunk_bytes(), options.write_buffer_bytes_max())
    }

    #[test]
    fn pieces_of_the_window_are_huge_only_where_the_budget_and_the_segments_are_large() {
        assert_eq!(sizes(256 << 20, 64 << 20), (HUGE_BUF_BYTES, 32 << 20));
        assert_eq!(sizes(128 << 20, 8 << 20), (HUGE_BUF_BYTES, 16 << 20));
        assert_eq!(sizes((128 << 20) - 1, 64 << 20).0, 1 << 20);
        assert_eq!(sizes(1 << 30, 4 << 20).0, 1 << 20);
        // A quarter of 128 MiB, as one of four shards.
        assert_eq!(sizes(32 << 20, 64 << 20), (512 << 10, 4 << 20));
        assert_eq!(sizes(1 << 20, crate::format::SEGMENT_BYTES_MIN), (16 << 10, 128 << 10));
    }

    #[test]
    fn the_window_takes_at_most_an_eighth_of_the_budget() {
        for memory_mib in [4, 32, 100, 128, 200, 256, 1000] {
            let (chunk, most) = sizes(memory_mib << 20, 64 << 20);
            assert!(most as u64 <= (memory_mib << 20) / 8 && most >= 4 * chunk, "{memory_mib} MiB: {most} of {chunk}");
        }
    }
}

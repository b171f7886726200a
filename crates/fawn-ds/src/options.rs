//! Options for opening a store, and the sizes derived from them.
use crate::format::manifest::Identity;
use crate::format::record::RESULT_HEADER_BYTES_MAX;
use crate::format::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::index::{IndexOptions, PointerWidth};
use crate::range::Retained;
use crate::recovery::OpenProgress;
use crate::recovery::deferred::DEFERRED_BYTES;
use fawn_flash::buffer::{HUGE_BUF_BYTES, PAGE_BYTES};
use fawn_types::{Durability, HashSecret, limits};
use std::sync::Arc;

/// Segment size unless chosen otherwise, bytes.
const SEGMENT_BYTES_DEFAULT: u32 = 64 << 20;
/// Minimum number of segments of a capacity: a full store of fewer may have no space to clean any.
pub const CAPACITY_SEGMENTS_MIN: u64 = 8;
/// Number of segments that a capacity is divided into, unless that makes them larger than the default.
const SEGMENTS_WANTED: u64 = 16;
/// Most segments of a capacity: beyond that, segments are larger than the default.
const SEGMENTS_MAX: u64 = 16 << 10;

/// The size of a new store's segments if none is given, bytes: a small store still needs several, and a large one not too many.
#[must_use]
pub fn segment_bytes_for(capacity_bytes: Option<u64>) -> u32 {
    let Some(capacity_bytes) = capacity_bytes else { return SEGMENT_BYTES_DEFAULT };
    let [shortest, default, longest] = [SEGMENT_BYTES_MIN, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX].map(u64::from);
    let bytes_min = capacity_bytes.div_ceil(SEGMENTS_MAX).clamp(shortest, longest).next_power_of_two();
    let bytes_max = (capacity_bytes / SEGMENTS_WANTED).clamp(shortest, default);
    (1 << bytes_max.ilog2()).max(bytes_min as u32)
}

/// Bytes of log that an opening scans anyway, unless chosen otherwise: it takes some hundred milliseconds.
const CHECKPOINT_LOG_BYTES_MIN: u64 = 256 << 20;

/// The members of a chain extrapolate its time between messages, so theirs differ by far less.
const EXPIRY_MARGIN_MS: u64 = 60_000;

/// Disks grow latent errors over weeks; arrays and file systems are scrubbed at such intervals, too.
const SCRUB_PERIOD_MS: u64 = 30 * 24 * 3_600_000;

/// Minimum memory for records between append and commit, in any budget, bytes.
const PENDING_BYTES_MIN: usize = 64 << 10;

/// Shares of the records for retransmission that needed ones may take until their results are copied.
const NEEDED_SHARES: usize = 8;

/// Whether segments are sorted into runs: files of records in ring order, of which only fences and filters are in memory,
/// about five bits per key. Updates of sorted keys write more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RecordLayout {
    /// Not while this is set. Runs that are there stay, and deletes, which may hide records of theirs, are sorted while they
    /// take more than a twentieth of the log.
    #[default]
    Log,
    /// While the indexes take more than half of the budget, until they take less than two fifths.
    Auto,
    /// As soon as there is enough for a run.
    Sorted,
}

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a segment file, a power of two; fixed when the store is created.
    pub segment_bytes: u32,
    /// Budget for index, overlay, write buffers and caches together; the caches take the remainder.
    pub memory_bytes: u64,
    /// Memory of the record cache, bytes; 0 turns it off. `None`: as much as its marginal hits justify.
    pub record_cache_bytes: Option<u64>,
    /// Durability mode: the watermark at which a write is acknowledged.
    pub durability: Durability,
    /// Maximum value length, bytes. A record without its result is also limited to a quarter of a segment.
    pub value_bytes_max: u32,
    /// Maximum bytes of segments; `None`: the whole device. With less than six segments, a store that is full may stay
    /// so: what is left of them has no space for copies.
    pub capacity_bytes: Option<u64>,
    /// Bytes of segments for 100 bytes of live records, beyond which cleaning begins.
    pub space_amplification_max_percent: u64,
    /// Bytes of log behind a checkpoint before the next one, if ten times the image is less; at most an eighth of the capacity, and
    /// a quarter of this if the log has a million records, or as many overwritten keys as an opening can nearly defer.
    pub checkpoint_log_bytes_min: u64,
    /// Time after which cleaning takes an expired record of a chain for dead: longer than the chain's time may fall when
    /// members fail.
    pub expiry_margin_ms: u64,
    /// Time within which every sealed segment and every run is read again and verified; 0 turns that off. The pace is bounded: a very short
    /// period is exceeded.
    pub scrub_period_ms: u64,
    /// Starts every frame on a new page, for disks where rewriting a sector with unchanged content is unsafe.
    pub pad_frames: bool,
    /// Secret of the key hash. Required to create a store; must match an existing store's, if given.
    pub secret: Option<HashSecret>,
    /// Secret of a new store if `secret` is not given; an existing store keeps its own.
    pub secret_if_new: Option<HashSecret>,
    /// Number of a new store among those created with the same secret, possibly at the same time.
    pub number_if_new: u32,
    /// Most (version, pointer) pairs kept per range for retransmission; all ranges together take at most a sixteenth of
    /// the budget, whatever this says. There may be eight times as many, or as many as this share of the budget allows, but at most
    /// twice as many as that, until the results among them that may be requested again are copied, and as many results of a transfer
    /// again.
    pub retained_records_max: usize,
    /// Initial sizes of each range's index.
    pub index: IndexOptions,
    /// Length of a new store's pointers: it bounds the store's log, and an index takes a byte more per key with the
    /// longer ones. `None`: as short as the capacity allows.
    pub pointers_if_new: Option<PointerWidth>,
    /// Whether segments are sorted into runs: files of records in key order, of which only fences and filters are in memory, about
    /// a byte per key. Updates of sorted keys write more.
    pub layout: RecordLayout,
    /// Records of the log that are sorted into a run at a time, bytes, 256 MiB at most; 0: a sixteenth of the budget, or a 64th of the
    /// capacity if that is less.
    pub sort_bytes: u64,
    /// Memory of the records that a sort holds at a time and of their order, bytes: a sort that needs more writes several runs; 0: a
    /// thirteenth of the budget, from 320 KiB to 320 MiB.
    pub sort_batch_bytes: u64,
    /// Longest run, bytes; 0: a 128th of the capacity, from 1 MiB to 256 MiB.
    pub run_bytes_max: u64,
    /// Receives the progress of the opening.
    pub progress: Option<Arc<OpenProgress>>,
    /// Never writes: for checks and exports of a corrupt store.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            memory_bytes: 256 << 20,
            record_cache_bytes: None,
            durability: Durability::Sync,
            value_bytes_max: limits::VALUE_BYTES_MAX as u32,
            capacity_bytes: None,
            space_amplification_max_percent: 140,
            checkpoint_log_bytes_min: CHECKPOINT_LOG_BYTES_MIN,
            expiry_margin_ms: EXPIRY_MARGIN_MS,
            scrub_period_ms: SCRUB_PERIOD_MS,
            pad_frames: false,
            secret: None,
            secret_if_new: None,
            number_if_new: 0,
            retained_records_max: 1 << 16,
            index: IndexOptions::default(),
            pointers_if_new: None,
            layout: RecordLayout::Log,
            sort_bytes: 0,
            sort_batch_bytes: 0,
            run_bytes_max: 0,
            progress: None,
            read_only: false,
        }
    }
}

/// Keys of an index up to which no page splits, in a store that sorts all its segments: only what is not sorted yet has entries.
const SORTED_ENTRIES_MIN: u32 = 1 << 14;

impl Options {
    /// Sizes of a new index of a store with such pointers.
    pub(crate) fn index_of_range(&self, pointers: PointerWidth) -> IndexOptions {
        let entries_min = match self.layout {
            RecordLayout::Sorted => self.index.entries_min.min(SORTED_ENTRIES_MIN),
            RecordLayout::Log | RecordLayout::Auto => self.index.entries_min,
        };
        IndexOptions { entries_min, pointers, ..self.index }
    }

    /// With the sizes that the store has had since it was created.
    pub(crate) fn of_store(self, identity: &Identity) -> Self {
        let index = self.index_of_range(identity.pointers);
        Self { segment_bytes: identity.segment_bytes, index, ..self }
    }

    /// Maximum bytes of the append window; beyond that, appends return `Overloaded`.
    pub(crate) fn write_buffer_bytes_max(&self) -> usize {
        let share = (self.memory_bytes / 8).min(32 << 20) as usize;
        share.max(4 * self.chunk_bytes())
    }

    /// Maximum bytes of buffers kept for reuse.
    pub(crate) fn spare_bytes_max(&self) -> usize {
        (self.memory_bytes / 16).min(16 << 20) as usize
    }

    /// Maximum memory of records between append and commit, bytes; beyond that, appends return `Overloaded`.
    pub(crate) fn pending_bytes_max(&self) -> usize {
        ((self.memory_bytes / 8) as usize).max(PENDING_BYTES_MIN)
    }

    /// Maximum memory of one batch between append and commit, bytes. All its records are appended at once, when others may have
    /// used up nearly all of [`Options::pending_bytes_max`].
    pub(crate) fn batch_pending_bytes_max(&self) -> usize {
        2 * self.pending_bytes_max()
    }

    /// Maximum keys whose old versions an opening leaves to be confirmed later: three eighths of the budget, taken from the
    /// caches.
    pub(crate) fn deferred_keys_max(&self) -> usize {
        ((self.memory_bytes / 8 * 3) as usize).max(PENDING_BYTES_MIN) / DEFERRED_BYTES
    }

    /// The same if indexes take so many bytes of the budget: three quarters of the rest.
    pub(crate) fn deferred_keys_max_beside(&self, index_bytes: u64) -> usize {
        let left_bytes = self.memory_bytes.saturating_sub(index_bytes);
        ((left_bytes / 4 * 3) as usize).max(PENDING_BYTES_MIN) / DEFERRED_BYTES
    }

    /// Maximum memory of keys whose old versions are unreadable or corrupt, bytes, taken from the page cache.
    pub(crate) fn apart_bytes_max(&self) -> usize {
        ((self.memory_bytes / 2) as usize).max(PENDING_BYTES_MIN)
    }

    /// Maximum records that each of `ranges` ranges retains.
    pub(crate) fn retained_share(&self, ranges: usize) -> usize {
        self.retained_records_max.min(self.retained_by_budget(ranges))
    }

    /// Maximum records that each of `ranges` ranges keeps for retries until their results are copied. A commit of many records at once
    /// precedes the copies. An opening keeps as many, because it does not know which are needed; before it the number of retained
    /// records may have been set higher. All ranges together take at most an eighth of the budget.
    pub(crate) fn needed_max(&self, ranges: usize) -> usize {
        let by_budget = self.retained_by_budget(ranges);
        self.retained_share(ranges).saturating_mul(NEEDED_SHARES).clamp(by_budget, 2 * by_budget)
    }

    /// Records of each range that take a sixteenth of the budget together, with queues half empty at worst.
    fn retained_by_budget(&self, ranges: usize) -> usize {
        (self.memory_bytes / 16) as usize / (2 * size_of::<Retained>()) / ranges.max(1)
    }

    /// Size of a chunk of the append window; a larger record gets a chunk of its own size.
    ///
    /// Huge buffers if the budget allows, because a device takes each as one contiguous piece of memory.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let by_segment = self.segment_bytes as usize / 4;
        let by_budget = (self.memory_bytes / 64) as usize;
        if by_budget.min(by_segment) >= HUGE_BUF_BYTES {
            return HUGE_BUF_BYTES;
        }
        by_budget.clamp(16 * PAGE_BYTES, 1 << 20).min(by_segment).next_multiple_of(PAGE_BYTES)
    }

    /// Maximum result length, bytes: the longest value, in the reply that returns it.
    pub(crate) fn result_bytes_max(&self) -> usize {
        (self.value_bytes_max as usize).min(self.record_bytes_max()) + RESULT_HEADER_BYTES_MAX
    }

    /// Maximum length of a record without its result, with padding, bytes.
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
        // The budget of one of four shards that share 128 MiB.
        assert_eq!(sizes(32 << 20, 64 << 20), (512 << 10, 4 << 20));
        assert_eq!(sizes(1 << 20, crate::format::SEGMENT_BYTES_MIN), (16 << 10, 128 << 10));
    }

    /// A store that sorts its segments has index entries of those that are not sorted yet only.
    #[test]
    fn the_index_of_a_store_that_sorts_all_begins_small() {
        let entries_min = |layout| {
            let options = Options { layout, ..Options::default() };
            options.index_of_range(PointerWidth::Bits32).entries_min
        };
        assert_eq!(entries_min(RecordLayout::Sorted), SORTED_ENTRIES_MIN);
        assert!(entries_min(RecordLayout::Log) > SORTED_ENTRIES_MIN);
        assert_eq!(entries_min(RecordLayout::Auto), entries_min(RecordLayout::Log));
    }

    #[test]
    fn the_window_takes_at_most_an_eighth_of_the_budget() {
        for memory_mib in [4, 32, 100, 128, 200, 256, 1000] {
            let (chunk, most) = sizes(memory_mib << 20, 64 << 20);
            assert!(most as u64 <= (memory_mib << 20) / 8 && most >= 4 * chunk, "{memory_mib} MiB: {most} of {chunk}");
        }
    }
}

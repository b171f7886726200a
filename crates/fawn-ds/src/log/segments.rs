//! Owns the segment table: which files make up the log, what lives in each, when one may be dropped.
use super::LogPosition;
use crate::format::{SegmentUuid, UNIT_BYTES};
use crate::index::Pointer;
use core::cell::Cell;
use fawn_flash::FileId;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::Version;
use smallvec::SmallVec;

/// Longest first read of a lookup, bytes; what is longer costs a counted second read.
pub(crate) const FIRST_READ_BYTES_MAX: usize = 16 << 10;

/// One range's part of a segment: there is one for each range that has a record of its history in the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share {
    pub(crate) range: usize,
    pub(crate) live_records: u64,
    pub(crate) live_bytes: u64,
    /// Newest version of its records, those that were rolled back left out.
    pub(crate) newest: Version,
    /// Newest version by whose commit one of its records died.
    pub(crate) died_by: Version,
    /// It has a tombstone, an expired record that was met, a clear or a rollback: they hide records in older segments.
    pub(crate) hides: bool,
}

/// Record lengths of one segment, coarse: eight steps per power of two would be overkill for a read length.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    counts: [u32; Self::STEPS],
    total: u32,
    covering_bytes: u32,
}

impl Lengths {
    const STEP_BYTES: usize = 256;
    const STEPS: usize = FIRST_READ_BYTES_MAX / Self::STEP_BYTES;

    fn new() -> Self {
        Self { counts: [0; Self::STEPS], total: 0, covering_bytes: Self::STEP_BYTES as u32 }
    }

    /// Counts a record; the estimate follows every power of two and every 4,096th record.
    pub(crate) fn add(&mut self, len_bytes: usize) {
        let step = (len_bytes.saturating_sub(1) / Self::STEP_BYTES).min(Self::STEPS - 1);
        self.counts[step] += 1;
        self.total += 1;
        if self.total.is_power_of_two() || self.total.is_multiple_of(4096) {
            self.covering_bytes = self.covering();
        }
    }

    /// Length that covers 99.9 % of the records counted, bytes.
    fn covering(&self) -> u32 {
        let beyond_max = self.total / 1000;
        let mut beyond = 0;
        for step in (0..Self::STEPS).rev() {
            beyond += self.counts[step];
            if beyond > beyond_max {
                return ((step + 1) * Self::STEP_BYTES) as u32;
            }
        }
        Self::STEP_BYTES as u32
    }

    pub(crate) fn covering_bytes(&self) -> u32 {
        self.covering_bytes
    }
}

/// One segment of the log.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) uuid: SegmentUuid,
    /// The UUID folded: the checksums' salt.
    pub(crate) id: u64,
    pub(crate) file: FileId,
    pub(crate) name: String,
    /// Where its last frame ends, bytes.
    pub(crate) end: u32,
    /// Blocks before it were written since the file was made or opened; those after it perhaps never.
    pub(crate) written_to: u32,
    pub(crate) sealed: bool,
    /// The manifest knows that it is sealed, and so synced whole.
    pub(crate) listed_sealed: bool,
    /// Reads in flight; the file is closed after the last.
    pub(crate) pins: u32,
    /// Ranges whose newest durable commit mark is in it.
    pub(crate) newest_marks: u32,
    pub(crate) shares: SmallVec<[Share; 1]>,
    /// Where the log ended when a record of it last died: what replaced it lies before, and must be synced first.
    pub(crate) died_at: LogPosition,
    pub(crate) lengths: Lengths,
}

impl Segment {
    pub(crate) fn new(slot: u32, sequence: u64, uuid: SegmentUuid, file: FileId, name: String) -> Self {
        Self {
            slot,
            sequence,
            uuid,
            id: uuid.fold(),
            file,
            name,
            end: crate::format::FRAMES_OFFSET,
            written_to: 0,
            sealed: false,
            listed_sealed: false,
            pins: 0,
            newest_marks: 0,
            shares: SmallVec::new(),
            died_at: LogPosition(0),
            lengths: Lengths::new(),
        }
    }

    fn share_mut(&mut self, range: usize) -> &mut Share {
        let at = self.shares.iter().position(|share| share.range == range).unwrap_or_else(|| {
            self.shares.push(Share { range, ..Share::default() });
            self.shares.len() - 1
        });
        &mut self.shares[at]
    }

    /// Counts a record of a range's history, of whatever kind. Returns whether it is the range's first one here.
    pub(crate) fn enter(&mut self, range: usize, version: Version, hides: bool) -> bool {
        let shares_before = self.shares.len();
        let share = self.share_mut(range);
        share.newest = share.newest.max(version);
        share.hides |= hides;
        self.shares.len() > shares_before
    }

    pub(crate) fn add_live(&mut self, range: usize, bytes: u32) {
        let share = self.share_mut(range);
        share.live_records += 1;
        share.live_bytes += u64::from(bytes);
    }

    /// A record of it was replaced or removed by the commit of `by`, with what was appended before `log_end`.
    pub(crate) fn remove_live(&mut self, range: usize, bytes: u32, by: Version, log_end: LogPosition) {
        self.died_at = self.died_at.max(log_end);
        let Some(share) = self.shares.iter_mut().find(|share| share.range == range) else {
            unreachable!("{}: a record of range {range} dies that was never counted", self.name)
        };
        let bytes = u64::from(bytes);
        assert!(share.live_records > 0 && share.live_bytes >= bytes, "{}: more records die than lived", self.name);
        share.live_records -= 1;
        share.live_bytes -= bytes;
        share.died_by = share.died_by.max(by);
    }

    /// All records of the range in it died by the commit of a clear, appended before `log_end`.
    pub(crate) fn clear_range(&mut self, range: usize, by: Version, log_end: LogPosition) {
        self.died_at = self.died_at.max(log_end);
        if let Some(share) = self.shares.iter_mut().find(|share| share.range == range) {
            *share = Share { live_records: 0, live_bytes: 0, died_by: share.died_by.max(by), ..*share };
        }
    }

    /// The range's records above `last` were rolled back by what was appended before `log_end`.
    pub(crate) fn roll_back(&mut self, range: usize, last: Version, log_end: LogPosition) {
        let share = self.shares.iter_mut().find(|share| share.range == range && share.newest > last);
        if let Some(share) = share {
            share.newest = last;
            self.died_at = self.died_at.max(log_end);
        }
    }

    /// The manifest voids all records of the range so far.
    pub(crate) fn forget_range(&mut self, range: usize) {
        self.shares.retain(|share| share.range != range);
    }

    pub(crate) fn live_records(&self) -> u64 {
        self.shares.iter().map(|share| share.live_records).sum()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.live_bytes).sum()
    }

    /// How many bytes a first read at `offset` takes: whole pages that hold 99.9 % of the records that start there.
    pub(crate) fn first_read(&self, offset: u32, segment_bytes: u32) -> (u32, u32) {
        let page = PAGE_BYTES as u32;
        let from = offset - offset % page;
        let wanted = self.lengths.covering_bytes().max(crate::format::record::PEEK_BYTES as u32);
        let end = (offset + wanted).next_multiple_of(page).min(from + FIRST_READ_BYTES_MAX as u32).min(segment_bytes);
        (from, end)
    }
}

/// All segments by slot.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    slots: Vec<Option<Segment>>,
    slot_shift: u32,
    slots_max: u32,
    count: usize,
    /// Segments that a walk over all of them has come by: a measure of work that grows with the store.
    visited: Cell<u64>,
}

impl SegmentTable {
    pub(crate) fn new(segment_bytes: u32) -> Self {
        let slot_shift = segment_bytes.ilog2() - UNIT_BYTES.ilog2();
        Self { slots: Vec::new(), slot_shift, slots_max: 1 << (32 - slot_shift), count: 0, visited: Cell::new(0) }
    }

    pub(crate) fn pointer(&self, slot: u32, offset: u32) -> Pointer {
        debug_assert!((offset as usize).is_multiple_of(UNIT_BYTES), "records lie on units");
        Pointer((slot << self.slot_shift) | (offset / UNIT_BYTES as u32))
    }

    /// The slot and the offset in its segment.
    pub(crate) fn place(&self, pointer: Pointer) -> (u32, u32) {
        (pointer.0 >> self.slot_shift, (pointer.0 & ((1 << self.slot_shift) - 1)) * UNIT_BYTES as u32)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Segment> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Segment> {
        self.slots.get_mut(slot as usize).and_then(Option::as_mut)
    }

    /// The segment that a pointer of the index or the overlay names; those never outlive it.
    pub(crate) fn expect(&self, slot: u32) -> &Segment {
        match self.get(slot) {
            Some(segment) => segment,
            None => unreachable!("slot {slot} is pointed to but holds no segment"),
        }
    }

    pub(crate) fn expect_mut(&mut self, slot: u32) -> &mut Segment {
        match self.get_mut(slot) {
            Some(segment) => segment,
            None => unreachable!("slot {slot} is pointed to but holds no segment"),
        }
    }

    /// The lowest free slot that is not `taken` otherwise, if pointers can name another.
    pub(crate) fn free_slot_but(&self, taken: impl Fn(u32) -> bool) -> Option<u32> {
        let is_free = |&slot: &u32| self.get(slot).is_none() && !taken(slot);
        (0..self.slots_max).find(is_free)
    }

    pub(crate) fn insert(&mut self, segment: Segment) {
        let slot = segment.slot as usize;
        assert!(slot < self.slots_max as usize, "slot {slot} is past what pointers can name");
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        assert!(self.slots[slot].is_none(), "slot {slot} is taken");
        self.slots[slot] = Some(segment);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Segment> {
        let removed = self.slots.get_mut(slot as usize).and_then(Option::take);
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn visited(&self) -> u64 {
        self.visited.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        let visited = &self.visited;
        self.slots.iter().flatten().inspect(|_| visited.set(visited.get() + 1))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let visited = &self.visited;
        self.slots.iter_mut().flatten().inspect(|_| visited.set(visited.get() + 1))
    }
}

//! Space of a store, in segments: what is taken, what only cleaning and sorting may take, and what copies find.
use super::super::Engine;
use super::WRITE_BYTES;
use crate::format::FRAMES_OFFSET;
use crate::format::frame::HEADER_BYTES;
use crate::format::segment::StreamKind;
use crate::log::stream::{NextSegment, Stream};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError};

/// Segments that a store may have in any case: the active and the next one of each stream.
const SEGMENTS_MIN: u64 = 4;
/// Segments that deletes find in a full store before a sort makes space: one is sorted once the next one is there.
pub(crate) const DELETED_SEGMENTS: u64 = 2;
/// Segments from which a store keeps one ready for cleaning. A smaller store could not spare it.
pub(crate) const CLEANED_SEGMENTS_MIN: u64 = 8;
/// Segments that copies of one segment take at most, with the unused end of each.
const SEGMENTS_OF_COPIES_MAX: u64 = 3;

/// Space for copies: the rest of the active segment, and whole segments.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct SurvivorsRoom {
    pub(in crate::engine) active_bytes: u64,
    pub(in crate::engine) segments: u64,
}

impl SurvivorsRoom {
    /// Whether copies of this length in all fit. At the end of each segment but the last, nearly a whole record may be
    /// left unused.
    pub(super) fn fits(self, bytes: u64, longest_bytes: u64, segment_bytes: u64) -> bool {
        let whole_bytes = segment_bytes - u64::from(FRAMES_OFFSET);
        let room = match self.segments.min(SEGMENTS_OF_COPIES_MAX).checked_sub(1) {
            None => self.active_bytes,
            Some(others) => {
                let active_bytes = self.active_bytes.saturating_sub(longest_bytes);
                active_bytes + others * (whole_bytes - longest_bytes) + whole_bytes
            }
        };
        bytes <= room
    }
}

impl<D: Device> Engine<D> {
    /// Segments above the target: the space that live records may take, and what leaves a reserve of the capacity.
    pub(super) fn space_debt(&self) -> u64 {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // Expired records are no reason to keep space.
        let live_bytes: u64 =
            self.segments.iter().map(|segment| segment.live_bytes() - self.expired_bytes(segment)).sum();
        let allowed_bytes = live_bytes.saturating_mul(self.options.space_amplification_max_percent) / 100;
        let of_runs = self.sorted.file_bytes().div_ceil(segment_bytes);
        let by_live = allowed_bytes / segment_bytes + SEGMENTS_MIN + of_runs;
        let capacity = self.capacity_segments();
        // Cleaning is due before the last segment is taken, so that writes seldom wait for it.
        let free = (capacity / 64).clamp(1, 8);
        let by_capacity = capacity.saturating_sub(self.reserved_segments() + free);
        // Segments that only wait for a sync, or for their unlink, need no cleaning.
        let waiting = self.drops.unsynced() as u64 + self.refused_segments();
        let taken = self.taken_segments().saturating_sub(waiting);
        taken.saturating_sub(by_live.min(by_capacity))
    }

    /// Space that the survivors' stream may take.
    pub(in crate::engine) fn survivors_room(&self) -> SurvivorsRoom {
        let segment_bytes = self.options.segment_bytes;
        let stream = &self.streams[StreamKind::Survivors];
        let active = stream.window.active().map_or(0, |chunk| segment_bytes - chunk.end());
        let left = self.segments_max().saturating_sub(self.taken_segments());
        let prepared = u64::from(!matches!(stream.next, NextSegment::None));
        SurvivorsRoom { active_bytes: u64::from(active), segments: left + prepared }
    }

    /// Whether the survivors' stream gets no further segment for now.
    pub(in crate::engine) fn has_no_room_for_copies(&self) -> bool {
        self.full && self.survivors_room().segments == 0
    }

    /// Whether the survivors' space is too small for a copy of this length. A copy may also fail without memory in the write
    /// buffer, which passes.
    pub(super) fn has_no_room_for_copy(&self, len: usize) -> bool {
        self.has_no_room_for_copies() && self.needs_segment_for_copy(len)
    }

    /// Whether a copy of this length goes to the survivors' next segment.
    pub(in crate::engine) fn needs_segment_for_copy(&self, len: usize) -> bool {
        let Stream { window, flush, .. } = &self.streams[StreamKind::Survivors];
        let has_frame = flush.open.is_some();
        // A record that does not fit into the chunk of the open frame begins another frame, behind the padding of that one.
        let need = match window.active() {
            Some(chunk) if has_frame && len <= chunk.room() => len,
            Some(chunk) if has_frame && self.options.pad_frames => {
                let end = chunk.end() as usize;
                end.next_multiple_of(PAGE_BYTES) - end + HEADER_BYTES + len
            }
            _ => HEADER_BYTES + len,
        };
        self.survivors_room().active_bytes < need as u64
    }

    pub(in crate::engine) fn with_frames(&self, record_bytes: u64) -> u64 {
        // A frame ends with a write, and with a chunk of the window.
        let frame_bytes = (self.options.chunk_bytes() / 2).min(WRITE_BYTES as usize);
        in_frames(record_bytes, frame_bytes as u64, self.options.pad_frames)
    }

    /// Segments that the capacity allows, the device as it was last measured, and the pointers.
    pub(crate) fn capacity_segments(&self) -> u64 {
        self.capacity_within(self.attainable_segments())
    }

    fn capacity_within(&self, attainable: u64) -> u64 {
        let capacity_bytes = self.options.capacity_bytes.unwrap_or(u64::MAX);
        (capacity_bytes / u64::from(self.options.segment_bytes)).min(attainable)
    }

    /// Segments for which there is space and a slot, and the runs.
    fn attainable_segments(&self) -> u64 {
        let of_runs = self.taken_segments().saturating_sub(self.used_slots());
        self.device_segments.min(u64::from(self.segments.slots_max()) + of_runs)
    }

    /// Segments that survivors and deletes may take in all, beside runs. If the capacity was lowered to less than is taken, they get
    /// the reserve beside the least that was taken since, until the store fits its capacity: otherwise nothing could be cleaned,
    /// and deletes would be refused, though each frees space.
    pub(crate) fn segments_max(&self) -> u64 {
        self.segments_max_within(self.attainable_segments())
    }

    /// As [`Engine::segments_max`], for runs, which take no slots.
    pub(in crate::engine) fn segments_max_of_runs(&self) -> u64 {
        self.segments_max_within(self.device_segments)
    }

    fn segments_max_within(&self, attainable: u64) -> u64 {
        let capacity = self.capacity_within(attainable);
        let Some(least) = self.cleaner.over_capacity else { return capacity };
        let of_deletes = self.kept_for_sort().map_or(0, |kept| kept + DELETED_SEGMENTS);
        (least + self.reserved_segments().max(of_deletes)).min(attainable).max(capacity)
    }

    /// Notes in an opening that the store takes more than its capacity, or all of it without a segment for survivors.
    pub(crate) fn note_over_capacity(&mut self) {
        let (taken, capacity) = (self.taken_segments(), self.capacity_segments());
        let mut entries = self.manifest.state().segments.values();
        let has_survivors = entries.any(|entry| entry.stream == StreamKind::Survivors && entry.seal.is_none());
        if taken < capacity || (taken == capacity && has_survivors) {
            return;
        }
        self.cleaner.over_capacity = Some(taken);
        if taken > capacity {
            let segment_bytes = u64::from(self.options.segment_bytes);
            let (taken_bytes, capacity_bytes) = (taken * segment_bytes, capacity * segment_bytes);
            tracing::warn!(
                taken_bytes,
                capacity_bytes,
                "the store takes more than its capacity: puts wait for cleaning"
            );
        }
    }

    /// Whether hardly more space is left than the reserve for cleaning.
    pub(crate) fn is_nearly_full(&mut self) -> bool {
        let free_bytes = self.device.free_bytes().unwrap_or(u64::MAX);
        let (taken, free) = (self.taken_segments(), self.segments_in(free_bytes));
        let capacity = self.capacity_segments().min(taken.saturating_add(free));
        let left = capacity.saturating_sub(taken);
        left < (capacity / 10).max(self.reserved_segments() + SEGMENTS_MIN)
    }

    /// Measures the device: the store's segments and those that it has space for. The reserve for cleaning is kept on a
    /// device that others fill as well.
    pub(crate) fn measure_device(&mut self) {
        // Without an answer, the last one holds.
        if let Ok(free_bytes) = self.device.free_bytes() {
            let of_files = self.segments_and(self.sorted.file_bytes() + self.sorted.job_file_bytes());
            self.device_segments = of_files + self.segments_in(free_bytes);
        }
        let taken = self.taken_segments();
        let does_fit = taken + self.reserved_segments() <= self.capacity_segments();
        self.cleaner.over_capacity = self.cleaner.over_capacity.filter(|_| !does_fit).map(|least| least.min(taken));
    }

    /// The segments for which a device has space that has so much free: the manifest gets its own first.
    pub(in crate::engine) fn segments_in(&self, free_bytes: u64) -> u64 {
        free_bytes.saturating_sub(self.manifest.growth_bytes()) / u64::from(self.options.segment_bytes)
    }

    /// Segments with a file, and as many as the runs are long, those that are being written included. Prepared segments and files
    /// whose unlink was refused count, too.
    pub(crate) fn taken_segments(&self) -> u64 {
        self.segments_and(self.sorted.file_bytes() + self.sorted.reserved_bytes())
    }

    fn refused_segments(&self) -> u64 {
        self.drops.refused_bytes().div_ceil(u64::from(self.options.segment_bytes))
    }

    fn segments_and(&self, run_bytes: u64) -> u64 {
        let of_runs = run_bytes.div_ceil(u64::from(self.options.segment_bytes));
        self.used_slots() + of_runs + self.refused_segments()
    }

    fn used_slots(&self) -> u64 {
        let prepared = self.streams.iter().filter(|stream| !matches!(stream.next, NextSegment::None)).count();
        (self.segments.len() + prepared) as u64
    }

    /// Segments that only survivors, runs and deletes may use: cleaning fills one, and frees more than one with it. Before the first
    /// sort that frees space, another segment fills with deletes, and is sealed once the next one is there.
    pub(crate) fn reserved_segments(&self) -> u64 {
        let (capacity, of_jobs) = (self.capacity_segments(), self.segments_of_jobs());
        // The smallest stores have none to spare.
        let share = match capacity {
            ..SEGMENTS_MIN => 0,
            _ if self.segments_of_sort() > 0 => capacity.div_ceil(3),
            _ => (capacity + 2) / 4,
        };
        let of_runs = if of_jobs > 0 { of_jobs + DELETED_SEGMENTS } else { 0 };
        3.max(of_runs).min(share) + u64::from(self.bounds_growth())
    }

    /// Whether the store is large enough to bound the growth of runs against segments of puts, so that deletes and their sort find what
    /// they need. In a smaller one overwrites may need that space: they give it back only once they are in runs.
    pub(in crate::engine) fn bounds_growth(&self) -> bool {
        let least = self.segments_of_jobs() + DELETED_SEGMENTS + 1;
        self.segments_of_sort() > 0 && least <= self.capacity_segments() / 4
    }

    /// Segments for the sort of a segment of deletes, and the merge of its run with what they hide. The sort has given its segment back
    /// by then.
    fn segments_of_jobs(&self) -> u64 {
        match (self.segments_of_sort(), self.merge_segments()) {
            (0, of_merge) => of_merge,
            (of_sort, of_merge) => of_sort + of_merge.saturating_sub(1),
        }
    }

    /// Segments that puts leave free for survivors and runs. A store so small that it keeps none ready for survivors counts their
    /// next one, or one that is half empty, as one of those, but not as the only one.
    pub(crate) fn kept_segments(&self) -> u64 {
        let (survivors, segment_bytes) = (&self.streams[StreamKind::Survivors], self.options.segment_bytes);
        // Deletes must find more than what is left for the sort of one segment.
        let is_small = (self.segments.len() as u64) < CLEANED_SEGMENTS_MIN && self.segments_of_sort() == 0;
        let has_next = !matches!(survivors.next, NextSegment::None);
        // Runs need whole segments.
        let has_half = || {
            !self.sorted.is_active() && survivors.window.active().is_some_and(|chunk| chunk.end() <= segment_bytes / 2)
        };
        let reserved = self.reserved_segments();
        if is_small && (has_next || has_half()) { reserved.saturating_sub(1).max(reserved.min(1)) } else { reserved }
    }

    /// Segments that deletes leave free. Deletes of records in runs make no space before they are in a run, too, and merged with what
    /// they hide.
    pub(crate) fn kept_from_deletes(&self) -> u64 {
        match self.kept_for_sort() {
            Some(kept) => kept,
            None if self.can_clean_without_another() => 0,
            None => self.reserved_segments().min(1),
        }
    }

    /// As [`Engine::kept_from_deletes`], where deletes free space by their sort alone.
    fn kept_for_sort(&self) -> Option<u64> {
        let (reserved, of_sort) = (self.reserved_segments(), self.segments_of_sort());
        (of_sort > 0 && reserved > 1).then(|| {
            self.segments_of_jobs().min(reserved.saturating_sub(DELETED_SEGMENTS).max(of_sort)).min(reserved - 1)
        })
    }

    /// Whether the survivors' next segment has to be prepared: cleaning needs it before it can free any.
    pub(crate) fn needs_survivors_next(&self) -> bool {
        let survivors = &self.streams[StreamKind::Survivors];
        let is_large = self.segments.len() as u64 >= CLEANED_SEGMENTS_MIN;
        is_large && matches!(survivors.next, NextSegment::None)
    }

    /// Whether cleaning can continue without one more segment: the survivors have their next one, into which any victim fits, or
    /// the foreground's active segment, once it is sealed, can be cleaned into their active one.
    pub(crate) fn can_clean_without_another(&self) -> bool {
        if self.streams[StreamKind::Survivors].next.is_ready() {
            return true;
        }
        let Some(active) = self.streams[StreamKind::Foreground].window.active() else { return false };
        let segment = self.segments.expect(active.slot);
        let tombstone_bytes = segment.tombstone_bytes + self.expired_tombstone_bytes_max(segment);
        let copied_bytes = self.with_frames(segment.live_bytes() + tombstone_bytes);
        let is_idle = self.cleaner.victim.is_none() && self.cleaner.moves.is_empty();
        is_idle && copied_bytes <= self.survivors_room().active_bytes
    }
}

/// At least the length of copies in frames, each but the last with `frame_bytes` of records at least.
const fn in_frames(record_bytes: u64, frame_bytes: u64, is_padded: bool) -> u64 {
    let padding_bytes = if is_padded { PAGE_BYTES } else { 0 };
    // The open frame may have records already, and a full segment ends one early.
    let frames = record_bytes / frame_bytes + 3;
    record_bytes + frames * (HEADER_BYTES + padding_bytes) as u64
}

/// Refusal of space that only survivors and runs may use.
pub(crate) fn only_reserve_left() -> DeviceError {
    DeviceError::Full { dir: "this store, except for what cleaning needs".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::PointerWidth;
    use crate::options::Options;
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{HashSecret, Now};

    /// Otherwise puts would take the last slots, which cleaning needs.
    #[test]
    fn the_capacity_of_a_store_ends_where_its_pointers_do() {
        let disk = SimDisk::new(SimOptions::default());
        let open = |capacity_bytes| {
            let options = Options {
                capacity_bytes: Some(capacity_bytes),
                segment_bytes: 1 << 20,
                secret: Some(HashSecret(*b"a secret of test")),
                ..Options::default()
            };
            Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap().0
        };
        let engine = open(1 << 30);
        assert_eq!((engine.capacity_segments(), engine.options.index.pointers), (1 << 10, PointerWidth::Bits32));
        drop(engine.close().unwrap());
        // Pointers of 32 bits stay, which reach 64 GiB.
        assert_eq!(open(1 << 40).capacity_segments(), 64 << 10);
    }

    #[test]
    fn copies_fit_if_each_segment_but_the_last_may_lack_a_record() {
        let (segment_bytes, whole_bytes) = (64 << 10, 60 << 10);
        let fits =
            |active_bytes, segments, bytes| SurvivorsRoom { active_bytes, segments }.fits(bytes, 4_000, segment_bytes);
        assert!(fits(5_000, 0, 5_000) && !fits(5_000, 0, 5_001), "no end of a segment is passed");
        assert!(fits(5_000, 1, whole_bytes + 1_000) && !fits(5_000, 1, whole_bytes + 1_001));
        assert!(fits(3_000, 1, whole_bytes) && !fits(3_000, 1, whole_bytes + 1), "no record may fit into the first");
        assert!(fits(0, 2, 2 * whole_bytes - 4_000) && !fits(0, 2, 2 * whole_bytes - 3_999));
    }

    #[test]
    fn frames_of_copies_take_what_is_reserved_at_most() {
        for (record_bytes, is_padded) in
            [0, 1, 4095, 16 << 10, 60 << 10].into_iter().flat_map(|n| [(n, false), (n, true)])
        {
            let (mut left, mut len, frame_bytes) = (record_bytes, 0, 4096);
            // The first frame is cut short by what was open, the second one by the end of a segment.
            for most in [1, 1].into_iter().chain(core::iter::repeat(frame_bytes)) {
                let records = left.min(most);
                len += HEADER_BYTES as u64 + records;
                // Padding begins wherever a page does.
                len += if is_padded { PAGE_BYTES as u64 - 1 } else { 0 };
                left -= records;
                if left == 0 {
                    break;
                }
            }
            assert!(len <= in_frames(record_bytes, frame_bytes, is_padded), "{record_bytes} B, {is_padded}: {len}");
        }
    }
}

//! Removal of the index entries of sorted segments, cell by cell: their records are found in the run from then on.
use super::super::Engine;
use super::job::SortStep;
use crate::overlay::OverlayBase;
use fawn_flash::Device;

/// Cells of an index that a step passes.
const CELLS_PER_STEP: usize = 256;

impl<D: Device> Engine<D> {
    /// Passes the next cells of the index at this place.
    pub(super) fn unindex_next(&mut self, at: usize, mut cursor: u64) {
        let Some(job) = &self.sorted.job else { return };
        let mut slots: Vec<u32> = job.slots.iter().map(|gathered| gathered.slot).collect();
        // A sort has up to thousands of segments, and each entry of the index is looked for.
        slots.sort_unstable();
        let Self { ranges, segments, .. } = self;
        let Some(range) = ranges.get_mut(at) else { return self.end_sort(&slots) };
        let mut next = Some(SortStep::Unindex { at: at + 1, cursor: 0 });
        for _ in 0..CELLS_PER_STEP {
            let (_, end) = range
                .index
                .retain_in_cell(cursor, |pointer| slots.binary_search(&segments.slot_and_offset(pointer).0).is_err());
            match end {
                Some(end) => cursor = end,
                None => {
                    cursor = 0;
                    break;
                }
            }
        }
        if cursor != 0 {
            next = Some(SortStep::Unindex { at, cursor });
        }
        if let (Some(job), Some(next)) = (&mut self.sorted.job, next) {
            job.step = next;
        }
        self.sorted.has_next_step = true;
    }

    /// No index entry points to the segments any more: their records only hide older ones.
    fn end_sort(&mut self, slots: &[u32]) {
        debug_assert!(slots.is_sorted());
        self.sorted.end_job();
        let segments = &self.segments;
        self.overlay.forget_bases_at(|pointer| slots.binary_search(&segments.slot_and_offset(pointer).0).is_ok());
        for &slot in slots {
            let segment = self.segments.expect_mut(slot);
            segment.end_sorting();
            segment.pins -= 1;
            let (sequence, shares) = (segment.sequence, segment.shares.clone());
            for share in shares {
                let range = &mut self.ranges[share.range];
                range.lowest_puts.remove(sequence);
                range.dead_puts_hidden_from.remove(sequence);
                range.lowest_tombstones.remove(sequence);
                range.shows_hidden = true;
                self.release_held(share.range);
                for at in self.family(share.range) {
                    self.ranges[at].shows_hidden = true;
                    self.release_held(at);
                }
            }
            self.examine_if_dead(slot);
        }
        self.cleaner.note_change();
    }

    /// The base that a commit moves the index from: none, if the entry of a sorted segment has gone since it was looked up.
    pub(in crate::engine) fn present_base(
        &self,
        at: usize,
        hash: fawn_types::KeyHash,
        base: OverlayBase,
    ) -> OverlayBase {
        match base {
            OverlayBase::At(old) if !self.candidates(at, hash).any(|found| found == old.pointer) => OverlayBase::Absent,
            base => base,
        }
    }
}

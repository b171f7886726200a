//! Ranges of a store: they are added and dropped while it serves, each with one commit of the manifest.
//!
//! A range has a *place* in the engine's list. Places stay valid when other ranges go, and a free one is used again. Each
//! range has a local number that no other ever has, so work in flight names it by both.
use super::Engine;
use crate::error::EngineError;
use crate::format::manifest::ManifestEdit;
use crate::format::segment::StreamKind;
use crate::range::RangeState;
use fawn_flash::Device;
use fawn_types::{KeyRange, RangeId};

impl<D: Device> Engine<D> {
    /// The ranges and their boundaries.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeId, KeyRange)> + '_ {
        self.ranges.iter().filter_map(|range| Some((range.id?, range.keys)))
    }

    /// Adds a range, durable before its first record. Adding it again with the same boundaries changes nothing.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] while another range keeps more results than its share of the memory would be then: copy them
    /// ([`Engine::copy_results`]), then retry. [`EngineError::RangeExists`], [`EngineError::Poisoned`], or the device's refusal.
    pub fn add_range(&mut self, id: RangeId, keys: KeyRange) -> Result<(), EngineError> {
        if let Ok(at) = self.range_at(id) {
            let same = self.ranges[at].keys == keys;
            return if same { Ok(()) } else { Err(EngineError::RangeExists { range: id }) };
        }
        self.check_writable()?;
        self.check_results_fit(self.serving_ranges() + 1)?;
        let number = self.list_range(id, keys)?;
        self.place_range(RangeState::new(Some(id), number, keys, self.options.index));
        self.bound_retained();
        Ok(())
    }

    /// Drops a range with all its records, pending ones and those of an incoming transfer included. Blocks for one write
    /// of the manifest; the space is freed afterwards. A range of the same id that is added later begins empty.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::StoreFull`], or the store is poisoned.
    pub fn drop_range(&mut self, id: RangeId) -> Result<(), EngineError> {
        let at = self.range_at(id)?;
        self.check_writable()?;
        self.reserve_manifest_to_free(0)?;
        // Before its segments are: otherwise a crash could bring back records that the dropped segments hid.
        let listed = self.manifest.commit(&[ManifestEdit::DropRange { range: id }]);
        self.give_up_checkpoint();
        self.restart_filing();
        self.vacate_place(at);
        self.note_invalidated_runs();
        self.bound_retained();
        self.wait_for_manifest(listed)
    }

    /// Puts a range in a free place.
    pub(crate) fn place_range(&mut self, range: RangeState) -> usize {
        let id = range.id;
        if let Some(at) = self.ranges.iter().position(RangeState::is_vacant) {
            (self.ranges[at], self.range_ids[at]) = (range, id);
            return at;
        }
        self.ranges.push(range);
        self.range_ids.push(id);
        self.ranges.len() - 1
    }

    /// Forgets a range that the manifest does not list any more, with all that names its place.
    pub(crate) fn vacate_place(&mut self, at: usize) {
        self.overlay.forget_range(at);
        self.verify_queue.retain(|&(queued, _)| queued != at);
        self.records.clear_range(at);
        self.streams[StreamKind::Foreground].flush.forget_range(at);
        self.pending_records -= self.ranges[at].pending.len();
        self.forget_in_segments(at);
        self.leave_open_frame(at);
        let vacant = RangeState::vacant(self.options.index);
        (self.ranges[at], self.range_ids[at]) = (vacant, None);
    }

    /// The range's records in the open frame count under its number, which it loses.
    pub(crate) fn leave_open_frame(&mut self, at: usize) {
        if let Some(open) = self.streams[StreamKind::Foreground].flush.open {
            self.segments.expect_mut(open.slot).facts.add(&self.ranges[at].take_open_facts());
        }
    }

    /// Number of ranges that take writes.
    pub(crate) fn serving_ranges(&self) -> usize {
        self.range_ids.iter().flatten().count()
    }
}

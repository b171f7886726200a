//! Listing of clears: a committed clear is entered in the manifest, off the ack path.
//!
//! From then on an opening ignores all older records of the range, whichever segments are left and in whichever order
//! they are read. Cleaning depends on it: survivors lie in no order of versions, so the clear's record alone could not
//! tell those before it from those after it.
use super::Engine;
use super::segments::RETRY_MS;
use crate::format::manifest::ManifestEdit;
use crate::range::Clears;
use fawn_flash::Device;
use fawn_types::{Durability, Version};

impl<D: Device> Engine<D> {
    /// Queues the manifest edits of clears that are durably committed.
    pub(crate) fn list_clears(&mut self) {
        if !self.has_unlisted_clear || self.now.mono < self.edits_retry_at {
            return;
        }
        self.has_unlisted_clear = false;
        for at in 0..self.ranges.len() {
            let range = &self.ranges[at];
            let Clears { committed, listing, listed } = range.cleared;
            if committed <= listed {
                continue;
            }
            self.has_unlisted_clear = true;
            let Some(id) = range.id.filter(|_| listing.is_none() && !range.is_beginning()) else { continue };
            if range.durably_committed() < committed {
                // A crash may still undo the clear.
                // A mark on its way suffices.
                let lacks_mark = range.needs_marks() && range.marks.appended < committed;
                self.ranges[at].marks.is_wanted |= lacks_mark;
                let is_waited_for = self.full || self.runs() > 0 || self.is_sorting();
                if self.options.durability == Durability::Memory && is_waited_for {
                    // In this mode only full segments are synced, and a full store fills none. The drop of runs, jobs and cleaning wait.
                    self.want_durable(at, committed);
                }
            } else if self.reserve_manifest_to_free(0).is_ok() {
                let edit = ManifestEdit::ClearRange { range: id, version: committed };
                self.ranges[at].cleared.listing = Some((self.manifest.commit(&[edit]), committed));
            } else {
                self.edits_retry_at = self.now.mono.plus_ms(RETRY_MS);
            }
        }
    }

    /// Notes the clears whose manifest edits are durable.
    pub(crate) fn clears_listed(&mut self) {
        if !self.has_unlisted_clear {
            return;
        }
        for at in 0..self.ranges.len() {
            let clears = &mut self.ranges[at].cleared;
            if let Some((_, version)) = clears.listing.take_if(|(number, _)| self.manifest.is_durable(*number)) {
                clears.listed = clears.listed.max(version);
                self.ranges[at].shows_hidden = true;
                self.note_invalidated_runs();
                self.release_held(at);
            }
        }
    }

    /// Whether the range has a committed clear that the manifest does not list durably.
    pub(crate) fn has_unlisted_clear(&self, at: usize) -> bool {
        let Clears { committed, listed, .. } = self.ranges[at].cleared;
        committed > listed
    }

    /// Sets the clears of a range that recovery found: listed ones, and the newest committed one.
    pub(crate) fn recover_clears(&mut self, at: usize, listed: Version, committed: Version) {
        self.ranges[at].cleared = Clears { committed, listing: None, listed };
        self.has_unlisted_clear |= committed > listed;
    }
}

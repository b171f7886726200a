//! Sole epochs: epochs in which the store is a range's only serving member, so that commits need no marks in the log.
//!
//! With one member the log is never cut back, so all records of such an epoch that an open finds are committed. The
//! manifest lists the epoch before its first record is written, and lists its end before the first record of a chain's
//! epoch is. Recovery therefore never confuses records of the two kinds, wherever a crash falls.
use super::Engine;
use super::blob::check_blob;
use crate::error::EngineError;
use crate::format::manifest::{ManifestEdit, SoleEpochs};
use crate::range::{Marks, RangeState};
use fawn_flash::Device;
use fawn_types::{Epoch, RangeId, Version};

impl<D: Device> Engine<D> {
    /// The range's sole epoch. `None` while commits need marks.
    pub fn sole_epoch(&self, range: RangeId) -> Option<Epoch> {
        let sole = self.range_at(range).ok().and_then(|at| self.ranges[at].sole)?;
        (!sole.is_over).then_some(sole.epoch)
    }

    /// An epoch above all that the range had in this store; it grows with each open. `None`: all are used up.
    pub fn next_sole_epoch(&self, range: RangeId) -> Option<Epoch> {
        let opening = Epoch::new(self.generation)?;
        let Ok(at) = self.range_at(range) else { return Some(opening) };
        self.newest_epoch(at).next().map(|above| above.max(opening))
    }

    fn newest_epoch(&self, at: usize) -> Epoch {
        let RangeState { progress, sole, .. } = &self.ranges[at];
        sole.map_or(Epoch::default(), |sole| sole.epoch).max(progress.appended.epoch())
    }

    /// Begins an epoch in which this store is the range's only serving member. Its log, all of it committed, is the
    /// epoch's base. From now on recovery takes every record for committed, no marks are written, and nothing is
    /// retained for retransmission. `promise`, the key and bytes of a blob, becomes durable in the same commit. Blocks
    /// for one commit of the manifest, and for a sync if the log is not synced.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::StoreFull`], or the store is poisoned: the epoch has not begun
    /// then.
    ///
    /// # Panics
    /// When the epoch is not above all that the range had, a record is not committed, or the range is being copied.
    pub fn begin_sole_epoch(
        &mut self,
        range: RangeId,
        epoch: Epoch,
        promise: Option<(u32, &[u8])>,
    ) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        self.check_writable()?;
        let base = self.committed_end(at);
        assert!(self.ranges[at].copy.is_none(), "a copy that is not whole serves no epoch");
        assert!(self.newest_epoch(at) < epoch, "{epoch:?} was used: {:?} after {base:?}", self.newest_epoch(at));
        // A crash could otherwise lose records below the base. A mark still in flight would pass for a later epoch's.
        self.sync_all()?;
        let mut edits = vec![ManifestEdit::BeginSoleEpoch { range, epoch, base }];
        if let Some((key, bytes)) = promise {
            check_blob(bytes)?;
            edits.push(ManifestEdit::Blob { key, bytes: bytes.to_vec() });
        }
        self.list_sole(at, promise.map_or(0, |(_, bytes)| bytes.len()), &edits)?;
        self.release_durable_mark(at);
        let range = &mut self.ranges[at];
        range.marks = Marks::default();
        range.end_retention();
        self.release_held(at);
        Ok(())
    }

    /// Ends the range's sole epoch: later records need commit marks. Its log, all of it committed, is the next epoch's
    /// base. Waits for a sync where not all is synced, then for a write of the manifest. Without a sole epoch it
    /// changes nothing.
    ///
    /// # Errors
    /// As [`Engine::begin_sole_epoch`]: the sole epoch continues then.
    ///
    /// # Panics
    /// When a record is not committed: no other member has this log, so none of it may be cut.
    pub fn end_sole_epoch(&mut self, range: RangeId) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        if self.ranges[at].needs_marks() {
            return Ok(());
        }
        self.check_writable()?;
        // A crash could otherwise lose records below the base that the manifest claims.
        self.sync_all()?;
        let base = self.committed_end(at);
        self.list_sole(at, 0, &[ManifestEdit::EndSoleEpoch { range, base }])?;
        // The manifest's base replaces a durable mark.
        self.ranges[at].marks = Marks { appended: base, durable: base, ..Marks::default() };
        self.release_held(at);
        Ok(())
    }

    fn committed_end(&self, at: usize) -> Version {
        let progress = self.ranges[at].progress;
        assert!(progress.committed == progress.appended, "an activation commits all of the log: {progress:?}");
        progress.appended
    }

    fn list_sole(&mut self, at: usize, content_bytes: usize, edits: &[ManifestEdit]) -> Result<(), EngineError> {
        // Without an epoch a range takes no deletes.
        self.reserve_manifest_to_free(content_bytes)?;
        let listed = self.manifest.commit(edits);
        self.wait_for_manifest(listed)?;
        self.ranges[at].sole = self.listed_sole(at);
        Ok(())
    }

    /// The range's sole epochs by the manifest.
    pub(crate) fn listed_sole(&self, at: usize) -> Option<SoleEpochs> {
        self.range_ids[at].and_then(|id| self.manifest.state().ranges.get(&id)).and_then(|entry| entry.sole)
    }
}

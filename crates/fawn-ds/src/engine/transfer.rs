//! Owns taking in a copy of a range: emptied for good, filled with records older than where its history goes on, whole.
//!
//! A copy that a crash cuts short never was: the manifest says from which place of the log on the range's records count,
//! and whether all of them came. What was copied is known by its version alone: up to the base it is a copy, above it
//! the range's own history, which goes on meanwhile.
use super::append::Reserve;
use super::fetch::{Expected, Probe, Rejected};
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::format::Watermark;
use crate::format::manifest::ManifestEdit;
use crate::format::record::{RecordKind, RecordRef};
use crate::manifest_file::CommitNumber;
use crate::overlay::{KeyName, Old, OverlayBase, Written};
use crate::range::{Retained, TransferStage, TransferState};
use fawn_flash::Device;
use fawn_types::{KeyHash, RangeId, Version};

/// What visiting copied results came to.
#[derive(Debug)]
pub enum TransferredResults {
    /// Some were visited; go on from `next`.
    Records {
        /// How many were visited in all.
        next: usize,
    },
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb`], then ask again.
    Read(LookupPlan),
    /// There are no more.
    Done,
}

/// What a copied record does to its key.
enum Merge {
    /// The same or a newer one is there.
    Skip,
    /// The index holds nothing, or an older one.
    Over(OverlayBase),
    /// What the index holds has to be read first.
    Later,
}

impl<D: Device> Engine<D> {
    /// Empties a range for good, to be fully resynced from a place whose history has come to `base`: all watermarks are
    /// there, appends go on after it, and nothing of the range survives a crash before [`Engine::finish_copy`] is
    /// durable. Waits for one write of the manifest. Beginning again starts over.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::StoreFull`], or the store is poisoned.
    pub fn begin_transfer(&mut self, range: RangeId, base: Version) -> Result<(), EngineError> {
        let listed = self.list_transfer(range, base)?;
        self.wait_for_manifest(listed)
    }

    /// As [`Engine::begin_copy`], but waits for nothing: the range takes nothing before [`Engine::copy_begun`].
    ///
    /// # Errors
    /// As [`Engine::begin_copy`].
    pub fn start_transfer(&mut self, range: RangeId, base: Version) -> Result<(), EngineError> {
        self.list_transfer(range, base)?;
        self.start_manifest();
        Ok(())
    }

    /// Whether a started copy takes records, and the history after its base.
    pub fn transfer_begun(&self, range: RangeId) -> bool {
        let copy = self.range_at(range).ok().and_then(|at| self.ranges[at].copy);
        copy.is_some_and(|copy| !matches!(copy.stage, TransferStage::Beginning(_)))
    }

    fn list_transfer(&mut self, range: RangeId, base: Version) -> Result<CommitNumber, EngineError> {
        let at = self.range_at(range)?;
        self.check_writable()?;
        self.reserve_manifest(0)?;
        let (end, segment_bytes) = (self.appended_end(), self.options.segment_bytes);
        let from = Watermark { sequence: end.sequence(segment_bytes), offset: end.offset(segment_bytes) };
        let listed = self.manifest.commit(&[ManifestEdit::BeginTransfer { range, from, base }]);
        // The end of an earlier copy that is not listed yet must not be taken for this one's. And not a record of this
        // one may be found where the old ones are still believed: it takes none before its beginning is durable.
        self.ranges[at].copy = Some(TransferState { base, stage: TransferStage::Beginning(listed) });
        self.overlay.forget_range(at);
        self.flush.forget_range(at);
        self.pending_records -= self.ranges[at].pending.len();
        self.forget_in_segments(at);
        self.ranges[at].begin_again(base);
        Ok(listed)
    }

    /// Base of the copy under way; `None` once it is whole, durably so, or where there is none.
    pub fn copying(&self, range: RangeId) -> Option<Version> {
        let at = self.range_at(range).ok()?;
        self.ranges[at].copy.map(|copy| copy.base)
    }

    /// Takes a copied record: a put, or a result. Returns whether it was new: where the same or a newer version of its
    /// key is known already it changes nothing. It takes effect at once, and counts once the copy is whole.
    ///
    /// The caller sees to it that a key deleted above the base is not brought back: no record is passed that was looked
    /// up elsewhere before something in this range's log happened.
    ///
    /// # Errors
    /// As [`Engine::append`].
    ///
    /// # Panics
    /// When no copy is under way, its end was announced, or the record is of another kind or above the base.
    pub fn append_copied(
        &mut self,
        range: RangeId,
        hash: KeyHash,
        record: &RecordRef<'_>,
    ) -> Result<bool, EngineError> {
        let at = self.range_at(range)?;
        self.check_begun(at)?;
        let copy = self.ranges[at].copy;
        let Some(TransferState { base, stage: TransferStage::Taking }) = copy else {
            panic!("a record is copied to {range:?} while its copy is {copy:?}")
        };
        assert!(record.version <= base, "copied records end at {base:?}, this one has {:?}", record.version);
        let is_put = record.kind == RecordKind::Put;
        assert!(is_put || record.kind == RecordKind::Result, "a {:?} is never copied", record.kind);
        let len = self.check_record(record)?;
        if is_put {
            self.check_apart(at, hash, record.key)?;
        }
        // Before the base is looked at: making room may let verifications move it.
        self.make_room(len, Reserve::Puts)?;
        if !is_put {
            self.write_copied(at, record, len);
            return Ok(true);
        }
        let name = self.name_of(hash.0, record.key);
        let merge = self.merge(at, name, record);
        if matches!(merge, Merge::Skip) {
            return Ok(false);
        }
        let written = self.write_copied(at, record, len);
        match merge {
            Merge::Over(base) => {
                self.move_index(at, name, base, written);
                self.overlay.remove_if_settled(at, name);
            }
            Merge::Later => self.enter_unconfirmed(at, name, written),
            Merge::Skip => unreachable!("returned above"),
        }
        Ok(true)
    }

    fn merge(&mut self, at: usize, name: KeyName, record: &RecordRef<'_>) -> Merge {
        let entry = self.overlay.find(at, name.hash, || name.ident);
        if let Some(committed) = entry.and_then(|entry| entry.committed) {
            return if committed.version >= record.version { Merge::Skip } else { Merge::Later };
        }
        match entry.map(|entry| entry.base) {
            Some(OverlayBase::Unknown) => return Merge::Later,
            Some(OverlayBase::Absent) => return Merge::Over(OverlayBase::Absent),
            Some(OverlayBase::At(_)) | None => {}
        }
        match self.confirm(at, name, Expected::Key(record.key), &mut Rejected::new()) {
            Ok((OverlayBase::Unknown, _)) | Err(_) => Merge::Later,
            Ok((OverlayBase::At(_), version)) if version >= record.version => Merge::Skip,
            Ok((base, _)) => Merge::Over(base),
        }
    }

    /// Writes a copied record to the log.
    fn write_copied(&mut self, at: usize, record: &RecordRef<'_>, len: usize) -> Written {
        let (slot, pointer) = self.encode(at, record, len, false);
        let retained_max = self.retained_share;
        let (version, len_bytes, is_put) = (record.version, len as u32, record.kind == RecordKind::Put);
        self.enter_segment(at, slot, version, false);
        let segment = self.segments.expect_mut(slot);
        segment.lengths.add(len);
        if is_put {
            segment.add_live(at, len_bytes);
        } else {
            let kept = Retained { version, pointer, len_bytes, sequence: segment.sequence };
            self.ranges[at].keep_copied_result(kept, retained_max);
        }
        self.stats.appended_records += 1;
        Written { version, pointer, len_bytes, is_put }
    }

    /// The record is its key's newest committed one, if what the index may hold for the key turns out older.
    fn enter_unconfirmed(&mut self, at: usize, name: KeyName, written: Written) {
        let Some(entry) = self.overlay.find_mut(at, name) else {
            self.overlay.insert_committed(at, name, written);
            self.queue_verification(at, name);
            return;
        };
        if entry.base != OverlayBase::Unknown {
            entry.base = OverlayBase::Unknown;
            self.queue_verification(at, name);
        }
        if let Some(old) = self.overlay.set_committed(at, name, written).filter(|old| old.is_put) {
            self.release_old(at, Old { pointer: old.pointer, len_bytes: old.len_bytes }, written.version);
        }
    }

    /// All records were copied: syncs them, whatever the mode, then lists the copy as whole. [`Engine::copying`] tells
    /// when that is durable. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::Overloaded`] while the copy's beginning is not durable, or the store
    /// is poisoned.
    pub fn finish_transfer(&mut self, range: RangeId) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        self.check_writable()?;
        self.check_begun(at)?;
        let is_open = self.flush.open.is_some();
        let end = if is_open { self.appended_end() } else { self.flush.closed_end(self.options.segment_bytes) };
        if let Some(copy) = self.ranges[at].copy.as_mut().filter(|copy| copy.stage == TransferStage::Taking) {
            copy.stage = TransferStage::Syncing(end);
            self.flush.wanted |= is_open;
            self.advance_flush();
            self.tend_copies();
            self.device.kick();
        }
        Ok(())
    }

    /// Whether syncs must not wait for their time.
    pub(crate) fn transfer_waits_for_sync(&self) -> bool {
        self.ranges
            .iter()
            .any(|range| matches!(range.copy, Some(TransferState { stage: TransferStage::Syncing(_), .. })))
    }

    /// Lists the copies that have become synced as whole.
    pub(crate) fn tend_copies(&mut self) {
        if self.poisoned.is_some() || !self.transfer_waits_for_sync() {
            return;
        }
        let synced = self.flush.synced;
        for range in &mut self.ranges {
            let Some(copy) = &mut range.copy else { continue };
            if matches!(copy.stage, TransferStage::Syncing(end) if end <= synced) {
                let listed = self.manifest.commit(&[ManifestEdit::TransferWhole { range: range.id }]);
                copy.stage = TransferStage::Listing(listed);
            }
        }
        self.start_manifest();
    }

    /// Commits of the manifest became durable: with them, copies begin, or are whole.
    pub(crate) fn copies_listed(&mut self) {
        for range in &mut self.ranges {
            let Some(TransferState { base, stage }) = range.copy else { continue };
            range.copy = match stage {
                TransferStage::Beginning(listed) if self.manifest.is_durable(listed) => {
                    Some(TransferState { base, stage: TransferStage::Taking })
                }
                TransferStage::Listing(listed) if self.manifest.is_durable(listed) => None,
                _ => continue,
            };
            self.progressed = true;
        }
    }

    /// Visits the results that came with a range's last copy, in the order in which they were appended, from the
    /// `from`-th on, up to about `bytes_max` of them. They are kept as retained records are, and within the same bound:
    /// the results of operations that the copy's base has behind it survive openings this way.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`], [`EngineError::UnknownRange`].
    pub fn copied_results(
        &mut self,
        range: RangeId,
        from: usize,
        bytes_max: usize,
        mut visit: impl FnMut(&RecordRef<'_>),
    ) -> Result<TransferredResults, EngineError> {
        let at = self.range_at(range)?;
        let (mut next, mut bytes) = (from, 0);
        while bytes < bytes_max {
            let Some(kept) = self.ranges[at].copied_results.get(next).copied() else { break };
            match self.probe(at, kept.pointer, Expected::Any)? {
                Probe::Match(hit) => self.visit(&hit, &mut visit)?,
                Probe::Missing(span) if next == from => {
                    return Ok(TransferredResults::Read(LookupPlan::of_span(range, span)));
                }
                Probe::Missing(_) => break,
                Probe::Other => unreachable!("any record was wanted"),
            }
            bytes += kept.len_bytes as usize;
            next += 1;
        }
        Ok(if next == from { TransferredResults::Done } else { TransferredResults::Records { next } })
    }
}

//! Receiving a state transfer: empties a range, then fills it with records up to the base of its new history.
//!
//! A transfer cut off by a crash leaves nothing: the manifest records the local number under which the range's records
//! count, and whether the transfer is complete. Only the version distinguishes these records: up to the base they were
//! transferred, above it they belong to the range's own history, which continues during the transfer.
use super::append::Reserve;
use super::fetch::{Expected, Probe, Rejected};
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::format::manifest::ManifestEdit;
use crate::format::record::{RecordKind, RecordRef};
use crate::format::segment::StreamKind;
use crate::log::segments::AppendedRecord;
use crate::manifest_file::CommitNumber;
use crate::overlay::{KeyName, OverlayBase, ReplacedRecord, Written};
use crate::range::{RangeState, Retained, TransferStage, TransferState};
use fawn_flash::Device;
use fawn_types::{KeyHash, RangeId, Version};

/// Result of visiting transferred results.
#[derive(Debug)]
pub enum TransferredResults {
    /// Some were visited; continue from `next`.
    Records {
        /// Number of results visited so far.
        next: usize,
    },
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb`], then call again.
    Read(LookupPlan),
    /// There are no more.
    Done,
}

/// Effect of a transferred record on its key.
enum Merge {
    /// The same or a newer version is there.
    Skip,
    /// The index holds nothing, or an older version.
    Over(OverlayBase),
    /// The record that the index holds must be read first.
    Later,
}

impl<D: Device> Engine<D> {
    /// Empties a range for a full resync from a member whose history has reached `base`. All watermarks move to `base`,
    /// and appends continue after it. Nothing of the range survives a crash before [`Engine::finish_transfer`] is
    /// durable. Blocks for one write of the manifest. Calling it again starts over.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::StoreFull`], or the store is poisoned.
    pub fn begin_transfer(&mut self, range: RangeId, base: Version) -> Result<(), EngineError> {
        let listed = self.list_transfer(range, base)?;
        self.wait_for_manifest(listed)
    }

    /// As [`Engine::begin_transfer`], but does not block: the range refuses records until [`Engine::transfer_begun`].
    ///
    /// # Errors
    /// As [`Engine::begin_transfer`].
    pub fn start_transfer(&mut self, range: RangeId, base: Version) -> Result<(), EngineError> {
        self.list_transfer(range, base)?;
        self.start_manifest();
        Ok(())
    }

    /// Whether a started transfer accepts records, and the range accepts the history after its base.
    pub fn transfer_begun(&self, range: RangeId) -> bool {
        let copy = self.range_at(range).ok().and_then(|at| self.ranges[at].copy);
        copy.is_some_and(|copy| !matches!(copy.stage, TransferStage::Beginning(_)))
    }

    fn list_transfer(&mut self, range: RangeId, base: Version) -> Result<CommitNumber, EngineError> {
        let at = self.range_at(range)?;
        self.check_writable()?;
        self.check_numbers()?;
        // It gives up the old copy, which a full disk may be full of. But beginnings that are repeated and give up nothing must leave
        // space for the edits that do.
        let gives_up = self.ranges[at].copy.is_none() || self.ranges[at].segments.len() > 1;
        let frees_space = gives_up && !StreamKind::ALL.into_iter().any(|kind| self.has_many_numbers(kind));
        if frees_space {
            self.reserve_manifest_to_free(0)?
        } else {
            self.reserve_manifest(0)?
        }
        let (number, begin) = self.beginning_of(range, base);
        let listed = self.manifest.commit(&[begin]);
        // A finish of an earlier transfer that is not listed yet must not be taken for this one's. Before the beginning
        // is durable, no record may have its number: so the range takes none until then.
        self.ranges[at].copy = Some(TransferState { base, stage: TransferStage::Beginning(listed) });
        self.give_up_checkpoint();
        self.overlay.forget_range(at);
        self.records.clear_range(at);
        self.streams[StreamKind::Foreground].flush.forget_range(at);
        self.pending_records -= self.ranges[at].pending.len();
        self.forget_in_segments(at);
        self.leave_open_frame(at);
        self.restart_filing();
        self.ranges[at].begin_again(number, base);
        self.note_invalidated_runs();
        Ok(listed)
    }

    /// Base of the transfer in progress; `None` without one, or once it is durably complete.
    pub fn copying(&self, range: RangeId) -> Option<Version> {
        let at = self.range_at(range).ok()?;
        self.ranges[at].copy.map(|copy| copy.base)
    }

    /// Takes a transferred record: a put, or a result. Returns whether it was new: it changes nothing if the log has the same or a
    /// newer version of its key. It takes effect at once, and survives a crash once the transfer is complete.
    ///
    /// Runs are not looked at: an older record than that of a run would hide it. So the caller passes no record that the sender
    /// looked up before a change in this range's log. That keeps keys deleted above the base from coming back, too.
    ///
    /// # Errors
    /// As [`Engine::append`].
    ///
    /// # Panics
    /// If no transfer is in progress, its end was announced, or the record is of another kind or above the base.
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
            panic!("a transferred record for {range:?} while its transfer is {copy:?}")
        };
        assert!(record.version <= base, "copied records end at {base:?}, this one has {:?}", record.version);
        let is_put = record.kind == RecordKind::Put;
        assert!(is_put || record.kind == RecordKind::Result, "a {:?} is never copied", record.kind);
        let len = self.check_record(record)?;
        if is_put {
            self.check_apart(at, hash, record.key)?;
        }
        // Before the lookup of the base: making room may complete verifications that move it.
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
        self.records.remove(at, hash);
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

    /// Appends a transferred record to the log.
    fn write_copied(&mut self, at: usize, record: &RecordRef<'_>, len: usize) -> Written {
        let (slot, pointer) = self.encode(at, record, len, false);
        let (version, len_bytes, is_put) = (record.version, len as u32, record.kind == RecordKind::Put);
        let kind = record.kind;
        let is_tombstone = kind == RecordKind::Tombstone;
        self.enter_appended(at, slot, &AppendedRecord { version, len_bytes, kind, is_tombstone });
        if !is_put {
            let kept = Retained { version, pointer, len_bytes, sequence: self.segments.expect(slot).sequence };
            if self.ranges[at].keep_copied_result(kept, self.needed_max) {
                self.warn_of_dropped_results(at);
            }
        }
        self.stats.appended_records += 1;
        Written { version, pointer, len_bytes, is_put }
    }

    /// Enters the record as its key's newest committed one, unless verification finds that the index holds a newer one.
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
            self.release_old(at, ReplacedRecord { pointer: old.pointer, len_bytes: old.len_bytes }, written.version);
        }
    }

    /// Ends the transfer: syncs all its records, in every durability mode, then lists it as complete.
    /// [`Engine::copying`] returns `None` once that is durable. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`EngineError::UnknownRange`], [`EngineError::Overloaded`] while the transfer's beginning is not durable, or the
    /// store is poisoned.
    pub fn finish_transfer(&mut self, range: RangeId) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        self.check_writable()?;
        self.check_begun(at)?;
        let is_open = self.streams[StreamKind::Foreground].flush.open.is_some();
        let end = if is_open {
            self.appended_end()
        } else {
            self.streams[StreamKind::Foreground].flush.closed_end(self.options.segment_bytes)
        };
        if let Some(copy) = self.ranges[at].copy.as_mut().filter(|copy| copy.stage == TransferStage::Taking) {
            copy.stage = TransferStage::Syncing(end);
            self.streams[StreamKind::Foreground].flush.wanted |= is_open;
            self.advance_flush();
            self.tend_copies();
            self.device.kick();
        }
        Ok(())
    }

    /// Whether a transfer needs a sync now, in every durability mode.
    pub(crate) fn transfer_waits_for_sync(&self) -> bool {
        self.ranges
            .iter()
            .any(|range| matches!(range.copy, Some(TransferState { stage: TransferStage::Syncing(_), .. })))
    }

    /// Lists the transfers whose records are synced as complete.
    pub(crate) fn tend_copies(&mut self) {
        if self.poisoned.is_some() || !self.transfer_waits_for_sync() {
            return;
        }
        let synced = self.streams[StreamKind::Foreground].flush.synced;
        for range in &mut self.ranges {
            let Some(copy) = &mut range.copy else { continue };
            if matches!(copy.stage, TransferStage::Syncing(end) if end <= synced) {
                let Some(id) = range.id else { continue };
                let listed = self.manifest.commit(&[ManifestEdit::RangeWhole { range: id }]);
                copy.stage = TransferStage::Listing(listed);
            }
        }
        self.start_manifest();
    }

    /// Applies durable commits of the manifest: transfers begin, or are complete.
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
            // Its segments may be sorted now.
            self.sorted.note_change();
        }
    }

    /// Visits the results that came with a range's last transfer, and the records that the ranges before its split or
    /// merge kept for retries, from the `from`-th on, up to about `bytes_max` bytes. They are kept like retained records,
    /// within the same bound: results of operations up to the base thus survive a restart. The copies of open results
    /// ([`Engine::copy_results`]) follow. A result may be visited more than once.
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
            let RangeState { copied_results, result_copies, .. } = &self.ranges[at];
            let copy = |next: usize| Some(&result_copies.kept.get(next - copied_results.len())?.record);
            let Some(kept) = copied_results.get(next).or_else(|| copy(next)).copied() else { break };
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

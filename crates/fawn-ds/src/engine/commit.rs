//! Commit and rollback: the only code that changes the index for client writes or removes pending records.
use super::Engine;
use crate::error::EngineError;
use crate::format::record::RecordKind;
use crate::format::segment::StreamKind;
use crate::index::Pointer;
use crate::log::segments::Death;
use crate::overlay::{KeyName, OverlayBase, ReplacedRecord, Written};
use crate::range::{PendingKind, PendingRecord, Retained};
use fawn_flash::{Device, DeviceError, IoOperation};
use fawn_types::{KeyHash, RangeId, Version};
use smallvec::SmallVec;

impl<D: Device> Engine<D> {
    /// Makes a range's records up to `through` readable. An unknown range is ignored.
    pub fn commit(&mut self, range: RangeId, through: Version) {
        let Ok(at) = self.range_at(range) else { return };
        while let Some(pending) = self.ranges[at].pending.front().copied() {
            if pending.version > through {
                break;
            }
            self.ranges[at].pending.pop_front();
            self.pending_records -= 1;
            match pending.kind {
                PendingKind::OfKey { name, is_put } => {
                    self.commit_key(at, name, is_put, &pending);
                    self.refresh_cached(at, name, is_put, &pending);
                }
                PendingKind::Result => {}
                PendingKind::Clear => self.commit_clear(at, pending.version),
            }
            self.retain(at, &pending);
            self.ranges[at].progress.committed = pending.version;
        }
        let progress = self.ranges[at].progress;
        assert!(progress.committed <= progress.appended, "only what was appended is committed");
        self.release_held(at);
    }

    #[inline]
    fn retain(&mut self, at: usize, pending: &PendingRecord) {
        let range = &mut self.ranges[at];
        let Some(floor) = range.retain_floor else {
            range.complete_above = pending.version;
            return;
        };
        let PendingRecord { version, pointer, len_bytes, .. } = *pending;
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        let record = Retained { version, pointer, len_bytes, sequence };
        let (retained_max, needed_max) = (self.retained_max.min(self.retained_share), self.needed_max);
        if self.ranges[at].retain(record, floor, retained_max, needed_max) {
            self.warn_of_dropped_results(at);
        }
    }

    fn commit_key(&mut self, at: usize, name: KeyName, is_put: bool, pending: &PendingRecord) {
        if let Some((base, written)) = self.overlay.take_only(at, name) {
            assert_eq!(written.version, pending.version, "a key's pending records are committed in order");
            assert_eq!(written.is_put, is_put, "both queues describe one record");
            return self.move_entry(at, name, base, written);
        }
        let Some(entry) = self.overlay.find_mut(at, name) else {
            unreachable!("pending record {:?} is not in the overlay", pending.version)
        };
        let PendingRecord { version, pointer, len_bytes, .. } = *pending;
        let written = Written { version, pointer, len_bytes, is_put };
        entry.take_oldest(&written);
        let base = entry.base;
        if base == OverlayBase::Unknown {
            match self.overlay.set_committed(at, name, written) {
                Some(old) if old.is_put => {
                    let old = ReplacedRecord { pointer: old.pointer, len_bytes: old.len_bytes };
                    self.release_old(at, old, written.version);
                }
                Some(old) => self.replace_delete(at, KeyHash(name.hash), old.pointer, written.version),
                None => {}
            }
            return;
        }
        self.move_index(at, name, base, written);
    }

    /// A delete without an index entry was replaced before its verification. A sort takes the put that it hides, as long as the index
    /// has that: both the sort and the drop of the delete wait until what replaced it is durable. The put may be in another segment.
    #[cold]
    fn replace_delete(&mut self, at: usize, hash: KeyHash, deleted: Pointer, by: Version) {
        let end = self.foreground_end();
        let hidden = self.candidates(at, hash);
        let pointers: SmallVec<[Pointer; 4]> = core::iter::once(deleted).chain(hidden).collect();
        for pointer in pointers {
            let (slot, _) = self.segments.slot_and_offset(pointer);
            if let Some(segment) = self.segments.get_mut(slot) {
                segment.note_replaced(at, by, end);
                self.note_share(at, slot);
            }
        }
    }

    /// Moves the index from a confirmed base to a committed record, which becomes the key's base.
    pub(crate) fn move_index(&mut self, at: usize, name: KeyName, base: OverlayBase, written: Written) {
        self.move_entry(at, name, base, written);
        let now_at = ReplacedRecord { pointer: written.pointer, len_bytes: written.len_bytes };
        if let Some(entry) = self.overlay.find_mut(at, name) {
            entry.base = if written.is_put { OverlayBase::At(now_at) } else { OverlayBase::Absent };
        }
    }

    fn move_entry(&mut self, at: usize, name: KeyName, base: OverlayBase, written: Written) {
        let hash = KeyHash(name.hash);
        let base = if self.sorted.is_unindexing() { self.present_base(at, hash, base) } else { base };
        let part = match base {
            OverlayBase::At(old) => self.indexed_at(at, hash, old.pointer),
            _ => at,
        };
        if part != at {
            return self.move_inherited(part, at, hash, base, written);
        }
        let index = &mut self.ranges[at].index;
        let moved = match (base, written.is_put) {
            (OverlayBase::At(old), true) => index.replace(hash, old.pointer, written.pointer),
            (OverlayBase::At(old), false) => index.remove(hash, old.pointer),
            (OverlayBase::Absent, true) => match index.insert(hash, written.pointer) {
                Ok(()) => true,
                Err(error) => {
                    self.index_refused(&error.to_string());
                    true
                }
            },
            (OverlayBase::Absent, false) => true,
            (OverlayBase::Unknown, _) => unreachable!("the index moves only from a confirmed base"),
        };
        assert!(moved, "the index still holds what was confirmed");
        if let OverlayBase::At(old) = base {
            self.note_unindexed(at, hash, old);
            self.release_old(at, old, written.version);
        }
    }

    /// As [`Engine::move_entry`], from an inherited index to the range's own.
    #[cold]
    fn move_inherited(&mut self, part: usize, at: usize, hash: KeyHash, base: OverlayBase, written: Written) {
        let OverlayBase::At(old) = base else { unreachable!("an inherited index has the record") };
        let removed = self.ranges[part].index.remove(hash, old.pointer);
        assert!(removed, "the inherited index still holds what was confirmed");
        if written.is_put
            && let Err(error) = self.ranges[at].index.insert(hash, written.pointer)
        {
            self.index_refused(&error.to_string());
        }
        self.note_unindexed(part, hash, old);
        self.release_for(part, at, old, written.version);
    }

    /// The index is full (2³² keys, or hundreds with one hash): poisons the engine.
    pub(super) fn index_refused(&mut self, detail: &str) {
        let (operation, name) = (IoOperation::Metadata("index insert"), "index".to_owned());
        self.poison(&DeviceError::Io { operation, name, offset: 0, detail: detail.to_owned() });
    }

    /// Marks a put as replaced by the commit of `by`: its segment has one live record less.
    pub(crate) fn release_old(&mut self, at: usize, old: ReplacedRecord, by: Version) {
        self.release(at, old, Death { by, replaced_from: by });
    }

    /// As [`Engine::release_old`].
    pub(in crate::engine) fn release(&mut self, at: usize, old: ReplacedRecord, death: Death) {
        let end = self.foreground_end();
        let (slot, _) = self.segments.slot_and_offset(old.pointer);
        let segment = self.segments.expect_mut(slot);
        let last = &mut self.checkpoints.last;
        let is_in_image = segment.sequence < last.from[segment.stream].sequence;
        *(if is_in_image { &mut last.overwritten } else { &mut last.rewritten }) += 1;
        let is_changed = segment.remove_live(at, old.len_bytes, death, end);
        self.cleaner.note_dead(old.len_bytes, self.options.segment_bytes);
        if segment.is_dead() {
            self.drops.examine.push((slot, segment.sequence));
        }
        if is_changed {
            self.note_dead_puts(at, slot);
        }
    }

    /// Empties the range: its index and all records before the clear. Records still pending were appended after it.
    fn commit_clear(&mut self, at: usize, version: Version) {
        let end = self.foreground_end();
        for &slot in self.ranges[at].segments.values() {
            self.segments.expect_mut(slot).clear_range(at, version, end);
        }
        self.give_up_checkpoint();
        self.ranges[at].index.clear();
        self.ranges[at].cleared.committed = version;
        self.has_unlisted_clear = true;
        self.overlay.clear_range(at);
        self.records.clear_range(at);
        if self.ranges[at].pending_clear == Some(version) {
            self.ranges[at].pending_clear = None;
        }
        for i in 0..self.ranges[at].pending.len() {
            let pending = self.ranges[at].pending[i];
            if matches!(pending.kind, PendingKind::OfKey { is_put: true, .. }) {
                let (slot, _) = self.segments.slot_and_offset(pending.pointer);
                self.segments.expect_mut(slot).add_live(at, pending.len_bytes);
            }
        }
        self.note_all_dead_puts(at);
        self.examine_range(at);
    }

    /// Drops a range's uncommitted records above `after`, and logs their invalidation.
    ///
    /// # Errors
    /// [`EngineError::NotChained`] in a sole epoch, or as [`Engine::append`]: nothing was dropped then.
    pub fn rollback(&mut self, range: RangeId, after: Version) -> Result<(), EngineError> {
        let at = self.range_at(range)?;
        // Without commit marks, recovery would take the records for committed before it reads the rollback.
        if !self.ranges[at].needs_marks() {
            return Err(EngineError::NotChained { range });
        }
        self.check_begun(at)?;
        let committed = self.ranges[at].progress.committed;
        assert!(after >= committed, "what is committed ({committed:?}) is never rolled back to {after:?}");
        self.append_control(at, RecordKind::Rollback, after)?;
        while let Some(pending) = self.ranges[at].pending.back().copied() {
            if pending.version <= after {
                break;
            }
            self.ranges[at].pending.pop_back();
            self.pending_records -= 1;
            if let PendingKind::OfKey { name, is_put } = pending.kind {
                self.rollback_key(at, name, is_put, &pending);
            }
        }
        self.rename_newest(at);
        let is_clear = |pending: &&PendingRecord| pending.kind == PendingKind::Clear;
        let range = &mut self.ranges[at];
        range.pending_clear = range.pending.iter().rev().find(is_clear).map(|pending| pending.version);
        let last = range.pending.back().map_or(committed, |pending| pending.version);
        let end = self.foreground_end();
        self.ranges[at].rolled_back_at = end;
        self.sorted.rolled_back(self.ranges[at].number, last);
        self.roll_back_segments(at, (last, after), end);
        let progress = &mut self.ranges[at].progress;
        progress.appended = last;
        progress.flushed = progress.flushed.min(last);
        progress.synced = progress.synced.min(last);
        self.streams[StreamKind::Foreground].flush.roll_back(at, last);
        Ok(())
    }

    fn rollback_key(&mut self, at: usize, name: KeyName, is_put: bool, pending: &PendingRecord) {
        if let Some(entry) = self.overlay.find_mut(at, name) {
            entry.take_newest();
        }
        self.overlay.remove_if_settled(at, name);
        if is_put {
            // No commit replaced this put: only the rollback record has to be durable before the segment goes.
            self.release_old(
                at,
                ReplacedRecord { pointer: pending.pointer, len_bytes: pending.len_bytes },
                Version::ZERO,
            );
        }
    }

    /// Restores the overlay's newest record of each key after a rollback. One pass over the remaining records, oldest
    /// first, costs less than a search per rolled-back record.
    fn rename_newest(&mut self, at: usize) {
        for pending in &self.ranges[at].pending {
            let PendingKind::OfKey { name, is_put } = pending.kind else { continue };
            let PendingRecord { version, pointer, len_bytes, .. } = *pending;
            if let Some(entry) = self.overlay.find_mut(at, name) {
                entry.set_newest(Written { version, pointer, len_bytes, is_put });
            }
        }
    }
}

//! Copying: decides for each record of a victim whether it is still needed, and appends it to the survivors' stream.
use super::super::Engine;
use super::super::append::Reserve;
use super::super::sorted::{CleanGoal, run_record};
use super::Move;
use crate::error::EngineError;
use crate::format::RangeNumber;
use crate::format::record::{self, Envelope, RecordKind, RecordRef, Stored};
use crate::format::segment::StreamKind;
use crate::index::Pointer;
use crate::log::LogPosition;
use crate::overlay::{KeyName, ReplacedRecord};
use fawn_flash::Device;
use fawn_types::{KeyHash, TimeMs, Version};

/// Result of examining a record of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Cleaned {
    /// The victim's record is not needed any more, or not once its copy is durable.
    Gone,
    /// A delete that stays one, if it hides anything once the index entries have moved to the victim's copies.
    TombstoneOnceMoved,
    /// The record was removed, and becomes a tombstone once this version of its range is durably committed.
    TombstoneOnceDurable(Version),
    /// The record must stay where it is, and its segment with it.
    Stays,
    /// The record must stay for so long, ms: until it has expired.
    StaysFor(u64),
}

/// The survivors' stream refused a copy of this length. A tombstone is shorter than the put that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct CopyRefused(pub(super) usize);

impl<D: Device> Engine<D> {
    /// Copies the record to the survivors' stream if it is needed.
    ///
    /// # Errors
    /// [`CopyRefused`]: nothing was copied.
    pub(super) fn clean_record(
        &mut self,
        (slot, offset): (u32, u32),
        stored: &Stored<'_>,
        goal: CleanGoal,
    ) -> Result<Cleaned, CopyRefused> {
        let (record, number) = (&stored.record, stored.envelope.number);
        let owner = self.owner_of(number, record.key);
        let is_own = owner.is_some_and(|(at, _)| self.ranges[at].number == number);
        if !is_own && self.is_indexed(record.kind) && self.has_retired() {
            let (pointer, len_bytes) = (self.segments.pointer(slot, offset), stored.encoded_len as u32);
            let hash = KeyHash::of(&self.secret, record.key);
            self.file_record(owner.map(|(at, _)| at), hash, ReplacedRecord { pointer, len_bytes });
        }
        let Some((at, cleared)) = owner else {
            // Its range was dropped or has begun again.
            return Ok(Cleaned::Gone);
        };
        if record.version <= cleared || self.is_invalidated((slot, offset), number, record.version) {
            return Ok(Cleaned::Gone);
        }
        if self.sorted.is_active() && record.kind.is_of_key() {
            return self.clean_indexed(at, (slot, offset), stored, goal);
        }
        match record.kind {
            RecordKind::Put => self.clean_put(at, (slot, offset), stored),
            // Its verification must find it here: until then the index has the put that it hides.
            RecordKind::Tombstone if self.is_unconfirmed(at, (slot, offset), record.key) => Ok(Cleaned::Stays),
            // Until the index entries have moved, copies of the victim's puts look like hidden ones. A delete that hides nothing else
            // would be copied for them, be dead in the copy, and make that the next victim.
            RecordKind::Tombstone
                if !self.cleaner.moves.is_empty()
                    && self.hides_elsewhere(at, self.segments.expect(slot).sequence, record.version) =>
            {
                Ok(Cleaned::TombstoneOnceMoved)
            }
            RecordKind::Tombstone => self.copy_tombstone(at, (slot, offset), record.version, record.key),
            // Nothing asks for results any more: a segment with results that are kept for retries is no victim. Clears
            // are listed, and marks and rollbacks concern the foreground, where others have followed.
            RecordKind::Result | RecordKind::Clear | RecordKind::CommitMark | RecordKind::Rollback => Ok(Cleaned::Gone),
        }
    }

    /// Whether the record is its key's newest committed one, and waits for its verification.
    fn is_unconfirmed(&self, at: usize, (slot, offset): (u32, u32), key: &[u8]) -> bool {
        if self.overlay.is_empty() {
            return false;
        }
        let hash = KeyHash::of(&self.secret, key);
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident);
        let committed = entry.and_then(|entry| entry.committed);
        committed.is_some_and(|committed| committed.pointer == self.segments.pointer(slot, offset))
    }

    pub(crate) fn is_invalidated(&self, (slot, offset): (u32, u32), number: RangeNumber, version: Version) -> bool {
        let segment = self.segments.expect(slot);
        let position = LogPosition::new(segment.sequence, offset, self.options.segment_bytes);
        segment.invalidated().contains(number, position, version)
    }

    fn clean_put(
        &mut self,
        at: usize,
        (slot, offset): (u32, u32),
        stored: &Stored<'_>,
    ) -> Result<Cleaned, CopyRefused> {
        let record = &stored.record;
        let hash = KeyHash::of(&self.secret, record.key);
        let pointer = self.segments.pointer(slot, offset);
        let is_expired = record.expires_at_ms != 0 && self.expired_by(at).0 >= record.expires_at_ms;
        let is_current = self.ranges[at].index.candidates(hash).any(|found| found == pointer);
        let was_removed = !is_current && self.may_be_removed(at, slot, hash, record);
        let is_tombstone = is_expired || was_removed;
        if !is_current && !is_tombstone && self.overlay.is_empty() {
            return Ok(Cleaned::Gone);
        }
        let name = self.name_of(hash.0, record.key);
        let entry = self.overlay.find(at, hash.0, || name.ident);
        if entry.is_some_and(|entry| entry.committed.is_some_and(|committed| committed.pointer == pointer)) {
            // Its verification moves it to the index, which must find it here.
            return Ok(Cleaned::Stays);
        }
        let is_unsettled = entry.is_some();
        let original = ReplacedRecord { pointer, len_bytes: stored.encoded_len as u32 };
        if is_tombstone && !(is_current && is_unsettled) {
            let committed = self.ranges[at].progress.committed;
            // A newer record that a crash could undo may have removed it: the put would be current again.
            let may_return =
                self.time_of(at).0 < record.expires_at_ms && self.ranges[at].durably_committed() < committed;
            if may_return && self.hides_elsewhere(at, self.segments.expect(slot).sequence, record.version) {
                return Ok(Cleaned::TombstoneOnceDurable(committed));
            }
            // The record may hide older puts of its key, as a tombstone of its version does.
            let cleaned = self.copy_tombstone(at, (slot, offset), record.version, record.key)?;
            if is_current {
                debug_assert!(
                    offset >= self.segments.expect(slot).copied_part.end,
                    "slot {slot}, offset {offset}: a record before it was copied, or had no entry"
                );
                self.remove_expired(at, hash, original, record.version);
            }
            return Ok(cleaned);
        }
        if is_current {
            self.copy_put(at, name, record, original)?;
        }
        Ok(Cleaned::Gone)
    }

    /// Whether a lookup may have removed this put, which has no index entry, when it expired.
    pub(in crate::engine) fn may_be_removed(
        &self,
        at: usize,
        slot: u32,
        hash: KeyHash,
        record: &RecordRef<'_>,
    ) -> bool {
        // A part that is not filed yet may say that the put hides others.
        let parts = [at].into_iter().chain(self.ranges[at].inherited().iter().copied());
        let shares = parts.filter_map(|place| self.segments.expect(slot).share(place));
        let hides_below = shares.map(|share| share.hides_below).max().unwrap_or_default();
        if record.expires_at_ms == 0 || record.version > hides_below {
            return false;
        }
        // If no part has a record of this hash, there is no copy that a tombstone of the same version could hide.
        // Otherwise only an expired record can have been removed: the chain's time may have fallen since, but by less
        // than the margin.
        self.time_of(at).0 >= record.expires_at_ms || self.is_unindexed(at, hash, record.key)
    }

    /// Whether no index of the range has a record of this hash, and no record of the key waits for its verification.
    fn is_unindexed(&self, at: usize, hash: KeyHash, key: &[u8]) -> bool {
        let is_waiting = || {
            let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, key).ident);
            entry.is_some_and(|entry| entry.committed.is_some())
        };
        self.candidates(at, hash).next().is_none() && !is_waiting()
    }

    /// Whether lookups take the record for expired.
    pub(in crate::engine) fn is_expired_for_lookups(&self, at: usize, record: &RecordRef<'_>) -> bool {
        record.expires_at_ms != 0 && self.time_of(at).0 >= record.expires_at_ms
    }

    /// Time until lookups take the record for expired, ms, if it is so short that they may have done so before: the range's
    /// time may have fallen since, but by less than the margin.
    pub(in crate::engine) fn expires_within_margin(&self, at: usize, record: &RecordRef<'_>) -> Option<u64> {
        let left_ms = record.expires_at_ms.saturating_sub(self.time_of(at).0);
        (record.expires_at_ms != 0 && left_ms <= self.options.expiry_margin_ms).then_some(left_ms)
    }

    /// Time by which lookups of the range compare expiry times.
    pub(super) fn time_of(&self, at: usize) -> TimeMs {
        self.ranges[at].chain_time.unwrap_or(self.clock.get())
    }

    fn copy_put(
        &mut self,
        at: usize,
        name: KeyName,
        record: &RecordRef<'_>,
        original: ReplacedRecord,
    ) -> Result<(), CopyRefused> {
        let mut copy = RecordRef::put(record.version, record.key, record.value);
        (copy.flags, copy.expires_at_ms) = (record.flags, record.expires_at_ms);
        self.copy_indexed(at, name, &copy, original)
    }

    /// Copies a record that has an index entry, which moves to the copy.
    pub(in crate::engine) fn copy_indexed(
        &mut self,
        at: usize,
        name: KeyName,
        copy: &RecordRef<'_>,
        original: ReplacedRecord,
    ) -> Result<(), CopyRefused> {
        let number = self.ranges[at].number;
        let (version, may_become_tombstone) = (copy.version, copy.kind != RecordKind::Put || copy.expires_at_ms != 0);
        let (pointer, len_bytes) = self
            .append_survivor(at, number, copy, RecordKind::Put)
            .map_err(|_| CopyRefused(record::encoded_len(copy)))?;
        let end = self.survivors_end();
        let copy = ReplacedRecord { pointer, len_bytes };
        // A replacement is committed later, unless it is committed already and waits for its verification, or is copied to the store.
        let entry = self.overlay.find(at, name.hash, || name.ident);
        let is_replaced = self.ranges[at].copy.is_some() || entry.is_some_and(|entry| entry.committed.is_some());
        let replaced_from = if is_replaced { version } else { self.ranges[at].progress.committed };
        // A copy that has expired hides the original as a tombstone of the same version. Any other one is hidden with the original, by
        // what replaces it.
        let original_hidden_from = if may_become_tombstone { version } else { replaced_from };
        let (slot, _) = self.segments.slot_and_offset(pointer);
        // Until the index entry moves, newer records may have to hide the copy.
        if self.segments.expect_mut(slot).begin_copy(at, replaced_from) {
            self.note_dead_puts(at, slot);
        }
        self.cleaner.moves.push_back(Move {
            range: at,
            number,
            name,
            original,
            copy,
            replaced_from,
            original_hidden_from,
            end,
        });
        Ok(())
    }

    /// Copies a tombstone if another segment has a put that it hides, and an earlier cleaning of the segment has not done so.
    pub(in crate::engine) fn copy_tombstone(
        &mut self,
        at: usize,
        (slot, offset): (u32, u32),
        version: Version,
        key: &[u8],
    ) -> Result<Cleaned, CopyRefused> {
        let segment = self.segments.expect(slot);
        if offset >= segment.copied_part.end && self.hides_elsewhere(at, segment.sequence, version) {
            let (number, copy) = (self.ranges[at].number, RecordRef::bare(RecordKind::Tombstone, version, key));
            self.append_survivor(at, number, &copy, RecordKind::Tombstone)
                .map_err(|_| CopyRefused(record::encoded_len(&copy)))?;
            self.stats.moved_tombstones += 1;
        }
        Ok(Cleaned::Gone)
    }

    /// Appends a record to the survivors' stream and counts it there as one of this kind, not as live: with an index entry as
    /// a put.
    ///
    /// # Errors
    /// As [`Engine::append`]: nothing was copied.
    pub(in crate::engine) fn append_survivor(
        &mut self,
        at: usize,
        number: RangeNumber,
        record: &RecordRef<'_>,
        counted_as: RecordKind,
    ) -> Result<(Pointer, u32), EngineError> {
        let len = record::encoded_len(record);
        self.extend_room(StreamKind::Survivors, len, Reserve::Marks)?;
        let envelope = Envelope { number, continues: false };
        let (slot, pointer) = self.encode_in(StreamKind::Survivors, envelope, record, len);
        let segment = self.segments.expect_mut(slot);
        segment.facts.count_version(number, record.version);
        segment.lengths.add(len);
        segment.too_long += u32::from(!run_record(record, number).fits());
        segment.tombstone_bytes += if record.kind == RecordKind::Tombstone { len as u64 } else { 0 };
        self.enter_segment(at, slot, record.version, counted_as);
        Ok((pointer, len as u32))
    }
}

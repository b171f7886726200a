//! Deferred tombstones: those that cleaning copies only at the end of a victim, or once no crash can undo what they stand for.
//!
//! A put with an expiry time that was removed becomes a tombstone once no crash can undo the removal.
//! The log does not say whether a lookup removed such a put when it expired, or a newer record of its key did. In the
//! first case the put hides older ones of its key, so a tombstone of its version must take its place. In the second case a
//! crash may undo the newer record, and the tombstone would hide the put that is then current again.
//!
//! Deletes without an index entry wait, too: until the entries have moved to the victim's copies.
use super::super::Engine;
use super::copy::CopyRefused;
use super::victim::Pause;
use crate::format::RangeNumber;
use crate::format::record::Stored;
use crate::log::unfinished::CopiedPart;
use fawn_flash::Device;
use fawn_types::Version;
use std::collections::VecDeque;

/// Memory of the tombstones that wait, from which the walk over the victim waits too, bytes.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// A removed put of the victim, or a delete.
#[derive(Debug)]
struct DeferredTombstone {
    number: RangeNumber,
    version: Version,
    /// The part of the victim before it.
    before: CopiedPart,
    key: Box<[u8]>,
    /// It waits until this version of the range is durably committed. `None`: only until index entries have moved.
    committed: Option<Version>,
}

/// Tombstones that a victim's removed puts and deletes become.
#[derive(Debug, Default)]
pub(super) struct DeferredTombstones {
    /// In the order of their offsets.
    waiting: VecDeque<DeferredTombstone>,
    bytes: usize,
}

impl DeferredTombstones {
    pub(super) fn push(&mut self, before: CopiedPart, stored: &Stored<'_>, committed: Option<Version>) {
        let (record, number) = (&stored.record, stored.envelope.number);
        self.bytes += size_of::<DeferredTombstone>() + record.key.len();
        let (version, key) = (record.version, record.key.into());
        self.waiting.push_back(DeferredTombstone { number, version, before, key, committed });
    }

    /// The part of the victim before the first one that is not copied.
    pub(super) fn before_first(&self) -> Option<CopiedPart> {
        self.waiting.front().map(|tombstone| tombstone.before)
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= WAITING_BYTES_MAX
    }
}

impl<D: Device> Engine<D> {
    /// Copies the tombstones of the victim that were deferred.
    ///
    /// # Errors
    /// A pause: index entries have not moved to the victim's copies, removals that a crash could undo are left, or the
    /// survivors' stream has no room.
    pub(super) fn copy_deferred(&mut self, slot: u32, deferred: &mut DeferredTombstones) -> Result<(), Pause> {
        if !deferred.waiting.is_empty() && !self.cleaner.moves.is_empty() {
            self.write_survivors();
            return Err(Pause::Unmoved);
        }
        while let Some(tombstone) = deferred.waiting.front() {
            let place = (slot, tombstone.before.end);
            // The range may have been split, merged or dropped since.
            if let Some((at, cleared)) = self.owner_of(tombstone.number, &tombstone.key) {
                if let Some(committed) =
                    tombstone.committed.filter(|&version| self.ranges[at].durably_committed() < version)
                {
                    self.want_durable(at, committed);
                    return Err(Pause::Undurable);
                }
                let is_needed =
                    tombstone.version > cleared && !self.is_invalidated(place, tombstone.number, tombstone.version);
                if is_needed {
                    self.copy_tombstone(at, place, tombstone.version, &tombstone.key)
                        .map_err(|CopyRefused(len)| Pause::NoRoom(len))?;
                }
            }
            deferred.waiting.pop_front();
        }
        deferred.bytes = 0;
        Ok(())
    }

    /// Asks for what makes the range's commits durable: a sync, and in a chain a mark first.
    pub(in crate::engine) fn want_durable(&mut self, at: usize, committed: Version) {
        let range = &mut self.ranges[at];
        if range.needs_marks() {
            range.marks.is_wanted |= range.marks.appended < committed;
        }
        // In the mode `memory` nothing else syncs before the segment is full.
        self.cleaner.needs_sync = true;
    }
}

//! Removed puts with an expiry time: cleaning replaces one by a tombstone once no crash can undo its removal.
//!
//! The log does not say whether a lookup removed such a put when it expired, or a newer record of its key did. In the
//! first case the put hides older ones of its key, so a tombstone of its version must take its place. In the second case a
//! crash may undo the newer record, and the tombstone would hide the put that is then current again.
//!
//! In a store with runs, deletes without an index entry wait, too: until the entries have moved to the victim's copies.
use super::super::Engine;
use super::victim::Pause;
use crate::format::RangeNumber;
use crate::format::record::Stored;
use fawn_flash::Device;
use fawn_types::Version;

/// Memory of the puts that wait, from which the walk over the victim waits too, bytes.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// A put of the victim that waits until its removal is durable, or a delete.
#[derive(Debug)]
struct RemovedPut {
    number: RangeNumber,
    version: Version,
    offset: u32,
    key: Box<[u8]>,
    /// Its removal is durable once this version of the range is durably committed.
    committed: Version,
}

/// The victim's puts and deletes that wait.
#[derive(Debug, Default)]
pub(super) struct RemovedPuts {
    puts: Vec<RemovedPut>,
    bytes: usize,
}

impl RemovedPuts {
    pub(super) fn push(&mut self, offset: u32, stored: &Stored<'_>, committed: Version) {
        let (record, number) = (&stored.record, stored.envelope.number);
        self.bytes += size_of::<RemovedPut>() + record.key.len();
        self.puts.push(RemovedPut { number, version: record.version, offset, key: record.key.into(), committed });
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= WAITING_BYTES_MAX
    }
}

impl<D: Device> Engine<D> {
    /// Copies the tombstones of the victim's removed puts.
    ///
    /// # Errors
    /// A pause: index entries have not moved to the victim's copies, removals that a crash could undo are left, or the
    /// survivors' stream has no room.
    pub(super) fn copy_removed(&mut self, slot: u32, removed: &mut RemovedPuts) -> Result<(), Pause> {
        if !removed.puts.is_empty() && !self.cleaner.moves.is_empty() {
            self.write_survivors();
            return Err(Pause::Unmoved);
        }
        while let Some(put) = removed.puts.last() {
            // The range may have been split, merged or dropped since.
            if let Some((at, cleared)) = self.owner_of(put.number, &put.key) {
                if self.ranges[at].durably_committed() < put.committed {
                    self.want_durable(at, put.committed);
                    return Err(Pause::Undurable);
                }
                let is_needed = put.version > cleared && !self.is_void((slot, put.offset), put.number, put.version);
                if is_needed {
                    self.copy_tombstone(at, slot, put.version, &put.key).map_err(|_| Pause::NoRoom)?;
                }
            }
            removed.puts.pop();
        }
        removed.bytes = 0;
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

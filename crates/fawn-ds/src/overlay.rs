//! The overlay: keys in flight, with committed records not in the index yet and pending records.
//!
//! A commit moves the index only once the key's old version is confirmed to be its own. Until then the overlay answers
//! lookups of the key. Keys are identified by two hashes under secrets, so that entries need not store them.
//!
//! An opening *defers* that confirmation: it leaves the newest record of each overwritten key here, in a list instead
//! of entries, and the engine confirms these records while it serves.
mod deferred;
mod ident;
mod place_table;

use crate::index::Pointer;
use deferred::DeferredList;
pub(crate) use deferred::{CopyRank, DeferredRecord};
use fawn_types::Version;
use hashbrown::HashTable;
pub(crate) use ident::IdentPoint;
pub(crate) use place_table::{PLACE_BYTES, PlaceTable};
use std::collections::{BTreeMap, BTreeSet};

/// A key's two hashes: the index's, and an independent one of 61 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    pub(crate) hash: u64,
    /// [`IdentPoint::ident_of`] the key.
    pub(crate) ident: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    /// It has an index entry once it is committed. In a store with runs, a delete has one too; a record without one says
    /// that a run has the key's newest record, if any.
    pub(crate) is_put: bool,
}

impl Written {
    /// As the old version of a newer record.
    pub(crate) const fn replaced(&self) -> ReplacedRecord {
        ReplacedRecord { pointer: self.pointer, len_bytes: self.len_bytes }
    }
}

/// A confirmed old version, with its length for the segment's accounting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplacedRecord {
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
}

/// The index's record of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OverlayBase {
    /// Unknown: fragments match, and verification is queued or in flight.
    Unknown,
    /// The index has none.
    Absent,
    /// The record's location.
    At(ReplacedRecord),
}

/// Records of a key that are appended but not committed: their count and the newest one. The range's queue of pending
/// records has the others, so that a commit has constant cost for any number of pending versions of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingOfKey {
    count: u32,
    newest: Written,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlayEntry {
    pub(crate) name: KeyName,
    pub(crate) range: usize,
    pub(crate) base: OverlayBase,
    /// Newest committed record while `base` is unknown.
    pub(crate) committed: Option<Written>,
    pending: PendingOfKey,
    /// Whether the committed record counts, and not one of the index with its version.
    rank: CopyRank,
    /// A verification is queued or in flight.
    pub(crate) is_queued: bool,
}

// Entries own no memory, so every commit has the same cost and the table accounts for all memory.
const _: () = assert!(!core::mem::needs_drop::<OverlayEntry>());

/// Maximum memory of an entry in the table: it is at least 7/16 full, with one control byte per slot.
pub(crate) const ENTRY_BYTES: usize = (size_of::<OverlayEntry>() + 1) * 16 / 7;
/// Maximum additional memory of an entry apart: its nodes in two ordered collections, half empty at worst.
pub(crate) const APART_BYTES: usize = 4 * size_of::<OverlayKey>() + 2 * size_of::<Written>();

/// Places that an empty table or queue of records in flight keeps: turns of many writers need some hundreds.
pub(crate) const SPARE_PLACES: usize = 1024;

/// Sort key of an entry: range, hash, second hash.
type OverlayKey = (usize, u64, u64);

const fn place_of(range: usize, name: KeyName) -> OverlayKey {
    (range, name.hash, name.ident)
}

impl OverlayEntry {
    pub(crate) fn newest_pending(&self) -> Option<&Written> {
        (self.pending.count > 0).then_some(&self.pending.newest)
    }

    pub(crate) fn push_pending(&mut self, written: Written) {
        debug_assert!(self.pending.count == 0 || written.version > self.pending.newest.version, "versions grow");
        self.pending = PendingOfKey { count: self.pending.count + 1, newest: written };
    }

    /// Removes the oldest record, which is being committed.
    pub(crate) fn take_oldest(&mut self, oldest: &Written) {
        assert!(self.pending.count > 0, "a key's pending records are committed in order");
        self.pending.count -= 1;
        let is_last = self.pending.count == 0;
        assert_eq!(
            is_last,
            self.pending.newest.version == oldest.version,
            "a key's pending records are committed in order"
        );
    }

    /// Removes the newest record, which is rolled back. If others are left, [`OverlayEntry::set_newest`] must follow.
    pub(crate) fn take_newest(&mut self) {
        assert!(self.pending.count > 0, "only what is pending is rolled back");
        self.pending.count -= 1;
    }

    pub(crate) fn set_newest(&mut self, written: Written) {
        assert!(self.pending.count > 0, "what is named newest is pending");
        self.pending.newest = written;
    }

    fn is_settled(&self) -> bool {
        self.pending.count == 0 && self.committed.is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    table: HashTable<OverlayEntry>,
    /// Committed records that the index does not have yet, by range and in hash order, the order of scans. They have an entry
    /// in the table.
    unconfirmed: BTreeMap<OverlayKey, Written>,
    /// Entries whose base was unreadable or corrupt at the last attempt; they stay, and are retried periodically.
    apart: BTreeSet<OverlayKey>,
    /// The same, without an entry: an opening found them, and nothing has asked for them since.
    deferred: DeferredList,
    /// Lowest and highest sequence number of a segment with deferred records.
    deferred_in: (u64, u64),
    /// Deletes in `unconfirmed` and `deferred`, by range.
    deletes: Vec<u64>,
    /// Records that were deferred until their key was asked for.
    woken: Vec<(usize, KeyName)>,
}

/// Counts an unconfirmed record, or one that is none any more, if it is a delete.
fn count_delete(deletes: &mut Vec<u64>, range: usize, written: &Written, is_added: bool) {
    if written.is_put {
        return;
    }
    if deletes.len() <= range {
        deletes.resize(range + 1, 0);
    }
    if is_added {
        deletes[range] += 1;
    } else {
        deletes[range] -= 1;
    }
}

impl DeferredRecord {
    /// Entry of a committed record over an unknown base.
    const fn to_entry(self) -> OverlayEntry {
        let Self { name, written, rank, .. } = self;
        let (base, pending) = (OverlayBase::Unknown, PendingOfKey { count: 0, newest: written });
        let (range, committed, is_queued) = (self.range(), Some(written), false);
        OverlayEntry { name, range, base, committed, pending, rank, is_queued }
    }
}

impl Overlay {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.deferred.len() == 0
    }

    /// Number of records whose verification an opening left for later.
    pub(crate) const fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Whether a segment with this sequence number may have deferred records.
    pub(crate) fn may_defer(&self, sequence: u64) -> bool {
        let (from, to) = self.deferred_in;
        self.deferred.len() > 0 && (from..=to).contains(&sequence)
    }

    /// Takes the records that an opening defers, one per key, and their places by key, of each range. They lie in
    /// segments with sequence numbers between these two.
    pub(crate) fn defer(&mut self, records: Vec<DeferredRecord>, tables: Vec<PlaceTable>, segments: (u64, u64)) {
        assert!(self.is_empty(), "an opening defers before it enters anything else");
        for record in &records {
            count_delete(&mut self.deletes, record.range(), &record.written, true);
        }
        self.deferred = DeferredList::new(records, tables);
        self.deferred_in = segments;
    }

    /// Gives the last deferred record an entry.
    pub(crate) fn wake_next(&mut self) -> Option<(usize, KeyName)> {
        let record = self.deferred.pop()?;
        self.wake(record);
        Some((record.range(), record.name))
    }

    /// Records that got an entry since the last call because their key was asked for.
    pub(crate) fn take_woken(&mut self) -> Vec<(usize, KeyName)> {
        core::mem::take(&mut self.woken)
    }

    fn wake(&mut self, record: DeferredRecord) {
        self.unconfirmed.insert(place_of(record.range(), record.name), record.written);
        self.table.insert_unique(record.name.hash, record.to_entry(), |entry| entry.name.hash);
    }

    /// Whether the key has an entry, and not only a deferred record.
    pub(crate) fn has_entry(&self, range: usize, name: KeyName) -> bool {
        self.table.find(name.hash, |entry| entry.name == name && entry.range == range).is_some()
    }

    #[cold]
    fn find_deferred(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<OverlayEntry> {
        self.deferred.find(range, hash, ident).map(|record| record.to_entry())
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        let unconfirmed = self.unconfirmed.len() * (size_of::<OverlayKey>() + size_of::<Written>());
        self.table.capacity() * (size_of::<OverlayEntry>() + 1)
            + unconfirmed
            + self.deferred.resident_bytes()
            + self.apart.len() * size_of::<OverlayKey>()
    }

    /// Shrinks the table if it is nearly empty.
    pub(crate) fn drop_unused(&mut self) {
        let wanted = (2 * self.table.len()).max(SPARE_PLACES);
        if self.table.capacity() > 4 * wanted {
            self.table.shrink_to(wanted, |entry| entry.name.hash);
        }
    }

    /// Number of entries whose base is unreadable or corrupt.
    pub(crate) fn apart(&self) -> usize {
        self.apart.len()
    }

    /// Sets an entry apart, because its base is unreadable or corrupt. Returns whether it was not before.
    pub(crate) fn set_apart(&mut self, range: usize, name: KeyName) -> bool {
        let Some(entry) = self.find_mut(range, name) else { return false };
        assert_eq!(entry.base, OverlayBase::Unknown, "a known base needs no read");
        entry.is_queued = false;
        self.apart.insert(place_of(range, name))
    }

    /// Up to `count` entries apart after `after`, wrapping around; each at most once.
    pub(crate) fn apart_after(&self, after: OverlayKey, count: usize) -> Vec<(usize, KeyName)> {
        use core::ops::Bound::{Excluded, Unbounded};
        let around = self.apart.range((Excluded(after), Unbounded)).chain(self.apart.range(..=after));
        around.take(count).map(|&(range, hash, ident)| (range, KeyName { hash, ident })).collect()
    }

    /// The entry of a key; `ident` is computed only if 64 bits already match.
    #[inline]
    pub(crate) fn find(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<OverlayEntry> {
        let is_of_key =
            |entry: &OverlayEntry| entry.name.hash == hash && entry.range == range && entry.name.ident == ident();
        match self.table.find(hash, is_of_key) {
            None if self.deferred.len() > 0 => self.find_deferred(range, hash, ident),
            found => found.copied(),
        }
    }

    /// The entry of a key, for a change. A deferred record gets one.
    #[inline]
    pub(crate) fn find_mut(&mut self, range: usize, name: KeyName) -> Option<&mut OverlayEntry> {
        if self.deferred.len() > 0
            && !self.has_entry(range, name)
            && let Some(record) = self.deferred.take(range, name)
        {
            self.wake(record);
            self.woken.push((range, name));
        }
        self.table.find_mut(name.hash, |entry| entry.name == name && entry.range == range)
    }

    /// Adds an entry for a key that has none.
    // A call would take the entry through memory.
    #[inline(always)]
    pub(crate) fn insert(&mut self, range: usize, name: KeyName, base: OverlayBase, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let pending = PendingOfKey { count: 1, newest: written };
        let (committed, rank, is_queued) = (None, CopyRank::Put, false);
        let entry = OverlayEntry { name, range, base, committed, pending, rank, is_queued };
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
    }

    /// Adds an entry with a committed record over an unknown base, for a key that has none.
    pub(crate) fn insert_committed(&mut self, range: usize, name: KeyName, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let entry = DeferredRecord::new(range, name, written, CopyRank::Put).to_entry();
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
        self.enter_unconfirmed(range, name, written);
    }

    fn enter_unconfirmed(&mut self, range: usize, name: KeyName, written: Written) {
        count_delete(&mut self.deletes, range, &written, true);
        if let Some(replaced) = self.unconfirmed.insert(place_of(range, name), written) {
            count_delete(&mut self.deletes, range, &replaced, false);
        }
    }

    /// Committed deletes of a range that wait for their verification.
    pub(crate) fn unconfirmed_deletes(&self, range: usize) -> u64 {
        self.deletes.get(range).copied().unwrap_or_default()
    }

    /// Sets the key's newest committed record while its base is unknown; returns the previous one.
    pub(crate) fn set_committed(&mut self, range: usize, name: KeyName, written: Written) -> Option<Written> {
        let entry = self.find_mut(range, name)?;
        assert_eq!(entry.base, OverlayBase::Unknown, "the index takes what is committed over a known base");
        entry.rank = CopyRank::Put;
        let replaced = entry.committed.replace(written);
        self.enter_unconfirmed(range, name, written);
        replaced
    }

    /// Sets the confirmed base; returns the committed record that waited for it, and its rank.
    pub(crate) fn confirm(&mut self, range: usize, name: KeyName, base: OverlayBase) -> Option<(Written, CopyRank)> {
        assert_ne!(base, OverlayBase::Unknown, "confirmed means known");
        let entry = self.find_mut(range, name)?;
        entry.base = base;
        entry.is_queued = false;
        let waiting = entry.committed.take().map(|written| (written, entry.rank));
        if let Some((written, _)) = &waiting {
            self.unconfirmed.remove(&place_of(range, name));
            count_delete(&mut self.deletes, range, written, false);
        }
        self.apart.remove(&place_of(range, name));
        waiting
    }

    /// Committed records of a range that the index does not have yet, with hashes in `from..to`.
    pub(crate) fn unconfirmed(&self, range: usize, from: u64, to: Option<u64>) -> impl Iterator<Item = &Written> {
        let last = (range, to.map_or(u64::MAX, |to| to - 1), u64::MAX);
        let deferred = self.deferred.between(range, from, last.1).map(|record| &record.written);
        self.unconfirmed.range((range, from, 0)..=last).map(|(_, written)| written).chain(deferred)
    }

    /// Whether a range has committed records that the index does not have yet.
    pub(crate) fn has_unconfirmed(&self, range: usize) -> bool {
        let mut entered = self.unconfirmed.range((range, 0, 0)..=(range, u64::MAX, u64::MAX));
        self.deferred.has_any(range) || entered.next().is_some()
    }

    /// As [`Overlay::all_unconfirmed`], of the entries apart.
    pub(crate) fn unconfirmed_apart(&self) -> impl Iterator<Item = &Written> {
        self.apart.iter().filter_map(|place| self.unconfirmed.get(place))
    }

    /// As [`Overlay::all_unconfirmed`], without the deferred ones, which may be millions.
    pub(crate) fn entered_unconfirmed(&self) -> impl Iterator<Item = &Written> {
        self.unconfirmed.values()
    }

    /// Committed records of all ranges that the index does not have yet.
    pub(crate) fn all_unconfirmed(&self) -> impl Iterator<Item = &Written> {
        self.entered_unconfirmed().chain(self.deferred.iter().map(|record| &record.written))
    }

    /// Removes and returns the key's entry if it has a single pending record over a known base: after that record's
    /// commit the entry is no longer needed.
    // A call would return both through memory.
    #[inline(always)]
    pub(crate) fn take_only(&mut self, range: usize, name: KeyName) -> Option<(OverlayBase, Written)> {
        let found = self.table.find_entry(name.hash, |entry| entry.name == name && entry.range == range).ok()?;
        let entry = found.get();
        if entry.base == OverlayBase::Unknown || entry.committed.is_some() || entry.pending.count != 1 {
            return None;
        }
        let (base, written) = (entry.base, entry.pending.newest);
        let _ = found.remove();
        Some((base, written))
    }

    /// Removes the key's entry if nothing of it is in flight.
    pub(crate) fn remove_if_settled(&mut self, range: usize, name: KeyName) {
        let found = self.table.find_entry(name.hash, |entry| entry.name == name && entry.range == range);
        if let Ok(found) = found
            && found.get().is_settled()
        {
            let _ = found.remove();
            self.apart.remove(&place_of(range, name));
        }
    }

    /// The index has lost the entries that point to these places: they are no base any more.
    pub(crate) fn forget_bases_at(&mut self, is_gone: impl Fn(Pointer) -> bool) {
        for entry in self.table.iter_mut() {
            if matches!(entry.base, OverlayBase::At(old) if is_gone(old.pointer)) {
                entry.base = OverlayBase::Absent;
            }
        }
    }

    /// Removes all entries of the range, pending records included.
    pub(crate) fn forget_range(&mut self, range: usize) {
        self.forget_bases(range);
        self.table.retain(|entry| entry.range != range);
        self.woken.retain(|&(at, _)| at != range);
    }

    fn forget_bases(&mut self, range: usize) {
        self.unconfirmed.retain(|&(at, ..), _| at != range);
        self.deferred.forget_range(range);
        if let Some(deletes) = self.deletes.get_mut(range) {
            *deletes = 0;
        }
        self.apart.retain(|&(at, ..)| at != range);
    }

    /// Empties the range below its pending records: no base and no committed record is left.
    pub(crate) fn clear_range(&mut self, range: usize) {
        self.forget_bases(range);
        self.table.retain(|entry| {
            if entry.range != range {
                return true;
            }
            entry.base = OverlayBase::Absent;
            entry.is_queued = false;
            entry.committed = None;
            !entry.is_settled()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defer(overlay: &mut Overlay, records: Vec<DeferredRecord>, segments: (u64, u64)) {
        let mut tables = vec![PlaceTable::default(), PlaceTable::default()];
        for (record, place) in records.iter().zip(0..) {
            tables[record.range()].insert(record.name.hash, place, records.len());
        }
        overlay.defer(records, tables, segments);
    }

    #[test]
    fn deferred_keys_of_one_hash_are_told_apart() {
        let written = |seq: u64| Written {
            version: Version::from_u64(seq),
            pointer: Pointer::new(seq),
            len_bytes: 32,
            is_put: true,
        };
        let name = |ident| KeyName { hash: 9, ident };
        let mut overlay = Overlay::default();
        let record = |ident| DeferredRecord::new(0, name(ident), written(ident), CopyRank::Put);
        defer(&mut overlay, [1, 2, 4].into_iter().map(record).collect(), (1, 4));
        assert!(overlay.find_mut(0, name(4)).is_some(), "it is taken");
        assert_eq!((overlay.deferred(), overlay.unconfirmed(0, 9, Some(10)).count()), (2, 3));
        for ident in [1, 2] {
            let entry = overlay.find(0, 9, || ident);
            assert_eq!(entry.and_then(|entry| entry.committed), Some(written(ident)));
        }
        assert!(overlay.find(0, 9, || 3).is_none() && overlay.find(1, 9, || 1).is_none());
        assert_eq!(overlay.wake_next(), Some((0, name(2))));
        assert_eq!(overlay.wake_next(), Some((0, name(1))));
        assert_eq!((overlay.wake_next(), overlay.deferred(), overlay.len()), (None, 0, 3));
        assert_eq!((overlay.unconfirmed(0, 9, None).count(), overlay.all_unconfirmed().count()), (3, 3));
    }

    /// Otherwise a store whose deferred records cannot be confirmed would clean nothing any more.
    #[test]
    fn segments_behind_the_deferred_records_may_have_none() {
        let written = Written { version: Version::from_u64(1), pointer: Pointer::new(1), len_bytes: 32, is_put: true };
        let mut overlay = Overlay::default();
        let record = DeferredRecord::new(0, KeyName { hash: 9, ident: 1 }, written, CopyRank::Put);
        defer(&mut overlay, vec![record], (3, 5));
        assert_eq!([2, 3, 5, 6].map(|sequence| overlay.may_defer(sequence)), [false, true, true, false]);
        assert!(overlay.wake_next().is_some());
        assert!(!overlay.may_defer(4));
    }

    /// Every segment that cleaning looks at asks whether a range has any.
    #[test]
    fn a_search_passes_over_no_records_of_a_range_that_are_all_taken() {
        const TAKEN: u64 = 1_000;
        let written = Written { version: Version::from_u64(1), pointer: Pointer::new(1), len_bytes: 32, is_put: true };
        let name = |hash| KeyName { hash, ident: hash };
        let record = |range, hash| DeferredRecord::new(range, name(hash), written, CopyRank::Put);
        let mut overlay = Overlay::default();
        defer(&mut overlay, (0..TAKEN).map(|hash| record(0, hash)).chain([record(1, 5)]).collect(), (1, 4));
        for hash in 0..TAKEN {
            assert!(overlay.find_mut(0, name(hash)).is_some());
            assert!(overlay.confirm(0, name(hash), OverlayBase::Absent).is_some());
            overlay.remove_if_settled(0, name(hash));
        }
        assert_eq!((overlay.has_unconfirmed(0), overlay.has_unconfirmed(1)), (false, true));
        assert_eq!([0, 1].map(|range| overlay.unconfirmed(range, 0, None).count()), [0, 1]);
    }
}

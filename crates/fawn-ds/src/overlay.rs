//! Owns the keys in flight: per key, what is committed but not yet in the index, and what is pending.
//!
//! The index moves on commit, and only once the key's old version is confirmed to be its own; until then the overlay
//! answers. A key is named here by 128 bits of keyed hash, so that entries need not hold the key.
use crate::index::Pointer;
use fawn_types::Version;
use hashbrown::HashTable;
use std::collections::{BTreeMap, BTreeSet};

/// 128 bits of a key's keyed hashes: the index's 64 and an independent 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    /// [`fawn_types::KeyHash`] of the key.
    pub(crate) hash: u64,
    /// The same hash under a second secret.
    pub(crate) ident: u64,
}

/// A record of a key, as far as the overlay needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) version: Version,
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
    pub(crate) is_put: bool,
}

/// A confirmed old version: where it lies and how long it is, for the segment's accounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Old {
    pub(crate) pointer: Pointer,
    pub(crate) len_bytes: u32,
}

/// What the index holds for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OverlayBase {
    /// Fragments match; a verification read is queued or under way.
    Unknown,
    /// Nothing.
    Absent,
    /// This record.
    At(Old),
}

/// Records of a key that are appended and not yet committed: their number and the newest. The range's queue of pending
/// records has the others, so that a commit costs the same however many versions of one key wait for theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingOfKey {
    count: u32,
    newest: Written,
}

/// One key in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlayEntry {
    pub(crate) name: KeyName,
    pub(crate) range: usize,
    pub(crate) base: OverlayBase,
    /// Newest committed record while `base` is unknown.
    pub(crate) committed: Option<Written>,
    pending: PendingOfKey,
    /// A verification of it is queued or in flight.
    pub(crate) is_queued: bool,
}

// An entry owns no memory of its own: whatever a commit does to it costs the same, and a table of them is all there is.
const _: () = assert!(!core::mem::needs_drop::<OverlayEntry>());

/// What an entry takes in the table at most: the table is at least 7/16 full, and has a byte of its own per place.
pub(crate) const ENTRY_BYTES: usize = (size_of::<OverlayEntry>() + 1) * 16 / 7;
/// What an entry over a base that cannot be read takes besides: its places in two ordered sets, half empty at worst.
pub(crate) const APART_BYTES: usize = 4 * size_of::<Place>() + 2 * size_of::<Written>();

/// A key in order: range, hash, second hash.
type Place = (usize, u64, u64);

const fn place_of(range: usize, name: KeyName) -> Place {
    (range, name.hash, name.ident)
}

impl OverlayEntry {
    /// The newest record that is not yet committed.
    pub(crate) fn newest_pending(&self) -> Option<&Written> {
        (self.pending.count > 0).then_some(&self.pending.newest)
    }

    /// Adds a record behind the others.
    pub(crate) fn push_pending(&mut self, written: Written) {
        debug_assert!(self.pending.count == 0 || written.version > self.pending.newest.version, "versions grow");
        self.pending = PendingOfKey { count: self.pending.count + 1, newest: written };
    }

    /// Takes the oldest record, which is committed now.
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

    /// Takes the newest record, which is rolled back. What is left needs [`OverlayEntry::set_newest`].
    pub(crate) fn take_newest(&mut self) {
        assert!(self.pending.count > 0, "only what is pending is rolled back");
        self.pending.count -= 1;
    }

    /// Names the newest record that is left.
    pub(crate) fn set_newest(&mut self, written: Written) {
        assert!(self.pending.count > 0, "what is named newest is pending");
        self.pending.newest = written;
    }

    fn is_settled(&self) -> bool {
        self.pending.count == 0 && self.committed.is_none()
    }
}

/// All keys in flight of one engine.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    table: HashTable<OverlayEntry>,
    /// Entries with a committed record that the index does not have yet, by range and in hash order, as scans go.
    unconfirmed: BTreeMap<Place, Written>,
    /// Entries over a base that could not be read when it was last tried: they stay, and are tried again now and then.
    apart: BTreeSet<Place>,
}

impl Overlay {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        let unconfirmed = self.unconfirmed.len() * (size_of::<Place>() + size_of::<Written>());
        self.table.capacity() * (size_of::<OverlayEntry>() + 1) + unconfirmed + self.apart.len() * size_of::<Place>()
    }

    /// Entries over a base that cannot be read.
    pub(crate) fn apart(&self) -> usize {
        self.apart.len()
    }

    /// The key's base could not be read. Returns whether that is new.
    pub(crate) fn set_apart(&mut self, range: usize, name: KeyName) -> bool {
        let Some(entry) = self.find_mut(range, name) else { return false };
        assert_eq!(entry.base, OverlayBase::Unknown, "a known base needs no read");
        entry.is_queued = false;
        self.apart.insert(place_of(range, name))
    }

    /// Up to `count` entries apart that follow `after`, around the end; none twice.
    pub(crate) fn apart_after(&self, after: Place, count: usize) -> Vec<(usize, KeyName)> {
        use core::ops::Bound::{Excluded, Unbounded};
        let around = self.apart.range((Excluded(after), Unbounded)).chain(self.apart.range(..=after));
        around.take(count).map(|&(range, hash, ident)| (range, KeyName { hash, ident })).collect()
    }

    /// The entry of a key; `ident` is computed only when 64 bits already match.
    pub(crate) fn find(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<&OverlayEntry> {
        self.table.find(hash, |entry| entry.name.hash == hash && entry.range == range && entry.name.ident == ident())
    }

    pub(crate) fn find_mut(&mut self, range: usize, name: KeyName) -> Option<&mut OverlayEntry> {
        self.table.find_mut(name.hash, |entry| entry.name == name && entry.range == range)
    }

    /// Adds a key that has none yet.
    pub(crate) fn insert(&mut self, range: usize, name: KeyName, base: OverlayBase, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let pending = PendingOfKey { count: 1, newest: written };
        let entry = OverlayEntry { name, range, base, committed: None, pending, is_queued: false };
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
    }

    /// Adds a key that has none yet, with a committed record over an unknown base.
    pub(crate) fn insert_committed(&mut self, range: usize, name: KeyName, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let pending = PendingOfKey { count: 0, newest: written };
        let committed = Some(written);
        let entry = OverlayEntry { name, range, base: OverlayBase::Unknown, committed, pending, is_queued: false };
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
        self.unconfirmed.insert(place_of(range, name), written);
    }

    /// The key's newest committed record, while its base is unknown; returns the one before.
    pub(crate) fn set_committed(&mut self, range: usize, name: KeyName, written: Written) -> Option<Written> {
        let entry = self.find_mut(range, name)?;
        assert_eq!(entry.base, OverlayBase::Unknown, "the index takes what is committed over a known base");
        let replaced = entry.committed.replace(written);
        self.unconfirmed.insert(place_of(range, name), written);
        replaced
    }

    /// The base became known: returns what waited for that.
    pub(crate) fn confirm(&mut self, range: usize, name: KeyName, base: OverlayBase) -> Option<Written> {
        assert_ne!(base, OverlayBase::Unknown, "confirmed means known");
        let entry = self.find_mut(range, name)?;
        entry.base = base;
        entry.is_queued = false;
        let waiting = entry.committed.take();
        if waiting.is_some() {
            self.unconfirmed.remove(&place_of(range, name));
        }
        self.apart.remove(&place_of(range, name));
        waiting
    }

    /// Committed records of a range that the index does not have yet, with hashes from `from` up to before `to`.
    pub(crate) fn unconfirmed(&self, range: usize, from: u64, to: Option<u64>) -> impl Iterator<Item = &Written> {
        use core::ops::Bound::{Excluded, Included};
        let end = to.map_or(Included((range, u64::MAX, u64::MAX)), |to| Excluded((range, to, 0)));
        self.unconfirmed.range((Included((range, from, 0)), end)).map(|(_, written)| written)
    }

    /// Takes the key's entry if all that is in flight of it is one record over a known base: once that is committed,
    /// nothing is left to know here.
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

    /// Removes the key's entry if nothing of it is in flight any more.
    pub(crate) fn remove_if_settled(&mut self, range: usize, name: KeyName) {
        let found = self.table.find_entry(name.hash, |entry| entry.name == name && entry.range == range);
        if let Ok(found) = found
            && found.get().is_settled()
        {
            let _ = found.remove();
            self.apart.remove(&place_of(range, name));
        }
    }

    /// Everything of the range is invalidated, what is pending too.
    pub(crate) fn forget_range(&mut self, range: usize) {
        self.forget_bases(range);
        self.table.retain(|entry| entry.range != range);
    }

    fn forget_bases(&mut self, range: usize) {
        self.unconfirmed.retain(|&(at, ..), _| at != range);
        self.apart.retain(|&(at, ..)| at != range);
    }

    /// The range was emptied: nothing of the index or of earlier commits is left beneath its pending records.
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

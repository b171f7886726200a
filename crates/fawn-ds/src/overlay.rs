//! Owns the keys in flight: per key, what is committed but not yet in the index, and what is pending.
//!
//! The index moves on commit, and only once the key's old version is confirmed to be its own; until then the overlay
//! answers. A key is named here by 128 bits of keyed hash, so that entries need not hold the key.
use crate::index::Pointer;
use fawn_types::Version;
use hashbrown::HashTable;
use smallvec::SmallVec;
use std::collections::BTreeMap;

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
pub(crate) enum Base {
    /// Fragments match; a verification read is queued or under way.
    Unknown,
    /// Nothing.
    Absent,
    /// This record.
    At(Old),
}

/// One key in flight.
#[derive(Debug)]
pub(crate) struct OverlayEntry {
    pub(crate) name: KeyName,
    pub(crate) range: usize,
    pub(crate) base: Base,
    /// Newest committed record while `base` is unknown.
    pub(crate) committed: Option<Written>,
    /// Not yet committed, oldest first.
    pub(crate) pending: SmallVec<[Written; 1]>,
}

/// All keys in flight of one engine.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    table: HashTable<OverlayEntry>,
    /// Entries with a committed record that the index does not have yet, by range and in hash order, as scans go.
    unconfirmed: BTreeMap<(usize, u64, u64), Written>,
}

impl Overlay {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        let unconfirmed = self.unconfirmed.len() * (size_of::<(usize, u64, u64)>() + size_of::<Written>());
        self.table.capacity() * (size_of::<OverlayEntry>() + 1) + unconfirmed
    }

    /// The entry of a key; `ident` is computed only when 64 bits already match.
    pub(crate) fn find(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<&OverlayEntry> {
        self.table.find(hash, |entry| entry.name.hash == hash && entry.range == range && entry.name.ident == ident())
    }

    pub(crate) fn find_mut(&mut self, range: usize, name: KeyName) -> Option<&mut OverlayEntry> {
        self.table.find_mut(name.hash, |entry| entry.name == name && entry.range == range)
    }

    /// Adds a key that has none yet.
    pub(crate) fn insert(&mut self, range: usize, name: KeyName, base: Base, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let mut pending = SmallVec::new();
        pending.push(written);
        let entry = OverlayEntry { name, range, base, committed: None, pending };
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
    }

    /// Adds a key that has none yet, with a committed record over an unknown base.
    pub(crate) fn insert_committed(&mut self, range: usize, name: KeyName, written: Written) {
        debug_assert!(self.find(range, name.hash, || name.ident).is_none(), "one overlay entry per key");
        let pending = SmallVec::new();
        let entry = OverlayEntry { name, range, base: Base::Unknown, committed: Some(written), pending };
        self.table.insert_unique(name.hash, entry, |entry| entry.name.hash);
        self.unconfirmed.insert((range, name.hash, name.ident), written);
    }

    /// The key's newest committed record, while its base is unknown; returns the one before.
    pub(crate) fn set_committed(&mut self, range: usize, name: KeyName, written: Written) -> Option<Written> {
        let entry = self.find_mut(range, name)?;
        assert_eq!(entry.base, Base::Unknown, "the index takes what is committed over a known base");
        let replaced = entry.committed.replace(written);
        self.unconfirmed.insert((range, name.hash, name.ident), written);
        replaced
    }

    /// The base became known: returns what waited for that.
    pub(crate) fn confirm(&mut self, range: usize, name: KeyName, base: Base) -> Option<Written> {
        assert_ne!(base, Base::Unknown, "confirmed means known");
        let entry = self.find_mut(range, name)?;
        entry.base = base;
        let waiting = entry.committed.take();
        if waiting.is_some() {
            self.unconfirmed.remove(&(range, name.hash, name.ident));
        }
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
    pub(crate) fn take_only(&mut self, range: usize, name: KeyName) -> Option<(Base, Written)> {
        let found = self.table.find_entry(name.hash, |entry| entry.name == name && entry.range == range).ok()?;
        let entry = found.get();
        if entry.base == Base::Unknown || entry.committed.is_some() || entry.pending.len() != 1 {
            return None;
        }
        let (base, written) = (entry.base, entry.pending[0]);
        let _ = found.remove();
        Some((base, written))
    }

    /// Removes the key's entry if nothing of it is in flight any more.
    pub(crate) fn remove_if_settled(&mut self, range: usize, name: KeyName) {
        let found = self.table.find_entry(name.hash, |entry| entry.name == name && entry.range == range);
        if let Ok(found) = found {
            let entry = found.get();
            if entry.pending.is_empty() && entry.committed.is_none() {
                let _ = found.remove();
            }
        }
    }

    /// Everything of the range is void, what is pending too.
    pub(crate) fn forget_range(&mut self, range: usize) {
        self.unconfirmed.retain(|&(at, ..), _| at != range);
        self.table.retain(|entry| entry.range != range);
    }

    /// The range was emptied: nothing of the index or of earlier commits is left beneath its pending records.
    pub(crate) fn clear_range(&mut self, range: usize) {
        self.unconfirmed.retain(|&(at, ..), _| at != range);
        self.table.retain(|entry| {
            if entry.range != range {
                return true;
            }
            entry.base = Base::Absent;
            entry.committed = None;
            !entry.pending.is_empty()
        });
    }
}

//! The records that an opening deferred: a list that is used up from its end, and a table of places by key.
use super::place_table::PlaceTable;
use super::{KeyName, Written};

/// Which of two records of a key with equal versions counts: the one of the higher rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CopyRank {
    /// A sorted record, which only hides older ones. A put that was too long for a run has a copy of its version.
    Trace,
    Put,
    /// A tombstone. Cleaning writes one of a put's version once that has expired.
    Removal,
}

/// A record whose key may have an older version in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredRecord {
    pub(crate) name: KeyName,
    pub(crate) written: Written,
    range: u32,
    pub(crate) rank: CopyRank,
    /// It has an entry of the overlay by now.
    is_taken: bool,
}

// An opening may defer millions of them.
const _: () = assert!(size_of::<DeferredRecord>() <= 48);

impl DeferredRecord {
    pub(crate) const fn new(range: usize, name: KeyName, written: Written, rank: CopyRank) -> Self {
        Self { name, written, range: range as u32, rank, is_taken: false }
    }

    pub(crate) const fn range(&self) -> usize {
        self.range as usize
    }
}

/// The deferred records, and their places by key.
#[derive(Debug, Default)]
pub(super) struct DeferredList {
    records: Vec<DeferredRecord>,
    /// By range, also of records that are taken, or were removed from the end of the list.
    tables: Vec<PlaceTable>,
    /// Records that are not taken, in all and by range: searches pass over none of a range whose records are all taken.
    left: usize,
    left_by_range: Vec<usize>,
}

impl DeferredList {
    /// A list of records, one per key.
    pub(super) fn new(mut records: Vec<DeferredRecord>, tables: Vec<PlaceTable>) -> Self {
        records.shrink_to_fit();
        let mut left_by_range = Vec::new();
        for record in &records {
            left_by_range.resize(left_by_range.len().max(record.range() + 1), 0);
            left_by_range[record.range()] += 1;
        }
        Self { left: records.len(), left_by_range, records, tables }
    }

    pub(super) const fn len(&self) -> usize {
        self.left
    }

    /// Whether a range has any.
    pub(super) fn has_any(&self, range: usize) -> bool {
        self.left_by_range.get(range).is_some_and(|&left| left > 0)
    }

    fn get(&self, place: u32) -> Option<&DeferredRecord> {
        self.records.get(place as usize).filter(|record| !record.is_taken)
    }

    fn place_of(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<u32> {
        let is_it = |record: &DeferredRecord| record.name.hash == hash && record.name.ident == ident();
        self.tables.get(range)?.find(hash, |place| self.get(place).is_some_and(&is_it))
    }

    /// The record of a key; `ident` is computed only if 64 bits already match.
    pub(super) fn find(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<&DeferredRecord> {
        self.get(self.place_of(range, hash, ident)?)
    }

    /// Takes the record of a key.
    pub(super) fn take(&mut self, range: usize, name: KeyName) -> Option<DeferredRecord> {
        let place = self.place_of(range, name.hash, || name.ident)?;
        let record = self.records.get_mut(place as usize)?;
        record.is_taken = true;
        let record = *record;
        self.note_taken(range);
        Some(record)
    }

    /// Takes the last record.
    pub(super) fn pop(&mut self) -> Option<DeferredRecord> {
        let record = loop {
            let record = self.records.pop()?;
            if !record.is_taken {
                break record;
            }
        };
        if self.records.len() < self.records.capacity() / 2 {
            self.records.shrink_to_fit();
        }
        self.note_taken(record.range());
        Some(record)
    }

    fn note_taken(&mut self, range: usize) {
        self.left -= 1;
        self.left_by_range[range] -= 1;
        if self.left == 0 {
            *self = Self::default();
        }
    }

    /// Records of a range with hashes from `from` to `to`, both included, in no order.
    pub(super) fn between(&self, range: usize, from: u64, to: u64) -> impl Iterator<Item = &DeferredRecord> {
        let table = self.tables.get(range).filter(|_| self.has_any(range));
        let places = table.map(|table| table.between(from, to)).into_iter().flatten();
        places.filter_map(|place| self.get(place)).filter(move |record| (from..=to).contains(&record.name.hash))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeferredRecord> {
        self.records.iter().filter(|record| !record.is_taken)
    }

    pub(super) fn forget_range(&mut self, range: usize) {
        if !self.has_any(range) {
            return;
        }
        let of_range = self.records.iter_mut().filter(|record| record.range() == range);
        of_range.for_each(|record| record.is_taken = true);
        self.left -= core::mem::take(&mut self.left_by_range[range]);
        if self.left == 0 {
            *self = Self::default();
        }
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.records.capacity() * size_of::<DeferredRecord>()
            + self.tables.iter().map(PlaceTable::resident_bytes).sum::<usize>()
    }
}

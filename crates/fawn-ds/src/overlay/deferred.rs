//! The records that an opening deferred: a list in the order of their keys, which is used up from its end.
use super::{KeyName, OverlayKey, Written, place_of};

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

    /// Where it is in the order of the list.
    pub(crate) const fn place(&self) -> OverlayKey {
        place_of(self.range(), self.name)
    }
}

/// The deferred records, by range and in hash order.
#[derive(Debug, Default)]
pub(super) struct DeferredList {
    records: Vec<DeferredRecord>,
    /// Records that are not taken, in all and by range: searches pass over none of a range whose records are all taken.
    left: usize,
    left_by_range: Vec<usize>,
}

impl DeferredList {
    /// A list of records that are in the order of their places.
    pub(super) fn new(mut records: Vec<DeferredRecord>) -> Self {
        debug_assert!(records.is_sorted_by_key(DeferredRecord::place), "searches are binary");
        records.shrink_to_fit();
        let mut left_by_range = Vec::new();
        for record in &records {
            left_by_range.resize(left_by_range.len().max(record.range() + 1), 0);
            left_by_range[record.range()] += 1;
        }
        Self { left: records.len(), left_by_range, records }
    }

    pub(super) const fn len(&self) -> usize {
        self.left
    }

    /// The record of a key; `ident` is computed only if 64 bits already match.
    pub(super) fn find(&self, range: usize, hash: u64, ident: impl Fn() -> u64) -> Option<&DeferredRecord> {
        let mut found = self.between((range, hash, 0), (range, hash, u64::MAX)).peekable();
        found.peek()?;
        let ident = ident();
        found.find(|record| record.name.ident == ident)
    }

    /// Takes the record of a key.
    pub(super) fn take(&mut self, range: usize, name: KeyName) -> Option<DeferredRecord> {
        let place = place_of(range, name);
        let at = self.records.binary_search_by_key(&place, DeferredRecord::place).ok()?;
        let record = &mut self.records[at];
        if core::mem::replace(&mut record.is_taken, true) {
            return None;
        }
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
        self.note_taken(record.range());
        if self.records.len() < self.records.capacity() / 2 {
            self.records.shrink_to_fit();
        }
        Some(record)
    }

    fn note_taken(&mut self, range: usize) {
        self.left -= 1;
        self.left_by_range[range] -= 1;
    }

    /// Records of a range, with places from `from` to `to`, both included.
    pub(super) fn between(&self, from: OverlayKey, to: OverlayKey) -> impl Iterator<Item = &DeferredRecord> {
        let at = if self.left_by_range.get(from.0).is_none_or(|&left| left == 0) {
            self.records.len()
        } else {
            self.records.partition_point(|record| record.place() < from)
        };
        let records = self.records[at..].iter().take_while(move |record| record.place() <= to);
        records.filter(|record| !record.is_taken)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeferredRecord> {
        self.records.iter().filter(|record| !record.is_taken)
    }

    pub(super) fn forget_range(&mut self, range: usize) {
        self.records.retain(|record| record.range() != range);
        if let Some(left) = self.left_by_range.get_mut(range) {
            self.left -= core::mem::take(left);
        }
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.records.capacity() * size_of::<DeferredRecord>()
    }
}

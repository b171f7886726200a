//! Facts of a segment's records: counted while it is written, listed in the manifest at its seal, counted by every scan.
//!
//! They are a function of the segment's bytes, so a scan that counts others has found a fault. Commit marks and rollbacks
//! do not count.
use crate::format::RangeNumber;
use crate::format::record::{RecordKind, RecordRef};
use fawn_types::Version;

/// Facts of the records under one local number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumberFacts {
    /// The local number.
    pub number: RangeNumber,
    /// Count of the records.
    pub records: u32,
    /// Their lowest version.
    pub lowest: Version,
    /// Their highest version, whether it was rolled back or not.
    pub highest: Version,
}

impl NumberFacts {
    /// Facts before the first record.
    pub(crate) const fn none(number: RangeNumber) -> Self {
        Self { number, records: 0, lowest: Version::from_u64(u64::MAX), highest: Version::ZERO }
    }

    /// Counts a record of this version.
    #[inline]
    pub(crate) fn count(&mut self, version: Version) {
        self.records += 1;
        self.lowest = self.lowest.min(version);
        self.highest = self.highest.max(version);
    }
}

/// Facts of all records in a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordFacts {
    /// Count of the tombstones.
    pub tombstones: u32,
    /// Latest expiry of a record, ms since the Unix epoch; 0: none expires.
    pub latest_expiry_ms: u64,
    /// Per local number, ascending.
    pub numbers: Vec<NumberFacts>,
}

impl RecordFacts {
    /// Count of the records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.numbers.iter().map(|facts| u64::from(facts.records)).sum()
    }

    /// Counts the next record of the segment.
    pub fn count(&mut self, number: RangeNumber, record: &RecordRef<'_>) {
        if matches!(record.kind, RecordKind::CommitMark | RecordKind::Rollback) {
            return;
        }
        self.tombstones += u32::from(record.kind == RecordKind::Tombstone);
        self.latest_expiry_ms = self.latest_expiry_ms.max(record.expires_at_ms);
        self.of_number(number).count(record.version);
    }

    /// Adds the facts of further records under one number.
    pub(crate) fn add(&mut self, found: &NumberFacts) {
        if found.records > 0 {
            let facts = self.of_number(found.number);
            facts.records += found.records;
            facts.lowest = facts.lowest.min(found.lowest);
            facts.highest = facts.highest.max(found.highest);
        }
    }

    /// Counts a record's version, as [`RecordFacts::count`] does besides its kind and expiry.
    pub(crate) fn count_version(&mut self, number: RangeNumber, version: Version) {
        self.of_number(number).count(version);
    }

    fn of_number(&mut self, number: RangeNumber) -> &mut NumberFacts {
        let at = self.numbers.partition_point(|facts| facts.number < number);
        if self.numbers.get(at).is_none_or(|facts| facts.number > number) {
            self.numbers.insert(at, NumberFacts::none(number));
        }
        &mut self.numbers[at]
    }
}

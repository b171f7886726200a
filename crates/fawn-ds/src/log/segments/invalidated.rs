//! Records of a segment that rollbacks invalidated.
use crate::format::RangeNumber;
use crate::log::LogPosition;
use fawn_types::Version;

/// Records under a number that a rollback invalidated: those above a version that lie before a position of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RolledBackRecords {
    pub(crate) number: RangeNumber,
    pub(crate) before: LogPosition,
    pub(crate) above: Version,
}

impl RolledBackRecords {
    /// Whether it has all records of the other one in a segment that ends at `end`.
    fn covers(&self, other: &Self, end: LogPosition) -> bool {
        self.number == other.number && self.above <= other.above && self.before.min(end) >= other.before.min(end)
    }

    /// Sequence number of the segment that has the rollback.
    const fn sequence(&self, segment_bytes: u32) -> u64 {
        // The rollback ends at the position, which may be the end of its segment, or begins there if an opening read it.
        LogPosition(self.before.0.saturating_sub(1)).sequence(segment_bytes)
    }
}

/// All that rollbacks invalidated in a segment, without those that invalidate nothing more of it.
#[derive(Clone, Default, Debug)]
pub(crate) struct InvalidatedRecords(Vec<RolledBackRecords>);

impl InvalidatedRecords {
    /// Adds what a rollback invalidates in the segment, which ends at `end`.
    pub(super) fn add(&mut self, records: RolledBackRecords, end: LogPosition, segment_bytes: u32) {
        if self.0.iter().any(|known| known.covers(&records, end)) {
            return;
        }
        // An entry keeps the segment of its rollback. A replaced one's is kept by the new entry, since both are the same.
        let sequence = records.sequence(segment_bytes);
        self.0.retain(|known| known.sequence(segment_bytes) != sequence || !records.covers(known, end));
        self.0.push(records);
    }

    /// Whether the record of this number and version, at this position of the log, was rolled back.
    pub(crate) fn contains(&self, number: RangeNumber, position: LogPosition, version: Version) -> bool {
        self.0.iter().any(|known| known.number == number && position < known.before && version > known.above)
    }

    /// Whether a rollback in the segment with this sequence number has invalidated some.
    pub(crate) fn are_rolled_back_in(&self, sequence: u64, segment_bytes: u32) -> bool {
        self.0.iter().any(|known| known.sequence(segment_bytes) == sequence)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RolledBackRecords> {
        self.0.iter()
    }

    /// The manifest invalidates all records under the number.
    pub(super) fn forget_number(&mut self, number: RangeNumber) {
        self.0.retain(|known| known.number != number);
    }
}

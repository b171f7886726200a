//! A segment's seal: its end and its records' facts, listed once it is complete and synced.
use super::edit::EDIT_HEADER_BYTES;
use crate::format::RangeNumber;
use crate::format::bytes::{u32_at, u64_at};
use crate::format::segment::{NumberFacts, RecordFacts};
use fawn_types::Version;

/// End and contents of a complete segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentSeal {
    /// End of its last frame, bytes.
    pub len: u32,
    /// Facts of its records.
    pub facts: RecordFacts,
}

/// Length of a seal's edit for a segment with records of this many ranges, bytes.
#[must_use]
pub(crate) const fn seal_bytes(ranges: usize) -> usize {
    EDIT_HEADER_BYTES + size_of::<u32>() + SegmentSeal::BYTES_MIN + ranges * SegmentSeal::NUMBER_BYTES
}

impl SegmentSeal {
    /// Encoded length without local numbers, bytes.
    pub(super) const BYTES_MIN: usize = 16;
    const NUMBER_BYTES: usize = 24;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let RecordFacts { tombstones, latest_expiry_ms, numbers } = &self.facts;
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&tombstones.to_le_bytes());
        out.extend_from_slice(&latest_expiry_ms.to_le_bytes());
        for NumberFacts { number, records, lowest, highest } in numbers {
            out.extend_from_slice(&number.0.to_le_bytes());
            out.extend_from_slice(&records.to_le_bytes());
            out.extend_from_slice(&lowest.as_u64().to_le_bytes());
            out.extend_from_slice(&highest.as_u64().to_le_bytes());
        }
    }

    /// `None` if the length is not one of whole entries.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(Self::BYTES_MIN)?;
        let entries = rest.chunks_exact(Self::NUMBER_BYTES);
        if !entries.remainder().is_empty() {
            return None;
        }
        let numbers = entries.map(|entry| NumberFacts {
            number: RangeNumber(u32_at(entry, 0)),
            records: u32_at(entry, 4),
            lowest: Version::from_u64(u64_at(entry, 8)),
            highest: Version::from_u64(u64_at(entry, 16)),
        });
        let facts =
            RecordFacts { tombstones: u32_at(head, 4), latest_expiry_ms: u64_at(head, 8), numbers: numbers.collect() };
        Some(Self { len: u32_at(head, 0), facts })
    }
}

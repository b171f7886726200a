//! Identities on flash: stores, segments, and how far the log was known to be synced.
use fawn_types::checksum::salt;
use fawn_types::{HashSecret, KeyHash};

/// Permanent name of a store; every file of it carries it, so that files of two stores cannot be mixed up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StoreUuid(pub [u8; 16]);

/// Permanent name of a segment, independent of its slot and file name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentUuid(pub [u8; 16]);

impl StoreUuid {
    /// Its 64-bit form, the salt of manifest checksums.
    #[must_use]
    pub fn fold(self) -> u64 {
        fold(self.0)
    }
}

impl SegmentUuid {
    /// A segment's UUID: a keyed hash of properties that no other segment of the store shares.
    ///
    /// A generation never assigns one sequence number twice and no two opens share a generation, so it is unique.
    /// It is keyed by the store's secret, so no client can write bytes that pass for a frame of the segment.
    #[must_use]
    pub fn derive(secret: &HashSecret, store: StoreUuid, generation: u32, sequence: u64) -> Self {
        let mut input = [0; 29];
        input[..16].copy_from_slice(&store.0);
        input[16..20].copy_from_slice(&generation.to_le_bytes());
        input[20..28].copy_from_slice(&sequence.to_le_bytes());
        let mut uuid = [0; 16];
        for (half, out) in uuid.chunks_exact_mut(8).enumerate() {
            input[28] = half as u8;
            out.copy_from_slice(&KeyHash::of(secret, &input).0.to_le_bytes());
        }
        Self(uuid)
    }

    /// Its 64-bit form, the salt of record and frame checksums: `segment_id` throughout this crate.
    #[must_use]
    pub fn fold(self) -> u64 {
        fold(self.0)
    }
}

fn fold(uuid: [u8; 16]) -> u64 {
    let value = u128::from_le_bytes(uuid);
    // Not a plain exclusive or: all UUIDs of two equal halves would fold to the same value.
    salt(value as u64, (value >> 64) as u64)
}

/// Local number of a range: names the range's records in this store's log. Numbers begin at 1 and are never reused. A
/// range gets a new one each time that it begins from scratch here, so that records of an earlier time never count
/// again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RangeNumber(pub u32);

/// A position in the store's append stream up to which everything was synced; ordered by position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Watermark {
    /// Sequence number of the segment; every segment of a lower one was synced whole.
    pub sequence: u64,
    /// Bytes of that segment that were synced, its header included.
    pub offset: u32,
}

impl Watermark {
    /// Nothing is known to be synced. Segment sequence numbers begin at 1.
    pub const NONE: Self = Self { sequence: 0, offset: 0 };
}

impl core::fmt::Display for Watermark {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "segment {} byte {}", self.sequence, self.offset)
    }
}

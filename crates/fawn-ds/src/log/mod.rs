//! Owns the append stream's bookkeeping in memory: positions, the window of bytes not yet on flash, the segment table.
pub(crate) mod flush;
pub(crate) mod segments;
pub(crate) mod window;

/// A place in the store's append stream, bytes; grows for the store's whole life, across openings.
///
/// It is `sequence × segment_bytes + offset`: what a full segment leaves unused counts as passed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// Of byte `offset` of the segment with this sequence number.
    pub(crate) const fn new(sequence: u64, offset: u32, segment_bytes: u32) -> Self {
        Self(sequence * segment_bytes as u64 + offset as u64)
    }

    /// The sequence number of its segment.
    pub(crate) const fn sequence(self, segment_bytes: u32) -> u64 {
        self.0 / segment_bytes as u64
    }

    /// The offset within its segment.
    pub(crate) const fn offset(self, segment_bytes: u32) -> u32 {
        (self.0 % segment_bytes as u64) as u32
    }
}

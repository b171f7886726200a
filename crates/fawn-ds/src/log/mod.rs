//! The log's state in memory: positions, the append window, the flush state and the segment table.
pub(crate) mod failures;
pub(crate) mod flush;
pub(crate) mod segments;
pub(crate) mod stream;
pub(crate) mod tail;
pub(crate) mod unfinished;
pub(crate) mod window;

/// A position in the store's append stream, bytes; it grows over the store's whole life.
///
/// The value is `sequence × segment_bytes + offset`: the unused end of a segment counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPosition(pub u64);

impl LogPosition {
    pub(crate) const fn new(sequence: u64, offset: u32, segment_bytes: u32) -> Self {
        Self(sequence * segment_bytes as u64 + offset as u64)
    }

    pub(crate) const fn sequence(self, segment_bytes: u32) -> u64 {
        self.0 / segment_bytes as u64
    }

    pub(crate) const fn offset(self, segment_bytes: u32) -> u32 {
        (self.0 % segment_bytes as u64) as u32
    }
}

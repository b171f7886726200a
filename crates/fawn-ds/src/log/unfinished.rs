//! Results of a cleaning that ended before the end of its segment: what the next one of the segment has to know.
use fawn_types::MonoMs;

/// A segment's part, from its start, of which cleaning has copied all tombstones that are needed: the next one copies none again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct CopiedPart {
    /// Offset of its end.
    pub(crate) end: u32,
    /// Deletes in it, bytes.
    pub(crate) tombstone_bytes: u64,
    /// Puts in it that expire, bytes.
    pub(crate) expiring_bytes: u64,
}

/// A cleaning that was given up because its copies had no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefusedCopies {
    /// Rest of the survivors' active segment, which was the last one.
    pub(crate) room_bytes: u64,
    /// Bytes that cleaning had to copy if all dead puts that expire were replaced before.
    pub(crate) copied_bytes: u64,
    /// With no more room, not before this time.
    pub(crate) again_at: MonoMs,
}

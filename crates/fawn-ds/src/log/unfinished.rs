//! Results of a cleaning that ended before the end of its segment: what the next one of the segment has to know.
use fawn_types::MonoMs;

/// A cleaning that was given up because its copies had no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefusedCopies {
    /// Rest of the survivors' active segment, which was the last one.
    pub(crate) room_bytes: u64,
    /// With no more room, not before this time.
    pub(crate) again_at: MonoMs,
}

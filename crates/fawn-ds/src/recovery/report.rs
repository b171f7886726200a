//! Owns what an opening reports: what it found, undid, and came back with.
use crate::format::Watermark;
use fawn_types::{RangeId, Version};

/// What one range came back with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeReport {
    /// Which.
    pub range: RangeId,
    /// Newest version known to be committed; in a sole epoch, all that was recovered.
    pub committed: Version,
    /// Newest version recovered; what lies between waits for a commit or a rollback.
    pub recovered: Version,
}

/// Damage found below what was synced; only a read-only opening goes on past it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The segment's file.
    pub file: String,
    /// Where the last good frame before it ends.
    pub from_bytes: u32,
    /// How far the log was synced.
    pub synced: Watermark,
    /// What is wrong.
    pub detail: String,
}

/// What opening found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenReport {
    /// There was no store; there is one now.
    pub created: bool,
    /// Segments read.
    pub segments: u64,
    /// Records read.
    pub records: u64,
    /// Bytes of frames read.
    pub bytes: u64,
    /// Records of ranges that were dropped: void, and in the way until their segments go.
    pub dropped_records: u64,
    /// Unfinished ends cut off: file and where.
    pub truncated: Vec<(String, u32)>,
    /// Files of unfinished steps removed.
    pub orphans_removed: Vec<String>,
    /// Read-only openings list what is corrupt here.
    pub damage: Vec<Damage>,
    /// Per range.
    pub ranges: Vec<RangeReport>,
}

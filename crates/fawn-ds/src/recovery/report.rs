//! Report of an open: the state recovered and the repairs made.
use crate::format::Watermark;
use fawn_types::{RangeId, Version};

/// Recovered state of one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeReport {
    /// The range's id.
    pub range: RangeId,
    /// Newest version known to be committed; in a sole epoch, all that was recovered.
    pub committed: Version,
    /// Newest recovered version. Versions above `committed` wait for a commit or a rollback.
    pub recovered: Version,
}

/// Corruption below the synced end of the log. Only a read-only open continues past it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Name of the segment's file.
    pub file: String,
    /// End of the last valid frame before it, bytes.
    pub from_bytes: u32,
    /// Synced end of the log.
    pub synced: Watermark,
    /// Description of the fault.
    pub detail: String,
}

/// Result of an open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenReport {
    /// A new store was created.
    pub created: bool,
    /// Segments read.
    pub segments: u64,
    /// Records read.
    pub records: u64,
    /// Bytes of frames read.
    pub bytes: u64,
    /// Index entries taken from a checkpoint; `None`: the whole log was scanned.
    pub checkpoint_entries: Option<u64>,
    /// Checkpoints that were not used, and why.
    pub checkpoints_refused: Vec<(String, String)>,
    /// Records under numbers that no range has any more: the range was dropped or began again. They are removed with
    /// their segments.
    pub invalidated_records: u64,
    /// Unfinished ends that were cut off: file and length left, bytes.
    pub truncated: Vec<(String, u32)>,
    /// Bytes of the log that a killed process had left in the tail file alone.
    pub tail_bytes: u64,
    /// The reason why `everysec` durability has no tail file, if it has none.
    pub tail_refused: Option<String>,
    /// Whether the log ends where a close, or a time without writes, recorded it. If not, the last writes may be missing that a
    /// mode other than `sync` had acknowledged.
    pub is_end_recorded: bool,
    /// Files of unfinished steps that were removed.
    pub orphans_removed: Vec<String>,
    /// Corruption found by a read-only open.
    pub damage: Vec<Damage>,
    /// Corruption of sorted segments before the checkpoint, which costs no record.
    pub damage_passed: Vec<Damage>,
    /// Recovered state per range.
    pub ranges: Vec<RangeReport>,
}

//! The drop rule: whether a segment may be unlinked, and if not, why. A pure function over facts; `drops.rs` collects them.
//!
//! A crash after a drop must come back with the same committed and pending records as a crash before it. So a segment
//! stays while it holds something that is still needed (live, pending, retained, read, or the commit mark that proves
//! how far a range is committed); while a crash could undo what its records died by; and while an older segment holds
//! records that only this one hides. Every fact counts per segment, most of them per range in it: one idle range does
//! not keep the later segments of others.
//!
//! A put whose old version is not confirmed yet counts as live, and so does that old version; a tombstone in the same
//! state hides it.
#[cfg(test)]
mod tests;

use crate::log::LogPosition;
use fawn_types::Version;

/// Facts of a segment as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentFacts {
    /// It takes no more data, is synced whole, and the manifest says so.
    pub(crate) is_sealed: bool,
    /// Reads in flight.
    pub(crate) pins: u32,
    /// Ranges whose newest durable commit mark is in it.
    pub(crate) newest_marks: u32,
    /// End of the log when a record of it last died: what the record died by is before it.
    pub(crate) died_at: LogPosition,
    /// How far the log is synced.
    pub(crate) synced: LogPosition,
}

/// Facts of one range in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RangeFacts {
    /// Puts that are their keys' current ones, or pending.
    pub(crate) live_records: u64,
    /// Newest version of its records in the segment, those that were rolled back left out.
    pub(crate) newest: Version,
    /// Newest version by whose commit a record of it in the segment died.
    pub(crate) died_by: Version,
    /// The segment has a tombstone, an expired record, a clear or a rollback of it.
    pub(crate) hides: bool,
    /// A segment with a lower sequence number has records of it.
    pub(crate) has_older: bool,
    /// The segment may have results that came with a copy and are kept for retries.
    pub(crate) keeps_results: bool,
    /// Newest version committed.
    pub(crate) committed: Version,
    /// Committed records above this version are kept for retransmission.
    pub(crate) retained_above: Version,
    /// The segment has the newest synced record of a sole epoch, which says how far the range is committed.
    pub(crate) proves_commit: bool,
    /// Every crash comes back with at least this version committed.
    pub(crate) durably_committed: Version,
}

/// Why a segment stays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeepReason {
    /// It takes data, or the manifest does not list it as sealed yet.
    Open,
    /// A read of it is in flight.
    Pinned,
    /// A record in it is its key's current one.
    Live,
    /// A record in it is not committed yet.
    Pending,
    /// A record in it is kept for retransmission.
    Retained,
    /// A result in it came with a copy and is kept for retries.
    CopiedResult,
    /// It has the newest durable commit mark of a range.
    NewestMark,
    /// It has the newest synced record of a range in a sole epoch.
    NewestRecord,
    /// The record that replaced or removed one in it is not synced yet.
    CauseNotSynced,
    /// It has records, or records died by a commit, that are not durably committed yet: no commit mark covers them, or
    /// in a sole epoch no sync.
    CommitNotDurable,
    /// It hides records in older segments.
    Hides,
}

/// Why the segment stays, and because of which of its ranges; `None`: it may be unlinked.
pub(crate) fn keep_reason(
    segment: &SegmentFacts,
    ranges: impl Iterator<Item = (usize, RangeFacts)> + Clone,
) -> Option<(KeepReason, Option<usize>)> {
    let whole = |is_kept: bool, why: KeepReason| is_kept.then_some((why, None));
    let of_range = |why: KeepReason, is_kept: fn(&RangeFacts) -> bool| {
        let kept_by = ranges.clone().find(|(_, facts)| is_kept(facts));
        kept_by.map(|(at, _)| (why, Some(at)))
    };
    whole(!segment.is_sealed, KeepReason::Open)
        .or_else(|| of_range(KeepReason::Live, |range| range.live_records > 0))
        .or_else(|| whole(segment.pins > 0, KeepReason::Pinned))
        .or_else(|| of_range(KeepReason::Pending, |range| range.newest > range.committed))
        .or_else(|| of_range(KeepReason::Retained, |range| range.newest > range.retained_above))
        .or_else(|| of_range(KeepReason::CopiedResult, |range| range.keeps_results))
        .or_else(|| whole(segment.newest_marks > 0, KeepReason::NewestMark))
        .or_else(|| of_range(KeepReason::NewestRecord, |range| range.proves_commit))
        .or_else(|| of_range(KeepReason::Hides, |range| range.hides && range.has_older))
        .or_else(|| whole(segment.died_at > segment.synced, KeepReason::CauseNotSynced))
        // Last: a mark is written for it only when nothing else keeps the segment.
        .or_else(|| {
            of_range(KeepReason::CommitNotDurable, |range| range.newest.max(range.died_by) > range.durably_committed)
        })
}

//! Drop rule: whether a segment may be unlinked, and if not, why. A pure function; `drops.rs` collects its facts.
//!
//! A crash after a drop must recover the same committed and pending records as a crash before it. A segment therefore
//! stays in three cases:
//! - It holds something still needed: live, pending, retained or pinned records, or the newest durable commit mark.
//! - A crash could undo the write that replaced, removed or copied one of its records.
//! - It hides records in another segment.
//!
//! Facts are per segment, most of them per range in it, so one idle range does not keep the later segments of others.
//!
//! A put whose old version is not confirmed yet counts as live, and so does the old version. A tombstone whose old
//! version is not confirmed hides it.
#[cfg(test)]
mod tests;

use crate::format::segment::{PerStream, StreamKind};
use crate::log::LogPosition;
use fawn_types::Version;

/// Facts of a segment as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentFacts {
    /// Takes no more data, is synced whole, and is listed as sealed in the manifest.
    pub(crate) is_sealed: bool,
    pub(crate) pins: u32,
    /// Ranges whose newest durable commit mark is in this segment.
    pub(crate) newest_marks: u32,
    /// Ends of the streams when a record of this segment last died: the record that replaced, removed or copied it is
    /// before that.
    pub(crate) died_at: PerStream<LogPosition>,
    pub(crate) synced: PerStream<LogPosition>,
}

impl SegmentFacts {
    fn causes_are_synced(&self) -> bool {
        StreamKind::ALL.into_iter().all(|kind| self.died_at[kind] <= self.synced[kind])
    }
}

/// Facts of one range in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RangeFacts {
    /// Puts that are current for their keys, or pending.
    pub(crate) live_records: u64,
    /// Newest version of the range's records in the segment, without rolled-back ones.
    pub(crate) newest: Version,
    /// Newest version whose commit replaced or removed a record of the range in the segment.
    pub(crate) died_by: Version,
    /// The segment has a tombstone, an expired record or an unlisted clear, and another one has a dead put that it may hide.
    pub(crate) hides_puts: bool,
    /// The segment has a rollback, and an earlier one has records that it has invalidated.
    pub(crate) hides_rolled_back: bool,
    /// The segment may have results that are kept for retries: of a transfer, of the ranges before a split or merge, or copies of
    /// open results.
    pub(crate) keeps_results: bool,
    /// The range's newest committed version.
    pub(crate) committed: Version,
    /// Committed records above this version are kept for retransmission.
    pub(crate) retained_above: Version,
    /// The segment has the newest synced record of a sole epoch, which says how far the range is committed.
    pub(crate) proves_commit: bool,
    /// After any crash at least this version is committed.
    pub(crate) durably_committed: Version,
}

/// Why a segment stays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeepReason {
    /// The segment takes data, or the manifest does not list it as sealed yet.
    Open,
    /// A read of the segment is in flight.
    Pinned,
    /// A record is current for its key.
    Live,
    /// A record is not committed yet.
    Pending,
    /// A record is kept for retransmission.
    Retained,
    /// A result of a transfer, of a range before a split or merge, or a copy of an open result is kept for retries.
    CopiedResult,
    /// The segment has the newest durable commit mark of a range.
    NewestMark,
    /// It has the newest synced record of a range in a sole epoch.
    NewestRecord,
    /// The record that replaced, removed or copied a record of the segment is not synced yet.
    CauseNotSynced,
    /// It has records, or records died by a commit, that are not durably committed yet: no commit mark covers them, or
    /// in a sole epoch no sync.
    CommitNotDurable,
    /// The segment hides records in other segments.
    Hides,
}

/// Returns why the segment stays, and which of its ranges keeps it. `None`: it may be unlinked.
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
        .or_else(|| of_range(KeepReason::Hides, |range| range.hides_puts || range.hides_rolled_back))
        .or_else(|| whole(!segment.causes_are_synced(), KeepReason::CauseNotSynced))
        // Last, because a commit mark is written for this reason: only when nothing else keeps the segment.
        .or_else(|| {
            of_range(KeepReason::CommitNotDurable, |range| range.newest.max(range.died_by) > range.durably_committed)
        })
}

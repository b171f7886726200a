//! Receiver of a full resync: discards its copy and requests the range from the tail, part by part. Records above the
//! copy's base arrive in the stream at the same time.
//!
//! A deleted key leaves no trace, so an old copy is never merged [replication.md §5]. Nor may a part undo a change from
//! the stream: it is accepted only while this log ends at or before the version that the part reflects. All later
//! records of the stream are newer than everything in the part.
use super::{FrameVerdict, Output, Phase, Replica};
use crate::message::{Body, CopyCursor};
use fawn_types::{MonoMs, NodeId, Now, Version};

/// A copy in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CopyIn {
    /// The copy's base version; `None` while the tail has not chosen one and the old copy still exists.
    base: Option<Version>,
    /// Everything before this cursor was received.
    cursor: CopyCursor,
    asked_at: MonoMs,
}

impl CopyIn {
    /// Whether the copy has a base, so that records above it are accepted.
    pub(super) const fn takes_records(&self) -> bool {
        self.base.is_some()
    }
}

impl Replica {
    /// Whether a full resync of this member is in progress. Until it is finished durably, the member holds no copy.
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// Requests a full resync. Nothing is discarded before the tail replies.
    pub(super) fn want_copy(&mut self) {
        assert!(self.phase == Phase::Syncing, "only who is not counted on may discard what it has");
        self.copy = Some(CopyIn { base: None, cursor: CopyCursor::START, asked_at: self.now.mono });
        self.upstream = Version::ZERO;
        self.upstream_told = false;
        self.gap_asked = None;
        self.ask_copy();
        self.wake_in(self.config.options.retransmit_ms);
    }

    fn ask_copy(&mut self) {
        let now = self.now.mono;
        let (Some(to), Some(copy)) = (self.predecessor, &mut self.copy) else { return };
        copy.asked_at = now;
        let CopyIn { base, cursor, .. } = *copy;
        match cursor {
            CopyCursor::End => self.outputs.extend(base.map(|base| Output::FinishCopy { base })),
            _ => self.send(to, Body::CopyWanted { base, cursor }),
        }
    }

    /// Handles that the predecessor's log no longer holds the records after the end of this log.
    pub(super) fn handle_gone(&mut self, from: NodeId, after: Version) {
        if self.predecessor != Some(from) || after != self.last {
            return; // A reply to an earlier request.
        }
        match self.phase {
            Phase::Syncing if self.copy.is_none_or(|copy| copy.takes_records()) => self.want_copy(),
            // The others continue without this member, which is then copied.
            Phase::Aligning { .. } => self.send_manager(Body::CannotAlign),
            _ => {}
        }
    }

    /// Handles a part of the copy, or the choice of its base.
    pub(super) fn handle_copy(
        &mut self,
        from: NodeId,
        base: Version,
        (cursor, next): (CopyCursor, CopyCursor),
        as_of: Version,
    ) -> FrameVerdict {
        let Some(copy) = self.copy.filter(|_| self.phase == Phase::Syncing && self.predecessor == Some(from)) else {
            return FrameVerdict::Nothing;
        };
        match copy.base {
            // A late part of an earlier copy also contains a base, but possibly one that the stream no longer reaches.
            None if cursor == CopyCursor::START && next == cursor => self.begin_copy(base),
            // If this log is past the part, a record that is already here may have deleted a key of the part.
            Some(held) if held == base && copy.cursor == cursor && next > cursor && self.last <= as_of => {
                return FrameVerdict::Copy { next };
            }
            _ => {} // Too old, of another copy, or received before: the timer asks again.
        }
        FrameVerdict::Nothing
    }

    /// Discards this member's previous copy.
    fn begin_copy(&mut self, base: Version) {
        self.copy = Some(CopyIn { base: Some(base), cursor: CopyCursor::START, asked_at: self.now.mono });
        self.last = base;
        self.committed = base;
        self.own = super::Progress { appended: base, flushed: base, synced: base };
        self.commit_due = false;
        self.ack_due = false;
        self.gap_asked = None;
        self.outputs.push_back(Output::BeginCopy { base });
        self.ask_replay();
        self.ask_copy();
    }

    /// The log accepted the part that was returned as [`FrameVerdict::Copy`]. If the log rejected it, do not call this:
    /// the same part is requested again.
    pub fn handle_copied(&mut self, now: Now, next: CopyCursor) {
        self.now = now;
        let Some(copy) = &mut self.copy else { return };
        assert!(next > copy.cursor, "a copy moves forward: {next:?} after {:?}", copy.cursor);
        copy.cursor = next;
        if self.phase == Phase::Syncing {
            self.ask_copy();
        }
    }

    /// The copy with base `base` is complete and durable.
    pub fn handle_copy_finished(&mut self, now: Now, base: Version) {
        self.now = now;
        let ended = |copy: &CopyIn| copy.base == Some(base) && copy.cursor == CopyCursor::End;
        if self.copy.as_ref().is_some_and(ended) {
            self.copy = None;
            if self.phase == Phase::Syncing {
                self.wake_at = Some(now.mono); // Notifies the manager, once the stream is at its end too.
            }
        }
    }

    /// Repeats unanswered requests.
    pub(super) fn wake_copy(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        if self.copy.is_some_and(|copy| self.now.mono.ms_since(copy.asked_at) >= pause_ms) {
            self.ask_copy();
        }
    }

    /// Continues a copy behind another tail, if all records received from the stream are in that tail's history.
    pub(super) fn resume_copy(&mut self, is_history: bool) {
        let goes_on = is_history && self.copy.is_some_and(|copy| copy.takes_records());
        if !goes_on {
            return self.want_copy();
        }
        self.ask_replay();
        self.ask_copy();
    }
}

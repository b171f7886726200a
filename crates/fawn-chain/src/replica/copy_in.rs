//! Owns the receiver's side of a copy: a member that cannot be brought up by records discards what it has and pulls the
//! range from the tail, part by part, while records above the copy's base stream in beside it.
//!
//! A deleted key leaves nothing behind, so an old copy is never merged [replication.md §5]. Nor may a part undo what the
//! stream brought: it is taken only while this log ends at or before the moment that the part shows. Whatever the stream
//! brings later is newer than everything in the part.
use super::{FrameVerdict, Output, Phase, Replica};
use crate::message::{Body, CopyCursor};
use fawn_types::{MonoMs, NodeId, Now, Version};

/// A copy under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CopyIn {
    /// What it stands on; `None`: the tail has not named it yet, and the old copy is still there.
    base: Option<Version>,
    /// Everything before it is here.
    cursor: CopyCursor,
    asked_at: MonoMs,
}

impl CopyIn {
    /// It has a base, so records above that are welcome.
    pub(super) const fn takes_records(&self) -> bool {
        self.base.is_some()
    }
}

impl Replica {
    /// Whether this member's copy is being made anew: it is no copy until that is done, durably.
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// The copy is given up, a new one asked for. Nothing is discarded before the tail answers.
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

    /// The predecessor's log no longer holds what follows this one.
    pub(super) fn handle_gone(&mut self, from: NodeId, after: Version) {
        if self.predecessor != Some(from) || after != self.last {
            return; // an answer to an earlier question
        }
        match self.phase {
            Phase::Syncing if self.copy.is_none_or(|copy| copy.takes_records()) => self.want_copy(),
            // The others go on without this member, which is then copied.
            Phase::Aligning { .. } => self.send_manager(Body::CannotAlign),
            _ => {}
        }
    }

    /// A part of the copy, or the naming of its base.
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
            // A late part of an earlier copy names a base too, but one that the stream may not reach back to.
            None if cursor == CopyCursor::START && next == cursor => self.begin_copy(base),
            // A key of a part that this log is past may have been deleted by a record that is here already.
            Some(held) if held == base && copy.cursor == cursor && next > cursor && self.last <= as_of => {
                return FrameVerdict::Copy { next };
            }
            _ => {} // too old, of another copy, or had before: the timer asks again
        }
        FrameVerdict::Nothing
    }

    /// What this member had is void from here on.
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

    /// The log took the part that was handed in as [`FrameVerdict::Copy`]. If it did not, do not call this: the same
    /// part is asked for again.
    pub fn handle_copied(&mut self, now: Now, next: CopyCursor) {
        self.now = now;
        let Some(copy) = &mut self.copy else { return };
        assert!(next > copy.cursor, "a copy moves forward: {next:?} after {:?}", copy.cursor);
        copy.cursor = next;
        if self.phase == Phase::Syncing {
            self.ask_copy();
        }
    }

    /// The copy that stands on `base` is whole, and durably so.
    pub fn handle_copy_finished(&mut self, now: Now, base: Version) {
        self.now = now;
        let ended = |copy: &CopyIn| copy.base == Some(base) && copy.cursor == CopyCursor::End;
        if self.copy.as_ref().is_some_and(ended) {
            self.copy = None;
            if self.phase == Phase::Syncing {
                self.wake_at = Some(now.mono); // tells the manager, once the stream is at its end too
            }
        }
    }

    /// Asks again for what was not answered.
    pub(super) fn wake_copy(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        if self.copy.is_some_and(|copy| self.now.mono.ms_since(copy.asked_at) >= pause_ms) {
            self.ask_copy();
        }
    }

    /// A copy under way goes on behind another tail, if all that it has of the stream is history there too.
    pub(super) fn resume_copy(&mut self, is_history: bool) {
        let goes_on = is_history && self.copy.is_some_and(|copy| copy.takes_records());
        if !goes_on {
            return self.want_copy();
        }
        self.ask_replay();
        self.ask_copy();
    }
}

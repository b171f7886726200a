//! Receiver of a full resync: discards its copy and requests the range from the tail, chunk by chunk.
//!
//! Records above the copy's base arrive in the stream at the same time.
//!
//! A deleted key leaves no trace, so an old copy is never merged [replication.md §5]. Nor may a part undo a change from
//! the stream: it is accepted only while this log ends at or before the version that the part reflects. All later
//! records of the stream are newer than everything in the part.
use super::{FrameVerdict, Replica, ReplicaOutput, ReplicaPhase};
use crate::message::{Body, TransferCursor};
use fawn_types::{MemberId, MonoMs, Now, Version};

/// A copy in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TransferIn {
    /// The copy's base version; `None` while the tail has not chosen one.
    base: Option<Version>,
    /// Everything before this cursor was received.
    cursor: TransferCursor,
    /// A base was received, this one or one that was given up: the old copy no longer exists.
    has_discarded: bool,
    asked_at: MonoMs,
}

impl TransferIn {
    /// Whether the copy has a base, so that records above it are accepted.
    pub(super) const fn takes_records(&self) -> bool {
        self.base.is_some()
    }

    /// Whether the member's old copy is discarded.
    pub(super) const fn has_discarded(&self) -> bool {
        self.has_discarded
    }
}

impl Replica {
    /// Whether a full resync of this member is in progress. Until it is finished durably, the member holds no copy.
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.transfer.is_some()
    }

    /// Requests a full resync. Nothing is discarded before the tail replies.
    pub(super) fn want_transfer(&mut self) {
        assert!(self.phase == ReplicaPhase::Syncing, "only who is not counted on may discard what it has");
        let has_discarded = self.transfer.is_some_and(|transfer| transfer.has_discarded);
        let (cursor, asked_at) = (TransferCursor::START, self.now.mono);
        self.transfer = Some(TransferIn { base: None, cursor, has_discarded, asked_at });
        self.upstream = Version::ZERO;
        self.upstream_at = None;
        self.gap_asked = None;
        self.ask_transfer();
        self.wake_in(self.config.options.retransmit_ms);
    }

    fn ask_transfer(&mut self) {
        let now = self.now.mono;
        let (Some(to), Some(transfer)) = (self.predecessor, &mut self.transfer) else { return };
        transfer.asked_at = now;
        let TransferIn { base, cursor, .. } = *transfer;
        match cursor {
            TransferCursor::End => self.outputs.extend(base.map(|base| ReplicaOutput::FinishTransfer { base })),
            _ => self.send(to, Body::TransferWanted { base, cursor }),
        }
    }

    /// Handles that the predecessor's log no longer holds the records after `after`.
    pub(super) fn handle_gone(&mut self, from: MemberId, after: Version) {
        if self.predecessor != Some(from) {
            return;
        }
        let is_late = after != self.last; // A reply to an earlier request.
        match self.phase {
            ReplicaPhase::Syncing if is_late => {
                // If it missed this member's newer acks, the predecessor has removed its link and sends nothing more. The
                // timer repeats the request until it does.
                self.upstream_at = None;
                self.ask_replay();
            }
            ReplicaPhase::Syncing if self.transfer.is_none_or(|transfer| transfer.takes_records()) => {
                self.want_transfer()
            }
            // The others continue without this member, which is then copied.
            ReplicaPhase::Aligning { .. } if !is_late => self.send_manager(Body::CannotAlign),
            _ => {}
        }
    }

    /// Handles a part of the copy, or the choice of its base.
    pub(super) fn handle_transfer(
        &mut self,
        from: MemberId,
        base: Version,
        (cursor, next): (TransferCursor, TransferCursor),
        read_version: Version,
    ) -> FrameVerdict {
        let Some(transfer) =
            self.transfer.filter(|_| self.phase == ReplicaPhase::Syncing && self.predecessor == Some(from))
        else {
            return FrameVerdict::Nothing;
        };
        match transfer.base {
            // A late part of an earlier copy also contains a base, but possibly one that the stream no longer reaches.
            None if cursor == TransferCursor::START && next == cursor => self.begin_transfer(base),
            // If this log is past the part, a record that is already here may have deleted a key of the part.
            Some(held) if held == base && transfer.cursor == cursor && next > cursor && self.last <= read_version => {
                return FrameVerdict::Transfer { next };
            }
            _ => {} // Too old, of another copy, or received before: the timer asks again.
        }
        FrameVerdict::Nothing
    }

    /// Discards this member's previous copy.
    fn begin_transfer(&mut self, base: Version) {
        let (cursor, asked_at) = (TransferCursor::START, self.now.mono);
        self.transfer = Some(TransferIn { base: Some(base), cursor, has_discarded: true, asked_at });
        self.last = base;
        self.committed = base;
        self.log_durability = self.durability();
        self.own = super::LogProgress { appended: base, flushed: base, synced: base };
        self.commit_due = false;
        self.ack_due = false;
        self.gap_asked = None;
        self.outputs.push_back(ReplicaOutput::BeginTransfer { base });
        self.ask_replay();
        self.ask_transfer();
    }

    /// The log accepted the part that was returned as [`FrameVerdict::Transfer`]. If the log rejected it, do not call
    /// this: the same part is requested again.
    pub fn handle_transferred(&mut self, now: Now, next: TransferCursor) {
        self.now = now;
        let Some(transfer) = &mut self.transfer else { return };
        assert!(next > transfer.cursor, "a copy moves forward: {next:?} after {:?}", transfer.cursor);
        transfer.cursor = next;
        if self.phase == ReplicaPhase::Syncing {
            self.ask_transfer();
        }
    }

    /// The copy with base `base` is complete and durable.
    pub fn handle_transfer_finished(&mut self, now: Now, base: Version) {
        self.now = now;
        let ended = |transfer: &TransferIn| transfer.base == Some(base) && transfer.cursor == TransferCursor::End;
        if self.transfer.as_ref().is_some_and(ended) {
            self.transfer = None;
            self.persist(); // The copy's durability mode, which may not be that of the old copy.
            if self.phase == ReplicaPhase::Syncing {
                self.wake_at = Some(now.mono); // Notifies the manager, once the stream is at its end too.
            }
        }
    }

    /// Repeats unanswered requests.
    pub(super) fn wake_transfer(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        if self.transfer.is_some_and(|transfer| self.now.mono.ms_since(transfer.asked_at) >= pause_ms) {
            self.ask_transfer();
        }
    }

    /// Continues a copy behind another tail, if all records received from the stream are in that tail's history.
    pub(super) fn resume_transfer(&mut self, is_history: bool) {
        let goes_on = is_history && self.transfer.is_some_and(|transfer| transfer.takes_records());
        if !goes_on {
            return self.want_transfer();
        }
        self.ask_replay();
        self.ask_transfer();
    }
}

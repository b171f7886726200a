//! Sender of a full resync: the tail chooses the base and sends chunks, to one member at a time.
//!
//! A member discards its old copy when it receives a base. If the tail's own store has an unreadable record, a copy
//! never becomes complete. With one member at a time, the others still have their copies. The exception is a member that
//! does not take a chunk that was read: another one is copied alongside it, or a full disk would keep all others waiting.
use super::{Replica, ReplicaOutput, Role};
use crate::map::MemberRole;
use crate::message::{Body, Header, TransferCursor};
use fawn_types::{MemberId, MonoMs, Now, Version};

/// A member that has sent no request for this long has stopped copying, or has its copy complete.
const SILENCE_MS: u64 = 2_000;

/// A member that asks for the same part for this long after it was sent does not take it: its disk may be full. Others
/// are copied meanwhile.
const STALL_MS: u64 = 10_000;

/// The member that receives the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferOut {
    to: MemberId,
    /// Its last request, and the time of that.
    base: Option<Version>,
    cursor: TransferCursor,
    asked_at: MonoMs,
    /// When the reply to that request was first passed to the link, which may have lost it: a member that receives
    /// nothing for long is stalled too. A chunk that cannot be read is never sent, and its receiver has no copy until it
    /// is: the others keep theirs.
    sent_at: Option<MonoMs>,
}

impl Replica {
    /// Handles a syncing member's request for a part, or for a base.
    pub(super) fn handle_transfer_wanted(&mut self, from: MemberId, base: Option<Version>, cursor: TransferCursor) {
        if !self.sends_transfer_to(from) {
            return; // Another member is the tail; the sender learns that from its entry.
        }
        if !self.is_copied_by_other(from) {
            self.note_transfer_wanted(from, base, cursor);
        } else if base.is_none() {
            return; // The sender of the request keeps its old copy and asks again.
        }
        let committed = self.committed;
        match base {
            // Committed versions are kept, and the log holds their successors for a while, so the stream can begin
            // there.
            None => {
                let (next, read_version) = (cursor, committed);
                self.note_transfer_sent(from, base, cursor);
                self.send(from, Body::Transfer { base: committed, cursor, next, read_version, keys: 0, records: &[] });
            }
            Some(base) if base <= committed => {
                self.outputs.push_back(ReplicaOutput::SendTransfer { to: from, base, cursor })
            }
            Some(_) => {} // The base is in a lost history, which the receiver detects from its entry.
        }
    }

    fn note_transfer_wanted(&mut self, to: MemberId, base: Option<Version>, cursor: TransferCursor) {
        let now = self.now.mono;
        let is_repeated = |copy: &TransferOut| {
            (copy.to, copy.base, copy.cursor) == (to, base, cursor) && now.ms_since(copy.asked_at) < SILENCE_MS
        };
        let sent_at = self.transfer_out.filter(is_repeated).and_then(|copy| copy.sent_at);
        self.transfer_out = Some(TransferOut { to, base, cursor, asked_at: now, sent_at });
    }

    fn note_transfer_sent(&mut self, to: MemberId, base: Option<Version>, cursor: TransferCursor) {
        let is_wanted = |copy: &&mut TransferOut| (copy.to, copy.base, copy.cursor) == (to, base, cursor);
        if let Some(copy) = self.transfer_out.as_mut().filter(is_wanted) {
            copy.sent_at.get_or_insert(self.now.mono);
        }
    }

    fn is_copied_by_other(&self, from: MemberId) -> bool {
        let Some(copy) = self.transfer_out.filter(|copy| copy.to != from) else { return false };
        let member = self.entry.as_ref().and_then(|entry| entry.member(copy.to));
        let is_syncing = member.is_some_and(|member| member.role == MemberRole::Syncing);
        let is_stalled = copy.sent_at.is_some_and(|at| self.now.mono.ms_since(at) >= STALL_MS);
        is_syncing && !is_stalled && self.now.mono.ms_since(copy.asked_at) < SILENCE_MS
    }

    fn sends_transfer_to(&self, to: MemberId) -> bool {
        matches!(self.role(), Some(Role::Tail | Role::Single)) && self.member_node(to)
    }

    /// The chunk at `cursor` was read. Returns the header to send it with; `None` if this member no longer sends copies
    /// to `to`.
    #[must_use]
    pub fn handle_transfer_read(
        &mut self,
        now: Now,
        to: MemberId,
        base: Version,
        cursor: TransferCursor,
    ) -> Option<Header> {
        self.now = now;
        if !self.sends_transfer_to(to) {
            return None;
        }
        self.note_transfer_sent(to, Some(base), cursor);
        Some(self.header())
    }
}

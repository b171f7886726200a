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

/// A member's request for a part, or for a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TransferRequest {
    to: MemberId,
    base: Option<Version>,
    cursor: TransferCursor,
}

/// The member that receives the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferOut {
    /// Its last request, and the time of that.
    request: TransferRequest,
    asked_at: MonoMs,
    /// When the reply to that request was first passed to the link, which may have lost it: a member that receives
    /// nothing for long is stalled too. A chunk that cannot be read is never sent, and its receiver has no copy until it
    /// is: the others keep theirs.
    sent_at: Option<MonoMs>,
    /// The last request that stalled before another member was copied.
    stalled: Option<TransferRequest>,
}

impl TransferOut {
    fn is_stalled(&self, now: MonoMs) -> bool {
        self.sent_at.is_some_and(|at| now.ms_since(at) >= STALL_MS)
    }
}

impl Replica {
    /// Handles a syncing member's request for a part, or for a base.
    pub(super) fn handle_transfer_wanted(&mut self, from: MemberId, base: Option<Version>, cursor: TransferCursor) {
        if !self.sends_transfer_to(from) {
            return; // Another member is the tail; the sender learns that from its entry.
        }
        let request = TransferRequest { to: from, base, cursor };
        if self.may_copy(request) {
            self.note_transfer_wanted(request);
        } else if base.is_none() {
            return; // The sender of the request keeps its old copy and asks again.
        }
        let committed = self.committed;
        match base {
            // Committed versions are kept, and the log holds their successors for a while, so the stream can begin
            // there.
            None => {
                let (next, read_version) = (cursor, committed);
                self.note_transfer_sent(request);
                self.send(from, Body::Transfer { base: committed, cursor, next, read_version, keys: 0, records: &[] });
            }
            Some(base) if base <= committed => {
                self.outputs.push_back(ReplicaOutput::SendTransfer { to: from, base, cursor })
            }
            Some(_) => {} // The base is in a lost history, which the receiver detects from its entry.
        }
    }

    fn note_transfer_wanted(&mut self, request: TransferRequest) {
        let now = self.now.mono;
        let is_repeated = |copy: &TransferOut| copy.request == request && now.ms_since(copy.asked_at) < SILENCE_MS;
        let sent_at = self.transfer_out.filter(is_repeated).and_then(|copy| copy.sent_at);
        let stalled = self.transfer_out.and_then(|copy| {
            let gives_way = copy.request.to != request.to && copy.is_stalled(now);
            if gives_way { Some(copy.request) } else { copy.stalled }
        });
        self.transfer_out = Some(TransferOut { request, asked_at: now, sent_at, stalled });
    }

    fn note_transfer_sent(&mut self, request: TransferRequest) {
        if let Some(copy) = self.transfer_out.as_mut().filter(|copy| copy.request == request) {
            copy.sent_at.get_or_insert(self.now.mono);
        }
    }

    /// Whether the sender of the request is now the member that is copied. Another one receives chunks of the base that it
    /// has, but no new base.
    fn may_copy(&self, request: TransferRequest) -> bool {
        let Some(copy) = self.transfer_out.filter(|copy| copy.request.to != request.to) else { return true };
        if request.base.is_some() && copy.stalled == Some(request) {
            return false; // It still does not take that chunk, so it keeps no other member waiting again.
        }
        let member = self.entry.as_ref().and_then(|entry| entry.member(copy.request.to));
        let is_syncing = member.is_some_and(|member| member.role == MemberRole::Syncing);
        let is_silent = self.now.mono.ms_since(copy.asked_at) >= SILENCE_MS;
        !is_syncing || is_silent || copy.is_stalled(self.now.mono)
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
        self.note_transfer_sent(TransferRequest { to, base: Some(base), cursor });
        Some(self.header())
    }
}

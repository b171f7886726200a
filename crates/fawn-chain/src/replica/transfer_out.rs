//! Sender of a full resync: the tail chooses the base and sends chunks, to one member at a time.
//!
//! A member discards its old copy when it receives a base. If the tail's own store has an unreadable record, a copy
//! never becomes complete. With one member at a time, the others still have their copies.
use super::{Replica, ReplicaOutput, Role};
use crate::map::MemberRole;
use crate::message::{Body, Header, TransferCursor};
use fawn_types::{MemberId, MonoMs, Version};

/// A member that has sent no request for this long has stopped copying, or has its copy complete.
const SILENCE_MS: u64 = 2_000;

/// The member that receives the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferOut {
    to: MemberId,
    asked_at: MonoMs,
}

impl Replica {
    /// Handles a syncing member's request for a part, or for a base.
    pub(super) fn handle_transfer_wanted(&mut self, from: MemberId, base: Option<Version>, cursor: TransferCursor) {
        if self.transfer_header(from).is_none() {
            return; // Another member is the tail; the sender learns that from its entry.
        }
        if base.is_none() && self.is_copied_by_other(from) {
            return; // The sender of the request keeps its old copy and asks again.
        }
        self.transfer_out = Some(TransferOut { to: from, asked_at: self.now.mono });
        let committed = self.committed;
        match base {
            // Committed versions are kept, and the log holds their successors for a while, so the stream can begin
            // there.
            None => {
                let (next, read_version) = (cursor, committed);
                self.send(from, Body::Transfer { base: committed, cursor, next, read_version, keys: 0, records: &[] });
            }
            Some(base) if base <= committed => {
                self.outputs.push_back(ReplicaOutput::SendTransfer { to: from, base, cursor })
            }
            Some(_) => {} // The base is in a lost history, which the receiver detects from its entry.
        }
    }

    fn is_copied_by_other(&self, from: MemberId) -> bool {
        let Some(TransferOut { to, asked_at }) = self.transfer_out.filter(|copy| copy.to != from) else { return false };
        let member = self.entry.as_ref().and_then(|entry| entry.member(to));
        let is_syncing = member.is_some_and(|member| member.role == MemberRole::Syncing);
        is_syncing && self.now.mono.ms_since(asked_at) < SILENCE_MS
    }

    /// The header of a chunk; `None` if this member no longer sends copies to `to`.
    #[must_use]
    pub fn transfer_header(&self, to: MemberId) -> Option<Header> {
        let gives = matches!(self.role(), Some(Role::Tail | Role::Single)) && self.member_node(to);
        gives.then(|| self.header())
    }
}

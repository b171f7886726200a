//! The tail's side of a copy: it names the base and hands out parts, to one member after the other.
//!
//! A member discards its old copy when it is given a base. If the tail's own store has a record that cannot be read, a
//! copy never becomes whole; the other members then still have theirs.
use super::{Replica, ReplicaOutput, Role};
use crate::map::MemberRole;
use crate::message::{Body, Header, TransferCursor};
use fawn_types::{MonoMs, NodeId, Version};

/// A member that has not asked for so long copies no more, or has its copy whole.
const SILENCE_MS: u64 = 2_000;

/// The member that copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferOut {
    to: NodeId,
    asked_at: MonoMs,
}

impl Replica {
    /// Handles a syncing member's request for a part, or for a base.
    pub(super) fn handle_transfer_wanted(&mut self, from: NodeId, base: Option<Version>, cursor: TransferCursor) {
        if self.transfer_header(from).is_none() {
            return; // Another member is the tail: the sender learns of it by its entry.
        }
        if base.is_none() && self.is_copied_by_other(from) {
            return; // the asker keeps its copy, and asks again
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
            Some(_) => {} // Of a lost history, which the sender detects from its entry.
        }
    }

    fn is_copied_by_other(&self, from: NodeId) -> bool {
        let Some(TransferOut { to, asked_at }) = self.transfer_out.filter(|copy| copy.to != from) else { return false };
        let member = self.entry.as_ref().and_then(|entry| entry.member(to));
        let is_syncing = member.is_some_and(|member| member.role == MemberRole::Syncing);
        is_syncing && self.now.mono.ms_since(asked_at) < SILENCE_MS
    }

    /// The header to send a chunk of a transfer under; `None`: this member has no copies to give to `to` (any more).
    #[must_use]
    pub fn transfer_header(&self, to: NodeId) -> Option<Header> {
        let gives = matches!(self.role(), Some(Role::Tail | Role::Single)) && self.member_node(to);
        gives.then(|| self.header())
    }
}

//! Sender of a full resync: the tail chooses the base and sends parts; it keeps no state per receiver.
use super::{Output, Replica, Role};
use crate::message::{Body, CopyCursor, Header};
use fawn_types::{NodeId, Version};

impl Replica {
    /// Handles a syncing member's request for a part, or for a base.
    pub(super) fn handle_copy_wanted(&mut self, from: NodeId, base: Option<Version>, cursor: CopyCursor) {
        if self.copy_header(from).is_none() {
            return; // Another member is the tail: the sender learns of it by its entry.
        }
        let committed = self.committed;
        match base {
            // Committed versions are kept, and the log holds their successors for a while, so the stream can begin
            // there.
            None => {
                let (next, as_of) = (cursor, committed);
                self.send(from, Body::Copy { base: committed, cursor, next, as_of, keys: 0, records: &[] });
            }
            Some(base) if base <= committed => self.outputs.push_back(Output::SendCopy { to: from, base, cursor }),
            Some(_) => {} // Of a lost history, which the sender detects from its entry.
        }
    }

    /// The header for a part of a copy; `None` if this member has no copies to send to `to` (any more).
    #[must_use]
    pub fn copy_header(&self, to: NodeId) -> Option<Header> {
        let gives = matches!(self.role(), Some(Role::Tail | Role::Single)) && self.member_node(to);
        gives.then(|| self.header())
    }
}

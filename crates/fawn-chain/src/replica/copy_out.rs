//! Owns the tail's side of a copy: it names the base and hands out parts; it remembers nothing about who copies.
use super::{Output, Replica, Role};
use crate::message::{Body, CopyCursor, Header};
use fawn_types::{NodeId, Version};

impl Replica {
    /// A syncing member asks for a part, or for a base.
    pub(super) fn handle_copy_wanted(&mut self, from: NodeId, base: Option<Version>, cursor: CopyCursor) {
        if self.copy_header(from).is_none() {
            return; // another is the tail: the asker hears of it by its entry
        }
        let committed = self.committed;
        match base {
            // What is committed now will stay, and what follows is in the log for a while: the stream can begin there.
            None => {
                let (next, as_of) = (cursor, committed);
                self.send(from, Body::Copy { base: committed, cursor, next, as_of, keys: 0, records: &[] });
            }
            Some(base) if base <= committed => self.outputs.push_back(Output::SendCopy { to: from, base, cursor }),
            Some(_) => {} // of a history that was lost: the asker will see that in its entry
        }
    }

    /// The header to send a part of a copy under; `None`: this member has no copies to give to `to` (any more).
    #[must_use]
    pub fn copy_header(&self, to: NodeId) -> Option<Header> {
        let gives = matches!(self.role(), Some(Role::Tail | Role::Single)) && self.member_node(to);
        gives.then(|| self.header())
    }
}

//! Owns the table of a shard's sessions and the list of those to look at in the next turn.
use super::{BufferPool, Session};
use crate::options::ShardOptions;
use fawn_wire::Protocol;
use slab::Slab;

/// Names a session of one shard; never reused, so that a late event of an ended session reaches nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    index: u32,
    serial: u64,
}

impl SessionId {
    /// No session has it: serials start at 1.
    pub(crate) const NOBODY: Self = Self { index: 0, serial: 0 };

    /// Its number: `CLIENT ID`.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    last_serial: u64,
    /// Sessions with something under way or something to tell, each once.
    listed: Vec<SessionId>,
    pub(crate) pool: BufferPool,
}

impl Sessions {
    pub(crate) fn open(&mut self, protocol: Protocol, options: &ShardOptions) -> SessionId {
        self.last_serial += 1;
        let entry = self.slab.vacant_entry();
        let id = SessionId { index: entry.key() as u32, serial: self.last_serial };
        entry.insert(Session::new(id, protocol, options));
        id
    }

    pub(crate) fn close(&mut self, id: SessionId) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let mut session = self.slab.remove(id.index as usize);
        session.replies.give_back(&mut self.pool);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.slab.get(id.index as usize).filter(|session| session.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.slab.get_mut(id.index as usize).filter(|session| session.id == id)
    }

    /// The session, and the pool that its buffers come from.
    pub(crate) fn get_with_pool(&mut self, id: SessionId) -> Option<(&mut Session, &mut BufferPool)> {
        let session = self.slab.get_mut(id.index as usize).filter(|session| session.id == id)?;
        Some((session, &mut self.pool))
    }

    /// Makes the next turn look at it.
    pub(crate) fn list(&mut self, id: SessionId) {
        if let Some(session) = self.slab.get_mut(id.index as usize).filter(|session| session.id == id)
            && !std::mem::replace(&mut session.listed, true)
        {
            self.listed.push(id);
        }
    }

    /// Takes the list; whoever is to be looked at again must be listed again.
    pub(crate) fn take_listed(&mut self) -> Vec<SessionId> {
        let listed = std::mem::take(&mut self.listed);
        for id in &listed {
            if let Some(session) = self.get_mut(*id) {
                session.listed = false;
            }
        }
        listed
    }

    /// Gives the list's memory back for the next turn.
    pub(crate) fn return_listed(&mut self, mut listed: Vec<SessionId>) {
        listed.clear();
        listed.append(&mut self.listed);
        self.listed = listed;
    }
}

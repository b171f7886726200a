//! Table of a shard's sessions, and the sessions scheduled for the next iteration.
use super::{Budget, OutputBufferPool, Session};
use crate::options::ShardOptions;
use crate::output::ShardOutput;
use crate::placement::Placement;
use crate::request::SessionId;
use fawn_wire::Protocol;
use slab::Slab;
use std::collections::VecDeque;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    last_serial: u64,
    /// Step between serials: shards of a node interleave theirs, so that IDs are unique in the node.
    serial_step: u64,
    /// Scheduled sessions, each once.
    scheduled: Vec<SessionId>,
    pub(crate) pool: OutputBufferPool,
    /// Budget for replies to clients.
    pub(crate) budget: Budget,
}

impl Sessions {
    pub(crate) fn new(options: &ShardOptions, placement: Placement) -> Self {
        Self {
            slab: Slab::new(),
            last_serial: u64::from(placement.shard().0),
            serial_step: u64::from(placement.count()),
            scheduled: Vec::new(),
            pool: OutputBufferPool::default(),
            budget: Budget::new(options.replies_bytes_max.max(1)),
        }
    }

    pub(crate) fn open(&mut self, protocol: Protocol, options: &ShardOptions) -> SessionId {
        self.last_serial += self.serial_step;
        let entry = self.slab.vacant_entry();
        let id = SessionId::new(entry.key() as u32, self.last_serial);
        entry.insert(Session::new(id, protocol, options));
        id
    }

    /// `outstanding_bytes`: grants of its requests at other shards, whose replies arrive all the same.
    pub(crate) fn close(&mut self, id: SessionId, outstanding_bytes: usize) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let mut session = self.slab.remove(id.index());
        session.replies.give_back(&mut self.pool);
        self.budget.leave(&mut session, outstanding_bytes);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.slab.get(id.index()).filter(|session| session.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.slab.get_mut(id.index()).filter(|session| session.id == id)
    }

    /// The session, its buffer pool, and its reply budget.
    pub(crate) fn get_with_pool(
        &mut self,
        id: SessionId,
    ) -> Option<(&mut Session, &mut OutputBufferPool, &mut Budget)> {
        let session = self.slab.get_mut(id.index()).filter(|session| session.id == id)?;
        Some((session, &mut self.pool, &mut self.budget))
    }

    /// Updates the usage after a reply; the next reply of this iteration must see it.
    pub(crate) fn update_budget(&mut self, id: SessionId) {
        if let Some((session, _, budget)) = self.get_with_pool(id) {
            budget.update(session);
        }
    }

    /// Grants to waiting sessions and reads, in order of arrival.
    pub(crate) fn serve_waiting(&mut self, outputs: &mut VecDeque<ShardOutput>) {
        self.budget.serve(&mut self.slab, outputs);
    }

    /// Schedules the session for the next iteration.
    pub(crate) fn schedule(&mut self, id: SessionId) {
        if let Some(session) = self.slab.get_mut(id.index()).filter(|session| session.id == id)
            && !std::mem::replace(&mut session.scheduled, true)
        {
            self.scheduled.push(id);
        }
    }

    /// Takes the schedule; sessions that need another visit must be scheduled again.
    pub(crate) fn take_scheduled(&mut self) -> Vec<SessionId> {
        let scheduled = std::mem::take(&mut self.scheduled);
        for id in &scheduled {
            if let Some(session) = self.get_mut(*id) {
                session.scheduled = false;
            }
        }
        scheduled
    }

    /// Returns the schedule's memory for the next iteration.
    pub(crate) fn return_scheduled(&mut self, mut scheduled: Vec<SessionId>) {
        scheduled.clear();
        scheduled.append(&mut self.scheduled);
        self.scheduled = scheduled;
    }
}

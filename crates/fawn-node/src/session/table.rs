//! Table of a shard's sessions, and the sessions scheduled for the next iteration.
use super::{BufferPool, Room, Session};
use crate::options::ShardOptions;
use crate::output::Output;
use crate::shards::Placement;
use fawn_wire::Protocol;
use slab::Slab;
use std::collections::VecDeque;

/// Identifies a session within its node; never reused, so a late event of an ended session has no receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    index: u32,
    serial: u64,
}

impl SessionId {
    /// An ID that no session has: serials start at 1.
    pub(crate) const NOBODY: Self = Self { index: 0, serial: 0 };

    /// Its number: `CLIENT ID`.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

/// Share of the reply budget for proxy sessions.
const STANDING_PART: usize = 4;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    last_serial: u64,
    /// Step between serials: shards of a node interleave theirs, so that IDs are unique in the node.
    serial_step: u64,
    /// Scheduled sessions, each once.
    listed: Vec<SessionId>,
    pub(crate) pool: BufferPool,
    /// Budget for replies to clients.
    pub(crate) room: Room,
    /// Budget for replies of proxy sessions. It empties as fast as batches are taken.
    /// A separate budget: with a shared one, two shards that wait for each other's replies could deadlock.
    standing_room: Room,
}

impl Sessions {
    pub(crate) fn new(options: &ShardOptions, placement: Placement) -> Self {
        let bytes_max = options.replies_bytes_max;
        let standing_bytes_max = if placement.count() > 1 { bytes_max.div_ceil(STANDING_PART) } else { 0 };
        Self {
            slab: Slab::new(),
            last_serial: u64::from(placement.shard().0),
            serial_step: u64::from(placement.count()),
            listed: Vec::new(),
            pool: BufferPool::default(),
            room: Room::new((bytes_max - standing_bytes_max).max(1)),
            standing_room: Room::new(standing_bytes_max.max(1)),
        }
    }

    pub(crate) fn open(&mut self, protocol: Protocol, options: &ShardOptions) -> SessionId {
        self.last_serial += self.serial_step;
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
        let room = if session.stands_for.is_some() { &mut self.standing_room } else { &mut self.room };
        room.leave(&mut session);
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

    /// The session, its buffer pool, and its reply budget.
    pub(crate) fn get_with_pool(&mut self, id: SessionId) -> Option<(&mut Session, &mut BufferPool, &mut Room)> {
        let session = self.slab.get_mut(id.index as usize).filter(|session| session.id == id)?;
        let room = if session.stands_for.is_some() { &mut self.standing_room } else { &mut self.room };
        Some((session, &mut self.pool, room))
    }

    /// The budget of a session's replies.
    pub(crate) const fn room_of(&self, session: &Session) -> &Room {
        if session.stands_for.is_some() { &self.standing_room } else { &self.room }
    }

    /// Updates the usage after a reply; the next reply of this iteration must see it.
    pub(crate) fn note(&mut self, id: SessionId) {
        if let Some((session, _, room)) = self.get_with_pool(id) {
            room.note(session);
        }
    }

    /// Resumes queued sessions in order while the budget lasts.
    pub(crate) fn call_waiting(&mut self, outputs: &mut VecDeque<Output>) {
        for room in [&mut self.room, &mut self.standing_room] {
            while let Some(id) = room.first() {
                let session = self.slab.get_mut(id.index as usize).filter(|session| session.id == id);
                if !room.admit(session, outputs) {
                    break;
                }
            }
        }
    }

    /// Whether a queued session may continue in the next iteration.
    pub(crate) fn wants_turn(&self) -> bool {
        [&self.room, &self.standing_room]
            .into_iter()
            .any(|room| room.first().is_some_and(|id| self.get(id).is_none_or(|session| room.has_for(session))))
    }

    /// Schedules the session for the next iteration.
    pub(crate) fn list(&mut self, id: SessionId) {
        if let Some(session) = self.slab.get_mut(id.index as usize).filter(|session| session.id == id)
            && !std::mem::replace(&mut session.listed, true)
        {
            self.listed.push(id);
        }
    }

    /// Takes the schedule; sessions that need another visit must be scheduled again.
    pub(crate) fn take_listed(&mut self) -> Vec<SessionId> {
        let listed = std::mem::take(&mut self.listed);
        for id in &listed {
            if let Some(session) = self.get_mut(*id) {
                session.listed = false;
            }
        }
        listed
    }

    /// Returns the schedule's memory for the next iteration.
    pub(crate) fn return_listed(&mut self, mut listed: Vec<SessionId>) {
        listed.clear();
        listed.append(&mut self.listed);
        self.listed = listed;
    }
}

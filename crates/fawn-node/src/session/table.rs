//! Owns the table of a shard's sessions and the list of those to look at in the next turn.
use super::{BufferPool, Room, Session};
use crate::options::ShardOptions;
use crate::output::Output;
use crate::shards::Placement;
use fawn_wire::Protocol;
use slab::Slab;
use std::collections::VecDeque;

/// Names a session of one shard, and no other of its node; never reused, so that a late event of an ended session reaches nobody.
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

/// Of the room for replies, the part for sessions that stand for other shards'.
const STANDING_PART: usize = 4;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    last_serial: u64,
    /// From one serial to the next: shards of a node take turns, so that no two sessions of it have one.
    serial_step: u64,
    /// Sessions with something under way or something to tell, each once.
    listed: Vec<SessionId>,
    pub(crate) pool: BufferPool,
    /// What the replies to clients may take.
    pub(crate) room: Room,
    /// What the replies of sessions that stand for other shards' may take: a room of their own, which empties as fast
    /// as letters are taken. Were it shared, shards that wait for each other's answers could fill it for each other.
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

    /// The session, the pool that its buffers come from, and the room of its replies.
    pub(crate) fn get_with_pool(&mut self, id: SessionId) -> Option<(&mut Session, &mut BufferPool, &mut Room)> {
        let session = self.slab.get_mut(id.index as usize).filter(|session| session.id == id)?;
        let room = if session.stands_for.is_some() { &mut self.standing_room } else { &mut self.room };
        Some((session, &mut self.pool, room))
    }

    /// The room that a session's replies are in.
    pub(crate) const fn room_of(&self, session: &Session) -> &Room {
        if session.stands_for.is_some() { &self.standing_room } else { &self.room }
    }

    /// Takes in what a reply has become: the next one of this turn must know of it.
    pub(crate) fn note(&mut self, id: SessionId) {
        if let Some((session, _, room)) = self.get_with_pool(id) {
            room.note(session);
        }
    }

    /// Calls those who wait for room for replies, in their order, while there is some.
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

    /// Whether somebody waits for room and may go on with the next turn.
    pub(crate) fn wants_turn(&self) -> bool {
        [&self.room, &self.standing_room]
            .into_iter()
            .any(|room| room.first().is_some_and(|id| self.get(id).is_none_or(|session| room.has_for(session))))
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

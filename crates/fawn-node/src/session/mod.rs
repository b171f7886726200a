//! Owns one connection's state: its codec, its replies in order, its own writes under way, and its end.
mod ahead;
pub(crate) mod consume;
mod out;
mod own_reads;
mod own_writes;
mod replies;
mod room;
mod table;

pub use table::SessionId;

pub(crate) use ahead::Looked;
pub(crate) use out::{BufferPool, OutBuf};
pub(crate) use own_reads::OwnReads;
pub(crate) use own_writes::OwnWrites;
pub(crate) use replies::Replies;
pub(crate) use room::{Charge, Room};
pub(crate) use table::Sessions;

use crate::execute::Stall;
use crate::options::ShardOptions;
use crate::shards::Away;
use fawn_types::{KeyHash, ShardId, Version};
use fawn_wire::{ClientIdentity, Codec, Protocol};

/// How far a session is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It takes input.
    Open,
    /// No more input; it ends once its replies are out.
    Draining,
    /// The host has been told to close it.
    Ended,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) codec: Codec,
    pub(crate) identity: ClientIdentity,
    pub(crate) replies: Replies,
    pub(crate) own: OwnWrites,
    pub(crate) reading: OwnReads,
    /// Its requests that wait in a key's queue; updates among them have no version yet.
    pub(crate) queued: u32,
    pub(crate) phase: Phase,
    /// Why it left input unconsumed; it is to be told when it takes more.
    pub(crate) stalled: Option<Stall>,
    /// How long its input must be before decoding can go on.
    pub(crate) need_bytes: usize,
    /// It is in the table's list of sessions to look at in the next turn.
    pub(crate) listed: bool,
    /// The host knows that there is output.
    pub(crate) announced: bool,
    /// What it is charged with of the shard's room for replies.
    charged: Charge,
    /// The same as far as it counts as short replies.
    charged_short_bytes: usize,
    /// Its own bound.
    output_bytes_max: usize,
    /// What others left of that room when it was last looked at.
    room_bytes: usize,
    /// It stands in line for room.
    waits_for_room: bool,
    /// Its requests that are away at other shards of the node.
    pub(crate) away: Option<Box<Away>>,
    /// The session of another shard that it stands for: then it is no client's.
    pub(crate) stands_for: Option<(ShardId, SessionId)>,
}

impl Session {
    pub(crate) fn new(id: SessionId, protocol: Protocol, options: &ShardOptions) -> Self {
        Self {
            id,
            codec: Codec::new(protocol, options.limits()),
            identity: ClientIdentity { id: id.serial(), ..ClientIdentity::default() },
            replies: Replies::new(protocol, options.value_bytes_max as usize),
            own: OwnWrites::default(),
            reading: OwnReads::default(),
            queued: 0,
            phase: Phase::Open,
            stalled: None,
            need_bytes: 1,
            listed: false,
            announced: false,
            charged: Charge::default(),
            charged_short_bytes: 0,
            output_bytes_max: options.session_output_bytes_max,
            room_bytes: 0,
            waits_for_room: false,
            away: None,
            stands_for: None,
        }
    }

    /// It has written or seen a version of the key that is not committed.
    pub(crate) fn note(&mut self, hash: KeyHash, version: Option<Version>) {
        if let Some(version) = version {
            self.own.push(hash, version);
        }
    }

    /// Whether nothing of it is under way: what a whole-keyspace command waits for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.replies.is_settled() && self.own.is_empty() && self.queued == 0
    }

    /// Whether what its input waits for has come; `relieved`: the shard as a whole moved on.
    pub(crate) fn may_go_on(&self, stall: Stall, options: &ShardOptions, relieved: bool) -> bool {
        match stall {
            Stall::Room => self.has_room(options),
            Stall::Quiet => self.is_quiet(),
            Stall::Reads => self.reading.is_empty() && self.away.as_ref().is_none_or(|away| !away.reads()),
            Stall::Shard => relieved && self.has_room(options),
            // Those in line are called.
            Stall::Replies => !self.waits_for_room && self.has_reply_room(),
        }
    }

    /// Whether it is within its own bounds.
    pub(crate) fn has_room(&self, options: &ShardOptions) -> bool {
        let pending = self.replies.pending().max(self.own.len()).max(self.queued as usize);
        let bytes = self.replies.charge().sum();
        bytes <= options.session_output_bytes_max && pending < options.session_pending_max
    }

    /// Whether the shard has room for a reply with values: the last half of what is left is for sessions that have
    /// nothing, so that many greedy ones leave something.
    #[inline]
    pub(crate) fn has_reply_room(&self) -> bool {
        match self.replies.charge().sum() {
            0 => self.room_bytes > 0,
            bytes => bytes <= self.room_bytes / 2,
        }
    }
}

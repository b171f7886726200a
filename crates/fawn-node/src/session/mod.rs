//! State of one connection: codec, replies in order, its own uncommitted writes, its end.
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

/// Progress of a session towards its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Input is accepted.
    Open,
    /// No more input; the session ends once its replies are sent.
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
    /// Its requests in key queues; updates among them have no version yet.
    pub(crate) queued: u32,
    pub(crate) phase: Phase,
    /// Why input was left unconsumed; the host is told when more is accepted.
    pub(crate) stalled: Option<Stall>,
    /// Length that its input must reach before decoding can continue.
    pub(crate) need_bytes: usize,
    /// Scheduled in the table for the next iteration.
    pub(crate) listed: bool,
    /// The host knows that there is output.
    pub(crate) announced: bool,
    /// Its usage of the shard's reply budget.
    charged: Charge,
    /// The part of that usage that counts as short replies.
    charged_short_bytes: usize,
    /// Its own bound on replies.
    output_bytes_max: usize,
    /// Reply budget left by the other sessions, as of the last check.
    room_bytes: usize,
    /// Queued for reply budget.
    waits_for_room: bool,
    /// Its requests to other shards of the node.
    pub(crate) away: Option<Box<Away>>,
    /// For a proxy session: the session of another shard that it stands for.
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

    /// Records an uncommitted version of the key that the session wrote or saw.
    pub(crate) fn note(&mut self, hash: KeyHash, version: Option<Version>) {
        if let Some(version) = version {
            self.own.push(hash, version);
        }
    }

    /// Whether it has no pending request: whole-keyspace commands wait for that.
    pub(crate) fn is_quiet(&self) -> bool {
        self.replies.is_settled() && self.own.is_empty() && self.queued == 0
    }

    /// Whether the reason of its stall is gone; `relieved`: the shard freed budget or queue space.
    pub(crate) fn may_go_on(&self, stall: Stall, options: &ShardOptions, relieved: bool) -> bool {
        match stall {
            Stall::Room => self.has_room(options),
            Stall::Quiet => self.is_quiet(),
            Stall::Reads => self.reading.is_empty() && self.away.as_ref().is_none_or(|away| !away.reads()),
            Stall::Shard => relieved && self.has_room(options),
            // The grant queue resumes these sessions.
            Stall::Replies => !self.waits_for_room && self.has_reply_room(),
        }
    }

    /// Whether it is within its own bounds.
    pub(crate) fn has_room(&self, options: &ShardOptions) -> bool {
        let pending = self.replies.pending().max(self.own.len()).max(self.queued as usize);
        let bytes = self.replies.charge().sum();
        bytes <= options.session_output_bytes_max && pending < options.session_pending_max
    }

    /// Whether the reply budget admits a reply with values. The last half of the rest is for sessions without replies,
    /// so that many sessions with large replies leave something.
    #[inline]
    pub(crate) fn has_reply_room(&self) -> bool {
        match self.replies.charge().sum() {
            0 => self.room_bytes > 0,
            bytes => bytes <= self.room_bytes / 2,
        }
    }
}

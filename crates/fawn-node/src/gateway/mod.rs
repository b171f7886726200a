//! Gateway: sessions with their codecs, replies in order, unfinished requests by key, and the budget of their replies.
pub(crate) mod budget;
pub(crate) mod consume;
mod deliver;
mod flow;
mod lookahead;
mod multi_reply;
mod out;
mod own_keys;
mod replies;
pub(crate) mod server;
mod table;

pub(crate) use budget::{Budget, UngrantedRequest, Usage};
pub(crate) use deliver::deliver;
pub(crate) use flow::{Flow, Stall};
pub(crate) use lookahead::Prefetched;
pub(crate) use multi_reply::{MultiReply, PendingMulti};
pub(crate) use out::{OutBuf, OutputBufferPool};
pub(crate) use own_keys::OwnKeys;
pub(crate) use replies::Replies;
pub(crate) use table::Sessions;

use self::budget::SessionGrants;
use crate::options::ShardOptions;
use crate::request::SessionId;
use fawn_types::{KeyHash, Version};
use fawn_wire::{ClientIdentity, Codec, Protocol};

/// Progress of a session towards its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionPhase {
    /// Input is accepted.
    Open,
    /// No more input; the session ends once its replies are sent.
    Draining,
    /// [`crate::ShardOutput::Close`] was emitted.
    Ended,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) codec: Codec,
    pub(crate) identity: ClientIdentity,
    pub(crate) replies: Replies,
    pub(crate) own_keys: OwnKeys,
    pub(crate) phase: SessionPhase,
    /// Why input was left unconsumed. [`crate::ShardOutput::Resume`] is emitted when the stall ends.
    pub(crate) stalled: Option<Stall>,
    /// Length that its input must reach before decoding can continue.
    pub(crate) need_bytes: usize,
    /// Scheduled in the table for the next iteration.
    pub(crate) scheduled: bool,
    /// The host knows that there is output.
    pub(crate) output_announced: bool,
    grants: SessionGrants,
}

impl Session {
    pub(crate) fn new(id: SessionId, protocol: Protocol, options: &ShardOptions) -> Self {
        Self {
            id,
            codec: Codec::new(protocol, options.limits()),
            identity: ClientIdentity { id: id.serial(), ..ClientIdentity::default() },
            replies: Replies::new(protocol),
            own_keys: OwnKeys::default(),
            phase: SessionPhase::Open,
            stalled: None,
            need_bytes: 1,
            scheduled: false,
            output_announced: false,
            grants: SessionGrants::new(options.session_output_bytes_max),
        }
    }

    /// Records an uncommitted version of the key that the session wrote or saw.
    pub(crate) fn note(&mut self, hash: KeyHash, version: Option<Version>) {
        if let Some(version) = version {
            self.own_keys.push(hash, version);
        }
    }

    /// Whether it has no pending request: whole-keyspace commands wait for that.
    pub(crate) fn is_quiet(&self) -> bool {
        self.replies.is_settled() && self.own_keys.is_empty()
    }

    /// Whether the reason of its stall is gone; `relieved`: the shard freed budget or queue space.
    pub(crate) fn may_resume(&self, stall: Stall, options: &ShardOptions, relieved: bool) -> bool {
        match stall {
            Stall::SessionLimit => self.has_capacity(options),
            Stall::Quiet => self.is_quiet(),
            Stall::Values => !self.own_keys.has_open_values(),
            Stall::Shard => relieved && self.has_capacity(options),
            // The grant queue resumes these sessions.
            Stall::ReplyBudget => self.may_ask_again() && self.has_capacity(options),
        }
    }

    /// Whether it is within its own bounds.
    pub(crate) fn has_capacity(&self, options: &ShardOptions) -> bool {
        let pending = self.replies.pending().max(self.own_keys.len());
        let bytes = self.replies.usage().sum();
        bytes <= options.session_output_bytes_max && pending < options.session_pending_max
    }
}

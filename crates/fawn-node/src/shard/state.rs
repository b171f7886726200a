//! State of a shard except its sessions, so that both can be borrowed together.
use super::ShardReplies;
use crate::exec::{Executor, ExecutorCounters, ReadWaiter, Resumption};
use crate::forward::Forwarder;
use crate::gateway::{PendingMulti, Sessions};
use crate::options::{ServerInfo, ShardOptions};
use crate::replica::{HostedMember, MemberTable, RangeSlot};
use crate::status::{RepliesStatus, ShardCounters, ShardStatus, StoreStatus};
use fawn_ds::internals::{Engine, LookupPlan};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, OperationError, ShardId, TimeMs};
use slab::Slab;

/// All state of a shard except its sessions.
#[derive(Debug)]
pub(crate) struct ShardState<D: Device> {
    pub(crate) engine: Engine<D>,
    /// The only member: the shard's slice of the ring.
    pub(crate) members: MemberTable,
    pub(crate) exec: Executor,
    /// Requests on several keys of which some wait.
    pub(crate) multis: Slab<PendingMulti>,
    /// Buffer for replies to several keys, reused between requests.
    pub(crate) multi_reply: Vec<u8>,
    pub(crate) counters: ShardCounters,
    pub(crate) options: ShardOptions,
    pub(crate) server_info: ServerInfo,
    /// Time of a delayed `flush_all`.
    pub(crate) flush_at: Option<MonoMs>,
    /// The machine's wall clock, for reports. Expiry has a clock of its own.
    pub(crate) wall: TimeMs,
    /// The monotonic clock and expiry time.
    pub(crate) now: Now,
    /// Number of open sessions; the table is elsewhere.
    pub(crate) sessions_open: usize,
    /// Requests at other shards, and queues of sessions' requests.
    pub(crate) forward: Box<Forwarder>,
}

impl<D: Device> ShardState<D> {
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.engine.secret(), key)
    }

    /// The member that serves the shard's range.
    #[inline]
    pub(crate) fn member(&self) -> &HostedMember {
        &self.members[RangeSlot::ONLY]
    }

    /// The shard that owns the key, unless it is this one.
    #[inline]
    pub(crate) fn elsewhere(&self, key: &[u8]) -> Option<ShardId> {
        self.forward.elsewhere(key)
    }

    /// The failure that stopped writes, if any.
    pub(crate) fn failure(&self) -> Option<OperationError> {
        self.engine.poisoned().map(|_| OperationError::Poisoned)
    }

    /// `stats reset`.
    pub(crate) fn reset_counters(&mut self) {
        self.counters.reset();
        self.exec.counters = ExecutorCounters::default();
    }

    /// Current counters and gauges.
    pub(crate) fn status(&self) -> ShardStatus {
        let ExecutorCounters { gets, hits, misses, cold, writes, flushes, .. } = self.exec.counters;
        ShardStatus {
            counters: ShardCounters { gets, hits, misses, cold, writes, flushes, ..self.counters },
            sessions: self.sessions_open,
            pending: self.exec.wait_queue.len() + self.forward.requests(),
            // The owner of the sessions fills this in.
            replies: RepliesStatus::default(),
            reads: self.exec.reads.len(),
            uncommitted: self.member().replica.uncommitted(),
            store: StoreStatus::of(&self.engine),
            cluster: None,
        }
    }
}

/// Both halves of a shard, for work that may reply to any session.
pub(crate) struct ShardContext<'a, D: Device> {
    pub(crate) state: &'a mut ShardState<D>,
    pub(crate) sessions: &'a mut Sessions,
}

impl<D: Device> ShardContext<'_, D> {
    /// A device read of a waiting request has ended.
    pub(crate) fn handle_read(&mut self, plan: LookupPlan, user: u64) {
        let ShardState { engine, exec, .. } = &mut *self.state;
        if let ReadWaiter::Request { at, generation } = exec.reads.ended(engine, &plan, user)
            && exec.wait_queue.reader(at, generation).is_some()
        {
            self.resumption().handle_read(at, plan);
        }
    }

    /// The executor with all that a waiting request needs.
    pub(crate) fn resumption(&mut self) -> Resumption<'_, D, ShardReplies<'_>> {
        let ShardState { engine, members, exec, multis, forward, now, .. } = &mut *self.state;
        let sink = ShardReplies { sessions: self.sessions, multis, forward };
        Resumption { exec, engine, members, now: *now, sink }
    }
}

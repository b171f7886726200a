//! State of a shard except its sessions, so that both can be borrowed together.
use super::{LocalReplies, PendingMulti};
use crate::exec::{Executor, ExecutorCounters, ReadWaiter, Resumption};
use crate::keyspace_op::KeyspaceOp;
use crate::options::{ServerInfo, ShardOptions};
use crate::replica::{HostedMember, MemberTable, RangeSlot};
use crate::session::{Session, Sessions};
use crate::shards::PeerMailboxes;
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
    /// Scans that wait.
    pub(crate) keyspace_ops: Slab<KeyspaceOp>,
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
    /// Queues to the other shards of the node, if there are any.
    pub(crate) links: Option<Box<PeerMailboxes>>,
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
    pub(crate) fn elsewhere(&self, session: &Session, key: &[u8]) -> Option<ShardId> {
        let links = self.links.as_ref()?;
        // The requesting shard has already chosen this shard.
        if session.proxy_for.is_some() { None } else { links.elsewhere(key) }
    }

    /// The queues to other shards; call only if there are any.
    pub(crate) fn links(&mut self) -> &mut PeerMailboxes {
        let Some(links) = &mut self.links else { unreachable!("a shard without peers exchanges no messages") };
        links
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
            proxy_sessions: self.links.as_ref().map_or(0, |links| links.proxy_sessions()),
            pending: self.exec.wait_queue.len() + self.links.as_ref().map_or(0, |links| links.requests()),
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
    /// The queues to other shards; call only if there are any.
    pub(crate) fn links(&mut self) -> &mut PeerMailboxes {
        self.state.links()
    }

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
    pub(crate) fn resumption(&mut self) -> Resumption<'_, D, LocalReplies<'_>> {
        let ShardState { engine, members, exec, multis, keyspace_ops, now, .. } = &mut *self.state;
        let sink = LocalReplies { sessions: self.sessions, multis, keyspace_ops };
        Resumption { exec, engine, members, now: *now, sink }
    }
}

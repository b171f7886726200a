//! State of a shard except its sessions, so that both can be borrowed together.
use super::ShardReplies;
use super::node_replies::NodeReplies;
use crate::cluster::{MemberHost, NodeControl, PeerLinks};
use crate::counters::Counted;
use crate::exec::{ReadWaiter, Resumption};
use crate::forward::Forwarder;
use crate::gateway::{PendingMulti, Sessions};
use crate::options::{ServerInfo, ShardOptions};
use crate::replica::{HostedMember, RangeSlot};
use crate::status::{RepliesStatus, ShardCounters, ShardStatus, StoreStatus};
use fawn_ds::internals::{Event, LookupPlan};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, OperationError, TimeMs, Version};
use slab::Slab;

/// All state of a shard except its sessions.
#[derive(Debug)]
pub(crate) struct ShardState<D: Device> {
    /// The store, its chain members, their executor.
    pub(crate) host: MemberHost<D>,
    /// Frames to and from the shards of a cluster, this one included.
    pub(crate) links: PeerLinks,
    /// The shard's cluster duties. A standalone node has none: its only member serves the shard's slice of the ring.
    pub(crate) control: Option<Box<NodeControl>>,
    /// Statistics of all stores behind the sessions, if there are more than this one.
    pub(crate) stores: Option<StoreStatus>,
    /// Requests on several keys of which some wait.
    pub(crate) multis: Slab<PendingMulti>,
    /// Buffer for replies to several keys, reused between requests.
    pub(crate) multi_reply: Vec<u8>,
    pub(crate) counters: ShardCounters,
    pub(crate) options: ShardOptions,
    pub(crate) server_info: ServerInfo,
    /// Time of a delayed `flush_all`.
    pub(crate) flush_at: Option<MonoMs>,
    /// Time at which sessions that the shard's bounds have stopped are tried again in any case.
    pub(crate) relief_at: MonoMs,
    /// Whether there are such sessions.
    pub(crate) waits_for_relief: bool,
    /// The machine's wall clock, for reports. Expiry has a clock of its own.
    pub(crate) wall: TimeMs,
    /// Number of open sessions; the table is elsewhere.
    pub(crate) sessions_open: usize,
    /// Requests at other shards, and queues of sessions' requests.
    pub(crate) forward: Box<Forwarder>,
}

impl<D: Device> ShardState<D> {
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.host.engine.secret(), key)
    }

    /// The member that serves the shard's range.
    #[inline]
    pub(crate) fn member(&self) -> &HostedMember {
        &self.host.members[RangeSlot::ONLY]
    }

    /// The committed version of the member that executes the sessions' requests by call, if there is one.
    #[inline]
    pub(crate) fn committed(&self) -> Version {
        if self.control.is_some() { Version::ZERO } else { self.member().replica.committed() }
    }

    /// Writes by call that are not committed.
    pub(crate) fn uncommitted(&self) -> u64 {
        if self.control.is_some() { 0 } else { self.member().replica.uncommitted() }
    }

    /// The failure that ends the sessions' uncommitted writes, if any: a chain continues on its other members.
    pub(crate) fn failure(&self) -> Option<OperationError> {
        if self.control.is_some() {
            return None;
        }
        self.host.engine.poisoned().map(|_| OperationError::PoisonedInFlight)
    }

    /// `stats reset`.
    pub(crate) fn reset_counters(&mut self) {
        self.counters.reset();
        self.host.exec.counters.reset();
        self.host.counters.reset();
    }

    /// Current counters and gauges.
    pub(crate) fn status(&self) -> ShardStatus {
        // The shards of a standalone node wait for each other's requests and for their own: each has them as
        // outstanding.
        let of_others = if self.control.is_some() { self.host.exec.wait_queue.len() } else { 0 };
        let mut counters = self.counters;
        counters.add(&self.host.exec.counters);
        counters.add(&self.host.counters);
        ShardStatus {
            counters,
            sessions: self.sessions_open,
            pending: self.forward.requests() + of_others,
            // The owner of the sessions fills this in.
            replies: RepliesStatus::default(),
            reads: self.host.exec.reads.len(),
            uncommitted: self.uncommitted(),
            store: self.stores.clone().unwrap_or_else(|| StoreStatus::of(&self.host.engine)),
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
    /// A device operation has ended.
    pub(super) fn handle_event(&mut self, event: Event) {
        let ShardState { host, control, .. } = &mut *self.state;
        match event {
            Event::Lookup { plan, user } => {
                let waiter = host.exec.reads.ended(&mut host.engine, &plan, user);
                self.handle_read(plan, waiter);
                while let Some((plan, waiter)) = self.state.host.exec.reads.pop_failed() {
                    self.handle_read(plan, waiter);
                }
            }
            Event::Poisoned => {
                let failure = host.engine.poisoned();
                match control {
                    None => tracing::error!(failure, "the store takes no more writes"),
                    Some(_) => tracing::error!(
                        shard = %host.config.id,
                        failure,
                        "the store takes no more writes: its copies leave their chains; check its disk, then restart it"
                    ),
                }
            }
            Event::SpaceBack => {
                tracing::info!("the store has free space again: writes continue");
                host.persists.retry_now();
            }
            Event::Progress => {}
        }
    }

    fn handle_read(&mut self, plan: LookupPlan, waiter: ReadWaiter) {
        let ShardState { host, links, .. } = &mut *self.state;
        match waiter {
            ReadWaiter::Replay { at } => host.replay_read(at, plan, links),
            ReadWaiter::Transfer { at } => host.transfer_read(at, plan, links),
            // A request of a range that stopped was refused then.
            ReadWaiter::Request { at, generation } => {
                if host.exec.wait_queue.reader(at, generation).is_some() {
                    self.resumption().handle_read(at, plan);
                }
            }
        }
    }

    /// Refuses the waiting requests of members that stopped serving.
    pub(super) fn refuse_stopped(&mut self) {
        while let Some(slot) = self.state.host.stopped.pop() {
            self.resumption().handle_stopped(slot);
        }
    }

    /// The executor with all that a waiting request needs.
    pub(crate) fn resumption(&mut self) -> Resumption<'_, D, ShardReplies<'_>> {
        let ShardState { host, links, forward, .. } = &mut *self.state;
        let MemberHost { engine, members, exec, now, encoded, counters, .. } = host;
        let nodes = NodeReplies { links, encoded, counters };
        let sink = ShardReplies { sessions: self.sessions, forward, nodes };
        Resumption { exec, engine, members, now: *now, sink }
    }
}

//! Execution at a front-end: its node, the queues per key, requests on several keys.
use super::key_queues::{KeyQueues, QueuedOp, SessionKey};
use crate::cluster::{ClientOp, ClusterReply, Node, SubmitError};
use crate::gateway::connection;
use crate::gateway::consume::Dispatch;
use crate::gateway::server::{ServerContext, answer};
use crate::gateway::{Flow, PendingMulti, Session, Sessions, Stall, admit_reply, deliver, is_granted};
use crate::keyspace_op::KeyspaceOp;
use crate::options::{ServerInfo, ShardOptions};
use crate::request::{Admit, ReplyPlace, ReplyTarget, SessionId};
use crate::status::{ShardCounters, ShardStatus};
use fawn_ds::internals::Options;
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, OperationError, RangeId, Reply, Request, RingKey, TimeMs};
use fawn_wire::{Command, KeyspaceCommand, ReplyFormat, encode_done, encode_reply};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Purpose of an operation at the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpOwner {
    Key(SessionKey),
    Keyspace(usize),
}

/// All state of a front-end except its sessions, so that both can be borrowed together.
#[derive(Debug)]
pub(super) struct RequestRouter<D: Device> {
    pub(super) node: Node<D>,
    pub(super) queues: KeyQueues,
    pub(super) at_cluster: HashMap<ClientOp, OpOwner, FxBuildHasher>,
    /// Queues whose first operation the node refused as overloaded, by the range of their keys: the window of one range
    /// may be full while those of others are not.
    pub(super) unsent: BTreeMap<RangeId, VecDeque<SessionKey>>,
    /// Queues whose first read was answered without reply budget, with the reply's length.
    pub(super) deferred: VecDeque<(SessionKey, usize)>,
    pub(super) multis: Slab<PendingMulti>,
    pub(super) keyspace_ops: Slab<KeyspaceOp>,
    /// Sessions that wait for a whole-keyspace request: barriers in both directions.
    pub(super) fenced: HashSet<SessionId, FxBuildHasher>,
    pub(super) counters: ShardCounters,
    pub(super) options: ShardOptions,
    pub(super) server_info: ServerInfo,
    /// Options of the stores behind it.
    pub(super) store: Options,
    /// Last known statistics of the stores behind it.
    pub(super) backend_stats: ShardStatus,
    /// Time of a delayed `flush_all`.
    pub(super) flush_at: Option<MonoMs>,
    pub(super) sessions_open: usize,
    /// Something was submitted since the node's last exchange.
    pub(super) has_submitted: bool,
}

impl<D: Device> Dispatch for RequestRouter<D> {
    fn options(&self) -> &ShardOptions {
        &self.options
    }

    fn counters(&mut self) -> &mut ShardCounters {
        &mut self.counters
    }

    fn execute(&mut self, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
        if self.fenced.contains(&session.id) {
            return Flow::Stall(Stall::Quiet);
        }
        match command {
            Command::Single { request, format } => self.single(session, &request, format, now),
            Command::Multi(multi) => self.multi(session, &multi, now),
            Command::Keyspace(keyspace) => self.keyspace(session, &keyspace, now),
            Command::Connection(command) => connection::execute(session, &command),
            Command::Server(server) => {
                let about =
                    ServerContext { server_info: &self.server_info, options: &self.options, store: &self.store };
                if answer(&about, || self.status(), session, &server, now.wall) {
                    self.counters.reset();
                }
                Flow::Continue
            }
        }
    }
}

impl<D: Device> RequestRouter<D> {
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(&self.node.map().secret, key)
    }

    /// Whether one more request on these keys is accepted.
    pub(super) fn has_capacity<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        (self.unsent.is_empty() || !keys.any(|key| self.unsent.contains_key(&self.range_of(key))))
            && self.queues.bytes() <= self.options.requests_bytes_max
            && self.queues.requests() < self.options.pending_max
    }

    fn range_of(&self, key: &[u8]) -> RangeId {
        let map = self.node.map();
        map.range_of(&RingKey::of(&map.secret, key)).map_or(RangeId::default(), |entry| entry.range)
    }

    /// Queues `name` until the window of its range has space.
    fn put_unsent(&mut self, range: RangeId, name: SessionKey) {
        self.unsent.entry(range).or_default().push_back(name);
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.requests() == 0 && self.keyspace_ops.is_empty() && self.at_cluster.is_empty()
    }

    fn single(&mut self, session: &mut Session, request: &Request<'_>, format: ReplyFormat, now: Now) -> Flow {
        if !self.has_capacity(std::iter::once(request.key())) {
            return Flow::Stall(Stall::Shard);
        }
        let values = u32::from(request.returns_value());
        if !session.grant(session.replies.estimate_bytes(values)) {
            return Flow::Stall(Stall::ReplyBudget);
        }
        let slot = session.replies.reserve_estimate(values);
        if let Err(error) = self.begin(session, request, ReplyPlace::Slot(slot), format, now) {
            let reply = Reply::Error(error);
            session.replies.complete(slot, None, |out| encode_reply(format, request.key(), &reply, out));
        }
        Flow::Continue
    }

    /// Sends the operation, or queues it behind the session's earlier one on the key.
    pub(super) fn begin(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        place: ReplyPlace,
        format: ReplyFormat,
        now: Now,
    ) -> Result<(), OperationError> {
        let (id, key) = (session.id, request.key());
        let hash = self.hash(key);
        let name = (id, hash);
        let waits = self.queues.contains(name);
        let sent = if waits { Err(SubmitError::Overloaded) } else { self.submit(now, request) };
        match sent {
            Ok(op) => {
                self.at_cluster.insert(op, OpOwner::Key(name));
            }
            Err(SubmitError::Overloaded) if waits => {}
            Err(SubmitError::Overloaded) => self.put_unsent(self.range_of(key), name),
            Err(SubmitError::Operation(error)) => return Err(error),
        }
        let op = QueuedOp::new(ReplyTarget { session: id, place, format }, request);
        self.queues.push(name, op, sent.is_ok());
        session.queued += 1;
        Ok(())
    }

    fn submit(&mut self, now: Now, request: &Request<'_>) -> Result<ClientOp, SubmitError> {
        let submitted = self.node.submit(now, request);
        // Set only on success: a full node must not be tried again in the same iteration.
        self.has_submitted |= submitted.is_ok();
        submitted
    }

    /// Sends operations that the node refused before.
    pub(super) fn send_unsent(&mut self, sessions: &mut Sessions, now: Now) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for lines in unsent.values_mut() {
            while let Some(name) = lines.front()
                && self.advance(sessions, *name, now)
            {
                lines.pop_front();
            }
        }
        unsent.retain(|_, lines| !lines.is_empty());
        self.unsent = unsent;
    }

    /// Sends the first waiting operation of a queue, or adds the queue to the unsent ones.
    fn advance_or_wait(&mut self, sessions: &mut Sessions, name: SessionKey, now: Now) {
        if !self.advance(sessions, name, now)
            && let Some(range) = self.queues.front(name).map(|op| self.range_of(op.request.request().key()))
        {
            self.put_unsent(range, name);
        }
    }

    /// Sends the first waiting operation of a queue; returns whether the window had space.
    fn advance(&mut self, sessions: &mut Sessions, name: SessionKey, now: Now) -> bool {
        while let Some(op) = self.queues.next(name) {
            match self.node.submit(now, &op.request.request()) {
                Ok(op) => {
                    self.has_submitted = true;
                    self.at_cluster.insert(op, OpOwner::Key(name));
                    self.queues.sent(name);
                    return true;
                }
                Err(SubmitError::Overloaded) => return false,
                Err(SubmitError::Operation(error)) => {
                    let Some(op) = self.queues.refuse(name) else { unreachable!("the operation is in the queue") };
                    self.finish(sessions, &op, &Reply::Error(error));
                }
            }
        }
        self.queues.close_if_empty(name);
        true
    }

    /// Receives an operation's reply.
    pub(super) fn done(&mut self, sessions: &mut Sessions, op: ClientOp, reply: &ClusterReply, now: Now) {
        match self.at_cluster.remove(&op) {
            Some(OpOwner::Key(name)) => {
                let reply = reply.as_reply();
                if !self.answer(sessions, name, &reply) {
                    let bytes = if let Reply::Value(entry) = reply { entry.value.len() } else { 0 };
                    return self.deferred.push_back((name, bytes));
                }
                self.advance_or_wait(sessions, name, now);
            }
            Some(OpOwner::Keyspace(at)) => self.keyspace_op_done(sessions, at, &reply.as_reply(), now),
            None => {}
        }
    }

    /// Delivers the reply to all its requests; returns whether the budget admitted all.
    fn answer(&mut self, sessions: &mut Sessions, name: SessionKey, reply: &Reply<'_>) -> bool {
        let mut ops = self.queues.answered(name).into_iter();
        while let Some(op) = ops.next() {
            // An update must not be executed twice.
            match if op.is_update { Admit::Accept } else { admit_reply(sessions, &op.target, reply) } {
                fit @ (Admit::Accept | Admit::Reject | Admit::Return) => {
                    let reply = fit.reply(reply);
                    self.count(reply);
                    self.finish(sessions, &op, reply);
                }
                Admit::Retry => {
                    self.counters.rereads += 1;
                    self.queues.put_back(name, std::iter::once(op).chain(ops));
                    return false;
                }
            }
        }
        true
    }

    /// Repeats reads whose replies were not admitted, once they have their grants.
    pub(super) fn send_deferred(&mut self, sessions: &mut Sessions, now: Now) {
        for _ in 0..self.deferred.len() {
            let Some((name, bytes)) = self.deferred.pop_front() else { return };
            let Some(op) = self.queues.front(name) else { continue };
            if !is_granted(sessions, &op.target, bytes) {
                self.deferred.push_back((name, bytes));
            } else {
                self.advance_or_wait(sessions, name, now);
            }
        }
    }

    fn finish(&mut self, sessions: &mut Sessions, op: &QueuedOp, reply: &Reply<'_>) {
        if let Some(session) = sessions.get_mut(op.target.session) {
            session.queued -= 1;
            // Sessions that became quiet may be waiting for just that.
            sessions.schedule(op.target.session);
        }
        deliver(sessions, &mut self.multis, &op.target, op.request.request().key(), reply, None);
        if let Reply::Value(_) = reply {
            sessions.update_budget(op.target.session);
        }
    }

    fn count(&mut self, reply: &Reply<'_>) {
        match reply {
            Reply::Value(_) => {
                (self.counters.gets, self.counters.hits) = (self.counters.gets + 1, self.counters.hits + 1)
            }
            Reply::Absent => {
                (self.counters.gets, self.counters.misses) = (self.counters.gets + 1, self.counters.misses + 1);
            }
            Reply::Error(OperationError::Overloaded) => self.counters.overloaded += 1,
            Reply::Stored { .. } | Reply::Deleted | Reply::Signed(_) | Reply::Unsigned(_) => self.counters.writes += 1,
            _ => {}
        }
    }

    fn keyspace(&mut self, session: &mut Session, keyspace: &KeyspaceCommand<'_>, now: Now) -> Flow {
        if !session.is_quiet() {
            return Flow::Stall(Stall::Quiet);
        }
        match *keyspace {
            KeyspaceCommand::FlushAll { at_ms, format } if at_ms > now.wall.0 => {
                self.flush_at = Some(now.mono_at(TimeMs(at_ms)));
                session.replies.respond(|out| encode_done(format, out));
            }
            KeyspaceCommand::FlushAll { format, .. } => {
                // An earlier delayed flush is replaced by this one.
                self.flush_at = None;
                self.flush(session, format, now);
            }
            KeyspaceCommand::DbSize => self.count_keys(session, now),
            KeyspaceCommand::Scan { .. } => self.scan(session, keyspace, now),
        }
        Flow::Continue
    }

    /// Counters, and last known statistics of the stores.
    pub(super) fn status(&self) -> ShardStatus {
        ShardStatus {
            counters: self.counters,
            sessions: self.sessions_open,
            pending: self.queues.requests() + self.keyspace_ops.len(),
            ..self.backend_stats.clone()
        }
    }
}

//! Execution at a front-end: its node, the queues per key, requests on several keys.
use super::lines::{LineName, Lines};
use crate::SessionId;
use crate::cluster::{ClientOp, Node, OwnedReply, Refused};
use crate::execute::server::{About, answer};
use crate::execute::{Fit, Flow, Stall, connection, deliver, fits, is_due};
use crate::options::{ProcessFacts, ShardOptions};
use crate::pending::{Batch, Op, Target};
use crate::session::consume::Executor;
use crate::session::{Session, Sessions};
use crate::status::{Counters, ShardStatus};
use crate::wide::Wide;
use fawn_ds::internals::Options;
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, OperationError, RangeId, Reply, Request, RingKey, TimeMs};
use fawn_wire::{Command, Keyspace, Shape, encode_done, encode_reply};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Purpose of an operation at the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Line(LineName),
    Wide(usize),
}

/// Everything of a front-end but its sessions, so that a session and this can be borrowed together.
#[derive(Debug)]
pub(super) struct Desk<D: Device> {
    pub(super) node: Node<D>,
    pub(super) lines: Lines,
    pub(super) at_cluster: HashMap<ClientOp, Purpose, FxBuildHasher>,
    /// Queues whose first operation the node refused for want of space, by the range of their keys: the window of one
    /// range may be full while those of others are not.
    pub(super) unsent: BTreeMap<RangeId, VecDeque<LineName>>,
    /// Queues whose first read was answered without reply budget.
    pub(super) late: VecDeque<LineName>,
    pub(super) batches: Slab<Batch>,
    pub(super) wides: Slab<Wide>,
    /// Sessions that wait for a whole-keyspace request: barriers in both directions.
    pub(super) barred: HashSet<SessionId, FxBuildHasher>,
    pub(super) counters: Counters,
    pub(super) options: ShardOptions,
    pub(super) facts: ProcessFacts,
    /// Options of the stores behind it.
    pub(super) store: Options,
    /// Last known statistics of the stores behind it.
    pub(super) behind: ShardStatus,
    /// Time of a delayed `flush_all`.
    pub(super) flush_at: Option<MonoMs>,
    pub(super) sessions_open: usize,
    /// Something was submitted since the node's last exchange.
    pub(super) has_submitted: bool,
}

impl<D: Device> Executor for Desk<D> {
    fn options(&self) -> &ShardOptions {
        &self.options
    }

    fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    fn execute(&mut self, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
        if self.barred.contains(&session.id) {
            return Flow::Stall(Stall::Quiet);
        }
        match command {
            Command::Single { request, shape } => self.single(session, &request, shape, now),
            Command::Multi(multi) => self.multi(session, &multi, now),
            Command::Keyspace(keyspace) => self.keyspace(session, &keyspace, now),
            // Only shards of one node send these, and their sessions are not opened here.
            Command::Wide(_) => Flow::End,
            Command::Connection(command) => connection::execute(session, &command),
            Command::Server(server) => {
                let about = About { facts: &self.facts, options: &self.options, store: &self.store };
                if answer(&about, || self.status(), session, &server, now.wall) {
                    self.counters.reset();
                }
                Flow::Next
            }
        }
    }
}

impl<D: Device> Desk<D> {
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(&self.node.map().secret, key)
    }

    /// Whether one more request on these keys is accepted.
    pub(super) fn has_room<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        (self.unsent.is_empty() || !keys.any(|key| self.unsent.contains_key(&self.range_of(key))))
            && self.lines.bytes() <= self.options.requests_bytes_max
            && self.lines.requests() < self.options.pending_max
    }

    fn range_of(&self, key: &[u8]) -> RangeId {
        let map = self.node.map();
        map.range_of(&RingKey::of(&map.secret, key)).map_or(RangeId::default(), |entry| entry.range)
    }

    /// The line's first operation waits until the window of its range has room.
    fn put_unsent(&mut self, range: RangeId, name: LineName) {
        self.unsent.entry(range).or_default().push_back(name);
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.lines.requests() == 0 && self.wides.is_empty() && self.at_cluster.is_empty()
    }

    fn single(&mut self, session: &mut Session, request: &Request<'_>, shape: Shape, now: Now) -> Flow {
        if !self.has_room(std::iter::once(request.key())) {
            return Flow::Stall(Stall::Shard);
        }
        let slot = session.replies.reserve(u32::from(request.returns_value()));
        if let Err(error) = self.begin(session, request, Target::Slot(slot), shape, now) {
            let reply = Reply::Error(error);
            session.replies.complete(slot, None, |out| encode_reply(shape, request.key(), &reply, out));
        }
        Flow::Next
    }

    /// Sends the operation, or queues it behind the session's earlier one on the key.
    pub(super) fn begin(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        target: Target,
        shape: Shape,
        now: Now,
    ) -> Result<(), OperationError> {
        let (id, key) = (session.id, request.key());
        let hash = self.hash(key);
        let name = (id, hash);
        let waits = self.lines.contains(name);
        let sent = if waits { Err(Refused::Overloaded) } else { self.submit(now, request) };
        match sent {
            Ok(op) => {
                self.at_cluster.insert(op, Purpose::Line(name));
            }
            Err(Refused::Overloaded) if waits => {}
            Err(Refused::Overloaded) => self.put_unsent(self.range_of(key), name),
            Err(Refused::Operation(error)) => return Err(error),
        }
        let op = match request {
            Request::Get { .. } => Op::get(id, target, hash, key, shape),
            Request::Update { update, .. } => Op::update(id, target, hash, (key, update), shape),
        };
        self.lines.push(name, op, sent.is_ok());
        session.queued += 1;
        Ok(())
    }

    fn submit(&mut self, now: Now, request: &Request<'_>) -> Result<ClientOp, Refused> {
        let submitted = self.node.submit(now, request);
        // Set only on success: a full node must not be asked again in the same iteration.
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

    /// Sends the first that waits in a line, or puts the line among the unsent.
    fn advance_or_wait(&mut self, sessions: &mut Sessions, name: LineName, now: Now) {
        if !self.advance(sessions, name, now)
            && let Some(range) = self.lines.front(name).map(|op| self.range_of(op.key()))
        {
            self.put_unsent(range, name);
        }
    }

    /// Sends the first that waits in a line; whether there was room.
    fn advance(&mut self, sessions: &mut Sessions, name: LineName, now: Now) -> bool {
        while let Some(op) = self.lines.next(name) {
            let request = match op.as_update() {
                Some(update) => Request::Update { key: op.key(), update },
                None => Request::Get { key: op.key() },
            };
            match self.node.submit(now, &request) {
                Ok(op) => {
                    self.has_submitted = true;
                    self.at_cluster.insert(op, Purpose::Line(name));
                    self.lines.sent(name);
                    return true;
                }
                Err(Refused::Overloaded) => return false,
                Err(Refused::Operation(error)) => {
                    let Some(op) = self.lines.refuse(name) else { unreachable!("it stood there") };
                    self.finish(sessions, &op, &Reply::Error(error));
                }
            }
        }
        self.lines.close_if_empty(name);
        true
    }

    /// Receives an operation's reply.
    pub(super) fn done(&mut self, sessions: &mut Sessions, op: ClientOp, reply: &OwnedReply, now: Now) {
        match self.at_cluster.remove(&op) {
            Some(Purpose::Line(name)) => {
                if !self.answer(sessions, name, &reply.as_reply()) {
                    return self.late.push_back(name);
                }
                self.advance_or_wait(sessions, name, now);
            }
            Some(Purpose::Wide(at)) => self.wide_done(sessions, at, &reply.as_reply(), now),
            None => {}
        }
    }

    /// Delivers the reply to all its requests; returns whether the budget admitted all.
    fn answer(&mut self, sessions: &mut Sessions, name: LineName, reply: &Reply<'_>) -> bool {
        let mut ops = self.lines.answered(name).into_iter();
        while let Some(op) = ops.next() {
            match fits(sessions, &op.asker(), reply) {
                fit @ (Fit::Yes | Fit::Never) => {
                    let reply = fit.reply(reply);
                    self.count(reply);
                    self.finish(sessions, &op, reply);
                }
                Fit::Later => {
                    self.counters.asked_again += 1;
                    self.lines.put_back(name, std::iter::once(op).chain(ops));
                    return false;
                }
            }
        }
        true
    }

    /// Repeats reads whose replies found no budget, as far as there is some now.
    pub(super) fn send_late(&mut self, sessions: &mut Sessions, now: Now) {
        let mut promised_bytes = 0;
        for _ in 0..self.late.len() {
            let Some(name) = self.late.pop_front() else { return };
            let Some(op) = self.lines.front(name) else { continue };
            if !is_due(sessions, &op.asker(), &mut promised_bytes) {
                self.late.push_back(name);
            } else {
                self.advance_or_wait(sessions, name, now);
            }
        }
    }

    fn finish(&mut self, sessions: &mut Sessions, op: &Op, reply: &Reply<'_>) {
        if let Some(session) = sessions.get_mut(op.session) {
            session.queued -= 1;
            // Sessions that became quiet may be waiting for just that.
            sessions.list(op.session);
        }
        deliver(sessions, &mut self.batches, &op.asker(), reply, None);
        if let Reply::Value(_) = reply {
            sessions.note(op.session);
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

    fn keyspace(&mut self, session: &mut Session, keyspace: &Keyspace<'_>, now: Now) -> Flow {
        if !session.is_quiet() {
            return Flow::Stall(Stall::Quiet);
        }
        match *keyspace {
            Keyspace::FlushAll { at_ms, shape } if at_ms > now.wall.0 => {
                self.flush_at = Some(now.mono_at(TimeMs(at_ms)));
                session.replies.respond(|out| encode_done(shape, out));
            }
            Keyspace::FlushAll { shape, .. } => {
                // An earlier delayed flush is replaced by this one.
                self.flush_at = None;
                self.flush(session, shape, now);
            }
            Keyspace::DbSize => self.count_keys(session, now),
            Keyspace::Scan { .. } => self.scan(session, keyspace, now),
        }
        Flow::Next
    }

    /// Counters, and last known statistics of the stores.
    pub(super) fn status(&self) -> ShardStatus {
        ShardStatus {
            counters: self.counters,
            sessions: self.sessions_open,
            pending: self.lines.requests() + self.wides.len(),
            ..self.behind.clone()
        }
    }
}

//! Front-end with client sessions on a node of a cluster, with or without a back-end.
//!
//! Per iteration the host calls `handle_input` for every connection and `handle_bytes` for every peer link with bytes,
//! then [`ClientGateway::run_once`] once, then [`ClientGateway::poll_output`] and [`ClientGateway::poll_peer_output`]
//! until `None`.
use super::client_service::ClientService;
use super::key_queues::KeyQueues;
use super::request_router::RequestRouter;
use super::status::of_engines;
use crate::cluster::{self, Node, RangeDigest};
use crate::gateway::Sessions;
use crate::gateway::consume;
use crate::options::{ServerInfo, ShardOptions};
use crate::output::ShardOutput;
use crate::placement::Placement;
use crate::request::SessionId;
use crate::status::{ShardCounters, ShardStatus};
use fawn_ds::internals::{Engine, EngineError, Options};
use fawn_flash::Device;
use fawn_types::{MonoMs, NodeId, Now, RangeId, TimeMs, Version};
use fawn_wire::Protocol;
use hashbrown::{HashMap, HashSet};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Maximum rounds per iteration in which replies from this node release further operations.
const ROUNDS_MAX: usize = 64;
/// Maximum age of the stores' statistics in `INFO`.
const STATUS_MS: u64 = 100;

/// Client sessions and the node that serves them.
#[derive(Debug)]
pub struct ClientGateway<D: Device> {
    router: RequestRouter<D>,
    sessions: Sessions,
    outputs: VecDeque<ShardOutput>,
    peers: VecDeque<cluster::NodeOutput>,
    /// A reply arrived in this iteration.
    has_moved: bool,
    status_at: MonoMs,
    now: Now,
}

impl<D: Device> ClientGateway<D> {
    /// Creates a front-end on `node`. `store` are the options of the stores behind it, for `CONFIG GET`.
    pub fn new(node: Node<D>, options: ShardOptions, store: Options, server_info: ServerInfo) -> Self {
        let router = RequestRouter {
            node,
            queues: KeyQueues::default(),
            at_cluster: HashMap::default(),
            unsent: BTreeMap::new(),
            deferred: VecDeque::new(),
            multis: Slab::new(),
            keyspace_ops: Slab::new(),
            fenced: HashSet::default(),
            counters: ShardCounters::default(),
            options,
            server_info,
            store,
            backend_stats: of_engines(std::iter::empty::<&Engine<D>>()),
            flush_at: None,
            sessions_open: 0,
            has_submitted: false,
        };
        Self {
            router,
            sessions: Sessions::new(&options, Placement::ALONE),
            outputs: VecDeque::new(),
            peers: VecDeque::new(),
            has_moved: false,
            status_at: MonoMs(0),
            now: Now::default(),
        }
    }

    /// The node.
    pub fn node(&self) -> &Node<D> {
        &self.router.node
    }

    /// Ends the front-end and returns the node.
    pub fn into_node(self) -> Node<D> {
        self.router.node
    }

    /// Receives a part of a peer's byte stream.
    pub fn handle_bytes(&mut self, now: Now, from: NodeId, bytes: &[u8]) {
        self.router.node.handle_bytes(now, from, bytes);
    }

    /// The link to this peer is new.
    pub fn handle_link_reset(&mut self, now: Now, from: NodeId) {
        self.router.node.handle_link_reset(now, from);
    }

    /// As [`Node::digest`].
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digest(&mut self, range: RangeId, time: TimeMs) -> Result<Option<RangeDigest>, EngineError> {
        self.router.node.digest(range, time)
    }

    /// The manager's map is durable on enough stores.
    pub(super) fn handle_map_kept(&mut self, now: Now, revision: u64) {
        self.router.node.handle_map_kept(now, revision);
    }

    /// As [`Node::keep_map`].
    pub(super) fn keep_map(&mut self, revision: u64, image: &[u8]) {
        self.router.node.keep_map(revision, image);
    }

    /// As [`Node::poll_map_kept`].
    pub(super) fn poll_map_kept(&mut self) -> Option<u64> {
        self.router.node.poll_map_kept()
    }

    /// The next effect for peers: never `Done`.
    pub fn poll_peer_output(&mut self) -> Option<cluster::NodeOutput> {
        self.peers.pop_front()
    }

    /// Begins an iteration: runs due timers, repeats reads that were granted budget.
    pub(super) fn begin_iteration(&mut self, now: Now) {
        // The wall clock may be set back: this only delays expiry.
        self.now = now;
        self.router.counters.iterations += 1;
        self.has_moved = false;
        self.router.flush_if_due(&mut self.sessions, self.now);
        self.sessions.serve_waiting(&mut self.outputs);
        self.sessions.take_granted_reads();
        self.router.send_deferred(&mut self.sessions, self.now);
    }

    /// Runs the node and receives its replies; returns whether these released further operations.
    pub(super) fn exchange(&mut self) -> bool {
        let now = self.now;
        self.router.has_submitted = false;
        self.router.node.exchange(now);
        while let Some(output) = self.router.node.poll_output() {
            match output {
                cluster::NodeOutput::Done { op, reply } => {
                    self.has_moved = true;
                    self.router.done(&mut self.sessions, op, &reply, now);
                }
                to_peer => self.peers.push_back(to_peer),
            }
        }
        self.router.send_unsent(&mut self.sessions, now);
        self.router.has_submitted
    }

    /// Ends an iteration: the node's one submission, replies to sessions.
    pub(super) fn finish_iteration(&mut self) -> Option<MonoMs> {
        let due = self.router.node.finish_iteration();
        // Nothing in flight means that no event will come: without this, stalled sessions could wait for ever.
        let relieved = self.has_moved || self.router.is_idle();
        let nothing = (Version::ZERO, None);
        consume::settle(&mut self.sessions, &self.router.options, nothing, relieved, &mut self.outputs);
        let again = self.router.has_submitted.then_some(self.now.mono);
        let again = again.or(self.sessions.has_due_work().then_some(self.now.mono));
        [due, self.router.flush_at, again].into_iter().flatten().min()
    }

    /// Whether the stores' statistics are to be renewed.
    pub(super) fn wants_status(&mut self) -> bool {
        let wants = self.now.mono.ms_since(self.status_at) >= STATUS_MS;
        if wants {
            self.status_at = self.now.mono;
        }
        wants
    }

    /// Receives the stores' statistics.
    pub(super) fn set_backend_stats(&mut self, backend_stats: ShardStatus) {
        self.router.backend_stats = backend_stats;
    }

    /// Like [`ClientService::status`], with `backend_stats` for the stores.
    pub(super) fn status_over(&self, backend_stats: ShardStatus) -> ShardStatus {
        let ShardStatus { counters, sessions, pending, .. } = self.router.status();
        ShardStatus { counters, sessions, pending, replies: self.sessions.budget.status(), ..backend_stats }
    }
}

impl<D: Device> ClientService for ClientGateway<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.router.counters.sessions_opened += 1;
        let id = self.sessions.open(protocol, &self.router.options);
        self.router.sessions_open = self.sessions.len();
        id
    }

    fn close_session(&mut self, session: SessionId) {
        self.sessions.close(session, 0);
        self.router.sessions_open = self.sessions.len();
    }

    fn end_input(&mut self, session: SessionId) {
        consume::end_input(&mut self.sessions, session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.now = now;
        consume::handle_input(&mut self.router, &mut self.sessions, &mut self.outputs, (session, input), now)
    }

    fn wants_input(&self, session: SessionId) -> bool {
        consume::wants_input(&self.sessions, &self.router.options, session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(1, |session| session.need_bytes)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(session).map_or(&[], |session| session.replies.output())
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        consume::wrote(&mut self.sessions, session, bytes, &mut self.router.counters);
    }

    fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.begin_iteration(now);
        if self.wants_status() {
            let backend_stats = of_engines(self.engines());
            self.set_backend_stats(backend_stats);
        }
        for _ in 0..ROUNDS_MAX {
            if !self.exchange() {
                break;
            }
        }
        self.finish_iteration()
    }

    fn has_due_work(&self) -> bool {
        self.sessions.has_due_work()
    }

    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.outputs.pop_front()
    }

    fn is_idle(&self) -> bool {
        self.router.is_idle() && self.engines().all(|engine| engine.in_flight() == 0)
    }

    fn status(&self) -> ShardStatus {
        self.status_over(of_engines(self.engines()))
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.router.node.engine().into_iter()
    }
}

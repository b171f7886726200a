//! Front-end with client sessions, before a node of a cluster: co-located with a back-end or alone.
//!
//! Per iteration the host calls `handle_input` for every connection and `handle_bytes` for every peer link with bytes,
//! then [`FrontEnd::turn`] once, then [`FrontEnd::poll_output`] and [`FrontEnd::poll_peer_output`] until `None`.
use super::desk::Desk;
use super::host::ClientHost;
use super::lines::Lines;
use super::status::of_engines;
use crate::cluster::{self, Node};
use crate::options::{ProcessFacts, ShardOptions};
use crate::output::Output;
use crate::session::consume;
use crate::session::{SessionId, Sessions};
use crate::shards::Placement;
use crate::status::{Counters, ShardStatus};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::Device;
use fawn_types::{MonoMs, NodeId, Now, Version};
use fawn_wire::Protocol;
use hashbrown::{HashMap, HashSet};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Rounds per iteration in which replies of this very node release further operations.
const ROUNDS_MAX: usize = 64;
/// Maximum age of the stores' statistics in `INFO`.
const STATUS_MS: u64 = 100;

/// Sessions before a node.
#[derive(Debug)]
pub struct FrontEnd<D: Device> {
    desk: Desk<D>,
    sessions: Sessions,
    outputs: VecDeque<Output>,
    peers: VecDeque<cluster::Output>,
    /// A reply arrived in this iteration.
    has_moved: bool,
    status_at: MonoMs,
    now: Now,
}

impl<D: Device> FrontEnd<D> {
    /// Creates a front-end before `node`. `store` are the options of the stores behind it, for `CONFIG GET`.
    pub fn new(node: Node<D>, options: ShardOptions, store: Options, facts: ProcessFacts) -> Self {
        let desk = Desk {
            node,
            lines: Lines::default(),
            at_cluster: HashMap::default(),
            unsent: BTreeMap::new(),
            late: VecDeque::new(),
            batches: Slab::new(),
            wides: Slab::new(),
            barred: HashSet::default(),
            counters: Counters::default(),
            options,
            facts,
            store,
            behind: of_engines(std::iter::empty::<&Engine<D>>()),
            flush_at: None,
            sessions_open: 0,
            has_submitted: false,
        };
        Self {
            desk,
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
        &self.desk.node
    }

    /// Ends the front-end and returns the node.
    pub fn into_node(self) -> Node<D> {
        self.desk.node
    }

    /// Receives a part of a peer's byte stream.
    pub fn handle_bytes(&mut self, now: Now, from: NodeId, bytes: &[u8]) {
        self.desk.node.handle_bytes(now, from, bytes);
    }

    /// The link to this peer is new.
    pub fn handle_link_reset(&mut self, now: Now, from: NodeId) {
        self.desk.node.handle_link_reset(now, from);
    }

    /// The manager's map is durable on enough stores.
    pub(super) fn handle_map_kept(&mut self, now: Now, revision: u64) {
        self.desk.node.handle_map_kept(now, revision);
    }

    /// The next effect for peers: never `Done`.
    pub fn poll_peer_output(&mut self) -> Option<cluster::Output> {
        self.peers.pop_front()
    }

    /// Begins an iteration: sends operations that were refused before, runs due timers.
    pub(super) fn begin_turn(&mut self, now: Now) {
        // A wall clock may be set back; expiry then waits, nothing breaks.
        self.now = now;
        self.desk.counters.turns += 1;
        self.has_moved = false;
        self.desk.flush_if_due(&mut self.sessions, self.now);
        self.desk.send_late(&mut self.sessions, self.now);
        self.desk.send_unsent(&mut self.sessions, self.now);
    }

    /// Runs the node and receives its replies; returns whether these released further operations.
    pub(super) fn exchange(&mut self) -> bool {
        let now = self.now;
        self.desk.has_submitted = false;
        self.desk.node.exchange(now);
        while let Some(output) = self.desk.node.poll_output() {
            match output {
                cluster::Output::Done { op, reply } => {
                    self.has_moved = true;
                    self.desk.done(&mut self.sessions, op, &reply, now);
                }
                to_peer => self.peers.push_back(to_peer),
            }
        }
        self.desk.send_unsent(&mut self.sessions, now);
        self.desk.has_submitted
    }

    /// Ends an iteration: the node's one submission, replies to sessions.
    pub(super) fn finish_turn(&mut self) -> Option<MonoMs> {
        let due = self.desk.node.finish_turn();
        // With nothing in flight nothing will change: waiting could last for ever.
        let relieved = self.has_moved || self.desk.is_idle();
        let nothing = (Version::ZERO, None);
        consume::settle(&mut self.sessions, &self.desk.options, nothing, relieved, &mut self.outputs);
        let again = self.desk.has_submitted.then_some(self.now.mono);
        [due, self.desk.flush_at, again].into_iter().flatten().min()
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
    pub(super) fn set_behind(&mut self, behind: ShardStatus) {
        self.desk.behind = behind;
    }

    /// Like [`ClientHost::status`], with `behind` for the stores.
    pub(super) fn status_over(&self, behind: ShardStatus) -> ShardStatus {
        let ShardStatus { counters, sessions, pending, .. } = self.desk.status();
        ShardStatus { counters, sessions, pending, replies: self.sessions.room.status(), ..behind }
    }
}

impl<D: Device> ClientHost for FrontEnd<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.desk.counters.sessions_opened += 1;
        let id = self.sessions.open(protocol, &self.desk.options);
        self.desk.sessions_open = self.sessions.len();
        id
    }

    fn close_session(&mut self, session: SessionId) {
        self.sessions.close(session);
        self.desk.sessions_open = self.sessions.len();
    }

    fn end_input(&mut self, session: SessionId) {
        consume::end_input(&mut self.sessions, session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.now = now;
        consume::handle_input(&mut self.desk, &mut self.sessions, &mut self.outputs, (session, input), now)
    }

    fn wants_input(&self, session: SessionId) -> bool {
        consume::wants_input(&self.sessions, &self.desk.options, session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(1, |session| session.need_bytes)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(session).map_or(&[], |session| session.replies.output())
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        consume::wrote(&mut self.sessions, session, bytes, &mut self.desk.counters);
    }

    fn turn(&mut self, now: Now) -> Option<MonoMs> {
        self.begin_turn(now);
        if self.wants_status() {
            let behind = of_engines(self.engines());
            self.set_behind(behind);
        }
        for _ in 0..ROUNDS_MAX {
            if !self.exchange() {
                break;
            }
        }
        self.finish_turn()
    }

    fn wants_turn(&self) -> bool {
        self.sessions.wants_turn() || !self.desk.late.is_empty()
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn is_idle(&self) -> bool {
        self.desk.is_idle() && self.engines().all(|engine| engine.in_flight() == 0)
    }

    fn status(&self) -> ShardStatus {
        self.status_over(of_engines(self.engines()))
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.desk.node.engine().into_iter()
    }
}

//! Group of shards: those that one thread runs. The frames between them are moved in memory.
//!
//! An iteration exchanges frames until none is left; only then does each engine submit, once. Members of a chain in one
//! group therefore append a write in one iteration, and their syncs overlap.
use super::client_service::ClientService;
use super::map_persistence::MapPersistence;
use super::status::{cluster_status, of_engines};
use crate::cluster::NodeOutput;
use crate::counters::Counted;
use crate::forward::MessageBatch;
use crate::output::ShardOutput;
use crate::request::SessionId;
use crate::shard::Shard;
use crate::status::{ShardCounters, ShardStatus};
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{MemberId, MonoMs, Now, ShardId};
use fawn_wire::Protocol;
use std::collections::VecDeque;

/// Maximum rounds of frames per iteration. If frames remain, the next iteration is due at once.
const ROUNDS_MAX: usize = 64;

/// Maximum age of the statistics in `INFO`.
const STATUS_MS: u64 = 100;

#[derive(Debug)]
struct GroupedShard<D: Device> {
    shard: Shard<D>,
    /// Has received frames that it has not handled yet.
    is_due: bool,
}

/// Shards, of one or several nodes of a cluster, that one thread runs. One of them serves the clients.
#[derive(Debug)]
pub struct ShardGroup<D: Device> {
    /// In the order of their IDs.
    shards: Vec<GroupedShard<D>>,
    /// The shard that serves the clients.
    server: MemberId,
    outputs: VecDeque<(MemberId, NodeOutput)>,
    map_persistence: MapPersistence,
    /// Since when some chain takes no writes, as of the last status update.
    pub(super) unavailable_since: Option<MonoMs>,
    status_at: MonoMs,
    now: Now,
}

impl<D: Device> ShardGroup<D> {
    /// A group without shards, whose clients `server` will serve.
    pub fn new(server: MemberId) -> Self {
        Self {
            shards: Vec::new(),
            server,
            outputs: VecDeque::new(),
            map_persistence: MapPersistence::default(),
            unavailable_since: None,
            status_at: MonoMs(0),
            now: Now::default(),
        }
    }

    /// A group of one shard.
    pub fn alone(shard: Shard<D>) -> Self {
        let mut group = Self::new(shard.id());
        group.insert(shard);
        group
    }

    /// Adds a shard.
    pub fn insert(&mut self, mut shard: Shard<D>) {
        let id = shard.id();
        let at = self.shards.partition_point(|other| other.shard.id() < id);
        assert!(self.shards.get(at).is_none_or(|other| other.shard.id() != id), "{id:?} runs already");
        // A killed process may have lost the pending map. Without this copy the map might never reach a majority.
        if let Some((revision, image)) = self.map_persistence.wanted() {
            shard.keep_map(revision, image);
        }
        self.shards.insert(at, GroupedShard { shard, is_due: true });
    }

    /// Takes a shard out, as the end of its process does. Frames to it are given to the host from now on.
    pub fn remove(&mut self, id: MemberId) -> Option<Shard<D>> {
        let at = self.place(id)?;
        let shard = self.shards.remove(at).shard;
        self.shards.iter_mut().for_each(|other| other.shard.handle_link_reset(self.now, id));
        Some(shard)
    }

    #[inline]
    fn place(&self, id: MemberId) -> Option<usize> {
        self.shards.iter().position(|grouped| grouped.shard.id() == id)
    }

    /// A shard of the group.
    #[inline]
    pub fn shard(&self, id: MemberId) -> Option<&Shard<D>> {
        self.place(id).map(|at| &self.shards[at].shard)
    }

    /// A shard of the group, for calls that send it no frames.
    #[inline]
    pub fn shard_mut(&mut self, id: MemberId) -> Option<&mut Shard<D>> {
        self.place(id).map(|at| &mut self.shards[at].shard)
    }

    /// The shard that serves the clients.
    #[inline]
    pub fn server(&self) -> &Shard<D> {
        let Some(server) = self.shard(self.server) else { unreachable!("the server always runs") };
        server
    }

    /// The shard that serves the clients, for calls that send no frames.
    #[inline]
    pub fn server_mut(&mut self) -> &mut Shard<D> {
        let Some(server) = self.shard_mut(self.server) else { unreachable!("the server always runs") };
        server
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = &Shard<D>> {
        self.shards.iter().map(|grouped| &grouped.shard)
    }

    /// Shuts down: members of chains record it. Returns the engines, to be closed.
    pub fn into_engines(self) -> Vec<Engine<D>> {
        self.shards.into_iter().map(|grouped| grouped.shard.into_engine()).collect()
    }

    /// Receives bytes from outside the group.
    pub fn handle_bytes(&mut self, now: Now, (from, to): (MemberId, MemberId), bytes: &[u8]) {
        if let Some(shard) = self.shard_mut(to) {
            shard.handle_bytes(now, from, bytes);
        }
    }

    /// The link between a shard outside the group and one inside is new.
    pub fn handle_link_reset(&mut self, now: Now, (from, to): (MemberId, MemberId)) {
        if let Some(shard) = self.shard_mut(to) {
            shard.handle_link_reset(now, from);
        }
    }

    /// One iteration of all shards. Returns when the next is due without an event; a time not after `now` means at
    /// once.
    pub fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.now = now;
        // As on a network, frames that the host did not take are lost.
        self.outputs.clear();
        for grouped in &mut self.shards {
            grouped.shard.begin_iteration(now);
            grouped.is_due = grouped.shard.is_in_cluster();
        }
        self.update_statistics();
        let mut is_unfinished = self.exchange();
        // The exchange may bring the next map, which no store has before the next iteration.
        if self.commit_map() {
            is_unfinished = self.exchange();
        }
        let due = self.shards.iter_mut().filter_map(|grouped| grouped.shard.finish_iteration()).min();
        if is_unfinished { Some(now.mono) } else { due }
    }

    /// The next effect for a host: frames for shards outside the group, links; with the shard that requests it.
    pub fn poll_node_output(&mut self) -> Option<(MemberId, NodeOutput)> {
        self.outputs.pop_front()
    }

    /// Moves frames between the shards. Returns whether some are left.
    fn exchange(&mut self) -> bool {
        (0..ROUNDS_MAX).all(|_| self.round())
    }

    /// Every shard with received frames handles them. Returns whether frames are left.
    fn round(&mut self) -> bool {
        for at in 0..self.shards.len() {
            let grouped = &mut self.shards[at];
            if !std::mem::take(&mut grouped.is_due) {
                continue;
            }
            grouped.shard.exchange();
            grouped.is_due = grouped.shard.has_local_work();
            let from = grouped.shard.id();
            while let Some(output) = self.shards[at].shard.poll_node_output() {
                self.route(from, output);
            }
        }
        self.shards.iter().any(|grouped| grouped.is_due)
    }

    fn route(&mut self, from: MemberId, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, ref bytes, .. } if let Some(at) = self.place(to) => {
                self.shards[at].shard.handle_bytes(self.now, from, bytes);
                self.shards[at].is_due = true;
            }
            NodeOutput::Reset { peer } if self.place(peer).is_some() => {
                unreachable!("frames from {peer:?} to {from:?} do not get corrupt in memory")
            }
            NodeOutput::KeepMap { revision, image } => {
                self.shards.iter_mut().for_each(|grouped| grouped.shard.keep_map(revision, &image));
                self.map_persistence.begin(revision, image);
            }
            output => self.outputs.push_back((from, output)),
        }
    }

    /// Notifies the manager once enough stores have its map. Returns whether it was notified.
    fn commit_map(&mut self) -> bool {
        let Some(nodes) = self.server().manager_map().map(|map| map.nodes.len()) else { return false };
        let mut is_enough = None;
        for grouped in &mut self.shards {
            if let Some(revision) = grouped.shard.poll_map_kept()
                && self.map_persistence.note(grouped.shard.id().node(), revision, nodes)
            {
                is_enough = Some(revision);
            }
        }
        let Some(revision) = is_enough else { return false };
        let now = self.now;
        self.server_mut().handle_map_kept(now, revision);
        self.shards.iter_mut().for_each(|grouped| grouped.is_due = true);
        true
    }

    /// Gives the server the statistics of the whole group, for `INFO`.
    fn update_statistics(&mut self) {
        let now = self.now.mono;
        if now.ms_since(self.status_at) < STATUS_MS {
            return;
        }
        self.status_at = now;
        let Some(cluster) = cluster_status(self) else { return };
        self.unavailable_since = if cluster.is_serving() { None } else { Some(self.unavailable_since.unwrap_or(now)) };
        let (stores, others) = (of_engines(self.engines()), self.counters_of_others());
        self.server_mut().set_stores(stores);
        self.server_mut().set_peer_stats(ShardStatus { counters: others, ..ShardStatus::default() });
    }

    /// Counters of the shards without clients, which execute requests of the server.
    fn counters_of_others(&self) -> ShardCounters {
        let mut sum = ShardCounters::default();
        let others = self.shards().filter(|shard| shard.id() != self.server);
        others.for_each(|shard| sum.add(&shard.status().counters));
        sum
    }
}

impl<D: Device> ClientService for ShardGroup<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.server_mut().open_session(protocol)
    }

    fn refuse_session(&mut self) {
        self.server_mut().refuse_session();
    }

    fn close_session(&mut self, session: SessionId) {
        self.server_mut().close_session(session);
    }

    fn end_input(&mut self, session: SessionId) {
        self.server_mut().end_input(session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.server_mut().handle_input(now, session, input)
    }

    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        self.server_mut().handle_inputs(now, inputs, used);
    }

    fn wants_input(&self, session: SessionId) -> bool {
        self.server().wants_input(session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.server().need_bytes(session)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.server().output(session)
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        self.server_mut().wrote(session, bytes);
    }

    fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        Self::run_once(self, now)
    }

    fn has_due_work(&self) -> bool {
        self.server().has_due_work()
    }

    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.server_mut().poll_output()
    }

    fn is_idle(&self) -> bool {
        self.server().is_idle() && self.engines().all(|engine| engine.in_flight() == 0)
    }

    fn status(&self) -> ShardStatus {
        let mut status = self.server().status();
        let Some(cluster) = cluster_status(self) else { return status };
        status.counters.add(&self.counters_of_others());
        ShardStatus { cluster: Some(cluster), store: of_engines(self.engines()), ..status }
    }

    fn handle_batch(&mut self, now: Now, from: ShardId, batch: MessageBatch) {
        self.server_mut().handle_batch(now, from, batch);
    }

    fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        self.server_mut().take_batch(to)
    }

    fn set_peer_stats(&mut self, others: ShardStatus) {
        self.server_mut().set_peer_stats(others);
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        self.shards().map(Shard::engine)
    }
}

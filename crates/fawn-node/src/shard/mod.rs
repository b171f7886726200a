//! Shard: sessions, a store and its chain members behind three calls, `handle_input`, `run_once`, `poll_output`.
//!
//! Per iteration the host calls `handle_input` for every connection with input, then [`Shard::run_once`] once (which
//! submits once for all of them), then [`Shard::poll_output`] until it is empty: one write per connection.
mod activation;
mod dispatch;
mod fan_out;
mod multi;
mod multi_items;
mod node;
mod node_replies;
mod node_requests;
mod parked_replies;
mod peer_frames;
mod peer_messages;
mod peer_replies;
mod queued_requests;
mod server;
mod single;
mod state;

pub(crate) use parked_replies::ShardReplies;
pub(crate) use state::{ShardContext, ShardState};

use self::activation::{activate, host_config};
use crate::cluster::{MemberHost, NodeControl, PeerLinks};
use crate::exec::SCRATCH_BYTES_KEPT;
use crate::forward::{ClusterOps, Forwarder};
use crate::gateway::{SessionPhase, Sessions, consume};
use crate::options::{ServerInfo, ShardOptions};
use crate::output::ShardOutput;
use crate::placement::Placement;
use crate::replica::HostedMember;
use crate::request::SessionId;
use crate::status::{ShardCounters, ShardStatus};
use fawn_chain::Completions;
use fawn_ds::internals::{Engine, EngineError, HANGING_MS};
use fawn_flash::Device;
use fawn_types::{Durability, MemberId, MonoMs, Now, TimeMs};
use fawn_wire::Protocol;
use slab::Slab;
use std::collections::VecDeque;

/// Time to the next iteration if no device event comes before, for requests that found the log's buffers full, and for
/// completions of which the device sends no event.
const RETRY_MS: u64 = 1;
/// Interval of attempts to continue sessions that the shard's bounds have stopped, if no reply or device event comes before. An engine
/// without space searches again for the write that comes 100 ms after the last search, and refuses those in between.
const RELIEF_MS: u64 = 10;
/// Sessions that one such attempt is for: thousands of them would take the thread while a disk hangs.
const RESUMES_MAX: usize = 32;
/// Interval of calls to the engine while something is not synced.
const SYNC_CHECK_MS: u64 = 100;
/// Time to the next poll of an idle store that confirms what its opening deferred, without a read in flight.
const CONFIRM_MS: u64 = 1;

/// A single-threaded owner of sessions and of a store.
#[derive(Debug)]
pub struct Shard<D: Device> {
    pub(crate) state: ShardState<D>,
    pub(crate) sessions: Sessions,
    pub(crate) outputs: VecDeque<ShardOutput>,
}

impl<D: Device> Shard<D> {
    /// Creates a shard over an open engine, whose options must agree with `options`. All shards of a node share one
    /// secret.
    ///
    /// # Errors
    /// If the engine holds another range than the shard's slice of the ring, or cannot begin an epoch.
    pub fn new(
        mut engine: Engine<D>,
        placement: Placement,
        options: ShardOptions,
        server_info: ServerInfo,
    ) -> Result<Self, EngineError> {
        assert_eq!(engine.options().durability, options.durability, "one mode for the log and its acknowledgements");
        let (range, keys) = placement.range();
        if let Some((other, _)) = engine.ranges().find(|(listed, _)| *listed != range) {
            return Err(EngineError::RangeExists { range: other });
        }
        engine.add_range(range, keys)?;
        let config = host_config(&engine, &options, &server_info, placement.shard());
        let replica = activate(&mut engine, (range, keys), &config)?;
        let mut host = MemberHost::new(config, engine);
        host.members.push(HostedMember::new(replica, Completions::default()));
        Ok(Self::with(host, placement, options, server_info, None))
    }

    /// A shard on `host`: alone on its slice of the ring, or with the state of a shard in a cluster.
    fn with(
        host: MemberHost<D>,
        placement: Placement,
        options: ShardOptions,
        server_info: ServerInfo,
        in_cluster: Option<(NodeControl, PeerLinks, ClusterOps)>,
    ) -> Self {
        let (control, links, cluster) = match in_cluster {
            Some((control, links, cluster)) => (Some(Box::new(control)), links, Some(Box::new(cluster))),
            None => (None, PeerLinks::new(host.config.id, host.config.boot, None, 0), None),
        };
        let forward = Box::new(Forwarder::new(placement, *host.engine.secret(), cluster));
        let state = ShardState {
            host,
            links,
            control,
            stores: None,
            multis: Slab::new(),
            multi_reply: Vec::new(),
            counters: ShardCounters::default(),
            options,
            server_info,
            flush_at: None,
            relief_at: MonoMs(0),
            waits_for_relief: false,
            wall: TimeMs(0),
            sessions_open: 0,
            forward,
        };
        let (sessions, outputs) = (Sessions::new(&options, placement), VecDeque::new());
        Self { state, sessions, outputs }
    }

    /// Opens a session.
    pub fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.state.counters.sessions_opened += 1;
        let id = self.sessions.open(protocol, &self.state.options);
        self.state.sessions_open = self.sessions.len();
        id
    }

    /// Counts a client beyond the host's limit.
    pub const fn refuse_session(&mut self) {
        self.state.counters.sessions_refused += 1;
    }

    /// Ends a session: its pending requests may still be executed, without a reply.
    pub fn close_session(&mut self, session: SessionId) {
        let outstanding_bytes =
            self.sessions.get(session).map_or(0, |session| self.state.forward.granted_bytes(session));
        self.sessions.close(session, outstanding_bytes);
        self.state.sessions_open = self.sessions.len();
    }

    /// The client sends no more (a half-closed socket): pending replies are finished, then [`ShardOutput::Close`]
    /// follows.
    pub fn end_input(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id).filter(|session| session.phase == SessionPhase::Open) {
            session.phase = SessionPhase::Draining;
        }
        self.sessions.schedule(id);
    }

    /// Whether the session accepts input; if not, [`ShardOutput::Resume`] or [`ShardOutput::Close`] will follow.
    pub fn wants_input(&self, session: SessionId) -> bool {
        let options = &self.state.options;
        self.sessions.get(session).is_some_and(|session| {
            session.phase == SessionPhase::Open && session.stalled.is_none() && session.has_capacity(options)
        })
    }

    /// Bytes for the client, in order.
    pub fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(session).map_or(&[], |session| session.replies.output())
    }

    /// The host wrote this many bytes of [`Shard::output`].
    pub fn wrote(&mut self, id: SessionId, bytes: usize) {
        let Some((session, pool, budget)) = self.sessions.get_with_pool(id) else { return };
        session.replies.wrote(bytes);
        budget.update(session);
        self.state.counters.output_bytes += bytes as u64;
        // Errors in replies that were not immediate.
        self.state.counters.error_replies += session.replies.take_errors();
        if !session.replies.has_output() {
            session.output_announced = false;
            session.replies.give_back(pool);
        }
        if session.stalled.is_some() {
            self.sessions.schedule(id);
        }
    }

    /// Executes the complete commands at the start of `input`; returns the number of consumed bytes. The host keeps the
    /// rest and offers it again with more input, or after [`ShardOutput::Resume`].
    pub fn handle_input(&mut self, now: Now, id: SessionId, input: &[u8]) -> usize {
        let now = self.note_time(now);
        consume::handle_input(&mut self.state, &mut self.sessions, &mut self.outputs, id, None, input, now)
    }

    /// Like [`Shard::handle_input`] for each input, with consumed bytes in `used`. The first requests of all inputs are
    /// prefetched together.
    pub fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        let now = self.note_time(now);
        consume::handle_inputs(&mut self.state, &mut self.sessions, &mut self.outputs, inputs, used, now);
    }

    /// Length that the input must reach, from its first unconsumed byte, before it is worth offering again.
    pub fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(1, |session| session.need_bytes)
    }

    /// Reaps completions, submits all appends of this iteration, commits what the watermark allows, delivers replies.
    ///
    /// Returns when the next call is due without an event; a time not after `now` means at once.
    pub fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.begin_iteration(now);
        if self.state.control.is_some() {
            self.exchange();
        }
        self.finish_iteration()
    }

    /// Begins an iteration: handles received messages and events, and retries waiting requests.
    pub(crate) fn begin_iteration(&mut self, now: Now) {
        self.note_time(now);
        self.state.counters.iterations += 1;
        if self.state.flush_at.take_if(|at| *at <= now.mono).is_some() {
            fan_out::flush_all(&mut self.state);
        }
        self.reap(now);
        self.handle_own_batch();
        self.begin_cluster_iteration();
        self.sessions.serve_waiting(&mut self.outputs);
        let MemberHost { exec, engine, .. } = &mut self.state.host;
        exec.reads.look(engine);
        let mut host = self.host();
        host.run_granted();
        host.resumption().retry();
        host.run_ready();
        // Requests that waited for their session's earlier ones begin before the session's next input: executed by
        // call, that would overtake them.
        self.handle_own_batch();
    }

    /// Ends an iteration: submits all of its reads and appends at once, then emits replies.
    pub(crate) fn finish_iteration(&mut self) -> Option<MonoMs> {
        let now = self.state.host.now;
        let before = self.state.committed();
        self.state.host.submit(now);
        let mut has_begun = false;
        if !self.is_in_cluster() {
            // In a cluster in `exchange`, because of the frames that follow from it.
            self.state.host.advance(now, &mut self.state.links);
            // Logs a disk that hangs, and its end; a cluster's heartbeats do so.
            self.state.host.slow_for_ms();
            has_begun = self.state.host.begin_wanted_epoch();
        }
        let has_moved =
            std::mem::take(&mut self.state.forward.has_moved) || self.state.committed() > before || has_begun;
        self.settle_sessions(has_moved);
        // Flushed without a write: no completion will end the wait for events.
        let has_progress = self.is_in_cluster() && self.state.host.engine.has_progress();
        let is_due = self.has_local_work() || has_progress || self.state.host.engine.has_events();
        if self.state.multi_reply.capacity() > SCRATCH_BYTES_KEPT {
            self.state.multi_reply = Vec::new();
        }
        if is_due || self.sessions.budget.has_due_work() { Some(now.mono) } else { self.deadline(now) }
    }

    /// Like [`Shard::run_once`], but blocks until a device event: for tests and for hosts without an event loop.
    pub fn run_once_blocking(&mut self, now: Now) -> Option<MonoMs> {
        if self.state.host.engine.in_flight() > 0 {
            let MemberHost { engine, events, .. } = &mut self.state.host;
            engine.wait(now, events);
        }
        self.run_once(now)
    }

    /// Whether calls since the last iteration let a session continue: the next iteration is due at once.
    pub fn has_due_work(&self) -> bool {
        self.sessions.budget.has_due_work()
    }

    /// The next effect for the host.
    pub fn poll_output(&mut self) -> Option<ShardOutput> {
        self.outputs.pop_front()
    }

    /// Whether no reply waits and nothing is uncommitted.
    pub fn is_idle(&self) -> bool {
        let is_busy = self.state.uncommitted() > 0
            || !self.state.multis.is_empty()
            || self.state.control.is_none() && self.state.host.exec.wait_queue.len() > 0;
        self.state.forward.is_idle() && !is_busy && self.state.host.engine.in_flight() == 0
    }

    /// The node and the index of this shard.
    #[inline]
    pub fn id(&self) -> MemberId {
        self.state.host.config.id
    }

    /// Whether it exchanges frames with other members, and with itself.
    pub(crate) const fn is_in_cluster(&self) -> bool {
        self.state.control.is_some()
    }

    /// The engine, for hosts that poll its device.
    pub fn engine(&self) -> &Engine<D> {
        &self.state.host.engine
    }

    /// Ends the shard and returns the engine for closing. Waiting sessions get no replies. Members of chains record the
    /// clean shutdown, which blocks on the device; if that fails, the engine is poisoned and the members count as
    /// killed.
    pub fn into_engine(mut self) -> Engine<D> {
        if self.state.control.is_some()
            && let Err(error) = self.state.host.mark_closed()
        {
            tracing::warn!(%error, "not cleanly shut down: the next start treats this shard as killed");
        }
        self.state.host.engine
    }

    /// Counters and gauges.
    pub fn status(&self) -> ShardStatus {
        ShardStatus { replies: self.sessions.budget.status(), ..self.state.status() }
    }

    /// Returns the monotonic clock with expiry time.
    pub(crate) fn note_time(&mut self, now: Now) -> Now {
        // The wall clock may step; the store's expiry clock never goes back, and follows it a minute later.
        self.state.wall = now.wall;
        let now = self.state.host.note_time(now);
        if let Some(cluster) = &mut self.state.forward.cluster {
            cluster.now = now;
        }
        now
    }

    fn reap(&mut self, now: Now) {
        let mut events = self.state.host.poll_events(now);
        self.state.forward.has_moved |= !events.is_empty();
        let mut host = self.host();
        events.drain(..).for_each(|event| host.handle_event(event));
        self.state.host.events = events;
    }

    /// Moves due replies to the outputs and emits the effects that follow.
    fn settle_sessions(&mut self, has_moved: bool) {
        // Nothing in flight means that no event will come: without this, stalled sessions could wait for ever.
        let has_outstanding = self.state.forward.requests() > 0;
        let is_idle =
            !has_outstanding && self.state.uncommitted() == 0 && !self.state.host.exec.wait_queue.has_queues();
        // A read that hangs is outstanding, but nothing else may end for as long: what was refused is tried again meanwhile.
        let now = self.state.host.now.mono;
        let resumes_max = match has_moved || is_idle {
            true => usize::MAX,
            false if now >= self.state.relief_at => RESUMES_MAX,
            false => 0,
        };
        if resumes_max > 0 {
            self.state.relief_at = now.plus_ms(RELIEF_MS);
        }
        let committed = self.state.committed();
        let failed = self.state.failure();
        self.state.forward.settle(committed, failed);
        let options = &self.state.options;
        self.state.waits_for_relief =
            consume::settle(&mut self.sessions, options, committed, failed, resumes_max, &mut self.outputs);
    }

    fn deadline(&self, now: Now) -> Option<MonoMs> {
        let ShardState { host: MemberHost { engine, members, exec, epoch_retry_at, .. }, flush_at, .. } = &self.state;
        let retry = (!exec.wait_queue.retries.is_empty()).then(|| now.mono.plus_ms(RETRY_MS));
        // Modes without immediate syncs sync at intervals, or flush: the engine checks the clock in `submit`.
        let is_due = || match engine.options().durability {
            Durability::Memory => engine.log_due_at().is_some() || engine.oldest_write().is_some(),
            _ => members.iter().map(|member| engine.progress(member.id)).any(|log| log.synced < log.appended),
        };
        let is_unsynced = engine.poisoned().is_none() && is_due();
        let sync = is_unsynced.then(|| now.mono.plus_ms(SYNC_CHECK_MS));
        let is_confirming = engine.is_confirming() && engine.in_flight() == 0;
        let confirm = is_confirming.then(|| now.mono.plus_ms(CONFIRM_MS));
        let epoch = epoch_retry_at.filter(|at| *at > now.mono);
        let relief = self.state.waits_for_relief.then_some(self.state.relief_at);
        let reap = engine.device().has_unsignalled().then(|| now.mono.plus_ms(RETRY_MS));
        // Reads that hang are found by looking; a device whose threads hang begins others then.
        let look = (engine.in_flight() > 0).then(|| now.mono.plus_ms(HANGING_MS));
        let of_engine = [sync, confirm, epoch, reap, look, engine.upkeep_at()];
        let due = [*flush_at, retry, relief, self.cluster_deadline()];
        of_engine.into_iter().chain(due).flatten().min()
    }
}

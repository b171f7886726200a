//! Shard: sessions and one range's store behind three calls, `handle_input`, `run_once`, `poll_output`.
//!
//! Per iteration the host calls `handle_input` for every connection with input, then [`Shard::run_once`] once (which
//! submits once for all of them), then [`Shard::poll_output`] until it is empty: one write per connection.
mod activation;
mod dispatch;
mod fan_out;
mod larger_items;
mod multi;
mod parked_replies;
mod peer_messages;
mod peer_replies;
mod queued_requests;
mod server;
mod single;
mod state;

pub(crate) use parked_replies::ShardReplies;
pub(crate) use state::{ShardContext, ShardState};

use self::activation::activate;
use self::dispatch::execute;
use self::single::execute_single;
use crate::exec::{Executor, ExecutorLimits, SCRATCH_BYTES_KEPT, handle_commit};
use crate::forward::Forwarder;
use crate::gateway::consume::{self, Dispatch};
use crate::gateway::{Flow, Prefetched, Session, Sessions};
use crate::options::{ServerInfo, ShardOptions};
use crate::output::ShardOutput;
use crate::placement::Placement;
use crate::replica::{HostedMember, MemberTable, RangeSlot};
use crate::request::SessionId;
use crate::status::{ShardCounters, ShardStatus};
use fawn_chain::{Completions, LogProgress, ReplicaOutput as ChainOutput};
use fawn_ds::internals::{Engine, EngineError, Event};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, ShardId, TimeMs};
use fawn_wire::{Command, Protocol};
use slab::Slab;
use std::collections::VecDeque;

/// Retry interval of requests that found the log's buffers full, if no device event comes before.
const RETRY_MS: u64 = 1;
/// Interval of calls to the engine while something is not synced.
const SYNC_CHECK_MS: u64 = 100;

/// A single-threaded owner of sessions and of a store.
#[derive(Debug)]
pub struct Shard<D: Device> {
    pub(crate) state: ShardState<D>,
    pub(crate) sessions: Sessions,
    pub(crate) outputs: VecDeque<ShardOutput>,
    events: Vec<Event>,
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
        let replica = activate(&mut engine, (range, keys), &options, &server_info)?;
        let forward = Box::new(Forwarder::new(placement, *engine.secret()));
        let mut members = MemberTable::default();
        members.push(HostedMember::new(replica, Completions::default()));
        let limits = ExecutorLimits {
            value_bytes_max: options.value_bytes_max,
            waiting_max: options.pending_max,
            reads_in_flight_max: options.reads_in_flight_max,
        };
        let state = ShardState {
            engine,
            members,
            exec: Executor::new(limits),
            multis: Slab::new(),
            multi_reply: Vec::new(),
            counters: ShardCounters::default(),
            options,
            server_info,
            flush_at: None,
            wall: TimeMs(0),
            now: Now::default(),
            sessions_open: 0,
            forward,
        };
        let (sessions, outputs) = (Sessions::new(&options, placement), VecDeque::new());
        Ok(Self { state, sessions, outputs, events: Vec::new() })
    }

    /// Opens a session.
    pub fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.state.counters.sessions_opened += 1;
        let id = self.sessions.open(protocol, &self.state.options);
        self.state.sessions_open = self.sessions.len();
        id
    }

    /// Ends a session: its pending requests may still be executed, without a reply.
    pub fn close_session(&mut self, session: SessionId) {
        let away_bytes = self.sessions.get(session).map_or(0, |session| self.state.forward.granted_bytes(session));
        self.sessions.close(session, away_bytes);
        self.state.sessions_open = self.sessions.len();
    }

    /// The client sends no more (a half-closed socket): pending replies are finished, then [`ShardOutput::Close`]
    /// follows.
    pub fn end_input(&mut self, session: SessionId) {
        consume::end_input(&mut self.sessions, session);
    }

    /// Whether the session accepts input; if not, [`ShardOutput::Resume`] or [`ShardOutput::Close`] will follow.
    pub fn wants_input(&self, session: SessionId) -> bool {
        consume::wants_input(&self.sessions, &self.state.options, session)
    }

    /// Bytes for the client, in order.
    pub fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(session).map_or(&[], |session| session.replies.output())
    }

    /// The host wrote this many bytes of [`Shard::output`].
    pub fn wrote(&mut self, id: SessionId, bytes: usize) {
        consume::wrote(&mut self.sessions, id, bytes, &mut self.state.counters);
    }

    /// Executes the complete commands at the start of `input`; returns the number of consumed bytes. The host keeps the
    /// rest and offers it again with more input, or after [`ShardOutput::Resume`].
    pub fn handle_input(&mut self, now: Now, id: SessionId, input: &[u8]) -> usize {
        let now = self.note_time(now);
        consume::handle_input(&mut self.state, &mut self.sessions, &mut self.outputs, (id, input), now)
    }

    /// Like [`Shard::handle_input`] for each input, with consumed bytes in `used`. The first requests of all inputs are
    /// prefetched together.
    pub fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        let now = self.note_time(now);
        consume::handle_inputs(&mut self.state, &mut self.sessions, &mut self.outputs, (inputs, used), now);
    }

    /// Length that the input must reach, from its first unconsumed byte, before it is worth offering again.
    pub fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(1, |session| session.need_bytes)
    }

    /// Reaps completions, submits all appends of this iteration, commits what the watermark allows, delivers replies.
    ///
    /// Returns when the next call is due without an event; a time not after `now` means at once.
    pub fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.note_time(now);
        self.state.counters.iterations += 1;
        self.handle_own_batch();
        self.flush_if_due(now);
        let had_events = self.reap(now);
        self.sessions.serve_waiting(&mut self.outputs);
        let has_granted = self.sessions.take_granted_reads();
        let mut host = self.host();
        if has_granted {
            host.resumption().run_granted();
            host.run_granted();
        }
        host.resumption().retry();
        host.retry_blocked();
        host.run_ready();
        // All reads and appends of this iteration are queued by now: one submission for all.
        self.state.engine.submit(now);
        let has_committed = self.commit();
        let has_moved = self.state.forward.take_has_moved();
        self.settle_sessions(had_events || has_committed || has_moved);
        let is_due = self.state.forward.is_due();
        self.state.exec.trim();
        if self.state.multi_reply.capacity() > SCRATCH_BYTES_KEPT {
            self.state.multi_reply = Vec::new();
        }
        if is_due || self.sessions.has_due_work() { Some(now.mono) } else { self.deadline(now) }
    }

    /// Like [`Shard::run_once`], but blocks until a device event: for tests and for hosts without an event loop.
    pub fn run_once_blocking(&mut self, now: Now) -> Option<MonoMs> {
        if self.state.engine.in_flight() > 0 {
            let mut events = std::mem::take(&mut self.events);
            self.state.engine.wait(now, &mut events);
            self.events = events;
        }
        self.run_once(now)
    }

    /// Whether calls since the last iteration let a session continue: the next iteration is due at once.
    pub fn has_due_work(&self) -> bool {
        self.sessions.has_due_work()
    }

    /// The next effect for the host.
    pub fn poll_output(&mut self) -> Option<ShardOutput> {
        self.outputs.pop_front()
    }

    /// Whether no reply waits and nothing is uncommitted.
    pub fn is_idle(&self) -> bool {
        let is_busy = self.state.exec.wait_queue.len() > 0
            || !self.state.multis.is_empty()
            || self.state.member().replica.uncommitted() > 0;
        self.state.forward.is_idle() && !is_busy && self.state.engine.in_flight() == 0
    }

    /// The engine, for hosts that poll its device.
    pub fn engine(&self) -> &Engine<D> {
        &self.state.engine
    }

    /// Ends the shard and returns the engine for closing. Waiting sessions get no replies.
    pub fn into_engine(self) -> Engine<D> {
        self.state.engine
    }

    /// Counters and gauges.
    pub fn status(&self) -> ShardStatus {
        ShardStatus { replies: self.sessions.budget.status(), ..self.state.status() }
    }

    /// Returns the monotonic clock with expiry time.
    pub(crate) fn note_time(&mut self, now: Now) -> Now {
        // The wall clock may step; the store's expiry clock never goes back and never jumps.
        self.state.now = Now { mono: now.mono, wall: self.state.engine.advance_clock(now) };
        self.state.wall = now.wall;
        self.state.now
    }

    fn flush_if_due(&mut self, now: Now) {
        if self.state.flush_at.is_some_and(|at| at <= now.mono) {
            self.state.flush_at = None;
            fan_out::flush_all(&mut self.state);
        }
    }

    fn reap(&mut self, now: Now) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.state.engine.poll(now, &mut events);
        let had_events = !events.is_empty();
        let mut host = self.host();
        for event in events.drain(..) {
            match event {
                Event::Lookup { plan, user } => host.handle_read(plan, user),
                Event::Poisoned => {
                    tracing::error!(failure = host.state.engine.poisoned(), "the store takes no more writes");
                }
                Event::SpaceBack => tracing::info!("the store has free space again: writes continue"),
                Event::Progress => {}
            }
        }
        self.events = events;
        had_events
    }

    /// Returns whether the committed version moved.
    fn commit(&mut self) -> bool {
        let ShardState { engine, members, now, .. } = &mut self.state;
        let member = &mut members[RangeSlot::ONLY];
        let fawn_ds::internals::RangeProgress { appended, flushed, synced, .. } = engine.progress(member.id);
        member.replica.handle_progress(*now, LogProgress { appended, flushed, synced });
        let mut has_moved = false;
        while let Some(output) = member.replica.poll_output() {
            // All else is for peers and a manager, and a member alone has neither.
            if let ChainOutput::Commit { through } = output {
                handle_commit(engine, member, through, |_, _| {});
                has_moved = true;
            }
        }
        has_moved
    }

    /// Moves due replies to the outputs and emits the effects that follow.
    fn settle_sessions(&mut self, has_moved: bool) {
        // Nothing in flight means that no event will come: without this, stalled sessions could wait for ever.
        let is_away = self.state.forward.requests() > 0;
        let replica = &self.state.member().replica;
        let is_idle = !is_away && replica.uncommitted() == 0 && !self.state.exec.wait_queue.has_queues();
        let relieved = has_moved || is_idle;
        let committed = replica.committed();
        let failed = self.state.failure();
        self.state.forward.settle(committed, failed);
        let options = &self.state.options;
        consume::settle(&mut self.sessions, options, (committed, failed), relieved, &mut self.outputs);
    }

    fn deadline(&self, now: Now) -> Option<MonoMs> {
        let ShardState { engine, exec, flush_at, forward, .. } = &self.state;
        let waits = exec.wait_queue.has_retries() || forward.has_retries();
        let retry = waits.then(|| now.mono.plus_ms(RETRY_MS));
        let progress = engine.progress(self.state.member().id);
        // Modes without immediate syncs sync at intervals: the engine checks the clock in `submit`.
        let is_unsynced = progress.synced < progress.appended && engine.poisoned().is_none();
        let sync = is_unsynced.then(|| now.mono.plus_ms(SYNC_CHECK_MS));
        [*flush_at, retry, sync].into_iter().flatten().min()
    }
}

impl<D: Device> Dispatch for ShardState<D> {
    #[inline]
    fn options(&self) -> &ShardOptions {
        &self.options
    }

    #[inline]
    fn counters(&mut self) -> &mut ShardCounters {
        &mut self.counters
    }

    #[inline]
    fn execute(&mut self, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
        execute(self, session, command, now)
    }

    const LOOKS_AHEAD: bool = true;

    #[inline]
    fn place(&self, key: &[u8]) -> (KeyHash, Option<ShardId>) {
        (self.hash(key), self.elsewhere(key))
    }

    #[inline]
    fn prefetch(&self, hashes: &[KeyHash]) {
        self.engine.prefetch(self.member().id, hashes);
    }

    #[inline]
    fn execute_prefetched(&mut self, session: &mut Session, prefetched: &Prefetched<'_>, now: Now) -> Flow {
        execute_single(
            self,
            session,
            (prefetched.hash, prefetched.owner),
            (&prefetched.request, prefetched.format),
            now,
        )
    }
}

//! Shard: sessions and one range's store behind three calls, `handle_input`, `turn`, `poll_output`.
//!
//! Per iteration the host calls `handle_input` for every connection with input, then [`Shard::turn`] once (which
//! submits once for all of them), then [`Shard::poll_output`] until it is empty: one write per connection.
use crate::activation::activate;
use crate::execute::{Core, Flow, Host, Scratch, clear, execute, execute_single};
use crate::options::{ProcessFacts, ShardOptions};
use crate::output::Output;
use crate::pending::Pending;
use crate::session::consume::{self, Executor};
use crate::session::{Looked, Session, SessionId, Sessions};
use crate::shards::{self, Links, Placement};
use crate::status::{Counters, ShardStatus};
use fawn_chain::{Output as ChainOutput, Progress};
use fawn_ds::internals::{Engine, EngineError, Event};
use fawn_flash::Device;
use fawn_types::{KeyHash, MonoMs, Now, ShardId, TimeMs};
use fawn_wire::{Command, Protocol};
use std::collections::VecDeque;

/// Retry interval of requests that found the log's buffers full, if no device event comes before.
const RETRY_MS: u64 = 1;
/// Interval of calls to the engine while something is not synced.
const SYNC_CHECK_MS: u64 = 100;

/// A single-threaded owner of sessions and of a store.
#[derive(Debug)]
pub struct Shard<D: Device> {
    pub(crate) core: Core<D>,
    pub(crate) sessions: Sessions,
    pub(crate) outputs: VecDeque<Output>,
    events: Vec<Event>,
}

impl<D: Device> Shard<D> {
    /// Creates a shard over an open engine, whose options must agree with `options`. All shards of a node share one secret.
    ///
    /// # Errors
    /// If the engine holds another range than the shard's slice of the ring, or cannot begin an epoch.
    pub fn new(
        mut engine: Engine<D>,
        placement: Placement,
        options: ShardOptions,
        facts: ProcessFacts,
    ) -> Result<Self, EngineError> {
        assert_eq!(engine.options().durability, options.durability, "one mode for the log and its acknowledgements");
        let (range, keys) = placement.range();
        if let Some((other, _)) = engine.ranges().find(|(listed, _)| *listed != range) {
            return Err(EngineError::RangeExists { range: other });
        }
        engine.add_range(range, keys)?;
        let replica = activate(&mut engine, (range, keys), &options, &facts)?;
        let links = (placement.count() > 1).then(|| Box::new(Links::new(placement, *engine.secret())));
        let core = Core {
            engine,
            replica,
            pending: Pending::new(options.reads_in_flight_max),
            scratch: Scratch::default(),
            counters: Counters::default(),
            options,
            facts,
            flush_at: None,
            wall: TimeMs(0),
            now: Now::default(),
            sessions_open: 0,
            links,
        };
        let (sessions, outputs) = (Sessions::new(&options, placement), VecDeque::new());
        Ok(Self { core, sessions, outputs, events: Vec::new() })
    }

    /// Opens a session.
    pub fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.core.counters.sessions_opened += 1;
        let id = self.sessions.open(protocol, &self.core.options);
        self.count_sessions();
        id
    }

    /// Ends a session: its pending requests may still be executed, without a reply.
    pub fn close_session(&mut self, session: SessionId) {
        self.host().forget_away(session);
        self.sessions.close(session);
        self.count_sessions();
    }

    /// Number of clients' sessions, without proxy sessions of other shards.
    fn count_sessions(&mut self) {
        let standing = self.core.links.as_ref().map_or(0, |links| links.standing());
        self.core.sessions_open = self.sessions.len() - standing;
    }

    /// The client sends no more (a half-closed socket): pending replies are finished, then [`Output::Close`] follows.
    pub fn end_input(&mut self, session: SessionId) {
        consume::end_input(&mut self.sessions, session);
    }

    /// Whether the session accepts input; if not, [`Output::Resume`] or [`Output::Close`] will follow.
    pub fn wants_input(&self, session: SessionId) -> bool {
        consume::wants_input(&self.sessions, &self.core.options, session)
    }

    /// Bytes for the client, in order.
    pub fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(session).map_or(&[], |session| session.replies.output())
    }

    /// The host wrote this many bytes of [`Shard::output`].
    pub fn wrote(&mut self, id: SessionId, bytes: usize) {
        consume::wrote(&mut self.sessions, id, bytes, &mut self.core.counters);
    }

    /// Executes the complete commands at the start of `input`; returns the number of consumed bytes. The host keeps the
    /// rest and offers it again with more input, or after [`Output::Resume`].
    pub fn handle_input(&mut self, now: Now, id: SessionId, input: &[u8]) -> usize {
        let now = self.note_time(now);
        consume::handle_input(&mut self.core, &mut self.sessions, &mut self.outputs, (id, input), now)
    }

    /// Like [`Shard::handle_input`] for each input, with consumed bytes in `used`. The first requests of all inputs are
    /// prefetched together.
    pub fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        let now = self.note_time(now);
        consume::handle_inputs(&mut self.core, &mut self.sessions, &mut self.outputs, (inputs, used), now);
    }

    /// Length that the input must reach, from its first unconsumed byte, before it is worth offering again.
    pub fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(1, |session| session.need_bytes)
    }

    /// Reaps completions, submits all appends of this iteration, commits what the watermark allows, delivers replies.
    ///
    /// Returns when the next call is due without an event; a time not after `now` means at once.
    pub fn turn(&mut self, now: Now) -> Option<MonoMs> {
        self.note_time(now);
        self.core.counters.turns += 1;
        self.begin_exchange();
        self.flush_if_due(now);
        let had_events = self.reap(now);
        let mut host = self.host();
        host.retry_late();
        host.retry_queues();
        host.ask_late();
        // All reads and appends of this iteration are queued by now: one submission for all.
        self.core.engine.submit(now);
        let has_committed = self.commit();
        let has_moved = self.core.links.as_ref().is_some_and(|links| links.has_moved());
        self.settle_sessions(had_events || has_committed || has_moved);
        let is_due = self.end_exchange();
        self.core.scratch.trim();
        if is_due { Some(now.mono) } else { self.deadline(now) }
    }

    /// Like [`Shard::turn`], but blocks until a device event: for tests and for hosts without an event loop.
    pub fn turn_blocking(&mut self, now: Now) -> Option<MonoMs> {
        if self.core.engine.in_flight() > 0 {
            let mut events = std::mem::take(&mut self.events);
            self.core.engine.wait(now, &mut events);
            self.events = events;
        }
        self.turn(now)
    }

    /// Whether calls since the last iteration let a session continue: the next iteration is due at once.
    pub fn wants_turn(&self) -> bool {
        self.sessions.wants_turn() || !self.core.pending.late.is_empty()
    }

    /// The next effect for the host.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whether no reply waits and nothing is uncommitted.
    pub fn is_idle(&self) -> bool {
        let has_mail = self.core.links.as_ref().is_some_and(|links| !links.is_idle());
        let is_busy =
            self.core.pending.len() > 0 || !self.core.pending.batches.is_empty() || self.core.replica.uncommitted() > 0;
        !has_mail && !is_busy && self.core.engine.in_flight() == 0
    }

    /// The engine, for hosts that watch its device.
    pub fn engine(&self) -> &Engine<D> {
        &self.core.engine
    }

    /// Ends the shard and returns the engine for closing. Waiting sessions get no replies.
    pub fn into_engine(self) -> Engine<D> {
        self.core.engine
    }

    /// Counters and gauges.
    pub fn status(&self) -> ShardStatus {
        ShardStatus { replies: self.sessions.room.status(), ..self.core.status() }
    }

    /// Returns the monotonic clock with expiry time.
    pub(crate) fn note_time(&mut self, now: Now) -> Now {
        // The machine's wall clock may step; what the store judges expiry by never falls and never jumps.
        self.core.now = Now { mono: now.mono, wall: self.core.engine.advance_clock(now) };
        self.core.wall = now.wall;
        self.core.now
    }

    fn flush_if_due(&mut self, now: Now) {
        if self.core.flush_at.is_some_and(|at| at <= now.mono) {
            if self.core.links.is_some() {
                self.core.flush_at = None;
                return shards::wide::flush_all(&mut self.core);
            }
            match clear(&mut self.core) {
                Err(EngineError::Overloaded) => {}
                Ok(_) => self.core.flush_at = None,
                Err(error) => {
                    tracing::error!(%error, "the delayed flush_all failed");
                    self.core.flush_at = None;
                }
            }
        }
    }

    fn reap(&mut self, now: Now) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.core.engine.poll(now, &mut events);
        let had_events = !events.is_empty();
        let now = self.core.now.wall;
        let mut host = Host { core: &mut self.core, sessions: &mut self.sessions, now };
        for event in events.drain(..) {
            match event {
                Event::Lookup { plan, user } => host.read_ended(plan, user),
                Event::Poisoned => {
                    tracing::error!(failure = host.core.engine.poisoned(), "the store takes no more writes");
                }
                Event::SpaceBack => tracing::info!("space is back, writes go on"),
                Event::Progress => {}
            }
        }
        self.core.pending.reads.refill(&mut self.core.engine);
        self.events = events;
        had_events
    }

    /// Returns whether the committed version moved.
    fn commit(&mut self) -> bool {
        let Core { engine, replica, now, .. } = &mut self.core;
        let fawn_ds::internals::Progress { appended, flushed, synced, .. } = engine.progress(replica.range());
        replica.handle_progress(*now, Progress { appended, flushed, synced });
        let mut has_moved = false;
        while let Some(output) = replica.poll_output() {
            // All else is for peers and a manager, and a member alone has neither.
            if let ChainOutput::Commit { through } = output {
                engine.commit(replica.range(), through);
                has_moved = true;
            }
        }
        has_moved
    }

    /// Moves due replies to the outputs and emits the effects that follow.
    fn settle_sessions(&mut self, has_moved: bool) {
        // With nothing in flight nothing will change: waiting could last for ever.
        let is_away = self.core.links.as_ref().is_some_and(|links| links.requests() > 0);
        let is_idle = !is_away && self.core.replica.uncommitted() == 0 && self.core.pending.keys.len() == 0;
        let relieved = has_moved || is_idle;
        let committed = self.core.replica.committed();
        let failed = self.core.failure();
        let options = &self.core.options;
        consume::settle(&mut self.sessions, options, (committed, failed), relieved, &mut self.outputs);
    }

    fn deadline(&self, now: Now) -> Option<MonoMs> {
        let Core { engine, replica, pending, flush_at, links, .. } = &self.core;
        let waits = pending.keys.has_retries() || links.as_ref().is_some_and(|links| links.has_unsaid());
        let retry = waits.then(|| now.mono.plus_ms(RETRY_MS));
        let progress = engine.progress(replica.range());
        // Modes that do not sync at once sync by time: the engine checks the clock in `submit`.
        let is_unsynced = progress.synced < progress.appended && engine.poisoned().is_none();
        let sync = is_unsynced.then(|| now.mono.plus_ms(SYNC_CHECK_MS));
        [*flush_at, retry, sync].into_iter().flatten().min()
    }
}

impl<D: Device> Executor for Core<D> {
    #[inline]
    fn options(&self) -> &ShardOptions {
        &self.options
    }

    #[inline]
    fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    #[inline]
    fn execute(&mut self, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
        execute(self, session, command, now)
    }

    const LOOKS_AHEAD: bool = true;

    #[inline]
    fn place(&self, session: &Session, key: &[u8], input: &[u8]) -> (KeyHash, Option<ShardId>) {
        if let Some(hash) = session.codec.carried_hash(input) {
            // The asking shard has already chosen this shard as the key's owner.
            debug_assert!(session.stands_for.is_some() && hash == self.hash(key), "shards of a node have one secret");
            return (hash, None);
        }
        (self.hash(key), self.elsewhere(session, key))
    }

    #[inline]
    fn warm(&self, hashes: &[KeyHash]) {
        self.engine.warm(self.replica.range(), hashes);
    }

    #[inline]
    fn execute_looked(&mut self, session: &mut Session, looked: &Looked<'_>, now: Now) -> Flow {
        execute_single(self, session, (looked.hash, looked.owner), (&looked.request, looked.shape), now)
    }
}

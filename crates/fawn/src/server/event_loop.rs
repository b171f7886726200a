//! Event loop of a shard: wait → read all ready connections → execute → submit once → one write per connection.
//!
//! The shard has its own readiness queue, whose descriptor Tokio watches. The loop, not a scheduler, therefore decides
//! the order of work (docs/decisions/2026-11-21-server-turn.md). An idle shard blocks in the kernel: no timer ticks.
#[cfg(test)]
mod tests;

use super::admission::AdmissionControl;
use super::conn::Conn;
use super::control::{Control, ShardReport};
use super::counters::LoopCounters;
use super::limits::ShardLimits;
use super::listener::Listener;
use super::peer_shards::PeerShards;
use super::process_state::ProcessState;
use super::read::ReadBatch;
use super::timers::ConnTimers;
use fawn_flash::{Device, clock};
use fawn_node::{ClientService, SessionId, ShardOutput};
use fawn_types::{MonoMs, Now};
use mio::{Events, Interest, Token};
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::HashMap;
use std::future::poll_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::Sleep;

/// Maximum events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;
/// Iterations without waiting before other tasks of the runtime get to run.
const BUSY_ITERATIONS_MAX: u32 = 32;
/// Tokens from here on are listeners; tokens below are slots of connections.
pub(super) const LISTENER_TOKENS: usize = usize::MAX - 16;
/// Token of the wake-up from other shards.
pub(super) const WAKER_TOKEN: Token = Token(LISTENER_TOKENS - 1);

/// The event loop of one shard, with its connections.
pub(super) struct EventLoop<S> {
    pub(super) queue: mio::Poll,
    pub(super) listeners: Vec<Listener>,
    pub(super) conns: Slab<Conn>,
    // The loop assigns the session IDs, so an unkeyed hash is safe.
    pub(super) slots: HashMap<SessionId, usize, FxBuildHasher>,
    pub(super) shard: S,
    pub(super) limits: ShardLimits,
    pub(super) shared: Arc<ProcessState>,
    pub(super) peers: Option<PeerShards>,
    pub(super) counters: LoopCounters,
    pub(super) read_queue: Vec<usize>,
    pub(super) write_queue: Vec<usize>,
    pub(super) read_batch: ReadBatch,
    pub(super) watch: ConnTimers,
    pub(super) admission: AdmissionControl,
    pub(super) accept_again: Option<Instant>,
    pub(super) serial: u64,
    /// The next iteration is due at once: the shard has output that only an iteration delivers.
    pub(super) needs_another_iteration: bool,
    /// Set when the shard is asked to stop: when it stops waiting for clients.
    pub(super) shutdown_deadline: Option<Instant>,
    pub(super) instant: Instant,
    /// The time of this iteration, as the shard receives it.
    pub(super) now: Now,
}

impl<S: ClientService> EventLoop<S> {
    /// Creates a loop without listeners.
    pub(super) fn new(
        queue: mio::Poll,
        shard: S,
        limits: ShardLimits,
        shared: Arc<ProcessState>,
        peers: Option<PeerShards>,
    ) -> Self {
        Self {
            queue,
            listeners: Vec::new(),
            conns: Slab::new(),
            slots: HashMap::default(),
            shard,
            limits,
            shared,
            peers,
            counters: LoopCounters::default(),
            read_queue: Vec::new(),
            write_queue: Vec::new(),
            read_batch: ReadBatch::default(),
            watch: ConnTimers::default(),
            admission: AdmissionControl::default(),
            accept_again: None,
            serial: 0,
            needs_another_iteration: false,
            shutdown_deadline: None,
            instant: Instant::now(),
            now: clock::now(),
        }
    }

    /// Runs until the shard is asked to stop and every reply is sent, or the time for that is over.
    ///
    /// Returns `()`: the future would otherwise move a large result on every poll.
    pub(super) async fn run(&mut self, mut control: mpsc::Receiver<Control>) -> std::io::Result<()> {
        let mut wake = WakeSources::new(&self.queue, self.wake_fds())?;
        let mut events = Events::with_capacity(EVENTS_MAX);
        let (mut deadline, mut busy_iterations) = (None, 0);
        loop {
            let event = if self.may_park(&events) {
                busy_iterations = 0;
                let event = poll_fn(|cx| wake.poll(cx, &mut control, deadline)).await;
                self.peers.iter().for_each(|peers| peers.mailbox.unpark());
                event
            } else {
                busy_iterations += 1;
                if busy_iterations % BUSY_ITERATIONS_MAX == 0 {
                    tokio::task::yield_now().await;
                }
                control.try_recv().ok()
            };
            if let Some(control) = event {
                self.handle_control(control)?;
            }
            match self.queue.poll(&mut events, Some(Duration::ZERO)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            deadline = self.run_once(&events);
            if self.may_end() {
                return Ok(());
            }
        }
    }

    /// The descriptors that wake an idle loop on completions; each production device has one.
    fn wake_fds(&self) -> Vec<RawFd> {
        self.shard.engines().filter_map(|engine| engine.device().wake_fd()).collect()
    }

    /// Closes all connections; the shard is closed next.
    pub(super) fn into_shard(self) -> S {
        self.shard
    }

    /// Prepares to block: announces to the other shards that they must wake this one. Returns `false` if work is left.
    fn may_park(&mut self, events: &Events) -> bool {
        // A full batch of events may hide more, whose edge is already consumed.
        let is_done = !self.needs_another_iteration && self.read_queue.is_empty() && events.iter().count() < EVENTS_MAX;
        is_done && self.peers.as_mut().is_none_or(|peers| peers.mailbox.prepare_park())
    }

    /// Runs one iteration; returns the time of the next one if no event arrives.
    fn run_once(&mut self, events: &Events) -> Option<Instant> {
        (self.instant, self.now) = (Instant::now(), clock::now());
        self.counters.iterations += 1;
        self.needs_another_iteration = false;
        let has_news = !events.is_empty()
            || !self.read_queue.is_empty()
            || self.shard.engines().any(|engine| engine.in_flight() > 0);
        self.note_events(events);
        self.receive_batches();
        // Taken out whole: connections that reading schedules again belong to the next iteration.
        let mut ready = std::mem::take(&mut self.read_queue);
        ready.drain(..).for_each(|slot| self.read(slot));
        self.execute_batch();
        ready.append(&mut self.read_queue);
        self.read_queue = ready;
        let store_due = self.shard.run_once(self.now);
        // Before writing to clients: the other shards work on these messages in the meantime.
        self.send_batches();
        while let Some(output) = self.shard.poll_output() {
            self.handle_output(&output);
        }
        let mut to_flush = std::mem::take(&mut self.write_queue);
        to_flush.drain(..).for_each(|slot| self.flush(slot));
        to_flush.append(&mut self.write_queue);
        self.write_queue = to_flush;
        self.expire();
        self.publish_stats(has_news);
        self.next_due(store_due)
    }

    fn note_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                Token(token) if token >= LISTENER_TOKENS => self.accept(token - LISTENER_TOKENS),
                WAKER_TOKEN => {}
                Token(slot) => {
                    let Some(conn) = self.conns.get_mut(slot) else { continue };
                    conn.flags.readable |= event.is_readable() || event.is_read_closed();
                    conn.flags.hung_up |= event.is_read_closed();
                    if conn.flags.readable {
                        self.schedule_read(slot);
                    }
                    if event.is_writable() && std::mem::take(&mut self.conns[slot].flags.blocked) {
                        self.schedule_write(slot);
                    }
                }
            }
        }
        if self.accept_again.is_some_and(|at| self.instant >= at) {
            self.accept_again = None;
            (0..self.listeners.len()).for_each(|listener| self.accept(listener));
        }
    }

    fn handle_output(&mut self, output: &ShardOutput) {
        let (ShardOutput::Writable(session) | ShardOutput::Resume(session) | ShardOutput::Close(session)) = output;
        let Some(&slot) = self.slots.get(session) else { return };
        match output {
            ShardOutput::Writable(_) => self.schedule_write(slot),
            ShardOutput::Resume(_) => self.schedule_read(slot),
            ShardOutput::Close(_) => self.end(slot),
        }
    }

    fn handle_control(&mut self, control: Control) -> std::io::Result<()> {
        match control {
            Control::Listen(listeners) => self.listen(listeners)?,
            Control::Report(answer) => {
                self.counters.connections = self.conns.len() as u64;
                self.counters.input_waiting = self.admission.queue.len() as u64;
                // The requester may have stopped waiting.
                let (server, node, now) = (self.counters, self.shard.status(), clock::now().mono);
                drop(answer.send(ShardReport { server, node, now }));
            }
            Control::Stop => self.stop(),
        }
        Ok(())
    }

    /// Registers a listener.
    fn listen(&mut self, mut listeners: Vec<Listener>) -> std::io::Result<()> {
        for (index, listener) in listeners.iter_mut().enumerate() {
            let token = Token(LISTENER_TOKENS + index);
            self.queue.registry().register(&mut listener.socket, token, Interest::READABLE)?;
        }
        self.listeners = listeners;
        Ok(())
    }

    pub(super) fn schedule_read(&mut self, slot: usize) {
        let flags = &mut self.conns[slot].flags;
        if !std::mem::replace(&mut flags.read_scheduled, true) {
            self.read_queue.push(slot);
        }
    }

    pub(super) fn schedule_write(&mut self, slot: usize) {
        let flags = &mut self.conns[slot].flags;
        if !std::mem::replace(&mut flags.write_scheduled, true) {
            self.write_queue.push(slot);
        }
    }

    fn next_due(&self, store_due: Option<MonoMs>) -> Option<Instant> {
        let store_due = store_due.map(|due| self.instant + Duration::from_millis(due.ms_since(self.now.mono)));
        let peers = self.peers.as_ref();
        // A shard without clients waits for other shards; it has no deadline of its own.
        let stop_by = self.shutdown_deadline.filter(|_| !peers.is_some_and(PeerShards::is_drained));
        let peers_due = peers.and_then(|peers| peers.next_due(self.instant));
        [store_due, self.accept_again, self.watch.next_due(), self.admission.check_at, stop_by, peers_due]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Event sources of an idle shard: sockets, devices, controller, next deadline.
struct WakeSources {
    sockets: AsyncFd<RawFd>,
    devices: Vec<AsyncFd<RawFd>>,
    sleep: std::pin::Pin<Box<Sleep>>,
}

impl WakeSources {
    #[expect(
        deprecated,
        reason = "its successor is an unsafe fn; queue and devices outlive this and keep the descriptors"
    )]
    fn new(queue: &mio::Poll, devices: Vec<RawFd>) -> std::io::Result<Self> {
        let sockets = AsyncFd::new(queue.as_raw_fd())?;
        let devices: std::io::Result<_> = devices.into_iter().map(AsyncFd::new).collect();
        Ok(Self { sockets, devices: devices?, sleep: Box::pin(tokio::time::sleep(Duration::ZERO)) })
    }

    /// Ready when an iteration is due. Polls every source, so that each holds this task's waker.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        control: &mut mpsc::Receiver<Control>,
        deadline: Option<Instant>,
    ) -> Poll<Option<Control>> {
        let mut woken = clear(&self.sockets, cx);
        for device in &self.devices {
            woken |= clear(device, cx);
        }
        if let Some(deadline) = deadline.map(tokio::time::Instant::from_std) {
            if self.sleep.deadline() != deadline {
                self.sleep.as_mut().reset(deadline);
            }
            woken |= self.sleep.as_mut().poll(cx).is_ready();
        }
        match control.poll_recv(cx) {
            Poll::Ready(Some(control)) => Poll::Ready(Some(control)),
            // The controller is gone: the process ends.
            Poll::Ready(None) => Poll::Ready(Some(Control::Stop)),
            Poll::Pending if woken => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Whether the descriptor became readable. Readiness is cleared before the check, so that a later event wakes again.
fn clear(descriptor: &AsyncFd<RawFd>, cx: &mut Context<'_>) -> bool {
    match descriptor.poll_read_ready(cx) {
        Poll::Ready(Ok(mut guard)) => {
            guard.clear_ready();
            true
        }
        _ => false,
    }
}

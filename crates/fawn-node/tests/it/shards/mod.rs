//! Harness of a node with several shards in one thread; the seed decides the delay of their message batches.
pub(crate) mod alone;
mod clients;
mod limits;

use crate::harness::engine_options;
use crate::test_harness::{Restarts, START, TestClient, TestHarness};
use fawn_ds::internals::Engine;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{
    ClientService, MessageBatch, Placement, ServerInfo, SessionId, Shard, ShardOptions, ShardOutput, ShardStatus,
};
use fawn_types::random::SplitMix64;
use fawn_types::{MonoMs, Now, ShardId};
use fawn_wire::Protocol;
use std::collections::{HashMap, VecDeque};

/// Maximum message batches in flight from one shard to another; more wait at the sender, as in a server.
const BATCHES_MAX: usize = 2;

/// Several shards as one host. A session's serial number determines its shard.
pub(crate) struct Several {
    shards: Vec<Shard<SimDevice>>,
    /// Batches in flight, by sender and receiver.
    ways: Vec<Vec<VecDeque<MessageBatch>>>,
    rng: SplitMix64,
    outputs: VecDeque<ShardOutput>,
    opened: usize,
    /// Length of the longest message batch in bytes.
    longest: usize,
}

pub(crate) type ShardsBed = TestHarness<Several, ShardOptions>;

/// A node with `count` shards.
pub(crate) fn harness(count: u16, sim: SimOptions, options: ShardOptions) -> ShardsBed {
    let disk = |at| SimDisk::new(SimOptions { seed: sim.seed * 64 + at, ..sim.clone() });
    on((0..u64::from(count)).map(disk).collect(), options, 8 << 20, sim.seed)
}

fn on(disks: Vec<SimDisk>, options: ShardOptions, memory_bytes: u64, seed: u64) -> ShardsBed {
    let count = disks.len();
    let open = |(at, disk): (usize, &SimDisk)| {
        let placement = Placement::new(ShardId(at as u16), count as u16).unwrap();
        let engine = engine_options(options.durability, memory_bytes);
        let (engine, _) = Engine::open(SimDevice::attach(disk), engine, START).unwrap();
        Shard::new(engine, placement, options, ServerInfo::default()).unwrap()
    };
    let shards = disks.iter().enumerate().map(open).collect();
    let ways = vec![vec![VecDeque::new(); count]; count];
    let host = Several { shards, ways, rng: SplitMix64::new(seed), outputs: VecDeque::new(), opened: 0, longest: 0 };
    let clients = HashMap::new();
    TestHarness { disks, host, now: START, clients, reads_replies: true, options, memory_bytes, turn_ms: 0 }
}

impl Restarts for ShardsBed {
    fn crash(self, seed: u64) -> Self {
        let Self { disks, host, options, memory_bytes, .. } = self;
        drop(host);
        disks.iter().zip(seed..).for_each(|(disk, seed)| disk.crash(seed));
        on(disks, options, memory_bytes, seed)
    }

    fn reopen(self) -> Self {
        let Self { disks, mut host, options, memory_bytes, .. } = self;
        let seed = host.rng.next();
        for shard in host.shards {
            drop(shard.into_engine().close().unwrap());
        }
        on(disks, options, memory_bytes, seed)
    }

    /// Without an iteration that no event asks for: a lost wake-up would end it.
    fn run_out(&mut self) {
        let is_sent = |client: &TestClient| client.input.is_empty() || client.closed;
        self.run_by_events(|harness| harness.host.is_idle() && harness.clients.values().all(is_sent));
        self.settle();
    }

    fn check_empty(&self) {
        self.host.check_empty();
    }
}

impl Several {
    fn shard(&self, session: SessionId) -> &Shard<SimDevice> {
        &self.shards[session.serial() as usize % self.shards.len()]
    }

    fn shard_mut(&mut self, session: SessionId) -> &mut Shard<SimDevice> {
        let at = session.serial() as usize % self.shards.len();
        &mut self.shards[at]
    }

    /// Checks that finished requests leave nothing behind.
    pub(crate) fn check_empty(&self) {
        for shard in &self.shards {
            assert!(shard.is_idle());
            let status = shard.status();
            let replies = status.replies;
            assert_eq!(
                (replies.held_bytes, replies.reserved_bytes, replies.waiting),
                (0, 0, 0),
                "the budget is free again"
            );
            assert_eq!(status.pending, 0, "no request waits");
        }
    }

    /// Runs one shard's iteration as a server does; each sender's batches arrive only in part.
    fn turn_of(&mut self, at: usize, now: Now) -> Option<MonoMs> {
        for from in 0..self.shards.len() {
            for _ in 0..self.rng.below(BATCHES_MAX as u64 + 1) {
                let Some(batch) = self.ways[from][at].pop_front() else { break };
                self.shards[at].handle_batch(now, ShardId(from as u16), batch);
            }
        }
        let due = self.shards[at].run_once(now);
        for to in (0..self.shards.len()).filter(|to| *to != at) {
            if self.ways[at][to].len() < BATCHES_MAX {
                let batch = self.shards[at].take_batch(ShardId(to as u16));
                self.longest = self.longest.max(batch.as_ref().map_or(0, MessageBatch::bytes));
                self.ways[at][to].extend(batch);
            }
        }
        self.outputs.extend(std::iter::from_fn(|| self.shards[at].poll_output()));
        due
    }
}

impl ShardsBed {
    /// Runs each shard as a server does: after a message, input or completion, or when its next iteration is due.
    pub(crate) fn run_by_events(&mut self, is_over: impl Fn(&Self) -> bool) {
        let count = self.host.shards.len();
        let mut due = vec![Some(self.now.mono); count];
        for _ in 0..100_000 {
            if is_over(self) {
                return;
            }
            let mut has_run = false;
            for (at, due) in due.iter_mut().enumerate() {
                let host = &self.host;
                let has_mail = (0..count).any(|from| !host.ways[from][at].is_empty());
                let is_woken = has_mail || host.shards[at].has_due_work() || host.shards[at].engine().in_flight() > 0;
                if is_woken || due.is_some_and(|due| due <= self.now.mono) {
                    let was_full = (0..count).any(|to| self.host.ways[at][to].len() >= BATCHES_MAX);
                    *due = self.host.turn_of(at, self.now);
                    // A server offers a batch that found a full queue again after a moment.
                    if was_full {
                        *due = Some(self.now.mono);
                    }
                    has_run = true;
                }
            }
            while let Some(output) = self.host.poll_output() {
                let (ShardOutput::Writable(id) | ShardOutput::Resume(id) | ShardOutput::Close(id)) = output;
                // Read input is an event, and so are taken replies of a connection whose input waits.
                let has_input = self.clients.get(&id).is_some_and(|client| !client.input.is_empty());
                let is_event = !matches!(output, ShardOutput::Writable(_)) || has_input;
                self.handle(output);
                if is_event {
                    due[id.serial() as usize % count] = Some(self.now.mono);
                }
            }
            if !has_run {
                let next = due.iter().flatten().min();
                let ms = next.map(|next| next.ms_since(self.now.mono));
                let ms = ms.unwrap_or_else(|| panic!("no event will come: {:#?}", self.host.shards[0].status()));
                self.now = self.now.plus_ms(ms.max(1));
            }
        }
        panic!("the shards do not come to an end: {:#?}", self.host.shards[0].status());
    }
}

impl ClientService for Several {
    type Device = SimDevice;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        self.opened += 1;
        let at = self.opened % self.shards.len();
        self.shards[at].open_session(protocol)
    }

    fn refuse_session(&mut self) {
        self.shards[0].refuse_session();
    }

    fn close_session(&mut self, session: SessionId) {
        self.shard_mut(session).close_session(session);
    }

    fn end_input(&mut self, session: SessionId) {
        self.shard_mut(session).end_input(session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        self.shard_mut(session).handle_input(now, session, input)
    }

    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        for (used, (session, input)) in used.iter_mut().zip(inputs) {
            *used = self.handle_input(now, *session, input);
        }
    }

    fn wants_input(&self, session: SessionId) -> bool {
        self.shard(session).wants_input(session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        self.shard(session).need_bytes(session)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        self.shard(session).output(session)
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        self.shard_mut(session).wrote(session, bytes);
    }

    fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        let first = self.rng.below(self.shards.len() as u64) as usize;
        for turn in 0..self.shards.len() {
            self.turn_of((first + turn) % self.shards.len(), now);
        }
        None
    }

    fn has_due_work(&self) -> bool {
        self.shards.iter().any(Shard::has_due_work)
    }

    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.outputs.pop_front()
    }

    fn is_idle(&self) -> bool {
        self.shards.iter().all(Shard::is_idle) && self.ways.iter().flatten().all(VecDeque::is_empty)
    }

    fn status(&self) -> ShardStatus {
        self.shards[0].status()
    }

    fn handle_batch(&mut self, _now: Now, from: ShardId, _batch: MessageBatch) {
        unreachable!("the batches of {from:?} are moved here")
    }

    fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        unreachable!("the batches for {to:?} are moved here")
    }

    fn set_peer_stats(&mut self, _others: ShardStatus) {}

    fn engines(&self) -> impl Iterator<Item = &Engine<SimDevice>> {
        self.shards.iter().map(Shard::engine)
    }
}

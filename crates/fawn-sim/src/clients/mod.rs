//! Clients: their connections and pipelines, and the histories of keys from the replies.
//!
//! Every written value is unique and every append adds a unique token, so a value read identifies its writes. A key
//! with a long history, or with several unanswered operations, is retired for a new one. That keeps the checker's
//! search small. Retired keys are read once more at the end.
mod across;
mod codec;
mod connection;
mod draw;

pub use connection::ServedCounts;
pub use draw::{LIFE_MS_MAX, LONG_VALUE_BYTES_MAX, MULTI_KEYS_MAX};

use crate::canary::Canary;
use crate::chain_time::{ChainTimes, TailTime};
use crate::history::{HistoryOperation, JudgedTime, KeyRequest, Observed};
use crate::scenario::Scenario;
use crate::seed::Seed;
use across::SizeReply;
use codec::{FoundValue, ReplyOutcome};
use connection::{ClientConnection, CommandKind, KeyOperation, PendingCommand};
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum operations of one key.
const OPERATIONS_MAX: usize = 120;
/// Maximum unanswered operations of one key: each may take effect anywhere, which doubles the search.
const UNKNOWN_MAX: usize = 5;
/// Maximum clears without a reply: each may take effect in the history of every key.
const OPEN_CLEARS_MAX: usize = 2;
/// Pause of a client that no server accepts, µs.
const RECONNECT_US: u64 = 1_000;

/// A key: its index among the keys in use, and the number of retired keys at that index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Index of the key; keys with odd indices hold counters.
    pub place: u32,
    /// Number of keys retired at this index.
    pub generation: u32,
}

impl Key {
    /// The key's bytes in the store. Some keys have a common tag, so that `MSET` finds them in one range.
    #[must_use]
    pub fn name(self) -> Vec<u8> {
        let tag = if self.place.is_multiple_of(4) { "{t}" } else { "" };
        format!("{tag}key{}.{}", self.place, self.generation).into_bytes()
    }

    /// The key with this name.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name).ok()?.trim_start_matches("{t}");
        let (place, generation) = text.strip_prefix("key")?.split_once('.')?;
        let key = Self { place: place.parse().ok()?, generation: generation.parse().ok()? };
        (key.name() == name).then_some(key)
    }

    const fn is_counter(self) -> bool {
        self.place % 2 == 1
    }
}

/// A scan of all keys in several steps.
#[derive(Clone, Debug)]
struct OpenScan {
    called_at: u64,
    times: Vec<TailTime>,
    cursor: u64,
    keys: BTreeSet<Key>,
}

/// An operation on all keys: each key sees it at a moment of its own.
#[derive(Clone, Debug)]
struct Sweep {
    called_at: u64,
    replied_at: u64,
    connection: u64,
    kind: SweepKind,
    /// Chain times of all ranges at the call and at the reply.
    times: (Vec<TailTime>, Option<Vec<TailTime>>),
}

#[derive(Clone, Debug)]
enum SweepKind {
    Clear(Observed),
    Scan(BTreeSet<Key>),
}

/// A client: one pipeline at a time.
#[derive(Clone, Debug)]
struct SimClient {
    idle_until_us: u64,
    connection: Option<ClientConnection>,
    scan: Option<OpenScan>,
}

/// All clients and the histories they observed.
#[derive(Clone, Debug)]
pub struct Clients {
    random: SplitMix64,
    canary: Option<Canary>,
    clients: Vec<SimClient>,
    connections: u64,
    generations: Vec<u32>,
    /// Generations before these may have lost writes.
    judged_from: Vec<u32>,
    think_us_max: u64,
    pipeline_max: u64,
    deletes_often: bool,
    /// One value in this many is long.
    values_per_long: u64,
    expires: bool,
    sorts: bool,
    /// Chain time of each range, which the world updates.
    pub times: ChainTimes,
    moment: u64,
    tokens: u64,
    histories: BTreeMap<Key, Vec<HistoryOperation>>,
    sweeps: Vec<Sweep>,
    sizes: Vec<SizeReply>,
    /// The value and version of each key that were read last: a swap expects these.
    seen: BTreeMap<Key, (Vec<u8>, u64)>,
    /// Length of the longest value, as replies to reads and appends showed it.
    pub value_bytes_seen: usize,
    /// The last complete answers to `SCAN` and `DBSIZE`.
    last_scan: Option<BTreeSet<Key>>,
    last_size: Option<u64>,
    /// Number of answered operations.
    pub answered: u64,
    /// Number of operations that may or may not have taken effect.
    pub unknown: u64,
    /// Number of answered requests on the whole keyspace.
    pub sweeps_answered: u64,
}

impl Clients {
    /// The clients of a run with this seed and scenario.
    #[must_use]
    pub fn new(seed: &Seed, scenario: &Scenario, times: ChainTimes, canary: Option<Canary>) -> Self {
        let client = SimClient { idle_until_us: 0, connection: None, scan: None };
        Self {
            random: seed.stream("clients"),
            canary,
            clients: vec![client; scenario.clients as usize],
            connections: 0,
            generations: vec![0; scenario.keys as usize],
            judged_from: vec![0; scenario.keys as usize],
            think_us_max: scenario.think_us_max,
            pipeline_max: scenario.pipeline_max,
            deletes_often: scenario.deletes_often,
            values_per_long: if scenario.is_narrow { 3 } else { 16 },
            expires: scenario.expires,
            sorts: scenario.sorts,
            times,
            moment: 0,
            tokens: 0,
            histories: BTreeMap::new(),
            sweeps: Vec::new(),
            sizes: Vec::new(),
            seen: BTreeMap::new(),
            value_bytes_seen: 0,
            last_scan: None,
            last_size: None,
            answered: 0,
            unknown: 0,
            sweeps_answered: 0,
        }
    }

    /// From now on pauses are up to so long, µs.
    pub fn think_longer(&mut self, think_us_max: u64) {
        self.think_us_max = self.think_us_max.max(think_us_max);
    }

    /// Number of clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are no clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// When the next bytes of a client arrive at its server, or the next idle client sends a pipeline unless `quiet`.
    #[must_use]
    pub fn next_us(&self, quiet: bool) -> Option<u64> {
        let next = |client: &SimClient| {
            let bytes = client.connection.as_ref().and_then(ClientConnection::next_us);
            let idle = (!quiet && !client.is_waiting()).then_some(client.idle_until_us);
            bytes.into_iter().chain(idle).min()
        };
        self.clients.iter().filter_map(next).min()
    }

    /// Whether `client` sends a pipeline now.
    #[must_use]
    pub fn is_due(&self, client: usize, now_us: u64) -> bool {
        let client = &self.clients[client];
        !client.is_waiting() && client.idle_until_us <= now_us
    }

    /// Whether `client` waits for a reply.
    #[must_use]
    pub fn is_waiting(&self, client: usize) -> bool {
        self.clients[client].is_waiting()
    }

    /// Whether `client` has a connection.
    #[must_use]
    pub fn is_connected(&self, client: usize) -> bool {
        self.clients[client].connection.is_some()
    }

    /// The number of the connection of `client` among all of the run, and the commands served on it.
    #[must_use]
    pub fn served(&self, client: usize) -> Option<(u64, ServedCounts)> {
        self.clients[client].connection.as_ref().map(|connection| (connection.number, connection.served))
    }

    /// Connects `client`; returns the protocol of the connection.
    pub fn connect(&mut self, client: usize) -> Protocol {
        let protocol = if self.random.chance(1, 3) { Protocol::Memcached } else { Protocol::Resp };
        self.connections += 1;
        self.clients[client].connection = Some(ClientConnection::new(protocol, self.connections));
        protocol
    }

    /// Whether `client` is connected with a protocol that has `SCAN`.
    #[must_use]
    pub fn has_scan(&self, client: usize) -> bool {
        self.clients[client].connection.as_ref().is_some_and(|connection| connection.protocol == Protocol::Resp)
    }

    /// No server accepts `client`: it tries again later.
    pub fn withdraw(&mut self, client: usize, now_us: u64) {
        self.clients[client].idle_until_us = now_us + RECONNECT_US;
    }

    /// Whether `client` now closes its connection although replies are outstanding.
    #[must_use]
    pub fn is_abandoning(&self, client: usize, now_us: u64) -> bool {
        let connection = self.clients[client].connection.as_ref().filter(|connection| connection.is_waiting());
        connection.is_some_and(|connection| connection.abandon_us.is_some_and(|at| at <= now_us))
    }

    /// The next bytes of `client` that have arrived at its server.
    pub fn arrive(&mut self, client: usize, now_us: u64) -> Option<Vec<u8>> {
        self.clients[client].connection.as_mut()?.arrive(now_us)
    }

    /// The connection of `client` is lost. Commands that had not reached the server whole take no effect.
    pub fn lose(&mut self, client: usize, now_us: u64) {
        self.clients[client].scan = None;
        let Some(connection) = self.clients[client].connection.take() else { return };
        self.clients[client].idle_until_us = now_us + 1 + self.random.below(self.think_us_max);
        for command in &connection.pending {
            if !connection.is_delivered(command) {
                continue;
            }
            let outcome = match command.kind {
                CommandKind::FlushAll => ReplyOutcome::Flushed(Observed::Unknown),
                _ => ReplyOutcome::Each(vec![Observed::Unknown; command.ops.len()]),
            };
            let ended = self.end(client, connection.number, command, outcome);
            assert!(ended.is_ok(), "an outcome without a reply contradicts nothing");
        }
    }

    /// `client` receives bytes from its server.
    ///
    /// # Errors
    /// If no correct cluster can send them.
    pub fn receive(&mut self, client: usize, now_us: u64, bytes: &[u8]) -> Result<(), String> {
        let mut bytes = bytes.to_vec();
        let Some(connection) = self.clients[client].connection.as_mut() else {
            return Err(format!("client {client} receives bytes without a connection"));
        };
        if self.canary == Some(Canary::RepliesSwapped)
            && connection.protocol == Protocol::Resp
            && self.random.chance(1, 16)
        {
            connection::swap_replies(&mut bytes);
        }
        connection.push(&bytes);
        let number = connection.number;
        while let Some((command, outcome, values)) = self.next_reply(client)? {
            self.note_versions(&command, &values);
            self.end(client, number, &command, outcome)?;
            let pause_us = 1 + self.random.below(self.think_us_max);
            let client = &mut self.clients[client];
            client.idle_until_us = client.idle_until_us.max(now_us) + pause_us;
        }
        Ok(())
    }

    fn next_reply(&mut self, client: usize) -> Result<Option<(PendingCommand, ReplyOutcome, Vec<FoundValue>)>, String> {
        let Some(connection) = self.clients[client].connection.as_mut() else { return Ok(None) };
        connection.next_reply().map_err(|error| format!("client {client}: {error}"))
    }

    fn note_versions(&mut self, command: &PendingCommand, values: &[FoundValue]) {
        for FoundValue { key, version, value } in values {
            let op = command.ops.iter().find(|op| op.key.name() == *key);
            if let (Some(op), Some(version)) = (op, version) {
                self.seen.insert(op.key, (value.clone(), *version));
            }
        }
    }

    /// Ends a command with its outcome.
    fn end(
        &mut self,
        client: usize,
        connection: u64,
        command: &PendingCommand,
        outcome: ReplyOutcome,
    ) -> Result<(), String> {
        match outcome {
            ReplyOutcome::Each(observed) => {
                let batch = if command.kind == CommandKind::SetAll { command.called_at } else { 0 };
                let is_torn = batch > 0 && self.canary == Some(Canary::BatchTorn);
                for (op, observed) in command.ops.iter().zip(observed) {
                    self.end_op(connection, op, if is_torn { Observed::Unknown } else { observed }, batch);
                }
            }
            ReplyOutcome::Flushed(observed) => {
                let (called_at, replied_at) = (command.called_at, self.answer_moment(&observed));
                let is_answered = observed != Observed::Unknown;
                self.sweeps_answered += u64::from(is_answered);
                let times = (command.times.clone(), is_answered.then(|| self.times.all()));
                self.sweeps.push(Sweep { called_at, replied_at, connection, kind: SweepKind::Clear(observed), times });
            }
            ReplyOutcome::Size(size) => {
                self.sweeps_answered += u64::from(size.is_some());
                self.last_size = size;
                if let Some(size) = size {
                    self.moment += 1;
                    let is_low = self.canary == Some(Canary::SizeTooLow);
                    let size = size.saturating_sub(u64::from(is_low));
                    self.sizes.push(SizeReply { called_at: command.called_at, replied_at: self.moment, size });
                }
                if let Some(size) = size.filter(|size| !self.sorts && *size > self.keys_ever()) {
                    return Err(format!("DBSIZE counts {size} keys, but only {} were ever used", self.keys_ever()));
                }
            }
            ReplyOutcome::Scanned(page) => self.end_scan_step(client, page),
        }
        Ok(())
    }

    fn end_scan_step(&mut self, client: usize, page: Option<(u64, Vec<Key>)>) {
        let Some(mut scan) = self.clients[client].scan.take() else { return };
        let Some((cursor, keys)) = page else { return }; // A failed scan shows nothing.
        scan.keys.extend(keys);
        scan.cursor = cursor;
        if scan.cursor != 0 {
            self.clients[client].scan = Some(scan);
            return;
        }
        self.moment += 1;
        self.sweeps_answered += 1;
        self.last_scan = Some(scan.keys.clone());
        let (called_at, replied_at) = (scan.called_at, self.moment);
        let times = (scan.times, Some(self.times.all()));
        self.sweeps.push(Sweep { called_at, replied_at, connection: 0, kind: SweepKind::Scan(scan.keys), times });
    }

    fn answer_moment(&mut self, observed: &Observed) -> u64 {
        self.moment += 1;
        let is_unknown = *observed == Observed::Unknown;
        *(if is_unknown { &mut self.unknown } else { &mut self.answered }) += 1;
        if is_unknown { u64::MAX } else { self.moment }
    }

    fn end_op(&mut self, connection: u64, op: &KeyOperation, observed: Observed, batch: u64) {
        let KeyOperation { key, request, called_at, time } = op.clone();
        let value_bytes = match &observed {
            Observed::Value(Some(value)) => value.len(),
            Observed::Number(length) if !key.is_counter() => *length as usize,
            _ => 0,
        };
        self.value_bytes_seen = self.value_bytes_seen.max(value_bytes);
        if observed == Observed::Unknown && request == KeyRequest::Read {
            return; // An unanswered read proves nothing.
        }
        if key.generation < self.judged_from[key.place as usize] {
            return;
        }
        let replied_at = self.answer_moment(&observed);
        let history = self.histories.entry(key).or_default();
        let answered_time = (replied_at != u64::MAX).then(|| self.times.of(&key.name()));
        let time = JudgedTime::between(time, answered_time);
        history.push(HistoryOperation { called_at, replied_at, request, observed, connection, time, batch });
        let unknowns = history.iter().filter(|operation| operation.observed == Observed::Unknown).count();
        let generation = &mut self.generations[key.place as usize];
        if *generation == key.generation && (history.len() >= OPERATIONS_MAX || unknowns >= UNKNOWN_MAX) {
            *generation += 1;
        }
    }

    /// A possible loss was reported: the keys used so far are not checked.
    pub fn forgive(&mut self) {
        self.histories.clear();
        for generation in &mut self.generations {
            *generation += 1;
        }
        self.judged_from.clone_from(&self.generations);
    }

    /// Every key with operations to check.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.histories.keys().copied()
    }

    /// Every key's history, with the operations on all keys that may have met it. A write of an `MSET` counts as
    /// answered once any of its values was read.
    pub fn histories(&self) -> impl Iterator<Item = (Key, Vec<HistoryOperation>)> {
        let seen = self.batches_seen();
        self.histories.iter().map(move |(key, history)| {
            let mut history = self.with_sweeps(*key, history);
            for operation in &mut history {
                if let Some(moment) = seen.get(&operation.batch).filter(|moment| **moment < operation.replied_at) {
                    if operation.observed == Observed::Unknown {
                        // Later operations of its connection did not wait for it.
                        (operation.observed, operation.connection) = (Observed::Done, 0);
                    }
                    operation.replied_at = *moment;
                }
            }
            (*key, history)
        })
    }

    fn with_sweeps(&self, key: Key, history: &[HistoryOperation]) -> Vec<HistoryOperation> {
        let first = history.iter().map(|operation| operation.called_at).min().unwrap_or_default();
        let place = self.times.place(&key.name());
        let met = self.sweeps.iter().map(|sweep| {
            let (request, observed) = match &sweep.kind {
                SweepKind::Clear(observed) => (KeyRequest::Delete, observed.clone()),
                SweepKind::Scan(keys) => (KeyRequest::Exists, Observed::DoneIf(keys.contains(&key))),
            };
            let Sweep { called_at, replied_at, connection, times: (before, after), .. } = sweep;
            let time = JudgedTime::between(before[place], after.as_ref().map(|after| after[place]));
            HistoryOperation {
                called_at: *called_at,
                replied_at: *replied_at,
                request,
                observed,
                connection: *connection,
                time,
                batch: 0,
            }
        });
        // Before its first operation the key was absent.
        let met = met.filter(|operation| operation.replied_at > first || operation.observed == Observed::DoneIf(true));
        history.iter().cloned().chain(met).collect()
    }

    /// A key that no client uses yet: a read of it waits for no update of its own client.
    #[must_use]
    pub fn unused_key(&self) -> Key {
        Key { place: 0, generation: self.generations[0] + 1 }
    }

    /// Number of keys used so far.
    #[must_use]
    pub fn keys_ever(&self) -> u64 {
        self.generations.iter().map(|generation| u64::from(*generation) + 1).sum()
    }

    /// Abandons scans that have not ended: the pages received may be older than keys created since.
    pub fn abandon_scans(&mut self) {
        self.clients.iter_mut().for_each(|client| client.scan = None);
    }

    /// The last complete answers to `SCAN` and `DBSIZE`, which are forgotten.
    pub fn take_sweeps(&mut self) -> (Option<BTreeSet<Key>>, Option<u64>) {
        (self.last_scan.take(), self.last_size.take())
    }

    /// The keys whose last operation was a read of a value.
    #[must_use]
    pub fn present(&self) -> BTreeSet<Key> {
        let is_present = |history: &Vec<HistoryOperation>| {
            history.last().is_some_and(|operation| matches!(operation.observed, Observed::Value(Some(_))))
        };
        self.histories.iter().filter(|(_, history)| is_present(history)).map(|(key, _)| *key).collect()
    }

    /// Whether this key's history is checked.
    #[must_use]
    pub fn is_judged(&self, key: Key) -> bool {
        self.histories.contains_key(&key)
    }
}

impl SimClient {
    fn is_waiting(&self) -> bool {
        self.connection.as_ref().is_some_and(ClientConnection::is_waiting)
    }
}

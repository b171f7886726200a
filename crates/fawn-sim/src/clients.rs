//! Logical clients: their next requests, and the histories of keys from the replies.
//!
//! Every written value is unique and every append adds a unique token, so a value read identifies its writes. A key
//! with a long history, or with several unanswered operations, is retired for a new one. That keeps the checker's
//! search small. Retired keys are read once more at the end.
use crate::history::{HistoryOperation, KeyRequest, Observed};
use crate::scenario::Scenario;
use crate::seed::Seed;
use fawn_types::random::SplitMix64;
use fawn_types::{Condition, Expiry, OperationError, Reply, Request, Update, Version};
use std::collections::BTreeMap;

/// Maximum operations of one key.
const OPERATIONS_MAX: usize = 120;
/// Maximum unanswered operations of one key: each may take effect anywhere, which doubles the search.
const UNKNOWN_MAX: usize = 5;

/// A key: its index among the keys in use, and the number of retired keys at that index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Index of the key; keys with odd indices hold counters.
    pub place: u32,
    /// Number of keys retired at this index.
    pub generation: u32,
}

impl Key {
    /// The key's bytes in the store.
    #[must_use]
    pub fn name(self) -> Vec<u8> {
        format!("key{}.{}", self.place, self.generation).into_bytes()
    }

    const fn is_counter(self) -> bool {
        self.place % 2 == 1
    }
}

/// One operation in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingOperation {
    /// The operation's key.
    pub key: Key,
    /// The request.
    pub ask: KeyRequest,
    /// When it was called, by the histories' counter.
    pub called: u64,
    /// The version that a swap expects.
    pub version: Version,
}

/// A logical client: one operation at a time.
#[derive(Clone, Debug)]
struct SimClient {
    idle_until_us: u64,
    waiting: Option<WaitingOperation>,
}

/// All clients and the histories they observed.
#[derive(Clone, Debug)]
pub struct Clients {
    random: SplitMix64,
    clients: Vec<SimClient>,
    generations: Vec<u32>,
    /// Generations before these may have lost writes.
    judged_from: Vec<u32>,
    think_us_max: u64,
    deletes_often: bool,
    moment: u64,
    tokens: u64,
    histories: BTreeMap<Key, Vec<HistoryOperation>>,
    /// The value and version of each key that were read last: a swap expects these.
    seen: BTreeMap<Key, (Vec<u8>, Version)>,
    /// Number of answered operations.
    pub answered: u64,
    /// Number of operations that may or may not have taken effect.
    pub unknown: u64,
}

impl Clients {
    /// The clients of a run with this seed and scenario.
    #[must_use]
    pub fn new(seed: &Seed, scenario: &Scenario) -> Self {
        let client = SimClient { idle_until_us: 0, waiting: None };
        Self {
            random: seed.stream("clients"),
            clients: vec![client; scenario.clients as usize],
            generations: vec![0; scenario.keys as usize],
            judged_from: vec![0; scenario.keys as usize],
            think_us_max: scenario.think_us_max,
            deletes_often: scenario.deletes_often,
            moment: 0,
            tokens: 0,
            histories: BTreeMap::new(),
            seen: BTreeMap::new(),
            answered: 0,
            unknown: 0,
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

    /// When the next idle client sends a request.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        let idle = self.clients.iter().filter(|client| client.waiting.is_none());
        idle.map(|client| client.idle_until_us).min()
    }

    /// Whether `client` sends a request now.
    #[must_use]
    pub fn is_due(&self, client: usize, now_us: u64) -> bool {
        let client = &self.clients[client];
        client.waiting.is_none() && client.idle_until_us <= now_us
    }

    /// Whether `client` has an operation in flight.
    #[must_use]
    pub fn is_waiting(&self, client: usize) -> bool {
        self.clients[client].waiting.is_some()
    }

    /// Begins the next operation of `client`, which the caller sends.
    pub fn begin(&mut self, client: usize) -> WaitingOperation {
        assert!(!self.is_waiting(client), "one operation at a time");
        let place = self.random.below(self.generations.len() as u64) as u32;
        let key = Key { place, generation: self.generations[place as usize] };
        let ask = self.draw(key);
        self.begin_with(client, key, ask)
    }

    /// Begins a read of `key` by `client`.
    pub fn begin_read(&mut self, client: usize, key: Key) -> WaitingOperation {
        self.begin_with(client, key, KeyRequest::Read)
    }

    fn begin_with(&mut self, client: usize, key: Key, ask: KeyRequest) -> WaitingOperation {
        self.moment += 1;
        let version = self.seen.get(&key).map_or(Version::ZERO, |(_, version)| *version);
        let waiting = WaitingOperation { key, ask, called: self.moment, version };
        self.clients[client].waiting = Some(waiting.clone());
        waiting
    }

    /// Drops an operation that the front-end rejected; the client sends another one later.
    pub fn withdraw(&mut self, client: usize, now_us: u64) {
        self.clients[client].waiting = None;
        self.clients[client].idle_until_us = now_us + 1_000;
    }

    /// Ends the operation of `client` with its reply, or with `None` if there will be no reply.
    ///
    /// # Errors
    /// If no correct cluster can give this reply.
    pub fn end(&mut self, client: usize, now_us: u64, reply: Option<&Reply<'_>>) -> Result<(), String> {
        let pause_us = 1 + self.random.below(self.think_us_max);
        let slot = &mut self.clients[client];
        let Some(WaitingOperation { key, ask, called, .. }) = slot.waiting.take() else { return Ok(()) };
        slot.idle_until_us = now_us + pause_us;
        if let (KeyRequest::Read, Some(Reply::Value(entry))) = (&ask, reply) {
            self.seen.insert(key, (entry.value.to_vec(), entry.version));
        }
        let heard = match reply {
            Some(reply) => heard(&ask, reply).map_err(|error| format!("{key:?}: {error}"))?,
            None => Observed::Unknown,
        };
        if heard == Observed::Unknown && ask == KeyRequest::Read {
            return Ok(()); // An unanswered read proves nothing.
        }
        if key.generation < self.judged_from[key.place as usize] {
            return Ok(());
        }
        self.moment += 1;
        let unknown = heard == Observed::Unknown;
        let answered = if unknown { u64::MAX } else { self.moment };
        *(if unknown { &mut self.unknown } else { &mut self.answered }) += 1;
        let history = self.histories.entry(key).or_default();
        history.push(HistoryOperation { called, answered, ask, heard });
        let unknowns = history.iter().filter(|operation| operation.heard == Observed::Unknown).count();
        let generation = &mut self.generations[key.place as usize];
        if *generation == key.generation && (history.len() >= OPERATIONS_MAX || unknowns >= UNKNOWN_MAX) {
            *generation += 1;
        }
        Ok(())
    }

    /// A possible loss was reported: the keys used so far are not checked.
    pub fn forgive(&mut self) {
        self.histories.clear();
        for generation in &mut self.generations {
            *generation += 1;
        }
        self.judged_from.clone_from(&self.generations);
    }

    /// Every key's history.
    #[must_use]
    pub const fn histories(&self) -> &BTreeMap<Key, Vec<HistoryOperation>> {
        &self.histories
    }

    fn draw(&mut self, key: Key) -> KeyRequest {
        // Frequent deletes reveal deleted values that reappear.
        if self.deletes_often && self.random.chance(1, 3) {
            return KeyRequest::Delete;
        }
        let drawn = self.random.below(100);
        if key.is_counter() {
            return match drawn {
                0..40 => KeyRequest::Read,
                40..95 => KeyRequest::Add(1 + self.random.below(9) as i64),
                _ => KeyRequest::Delete,
            };
        }
        match drawn {
            0..40 => KeyRequest::Read,
            40..55 => KeyRequest::Write(self.token()),
            55..78 => KeyRequest::Append(self.token()),
            78..86 => KeyRequest::Delete,
            86..93 => KeyRequest::WriteIfAbsent(self.token()),
            _ => self.swap(key),
        }
    }

    /// A compare-and-swap against the value that any client read last. Often the value has changed since.
    fn swap(&mut self, key: Key) -> KeyRequest {
        let new = self.token();
        match self.seen.get(&key) {
            Some((expected, _)) => KeyRequest::Swap { expected: expected.clone(), new },
            None => KeyRequest::WriteIfAbsent(new),
        }
    }

    fn token(&mut self) -> Vec<u8> {
        self.tokens += 1;
        // Some values are long, so that records span pages and frames span pieces.
        let fill = if self.random.chance(1, 16) { self.random.below(6_000) as usize } else { 0 };
        let mut token = format!("<{}>", self.tokens).into_bytes();
        token.resize(token.len() + fill, b'.');
        token
    }
}

impl WaitingOperation {
    /// The request to send; `name` is the key's name.
    #[must_use]
    pub fn request<'a>(&'a self, name: &'a [u8]) -> Request<'a> {
        let set = |value, condition| Update::Set {
            value,
            flags: 0,
            expiry: Expiry::Never,
            condition,
            return_previous: false,
        };
        let update = match &self.ask {
            KeyRequest::Read => return Request::Get { key: name },
            KeyRequest::Write(value) => set(value, Condition::Always),
            KeyRequest::WriteIfAbsent(value) => set(value, Condition::Absent),
            KeyRequest::Swap { new, .. } => set(new, Condition::VersionIs(self.version)),
            KeyRequest::Append(bytes) => Update::Append { bytes, create: true, condition: Condition::Always },
            KeyRequest::Add(delta) => Update::AddSigned { delta: *delta },
            KeyRequest::Delete => Update::Delete { condition: Condition::Always, return_previous: false },
        };
        Request::Update { key: name, update }
    }
}

/// Whether an error means "try again": then the write may or may not have taken effect.
const fn is_open(error: &OperationError) -> bool {
    use OperationError::{Overloaded, StoreFull, TooFewCopies, Unavailable};
    matches!(error, Unavailable | Overloaded | StoreFull | TooFewCopies)
}

/// The outcome that a reply means for the client.
fn heard(ask: &KeyRequest, reply: &Reply<'_>) -> Result<Observed, String> {
    Ok(match (ask, reply) {
        (_, Reply::Error(error)) if is_open(error) => Observed::Unknown,
        (KeyRequest::Read, Reply::Value(entry)) => Observed::Value(Some(entry.value.to_vec())),
        (KeyRequest::Read, Reply::Absent) => Observed::Value(None),
        (KeyRequest::Write(_), Reply::Stored { .. }) => Observed::Done,
        (KeyRequest::Append(_), Reply::Stored { value_bytes, .. }) => Observed::Number(i64::from(*value_bytes)),
        (KeyRequest::Add(_), Reply::Signed(sum)) => Observed::Number(*sum),
        (KeyRequest::Delete, Reply::Deleted)
        | (KeyRequest::WriteIfAbsent(_), Reply::Stored { .. })
        | (KeyRequest::Swap { .. }, Reply::Stored { .. }) => Observed::DoneIf(true),
        (KeyRequest::Delete | KeyRequest::Swap { .. }, Reply::NotFound)
        | (KeyRequest::WriteIfAbsent(_) | KeyRequest::Swap { .. }, Reply::NotStored)
        | (KeyRequest::Swap { .. }, Reply::VersionMismatch) => Observed::DoneIf(false),
        _ => return Err(format!("{ask:?} was answered {reply:?}")),
    })
}

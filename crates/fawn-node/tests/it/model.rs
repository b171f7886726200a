//! Model test: random commands of several sessions on few keys, over a device that completes in any order.
//!
//! Every key's history must be linearizable, with each session in program order, and must survive crashes. The checker
//! visits all orders of a key's operations that respect each session's order and real time. It collects the states that
//! the key may be in, which are the initial states of the next round, also after a crash.
use crate::harness::{ShardHarness, resp, shard_options};
use crate::shards::{self, Several};
use crate::test_harness::{Restarts, TestHarness, seeds};
use fawn_flash::SimOptions;
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, Version};
use fawn_wire::Protocol;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Two pairs of keys, each with a common tag.
const KEYS: [&str; 4] = ["{1}a", "{1}b", "{2}c", "{2}d"];
const SESSIONS: usize = 3;

/// The operation of a command on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Op {
    Get,
    Set(String),
    SetNx(String),
    GetSet(String),
    GetEx,
    Append(String),
    Incr,
    Del,
    GetDel,
    Flush,
}

type State = Option<String>;

/// The model: returns the state afterwards, and the reply.
fn apply(state: &State, op: &Op) -> (State, String) {
    let bulk = |state: &State| state.as_ref().map_or("$-1".to_owned(), |value| format!("${value}"));
    let flag = |is_set: bool| format!(":{}", u8::from(is_set));
    match op {
        Op::Get | Op::GetEx => (state.clone(), bulk(state)),
        Op::Set(value) => (Some(value.clone()), "+OK".to_owned()),
        Op::Flush => (None, "+OK".to_owned()),
        Op::SetNx(value) => (state.clone().or_else(|| Some(value.clone())), flag(state.is_none())),
        Op::GetSet(value) => (Some(value.clone()), bulk(state)),
        Op::Append(value) => {
            let joined = state.clone().unwrap_or_default() + value;
            let reply = format!(":{}", joined.len());
            (Some(joined), reply)
        }
        Op::Incr => match state.as_deref().unwrap_or("0").parse::<i64>() {
            Ok(number) => (Some((number + 1).to_string()), format!(":{}", number + 1)),
            Err(_) => (state.clone(), "-".to_owned()),
        },
        Op::Del => (None, flag(state.is_some())),
        Op::GetDel => (None, bulk(state)),
    }
}

/// An operation on one key in a history. `reply` is `None` if none was received.
#[derive(Clone, Debug)]
struct ModelEvent {
    op: Op,
    sent: u64,
    heard: u64,
    reply: Option<String>,
}

/// A command in flight, with its operation on each key.
struct ModelCommand {
    parts: Vec<(usize, Op)>,
    sent: u64,
    /// Whether its reply is a list with one element per part.
    is_list: bool,
    /// Whether it may be refused: an error says that it had no effect.
    may_fail: bool,
}

/// Orders of one key's operations, one list per session.
struct Checker<'a> {
    sessions: &'a [Vec<ModelEvent>],
    seen: HashSet<(Vec<usize>, State)>,
    finals: BTreeSet<State>,
}

impl Checker<'_> {
    /// Visits every continuation from `at`.
    fn walk(&mut self, at: &mut Vec<usize>, state: &State) {
        if !self.seen.insert((at.clone(), state.clone())) {
            return;
        }
        let rest = |i: usize, at: &[usize]| self.sessions[i].get(at[i]);
        if (0..at.len()).all(|i| rest(i, at).is_none_or(|event| event.reply.is_none())) {
            self.finals.insert(state.clone());
        }
        // An operation whose reply arrived before another was sent comes first.
        let first_heard = (0..at.len()).filter_map(|i| rest(i, at)).map(|event| event.heard).min();
        for i in 0..at.len() {
            let Some(event) = self.sessions[i].get(at[i]).cloned() else { continue };
            if first_heard.is_some_and(|heard| heard < event.sent) {
                continue;
            }
            let (after, reply) = apply(state, &event.op);
            if event.reply.is_none_or(|heard| heard == reply) {
                at[i] += 1;
                self.walk(at, &after);
                at[i] -= 1;
            }
        }
    }
}

/// The states that a key may be in after a round; an empty set means that the history is not linearizable.
fn finals(sessions: &[Vec<ModelEvent>], before: &BTreeSet<State>) -> BTreeSet<State> {
    let mut checker = Checker { sessions, seen: HashSet::new(), finals: BTreeSet::new() };
    for state in before {
        checker.walk(&mut vec![0; sessions.len()], state);
    }
    checker.finals
}

/// The first complete reply of `bytes` in short form, and the remaining bytes.
fn reply(bytes: &[u8]) -> Option<(Vec<String>, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = std::str::from_utf8(&bytes[..end]).unwrap();
    let rest = &bytes[end + 2..];
    match line.as_bytes()[0] {
        b'$' if line != "$-1" => {
            let len: usize = line[1..].parse().unwrap();
            let value = rest.get(..len)?;
            Some((vec![format!("${}", std::str::from_utf8(value).unwrap())], rest.get(len + 2..)?))
        }
        b'*' => {
            let (mut replies, mut rest) = (Vec::new(), rest);
            for _ in 0..line[1..].parse::<usize>().unwrap() {
                let (element, after) = reply(rest)?;
                replies.extend(element);
                rest = after;
            }
            Some((replies, rest))
        }
        b'-' => Some((vec!["-".to_owned()], rest)),
        _ => Some((vec![line.to_owned()], rest)),
    }
}

/// One run: rounds of load, each of which ends idle, with a reopening or with a crash.
struct ModelRun<H> {
    rng: SplitMix64,
    harness: TestHarness<H, ShardOptions>,
    /// Keys are on several shards, so `MSET` is sent for keys of one tag only.
    is_split: bool,
    /// Many values are longer than a grant, clients read slowly, and some leave.
    is_tight: bool,
    clock: u64,
    values: u64,
    ids: Vec<SessionId>,
    under_way: HashMap<SessionId, Vec<ModelCommand>>,
    /// Events by key and session.
    history: Vec<Vec<Vec<ModelEvent>>>,
    states: Vec<BTreeSet<State>>,
}

fn sim(seed: u64) -> SimOptions {
    SimOptions { seed, latency_ticks: 0..=6, ..SimOptions::default() }
}

fn durability(seed: u64) -> Durability {
    [Durability::Sync, Durability::EverySecond, Durability::Memory][(seed % 3) as usize]
}

impl<H: ClientService> ModelRun<H>
where
    TestHarness<H, ShardOptions>: Restarts,
{
    fn new(seed: u64, harness: TestHarness<H, ShardOptions>, is_split: bool) -> Self {
        let states = vec![BTreeSet::from([None]); KEYS.len()];
        let (ids, under_way, history) = (Vec::new(), HashMap::new(), Vec::new());
        let rng = SplitMix64::new(seed);
        Self { rng, harness, is_split, is_tight: false, clock: 0, values: 0, ids, under_way, history, states }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        if self.is_tight && self.rng.below(2) == 0 {
            let bytes = [300, 600, 3000, 9000, 20_000, 40_000][self.rng.below(6) as usize];
            return format!("v{}{}", self.values, "x".repeat(bytes));
        }
        match self.rng.below(3) {
            0 => self.values.to_string(),
            // Some values are longer than a page, so their records take a second read.
            1 if self.rng.below(8) == 0 => format!("v{}{}", self.values, "x".repeat(9000)),
            _ => format!("v{}", self.values),
        }
    }

    /// A random command, as protocol text and as operations of the model.
    fn command(&mut self) -> (String, Vec<(usize, Op)>, bool) {
        let (i, mut j) = (self.rng.below(4) as usize, self.rng.below(4) as usize);
        let (key, value) = (KEYS[i], self.value());
        let one = |line: String, op: Op| (line, vec![(i, op)], false);
        if self.is_tight && self.rng.below(4) == 0 {
            return match self.rng.below(6) {
                4 => one(format!("GETEX {key} EX 1000"), Op::GetEx),
                0 => one(format!("GETSET {key} {value}"), Op::GetSet(value)),
                1 => one(format!("GETDEL {key}"), Op::GetDel),
                2 => {
                    // Each key once: the items of one request have no order.
                    let parts: Vec<(usize, Op)> = (0..KEYS.len()).map(|at| ((at + i) % KEYS.len(), Op::Get)).collect();
                    let keys: Vec<&str> = parts.iter().map(|(at, _)| KEYS[*at]).collect();
                    (format!("MGET {}", keys.join(" ")), parts, true)
                }
                _ => one(format!("APPEND {key} {value}"), Op::Append(value)),
            };
        }
        match self.rng.below(16) {
            0..=3 => one(format!("GET {key}"), Op::Get),
            4..=6 => one(format!("SET {key} {value}"), Op::Set(value)),
            7 => one(format!("SETNX {key} {value}"), Op::SetNx(value)),
            8 => one(format!("GETSET {key} {value}"), Op::GetSet(value)),
            9 => one(format!("APPEND {key} {value}"), Op::Append(value)),
            10 => one(format!("INCR {key}"), Op::Incr),
            11 => one(format!("DEL {key}"), Op::Del),
            12 => one(format!("GETDEL {key}"), Op::GetDel),
            // Each key once: the items of one request have no order.
            13 if i != j => (format!("MGET {key} {}", KEYS[j]), vec![(i, Op::Get), (j, Op::Get)], true),
            14 if i != j => {
                j = if self.is_split { i ^ 1 } else { j };
                let line = format!("MSET {key} {value} {} {value}", KEYS[j]);
                (line, vec![(i, Op::Set(value.clone())), (j, Op::Set(value))], false)
            }
            15 if self.rng.below(4) == 0 => ("FLUSHALL".to_owned(), Vec::new(), false),
            _ => one(format!("GET {key}"), Op::Get),
        }
    }

    fn send(&mut self) {
        let id = self.ids[self.rng.below(self.ids.len() as u64) as usize];
        let (line, parts, is_list) = self.command();
        self.clock += 1;
        self.under_way.get_mut(&id).unwrap().push(ModelCommand {
            parts,
            sent: self.clock,
            is_list,
            may_fail: self.is_tight,
        });
        self.harness.send(id, &resp(&line));
    }

    /// Some clients leave without their replies, and some read slowly.
    fn disturb(&mut self) {
        if self.rng.below(20) == 0 {
            let at = self.rng.below(self.ids.len() as u64) as usize;
            let id = self.ids[at];
            self.listen();
            for command in self.under_way.remove(&id).unwrap() {
                note(&mut self.history, at, command, None);
            }
            self.harness.host.close_session(id);
            self.harness.clients.remove(&id);
            let id = self.harness.connect(Protocol::Resp);
            self.ids[at] = id;
            self.under_way.insert(id, Vec::new());
            // The session's history is of the one that has ended: the new one has a history of its own.
            let ended = self.history[0].len();
            for key in &mut self.history {
                key.push(Vec::new());
                key.swap(at, ended);
            }
        }
        self.harness.reads_replies = self.rng.below(3) == 0;
        self.take_all();
    }

    fn take_all(&mut self) {
        for id in self.ids.clone() {
            self.harness.take(id);
        }
    }

    /// Reads the replies that have arrived.
    fn listen(&mut self) {
        self.clock += 1;
        for (at, &id) in self.ids.iter().enumerate() {
            let client = self.harness.clients.get_mut(&id).unwrap();
            let received = std::mem::take(&mut client.received);
            let mut rest = received.as_slice();
            while let Some((replies, after)) = reply(rest) {
                rest = after;
                let command = self.under_way.get_mut(&id).unwrap().remove(0);
                note(&mut self.history, at, command, Some((self.clock, &replies)));
            }
            client.received = rest.to_vec();
        }
    }

    fn round(&mut self) {
        let sessions = if self.is_tight { 4 } else { SESSIONS };
        self.ids = (0..sessions).map(|_| self.harness.connect(Protocol::Resp)).collect();
        self.under_way = self.ids.iter().map(|id| (*id, Vec::new())).collect();
        self.history = vec![vec![Vec::new(); sessions]; KEYS.len()];
        for _ in 0..self.rng.below(40) {
            if self.rng.below(3) == 0 {
                self.harness.run_once();
                if self.is_tight {
                    self.disturb();
                }
                self.listen();
            } else {
                self.send();
            }
        }
    }

    /// Ends the round: waits until idle and sometimes reopens with empty caches, or loses power.
    fn end_round(mut self) -> Self {
        let crashes = self.harness.options.durability == Durability::Sync && self.rng.below(3) == 0;
        self.harness.reads_replies = true;
        self.take_all();
        if !crashes {
            self.harness.run_out();
            self.harness.check_empty();
        }
        self.listen();
        for (at, id) in self.ids.clone().into_iter().enumerate() {
            for command in self.under_way.remove(&id).unwrap() {
                assert!(crashes, "an idle shard has answered every request");
                note(&mut self.history, at, command, None);
            }
        }
        for (key, before) in self.states.iter_mut().enumerate() {
            let after = finals(&self.history[key], before);
            if after.is_empty() {
                let text = format!("{before:?}: {:#?}", self.history[key]);
                panic!("not linearizable: key {} from {}", KEYS[key], text.replace("xxxx", ""));
            }
            *before = after;
        }
        self.harness = match self.rng.below(2) {
            _ if crashes => self.harness.crash(self.clock),
            0 => self.harness.reopen(),
            _ => self.harness,
        };
        self
    }
}

/// Adds a command to the histories of its keys.
fn note(
    history: &mut [Vec<Vec<ModelEvent>>],
    session: usize,
    command: ModelCommand,
    heard: Option<(u64, &Vec<String>)>,
) {
    let ModelCommand { parts, sent, is_list, may_fail } = command;
    // FLUSHALL names no key; it is an operation on every key.
    if parts.is_empty() {
        for key in history.iter_mut() {
            let (heard, reply) = heard.map_or((u64::MAX, None), |(heard, _)| (heard, Some("+OK".to_owned())));
            key[session].push(ModelEvent { op: Op::Flush, sent, heard, reply });
        }
        return;
    }
    for (part, (key, op)) in parts.into_iter().enumerate() {
        let reply = heard.map(|(_, replies)| replies[if is_list && replies.len() > 1 { part } else { 0 }].clone());
        if may_fail && reply.as_deref() == Some("-") {
            continue;
        }
        let heard = heard.map_or(u64::MAX, |(heard, _)| heard);
        history[key][session].push(ModelEvent { op, sent, heard, reply });
    }
}

fn rounds<H: ClientService>(mut run: ModelRun<H>)
where
    TestHarness<H, ShardOptions>: Restarts,
{
    for _ in 0..8 {
        run.round();
        run = run.end_round();
    }
}

#[test]
fn histories_are_linearizable_and_survive_crashes() {
    for seed in seeds("histories_are_linearizable", 0..400) {
        rounds(ModelRun::new(seed, ShardHarness::with(sim(seed), shard_options(durability(seed))), false));
    }
}

#[test]
fn histories_of_several_shards_are_linearizable_and_survive_crashes() {
    for seed in seeds("histories_of_several_shards", 0..300) {
        let options = ShardOptions {
            // A budget so small that long values must be requested again.
            replies_bytes_max: if seed % 2 == 0 { 24 << 10 } else { 1 << 20 },
            ..shard_options(durability(seed))
        };
        let count = 2 + (seed % 3) as u16;
        rounds(ModelRun::<Several>::new(seed, shards::harness(count, sim(seed), options), true));
    }
}

#[test]
fn histories_of_slow_clients_under_tiny_budgets_are_linearizable() {
    // Seed 1180: a session ends while it exceeds the limit, and one that runs is above it too.
    for seed in seeds("histories_of_slow_clients", 0..200).chain([1180]) {
        let options = ShardOptions {
            replies_bytes_max: [2 << 10, 24 << 10, 100 << 10][(seed / 3 % 3) as usize],
            session_output_bytes_max: if seed.is_multiple_of(2) { 20_000 } else { 1 << 20 },
            session_pending_max: 1 + (seed % 30) as usize,
            pending_max: 10 + (seed % 7 * 10) as usize,
            uncommitted_max: 3 + seed % 20,
            epoch_writes_max: if seed % 3 == 1 { 30 + seed % 50 } else { Version::SEQ_SOFT_MAX },
            ..shard_options(durability(seed))
        };
        let count = 1 + (seed / 2 % 4) as u16;
        let harness = shards::harness(count, sim(seed), options);
        rounds(ModelRun::<Several> { is_tight: true, ..ModelRun::new(seed, harness, count > 1) });
    }
}

#[test]
fn checker_refuses_a_stale_read() {
    let event = |op, sent, heard, reply: &str| ModelEvent { op, sent, heard, reply: Some(reply.to_owned()) };
    let writes = vec![event(Op::Set("1".into()), 1, 2, "+OK"), event(Op::Set("2".into()), 3, 4, "+OK")];
    let before = BTreeSet::from([None]);
    for (value, is_fine) in [("$2", true), ("$1", false), ("$-1", false)] {
        let reads = vec![event(Op::Get, 5, 6, value)];
        assert_eq!(!finals(&[writes.clone(), reads], &before).is_empty(), is_fine, "{value}");
    }
    let reads = vec![event(Op::Get, 3, 4, "$2"), event(Op::Get, 3, 5, "$1")];
    assert!(finals(&[writes, reads], &before).is_empty(), "a session's later reads are not older");
}
